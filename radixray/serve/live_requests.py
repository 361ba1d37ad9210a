"""Native requests under way, by the ids their senders gave them, so that they can be aborted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from radixray.actors.transport import Generates
from radixray.protocol import Delta, GenerateRequest

ABORTED = "aborted"
"""The finish reason where somebody asked for it; ``abort``, the engine's, is a fault."""


class LiveRequests:
    """Those of this process: other replicas of the ingress have their own."""

    def __init__(self) -> None:
        self._live: dict[asyncio.Future[None], tuple[str, str]] = {}

    def abort(self, owner: str, rid: str) -> None:
        """End the request `rid` of `owner`, or those of the batch `rid`; an empty one ends all."""
        for future, (whose, name) in self._live.items():
            if whose == owner and (not rid or name == rid or name.startswith(f"{rid}_")):
                future.cancel()

    async def generate(
        self, transport: Generates, request: GenerateRequest, owner: str, rid: str
    ) -> AsyncGenerator[Delta, None]:
        """As `Generates.generate`; once aborted, a last Delta with what is known."""
        aborted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._live[aborted] = owner, rid
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
                    yield delta
        finally:
            del self._live[aborted]


class AbortableTransport:
    """A transport whose requests can be aborted.

    Args:
        transport: what runs them.
        live: where they are noted.
        owner: who sends them: the name of an API key.
        names: request id -> the id its sender gave it.
    """

    def __init__(
        self, transport: Generates, live: LiveRequests, owner: str, names: dict[str, str]
    ) -> None:
        self._transport = transport
        self._live = live
        self._owner = owner
        self._names = names

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """See `Generates.generate`."""
        rid = self._names[request.request_id]
        return self._live.generate(self._transport, request, self._owner, rid)
