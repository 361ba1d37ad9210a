"""The Responses API, as the openai package uses it."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import openai
import pytest
from fake_transport import FakeTransport
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from radixray.errors import ConstraintError, EngineDiedError, OverloadedError

MODEL = "smollm2-135m"
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def cut(text: str, size: int = 3) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


def prompt_of(transport: FakeTransport) -> str:
    ids = transport.requests[-1].prompt_ids
    return "".join(transport.tokenizer.spelling(token).decode() for token in ids)


async def test_text(client: openai.AsyncOpenAI, transport: FakeTransport) -> None:
    transport.cached = [3]
    answer = await client.responses.create(
        model=MODEL,
        instructions="Be brief.",
        input="Hello?",
        max_output_tokens=50,
        temperature=0.5,
        top_p=0.9,
        metadata={"run": "7"},
    )
    assert answer.output_text == transport.text
    assert (answer.status, answer.object, answer.model) == ("completed", "response", MODEL)
    assert answer.metadata == {"run": "7"}
    assert answer.text is not None
    assert answer.text.to_dict() == {"format": {"type": "text"}}
    assert answer.instructions == "Be brief."
    assert (answer.max_output_tokens, answer.temperature, answer.top_p) == (50, 0.5, 0.9)
    [message] = answer.output
    assert (message.type, message.status) == ("message", "completed")
    [request] = transport.requests
    assert answer.usage is not None
    assert answer.usage.input_tokens == len(request.prompt_ids)
    assert answer.usage.input_tokens_details.cached_tokens == 3
    assert answer.usage.output_tokens == len(transport.words)
    assert answer.usage.total_tokens == len(request.prompt_ids) + len(transport.words)
    assert request.sampling.max_tokens == 50
    assert (request.sampling.temperature, request.sampling.top_p) == (0.5, 0.9)
    prompt = prompt_of(transport)
    assert "system\nBe brief." in prompt
    assert "user\nHello?" in prompt


async def test_an_answer_can_be_sent_back(
    client: openai.AsyncOpenAI, transport: FakeTransport
) -> None:
    transport.words = cut("I look.\n" + CALL)
    first = await client.responses.create(model=MODEL, input="Weather?", tools=[WEATHER])
    said, call = first.output
    assert said.type == "message"
    assert first.output_text == "I look."
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"city": "Paris"}
    items: list[Any] = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
        {"role": "user", "content": "Weather?"},
        *(item.model_dump() for item in first.output),
        {"type": "function_call_output", "call_id": call.call_id, "output": "Rain, 9 C"},
    ]
    transport.words = ["It rains."]
    second = await client.responses.create(model=MODEL, input=items, tools=[WEATHER])
    assert second.output_text == "It rains."
    prompt = prompt_of(transport)
    order = ["Be kind.", "user\nWeather?", "I look.", '"city": "Paris"', "Rain, 9 C"]
    places = [prompt.index(text) for text in order]
    assert places == sorted(places)
    assert prompt.count("<|im_start|>assistant") == 2, "text and call are one turn"


@pytest.mark.parametrize("size", [1, 4, 1000])
async def test_events(client: openai.AsyncOpenAI, transport: FakeTransport, size: int) -> None:
    transport.words = cut("I look.\n" + CALL, size)
    stream = await client.responses.create(
        model=MODEL, input="Weather?", tools=[WEATHER], stream=True
    )
    events: list[ResponseStreamEvent] = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert [kind for i, kind in enumerate(kinds) if kinds[i - 1] != kind] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    last = events[-1]
    assert last.type == "response.completed"
    said, call = last.response.output
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == last.response.output_text == "I look."
    arguments = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert call.type == "function_call"
    assert "".join(arguments) == call.arguments
    done = [e.item for e in events if e.type == "response.output_item.done"]
    assert done == [said, call]
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == len(transport.words)


async def test_the_stream_helper(client: openai.AsyncOpenAI, transport: FakeTransport) -> None:
    async with client.responses.stream(model=MODEL, input="x") as stream:
        texts = [e.delta async for e in stream if e.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert texts == transport.words
    assert final.output_text == transport.text


async def test_parse(client: openai.AsyncOpenAI, transport: FakeTransport) -> None:
    class Order(BaseModel):
        item: str
        count: int

    transport.words = ['{"item":"tea"', ',"count":2}']
    answer = await client.responses.parse(model=MODEL, input="x", text_format=Order)
    assert answer.output_parsed == Order(item="tea", count=2)
    constraint = transport.requests[0].constraint
    assert constraint is not None
    assert constraint.json_schema is not None
    assert json.loads(constraint.json_schema)["required"] == ["item", "count"]


async def test_json_object_and_forced_call(
    client: openai.AsyncOpenAI, transport: FakeTransport
) -> None:
    await client.responses.create(model=MODEL, input="x", text={"format": {"type": "json_object"}})
    constraint = transport.requests[-1].constraint
    assert constraint is not None
    assert json.loads(constraint.json_schema or "") == {"type": "object"}
    transport.words = ['[{"name":"get_weather","arguments":{"city":"Bonn"}}]']
    answer = await client.responses.create(
        model=MODEL,
        input="x",
        tools=[WEATHER],
        tool_choice={"type": "function", "name": "get_weather"},
    )
    [call] = answer.output
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"city": "Bonn"}
    constraint = transport.requests[-1].constraint
    assert constraint is not None
    assert "get_weather" in (constraint.json_schema or "")


@pytest.mark.parametrize("stream", [False, True])
async def test_cut_off(http: aiohttp.ClientSession, transport: FakeTransport, stream: bool) -> None:
    body = {"model": MODEL, "input": "x", "max_output_tokens": 2, "stream": stream}
    async with http.post("/v1/responses", json=body) as response:
        text = await response.text()
    if stream:
        *_, last, rest = text.split("\n\n")
        assert rest == ""
        name, data = last.split("\n")
        assert name == "event: response.incomplete"
        found = json.loads(data.removeprefix("data: "))["response"]
    else:
        found = json.loads(text)
    answer = Response.model_validate(found)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output_text == "".join(transport.words[:2])
    [message] = answer.output
    assert message.type == "message"
    assert message.status == "incomplete"


async def test_nothing_said(client: openai.AsyncOpenAI, transport: FakeTransport) -> None:
    transport.words = [""]
    answer = await client.responses.create(model=MODEL, input="x")
    assert answer.output_text == ""
    assert [item.type for item in answer.output] == ["message"]


async def test_failing_in_the_middle(client: openai.AsyncOpenAI, transport: FakeTransport) -> None:
    transport.error, transport.fail_after = EngineDiedError("the model actor died"), 2
    events = [
        event async for event in await client.responses.create(model=MODEL, input="x", stream=True)
    ]
    error, failed = events[-2:]
    assert error.type == "error"
    assert (error.code, error.message) == ("engine_died", "the model actor died")
    assert failed.type == "response.failed"
    assert failed.response.status == "failed"
    assert failed.response.error is not None
    assert failed.response.output_text == "".join(transport.words[:2])
    assert [event.sequence_number for event in events] == list(range(len(events)))


@pytest.mark.parametrize("stream", [False, True])
async def test_failing_before_is_a_status(
    client: openai.AsyncOpenAI, transport: FakeTransport, stream: bool
) -> None:
    transport.error = OverloadedError("full")
    with pytest.raises(openai.RateLimitError):
        await client.responses.create(model=MODEL, input="x", stream=stream)


async def test_the_engines_refusals_have_our_names(
    http: aiohttp.ClientSession, transport: FakeTransport
) -> None:
    transport.error = ConstraintError("odd", param="json_schema")
    format = {"type": "json_schema", "schema": {"type": "odd"}}
    body = {"model": MODEL, "input": "x", "text": {"format": format}}
    async with http.post("/v1/responses", json=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "text.format"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_format_allows_no_more(
    http: aiohttp.ClientSession, transport: FakeTransport, stream: bool
) -> None:
    transport.finish_reason = "grammar_error"
    body = {"model": MODEL, "input": "x", "stream": stream, "text": {"format": {"type": "text"}}}
    async with http.post("/v1/responses", json=body) as response:
        text = await response.text()
    assert '"status":"failed"' in text
    assert '"code":"server_error"' in text


BAD: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"store": True}, "store"),
    ({"background": True}, "background"),
    ({"conversation": "c"}, "conversation"),
    ({"include": ["message.output_text.logprobs"]}, "include"),
    ({"reasoning": {"effort": "low"}}, "reasoning"),
    ({"truncation": "auto"}, "truncation"),
    ({"max_tool_calls": 1}, "max_tool_calls"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"no_such": 1}, "no_such"),
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 3}, "input"),
    ({"input": ["x"]}, "input[0]"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "clown", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": "x", "odd": 1}]}, "input[0].odd"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}]},
        "input[0].content[0]",
    ),
    ({"input": [{"type": "item_reference", "id": "i"}]}, "input[0].type"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": ""}]}, "input[0].call_id"),
    ({"max_output_tokens": -1}, "max_output_tokens"),
    ({"max_output_tokens": 10**6}, "max_output_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
]


@pytest.mark.parametrize(("given", "param"), BAD, ids=[json.dumps(given)[:60] for given, _ in BAD])
async def test_refused_by_name(
    http: aiohttp.ClientSession, transport: FakeTransport, given: dict[str, Any], param: str
) -> None:
    body = {"model": MODEL, "input": "x"} | given
    async with http.post("/v1/responses", json=body) as response:
        assert response.status == 400, await response.text()
        error = (await response.json())["error"]
    assert error["param"] == param, error
    assert "function.name" not in error["message"]
    assert not transport.requests
