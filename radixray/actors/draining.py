"""A model actor that is to end: nothing new comes in; what runs finishes, or goes on elsewhere."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from radixray.actors.consumers import Consumers
from radixray.errors import HandedOverError
from radixray.protocol import Delta, ErrorInfo
from radixray.reports import EngineStats

POLL_S = 0.02

LINGER_S = 0.2
"""What was sent just before the end of a drained actor still gets an answer."""

DRAINED_S = 60.0
"""An actor that was drained, and then not ended, takes requests again after so long."""

log = logging.getLogger("radixray")


class Draining:
    """Whether a model actor drains, and how it does. Used by one event loop.

    Args:
        name: of the actor.
        consumers: its consumers.
        tell: tells the scheduler actor whether it drains.

    Attributes:
        on: whether it takes no requests.
    """

    def __init__(self, name: str, consumers: Consumers, tell: Callable[[], None]) -> None:
        self.on = False
        self._name = name
        self._consumers = consumers
        self._tell = tell

    def error(self) -> HandedOverError:
        """For requests that are to go on elsewhere."""
        return HandedOverError(f"model actor {self._name} stops")

    async def run(
        self, grace_s: float, abort: Callable[[str], object], stats: Callable[[], EngineStats]
    ) -> int:
        """Returns when no request is left; how many were handed over after `grace_s` seconds.

        Args:
            abort: ends a request in the engine.
            stats: the engine's.
        """
        self.on = True
        self._tell()
        end = time.monotonic() + grace_s
        while time.monotonic() < end and self._consumers.request_ids:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        left = self._consumers.request_ids
        for request_id in left:
            error = ErrorInfo.of(self.error())
            self._consumers.end(Delta(request_id=request_id, finish_reason="error", error=error))
            abort(request_id)
        while (now := stats()).running or now.waiting or now.pages_leased:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        await asyncio.sleep(LINGER_S)
        return len(left)

    async def reopen_later(self, grace_s: float) -> None:
        """Takes requests again, should nobody end the actor."""
        await asyncio.sleep(grace_s + DRAINED_S)
        log.warning("model actor %s was drained and not ended; it goes on", self._name)
        self.on = False
        self._tell()
