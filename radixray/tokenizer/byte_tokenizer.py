"""A tokenizer where the model's own is not known: a token for each byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from radixray.errors import InvalidRequestError
from radixray.tokenizer.chat_template import ChatTemplate
from radixray.tokenizer.tokenizer import Tokenizer
from radixray.tokenizer.vocabulary import JoinRule, Vocabulary


class ByteTokenizer(Tokenizer):
    """Texts as their UTF-8 bytes. Token `base` + b stands for byte b.

    Args:
        chat_template: how messages become text.
        base: ids below it are a model's, of which some may be `known`.
        known: the bytes that a model's tokens stand for.
        special: likewise the names of special tokens.
        whole: texts whose tokens are known; all others become bytes.
        beginning: tokens that begin a whole text.
    """

    def __init__(
        self,
        chat_template: ChatTemplate,
        *,
        base: int = 0,
        known: Mapping[int, bytes] | None = None,
        special: Mapping[int, str] | None = None,
        whole: Mapping[str, list[int]] | None = None,
        beginning: Sequence[int] = (),
    ) -> None:
        # Not the base class's: there are no files.
        tokens = [b""] * base + [bytes([byte]) for byte in range(256)]
        for token_id, spelled in (known or {}).items():
            tokens[token_id] = spelled
        self.vocabulary = Vocabulary(tokens, frozenset(), JoinRule(byte_level=True))
        self.special_ids = frozenset(special or ())
        self.eos_token_id = None
        self.chat_template = chat_template
        self.fingerprint = f"bytes from {base}"
        self._base = base
        self._special = dict(special or {})
        self._whole = dict(whole or {})
        self._beginning = list(beginning)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """See `Tokenizer.encode`; special tokens are not read."""
        if add_special_tokens and self._beginning:
            return self._beginning + self.encode(text)
        if (ids := self._whole.get(text)) is not None:
            return ids.copy()
        try:
            raw = text.encode()
        except (AttributeError, UnicodeEncodeError):
            raise InvalidRequestError(
                f"text must be a string of Unicode characters, not {text!r:.80}", param="text"
            ) from None
        return [self._base + byte for byte in raw] if self._base else list(raw)

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        tokens = self.vocabulary.tokens
        return b"".join(tokens[i] for i in token_ids if 0 <= i < len(tokens)).decode(
            errors="replace"
        )

    def split_stable(self, text: str) -> tuple[list[int], str]:
        """All of `text`, as no text to come can change a byte."""
        return self.encode(text), ""

    def spelling(self, token_id: int) -> bytes:
        """See `Tokenizer.spelling`."""
        if token_id in self._special:
            return self._special[token_id].encode()
        tokens = self.vocabulary.tokens
        return tokens[token_id] if 0 <= token_id < len(tokens) else b""

    @property
    def has_pieces(self) -> bool:
        """False: there are no pre-tokens."""
        return False

    def pieces(self, text: str) -> list[int]:
        """See `has_pieces`."""
        return [len(text)]
