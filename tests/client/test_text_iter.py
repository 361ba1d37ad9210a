"""A variable's text, while it is generated."""

from __future__ import annotations

import asyncio

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.state import State


async def test_pieces_come_as_they_are_generated(
    state: State, transport: ScriptedTransport
) -> None:
    transport.reply = " one two three"
    state += "a" + rr.gen("x")
    readers = [state.text_iter("x"), state.text_iter("x")]
    first = await anext(readers[0])
    assert first == " one"
    assert not state["x"].ready
    assert [piece async for piece in readers[0]] == [" two", " three"]
    late = [piece async for piece in readers[1]]
    assert late == [piece async for piece in state.text_iter("x")] == [" one", " two", " three"]


async def test_waiting_leaves_the_loop_to_others(
    state: State, transport: ScriptedTransport
) -> None:
    transport.reply = lambda request: asyncio.sleep(0.02, " ok")
    state += "a" + rr.gen("x")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(tick())
    assert [piece async for piece in state.text_iter("x")] == [" ok"]
    task.cancel()
    assert ticks > 10


async def test_a_failure_is_raised(state: State, transport: ScriptedTransport) -> None:
    transport.reply = rr.EngineError("no")
    state += "a" + rr.gen("x")
    async with asyncio.timeout(5):
        with pytest.raises(rr.ProgramError, match="no"):
            async for _ in state.text_iter("x"):
                pass


async def test_of_other_variables(state: State) -> None:
    state["n"] = 3
    state += "a" + rr.select("y", [" b"])
    assert [piece async for piece in state.text_iter("n")] == ["3"]
    assert [piece async for piece in state.text_iter("y")] == [" b"]
    with pytest.raises(KeyError):
        state.text_iter("z")
