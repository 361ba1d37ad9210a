"""One event loop's connections to one server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp

from radixray.errors import EngineDiedError
from radixray.transports.http_errors import unreachable

CONNECT_TIMEOUT_S = 10.0

IDLE_S = 3.0
"""An idle connection is closed after it: sooner than servers do, who would else do so just when a
request comes."""


class HTTPSession:
    """Sends requests to a server; every failure to do so is an EngineDiedError.

    Args:
        url: of the server.
        api_key: sent as a bearer token.
        read_timeout_s: silence for so long is a lost connection.
    """

    def __init__(self, url: str, api_key: str | None, read_timeout_s: float) -> None:
        self.url = url
        self._loop = asyncio.get_running_loop()
        self._closing: asyncio.Task[None] | None = None
        self._responses: set[aiohttp.ClientResponse] = set()
        self._session = aiohttp.ClientSession(
            # Requests wait in the engine's queue, which knows their prefixes, not here.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
            headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=read_timeout_s
            ),
        )

    @asynccontextmanager
    async def request(
        self, method: str, path: str, body: bytes | None = None
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """The answer. Leaving early closes the connection, by which the server knows.

        Raises:
            EngineDiedError: the server cannot be reached, or the connection broke; also where
                that happens inside.
        """
        if self._session.closed or self._closing is not None:
            raise EngineDiedError(f"the session with {self.url} was closed")
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method, self.url + path, data=body, headers=headers
            ) as response:
                self._responses.add(response)
                try:
                    yield response
                finally:
                    self._responses.discard(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(self.url, error) from error

    async def close(self) -> None:
        """Closes all connections; requests under way fail."""
        self._break()
        await self._session.close()

    def abandon(self) -> None:
        """As `close`, without waiting; in this session's loop only."""
        self._break()
        if self._loop.is_running():
            self._closing = self._loop.create_task(self._session.close())
        elif not _in_a_loop():  # else the connections end with this object
            self._loop.run_until_complete(self._session.close())

    def _break(self) -> None:
        for response in self._responses:
            response.close()


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def lines_of(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """The lines of an answer as they come, of any length."""
    rest = b""
    async for chunk in response.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest
