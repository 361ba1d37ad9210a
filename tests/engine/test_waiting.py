"""Who waits for whom, and for how long: nothing starves, and nothing hangs behind another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from engine_driver import join
from hash_engine import NEUTRAL, assert_nothing_is_held, hash_driver, hash_engine
from hash_model import expected_tokens

from radixray.engine.engine import Engine, StepOutput
from radixray.engine.thread import EngineThread
from radixray.protocol import Delta, GenerateRequest, SamplingParams
from radixray.tokenizer.tokenizer import Tokenizer

neutral = pytest.mark.parametrize("settings", NEUTRAL, ids=str)


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def small(number: int, max_tokens: int = 12) -> GenerateRequest:
    prompt = [3 + number % 250, 3 + number // 250 % 250, 9, 9, 9, 9]
    return GenerateRequest(
        request_id=f"small{number}", prompt_ids=prompt, sampling=greedy(max_tokens)
    )


@neutral
@pytest.mark.parametrize("schedule_policy", ["lpm", "fcfs"])
def test_a_request_too_large_for_now_neither_blocks_nor_starves(
    tokenizer: Tokenizer, schedule_policy: str, settings: dict[str, Any]
) -> None:
    """Small ones that fit pass it, and it still starts under a stream of them without end."""
    engine, _ = hash_engine(
        tokenizer,
        pool_tokens=200,
        max_num_seqs=8,
        schedule_policy=schedule_policy,
        **settings,
    )
    large = GenerateRequest(
        request_id="large", prompt_ids=[3 + i for i in range(170)], sampling=greedy(10)
    )
    number = steps = came = passed = 0
    deltas: list[Delta] = []
    while not deltas or deltas[-1].finish_reason is None:
        while len(engine.roster.waiting) < 12:
            number += 1
            # Of different lengths, so that they do not all end at once.
            engine.add(small(number, 5 + number * 7 % 23))
        if steps == 20:
            came, after = steps, number
            engine.add(large)
        for delta in engine.step().deltas:
            if delta.request_id == "large":
                deltas.append(delta)
            elif steps > 20 and not deltas and delta.index == 0:
                passed += int(delta.request_id.removeprefix("small")) > after
        steps += 1
        assert steps < came + 400, "it starves"
    assert passed > 0, "it blocked those that fit"
    assert join(deltas).token_ids == expected_tokens(large.prompt_ids, greedy(10), 10)


@neutral
@pytest.mark.parametrize("schedule_policy", ["lpm", "fcfs"])
@pytest.mark.parametrize("large", [1, 8, 30])
def test_a_single_free_place_is_not_kept_by_those_that_do_not_fit(
    tokenizer: Tokenizer, schedule_policy: str, large: int, settings: dict[str, Any]
) -> None:
    """However many large requests wait before it, a small one that fits takes the place."""
    engine, _ = hash_engine(
        tokenizer,
        pool_tokens=400,
        context=400,
        max_num_seqs=4,
        schedule_policy=schedule_policy,
        **settings,
    )
    for n in range(3):
        engine.add(small(n, 90))
    engine.step()
    for n in range(large):
        prompt = [100 + n] * 350
        engine.add(GenerateRequest(request_id=f"large{n}", prompt_ids=prompt, sampling=greedy(2)))
    engine.add(small(3, 2))
    done: list[str] = []
    for _ in range(10):
        done += [delta.request_id for delta in engine.step().deltas if delta.finish_reason]
    assert done == ["small3"]
    while engine.has_work:
        done += [delta.request_id for delta in engine.step().deltas if delta.finish_reason]
    assert len(done) == 4 + large


@neutral
@pytest.mark.parametrize("page_size", [1, 16])
def test_what_never_fits_is_refused_at_once_and_nothing_waits_behind_it(
    tokenizer: Tokenizer, page_size: int, settings: dict[str, Any]
) -> None:
    """A prompt larger than the pool is an error at once; others run before and after."""
    driver = hash_driver(tokenizer, page_size=page_size, pool_tokens=96, **settings)
    outputs: list[StepOutput] = []
    thread = EngineThread(lambda: driver.engine, outputs.append)

    def last(name: str, within: float) -> Delta:
        end = time.monotonic() + within
        while True:
            for output in outputs[:]:
                for delta in output.deltas:
                    if delta.request_id == name and delta.finish_reason is not None:
                        return delta
            assert time.monotonic() < end, f"{name} hangs"
            time.sleep(0.005)

    try:
        thread.submit(small(1, 60))
        thread.submit(GenerateRequest(request_id="huge", prompt_ids=[5] * 120))
        thread.submit(small(2, 5))
        error = last("huge", 5).error
        assert error is not None and error.type == "ContextLengthError"
        assert error.param == "prompt" and "96" in error.message
        assert last("small2", 10).finish_reason == "length"
        assert last("small1", 10).finish_reason == "length"
    finally:
        thread.stop()
    assert_nothing_is_held(driver.engine)


@neutral
@pytest.mark.parametrize("page_size", [1, 16])
def test_every_request_that_is_let_in_fits_alone(
    tokenizer: Tokenizer, page_size: int, settings: dict[str, Any]
) -> None:
    """At the very limit, in a pool full of others' prefixes, it runs to its last token."""
    driver = hash_driver(
        tokenizer, page_size=page_size, pool_tokens=96, max_batch_tokens=16, **settings
    )
    for length in (95, 80, 65, 1):
        driver.one([7 + length % 100] * 30, greedy(5))
        prompt = [3 + i for i in range(length)]
        out = driver.one(prompt, greedy(96 - length))
        assert out.token_ids == expected_tokens(prompt, greedy(96 - length), 96 - length)


