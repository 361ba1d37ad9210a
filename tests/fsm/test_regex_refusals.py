"""What is refused says where, and what is too big says so at once."""

from __future__ import annotations

import pickle
import time

import pytest

from radixray.errors import ConstraintError
from radixray.fsm.byte_automaton import determinise
from radixray.fsm.nfa import build_nfa
from radixray.fsm.regex_parser import MAX_PATTERN_LENGTH, parse_regex


@pytest.mark.parametrize(
    ("pattern", "position", "reason"),
    [
        (r"a(?=b|c)", 1, "look-ahead"),
        (r"ab(?!c)", 2, "negative look-ahead"),
        (r"x(?<=x)", 1, "look-behind"),
        (r"x(?<!ab|ac)y", 1, "negative look-behind"),
        (r"(a)b\1", 4, "back-reference"),
        (r"(?P<n>a)(?P=n)", 8, "back-reference"),
        (r"(a)(?(1)b|c)", 3, "conditional"),
        (r"x(?>ab)", 1, "atomic"),
        (r"ab{2}+", 5, "possessive"),
        (r"a*+", 2, "possessive"),
        (r"foo\bx", 3, r"\b"),
        (r"foo\Bx", 3, r"\B"),
        (r"(?m)^a", 4, "(?m)"),
        (r"(?m:a$)", 5, "(?m)"),
        (r"a^b", 1, "start"),
        (r"a$b", 1, "end"),
        (r"a*^b", 2, "start"),
        (r"a$\n", 1, "end"),
        (r"ab\Ac", 2, "start"),
        (r"a\Zb", 1, "end"),
        (r"(?:^a)*", 3, "start"),
        (r"(?:a$){2}", 4, "end"),
        (r"(?:^a|^b)x^", 10, "start"),
        ("(?x) a # c\n (?=b)", 12, "look-ahead"),
        (r"a|b(?=c|d)|e", 3, "look-ahead"),
        (r"[(?=]\b", 5, r"\b"),
        (r"\\(?=a)", 2, "look-ahead"),
        (r"foo**", 4, "multiple repeat"),
        (r"a{3,2}", 2, "min repeat"),
        (r"ab(", 2, "unterminated"),
        (r"a)", 1, "parenthesis"),
        (r"[z-a]", 1, "range"),
        (r"a\p{L}", 1, "bad escape"),
        (r"\1", 1, "group reference"),
        (r"a{99999999999}", 14, "too large"),
        ("(" * 4000 + ")" * 4000, None, "nested too deeply"),
    ],
)
def test_refusal_names_the_position(pattern: str, position: int | None, reason: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        parse_regex(pattern)
    message = str(caught.value)
    assert reason in message
    assert " at position " in message
    if position is not None:
        assert message.endswith(f" at position {position}")
    assert caught.value.param == "regex"
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(a{1000}){1000}", "too big"),
        (r"((((a{9999}){9999}){9999}){9999}){9999}", "too big"),
        (r"(\w{0,400}){9}", "too big"),
        (r"a{4000000000}", "too big"),
        (r"(?:a|b)*a(?:a|b){30}", "too complex"),
        (r"((a?){100}){100}", "too complex"),
        (r"[ab]*a.{0,3000}x", "too complex"),
        (r"(\w+\s*){30}", "too complex"),
        (r"\w{0,50}\d{0,50}\W{0,50}", "too complex"),
        (r"[^\s\S]", "no string"),
        ("\ud800", "no string"),
        ("a" * (MAX_PATTERN_LENGTH + 1), "at most"),
    ],
)
def test_what_is_too_big_is_refused_quickly(pattern: str, reason: str) -> None:
    began = time.process_time()
    with pytest.raises(ConstraintError, match=reason) as caught:
        determinise(build_nfa(parse_regex(pattern)))
    assert caught.value.param == "regex"
    assert time.process_time() - began < 10  # about one on an idle core


def test_repeating_nothing_is_nothing() -> None:
    assert determinise(build_nfa(parse_regex("(?:){4000000000}a"))).accepts(b"a")
