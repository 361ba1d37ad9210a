"""Pins: cached prefixes that stay cached for a while, whoever uses them."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

from radixray.cache.radix_node import RadixNode
from radixray.cache.radix_tree import Match, RadixTree
from radixray.errors import InvalidRequestError

MAX_TTL_S = 86_400.0
"""A pin lasts a day at most; it can be renewed by another pin of the same prefix."""


@dataclass(frozen=True, slots=True, eq=False)
class Pin:
    """A prefix kept in the cache until a moment.

    Attributes:
        id: for `PrefixCache.unpin`; 0 if nothing of the prefix was cached, so nothing is held.
        owner: whose.
        tokens: how many it holds.
        expires: monotonic seconds.
        node: where the prefix ends in the tree.
    """

    id: int
    owner: str
    tokens: int
    expires: float
    node: RadixNode


class PinBook:
    """All pins of one tree. A page counts once, however many pins hold it.

    Attributes:
        budget: most pages that may be pinned at once.
        pages: pages pinned now.
    """

    def __init__(self, tree: RadixTree, budget: int) -> None:
        self.budget = budget
        self.pages = 0
        self._tree = tree
        self._pins: dict[int, Pin] = {}
        self._by_owner: dict[str, set[int]] = {}
        # (expires, id), soonest first; ids of pins that ended earlier are dropped as they come up.
        self._expiries: list[tuple[float, int]] = []
        self._ids = itertools.count(1)

    def __len__(self) -> int:
        return len(self._pins)

    def pins(self) -> list[Pin]:
        """Every pin, oldest first."""
        return list(self._pins.values())

    def add(self, found: Match, owner: str, expires: float) -> Pin:
        """Pins a match.

        Raises:
            InvalidRequestError: more pages would be pinned than the budget allows; param ``pin``.
        """
        if found.length == 0:
            return Pin(0, owner, 0, expires, found.node)
        more = 0
        walk: RadixNode | None = found.node
        while walk is not None and walk.pins == 0:
            more += len(walk.pages)
            walk = walk.parent
        if self.pages + more > self.budget:
            raise InvalidRequestError(
                f"the pin needs {more} pages beside the {self.pages} pinned; "
                f"the pin budget is {self.budget} pages",
                param="pin",
            )
        pin = Pin(next(self._ids), owner, found.length, expires, found.node)
        self._count(pin.node, 1)
        self._tree.lock(pin.node)
        self._pins[pin.id] = pin
        self._by_owner.setdefault(owner, set()).add(pin.id)
        heapq.heappush(self._expiries, (expires, pin.id))
        if len(self._expiries) > 64 + 2 * len(self._pins):
            self._expiries = [entry for entry in self._expiries if entry[1] in self._pins]
            heapq.heapify(self._expiries)
        return pin

    def remove(self, pin_id: int, owner: str | None = None) -> bool:
        """Ends a pin; False if it had ended, or is not `owner`'s where one is given."""
        pin = self._pins.get(pin_id)
        if pin is None or owner not in (None, pin.owner):
            return False
        self.discard(pin_id)
        self._count(pin.node, -1)
        self._tree.unlock(pin.node)
        return True

    def remove_owner(self, owner: str) -> int:
        """Ends all pins of an owner; how many."""
        return sum(self.remove(pin_id) for pin_id in list(self._by_owner.get(owner, ())))

    def remove_all(self) -> int:
        """Ends every pin; how many."""
        return sum(self.remove(pin_id) for pin_id in list(self._pins))

    def expire(self, now: float) -> int:
        """Ends the pins whose time has come; how many. Costs nothing when there are none."""
        ended = 0
        while self._expiries and self._expiries[0][0] <= now:
            ended += self.remove(heapq.heappop(self._expiries)[1])
        return ended

    def discard(self, pin_id: int) -> Pin | None:
        """Forgets a pin and leaves its locks: for `repair`, which counts them anew."""
        pin = self._pins.pop(pin_id, None)
        if pin is not None:
            mine = self._by_owner[pin.owner]
            mine.discard(pin_id)
            if not mine:
                del self._by_owner[pin.owner]
        return pin

    def _count(self, node: RadixNode, by: int) -> None:
        walk: RadixNode | None = node
        while walk is not None:
            before = walk.pins
            walk.pins += by
            if before == 0 or walk.pins == 0:
                self.pages += by * len(walk.pages)
            walk = walk.parent
