"""Native requests under way, by the names their senders gave them, so that they can be aborted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from radixray.actors.transport import EndsByHandle, Generates, Transport
from radixray.protocol import Delta, GenerateRequest, Handle

ABORTED = "aborted"
"""The finish reason of a native request that was aborted; elsewhere ``abort`` is a fault."""

GRACE_S = 1.0
"""In which an aborted request brings what there is of it; later it ends without."""


class LiveRequests:
    """Those of this process. What is at a model actor already is found from every process."""

    def __init__(self) -> None:
        self._live: dict[asyncio.Future[None], Handle] = {}

    async def abort(self, transport: Transport, handle: Handle) -> None:
        """End the requests that `handle` finds: at the model actors, or on their way to one.

        Raises:
            RadixRayError: a model actor cannot be reached.
        """
        loop = asyncio.get_running_loop()
        grace = GRACE_S if isinstance(transport, EndsByHandle) else 0.0
        for future, each in self._live.items():
            if handle.finds(each):
                loop.call_later(grace, future.cancel)
        if isinstance(transport, EndsByHandle):
            await transport.end(handle)

    async def generate(
        self, transport: Generates, request: GenerateRequest
    ) -> AsyncGenerator[Delta, None]:
        """As `Generates.generate`; once aborted, a last Delta with what is known."""
        assert request.handle is not None
        aborted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._live[aborted] = request.handle
        try:
            async with aclosing(transport.generate(request)) as deltas:
                while True:
                    step = asyncio.ensure_future(anext(deltas, None))
                    try:
                        await asyncio.wait((step, aborted), return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        if not step.done():
                            step.cancel()
                            await asyncio.gather(step, return_exceptions=True)
                    if step.cancelled():
                        yield Delta(request_id=request.request_id, finish_reason=ABORTED)
                        return
                    if (delta := step.result()) is None:
                        return
                    if delta.finish_reason == "abort":
                        delta.finish_reason = ABORTED
                    yield delta
        finally:
            del self._live[aborted]


class AbortableTransport:
    """A transport whose requests can be aborted by their handles.

    Args:
        transport: what runs them.
        live: where they are noted.
    """

    def __init__(self, transport: Generates, live: LiveRequests) -> None:
        self._transport = transport
        self._live = live

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """See `Generates.generate`."""
        return self._live.generate(self._transport, request)
