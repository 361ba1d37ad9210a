"""Masks and matchers against brute force over finite languages."""

from __future__ import annotations

import itertools
import random
import re
import time
from functools import cache

import numpy as np
import pytest
from fsm_vocabularies import byte_vocabulary, large_vocabulary, random_vocabulary

from radixray.constraint import TraceStep
from radixray.errors import ConstraintError
from radixray.fsm.byte_automaton import DEAD, START
from radixray.fsm.matcher import Matcher
from radixray.fsm.regex_constraint import RegexConstraint
from radixray.fsm.vocabulary import TokenVocabulary

ALPHABET = "abé漢"
PATTERNS = [
    "", "ab?", "a|ab|abé", "(?:a|é|漢){0,3}", "(?:ab|[bé漢]){1,2}", "é漢?(?:a|漢)", "漢é漢é",
    "(?:ab|b)[bé]?", "[abé漢]{2,3}", "a{2}b{0,2}|漢",
]  # fmt: skip
"""Finite languages over ALPHABET; no member is longer than four characters."""

TEXT = "aabébaé漢aé漢é漢éab漢漢abé".encode()


def members_of(pattern: str) -> set[bytes]:
    lengths = (itertools.product(ALPHABET, repeat=n) for n in range(5))
    strings = map("".join, itertools.chain.from_iterable(lengths))
    return {text.encode() for text in strings if re.fullmatch(pattern, text)}


def vocabularies() -> list[TokenVocabulary]:
    """Some with a token for every byte of ALPHABET, some without; none spells other bytes."""
    known = set(ALPHABET.encode())
    drafts = [byte_vocabulary()]
    drafts += [random_vocabulary(TEXT, seed, every_byte=seed < 3) for seed in range(12)]
    return [
        TokenVocabulary(
            [
                token if set(token) <= known else b""
                for token in map(draft.bytes_of, range(draft.vocab_size))
            ],
            draft.eos_token_ids,
        )
        for draft in drafts
    ]


class BruteForce:
    """What a finite language and a vocabulary allow after an output, by trying every token."""

    def __init__(self, members: set[bytes], vocabulary: TokenVocabulary) -> None:
        self.members = members
        self.prefixes = {member[:n] for member in members for n in range(len(member) + 1)}
        self.eos = vocabulary.eos_token_ids
        self.tokens = [vocabulary.bytes_of(i) for i in range(vocabulary.vocab_size)]
        self.completable = cache(self._completable)

    def _completable(self, output: bytes) -> bool:
        return output in self.members or any(self.allows(output, t) for t in self.tokens)

    def allows(self, output: bytes, token: bytes) -> bool:
        after = output + token
        return bool(token) and after in self.prefixes and self.completable(after)

    def mask(self, output: bytes) -> list[bool]:
        return [
            output in self.members if token_id in self.eos else self.allows(output, token)
            for token_id, token in enumerate(self.tokens)
        ]

    def forced(self, output: bytes) -> bytes:
        """The longest common beginning of what may follow, up to the first member."""
        forced = b""
        while output + forced not in self.members:
            stem = output + forced
            longer = [p for p in self.prefixes if len(p) == len(stem) + 1]
            nexts = {p[-1:] for p in longer if p.startswith(stem)}
            if len(nexts) > 1:
                break
            forced += nexts.pop()
        return forced


def check_from(output: bytes, matcher: Matcher, brute: BruteForce, seen: set[bytes]) -> None:
    """Compares at `output` and at every output reachable from it."""
    seen.add(output)
    mask = matcher.mask()
    assert mask.tolist() == brute.mask(output), output
    assert mask.any()
    assert matcher.is_accepting() == (output in brute.members)
    content = [int(i) for i in np.flatnonzero(mask) if i not in brute.eos]
    assert matcher.is_finished() == (not content)
    assert matcher.forced() == brute.forced(output)
    for token_id in content:
        longer = output + brute.tokens[token_id]
        if longer not in seen:
            matcher.advance(token_id)
            check_from(longer, matcher, brute, seen)
            matcher.rollback(1)
            assert (matcher.mask() == mask).all()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_masks_equal_brute_force_everywhere(pattern: str) -> None:
    members = members_of(pattern)
    for vocabulary in vocabularies():
        brute = BruteForce(members, vocabulary)
        if brute.completable(b""):
            matcher = RegexConstraint.compile(pattern, vocabulary).matcher()
            check_from(b"", matcher, brute, set())
        else:
            with pytest.raises(ConstraintError, match="no tokens that spell"):
                RegexConstraint.compile(pattern, vocabulary)


