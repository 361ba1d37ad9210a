"""Terminals of a lowered grammar: what may follow each, and which of them may clash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radixray.errors import GrammarTooComplexError
from radixray.fsm.byte_automaton import DEAD, START, ByteAutomaton, determinise
from radixray.fsm.gbnf import Reference
from radixray.fsm.nfa import build_nfa
from radixray.fsm.regex_parser import Chars, Choice, Concat, Node, Repeat

MAX_TERMINAL_STATES = 2_000
"""Most states of a terminal's automaton; bigger ones are taken apart."""

MAX_PAIRS = 200_000
"""Most pairs of states searched for one clash; beyond that there is taken to be one."""


MAX_PLACES = 2_000
"""Most sets of terminals that are expected together; beyond that all are taken apart."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """A regular expression that the lexer reads as one; never matches the empty string."""

    node: Node


def is_nullable(node: Node) -> bool:
    """Whether the empty string matches."""
    match node:
        case Chars():
            return False
        case Concat(parts):
            return all(map(is_nullable, parts))
        case Choice(options):
            return any(map(is_nullable, options))
        case Repeat(body, low):
            return low == 0 or is_nullable(body)


def nonempty(node: Node) -> Node | None:
    """What matches the same strings but the empty one; None if there are no others."""
    match node:
        case Chars():
            return node
        case Concat(parts):
            if not is_nullable(node):
                return node
            # Some part is the first not to be empty.
            options = [
                Concat((first, *parts[index + 1 :]))
                for index, part in enumerate(parts)
                if (first := nonempty(part)) is not None
            ]
        case Choice():
            options = [rest for option in node.options if (rest := nonempty(option)) is not None]
        case Repeat(body, _, high):
            if not is_nullable(node):
                return node
            rest = nonempty(body)
            more = None if high is None else high - 1
            options = [] if rest is None or high == 0 else [Concat((rest, Repeat(rest, 0, more)))]
    return options[0] if len(options) == 1 else Choice(tuple(options)) if options else None


def regex_of(node: Node) -> str:
    """`node` in the syntax of Rust's regex crate, for use between slashes."""
    match node:
        case Chars(ranges):
            return "[" + "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in ranges) + "]"
        case Concat(parts):
            return "".join(map(regex_of, parts))
        case Choice(options):
            return "(?:" + "|".join(map(regex_of, options)) + ")"
        case Repeat(body, low, high):
            return f"(?:{regex_of(body)}){{{low},{'' if high is None else high}}}"


def clashing(rules: Mapping[str, Any], root: str) -> set[Node]:
    """The terminals that must be taken apart, so that following the longest loses nothing.

    Two terminals that the parser may expect at one place clash if some text is a match of the
    first, and with a byte that may follow there the beginning of a match of the second; they may
    be the same. Where a place has one terminal of a single character, that one is not returned.
    """
    order = _Order(rules, root)
    follow = order.follow
    expected = _expected_together(order)
    if expected is None:
        return {node for node in follow if not isinstance(node, Chars)}
    pairs = {(a, b) for together in expected for a in together for b in together}
    found: set[Node] = {
        node
        for node in {a for a, _ in pairs}
        if not isinstance(node, Chars) and _automaton(node) is None
    }
    for a, b in pairs:
        if a in found or b in found:
            continue
        after = np.zeros(256, dtype=np.bool_)
        for node in follow[a]:
            automaton = _automaton(node)
            after |= True if automaton is None else _leaving(automaton)[START]
        if _clash(a, b, after.tobytes()):
            found |= {node for node in (a, b) if not isinstance(node, Chars)}
    return found


def _expected_together(order: _Order) -> set[frozenset[Node]] | None:
    """The sets of terminals that the lexer may be looking for at one place; None if too many.

    A text may be a match of several: then what may follow any of them is looked for next.
    """
    places = {order.first}
    pending = [order.first]
    while pending:
        rest = set(pending.pop())
        while rest:
            alike, fresh = set[Node](), {rest.pop()}
            while fresh:
                alike |= fresh
                fresh = {node for node in rest if any(_have_common(node, f) for f in fresh)}
                rest -= fresh
            place = frozenset[Node]().union(*(order.follow[node] for node in alike))
            if place not in places:
                places.add(place)
                pending.append(place)
        if len(places) > MAX_PLACES:
            return None
    return places


