"""`pattern` in a JSON Schema: what Python, ECMAScript and llguidance read alike.

llguidance reads patterns as Rust's regex crate does, ECMAScript's `\\d`, `\\w` and `\\s` included.
What that crate would read differently from the standard, or not at all, is refused.
"""

from __future__ import annotations

import re
import warnings
from re import _constants as sre  # pyright: ignore[reportAttributeAccessIssue]
from re import _parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any

MAX_PATTERN_LENGTH = 16 * 1024
"""Longest pattern, in characters."""

_REFUSED = {
    sre.ASSERT: "look-around",
    sre.ASSERT_NOT: "look-around",
    sre.GROUPREF: "a back-reference",
    sre.GROUPREF_EXISTS: "a conditional group",
    sre.ATOMIC_GROUP: "an atomic group",
    sre.POSSESSIVE_REPEAT: "a possessive quantifier",
}
_WORD_BORDERS = {sre.AT_BOUNDARY, sre.AT_NON_BOUNDARY}


def check_pattern(pattern: str) -> str | None:
    """Why `pattern` cannot be enforced, or None if it can."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        return f"has {len(pattern)} characters; at most {MAX_PATTERN_LENGTH} are allowed"
    if re.search(r"\{,\d", pattern):
        return "has {,n}, which is text in one dialect and a count in another: write {0,n}"
    if re.search(r"(?<!\\)(?:\\\\)*\\[AZzGKQEhHRX]", pattern):
        return "has an escape that is not in ECMAScript"
    try:
        with warnings.catch_warnings():
            # Python warns of `[[`, `&&` and the like, which Rust's classes give a meaning.
            warnings.simplefilter("error")
            tree = _parser.parse(pattern)
    except re.error as error:
        return f"is not a regular expression: {error}"
    except Warning as error:
        return f"is ambiguous: {error}"
    except (OverflowError, ValueError, RecursionError) as error:
        return f"cannot be read: {error}"
    found = _refused(tree)
    return None if found is None else f"has {found}, which is not supported"


def _refused(items: Any) -> str | None:
    """The first construct that no automaton has, anywhere in a tree of Python's parser."""
    pending = list(items)
    while pending:
        entry = pending.pop()
        if isinstance(entry, tuple) and entry and entry[0] in _REFUSED:
            return _REFUSED[entry[0]]
        if isinstance(entry, tuple) and entry and entry[0] is sre.AT:
            if entry[1] in _WORD_BORDERS:
                return r"\b or \B"
        elif isinstance(entry, tuple | list | _parser.SubPattern):
            pending.extend(entry)
    return None
