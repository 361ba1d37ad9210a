from __future__ import annotations

import asyncio

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.state import State
from radixray.protocol import GenerateRequest


def echo(transport: ScriptedTransport) -> None:
    """Every generation answers with the last word of its prompt."""
    transport.reply = lambda request: " " + transport.prompt(request).split()[-1]


async def test_commit_is_sent_before_any_branch(state: State, transport: ScriptedTransport) -> None:
    gate = asyncio.Event()

    async def reply(request: GenerateRequest) -> str:
        if request.sampling.max_tokens == 0:
            await gate.wait()
        return " ok"

    transport.reply = reply
    state += "a shared prefix"
    forks = state.fork(3)
    forks += lambda i: f" branch {i}" + rr.gen("x")
    for _ in range(20):
        await asyncio.sleep(0)
    assert [r.sampling.max_tokens for r in transport.requests] == [0]
    gate.set()
    await forks.join()
    ids = transport.commits[0].prompt_ids
    assert ids == transport.tokenizer.encode("a shared")
    assert len(transport.commits) == 1
    assert all(r.prompt_ids[: len(ids)] == ids for r in transport.generations)
    assert [transport.prompt(r) for r in transport.generations] == [
        f"a shared prefix branch {i}" for i in range(3)
    ]


async def test_a_branch_goes_on_from_where_it_was_forked(state: State) -> None:
    state += "a"
    forks = state.fork(2)
    state += " parent goes on"
    forks += [" x", " y"]
    await forks.join()
    assert [f.text() for f in forks] == ["a x", "a y"]
    assert state.text() == "a parent goes on"


async def test_join_gathers_aligned_and_overwrites(
    state: State, transport: ScriptedTransport
) -> None:
    echo(transport)
    state.set("old", "kept")
    for words in (["one", "two"], ["three", "four"]):
        forks = state.fork(2)
        forks += [f" {word}" + rr.gen("x") for word in words]
        forks[1].set("only", 1)
        assert await forks.join() == list(forks)
        assert state["x"] == [f" {word}" for word in words]
        assert state["only"] == [None, 1]
        assert state["old"] == "kept"


async def test_sequence(state: State) -> None:
    forks = state.fork(3)
    assert len(forks) == 3
    assert list(forks) == [forks[0], forks[1], forks[2]]
    forks[1] += "changed"
    with pytest.raises(rr.InvalidRequestError):
        forks[0] = forks[1]
    with pytest.raises(rr.InvalidRequestError, match="2 items for 3"):
        forks += ["a", "b"]
    with pytest.raises(rr.InvalidRequestError):
        forks += 3  # type: ignore[arg-type]
    for n in (0, -1, True, 1.5, None):
        with pytest.raises(rr.InvalidRequestError):
            state.fork(n)  # type: ignore[arg-type]


async def test_of_an_empty_state(state: State, transport: ScriptedTransport) -> None:
    async with state.fork(2) as forks:
        forks += "a" + rr.gen("x")
    assert state["x"] == [" ok", " ok"]
    assert transport.commits == []


async def test_of_forks(state: State, transport: ScriptedTransport) -> None:
    echo(transport)
    state += "root"
    async with state.fork(2) as outer:
        for i, branch in enumerate(outer):
            branch += f" {i}"
            async with branch.fork(2) as inner:
                inner += lambda j: f" leaf{j}" + rr.gen("x")
    assert state["x"] == [[" leaf0", " leaf1"], [" leaf0", " leaf1"]]
    assert inner[1].text() == "root 1 leaf1 leaf1"


async def test_in_a_chat(state: State, transport: ScriptedTransport) -> None:
    state += rr.system("S")
    async with state.fork(2) as forks:
        forks += lambda i: rr.user(f"q{i}") + rr.assistant(rr.gen("x"))
    assert forks[1].messages() == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "q1"},
        {"role": "assistant", "content": " ok"},
    ]
    # A special token ends the shared text but for its newline.
    assert transport.prompt(transport.commits[0]).endswith("S<2>")


def failing(transport: ScriptedTransport, *words: str) -> None:
    def reply(request: GenerateRequest) -> str | Exception:
        last = (transport.prompt(request).split() or [""])[-1]
        return rr.EngineError(f"broke on {last}") if last in words else " fine"

    transport.reply = reply


async def test_join_raises_each_failure_with_its_path(
    state: State, transport: ScriptedTransport
) -> None:
    failing(transport, "w0", "w2")
    state += "a b"
    forks = state.fork(3)
    forks += lambda i: f" w{i}" + rr.gen("x")
    with pytest.raises(ExceptionGroup, match="2 of 3 branches failed") as caught:
        await forks.join()
    assert [e.branch for e in caught.value.exceptions] == [(0,), (2,)]  # type: ignore[attr-defined]
    assert [str(e.__cause__) for e in caught.value.exceptions] == ["broke on w0", "broke on w2"]
    assert state.error is None


async def test_join_returns_a_failure_at_its_index(
    state: State, transport: ScriptedTransport
) -> None:
    failing(transport, "w1")
    state += "a b"
    forks = state.fork(3)
    forks += lambda i: f" w{i}" + rr.gen("x")
    joined = await forks.join(return_exceptions=True)
    assert joined[0] is forks[0]
    assert isinstance(joined[1], rr.ProgramError)
    x = state["x"].value
    assert (x[0], x[2]) == (" fine", " fine")
    assert x[1] is joined[1]


async def test_a_scope_cancels_the_others(state: State, transport: ScriptedTransport) -> None:
    async def reply(request: GenerateRequest) -> str | Exception:
        last = transport.prompt(request).split()[-1]
        if last == "w1":
            await asyncio.sleep(0.01)
            return rr.EngineError("broke")
        if request.sampling.max_tokens:
            await asyncio.sleep(60)
        return ""

    transport.reply = reply
    state += "a b"
    with pytest.raises(ExceptionGroup) as caught:
        async with state.fork(3) as forks:
            forks += lambda i: f" w{i}" + rr.gen("x")
            await forks[0]["x"]
    assert [e.branch for e in caught.value.exceptions] == [(1,)]  # type: ignore[attr-defined]
    assert transport.live == 0
    assert len(transport.ended) == 4
    assert isinstance(forks[2].error, rr.ProgramError)
    assert isinstance(forks[2].error.__cause__, rr.AbortedError)


async def test_a_scope_left_by_an_exception_cancels_all(
    state: State, transport: ScriptedTransport
) -> None:
    transport.reply = lambda request: asyncio.sleep(60 if request.sampling.max_tokens else 0, "x")
    state += "a b"
    with pytest.raises(ZeroDivisionError):
        async with state.fork(2) as forks:
            forks += rr.gen("x")
            await asyncio.sleep(0.01)
            raise ZeroDivisionError
    assert transport.live == 0


async def test_cancel_reaches_the_branches_own_forks(
    state: State, transport: ScriptedTransport
) -> None:
    transport.reply = lambda request: asyncio.sleep(60 if request.sampling.max_tokens else 0, "x")
    state += "a b"
    forks = state.fork(2)
    forks[0].set("done", 1)
    inner = forks[1].fork(2)
    inner += rr.gen("x")
    async with asyncio.timeout(10):
        while transport.live != 2:
            await asyncio.sleep(0)
    forks.cancel()
    with pytest.raises(ExceptionGroup):
        await inner.join()
    assert transport.live == 0
    await forks.join()
    assert state["done"] == [1, None]
