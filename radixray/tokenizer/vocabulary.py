"""What bytes each token id stands for, and how tokens join to text.

Two families are known. *Byte-level* tokens are bytes, spelt with one printable character a byte;
the text is those bytes read as UTF-8. *Pieces* (SentencePiece) are texts with "▁" for the space,
where a character outside the vocabulary is spelt as a run of ``<0xXX>`` tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radixray.errors import UnsupportedModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "▁"


@dataclass(frozen=True)
class JoinRule:
    """How the bytes of several tokens become text.

    Attributes:
        byte_level: the bytes of all tokens are one UTF-8 stream. The rest is for pieces only.
        byte_fallback: ``<0xXX>`` tokens stand for bytes.
        leading_spaces: number of spaces dropped at the start of the text.
        bare_first_token: the first token loses all its spaces.
    """

    byte_level: bool = False
    byte_fallback: bool = False
    leading_spaces: int = 0
    bare_first_token: bool = False


@dataclass(frozen=True)
class Vocabulary:
    """The bytes of each token id.

    Attributes:
        tokens: by id; empty for special tokens and unused ids.
        byte_ids: ids of ``<0xXX>`` tokens; empty where the vocabulary is byte-level.
        rule: how tokens join to text.
    """

    tokens: list[bytes]
    byte_ids: frozenset[int]
    rule: JoinRule


def read_vocabulary(
    ids: Mapping[str, int], special_ids: frozenset[int], decoder: dict[str, Any] | None
) -> Vocabulary:
    """The vocabulary of a tokenizer.

    Args:
        ids: token strings as in ``tokenizer.json``, with their ids.
        special_ids: ids that stand for no text.
        decoder: the decoder entry of ``tokenizer.json``.

    Raises:
        UnsupportedModelError: a decoder that is not known.
    """
    rule = _join_rule(decoder)
    tokens = [b""] * (max(ids.values(), default=-1) + 1)
    byte_ids = set()
    for token, token_id in ids.items():
        if token_id in special_ids:
            continue
        if rule.byte_level:
            tokens[token_id] = _spelt_bytes(token)
        elif rule.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            tokens[token_id] = bytes([int(match[1], 16)])
            byte_ids.add(token_id)
        else:
            tokens[token_id] = token.replace(_SPACE, " ").encode()
    return Vocabulary(tokens, frozenset(byte_ids), rule)


def _join_rule(decoder: dict[str, Any] | None) -> JoinRule:
    steps = [decoder] if decoder is None or decoder["type"] != "Sequence" else decoder["decoders"]
    match steps:
        case [{"type": "ByteLevel"}]:
            return JoinRule(byte_level=True)
        case [{"type": "Metaspace", "replacement": "▁", **rest}]:
            return JoinRule(bare_first_token=rest.get("prepend_scheme", "always") != "never")
        case [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]:
            return JoinRule(byte_fallback=True)
        case [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": start, "stop": 0},
        ]:
            return JoinRule(byte_fallback=True, leading_spaces=start)
    names = "+".join("none" if step is None else step["type"] for step in steps)
    raise UnsupportedModelError(f"the tokenizer's decoder {names} is not supported")


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's spelling: printable Latin-1 as itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet |= {chr(256 + n): byte for n, byte in enumerate(others)}
    return alphabet


_ALPHABET = _byte_alphabet()


def _spelt_bytes(token: str) -> bytes:
    try:
        return bytes([_ALPHABET[char] for char in token])
    except KeyError:
        # An added token holds plain text, e.g. a run of spaces.
        return token.encode()
