"""A syntax tree as a Thompson automaton over bytes, trimmed to the states that matter."""

from __future__ import annotations

from dataclasses import dataclass

from radixray.errors import ConstraintError, GrammarTooComplexError
from radixray.fsm.regex_parser import Chars, Choice, Concat, Node
from radixray.fsm.utf8 import END, byte_graph

MAX_NFA_STATES = 100_000
"""Most states that the expanded pattern may take; counted before anything is built."""

Edge = tuple[int, int, int]
"""Lowest byte, highest byte, target state."""


@dataclass(frozen=True, slots=True)
class Nfa:
    """States 0 .. len(edges)-1, from each of which `accept` can be reached.

    Attributes:
        edges: by state, the byte edges out of it.
        epsilon: by state, the states reached without a byte.
        start, accept: the two ends.
    """

    edges: list[list[Edge]]
    epsilon: list[list[int]]
    start: int
    accept: int


def build_nfa(node: Node) -> Nfa:
    """The automaton of `node`.

    Raises:
        ConstraintError: the pattern is too big when its repeats are written out, or no string
            matches it.
    """
    size = _size(node)
    if size > MAX_NFA_STATES:
        # An exact count may have thousands of digits.
        count = str(size) if size < 10**12 else "over 10**12"
        raise GrammarTooComplexError(
            f"regex is too big: written out it has {count} states; at most {MAX_NFA_STATES} are "
            "allowed. Lower its repeat counts, or repeat smaller character classes",
            param="regex",
        )
    builder = _Builder()
    start = builder.state()
    accept = builder.add(node, start)
    return _trim(Nfa(builder.edges, builder.epsilon, start, accept))


def _size(node: Node) -> int:
    """An upper bound of the states `_Builder.add` makes."""
    if isinstance(node, Chars):
        return len(byte_graph(node.ranges))
    if isinstance(node, Concat):
        return sum(map(_size, node.parts))
    if isinstance(node, Choice):
        return 1 + sum(map(_size, node.options))
    copies = node.low + 1 if node.high is None else node.high
    return 1 + copies * _size(node.body)


class _Builder:
    """Grows the two edge lists.

    Each `add` builds from a given state and returns the end state. It adds no edge into the state
    it builds from, so several may build from the same one.
    """

    def __init__(self) -> None:
        self.edges: list[list[Edge]] = []
        self.epsilon: list[list[int]] = []

    def state(self) -> int:
        self.edges.append([])
        self.epsilon.append([])
        return len(self.edges) - 1

    def add(self, node: Node, start: int) -> int:
        if isinstance(node, Chars):
            return self._chars(node, start)
        if isinstance(node, Concat):
            for part in node.parts:
                start = self.add(part, start)
            return start
        if isinstance(node, Choice):
            ends = [self.add(option, start) for option in node.options]
            end = self.state()
            for option_end in ends:
                self.epsilon[option_end].append(end)
            return end
        for _ in range(node.low):
            start = self.add(node.body, start)
        if node.high is None:
            # Leads back into a state of its own, never into `start`.
            loop = self.state()
            self.epsilon[start].append(loop)
            self.epsilon[self.add(node.body, loop)].append(loop)
            return loop
        end = self.state()
        for _ in range(node.high - node.low):
            self.epsilon[start].append(end)
            start = self.add(node.body, start)
        self.epsilon[start].append(end)
        return end

    def _chars(self, node: Chars, start: int) -> int:
        graph = byte_graph(node.ranges)
        # Numbered as in the graph; its root is the given start.
        states = [start, *(self.state() for _ in graph[1:])]
        end = self.state()
        for state, edges in zip(states, graph, strict=True):
            self.edges[state].extend(
                (low, high, end if target == END else states[target]) for low, high, target in edges
            )
        return end


def _trim(nfa: Nfa) -> Nfa:
    """Drops edges into states that cannot reach `accept`: no dead end is ever walked into."""
    sources: list[list[int]] = [[] for _ in nfa.edges]
    for state, (edges, epsilon) in enumerate(zip(nfa.edges, nfa.epsilon, strict=True)):
        for target in (*(edge[2] for edge in edges), *epsilon):
            sources[target].append(state)
    alive = {nfa.accept}
    pending = [nfa.accept]
    while pending:
        for source in sources[pending.pop()]:
            if source not in alive:
                alive.add(source)
                pending.append(source)
    if nfa.start not in alive:
        raise ConstraintError("regex matches no string at all", param="regex")
    return Nfa(
        [[edge for edge in edges if edge[2] in alive] for edges in nfa.edges],
        [[target for target in epsilon if target in alive] for epsilon in nfa.epsilon],
        nfa.start,
        nfa.accept,
    )
