"""A constraint that begins once the output has a marker, as after a model's ``</think>``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from radixray.errors import ConstraintError
from radixray.fsm.base_matcher import BaseMatcher
from radixray.fsm.byte_automaton import DEAD, START, ByteAutomaton
from radixray.fsm.matcher import CompiledConstraint, Matcher
from radixray.fsm.regex_constraint import RegexConstraint
from radixray.fsm.vocabulary import TokenVocabulary


class StartAfter:
    """Any text up to the first marker, then what another constraint allows."""

    def __init__(
        self, marker: str, constraint: CompiledConstraint, vocabulary: TokenVocabulary
    ) -> None:
        """Raises ConstraintError if the vocabulary cannot spell the marker."""
        self._vocabulary = vocabulary
        self._marker = RegexConstraint(
            marker_automaton(marker.encode()), vocabulary, param="start_after"
        )
        self._constraint = constraint
        self.nbytes = self._marker.nbytes + constraint.nbytes

    def matcher(self) -> StartAfterMatcher:
        """A new matcher, at the start of an output."""
        return StartAfterMatcher(
            self._marker.matcher(), self._constraint.matcher(), self._vocabulary
        )


class StartAfterMatcher(BaseMatcher):
    """A position in a StartAfter.

    A token that has the marker's end inside is not allowed: what the constraint is about begins
    with a token.
    """

    def __init__(self, marker: Matcher, after: Matcher, vocabulary: TokenVocabulary) -> None:
        super().__init__(vocabulary)
        self._before = marker
        self._after = after
        self._taken_after = 0

    def _current(self) -> Matcher:
        return self._after if self._before.is_accepting() else self._before

    def _mask(self) -> NDArray[np.bool_]:
        return self._current().mask()

    def _take(self, token_id: int, spelling: bytes) -> bool:
        current = self._current()
        if current.viable(spelling) < len(spelling):
            return False
        try:
            current.advance(token_id)
        except ConstraintError:  # the bytes are allowed, but no tokens go on from there
            return False
        self._taken_after += current is self._after
        return True

    def _undo(self, n: int) -> None:
        after = min(n, self._taken_after)
        self._after.rollback(after)
        self._before.rollback(n - after)
        self._taken_after -= after

    def _forced(self) -> bytes:
        return self._after.forced() if self._before.is_accepting() else b""

    def _viable(self, data: bytes) -> int:
        if self._before.is_accepting():
            return self._after.viable(data)
        # Before the marker anything goes, so what stops it is the marker's end.
        before = self._before.viable(data)
        return before + self._after.viable(data[before:])

    def is_accepting(self) -> bool:
        """See `Matcher.is_accepting`."""
        return self._before.is_accepting() and self._after.is_accepting()


def marker_automaton(marker: bytes) -> ByteAutomaton:
    """The automaton of all byte strings that end with `marker` and hold it nowhere else.

    The states count how much of the marker was just seen (Knuth, Morris and Pratt).
    """
    starts = np.zeros(256, dtype=np.bool_)
    for byte in marker:
        starts[byte] = True
        if byte < 255:
            starts[byte + 1] = True
    starts[0] = False
    byte_class = np.cumsum(starts).astype(np.uint8)
    transitions = np.full((len(marker) + 2, int(byte_class[-1]) + 1), START, dtype=np.int32)
    transitions[[DEAD, START + len(marker)]] = DEAD
    fallback = START  # where the text goes that has lost its first byte
    for matched, byte in enumerate(marker):
        state, column = START + matched, byte_class[byte]
        if matched:
            transitions[state] = transitions[fallback]
            fallback = int(transitions[fallback, column])
        transitions[state, column] = state + 1
    accepting = np.zeros(len(transitions), dtype=np.bool_)
    accepting[-1] = True
    return ByteAutomaton(transitions, byte_class, accepting)
