"""Patterns that end a text: beside Python's own regular expressions, however the text is cut."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixray.errors import ConstraintError, GrammarTooComplexError
from radixray.fsm.stop_regex import StopRegex
from radixray.tokenizer.stop import StopStrings

PATTERNS = [
    "ab+",
    "a|bb",
    "[ab]c",
    "(ab)+c",
    "b.",
    "é",
    "a{2,3}b",
    "a[^a]*b",
    r"\d\d",
    "(a|ab)(c|bcd)",
]


def by_definition(text: str, patterns: list[str], stops: list[str]) -> tuple[str, str | None]:
    """The shortest beginning of `text` that ends in a match, and its longest match."""
    whole = [re.compile(pattern, re.DOTALL) for pattern in patterns]
    for end in range(1, len(text) + 1):
        for begin in range(end):
            part = text[begin:end]
            if part in stops or any(pattern.fullmatch(part) for pattern in whole):
                return text[:begin], part
    return text, None


texts = st.text("abcdé1🦄\n", max_size=12)


@given(
    st.lists(texts, max_size=5),
    st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2),
    st.lists(st.sampled_from(["ab", "c", "🦄1"]), max_size=1),
)
def test_any_cut_gives_the_definition(
    parts: list[str], patterns: list[str], stops: list[str]
) -> None:
    # Our dialect's dot leaves out the line feed, as Python's does without DOTALL.
    patterns = [pattern.replace(".", r"[^\n]") for pattern in patterns]
    search = StopStrings(stops, [StopRegex(pattern) for pattern in patterns])
    out, matched = "", None
    for part in parts:
        text, matched = search.push(part)
        out += text
        if matched:
            break
    if matched is None:
        out += search.finish()
    assert (out, matched) == by_definition("".join(parts), patterns, stops)


def test_holds_back_only_what_may_match() -> None:
    search = StopStrings((), [StopRegex(r"\n[A-Z][a-z]+:")])
    assert search.push("one\nt") == ("one\nt", None)
    assert search.push("\n") == ("", None)
    assert search.push("User") == ("", None)
    assert search.push("s say") == ("\nUsers say", None)
    assert search.push("\nUser: hi") == ("", "\nUser:")


def test_hard_patterns_take_linear_time() -> None:
    """Backtracking would take 2**300 steps."""
    search = StopStrings((), [StopRegex(r"(a|a)*(a|aa)+b")])
    assert search.push("a" * 300) == ("", None)
    assert search.push("b")[1] == "a" * 300 + "b"


@pytest.mark.parametrize(
    ("pattern", "error"),
    [
        ("a*", ConstraintError),
        ("(", ConstraintError),
        ("(?=a)b", ConstraintError),
        ("(abc){1000}", GrammarTooComplexError),
        ("[é-🦄]{900}", GrammarTooComplexError),
    ],
)
def test_what_is_refused(pattern: str, error: type[ConstraintError]) -> None:
    for _ in range(2):
        with pytest.raises(error) as caught:
            StopRegex(pattern)
        assert caught.value.param == "stop_regex"
