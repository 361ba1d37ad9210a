"""Every failure has its status and OpenAI's shape; none ends a stream silently."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import openai
import pytest
from fake_transport import FakeTransport
from http_host import Serve

from radixray.errors import (
    AbortedError,
    ConstraintError,
    ContextLengthError,
    DeploymentError,
    EngineDiedError,
    EngineError,
    InvalidRequestError,
    OverloadedError,
    RadixRayError,
)
from radixray.serve.app import build_app
from radixray.serve.http_config import HttpConfig

MODEL = "smollm2-135m"
MAX_BODY_BYTES = HttpConfig().max_body_bytes
TEXT = {"model": MODEL, "prompt": "x"}
CAUSES: list[tuple[Exception, int, str, str | None]] = [
    (InvalidRequestError("bad", param="regex"), 400, "invalid_request_error", None),
    (ConstraintError("bad", param="regex"), 400, "invalid_request_error", "invalid_constraint"),
    (ContextLengthError("long"), 400, "invalid_request_error", "context_length_exceeded"),
    (OverloadedError("full"), 429, "rate_limit_error", "overloaded"),
    (EngineDiedError("died"), 503, "server_error", "engine_died"),
    (EngineError("failed"), 500, "server_error", "engine_error"),
    (AbortedError("flushed"), 503, "server_error", "aborted"),
    (RadixRayError("odd"), 500, "server_error", "internal_error"),
    (ZeroDivisionError("secret detail"), 500, "server_error", "internal_error"),
]
causes = pytest.mark.parametrize(
    ("error", "status", "kind", "code"), CAUSES, ids=[type(cause[0]).__name__ for cause in CAUSES]
)


@causes
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
async def test_before_the_first_delta_is_a_status(
    http: aiohttp.ClientSession,
    transport: FakeTransport,
    error: Exception,
    status: int,
    kind: str,
    code: str | None,
    stream: bool,
    n: int,
) -> None:
    transport.error = error
    async with http.post("/v1/completions", json=TEXT | {"stream": stream, "n": n}) as response:
        assert response.status == status
        assert response.content_type == "application/json"
        assert ("Retry-After" in response.headers) == (status in (429, 503))
        body = await response.json()
    assert list(body) == ["error"]
    assert body["error"]["type"] == kind
    assert body["error"]["code"] == code
    if isinstance(error, RadixRayError):
        assert body["error"]["message"] == error.message
        assert body["error"]["param"] == error.param
    else:
        assert "secret" not in body["error"]["message"]
    assert not transport.live


@causes
@pytest.mark.parametrize("route", ["completions", "chat/completions"])
async def test_mid_stream_is_an_event(
    http: aiohttp.ClientSession,
    transport: FakeTransport,
    error: Exception,
    status: int,
    kind: str,
    code: str | None,
    route: str,
) -> None:
    transport.error, transport.fail_after = error, 2
    prompt = (
        {"prompt": "x"}
        if route == "completions"
        else {"messages": [{"role": "user", "content": "x"}]}
    )
    body = {"model": MODEL, "stream": True, "n": 2, **prompt}
    async with http.post(f"/v1/{route}", json=body) as response:
        assert response.status == 200
        events = (await response.text()).split("\n\n")
    assert events.pop() == ""
    assert "data: [DONE]" not in events
    last = json.loads(events[-1].removeprefix("data: "))
    assert last["error"]["type"] == kind
    assert last["error"]["code"] == code
    assert not transport.live


async def test_openai_client_raises_on_mid_stream_error(
    client: openai.AsyncOpenAI, transport: FakeTransport
) -> None:
    transport.error, transport.fail_after = EngineDiedError("the model actor died"), 2
    text = ""
    with pytest.raises(openai.APIError, match="the model actor died"):
        async for chunk in await client.completions.create(model=MODEL, prompt="x", stream=True):
            text += chunk.choices[0].text
    assert text == "".join(transport.words[:2])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reason", ["abort", None])
async def test_end_without_a_real_finish_is_an_error(
    http: aiohttp.ClientSession, transport: FakeTransport, stream: bool, reason: str | None
) -> None:
    transport.finish_reason = reason  # pyright: ignore[reportAttributeAccessIssue]
    async with http.post("/v1/completions", json=TEXT | {"stream": stream}) as response:
        text = await response.text()
        assert response.status == (200 if stream else 503 if reason else 500)
    assert ("aborted" if reason else "engine_error") in text
    assert "[DONE]" not in text


@pytest.mark.parametrize("stream", [False, True])
async def test_one_failure_cancels_the_others(
    http: aiohttp.ClientSession, transport: FakeTransport, stream: bool
) -> None:
    async def generate(request):
        if request.request_id.endswith("-1"):
            raise OverloadedError("full")
        async for delta in original(request):
            yield delta

    original, transport.hang_after = transport.generate, 0
    transport.generate = generate  # pyright: ignore[reportAttributeAccessIssue]
    body = {"model": MODEL, "prompt": ["a", "b", "c"], "stream": stream}
    async with asyncio.timeout(5), http.post("/v1/completions", json=body) as response:
        assert response.status == 429
    assert not transport.live


async def test_unknown_model(client: openai.AsyncOpenAI, transport: FakeTransport) -> None:
    for call in (
        client.completions.create(model="gpt-4", prompt="x"),
        client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": ""}]),
        client.models.retrieve("gpt-4"),
        client.models.retrieve("some/hub-id"),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            await call
        assert caught.value.code == "model_not_found"
        assert caught.value.param == "model"
    assert transport.requests == []


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[]", b'"x"', b"null", b'{"model": "\\ud800"}', b"[" * 100_000]
)
@pytest.mark.parametrize("route", ["completions", "chat/completions"])
async def test_malformed_json(http: aiohttp.ClientSession, route: str, body: bytes) -> None:
    async with http.post(f"/v1/{route}", data=body) as response:
        assert response.status == 400, await response.text()
        assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_lone_surrogate(http: aiohttp.ClientSession) -> None:
    body = b'{"model": "smollm2-135m", "prompt": "\\ud800"}'
    async with http.post("/v1/completions", data=body) as response:
        assert response.status == 400


async def test_wrong_path_and_method(http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/nothing") as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "not_found"
    async with http.get("/v1/completions") as response:
        assert response.status == 405
        assert (await response.json())["error"]["code"] == "method_not_allowed"
        assert response.headers["Allow"] == "POST"
    async with http.post("/v1/models") as response:
        assert response.status == 405


async def test_body_limit(http: aiohttp.ClientSession, transport: FakeTransport) -> None:
    async def pieces():
        for _ in range(MAX_BODY_BYTES // 2**20 + 1):
            yield b" " * 2**20

    for data in (b" " * (MAX_BODY_BYTES + 1), pieces()):
        try:
            async with http.post("/v1/completions", data=data) as response:
                assert response.status == 413
                assert (await response.json())["error"]["code"] == "request_too_large"
        except aiohttp.ClientConnectionError:
            pass  # the server may close before the client has read the answer
    async with http.post("/v1/completions", json=TEXT) as response:
        assert response.status == 200


async def test_api_key(serve: Serve, transport: FakeTransport) -> None:
    async def connect() -> FakeTransport:
        return transport

    url = await serve(build_app(connect, api_key="sécret"))
    async with aiohttp.ClientSession(base_url=url) as http:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer "},
            {"Authorization": "Basic sécret"},
            {"Authorization": "sécret"},
        ):
            for method, path in (
                ("GET", "/v1/models"),
                ("POST", "/v1/completions"),
                ("GET", "/other"),
            ):
                async with http.request(method, path, headers=headers) as response:
                    assert response.status == 401, (headers, path)
                    assert response.headers["WWW-Authenticate"] == "Bearer"
                    error = (await response.json())["error"]
                assert error["code"] == "invalid_api_key"
                assert "sécret" not in error["message"]
        for scheme in ("Bearer", "bearer"):
            good = {"Authorization": f"{scheme} sécret"}
            async with http.get("/v1/models", headers=good) as response:
                assert response.status == 200
        async with http.get("/health") as response:
            assert response.status == 200
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        await client.models.list()
    await client.close()


@pytest.mark.parametrize("failure", [DeploymentError("no such deployment"), OSError("no route")])
async def test_connects_again_after_a_failure(
    serve: Serve, transport: FakeTransport, failure: Exception
) -> None:
    outcomes: list[Exception | None] = [failure, failure, None]
    calls = 0

    async def connect() -> FakeTransport:
        nonlocal calls
        calls += 1
        if outcomes and (error := outcomes.pop(0)) is not None:
            raise error
        return transport

    url = await serve(build_app(connect, api_key=None))
    async with aiohttp.ClientSession(base_url=url) as http:
        async with http.get("/v1/models") as response:
            assert response.status == 503
            assert (await response.json())["error"]["code"] == "not_ready"
        statuses = await asyncio.gather(*(_status(http) for _ in range(5)))
    assert statuses == [200] * 5
    assert calls == 3


async def test_transport_is_closed_with_the_app(transport: FakeTransport) -> None:
    async def connect() -> FakeTransport:
        return transport

    app = build_app(connect, api_key=None)
    async with app.router.lifespan_context(app):
        assert not transport.closed
    assert transport.closed


async def _status(http: aiohttp.ClientSession) -> int:
    async with http.get("/v1/models") as response:
        return response.status
