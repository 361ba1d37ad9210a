from __future__ import annotations

import asyncio
import gc
import threading

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.state import State
from radixray.protocol import Usage


async def test_operations_run_in_order(state: State, transport: ScriptedTransport) -> None:
    replies = iter([" one", " two", " three"])
    transport.reply = lambda request: next(replies)
    state += "a" + rr.gen("x") + " b" + rr.gen("y")
    state += " c" + rr.gen("z")
    await state.sync()
    assert state.text() == "a one b two c three"
    assert [transport.prompt(r) for r in transport.requests] == [
        "a",
        "a one b",
        "a one b two c",
    ]


async def test_append_never_blocks(state: State, transport: ScriptedTransport) -> None:
    gate = asyncio.Event()

    async def reply(request: object) -> str:
        await gate.wait()
        return " late"

    transport.reply = reply
    state += "a" + rr.gen("x")
    state += " more"
    with pytest.raises(rr.NotReadyError):
        state.text()
    gate.set()
    await state.sync()
    assert state.text() == "a late more"


async def test_text_without_generations_is_there_at_once(state: State) -> None:
    state += "a"
    state += "b" + rr.system("c")
    assert state.text().startswith("ab<|im_start|>system\nc")
    assert len(asyncio.all_tasks()) == 1


async def test_generated_ids_are_kept(state: State, transport: ScriptedTransport) -> None:
    # "h" + "ello" is not how the tokenizer would spell it.
    ids = [transport.tokenizer.encode("h")[0], transport.tokenizer.encode("ello")[0]]
    transport.reply = lambda request: ids
    state += "Say"
    gen = await state.gen("x")
    state += "!"
    assert gen.text == "hello"
    assert gen.token_ids == [*ids, 2]
    encode = transport.tokenizer.encode
    assert state.tokens() == [*encode("Say"), *ids, *encode("!")]
    await state.gen("y")
    assert transport.requests[1].prompt_ids == [*encode("Say"), *ids, *encode("!")]


async def test_text_merges_until_a_request_needs_it(
    state: State, transport: ScriptedTransport
) -> None:
    state += "Hel"
    state += "lo"
    await state.gen("x")
    assert transport.requests[0].prompt_ids == transport.tokenizer.encode("Hello")


@pytest.mark.parametrize(
    ("output", "stop", "kept", "tail"),
    [
        (" one two END more", "END", [" one", " two"], " "),
        (" wonderful", "der", [], " won"),
        (" a\n\nb", "\n\n", [" a"], ""),
        (" 日本", "本", None, None),
        (" plain", "absent", [" plain"], ""),
    ],
)
async def test_tokens_after_a_stop_string(
    state: State,
    transport: ScriptedTransport,
    output: str,
    stop: str,
    kept: list[str] | None,
    tail: str | None,
) -> None:
    transport.reply = output
    state += "Q:"
    gen = await state.gen("x", stop=stop)
    text = output.partition(stop)[0]
    assert gen.text == text
    assert state.text() == "Q:" + text
    encode, decode = transport.tokenizer.encode, transport.tokenizer.decode
    assert decode(state.tokens()) == "Q:" + text
    if kept is not None and tail is not None:
        ids = [i for word in kept for i in encode(word)]
        assert state.tokens() == [*encode("Q:"), *ids, *encode(tail)]
        state += "erful"
        assert state.tokens() == [*encode("Q:"), *ids, *encode(tail + "erful")]


async def test_stop_tokens_leave_the_state(state: State, transport: ScriptedTransport) -> None:
    word = transport.tokenizer.encode(" two")[0]
    transport.reply = " one two"
    state += "a"
    gen = await state.gen("x", stop_token_ids=[word])
    assert (gen.finish_reason, gen.stop_reason) == ("stop", word)
    assert state.tokens() == transport.tokenizer.encode("a one")


async def test_a_cut_by_length_keeps_half_a_character(
    state: State, transport: ScriptedTransport
) -> None:
    ids = transport.tokenizer.encode(" 😀")
    transport.reply = " 😀"
    state += "a"
    gen = await state.gen("x", max_tokens=len(ids) - 1)
    assert gen.finish_reason == "length"
    assert state.tokens() == [*transport.tokenizer.encode("a"), *ids[:-1]]


async def test_names_defaults_and_usage(state: State, transport: ScriptedTransport) -> None:
    state += "a"
    await state.gen()
    await state.gen(None, temperature=0.5, max_tokens=7, regex="a+")
    assert "gen_0" in state
    assert "gen_1" in state
    first, second = transport.generations
    assert (first.sampling.max_tokens, first.sampling.temperature) == (128, 1.0)
    assert (second.sampling.max_tokens, second.sampling.temperature) == (7, 0.5)
    assert second.constraint is not None
    assert second.constraint.regex == "a+"
    assert state.usage == Usage(prompt=1 + 2, cached=2, completion=4)


async def test_500_programs_need_no_threads(transport: ScriptedTransport) -> None:
    @rr.function
    async def program(s: rr.State, n: int) -> None:
        s += f"number {n}"
        async with s.fork(3) as forks:
            forks += rr.gen("x")

    before = threading.active_count()
    seen = set()

    async def watch() -> None:
        while True:
            await asyncio.sleep(0.01)
            seen.add(threading.active_count())

    watcher = asyncio.create_task(watch())
    results = await asyncio.gather(*(program.run(n, transport=transport) for n in range(500)))
    watcher.cancel()
    assert all(result["x"] == [" ok"] * 3 for result in results)
    assert seen <= {before}


async def test_no_task_is_left(state: State) -> None:
    state += "a" + rr.gen("x")
    await state.sync()
    await asyncio.sleep(0)
    gc.collect()
    assert len(asyncio.all_tasks()) == 1
