"""The app's one connection to the model actors, made when first possible."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from radixray.actors.transport import Transport
from radixray.errors import DeploymentError, RadixRayError

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 60.0


class Connection:
    """Connects once and keeps the Transport; after a failure the next caller tries again."""

    def __init__(self, connect: Callable[[], Awaitable[Transport]]) -> None:
        self._connect = connect
        self._lock = asyncio.Lock()
        self._transport: Transport | None = None

    async def transport(self) -> Transport:
        """The Transport, connected.

        Raises:
            RadixRayError: it cannot be connected now.
        """
        if self._transport is None:
            async with self._lock:  # many requests may find it missing; one connects
                if self._transport is None:
                    self._transport = await self._try_connect()
        return self._transport

    async def warm_up(self) -> None:
        """Connect ahead of the first request; a failure is only logged, for the next to retry."""
        try:
            await self.transport()
        except RadixRayError as error:
            logger.warning("not connected yet: %s", error)

    async def close(self) -> None:
        """Close the Transport, if it was connected and can be closed."""
        transport, self._transport = self._transport, None
        close = getattr(transport, "close", None)
        if close is not None:
            await close()

    async def _try_connect(self) -> Transport:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await self._connect()
        except RadixRayError:
            raise
        except Exception as error:
            # Whatever went wrong, the answer to a client is the same: not ready, try again.
            logger.warning("cannot connect to the model actors", exc_info=error)
            raise DeploymentError(
                "cannot connect to the model actors; the server's log says why"
            ) from error
