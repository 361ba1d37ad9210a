"""A client that goes away stops its generations at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import aiohttp
import openai
import pytest
from fake_transport import FakeTransport

MODEL = "smollm2-135m"
CHAT = {"messages": [{"role": "user", "content": "x"}]}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(2):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("route", "prompt"),
    [
        ("completions", {"prompt": ["a", "b"]}),
        ("chat/completions", CHAT),
    ],
    ids=["text", "chat"],
)
@pytest.mark.parametrize("hang_after", [0, 2])
async def test_hanging_up_aborts(
    url: str, transport: FakeTransport, stream: bool, route: str, prompt: dict, hang_after: int
) -> None:
    transport.hang_after = hang_after
    body = json.dumps({"model": MODEL, "n": 2, "stream": stream, **prompt}).encode()
    host, port = url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/{route} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    sequences = 2 * len(prompt.get("prompt", "x"))
    await until(lambda: len(transport.live) == sequences)
    writer.transport.abort()
    await until(lambda: not transport.live)
    assert len(transport.aborted) == sequences


async def test_closing_an_openai_stream_aborts(
    client: openai.AsyncOpenAI, transport: FakeTransport
) -> None:
    transport.hang_after = 3
    stream = await client.completions.create(model=MODEL, prompt="x", stream=True)
    async for chunk in stream:
        assert chunk.choices[0].text == transport.words[0]
        break
    assert transport.live
    await stream.close()
    await until(lambda: not transport.live)


async def test_cancelling_an_openai_call_aborts(
    client: openai.AsyncOpenAI, transport: FakeTransport
) -> None:
    transport.hang_after = 3
    call = asyncio.create_task(client.completions.create(model=MODEL, prompt="x"))
    await until(lambda: bool(transport.live))
    call.cancel()
    await until(lambda: not transport.live)


async def test_hanging_up_in_the_middle_of_the_body(
    url: str, transport: FakeTransport, http: aiohttp.ClientSession
) -> None:
    host, port = url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()
    writer.transport.abort()
    async with http.post("/v1/completions", json={"model": MODEL, "prompt": "x"}) as response:
        assert response.status == 200
    assert len(transport.requests) == 1


async def test_a_finished_request_is_not_aborted(
    client: openai.AsyncOpenAI, transport: FakeTransport
) -> None:
    await client.completions.create(model=MODEL, prompt="x", n=2)
    stream = await client.completions.create(model=MODEL, prompt="x", n=2, stream=True)
    assert [chunk async for chunk in stream]
    assert transport.aborted == []
    assert not transport.live


async def test_server_cancelling_the_request_aborts(transport: FakeTransport) -> None:
    """As Ray Serve does: it cancels the ASGI call itself."""
    from radixray.serve.app import build_app

    async def connect() -> FakeTransport:
        return transport

    transport.hang_after = 1
    app = build_app(connect, api_key=None)
    body = json.dumps({"model": MODEL, "prompt": "x", "n": 2}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    async def send(_: object) -> None:
        raise AssertionError("nothing to send")

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "headers": [],
        "query_string": b"",
    }
    call = asyncio.create_task(app(scope, receive, send))
    await until(lambda: len(transport.live) == 2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not transport.live, "the aborts are done when the call ends"
