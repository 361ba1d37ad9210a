"""Thousands of random requests through a pool a tenth of what they need.

`RADIXRAY_SOAK_REQUESTS` sets how many (`make soak`).
"""

from __future__ import annotations

import gc
import os
import random
import resource

import msgspec
import pytest
from engine_driver import join
from hash_engine import hash_engine
from hash_model import VOCAB, HashModel, expected_logprobs, expected_tokens

from radixray.config import EvictionPolicy, SchedulePolicy
from radixray.engine.engine import Engine
from radixray.protocol import (
    Delta,
    GenerateRequest,
    Request,
    SamplingParams,
    ScoreRequest,
)
from radixray.scheduler.plan import FOLLOW_TOKENS, BatchPlan
from radixray.tokenizer.tokenizer import Tokenizer

REQUESTS = int(os.environ.get("RADIXRAY_SOAK_REQUESTS", "2000"))
POOL_TOKENS = 640
CONTEXT = 200


def make(
    tokenizer: Tokenizer,
    page_size: int,
    schedule_policy: SchedulePolicy,
    eviction_policy: EvictionPolicy,
    pool_tokens: int = POOL_TOKENS,
    *,
    overlap: bool = True,
) -> tuple[Engine, HashModel]:
    return hash_engine(
        tokenizer,
        page_size=page_size,
        pool_tokens=pool_tokens,
        context=CONTEXT,
        eviction_policy=eviction_policy,
        schedule_policy=schedule_policy,
        overlap=overlap,
    )


def random_request(rng: random.Random, number: int, prefixes: list[list[int]]) -> Request:
    """A turn of a conversation, a branch, a fresh prompt, or choices to score."""
    prompt = rng.choice(prefixes)[: rng.randint(1, 120)]
    prompt = prompt + [rng.randrange(3, VOCAB) for _ in range(rng.randint(0, 30))]
    salt = rng.choice(["", "", "", "salt"])
    if rng.random() < 0.15:
        choices = [
            [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 4))]
            for _ in range(rng.randint(1, 5))
        ]
        return ScoreRequest(
            request_id=f"r{number}", prompt_ids=prompt, choices=choices, cache_salt=salt
        )
    return GenerateRequest(
        request_id=f"r{number}",
        prompt_ids=prompt,
        cache_salt=salt,
        priority=rng.randint(-2, 2),
        sampling=SamplingParams(
            max_tokens=rng.choice([0, 1, 2, 5, 12, 30, CONTEXT - len(prompt)]),
            temperature=rng.choice([0.0, 0.0, 0.7, 1.3]),
            seed=rng.randrange(1, 1000),
            top_p=rng.choice([1.0, 0.9]),
            stop_token_ids=(rng.randrange(3, VOCAB),),
            ignore_eos=rng.random() < 0.5,
        ),
    )


def check(request: Request, deltas: list[Delta], aborted: bool) -> None:
    """The request ended as asked, with the tokens of a model that knows no cache."""
    last = deltas[-1]
    if aborted and last.finish_reason == "abort":
        return
    if isinstance(request, ScoreRequest):
        assert last.choice_logprobs is not None
        for choice, got in zip(request.choices, last.choice_logprobs, strict=True):
            assert got == pytest.approx(expected_logprobs(request.prompt_ids, choice), abs=1e-5)
        return
    output = join(deltas)
    sampling = request.sampling
    want = expected_tokens(request.prompt_ids, sampling, len(output.token_ids))
    assert output.token_ids == want
    ends = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else {2})
    assert not ends & set(want[:-1])
    if output.finish_reason == "stop":
        assert want[-1] in ends
    else:
        assert output.finish_reason == "length" and len(want) == sampling.max_tokens


@pytest.mark.parametrize(
    ("page_size", "schedule", "evict", "overlap"),
    [
        (1, "lpm", "lru", True),
        (1, "lpm", "lru", False),
        (4, "dfs-weight", "slru", True),
        (16, "priority", "priority", True),
        (2, "random", "lfu", False),
        (1, "lof", "fifo", True),
        (1, "fcfs", "mru", True),
    ],
)
def test_random_requests_end_as_asked(
    tokenizer: Tokenizer,
    page_size: int,
    schedule: SchedulePolicy,
    evict: EvictionPolicy,
    overlap: bool,
) -> None:
    rng = random.Random(page_size * 1000 + len(schedule))
    engine, _ = make(tokenizer, page_size, schedule, evict, overlap=overlap)
    prefixes = [[rng.randrange(3, VOCAB) for _ in range(150)] for _ in range(24)]
    requests: dict[str, Request] = {}
    deltas: dict[str, list[Delta]] = {}
    aborted: set[str] = set()
    number = ended = 0
    count = REQUESTS if (schedule, overlap) == ("lpm", True) else REQUESTS // 5
    memory = 0
    while ended < count:
        while number < count and len(requests) - ended < rng.randint(1, 60):
            request = random_request(rng, number, prefixes)
            number += 1
            requests[request.request_id] = request
            engine.add(request)
            if isinstance(request, GenerateRequest) and rng.random() < 0.3:
                # The next turn may go on from here.
                prefixes[rng.randrange(len(prefixes))] = request.prompt_ids[:150]
        if rng.random() < 0.1:
            victim = rng.choice(list(requests))
            aborted.add(victim)
            engine.abort(victim)  # long ended, waiting, running, half prefilled: whatever
        for delta in engine.step().deltas:
            deltas.setdefault(delta.request_id, []).append(delta)
            if delta.finish_reason is not None:
                ended += 1
                name = delta.request_id
                check(requests[name], deltas.pop(name), name in aborted)
        if ended > count // 2 and not memory:
            gc.collect()
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert not deltas and not engine.has_work
    stats = engine.snapshot_stats()
    assert stats.cached_tokens > 0
    assert stats.retractions > 0 or count < 1000
    assert stats.pages_leased == 0
    assert stats.pages_free + stats.pages_tree == stats.pages_total
    # Peak memory, in KiB, hardly moves over the second half.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 64 * 1024


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_forced_retraction_changes_nothing(tokenizer: Tokenizer, every: int, overlap: bool) -> None:
    engine, _ = make(tokenizer, 4, "lpm", "lru", pool_tokens=4096, overlap=overlap)
    rng = random.Random(every)
    requests = []
    for number in range(12):
        request = random_request(rng, number, [[rng.randrange(3, VOCAB) for _ in range(100)]])
        requests.append(request)
        engine.add(request)
    deltas: dict[str, list[Delta]] = {}
    steps = 0
    while engine.has_work:
        steps += 1
        if steps % every == 0 and len(engine.roster.running) > 1:
            engine.roster.retract(list(engine.roster.running.values())[-1])
        for delta in engine.step().deltas:
            deltas.setdefault(delta.request_id, []).append(delta)
        assert steps < 20_000
    for request in requests:
        check(request, deltas[request.request_id], aborted=False)


