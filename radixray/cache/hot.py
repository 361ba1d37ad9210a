"""Which prefixes of a cache are asked for most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixray.cache.radix_node import RadixNode

if TYPE_CHECKING:
    from radixray.cache.prefix_cache import PrefixCache


def hot_prefixes(cache: PrefixCache, max_tokens: int) -> list[tuple[str, bytes, int]]:
    """Namespace, int32 tokens and hits of the prefixes with most hits, the hottest first.

    Args:
        max_tokens: of all of them together; what they share counts once.
    """
    nodes = sorted((n for n in cache.tree.nodes() if n.hits), key=lambda n: n.hits, reverse=True)
    chosen: dict[int, RadixNode] = {}
    inner: set[int] = set()
    for node in nodes:
        above: list[RadixNode] = []
        each: RadixNode | None = node
        while each is not None and each.parent is not None and id(each) not in chosen:
            above.append(each)
            each = each.parent
        tokens = sum(len(n.tokens) for n in above)
        if not above or tokens > max_tokens:
            continue
        max_tokens -= tokens
        chosen.update((id(n), n) for n in above)
        inner.update(id(n.parent) for n in above)
    ends = [n for n in chosen.values() if id(n) not in inner]
    ends.sort(key=lambda n: n.hits, reverse=True)
    return [(n.namespace, n.path().tobytes(), n.hits) for n in ends]
