"""What a server that strangers reach must stand: keys, limits, slow clients, web pages, logs."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from fake_transport import FakeTransport
from http_host import Host, Serve

from radixray.errors import InvalidRequestError
from radixray.serve.app import build_app
from radixray.serve.http_config import HttpConfig
from radixray.serve.keys import ApiKey, KeyLimits

MODEL = "smollm2-135m"
SECRET_PROMPT = "the launch code is 0000"
TEXT = {"model": MODEL, "prompt": SECRET_PROMPT}
Start = Callable[..., Any]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
def start(serve: Serve, transport: FakeTransport) -> Start:
    """Serves an app with such a configuration; gives its URL."""

    async def connect() -> FakeTransport:
        return transport

    async def start(**config: Any) -> str:
        return await serve(build_app(connect, config=HttpConfig(**config)))

    return start


async def refusal(response: aiohttp.ClientResponse) -> dict[str, Any]:
    assert response.status == 429
    assert int(response.headers["Retry-After"]) >= 1
    error = (await response.json())["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    return error


async def test_each_key_has_its_own_limits(start: Start, transport: FakeTransport) -> None:
    limited = KeyLimits(requests_per_minute=2)
    url = await start(keys=(ApiKey.of("alice", "A", limited), ApiKey.of("bob", "B", limited)))
    async with aiohttp.ClientSession(base_url=url) as http:
        for key in ("A", "B"):
            for _ in range(2):
                async with http.post("/v1/completions", json=TEXT, headers=bearer(key)) as answer:
                    assert answer.status == 200
            asked = len(transport.requests)
            for stream in (False, True):
                body = TEXT | {"stream": stream}
                async with http.post("/v1/completions", json=body, headers=bearer(key)) as answer:
                    error = await refusal(answer)
                    assert int(answer.headers["Retry-After"]) == 30
                assert "2 requests a minute" in error["message"]
            assert len(transport.requests) == asked, "nothing is queued"
    with pytest.raises(openai.RateLimitError):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="A", max_retries=0) as client:
            await client.models.list()


async def test_tokens(start: Start, transport: FakeTransport) -> None:
    url = await start(anonymous=KeyLimits(tokens_per_minute=30))
    prompt = {"prompt": [[7] * 10, [8] * 10], "n": 2, "max_tokens": 1}
    async with aiohttp.ClientSession(base_url=url) as http:
        async with http.post("/v1/completions", json=TEXT | prompt) as answer:
            assert answer.status == 200
        assert len(transport.requests) == 4
        # 20 of prompts, which count once for all choices, and 4 of outputs: 6 are left.
        async with http.post("/v1/completions", json=TEXT | prompt) as answer:
            assert "30 tokens a minute" in (await refusal(answer))["message"]
        assert len(transport.requests) == 4
        one = {"prompt": [7] * 5, "max_tokens": 1}
        async with http.post("/v1/completions", json=TEXT | one) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_concurrency_ends_with_the_answer(
    start: Start, transport: FakeTransport, stream: bool
) -> None:
    url = await start(keys=(ApiKey.of("a", "A", KeyLimits(max_concurrent=1)),))
    transport.hang_after = 1
    body = TEXT | {"stream": stream}
    async with aiohttp.ClientSession(base_url=url, headers=bearer("A")) as http:
        first = asyncio.create_task(http.post("/v1/completions", json=body))
        await until(lambda: len(transport.live) == 1)
        async with http.post("/v1/completions", json=body) as answer:
            await refusal(answer)
        async with http.get("/health") as answer:
            assert answer.status == 200
        if first.done():
            (await first).close()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await until(lambda: not transport.live)
        transport.hang_after = None
        async with http.post("/v1/completions", json=body) as answer:
            assert answer.status == 200


async def test_a_crowd_does_not_starve_another_key(
    start: Start, host: Host, transport: FakeTransport
) -> None:
    keys = (ApiKey.of("crowd", "C"), ApiKey.of("few", "F"))
    url = await start(keys=keys, fair_slots=2)
    finished: list[str] = []

    async def ask(http: aiohttp.ClientSession, key: str) -> None:
        async with http.post("/v1/completions", json=TEXT, headers=bearer(key)) as answer:
            assert answer.status == 200
            await answer.read()
        finished.append(key)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(base_url=url, connector=connector) as http:
        transport.hang_after = 0
        stuck = [asyncio.create_task(ask(http, "C")) for _ in range(2)]
        await until(lambda: len(transport.live) == 2)
        transport.hang_after = None
        crowd = [asyncio.create_task(ask(http, "C")) for _ in range(120)]
        shares = host.app.state.admission.shares
        await until(lambda: shares.waiting("crowd") == 120)
        few = [asyncio.create_task(ask(http, "F")) for _ in range(3)]
        await until(lambda: shares.waiting("few") == 3)
        assert len(transport.live) == 2
        assert not finished
        for task in stuck:
            task.cancel()
        await asyncio.gather(*crowd, *few)
    # The order in which clients see their answers differs a little from that of their turns.
    turns = [i for i, key in enumerate(finished) if key == "F"]
    assert turns[-1] < 30, turns


async def test_a_body_that_trickles_in(start: Start, transport: FakeTransport) -> None:
    url = await start(body_timeout_s=0.3)
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")

    async def trickle() -> None:
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.02)

    trickling = asyncio.create_task(trickle())
    async with asyncio.timeout(5):
        # Not to the end: what still trickles in when the server hangs up may end it otherwise.
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: ([0-9]+)", head)
        assert length is not None
        body = await reader.readexactly(int(length[1]))
    trickling.cancel()
    writer.close()
    assert head.startswith(b"HTTP/1.1 408")
    assert json.loads(body)["error"]["code"] == "request_timeout"
    assert not transport.requests


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_does_not_read(
    start: Start, transport: FakeTransport, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    url = await start(send_timeout_s=0.3)
    transport.words = ["x" * 2**20] * 64
    host, port = url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), limit=1024)
    body = json.dumps(TEXT | {"stream": stream, "max_tokens": 64}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    await until(lambda: bool(transport.requests))
    await until(lambda: not transport.live)
    if stream:  # otherwise all was generated before the first byte could be sent
        assert len(transport.aborted) == 1
    async with aiohttp.ClientSession(base_url=url) as http, http.get("/v1/models") as answer:
        assert answer.status == 200
    writer.close()
    assert "unforeseen" not in caplog.text


async def test_bodies_are_bounded(start: Start) -> None:
    url = await start(max_body_bytes=100)
    big = TEXT | {"prompt": "x" * 100}
    async with (
        aiohttp.ClientSession(base_url=url) as http,
        http.post("/v1/completions", json=big) as answer,
    ):
        assert answer.status == 413
        assert "100 bytes" in (await answer.json())["error"]["message"]


PREFLIGHT = {
    "Origin": "https://a.example",
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


async def test_web_pages_are_kept_out(start: Start) -> None:
    url = await start()
    async with aiohttp.ClientSession(base_url=url) as http:
        async with http.options("/v1/completions", headers=PREFLIGHT) as answer:
            assert answer.status == 405
        async with http.get("/v1/models", headers=PREFLIGHT) as answer:
            assert "Access-Control-Allow-Origin" not in answer.headers


async def test_web_pages_that_may(start: Start) -> None:
    url = await start(keys=(ApiKey.of("a", "A"),), cors_origins=("https://a.example",))
    async with aiohttp.ClientSession(base_url=url) as http:
        async with http.options("/v1/completions", headers=PREFLIGHT) as answer:
            assert answer.status == 200, "it has no key yet"
            assert answer.headers["Access-Control-Allow-Origin"] == "https://a.example"
            assert "authorization" in answer.headers["Access-Control-Allow-Headers"]
        async with http.get("/v1/models", headers=PREFLIGHT) as answer:
            assert answer.status == 401
            assert answer.headers["Access-Control-Allow-Origin"] == "https://a.example"
        other = PREFLIGHT | {"Origin": "https://b.example"}
        async with http.get("/v1/models", headers=other | bearer("A")) as answer:
            assert answer.status == 200
            assert "Access-Control-Allow-Origin" not in answer.headers


async def test_request_ids(start: Start) -> None:
    url = await start(keys=(ApiKey.of("a", "A"),))
    async with aiohttp.ClientSession(base_url=url) as http:
        mine = {"x-request-id": "trace/1.2:3_4-5"}
        for headers, status in ((mine | bearer("A"), 200), (mine, 401)):
            async with http.get("/v1/models", headers=headers) as answer:
                assert answer.status == status
                assert answer.headers.getall("x-request-id") == ["trace/1.2:3_4-5"]
        made = set()
        for bad in ("", "a b", "x" * 129, "é"):
            async with http.get("/health", headers={"x-request-id": bad}) as answer:
                made.add(answer.headers["x-request-id"])
        assert len(made) == 4
        assert all(len(each) == 32 for each in made)


async def test_the_access_log(start: Start, transport: FakeTransport, tmp_path: Path) -> None:
    file = tmp_path / "access.jsonl"
    url = await start(keys=(ApiKey.of("alice", "s3cret"),), access_log=str(file))
    transport.cached = [2]
    headers = bearer("s3cret") | {"x-request-id": "mine"}
    async with aiohttp.ClientSession(base_url=url) as http:
        for stream in (False, True):
            body = TEXT | {"stream": stream}
            async with http.post("/v1/completions?q=1", json=body, headers=headers) as answer:
                await answer.read()
        async with http.post("/v1/completions", json=TEXT, headers=bearer("wrong")):
            pass
        transport.error = ZeroDivisionError("x")
        async with http.post("/v1/completions", json=TEXT, headers=headers) as answer:
            assert answer.status == 500
    await until(lambda: file.read_text().count("\n") == 4)
    whole, streamed, refused, failed = map(json.loads, file.read_text().splitlines())
    for entry in (whole, streamed):
        assert entry["request_id"] == "mine"
        assert (entry["method"], entry["path"]) == ("POST", "/v1/completions")
        assert (entry["status"], entry["key"]) == (200, "alice")
        assert entry["prompt_tokens"] == len(transport.requests[0].prompt_ids)
        assert entry["cached_tokens"] == 2
        assert entry["completion_tokens"] == len(transport.words)
        assert entry["duration_ms"] >= 0
    assert (refused["status"], refused["key"]) == (401, None)
    assert (failed["status"], failed["prompt_tokens"]) == (500, None)
    log = file.read_text()
    assert not any(secret in log for secret in ("s3cret", "wrong", SECRET_PROMPT, transport.text))
    assert file.stat().st_mode & 0o077 == 0


async def test_abort_is_for_ones_own(start: Start, transport: FakeTransport) -> None:
    url = await start(keys=(ApiKey.of("a", "A"), ApiKey.of("b", "B")))
    transport.hang_after = 1
    async with aiohttp.ClientSession(base_url=url) as http:
        body = {"text": "x", "rid": "r"}
        call = asyncio.create_task(http.post("/generate", json=body, headers=bearer("A")))
        await until(lambda: bool(transport.live))
        for given in ({"rid": "r"}, {"abort_all": True}):
            async with http.post("/abort_request", json=given, headers=bearer("B")) as answer:
                assert answer.status == 200
        await asyncio.sleep(0.05)
        assert transport.live
        async with http.post("/abort_request", json={"rid": "r"}, headers=bearer("A")):
            pass
        async with await call as answer:
            assert (await answer.json())["meta_info"]["finish_reason"]["type"] == "abort"


async def test_what_waits_for_its_turn_can_be_aborted(
    start: Start, transport: FakeTransport
) -> None:
    url = await start(keys=(ApiKey.of("a", "A"), ApiKey.of("b", "B")), fair_slots=1)
    transport.hang_after = 0
    async with aiohttp.ClientSession(base_url=url, headers=bearer("A")) as http:
        calls = [
            asyncio.create_task(http.post("/generate", json={"text": "x", "rid": rid}))
            for rid in ("first", "second")
        ]
        await until(lambda: bool(transport.live))
        await asyncio.sleep(0.1)
        async with http.post("/abort_request", json={"rid": "second"}):
            pass
        async with await calls[1] as answer:
            assert (await answer.json())["meta_info"]["finish_reason"]["type"] == "abort"
        assert len(transport.requests) == 1
        calls[0].cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_an_access_log_that_cannot_be(start: Start, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be opened") as caught:
        await start(access_log=str(tmp_path / "none" / "log"))
    assert caught.value.param == "access_log"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
async def test_a_full_disk_fails_no_request(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    url = await start(access_log="/dev/full")
    async with aiohttp.ClientSession(base_url=url) as http, http.get("/v1/models") as answer:
        assert answer.status == 200
    await until(lambda: "access log cannot be written" in caplog.text)