@pytest.mark.parametrize("pattern", [r"\w{1,3}", "[^a]*", "é+|.b", r"(?:\d|漢)*", "(?s).*", "a{3}"])
def test_no_reachable_state_has_an_empty_mask(pattern: str) -> None:
    for vocabulary in [byte_vocabulary(), *vocabularies()]:
        try:
            constraint = RegexConstraint.compile(pattern, vocabulary)
        except ConstraintError as error:
            assert "no tokens that spell" in str(error)
            continue
        reached, pending = {START}, [START]
        while pending:
            state = pending.pop()
            mask = constraint.mask(state)
            assert mask.any()
            for eos in vocabulary.eos_token_ids:
                assert mask[eos] == constraint.automaton.accepting[state]
            content = 0
            for token_id in range(vocabulary.vocab_size):
                if token_id in vocabulary.eos_token_ids:
                    continue
                end = constraint.after(state, token_id)
                assert mask[token_id] == (end != DEAD)
                content += end != DEAD
                if end != DEAD and end not in reached:
                    reached.add(end)
                    pending.append(end)
            assert constraint.continues(state) == (content > 0)


def test_a_byte_without_a_token_is_never_led_to() -> None:
    vocabulary = TokenVocabulary([b"a", b"b", b"bc", b""], {3})
    # "c" can only be spelled right after "b", as one token.
    matcher = RegexConstraint.compile("a(?:b|bc|c)?|bcc", vocabulary).matcher()
    assert np.flatnonzero(matcher.mask()).tolist() == [0]
    matcher.advance(0)
    assert np.flatnonzero(matcher.mask()).tolist() == [1, 2, 3]
    matcher.advance(1)
    assert np.flatnonzero(matcher.mask()).tolist() == [3]
    assert matcher.is_finished()
    with pytest.raises(ConstraintError, match="vocabulary has no tokens"):
        RegexConstraint.compile("ac", vocabulary)


def test_advance_accepts_what_the_mask_allows_and_nothing_else() -> None:
    vocabulary = byte_vocabulary()
    matcher = RegexConstraint.compile("ab?", vocabulary).matcher()
    for token_id in (98, 256, 257, 258, 259, -1, 10**9):
        with pytest.raises(ConstraintError):
            matcher.advance(token_id)
    matcher.advance(97)
    matcher.advance(258)
    assert matcher.is_finished() and matcher.is_accepting() and matcher.forced() == b""
    assert not matcher.mask().any()
    for token_id in (98, 256):
        with pytest.raises(ConstraintError, match="follows the end"):
            matcher.advance(token_id)
    matcher.rollback(1)
    assert not matcher.is_finished()
    matcher.advance(98)
    assert matcher.is_finished()


def test_eos_ids_never_spell_text() -> None:
    vocabulary = TokenVocabulary([b"<", b"/s>", b"</s>", b""], {2})
    matcher = RegexConstraint.compile("(?:</s>)+", vocabulary).matcher()
    assert np.flatnonzero(matcher.mask()).tolist() == [0]
    assert matcher.forced() == b"</s>"
    matcher.advance(0)
    matcher.advance(1)
    assert np.flatnonzero(matcher.mask()).tolist() == [0, 2]


