"""In which order waiting requests should start.

Policies:
    lpm         longest cached prefix first, with age; the default
    fcfs        first come, first served
    dfs-weight  along the radix tree, subtrees with the most waiting requests first
    lof         longest output first
    random      drawn at arrival
    priority    highest priority first, then first come

`lpm` and `dfs-weight` are the SGLang paper's (arXiv 2312.07104, section 3 and theorem 3.1: in a
batch, depth-first order is optimal, and longest prefix first is equivalent to it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar, get_args

from radixray.config import SchedulePolicy

POLICIES: tuple[str, ...] = get_args(SchedulePolicy)

AGE_TOKENS = 16
"""Under lpm, a step of waiting counts as so many cached tokens. However hot another prefix of m
tokens is, a request passes only those that came less than m / AGE_TOKENS steps later, so its wait
is bounded."""


class Waiting(Protocol):
    """What the order looks at.

    Attributes:
        arrival: order of arrival.
        since_step: the step in which it began to wait.
        matched: tokens it would find in the cache.
        priority: higher goes first.
        max_new: output tokens it may still generate.
        draw: a random number drawn at its arrival.
    """

    arrival: int
    since_step: int
    priority: int
    draw: float

    @property
    def matched(self) -> int: ...

    @property
    def max_new(self) -> int: ...

    def cached_path(self) -> Sequence[int]:
        """Ids of the radix nodes of its cached prefix, from the root down."""
        ...


W = TypeVar("W", bound=Waiting)


def in_order(policy: SchedulePolicy, waiting: Iterable[W]) -> list[W]:
    """`waiting` in the order they should start; what is equal stays in the order given."""
    if policy == "dfs-weight":
        return _depth_first(list(waiting))
    return sorted(waiting, key=_KEYS[policy])


def _depth_first(waiting: list[W]) -> list[W]:
    paths = {w.arrival: w.cached_path() for w in waiting}
    weights = Counter(node for path in paths.values() for node in path)

    # What ends at a node comes after what goes on below it: the deep is cached, and may not be for
    # long.
    end = (1, 0)

    def key(w: W) -> tuple[list[tuple[int, int]], int]:
        return [*((-weights[node], node) for node in paths[w.arrival]), end], w.arrival

    return sorted(waiting, key=key)


_KEYS: dict[str, Callable[[Waiting], float]] = {
    # Age counts by when the wait began, which needs no clock: only differences matter.
    "lpm": lambda w: AGE_TOKENS * w.since_step - w.matched,
    "fcfs": lambda w: w.arrival,
    "lof": lambda w: -w.max_new,
    "random": lambda w: w.draw,
    "priority": lambda w: -w.priority,
}
