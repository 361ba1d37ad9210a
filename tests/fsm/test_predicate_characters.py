"""Predicates over text, and characters that tokens cut."""

from __future__ import annotations

import random

import pytest
from fsm_vocabularies import byte_vocabulary

from radixray.fsm.compiler import compile_constraint
from radixray.fsm.strings import accepts
from radixray.fsm.vocabulary import TokenVocabulary
from radixray.protocol import Constraint


@pytest.mark.parametrize(
    "members",
    ["aeiou", "éèà", "aé", "日本語", "漢😀", "\u07ff\u0800\uffff\U00010000\U0010ffff", "aéあ😀"],
)
def test_no_token_leads_into_a_dead_end(members: str) -> None:
    """At random over single bytes: whatever is allowed, something is allowed after it."""

    def viable(text: str) -> bool:
        return set(text) <= set(members) and len(text) <= 6

    rng = random.Random(len(members))
    for vocabulary in (byte_vocabulary(), with_characters(members)):
        compiled = compile_constraint(Constraint(predicate=viable), vocabulary)  # type: ignore[arg-type]
        for _ in range(5):
            matcher, output = compiled.matcher(), b""
            for _ in range(30):
                allowed = [i for i in range(vocabulary.vocab_size) if matcher.mask()[i]]
                token = rng.choice(allowed)
                if token in vocabulary.eos_token_ids:
                    break
                matcher.advance(token)
                output += vocabulary.bytes_of(token)
                if matcher.is_finished():
                    break
            assert viable(output.decode())


def with_characters(members: str) -> TokenVocabulary:
    """All bytes, and a token for each member."""
    spellings = [bytes((byte,)) for byte in range(256)] + [c.encode() for c in members] + [b""]
    return TokenVocabulary(spellings, {len(spellings) - 1})


@pytest.mark.parametrize("text", ["日", "\u07ff", "\uffff", "😀", "é"])
def test_a_single_character_may_be_all_that_is_viable(text: str) -> None:
    constraint = Constraint(predicate=lambda so_far: text.startswith(so_far))  # type: ignore[arg-type]
    assert accepts(constraint, text)
    vocabulary = with_characters(text)
    mask = compile_constraint(constraint, vocabulary).matcher().mask()
    assert mask[256]  # the token that spells it
