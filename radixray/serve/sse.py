"""Server-sent events: an answer whose status is decided by its first event."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from radixray.serve.disconnect import while_connected
from radixray.serve.errors import ClientGoneError, error_body, log_fault

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # keeps reverse proxies from holding events back
]

Emit = Callable[[list[msgspec.Struct]], Awaitable[None]]


class EventStream(Response):
    """Sends what `work` emits, each struct one event, then ``[DONE]``.

    The headers leave with the first event, so a failure before it is an ordinary HTTP error. A
    later one is sent as an event ``{"error": ...}`` with which the stream ends, without
    ``[DONE]``. `work` is cancelled when the client disconnects.
    """

    def __init__(self, work: Callable[[Emit], Awaitable[None]]) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer.

        Raises:
            ClientGoneError, RadixRayError, Exception: as `work`, before the first event only.
        """
        events = _EventWriter(send)
        try:
            await while_connected(receive, self._run(events))
        except Exception as error:
            if not events.started:
                raise
            if not isinstance(error, ClientGoneError):
                log_fault(error)
                await events.end(error_body(error))
        else:
            await events.end(b"[DONE]")

    async def _run(self, events: _EventWriter) -> None:
        await self._work(events.emit)


class _EventWriter:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._encoder = msgspec.json.Encoder()
        # Choices emit concurrently, but ASGI promises nothing about concurrent sends.
        self._lock = asyncio.Lock()
        self.started = False

    async def emit(self, structs: list[msgspec.Struct]) -> None:
        body = b"".join(_event(self._encoder.encode(struct)) for struct in structs)
        if body:
            await self._write(body, more=True)

    async def end(self, data: bytes) -> None:
        await self._write(_event(data), more=False)

    async def _write(self, body: bytes, *, more: bool) -> None:
        async with self._lock:
            if not self.started:
                self.started = True
                await self._send(
                    {"type": "http.response.start", "status": 200, "headers": _HEADERS}
                )
            await self._send({"type": "http.response.body", "body": body, "more_body": more})


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
