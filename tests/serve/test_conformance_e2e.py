"""The real command with two ingress processes: ill-formed requests, aborts, and clients that go."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import AsyncGenerator, Generator
from typing import Any

import aiohttp
import pytest
from bad_requests import BAD_REQUESTS, BASES, TEXT
from fake_transport import INFO
from real_server import API_KEY, START_WITHIN_S, Server, start_server, stop
from test_bad_requests import check

MODEL = "smollm2-135m"
HEADERS = {"Authorization": f"Bearer {API_KEY}"}
DISCONNECTS = int(os.environ.get("RADIXRAY_SOAK_DISCONNECTS", "1000"))
AT_ONCE = 24
LONG = {"max_tokens": 1500, "ignore_eos": True}

pytestmark = pytest.mark.timeout(START_WITHIN_S + 60 + DISCONNECTS // 4)


@pytest.fixture(scope="module")
def server() -> Generator[Server, None, None]:
    server = start_server("--ingress-replicas", "2")
    yield server
    stop(server.process)


@pytest.fixture
async def real(server: Server) -> AsyncGenerator[aiohttp.ClientSession, None]:
    async with aiohttp.ClientSession(base_url=server.url, headers=HEADERS) as session:
        yield session


async def actor(http: aiohttp.ClientSession) -> dict[str, Any]:
    """Counters of the one model actor."""
    async with http.get("/get_server_info") as response:
        assert response.status == 200, await response.text()
        [state] = (await response.json())["internal_states"]
    return state


async def idle(http: aiohttp.ClientSession, within: float = 30) -> dict[str, Any]:
    """Its counters once nothing runs or waits."""
    async with asyncio.timeout(within):
        while (state := await actor(http))["running"] or state["waiting"]:
            await asyncio.sleep(0.05)
    return state


async def test_a_sample_of_ill_formed_requests(real: aiohttp.ClientSession) -> None:
    """Serve's proxy stands before the app, and must change none of it."""
    # The others exceed limits of the fake model, or of what is sent for long.
    limit = str(INFO.context_length).encode()
    small = [bad for bad in BAD_REQUESTS if len(bad.body) < 10_000 and limit not in bad.body]
    for bad in random.Random(7).sample(small, 60):
        await check(real, bad)
    async with real.post(TEXT, json=BASES[TEXT]) as response:
        assert response.status == 200


async def generate(http: aiohttp.ClientSession, rid: str, stream: bool) -> dict[str, Any]:
    """The answer to a request that would run for long, or its last event."""
    body: dict[str, Any] = {"text": "Count:", "rid": rid, "stream": stream}
    body["sampling_params"] = {"max_new_tokens": 1500, "ignore_eos": True}
    async with http.post("/generate", json=body) as response:
        assert response.status == 200, await response.text()
        text = await response.text()
    if not stream:
        return json.loads(text)
    *events, done, end = text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return json.loads(events[-1].removeprefix("data: "))


async def test_aborts_reach_every_ingress_process(real: aiohttp.ClientSession) -> None:
    """Eight requests over two processes, each aborted by one call, that comes to either."""
    rids = [f"r{i}" for i in range(8)]
    calls = [asyncio.create_task(generate(real, rid, i % 2 == 1)) for i, rid in enumerate(rids)]
    async with asyncio.timeout(60):
        while (await actor(real))["running"] < 8:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # some tokens
        for rid in rids[:6]:
            async with real.post("/abort_request", json={"rid": rid}) as response:
                assert response.status == 200
        answers = await asyncio.gather(*calls[:6])
        assert not calls[6].done() and not calls[7].done()
        async with real.post("/abort_request", json={"abort_all": True}) as response:
            assert response.status == 200
        answers += await asyncio.gather(*calls[6:])
    for rid, answer in zip(rids, answers, strict=True):
        meta = answer["meta_info"]
        assert meta["id"] == rid
        assert meta["finish_reason"]["type"] == "abort"
        assert 0 < meta["completion_tokens"] == len(answer["output_ids"]) < 1500
        assert answer["text"]
    await idle(real)


