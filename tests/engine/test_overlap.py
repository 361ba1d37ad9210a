"""What is done while the model computes, and that it is done then."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch
from engine_driver import EngineDriver, join

from radixray.engine.engine import StepOutput
from radixray.engine.output_text import OutputText
from radixray.engine.thread import EngineThread
from radixray.engine.waiting import (
    CANDIDATES_PER_SEAT,
    FEWEST_CANDIDATES,
    RANK_AHEAD,
    WaitingQueue,
)
from radixray.protocol import SamplingParams
from radixray.scheduler.order import POLICIES, in_order

PROMPT = [11, 12, 13, 14]


def test_text_is_told_while_the_model_computes(make_engine: Any) -> None:
    driver: EngineDriver = make_engine()
    engine = driver.engine
    request = driver.request(PROMPT, SamplingParams(max_tokens=6, temperature=0, ignore_eos=True))
    engine.add(request)
    told = threading.Event()
    forward = engine._model.forward

    def waits_until_told(*args: Any) -> torch.Tensor:
        assert told.wait(10), "nothing was told while the model computed"
        return forward(*args)

    engine._model.forward = waits_until_told  # type: ignore[method-assign]
    outputs: list[StepOutput] = []

    def tell(output: StepOutput) -> None:
        outputs.append(output)
        told.set()

    try:
        while engine.has_work:
            engine.step(tell)
            told.clear()
    finally:
        engine._model.forward = forward  # type: ignore[method-assign]
    deltas = [delta for output in outputs for delta in output.deltas]
    assert len(join(deltas).token_ids) == 6


def test_outputs_are_the_same_without(make_engine: Any) -> None:
    with_overlap, without = make_engine(), make_engine(overlap=False)
    sampling = [
        SamplingParams(max_tokens=12, seed=4, logprobs=2),
        SamplingParams(max_tokens=30, temperature=0, stop=(" the", "\n")),
        SamplingParams(max_tokens=0),
        SamplingParams(max_tokens=9, temperature=0, prompt_logprobs_from=1),
    ]
    prompts = [PROMPT, [*PROMPT, 900], [7] * 30, [5, 6, 7]]
    assert with_overlap.generate(prompts, sampling) == without.generate(prompts, sampling)


def test_an_abort_tells_the_tokens_that_were_not_yet_told(make_engine: Any) -> None:
    driver: EngineDriver = make_engine()
    alone = driver.one(PROMPT)
    request = driver.request(PROMPT)
    driver.engine.add(request)
    deltas = [delta for _ in range(4) for delta in driver.engine.step().deltas]
    driver.engine.abort(request.request_id)
    deltas += driver.drain()[request.request_id]
    output = join(deltas)
    assert output.finish_reason == "abort" and len(output.token_ids) == 4
    assert alone.token_ids[:4] == output.token_ids and alone.text.startswith(output.text)


def test_a_fault_while_making_text_ends_requests_and_nothing_else(
    make_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug of ours, in the other thread: all hear of it, and the next request works."""
    driver: EngineDriver = make_engine()
    expected = driver.one(PROMPT)
    driver.engine.cache.flush()
    outputs: list[StepOutput] = []
    ended = threading.Event()

    def sink(output: StepOutput) -> None:
        outputs.append(output)
        if any(delta.finish_reason for delta in output.deltas):
            ended.set()

    thread = EngineThread(lambda: driver.engine, sink)
    try:
        with monkeypatch.context() as patch:

            def breaks(text: OutputText) -> str:
                raise RuntimeError("no words")

            patch.setattr(OutputText, "take", breaks)
            broken = driver.request(PROMPT)
            thread.submit(broken)
            assert ended.wait(20)
        last = outputs[-1].deltas[-1]
        assert last.request_id == broken.request_id and last.error is not None
        assert "no words" in last.error.message
        ended.clear()
        outputs.clear()
        thread.submit(driver.request(PROMPT))
        assert ended.wait(20)
        deltas = [delta for output in outputs for delta in output.deltas]
        assert join(deltas).token_ids == expected.token_ids
    finally:
        thread.stop()


class Waiter:
    """A sequence as the queue sees it."""

    def __init__(self, rng: random.Random, number: int) -> None:
        self.sequence_id = f"s{number}"
        self.arrival = number
        self.since_step = number // 50
        self.priority = rng.randint(-3, 3)
        self.max_new = rng.randint(1, 500)
        self.matched = rng.randint(0, 900)
        self.draw = rng.random()

    def cached_path(self) -> list[int]:
        return [self.matched // 300, 10 + self.matched // 30]


@pytest.mark.parametrize("policy", POLICIES)
def test_an_order_found_ahead_is_the_order(policy: Any) -> None:
    rng = random.Random(3)
    queue = WaitingQueue(policy)
    everyone = [Waiter(rng, number) for number in range(RANK_AHEAD + 500)]
    late = [Waiter(rng, len(everyone) + number) for number in range(20)]
    for waiter in everyone:
        queue.add(waiter)  # type: ignore[arg-type]
    queue.rank_ahead()
    for waiter in late:
        queue.add(waiter)  # type: ignore[arg-type]
    gone = {waiter.sequence_id for waiter in [*rng.sample(everyone, 300), *late[:3]]}
    for sequence_id in gone:
        queue.pop(sequence_id)
    left = [waiter for waiter in [*everyone, *late] if waiter.sequence_id not in gone]
    want = in_order(policy, left)[: max(FEWEST_CANDIDATES, CANDIDATES_PER_SEAT * 10)]
    if policy == "dfs-weight":
        # Which subtree weighs most is judged among the candidates only.
        assert len(queue.candidates(10)) == len(want)
    else:
        assert queue.candidates(10) == want
    assert len(queue) == len(left)
