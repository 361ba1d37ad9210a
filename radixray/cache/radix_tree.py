"""A radix tree from token ids to KV pages: pure data structure, no tensors, no policy of use.

The idea is RadixAttention's (arXiv 2312.07104, section 3): finished and running requests leave
their KV cache in a tree keyed by tokens, and a new request takes the longest prefix it finds.

Everything is aligned to pages: an edge holds a whole number of pages, and two edges of one node
differ within their first page. Namespaces are separate trees: they share no page.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TokenArray = NDArray[np.int32]
PageArray = NDArray[np.int32]

NO_PAGES: PageArray = np.empty(0, np.int32)
NO_TOKENS: TokenArray = np.empty(0, np.int32)


class RadixNode:
    """One edge and the node it leads to.

    Attributes:
        tokens: int32 ids on the edge from the parent; a multiple of the page size.
        pages: int32 page of each page-size run of `tokens`.
        locks: leases that use this node or one below it; a locked node cannot be evicted.
        last_access: logical clock of the last match through this node.
    """

    __slots__ = ("children", "last_access", "locks", "namespace", "pages", "parent", "tokens")

    def __init__(
        self, parent: RadixNode | None, tokens: TokenArray, pages: PageArray, namespace: str
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.pages = pages
        self.namespace = namespace
        self.children: dict[bytes, RadixNode] = {}
        self.locks = 0
        self.last_access = 0

    def path(self) -> TokenArray:
        """Token ids from the root to the end of this node."""
        parts: list[TokenArray] = []
        node: RadixNode | None = self
        while node is not None:
            parts.append(node.tokens)
            node = node.parent
        return np.concatenate(parts[::-1])


class Match(NamedTuple):
    """Where a walk ended.

    Attributes:
        node: the last node on the path, which ends exactly at the match.
        length: tokens matched, counted from the node where the walk began.
        pages: int32 pages of the matched tokens.
    """

    node: RadixNode
    length: int
    pages: PageArray


class Peek(NamedTuple):
    """What a match would find, without touching the tree.

    Attributes:
        length: tokens that would match.
        unlocked_pages: matched pages that could be evicted now, and no longer once locked.
    """

    length: int
    unlocked_pages: int


class Evicted(NamedTuple):
    """One evicted leaf: its namespace, its whole path, the part of it that went, its pages."""

    namespace: str
    path: TokenArray
    start: int
    pages: PageArray


class RadixTree:
    """Radix tree over token ids with reference-locked nodes and LRU eviction of leaves.

    Attributes:
        num_nodes: nodes, roots not counted.
        num_pages: pages the tree owns.
        num_evictable: of these, pages of unlocked nodes.
        version: changes whenever what a match would find may have changed.
    """

    def __init__(self, page_size: int = 1) -> None:
        self.page_size = page_size
        self.num_nodes = 0
        self.num_pages = 0
        self.num_evictable = 0
        self.version = 0
        self._roots: dict[str, RadixNode] = {}
        self._clock = itertools.count(1)
        # Eviction candidates, oldest first. An entry is stale when its node was accessed, locked
        # or given children since; stale entries are dropped when they come up, so that no
        # operation ever walks the tree to find its leaves.
        self._lru: list[tuple[int, int, RadixNode]] = []
        self._tiebreak = itertools.count()

    def root(self, namespace: str) -> RadixNode:
        """The root of a namespace, created when missing."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = RadixNode(None, NO_TOKENS, NO_PAGES, namespace)
        return root

    def peek(self, namespace: str, tokens: TokenArray) -> Peek:
        """The longest cached prefix of `tokens`, leaving tree and access times as they are."""
        node = self._roots.get(namespace)
        length = unlocked = 0
        while node is not None:
            child, common = self._step(node, tokens, length)
            if child is None:
                break
            length += common
            if child.locks == 0:
                unlocked += common // self.page_size
            if common < len(child.tokens):
                break
            node = child
        return Peek(length, unlocked)

    def match(self, start: RadixNode, tokens: TokenArray) -> Match:
        """The longest prefix of `tokens` below `start`; splits a node the match ends within.

        Refreshes the access time of every node passed.
        """
        now = next(self._clock)
        node, length = start, 0
        pages: list[PageArray] = []
        while True:
            child, common = self._step(node, tokens, length)
            if child is None:
                break
            if common < len(child.tokens):
                child = self._split(child, common)
            child.last_access = now
            pages.append(child.pages)
            length += common
            node = child
        self._offer(node)
        return Match(node, length, np.concatenate(pages) if pages else NO_PAGES)

    def insert(self, start: RadixNode, tokens: TokenArray, pages: PageArray) -> Match:
        """Adds `tokens` (whole pages) below `start`; the pages past the match become the tree's.

        Returns:
            The match found before, with `node` the one that now ends at the last token. Pages
            of the matched part stay the caller's.
        """
        found = self.match(start, tokens)
        if found.length == len(tokens):
            return found
        leaf = RadixNode(
            found.node,
            # Copies: the caller's arrays are views of growing buffers.
            tokens[found.length :].copy(),
            pages[found.length // self.page_size :].copy(),
            start.namespace,
        )
        leaf.last_access = next(self._clock)
        found.node.children[self._key(leaf.tokens, 0)] = leaf
        self.num_nodes += 1
        self.num_pages += len(leaf.pages)
        self.num_evictable += len(leaf.pages)
        self.version += 1
        self._offer(leaf)
        return found._replace(node=leaf)

    def lock(self, node: RadixNode) -> None:
        """Protects `node` and all above it from eviction."""
        walk: RadixNode | None = node
        while walk is not None:
            if walk.locks == 0:
                self.num_evictable -= len(walk.pages)
            walk.locks += 1
            walk = walk.parent

    def unlock(self, node: RadixNode) -> None:
        """Undoes one `lock` of the same node."""
        walk: RadixNode | None = node
        while walk is not None:
            if walk.locks < 1:
                raise ValueError("unlock of a radix node that is not locked")
            walk.locks -= 1
            if walk.locks == 0:
                self.num_evictable += len(walk.pages)
            walk = walk.parent
        self._offer(node)
        self._drop_if_empty(node)

    def unlocked_by(self, node: RadixNode) -> int:
        """Pages that would become evictable if one lock of `node` went."""
        pages = 0
        walk: RadixNode | None = node
        while walk is not None and walk.locks == 1:
            pages += len(walk.pages)
            walk = walk.parent
        return pages

    def evict(self, num_pages: int) -> Iterator[Evicted]:
        """Removes least recently used leaves until `num_pages` pages went or none is left.

        Whole leaves go, so a few more pages than asked may be freed. Costs
        O(evicted x log candidates).
        """
        gone = 0
        while gone < num_pages and self._lru:
            entry = heapq.heappop(self._lru)
            if not self._is_fresh(entry):
                continue
            leaf = entry[2]
            parent = leaf.parent
            assert parent is not None
            path = leaf.path()
            del parent.children[self._key(leaf.tokens, 0)]
            leaf.parent = None
            self.num_nodes -= 1
            self.num_pages -= len(leaf.pages)
            self.num_evictable -= len(leaf.pages)
            self.version += 1
            gone += len(leaf.pages)
            self._offer(parent)
            self._drop_if_empty(parent)
            yield Evicted(leaf.namespace, path, len(path) - len(leaf.tokens), leaf.pages)

    def nodes(self) -> Iterator[RadixNode]:
        """Every node but the roots, parents first. For checks and snapshots."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(node.children.values())

    def _key(self, tokens: TokenArray, at: int) -> bytes:
        return tokens[at : at + self.page_size].tobytes()

    def _step(self, node: RadixNode, tokens: TokenArray, at: int) -> tuple[RadixNode | None, int]:
        """The child of `node` that continues `tokens[at:]`, and how many tokens agree."""
        if len(tokens) - at < self.page_size:
            return None, 0
        child = node.children.get(self._key(tokens, at))
        if child is None:
            return None, 0
        size = min(len(child.tokens), len(tokens) - at)
        differ = child.tokens[:size] != tokens[at : at + size]
        common = int(differ.argmax()) if differ.any() else size
        return child, common - common % self.page_size

    def _split(self, node: RadixNode, at: int) -> RadixNode:
        """Cuts `node` in two; returns the upper part, `node` stays the lower one.

        Leases that hold `node` hold its end, so they need not know.
        """
        parent = node.parent
        assert parent is not None
        cut = at // self.page_size
        upper = RadixNode(parent, node.tokens[:at], node.pages[:cut], node.namespace)
        upper.locks = node.locks
        upper.last_access = node.last_access
        parent.children[self._key(node.tokens, 0)] = upper
        node.tokens, node.pages = node.tokens[at:], node.pages[cut:]
        node.parent = upper
        upper.children[self._key(node.tokens, 0)] = node
        self.num_nodes += 1
        return upper

    @staticmethod
    def _is_candidate(node: RadixNode) -> bool:
        return node.locks == 0 and not node.children and node.parent is not None

    def _offer(self, node: RadixNode) -> None:
        if not self._is_candidate(node):
            return
        heapq.heappush(self._lru, (node.last_access, next(self._tiebreak), node))
        if len(self._lru) > 64 + 2 * self.num_nodes:
            # Without evictions stale entries pile up; one sweep pays for as many pushes.
            fresh = {id(e[2]): e for e in self._lru if self._is_fresh(e)}
            self._lru = list(fresh.values())
            heapq.heapify(self._lru)

    def _is_fresh(self, entry: tuple[int, int, RadixNode]) -> bool:
        stamp, _, node = entry
        return stamp == node.last_access and self._is_candidate(node)

    def _drop_if_empty(self, node: RadixNode) -> None:
        # Each cache salt is a namespace; an empty root must not outlive its use.
        if node.parent is None and not node.children and node.locks == 0:
            self._roots.pop(node.namespace, None)
