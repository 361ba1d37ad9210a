"""One edge of the radix tree, and the two steps every walk is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from radixray.cache.watches import Watch

TokenArray = NDArray[np.int32]
PageArray = NDArray[np.int32]

NO_PAGES: PageArray = np.empty(0, np.int32)
NO_TOKENS: TokenArray = np.empty(0, np.int32)


class RadixNode:
    """One edge and the node it leads to.

    Attributes:
        tokens: int32 ids on the edge from the parent; a multiple of the page size.
        pages: int32 page of each page-size run of `tokens`.
        locks: leases and pins that end at this node or below it; a locked node cannot be evicted.
        pins: of these, pins.
        created: when its tokens came to the tree (`RadixTree.now`).
        last_access: when it was last matched, or last ceased to be used by a lease.
        hits: matches that passed through it since it was made.
        priority: the highest priority of any request that used it.
        watches: standing matches that end here or within a child, by their next page of tokens.
    """

    __slots__ = (
        "children",
        "created",
        "hits",
        "last_access",
        "locks",
        "namespace",
        "pages",
        "parent",
        "pins",
        "priority",
        "tokens",
        "watches",
    )

    def __init__(
        self,
        parent: RadixNode | None,
        tokens: TokenArray,
        pages: PageArray,
        namespace: str,
        *,
        created: int = 0,
        priority: int = 0,
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.pages = pages
        self.namespace = namespace
        self.children: dict[bytes, RadixNode] = {}
        self.locks = 0
        self.pins = 0
        self.created = created
        self.last_access = created
        self.hits = 0
        self.priority = priority
        # None until somebody watches: there may be very many nodes.
        self.watches: dict[bytes, set[Watch]] | None = None

    def path(self) -> TokenArray:
        """Token ids from the root to the end of this node."""
        parts: list[TokenArray] = []
        node: RadixNode | None = self
        while node is not None:
            parts.append(node.tokens)
            node = node.parent
        return np.concatenate(parts[::-1])

    def path_pages(self) -> PageArray:
        """Pages from the root to the end of this node."""
        parts: list[PageArray] = []
        node: RadixNode | None = self
        while node is not None:
            parts.append(node.pages)
            node = node.parent
        return np.concatenate(parts[::-1])

    def is_evictable(self) -> bool:
        """Whether it is an unlocked leaf that is still in the tree."""
        return self.locks == 0 and not self.children and self.parent is not None


def page_key(tokens: TokenArray, at: int, page_size: int) -> bytes:
    """The key of the page that starts at `at`; no child has the key of a partial page."""
    return tokens[at : at + page_size].tobytes()


def follow(
    node: RadixNode, tokens: TokenArray, at: int, page_size: int
) -> tuple[RadixNode | None, int]:
    """The child of `node` that continues `tokens[at:]`, and how many tokens agree: whole pages."""
    child = node.children.get(page_key(tokens, at, page_size))
    if child is None:
        return None, 0
    size = min(len(child.tokens), len(tokens) - at)
    differ = child.tokens[:size] != tokens[at : at + size]
    common = int(differ.argmax()) if differ.any() else size
    return child, common - common % page_size