def test_a_stream_of_hot_requests_does_not_starve_a_cold_one(tokenizer: Tokenizer) -> None:
    engine, _ = make(tokenizer, 1, "lpm", "lru")
    hot = list(range(3, 103))
    cold = GenerateRequest(
        request_id="cold", prompt_ids=list(range(120, 200)), sampling=SamplingParams(max_tokens=1)
    )
    number = steps = 0
    while True:
        while len(engine.roster.waiting) < 40:
            number += 1
            engine.add(
                GenerateRequest(
                    request_id=f"hot{number}",
                    prompt_ids=[*hot, 3 + number % 200],
                    sampling=SamplingParams(max_tokens=6, ignore_eos=True),
                )
            )
        if steps == 30:
            engine.add(cold)
        steps += 1
        if any(d.request_id == "cold" and d.finish_reason for d in engine.step().deltas):
            break
        assert steps < 400
    assert msgspec.structs.asdict(engine.snapshot_stats())["cached_tokens"] > 0


def test_waiting_behind_a_request_that_never_fits_is_not_a_thing(tokenizer: Tokenizer) -> None:
    engine, _ = make(tokenizer, 1, "fcfs", "lru", pool_tokens=100)
    with pytest.raises(Exception, match="100 with the output"):
        engine.add(GenerateRequest(request_id="huge", prompt_ids=[5] * 150))
    engine.add(
        GenerateRequest(
            request_id="big",
            prompt_ids=[5] * 90,
            sampling=SamplingParams(max_tokens=10, ignore_eos=True),
        )
    )
    engine.add(
        GenerateRequest(
            request_id="small",
            prompt_ids=[7] * 3,
            sampling=SamplingParams(max_tokens=2, ignore_eos=True),
        )
    )
    done = set()
    while engine.has_work:
        done |= {d.request_id for d in engine.step().deltas if d.finish_reason}
    assert done == {"big", "small"}


def test_decodes_go_on_while_a_long_prompt_prefills(tokenizer: Tokenizer) -> None:
    engine, model = make(tokenizer, 1, "lpm", "lru", pool_tokens=6000)
    engine.info = msgspec.structs.replace(engine.info, context_length=5000)
    sampling = SamplingParams(max_tokens=300, ignore_eos=True)
    engine.add(GenerateRequest(request_id="chat", prompt_ids=[5, 6, 7], sampling=sampling))
    engine.step()
    engine.add(
        GenerateRequest(
            request_id="long",
            prompt_ids=[3 + i % 250 for i in range(4000)],
            sampling=SamplingParams(max_tokens=1),
        )
    )
    done = False
    while not done:
        before = model.tokens_computed
        deltas = {d.request_id: d for d in engine.step().deltas}
        assert deltas["chat"].token_ids  # a token in every step
        assert model.tokens_computed - before <= 48  # and no step is longer than allowed
        done = "long" in deltas


@pytest.mark.parametrize(("length", "slack"), [(40, 1), (150, FOLLOW_TOKENS)])
def test_identical_prompts_at_once_are_computed_once(
    tokenizer: Tokenizer, length: int, slack: int
) -> None:
    engine, model = make(tokenizer, 1, "lpm", "lru", pool_tokens=6000)
    prompt = [3 + i % 250 for i in range(length)]
    for number in range(32):
        engine.add(
            GenerateRequest(
                request_id=str(number), prompt_ids=prompt, sampling=SamplingParams(max_tokens=1)
            )
        )
    while engine.has_work:
        engine.step()
    # The others compute their last token, whose logits they need; and where the leader is nearly
    # through, the little that waiting for it would not be worth.
    assert model.tokens_computed <= length + 31 * slack


def test_a_plan_can_be_printed_and_made_again(tokenizer: Tokenizer) -> None:
    engine, _ = make(tokenizer, 1, "lpm", "lru")
    engine.add(GenerateRequest(request_id="a", prompt_ids=[5] * 60))
    engine.add(GenerateRequest(request_id="b", prompt_ids=[5] * 60))
    engine.step()
    assert eval(repr(engine.roster.last_plan)) == BatchPlan(extend=[("a", 48)], admit=["a"])
