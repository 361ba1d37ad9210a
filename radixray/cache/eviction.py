"""Which unlocked leaf goes first: policies as keys, and the queue of candidates.

LRU is RadixAttention's policy (arXiv 2312.07104, section 3). A policy is one small function from
a node to its key; the leaf with the least key is evicted first.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from radixray.cache.radix_node import RadixNode
from radixray.errors import InvalidRequestError

EvictionKey = tuple[int, ...]

PROTECTED_HITS = 2
"""``slru``: a prefix used again this often leaves probation."""


def _lru(node: RadixNode) -> EvictionKey:
    return (node.last_access,)


def _lfu(node: RadixNode) -> EvictionKey:
    return (node.hits, node.last_access)


def _fifo(node: RadixNode) -> EvictionKey:
    return (node.created,)


def _mru(node: RadixNode) -> EvictionKey:
    return (-node.last_access,)


def _slru(node: RadixNode) -> EvictionKey:
    return (node.hits >= PROTECTED_HITS, node.last_access)


def _priority(node: RadixNode) -> EvictionKey:
    return (node.priority, node.last_access)


POLICIES: dict[str, Callable[[RadixNode], EvictionKey]] = {
    "lru": _lru,
    "lfu": _lfu,
    "fifo": _fifo,
    "mru": _mru,
    "slru": _slru,
    "priority": _priority,
}
"""Every eviction policy by name."""


class EvictionQueue:
    """Unlocked leaves in the order they are to go.

    An entry is stale once its node's key changed or the node was locked, given children or
    removed. Stale entries are dropped when they come up, so no operation walks the tree to find
    its leaves: each costs O(log entries), and there are at most about twice as many entries as
    candidates.

    Raises:
        InvalidRequestError: `policy` is not one of POLICIES; param ``eviction_policy``.
    """

    def __init__(self, policy: str) -> None:
        if policy not in POLICIES:
            raise InvalidRequestError(
                f"eviction_policy must be one of {list(POLICIES)}, not {policy!r}",
                param="eviction_policy",
            )
        self.policy = policy
        self._key = POLICIES[policy]
        self._heap: list[tuple[EvictionKey, int, RadixNode]] = []
        self._order = itertools.count()
        self._limit = 64

    def __len__(self) -> int:
        return len(self._heap)

    def offer(self, node: RadixNode) -> None:
        """To be called whenever `node` may have become a candidate or its key may have changed."""
        if not node.is_evictable():
            return
        heapq.heappush(self._heap, (self._key(node), next(self._order), node))
        if len(self._heap) > self._limit:
            # Without evictions stale entries pile up; one sweep pays for as many offers.
            fresh = {id(entry[2]): entry for entry in self._heap if self._is_fresh(entry)}
            self._heap = list(fresh.values())
            heapq.heapify(self._heap)
            self._limit = 64 + 2 * len(self._heap)

    def pop(self) -> RadixNode | None:
        """The leaf to evict next; None if every leaf is locked."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            if self._is_fresh(entry):
                return entry[2]
        return None

    def clear(self) -> None:
        """Forgets all candidates."""
        self._heap.clear()
        self._limit = 64

    def _is_fresh(self, entry: tuple[EvictionKey, int, RadixNode]) -> bool:
        key, _, node = entry
        return node.is_evictable() and key == self._key(node)
