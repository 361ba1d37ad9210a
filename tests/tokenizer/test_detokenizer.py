from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_builders import PIECE_DECODERS, load, pieces

from radixray.tokenizer.detokenizer import IncrementalDetokenizer
from radixray.tokenizer.tokenizer import Tokenizer

TEXTS = [
    "👩‍👩‍👧‍👦 family",
    "日本語テキスト",
    "e\u0301a\u0308 né",
    "a\ufffdb",
    "plain <|im_end|> text",
    "",
]


def stream(tokenizer: Tokenizer, parts: list[list[int]]) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer)
    return [*(detokenizer.push(part) for part in parts), detokenizer.finish()]


@pytest.mark.parametrize("text", TEXTS)
def test_cut_at_every_index(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    whole = tokenizer.decode(ids)
    for cut in range(len(ids) + 1):
        assert "".join(stream(tokenizer, [ids[:cut], ids[cut:]])) == whole
    assert "".join(stream(tokenizer, [[i] for i in ids])) == whole


def test_no_character_is_split(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("😀日")
    assert len(ids) > 2
    seen = [piece for piece in stream(tokenizer, [[i] for i in ids]) if piece]
    assert seen == ["😀", "日"]


def test_incomplete_end_shows_at_finish(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("😀")[:-1]
    *pieces_, last = stream(tokenizer, [[i] for i in ids])
    assert "".join(pieces_) == ""
    assert last == tokenizer.decode(ids)


@given(parts=st.lists(st.lists(st.integers(0, 49151), max_size=4), max_size=8))
def test_random_ids(tokenizer: Tokenizer, parts: list[list[int]]) -> None:
    ids = [i for part in parts for i in part]
    assert "".join(stream(tokenizer, parts)) == tokenizer.decode(ids)


def test_random_bytes(tokenizer: Tokenizer) -> None:
    by_byte = {t: i for i, t in enumerate(tokenizer.token_bytes) if len(t) == 1}
    lead = st.sampled_from([0xE4, 0xED, 0xF0, 0x9F, 0x98, 0x80, 0xA0, 0xFF, 0xC0, 0x41])

    @given(data=st.lists(lead, max_size=10))
    def check(data: list[int]) -> None:
        ids = [by_byte[bytes([b])] for b in data if bytes([b]) in by_byte]
        assert "".join(stream(tokenizer, [[i] for i in ids])) == tokenizer.decode(ids)

    check()


def test_ids_beyond_the_vocabulary_stand_for_nothing(tokenizer: Tokenizer) -> None:
    size = tokenizer.vocab_size
    assert "".join(stream(tokenizer, [[size + 5], tokenizer.encode("a"), [size]])) == "a"


@pytest.mark.parametrize("name", PIECE_DECODERS)
def test_pieces(name: str) -> None:
    tokenizer = load(pieces(PIECE_DECODERS[name]))
    size = tokenizer.vocab_size
    interesting = st.one_of(
        st.integers(0, size),
        st.integers(size - 8, size - 1),
        st.sampled_from([2 + b for b in "😀é".encode()]),
    )

    @given(parts=st.lists(st.lists(interesting, max_size=3), max_size=8))
    def check(parts: list[list[int]]) -> None:
        ids = [i for part in parts for i in part]
        assert "".join(stream(tokenizer, parts)) == tokenizer.decode(ids)

    check()
