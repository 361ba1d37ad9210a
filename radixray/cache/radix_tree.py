"""A radix tree from token ids to KV pages: pure data structure, no tensors, no policy of use.

The idea is RadixAttention's (arXiv 2312.07104, section 3): finished and running requests leave
their KV cache in a tree keyed by tokens, and a new request takes the longest prefix it finds.

Everything is aligned to pages: an edge holds a whole number of pages, and two edges of one node
differ within their first page. Namespaces are separate trees: they share no page.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from radixray.cache import watches
from radixray.cache.eviction import EvictionQueue
from radixray.cache.radix_node import (
    NO_PAGES,
    NO_TOKENS,
    PageArray,
    RadixNode,
    TokenArray,
    follow,
    page_key,
)
from radixray.cache.watches import Watch


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
    """Radix tree over token ids with locked nodes and eviction of leaves by policy.

    Attributes:
        num_nodes: nodes, roots not counted.
        num_pages: pages the tree owns.
        num_evictable: of these, pages of unlocked nodes.
        version: changes whenever what a match would find may have changed.

    Raises:
        InvalidRequestError: `policy` is unknown; param ``eviction_policy``.
    """

    def __init__(self, page_size: int = 1, policy: str = "lru") -> None:
        self.page_size = page_size
        self.num_nodes = 0
        self.num_pages = 0
        self.num_evictable = 0
        self.version = 0
        self._roots: dict[str, RadixNode] = {}
        self._now = 0
        self._queue = EvictionQueue(policy)

    @property
    def policy(self) -> str:
        """Name of the eviction policy."""
        return self._queue.policy

    def now(self) -> int:
        """Nanoseconds of the monotonic clock, but later than at every call before."""
        self._now = max(self._now + 1, time.monotonic_ns())
        return self._now

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
            child, common = follow(node, tokens, length, self.page_size)
            if child is None:
                break
            length += common
            if child.locks == 0:
                unlocked += common // self.page_size
            if common < len(child.tokens):
                break
            node = child
        return Peek(length, unlocked)

    def watch(self, namespace: str, tokens: TokenArray) -> Watch:
        """A `peek` that stays current; to be closed. Costs as much as one peek.

        Args:
            tokens: kept, not copied.
        """
        return Watch(self, self.root(namespace), tokens)

    def match(self, start: RadixNode, tokens: TokenArray, priority: int = 0) -> Match:
        """The longest prefix of `tokens` below `start`; splits a node the match ends within.

        Every node passed counts a hit and is raised to `priority`.
        """
        now = self.now()
        node, length = start, 0
        pages: list[PageArray] = []
        while True:
            child, common = follow(node, tokens, length, self.page_size)
            if child is None:
                break
            if common < len(child.tokens):
                child = self._split(child, common)
            child.last_access = now
            child.hits += 1
            child.priority = max(child.priority, priority)
            pages.append(child.pages)
            length += common
            node = child
        # Only the last node can be a leaf: the others' keys are of no interest yet.
        self._queue.offer(node)
        return Match(node, length, np.concatenate(pages) if pages else NO_PAGES)

    def insert(
        self, start: RadixNode, tokens: TokenArray, pages: PageArray, priority: int = 0
    ) -> Match:
        """Adds `tokens` (whole pages) below `start`; the pages past the match become the tree's.

        Returns:
            The match found before, with `node` the one that now ends at the last token. Pages
            of the matched part stay the caller's.
        """
        found = self.match(start, tokens, priority)
        if found.length == len(tokens):
            return found
        leaf = RadixNode(
            found.node,
            # Copies: the caller's arrays are views of growing buffers.
            tokens[found.length :].copy(),
            pages[found.length // self.page_size :].copy(),
            start.namespace,
            created=self.now(),
            priority=priority,
        )
        found.node.children[page_key(leaf.tokens, 0, self.page_size)] = leaf
        self.num_nodes += 1
        self.num_pages += len(leaf.pages)
        self.num_evictable += len(leaf.pages)
        self.version += 1
        self._queue.offer(leaf)
        watches.leaf_attached(leaf, self.page_size)
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
        """Undoes one `lock` of the same node. Its path was in use until now.

        Raises:
            ValueError: it is not locked.
        """
        now = self.now()
        walk: RadixNode | None = node
        while walk is not None:
            if walk.locks < 1:
                raise ValueError("unlock of a radix node that is not locked")
            walk.locks -= 1
            walk.last_access = now
            if walk.locks == 0:
                self.num_evictable += len(walk.pages)
            walk = walk.parent
        self._queue.offer(node)
        self.drop_if_empty(node)

    def unlocked_by(self, node: RadixNode) -> int:
        """Pages that would become evictable if one lock of `node` went."""
        pages = 0
        walk: RadixNode | None = node
        while walk is not None and walk.locks == 1:
            pages += len(walk.pages)
            walk = walk.parent
        return pages

    def evict(self, num_pages: int) -> Iterator[Evicted]:
        """Removes leaves, as the policy orders, until `num_pages` went or none is left.

        Whole leaves go, so a few more pages than asked may be freed. Costs
        O(evicted x log candidates).
        """
        gone = 0
        while gone < num_pages and (leaf := self._queue.pop()) is not None:
            gone += len(leaf.pages)
            yield self.remove(leaf)

    def remove(self, leaf: RadixNode) -> Evicted:
        """Takes one leaf out; its pages become the caller's."""
        parent = leaf.parent
        assert parent is not None and not leaf.children
        path = leaf.path()
        del parent.children[page_key(leaf.tokens, 0, self.page_size)]
        leaf.parent = None
        self.num_nodes -= 1
        self.num_pages -= len(leaf.pages)
        self.num_evictable -= len(leaf.pages) if leaf.locks == 0 else 0
        self.version += 1
        watches.leaf_removed(leaf, parent, self.page_size)
        self._queue.offer(parent)
        self.drop_if_empty(parent)
        return Evicted(leaf.namespace, path, len(path) - len(leaf.tokens), leaf.pages)

    def nodes(self) -> Iterator[RadixNode]:
        """Every node but the roots, parents first. For checks and snapshots."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(node.children.values())

    def roots(self) -> list[RadixNode]:
        """The root of each namespace in use."""
        return list(self._roots.values())

    def recount(self) -> None:
        """Rebuilds all counters and the eviction queue from the nodes and their locks."""
        self.num_nodes = self.num_pages = self.num_evictable = 0
        self._queue.clear()
        for node in self.nodes():
            self.num_nodes += 1
            self.num_pages += len(node.pages)
            self.num_evictable += len(node.pages) if node.locks == 0 else 0
            self._queue.offer(node)
        for root in self.roots():
            self.drop_if_empty(root)

    def drop_if_empty(self, node: RadixNode) -> None:
        """Forgets `node` if it is the root of a namespace no longer in use."""
        # Each cache salt is a namespace; an empty root must not outlive its use.
        if node.parent is None and not node.children and not node.locks and not node.watches:
            self._roots.pop(node.namespace, None)

    def _split(self, node: RadixNode, at: int) -> RadixNode:
        """Cuts `node` in two; returns the upper part, `node` stays the lower one.

        Leases that hold `node` hold its end, so they need not know.
        """
        parent = node.parent
        assert parent is not None
        cut = at // self.page_size
        upper = RadixNode(parent, node.tokens[:at], node.pages[:cut], node.namespace)
        upper.locks, upper.pins = node.locks, node.pins
        upper.created, upper.last_access = node.created, node.last_access
        upper.hits, upper.priority = node.hits, node.priority
        parent.children[page_key(node.tokens, 0, self.page_size)] = upper
        node.tokens, node.pages = node.tokens[at:], node.pages[cut:]
        node.parent = upper
        upper.children[page_key(node.tokens, 0, self.page_size)] = node
        self.num_nodes += 1
        watches.node_split(upper, self.page_size)
        return upper
