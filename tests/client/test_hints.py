"""What newcomers get wrong is never silent, and the error says what to do instead."""

from __future__ import annotations

import copy
import linecache
import pickle
import warnings
from typing import Any

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.state import State


@rr.function
async def capital(s: rr.State, country: str) -> rr.Gen:
    s += f"The capital of {country} is"
    return await s.gen("city", max_tokens=3)


async def test_an_operation_under_way_is_no_text(
    state: State, transport: ScriptedTransport
) -> None:
    transport.reply = " Paris"
    state += "France:"
    pending = state.gen("x")
    with pytest.raises(rr.NotReadyError, match="await it"):
        f"{pending}"
    with pytest.raises(rr.InvalidRequestError, match="await it first"):
        state += pending  # type: ignore[operator]
    with pytest.raises(rr.InvalidRequestError, match=r"append its `\.text`"):
        state += await pending  # type: ignore[operator]
    await state.sync()
    assert state.text() == "France: Paris"


async def test_a_state_grows_in_place(state: State) -> None:
    with pytest.raises(rr.InvalidRequestError, match=r"`s \+= ...`"):
        state = state + "a"


async def test_results_are_no_strings(state: State, transport: ScriptedTransport) -> None:
    transport.reply = " Paris"
    state += "France:" + rr.gen("city") + rr.select("rest", ["!"])
    for result in (await state["city"], await state["rest"], state["city"]):
        with pytest.raises(AttributeError, match=r"no attribute 'strip'; its text has: `.text.str"):
            result.strip()
        with pytest.raises(AttributeError, match=r"no attribute 'stripe'$"):
            result.stripe  # noqa: B018
        assert result.text.strip() in ("Paris", "!")
        assert copy.deepcopy(result) == pickle.loads(pickle.dumps(result)) == result.text


async def test_what_is_returned_under_way_is_finished(transport: ScriptedTransport) -> None:
    transport.reply = " ok"

    @rr.function
    async def program(s: rr.State) -> Any:
        s += "a"
        first = s.gen("x")
        return [first, {"choice": s.gen("y", n=2)}]

    result = await program.run(transport=transport)
    first, others = result.value
    assert isinstance(first, rr.Gen) and first == result["x"] == " ok"
    assert others["choice"] == result["y"] == [" ok", " ok"]


async def test_a_program_is_run_not_called() -> None:
    with pytest.raises(TypeError, match=r"`await capital.run\(...\)` runs it"):
        await capital("France")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'France'"):
        await capital("France", "country")  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", ["France", b"France", {"country": "France"}])
async def test_one_row_is_not_many(transport: ScriptedTransport, rows: Any) -> None:
    with pytest.raises(rr.InvalidRequestError, match="rows must be many") as caught:
        await capital.run_batch(rows, transport=transport)
    assert caught.value.param == "rows"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_new_tokens", "'max_new_tokens': it is called max_tokens"),
        ("temprature", "'temprature': did you mean 'temperature'?"),
        ("contry", "'contry': did you mean 'country'?"),
        ("regex", "'regex': it is one of a single gen"),
        ("banana", "no parameter 'banana' (its own: country;"),
    ],
)
async def test_an_unknown_parameter_of_a_run(
    transport: ScriptedTransport, name: str, hint: str
) -> None:
    with pytest.raises(rr.InvalidRequestError) as caught:
        await capital.run("France", transport=transport, **{name: "1"})
    assert hint in caught.value.message and caught.value.param == name


def test_an_unknown_parameter_of_a_generation() -> None:
    with pytest.raises(rr.InvalidRequestError, match="did you mean 'max_tokens'"):
        rr.gen("x", max_token=3)
    for stop in (5, {"a": 1}):
        with pytest.raises(rr.InvalidRequestError, match="stop must be a string or a list"):
            rr.gen("x", stop=stop)


async def test_variables_that_are_not_there(state: State, transport: ScriptedTransport) -> None:
    result = await capital.run("France", transport=transport)
    with pytest.raises(KeyError, match="no variable 'town'; there are: city"):
        result["town"]
    transport.reply = rr.EngineError("the engine is ill")
    [failed] = await capital.run_batch(["France"], transport=transport)
    with pytest.raises(KeyError, match=r"the program failed.*the engine is ill") as caught:
        failed["city"]
    assert caught.value.__cause__ is failed.error

    state += "a"
    async with state.fork(2) as forks:
        forks[1].set("x", 1)
        with pytest.raises(KeyError, match=r"no variable 'x'.*joining them brings it"):
            state["x"]
        with pytest.raises(KeyError) as unknown:
            state["y"]
        assert "join" not in str(unknown.value)
    assert state["x"] == [None, 1]


async def test_a_warning_names_the_programs_line_once(transport: ScriptedTransport) -> None:
    @rr.function
    async def program(s: rr.State) -> None:
        s += "The answer is "
        await s.select("x", ["yes", "no"])

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        await program.run_batch([{}, {}, {}], transport=transport)
    [warning] = warned
    assert warning.filename == __file__
    assert "await s.select" in linecache.getline(__file__, warning.lineno)


async def test_an_output_cut_off_says_so(transport: ScriptedTransport) -> None:
    transport.reply = "[1,2,3]"

    @rr.function
    async def program(s: rr.State) -> None:
        s += "Numbers:" + rr.gen("x", type=list[int], max_tokens=3)

    with pytest.raises(rr.ProgramError) as caught:
        await program.run(transport=transport)
    cause = caught.value.__cause__
    assert isinstance(cause, rr.OutputError) and cause.text == "[1,"
    assert cause.message == "the output '[1,' cannot be read as list[int]: max_tokens cut it off"
