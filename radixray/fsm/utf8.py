"""UTF-8 spellings of a set of code points, as a small shared tree of byte ranges.

A big class such as `\\w` has hundreds of ranges, but their spellings end alike; equal subtrees are
one object here, and `byte_graph` keeps them one state, so the automaton of `\\w` stays small.
"""

from __future__ import annotations

from functools import lru_cache

from radixray.fsm.char_classes import Ranges

ByteTree = tuple[tuple[int, int, "ByteTree"], ...]
"""Edges (lowest byte, highest byte, what follows); the empty tree is the end of a character."""

ByteGraph = tuple[tuple[tuple[int, int, int], ...], ...]
"""For each node its edges (lowest byte, highest byte, target node); the root is node 0."""

END = -1
"""The target of a character's last byte in a ByteGraph."""

_CONTINUATION = 0x80
# (first code point, last code point, continuation bytes, marker bits of the lead byte)
_LENGTHS = (
    (0x0, 0x7F, 0, 0x00),
    (0x80, 0x7FF, 1, 0xC0),
    (0x800, 0xFFFF, 2, 0xE0),
    (0x10000, 0x10FFFF, 3, 0xF0),
)


@lru_cache(maxsize=1024)
def byte_graph(ranges: Ranges) -> ByteGraph:
    """The spellings of `ranges` as a minimal acyclic automaton over bytes."""
    root: ByteTree = ()
    for first, last, digits, marker in _LENGTHS:
        part = tuple(
            (max(low, first), min(high, last))
            for low, high in ranges
            if low <= last and high >= first
        )
        root += _spell(part, digits, marker)
    nodes: dict[ByteTree, int] = {root: 0}
    pending = [root]
    graph: list[tuple[tuple[int, int, int], ...]] = []
    for tree in pending:  # grows while it is read
        edges: list[tuple[int, int, int]] = []
        for low, high, child in tree:
            if not child:
                edges.append((low, high, END))
                continue
            if child not in nodes:
                nodes[child] = len(nodes)
                pending.append(child)
            edges.append((low, high, nodes[child]))
        graph.append(tuple(edges))
    return tuple(graph)


@lru_cache(maxsize=4096)
def _spell(ranges: Ranges, digits: int, marker: int) -> ByteTree:
    """The tree of numbers in `ranges`, written as one byte and `digits` base-64 digits after it.

    The first byte is the leading digit plus `marker`. Recursion shares equal subtrees through the
    cache, since a subtree depends only on the numbers' trailing digits.
    """
    size = 64**digits
    cells: dict[int, list[tuple[int, int]]] = {}
    for low, high in ranges:
        for cell in range(low // size, high // size + 1):
            base = cell * size
            inside = (max(low - base, 0), min(high - base, size - 1))
            cells.setdefault(cell, []).append(inside)
    edges: list[tuple[int, int, ByteTree]] = []
    for cell, parts in cells.items():
        child = _spell(tuple(parts), digits - 1, _CONTINUATION) if digits else ()
        byte = cell + marker
        if edges and edges[-1][1] == byte - 1 and edges[-1][2] == child:
            edges[-1] = (edges[-1][0], byte, child)
        else:
            edges.append((byte, byte, child))
    return tuple(edges)


def whole_characters(data: bytes) -> bytes:
    """`data` without the beginning of a character at its end that more bytes would complete."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # the last character's first byte
            needed = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if needed > back else data
    return data
