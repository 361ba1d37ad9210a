"""The whole text of a state while it grows, and the events of a streamed program."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.state import State
from radixray.protocol import GenerateRequest


async def whole(state: State) -> list[str]:
    async with asyncio.timeout(10):
        return [piece async for piece in state.text_iter()]


async def test_constants_generations_and_selections_in_order(
    state: State, transport: ScriptedTransport
) -> None:
    transport.reply = " one two"
    state += "a" + rr.gen("x") + " b" + rr.gen("y", stop=" two") + rr.select("z", [" c"])
    state += " d" + state["x"]
    pieces = await whole(state)
    # What a generation brings comes piece by piece; what comes at once may come in one.
    assert pieces[:5] == ["a", " one", " two", " b", " one"]
    assert "".join(pieces) == state.text() == "a one two b one c d one two"
    assert await whole(state) == [state.text()]


async def test_pieces_come_before_the_generation_ends(
    state: State, transport: ScriptedTransport
) -> None:
    end = asyncio.Event()
    transport.reply = " one two"
    state += "a" + rr.gen("x")

    async def wait(request: GenerateRequest) -> str:
        await end.wait()
        return " three"

    pieces = state.text_iter()
    assert [await anext(pieces) for _ in range(2)] == ["a", " one"]
    assert not state["x"].ready
    late = state.text_iter()
    assert (await anext(late)).startswith("a one")
    transport.reply = wait
    state += rr.gen("y") + "!"  # what is appended meanwhile comes, too
    assert await anext(pieces) == " two"
    end.set()
    assert [piece async for piece in pieces] == [" three", "!"]
    assert "".join([piece async for piece in late]) == " two three!"


async def test_a_chat(state: State, transport: ScriptedTransport) -> None:
    state += rr.system("be brief") + rr.user("q") + rr.assistant(rr.gen("x")) + rr.user("more")
    pieces = await whole(state)
    assert "".join(pieces) == state.text()
    assert pieces[0].endswith("q<|im_end|>\n") and pieces[-1].endswith("more<|im_end|>\n")


@pytest.mark.parametrize("how", [{"dtype": int}, {"n": 2}, {"separate_reasoning": True}])
async def test_however_it_is_generated(
    state: State, transport: ScriptedTransport, how: dict[str, Any]
) -> None:
    transport.reply = " 42." if "dtype" in how else "<think>hm</think> a b"
    state += "a" + rr.gen("x", **how) + " then" + rr.gen("y")
    assert "".join(await whole(state)) == state.text()


async def test_a_character_that_two_generations_share(
    state: State, transport: ScriptedTransport
) -> None:
    ids = transport.tokenizer.encode("né 🦄!")
    for cut in range(1, len(ids)):
        transport.reply = lambda request, cut=cut: (
            ids[:cut] if request.prompt_ids[-1] not in ids else ids[cut:]
        )
        branch = state.copy()
        branch += "a" + rr.gen("x", max_tokens=cut) + rr.gen("y")
        assert "".join(await whole(branch)) == branch.text() == "ané 🦄!"
    assert len(ids) == 6  # three of them are the emoji and the space before it
    transport.reply = ids[:-2]
    state += "a" + rr.gen("x", max_tokens=len(ids) - 2)
    assert "".join(await whole(state)) == state.text()
    assert state.text().endswith("\N{REPLACEMENT CHARACTER}")


async def test_joins(state: State, transport: ScriptedTransport) -> None:
    state += "a b"
    forks = state.fork(2)
    forks += lambda i: f" w{i}" + rr.gen("x")
    # Branches are texts of their own.
    assert "".join(await whole(state)) == "a b"
    assert "".join(await whole(forks[1])) == "a b w1 ok"
    pieces = state.text_iter()
    assert await anext(pieces) == "a b"
    await forks.join("concat")
    state += " dropped by the next line"
    assert await anext(pieces) == " w0 ok w1 ok dropped by the next line"
    state.adopt(forks[1])
    state += "!"
    # What a reader has seen stays seen; it goes on from where the branch was forked off.
    assert "".join([piece async for piece in pieces]) == " w1 ok!"
    assert "".join(await whole(state)) == state.text() == "a b w1 ok!"


async def test_a_failure_comes_after_what_had_come(
    state: State, transport: ScriptedTransport
) -> None:
    state += "a" + rr.gen("x")
    await state.sync()
    transport.reply = rr.EngineError("no")
    state += " b" + rr.gen("y") + " c"
    seen: list[str] = []
    with pytest.raises(rr.ProgramError, match="no"):
        async with asyncio.timeout(10):
            async for piece in state.text_iter():
                seen.append(piece)  # noqa: PERF401  (what came before the error counts)
    assert "".join(seen) == "a ok b"
    await state._run.drain()  # the reader was told


async def test_a_cancelled_generation_ends_its_readers(
    state: State, transport: ScriptedTransport
) -> None:
    transport.reply = lambda request: asyncio.sleep(60, "x")
    state += "a"
    pending = state.gen("x")
    reader = asyncio.create_task(whole(state))
    task = asyncio.ensure_future(pending)
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(rr.ProgramError, match="cancelled"):
        await reader


async def test_events_tell_each_states_whole_text(transport: ScriptedTransport) -> None:
    texts: dict[tuple[int, ...], str] = {}

    @rr.function
    async def inner(s: State) -> str:
        s += "inner" + rr.gen("i")
        return str(await s["i"])

    @rr.function
    async def program(s: State) -> None:
        s += rr.system("brief") + rr.user("q")
        async with s.fork(2) as forks:
            forks += lambda i: rr.assistant(f"{i}:" + rr.gen("x") + rr.select("y", [" c", " d"]))
        s += rr.assistant(s.call(inner) + "; " + rr.gen("z", dtype=int))
        last = s.fork(3)[2]
        last += " more" + rr.gen("n", n=2)
        s.adopt(last)
        s += " end"
        await s.sync()
        texts[()] = s.text()
        for fork in [*forks, last]:
            texts[fork._branch] = fork.text()

    transport.reply = lambda r: "5." if r.constraint is not None else " one two"
    told: dict[tuple[int, ...], str] = defaultdict(str)
    last = None
    async for event in program.stream(transport=transport):
        assert event.kind in ("text", "prompt", "result")
        assert (event.var is None) == (event.kind != "text")
        if event.var != "i":  # of a called program, on a state of its own
            told[event.branch] += event.delta
        last = event
    assert last is not None and last.kind == "result" and last.result is not None
    assert last.result.text() == texts[()] == told[()]
    assert len(texts) == len(told) == 4
    for path, text in texts.items():
        if path:  # branches tell what they add
            assert told[path] and text.endswith(told[path])
