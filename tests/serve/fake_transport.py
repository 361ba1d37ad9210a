"""A Transport that plays a script instead of running a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from radixray.errors import RadixRayError
from radixray.protocol import Delta, GenerateRequest, ModelInfo, ScoreRequest, ScoreResult, Usage
from radixray.reports import EngineStats
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


class FakeTransport:
    """Answers every request with `words`, one a Delta, and remembers what it was asked.

    Attributes:
        words: the answer; it stops after them, or at `max_tokens`.
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
        limit = request.max_new_tokens(self.info)
        for i, word in enumerate(words[:limit] if limit else [""]):
            if i == self.hang_after:
                await asyncio.Event().wait()
            if self.error is not None and i == self.fail_after:
                raise self.error
            await asyncio.sleep(0)
            last = i + 1 == min(len(words), limit or 1)
            reason = ("length" if limit < len(words) else self.finish_reason) if last else None
            yield Delta(
                request_id=request.request_id,
                index=i,
                token_ids=[i],
                text=word,
                finish_reason=reason,
                usage=Usage(
                    prompt=len(request.prompt_ids), cached=cached, completion=min(i + 1, limit)
                ),
            )

    async def score(self, request: ScoreRequest) -> ScoreResult:
        raise AssertionError("the HTTP API scores nothing")

    async def stats(self) -> dict[str, EngineStats]:
        if isinstance(self.health, RadixRayError):
            raise self.health
        return self.health

    async def close(self) -> None:
        self.closed = True
