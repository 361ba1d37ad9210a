"""A transport that answers as it was recorded."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import msgspec

from radixray.constraint import GrammarReport
from radixray.errors import EngineError, NotRecordedError
from radixray.protocol import (
    MAX_INT,
    Delta,
    GenerateRequest,
    ModelInfo,
    ScoreRequest,
    ScoreResult,
    Usage,
)
from radixray.reports import EngineStats
from radixray.testing.nearest import why_not
from radixray.testing.recording import Call, Head, Outcome, call_of, read, unspelled
from radixray.tokenizer.byte_tokenizer import ByteTokenizer
from radixray.tokenizer.chat_template import ChatTemplate

PATIENCE_S = 5.0
"""A call that the program cancelled when it was recorded waits so long to be cancelled again."""


class Replay:
    """A `Transport` that plays a recording back, for any event loop, without a model.

    The tokens of outputs are those of the recording; other text has a token for each byte.

    Raises:
        InvalidRequestError: there is no such recording.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        head, self._calls = read(path)
        self._by_key: dict[bytes, list[Call]] = defaultdict(list)
        for call in self._calls:
            self._by_key[call.key].append(call)
        self._played: dict[bytes, int] = defaultdict(int)
        self._tokenizer = _tokenizer(head, self._calls)
        self._info = msgspec.structs.replace(
            head.model,
            # Of tokens nothing is known but those recorded, so nothing is refused for their number.
            context_length=MAX_INT,
            pool_tokens=MAX_INT,
            vocab_size=self._tokenizer.vocab_size,
        )

    @property
    def info(self) -> ModelInfo:
        """The model of the recording, without limits."""
        return self._info

    @property
    def tokenizer(self) -> ByteTokenizer:
        """The recording's chat template, and its tokens as far as they occur."""
        return self._tokenizer

    @property
    def unused(self) -> list[str]:
        """Prompts of the recorded calls that were not asked for so far."""
        left = []
        for key, calls in self._by_key.items():
            left += [call.prompt for call in calls[self._played[key] :] if call.call != "commit"]
        return left

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """As it was recorded; see `Transport.generate`.

        Raises:
            NotRecordedError: no such call was recorded.
        """
        asked = call_of(request, self._tokenizer)
        await asyncio.sleep(0)
        if asked.call == "commit":
            usage = self._commit(asked.prompt)
            yield Delta(request_id=request.request_id, finish_reason="length", usage=usage)
            return
        outcome = self._next(asked)
        for delta in _deltas(request.request_id, outcome):
            await asyncio.sleep(0)
            yield delta
        await self._end(outcome)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """As it was recorded; raises as `generate`."""
        asked = call_of(request, self._tokenizer)
        await asyncio.sleep(0)
        outcome = self._next(asked)
        await self._end(outcome)
        if outcome.choice_logprobs is None:
            raise EngineError(f"{self._path} holds no scores of this call")
        return ScoreResult(
            request_id=request.request_id,
            logprobs=outcome.choice_logprobs,
            usage=outcome.usage or Usage(),
        )

    async def flush(self) -> int:
        """0: there is no cache."""
        return 0

    async def stats(self) -> dict[str, EngineStats]:
        """None: there is no engine."""
        return {}

    def _next(self, asked: Call) -> Outcome:
        key = asked.key
        calls = self._by_key.get(key)
        if not calls:
            raise NotRecordedError(f"{self._path}: {why_not(asked, self._calls)}", param="prompt")
        number = self._played[key]
        if number >= len(calls) and not asked.repeatable:
            raise NotRecordedError(
                f"{self._path}: this call was recorded {len(calls)} times and is made once more; "
                f"without a seed, each draws anew: {asked.prompt[-120:]!r}",
                param="prompt",
            )
        self._played[key] = number + 1
        return calls[min(number, len(calls) - 1)].outcome

    def _commit(self, prompt: str) -> Usage:
        """The recorded usage. How much of a prompt is computed ahead depends on its tokens."""
        made = [c for c in self._calls if c.call == "commit" and prompt.startswith(c.prompt)]
        if not made:
            return Usage()
        longest = max(made, key=lambda call: len(call.prompt))
        calls = self._by_key[longest.key]
        number = self._played[longest.key]
        self._played[longest.key] = number + 1
        return calls[min(number, len(calls) - 1)].outcome.usage or Usage()

    async def _end(self, outcome: Outcome) -> None:
        if outcome.error is not None:
            raise outcome.error.to_error()
        if outcome.cancelled:
            await asyncio.sleep(PATIENCE_S)
            raise NotRecordedError(
                f"{self._path}: the program cancelled this call when it was recorded, after "
                f"{outcome.text!r:.200}, and now waits for more",
                param="prompt",
            )


def _deltas(request_id: str, outcome: Outcome) -> Iterator[Delta]:
    text = token = 0
    ids = [spelled[0] for spelled in outcome.tokens]
    for number, (characters, tokens) in enumerate(outcome.pieces, start=1):
        delta = Delta(
            request_id=request_id,
            index=token,
            token_ids=ids[token : token + tokens],
            text=outcome.text[text : text + characters],
        )
        if outcome.logprobs is not None:
            delta.logprobs = outcome.logprobs[token : token + tokens]
        if number == 1:
            delta.prompt_logprobs = outcome.prompt_logprobs
        if number == len(outcome.pieces) and outcome.finish_reason is not None:
            delta.finish_reason, delta.stop_reason = outcome.finish_reason, outcome.stop_reason
            delta.usage = outcome.usage
            if outcome.grammar is not None:
                delta.grammar = msgspec.convert(outcome.grammar, GrammarReport)
        text, token = text + characters, token + tokens
        yield delta


def _tokenizer(head: Head, calls: list[Call]) -> ByteTokenizer:
    known: dict[int, bytes] = {}
    special: dict[int, str] = {}
    whole: dict[str, list[int]] = {}
    choices = [
        (text, tokens)
        for call in calls
        for text, tokens in zip(call.choices, call.outcome.choices or [], strict=False)
    ]
    for text, tokens in choices:
        whole[text] = [token[0] for token in tokens]
    groups = [head.beginning, *(call.outcome.tokens for call in calls), *(t for _, t in choices)]
    for token_id, raw, is_special in (unspelled(token) for group in groups for token in group):
        if is_special:
            special[token_id] = raw.decode()
        else:
            known[token_id] = raw
    own = head.model.vocab_size if head.model.own_tokens else 0
    return ByteTokenizer(
        ChatTemplate(head.chat_template, head.variables),
        base=max([own, *known, *special]) + 1,
        known=known,
        special=special,
        whole=whole,
        beginning=[token[0] for token in head.beginning],
    )
