"""What work costs, and on which model actors requests that were announced should run."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ACTIVE_REQUEST_COST = 16
"""Prefill tokens that a request under way is taken to cost a newcomer."""

RECOMPUTE_COST = 2
"""Each prompt token an actor must compute counts twice: it delays this request and those behind
it. Without that, the second of a burst would recompute on an idle actor the very prefix that the
first is computing, and be no sooner done."""

SHARED_COST = 1.5
"""Less for a token of a prefix that many requests share: those behind this one will find it, too,
so an idle actor soon gets a copy. In `benchmarks/routing.py`, 1 copies too much, 2 too little."""


@dataclass(slots=True)
class ActorLoad:
    """What was placed on one model actor and has not finished.

    Attributes:
        requests: requests under way.
        prefill_tokens: tokens of their prompts that were not expected in its cache.
    """

    requests: int = 0
    prefill_tokens: int = 0

    @property
    def cost(self) -> int:
        """Work ahead of a newcomer, in prefill tokens."""
        return self.prefill_tokens + ACTIVE_REQUEST_COST * self.requests


@dataclass(frozen=True, slots=True)
class CohortWork:
    """Requests with one prefix that are yet to come.

    Attributes:
        prefix_tokens: length of the prefix.
        own_tokens: of each prompt, beyond it.
        matches: tokens of the prefix each actor holds; missing means none.
    """

    prefix_tokens: int
    own_tokens: int
    matches: Mapping[str, int]

    @property
    def each(self) -> int:
        """What one of them costs where the prefix is."""
        return ACTIVE_REQUEST_COST + self.own_tokens

    def uncached(self, actor: str) -> int:
        """Tokens of the prefix that an actor must compute."""
        return self.prefix_tokens - self.matches.get(actor, 0)

    def ready(self, actor: str, loads: Mapping[str, ActorLoad]) -> int:
        """Work until an actor has computed the prefix."""
        return loads[actor].cost + self.uncached(actor)


def homes_of(work: CohortWork, requests: int, loads: Mapping[str, ActorLoad]) -> list[str]:
    """The actors that a cohort should run on.

    It stays together, so that its prefix is computed once, until the last of it would wait longer
    there than another actor needs for the prefix, by the measure of the policy ``prefix``. Then
    that one takes part, too.

    Args:
        requests: how many are to come.
        loads: every candidate's load; at least one.
    """

    def opening(actor: str) -> tuple[int, int, str]:
        load = loads[actor]
        return load.cost + RECOMPUTE_COST * work.uncached(actor), load.requests, actor

    first, *others = sorted(loads, key=opening)
    homes = [first]
    ready = work.ready(first, loads)
    for other in others:
        if opening(other)[0] >= (ready + work.each * requests) / len(homes):
            break
        homes.append(other)
        ready += work.ready(other, loads)
    return homes


def share_out(
    work: CohortWork, requests: int, homes: Sequence[str], loads: Mapping[str, ActorLoad]
) -> dict[str, int]:
    """How many of a cohort each of its homes should run, so that all end at about one time."""
    shares = dict.fromkeys(homes, 0)
    ends = [(work.ready(actor, loads), actor) for actor in homes]
    heapq.heapify(ends)
    for _ in range(requests):
        end, actor = ends[0]
        shares[actor] += 1
        heapq.heapreplace(ends, (end + work.each, actor))
    return shares
