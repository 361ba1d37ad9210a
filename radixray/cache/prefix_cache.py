"""The prefix cache: a radix tree and a page pool, used through leases.

Whoever computes KV holds a `Lease`. It begins with the longest cached prefix, grows by private
pages, gives what it computed to the tree (`commit`), and ends with `release`.
"""

from __future__ import annotations

import itertools
import time

from radixray.cache import hot, integrity, tree_view
from radixray.cache.integrity import Repair
from radixray.cache.lease import Lease
from radixray.cache.page_pool import TREE, PagePool
from radixray.cache.pins import MAX_TTL_S, Pin, PinBook
from radixray.cache.radix_node import NO_TOKENS, PageArray, TokenArray
from radixray.cache.radix_tree import Evicted, Peek, RadixTree
from radixray.cache.watches import Watch
from radixray.checks import check_number
from radixray.reports import CacheEvent, CacheTree

PIN_SHARE = 0.25
"""Of the pool, what may be pinned by default."""


class PrefixCache:
    """Radix tree, page pool, leases and pins, kept consistent. Used by one thread.

    Args:
        policy: which unlocked prefix is evicted first (`radixray.cache.eviction`).
        pin_budget: most pages that may be pinned at once; None takes a quarter of the pool.

    Attributes:
        enabled: False makes every lease start empty and give nothing to the tree.
        leases: those not yet released, by id.
        pins: the book of pins.

    Raises:
        InvalidRequestError: `policy` is unknown; param ``eviction_policy``.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int = 1,
        *,
        enabled: bool = True,
        policy: str = "lru",
        pin_budget: int | None = None,
    ) -> None:
        self.page_size = page_size
        self.enabled = enabled
        self.pool = PagePool(num_pages)
        self.tree = RadixTree(page_size, policy)
        self.pins = PinBook(
            self.tree, int(num_pages * PIN_SHARE) if pin_budget is None else pin_budget
        )
        self.leases: dict[int, Lease] = {}
        self._lease_ids = itertools.count(1)
        self._events: list[CacheEvent] = []

    def fresh(self) -> PrefixCache:
        """An empty cache with the settings of this one."""
        return PrefixCache(
            self.pool.num_pages,
            self.page_size,
            enabled=self.enabled,
            policy=self.tree.policy,
            pin_budget=self.pins.budget,
        )

    @property
    def available_pages(self) -> int:
        """Pages that are free or could be evicted."""
        return self.pool.num_free + self.tree.num_evictable

    @property
    def leased_pages(self) -> int:
        """Private pages of all leases."""
        return self.pool.num_pages - self.pool.num_free - self.tree.num_pages

    @property
    def has_events(self) -> bool:
        """Whether `drain_events` would return any."""
        return bool(self._events)

    def peek(self, namespace: str, tokens: TokenArray) -> Peek:
        """What `acquire` would find; changes nothing."""
        if not self.enabled:
            return Peek(0, 0)
        return self.tree.peek(namespace, tokens)

    def watch(self, namespace: str, tokens: TokenArray) -> Watch:
        """A standing `peek`: its length is current at any time and costs no walk to read.

        Args:
            tokens: kept, not copied; they must not change until the watch is closed.
        """
        return self.tree.watch(namespace, tokens)

    def acquire(
        self, namespace: str, tokens: TokenArray, *, owner: str = "", priority: int = 0
    ) -> Lease:
        """A lease that starts with the longest cached prefix of `tokens`, now locked.

        Args:
            owner: who asks, for people who look at the tree or at a violation.
            priority: for the policy ``priority``; what it uses is raised to it.
        """
        found = self.tree.match(
            self.tree.root(namespace), tokens if self.enabled else NO_TOKENS, priority
        )
        self.tree.lock(found.node)
        lease = Lease(
            self, next(self._lease_ids), found.node, found.pages, owner=owner, priority=priority
        )
        self.leases[lease.id] = lease
        return lease

    def allocate(self, count: int, owner: int) -> PageArray:
        """Pages for a lease; evicts cached prefixes when too few are free.

        Raises:
            OutOfPagesError: free and evictable pages together do not suffice; none is evicted.
        """
        if self.pool.num_free < count <= self.available_pages:
            self.evict(count - self.pool.num_free)
        return self.pool.allocate(count, owner)

    def evict(self, num_pages: int) -> int:
        """Evicts at least `num_pages` pages if so many are evictable; returns how many went."""
        gone = 0
        for leaf in self.tree.evict(num_pages):
            self.pool.release(leaf.pages, TREE)
            self.record_evicted(leaf)
            gone += len(leaf.pages)
        return gone

    def end(self, lease: Lease) -> None:
        """Forgets a lease whose private pages are freed. Called by `Lease.release`."""
        del self.leases[lease.id]
        self.tree.unlock(lease.node)

    def pin(
        self,
        namespace: str,
        tokens: TokenArray,
        ttl_s: float,
        owner: str,
        *,
        now: float | None = None,
    ) -> Pin:
        """Keeps the cached prefix of `tokens` for `ttl_s` seconds, or until it is unpinned.

        What is not cached cannot be pinned: see `Pin.tokens` for how much it holds.

        Args:
            now: monotonic seconds.

        Raises:
            InvalidRequestError: `ttl_s` is out of range, or the pin budget (in pages) does not
                allow it; param ``pin``.
        """
        check_number("ttl_s", ttl_s, 0, MAX_TTL_S)
        found = self.tree.match(self.tree.root(namespace), tokens if self.enabled else NO_TOKENS)
        try:
            return self.pins.add(found, owner, (time.monotonic() if now is None else now) + ttl_s)
        finally:
            self.tree.drop_if_empty(found.node)

    def unpin(self, pin_id: int, owner: str | None = None) -> bool:
        """Ends a pin; False if it had ended, or is not `owner`'s where one is given."""
        return self.pins.remove(pin_id, owner)

    def unpin_owner(self, owner: str) -> int:
        """Ends all pins of an owner; how many."""
        return self.pins.remove_owner(owner)

    def expire(self, now: float) -> int:
        """Ends the pins whose time has come by `now` (monotonic seconds); how many."""
        return self.pins.expire(now)

    def flush(self) -> int:
        """Drops all that no lease and no pin holds; returns how many pages that freed.

        Its events are one ``clear`` and an ``insert`` for each node that stays, so who follows
        them knows exactly those; events not yet drained are superseded.
        """
        gone = 0
        for leaf in self.tree.evict(self.tree.num_evictable):
            self.pool.release(leaf.pages, TREE)
            gone += len(leaf.pages)
        self._events = [CacheEvent(kind="clear")]
        for node in self.tree.nodes():
            path = node.path()
            self.record("insert", node.namespace, path, len(path) - len(node.tokens))
        return gone

    def record(self, kind: str, namespace: str, tokens: TokenArray, start: int) -> None:
        """Notes a change of the tree for `drain_events`."""
        self._events.append(
            CacheEvent(kind=kind, namespace=namespace, tokens=tokens.tobytes(), start=start)
        )

    def record_evicted(self, leaf: Evicted) -> None:
        """Notes that a leaf went."""
        self.record("evict", leaf.namespace, leaf.path, leaf.start)

    def drain_events(self) -> list[CacheEvent]:
        """The changes since the last call, oldest first."""
        events, self._events = self._events, []
        return events

    def snapshot(self) -> list[CacheEvent]:
        """The whole tree as ``insert`` events, one for each leaf."""
        return [
            CacheEvent(kind="insert", namespace=node.namespace, tokens=node.path().tobytes())
            for node in self.tree.nodes()
            if not node.children
        ]

    def hot_prefixes(self, max_tokens: int) -> list[tuple[str, bytes, int]]:
        """The prefixes with most hits; see `radixray.cache.hot`."""
        return hot.hot_prefixes(self, max_tokens)

    def view(self, limit: int = 100) -> CacheTree:
        """The tree for people: the `limit` nodes with most pages at or below them."""
        return tree_view.view(self, limit)

    def check(self) -> list[str]:
        """Violations of the ledger: free + tree + leased = total, and no page twice.

        Walks everything; for tests and idle moments.
        """
        return integrity.check(self)

    def repair(self) -> Repair:
        """Makes ledger, tree and leases consistent again; see `radixray.cache.integrity`."""
        return integrity.repair(self)
