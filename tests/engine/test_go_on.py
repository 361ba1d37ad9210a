"""An output that another engine goes on with, behind any Delta, is the output of one engine."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from engine_driver import EngineDriver
from test_jump_forward import VOCABULARY, make, requests

from radixray.errors import ContextLengthError, EngineError, InvalidRequestError
from radixray.fsm.compiler import compile_constraint
from radixray.protocol import (
    Constraint,
    Delta,
    Emitted,
    GenerateRequest,
    SamplingParams,
    join_deltas,
)


def behind(deltas: list[Delta]) -> Emitted:
    """What a caller has that got these Deltas."""
    had = join_deltas(deltas)
    return Emitted(
        token_ids=had.token_ids,
        text_length=len(had.text),
        jumped=had.jumped,
        cached=had.usage.cached if had.usage is not None else 0,
    )


def test_constrained() -> None:
    """All patterns, with stops, penalties, seeds and log-probabilities, behind each Delta."""

    def run(request: GenerateRequest) -> list[Delta]:
        driver = EngineDriver(make(640, 1, 48))
        assert request.constraint is not None
        matcher = compile_constraint(request.constraint, VOCABULARY).matcher()
        driver.engine.add(request, matcher)
        return driver.drain()[request.request_id]

    cuts = 0
    for request in requests(3, 60):
        deltas = run(request)
        for cut in range(1, len(deltas)):
            emitted = behind(deltas[:cut])
            if not emitted.token_ids:
                continue
            cuts += 1
            again = run(msgspec.structs.replace(request, emitted=emitted))
            assert join_deltas(again) == join_deltas(deltas[cut:]), (request, cut)
    assert cuts > 120


PROMPTS = [
    "Translate to emoji: I love pizza and cats 🍕",
    "Once upon a time",
    "日本語で数えると、一、",
]


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0, max_tokens=24),
        SamplingParams(temperature=1.3, seed=7, max_tokens=24, frequency_penalty=0.7, logprobs=2),
        SamplingParams(temperature=1.0, seed=3, max_tokens=24, repetition_penalty=1.2, min_tokens=9,
                       stop=("the ", "a", "。")),
    ],
)  # fmt: skip
def test_real_model(make_engine: Callable[..., EngineDriver], sampling: SamplingParams) -> None:
    """Also where a Delta ends within a character, or within what may become a stop string."""
    driver = make_engine(dtype="bfloat16")
    rng = random.Random(0)
    for prompt in PROMPTS:
        request = driver.request(driver.engine.tokenizer.encode(prompt), sampling)
        driver.engine.add(request)
        deltas = driver.drain()[request.request_id]
        for cut in rng.sample(range(1, len(deltas)), min(8, len(deltas) - 1)):
            other = make_engine(dtype="bfloat16")
            other.engine.add(msgspec.structs.replace(request, emitted=behind(deltas[:cut])))
            got = join_deltas(other.drain()[request.request_id])
            assert got == join_deltas(deltas[cut:])


def test_an_attempt_after_a_death_says_that_it_has_begun() -> None:
    driver = EngineDriver(make(640, 1, 48))
    request = GenerateRequest(
        request_id="r", prompt_ids=[5] * 100, sampling=SamplingParams(max_tokens=3, temperature=0)
    )
    driver.engine.add(msgspec.structs.replace(request, attempt=1))
    first, *others = driver.drain()["r"]
    assert (first.token_ids, first.index, first.finish_reason) == ([], 0, None)
    driver.engine.add(request)
    assert join_deltas(driver.drain()["r"]).token_ids == join_deltas(others).token_ids


def test_refused() -> None:
    driver = EngineDriver(make(640, 1, 48))
    request = GenerateRequest(
        request_id="r", prompt_ids=[5, 6], sampling=SamplingParams(max_tokens=3, temperature=0)
    )

    def go_on(emitted: Emitted) -> None:
        driver.engine.add(msgspec.structs.replace(request, emitted=emitted))

    for token_ids in ([], [7, 7, 7], [10_000]):
        with pytest.raises(InvalidRequestError) as caught:
            go_on(Emitted(token_ids=token_ids, text_length=0))
        assert caught.value.param == "emitted"
        assert not isinstance(caught.value, ContextLengthError)
    with pytest.raises(EngineError, match="text"):
        go_on(Emitted(token_ids=[ord("a")], text_length=5))
    go_on(Emitted(token_ids=[ord("a")], text_length=1))
    assert driver.drain()["r"][0].index == 1


def test_tokens_the_constraint_does_not_allow() -> None:
    driver = EngineDriver(make(640, 1, 48))
    constraint = Constraint(regex="abc")
    request = GenerateRequest(
        request_id="r",
        prompt_ids=[5],
        constraint=constraint,
        emitted=Emitted(token_ids=[ord("x")], text_length=1),
    )
    driver.engine.add(request, compile_constraint(constraint, VOCABULARY).matcher())
    (delta,) = driver.drain()["r"]
    assert delta.finish_reason == "grammar_error"
