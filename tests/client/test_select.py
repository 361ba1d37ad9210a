from __future__ import annotations

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.state import State


async def test_mean_of_the_token_logprobs(state: State, transport: ScriptedTransport) -> None:
    # Sums prefer the first, means the second.
    transport.score_reply = lambda request: [[-2.0], [-1.0, -1.0, -1.0], [-4.0, -0.5]]
    state += "It is"
    choice = await state.select("x", [" red", " dark blue-ish", " green"])
    assert choice.scores == [-2.0, -1.0, -2.25]
    assert choice.logprobs == [[-2.0], [-1.0, -1.0, -1.0], [-4.0, -0.5]]
    assert (choice.index, choice.text, choice.value) == (1, " dark blue-ish", " dark blue-ish")
    assert state.text() == "It is dark blue-ish"
    request = transport.requests[0]
    encode = transport.tokenizer.encode
    assert request.prompt_ids == encode("It is")
    assert request.choices == [encode(" red"), encode(" dark blue-ish"), encode(" green")]
    assert state.tokens() == encode("It is") + encode(" dark blue-ish")


async def test_choice_ids_are_appended_as_scored(
    state: State, transport: ScriptedTransport
) -> None:
    state += "Hel"
    await state.select("x", ["lo"])
    encode = transport.tokenizer.encode
    assert state.tokens() == encode("Hel") + encode("lo") != encode("Hello")


async def test_ties_take_the_first(state: State, transport: ScriptedTransport) -> None:
    transport.score_reply = lambda request: [[-1.0], [-1.0, -1.0]]
    state += "a" + rr.select("x", ["b", "c d"])
    assert (await state["x"]).index == 0


async def test_after_a_prompt_of_one_token(state: State) -> None:
    state += "a"
    assert (await state.select("x", [" b", " c"])).index == 0


async def test_without_a_prompt_it_fails_with_a_cause(state: State) -> None:
    with pytest.raises(rr.ProgramError) as caught:
        await state.select("x", ["a"])
    assert isinstance(caught.value.__cause__, rr.InvalidRequestError)
    assert caught.value.op == "select('x')"
