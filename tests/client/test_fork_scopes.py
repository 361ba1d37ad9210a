"""What a branch that fails does to a fork: in a scope and outside, whichever join."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.forks import Forks
from radixray.client.state import State
from radixray.protocol import GenerateRequest


@pytest.fixture
def answers(transport: ScriptedTransport) -> dict[str, Any]:
    """Answers by a prompt's last word: a text, an error, or an event to wait for before " late"."""
    answers: dict[str, Any] = {}

    async def reply(request: GenerateRequest) -> Any:
        if request.sampling.max_tokens == 0:
            return ""
        answer = answers[transport.prompt(request).split()[-1]]
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            return " late"
        return answer

    transport.reply = reply
    return answers


def ask(index: int) -> Any:
    return f" w{index}" + rr.gen("x")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


def causes(group: BaseExceptionGroup[Any]) -> list[str]:
    return [str(error.__cause__) for error in group.exceptions]


async def test_a_failure_does_not_end_a_race(state: State, answers: dict[str, Any]) -> None:
    late = asyncio.Event()
    answers |= {"w0": rr.EngineError("a"), "w1": late, "w2": asyncio.Event()}
    state += "start"
    async with asyncio.timeout(10), state.fork(3) as forks:
        forks += ask
        race = asyncio.create_task(forks.join("first"))
        await until(lambda: forks[0].error is not None)
        late.set()
        assert await race is forks[1]
    assert state["x"] == " late"
    assert str(forks[0].error) and isinstance(forks[0].error.__cause__, rr.EngineError)
    assert isinstance(forks[2].error.__cause__, rr.AbortedError)  # type: ignore[union-attr]


@pytest.mark.parametrize("explicit", [True, False])
async def test_a_race_told_at_the_fork_outlives_what_fails_before_it_is_joined(
    state: State, answers: dict[str, Any], explicit: bool
) -> None:
    late = asyncio.Event()
    answers |= {"w0": rr.EngineError("a"), "w1": late, "w2": asyncio.Event()}
    state += "start"
    async with asyncio.timeout(10), state.fork(3, join="first") as forks:
        forks += ask
        await until(lambda: forks[0].error is not None)
        late.set()
        if explicit:
            assert await forks.join("first") is forks[1]
    assert state["x"] == " late"
    await state._run.drain()  # nothing is left to be told


@pytest.mark.parametrize("scope", [{}, {"join": "first"}])
@pytest.mark.parametrize("explicit", [True, False])
async def test_a_race_that_all_lose_raises_each_cause(
    state: State, answers: dict[str, Any], scope: dict[str, Any], explicit: bool
) -> None:
    answers |= {"w0": rr.EngineError("a"), "w1": rr.EngineError("b")}
    state += "start"
    with pytest.raises(ExceptionGroup) as caught:
        async with state.fork(2, **scope) as forks:
            forks += ask
            if explicit:
                await forks.join("first")
    wanted = ["a", "b"] if explicit or scope else ["a"]  # plain scopes end with the first failure
    assert causes(caught.value) == wanted


async def test_a_failure_before_the_join_ends_a_plain_scope(
    state: State, answers: dict[str, Any]
) -> None:
    answers |= {"w0": rr.EngineError("a"), "w1": asyncio.Event()}
    state += "start"
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(10), state.fork(2) as forks:
            forks += ask
            await until(lambda: forks[0].error is not None)
            await forks.join("first")
    assert causes(caught.value) == ["a"]


@pytest.mark.parametrize("mode", ["gather", "concat", "best"])
async def test_a_join_in_a_scope_raises_what_failed_not_what_was_cancelled(
    state: State, transport: ScriptedTransport, answers: dict[str, Any], mode: str
) -> None:
    answers |= {"w0": asyncio.Event(), "w1": rr.EngineError("b")}
    state += "start"
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(10), state.fork(2) as forks:
            forks += ask
            await forks.join(mode, **({"key": len} if mode == "best" else {}))  # type: ignore
    assert causes(caught.value) == ["b"]
    assert transport.live == 0


