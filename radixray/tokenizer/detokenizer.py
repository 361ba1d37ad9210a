"""Token ids to text as they come, never cutting a character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from radixray.tokenizer.tokenizer import Tokenizer
from radixray.tokenizer.vocabulary import Vocabulary


class IncrementalDetokenizer:
    """The pieces of `push` and `finish`, joined, are ``tokenizer.decode`` of all ids.

    A byte sequence that is not yet a character is held back until it is one, or cannot become one.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        vocabulary = tokenizer.vocabulary
        self._joiner = (
            _ByteJoiner(vocabulary) if vocabulary.rule.byte_level else _PieceJoiner(vocabulary)
        )

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that became certain with `token_ids`."""
        return self._joiner.push(token_ids)

    def finish(self) -> str:
        """The text of what was held back; call once, after the last `push`."""
        return self._joiner.finish()

    @property
    def pending(self) -> bool:
        """True while bytes are held back: the ids so far end inside a character."""
        return self._joiner.pending


class _ByteJoiner:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.tokens
        self._size = len(vocabulary.tokens)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        # A model may emit ids beyond the vocabulary: they stand for nothing.
        known = [self._tokens[t] for t in token_ids if 0 <= t < self._size]
        return self._decoder.decode(b"".join(known))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)

    @property
    def pending(self) -> bool:
        return bool(self._decoder.getstate()[0])


class _PieceJoiner:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.tokens
        self._byte_ids = vocabulary.byte_ids
        self._bare = vocabulary.rule.bare_first_token
        self._leading = vocabulary.rule.leading_spaces
        self._run = b""

    def push(self, token_ids: Iterable[int]) -> str:
        out = []
        for token_id in token_ids:
            token = self._tokens[token_id] if 0 <= token_id < len(self._tokens) else b""
            if token_id in self._byte_ids:
                self._run += token
            elif token:
                out += (self._end_run(), self._piece(token.decode()))
        return "".join(out)

    def finish(self) -> str:
        return self._end_run()

    @property
    def pending(self) -> bool:
        return bool(self._run)

    def _end_run(self) -> str:
        # The whole run is judged at once: one bad byte makes every byte of it a �. So nothing of
        # a run is certain before its end.
        run, self._run = self._run, b""
        try:
            text = run.decode()
        except UnicodeDecodeError:
            text = "\N{REPLACEMENT CHARACTER}" * len(run)
        return self._piece(text) if text else ""

    def _piece(self, text: str) -> str:
        if self._bare:
            self._bare = False
            text = text.replace(" ", "")
        while self._leading and text:
            if text[0] != " ":
                self._leading = 0
                break
            self._leading -= 1
            text = text[1:]
        return text
