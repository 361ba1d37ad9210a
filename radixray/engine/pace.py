"""How fast requests finish, to tell those refused when to come back."""

from __future__ import annotations

import time
from collections import deque

LEAST_S, MOST_S = 1.0, 60.0


class Pace:
    """The rate of the last 64 requests that finished."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=64)

    def finished(self) -> None:
        """A request finished now."""
        self._times.append(time.monotonic())

    def seconds_for(self, requests: int) -> float:
        """Seconds in which so many requests may be expected to finish, from 1 to 60."""
        if len(self._times) < 2:
            return LEAST_S
        each = (self._times[-1] - self._times[0]) / (len(self._times) - 1)
        return min(max(each * requests, LEAST_S), MOST_S)
