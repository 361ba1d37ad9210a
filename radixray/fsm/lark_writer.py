"""Recursive rules as a grammar in llguidance's Lark dialect, of the same language exactly.

llguidance has a lexer that, among the terminals the parser can use, follows the longest. That loses
a parse where a text can be read as one terminal and the beginning of the next, but also as the
beginning of a longer terminal: ``"ab" | "a" "bc"`` would not take "abc". So the largest regular
parts of the rules become terminals, for speed, and those that may clash are taken apart again, in
the end into single characters, which cannot clash.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from radixray.fsm.gbnf import Reference, Rules
from radixray.fsm.regex_parser import EMPTY, Chars, Choice, Concat, Node, Repeat
from radixray.fsm.terminals import Terminal, clashing, is_nullable, nonempty, regex_of

MAX_ROUNDS = 6
"""How often terminals are taken apart one level before all are, into characters."""


def lark_of(rules: Rules, regular: Mapping[str, Node]) -> str:
    """The Lark grammar of `rules`.

    Args:
        rules: by name, ``root`` among them, all productive.
        regular: those that contain no recursion, written out.
    """
    apart: set[Node] = set()
    lowered: dict[str, Any] = {}
    for round_ in range(MAX_ROUNDS + 1):
        writer = _Lowering(regular, apart if round_ < MAX_ROUNDS else None)
        lowered = {name: writer.lower(part) for name, part in rules.items() if name not in regular}
        if round_ == MAX_ROUNDS or not (clashes := clashing(lowered, "root") - apart):
            break
        apart |= clashes
    return _written(lowered)


class _Lowering:
    """Replaces regular parts by terminals, except those that must be taken apart (None: all)."""

    def __init__(self, regular: Mapping[str, Node], apart: set[Node] | None) -> None:
        self._regular = regular
        self._apart = apart

    def lower(self, part: Any) -> Any:
        """`part` with terminals and references for leaves."""
        node = self._written_out(part)
        if node is not None and self._stays_together(node):
            return _terminal(node)
        match part if node is None else node:
            case Concat(parts):
                return Concat(tuple(self._grouped(parts, Concat, node is None)))
            case Choice(options):
                # In any order, so all regular ones can be one.
                ordered = sorted(options, key=lambda option: self._written_out(option) is None)
                return Choice(tuple(self._grouped(ordered, Choice, node is None)))
            case Repeat(Choice(options), 0, None) if node is None:
                return self._loop(options)
            case Repeat(body, low, high):
                return Repeat(self.lower(body), low, high)
        return part

    def _loop(self, options: Iterable[Any]) -> Any:
        """Any number of `options`: with R the regular ones, (R | E)* as R* (E R*)*.

        So a run of R is one terminal; in a loop of its own it would clash with the next one.
        """
        by_kind: dict[bool, list[Any]] = {True: [], False: []}
        for option in options:
            by_kind[self._written_out(option) is not None].append(option)
        regular, other = by_kind[True], Choice(tuple(by_kind[False]))
        if not regular:
            return Repeat(self.lower(other), 0, None)
        run = Repeat(Choice(tuple(map(self._written_out, regular))), 0, None)  # pyright: ignore[reportArgumentType]
        rest = Concat((self.lower(other), self.lower(run)))
        return Concat((self.lower(run), Repeat(rest, 0, None)))

    def _grouped(self, parts: Iterable[Any], kind: Any, group: bool) -> Iterator[Any]:
        """The lowered parts; with `group`, neighbours that are regular become one terminal."""
        for is_regular, run in groupby(parts, lambda part: self._written_out(part) is not None):
            members = list(run)
            together = kind(tuple(map(self._written_out, members)))
            if group and is_regular and len(members) > 1 and self._stays_together(together):
                yield _terminal(together)
            else:
                yield from map(self.lower, members)

    def _stays_together(self, node: Node) -> bool:
        if isinstance(node, Chars) or self._apart is None:
            return isinstance(node, Chars)
        return nonempty(node) not in self._apart  # terminals are never empty

    def _written_out(self, part: Any) -> Node | None:
        """`part` without references, or None if it is recursive."""
        match part:
            case Reference(name):
                return self._regular.get(name)
            case Chars():
                return part
            case Concat(parts) | Choice(parts):
                inner = tuple(map(self._written_out, parts))
                return None if None in inner else type(part)(inner)  # pyright: ignore[reportArgumentType]
            case Repeat(body, low, high):
                body = self._written_out(body)
                return None if body is None else Repeat(body, low, high)
        raise AssertionError(part)


def _terminal(node: Node) -> Any:
    """`node` as a terminal. The lexer has no empty ones: that case becomes the parser's."""
    if not is_nullable(node):
        return Terminal(node)
    rest = nonempty(node)
    return EMPTY if rest is None else Repeat(Terminal(rest), 0, 1)  # pyright: ignore[reportArgumentType]


def _written(rules: Mapping[str, Any]) -> str:
    names = {name: f"r{number}" for number, name in enumerate(rules)}

    def text(part: Any) -> str:
        match part:
            case Terminal(node):
                return f"/{regex_of(node)}/"
            case Reference(name):
                return names[name]
            case Concat(parts):
                return " ".join(f"({text(p)})" if isinstance(p, Choice) else text(p) for p in parts
                                if p != EMPTY) or '""'  # fmt: skip
            case Choice(options):
                return " | ".join(map(text, options))
            case Repeat(body, low, high):
                return f"({text(body)}){_count(low, high)}"
        raise AssertionError(part)

    lines = [f"start: {names['root']}"]
    lines += [f"{names[name]}: {text(part)}" for name, part in rules.items()]
    return "\n".join(lines)


def _count(low: int, high: int | None) -> str:
    if (low, high) in _COUNTS:
        return _COUNTS[low, high]
    return f"{{{low},{'' if high is None else high}}}"


_COUNTS = {(0, None): "*", (1, None): "+", (0, 1): "?"}