@neutral
def test_nobody_waits_for_a_prefix_that_no_page_can_hold(
    tokenizer: Tokenizer, settings: dict[str, Any]
) -> None:
    """Prompts that share less than a page gain nothing by waiting, so they start together."""
    engine, _ = hash_engine(
        tokenizer, page_size=64, pool_tokens=64 * 40, max_batch_tokens=2000, **settings
    )
    for n in range(12):
        prompt = [*range(3, 53), *[60 + n] * 20]
        engine.add(GenerateRequest(request_id=f"r{n}", prompt_ids=prompt, sampling=greedy(4)))
    engine.step()
    assert len(engine.roster.running) == 12
    last = [d for output in iter_steps(engine) for d in output if d.finish_reason]
    assert [delta.usage.cached for delta in last] == [0] * 12


def iter_steps(engine: Engine) -> Iterator[list[Delta]]:
    while engine.has_work:
        yield engine.step().deltas


@neutral
def test_the_turn_after_a_cut_continues_from_what_was_seen(
    tokenizer: Tokenizer, settings: dict[str, Any]
) -> None:
    """Aborted after any number of tokens: the next turn's prompt is what its caller says it is.

    Tokens that were computed but never seen are no part of it.
    """
    for cut in range(1, 8):
        driver = hash_driver(tokenizer, **settings)
        engine = driver.engine
        prompt = [3 + i * 5 % 250 for i in range(40)]
        first = driver.request(prompt, greedy(100))
        engine.add(first)
        seen: list[int] = []
        while len(seen) < cut:
            for delta in engine.step().deltas:
                seen += delta.token_ids
        engine.step()  # one more that its caller does not wait for
        engine.abort(first.request_id)
        end = driver.drain()[first.request_id][-1]
        assert end.finish_reason == "abort"
        turn = [*prompt, *seen[:1], 17, 18, 19]
        out = driver.one(turn, greedy(20))
        assert out.usage.prompt == len(turn)
        # The prompt, and of the answer what was seen of it, were computed already.
        assert len(prompt) <= out.usage.cached <= len(prompt) + 1
        assert out.token_ids == expected_tokens(turn, greedy(20), 20)
        assert_nothing_is_held(engine)
