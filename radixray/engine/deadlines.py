"""When requests are late."""

from __future__ import annotations

import heapq
import itertools
import time

from radixray.engine.tasks import Task

SPARE = 64
"""So many finished tasks are kept at most, beside as many as are unfinished."""


class Deadlines:
    """Times by which requests must finish."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, int, Task, float]] = []
        self._count = itertools.count()
        self._room = SPARE

    def add(self, task: Task, timeout_s: float) -> None:
        """`task` must finish within `timeout_s` from now."""
        if len(self._ends) >= self._room:
            # Most finish long before their time, and must not be kept until then.
            self._ends = [end for end in self._ends if not end[2].finished]
            heapq.heapify(self._ends)
            self._room = 2 * len(self._ends) + SPARE
        end = time.monotonic() + timeout_s
        heapq.heappush(self._ends, (end, next(self._count), task, timeout_s))

    def passed(self) -> list[tuple[Task, float]]:
        """Unfinished tasks whose time is over, and how long it was; each is given once."""
        now = time.monotonic()
        late = []
        while self._ends and self._ends[0][0] <= now:
            _, _, task, timeout_s = heapq.heappop(self._ends)
            if not task.finished:
                late.append((task, timeout_s))
        return late

    def clear(self) -> None:
        """Nothing is waited for."""
        self._ends.clear()
