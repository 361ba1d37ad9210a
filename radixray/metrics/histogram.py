"""How often values fell between bounds."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

REQUEST_SECONDS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0),
    *(10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0, 1800.0),
)
"""Bounds for the times of whole requests."""

STEP_SECONDS = (
    *(0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.06),
    *(0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0),
)
"""Bounds for the times of single steps and tokens."""

TOKENS = tuple(float(2**power) for power in range(18))
"""Bounds for numbers of tokens."""


class Histogram(msgspec.Struct):
    """Counts of values by size.

    Attributes:
        bounds: ascending; a value belongs to the first bound that is not below it.
        counts: of each bound, and at the end of what is beyond all.
        total: sum of the values.
    """

    bounds: tuple[float, ...]
    counts: list[int] = []
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def observe(self, value: float, times: int = 1) -> None:
        """Adds `value`, so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times
