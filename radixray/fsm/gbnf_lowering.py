"""A GBNF grammar as what can be run: a byte automaton if it is regular, else a Lark grammar.

A grammar whose rules do not contain themselves is a regular expression; it gets the automaton, with
its exact forced text and cached masks. A recursive one goes to llguidance (see `lark_writer`).
"""

from __future__ import annotations

from radixray.errors import ConstraintError, GrammarTooComplexError
from radixray.fsm.byte_automaton import ByteAutomaton, determinise
from radixray.fsm.gbnf import Part, Reference, Rules, read_rules
from radixray.fsm.lark_writer import lark_of
from radixray.fsm.nfa import build_nfa
from radixray.fsm.regex_parser import Chars, Choice, Concat, Node, Repeat

MAX_AUTOMATON = 20_000
"""Most characters and operators of a grammar written out as one regular expression."""

AUTOMATON_LEVELS = 100
"""Deepest nesting of it."""

MAX_TERMINAL, TERMINAL_LEVELS = 1_000, 16
"""The same for a rule of a grammar that goes to llguidance; those beyond stay rules."""


def read_gbnf(text: str) -> ByteAutomaton | str:
    """The automaton of a grammar, or a Lark grammar in llguidance's dialect where it is recursive.

    Raises:
        ConstraintError: a syntax error with its line and column, or no finite text matches.
    """
    rules = read_rules(text)
    _check_productive(rules)
    regular = regular_rules(rules, MAX_AUTOMATON, AUTOMATON_LEVELS)
    if "root" in regular:
        try:
            return determinise(build_nfa(regular["root"]))
        except GrammarTooComplexError:
            pass  # llguidance builds no automaton in advance
    return lark_of(rules, regular_rules(rules, MAX_TERMINAL, TERMINAL_LEVELS))


def regular_rules(rules: Rules, most: int, levels: int) -> dict[str, Node]:
    """The rules that come to an end in themselves, written out without references.

    Args:
        most: characters and operators one may take.
        levels: how deep one may nest.
    """
    regular: dict[str, Node] = {}
    sizes: dict[str, int] = {}
    depths: dict[str, int] = {}

    def depth(part: Part) -> int:
        match part:
            case Reference(name):
                return depths[name]
            case Chars():
                return 1
            case Concat(parts) | Choice(parts):
                return 1 + max(map(depth, parts), default=0)
            case Repeat(body):
                return 1 + depth(body)

    def size(part: Part) -> int:
        match part:
            case Reference(name):
                return sizes.get(name, most + 1)
            case Chars():
                return 1
            case Concat(parts) | Choice(parts):
                return 1 + sum(map(size, parts))
            case Repeat(body):
                return 1 + size(body)

    def written_out(part: Part) -> Node:
        match part:
            case Reference(name):
                return regular[name]
            case Chars():
                return part
            case Concat(parts):
                return Concat(tuple(map(written_out, parts)))
            case Choice(options):
                return Choice(tuple(map(written_out, options)))
            case Repeat(body, low, high):
                return Repeat(written_out(body), low, high)

    while new := {
        name: measured
        for name, part in rules.items()
        if name not in regular and (measured := size(part)) <= most and depth(part) <= levels
    }:
        sizes |= new
        depths |= {name: depth(rules[name]) for name in new}
        for name in new:
            regular[name] = written_out(rules[name])
    return regular


def _check_productive(rules: Rules) -> None:
    """Raises ConstraintError if no finite text matches ``root``."""
    finite: set[str] = set()

    def can_end(part: Part) -> bool:
        match part:
            case Reference(name):
                return name in finite
            case Chars(ranges):
                return bool(ranges)
            case Concat(parts):
                return all(map(can_end, parts))
            case Choice(options):
                return any(map(can_end, options))
            case Repeat(body, low):
                return low == 0 or can_end(body)

    while new := {name for name in rules if name not in finite and can_end(rules[name])}:
        finite |= new
    if "root" not in finite:
        raise ConstraintError("ebnf matches no finite text: its rules never end", param="ebnf")
