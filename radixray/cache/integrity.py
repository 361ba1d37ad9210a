"""Checking the ledger against those who use pages, and making it right again.

Pages are claimed by the free list, by tree nodes and by leases (their private part). When all is
well each page has one claimant, and the ledger names it. Where that is broken, `repair` believes
nobody more than the facts allow:

    claimed by nobody                     free
    claimed by one, another in the ledger the claimant's
    by a lease and by the tree            the nodes go; the lease keeps it if the ledger says so
    by a lease and by the free list       the lease keeps it if the ledger says so
    by the tree and by the free list      the node keeps it if the ledger says so
    by several nodes, or several leases   none keeps it

A node that goes takes all below it along. A lease that loses a page, or whose shared part loses
one, is damaged: all its pages go, and its holder has to compute again from the start. Nothing that
may hold another's KV is ever read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from radixray.cache.page_pool import FREE, TREE
from radixray.cache.radix_node import NO_PAGES, PageArray, RadixNode

if TYPE_CHECKING:
    from radixray.cache.lease import Lease
    from radixray.cache.prefix_cache import PrefixCache


@dataclass(slots=True)
class Repair:
    """What a repair found and did.

    Attributes:
        violations: as `PrefixCache.check` words them; empty if all was well.
        damaged: leases that lost their pages; whoever holds them releases them and starts over.
        dropped_tokens: cached tokens that went.
        dropped_pins: pins that ended because their prefix went.
    """

    violations: list[str] = field(default_factory=list)
    damaged: list[Lease] = field(default_factory=list)
    dropped_tokens: int = 0
    dropped_pins: int = 0


class _Claims:
    """Who claims which page.

    Attributes:
        nodes: of the tree, parents first.
        by_free, by_tree, by_leases, total: int64 [num_pages] how many claim each page.
        lease_of: int32 [num_pages] id of a lease that claims it, else FREE.
        outside: claims to pages that do not exist.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self.num_pages = cache.pool.num_pages
        self.outside = 0
        self.nodes = list(cache.tree.nodes())
        self.by_free = self._count([cache.pool.free_pages()])
        self.by_tree = self._count([node.pages for node in self.nodes])
        self.by_leases = np.zeros(self.num_pages, np.int64)
        self.lease_of = np.full(self.num_pages, FREE, np.int32)
        for lease in cache.leases.values():
            private = self.inside(lease.private_pages())
            self.outside += lease.num_pages - lease.num_shared - len(private)
            np.add.at(self.by_leases, private, 1)
            self.lease_of[private] = lease.id
        self.total = self.by_free + self.by_tree + self.by_leases

    def inside(self, pages: PageArray) -> PageArray:
        """Of `pages`, those that exist."""
        return pages[(pages >= 0) & (pages < self.num_pages)]

    def expected_owner(self) -> NDArray[np.int32]:
        """What the ledger should say where there is one claimant."""
        return np.where(self.by_tree > 0, np.int32(TREE), self.lease_of)

    def _count(self, parts: list[PageArray]) -> NDArray[np.int64]:
        pages = np.concatenate(parts) if parts else NO_PAGES
        inside = self.inside(pages)
        self.outside += len(pages) - len(inside)
        return np.bincount(inside, minlength=self.num_pages)


def check(cache: PrefixCache) -> list[str]:
    """Every violation, naming page, owner, claimants and history; empty when all is well."""
    claims = _Claims(cache)
    wrong = (claims.total != 1) | (claims.expected_owner() != cache.pool.owner)
    violations = _describe_pages(cache, claims, wrong) if wrong.any() else []
    if claims.outside:
        violations += [
            f"{_name(holder)}: holds pages that do not exist: {pages.tolist()}"
            for holder, pages in _page_lists(cache, claims.nodes)
            if len(claims.inside(pages)) < len(pages)
        ]
    violations += [
        f"{_lease_name(lease)}: reads other pages than the tree has for its prefix"
        for lease in cache.leases.values()
        if not np.array_equal(lease.shared_pages(), lease.node.path_pages())
    ]
    return violations + _check_books(cache, claims.nodes)


def repair(cache: PrefixCache) -> Repair:
    """Brings ledger, tree, locks and leases in line, at the cost of what may be damaged."""
    violations = check(cache)
    if not violations:
        return Repair()
    done = Repair(violations)
    claims = _Claims(cache)
    lost_nodes, done.damaged = _damage(cache, claims)
    for lease in done.damaged:
        lease.void(cache.tree.root(lease.node.namespace))
    for pin in cache.pins.pins():
        if id(pin.node) in lost_nodes:
            cache.pins.discard(pin.id)
            done.dropped_pins += 1
    for node in reversed(claims.nodes):  # children before parents
        if id(node) in lost_nodes:
            done.dropped_tokens += len(node.tokens)
            cache.record_evicted(cache.tree.remove(node))
    _recount(cache)
    claims = _Claims(cache)
    cache.pool.rebuild(claims.expected_owner())
    return done


