from __future__ import annotations

import asyncio
import itertools
import pickle
from contextlib import aclosing
from typing import Any

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.results import StreamEvent
from radixray.protocol import GenerateRequest, Usage


@rr.function
async def ask(s: rr.State, question: str, extra: str = "") -> str:
    """Asks."""
    s += question + extra
    return (await s.gen("x")).text


def test_what_is_no_program() -> None:
    with pytest.raises(TypeError, match="plain must be an `async def`"):

        @rr.function
        def plain(s: rr.State) -> None: ...

    with pytest.raises(TypeError, match="first parameter"):

        @rr.function
        async def empty() -> None: ...

    assert (ask.__name__, ask.__doc__) == ("ask", "Asks.")


async def test_result(transport: ScriptedTransport) -> None:
    result = await ask.run("What?", extra=" Now", transport=transport)
    assert result.value == " ok"
    assert isinstance(result["x"], rr.Gen)
    assert str(result["x"]) == " ok"
    assert "x" in result
    assert result.text() == "What? Now ok"
    assert result.tokens() == transport.tokenizer.encode("What? Now ok")
    assert result.messages() == []
    assert result.usage == Usage(prompt=3, cached=1, completion=2)
    assert (result.index, result.error) == (0, None)
    assert pickle.loads(pickle.dumps(result)) == result


async def test_usage_counts_branches_and_commits(transport: ScriptedTransport) -> None:
    @rr.function
    async def program(s: rr.State) -> Any:
        s += "a b"
        async with s.fork(2) as forks:
            forks += rr.gen("x")
        return s.usage

    result = await program.run(transport=transport)
    assert result.usage == result.value == Usage(prompt=1 + 2 + 2, cached=3, completion=4)


async def test_a_returned_variable_is_its_value(transport: ScriptedTransport) -> None:
    @rr.function
    async def program(s: rr.State) -> Any:
        s += "a" + rr.gen("x")
        return s["x"]

    assert (await program.run(transport=transport)).value == " ok"


async def test_bind_and_nested_call(transport: ScriptedTransport) -> None:
    @rr.function
    async def outer(s: rr.State) -> str:
        s += "outer "
        return await ask(s, "inner")

    assert (await outer.run(transport=transport)).text() == "outer inner ok"
    bound = ask.bind(extra="!", temperature=0)
    assert (await bound.run("a", transport=transport)).text() == "a! ok"
    assert transport.generations[-1].sampling.temperature == 0
    assert (await bound.run("a", extra="?", transport=transport)).text() == "a? ok"
    with pytest.raises(rr.InvalidRequestError):
        ask.bind(nonsense=1)


def slow_first(transport: ScriptedTransport) -> None:
    async def reply(request: GenerateRequest) -> str | Exception:
        prompt = transport.prompt(request)
        if prompt == "0":
            await asyncio.sleep(0.03)
        return rr.EngineError("bad row") if prompt == "bad" else f"<{prompt}>"

    transport.reply = reply


@pytest.mark.parametrize("ordered", [False, True])
async def test_map_order(transport: ScriptedTransport, ordered: bool) -> None:
    slow_first(transport)
    rows: list[Any] = ["0", ("1",), {"question": "2"}]
    results = [r async for r in ask.map(rows, ordered=ordered, transport=transport)]
    assert [r.index for r in results] == ([0, 1, 2] if ordered else [1, 2, 0])
    assert {r.index: r.value for r in results} == {0: "<0>", 1: "<1>", 2: "<2>"}


async def test_map_errors(transport: ScriptedTransport) -> None:
    slow_first(transport)
    rows = ["0", "bad", "2", ("too", "many", "arguments")]
    results = [r async for r in ask.map(rows, ordered=True, on_error="return", transport=transport)]
    assert [r.value for r in results] == ["<0>", None, "<2>", None]
    assert isinstance(results[1].error, rr.ProgramError)
    assert isinstance(results[3].error, TypeError)
    with pytest.raises(rr.ProgramError, match="bad row"):
        async for _ in ask.map(rows[:3], transport=transport):
            pass
    assert transport.live == 0


async def test_map_is_bounded_and_lazy(transport: ScriptedTransport) -> None:
    most = 0
    taken = 0

    async def reply(request: GenerateRequest) -> str:
        nonlocal most
        most = max(most, transport.live)
        await asyncio.sleep(0.001)
        return "x"

    def rows() -> Any:
        nonlocal taken
        for n in itertools.count():
            taken += 1
            yield str(n)

    transport.reply = reply
    seen = 0
    async with aclosing(ask.map(rows(), concurrency=3, transport=transport)) as results:
        async for _ in results:
            seen += 1
            if seen == 10:
                break
    assert most == 3
    assert taken <= 13
    assert transport.live == 0


async def test_map_arguments(transport: ScriptedTransport) -> None:
    for kwargs in ({"concurrency": 0}, {"on_error": "ignore"}, {"nonsense": 1}):
        with pytest.raises(rr.InvalidRequestError):
            async for _ in ask.map(["a"], transport=transport, **kwargs):  # type: ignore[arg-type]
                pass
    results = [r async for r in ask.map(["a"], extra="b", max_tokens=3, transport=transport)]
    assert results[0].text() == "ab ok"
    assert transport.generations[0].sampling.max_tokens == 3


async def test_stream(transport: ScriptedTransport) -> None:
    @rr.function
    async def program(s: rr.State) -> str:
        s += "a b" + rr.gen("x")
        async with s.fork(2) as forks:
            forks += rr.select("y", [" red", " blue"])
        return "end"

    transport.reply = " one two"
    events = [event async for event in program.stream(transport=transport)]
    assert events[:3] == [
        StreamEvent(kind="prompt", delta="a b"),
        StreamEvent(var="x", delta=" one"),
        StreamEvent(var="x", delta=" two"),
    ]
    assert sorted(e.branch for e in events if e.var == "y") == [(0,), (1,)]
    assert events[-1].result is not None
    assert events[-1].result.value == "end"


async def test_stream_errors_and_closing(transport: ScriptedTransport) -> None:
    transport.reply = rr.EngineError("no")
    with pytest.raises(rr.ProgramError):
        async for _ in ask.stream("a", transport=transport):
            pass
    transport.reply = " a b c d e f"
    async with aclosing(ask.stream("a", transport=transport)) as events:
        async for _ in events:
            break
    assert transport.live == 0
    assert len(transport.ended) == 2


async def test_without_a_runtime() -> None:
    with pytest.raises(rr.NotInitializedError):
        await ask.run("a")


async def test_a_program_travels(transport: ScriptedTransport) -> None:
    """As to a Ray worker, with what it closes over."""
    from ray import cloudpickle

    suffix = "!"

    @rr.function
    async def local(s: rr.State, text: str) -> str:
        s += text + suffix + rr.gen("x")
        return await ask(s, " Then?")

    copy = pickle.loads(cloudpickle.dumps(local.bind(temperature=0)))
    result = await copy.run("a", transport=transport)
    assert result.text() == "a! ok Then? ok"
    assert transport.generations[0].sampling.temperature == 0


async def test_remote_needs_a_deployment() -> None:
    with pytest.raises(rr.NotInitializedError):
        ask.remote("a")
    with pytest.raises(rr.InvalidRequestError):
        ask.remote("a", nonsense=1)
