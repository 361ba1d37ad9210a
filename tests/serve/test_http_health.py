"""Live and ready: what each says of model actors that are busy, full, silent, hung or gone."""

from __future__ import annotations

import aiohttp
import pytest
from fake_transport import INFO, FakeTransport

from radixray.errors import EngineDiedError, RadixRayError
from radixray.reports import EngineStats

WELL = EngineStats()
BUSY = EngineStats(running=8, waiting=INFO.max_queued_requests - 1, heartbeat_age_s=29.0)
FULL = EngineStats(waiting=INFO.max_queued_requests)
HUNG = EngineStats(heartbeat_age_s=31.0)
GONE = EngineStats(reachable=False)


async def ask(http: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with http.get(path) as response:
        return response.status, (await response.json())["reason"] or ""


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_what_is_told(http: aiohttp.ClientSession, path: str) -> None:
    async with http.get(path) as response:
        assert response.status == 200
        assert await response.json() == {
            "status": "ok",
            "reason": None,
            "actors": {
                "default/model-0": {
                    "running": 1,
                    "waiting": 2,
                    "pages_free": 30,
                    "pages_total": 40,
                    "heartbeat_age_s": 0.5,
                    "restarts": 0,
                }
            },
        }


@pytest.mark.parametrize(
    ("stats", "live", "ready"),
    [
        ([WELL, WELL], True, True),
        ([BUSY], True, True),
        ([FULL], True, False),
        ([FULL, WELL], True, True),
        ([HUNG], False, False),
        ([HUNG, WELL], False, True),
        ([GONE], True, False),
        ([GONE, WELL], True, True),
        ([GONE, FULL], True, False),
        ([], False, False),
    ],
)
async def test_who_is_well(
    http: aiohttp.ClientSession,
    transport: FakeTransport,
    stats: list[EngineStats],
    live: bool,
    ready: bool,
) -> None:
    transport.health = {f"m-{i}": each for i, each in enumerate(stats)}
    assert (await ask(http, "/health"))[0] == (200 if live else 503)
    assert (await ask(http, "/ready"))[0] == (200 if ready else 503)


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_the_reason(http: aiohttp.ClientSession, transport: FakeTransport, path: str) -> None:
    causes: list[tuple[dict[str, EngineStats] | RadixRayError, str]] = [
        ({"m-1": HUNG}, "m-1 has shown no life for 31 s"),
        (EngineDiedError("m-0 cannot be reached"), "m-0 cannot be reached"),
        ({}, "no model actors"),
    ]
    for transport.health, reason in causes:
        status, given = await ask(http, path)
        assert status == 503
        assert reason in given


async def test_one_that_dies_again_and_again_shows(
    http: aiohttp.ClientSession, transport: FakeTransport
) -> None:
    transport.health = {"m-0": EngineStats(reachable=False, restarts=4)}
    want = (503, "m-0 cannot be reached (started again 4 times)")
    assert await ask(http, "/ready") == want


async def test_silence_is_death_after_a_while(
    http: aiohttp.ClientSession, transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An actor that died is soon there again; one that was stopped never answers."""
    now = 100.0
    monkeypatch.setattr("radixray.serve.health.monotonic", lambda: now)
    transport.health = {"m-0": WELL, "m-1": GONE}
    assert (await ask(http, "/health"))[0] == 200
    now += 29
    assert (await ask(http, "/health"))[0] == 200
    now += 2
    assert await ask(http, "/health") == (503, "m-1 has shown no life for 31 s")
    transport.health = {"m-0": WELL, "m-1": WELL}
    assert (await ask(http, "/health"))[0] == 200
    transport.health = {"m-0": WELL, "m-1": GONE}
    assert (await ask(http, "/health"))[0] == 200, "a new silence"
