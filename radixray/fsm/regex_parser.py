r"""Python `re` syntax, as a small tree of what an automaton can express.

The dialect is Python's own `re` with `fullmatch` semantics: the standard library's parser reads
the pattern, so syntax errors are its errors. What is not regular, or depends on more than the
string so far, is refused with its position; nothing is dropped silently.

Anchors: `fullmatch` must consume the whole string, so `^` and `\A` before everything and `$` and
`\Z` after everything always hold (`$` would also hold before a final newline, but then `fullmatch`
has a newline left over and fails). Anywhere else they are refused.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from re import _constants as sre  # pyright: ignore[reportAttributeAccessIssue]
from types import ModuleType
from typing import Any

from radixray.errors import ConstraintError
from radixray.fsm.char_classes import Ranges, any_char, char_class

MAX_PATTERN_LENGTH = 16 * 1024
"""Longest pattern, in characters."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of a set; an empty set matches nothing."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Concat:
    """All parts, one after the other; no parts match the empty string."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Any one of the options."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """The body at least `low` and at most `high` times; None is without bound."""

    body: Node
    low: int
    high: int | None


Node = Chars | Concat | Choice | Repeat

EMPTY = Concat(())


def parse_regex(pattern: str) -> Node:
    """The tree of `pattern`.

    Raises:
        ConstraintError: a syntax error, a construct that is refused, or a pattern that is too long
            or too deeply nested; the message says where, `param` is ``regex``.
    """
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise ConstraintError(
            f"regex has {len(pattern)} characters; at most {MAX_PATTERN_LENGTH} are allowed",
            param="regex",
        )
    state = _parser.State()
    state.str = pattern
    state.flags = 0
    state.source = source = _parser.Tokenizer(pattern)
    try:
        items = _parser._parse_sub(source, state, 0, 0)
        if source.next is not None:
            raise source.error("unbalanced parenthesis")
        flags = _parser.fix_flags(pattern, state.flags)
        return _Translator(pattern).sequence(items, flags, at_start=True, at_end=True)
    except re.error as error:
        raise _refusal(error.msg, error.pos or 0) from error
    except (OverflowError, ValueError) as error:
        # ValueError: flags that exclude each other.
        raise _refusal(str(error), source.tell()) from error
    except RecursionError as error:
        raise _refusal("nested too deeply", source.tell()) from error


class _Item(tuple[Any, Any]):
    """A parse tree entry (operator, argument) with the stretch of pattern it came from.

    `start` may lie before whitespace and comments that the parser skipped; `end` is exact.
    """

    start: int
    end: int


def _load_positioned_parser() -> ModuleType:
    """A private copy of the standard parser whose trees remember positions.

    The standard tree has none, and a refusal without its position is of little help. The module is
    copied so that the class can be replaced without touching the one everybody else uses.
    """
    spec = importlib.util.find_spec("re._parser")
    assert spec is not None and spec.loader is not None
    parser = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(parser)

    class SubPattern(parser.SubPattern):
        def __init__(self, state: Any, data: list[Any] | None = None) -> None:
            super().__init__(state, data)
            self.read = state.source.tell()

        def append(self, code: tuple[Any, Any]) -> None:
            super().append(self._positioned(code, self.read))

        def __setitem__(self, index: Any, code: Any) -> None:
            # An index puts a quantifier around the last item; a slice moves positioned items.
            if isinstance(index, int):
                code = self._positioned(code, self[index].start)
            super().__setitem__(index, code)

        def _positioned(self, code: tuple[Any, Any], start: int) -> _Item:
            if isinstance(code, _Item):  # moved out of a branch: it has its place already
                return code
            item = _Item(code)
            item.start = start
            item.end = self.read = self.state.source.tell()
            return item

    setattr(parser, "SubPattern", SubPattern)  # noqa: B010 - pyright knows no such attribute
    return parser


_parser: Any = _load_positioned_parser()

_UNSUPPORTED = {
    (sre.ASSERT, 1): ("(?=", "look-ahead"),
    (sre.ASSERT, -1): ("(?<=", "look-behind"),
    (sre.ASSERT_NOT, 1): ("(?!", "negative look-ahead"),
    (sre.ASSERT_NOT, -1): ("(?<!", "negative look-behind"),
    (sre.GROUPREF_EXISTS, None): ("(?(", "a conditional group"),
    (sre.ATOMIC_GROUP, None): ("(?>", "an atomic group"),
}
_STARTS = {sre.AT_BEGINNING, sre.AT_BEGINNING_STRING}
_ENDS = {sre.AT_END, sre.AT_END_STRING}


class _Translator:
    """Turns the standard parser's tree into Nodes, with flags and anchors resolved."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    def sequence(self, items: Any, flags: int, *, at_start: bool, at_end: bool) -> Node:
        """The node of a SubPattern.

        Args:
            at_start: nothing can have been consumed when it is entered.
            at_end: nothing can be consumed after it is left.
        """
        consuming = [index for index, item in enumerate(items) if self._consumes(items, item)]
        first = consuming[0] if consuming else len(items)
        last = consuming[-1] if consuming else -1
        parts = [
            self.item(
                item, flags, at_start=at_start and index <= first, at_end=at_end and index >= last
            )
            for index, item in enumerate(items)
        ]
        parts = [part for part in parts if part != EMPTY]
        return parts[0] if len(parts) == 1 else Concat(tuple(parts))

    def item(self, item: _Item, flags: int, *, at_start: bool, at_end: bool) -> Node:
        """The node of one entry; the anchors in it are checked against its place."""
        op, arg = item
        if op is sre.LITERAL:
            return Chars(char_class([item], flags))
        if op is sre.NOT_LITERAL:
            return Chars(char_class([(sre.NEGATE, None), (sre.LITERAL, arg)], flags))
        if op is sre.IN:
            return Chars(char_class(arg, flags))
        if op is sre.ANY:
            return Chars(any_char(newline=bool(flags & re.DOTALL)))
        if op is sre.SUBPATTERN:
            _, added, removed, body = arg
            if added & re.ASCII:
                flags &= ~re.UNICODE
            elif added & re.UNICODE:
                flags &= ~re.ASCII
            flags = (flags | added) & ~removed
            return self.sequence(body, flags, at_start=at_start, at_end=at_end)
        if op is sre.BRANCH:
            return Choice(
                tuple(
                    self.sequence(option, flags, at_start=at_start, at_end=at_end)
                    for option in arg[1]
                )
            )
        if op is sre.MAX_REPEAT or op is sre.MIN_REPEAT:  # lazy or not, the language is one
            low, high, body = arg
            # Inside a loop another round may come before and after; at most one round, and the
            # anchors of the body stand where the repeat stands.
            once = high == 1 or body.getwidth()[1] == 0
            node = self.sequence(body, flags, at_start=at_start and once, at_end=at_end and once)
            if node == EMPTY:
                return EMPTY
            return Repeat(node, low, None if high is sre.MAXREPEAT else high)
        if op is sre.AT:
            return self._anchor(item, flags, at_start=at_start, at_end=at_end)
        raise self._unsupported(item)

    def _consumes(self, items: Any, item: _Item) -> bool:
        """Whether the entry can match more than the empty string."""
        return _parser.SubPattern(items.state, [item]).getwidth()[1] > 0

    def _anchor(self, item: _Item, flags: int, *, at_start: bool, at_end: bool) -> Node:
        kind = item[1]
        length = 1 if self.pattern[item.end - 1] in "^$" else 2
        text = self.pattern[item.end - length : item.end]
        if kind in _STARTS or kind in _ENDS:
            if flags & re.MULTILINE and length == 1:
                reason = "is not supported with the flag (?m)"
            elif at_start if kind in _STARTS else at_end:
                return EMPTY
            else:
                edge = "start" if kind in _STARTS else "end"
                reason = f"is supported only where it must be the {edge} of the output, not"
        else:
            reason = "(word boundary) is not supported"
        raise _refusal(f"{text} {reason}", item.end - length)

    def _unsupported(self, item: _Item) -> ConstraintError:
        op, arg = item
        if op is sre.POSSESSIVE_REPEAT:
            return _refusal("a possessive quantifier is not supported", item.end - 1)
        if op is sre.GROUPREF:
            openers = ("\\", "(?P=")
            start = max(self.pattern.rfind(opener, item.start, item.end) for opener in openers)
            return _refusal("a back-reference is not supported", start)
        direction = arg[0] if op is sre.ASSERT or op is sre.ASSERT_NOT else None
        if (op, direction) not in _UNSUPPORTED:
            return _refusal(f"{op} is not supported", item.start)
        opener, name = _UNSUPPORTED[op, direction]
        return _refusal(f"{name} is not supported", self.pattern.find(opener, item.start))


def _refusal(reason: str, position: int) -> ConstraintError:
    return ConstraintError(f"regex: {reason} at position {position}", param="regex")
