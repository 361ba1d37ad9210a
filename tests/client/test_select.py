from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import Any

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.choice_methods import greedy_choice, probabilities, unconditional_scores
from radixray.client.state import State
from radixray.constraint import Constraint
from radixray.protocol import ScoreRequest


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


def test_greedy_spells_token_by_token() -> None:
    # The second has the best mean, but greedy decoding would not begin it.
    assert greedy_choice([[-1.0, -9.0], [-1.1, -0.1]]) == 0
    # A choice that has ended goes on with its mean.
    assert greedy_choice([[-1.0], [-1.0, -0.5], [-1.0, -0.5, -3.0]]) == 1
    assert greedy_choice([[-1.0], [-1.0, -1.5]]) == 0
    assert greedy_choice([[-2.0], [-2.0]]) == 0


def test_unconditional_scores() -> None:
    assert unconditional_scores([[-2.0, -1.0], [-3.0]], [[0.0, -4.0], [0.0]]) == [0.5, -3.0]


def test_probabilities() -> None:
    half, other = probabilities([-1.0, -1.0 - math.log(3)], 1.0)
    assert (round(half, 9), round(other, 9)) == (0.75, 0.25)
    assert probabilities([-5.0, -1.0], 0.01)[1] == pytest.approx(1)
    assert probabilities([-math.inf, -math.inf], 1.0) == [0.5, 0.5]


async def test_each_method_has_its_winner(state: State, transport: ScriptedTransport) -> None:
    choices = [" one", " two three", " four"]

    def score(request: ScoreRequest) -> list[list[float]]:
        if len(request.prompt_ids) == 1:  # without the prompt
            return [[-8.0]]
        return [[-1.0], [-1.2, -0.5], [-0.9 - 1.0]]

    transport.score_reply = score
    state += "A prompt of some length"
    by_mean = await state.select("a", choices)
    greedy = await state.select("b", choices, method="greedy_token_selection")
    by_gain = await state.select("c", choices, method="unconditional_likelihood_normalized")
    assert (by_mean.index, greedy.index, by_gain.index) == (1, 0, 1)
    assert by_mean.scores == greedy.scores == [-1.0, -0.85, -1.9]
    assert by_gain.scores == pytest.approx([-1.0, (-1.2 - 0.5 + 8.0) / 2, -1.9])
    assert by_gain.unconditional_logprobs == [[0.0], [0.0, -8.0], [0.0]]
    assert by_mean.unconditional_logprobs is None
    assert sum(by_gain.probabilities) == pytest.approx(1)
    two, three = transport.tokenizer.encode(" two three")
    alone = transport.requests[-1]
    assert (alone.prompt_ids, alone.choices) == ([two], [[three]])
    assert by_gain.usage.prompt == len(transport.requests[-2].prompt_ids) + 1


async def test_temperature_draws_by_the_probabilities(
    state: State, transport: ScriptedTransport
) -> None:
    transport.score_reply = lambda request: [[math.log(0.8)], [math.log(0.2)]]
    state += "a"
    forks = state.fork(200)
    forks += lambda i: rr.select("x", [" b", " c"], temperature=1.0, seed=i)
    await forks.join()
    drawn = state["x"].result
    assert 130 < Counter(drawn)[" b"] < 190
    for i in (0, 150):
        again = await state.fork()[0].select("x", [" b", " c"], temperature=1.0, seed=i)
        assert again.text == drawn[i]
        assert again.probabilities == pytest.approx([0.8, 0.2])


async def test_a_run_seed_draws_differently_in_branches(transport: ScriptedTransport) -> None:
    transport.score_reply = lambda request: [[-1.0], [-1.0]]

    @rr.function
    async def program(s: State) -> list[str]:
        s += "a"
        async with s.fork(16) as forks:
            forks += rr.select("x", [" b", " c"], temperature=1.0)
        return s["x"].value

    first = (await program.run(seed=1, transport=transport)).value
    assert first == (await program.run(seed=1, transport=transport)).value
    assert set(first) == {" b", " c"}


async def test_mask(state: State, transport: ScriptedTransport) -> None:
    transport.reply = " green"
    state += "It is"
    choice = await state.select("x", [" red", " green"], mode="mask", temperature=0.5, seed=3)
    assert (choice.text, choice.index, choice.value) == (" green", 1, " green")
    assert (choice.scores, choice.probabilities, choice.logprobs) == ([], [], [])
    (request,) = transport.requests
    assert request.constraint == Constraint(choices=[" red", " green"])
    assert (request.sampling.temperature, request.sampling.seed) == (0.5, 3)
    assert state.text() == "It is green"
    transport.reply = " gre"
    with pytest.raises(rr.ProgramError) as caught:
        await state.select("y", [" red", " green"], mode="mask")
    assert isinstance(caught.value.__cause__, rr.OutputError)


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"method": "best"}, "method"),
        ({"mode": "logits"}, "mode"),
        ({"mode": "mask", "method": "greedy_token_selection"}, "method"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1, "method": "greedy_token_selection"}, "temperature"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_wrong_arguments(params: dict[str, Any], param: str) -> None:
    with pytest.raises(rr.InvalidRequestError) as caught:
        rr.select("x", ["a"], **params)
    assert caught.value.param == param


async def test_many_at_once_are_scored_on_their_own_text(transport: ScriptedTransport) -> None:
    @rr.function
    async def program(s: State, n: int) -> None:
        s += f"Prompt number {n}:" + rr.select("x", [f" yes{n}", f" no{n}"])

    await asyncio.gather(*(program.run(n, transport=transport) for n in range(64)))
    for request in transport.requests:
        n = int(transport.prompt(request).split()[-1].rstrip(":"))
        assert [transport.tokenizer.decode(ids) for ids in request.choices] == [
            f" yes{n}",
            f" no{n}",
        ]
