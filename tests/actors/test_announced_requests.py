"""What a fork and a batch tell the scheduler, on real Ray with two model actors."""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import Any

import pytest

import radixray as rr
from radixray.actors.handles import actor_handle
from radixray.client import lookahead
from radixray.protocol import GenerateRequest, SamplingParams
from radixray.reports import EngineStats

IDLE = [(0, 0), (0, 0)]


def notes(words: int) -> str:
    rng = random.Random(uuid.uuid4().int)
    names = ("mole", "harbour", "pilot", "storm", "lamp", "rope", "fish", "market", "boat")
    return " ".join(rng.choice(names) for _ in range(words)) + ".\n"


@rr.function
async def forking(s: rr.State, text: str, n: int) -> None:
    s += text
    async with s.fork(n) as forks:
        for index, branch in enumerate(forks):
            branch += f"{index}:"
            await asyncio.sleep(0)
            branch += rr.gen("x", max_tokens=2, ignore_eos=True)


@rr.function
async def ask(s: rr.State, number: int, text: str) -> None:
    s += f"{text}Question {number}:"
    await s.gen("x", max_tokens=2, ignore_eos=True)


def split(before: dict[str, EngineStats], after: dict[str, EngineStats], field: str) -> list[int]:
    return sorted(getattr(after[name], field) - getattr(before[name], field) for name in after)


async def test_a_small_fork_stays_together_and_a_wide_one_is_spread(
    runtime: Any, settled: Any
) -> None:
    tokenizer = (await runtime.transport()).tokenizer
    text = notes(120)
    before = await settled()
    await forking.run(text, 4)
    after = await settled()
    assert split(before, after, "generated_tokens") == [0, 8]

    text = notes(120)
    prefix = len(tokenizer.encode(text))
    before = await settled()
    await forking.run(text, 24)
    after = await settled()
    one, other = split(before, after, "generated_tokens")
    assert one + other == 48 and one >= 16
    # The prefix once on each, and what the branches say: a number, a colon, two tokens.
    assert sum(split(before, after, "prefill_tokens")) <= 2 * prefix + 24 * 6


@pytest.mark.parametrize("told", [True, False])
async def test_a_batch_uses_both_actors_though_few_rows_run_at_once(
    runtime: Any, settled: Any, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    if not told:
        monkeypatch.setattr(lookahead, "SHARED_TOKENS", 10**6)
    tokenizer = (await runtime.transport()).tokenizer
    text = notes(150)
    prefix = len(tokenizer.encode(text))
    before = await settled()
    results = await ask.run_batch(range(40), concurrency=3, text=text)
    assert all(result.error is None for result in results)
    after = await settled()
    generated = split(before, after, "generated_tokens")
    computed = sum(split(before, after, "prefill_tokens"))
    assert sum(generated) == 80
    if told:
        assert generated[0] >= 20
        assert computed <= 2 * prefix + 40 * 8
    else:
        assert generated[0] == 0
        assert computed <= prefix + 40 * 8


async def loads(runtime: Any) -> list[tuple[int, int]]:
    """What the scheduler counts as the load of each model actor, when all news has reached it."""
    scheduler = actor_handle(runtime.config.scheduler_actor)
    for _ in range(100):
        found = sorted((await scheduler.loads.remote()).values())
        if found == IDLE:
            break
        await asyncio.sleep(0.02)
    return found


async def test_requests_left_while_they_are_placed_are_no_load(runtime: Any, settled: Any) -> None:
    transport = await runtime.transport()

    async def run(number: int) -> None:
        request = GenerateRequest(
            request_id=uuid.uuid4().hex,
            prompt_ids=[*range(1000, 1300), number],
            sampling=SamplingParams(max_tokens=2, ignore_eos=True),
        )
        async for _ in transport.generate(request):
            pass

    for wait in [0, 0, 0, 0.001, 0.003, 0.01, 0.03]:
        tasks = [asyncio.create_task(run(number)) for number in range(20)]
        for _ in range(3):
            await asyncio.sleep(wait)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    await settled()
    assert await loads(runtime) == IDLE


@pytest.mark.parametrize("how", ["end", "error", "cancel"])
async def test_room_is_given_back_when_the_program_ends(
    runtime: Any, settled: Any, how: str
) -> None:
    forked, enough = asyncio.Event(), asyncio.Event()

    @rr.function
    async def idle(s: rr.State) -> None:
        s += notes(150)
        s.fork(8)  # on one home, which keeps room for eight
        await s.sync()
        forked.set()
        await enough.wait()
        if how == "error":
            raise RuntimeError("enough")

    task = asyncio.create_task(idle.run())
    await forked.wait()
    await settled()
    scheduler = actor_handle(runtime.config.scheduler_actor)
    async with asyncio.timeout(10):
        # All but the commit, which has come, are expected on one actor.
        while [r for r, _ in sorted((await scheduler.loads.remote()).values())] != [0, 8]:
            await asyncio.sleep(0.02)
    task.cancel() if how == "cancel" else enough.set()
    await asyncio.wait([task])
    assert await loads(runtime) == IDLE
