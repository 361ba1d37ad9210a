"""A list of strings as an automaton: their trie, built from their bytes, with equal ends shared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radixray.errors import ConstraintError, GrammarTooComplexError
from radixray.fsm.byte_automaton import DEAD, MAX_DFA_STATES, START, ByteAutomaton

MAX_CHOICES_BYTES = 1_000_000
"""Most bytes of all choices together."""


def choices_automaton(choices: Sequence[str]) -> ByteAutomaton:
    """The minimal automaton whose language is exactly `choices`, in any order, repeats allowed.

    Raises:
        ConstraintError: no choices, more than MAX_CHOICES_BYTES, or more than MAX_DFA_STATES
            states.
    """
    if not choices:
        raise ConstraintError("choices is empty: nothing could be generated", param="choices")
    size = sum(len(choice.encode()) for choice in choices)
    if size > MAX_CHOICES_BYTES:
        raise _too_complex(f"{size} bytes; at most {MAX_CHOICES_BYTES} are allowed")
    children, ends = _trie(choices)
    # A node is made after its parent, so backwards the children are settled first.
    nodes: list[dict[int, int]] = [{}]  # numbered from the end, DEAD as 0
    accepting = [False]
    settled: dict[tuple[bool, tuple[tuple[int, int], ...]], int] = {}
    number = [DEAD] * len(children)
    for node in reversed(range(len(children))):
        edges = {byte: number[child] for byte, child in children[node].items()}
        key = (node in ends, tuple(edges.items()))
        if key not in settled:
            settled[key] = len(nodes)
            nodes.append(edges)
            accepting.append(node in ends)
        number[node] = settled[key]
    if len(nodes) > MAX_DFA_STATES:
        raise _too_complex(f"{len(nodes)} states; at most {MAX_DFA_STATES} are allowed")
    # The root came last. START must be 1, so all but DEAD are numbered the other way round.
    return _automaton(nodes[:1] + nodes[:0:-1], accepting[:1] + accepting[:0:-1])


def _trie(choices: Sequence[str]) -> tuple[list[dict[int, int]], set[int]]:
    """For each node its children by byte, and the nodes where a choice ends; node 0 is the root."""
    children: list[dict[int, int]] = [{}]
    ends: set[int] = set()
    for choice in sorted(set(choices)):  # sorted: equal ends list their edges in equal order
        node = 0
        for byte in choice.encode():
            child = children[node].get(byte)
            if child is None:
                child = children[node][byte] = len(children)
                children.append({})
            node = child
        ends.add(node)
    return children, ends


def _automaton(nodes: list[dict[int, int]], accepting: list[bool]) -> ByteAutomaton:
    """Of nodes in their final order, with edges to nodes numbered backwards."""
    borders = np.zeros(257, dtype=np.bool_)
    for edges in nodes:
        for byte in edges:
            borders[byte] = borders[byte + 1] = True
    borders[0] = False  # the first class is number 0
    byte_class = np.cumsum(borders[:256]).astype(np.uint8)
    transitions = np.full((len(nodes), int(byte_class[-1]) + 1), DEAD, dtype=np.int32)
    for node, edges in enumerate(nodes):
        for byte, target in edges.items():
            transitions[node, byte_class[byte]] = len(nodes) - target
    assert len(nodes) > START
    return ByteAutomaton(transitions, byte_class, np.array(accepting, dtype=np.bool_))


def _too_complex(what: str) -> GrammarTooComplexError:
    return GrammarTooComplexError(f"choices take {what}", param="choices")
