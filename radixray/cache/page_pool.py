"""The pool of KV pages and its ledger: every page has exactly one owner."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from radixray.cache.radix_node import PageArray

FREE = 0
TREE = -1
"""Owner of pages in the radix tree; leases are owners 1, 2, ..."""

HISTORY = 4
"""Owners `PagePool.history` tells of one page at most."""

RING_PER_PAGE = 4
"""Changes of hands the ledger remembers, for each page of the pool."""


class OutOfPagesError(Exception):
    """More pages were asked for than are free. The scheduler plans so that this cannot happen."""


class LedgerError(Exception):
    """A page changed hands that its giver does not own."""


class PagePool:
    """Hands out pages and remembers who owns each, and who did.

    Attributes:
        num_pages: pages in all.
        num_free: pages nobody owns.
        owner: int32 [num_pages], FREE, TREE, or a lease's id.
        version: changes whenever a page changes hands.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.owner: NDArray[np.int32] = np.full(num_pages, FREE, np.int32)
        # A stack: the pages freed last are the likeliest still in the CPU's cache.
        self._free: PageArray = np.arange(num_pages - 1, -1, -1, dtype=np.int32)
        self.num_free = num_pages
        self.version = 0
        # The last changes of hands, one ring for all pages: (page, taker), the next at _ring_at.
        size = max(1024, RING_PER_PAGE * num_pages)
        self._ring_pages: NDArray[np.int32] = np.full(size, -1, np.int32)
        self._ring_owners: NDArray[np.int32] = np.full(size, FREE, np.int32)
        self._ring_at = 0

    def allocate(self, count: int, owner: int) -> PageArray:
        """Takes `count` free pages for `owner`.

        Raises:
            OutOfPagesError: fewer are free; none is taken.
        """
        if count > self.num_free:
            raise OutOfPagesError(f"{count} pages asked for, {self.num_free} are free")
        pages = self._free[self.num_free - count : self.num_free][::-1].copy()
        self.num_free -= count
        self._assign(pages, owner)
        return pages

    def transfer(self, pages: PageArray, giver: int, taker: int) -> None:
        """Hands `pages` from one owner to another.

        Raises:
            LedgerError: `giver` does not own them all; nothing changes.
        """
        self._check_owner(pages, giver)
        self._assign(pages, taker)

    def release(self, pages: PageArray, giver: int) -> None:
        """Frees `pages`.

        Raises:
            LedgerError: `giver` does not own them all; nothing changes.
        """
        self._check_owner(pages, giver)
        self._assign(pages, FREE)
        self._free[self.num_free : self.num_free + len(pages)] = pages
        self.num_free += len(pages)

    def free_pages(self) -> PageArray:
        """The free pages, for checks."""
        return self._free[: self.num_free]

    def history(self, page: int) -> list[int]:
        """The last owners of `page`, oldest first, as far back as is remembered. Slow."""
        found = np.flatnonzero(self._ring_pages == page)
        found = found[np.argsort((found - self._ring_at) % len(self._ring_pages))]
        return self._ring_owners[found[-HISTORY:]].tolist()

    def rebuild(self, owner: NDArray[np.int32]) -> None:
        """Replaces the whole ledger; every page whose new owner is FREE becomes free."""
        changed = np.flatnonzero(self.owner != owner)
        self._assign(changed, owner[changed])
        free = np.flatnonzero(owner == FREE).astype(np.int32)[::-1]
        self.num_free = len(free)
        self._free[: len(free)] = free

    def _assign(self, pages: NDArray[np.integer], owner: int | NDArray[np.int32]) -> None:
        self.owner[pages] = owner
        self.version += 1
        end = self._ring_at + len(pages)
        if end > len(self._ring_pages):
            # Rolled so that the oldest changes are overwritten first, once in a ring's length.
            self._ring_pages = np.roll(self._ring_pages, -self._ring_at)
            self._ring_owners = np.roll(self._ring_owners, -self._ring_at)
            self._ring_at, end = 0, len(pages)
        self._ring_pages[self._ring_at : end] = pages
        self._ring_owners[self._ring_at : end] = owner
        self._ring_at = end

    def _check_owner(self, pages: PageArray, giver: int) -> None:
        wrong = self.owner[pages] != giver
        if wrong.any():
            page = int(pages[wrong.argmax()])
            raise LedgerError(
                f"page {page} given by owner {giver} belongs to {int(self.owner[page])}; "
                f"its owners were {self.history(page)}"
            )
