"""So that very many programs in one loop leave other work its time.

A loop runs all that is ready before it looks at anything else. When hundreds of programs begin, or
what they wait for comes at once, each prepares a request: at most PER_TURN of them do in one turn
of the loop, the others in the next ones, in their order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from weakref import WeakKeyDictionary

PER_TURN = 16
"""Each takes some tenths of a millisecond."""


class Turns:
    """The turns of one event loop, in which all of it is called."""

    def __init__(self) -> None:
        self._left = PER_TURN
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    async def take(self) -> None:
        """Returns in this turn of the loop, or in a later one."""
        self._schedule()
        if self._left > 0 and not self._waiting:
            self._left -= 1
            return
        ready = asyncio.get_running_loop().create_future()
        self._waiting.append(ready)
        await ready

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._scheduled = False
        self._left = PER_TURN
        while self._waiting and self._left > 0:
            ready = self._waiting.popleft()
            if not ready.done():  # cancelled meanwhile
                ready.set_result(None)
                self._left -= 1
        if self._left < PER_TURN:
            self._schedule()


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


async def take_turn() -> None:
    """Waits for a turn of the running loop, if many want one."""
    loop = asyncio.get_running_loop()
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = Turns()
    await turns.take()
