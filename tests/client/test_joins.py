"""Ways to join branches, to drop them, to go on from one; and programs called by programs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.state import State
from radixray.protocol import GenerateRequest


def by_last_word(transport: ScriptedTransport, **answers: Any) -> None:
    """A generation answers by its prompt's last word: a text, an error, or None for never."""

    async def reply(request: GenerateRequest) -> Any:
        if request.sampling.max_tokens == 0:
            return ""
        answer = answers[transport.prompt(request).split()[-1]]
        if answer is None:
            await asyncio.sleep(60)
        return answer

    transport.reply = reply


async def test_concat(state: State, transport: ScriptedTransport) -> None:
    by_last_word(transport, w0=" zero", w1=" one")
    state += "start:"
    forks = state.fork(2)
    forks += lambda i: f" w{i}" + rr.gen("x")
    assert await forks.join("concat") == list(forks)
    await state.sync()
    assert state.text() == "start: w0 zero w1 one"
    assert state["x"] == [" zero", " one"]


async def test_concat_in_a_message(state: State, transport: ScriptedTransport) -> None:
    with state.user():
        state += "start:"
        forks = state.fork(2)
        forks += lambda i: f" w{i}"
        await forks.join("concat")
    assert state.messages() == [{"role": "user", "content": "start: w0 w1"}]
    forks = state.fork(2)
    forks += rr.user("more")
    with pytest.raises(rr.InvalidRequestError, match="messages"):
        await forks.join("concat")


async def test_first_cancels_the_rest(state: State, transport: ScriptedTransport) -> None:
    by_last_word(transport, w0=None, w1=rr.EngineError("no"), w2=" two")
    state += "start"
    forks = state.fork(3)
    forks += lambda i: f" w{i}" + rr.gen("x")
    async with asyncio.timeout(10):
        winner = await forks.join("first")
    assert winner is forks[2]
    assert state["x"] == " two"
    assert transport.live == 0
    await state._run.drain()  # what the losers met is nobody's failure


async def test_first_of_failures_only(state: State, transport: ScriptedTransport) -> None:
    by_last_word(transport, w0=rr.EngineError("a"), w1=rr.EngineError("b"))
    state += "start"
    forks = state.fork(2)
    forks += lambda i: f" w{i}" + rr.gen("x")
    with pytest.raises(ExceptionGroup, match="2 of 2"):
        await forks.join("first")


async def test_first_in_a_scope(state: State, transport: ScriptedTransport) -> None:
    by_last_word(transport, w0=None, w1=" one")
    state += "start"
    async with asyncio.timeout(10), state.fork(2) as forks:
        forks += lambda i: f" w{i}" + rr.gen("x")
        await forks.join("first")
    assert state["x"] == " one"


async def test_best(state: State, transport: ScriptedTransport) -> None:
    by_last_word(transport, w0=" 3", w1=" 9", w2=rr.EngineError("no"))
    state += "start"
    forks = state.fork(3)
    forks += lambda i: f" w{i}" + rr.gen("x")
    with pytest.raises(ExceptionGroup):
        await forks.join("best", key=lambda s: int(str(s["x"])))
    winner = await forks.join("best", key=lambda s: int(str(s["x"])), return_exceptions=True)
    assert winner is forks[1]
    assert state["x"] == " 9"
    await state.adopt(winner)
    assert state.text() == "start w1 9"


async def test_wrong_joins(state: State) -> None:
    forks = state.fork(2)
    for kwargs in ({"mode": "all"}, {"mode": "best"}, {"mode": "first", "key": len}):
        with pytest.raises(rr.InvalidRequestError):
            await forks.join(**kwargs)  # type: ignore[call-overload]


