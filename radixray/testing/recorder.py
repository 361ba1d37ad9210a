"""A transport that notes what it is asked, and what comes of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import msgspec

from radixray.actors.transport import Transport
from radixray.errors import RadixRayError
from radixray.protocol import (
    Delta,
    ErrorInfo,
    GenerateRequest,
    ModelInfo,
    ScoreRequest,
    ScoreResult,
)
from radixray.reports import EngineStats
from radixray.testing.recording import (
    VERSION,
    Call,
    Head,
    Outcome,
    call_of,
    spelled_tokens,
    write,
)
from radixray.tokenizer.tokenizer import Tokenizer


class Recorder:
    """The calls of one recording, in the order in which they began.

    Attributes:
        calls: so far.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._head: Head | None = None

    def of(self, transport: Transport) -> RecordingTransport:
        """`transport`, recorded."""
        tokenizer, template = transport.tokenizer, transport.tokenizer.chat_template
        self._head = Head(
            radixray_recording=VERSION,
            model=transport.info,
            chat_template=template.source,
            variables=template.variables,
            beginning=spelled_tokens(tokenizer.encode("", add_special_tokens=True), tokenizer),
        )
        return RecordingTransport(transport, self)

    def write(self, path: Path) -> None:
        """Writes the recording, if there was anything to record."""
        if self._head is not None:
            write(path, self._head, self.calls)


class RecordingTransport:
    """A `Transport` like the one given, whose calls are noted."""

    def __init__(self, transport: Transport, recorder: Recorder) -> None:
        self._transport = transport
        self._recorder = recorder

    @property
    def info(self) -> ModelInfo:
        """As the transport's."""
        return self._transport.info

    @property
    def tokenizer(self) -> Tokenizer:
        """As the transport's."""
        return self._transport.tokenizer

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """As the transport's."""
        call = self._begin(request)
        outcome = call.outcome
        outcome.cancelled = True  # unless it comes to an end
        try:
            async with aclosing(self._transport.generate(request)) as deltas:
                async for delta in deltas:
                    self._add(outcome, delta)
                    yield delta
        except RadixRayError as error:
            outcome.cancelled, outcome.error = False, ErrorInfo.of(error)
            raise

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """As the transport's."""
        call = self._begin(request)
        outcome = call.outcome
        outcome.choices = [spelled_tokens(ids, self.tokenizer) for ids in request.choices]
        outcome.cancelled = True
        try:
            result = await self._transport.score(request)
        except RadixRayError as error:
            outcome.cancelled, outcome.error = False, ErrorInfo.of(error)
            raise
        outcome.cancelled = False
        outcome.choice_logprobs, outcome.usage = result.logprobs, result.usage
        return result

    async def flush(self) -> int:
        """As the transport's; not recorded."""
        return await self._transport.flush()

    async def stats(self) -> dict[str, EngineStats]:
        """As the transport's; not recorded."""
        return await self._transport.stats()

    def _begin(self, request: GenerateRequest | ScoreRequest) -> Call:
        call = call_of(request, self.tokenizer)
        self._recorder.calls.append(call)
        return call

    def _add(self, outcome: Outcome, delta: Delta) -> None:
        outcome.text += delta.text
        outcome.tokens += spelled_tokens(delta.token_ids, self.tokenizer)
        outcome.pieces.append((len(delta.text), len(delta.token_ids)))
        outcome.usage = delta.usage or outcome.usage
        if delta.logprobs is not None:
            outcome.logprobs = [*(outcome.logprobs or []), *delta.logprobs]
        outcome.prompt_logprobs = delta.prompt_logprobs or outcome.prompt_logprobs
        if delta.finish_reason is not None:
            outcome.cancelled = False
            outcome.finish_reason, outcome.stop_reason = delta.finish_reason, delta.stop_reason
            if delta.grammar is not None:
                outcome.grammar = msgspec.to_builtins(delta.grammar)
