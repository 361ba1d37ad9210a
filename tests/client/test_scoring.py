"""Scores without a choice, methods of one's own, and results that make a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.state import State
from radixray.protocol import ScoreRequest


async def test_score_appends_nothing(state: State, transport: ScriptedTransport) -> None:
    transport.score_reply = lambda request: [[-2.0], [-1.0]]
    state += "It is"
    before = state.tokens()
    scores = await state.score([" red", " blue"])
    assert (scores.scores, scores.index, scores.text) == ([-2.0, -1.0], 1, " blue")
    assert sum(scores.probabilities) == pytest.approx(1)
    assert (state.text(), state.tokens()) == ("It is", before)
    assert "gen_0" not in state
    assert state.usage.prompt > 0
    with pytest.raises(rr.InvalidRequestError):
        state.score([])


async def test_a_method_of_ones_own(state: State, transport: ScriptedTransport) -> None:
    transport.score_reply = lambda request: [[-3.0, -1.0], [-2.5, -2.4]]
    state += "It is"

    def last_token(logprobs: Sequence[Sequence[float]]) -> list[float]:
        return [row[-1] for row in logprobs]

    choice = await state.select("x", [" dark red", " dark blue"], method=last_token)
    assert (choice.index, choice.scores) == (0, [-1.0, -2.4])
    assert choice.unconditional_logprobs is None
    assert len(transport.requests) == 1


async def test_one_that_looks_at_the_unconditional(
    state: State, transport: ScriptedTransport
) -> None:
    def gain(given: Any, alone: Any) -> list[float]:
        return [g[-1] - a[-1] for g, a in zip(given, alone, strict=True)]

    gain.unconditional = True  # type: ignore[attr-defined]

    def reply(request: ScoreRequest) -> list[list[float]]:
        return (
            [[-1.0] * len(c) for c in request.choices]
            if len(request.prompt_ids) > 1
            else [[-0.25], [-3.0]]
        )

    transport.score_reply = reply
    state += "It is so"
    choice = await state.select("x", [" dark red", " dark blue"], method=gain)
    assert (choice.index, choice.scores) == (1, [-0.75, 2.0])
    assert choice.unconditional_logprobs == [[0.0, -0.25], [0.0, -3.0]]


@pytest.mark.parametrize("wrong", [[1.0], 3, ["a", "b"], [float("nan"), 1.0]])
async def test_a_method_must_give_a_number_for_each(state: State, wrong: Any) -> None:
    state += "It is"
    with pytest.raises(rr.ProgramError, match="2 numbers") as caught:
        await state.select("x", [" a", " b"], method=lambda logprobs: wrong)
    assert isinstance(caught.value.__cause__, rr.InvalidRequestError)
    assert caught.value.__cause__.param == "method"


async def test_list_append(state: State, transport: ScriptedTransport) -> None:
    for text in (" one", " two"):
        transport.reply = text
        state += "a"
        assert (await state.gen("x", list_append=True)).text == text
    state += rr.select("x", [" b"], list_append=True)
    assert await state["x"] == [" one", " two", " b"]
    assert state["x"].value == [" one", " two", " b"]
    # A branch goes on with its own list.
    branch = state.copy()
    transport.reply = " three"
    branch += rr.gen("x", list_append=True)
    await branch.sync()
    assert branch["x"].value == [" one", " two", " b", " three"]
    assert len(state["x"].value) == 3
    state["y"] = ["set"]
    await state.gen("y", list_append=True)
    assert state["y"].value[0] == "set" and str(state["y"].value[1]) == " three"
    state["z"] = "text"
    state += rr.gen("z", list_append=True)
    with pytest.raises(rr.ProgramError, match="no list"):
        await state.sync()


@pytest.mark.parametrize(
    ("params", "param"),
    [({"list_append": 1}, "list_append"), ({"list_append": True, "n": 2}, "n")],
)
def test_wrong_lists(params: dict[str, Any], param: str) -> None:
    with pytest.raises(rr.InvalidRequestError) as caught:
        rr.gen("x", **params)
    assert caught.value.param == param
    with pytest.raises(rr.InvalidRequestError):
        rr.gen(list_append=True)
    with pytest.raises(rr.InvalidRequestError):
        rr.select(None, ["a"], list_append=True)