async def test_prune(state: State, transport: ScriptedTransport) -> None:
    by_last_word(transport, w0=None, w1=" one", w2=" two")
    state += "start"
    async with asyncio.timeout(10), state.fork(3) as forks:
        forks += lambda i: f" w{i}" + rr.gen("x")
        await forks[1]["x"]
        dropped = forks[0]
        forks.prune([2, 1])
        assert len(forks) == 2
    assert state["x"] == [" two", " one"]
    assert isinstance(dropped.error, rr.ProgramError)
    for keep in ([0, 0], [2], [-1]):
        with pytest.raises(rr.InvalidRequestError):
            forks.prune(keep)


async def test_copy_and_adopt(state: State, transport: ScriptedTransport) -> None:
    state += rr.user("q")
    with state.var_scope("all"):
        draft = state.copy()
        draft += rr.assistant(rr.gen("x"))
        assert "x" not in state
        state.adopt(draft)
        state += rr.user("more")
    await state.sync()
    assert [m["content"] for m in state.messages()] == ["q", " ok", "more"]
    assert state["x"] == " ok"
    assert state["all"] == " okmore"
    # They go on apart.
    draft += rr.user("draft's own")
    state += rr.user("state's own")
    assert state.messages()[-1]["content"] == "state's own"


async def test_what_is_not_adopted(state: State) -> None:
    branch = state.copy()
    with pytest.raises(rr.InvalidRequestError, match="forked"):
        branch.adopt(state)
    with state.user():
        state += "a"
        with pytest.raises(rr.InvalidRequestError, match="role"):
            state.adopt(branch)


async def test_adopting_a_failed_branch_fails(state: State, transport: ScriptedTransport) -> None:
    transport.reply = rr.EngineError("no")
    state += "a"
    branch = state.copy()
    branch += rr.gen("x")
    with pytest.raises(rr.ProgramError, match="no"):
        await state.adopt(branch)


@rr.function
async def tip(s: State, topic: str) -> str:
    s += f"A tip about {topic}:" + rr.gen("tip")
    return str(await s["tip"]).strip()


async def test_calls_run_together(transport: ScriptedTransport) -> None:
    gate = asyncio.Barrier(2)

    async def reply(request: GenerateRequest) -> str:
        if request.sampling.temperature == 0:
            await gate.wait()  # none is answered before both were asked
        return " ok"

    transport.reply = reply

    @rr.function
    async def program(s: State) -> Any:
        first = s.call(tip, "ice", temperature=0)
        s["second"] = s.call(tip, topic="fire", temperature=0)
        s += "Tips: " + first + ", " + s["second"]
        result = await first
        assert isinstance(result, rr.ProgramResult)
        assert result["tip"] == " ok"
        return s["second"]

    async with asyncio.timeout(10):
        result = await program.run(max_tokens=7, transport=transport)
    assert result.text() == "Tips: ok, ok"
    assert result.value == "ok"
    assert [r.sampling.max_tokens for r in transport.generations] == [7, 7]
    assert result.usage.completion == 4


async def test_a_call_that_fails(transport: ScriptedTransport) -> None:
    transport.reply = rr.EngineError("no")

    @rr.function
    async def program(s: State, wait: bool) -> None:
        call = s.call(tip, "ice")
        if wait:
            with pytest.raises(rr.ProgramError, match="no"):
                await call

    await program.run(True, transport=transport)
    with pytest.raises(rr.ProgramError, match="no"):
        await program.run(False, transport=transport)

    @rr.function
    async def wrong(s: State) -> None:
        s.call(tip, "ice", nonsense=1)

    with pytest.raises(rr.InvalidRequestError):
        await wrong.run(transport=transport)


async def test_calls_end_with_their_caller(transport: ScriptedTransport) -> None:
    transport.reply = lambda request: asyncio.sleep(60, "x")

    @rr.function
    async def program(s: State) -> None:
        s.call(tip, "ice")
        await asyncio.sleep(0.01)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await program.run(transport=transport)
    assert transport.live == 0
    task = asyncio.create_task(program.run(transport=transport))
    await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.wait([task])
    assert transport.live == 0
