"""The text of a whole state, as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from radixray.client.content import REPLACEMENT, Content
from radixray.client.op_queue import OpQueue


class StateText:
    """What a state holds, and of a running generation what came so far.

    Args:
        content: the state's, which forks and `adopt` replace.
        queue: the state's operations.
        listener: gets, once, each piece that no generation and no selection wrote.
    """

    def __init__(
        self,
        content: Callable[[], Content],
        queue: OpQueue,
        listener: Callable[[str], None] | None,
    ) -> None:
        self._content = content
        self._queue = queue
        self._listener = listener
        self._told = 0  # to the listener
        self._running = ""
        self._running_from = 0
        self._cuts: list[int] = []
        self._more = asyncio.Event()
        queue.on_change = self._changed

    def push(self, piece: str) -> None:
        """The running generation's next piece; the state gets it when all have come."""
        length = len(self._content().settled)
        self._tell(length)
        if self._running_from != length:
            self._running, self._running_from = "", length
        self._running += piece
        self._wake()

    def wrote(self, text: str) -> None:
        """The state has got a generation's, or a selection's, whole `text`."""
        content = self._content()
        self._tell(len(content.text) - len(text))
        self._told = max(self._told, len(content.settled))

    def start_at_end(self) -> None:
        """A branch tells its listener what it adds to the text it was forked with."""
        self._told = len(self._content().settled)

    def cut(self, length: int) -> None:
        """The text is another one from here on."""
        self._told = min(self._told, length)
        self._cuts.append(length)

    async def read(self) -> AsyncGenerator[str, None]:
        """All text from its beginning, until the state has nothing left to do.

        Raises:
            ProgramError: an operation failed.
        """
        seen, cuts = 0, len(self._cuts)
        while True:
            more = self._more
            seen, cuts = min([seen, *self._cuts[cuts:]]), len(self._cuts)
            if piece := self._since(seen):
                seen += len(piece)
                yield piece
            elif self._queue.error is not None:
                raise self._queue.deliver(self._queue.error)
            elif not self._queue.idle:
                await more.wait()
            else:
                if loose := self._content().text[seen:]:
                    yield loose
                return

    def _since(self, seen: int) -> str:
        content = self._content()
        settled = content.settled
        if self._running_from != len(settled) or content.text != settled:
            return settled[seen:]
        # The last character may not be whole yet.
        running = self._running.rstrip(REPLACEMENT)
        return settled[seen:] + running[max(0, seen - len(settled)) :]

    def _changed(self) -> None:
        self._tell(len(self._content().settled))
        self._wake()

    def _tell(self, length: int) -> None:
        if self._listener is not None and length > self._told:
            self._listener(self._content().settled[self._told : length])
            self._told = length

    def _wake(self) -> None:
        # Each reader waits for the event it saw before it looked.
        self._more.set()
        self._more = asyncio.Event()
