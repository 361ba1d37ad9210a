"""What an engine counts, against a clock that we move and Deltas that we read."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from engine_driver import EngineDriver
from hash_engine import hash_driver, hash_engine
from hash_model import VOCAB

from radixray.engine import counters, engine, tasks
from radixray.errors import EngineError, OverloadedError
from radixray.protocol import Delta, GenerateRequest, SamplingParams, ScoreRequest
from radixray.tokenizer.tokenizer import Tokenizer


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (counters, tasks, engine):
        monkeypatch.setattr(module, "time", clock)
    return clock


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def test_times_of_a_request(tokenizer: Tokenizer, clock: Clock) -> None:
    driver = hash_driver(tokenizer, max_num_seqs=1)
    for number, arrived in enumerate((90.0, 95.0)):
        driver.engine.add(
            GenerateRequest(request_id=f"r{number}", prompt_ids=[5, 6, 7], sampling=greedy(3)),
            arrived=arrived,
        )
    # One seat: the first has its tokens at 101, 103, 106; the second at 110, 115, 121.
    for clock.now in (101.0, 103.0, 106.0, 110.0, 115.0, 121.0):
        driver.engine.step()
    found = driver.engine.counters.metrics
    totals = {
        name: (histogram.count, histogram.total)
        for name, histogram in (
            ("queue", found.queue),
            ("first_token", found.first_token),
            ("inter_token", found.inter_token),
            ("per_output_token", found.per_output_token),
            ("decode", found.decode),
            ("prefill", found.prefill),
            ("inference", found.inference),
            ("whole", found.whole),
        )
    }
    assert totals == {
        "queue": (2, 11 + 15),
        "first_token": (2, 11 + 15),
        "inter_token": (4, 2 + 3 + 5 + 6),
        "per_output_token": (2, 2.5 + 5.5),
        "decode": (2, 5 + 11),
        "prefill": (2, 0),
        "inference": (2, 5 + 11),
        "whole": (2, 16 + 26),
    }
    # 2 and 3 and 5 have bounds of their own; 6 belongs to the next one.
    by_bound = dict(zip(found.inter_token.bounds, found.inter_token.counts, strict=False))
    assert {bound: count for bound, count in by_bound.items() if count} == {2: 1, 5: 2, 10: 1}
    # The second finds two tokens of its prompt cached.
    assert (found.step["prefill"].count, found.step["decode"].count) == (1, 5)
    assert (found.step_tokens.count, found.step_tokens.total) == (6, 3 + 2 + 1 + 2)


def test_counts_are_those_of_the_answers(tokenizer: Tokenizer) -> None:
    """Two hundred requests with retractions and aborts, counted again from their Deltas."""
    driver = hash_driver(tokenizer, pool_tokens=300)
    rng, begun = random.Random(4), 0
    shared = [rng.randrange(3, VOCAB) for _ in range(30)]
    last: dict[str, Delta] = {}
    asked: dict[str, GenerateRequest] = {}
    for turn in range(3_000):
        if begun < 200 and turn % 2 == 0:
            prompt = shared[: rng.randrange(30)] + [rng.randrange(3, VOCAB) for _ in range(9)]
            request = driver.request(prompt, greedy(rng.randint(1, 60)))
            asked[request.request_id] = request
            driver.engine.add(request)
            begun += 1
            if rng.random() < 0.1:
                driver.engine.abort(rng.choice(list(asked)))
        for delta in driver.engine.step().deltas:
            if delta.finish_reason is not None:
                last[delta.request_id] = delta
        if begun == 200 and not driver.engine.has_work:
            break
    stats, found = driver.engine.snapshot_stats(), driver.engine.counters.metrics
    assert stats.retractions > 0
    assert len(last) == 200
    ends = Counter(delta.finish_reason for delta in last.values())
    assert found.finished == ends
    assert ends["abort"] > 0
    usages = [delta.usage for delta in last.values() if delta.usage is not None]
    assert len(usages) == 200
    prompts = sum(len(request.prompt_ids) for request in asked.values())
    assert (found.prompt_length.count, found.prompt_length.total) == (200, prompts)
    cached = sum(usage.cached for usage in usages)
    assert (found.cached_tokens, found.uncached_length.total) == (cached, prompts - cached)
    assert cached > 0
    assert found.queue.count >= 200 - ends["abort"]  # some were aborted while they waited
    assert (
        prompts
        >= found.prompt_tokens
        >= prompts
        - sum(
            len(asked[name].prompt_ids)
            for name, delta in last.items()
            if delta.finish_reason == "abort"
        )
    )
    outputs = sum(usage.completion for usage in usages)
    assert (found.output_length.count, found.output_length.total) == (200, outputs)
    spoke = sum(usage.completion > 0 for usage in usages)
    assert found.first_token.count == spoke
    assert found.inter_token.count == outputs - spoke
    assert found.step["prefill"].count + found.step["decode"].count == found.step_tokens.count


def test_refused_failed_and_scored(tokenizer: Tokenizer) -> None:
    engine, _ = hash_engine(tokenizer)
    driver = EngineDriver(engine)
    driver.score([5, 6, 7], [[8], [9, 10]])
    assert engine.counters.metrics.finished == {"stop": 1}
    assert engine.counters.metrics.first_token.count == 0
    driver.engine.add(driver.request([5, 6], greedy(5)))
    engine.step()
    engine.reset(EngineError("broken"))
    assert engine.counters.metrics.finished == {"stop": 1, "error": 1}
    engine.info = msgspec.structs.replace(engine.info, max_queued_requests=0)
    with pytest.raises(OverloadedError):
        engine.add(ScoreRequest(request_id="s", prompt_ids=[5], choices=[[6]]))
    assert engine.counters.metrics.refused == 1


def test_the_queue_by_priority(tokenizer: Tokenizer) -> None:
    driver = hash_driver(tokenizer)
    for number, priority in enumerate((0, 3, 3, -1)):
        driver.engine.add(
            GenerateRequest(request_id=f"r{number}", prompt_ids=[5], priority=priority)
        )
    report = driver.engine.report()
    assert report.queued == {0: 1, 3: 2, -1: 1}
    assert report.stats.waiting == 4
    assert report.pages_used == 0
    driver.engine.step()
    assert driver.engine.report().queued == {}
    assert driver.engine.report().pages_used > 0
