"""Whether the server lives, and whether it takes requests."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixray.errors import RadixRayError
from radixray.protocol import ModelInfo
from radixray.reports import EngineStats
from radixray.serve.answer import json_response
from radixray.serve.connection import Connection

MAX_HEARTBEAT_AGE_S = 30.0


class ActorHealth(msgspec.Struct):
    """What one model actor is doing, and how often it died and was started again."""

    running: int
    waiting: int
    pages_free: int
    pages_total: int
    heartbeat_age_s: float
    restarts: int


class Health(msgspec.Struct):
    """``ok``, or ``unavailable`` with the reason; and each model actor that answered, by name."""

    status: str
    reason: str | None
    actors: dict[str, ActorHealth]


class Watch:
    """Since when model actors have been silent."""

    def __init__(self) -> None:
        self._silent_since: dict[str, float] = {}

    def silent_s(self, silent: set[str]) -> dict[str, float]:
        """Of the `silent` ones, for how long each has been, as far as anybody has looked."""
        now = monotonic()
        self._silent_since = {name: self._silent_since.get(name, now) for name in silent}
        return {name: now - since for name, since in self._silent_since.items()}


async def live(request: Request) -> Response:
    """``GET /health``: 503 where a restart might help.

    That is when a model actor's engine has shown no life for a while, or the actor has not
    answered for as long. One that is busy shows life with each step, and one that has died is
    started again meanwhile.
    """
    return await _answer(request, _hung)


async def ready(request: Request) -> Response:
    """``GET /ready``: 503 where requests should go elsewhere: no model actor would take one."""
    return await _answer(request, _closed)


Judge = Callable[[dict[str, EngineStats], Watch, ModelInfo], str | None]
"""Why the answer is 503, from what each model actor says."""


async def _answer(request: Request, judge: Judge) -> Response:
    connection: Connection = request.app.state.connection
    try:
        transport = await connection.transport()
    except RadixRayError as error:
        return _response(error.message, {})
    try:
        stats = await transport.stats()
    except RadixRayError as error:
        return _response(error.message, {})
    if not stats:
        return _response("there are no model actors", {})
    return _response(judge(stats, request.app.state.watch, transport.info), stats)


def _hung(stats: dict[str, EngineStats], watch: Watch, info: ModelInfo) -> str | None:
    silent = watch.silent_s({name for name, each in stats.items() if not each.reachable})
    ages = silent | {name: s.heartbeat_age_s for name, s in stats.items() if s.reachable}
    return (
        "; ".join(
            f"{name} has shown no life for {age:.0f} s{_again(stats[name])}"
            for name, age in ages.items()
            if age >= MAX_HEARTBEAT_AGE_S
        )
        or None
    )


def _closed(stats: dict[str, EngineStats], watch: Watch, info: ModelInfo) -> str | None:
    reasons = [_why_closed(name, each, info) for name, each in stats.items()]
    return None if None in reasons else "; ".join(filter(None, reasons))


def _why_closed(name: str, stats: EngineStats, info: ModelInfo) -> str | None:
    if not stats.reachable:
        return f"{name} cannot be reached{_again(stats)}"
    if stats.heartbeat_age_s >= MAX_HEARTBEAT_AGE_S:
        return f"{name} has shown no life for {stats.heartbeat_age_s:.0f} s"
    if stats.waiting >= info.max_queued_requests:
        return f"the queue of {name} is full"
    return None


def _again(stats: EngineStats) -> str:
    return f" (started again {stats.restarts} times)" if stats.restarts else ""


def _response(reason: str | None, stats: dict[str, EngineStats]) -> Response:
    actors = {
        name: ActorHealth(
            each.running,
            each.waiting,
            each.pages_free,
            each.pages_total,
            each.heartbeat_age_s,
            each.restarts,
        )
        for name, each in stats.items()
        if each.reachable
    }
    status = "ok" if reason is None else "unavailable"
    return json_response(Health(status, reason, actors), 200 if reason is None else 503)
