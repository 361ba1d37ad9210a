"""Fair shares: whoever has the least running goes next."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class FairShares:
    """Lets so many run at once, and shares that out between those who want to.

    With free slots nobody waits. A slot that becomes free goes to whoever has the fewest, of
    equals to the one who got one longest ago, and of its own to the first that came.

    Args:
        slots: how many run at once; None is no limit.
    """

    def __init__(self, slots: int | None) -> None:
        self._free = slots
        self._running: Counter[str] = Counter()
        # Of each, those that wait, as an ordered set; nobody without any has an entry.
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}
        self._turns: dict[str, int] = {}
        self._turn = 0

    @asynccontextmanager
    async def slot(self, name: str) -> AsyncGenerator[None, None]:
        """A slot of `name`, when its turn comes."""
        if self._free is None:
            yield
            return
        await self._acquire(name)
        try:
            yield
        finally:
            self._release(name)

    def waiting(self, name: str) -> int:
        """How many of `name` wait."""
        return len(self._waiting.get(name, ()))

    async def _acquire(self, name: str) -> None:
        if self._free:
            self._give(name)
            return
        mine = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, {})[mine] = None
        try:
            await mine
        except asyncio.CancelledError:
            if mine.cancelled():
                self._forget(name, mine)
            else:
                self._release(name)  # its turn came, too late
            raise

    def _release(self, name: str) -> None:
        assert self._free is not None
        self._running[name] -= 1
        if not self._running[name]:
            del self._running[name]
        self._free += 1
        while self._free and self._waiting:
            self._give_next()
        if not self._running:
            self._turns.clear()

    def _give_next(self) -> None:
        name = min(self._waiting, key=lambda n: (self._running[n], self._turns.get(n, 0)))
        first = next(iter(self._waiting[name]))
        self._forget(name, first)
        if not first.cancelled():  # whoever waited has been cancelled, and does not know yet
            self._give(name)
            first.set_result(None)

    def _give(self, name: str) -> None:
        assert self._free
        self._free -= 1
        self._running[name] += 1
        self._turn += 1
        self._turns[name] = self._turn

    def _forget(self, name: str, future: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(name, {})
        waiting.pop(future, None)
        if not waiting:
            self._waiting.pop(name, None)
