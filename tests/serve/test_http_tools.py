"""Tools: shown to the model, called when forced, and found in what it writes."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import openai
import pytest
from fake_transport import FakeTransport

from radixray.constraint import Constraint
from radixray.fsm import accepts
from radixray.serve.tools import Function, Tool, tool_use_of
from radixray.tokenizer.chat_template import ChatTemplate

MODEL = "smollm2-135m"
HELLO: list[Any] = [{"role": "user", "content": "Weather in Paris?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Now, at a place.",
        "parameters": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$defs": {"Unit": {"enum": ["C", "F"]}},
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"$ref": "#/$defs/Unit"}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "clock"}}
NAMED = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
CALLS = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "unit": "C"}}\n'
    '</tool_call>\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)
HERMES = (
    "{% if tools %}TOOLS {% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "answer in <tool_call>\n{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls or [] %}CALL {{ call.function.arguments.city }}{% endfor %}"
    ";{% endfor %}"
)


def pieces(text: str, size: int = 3) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


def prompt_of(transport: FakeTransport, number: int = -1) -> str:
    ids = transport.requests[number].prompt_ids
    return "".join(transport.tokenizer.spelling(token).decode() for token in ids)


@pytest.fixture
def hermes(transport: FakeTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport.tokenizer, "chat_template", ChatTemplate(HERMES, {}))


async def test_calls(client: openai.AsyncOpenAI, transport: FakeTransport) -> None:
    transport.words = pieces("Let me look.\n" + CALLS)
    answer = await client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=TOOLS, tool_choice="auto"
    )
    assert transport.requests[0].constraint is None
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look."
    assert choice.message.tool_calls is not None
    found = [call for call in choice.message.tool_calls if call.type == "function"]
    assert [call.function.name for call in found] == ["get_weather", "clock"]
    assert json.loads(found[0].function.arguments) == {"city": "Paris", "unit": "C"}
    assert json.loads(found[1].function.arguments) == {}
    assert len({call.id for call in found}) == 2
    assert all(call.id.startswith("call_") for call in found)


async def test_text_beside_tools(client: openai.AsyncOpenAI, transport: FakeTransport) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, tools=TOOLS)
    [choice] = answer.choices
    assert choice.message.content == transport.text
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"


async def test_streamed_calls(client: openai.AsyncOpenAI, transport: FakeTransport) -> None:
    for size in (1, 4, 1000):
        transport.words = pieces("Let me look.\n" + CALLS, size)
        content = ""
        calls: list[dict[str, str]] = []
        reasons = []
        async for chunk in await client.chat.completions.create(
            model=MODEL, messages=HELLO, tools=TOOLS, stream=True
        ):
            [choice] = chunk.choices
            content += choice.delta.content or ""
            reasons.append(choice.finish_reason)
            for call in choice.delta.tool_calls or []:
                assert call.function is not None
                if call.id is not None:
                    assert call.index == len(calls)
                    assert call.type == "function"
                    calls.append({"id": call.id, "name": call.function.name or "", "arguments": ""})
                else:
                    assert call.function.name is None
                calls[call.index]["arguments"] += call.function.arguments or ""
        assert content == "Let me look."
        assert [call["name"] for call in calls] == ["get_weather", "clock"]
        assert json.loads(calls[0]["arguments"]) == {"city": "Paris", "unit": "C"}
        assert json.loads(calls[1]["arguments"]) == {}
        assert reasons[-1] == "tool_calls"
        assert set(reasons[:-1]) == {None}


@pytest.mark.parametrize("stream", [False, True])
async def test_cut_within_a_block(
    http: aiohttp.ClientSession, transport: FakeTransport, stream: bool
) -> None:
    for end in range(1, len(CALLS), 7):
        transport.words = [CALLS[:end]]
        transport.finish_reason = "length"
        body = {"model": MODEL, "messages": HELLO, "tools": TOOLS, "stream": stream}
        async with http.post("/v1/chat/completions", json=body) as response:
            text = await response.text()
        assert "tool_call>" not in text
        assert '"length"' in text


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
@pytest.mark.parametrize("parallel", [True, False])
async def test_forced(
    client: openai.AsyncOpenAI, transport: FakeTransport, choice: Any, parallel: bool
) -> None:
    name = "get_weather" if choice == "required" else "clock"
    arguments = '{"city":"Paris","unit":"C"}' if choice == "required" else "{}"
    call = f'{{"name":"{name}","arguments":{arguments}}}'
    transport.words = pieces(f"[{call}]")
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        tools=TOOLS,
        tool_choice=choice,
        parallel_tool_calls=parallel,
    )
    assert prompt_of(transport).endswith("<|im_start|>assistant\n<tool_call>\n")
    constraint = transport.requests[0].constraint
    assert constraint is not None
    wrong_name = call.replace(name, "other")
    wrong_arguments = f'{{"name":"{name}","arguments":{{"colour":"red"}}}}'
    assert accepts(constraint, f"[{call}]")
    assert accepts(constraint, f"[{call},{call}]") == (choice == "required" and parallel)
    for text in ("[]", call, f"[{wrong_name}]", f"[{wrong_arguments}]", "Hello"):
        assert not accepts(constraint, text), text
    [only] = answer.choices
    assert only.finish_reason == "tool_calls"
    assert only.message.content is None
    assert only.message.tool_calls is not None
    [found] = only.message.tool_calls
    assert found.type == "function"
    assert (found.function.name, found.function.arguments) == (name, arguments)


async def test_no_parallel_calls(client: openai.AsyncOpenAI, transport: FakeTransport) -> None:
    transport.words = pieces(CALLS)
    answer = await client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=TOOLS, parallel_tool_calls=False
    )
    assert answer.choices[0].message.tool_calls is not None
    assert len(answer.choices[0].message.tool_calls) == 1


async def test_none_shows_no_tools(client: openai.AsyncOpenAI, transport: FakeTransport) -> None:
    await client.chat.completions.create(model=MODEL, messages=HELLO)
    await client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=TOOLS, tool_choice="none"
    )
    assert transport.requests[0].prompt_ids == transport.requests[1].prompt_ids


async def test_a_template_without_tools_gets_them_as_text(
    client: openai.AsyncOpenAI, transport: FakeTransport
) -> None:
    systems: list[list[Any]] = [[], [{"role": "system", "content": "Be brief."}]]
    for system in systems:
        await client.chat.completions.create(model=MODEL, messages=system + HELLO, tools=TOOLS)
        prompt = prompt_of(transport)
        assert '"name": "get_weather"' in prompt
        assert "<tools>" in prompt
        assert prompt.count("<|im_start|>system") == 1
        assert ("Be brief." in prompt) == bool(system)
        assert prompt.endswith("<|im_start|>assistant\n")


@pytest.mark.usefixtures("hermes")
async def test_a_template_with_tools_gets_them(
    client: openai.AsyncOpenAI, transport: FakeTransport
) -> None:
    await client.chat.completions.create(model=MODEL, messages=HELLO, tools=[CLOCK])
    assert prompt_of(transport).startswith(
        'TOOLS {"type": "function", "function": {"name": "clock"}}answer'
    )


HISTORY: list[Any] = [
    *HELLO,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
]


@pytest.mark.usefixtures("hermes")
async def test_history_reaches_the_template(
    client: openai.AsyncOpenAI, transport: FakeTransport
) -> None:
    await client.chat.completions.create(model=MODEL, messages=HISTORY)
    assert prompt_of(transport) == ("user: Weather in Paris?;assistant: CALL Paris;tool: Rain.;")


async def test_history_for_a_template_without_calls(
    client: openai.AsyncOpenAI, transport: FakeTransport
) -> None:
    await client.chat.completions.create(model=MODEL, messages=HISTORY, tools=TOOLS)
    prompt = prompt_of(transport)
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    assert f"<|im_start|>assistant\n{call}<|im_end|>" in prompt
    assert "<|im_start|>tool\nRain.<|im_end|>" in prompt


async def test_answer_can_be_sent_back(
    client: openai.AsyncOpenAI, transport: FakeTransport
) -> None:
    transport.words = pieces(CALLS)
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, tools=TOOLS)
    messages = [*HELLO, answer.choices[0].message]
    await client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
    assert '{"name": "clock", "arguments": {}}' in prompt_of(transport)


async def test_logprobs_of_calls(client: openai.AsyncOpenAI, transport: FakeTransport) -> None:
    transport.token_ids = transport.tokenizer.encode(CALLS)
    given: dict[str, Any] = {"model": MODEL, "messages": HELLO, "tools": TOOLS, "logprobs": True}
    whole = await client.chat.completions.create(**given)
    assert whole.choices[0].logprobs is not None
    entries: list[Any] = []
    async for chunk in await client.chat.completions.create(**given, stream=True):
        if (logprobs := chunk.choices[0].logprobs) is not None:
            entries += logprobs.content or []
    assert entries == whole.choices[0].logprobs.content


def test_schemas_that_refer_to_themselves() -> None:
    tree = {
        "type": "object",
        "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}},
        "additionalProperties": False,
    }
    tool = Tool("function", Function("plant.tree", parameters=tree))
    use = tool_use_of([tool], "required", parallel=True)
    assert use is not None
    constraint = use.forced
    assert isinstance(constraint, Constraint)
    good = '[{"name":"plant.tree","arguments":{"kids":[{"kids":[]},{}]}}]'
    assert accepts(constraint, good)
    assert not accepts(constraint, good.replace("{}]", '{"kid":1}]'))


def function(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": fields}]}


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        (function(), "tools[0].function.name"),
        (function(name=""), "tools[0].function.name"),
        (function(name="a b"), "tools[0].function.name"),
        (function(name="x" * 65), "tools[0].function.name"),
        (function(name="f", parameters=[]), "tools[0].function.parameters"),
        (function(name="f", colour="red"), "tools[0].function.colour"),
        ({"tools": [CLOCK, CLOCK]}, "tools[1].function.name"),
        ({"tools": [CLOCK] * 129}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": "sometimes", "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": {"type": "function"}, "tools": TOOLS}, "tool_choice.function"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": TOOLS},
            "tool_choice",
        ),
        ({"tools": TOOLS, "regex": "a+"}, "regex"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_refused(
    http: aiohttp.ClientSession, transport: FakeTransport, given: dict[str, Any], param: str
) -> None:
    body = {"model": MODEL, "messages": HELLO, **given}
    async with http.post("/v1/chat/completions", json=body) as response:
        error = (await response.json())["error"]
        assert response.status == 400
    assert error["param"] == param, error
    assert transport.requests == []


@pytest.mark.parametrize(
    ("call", "param"),
    [
        ({}, "messages[0].tool_calls[0].function"),
        ({"function": {"name": 1}}, "messages[0].tool_calls[0].function.name"),
        ({"type": "odd", "function": {"name": "f"}}, "messages[0].tool_calls[0].type"),
    ],
)
async def test_bad_calls_sent_back(
    http: aiohttp.ClientSession, call: dict[str, Any], param: str
) -> None:
    message = {"role": "assistant", "tool_calls": [call]}
    async with http.post(
        "/v1/chat/completions", json={"model": MODEL, "messages": [message]}
    ) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == param
