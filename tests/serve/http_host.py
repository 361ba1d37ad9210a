"""One HTTP server for the apps of many tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

Serve = Callable[[Starlette], Awaitable[str]]


class Host:
    """An ASGI app that hands every request to the app of the test that runs."""

    url: str
    app: Starlette

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)
