"""The language of a compiled regex is that of `re.fullmatch`."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixray.errors import ConstraintError
from radixray.fsm.byte_automaton import DEAD, START, ByteAutomaton, determinise
from radixray.fsm.nfa import build_nfa
from radixray.fsm.regex_parser import parse_regex

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "cases_regex.jsonl").read_text().splitlines()
]


def compile_automaton(pattern: str) -> ByteAutomaton:
    return determinise(build_nfa(parse_regex(pattern)))


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: dict[str, Any]) -> None:
    if case["compile"] == "error":
        with pytest.raises(ConstraintError):
            compile_automaton(case["spec"])
        return
    try:
        automaton = compile_automaton(case["spec"])
    except ConstraintError:
        assert case["compile"] == "ok_or_error"
        return
    for text in case["accept"]:
        assert automaton.accepts(text.encode())
        assert re.fullmatch(case["spec"], text)
    for text in case["reject"]:
        assert not automaton.accepts(text.encode())
        assert not re.fullmatch(case["spec"], text)


def test_most_cases_compile() -> None:
    refused = set()
    for case in CASES:
        try:
            compile_automaton(case["spec"])
        except ConstraintError:
            refused.add(case["id"])
    assert refused == {
        "rx-anchor-mid-1", "rx-anchor-mid-2", "rx-invalid-double-star", "rx-invalid-range",
        "rx-unicode-repeat",
    }  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    [
        r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", ".", r"[^\n]", r"[^a-z\d]", r"[\W\d]",
        r"[^\W_]", r"(?s).", r"(?s:.)", r"(?a)\w", r"(?a:\d)", r"(?a)\W", r"(?a)[^\s]",
        "(?i)k", "(?i)[^k]", "(?i)s", "(?ai)s", "(?i)ß", "(?i)İ", r"(?i)\u0131", "(?i)[a-z]",
        "(?i)[^a-z]", r"(?i)[k\d]", r"(?i)[^\W\d]", "(?ai)é", "(?i)[à-þ]", "(?i)ǆ",
        "(?i)\U00010400", "(?i)[\U00010400-\U00010410]", "(?i:(?-i:a)|b)", r"\x41|\u0416",
        r"\N{EM DASH}", "[\x00-\U0010ffff]", r"[\ud000-\ue000]", r"[]\-^]", r"\101", r"(?i)Σ",
    ],
)  # fmt: skip
def test_single_characters_across_unicode(pattern: str) -> None:
    # All of the scripts that have cases, and a sample of the rest.
    expected, got = [], []
    automaton = compile_automaton(pattern)
    rng = random.Random(pattern)
    blocks = [range(0x3000), range(0xA640, 0xA800), range(0xFB00, 0xFB10), range(0x10400, 0x10500)]
    chars = {chr(code) for block in blocks for code in block}
    chars.update("\ud7ff\ue000\uffff\U0010ffff")
    chars.update(chr(rng.randrange(0x3000, 0x110000)) for _ in range(3000))
    for char in sorted(chars):
        if "\ud800" <= char <= "\udfff":
            continue
        expected.append(bool(re.fullmatch(pattern, char)))
        got.append(automaton.accepts(char.encode()))
    assert got == expected


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("a$", "a\n"), ("a$", "a"), (r"a\Z", "a\n"), ("^^a$$", "a"), ("(?:a$)?", "a\n"),
        ("(?:^a|^b)$", "b"), ("(?x) a b # c\n c", "abc"), ("(?x: a b)c d", "abc d"),
        ("a{,2}", "aa"),
        ("a{2,}", "a"), ("a{x}", "a{x}"), ("(?:a?){3}", ""), ("(?:)", ""), ("(|a)+", "aa"),
        ("(?P<n>a)(?#comment)b", "ab"), ("(?:a??)*?b", "aab"), ("(?m)a|b", "b"),
        (r"(?m)\Aa\Z", "a"), ("[a]{0}", ""), ("[a]{0}", "a"), ("(?:a{0}){5}b", "b"),
    ],
)  # fmt: skip
def test_python_corner(pattern: str, text: str) -> None:
    assert compile_automaton(pattern).accepts(text.encode()) == bool(re.fullmatch(pattern, text))


ALPHABET = "abAB1_ \n.éÉß\u017fkK\u212aжЖ漢😀\x00\x7f\x80߿ࠀ"

_literals = st.sampled_from(ALPHABET).map(re.escape)
_class_items = st.one_of(
    _literals,
    st.sampled_from([r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", "a-z", "À-ÿ", "\u0410-\u044f"]),
)
_classes = st.builds(
    lambda negated, items: f"[{'^' if negated else ''}{''.join(items)}]",
    st.booleans(),
    st.lists(_class_items, min_size=1, max_size=3),
)
_atoms = st.one_of(_literals, _literals, _classes, st.sampled_from([r"\d", r"\w", r"\S", ".", ""]))
_quantifiers = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{1,3}?", "{2,}"])
_groups = st.sampled_from(["(?:", "(", "(?i:", "(?s:", "(?a:", "(?-i:", "(?x:"])


def _extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.builds(lambda group, options: f"{group}{'|'.join(options)})", _groups,
                  st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda group, body, quantifier: f"{group}{body}){quantifier}", _groups, inner,
                  _quantifiers),
    )  # fmt: skip


patterns = st.builds(
    lambda flags, start, body, end: f"{flags}{start}(?:{body}){end}",
    st.sampled_from(["", "", "", "(?i)", "(?s)", "(?a)", "(?x)", "(?ai)"]),
    st.sampled_from(["", "", "^", r"\A"]),
    st.recursive(_atoms, _extend, max_leaves=6),
    st.sampled_from(["", "", "$", r"\Z"]),
)


def sample_member(automaton: ByteAutomaton, rng: random.Random) -> bytes | None:
    """A random member, or None if a random walk of 40 bytes does not end on one."""
    state, data = START, bytearray()
    for _ in range(40):
        if automaton.accepting[state] and rng.random() < 0.4:
            break
        steps = [b for b in range(256) if automaton.walk(state, bytes([b])) != DEAD]
        if not steps:
            break
        data.append(rng.choice(steps))
        state = automaton.walk(state, data[-1:])
    return bytes(data) if automaton.accepting[state] else None


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(patterns, st.lists(st.text(ALPHABET, max_size=5), max_size=12), st.integers(0, 2**32))
def test_same_verdict_as_fullmatch(pattern: str, texts: list[str], seed: int) -> None:
    try:
        automaton = compile_automaton(pattern)
    except ConstraintError as error:
        assert "matches no string" in str(error)
        assert not any(re.fullmatch(pattern, text) for text in texts)
        return
    for text in [*ALPHABET, *texts]:
        assert automaton.accepts(text.encode()) == bool(re.fullmatch(pattern, text)), text
    rng = random.Random(seed)
    for _ in range(5):
        member = sample_member(automaton, rng)
        if member is not None and len(member) <= 20:  # `re` may backtrack without end on more
            assert re.fullmatch(pattern, member.decode()), member
            other = member.decode() + rng.choice(ALPHABET)
            assert automaton.accepts(other.encode()) == bool(re.fullmatch(pattern, other)), other


_short_strings = [
    "".join(chars) for length in range(5) for chars in itertools.product("abé", repeat=length)
]


def _random_pattern(rng: random.Random, depth: int) -> str:
    if depth == 0:
        return rng.choice(["a", "a", "b", "b", "é", "[ab]", ""])
    kind = rng.randrange(3)
    inner = [_random_pattern(rng, depth - 1) for _ in range(2)]
    if kind == 0:
        return inner[0] + inner[1]
    if kind == 1:
        return f"(?:{inner[0]}|{inner[1]})"
    return f"(?:{inner[0]}){rng.choice(['*', '*', '+', '?', '*?', '{2}', '{0,2}', '{1,}'])}"


@pytest.mark.parametrize("seed", range(4))
def test_all_short_strings_over_a_small_alphabet(seed: int) -> None:
    # Loops in loops, which random strings over many characters hardly ever walk through.
    rng = random.Random(seed)
    for _ in range(150):
        pattern = _random_pattern(rng, rng.randint(2, 4))
        automaton = compile_automaton(pattern)
        expected = [bool(re.fullmatch(pattern, text)) for text in _short_strings]
        got = [automaton.accepts(text.encode()) for text in _short_strings]
        assert got == expected, pattern


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), patterns)
def test_members_that_re_knows_are_accepted(data: st.DataObject, pattern: str) -> None:
    try:
        automaton = compile_automaton(pattern)
    except ConstraintError:
        return
    text = data.draw(st.from_regex(pattern, fullmatch=True))
    if not any("\ud800" <= char <= "\udfff" for char in text):
        assert automaton.accepts(text.encode())


def test_every_state_lies_on_a_path_to_acceptance() -> None:
    for pattern in ("(?:ab|a[^\\s\\S]c|d)*e", r"\w{1,3}-\d", "x(?:[^\\s\\S])?"):
        automaton = compile_automaton(pattern)
        live = automaton.accepting.copy()
        for _ in range(len(automaton)):
            live |= live[automaton.transitions].any(axis=1)
        assert live[START:].all() and not live[DEAD]


def test_strings_that_are_not_utf8_are_never_accepted() -> None:
    automaton = compile_automaton(r"(?s).*")
    for data in (b"\x80", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
                 b"\xff", b"\xc3"):  # fmt: skip
        assert not automaton.accepts(data)
