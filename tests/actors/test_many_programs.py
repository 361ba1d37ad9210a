"""Very many programs on the real engine, two model actors: all end as they should."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest

import radixray as rr


@rr.function
async def three_branches(s: rr.State, number: int) -> list[str]:
    s += f"The number of the day is {number}. "
    async with s.fork(3) as forks:
        for index, branch in enumerate(forks):
            branch += f"Fact {index}:" + rr.gen("x", max_tokens=2, ignore_eos=True)
    return s["x"].value


async def test_100_programs_of_three_branches(runtime: Any, settled: Any) -> None:
    await three_branches.run(0)
    threads = threading.active_count()
    results = await asyncio.gather(*(three_branches.run(n, temperature=0) for n in range(100)))
    assert threading.active_count() <= threads
    assert all(len(result.value) == 3 for result in results)
    assert all(result.usage.completion == 6 for result in results)
    alone = await three_branches.run(7, temperature=0)
    assert results[7].value == alone.value
    await settled()


async def test_60_programs_cancelled_at_random_points(runtime: Any, settled: Any) -> None:
    rng = random.Random(60)

    async def one(number: int) -> str:
        try:
            async with asyncio.timeout(rng.choice([0, 0.01, rng.random(), 2 * rng.random()])):
                await three_branches.run(number, max_tokens=400, timeout_s=rng.choice([None, 0.3]))
        except TimeoutError:
            return "timeout"
        except ExceptionGroup as group:
            causes = {type(error.__cause__) for error in group.exceptions}
            assert causes == {rr.DeadlineExceededError}
            return "deadline"
        except rr.ProgramError as error:
            assert isinstance(error.__cause__, rr.DeadlineExceededError)
            return "deadline"
        return "value"

    async with asyncio.timeout(60):
        ends = await asyncio.gather(*map(one, range(60)))
    assert "timeout" in ends
    await settled()
    assert (await three_branches.run(1)).usage.completion == 6


@pytest.mark.parametrize("what", ["select", "commit"])
async def test_a_runs_timeout_holds_for_all_its_requests(
    runtime: Any, settled: Any, what: str
) -> None:
    @rr.function
    async def program(s: rr.State) -> None:
        s += "Is it so?"
        await (s.select("x", [" yes", " no"]) if what == "select" else s.commit())

    with pytest.raises(rr.ProgramError) as caught:
        await program.run(timeout_s=0)
    assert isinstance(caught.value.__cause__, rr.DeadlineExceededError)
    await settled()
