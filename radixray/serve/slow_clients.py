"""A client that does not read its answer."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixray.serve.errors import ClientGoneError


class SendTimeout:
    """ASGI middleware: a client that takes a piece of its answer too slowly is given up.

    Its generations are aborted, as if it had hung up.
    """

    def __init__(self, app: ASGIApp, timeout_s: float) -> None:
        self._app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = False

        async def send_in_time(message: Message) -> None:
            nonlocal gone
            try:
                async with asyncio.timeout(self._timeout_s):
                    await send(message)
            except TimeoutError as error:
                gone = True
                raise ClientGoneError from error

        try:
            await self._app(scope, receive, send_in_time if scope["type"] == "http" else send)
        except Exception:
            if not gone:  # nobody waits for what became of it
                raise
