"""The text of one variable, as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable


class TextFeed:
    """Collects the pieces of a running operation, and hands them to whoever reads along."""

    def __init__(self, listener: Callable[[str], None] | None = None) -> None:
        self._listener = listener
        self._pieces: list[str] = []
        self._more = asyncio.Event()

    def push(self, piece: str) -> None:
        """One more piece came."""
        self._pieces.append(piece)
        self._wake()
        if self._listener is not None:
            self._listener(piece)

    async def read(self, done: asyncio.Future[object]) -> AsyncGenerator[str, None]:
        """All pieces, those that came before included, until `done` is."""
        done.add_done_callback(self._wake)
        seen = 0
        while True:
            more = self._more
            while seen < len(self._pieces):
                seen += 1
                yield self._pieces[seen - 1]
            if done.done() and seen == len(self._pieces):
                return
            await more.wait()

    def _wake(self, done: object = None) -> None:
        # Each reader waits for the event it saw before it looked.
        self._more.set()
        self._more = asyncio.Event()
