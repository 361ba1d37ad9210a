"""The text of one variable, as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from radixray.client.reasoning import ReasoningSplitter, Split


class TextFeed:
    """Collects the pieces of a running operation, and hands them to whoever reads along.

    Args:
        listener: gets each piece as it comes.
        reasoning_listener: gets each piece of what `splitter` tells apart.
    """

    def __init__(
        self,
        listener: Callable[[str], None] | None = None,
        reasoning_listener: Callable[[str], None] | None = None,
    ) -> None:
        self._listener = listener
        self._reasoning_listener = reasoning_listener
        self._splitter: ReasoningSplitter | None = None
        self._length = 0
        self._pieces: list[str] = []
        self._more = asyncio.Event()

    def split_by(self, splitter: ReasoningSplitter) -> None:
        """From now on, only the answer is collected."""
        self._splitter = splitter

    def push(self, piece: str) -> None:
        """One more piece came."""
        self._length += len(piece)
        self._add(Split("", piece) if self._splitter is None else self._splitter.push(piece))

    def finish(self, text: str) -> None:
        """All has come: `text`, of which the beginning may have been pushed."""
        self.push(text[self._length :])
        if self._splitter is not None:
            self._add(self._splitter.finish())

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

    def _add(self, split: Split) -> None:
        if split.reasoning and self._reasoning_listener is not None:
            self._reasoning_listener(split.reasoning)
        if split.answer:
            self._pieces.append(split.answer)
            self._wake()
            if self._listener is not None:
                self._listener(split.answer)

    def _wake(self, done: object = None) -> None:
        # Each reader waits for the event it saw before it looked.
        self._more.set()
        self._more = asyncio.Event()
