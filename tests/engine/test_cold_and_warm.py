"""What was computed before changes no answer, and is not computed again."""

from __future__ import annotations

from typing import Any

import pytest
from engine_driver import EngineDriver, join
from hash_engine import NEUTRAL, hash_driver
from hash_model import expected_logprobs, expected_tokens

from radixray.config import EngineConfig
from radixray.engine.build import build_engine
from radixray.protocol import Delta, GenerateRequest, SamplingParams, TokenLogprob
from radixray.tokenizer.tokenizer import Tokenizer

neutral = pytest.mark.parametrize("settings", NEUTRAL, ids=str)

TOPICS = ["rivers", "bread", "the moon", "glass", "owls", "salt", "old maps", "rain", "rope", "tea"]
OPENINGS = ["Tell me about", "A short poem on", "Three facts of", "def describe(): # about"]
PROMPTS = [f"{opening} {topic}" for topic in TOPICS for opening in OPENINGS]

Answer = tuple[list[int], list[TokenLogprob]]


def answers(driver: EngineDriver, salts: list[str]) -> tuple[list[Answer], list[int]]:
    """Tokens and log-probabilities of 40 prompts at once, and what each found in the cache."""
    encode = driver.engine.tokenizer.encode
    sampling = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logprobs=2)
    requests = [
        driver.request(encode(text), sampling, cache_salt=salt)
        for text, salt in zip(PROMPTS, salts, strict=True)
    ]
    for request in requests:
        driver.engine.add(request)
    found = driver.drain()
    deltas = [found[request.request_id] for request in requests]
    return (
        [(join(mine).token_ids, logprobs_of(mine)) for mine in deltas],
        [join(mine).usage.cached for mine in deltas],
    )


def logprobs_of(deltas: list[Delta]) -> list[TokenLogprob]:
    return [entry for delta in deltas for entry in delta.logprobs or []]


def test_forty_prompts_cold_and_warm_and_warm(make_engine: Any, native_kernels: None) -> None:
    """Token ids and log-probabilities are the same bits; the warm runs do use the cache."""
    driver: EngineDriver = make_engine()
    salts = [str(n) for n in range(len(PROMPTS))]  # so that no prompt warms another
    cold, found = answers(driver, salts)
    assert found == [0] * 40
    assert all(len(ids) == len(logprobs) == 5 for ids, logprobs in cold)
    assert len({tuple(ids) for ids, _ in cold}) > 20  # answers that could differ
    lengths = [len(driver.engine.tokenizer.encode(text)) for text in PROMPTS]
    for _ in range(2):
        warm, found = answers(driver, salts)
        assert found == [length - 1 for length in lengths]
        assert warm == cold


@neutral
@pytest.mark.parametrize(("page_size", "chunk"), [(1, 48), (1, 7), (16, 48), (16, 5)])
@pytest.mark.parametrize("first", [1, 2, 33, 40, 60])
def test_prompt_logprobs_whatever_is_cached(
    tokenizer: Tokenizer, page_size: int, chunk: int, first: int, settings: dict[str, Any]
) -> None:
    """Cold, warm, and after other prompts that overlap: one for each token asked for, the same."""
    driver = hash_driver(tokenizer, page_size=page_size, max_batch_tokens=chunk, **settings)
    prompt = [3 + i * 11 % 250 for i in range(60)]
    sampling = SamplingParams(temperature=0, max_tokens=4, prompt_logprobs_from=first, logprobs=0)
    want = [0.0, *expected_logprobs(prompt[:1], prompt[1:])]
    reusable = (first - 1) // page_size * page_size

    def ask(prompt: list[int]) -> tuple[list[TokenLogprob] | None, int]:
        request = driver.request(prompt, sampling)
        driver.engine.add(request)
        deltas = driver.drain()[request.request_id]
        out = join(deltas)
        assert out.token_ids == expected_tokens(prompt, sampling, 4)
        assert len(logprobs_of(deltas)) == 4
        assert all(delta.prompt_logprobs is None for delta in deltas[1:])
        return deltas[0].prompt_logprobs, out.usage.cached

    # One that is alike up to the middle, with its own log-probabilities after it.
    other = [*prompt[:30], *[9] * 40]
    for overlap_first in (False, True):
        driver.engine.cache.flush()
        if overlap_first:
            ask(other)
        for warm in (False, True, True):
            got, cached = ask(prompt)
            assert got is not None and [entry.token_id for entry in got] == prompt[first:]
            assert [e.logprob for e in got] == pytest.approx(want[first:], abs=1e-5)
            if warm:
                assert cached == reusable
            elif not overlap_first:
                assert cached == 0


def test_a_shared_prefix_is_found_with_the_settings_as_they_are() -> None:
    """Two requests that share 561 tokens, one after the other has begun: the second finds them.

    With the cache switched off it finds nothing, so the setting does something.
    """
    found: dict[bool, int] = {}
    for enabled, length in ((True, 561), (False, 100)):
        settings = {} if enabled else {"prefix_cache": False}
        driver = EngineDriver(build_engine(EngineConfig(max_total_tokens=2048, **settings)))
        prefix = [100 + i * 31 % 9000 for i in range(length)]
        sampling = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
        engine = driver.engine
        engine.add(GenerateRequest(request_id="a", prompt_ids=[*prefix, 5], sampling=sampling))
        for _ in range(3):  # in chunks; it still runs
            engine.step()
        engine.add(GenerateRequest(request_id="b", prompt_ids=[*prefix, 6], sampling=sampling))
        deltas = driver.drain()
        assert deltas["a"][-1].finish_reason == "length"
        found[enabled] = join(deltas["b"]).usage.cached
    assert found == {True: 561, False: 0}