def test_forced_runs() -> None:
    vocabulary = byte_vocabulary()

    def after(pattern: str, output: bytes) -> bytes:
        matcher = RegexConstraint.compile(pattern, vocabulary).matcher()
        for byte in output:
            matcher.advance(byte)
        return matcher.forced()

    pattern = r"The address is (?:[0-9]{1,3}\.){3}[0-9]{1,3}"
    assert after(pattern, b"") == b"The address is "
    assert after(pattern, b"The add") == b"ress is "
    assert after(pattern, b"The address is 1") == b""
    assert after(pattern, b"The address is 123") == b"."
    assert after("(?:海|混)水", b"") == b"\xe6"  # the first byte is common, then a choice
    assert after("(?:海|混)水", "海".encode()) == "水".encode()
    assert after("ab?", b"") == b"a"
    assert after("ab?", b"a") == b""
    assert after("abab|abac", b"") == b"aba"


def test_rollback_and_trace() -> None:
    vocabulary = byte_vocabulary()
    matcher: Matcher = RegexConstraint.compile("(?:ab|cd)+", vocabulary).matcher()
    masks = [matcher.mask()]
    output = [*b"abcdab", 256]
    for token_id in output:
        matcher.advance(token_id)
        masks.append(matcher.mask())
    trace = matcher.trace()
    assert trace[0] == TraceStep(
        step=0,
        state=START,
        token=97,
        text="a",
        allowed=2,
        first_allowed=(97, 99),
        forced=False,
        why="chosen by the model out of 2",
    )
    assert trace[1].why == "the only token allowed"
    assert trace[-1].why == "ends the output, which matches"
    assert [step.token for step in trace] == output
    assert [step.allowed for step in trace] == [int(mask.sum()) for mask in masks[:-1]]
    for count in (1, 0, 2, 4):
        matcher.rollback(count)
        length = len(matcher.trace())
        assert (matcher.mask() == masks[length]).all()
        assert matcher.trace() == trace[:length]
    for wrong in (1, -1):
        with pytest.raises(ValueError, match="roll back"):
            matcher.rollback(wrong)
    for token_id in output:
        matcher.advance(token_id)
    assert matcher.trace() == trace


def test_matchers_do_not_interact() -> None:
    constraint = RegexConstraint.compile(
        "(?:a|é){0,6}", random_vocabulary(TEXT, 1, every_byte=True)
    )
    rng = random.Random(0)
    pair = [constraint.matcher(), constraint.matcher()]
    outputs: list[list[int]] = [[], []]
    for _ in range(60):
        which = rng.randrange(2)
        if pair[which].is_finished() or (outputs[which] and rng.random() < 0.3):
            pair[which].rollback(1)
            outputs[which].pop()
        else:
            token_id = int(rng.choice(np.flatnonzero(pair[which].mask())))
            pair[which].advance(token_id)
            outputs[which].append(token_id)
        alone = constraint.matcher()
        for token_id in outputs[which]:
            alone.advance(token_id)
        assert alone.trace() == pair[which].trace()
        assert (alone.mask() == pair[which].mask()).all()


def test_vocabulary_checks_its_arguments() -> None:
    with pytest.raises(ValueError, match="EOS id 5"):
        TokenVocabulary([b"a"], {5})
    with pytest.raises(ValueError, match="vocab_size"):
        TokenVocabulary([b"a", b"b"], set(), vocab_size=1)
    empty = TokenVocabulary([b"", b""], {1}, vocab_size=4)
    assert RegexConstraint.compile("", empty).mask(START).tolist() == [False, True, False, False]


@pytest.mark.parametrize("pattern", ["(?s).*", "[a-z ]+", r"\w{1,9}", "yes|no", "(?:é|漢)+ ?a*"])
def test_masks_of_a_large_vocabulary(pattern: str) -> None:
    vocabulary = _large()
    constraint = RegexConstraint.compile(pattern, vocabulary, mask_cache_bytes=0)
    states = range(START, min(len(constraint.automaton), START + 3))
    times = []
    for state in states:
        began = time.perf_counter()
        mask = constraint.mask(state)
        times.append(time.perf_counter() - began)
        for token_id in range(0, vocabulary.vocab_size, 7):
            if token_id not in vocabulary.eos_token_ids:
                assert mask[token_id] == (constraint.after(state, token_id) != DEAD)
    assert min(times) < 0.02  # about 1 ms on an idle core


@cache
def _large() -> TokenVocabulary:
    return large_vocabulary()
