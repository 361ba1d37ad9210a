from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_builders import PIECE_DECODERS, byte_level, load, pieces
from tokenizers import decoders, normalizers

from radixray.errors import InvalidRequestError, ModelNotFoundError, UnsupportedModelError
from radixray.protocol import TokenizerFiles
from radixray.tokenizer.tokenizer import Tokenizer, read_tokenizer_files

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "I'll\tgo\n\n  home 1234",
    "naïve café",
    "日本語のテキスト。",
    "👩‍👩‍👧 ok",
    "e\u0301",
    "<|im_start|>user\nhi<|im_end|>\n",
    "\x00\x1f",
    "Ġ",
    "a" * 500,
]
MORE = st.one_of(
    st.text(max_size=12),
    st.lists(
        st.sampled_from(
            [
                "I",
                "'",
                "l",
                "ll",
                " ",
                "  ",
                "\n",
                "a",
                "1",
                "23",
                "。",
                "<",
                "|",
                "im_",
                "end|>",
                "<|im_end|>",
                "<|im_start|>",
                "<repo",
                "name>",
                "é",
                "日",
                "!",
                "_",
                "e\u0301",
            ]
        ),
        max_size=8,
    ).map("".join),
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("special", [False, True])
def test_encode_equals_transformers(
    tokenizer: Tokenizer, oracle: Any, text: str, special: bool
) -> None:
    assert tokenizer.encode(text, add_special_tokens=special) == oracle.encode(
        text, add_special_tokens=special
    )


@given(ids=st.lists(st.integers(0, 49151), max_size=30))
def test_decode_equals_transformers(tokenizer: Tokenizer, oracle: Any, ids: list[int]) -> None:
    assert tokenizer.decode(ids) == oracle.decode(
        ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )


@given(ids=st.lists(st.integers(0, 49151), max_size=30))
def test_token_bytes_joined_are_the_text(tokenizer: Tokenizer, ids: list[int]) -> None:
    joined = b"".join(tokenizer.token_bytes[i] for i in ids)
    assert joined.decode(errors="replace") == tokenizer.decode(ids)


# SmolLM2 has no tokens for some bytes of control and unassigned characters, and drops them.
@given(text=st.text(st.characters(exclude_categories=["Cc", "Cs", "Cn", "Co"])))
def test_token_bytes_of_a_text_are_its_utf8(tokenizer: Tokenizer, text: str) -> None:
    joined = b"".join(tokenizer.token_bytes[i] for i in tokenizer.encode(text))
    assert joined == text.encode()


def test_numbers_and_special_ids(tokenizer: Tokenizer, oracle: Any) -> None:
    assert tokenizer.vocab_size == len(oracle)
    assert set(oracle.all_special_ids) <= tokenizer.special_ids
    assert tokenizer.eos_token_id == oracle.eos_token_id
    assert all(tokenizer.token_bytes[i] == b"" for i in tokenizer.special_ids)


def test_a_lone_surrogate_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="Unicode") as caught:
        tokenizer.encode("\ud800")
    assert caught.value.param == "text"


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json"):
        read_tokenizer_files(tmp_path)
    with pytest.raises(UnsupportedModelError):
        Tokenizer(TokenizerFiles(tokenizer_json=b"{}", tokenizer_config=b"{}"))


def test_template_from_the_config(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_level().to_str())
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "one"}))
    assert read_tokenizer_files(tmp_path).chat_template == "one"
    several = [{"name": "tool", "template": "t"}, {"name": "default", "template": "two"}]
    config.write_text(json.dumps({"chat_template": several}))
    assert read_tokenizer_files(tmp_path).chat_template == "two"
    config.write_text("{}")
    assert read_tokenizer_files(tmp_path).chat_template is None


def test_unknown_decoder_is_named() -> None:
    with pytest.raises(UnsupportedModelError, match="WordPiece"):
        load(pieces(decoders.WordPiece()))


def test_pieces_have_bytes() -> None:
    tokenizer = load(pieces(PIECE_DECODERS["llama"]), eos_token={"content": "</s>"})
    ids = tokenizer.encode("a 日😀")
    joined = b"".join(tokenizer.token_bytes[i] for i in ids)
    assert joined == "a 日😀".encode()
    assert tokenizer.eos_token_id == 1


def test_an_added_token_stands_for_its_own_text() -> None:
    tokenizer = load(byte_level())
    assert tokenizer.token_bytes[tokenizer.encode("  ")[0]] == b"  "


@given(text=MORE, more=MORE)
def test_split_stable_smollm2(tokenizer: Tokenizer, text: str, more: str) -> None:
    ids, tail = tokenizer.split_stable(text)
    assert text.endswith(tail)
    assert ids + tokenizer.encode(tail + more) == tokenizer.encode(text + more)


PARTS = st.lists(
    st.sampled_from(["a", " ", "  ", "\n", "<sep>", "<sep", ">", "<eat>", "<left>", "e", "\u0301"]),
    max_size=8,
).map("".join)


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC()], ids=["none", "nfc"])
def test_split_stable_around_special_tokens(normalizer: object | None) -> None:
    tokenizer = load(byte_level(normalizer))

    @given(text=PARTS, more=PARTS)
    def check(text: str, more: str) -> None:
        ids, tail = tokenizer.split_stable(text)
        assert ids + tokenizer.encode(tail + more) == tokenizer.encode(text + more)

    check()


def test_split_stable_shares_what_it_can(tokenizer: Tokenizer) -> None:
    assert tokenizer.split_stable("one two three")[1] == " three"
    assert tokenizer.split_stable("one two \n")[1] == " \n"
    assert tokenizer.split_stable("one two<|im_end|>")[1] == ""
    assert tokenizer.split_stable("one two <|im_en")[1] == " <|im_en"
    assert tokenizer.split_stable("日本。語")[1] == "。語"
    assert tokenizer.split_stable("one") == ([], "one")


@pytest.mark.parametrize(
    "backend",
    [pieces(PIECE_DECODERS["llama"]), byte_level(add_prefix_space=True)],
    ids=["pieces", "prefix space"],
)
def test_split_stable_without_guarantee_holds_everything(backend: Any) -> None:
    assert load(backend).split_stable("a b a b") == ([], "a b a b")
