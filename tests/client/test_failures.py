"""A failed operation never hangs what comes after it, and never vanishes."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.state import State


def broken_role(state: State) -> None:
    state._transcript._template = None  # type: ignore[assignment]
    state.__iadd__(rr.user("x"))


def on_other(state: State) -> None:
    other = State(state._run)
    other.__iadd__("c" + rr.gen("x"))
    state.__iadd__("a" + other["x"])


FAILING: dict[str, Callable[[State], Any]] = {
    "text": lambda s: s.__iadd__("\ud800" + rr.gen("x")),
    "gen": lambda s: s.__iadd__(rr.gen("x")),
    "select": lambda s: s.__iadd__(rr.select("x", ["a"])),
    "role": broken_role,
    "variable": on_other,
    "fork": lambda s: s.__iadd__("a b").fork(2),
    "commit": lambda s: s.commit(),
}


@pytest.mark.parametrize("kind", FAILING)
@pytest.mark.parametrize("where", ["root", "branch"])
async def test_nothing_hangs(
    state: State, transport: ScriptedTransport, kind: str, where: str
) -> None:
    target = state
    if where == "branch":
        target = state.fork(2)[1]
        await target.sync()
    target += "begin here"
    refusal = rr.EngineError("the engine says no")
    transport.reply = lambda request: refusal
    transport.score_reply = lambda request: refusal
    FAILING[kind](target)
    async with asyncio.timeout(5):
        with pytest.raises(rr.ProgramError) as first:
            await target.sync()
        assert first.value.branch == ((1,) if where == "branch" else ())
        cause = first.value.__cause__
        assert cause is not None
        if kind not in ("text", "role"):
            assert cause is refusal
        # Whatever comes later fails at once with the same cause.
        for later in (
            target.gen("later"),
            target.select("s", ["a"]),
            target.sync(),
            target.commit(),
        ):
            with pytest.raises(rr.ProgramError) as caught:
                await later
            assert caught.value.__cause__ is cause
        target += "more" + rr.gen("y") + rr.user("x")
        with pytest.raises(rr.ProgramError):
            await target["y"]
        with pytest.raises(rr.ProgramError):
            str(target["y"])
        with pytest.raises(ExceptionGroup):
            await target.fork(2).join()
    assert target.error is not None
    assert target.error.__cause__ is cause
    assert target.text() is not None


async def test_the_error_tells_operation_and_request(
    state: State, transport: ScriptedTransport
) -> None:
    transport.reply = rr.OverloadedError("full")
    state += "a"
    with pytest.raises(rr.ProgramError, match=r"gen\('x'\) failed: full") as caught:
        await state.gen("x")
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.op, error.branch) == ("gen('x')", ())
    assert error.request_id == transport.requests[0].request_id
    assert isinstance(error.__cause__, rr.OverloadedError)


async def test_limits_are_checked_before_sending(
    state: State, transport: ScriptedTransport
) -> None:
    state += "a"
    with pytest.raises(rr.ProgramError) as caught:
        await state.gen("x", max_tokens=10**6)
    assert isinstance(caught.value.__cause__, rr.ContextLengthError)
    assert transport.requests == []


@rr.function
async def careless(s: rr.State) -> str:
    s += "a" + rr.gen("x") + rr.gen("y")
    return "done"


@rr.function
async def careful(s: rr.State) -> str:
    s += "a"
    try:
        await s.gen("x")
    except rr.ProgramError:
        return "handled"
    return "fine"


@rr.function
async def careless_branches(s: rr.State) -> None:
    s += "a b"
    forks = s.fork(2)
    forks += rr.gen("x")


async def test_the_end_of_a_program_raises_what_nobody_saw(
    transport: ScriptedTransport, caplog: pytest.LogCaptureFixture
) -> None:
    transport.reply = rr.EngineError("no")
    with caplog.at_level(logging.DEBUG, logger="asyncio"):
        with pytest.raises(rr.ProgramError) as caught:
            await careless.run(transport=transport)
        assert caught.value.op == "gen('x')"
        with pytest.raises(rr.ProgramError):
            await careless_branches.run(transport=transport)
        assert (await careful.run(transport=transport)).value == "handled"
        await asyncio.sleep(0)
    assert "never retrieved" not in caplog.text


async def test_an_error_of_the_body_ends_what_runs(transport: ScriptedTransport) -> None:
    @rr.function
    async def program(s: rr.State) -> None:
        s += "a" + rr.gen("x")
        await asyncio.sleep(0.01)
        raise KeyError("mine")

    transport.reply = lambda request: asyncio.sleep(60, "")
    with pytest.raises(KeyError, match="mine"):
        await program.run(transport=transport)
    assert transport.live == 0


async def test_cancelling_a_program_aborts_its_requests(transport: ScriptedTransport) -> None:
    @rr.function
    async def program(s: rr.State) -> None:
        s += "a b"
        forks = s.fork(3)
        forks += rr.gen("x")
        s += rr.gen("y")
        await s.sync()

    transport.reply = lambda request: asyncio.sleep(60 if request.sampling.max_tokens else 0, "x")
    task = asyncio.create_task(program.run(transport=transport))
    while transport.live < 4:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert transport.live == 0
    assert len(transport.ended) == 5


async def test_a_timeout_aborts_the_request_and_the_state(
    state: State, transport: ScriptedTransport
) -> None:
    transport.reply = lambda request: asyncio.sleep(60, "x")
    state += "a"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await state.gen("x")
    await state._queue.drained()
    assert transport.live == 0
    with pytest.raises(rr.ProgramError) as caught:
        await state.gen("y")
    assert isinstance(caught.value.__cause__, rr.AbortedError)


async def test_a_waiting_reader_may_give_up_alone(
    state: State, transport: ScriptedTransport
) -> None:
    transport.reply = lambda request: asyncio.sleep(0.05, "x")
    state += "a" + rr.gen("x")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await state["x"]
    assert (await state["x"]).text == "x"
