"""Hundreds of requests at once: what they share is computed once, and what is left is gone."""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import Any

import msgspec

from radixray.protocol import Constraint, GenerateRequest, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)


async def test_a_cold_burst_computes_its_prefix_once_on_each_actor_at_most(
    runtime: Any, settled: Any
) -> None:
    """32 requests with one new prefix, at once, on two model actors."""
    transport = await runtime.transport()
    before = await settled()
    start = random.Random(uuid.uuid4().int)
    prefix = [start.randrange(100, 40_000) for _ in range(300)]

    async def run(number: int) -> int:
        request = GenerateRequest(
            request_id=uuid.uuid4().hex, prompt_ids=[*prefix, 50 + number, 51], sampling=GREEDY
        )
        deltas = [delta async for delta in transport.generate(request)]
        return deltas[-1].usage.cached

    cached = await asyncio.gather(*(run(number) for number in range(32)))
    after = await settled()
    computed = {n: after[n].prefill_tokens - before[n].prefill_tokens for n in after}
    used = sum(count > 0 for count in computed.values())
    assert sum(computed.values()) <= used * len(prefix) + 32 * 2
    assert sum(found >= len(prefix) for found in cached) >= 32 - used


async def test_500_requests_cancelled_at_any_time_leave_nothing_running(
    runtime: Any, settled: Any
) -> None:
    """Unsent, being placed or compiled, waiting, in prefill, half way through an answer."""
    transport = await runtime.transport()
    rng = random.Random(500)
    answered: set[int] = set()

    async def endless(number: int) -> None:
        request = GenerateRequest(
            request_id=uuid.uuid4().hex,
            prompt_ids=[rng.randrange(100, 40_000) for _ in range(rng.randint(2, 12))],
            sampling=msgspec.structs.replace(GREEDY, max_tokens=6000),
            # Some are cancelled while this is compiled. It ends with what no model says.
            constraint=Constraint(regex=rf"[a-z ]*{number}\x07") if number % 10 == 0 else None,
        )
        async for _ in transport.generate(request):
            answered.add(number)

    tasks = [asyncio.create_task(endless(number)) for number in range(500)]

    async def cancel(task: asyncio.Task[None]) -> None:
        await asyncio.sleep(rng.choice([0, 0.001, 0.01, rng.random(), 3 * rng.random()]))
        task.cancel()

    await asyncio.gather(*map(cancel, tasks))
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
    assert 0 < len(answered) < 500  # some were cut off in their answer, some before it
    async with asyncio.timeout(10):
        stats = await settled()
    generated = sum(s.generated_tokens for s in stats.values())
    await asyncio.sleep(0.3)
    assert sum(s.generated_tokens for s in (await runtime.stats()).values()) == generated
    request = GenerateRequest(request_id=uuid.uuid4().hex, prompt_ids=[1, 2], sampling=GREEDY)
    assert [d async for d in transport.generate(request)][-1].finish_reason == "length"


async def test_compiling_ends_with_those_who_waited_for_it(runtime: Any, settled: Any) -> None:
    """Twelve constraints of seconds each, abandoned, hold nobody up."""
    transport = await runtime.transport()

    async def generate(constraint: Constraint) -> str:
        request = GenerateRequest(
            request_id=uuid.uuid4().hex, prompt_ids=[1, 2], sampling=GREEDY, constraint=constraint
        )
        return [delta async for delta in transport.generate(request)][-1].finish_reason

    slow = r"(?:\w{1,9}\s*){9}\w{0,60}\d{0,50}\W{0,50}"
    tasks = [
        asyncio.create_task(generate(Constraint(regex=f"{slow}{number}"))) for number in range(12)
    ]
    await asyncio.sleep(0.5)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(8):
        ends = await asyncio.gather(*(generate(Constraint(regex=f"a+{n}")) for n in range(4)))
    assert set(ends) <= {"length", "stop"}
    await settled()
