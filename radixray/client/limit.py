"""One limit over the requests of many programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from radixray.actors.transport import Transport
from radixray.client.forwarding import ForwardingTransport
from radixray.protocol import Delta, GenerateRequest, ScoreRequest, ScoreResult


class LimitedTransport(ForwardingTransport):
    """A transport with at most so many requests under way; others wait their turn.

    A request waits for no other while it is under way, so however many branches a program forks,
    it ends.
    """

    def __init__(self, transport: Transport, most: int) -> None:
        super().__init__(transport)
        self._turns = asyncio.Semaphore(most)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """As the transport's, in its turn."""
        async with self._turns, aclosing(self.inside.generate(request)) as deltas:
            async for delta in deltas:
                yield delta

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """As the transport's, in its turn."""
        async with self._turns:
            return await self.inside.score(request)
