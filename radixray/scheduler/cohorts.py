"""Requests that were announced: how many with which prefix are yet to come, and where they go."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from radixray.cache.radix_tree import TokenArray
from radixray.scheduler.index import PrefixIndex

MAX_COHORTS = 1024
"""Of more, the one that has rested longest is forgotten."""

REST_S = 30.0
"""A cohort that nobody has asked for in so long is forgotten."""


@dataclass(slots=True)
class Cohort:
    """Requests to come that share a prefix.

    Attributes:
        namespace, tokens: the prefix.
        to_come: how many are still to come.
        seats: by actor, how many of them it keeps room for. Its keys are the cohort's homes.
        owed: by actor, tokens of the prefix that the first of them will compute there.
        used: monotonic time of the last sign of life.
    """

    namespace: str
    tokens: TokenArray
    to_come: int
    seats: dict[str, int]
    owed: dict[str, int]
    used: float = field(default_factory=time.monotonic)


class Cohorts:
    """All cohorts by id, those first that have rested longest."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, Cohort] = OrderedDict()
        self._index = PrefixIndex()
        self._ids: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._unused: list[int] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Cohort]:
        return iter(self._by_id.values())

    def add(self, cohort_id: str, cohort: Cohort) -> None:
        """A new cohort, under an id that none has."""
        number = self._unused.pop() if self._unused else len(self._ids)
        self._by_id[cohort_id] = cohort
        self._ids[number], self._numbers[cohort_id] = cohort_id, number
        self._index.add(number, cohort.namespace, cohort.tokens)

    def pop(self, cohort_id: str) -> Cohort | None:
        """Forgets a cohort, if it is known."""
        cohort = self._by_id.pop(cohort_id, None)
        if cohort is not None:
            number = self._numbers.pop(cohort_id)
            del self._ids[number]
            self._unused.append(number)
            self._index.remove(number, cohort.namespace, cohort.tokens)
        return cohort

    def of(self, namespace: str, tokens: TokenArray) -> tuple[str, Cohort] | None:
        """The cohort with the longest prefix that `tokens` begin with; counts as a sign of life."""
        if not self._by_id:
            return None
        best: tuple[str, Cohort] | None = None
        for number, matched in self._index.match(namespace, tokens).items():
            cohort_id = self._ids[number]
            cohort = self._by_id[cohort_id]
            longer = best is None or matched > len(best[1].tokens)
            if matched == len(cohort.tokens) and longer:
                best = cohort_id, cohort
        if best is not None:
            best[1].used = time.monotonic()
            self._by_id.move_to_end(best[0])
        return best

    def stale(self) -> str | None:
        """The id of one to forget: too many there are, or it has rested too long."""
        if not self._by_id:
            return None
        cohort_id, oldest = next(iter(self._by_id.items()))
        too_old = oldest.used < time.monotonic() - REST_S
        return cohort_id if too_old or len(self._by_id) > MAX_COHORTS else None
