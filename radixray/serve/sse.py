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

_encoder = msgspec.json.Encoder()


class Framing:
    """How structs become events, and a stream ends: as chunks, then ``[DONE]``.

    A stream that fails ends with an event ``{"error": ...}`` instead.
    """

    def event(self, struct: msgspec.Struct) -> bytes:
        """The event for `struct`."""
        return _event(_encoder.encode(struct))

    def end(self) -> bytes:
        """What a complete stream ends with."""
        return _event(b"[DONE]")

    def failure(self, error: Exception) -> bytes:
        """What a stream ends with that `error` cuts short."""
        return _event(error_body(error))


class EventStream(Response):
    """Sends what `work` emits, each struct one event.

    The headers leave with the first event, so a failure before it is an ordinary HTTP error. A
    later one is sent as the stream's last event. `work` is cancelled when the client disconnects.
    """

    def __init__(
        self, work: Callable[[Emit], Awaitable[None]], framing: Framing | None = None
    ) -> None:
        super().__init__()
        self._work = work
        self._framing = framing or Framing()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer.

        Raises:
            ClientGoneError, RadixRayError, Exception: as `work`, before the first event only.
        """
        events = _EventWriter(send, self._framing)
        try:
            await while_connected(receive, self._run(events))
        except Exception as error:
            if not events.started:
                raise
            if not isinstance(error, ClientGoneError):
                log_fault(error)
                await events.end(self._framing.failure(error))
        else:
            await events.end(self._framing.end())

    async def _run(self, events: _EventWriter) -> None:
        await self._work(events.emit)


class _EventWriter:
    def __init__(self, send: Send, framing: Framing) -> None:
        self._send = send
        self._framing = framing
        # Choices emit concurrently, but ASGI promises nothing about concurrent sends.
        self._lock = asyncio.Lock()
        self.started = False

    async def emit(self, structs: list[msgspec.Struct]) -> None:
        body = b"".join(map(self._framing.event, structs))
        if body:
            await self._write(body, more=True)

    async def end(self, data: bytes) -> None:
        await self._write(data, more=False)

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
