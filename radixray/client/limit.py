"""One limit over the requests of many programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from radixray.actors.transport import Transport
from radixray.protocol import Delta, GenerateRequest, ModelInfo, ScoreRequest, ScoreResult
from radixray.reports import EngineStats
from radixray.tokenizer.tokenizer import Tokenizer


class LimitedTransport:
    """A transport with at most so many requests under way; others wait their turn.

    A request waits for no other while it is under way, so however many branches a program forks,
    it ends.
    """

    def __init__(self, transport: Transport, most: int) -> None:
        self._transport = transport
        self._turns = asyncio.Semaphore(most)

    @property
    def info(self) -> ModelInfo:
        """As the transport's."""
        return self._transport.info

    @property
    def tokenizer(self) -> Tokenizer:
        """As the transport's."""
        return self._transport.tokenizer

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """As the transport's, in its turn."""
        async with self._turns, aclosing(self._transport.generate(request)) as deltas:
            async for delta in deltas:
                yield delta

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """As the transport's, in its turn."""
        async with self._turns:
            return await self._transport.score(request)

    async def flush(self) -> int:
        """As the transport's."""
        return await self._transport.flush()

    async def stats(self) -> dict[str, EngineStats]:
        """As the transport's."""
        return await self._transport.stats()
