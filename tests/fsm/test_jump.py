"""Forced text becomes tokens only as far as nothing that follows can change them."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
from fsm_vocabularies import byte_vocabulary
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixray.fsm import accepts, compile_constraint
from radixray.fsm.jump import Encode, Jumper
from radixray.fsm.matcher import Matcher
from radixray.fsm.regex_constraint import RegexConstraint
from radixray.fsm.vocabulary import TokenVocabulary
from radixray.protocol import Constraint
from radixray.tokenizer.tokenizer import Tokenizer


def encoder(tokenizer: Tokenizer) -> Encode:
    return lambda data: tokenizer.encode(data.decode())


def greedy(vocabulary: TokenVocabulary) -> Encode:
    """Longest match first: canonical for vocabularies without merges. -1 is no token's byte."""
    ids = {vocabulary.bytes_of(i): i for i in reversed(range(vocabulary.vocab_size))}

    def encode(data: bytes) -> list[int]:
        found = []
        while data:
            size = next((n for n in range(vocabulary.longest, 0, -1) if data[:n] in ids), 1)
            found.append(ids.get(data[:size], -1))
            data = data[size:]
        return found

    return encode


def generate(
    matcher: Matcher, tokenizer: Tokenizer, vocabulary: TokenVocabulary, text: bytes
) -> tuple[list[int], list[bool]]:
    """An output that spells `text`: forced tokens where there are, canonical ones elsewhere.

    Returns:
        The ids, and which of them were forced.
    """
    ids: list[int] = []
    jumped: list[bool] = []
    done = b""
    encode = encoder(tokenizer)
    jumper = Jumper(encode, tokenizer.pieces)
    while done != text:
        before = (matcher.forced(), matcher.mask().tobytes())
        forced = jumper.tokens(matcher, ids)
        assert (matcher.forced(), matcher.mask().tobytes()) == before
        step = forced or list(encode(text))[len(ids) : len(ids) + 1]
        for token_id in step:
            assert matcher.mask()[token_id]
            matcher.advance(token_id)
        ids += step
        jumped += [bool(forced)] * len(step)
        done = b"".join(map(vocabulary.bytes_of, ids))
        assert text.startswith(done)
    return ids, jumped


TEMPLATES = [
    (r'\{"name": "[a-z]{2,6}", "population": [0-9]{1,4}\}', '{{"name": "{w}", "population": {d}}}'),
    (r"order(Id|Name): [a-z]{2,6}\n\n+Total", "orderId: {w}\n\nTotal"),
    (r"naïve 漢字 (😀|😁)+ końcówka\n", "naïve 漢字 😁😀 końcówka\n"),
    (r"(?:東京駅|東京湾)の[a-z]{2,6}", "東京湾の{w}"),
    (r"def [a-z]{2,6}\(self\):\n    return [0-9]{1,4}\n", "def {w}(self):\n    return {d}\n"),
    (r"<item>[a-z]{2,6}</item>   <item>[0-9]{1,4}</item>", "<item>{w}</item>   <item>{d}</item>"),
    (r"it(?:'s|'re|'ll) [a-z]{2,6}", "it're {w}"),
    (r"(?:Above|Above Average|Average)", "Above Average"),
    (r"a\n\n(?:\n|b[a-z]{2,6})", "a\n\nb{w}"),
]


@pytest.mark.parametrize(("pattern", "template"), TEMPLATES)
def test_the_output_is_what_the_tokenizer_makes_of_its_text(
    pattern: str, template: str, tokenizer: Tokenizer, real_vocabulary: TokenVocabulary
) -> None:
    constraint = RegexConstraint.compile(pattern, real_vocabulary)
    for seed in range(15):
        rng = random.Random(seed)
        word = "".join(rng.choices("aeionrst", k=rng.randint(2, 6)))
        text = template.format(w=word, d=rng.randrange(9999))
        assert re.fullmatch(pattern, text), text
        ids, jumped = generate(constraint.matcher(), tokenizer, real_vocabulary, text.encode())
        assert ids == tokenizer.encode(text)
        assert any(jumped) or len(ids) < 6


PERSON = {
    "type": "object",
    "properties": {
        "order_identifier": {"type": "integer"},
        "order_name": {"type": "string"},
        "tags": {"type": "array", "items": {"enum": ["red", "reddish", "größe"]}},
        "population_of_the_city": {"type": ["integer", "null"]},
    },
    "required": ["order_identifier", "order_name", "tags", "population_of_the_city"],
    "additionalProperties": False,
}
XML = """root ::= "<list>\\n" item* "</list>\\n"
item ::= "  <item name=\\"" [a-z]+ "\\">" (item | [0-9]+) "</item>\\n"
"""


