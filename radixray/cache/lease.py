"""A lease: how whoever computes KV holds pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from radixray.cache.page_pool import TREE
from radixray.cache.radix_node import PageArray, RadixNode, TokenArray

if TYPE_CHECKING:
    from radixray.cache.prefix_cache import PrefixCache


class Lease:
    """The right to read a cached prefix and to write the pages that follow it.

    Page table:   [ shared: owned by the tree, locked | private: owned by this lease ]

    Attributes:
        id: owner of the private pages in the ledger.
        owner: who holds it, for people.
        priority: of whoever holds it; what it uses and gives to the tree is raised to it.
        node: where the shared part ends in the tree; locked.
        cached_tokens: tokens found in the cache when the lease was taken.
        num_shared, num_pages: pages of the shared part, and of both parts.
        damaged: `PrefixCache.repair` took all its pages away; all that is left is to release it.
    """

    def __init__(
        self,
        cache: PrefixCache,
        lease_id: int,
        node: RadixNode,
        pages: PageArray,
        *,
        owner: str = "",
        priority: int = 0,
    ) -> None:
        self.id = lease_id
        self.owner = owner
        self.priority = priority
        self.node = node
        self.cached_tokens = len(pages) * cache.page_size
        self.num_shared = len(pages)
        self.num_pages = len(pages)
        self.damaged = False
        self._cache = cache
        self._table = np.empty(max(16, 2 * len(pages)) * cache.page_size, np.int32)
        self._write_table(0, pages)

    def slots(self, num_tokens: int) -> PageArray:
        """int32 KV slot of each of the first `num_tokens` positions; a view."""
        return self._table[:num_tokens]

    def shared_pages(self) -> PageArray:
        """Pages of the tree that this lease reads."""
        return self._pages(0, self.num_shared)

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

        Raises:
            LedgerError: the ledger does not have our pages as ours; `PrefixCache.repair` puts
                cache and lease right.
        """
        cache, size = self._cache, self._cache.page_size
        whole = len(tokens) // size
        if whole <= self.num_shared or not cache.enabled or self.damaged:
            return
        new_tokens = tokens[self.num_shared * size : whole * size]
        mine = self._pages(self.num_shared, whole)
        found = cache.tree.insert(self.node, new_tokens, mine, self.priority)
        present = found.length // size
        if present < len(mine):
            # First of all: whatever fails below, what the tree gained has been told.
            start = (self.num_shared + present) * size
            cache.record("insert", self.node.namespace, tokens[: whole * size], start)
        cache.pool.release(mine[:present], self.id)
        cache.pool.transfer(mine[present:], self.id, TREE)
        self._write_table(self.num_shared, found.pages)
        cache.tree.lock(found.node)
        cache.tree.unlock(self.node)
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

    def void(self, root: RadixNode) -> None:
        """Empties the lease without touching tree or ledger. For `PrefixCache.repair`."""
        self.damaged = True
        self.node = root
        self.num_shared = self.num_pages = 0

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
