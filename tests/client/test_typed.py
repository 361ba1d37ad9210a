"""Typed results, samples, and parameters that are refused by name."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any, TypedDict

import pydantic
import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.state import State
from radixray.client.typed import reading_of
from radixray.constraint import Constraint
from radixray.fsm import accepts
from radixray.protocol import GenerateRequest


class Order(pydantic.BaseModel):
    item: str
    count: int


class Point(TypedDict):
    x: int


@pytest.mark.parametrize(
    ("dtype", "output", "value", "text"),
    [
        (int, " 42.", 42, " 42"),
        (int, "-7\n", -7, "-7"),
        (float, " 3.5 ", 3.5, " 3.5"),
        (float, "3", 3.0, "3"),
        (bool, " True", True, " True"),
        (bool, "False", False, "False"),
        (str, ' "a \\"b\\""', 'a "b"', ' "a \\"b\\""'),
    ],
)
async def test_dtype(
    state: State, transport: ScriptedTransport, dtype: type, output: str, value: Any, text: str
) -> None:
    transport.reply = output
    state += "It is"
    result = await state.gen("x", dtype=dtype)
    assert (result.value, result.text, type(result.value)) == (value, text, dtype)
    assert state["x"].value == value
    state += "!" + state["x"]
    await state.sync()
    # What only ended the number is not kept.
    assert state.text() == f"It is{text}!{text}"
    constraint = transport.generations[0].constraint
    assert constraint is not None
    assert accepts(constraint, output)
    assert pickle.loads(pickle.dumps(result)) == result


@pytest.mark.parametrize(
    ("dtype", "output"),
    [(int, ""), (int, "4.2"), (int, "x"), (float, "1."), (bool, "true"), (str, "bare")],
)
def test_what_dtype_leaves_out(dtype: type, output: str) -> None:
    reading = reading_of({"dtype": dtype})
    assert reading is not None
    assert not accepts(Constraint(**reading.constraint), output)


async def test_a_stop_goes_with_dtype(state: State, transport: ScriptedTransport) -> None:
    transport.reply = "12\n3"
    state += "a"
    assert (await state.gen("x", dtype=int, stop="\n")).value == 12
    assert transport.generations[0].sampling.stop == ("\n",)


async def test_pydantic(state: State, transport: ScriptedTransport) -> None:
    transport.reply = '{"item":"tea","count":2}'
    state += "a"
    result = await state.gen("x", type=Order)
    assert result.value == Order(item="tea", count=2)
    assert transport.generations[0].constraint == Constraint(
        json_schema=Order, whitespace="compact"
    )
    assert state["x"].text == transport.reply
    transport.reply = '[{"item":"tea","count":2}]'
    assert (await state.gen("y", type=list[Order])).value == [Order(item="tea", count=2)]
    transport.reply = '{"x":1}'
    assert (await state.gen("z", type=Point)).value == {"x": 1}
    transport.reply = "null"
    assert (await state.gen("w", type=Order | None)).value is None


async def test_a_typed_value_after_a_marker(state: State, transport: ScriptedTransport) -> None:
    transport.reply = "So 3 and 4 make</think>7"
    state += "a"
    assert (await state.gen("x", dtype=int, start_after="</think>")).value == 7


async def test_an_output_cut_off(state: State, transport: ScriptedTransport) -> None:
    transport.reply = '{"item":"te'
    state += "a"
    with pytest.raises(rr.ProgramError) as caught:
        await state.gen("x", type=Order)
    cause = caught.value.__cause__
    assert isinstance(cause, rr.OutputError)
    assert cause.text == transport.reply
    copy = pickle.loads(pickle.dumps(cause))
    assert (copy.text, copy.message) == (cause.text, cause.message)


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"dtype": list}, "dtype"),
        ({"dtype": "int"}, "dtype"),
        ({"dtype": int, "regex": "a"}, "dtype"),
        ({"dtype": int, "type": Order}, "dtype"),
        ({"type": Order, "choices": ["a"]}, "type"),
        ({"type": 3}, "json_schema"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"n": 129}, "n"),
        ({"stop_regex": ""}, "stop_regex"),
        ({"return_logprob": True}, "return_logprob"),
        ({"max_new_tokens": 3}, "max_new_tokens"),
        ({"structural_tag": "x"}, "structural_tag"),
    ],
)
def test_refused(params: dict[str, Any], param: str) -> None:
    with pytest.raises(rr.InvalidRequestError) as caught:
        rr.gen("x", **params)
    assert caught.value.param == param


async def test_only_a_generation_has_a_type(transport: ScriptedTransport) -> None:
    @rr.function
    async def program(s: rr.State) -> None:
        s += "a"

    with pytest.raises(rr.InvalidRequestError) as caught:
        await program.run(dtype=int, transport=transport)
    assert caught.value.param == "dtype"


async def test_gen_int_and_gen_string(state: State, transport: ScriptedTransport) -> None:
    replies = iter(["3", '"b"'])
    transport.reply = lambda request: next(replies)
    state += "a" + rr.gen_int("x") + rr.gen_string("y")
    await state.sync()
    assert (state["x"].value, state["y"].value) == (3, "b")


async def test_samples(state: State, transport: ScriptedTransport) -> None:
    transport.reply = lambda request: (
        f" s{transport.generations.index(request) + 1}" if request.sampling.max_tokens else ""
    )
    state += "a shared prompt"
    results = await state.gen("x", n=3, seed=5)
    assert len(results) == 3
    assert sorted(state["x"].value) == [" s1", " s2", " s3"]
    first, *others = transport.generations
    assert first.sampling.seed == 5
    assert len({request.sampling.seed for request in transport.generations}) == 3
    assert all(other.prompt_ids == first.prompt_ids for other in others)
    assert len(transport.commits) == 1
    assert transport.requests[0] is transport.commits[0]
    await state.sync()
    assert state.text() == "a shared prompt" + results[0].text
    assert state.usage.completion == sum(r.usage.completion for r in results)


async def test_samples_in_a_chat(state: State, transport: ScriptedTransport) -> None:
    state += rr.user("q") + rr.assistant(rr.gen("x", n=2))
    await state.sync()
    assert [r.text for r in state["x"].result] == [" ok", " ok"]
    assert state.messages()[-1] == {"role": "assistant", "content": " ok"}


async def test_a_failed_sample_ends_the_others(state: State, transport: ScriptedTransport) -> None:
    async def reply(request: GenerateRequest) -> str | Exception:
        if request.sampling.max_tokens == 0:
            return ""
        if request is transport.generations[1]:
            return rr.EngineError("second")
        await asyncio.sleep(0.02 if request is transport.generations[0] else 60)
        return "x"

    transport.reply = reply
    state += "a b"
    async with asyncio.timeout(10):
        with pytest.raises(rr.ProgramError, match="second"):
            await state.gen("x", n=3)
    assert transport.live == 0
