"""``GET /health``: whether every model actor answers and its engine moves."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixray.errors import RadixRayError
from radixray.reports import EngineStats
from radixray.serve.answer import json_response
from radixray.serve.connection import Connection

MAX_HEARTBEAT_AGE_S = 30.0
ANSWER_TIMEOUT_S = 5.0


class ActorHealth(msgspec.Struct):
    """What one model actor is doing."""

    running: int
    waiting: int
    pages_free: int
    pages_total: int
    heartbeat_age_s: float


class Health(msgspec.Struct):
    """``ok``, or ``unavailable`` with the reason; and each model actor that answered, by name."""

    status: str
    reason: str | None
    actors: dict[str, ActorHealth]


async def health(request: Request) -> Response:
    """200 when every model actor is well, else 503."""
    connection: Connection = request.app.state.connection
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            stats = await (await connection.transport()).stats()
    except TimeoutError:
        return _response(f"the model actors did not answer within {ANSWER_TIMEOUT_S:g} s", {})
    except RadixRayError as error:
        return _response(error.message, {})
    return _response(_ailment(stats), stats)


def _ailment(stats: dict[str, EngineStats]) -> str | None:
    if not stats:
        return "there are no model actors"
    ailments = [f"{name} cannot be reached" for name, each in stats.items() if not each.reachable]
    ailments += [
        f"{name} has shown no life for {each.heartbeat_age_s:.0f} s"
        for name, each in stats.items()
        if each.heartbeat_age_s >= MAX_HEARTBEAT_AGE_S
    ]
    return "; ".join(ailments) or None


def _response(reason: str | None, stats: dict[str, EngineStats]) -> Response:
    actors = {
        name: ActorHealth(
            each.running, each.waiting, each.pages_free, each.pages_total, each.heartbeat_age_s
        )
        for name, each in stats.items()
        if each.reachable
    }
    status = "ok" if reason is None else "unavailable"
    return json_response(Health(status, reason, actors), 200 if reason is None else 503)