@pytest.mark.parametrize(
    ("constraint", "texts"),
    [
        (
            Constraint(json_schema=PERSON, whitespace=whitespace),
            [
                json.dumps(
                    {
                        "order_identifier": number,
                        "order_name": name,
                        "tags": tags,
                        "population_of_the_city": population,
                    },
                    separators=(",", ":") if whitespace == "compact" else None,
                    ensure_ascii=False,
                    indent=2 if whitespace == "flexible" else None,
                )
                for number, name, tags, population in [
                    (12, "a b", ["red", "größe"], None),
                    (-3, "", [], 2140000),
                    (0, "naïve 漢", ["reddish"], 7),
                ]
            ],
        )
        for whitespace in ("spaced", "compact", "flexible")
    ]
    + [
        (
            Constraint(ebnf=XML),
            [
                "<list>\n</list>\n",
                '<list>\n  <item name="abc">12</item>\n  <item name="x">  <item name="y">3</item>\n'
                "</item>\n</list>\n",
            ],
        ),
        (
            Constraint(choices=("Above Average", "Above", "Average", "Below average, by far")),
            ["Above Average", "Above", "Average", "Below average, by far"],
        ),
    ],
    ids=["json", "compact json", "indented json", "grammar", "choices"],
)
def test_grammars_jump_to_canonical_tokens(
    constraint: Constraint,
    texts: list[str],
    tokenizer: Tokenizer,
    real_vocabulary: TokenVocabulary,
) -> None:
    compiled = compile_constraint(constraint, real_vocabulary)
    share: list[bool] = []
    for text in texts:
        assert accepts(constraint, text)
        ids, jumped = generate(compiled.matcher(), tokenizer, real_vocabulary, text.encode())
        assert ids == tokenizer.encode(text)
        share += jumped
    assert sum(share) > 0.2 * len(share)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    parts=st.lists(st.text("ab .,'\n0é漢😀{\":", min_size=1, max_size=12), min_size=2, max_size=5),
    seed=st.integers(0, 2**32),
)
def test_any_forced_text_round_trips(
    parts: list[str], seed: int, tokenizer: Tokenizer, real_vocabulary: TokenVocabulary
) -> None:
    # Fixed parts with a letter to choose between them.
    rng = random.Random(seed)
    letters = rng.choice(["xyz", "XY", "12", ".,", " \n", "éж"])
    pattern = f"[{letters}]".join(map(re.escape, parts))
    text = "".join(part + rng.choice(letters) for part in parts[:-1]) + parts[-1]
    matcher = RegexConstraint.compile(pattern, real_vocabulary).matcher()
    ids, _ = generate(matcher, tokenizer, real_vocabulary, text.encode())
    assert ids == tokenizer.encode(text)


def test_what_another_token_could_join_is_left_to_the_model() -> None:
    tokens = [b"a", b"b", b"c", b"d", b"ab", b"cd", b"bcx", b"x", b""]
    vocabulary = TokenVocabulary(tokens, {8})
    encode = greedy(vocabulary)

    def jump(pattern: str) -> list[bytes]:
        matcher = RegexConstraint.compile(pattern, vocabulary).matcher()
        return [tokens[i] for i in Jumper(encode).tokens(matcher, [])]

    assert jump("abc") == [b"ab", b"c"]  # nothing follows
    assert jump("abc(?:a|b)") == [b"ab", b"c"]  # no token goes on from there
    assert jump("abc(?:d|a)") == [b"ab"]  # cd may
    assert jump("abc(?:x|a)") == []  # bcx may, and it begins inside ab
    assert jump("abcx?") == []  # the same where the output may end


def test_no_character_is_split() -> None:
    vocabulary = byte_vocabulary()

    def encode(data: bytes) -> list[int]:
        data.decode()
        return list(data)

    matcher = RegexConstraint.compile("(?:aé海|aé混)水", vocabulary).matcher()
    forced = bytes(Jumper(encode).tokens(matcher, []))
    assert forced == "aé".encode()
    for byte in forced + "混".encode()[:2]:
        matcher.advance(byte)
    # In the middle of a character: its tokens are part of what is tokenised again.
    tail = list(forced + "混".encode()[:2])
    assert bytes(Jumper(encode).tokens(matcher, tail)) == "混".encode()[2:] + "水".encode()
    assert Jumper(encode).tokens(matcher, []) == []


def test_an_encoder_that_changes_the_text_forces_nothing() -> None:
    vocabulary = byte_vocabulary()
    matcher = RegexConstraint.compile("Abc", vocabulary).matcher()
    assert Jumper(lambda data: list(data.lower())).tokens(matcher, []) == []
    assert Jumper(lambda data: [257, *data]).tokens(matcher, []) == []
    assert np.flatnonzero(matcher.mask()).tolist() == [ord("A")]


def test_text_that_is_no_utf8_is_not_tokenised() -> None:
    vocabulary = byte_vocabulary()
    jumper = Jumper(lambda text: list(text.decode().encode()))
    # Before a marker anything may come.
    constraint = Constraint(regex="abc", start_after="z")
    matcher = compile_constraint(constraint, vocabulary).matcher()
    tail = [0xE6, ord("z")]
    for token in tail:
        matcher.advance(token)
    assert bytes(jumper.tokens(matcher, tail)) == b"abc"

    class Bytes:
        def start(self) -> int:
            return 0

        def step(self, state: int, byte: int) -> int | None:
            return state + 1 if b"a\xffb"[state : state + 1] == bytes([byte]) else None

        def final(self, state: int) -> bool:
            return state == 3

        def forced(self, state: int) -> bytes:
            return b"a\xffb"[state:]

    matcher = compile_constraint(Constraint(predicate=Bytes()), vocabulary).matcher()
    assert jumper.tokens(matcher, []) == []


def test_what_was_learnt_of_a_text_changes_nothing(
    tokenizer: Tokenizer, real_vocabulary: TokenVocabulary
) -> None:
    # The same text is forced, and different ones may follow.
    patterns = [f'"order(?:{kind})"' for kind in ("Id|Name", "[0-9]{2}", ", |: ", "é|ß", "")]
    patterns += [r"a\n\n(?:\n|b)", r"a\n\n[bc]", r"a\n\n[0-9]", r"it's(?:!|\?)", r"it's[a-z]"]
    shared = Jumper(encoder(tokenizer), tokenizer.pieces)
    for _ in range(2):
        for pattern in patterns:
            matcher = RegexConstraint.compile(pattern, real_vocabulary).matcher()
            fresh = Jumper(encoder(tokenizer), tokenizer.pieces).tokens(matcher, [])
            assert shared.tokens(matcher, []) == fresh
