"""``GET /radixray/v1/explain/{request_id}``, sessions over HTTP, and `radixray explain`."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import aiohttp
import pytest
from fake_transport import FakeTransport
from http_host import Serve

from radixray import cli
from radixray.explanation import (
    Candidate,
    Divergence,
    Explanation,
    HitNote,
    PlacementNote,
    explanation_of,
)
from radixray.serve.app import build_app
from radixray.serve.http_config import HttpConfig
from radixray.serve.keys import ApiKey
from radixray.tokenizer.tokenizer import Tokenizer


class Remembering(FakeTransport):
    """Remembers one request."""

    known = "chatcmpl-abc-0"

    async def explain(self, request_id: str) -> Explanation:
        placement, hit = None, None
        if request_id == self.known:
            left = Divergence(position=5, before=[28, 30], prompt=[73], cached=[94, 95])
            hit = HitNote(at=1.0, prompt_tokens=9, cached=5, divergence=left)
            here = Candidate(actor="m-1", matched=5, requests=2, prefill_tokens=40, up=True)
            away = Candidate(actor="m-0", matched=0, requests=0, prefill_tokens=0, up=False)
            placement = PlacementNote(
                at=1.0,
                policy="prefix",
                actor="m-1",
                reason="prefix",
                session="",
                prompt_tokens=9,
                predicted=5,
                found=5,
                candidates=[here, away],
            )
        return explanation_of(request_id, "m-1", placement, hit, self.tokenizer.decode)


async def app(serve: Serve, tokenizer: Tokenizer, *keys: str) -> str:
    async def connect() -> FakeTransport:
        return Remembering(tokenizer)

    config = HttpConfig(keys=tuple(ApiKey.of(key, key) for key in keys))
    return await serve(build_app(connect, config=config))


async def get(url: str, request_id: str, key: str = "") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.get(f"{url}/radixray/v1/explain/{request_id}") as response,
    ):
        return response.status, await response.json()


async def test_route(serve: Serve, tokenizer: Tokenizer) -> None:
    url = await app(serve, tokenizer, "one")
    for asked in ("chatcmpl-abc-0", "chatcmpl-abc"):  # a sequence; an answer, by its first
        status, body = await get(url, asked, "one")
        assert (status, body["request_id"]) == (200, "chatcmpl-abc-0")
        assert body["hit"]["divergence"]["cached_text"] == tokenizer.decode([94, 95])
        assert repr(tokenizer.decode([73])) in body["why"][-1]
    assert (await get(url, "chatcmpl-abc"))[0] == 401
    status, body = await get(url, "else", "one")
    assert (status, body["error"]["param"]) == (400, "request_id")
    assert "'else'" in body["error"]["message"]


async def test_keys_that_share_a_server_see_no_content(serve: Serve, tokenizer: Tokenizer) -> None:
    url = await app(serve, tokenizer, "one", "two")
    status, body = await get(url, "chatcmpl-abc", "two")
    assert status == 200
    assert body["hit"]["divergence"] == {
        "position": 5,
        "before": [],
        "prompt": [],
        "cached": [],
        **dict.fromkeys(("before_text", "prompt_text", "cached_text")),
    }
    assert repr(tokenizer.decode([73])) not in " ".join(body["why"])


async def test_a_transport_that_remembers_nothing(http: aiohttp.ClientSession) -> None:
    async with http.get("/radixray/v1/explain/x") as response:
        assert response.status == 503


async def test_command(
    serve: Serve,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = await app(serve, tokenizer, "one")

    def run(*arguments: str) -> int:
        given = ["radixray", "explain", *arguments, "--url", url, "--api-key", "one"]
        monkeypatch.setattr(sys, "argv", given)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert isinstance(ended.value.code, int)
        return ended.value.code

    assert await asyncio.to_thread(run, "chatcmpl-abc") == 0
    shown = capsys.readouterr().out
    assert "It went to m-1 because it held the longest prefix (5 of 9 tokens)" in shown
    assert "at token 5" in shown
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.strip()}
    assert rows["m-1"] == ["5", "2", "40", "chosen"]
    assert rows["m-0"] == ["0", "0", "0", "down"]
    assert await asyncio.to_thread(run, "chatcmpl-abc", "--json") == 0
    assert json.loads(capsys.readouterr().out)["actor"] == "m-1"
    assert await asyncio.to_thread(run, "nothing") == 1
    assert "nothing is known of request 'nothing'" in capsys.readouterr().err


async def test_sessions(http: aiohttp.ClientSession, transport: FakeTransport) -> None:
    chat = {"model": "smollm2-135m", "messages": [{"role": "user", "content": "x"}]}
    for route, body in (("/v1/chat/completions", chat), ("/generate", {"text": "x"})):
        async with http.post(route, json=body, headers={"x-session-id": "talk-7"}) as response:
            assert response.status == 200
        assert transport.requests[-1].session == "talk-7"
    async with http.post("/generate", json={"text": "x"}) as response:
        assert response.status == 200
    assert transport.requests[-1].session == ""
    long = {"x-session-id": "s" * 300}
    async with http.post("/v1/chat/completions", json=chat, headers=long) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "x-session-id"
