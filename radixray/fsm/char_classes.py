r"""Sets of Unicode code points, and what Python's `re` puts in them.

A set is a `Ranges`: sorted, disjoint, non-adjacent inclusive pairs. Surrogates belong to no set:
UTF-8 cannot spell them, so no output can contain them.

Where Python's own rules are intricate (`\w`, case-insensitive matching), `re` itself is asked, so
the sets are right by construction for the running Python version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache
from re import _constants as sre  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any

Ranges = tuple[tuple[int, int], ...]

MAX_CODE_POINT = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)

_CATEGORIES = {
    sre.CATEGORY_DIGIT: ("d", False),
    sre.CATEGORY_NOT_DIGIT: ("d", True),
    sre.CATEGORY_SPACE: ("s", False),
    sre.CATEGORY_NOT_SPACE: ("s", True),
    sre.CATEGORY_WORD: ("w", False),
    sre.CATEGORY_NOT_WORD: ("w", True),
}


def any_char(*, newline: bool) -> Ranges:
    """The set of `.`: every code point, `\\n` only if `newline`."""
    return complement(() if newline else ((10, 10),))


def complement(ranges: Ranges) -> Ranges:
    """The code points outside `ranges`."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in _merge([*ranges, _SURROGATES]):
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        gaps.append((start, MAX_CODE_POINT))
    return tuple(gaps)


def char_class(items: Iterable[tuple[Any, Any]], flags: int) -> Ranges:
    """The set of a character class.

    Args:
        items: the (operator, argument) pairs of an `IN` node of `re._parser`.
        flags: `re` flags in force; IGNORECASE and ASCII matter.
    """
    return _char_class(tuple(items), flags & (re.IGNORECASE | re.ASCII))


@lru_cache(maxsize=1024)
def _char_class(items: tuple[tuple[Any, Any], ...], flags: int) -> Ranges:
    pairs: list[tuple[int, int]] = []
    source = ""
    negated = False
    for op, arg in items:
        if op is sre.NEGATE:
            negated = True
        elif op is sre.CATEGORY:
            letter, inverted = _CATEGORIES[arg]
            members = _category(letter, bool(flags & re.ASCII))
            pairs.extend(complement(members) if inverted else members)
            source += "\\" + (letter.upper() if inverted else letter)
        else:
            low, high = (arg, arg) if op is sre.LITERAL else arg
            pairs.append((low, high))
            source += f"\\U{low:08x}-\\U{high:08x}"
    # Complementing twice also takes the surrogates out.
    outside = complement(tuple(_merge(pairs)))
    ranges = outside if negated else complement(outside)
    if not flags & re.IGNORECASE:
        return ranges
    # Folding can change membership of cased characters only; for those `re` is asked.
    cased = _cased()
    kept = re.findall(f"[{'^' if negated else ''}{source}]", cased, flags)
    uncased = complement(tuple(_merge([*complement(ranges), *_points(cased)])))
    return tuple(_merge([*uncased, *_points(kept)]))


def _merge(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted, disjoint, non-adjacent ranges covering the same code points as `pairs`."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pairs):
        if merged and low <= merged[-1][1] + 1:
            if high > merged[-1][1]:
                merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    return merged


def _points(chars: Iterable[str]) -> list[tuple[int, int]]:
    return [(ord(char), ord(char)) for char in chars]


@cache
def _category(letter: str, ascii_only: bool) -> Ranges:
    r"""The set of `\d`, `\s` or `\w`, read off one pass of `re` over all of Unicode."""
    every = "".join(map(chr, range(MAX_CODE_POINT + 1)))  # so that index equals code point
    runs = re.finditer(rf"\{letter}+", every, re.ASCII if ascii_only else 0)
    return tuple((run.start(), run.end() - 1) for run in runs)


@cache
def _cased() -> str:
    """Every character with another case, and what those cases are."""
    chars: set[str] = set()
    for char in map(chr, range(MAX_CODE_POINT + 1)):
        lower, upper = char.lower(), char.upper()
        if lower != char or upper != char:
            chars.update(char, lower, upper)
    return "".join(sorted(chars))
