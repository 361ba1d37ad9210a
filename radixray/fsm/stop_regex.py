"""Where a text first matches a pattern, while it comes a character at a time."""

from __future__ import annotations

from functools import lru_cache

from radixray.errors import ConstraintError, GrammarTooComplexError
from radixray.fsm.nfa import Nfa, build_nfa
from radixray.fsm.regex_parser import parse_regex

MAX_STOP_STATES = 2000
"""Most states of a pattern: each character of an output may touch them all."""


class StopRegex:
    """Looks for the match that ends first, and of several that end there for the longest.

    The time for a character is bounded by the pattern's size, whatever the text. Anchors mean
    nothing: a match may begin anywhere.

    Args:
        pattern: in the dialect of ``regex`` constraints.

    Attributes:
        length: how many of the last characters a match may yet begin with; after a match, its own
            length.

    Raises:
        ConstraintError: no such pattern, too big a one, or one that matches the empty text.
    """

    def __init__(self, pattern: str) -> None:
        self._nfa = _nfa_of(pattern)
        self.length = 0
        self._position = 0
        self._live: dict[int, int] = {}  # states, and where their earliest match began

    def step(self, char: str) -> bool:
        """Reads one character; True when a match ends with it."""
        live = self._live
        self._add(live, self._nfa.start, self._position)
        for byte in char.encode():
            before, live = live, {}
            for state, begin in before.items():
                for low, high, target in self._nfa.edges[state]:
                    if low <= byte <= high:
                        self._add(live, target, begin)
        self._position += 1
        self._live = live
        begin = live.get(self._nfa.accept, min(live.values(), default=self._position))
        self.length = self._position - begin
        return self._nfa.accept in live

    def _add(self, live: dict[int, int], state: int, begin: int) -> None:
        pending = [state]
        while pending:
            state = pending.pop()
            if live.get(state, begin + 1) > begin:
                live[state] = begin
                pending += self._nfa.epsilon[state]


@lru_cache(64)
def _nfa_of(pattern: str) -> Nfa:
    try:
        nfa = build_nfa(parse_regex(pattern))
    except ConstraintError as error:
        error.param = "stop_regex"
        raise
    if len(nfa.edges) > MAX_STOP_STATES:
        raise GrammarTooComplexError(
            f"stop_regex has {len(nfa.edges)} states; at most {MAX_STOP_STATES} are allowed",
            param="stop_regex",
        )
    reached = {nfa.start}
    pending = [nfa.start]
    while pending:
        for state in nfa.epsilon[pending.pop()]:
            if state not in reached:
                reached.add(state)
                pending.append(state)
    if nfa.accept in reached:
        raise ConstraintError("stop_regex must not match the empty text", param="stop_regex")
    return nfa
