"""Many programs that are ready at once leave other work in the loop its turns."""

from __future__ import annotations

import asyncio
import gc

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client import turns
from radixray.client.turns import Turns


async def test_so_many_in_each_turn_in_their_order() -> None:
    ours, turn = Turns(), 0
    taken: list[tuple[int, int]] = []

    async def count() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    async def take(number: int) -> None:
        await ours.take()
        taken.append((turn, number))

    counter = asyncio.create_task(count())
    await asyncio.gather(*(take(number) for number in range(5 * turns.PER_TURN)))
    assert [number for _, number in taken] == list(range(5 * turns.PER_TURN))
    each = [sum(at == t for at, _ in taken) for t in range(turn + 1)]
    assert max(each) == turns.PER_TURN
    # None is wasted: a turn later there is room for as many.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    taken.clear()
    await asyncio.gather(*(take(number) for number in range(turns.PER_TURN)))
    assert len({at for at, _ in taken}) == 1
    counter.cancel()


async def test_who_was_cancelled_takes_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PER_TURN", 1)
    ours = Turns()
    tasks = [asyncio.create_task(ours.take()) for _ in range(6)]
    await asyncio.sleep(0)
    for task in tasks[1:5]:
        task.cancel()
    async with asyncio.timeout(5):
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert ends[0] is None and ends[5] is None
    assert all(isinstance(end, asyncio.CancelledError) for end in ends[1:5])


async def test_other_work_goes_on_while_programs_begin(transport: ScriptedTransport) -> None:
    begun: list[int] = []
    most = 0

    @rr.function
    async def program(s: rr.State, number: int) -> None:
        begun.append(number)
        s += f"{number}"
        await s.gen("x", max_tokens=1)

    async def other_work() -> None:
        nonlocal most
        before = 0
        while True:
            await asyncio.sleep(0)
            most = max(most, len(begun) - before)
            before = len(begun)

    work = asyncio.create_task(other_work())
    await asyncio.gather(*(program.run(number, transport=transport) for number in range(200)))
    work.cancel()
    assert begun == list(range(200))
    assert 0 < most <= turns.PER_TURN


def test_loops_are_not_kept() -> None:
    before = len(turns._turns)
    for _ in range(3):
        asyncio.run(turns.take_turn())
    gc.collect()
    assert len(turns._turns) <= before
