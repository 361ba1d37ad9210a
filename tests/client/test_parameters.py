from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.expressions import Concat, Text
from radixray.client.state import State


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"temprature": 0}, "temprature"),
        ({"temperature": -1}, "temperature"),
        ({"regex": 3}, "regex"),
        ({"cache_salt": 3}, "cache_salt"),
        ({"max_tokens": "9"}, "max_tokens"),
    ],
)
def test_wrong_parameters_are_named(params: dict[str, object], param: str) -> None:
    with pytest.raises(rr.InvalidRequestError) as caught:
        rr.gen("x", **params)
    assert caught.value.param == param


@pytest.mark.parametrize("choices", [[], "ab", ["a", ""], ["a", 1]])
def test_wrong_choices(choices: object) -> None:
    with pytest.raises(rr.InvalidRequestError) as caught:
        rr.select("x", choices)  # type: ignore[arg-type]
    assert caught.value.param == "choices"


@pytest.mark.parametrize("value", [None, 1, b"x", ["a"]])
def test_only_strings_and_expressions_are_appended(value: object) -> None:
    with pytest.raises(rr.InvalidRequestError, match=type(value).__name__):
        rr.user(value)  # type: ignore[arg-type]
    with pytest.raises(rr.InvalidRequestError):
        "a" + rr.gen("x") + value  # type: ignore[operator]


def test_concatenation_works_both_ways_and_changes_nothing() -> None:
    x = rr.gen("x")
    both = "a" + x + "b"
    assert list(both.parts()) == [Text("a"), x, Text("b")]
    assert "c" + both == Concat((Text("c"), both))
    assert list(both.parts()) == [Text("a"), x, Text("b")]
    with pytest.raises(AttributeError):
        x.name = "y"  # type: ignore[misc]
    with pytest.raises(TypeError):
        x.params["temperature"] = 1  # type: ignore[index]


def test_roles_do_not_nest() -> None:
    with pytest.raises(rr.InvalidRequestError, match="'user' begins inside role 'system'"):
        rr.system("a" + rr.user("b"))


async def test_run_defaults_and_their_order(transport: ScriptedTransport) -> None:
    @rr.function
    async def program(s: rr.State, top_k: int) -> int:
        s += "a" + rr.gen("x") + rr.gen("y", temperature=0.7)
        return top_k

    result = await program.run(
        top_k=3, temperature=0, max_tokens=5, cache_salt="me", transport=transport
    )
    assert result.value == 3
    x, y = transport.generations
    assert (x.sampling.temperature, x.sampling.max_tokens, x.sampling.top_k) == (0, 5, -1)
    assert y.sampling.temperature == 0.7
    assert x.cache_salt == y.cache_salt == "me"
    with pytest.raises(rr.InvalidRequestError) as caught:
        await program.run(top_k=3, temprature=0, transport=transport)
    assert caught.value.param == "temprature"


async def test_a_run_seed_differs_in_each_branch(transport: ScriptedTransport) -> None:
    @rr.function
    async def program(s: rr.State) -> None:
        s += "a b" + rr.gen("x")
        async with s.fork(2) as forks:
            forks += rr.gen("y") + rr.gen("z", seed=5)

    await program.run(seed=7, transport=transport)
    seeds = [request.sampling.seed for request in transport.generations]
    await program.run(seed=7, transport=transport)
    again = [request.sampling.seed for request in transport.generations[len(seeds) :]]
    assert seeds == again
    assert seeds[0] == 7
    assert seeds.count(5) == 2
    assert len(set(seeds)) == 4


async def test_no_stop_trim(state: State, transport: ScriptedTransport) -> None:
    transport.reply = "one. two. three"
    state += "a "
    x = await state.gen("x", stop=". t", no_stop_trim=True)
    assert (x.text, x.stop_reason, state.text()) == ("one. t", ". t", "a one. t")
    (dot,) = transport.tokenizer.encode(".")
    state += " "
    y = await state.gen("y", stop_token_ids=[dot], no_stop_trim=True)
    assert (y.text, y.stop_reason, state.text()) == ("one.", dot, "a one. t one.")
    assert state.tokens()[-1] == dot
    # The model's own end has no text, and is no part of the state.
    z = await state.gen("z", no_stop_trim=True)
    assert z.text == transport.reply
    assert state.tokens()[-1] != transport.info.eos_token_ids[0]


async def test_no_stop_trim_while_it_streams(state: State, transport: ScriptedTransport) -> None:
    transport.reply = "one. two"
    state += "a" + rr.gen("x", stop=".", no_stop_trim=True)
    assert "".join([piece async for piece in state.text_iter("x")]) == "one."


@pytest.mark.parametrize("late", [-1, 0.02])
@pytest.mark.parametrize("what", ["gen", "samples", "select", "mask", "fork", "gen's own"])
async def test_a_deadline_is_a_point_in_time(
    transport: ScriptedTransport, what: str, late: float
) -> None:
    @rr.function
    async def program(s: State, own: dict[str, Any]) -> None:
        s += "a b c"
        match what:
            case "gen" | "gen's own":
                await s.gen("x", **own)
            case "samples":
                await s.gen("x", n=2)
            case "fork":
                await s.fork(2).join()
            case "select":
                await s.select("x", ["a", "b"])
            case "mask":
                await s.select("x", ["a", "b"], mode="mask")

    transport.reply = lambda request: asyncio.sleep(60, "a")
    transport.score_reply = lambda request: asyncio.sleep(60)
    given = {"deadline": time.time() + late}
    own, run = (given, {}) if what == "gen's own" else ({}, given)
    async with asyncio.timeout(10):
        with pytest.raises((rr.ProgramError, ExceptionGroup)) as caught:
            await program.run(own, transport=transport, **run)
    error = caught.value
    if isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error.__cause__, rr.DeadlineExceededError)
    assert error.__cause__.param == "deadline"
    assert transport.live == 0
    assert bool(transport.requests) == (late > 0)


async def test_in_time(transport: ScriptedTransport) -> None:
    @rr.function
    async def program(s: State) -> None:
        s += "a" + rr.gen("x", deadline=time.time() + 60)

    assert (await program.run(transport=transport))["x"] == " ok"
    with pytest.raises(rr.InvalidRequestError):
        await program.run(transport=transport, deadline=time.time() * 1000)
