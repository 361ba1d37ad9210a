"""The prefix cache: a radix tree and a page pool, used through leases.

Whoever computes KV holds a `Lease`. It begins with the longest cached prefix, grows by private
pages, gives what it computed to the tree (`commit`), and ends with `release`.
"""

from __future__ import annotations

import itertools

import numpy as np

from radixray.cache.page_pool import FREE, TREE, PagePool
from radixray.cache.radix_tree import PageArray, Peek, RadixNode, RadixTree, TokenArray
from radixray.reports import CacheEvent


class Lease:
    """The right to read a cached prefix and to write the pages that follow it.

    Page table:   [ shared: owned by the tree, locked | private: owned by this lease ]

    Attributes:
        id: owner of the private pages in the ledger.
        cached_tokens: tokens found in the cache when the lease was taken.
    """

    def __init__(
        self, cache: PrefixCache, lease_id: int, node: RadixNode, pages: PageArray
    ) -> None:
        self.id = lease_id
        self.node = node
        self.cached_tokens = len(pages) * cache.page_size
        self.num_shared = len(pages)
        self.num_pages = len(pages)
        self._cache = cache
        self._table = np.empty(max(16, 2 * len(pages)) * cache.page_size, np.int32)
        self._write_table(0, pages)

    def slots(self, num_tokens: int) -> PageArray:
        """int32 KV slot of each of the first `num_tokens` positions; a view."""
        return self._table[:num_tokens]

    def private_pages(self) -> PageArray:
        """Pages this lease owns."""
        return self._pages(self.num_shared, self.num_pages)

    def extend(self, num_tokens: int) -> None:
        """Makes room for positions up to `num_tokens`, evicting cached prefixes if it must.

        Raises:
            OutOfPagesError: not even eviction frees enough; the lease is unchanged.
        """
        size = self._cache.page_size
        more = -(-num_tokens // size) - self.num_pages
        if more > 0:
            self._write_table(self.num_pages, self._cache.allocate(more, self.id))
            self.num_pages += more

    def commit(self, tokens: TokenArray) -> None:
        """Gives the tree the pages of `tokens`: all positions whose KV has been computed.

        Three regions follow the shared prefix:

            already in the tree   our pages are duplicates: free them, use the tree's
            new to the tree       our pages become the tree's
            last, partial page    stays private
        """
        cache, size = self._cache, self._cache.page_size
        whole = len(tokens) // size
        if whole <= self.num_shared or not cache.enabled:
            return
        new_tokens = tokens[self.num_shared * size : whole * size]
        mine = self._pages(self.num_shared, whole)
        found = cache.tree.insert(self.node, new_tokens, mine)
        present = found.length // size
        cache.pool.release(mine[:present], self.id)
        cache.pool.transfer(mine[present:], self.id, TREE)
        self._write_table(self.num_shared, found.pages)
        cache.tree.lock(found.node)
        cache.tree.unlock(self.node)
        if present < len(mine):
            start = (self.num_shared + present) * size
            cache.record("insert", self.node.namespace, tokens[: whole * size], start)
        self.node, self.num_shared = found.node, whole

    def release(self, tokens: TokenArray | None = None) -> None:
        """Ends the lease: commits `tokens` if given, frees the private pages, unlocks."""
        if tokens is not None:
            self.commit(tokens)
        self._cache.pool.release(self.private_pages(), self.id)
        self._cache.end(self)

    def reclaimable_pages(self) -> int:
        """Pages that would be free or evictable if this lease ended now."""
        return self.num_pages - self.num_shared + self._cache.tree.unlocked_by(self.node)

    def _pages(self, first: int, last: int) -> PageArray:
        size = self._cache.page_size
        return self._table[first * size : last * size : size] // size

    def _write_table(self, at: int, pages: PageArray) -> None:
        size = self._cache.page_size
        end = (at + len(pages)) * size
        if end > len(self._table):
            self._table = np.concatenate([self._table, np.empty(end, np.int32)])
        slots = pages[:, None] * size + np.arange(size, dtype=np.int32)
        self._table[at * size : end] = slots.ravel()


class PrefixCache:
    """Radix tree, page pool and leases, kept consistent. Used by one thread.

    Attributes:
        enabled: False makes every lease start empty and give nothing to the tree.
    """

    def __init__(self, num_pages: int, page_size: int = 1, *, enabled: bool = True) -> None:
        self.page_size = page_size
        self.enabled = enabled
        self.pool = PagePool(num_pages)
        self.tree = RadixTree(page_size)
        self._leases: dict[int, Lease] = {}
        self._lease_ids = itertools.count(1)
        self._events: list[CacheEvent] = []

    @property
    def available_pages(self) -> int:
        """Pages that are free or could be evicted."""
        return self.pool.num_free + self.tree.num_evictable

    @property
    def leased_pages(self) -> int:
        """Private pages of all leases."""
        return self.pool.num_pages - self.pool.num_free - self.tree.num_pages

    def peek(self, namespace: str, tokens: TokenArray) -> Peek:
        """What `acquire` would find; changes nothing."""
        if not self.enabled:
            return Peek(0, 0)
        return self.tree.peek(namespace, tokens)

    def acquire(self, namespace: str, tokens: TokenArray) -> Lease:
        """A lease that starts with the longest cached prefix of `tokens`, now locked."""
        found = self.tree.match(self.tree.root(namespace), tokens if self.enabled else tokens[:0])
        self.tree.lock(found.node)
        lease = Lease(self, next(self._lease_ids), found.node, found.pages)
        self._leases[lease.id] = lease
        return lease

    def allocate(self, count: int, owner: int) -> PageArray:
        """Pages for a lease; evicts least recently used prefixes when too few are free.

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
            self.record("evict", leaf.namespace, leaf.path, leaf.start)
            gone += len(leaf.pages)
        return gone

    def end(self, lease: Lease) -> None:
        """Forgets a lease whose private pages are freed. Called by `Lease.release`."""
        del self._leases[lease.id]
        self.tree.unlock(lease.node)

    def record(self, kind: str, namespace: str, tokens: TokenArray, start: int) -> None:
        """Notes a change of the tree for `drain_events`."""
        self._events.append(
            CacheEvent(kind=kind, namespace=namespace, tokens=tokens.tobytes(), start=start)
        )

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

    def check(self) -> list[str]:
        """Violations of the ledger: free + tree + leased = total, and no page twice.

        Walks everything; for tests and idle moments.
        """
        expected = np.full(self.pool.num_pages, FREE, np.int32)
        holders = np.zeros(self.pool.num_pages, np.int32)
        np.add.at(holders, self.pool.free_pages(), 1)
        tree_pages = evictable = 0
        for node in self.tree.nodes():
            expected[node.pages] = TREE
            np.add.at(holders, node.pages, 1)
            tree_pages += len(node.pages)
            evictable += len(node.pages) if node.locks == 0 else 0
        for lease in self._leases.values():
            private = lease.private_pages()
            expected[private] = lease.id
            np.add.at(holders, private, 1)
        violations = [
            f"page {page}: held {holders[page]} times, by the ledger owner "
            f"{self.pool.owner[page]}, found with {expected[page]}"
            for page in np.flatnonzero((holders != 1) | (expected != self.pool.owner))
        ]
        for name, counted, kept in (
            ("tree pages", tree_pages, self.tree.num_pages),
            ("evictable pages", evictable, self.tree.num_evictable),
        ):
            if counted != kept:
                violations.append(f"{name}: {counted} counted, {kept} on the books")
        return violations
