"""What a request may say: passed on, ignored, or refused by name."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from fake_transport import INFO, FakeTransport

from radixray.protocol import MAX_SEED, Constraint, SamplingParams
from radixray.serve.parse import IGNORED

MODEL = "smollm2-135m"
TEXT: dict[str, Any] = {"model": MODEL, "prompt": "x"}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
ROUTES = {"/v1/completions": TEXT, "/v1/chat/completions": CHAT}

both_routes = pytest.mark.parametrize("route", ROUTES)


async def refused(
    http: aiohttp.ClientSession, route: str, body: dict[str, Any], param: str | None
) -> str:
    """The message with which `body` is refused, naming `param`; nothing may have been queued."""
    async with http.post(route, json=body) as response:
        error = (await response.json())["error"]
        assert response.status == 400, error
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param, error
    return error["message"]


@both_routes
async def test_sampling_reaches_the_engine(
    http: aiohttp.ClientSession, transport: FakeTransport, route: str
) -> None:
    given = {
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "seed": 3,
        "frequency_penalty": 0.25,
        "presence_penalty": -0.25,
        "repetition_penalty": 1.25,
        "min_tokens": 2,
        "ignore_eos": True,
    }
    body = (
        ROUTES[route]
        | given
        | {
            "stop": ["a", "b"],
            "stop_token_ids": [5, 6],
            "logit_bias": {"5": -100, "6": 2.5},
            "cache_salt": "mine",
            "regex": "[a-z]+",
        }
    )
    async with http.post(route, json=body) as response:
        assert response.status == 200, await response.text()
    [request] = transport.requests
    assert request.sampling == SamplingParams(
        **given, stop=("a", "b"), stop_token_ids=(5, 6), logit_bias={5: -100, 6: 2.5}
    )
    assert request.cache_salt == "mine"
    assert request.constraint == Constraint(regex="[a-z]+")


@both_routes
async def test_defaults_and_nulls(
    http: aiohttp.ClientSession, transport: FakeTransport, route: str
) -> None:
    nulls = dict.fromkeys(
        (
            "max_tokens",
            "temperature",
            "top_p",
            "n",
            "seed",
            "stop",
            "stream",
            "stream_options",
            "logprobs",
            "logit_bias",
            "frequency_penalty",
            "presence_penalty",
            "user",
        )
    )
    for body in (ROUTES[route], ROUTES[route] | nulls):
        async with http.post(route, json=body) as response:
            assert response.status == 200, await response.text()
    for request in transport.requests:
        assert request.sampling.temperature == 1.0
        assert request.sampling.stop == ()
        assert request.constraint is None


@both_routes
async def test_one_stop_string(
    http: aiohttp.ClientSession, transport: FakeTransport, route: str
) -> None:
    async with http.post(route, json=ROUTES[route] | {"stop": "\n"}) as response:
        assert response.status == 200
    assert transport.requests[0].sampling.stop == ("\n",)


@both_routes
async def test_ignored(http: aiohttp.ClientSession, route: str) -> None:
    async with http.post(route, json=ROUTES[route] | dict.fromkeys(IGNORED, "any")) as response:
        assert response.status == 200, await response.text()


@pytest.mark.parametrize(
    ("name", "asks", "default"),
    [
        ("suffix", "end", ""),
        ("best_of", 3, 1),
    ],
)
async def test_not_supported_in_completions(
    http: aiohttp.ClientSession, transport: FakeTransport, name: str, asks: Any, default: Any
) -> None:
    message = await refused(http, "/v1/completions", TEXT | {name: asks}, name)
    assert name in message
    assert transport.requests == []
    async with http.post("/v1/completions", json=TEXT | {name: default}) as response:
        assert response.status == 200, await response.text()


@pytest.mark.parametrize(
    ("name", "asks", "default"),
    [
        ("functions", [{"name": "f"}], []),
        ("modalities", ["audio"], ["text"]),
        ("audio", {"voice": "alloy", "format": "wav"}, None),
        ("prediction", {"type": "content", "content": "x"}, None),
        ("reasoning_effort", "low", None),
    ],
)
async def test_not_supported_in_chat(
    http: aiohttp.ClientSession, transport: FakeTransport, name: str, asks: Any, default: Any
) -> None:
    await refused(http, "/v1/chat/completions", CHAT | {name: asks}, name)
    assert transport.requests == []
    async with http.post("/v1/chat/completions", json=CHAT | {name: default}) as response:
        assert response.status == 200, await response.text()


@both_routes
@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"no_such_thing": 1}, "no_such_thing"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"seed": -1}, "seed"),
        ({"seed": MAX_SEED + 1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"presence_penalty": -3}, "presence_penalty"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 3, "max_tokens": 2}, "min_tokens"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {str(INFO.vocab_size): 1}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"5": "much"}}, "logit_bias[...]"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        ({"model": 5}, "model"),
        ({"max_tokens": INFO.context_length}, "max_tokens"),
    ],
    ids=str,
)
async def test_refused_by_name(
    http: aiohttp.ClientSession,
    transport: FakeTransport,
    route: str,
    given: dict[str, Any],
    param: str,
) -> None:
    await refused(http, route, ROUTES[route] | given, param)
    assert transport.requests == []


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        ([[]], "prompt"),
        (["a", ""], "prompt"),
        (["a", 1], "prompt"),
        ([1, [2]], "prompt"),
        ([-1], "prompt"),
        ([INFO.vocab_size], "prompt"),
        ([2**70], "prompt"),
        (5, "prompt"),
        ([True], "prompt[0]"),
        ({"text": "x"}, "prompt"),
        (["x"] * 1025, "prompt"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_bad_prompts(
    http: aiohttp.ClientSession, transport: FakeTransport, prompt: Any, param: str
) -> None:
    await refused(http, "/v1/completions", {"model": MODEL, "prompt": prompt}, param)
    assert transport.requests == []


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": "x", "colour": "red"}], "messages[0].colour"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0]",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_bad_messages(
    http: aiohttp.ClientSession, transport: FakeTransport, messages: Any, param: str
) -> None:
    body = {"model": MODEL, "messages": messages}
    await refused(http, "/v1/chat/completions", body, param)
    assert transport.requests == []


@pytest.mark.parametrize("stream", [False, True])
async def test_an_image_names_the_model_that_takes_none(
    http: aiohttp.ClientSession, transport: FakeTransport, stream: bool
) -> None:
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
    ]
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": parts}]
    body = {"model": MODEL, "messages": messages, "stream": stream}
    message = await refused(http, "/v1/chat/completions", body, "messages[1].content[1]")
    assert f"'{MODEL}' takes no images" in message
    async with http.post("/v1/chat/completions", json=body) as response:
        assert (await response.json())["error"]["code"] == "unsupported_input"
    assert transport.requests == []


@both_routes
@pytest.mark.parametrize("missing", ["model", "prompt"])
async def test_missing(http: aiohttp.ClientSession, route: str, missing: str) -> None:
    name = "messages" if missing == "prompt" and "chat" in route else missing
    body = {key: value for key, value in ROUTES[route].items() if key != name}
    assert "required" in await refused(http, route, body, name)


async def test_too_long(http: aiohttp.ClientSession, transport: FakeTransport) -> None:
    long = "nearly " * INFO.context_length
    for route, body, param in (
        ("/v1/completions", TEXT | {"prompt": long}, "prompt"),
        (
            "/v1/chat/completions",
            CHAT | {"messages": [{"role": "user", "content": long}]},
            "messages",
        ),
        ("/v1/chat/completions", CHAT | {"max_completion_tokens": 2048}, "max_completion_tokens"),
    ):
        async with http.post(route, json=body) as response:
            error = (await response.json())["error"]
            assert response.status == 400
        assert error["code"] == "context_length_exceeded"
        assert error["param"] == param
        assert str(INFO.context_length) in error["message"]
    assert transport.requests == []
