"""Predicates, products, and constraints that begin after a marker."""

from __future__ import annotations

import itertools
import re
import time
from typing import Any

import numpy as np
import pytest
from fsm_vocabularies import byte_vocabulary, large_vocabulary, random_vocabulary

from radixray.errors import ConstraintError
from radixray.fsm import accepts, compile_constraint, prefix_ok
from radixray.fsm.byte_automaton import START
from radixray.fsm.predicate import PredicateConstraint
from radixray.fsm.product import ProductConstraint
from radixray.fsm.regex_constraint import RegexConstraint
from radixray.fsm.start_after import StartAfter, marker_automaton
from radixray.protocol import Constraint


class Balanced:
    """Parentheses, at most three deep, with an "é" anywhere."""

    def start(self) -> tuple[int, bool]:
        return 0, False

    def step(self, state: tuple[int, bool], byte: int) -> tuple[int, bool] | None:
        depth, half = state
        if half or byte == 0xC3:
            return (depth, not half) if byte == (0xA9 if half else 0xC3) else None
        depth += {40: 1, 41: -1}.get(byte, 9)
        return (depth, False) if 0 <= depth <= 3 else None

    def final(self, state: tuple[int, bool]) -> bool:
        return state == (0, False)

    def forced(self, state: tuple[int, bool]) -> bytes:
        return b"\xa9" if state[1] else b""


def balanced(text: str) -> bool:
    depth = 0
    for char in text:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if not 0 <= depth <= 3:
            return False
    return True


TEXTS = ["".join(c) for n in range(5) for c in itertools.product("()é", repeat=n)]


def test_both_kinds_as_strings() -> None:
    by_bytes = Constraint(predicate=Balanced())
    by_text = Constraint(predicate=lambda text: balanced(text))
    for text in TEXTS:
        viable = balanced(text)
        assert accepts(by_bytes, text) == (viable and text.count("(") == text.count(")"))
        assert prefix_ok(by_bytes, text) == prefix_ok(by_text, text) == viable
        assert accepts(by_text, text) == viable
    for data in (b"\xc3", b"\xc3\xa9\xc3", b"(\xe6\xbc"):
        assert prefix_ok(by_text, data) and not accepts(by_text, data)
    for data in (b"\xa9", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90", b"\xff", b"\xc3("):
        assert not prefix_ok(by_text, data)


@pytest.mark.parametrize("predicate", [Balanced(), balanced], ids=["bytes", "text"])
def test_masks_are_what_advance_allows(predicate: Any) -> None:
    vocabulary = random_vocabulary("(é)((é))é()".encode(), 5, every_byte=True)
    matcher = PredicateConstraint(predicate, vocabulary).matcher()
    for choice in range(12):
        mask = matcher.mask()
        for token_id in range(vocabulary.vocab_size):
            spelling = vocabulary.bytes_of(token_id)
            if token_id in vocabulary.eos_token_ids:
                assert mask[token_id] == matcher.is_accepting()
                continue
            assert mask[token_id] == bool(spelling and matcher.viable(spelling) == len(spelling))
            if not mask[token_id]:
                with pytest.raises(ConstraintError):
                    matcher.advance(token_id)
        content = [i for i in np.flatnonzero(mask) if i not in vocabulary.eos_token_ids]
        if choice % 3 == 2:
            matcher.rollback(1)
        else:
            matcher.advance(int(content[choice % len(content)]))
    assert len(matcher.trace()) == 4


def test_what_predicates_do_wrong() -> None:
    vocabulary = byte_vocabulary()

    def raises(text: str) -> bool:
        if text:
            raise KeyError("oops")
        return True

    matcher = PredicateConstraint(raises, vocabulary).matcher()
    for call in (matcher.mask, lambda: matcher.advance(97)):
        with pytest.raises(ConstraintError, match="oops"):
            call()
    with pytest.raises(ConstraintError, match="no token is allowed"):
        dead = PredicateConstraint(Dead(), vocabulary).matcher()
        dead.mask()
    for wrong in (3, object(), Balanced, "text"):
        with pytest.raises(ConstraintError, match="predicate"):
            PredicateConstraint(wrong, vocabulary)
    with pytest.raises(ConstraintError, match="no output"):
        PredicateConstraint(lambda text: False, vocabulary)
    with pytest.raises(ConstraintError, match="cannot be loaded"):
        compile_constraint(Constraint(predicate=b"nonsense"), vocabulary)


class Anything:
    """Goes wrong where it is asked to."""

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    def start(self) -> Any:
        return Unhashable() if self.wrong == "hash" else 0

    def step(self, state: Any, byte: int) -> Any:
        if self.wrong == "exit":
            raise SystemExit(3)
        return state

    def final(self, state: Any) -> bool:
        return False

    def forced(self, state: Any) -> Any:
        return {"text": "abc", "none": None, "number": 10**12}.get(self.wrong, b"")


class Unhashable:
    def __hash__(self) -> int:
        raise ValueError("no hash")


@pytest.mark.parametrize("wrong", ["text", "none", "number", "hash", "exit"])
def test_all_that_goes_wrong_is_the_constraints_error(wrong: str) -> None:
    matcher = PredicateConstraint(Anything(wrong), byte_vocabulary()).matcher()
    with pytest.raises(ConstraintError, match="predicate failed"):
        if matcher.forced() == b"":
            matcher.mask()


class Dead:
    def start(self) -> int:
        return 1

    def step(self, state: int, byte: int) -> None:
        return None

    def final(self, state: int) -> bool:
        return False


def test_a_slow_predicate_is_stopped() -> None:
    def slow(text: str) -> bool:
        time.sleep(0.0005)
        return True

    matcher = PredicateConstraint(slow, large_vocabulary(5000), budget_s=0.1).matcher()
    began = time.monotonic()
    with pytest.raises(ConstraintError, match=r"over 0\.1 s"):
        matcher.mask()
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Constraint(regex="[ab]{1,4}"), Constraint(regex="(?:ab|b)*")),
        (Constraint(choices=("aab", "abab", "bé", "é")), Constraint(regex="[ab]+|.é")),
        (Constraint(ebnf='root ::= "a" root "b" | ""'), Constraint(regex="a{1,2}b*")),
        (Constraint(json_schema={"type": "integer"}), Constraint(regex="-?[12]{2,3}")),
        (Constraint(regex="[ab]*"), Constraint(predicate=lambda text: text == "ab"[: len(text)])),
    ],
)
def test_products(first: Constraint, second: Constraint) -> None:
    vocabulary = byte_vocabulary()
    product = ProductConstraint(
        compile_constraint(first, vocabulary), compile_constraint(second, vocabulary), vocabulary
    )
    words = ["".join(c) for n in range(5) for c in itertools.product("abé12-", repeat=n)]
    for word in words:
        data, matcher = word.encode(), product.matcher()
        both = accepts(first, word) and accepts(second, word)
        viable = matcher.viable(data) == len(data)
        assert viable == (prefix_ok(first, word) and prefix_ok(second, word))
        if viable:
            for byte in data:
                matcher.advance(byte)
            assert matcher.is_accepting() == both
            forced = matcher.forced()
            if both:
                assert not forced
            matcher.rollback(len(data))
        else:
            assert not both