def _damage(cache: PrefixCache, claims: _Claims) -> tuple[set[int], list[Lease]]:
    """Ids of the node objects that must go, and the leases that read or hold what is damaged."""
    owner, several = cache.pool.owner, claims.total > 1
    lost_to_tree = several & (
        (claims.by_tree > 1) | (claims.by_leases > 0) | ((claims.by_tree > 0) & (owner != TREE))
    )
    lost_to_leases = several & ((claims.by_leases > 1) | (owner != claims.lease_of))
    lost_nodes: set[int] = set()
    suspects = claims.nodes if lost_to_tree.any() or claims.outside else []
    for node in suspects:  # parents before children
        if id(node.parent) in lost_nodes or _is_hit(claims, node.pages, lost_to_tree):
            lost_nodes.add(id(node))
    damaged = [
        lease
        for lease in cache.leases.values()
        if id(lease.node) in lost_nodes
        or _is_hit(claims, lease.private_pages(), lost_to_leases)
        or not np.array_equal(lease.shared_pages(), lease.node.path_pages())
    ]
    return lost_nodes, damaged


def _is_hit(claims: _Claims, pages: PageArray, lost: NDArray[np.bool_]) -> bool:
    inside = claims.inside(pages)
    return len(inside) < len(pages) or bool(lost[inside].any())


def _recount(cache: PrefixCache) -> None:
    """Locks, pins and all counters of the tree, anew from leases and pins."""
    for node in [*cache.tree.roots(), *cache.tree.nodes()]:
        node.locks = node.pins = 0
    for lease in cache.leases.values():
        for node in _upwards(lease.node):
            node.locks += 1
    cache.pins.pages = 0
    for pin in cache.pins.pins():
        for node in _upwards(pin.node):
            node.locks += 1
            cache.pins.pages += len(node.pages) if node.pins == 0 else 0
            node.pins += 1
    cache.tree.recount()


def _check_books(cache: PrefixCache, nodes: list[RadixNode]) -> list[str]:
    """Locks and counters against a recount."""
    locks: dict[int, int] = {}
    pins: dict[int, int] = {}
    for holder in [lease.node for lease in cache.leases.values()]:
        for node in _upwards(holder):
            locks[id(node)] = locks.get(id(node), 0) + 1
    for pin in cache.pins.pins():
        for node in _upwards(pin.node):
            locks[id(node)] = locks.get(id(node), 0) + 1
            pins[id(node)] = pins.get(id(node), 0) + 1
    violations = [
        f"{_node_name(node)}: {node.locks} locks, {node.pins} of them pins, on the books; "
        f"{locks.get(id(node), 0)} and {pins.get(id(node), 0)} counted"
        for node in nodes
        if node.locks != locks.get(id(node), 0) or node.pins != pins.get(id(node), 0)
    ]
    pages = evictable = pinned = 0
    for node in nodes:
        size = len(node.pages)
        pages += size
        evictable += size if node.locks == 0 else 0
        pinned += size if node.pins else 0
    for name, counted, kept in (
        ("tree nodes", len(nodes), cache.tree.num_nodes),
        ("tree pages", pages, cache.tree.num_pages),
        ("evictable pages", evictable, cache.tree.num_evictable),
        ("pinned pages", pinned, cache.pins.pages),
    ):
        if counted != kept:
            violations.append(f"{name}: {counted} counted, {kept} on the books")
    return violations


def _describe_pages(cache: PrefixCache, claims: _Claims, wrong: NDArray[np.bool_]) -> list[str]:
    claimants: dict[int, list[str]] = {int(page): [] for page in np.flatnonzero(wrong)}
    for holder, pages in _page_lists(cache, claims.nodes):
        inside = claims.inside(pages)
        for page in inside[wrong[inside]]:
            claimants[int(page)].append(_name(holder))
    return [
        f"page {page}: the ledger says {_owner_name(cache, int(cache.pool.owner[page]))}; "
        f"claimed by {' and '.join(who) or 'nobody'}; "
        f"its owners were {[_owner_name(cache, o) for o in cache.pool.history(page)]}"
        for page, who in claimants.items()
    ]


def _page_lists(
    cache: PrefixCache, nodes: list[RadixNode]
) -> list[tuple[RadixNode | Lease | None, PageArray]]:
    """Every claimant and its pages; None is the free list."""
    return [
        (None, cache.pool.free_pages()),
        *((node, node.pages) for node in nodes),
        *((lease, lease.private_pages()) for lease in cache.leases.values()),
    ]


def _upwards(node: RadixNode) -> list[RadixNode]:
    """The node and all above it, the root included."""
    found = [node]
    while (parent := found[-1].parent) is not None:
        found.append(parent)
    return found


def _owner_name(cache: PrefixCache, owner: int) -> str:
    if owner in (FREE, TREE):
        return "free" if owner == FREE else "the tree"
    lease = cache.leases.get(owner)
    return f"lease {owner}, which is no more" if lease is None else _lease_name(lease)


def _name(holder: RadixNode | Lease | None) -> str:
    if holder is None:
        return "the free list"
    return _node_name(holder) if isinstance(holder, RadixNode) else _lease_name(holder)


def _lease_name(lease: Lease) -> str:
    return f"lease {lease.id}" + (f" of {lease.owner}" if lease.owner else "")


def _node_name(node: RadixNode) -> str:
    end = sum(len(above.tokens) for above in _upwards(node))
    space = f" of namespace {node.namespace!r}" if node.namespace else ""
    return f"the tree's tokens {end - len(node.tokens)} to {end} [{node.tokens[0]} ...]{space}"
