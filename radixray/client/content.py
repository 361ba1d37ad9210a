"""The tokens of a state: ids that are final, then text not yet tokenised."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from radixray.tokenizer.detokenizer import IncrementalDetokenizer
from radixray.tokenizer.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""How bytes read that are no character, or not yet."""


class SavedContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `Content` as data; the fields are its attributes."""

    text: str
    loose_ids: list[int]
    loose: str
    ids: list[int]
    tail: str
    begun: bool


class Content:
    """Text and generated tokens, in the order they came.

    Generated ids are kept as they are. Text waits untokenised until a request needs it: text
    appended meanwhile may still merge with its end.

    A generation may end within a character. Its first bytes read as � until the next generation
    brings the rest, so the text is always what the tokens decode to.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._text = ""
        self._loose_ids: list[int] = []  # generated last, within a character
        self._loose = ""  # how they read
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._tail = ""
        self._begun = False

    def copy(self) -> Content:
        """An independent copy."""
        other = Content(self._tokenizer)
        other._text, other._tail, other._begun = self._text, self._tail, self._begun
        other._ids = self._ids.copy()
        other._loose_ids, other._loose = self._loose_ids, self._loose
        return other

    def save(self) -> SavedContent:
        """As data."""
        ids, loose_ids = self._ids.copy(), self._loose_ids.copy()
        return SavedContent(self._text, loose_ids, self._loose, ids, self._tail, self._begun)

    @classmethod
    def restored(cls, tokenizer: Tokenizer, saved: SavedContent) -> Content:
        """The content again, under the same tokenizer."""
        content = cls(tokenizer)
        content._text, content._tail, content._begun = saved.text, saved.tail, saved.begun
        content._ids = list(saved.ids)
        content._loose_ids, content._loose = list(saved.loose_ids), saved.loose
        return content

    @property
    def text(self) -> str:
        """The whole text."""
        return self._text + self._loose

    @property
    def settled(self) -> str:
        """Its part that no generation to come can change."""
        return self._text

    def add_text(self, text: str, *, template: bool = False) -> None:
        """Appends text. A chat template writes its own beginning of text; else it is added."""
        self._begin(template=template)
        self._tail += text
        if text:
            self._settle()
            self._text += text

    def prompt_ids(self) -> list[int]:
        """All tokens so far, the text tokenised."""
        self._begin()
        return self._ids + self._tokenizer.encode(self._tail)

    def stable_ids(self) -> list[int]:
        """The tokens that no text to come can change."""
        self._begin()
        ids, self._tail = self._tokenizer.split_stable(self._tail)
        self._ids += ids
        return self._ids.copy()

    def add_output(
        self,
        prompt_ids: Sequence[int],
        token_ids: Sequence[int],
        text: str,
        *,
        cut: bool = False,
        skip: int = 0,
    ) -> None:
        """Appends tokens that continue `prompt_ids`.

        Args:
            prompt_ids: what the model was given: `prompt_ids()`.
            token_ids: the output, without the token that ended it.
            text: their text.
            cut: a stop string ended the output, and `text` is only what came before it.
            skip: so many characters of `text`, its first, are left out.
        """
        if skip:
            self._settle()
            first, skipped = self._fitting(token_ids, text[:skip])
            # Where no token ends there, what remains is text again.
            token_ids = token_ids[first:] if skipped == skip else []
            cut, text = cut or skipped < skip, text[skip:]
        kept, length = self._fitting(token_ids, text) if cut else (len(token_ids), len(text))
        self._ids = [*prompt_ids, *token_ids[:kept]]
        # The rest of a token that the stop string cut is text again.
        self._tail = text[length:]
        if cut or not (self._loose_ids or text.endswith(REPLACEMENT)):
            self._settle()
            self._text += text
        else:
            self._add_loose(token_ids)

    def _add_loose(self, token_ids: Sequence[int]) -> None:
        """Appends the text of tokens that begin, or end, within a character."""
        detokenizer = IncrementalDetokenizer(self._tokenizer)
        ids = [*self._loose_ids, *token_ids]
        whole, text = 0, ""
        for count, token_id in enumerate(ids, start=1):
            text += detokenizer.push([token_id])
            if not detokenizer.pending:
                whole = count
                self._text += text
                text = ""
        # A token may hold whole characters before the one it begins.
        self._loose_ids, self._loose = ids[whole:], text + detokenizer.finish()

    def _settle(self) -> None:
        """Bytes of a character that text follows can no longer become one."""
        self._text += self._loose
        self._loose_ids, self._loose = [], ""

    def _begin(self, *, template: bool = False) -> None:
        if not self._begun:
            self._begun = True
            if not template:
                self._ids = self._tokenizer.encode("", add_special_tokens=True)

    def _fitting(self, token_ids: Sequence[int], text: str) -> tuple[int, int]:
        """How many tokens lie wholly in `text`, and the length of their text."""
        detokenizer = IncrementalDetokenizer(self._tokenizer)
        kept = length = seen = 0
        for count, token_id in enumerate(token_ids, start=1):
            seen += len(detokenizer.push([token_id]))
            if seen > len(text):
                return kept, length
            if not detokenizer.pending:
                kept, length = count, seen
        return kept, length
