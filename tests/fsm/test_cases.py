"""Cases from other projects' bug reports, as strings and through three kinds of vocabulary."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from fsm_vocabularies import random_vocabulary

from radixray.errors import ConstraintError
from radixray.fsm import accepts, compile_constraint, prefix_ok
from radixray.fsm.matcher import CompiledConstraint
from radixray.fsm.vocabulary import TokenVocabulary
from radixray.protocol import Constraint
from radixray.tokenizer.tokenizer import Tokenizer

FOLDER = Path(__file__).parent
CASES: list[dict[str, Any]] = [
    {"kind": "regex", **json.loads(line)}
    for line in (FOLDER / "cases_regex.jsonl").read_text().splitlines()
] + [json.loads(line) for line in (FOLDER / "cases_grammar.jsonl").read_text().splitlines()]

NEVER_GENERATED = {'"\\/"'}
"""JSON strings that are right but that llguidance has no way to allow: an escaped slash."""


def constraint_of(case: dict[str, Any]) -> Constraint:
    return Constraint(**{case["kind"]: case["spec"]})


def compiled(case: dict[str, Any], vocabulary: TokenVocabulary) -> CompiledConstraint | None:
    """The case compiled, or None where it is refused, and may be."""
    try:
        result = compile_constraint(constraint_of(case), vocabulary)
    except ConstraintError:
        assert case["compile"] != "ok"
        return None
    assert case["compile"] != "error"
    return result


def takes(constraint: CompiledConstraint, tokens: list[int], eos: int) -> bool:
    """Whether the tokens and then an end are allowed, by masks and by `advance` alike."""
    matcher = constraint.matcher()
    for token_id in [*tokens, eos]:
        allowed = bool(matcher.mask()[token_id])
        try:
            matcher.advance(token_id)
        except ConstraintError:
            assert not allowed
            return False
        assert allowed
    return True


def split(data: bytes, vocabulary: TokenVocabulary, rng: random.Random) -> list[int]:
    """Any tokens that spell `data`."""
    ids = list(range(vocabulary.vocab_size))
    found: list[int] = []
    while data:
        fitting = [i for i in ids if (t := vocabulary.bytes_of(i)) and data.startswith(t)]
        found.append(rng.choice(fitting))
        data = data[len(vocabulary.bytes_of(found[-1])) :]
    return found


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_as_strings(case: dict[str, Any]) -> None:
    try:
        verdicts = {
            text: accepts(constraint_of(case), text) for text in [*case["accept"], *case["reject"]]
        }
        accepts(constraint_of(case), "")
    except ConstraintError as error:
        assert case["compile"] != "ok"
        assert error.param in ("regex", "json_schema", "ebnf")
        return
    assert case["compile"] != "error"
    for text in case["accept"]:
        assert verdicts[text] or text in NEVER_GENERATED, text
        if verdicts[text]:
            step = max(1, len(text) // 50)
            assert all(prefix_ok(constraint_of(case), text[:n]) for n in range(0, len(text), step))
    for text in case["reject"]:
        assert not verdicts[text], text


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_through_a_random_vocabulary(case: dict[str, Any]) -> None:
    # Pieces across all borders, halves of characters, duplicates, an empty token, gaps, two ends.
    rng = random.Random(case["id"])
    texts = [text.encode() for text in [*case["accept"], *case["reject"]]]
    material = b"".join(text[:200] for text in texts) + b'": ", }a0'
    every = bytes(sorted(set(b"".join(texts))))
    vocabulary = random_vocabulary(material + every, rng.randrange(1000), every_byte=True)
    constraint = compiled(case, vocabulary)
    if constraint is None:
        return
    for eos in vocabulary.eos_token_ids:
        for text in case["accept"]:
            tokens = split(text.encode(), vocabulary, rng)
            assert takes(constraint, tokens, eos) or text in NEVER_GENERATED, text
        for text in case["reject"]:
            assert not takes(constraint, split(text.encode(), vocabulary, rng), eos), text


def test_through_the_real_tokenizer(tokenizer: Tokenizer, real_vocabulary: TokenVocabulary) -> None:
    for case in CASES:
        constraint = compiled(case, real_vocabulary)
        if constraint is None:
            continue
        for text in [*case["accept"], *case["reject"]]:
            tokens = tokenizer.encode(text)
            if b"".join(map(real_vocabulary.bytes_of, tokens)) != text.encode():
                continue  # special tokens, and bytes this tokenizer has none for
            wanted = text in case["accept"] and text not in NEVER_GENERATED
            assert takes(constraint, tokens, 2) == wanted, (case["id"], text)
