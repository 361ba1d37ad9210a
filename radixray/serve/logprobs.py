"""Log-probabilities in OpenAI's shapes, one for each of its routes.

There is one entry for each token that usage counts, stop token included. A token that is no whole
text, such as a part of a character, is written as its bytes: ``\\xf0\\x9f``; the older shape of
``/v1/completions``, which has no field for bytes, puts ``bytes:`` before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from radixray.protocol import TokenLogprob
from radixray.tokenizer.detokenizer import IncrementalDetokenizer
from radixray.tokenizer.tokenizer import Tokenizer

MIN_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot hold; OpenAI's number."""


class LikelyToken(msgspec.Struct):
    """A token that might have come here."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(msgspec.Struct):
    """A token of a chat's answer, and the likeliest ones in its place, likeliest first."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[LikelyToken]


class ChatLogprobs(msgspec.Struct):
    """What `logprobs` of a choice of a chat, or of a piece of it, holds."""

    content: list[ChatToken]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """What `logprobs` of a choice of a completion, or of a piece of it, holds.

    `top_logprobs` hold the token itself, too. `text_offset` counts characters of the choice's
    text. The first token of an echoed prompt has no log-probability: nothing comes before it.
    """

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []


def chat_logprobs(tokenizer: Tokenizer, scored: Sequence[TokenLogprob]) -> ChatLogprobs:
    """`scored` as chats have it."""

    def likely(token_id: int, logprob: float) -> LikelyToken:
        spelt = tokenizer.spelling(token_id)
        return LikelyToken(_shown(spelt, ""), max(logprob, MIN_LOGPROB), list(spelt))

    def entry(scored: TokenLogprob) -> ChatToken:
        own = likely(scored.token_id, scored.logprob)
        return ChatToken(own.token, own.logprob, own.bytes, [likely(*pair) for pair in scored.top])

    return ChatLogprobs([entry(each) for each in scored])


class CompletionLogprobWriter:
    """Log-probabilities of one choice of a completion, as they come.

    Args:
        tokenizer: of the model.
        echoed: the prompt's text, where the choice's text begins with it.
    """

    def __init__(self, tokenizer: Tokenizer, echoed: str = "") -> None:
        self._tokenizer = tokenizer
        self._echoed = echoed
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._offset = 0

    def echo(self, prompt_ids: Sequence[int], scored: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """Those of the prompt, whose first token has none."""
        entries = self._entries([TokenLogprob(token, 0.0) for token in prompt_ids[:1]])
        entries.token_logprobs, entries.top_logprobs = [None], [None]
        rest = self._entries(scored)
        self._detokenizer = IncrementalDetokenizer(self._tokenizer)
        self._offset = len(self._echoed)
        return joined(entries, rest)

    def output(self, scored: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """Those of the next tokens of the output."""
        return self._entries(scored)

    def _entries(self, scored: Sequence[TokenLogprob]) -> CompletionLogprobs:
        return CompletionLogprobs(
            [self._token(each.token_id) for each in scored],
            [max(each.logprob, MIN_LOGPROB) for each in scored],
            [self._top(each) for each in scored],
            [self._advance(each.token_id) for each in scored],
        )

    def _top(self, scored: TokenLogprob) -> dict[str, float]:
        pairs = [*scored.top, (scored.token_id, scored.logprob)]
        return {self._token(token): max(logprob, MIN_LOGPROB) for token, logprob in pairs}

    def _token(self, token_id: int) -> str:
        return _shown(self._tokenizer.spelling(token_id), "bytes:")

    def _advance(self, token_id: int) -> int:
        """Where the token begins in the text; the offset moves to its end."""
        start = self._offset
        self._offset += len(self._detokenizer.push([token_id]))
        if token_id in self._tokenizer.special_ids:
            # It is no text, unless somebody has spelt it out in the prompt.
            name = self._tokenizer.spelling(token_id).decode()
            if self._echoed.startswith(name, start):
                self._offset += len(name)
        return start


def joined(one: CompletionLogprobs, two: CompletionLogprobs) -> CompletionLogprobs:
    """`one`, then `two`."""
    return CompletionLogprobs(
        one.tokens + two.tokens,
        one.token_logprobs + two.token_logprobs,
        one.top_logprobs + two.top_logprobs,
        one.text_offset + two.text_offset,
    )


def _shown(spelt: bytes, prefix: str) -> str:
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in spelt)
