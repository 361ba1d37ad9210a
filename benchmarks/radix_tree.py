"""What the radix tree's operations cost as it grows, beside the straightforward design.

    python benchmarks/radix_tree.py

The straightforward design walks the whole tree for its leaves on every eviction and matches every
waiting request again after every change. Ours keeps a queue of candidates and standing matches.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Iterable

import numpy as np
from rich.console import Console
from rich.table import Table

from radixray.cache.radix_node import RadixNode, TokenArray
from radixray.cache.radix_tree import RadixTree

SIZES = (1_000, 10_000, 100_000, 1_000_000)
NODE_TOKENS = 10
FAN_OUT = 8
REPEATS = 200
WATCHES = 10_000


class Workload:
    """A tree of conversations: every node has NODE_TOKENS tokens and up to FAN_OUT children."""

    def __init__(self, num_tokens: int) -> None:
        self._random = random.Random(num_tokens)
        self.tree = RadixTree()
        self.paths: list[TokenArray] = [np.empty(0, np.int32)]
        self._fresh_token = 0
        count = num_tokens // NODE_TOKENS
        for index in range(count):
            # Breadth first: depth grows with the logarithm of the size, as conversations do.
            self.add(self.paths[index // FAN_OUT])
        self._random.shuffle(self.paths)

    def fresh_path(self, parent: TokenArray) -> TokenArray:
        """Tokens nobody has, below `parent`."""
        self._fresh_token += 1
        return np.concatenate([parent, np.full(NODE_TOKENS, self._fresh_token, np.int32)])

    def add(self, parent: TokenArray) -> None:
        """Caches one more turn of the conversation `parent`."""
        path = self.fresh_path(parent)
        self.insert(path)
        self.paths.append(path)

    def insert(self, path: TokenArray) -> None:
        """Inserts a path; its pages do not matter here."""
        self.tree.insert(self.tree.root(""), path, np.zeros(len(path), np.int32))

    def some_paths(self) -> list[TokenArray]:
        """Cached paths, chosen by chance."""
        return self._random.choices(self.paths[1:], k=REPEATS)


def evict_by_walking(tree: RadixTree) -> None:
    """Evicts one leaf as the straightforward design does."""
    leaves: list[tuple[int, int, RadixNode]] = [
        (node.last_access, id(node), node) for node in tree.nodes() if node.is_evictable()
    ]
    heapq.heapify(leaves)
    tree.remove(heapq.heappop(leaves)[2])


def evict_from_queue(tree: RadixTree) -> None:
    """Evicts one leaf as ours does."""
    next(tree.evict(1))


def median_us(operation: Callable[..., object], arguments: Iterable[tuple[object, ...]]) -> float:
    """Median microseconds of a call."""
    times = []
    for argument in arguments:
        start = time.perf_counter_ns()
        operation(*argument)
        times.append(time.perf_counter_ns() - start)
    return float(np.median(times)) / 1000


def measure(num_tokens: int) -> list[str]:
    """One row: sizes, then microseconds of each operation."""
    workload = Workload(num_tokens)
    tree = workload.tree
    nodes = tree.num_nodes
    peek = median_us(tree.peek, [("", path) for path in workload.some_paths()])
    root = tree.root("")
    match = median_us(tree.match, [(root, path) for path in workload.some_paths()])
    new = [(workload.fresh_path(path),) for path in workload.some_paths()]
    insert = median_us(workload.insert, new)
    rounds = min(REPEATS, nodes // 4)
    evict = median_us(evict_from_queue, [(tree,)] * rounds)
    walking = median_us(evict_by_walking, [(tree,)] * min(rounds, 2_000_000 // num_tokens + 3))
    levels = np.median([len(path) // NODE_TOKENS for path in workload.paths])
    return [
        f"{num_tokens:,}",
        f"{nodes:,}",
        f"{levels:.0f}",
        *(f"{us:,.1f}" for us in (peek, match, insert, evict, walking)),
        f"{walking / evict:,.0f} x",
    ]


def measure_watches() -> list[tuple[str, float]]:
    """Microseconds that WATCHES waiting requests cost."""
    workload = Workload(100_000)
    tree = workload.tree
    waiting = [
        workload.fresh_path(path) for path in random.Random(1).choices(workload.paths, k=WATCHES)
    ]
    alone = [(workload.fresh_path(path),) for path in workload.some_paths()]
    rows = [("insert, nobody watches", median_us(workload.insert, alone))]
    start = time.perf_counter_ns()
    watches = [tree.watch("", tokens) for tokens in waiting]
    opened = (time.perf_counter_ns() - start) / 1000 / WATCHES
    unrelated = [(workload.fresh_path(path),) for path in workload.some_paths()]
    rows.append(
        (f"insert that concerns none of {WATCHES:,}", median_us(workload.insert, unrelated))
    )
    related = [(path,) for path in waiting[:REPEATS]]
    rows.append((f"insert that one of {WATCHES:,} waits for", median_us(workload.insert, related)))
    rows.append(("open one watch", opened))

    def read_all() -> int:
        return sum(watch.length for watch in watches)

    def peek_all() -> int:
        return sum(tree.peek("", tokens).length for tokens in waiting)

    assert read_all() == peek_all()
    rows.append((f"read {WATCHES:,} lengths", median_us(read_all, [()] * 5)))
    rows.append((f"{WATCHES:,} peeks instead, after each change", median_us(peek_all, [()] * 3)))
    return rows


def main() -> None:
    """Prints both tables."""
    console = Console(width=100)
    table = Table(title="Median microseconds of one operation")
    for column in (
        "cached tokens",
        "nodes",
        "levels",
        "peek",
        "match",
        "insert",
        "evict",
        "evict, walking",
        "ratio",
    ):
        table.add_column(column, justify="right")
    for size in SIZES:
        table.add_row(*measure(size))
    console.print(table)
    table = Table(title=f"{WATCHES:,} standing matches on a tree of 10,000 nodes")
    table.add_column("operation")
    table.add_column("microseconds", justify="right")
    for name, us in measure_watches():
        table.add_row(name, f"{us:,.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