@lru_cache(maxsize=4096)
def _have_common(a: Node, b: Node) -> bool:
    """Whether some text is a match of both."""
    return _meet(a, b, None)


@lru_cache(maxsize=4096)
def _clash(a: Node, b: Node, after: bytes) -> bool:
    """Whether a match of `a`, and one of the bytes after it, can be the beginning of one of `b`."""
    return _meet(a, b, np.frombuffer(after, dtype=np.bool_))


def _meet(a: Node, b: Node, after: NDArray[np.bool_] | None) -> bool:
    """Whether a text can end in `a` where `b` ends too, or, with `after`, goes on by one of those.

    Args:
        after: bool [256], or None.
    """
    first, second = _automaton(a), _automaton(b)
    if first is None or second is None:
        return True
    leaving, other = _leaving(first), _leaving(second)
    goal = second.accepting if after is None else np.any(other & after, axis=1)
    seen = {(START, START)}
    pending = [(START, START)]
    while pending:
        left, right = pending.pop()
        if first.accepting[left] and goal[right]:
            return True
        steps = {
            (
                int(first.transitions[left, first.byte_class[byte]]),
                int(second.transitions[right, second.byte_class[byte]]),
            )
            for byte in np.flatnonzero(leaving[left] & other[right])
        }
        pending += steps - seen
        seen |= steps
        if len(seen) > MAX_PAIRS:
            return True
    return False


@lru_cache(maxsize=4096)
def _automaton(node: Node) -> ByteAutomaton | None:
    """The automaton of a terminal, or None if it is too big."""
    try:
        automaton = determinise(build_nfa(node))
    except GrammarTooComplexError:
        return None
    return automaton if len(automaton) <= MAX_TERMINAL_STATES else None


def _leaving(automaton: ByteAutomaton) -> NDArray[np.bool_]:
    """bool [states, 256]: whether each byte leads on from each state."""
    return (automaton.transitions != DEAD)[:, automaton.byte_class]


class _Order:
    """Which terminals may come first, and after each; by the usual fixpoints.

    Attributes:
        first: those an output may begin with.
        follow: by terminal, those that may come right after it.
    """

    def __init__(self, rules: Mapping[str, Any], root: str) -> None:
        self._rules = rules
        self._nullable: set[str] = set()
        while new := {n for n, p in rules.items() if n not in self._nullable and self._empty(p)}:
            self._nullable |= new
        self._first: dict[str, frozenset[Node]] = {name: frozenset() for name in rules}
        while (now := {n: self._begin(p) for n, p in rules.items()}) != self._first:
            self._first = now
        self.first = self._first[root]
        self.follow: dict[Node, frozenset[Node]] = {}
        self._after: dict[str, frozenset[Node]] = {name: frozenset() for name in rules}
        while True:
            before = (dict(self._after), dict(self.follow))
            for name, part in rules.items():
                self._spread(part, self._after[name])
            if (self._after, self.follow) == before:
                break

    def _empty(self, part: Any) -> bool:
        match part:
            case Reference(name):
                return name in self._nullable
            case Concat(parts):
                return all(map(self._empty, parts))
            case Choice(options):
                return any(map(self._empty, options))
            case Repeat(body, low):
                return low == 0 or self._empty(body)
        return False

    def _begin(self, part: Any) -> frozenset[Node]:
        match part:
            case Terminal(node):
                return frozenset((node,))
            case Reference(name):
                return self._first[name]
            case Choice(options):
                return frozenset[Node]().union(*map(self._begin, options))
            case Repeat(body):
                return self._begin(body)
        found: frozenset[Node] = frozenset()
        for inner in part.parts:
            found |= self._begin(inner)
            if not self._empty(inner):
                break
        return found

    def _spread(self, part: Any, after: frozenset[Node]) -> None:
        """Notes that `after` may follow `part`."""
        match part:
            case Terminal(node):
                self.follow[node] = self.follow.get(node, frozenset()) | after
            case Reference(name):
                self._after[name] |= after
            case Choice(options):
                for option in options:
                    self._spread(option, after)
            case Concat(parts):
                for inner in reversed(parts):
                    self._spread(inner, after)
                    begin = self._begin(inner)
                    after = begin | after if self._empty(inner) else begin
            case Repeat(body, _, high):
                again = high is None or high > 1
                self._spread(body, after | self._begin(body) if again else after)
