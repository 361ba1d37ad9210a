"""The radix tree as data for people."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from radixray.reports import CacheNode, CacheTree

if TYPE_CHECKING:
    from radixray.cache.prefix_cache import PrefixCache

HEAD_TOKENS = 16
"""Of each node, so many token ids are shown."""


def view(cache: PrefixCache, limit: int) -> CacheTree:
    """The `limit` nodes with most pages at or below them, parents before children."""
    nodes = list(cache.tree.nodes())
    below = {id(node): len(node.pages) for node in nodes}
    start: dict[int, int] = {}
    for node in nodes:
        above = node.parent
        start[id(node)] = (
            0 if above is None or above.parent is None else start[id(above)] + len(above.tokens)
        )
    for node in reversed(nodes):
        if id(node.parent) in below:
            below[id(node.parent)] += below[id(node)]
    # A parent has more below it than its children and comes first among equals, so what is
    # shown hangs together.
    shown = heapq.nlargest(limit, nodes, key=lambda node: below[id(node)])
    holders: dict[int, list[str]] = {}
    for lease in cache.leases.values():
        holders.setdefault(id(lease.node), []).append(lease.owner or f"lease {lease.id}")
    for pin in cache.pins.pins():
        holders.setdefault(id(pin.node), []).append(f"pin of {pin.owner}")
    number = {id(node): index for index, node in enumerate(shown)}
    now = cache.tree.now()
    return CacheTree(
        nodes=[
            CacheNode(
                id=number[id(node)],
                parent=number.get(id(node.parent)),
                namespace=node.namespace,
                start=start[id(node)],
                length=len(node.tokens),
                pages=len(node.pages),
                pages_below=below[id(node)] - len(node.pages),
                hits=node.hits,
                age_s=(now - node.created) / 1e9,
                idle_s=(now - node.last_access) / 1e9,
                priority=node.priority,
                locks=node.locks,
                pins=node.pins,
                holders=holders.get(id(node), []),
                head=node.tokens[:HEAD_TOKENS].tolist(),
            )
            for node in shown
        ],
        page_size=cache.page_size,
        policy=cache.tree.policy,
        total_nodes=len(nodes),
        pages_total=cache.pool.num_pages,
        pages_free=cache.pool.num_free,
        pages_tree=cache.tree.num_pages,
        pages_evictable=cache.tree.num_evictable,
        pages_pinned=cache.pins.pages,
        pages_leased=cache.leased_pages,
    )
