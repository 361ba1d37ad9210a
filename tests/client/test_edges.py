"""Corners that once gave a wrong answer or the wrong error."""

from __future__ import annotations

import asyncio
import pickle
import threading

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.state import State


async def test_a_character_cut_by_max_tokens_is_whole_again_later(
    state: State, transport: ScriptedTransport
) -> None:
    ids = transport.tokenizer.encode("🌟🌟é")
    replies = iter(ids)
    transport.reply = lambda request: [next(replies)]
    with state.assistant():
        state += "Emoji: "
        for _ in ids:
            await state.gen(max_tokens=1)
            await state.sync()
            assert transport.tokenizer.decode(state.tokens()) in state.text().replace(
                "<|im_start|>", ""
            ).replace("<|im_end|>", "")
        state += "!"
    await state.sync()
    assert state.messages()[-1]["content"] == "Emoji: 🌟🌟é!"
    assert "Emoji: 🌟🌟é!" in state.text()


async def test_bytes_that_text_follows_stay_replaced(
    state: State, transport: ScriptedTransport
) -> None:
    first = transport.tokenizer.encode("🌟")[0]
    transport.reply = lambda request: [first]
    state += "a"
    await state.gen(max_tokens=1)
    state += "b"
    await state.sync()
    assert state.text() == "a\N{REPLACEMENT CHARACTER}b"
    assert transport.tokenizer.decode(state.tokens()) == state.text()


async def test_a_variable_can_be_another_ones_result(
    state: State, transport: ScriptedTransport
) -> None:
    transport.reply = " hi"
    state += "a" + rr.gen("x")
    state["y"] = state["x"]
    state["all"] = [state["x"], 1]
    forks = state.fork(2)
    forks += rr.gen("z")
    await forks.join()
    assert state["y"] == " hi"
    assert str(state["all"].value[0]) == " hi"


async def test_what_cannot_be_copied_is_named(state: State) -> None:
    state["guard"] = threading.Lock()
    with pytest.raises(rr.InvalidRequestError) as caught:
        state.fork(2)
    assert caught.value.param == "guard"


async def test_results_hold_values_not_variables(transport: ScriptedTransport) -> None:
    transport.reply = " hi"

    @rr.function
    async def program(s: State) -> dict:
        s += "a"
        await s.gen("x")
        s["list"] = [s["x"]]
        return {"one": [s["x"]], "two": (s["x"], 2)}

    result = await program.run(transport=transport)
    assert result.value == {"one": [" hi"], "two": (" hi", 2)}
    assert result["list"] == [" hi"]
    assert pickle.loads(pickle.dumps(result)).value == result.value


async def test_results_compare_with_their_text(state: State, transport: ScriptedTransport) -> None:
    transport.reply = " yes"
    state += "a"
    gen = await state.gen("x")
    choice = await state.select("c", [" no", " yes"])
    assert gen == " yes" and gen != " no" and gen in {" yes"}
    assert choice == choice.text and choice != "neither"
    assert gen != choice


async def test_a_row_that_cancels_itself_is_a_row_that_failed(
    transport: ScriptedTransport,
) -> None:
    @rr.function
    async def program(s: State, n: int) -> int:
        s += "a"
        await s.gen("x")
        if n == 3:
            raise asyncio.CancelledError
        return n

    results = {
        r.index: r async for r in program.map(range(6), on_error="return", transport=transport)
    }
    assert sorted(results) == list(range(6))
    assert isinstance(results[3].error, rr.AbortedError)
    assert [results[i].value for i in (0, 1, 2, 4, 5)] == [0, 1, 2, 4, 5]


async def test_a_branch_of_an_open_role_ends_it_with_its_next_message(
    state: State, transport: ScriptedTransport
) -> None:
    transport.reply = " x"
    state += rr.user("q")
    with state.assistant():
        state += "Both begin so"
        forks = state.fork(2)
    forks += rr.gen("end")
    forks[0] += rr.user("next")
    await forks.join()
    assert forks[0].messages()[-2:] == [
        {"role": "assistant", "content": "Both begin so x"},
        {"role": "user", "content": "next"},
    ]


async def test_deep_chains_of_forks(state: State) -> None:
    state += "a"
    branch = state
    for _ in range(1500):
        branch = branch.fork(1)[0]
    await branch.sync()
    assert state.usage.completion == 0
    state._cancel()