@pytest.mark.parametrize("told", [True, False])
async def test_exceptions_in_place_let_the_others_finish(
    state: State, answers: dict[str, Any], told: bool
) -> None:
    late = asyncio.Event()
    answers |= {"w0": late, "w1": rr.EngineError("b")}
    state += "start"
    async with asyncio.timeout(10), state.fork(2, return_exceptions=told) as forks:
        forks += ask
        join = None if told else asyncio.create_task(forks.join(return_exceptions=True))
        await until(lambda: forks[1].error is not None)
        late.set()
        if join is not None:
            assert (await join)[1] is forks[1].error
    x = state["x"].value
    assert x[0] == " late" and x[1] is forks[1].error
    await state._run.drain()


async def test_a_scope_may_concatenate(state: State, answers: dict[str, Any]) -> None:
    answers |= {"w0": " zero", "w1": " one"}
    state += "start:"
    async with state.fork(2, join="concat") as forks:
        forks += ask
    await state.sync()
    assert state.text() == "start: w0 zero w1 one"
    for explicit in (True, False):
        async with state.fork(2, join="concat", return_exceptions=True) as forks:
            forks += "+"
            if explicit:
                await forks.join("concat")
    assert state.text() == "start: w0 zero w1 one++++"


async def test_what_the_winner_does_later_is_looked_after(
    state: State, answers: dict[str, Any]
) -> None:
    answers |= {"w0": " zero", "w1": asyncio.Event(), "then": rr.EngineError("later")}
    state += "start"
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(10), state.fork(2) as forks:
            forks += ask
            winner = await forks.join("first")
            winner += " then" + rr.gen("y")
    assert causes(caught.value) == ["later"]


async def test_a_race_given_up_leaves_no_failure_unseen(
    state: State, transport: ScriptedTransport, answers: dict[str, Any]
) -> None:
    answers |= {"w0": rr.EngineError("a"), "w1": asyncio.Event()}
    state += "start"
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(10), state.fork(2) as forks:
            forks += ask
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await forks.join("first")
    assert causes(caught.value) == ["a"]
    assert transport.live == 0


async def test_a_scope_that_is_cancelled_while_it_joins_cancels_its_branches(
    state: State, transport: ScriptedTransport, answers: dict[str, Any]
) -> None:
    answers |= {"w0": asyncio.Event(), "w1": asyncio.Event()}
    state += "start"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), state.fork(2) as forks:
            forks += ask
    assert transport.live == 0


@pytest.mark.parametrize("join", ["gather", "first"])
async def test_a_scope_that_cancels_its_branches_itself(
    state: State, transport: ScriptedTransport, answers: dict[str, Any], join: str
) -> None:
    answers |= {"w0": asyncio.Event(), "w1": asyncio.Event()}
    state += "start"
    async with asyncio.timeout(10), state.fork(2, join=join) as forks:
        forks += ask
        await until(lambda: transport.live == 2)
        forks.cancel()
    assert transport.live == 0
    assert ("x" in state) == (join == "gather")  # its list holds the two errors
    await state._run.drain()


async def test_outside_a_scope_a_failure_leaves_the_others_alone(
    transport: ScriptedTransport, answers: dict[str, Any]
) -> None:
    late = asyncio.Event()
    answers |= {"w0": late, "w1": rr.EngineError("b")}

    @rr.function
    async def program(s: State, join: bool) -> Any:
        s += "start"
        forks: Forks = s.fork(2)
        forks += ask
        await until(lambda: forks[1].error is not None)
        late.set()
        if join:
            with pytest.raises(ExceptionGroup, match="1 of 2"):
                await forks.join()
            return str(await forks[0]["x"])
        return None

    assert (await program.run(True, transport=transport)).value == " late"
    with pytest.raises(rr.ProgramError, match="b"):  # nobody joined: the end of the program tells
        await program.run(False, transport=transport)


async def test_a_fork_of_a_failed_state_fails_though_its_cause_is_known(
    state: State, transport: ScriptedTransport
) -> None:
    transport.reply = rr.EngineError("no")
    state += "start"
    with pytest.raises(rr.ProgramError):
        await state.gen("x")
    with pytest.raises(ExceptionGroup):
        async with state.fork(2) as forks:
            forks += rr.gen("y")


async def test_wrong_scopes(state: State) -> None:
    for wrong in ("best", "all", 1):
        with pytest.raises(rr.InvalidRequestError) as caught:
            state.fork(2, join=wrong)  # type: ignore[arg-type]
        assert caught.value.param == "join"
