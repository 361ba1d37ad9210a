"""Exactly what other clients send: bodies recorded from LangChain and from SGLang's frontend.

LangChain's ChatOpenAI and OpenAI (langchain-openai 1.7.4), whose options the keys name; SGLang's
RuntimeEndpoint (0.5.23). Their answers are read as those clients do: by the openai package's types,
or by the fields that the frontend looks at.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import aiohttp
import pytest
from fake_transport import FakeTransport
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

MODEL = "smollm2-135m"
HI = {"content": "Hi there", "role": "user"}
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "properties": {"city": {"type": "string"}, "unit": {"default": "C", "type": "string"}},
        "required": ["city"],
        "type": "object",
    },
}
STRICT = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": WEATHER["parameters"]
    | {"required": ["city", "unit"], "additionalProperties": False},
    "strict": True,
}
JOKE = {
    "description": "A joke.",
    "properties": {
        "setup": {
            "description": "set-up",
            "maxLength": 20,
            "title": "Setup",
            "type": "string",
        },
        "rating": {"maximum": 9, "minimum": 1, "title": "Rating", "type": "integer"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "title": "Note"},
    },
    "required": ["setup", "rating", "note"],
    "title": "Joke",
    "type": "object",
    "additionalProperties": False,
}
AS_TOOL = {
    "properties": {
        "setup": {"description": "set-up", "maxLength": 20, "type": "string"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    },
    "required": ["setup"],
    "type": "object",
}
CALL = {
    "type": "function",
    "id": "call_1",
    "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'},
}

CHATS: dict[str, dict[str, Any]] = {
    "invoke": {},
    "stream": {"stream": True},
    "stream_usage": {"stream": True, "stream_options": {"include_usage": True}},
    "roles": {
        "messages": [
            {"content": "s", "role": "system"},
            {"content": [{"type": "text", "text": "x"}], "role": "user"},
            {"content": "y", "role": "assistant"},
            {"content": "z", "name": "bob", "role": "user"},
        ]
    },
    "bind_tools": {"tools": [{"type": "function", "function": WEATHER}]},
    "bind_tools, any, strict": {
        "tool_choice": "required",
        "tools": [{"type": "function", "function": STRICT}],
    },
    "bind_tools, by name": {
        "parallel_tool_calls": False,
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "tools": [{"type": "function", "function": WEATHER}],
    },
    "a call and what it gave": {
        "messages": [
            HI,
            {"content": None, "role": "assistant", "tool_calls": [CALL]},
            {"content": "sunny", "role": "tool", "tool_call_id": "call_1"},
        ],
        "tools": [{"type": "function", "function": WEATHER}],
    },
    "with_structured_output, json_schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"schema": JOKE, "name": "Joke", "strict": True},
        }
    },
    "with_structured_output, function_calling": {
        "parallel_tool_calls": False,
        "tool_choice": {"type": "function", "function": {"name": "Joke"}},
        "tools": [
            {
                "type": "function",
                "function": {"name": "Joke", "description": "A joke.", "parameters": AS_TOOL},
            }
        ],
    },
    "with_structured_output, json_mode": {"response_format": {"type": "json_object"}},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "parameters": {
        "frequency_penalty": 0.1,
        "logit_bias": {"5": 1},
        "n": 2,
        "presence_penalty": 0.1,
        "seed": 3,
        "stop": ["x"],
        "top_p": 0.9,
    },
}

RESPONSES: dict[str, dict[str, Any]] = {
    "use_responses_api": {},
    "bind_tools": {"tool_choice": "required", "tools": [{"type": "function", **WEATHER}]},
    "with_structured_output": {
        "text": {"format": {"type": "json_schema", "strict": True, "name": "Joke", "schema": JOKE}}
    },
    "a turn of output_version responses/v1": {
        "input": [
            {"content": "a", "role": "user", "type": "message"},
            {
                "type": "message",
                "content": [{"type": "output_text", "text": "b", "annotations": []}],
                "role": "assistant",
            },
            {"content": "c", "role": "user", "type": "message"},
        ]
    },
    "a call that was cut off": {
        "input": [
            HI | {"type": "message"},
            {
                "arguments": '{"city',
                "call_id": "call_1",
                "name": "get_weather",
                "type": "function_call",
                "id": "fc_1",
                "status": "incomplete",
            },
            HI | {"type": "message"},
        ]
    },
}


async def ask(http: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> str:
    async with http.post(path, json=body) as response:
        text = await response.text()
        assert response.status == 200, text
        return text


@pytest.mark.parametrize("name", CHATS)
async def test_langchain_chats(
    http: aiohttp.ClientSession, transport: FakeTransport, name: str
) -> None:
    body = {"model": MODEL, "stream": False, "messages": [HI]} | CHATS[name]
    body |= {"max_completion_tokens": 64, "temperature": 0.0}
    text = await ask(http, "/v1/chat/completions", body)
    if body["stream"]:
        *events, done, end = text.split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        data = [json.loads(event.removeprefix("data: ")) for event in events]
        chunks = [ChatCompletionChunk.model_validate(each, strict=True) for each in data]
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert said == transport.text
        assert bool(chunks[-1].usage) == ("stream_options" in body)
    else:
        answer = ChatCompletion.model_validate_json(text, strict=True)
        assert len(answer.choices) == body.get("n", 1)
        assert answer.usage is not None
        assert bool(answer.choices[0].logprobs) == ("logprobs" in body)
    [request, *_] = transport.requests
    constrained = "response_format" in body or "tool_choice" in body
    assert (request.constraint is not None) == constrained
    assert request.sampling.max_tokens == 64


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", RESPONSES)
async def test_langchain_responses(
    http: aiohttp.ClientSession, transport: FakeTransport, name: str, stream: bool
) -> None:
    asked = [HI | {"type": "message"}]
    body = {"model": MODEL, "stream": stream, "input": asked, "max_output_tokens": 64}
    body |= {"temperature": 0.0} | RESPONSES[name]
    text = await ask(http, "/v1/responses", body)
    if stream:
        last = text.split("\n\n")[-2].partition("\ndata: ")[2]
        text = json.dumps(json.loads(last)["response"])
    answer = Response.model_validate_json(text)
    assert answer.status == "completed"
    assert answer.usage is not None
    [request] = transport.requests
    assert (request.constraint is not None) == ("text" in body or "tool_choice" in body)


@pytest.mark.parametrize("prompt", ["x", ["x"]])
async def test_langchain_completions(
    http: aiohttp.ClientSession, transport: FakeTransport, prompt: Any
) -> None:
    body = {"model": MODEL, "prompt": prompt, "frequency_penalty": 0, "logprobs": None}
    body |= {"max_tokens": 50, "n": 1, "presence_penalty": 0, "seed": None}
    body |= {"temperature": 0.7, "top_p": 1}
    answer = Completion.model_validate_json(await ask(http, "/v1/completions", body))
    assert answer.choices[0].text == transport.text


async def test_sglang_select(http: aiohttp.ClientSession, transport: FakeTransport) -> None:
    """The three requests of a choice; each log-probability of the second must be a number."""
    sampling: dict[str, Any] = {"max_new_tokens": 0}
    start, options = "The capital of France is", [" Paris", " a city"]
    first = await ask(http, "/generate", {"text": start, "sampling_params": sampling})
    length = json.loads(first)["meta_info"]["prompt_tokens"]
    body = {
        "text": [start + option for option in options],
        "sampling_params": {"max_new_tokens": 0, "temperature": 0},
        "return_logprob": True,
        "return_text_in_logprobs": True,
        "logprob_start_len": length - 2,
    }
    answers = json.loads(await ask(http, "/generate", body))
    entries = [answer["meta_info"]["input_token_logprobs"] for answer in answers]
    tokenizer = transport.tokenizer
    for option, each in zip(options, entries, strict=True):
        assert [text for _, _, text in each[:2]] == [" France", " is"]
        assert [token for _, token, _ in each[2:]] == tokenizer.encode(option)
        assert all(isinstance(logprob, float) for logprob, _, _ in each)
    assert [answer["meta_info"]["output_token_logprobs"] for answer in answers] == [[], []]
    body = {
        "input_ids": [[token for _, token, _ in each] for each in entries],
        "sampling_params": sampling,
        "return_logprob": True,
    }
    answers = json.loads(await ask(http, "/generate", body))
    for each, answer in zip(entries, answers, strict=True):
        alone = answer["meta_info"]["input_token_logprobs"]
        assert [token for _, token, _ in alone] == [token for _, token, _ in each]
        assert alone[0][0] is None
        assert all(isinstance(logprob, float) for logprob, _, _ in alone[1:])


@pytest.mark.parametrize("stream", [False, True])
async def test_sglang_generate(
    http: aiohttp.ClientSession, transport: FakeTransport, stream: bool
) -> None:
    """All that `sgl.gen` sends, with each of its parameters given."""
    body: dict[str, Any] = {
        "text": "x",
        "sampling_params": {
            "skip_special_tokens": True,
            "spaces_between_special_tokens": True,
            "max_new_tokens": 8,
            "min_new_tokens": 2,
            "n": 1,
            "stop": ["\n"],
            "stop_token_ids": [5],
            "stop_regex": "z+",
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 20,
            "min_p": 0.1,
            "frequency_penalty": 0.1,
            "presence_penalty": 0.1,
            "ignore_eos": True,
            "regex": None,
            "json_schema": None,
        },
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "return_text_in_logprobs": True,
    }
    if stream:
        body["stream"] = True
    text = await ask(http, "/generate", body)
    if stream:
        *events, done, end = text.split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        # Each event has all the text so far: the frontend takes what is new by its place.
        texts = [json.loads(event.removeprefix("data: "))["text"] for event in events]
        assert all(b.startswith(a) for a, b in itertools.pairwise(texts))
        assert texts[-1] == transport.text
    else:
        assert json.loads(text)["text"] == transport.text


async def test_sglang_begins_with_the_model(http: aiohttp.ClientSession) -> None:
    async with http.get("/get_model_info") as response:
        assert (await response.json())["model_path"] == MODEL
    async with http.get("/server_info") as response:
        assert response.status == 200
    async with http.post("/flush_cache") as response:
        assert response.status == 200
