"""Sequences that wait to run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from radixray.config import SchedulePolicy
from radixray.engine.sequence import LiveSequence
from radixray.scheduler.order import in_order

CANDIDATES_PER_SEAT = 4
"""Waiting sequences the planner looks at for each free place in the batch. Those that wait for
another's prefill or do not fit are passed; a queue of thousands is not looked at each step."""

FEWEST_CANDIDATES = 64
"""But never fewer than these: with one free place, few large requests that do not fit yet would
keep it from all behind them."""

RANK_AHEAD = 1024
"""A longer queue is put in order while the model computes, a shorter one when it is needed: so many
are sorted in a third of a millisecond."""


class WaitingQueue:
    """In which order sequences are offered to the planner.

    An order found ahead is a step old when it is used: what came since is put in its place, and so
    are the first of the others, by what they find in the cache now.
    """

    def __init__(self, policy: SchedulePolicy) -> None:
        self._policy: SchedulePolicy = policy
        self._sequences: dict[str, LiveSequence] = {}
        self._ranked: list[LiveSequence] | None = None
        self._since: list[LiveSequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[LiveSequence]:
        return iter(self._sequences.values())

    def requests(self) -> int:
        """How many requests have a sequence that waits."""
        return len({id(sequence.task) for sequence in self._sequences.values()})

    def by_priority(self) -> dict[int, int]:
        """How many sequences wait with which priority. Any thread may ask."""
        # One call that no other thread can interrupt takes them from the dict.
        return dict(Counter(sequence.priority for sequence in list(self._sequences.values())))

    def add(self, sequence: LiveSequence) -> None:
        """`sequence` waits."""
        self._sequences[sequence.sequence_id] = sequence
        if self._ranked is not None:
            self._since.append(sequence)

    def pop(self, sequence_id: str) -> LiveSequence | None:
        """It no longer waits; None if it did not."""
        return self._sequences.pop(sequence_id, None)

    def clear(self) -> None:
        """Nothing waits."""
        self._sequences.clear()
        self._ranked = None
        self._since.clear()

    def rank_ahead(self) -> None:
        """Finds the order for the next step now, if that is worth it."""
        if len(self._sequences) > RANK_AHEAD:
            self._ranked = in_order(self._policy, self._sequences.values())
            self._since.clear()

    def candidates(self, seats: int) -> list[LiveSequence]:
        """Those that may take one of `seats` free places, in the order they should."""
        if seats <= 0 or not self._sequences:
            return []
        wanted = max(FEWEST_CANDIDATES, CANDIDATES_PER_SEAT * seats)
        among: Iterable[LiveSequence] = self._sequences.values()
        if self._ranked is not None:
            still = (s for s in self._ranked if s.sequence_id in self._sequences)
            among = [
                *islice(still, wanted),
                *(s for s in self._since if s.sequence_id in self._sequences),
            ]
            self._ranked = None
        return in_order(self._policy, among)[:wanted]
