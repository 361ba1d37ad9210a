"""The DFA over bytes that a constraint runs on, by subset construction.

Every state except `DEAD` lies on a path to acceptance, so a state with one byte going out forces
that byte: the compressed edge of the SGLang paper (arXiv 2312.07104, section 4), at byte level.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from radixray.errors import GrammarTooComplexError
from radixray.fsm.nfa import Nfa

MAX_DFA_STATES = 50_000
"""Most states of one automaton."""

MAX_WORK = 8_000_000
"""Most NFA states touched while one automaton is built: bounds the time to a few seconds."""

DEAD = 0
"""The state from which nothing is accepted."""

START = 1
"""The state before the first byte."""


@dataclass(frozen=True)
class ByteAutomaton:
    """A deterministic automaton over bytes, immutable.

    Bytes that no state tells apart share a byte class, which keeps the table narrow.

    Attributes:
        transitions: int32 [states, byte classes], the next state; row `DEAD` leads to itself.
        byte_class: uint8 [256], the column of each byte.
        accepting: bool [states].
    """

    transitions: NDArray[np.int32]
    byte_class: NDArray[np.uint8]
    accepting: NDArray[np.bool_]

    def __len__(self) -> int:
        """The number of states, `DEAD` included."""
        return len(self.accepting)

    def walk(self, state: int, data: bytes) -> int:
        """The state after `data` from `state`; DEAD as soon as nothing can be accepted."""
        for byte in data:
            state = int(self.transitions[state, self.byte_class[byte]])
        return state

    def accepts(self, data: bytes) -> bool:
        """Whether `data` as a whole is a member of the language."""
        return bool(self.accepting[self.walk(START, data)])

    def forced(self, state: int) -> bytes:
        """The bytes every continuation of `state` begins with.

        Ends at a state with a choice: between bytes, or between stopping and going on. May end
        inside a UTF-8 character.
        """
        data = bytearray()
        while (byte := int(self._only_byte[state])) >= 0:
            data.append(byte)
            state = int(self.transitions[state, self.byte_class[byte]])
        return bytes(data)

    @cached_property
    def fan_out(self) -> NDArray[np.intp]:
        """intp [states]: how many bytes lead on from each state."""
        sizes = np.bincount(self.byte_class, minlength=self.transitions.shape[1])
        return (self.transitions != DEAD) @ sizes

    @cached_property
    def _only_byte(self) -> NDArray[np.int16]:
        """int16 [states]: the one byte that must follow, or -1."""
        # With one byte going out its class has one member, so the class's first byte is that byte.
        first_byte = np.searchsorted(self.byte_class, np.arange(self.transitions.shape[1]))
        byte = first_byte[(self.transitions != DEAD).argmax(axis=1)]
        return np.where((self.fan_out == 1) & ~self.accepting, byte, -1).astype(np.int16)


def determinise(nfa: Nfa) -> ByteAutomaton:
    """The DFA of `nfa`.

    Raises:
        GrammarTooComplexError: more than MAX_DFA_STATES states or MAX_WORK steps would be needed.
    """
    byte_class = _byte_classes(nfa)
    width = int(byte_class[-1]) + 1
    columns = byte_class.tolist()
    closures: dict[int, frozenset[int]] = {}
    work = 0

    def spend(steps: int) -> None:
        nonlocal work
        work += steps
        if work > MAX_WORK:
            raise _too_complex(f"{MAX_WORK} steps to build")

    def closure(state: int) -> frozenset[int]:
        """What `state` reaches without a byte; only states that matter later are kept."""
        known = closures.get(state)
        if known is None:
            seen = {state}
            pending = [state]
            while pending:
                for target in nfa.epsilon[pending.pop()]:
                    if target not in seen:
                        seen.add(target)
                        pending.append(target)
            spend(len(seen))
            known = frozenset(s for s in seen if nfa.edges[s] or s == nfa.accept)
            closures[state] = known
        return known

    nothing: frozenset[int] = frozenset()
    ids = {nothing: DEAD, closure(nfa.start): START}
    subsets = list(ids)
    rows: list[list[int]] = []
    for subset in subsets:  # grows while it is read
        row = [nothing] * width
        for state in subset:
            for low, high, target in nfa.edges[state]:
                reached = closure(target)
                first, last = columns[low], columns[high]
                spend(last - first + len(reached))
                for column in range(first, last + 1):
                    row[column] = row[column] | reached if row[column] else reached
        ids_row: list[int] = []
        for reached in row:
            number = ids.get(reached)
            if number is None:
                number = ids[reached] = len(subsets)
                subsets.append(reached)
            ids_row.append(number)
        rows.append(ids_row)
        if len(subsets) > MAX_DFA_STATES:
            raise _too_complex(f"{MAX_DFA_STATES} states")
    return ByteAutomaton(
        transitions=np.array(rows, dtype=np.int32),
        byte_class=byte_class,
        accepting=np.array([nfa.accept in subset for subset in subsets], dtype=np.bool_),
    )


def _too_complex(limit: str) -> GrammarTooComplexError:
    return GrammarTooComplexError(
        f"regex is too complex: its automaton needs more than {limit}. Lower its repeat counts, or "
        "let the next character decide which part of the pattern it belongs to",
        param="regex",
    )


def _byte_classes(nfa: Nfa) -> NDArray[np.uint8]:
    """uint8 [256]: intervals of bytes that no edge separates, numbered upwards."""
    starts = np.zeros(257, dtype=np.bool_)
    for edges in nfa.edges:
        for low, high, _ in edges:
            starts[low] = starts[high + 1] = True
    starts[0] = False  # the first class is number 0
    return np.cumsum(starts[:256]).astype(np.uint8)
