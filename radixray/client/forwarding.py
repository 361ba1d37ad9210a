"""Transports around a transport."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from radixray.actors.transport import Transport
from radixray.protocol import Delta, GenerateRequest, ModelInfo, ScoreRequest, ScoreResult
from radixray.reports import EngineStats
from radixray.tokenizer.tokenizer import Tokenizer


class ForwardingTransport:
    """Does all as the transport inside does; what is to be different, a subclass overrides.

    Attributes:
        inside: that transport.
    """

    def __init__(self, transport: Transport) -> None:
        self.inside = transport

    @property
    def info(self) -> ModelInfo:
        """As the transport's."""
        return self.inside.info

    @property
    def tokenizer(self) -> Tokenizer:
        """As the transport's."""
        return self.inside.tokenizer

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """As the transport's."""
        return self.inside.generate(request)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """As the transport's."""
        return await self.inside.score(request)

    async def flush(self) -> int:
        """As the transport's."""
        return await self.inside.flush()

    async def stats(self) -> dict[str, EngineStats]:
        """As the transport's."""
        return await self.inside.stats()


def innermost(transport: Transport) -> Transport:
    """The transport that all others are around."""
    while isinstance(transport, ForwardingTransport):
        transport = transport.inside
    return transport
