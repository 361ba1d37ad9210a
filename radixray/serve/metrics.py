"""``GET /metrics``, the same from every process of the ingress; and counting answers."""

from __future__ import annotations

import asyncio
import contextlib
import uuid

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixray.actors.independent import independent_task
from radixray.actors.measures import Measures
from radixray.errors import DeploymentError, RadixRayError
from radixray.metrics.exposition import CONTENT_TYPE, render
from radixray.serve.connection import Connection

SHARE_WITHIN_S = 1.0
"""So long after an answer, other processes know of it."""

_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_OTHER = "other"


class HttpCounts:
    """How many answers this process gave, by method, route and status."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._process = uuid.uuid4().hex
        self._counts: dict[str, int] = {}
        self._sharing: asyncio.Task[None] | None = None

    def count(self, method: str, route: str, status: int) -> None:
        """An answer began."""
        key = f"{method} {route} {status}"
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._sharing is None or self._sharing.done():
            self._sharing = independent_task(self._share_later())

    async def share(self) -> None:
        """Leaves the counts where all processes find them.

        Raises:
            RadixRayError: there is no connection yet.
        """
        transport = await self._connection.transport()
        if isinstance(transport, Measures):
            await transport.share(self._process, self._counts)

    async def _share_later(self) -> None:
        await asyncio.sleep(SHARE_WITHIN_S)
        with contextlib.suppress(RadixRayError):  # the next answer tries again
            await self.share()


class CountAnswers:
    """ASGI middleware: counts every answer, whoever gives it."""

    def __init__(self, app: ASGIApp, counts: HttpCounts) -> None:
        self._app = app
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                method = scope["method"] if scope["method"] in _METHODS else _OTHER
                self._counts.count(method, _route_of(scope), message["status"])
            await send(message)

        await self._app(scope, receive, counted if scope["type"] == "http" else send)


async def metrics(request: Request) -> Response:
    """``GET /metrics``: what all processes of the deployment count, for Prometheus."""
    connection: Connection = request.app.state.connection
    transport = await connection.transport()
    if not isinstance(transport, Measures):
        raise DeploymentError("nothing is counted here")
    counts: HttpCounts = request.app.state.http_counts
    await counts.share()
    return Response(render(await transport.measure()), media_type=CONTENT_TYPE)


def _route_of(scope: Scope) -> str:
    """Of a few; whoever asks for something else cannot make more of them."""
    route = scope.get("route")
    if isinstance(route, Route):
        return route.path
    # Refused before it was routed.
    known = (each.path for each in scope["app"].routes if isinstance(each, Route))
    return scope["path"] if scope["path"] in known else _OTHER
