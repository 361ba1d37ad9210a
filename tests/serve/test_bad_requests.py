"""No ill-formed request is a fault of the server, or harms the next; each names what is wrong."""

from __future__ import annotations

import contextlib

import aiohttp
import pytest
from bad_requests import BAD_REQUESTS, BASES, CHAT, TEXT, Bad
from fake_transport import FakeTransport


async def check(http: aiohttp.ClientSession, bad: Bad) -> None:
    """`bad` is refused, in OpenAI's shape."""
    async with http.request(bad.method, bad.path, data=bad.body) as response:
        assert response.status == bad.status, (bad.id, await response.text())
        assert response.content_type == "application/json"
        body = await response.json()
    assert list(body) == ["error"]
    error = body["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == bad.param, error
    assert error["message"]
    assert len(error["message"]) < 2000
    if bad.code is not None:
        assert error["code"] == bad.code


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: bad.id)
async def test_refused(http: aiohttp.ClientSession, transport: FakeTransport, bad: Bad) -> None:
    if bad.status == 413:
        # The server may close before the client has sent all of it, and so read the answer.
        with contextlib.suppress(aiohttp.ClientConnectionError):
            await check(http, bad)
    else:
        await check(http, bad)
    assert transport.requests == [], "validated before anything is queued"
    good = BASES[TEXT]
    async with http.post(TEXT, json=good) as response:
        assert response.status == 200


async def test_the_good_ones_are_good(http: aiohttp.ClientSession) -> None:
    """So that what is refused is refused for its own fault."""
    for path, body in BASES.items():
        async with http.post(path, json=body) as response:
            assert response.status == 200, (path, await response.text())
    # No content type matters: all bodies are JSON.
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x"):
        async with http.post(CHAT, json=BASES[CHAT], headers={"Content-Type": kind}) as response:
            assert response.status == 200, kind
