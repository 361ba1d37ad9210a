"""The model's tokenizer: text to token ids and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Backend

from radixray.errors import InvalidRequestError, ModelNotFoundError, UnsupportedModelError
from radixray.protocol import TokenizerFiles
from radixray.tokenizer.chat_template import SPECIAL_VARIABLES, ChatTemplate
from radixray.tokenizer.stable import StableSplitter
from radixray.tokenizer.vocabulary import Vocabulary, read_vocabulary

_LONG_TEXT = 2_000


class Tokenizer:
    """Text to token ids and back, equal to Hugging Face's fast tokenizer of the same files.

    Attributes:
        files: what it was made of.
        vocabulary: the bytes of each token id and how they join to text.
        special_ids: ids that stand for no text.
        eos_token_id: of the tokenizer's own end token, or None where it names none.
        chat_template: the model's chat template; rendering fails where there is none.
        fingerprint: equal only for tokenizers of the same files.

    Raises:
        UnsupportedModelError: files that cannot be read, or an unknown decoder.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        try:
            backend = Backend.from_str(files.tokenizer_json.decode())
            config = json.loads(files.tokenizer_config or b"{}")
        except Exception as error:  # the tokenizers library raises plain Exception
            raise UnsupportedModelError(f"the tokenizer cannot be read: {error}") from error
        # A file may carry the settings of a training run, which cut off or fill up texts.
        backend.no_truncation()
        backend.no_padding()
        self.files = files
        named = _named_tokens(config)
        marked = {t.content for t in backend.get_added_tokens_decoder().values() if t.special}
        backend.add_special_tokens(
            [
                token
                for token in named.values()
                if token not in marked and backend.token_to_id(token) is not None
            ]
        )
        added = backend.get_added_tokens_decoder()
        self._backend = backend
        self.special_ids = frozenset(id_ for id_, token in added.items() if token.special)
        eos = named.get("eos_token")
        self.eos_token_id: int | None = None if eos is None else backend.token_to_id(eos)
        setup = json.loads(backend.to_str())
        self.vocabulary: Vocabulary = read_vocabulary(
            backend.get_vocab(with_added_tokens=True), self.special_ids, setup["decoder"]
        )
        self.chat_template = ChatTemplate(files.chat_template, named)
        self.fingerprint = hashlib.sha256(msgspec.msgpack.encode(files)).hexdigest()
        # Its merges are a list each: kept, they would lengthen every full garbage collection.
        rules = {key: setup["model"].get(key) for key in ("type", "dropout")}
        self._setup = {**setup, "model": rules}

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """The tokenizer of a model folder; raises as `read_tokenizer_files` and `Tokenizer`."""
        return cls(read_tokenizer_files(path))

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`. Special tokens spelt out in it become their ids.

        Args:
            text: any text.
            add_special_tokens: add what the model expects around a whole text, e.g. BOS.

        Raises:
            InvalidRequestError: not a string, or a string with lone surrogates.
        """
        try:
            if len(text) < _LONG_TEXT:
                return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
            # The batch call lets other threads run meanwhile; the single one does not.
            (encoding,) = self._backend.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )
            return encoding.ids
        except TypeError:
            raise InvalidRequestError(
                f"text must be a string of Unicode characters, not {text!r:.80}", param="text"
            ) from None

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids` without special tokens; bytes that are not UTF-8 show as �."""
        return self._backend.decode(token_ids, skip_special_tokens=True)

    def split_stable(self, text: str) -> tuple[list[int], str]:
        """Ids of the part of `text` whose tokens no appended text can change, and the rest.

        ``ids + encode(rest + more) == encode(text + more)`` for any `more`. The rest holds at
        least the last word and trailing whitespace, unless `text` ends in a special token.
        Where the tokenizer's rules give no such guarantee, all of `text` is the rest.
        """
        border = self._splitter.border(text)
        return (self.encode(text[:border]) if border else []), text[border:]

    def spelling(self, token_id: int) -> bytes:
        """The bytes the id stands for, or a special token's name; empty for unused ids."""
        if token_id in self.special_ids:
            return (self._backend.id_to_token(token_id) or "").encode()
        tokens = self.vocabulary.tokens
        return tokens[token_id] if 0 <= token_id < len(tokens) else b""

    @property
    def has_pieces(self) -> bool:
        """Whether tokens never cross the borders that `pieces` gives."""
        return self._splitter.has_pieces

    def pieces(self, text: str) -> list[int]:
        """Where each pre-token of `text` ends, in characters; see `has_pieces`."""
        return self._splitter.pieces(text)

    @property
    def token_bytes(self) -> list[bytes]:
        """The UTF-8 bytes each id stands for; empty for special tokens and unused ids."""
        return self.vocabulary.tokens

    @property
    def vocab_size(self) -> int:
        """One more than the highest id. The model may score a few unused ids beyond it."""
        return len(self.vocabulary.tokens)

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token: a text of more than n times as many has over n tokens."""
        return max(map(len, self.vocabulary.tokens), default=1)

    @cached_property
    def _splitter(self) -> StableSplitter:
        return StableSplitter(self._setup, self._backend.pre_tokenizer)


def read_tokenizer_files(path: str | Path) -> TokenizerFiles:
    """The tokenizer files of a model folder in Hugging Face format.

    Raises:
        ModelNotFoundError: no ``tokenizer.json`` in `path`.
        UnsupportedModelError: ``tokenizer_config.json`` is not JSON.
    """
    folder = Path(path)
    try:
        tokenizer_json = (folder / "tokenizer.json").read_bytes()
    except OSError as error:
        raise ModelNotFoundError(f"no tokenizer.json in {folder}") from error
    config_file = folder / "tokenizer_config.json"
    config_json = config_file.read_bytes() if config_file.exists() else b"{}"
    template_file = folder / "chat_template.jinja"
    if template_file.exists():
        template = template_file.read_text(encoding="utf-8")
    else:
        try:
            template = _template_in(json.loads(config_json))
        except ValueError as error:
            raise UnsupportedModelError(f"{config_file.name} is not JSON: {error}") from error
    return TokenizerFiles(
        tokenizer_json=tokenizer_json, tokenizer_config=config_json, chat_template=template
    )


def _template_in(config: dict[str, Any]) -> str | None:
    template = config.get("chat_template")
    if isinstance(template, list):  # several named ones
        by_name = {entry["name"]: entry["template"] for entry in template}
        return by_name.get("default")
    return template


def _named_tokens(config: dict[str, Any]) -> dict[str, str]:
    """The special tokens that have a role, by name; a token is a string or an object."""
    named = {}
    for name in SPECIAL_VARIABLES:
        token = config.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            named[name] = token
    return named
