"""A Transport that plays a script instead of running a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from radixray.errors import RadixRayError
from radixray.protocol import (
    Delta,
    GenerateRequest,
    Handle,
    ModelInfo,
    ScoreRequest,
    ScoreResult,
    TokenLogprob,
    Usage,
)
from radixray.reports import EngineStats
from radixray.tokenizer.detokenizer import IncrementalDetokenizer
from radixray.tokenizer.tokenizer import Tokenizer

INFO = ModelInfo(
    name="smollm2-135m",
    context_length=2048,
    pool_tokens=4096,
    vocab_size=49152,
    eos_token_ids=(2,),
    dtype="float32",
    max_queued_requests=16,
)


def scored(token_id: int, top: int) -> TokenLogprob:
    """What the fake model thinks of a token: it and its next neighbours are likely."""
    logprob = -(token_id % 7) / 8
    likely = [(token_id + i, logprob - i) for i in range(top)]
    return TokenLogprob(token_id, logprob, likely)


class FakeTransport:
    """Answers every request with `words`, one a Delta, and remembers what it was asked.

    Attributes:
        words: the answer; it stops after them, or at `max_tokens`.
        token_ids: if set, the answer instead of `words`: a token a Delta.
        cached: prompt tokens it claims to have found cached, request after request.
        fail_after: number of Deltas after which `error` is raised.
        hang_after: number of Deltas after which it waits to be aborted.
        requests: every request so far.
        live, aborted: ids of requests that run; that were closed before their end.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.info = INFO
        self.tokenizer = tokenizer
        self.words = ["Grüße", " from", " a", " 🚀", " radix", " tree", "."]
        self.token_ids: list[int] = []
        self.cached = [0]
        self.error: RadixRayError | Exception | None = None
        self.fail_after = 0
        self.hang_after: int | None = None
        self.finish_reason = "stop"
        self.say_seed = False
        self.requests: list[GenerateRequest] = []
        self.live: set[str] = set()
        self.aborted: list[str] = []
        self.health: dict[str, EngineStats] | RadixRayError = {
            "default/model-0": EngineStats(
                running=1, waiting=2, pages_free=30, pages_total=40, heartbeat_age_s=0.5
            )
        }
        self.closed = False
        self.flushed = 0
        self._ended: dict[str, asyncio.Event] = {}

    @property
    def text(self) -> str:
        return "".join(self.words)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        number = len(self.requests)
        self.requests.append(request)
        self.live.add(request.request_id)
        ended = False
        try:
            async for delta in self._play(request, self.cached[number % len(self.cached)]):
                ended = delta.finish_reason is not None
                yield delta
        except Exception:
            ended = True
            raise
        finally:
            self.live.discard(request.request_id)
            if not ended:
                self.aborted.append(request.request_id)

    async def _play(self, request: GenerateRequest, cached: int) -> AsyncGenerator[Delta, None]:
        words = [f"seed {request.sampling.seed}"] if self.say_seed else self.words
        sampling = request.sampling
        if self.token_ids:
            detokenizer = IncrementalDetokenizer(self.tokenizer)
            words = [detokenizer.push([token]) for token in self.token_ids]
            words[-1] += detokenizer.finish()
        limit = request.max_new_tokens(self.info)
        for i, word in enumerate(words[:limit] if limit else [""]):
            if i == self.hang_after:
                await self._ended.setdefault(request.request_id, asyncio.Event()).wait()
                yield Delta(request_id=request.request_id, index=i, finish_reason="abort")
                return
            if self.error is not None and i == self.fail_after:
                raise self.error
            await asyncio.sleep(0)
            ids = self.token_ids[i : i + 1] if self.token_ids else [i]
            prompt = request.prompt_ids[sampling.prompt_logprobs_from or 0 :]
            last = i + 1 == min(len(words), limit or 1)
            reason = ("length" if limit < len(words) else self.finish_reason) if last else None
            yield Delta(
                request_id=request.request_id,
                index=i,
                stop_reason=ids[-1] if last and reason == "stop" and self.token_ids else None,
                token_ids=ids if limit else [],
                text=word,
                finish_reason=reason,
                usage=Usage(
                    prompt=len(request.prompt_ids), cached=cached, completion=min(i + 1, limit)
                ),
                logprobs=[scored(token, sampling.logprobs) for token in ids]
                if sampling.logprobs is not None and limit
                else None,
                prompt_logprobs=[scored(token, sampling.logprobs or 0) for token in prompt]
                if sampling.prompt_logprobs_from is not None and i == 0
                else None,
            )

    async def score(self, request: ScoreRequest) -> ScoreResult:
        raise AssertionError("the HTTP API scores nothing")

    async def end(self, handle: Handle) -> None:
        for request in self.requests:
            if request.handle is not None and handle.finds(request.handle):
                self._ended.setdefault(request.request_id, asyncio.Event()).set()

    async def flush(self) -> int:
        self.flushed += 1
        return 7

    async def stats(self) -> dict[str, EngineStats]:
        if isinstance(self.health, RadixRayError):
            raise self.health
        return self.health

    async def close(self) -> None:
        self.closed = True