async def test_an_abort_while_a_constraint_is_compiled(real: aiohttp.ClientSession) -> None:
    """Nothing is lost, whether it comes before the engine knows of the request or after."""
    for pause in (0.0, 0.01, 0.05, 0.2):
        body = {"text": "x", "rid": "slow", "sampling_params": {"regex": "(a|b|c|[d-z]{3}){2000}"}}
        call = asyncio.create_task(post(real, body))
        await asyncio.sleep(pause)
        while not call.done():
            async with real.post("/abort_request", json={"rid": "slow"}) as response:
                assert response.status == 200
            await asyncio.wait([call], timeout=0.1)
        status, text = call.result()
        assert status == 200, text
        assert '"type":"abort"' in text
    await idle(real)


async def post(http: aiohttp.ClientSession, body: dict[str, Any]) -> tuple[int, str]:
    async with http.post("/generate", json=body) as response:
        return response.status, await response.text()


async def hang_up(server: Server, rng: random.Random) -> str:
    """One request, cut off at a moment of one kind; which kind it was."""
    stream, kind = rng.random() < 0.6, rng.choice(("body", "waiting", "first", "middle", "end"))
    path, fields = rng.choice(
        (
            ("/v1/completions", {"prompt": "Count to " + "a lot " * rng.randrange(40)}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Count."}]}),
            ("/v1/responses", {"input": "Count."}),
            ("/generate", {"text": "Count."}),
        )
    )
    length = rng.randrange(1, 4) if kind == "end" else 1000
    body: dict[str, Any] = dict(fields, stream=stream)
    if path == "/generate":
        body["sampling_params"] = {"max_new_tokens": length}
    elif path == "/v1/responses":
        body |= {"model": MODEL, "max_output_tokens": length}
    else:
        body |= {"model": MODEL, "max_tokens": length, "n": rng.choice((1, 1, 3))}
        if rng.random() < 0.3:
            body["regex"] = "[a-z ]{900}"
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**20)
    try:
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\n"
            f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        )
        sent = rng.randrange(len(data)) if kind == "body" else len(data)
        writer.write(data[:sent])
        await writer.drain()
        async with asyncio.timeout(60):
            if kind == "end":
                end = b"usage" if path == "/v1/responses" else b"[DONE]" if stream else b"usage"
                with contextlib.suppress(asyncio.IncompleteReadError):  # it was too busy for us
                    await reader.readuntil(end)
            elif stream and kind in ("first", "middle"):
                with contextlib.suppress(asyncio.IncompleteReadError):
                    for _ in range(1 if kind == "first" else rng.randrange(2, 8)):
                        await reader.readuntil(b"data: ")
            else:
                await asyncio.sleep(rng.choice((0, 0, 0.01, 0.1)))
    finally:
        writer.transport.abort()
    return kind


async def test_random_disconnects(server: Server, real: aiohttp.ClientSession) -> None:
    """All kinds of hanging up; then nothing runs, and each page is free or the tree's."""
    async with real.post("/flush_cache") as response:
        assert response.status == 200
    fresh = await idle(real)
    assert fresh["pages_free"] == fresh["pages_total"]
    rng = random.Random(11)
    kinds: list[str] = []

    async def client(number: int) -> None:
        mine = random.Random(rng.random())
        for _ in range(DISCONNECTS // AT_ONCE + (number < DISCONNECTS % AT_ONCE)):
            kind = await hang_up(server, mine)
            kinds.append(kind)

    async with asyncio.TaskGroup() as group:
        for number in range(AT_ONCE):
            group.create_task(client(number))
    assert len(kinds) == DISCONNECTS
    assert set(kinds) == {"body", "waiting", "first", "middle", "end"}
    state = await idle(real)
    assert state["pages_free"] + state["pages_tree"] == state["pages_total"]
    assert state["pages_leased"] == state["ledger_violations"] == 0
    async with real.post(TEXT, json=BASES[TEXT]) as response:
        assert response.status == 200
    await idle(real)
    async with real.post("/flush_cache") as response:
        assert response.status == 200
    assert (await actor(real))["pages_free"] == state["pages_total"]