def test_a_product_forces_what_either_does() -> None:
    vocabulary = byte_vocabulary()
    pair = [RegexConstraint.compile(p, vocabulary) for p in ("[ab]cde[fg]", ".cd(?:ef|x)")]
    matcher = ProductConstraint(*pair, vocabulary).matcher()
    assert matcher.forced() == b""
    matcher.advance(ord("a"))
    assert matcher.forced() == b"cde"
    matcher = ProductConstraint(
        *(RegexConstraint.compile(p, vocabulary) for p in ("ab", "cd")), vocabulary
    ).matcher()
    assert matcher.forced() == b""
    with pytest.raises(ConstraintError, match="no token in common"):
        matcher.mask()


@pytest.mark.parametrize("marker", ["a", "aba", "aab", "</think>", "ababc", "é漢é", "\x00\x7f"])
def test_marker_automaton(marker: str) -> None:
    automaton = marker_automaton(marker.encode())
    letters = [*sorted(set(marker)), "x"]
    words = ["".join(c) for n in range(5) for c in itertools.product(letters[:4], repeat=n)]
    for word in words:
        for text in (word, word + marker, word + marker + "x"):
            data, needle = text.encode(), marker.encode()
            expected = data.find(needle) == len(data) - len(needle) if needle in data else False
            assert automaton.accepts(data) == expected, text
            alive = needle not in data[:-1] or expected
            assert (automaton.walk(START, data) != 0) == (alive or expected)


def test_start_after() -> None:
    constraint = Constraint(regex="[0-9]+", start_after="</think>")
    for text in ("</think>1", "well <</think>12", "</thin</think>1", "é\n</think>3"):
        assert accepts(constraint, text)
    for text in ("1", "</think>", "</think>x", "</think></think>1"):
        assert not accepts(constraint, text)
    assert prefix_ok(constraint, "anything at all </thi") and prefix_ok(constraint, "</think>")
    vocabulary = byte_vocabulary()
    inner = RegexConstraint.compile("abc|abd", vocabulary)
    matcher = StartAfter("##", inner, vocabulary).matcher()
    assert matcher.forced() == b"" and not matcher.mask()[256]
    assert matcher.mask()[:256].all()
    for byte in b"x###"[:3]:
        matcher.advance(byte)
    assert matcher.forced() == b"ab" and np.flatnonzero(matcher.mask()).tolist() == [97]
    for byte in b"abc":
        matcher.advance(byte)
    assert matcher.is_finished()
    matcher.advance(256)
    trace = matcher.trace()
    assert [step.token for step in trace] == [*b"x##abc", 256]
    matcher.rollback(5)
    assert matcher.mask()[:256].all() and matcher.viable(b"#abx") == 3
    assert re.fullmatch(".*##abc", "x##abc")


def test_a_token_across_the_marker_is_not_allowed() -> None:
    vocabulary = byte_vocabulary()
    tokens = [vocabulary.bytes_of(i) for i in range(256)] + [b"", b"##", b"##a", b"#a", b"z##"]
    from radixray.fsm.vocabulary import TokenVocabulary

    vocabulary = TokenVocabulary(tokens, {256})
    inner = RegexConstraint.compile("ab", vocabulary)
    mask = StartAfter("##", inner, vocabulary).matcher().mask()
    assert mask[257:].tolist() == [True, False, True, True]
