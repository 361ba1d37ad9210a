"""Outputs and their log-probabilities, to the last bit, whatever cache, batch and chunks do.

Holds on the native CPU kernels and on numba's, in float32 and in bfloat16.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from engine_driver import EngineDriver

from radixray.config import Dtype
from radixray.kernels.cpu.select import numba_kernels
from radixray.protocol import Delta, SamplingParams, TokenLogprob

TEXTS = [
    "The harbour was quiet in the morning, and",
    "List three colours:",
    "a",
    "def add(a, b):\n    return",
    "Once upon a time there was a keeper of a lighthouse. " * 8,
    "Once upon a time there was a keeper of a lighthouse. " * 8 + "He wrote",
]
PARAMS = [
    SamplingParams(
        temperature=temperature,
        seed=seed,
        max_tokens=10,
        ignore_eos=True,
        logprobs=2,
        prompt_logprobs_from=first,
    )
    for seed, (temperature, first) in enumerate(
        itertools.product((0.0, 0.9), (None, 1, None)), start=1
    )
]

Bits = tuple[list[int], list[TokenLogprob], list[TokenLogprob] | None]


def bits(deltas: list[Delta]) -> Bits:
    ids = [t for d in deltas for t in d.token_ids]
    return ids, [t for d in deltas for t in d.logprobs or []], deltas[0].prompt_logprobs


def run(driver: EngineDriver, copies: int = 1, retract_every: int = 0) -> list[Bits]:
    """All requests at once, `copies` times; every copy must give the same."""
    engine = driver.engine
    encode = engine.tokenizer.encode
    requests = [
        driver.request(encode(text), params)
        for _ in range(copies)
        for text, params in zip(TEXTS, PARAMS, strict=True)
    ]
    for request in requests:
        engine.add(request)
    found: dict[str, list[Delta]] = {}
    steps = 0
    while engine.has_work:
        steps += 1
        if retract_every and steps % retract_every == 0 and len(engine.roster.running) > 1:
            engine.roster.retract(list(engine.roster.running.values())[-1])
        for delta in engine.step().deltas:
            found.setdefault(delta.request_id, []).append(delta)
    results = [bits(found[request.request_id]) for request in requests]
    for start in range(len(TEXTS), len(results), len(TEXTS)):
        assert results[start : start + len(TEXTS)] == results[: len(TEXTS)]
    return results[: len(TEXTS)]


@pytest.mark.parametrize(
    ("kernels", "dtype"), [("native", "float32"), ("native", "bfloat16"), ("numba", "bfloat16")]
)
def test_every_bit_is_the_same(
    make_engine: Any,
    native_kernels: None,
    monkeypatch: pytest.MonkeyPatch,
    kernels: str,
    dtype: Dtype,
) -> None:
    driver: EngineDriver = make_engine(dtype=dtype)
    if kernels == "numba":  # all engines here share the model
        monkeypatch.setattr(driver.engine._model, "kernels", numba_kernels())
    encode = driver.engine.tokenizer.encode
    alone: list[Bits] = []
    for index, (text, params) in enumerate(zip(TEXTS, PARAMS, strict=True)):
        request = driver.request(encode(text), params, cache_salt=str(index))
        driver.engine.add(request)
        alone.append(bits(driver.drain()[request.request_id]))
    assert all(len(ids) == 10 == len(logprobs) for ids, logprobs, _ in alone)
    assert run(driver) == alone  # together, and partly warm from each other
    assert run(driver) == alone  # warm
    assert run(driver, copies=5) == alone  # a batch of 30
    for chunk in (1, 7, 64):
        assert run(make_engine(dtype=dtype, chunked_prefill_size=chunk)) == alone
    for page_size in (16, 64):
        paged = make_engine(dtype=dtype, page_size=page_size)
        assert run(paged) == alone
        assert run(paged) == alone
    assert run(make_engine(dtype=dtype, prefix_cache=False)) == alone
    for every in (1, 3):
        assert run(make_engine(dtype=dtype), retract_every=every) == alone
    tight = make_engine(dtype=dtype, pool_tokens=150)
    assert run(tight) == alone
    assert tight.engine.stats.retractions > 0
