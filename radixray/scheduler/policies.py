"""Load balancing policies: pure choices among model actors.

A policy sees the actors a request can go to and nothing of the others, so one that is down cannot
change what is chosen among those that are up.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from radixray.cache.radix_tree import TokenArray
from radixray.config import LoadBalancingPolicy
from radixray.scheduler.routing import RECOMPUTE_COST, SHARED_COST

HEAD_TOKENS = 256
"""Of a prompt, what `consistent_hash` looks at where there is no session."""

MOST_OVER_MEAN = 1.25
"""`consistent_hash` passes over an actor that would have so many times the mean of requests."""

ALWAYS_ALLOWED = 8
"""But not one with fewer requests than these."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request and the actors it can go to, a row each.

    Attributes:
        tokens: the prompt.
        session: whose it is; empty where nobody said.
        shared: tokens of its longest prefix that many requests share.
        numbers: of the actors, growing.
        matched: tokens of the prompt that each is believed to hold.
        costs: work ahead of a newcomer, in prefill tokens.
        requests: under way.
        held: tokens that an actor holds in all.
    """

    tokens: TokenArray
    session: str
    shared: int
    numbers: NDArray[np.int64]
    matched: NDArray[np.int64]
    costs: NDArray[np.int64]
    requests: NDArray[np.int64]
    held: Callable[[int], int]


class Policy(Protocol):
    """Chooses an actor."""

    def choose(self, ask: Ask) -> tuple[int, str]:
        """The row of the chosen actor, and the reason."""
        ...


class Prefix:
    """The actor with the least work: its queue, and the prompt's tokens it does not hold.

    So the longest prefix wins among equally loaded actors, and an overloaded holder loses to an
    idle one when recomputing the prefix is cheaper than waiting. Tokens of a prefix that many share
    count less: wherever they are computed, others will find them. Ties go to the longer match, then
    to fewer requests, then to whoever holds least, then to the first.

    Args:
        threshold: a match of a smaller part of the prompt counts as none.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold

    def choose(self, ask: Ask) -> tuple[int, str]:
        """Chooses; the reason is ``prefix`` for the longest match, else ``load``."""
        matched = ask.matched
        longest = int(matched.max())
        if longest < self._threshold * len(ask.tokens):
            longest = 0
        if longest == 0:
            # Nothing to find anywhere: the idlest.
            return _least(ask, ask.costs), "load"
        if self._threshold:
            matched = np.where(matched < self._threshold * len(ask.tokens), 0, matched)
        own = RECOMPUTE_COST * np.maximum(matched - ask.shared, 0)
        shared = SHARED_COST * np.minimum(matched, ask.shared)
        row = _least(ask, ask.costs - own - shared)
        return row, "prefix" if matched[row] == longest else "load"


class LeastLoaded:
    """The actor with the least work ahead, whatever it holds."""

    def choose(self, ask: Ask) -> tuple[int, str]:
        """Chooses."""
        return _least(ask, ask.costs), "least_loaded"


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._last = -1

    def choose(self, ask: Ask) -> tuple[int, str]:
        """Chooses the next that can be reached."""
        row = int(np.searchsorted(ask.numbers, self._last, side="right")) % len(ask.numbers)
        self._last = int(ask.numbers[row])
        return row, "round_robin"


class Random:
    """Any."""

    def __init__(self, seed: int | None) -> None:
        self._random = random.Random(seed)

    def choose(self, ask: Ask) -> tuple[int, str]:
        """Chooses."""
        return self._random.randrange(len(ask.numbers)), "random"


class PowerOfTwo:
    """The less loaded of two that chance names."""

    def __init__(self, seed: int | None) -> None:
        self._random = random.Random(seed)

    def choose(self, ask: Ask) -> tuple[int, str]:
        """Chooses."""
        one, other = self._random.choices(range(len(ask.numbers)), k=2)
        return (one if ask.costs[one] <= ask.costs[other] else other), "power_of_two"


class ConsistentHash:
    """The same actor for the same session, or the same head of a prompt.

    Rendezvous hashing: where an actor comes or goes, only what is its own moves. One that would
    have many more requests than the mean is passed over for the next in the key's own order.
    """

    def choose(self, ask: Ask) -> tuple[int, str]:
        """Chooses."""
        key = ask.session.encode() or ask.tokens[:HEAD_TOKENS].tobytes()
        digest = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
        weights = _mixed(ask.numbers.astype(np.uint64) + np.uint64(1), digest)
        most = MOST_OVER_MEAN * (ask.requests.sum() + 1) / len(ask.numbers)
        open_ = ask.requests < max(ALWAYS_ALLOWED, most)
        return int(np.where(open_, weights, np.uint64(0)).argmax()), "consistent_hash"


def policy_of(
    name: LoadBalancingPolicy, *, threshold: float = 0.0, seed: int | None = None
) -> Policy:
    """The policy called `name`.

    Args:
        threshold: `DeploymentConfig.tree_cache_threshold`, for ``prefix``.
        seed: of those that leave it to chance; None takes any.
    """
    policies: dict[str, Callable[[], Policy]] = {
        "prefix": lambda: Prefix(threshold),
        "round_robin": RoundRobin,
        "least_loaded": LeastLoaded,
        "power_of_two": lambda: PowerOfTwo(seed),
        "consistent_hash": ConsistentHash,
        "random": lambda: Random(seed),
    }
    return policies[name]()


def _least(ask: Ask, work: NDArray[Any]) -> int:
    """The row of the least work; see `Prefix` for ties."""
    tied = np.flatnonzero(work == work.min())
    for rank in (-ask.matched, ask.requests):
        if len(tied) == 1:
            return int(tied[0])
        among = rank[tied]
        tied = tied[among == among.min()]
    return min(tied.tolist(), key=lambda row: (ask.held(int(ask.numbers[row])), row))


def _mixed(values: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """64 bits for each value that look like chance (the finalizer of SplitMix64)."""
    mixed = values * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(seed)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
