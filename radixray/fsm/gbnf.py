r"""GBNF, the `::=` grammars of llama.cpp, read into rules; see `gbnf_lowering` for what comes next.

    root  ::= "(" root ")" | item{1,3}     # comments, rules over several lines
    item  ::= [a-z0-9] | "\U0001F600" | ("a"+)+

A rule ends where the next `name ::=` begins. `.` is any character. Repeats are `* + ? {n} {n,}
{m,n}`. Escapes are `\n \r \t \\ \" \' \[ \] \- \^ \/ \xHH \uHHHH \UHHHHHHHH`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from radixray.errors import ConstraintError
from radixray.fsm.char_classes import any_char, complement
from radixray.fsm.regex_parser import EMPTY, Chars, Choice, Concat, Node, Repeat

MAX_GROUPS = 40
"""Deepest nesting of parentheses."""

MAX_COUNT = 20_000
"""Highest number in a repeat."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What a rule stands for, where it is used."""

    name: str


Part = Node | Reference
"""A regular expression whose leaves may be references."""

Rules = dict[str, Part]

_SPACE = re.compile(r"(?:\s|#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_DEFINED = re.compile(_SPACE.pattern + r"::=")
_COUNTS = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
_ESCAPE = re.compile(r"""\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))""", re.S)
_PLAIN_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"} | {c: c for c in "\\\"'[]-^/"}


def read_rules(text: str) -> Rules:
    """The rules of a grammar, by name; ``root`` is among them and every reference is to one.

    Raises:
        ConstraintError: a syntax error, a rule that is missing or defined twice; the message says
            in which line and column.
    """
    return _Reader(text).rules()


class _Reader:
    """Recursive descent over the text; `_at` is the position."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._used: dict[str, int] = {}  # name -> where it was first referred to

    def rules(self) -> Rules:
        rules: Rules = {}
        self._skip()
        while self._at < len(self._text):
            start = self._at
            name = self._match(_NAME) or self._fail("a rule's name was expected")
            if not self._match(_DEFINED):
                self._fail("'::=' was expected")
            if name in rules:
                self._fail(f"rule {name!r} is defined twice", start)
            rules[name] = self._options()
            if self._at < len(self._text) and not self._at_rule():
                self._fail(f"{self._text[self._at]!r} was not expected")
        if "root" not in rules:
            self._fail("there is no rule 'root'", 0)
        for name, place in self._used.items():
            if name not in rules:
                self._fail(f"rule {name!r} is not defined", place)
        return rules

    def _options(self) -> Part:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))  # pyright: ignore[reportArgumentType]

    def _sequence(self) -> Part:
        parts: list[Part] = []
        self._skip()
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            if self._at_rule():
                break
            parts.append(self._repeats(self._item()))
            self._skip()
        return parts[0] if len(parts) == 1 else Concat(tuple(parts))  # pyright: ignore[reportArgumentType]

    def _item(self) -> Part:
        start, char = self._at, self._text[self._at]
        if char in "\"'":
            return self._literal(char)
        if char == "[":
            return self._class()
        if char == ".":
            self._at += 1
            return Chars(any_char(newline=True))
        if char == "(":
            self._at += 1
            self._depth += 1
            if self._depth > MAX_GROUPS:
                self._fail(f"parentheses are nested over {MAX_GROUPS} deep", start)
            inner = self._options()
            self._depth -= 1
            if not self._take(")"):
                self._fail("this parenthesis is never closed", start)
            return inner
        name = self._match(_NAME)
        if not name:
            self._fail(f"{char!r} was not expected")
        self._used.setdefault(name, start)
        return Reference(name)

    def _repeats(self, part: Part) -> Part:
        while True:
            self._skip()
            char = self._text[self._at : self._at + 1]
            if char and char in "*+?":
                self._at += 1
                low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
            elif char == "{":
                low, high = self._counts()
            else:
                return part
            if part != EMPTY:
                part = Repeat(part, low, high)  # pyright: ignore[reportArgumentType]

    def _counts(self) -> tuple[int, int | None]:
        start = self._at
        found = _COUNTS.match(self._text, start)
        if not found or not (found[1] or found[3]) or (found[3] and not found[2]):
            self._fail("a repeat is {n}, {n,} or {m,n}")
        self._at = found.end()
        low = int(found[1] or 0)
        high = int(found[3]) if found[3] else None if found[2] else low
        if max(low, high or 0) > MAX_COUNT:
            self._fail(f"a repeat counts to at most {MAX_COUNT}", start)
        if high is not None and high < low:
            self._fail("a repeat's second number is below its first", start)
        return low, high

    def _literal(self, quote: str) -> Part:
        start = self._at
        self._at += 1
        chars: list[Node] = []
        while not self._text.startswith(quote, self._at):
            code = self._char("text is never closed", start)
            chars.append(_one(code, code))
        self._at += 1
        return chars[0] if len(chars) == 1 else Concat(tuple(chars))

    def _class(self) -> Part:
        start = self._at
        self._at += 1
        negated = self._text.startswith("^", self._at)
        self._at += negated
        pairs: list[tuple[int, int]] = []
        while not self._text.startswith("]", self._at):
            place = self._at
            low = self._char("class is never closed", start)
            high = low
            if (
                self._text.startswith("-", self._at)
                and self._text[self._at + 1 : self._at + 2] != "]"
            ):
                self._at += 1
                high = self._char("class is never closed", start)
            if high < low:
                self._fail("a range's end lies before its start", place)
            pairs.append((low, high))
        self._at += 1
        outside = complement(tuple(pairs))
        return Chars(outside if negated else complement(outside))

    def _char(self, unclosed: str, start: int) -> int:
        """The next character of a literal or class."""
        if self._at >= len(self._text):
            self._fail(f"this {unclosed}", start)
        if self._text[self._at] != "\\":
            self._at += 1
            return ord(self._text[self._at - 1])
        found = _ESCAPE.match(self._text, self._at)
        digits = found and (found[1] or found[2] or found[3])
        if found and digits:
            code = int(digits, 16)
        elif found and found[4] in _PLAIN_ESCAPES:
            code = ord(_PLAIN_ESCAPES[found[4]])
        else:
            self._fail(f"{self._text[self._at : self._at + 2]!r} is no escape")
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            self._fail(f"{found[0]} is no character")
        self._at = found.end()
        return code

    def _at_rule(self) -> bool:
        """Whether a new rule begins here."""
        name = _NAME.match(self._text, self._at)
        return name is not None and _DEFINED.match(self._text, name.end()) is not None

    def _skip(self) -> None:
        self._match(_SPACE)

    def _take(self, token: str) -> bool:
        self._skip()
        found = self._text.startswith(token, self._at)
        self._at += found * len(token)
        return found

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return found[0] if found else ""

    def _fail(self, reason: str, at: int | None = None) -> NoReturn:
        at = self._at if at is None else at
        line = self._text.count("\n", 0, at) + 1
        column = at - (self._text.rfind("\n", 0, at) + 1) + 1
        raise ConstraintError(f"ebnf: {reason}, at line {line}, column {column}", param="ebnf")


def _one(low: int, high: int) -> Chars:
    return Chars(((low, high),))
