"""A model actor that fails in every way, behind the real `Channel`. Its handle is a fake."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Any

from radixray.actors.channel import Channel
from radixray.actors.wire import decode_request, encode
from radixray.errors import (
    AbortedError,
    ContextLengthError,
    DeadlineExceededError,
    EngineError,
    OverloadedError,
)
from radixray.protocol import (
    Delta,
    ErrorInfo,
    GenerateRequest,
    ModelInfo,
    Request,
    ScoreRequest,
    ScoreResult,
    Usage,
)
from radixray.reports import EngineStats
from radixray.tokenizer.tokenizer import Tokenizer

FAULTS = (
    "error before",
    "error within",
    "abort within",
    "late deltas",
    "repeated delta",
    "lost delta",
    "hang before",
    "hang within",
    "no last delta",
    "death",
)
ERRORS = (EngineError, OverloadedError, DeadlineExceededError, AbortedError, ContextLengthError)
WORDS = " one two three four five six seven eight nine ten"


class FaultyActor:
    """What `Channel` takes for the handle of a model actor.

    Attributes:
        live: requests it works on, by id.
        met: how often each fault was met.
    """

    def __init__(self, tokenizer: Tokenizer, rng: random.Random, fault_rate: float) -> None:
        self.live: dict[str, asyncio.Task[None]] = {}
        self.met = dict.fromkeys(FAULTS, 0)
        self.dead = False
        self._rng = rng
        self._fault_rate = fault_rate
        self._ids = tokenizer.encode(WORDS)
        self._tokenizer = tokenizer
        self._outbox: asyncio.Queue[list[Delta] | None] = asyncio.Queue()
        self.submit = _Method(self._submit)
        self.abort = _Method(self._abort)
        self.leave = _Method(lambda consumer_id: None)
        self.heartbeat = _Method(lambda consumer_id: None)
        self.deltas = _Method(lambda consumer_id: self._deltas())

    async def _deltas(self) -> AsyncIterator[Awaitable[bytes]]:
        while (batch := await self._outbox.get()) is not None:
            yield _done(encode(batch))
        raise RuntimeError("the actor died")

    def _submit(self, consumer_id: str, requests: list[bytes]) -> None:
        if self.dead:
            return
        for request in map(decode_request, requests):
            fault = self._rng.choice(FAULTS) if self._rng.random() < self._fault_rate else ""
            if fault == "death" and self._rng.random() > 0.1:
                fault = ""
            if fault:
                self.met[fault] += 1
            task = asyncio.create_task(self._answer(request, fault))
            self.live[request.request_id] = task
            task.add_done_callback(lambda _, i=request.request_id: self.live.pop(i, None))

    def _abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            if (task := self.live.get(request_id)) is not None:
                task.cancel()

    def _die(self) -> None:
        self.dead = True
        for task in list(self.live.values()):
            task.cancel()
        self._outbox.put_nowait(None)

    async def _answer(self, request: Request, fault: str) -> None:
        rng = self._rng
        await asyncio.sleep(rng.choice([0, 0, 0.001, 0.003]))
        if fault == "hang before":
            await asyncio.sleep(3600)
        if fault == "death":
            self._die()
            return
        deltas = self._deltas_of(request)
        at = rng.randrange(len(deltas))
        if fault == "error before":
            deltas = [self._error(request, 0)]
        elif fault == "error within":
            deltas = [*deltas[:at], self._error(request, at)]
        elif fault == "abort within":
            end = Delta(request_id=request.request_id, index=at, finish_reason="abort")
            deltas = [*deltas[:at], end]
        elif fault == "late deltas":
            deltas += deltas[at:]
        elif fault == "repeated delta":
            deltas = [*deltas[:at], deltas[at], *deltas[at:]]
        elif fault == "lost delta":
            del deltas[at]
        elif fault in ("hang within", "no last delta"):
            deltas = deltas[: at if fault == "hang within" else -1]
        for delta in deltas:
            self._outbox.put_nowait([delta])
            await asyncio.sleep(rng.choice([0, 0, 0, 0.001]))
        if not any(delta.finish_reason for delta in deltas):
            await asyncio.sleep(3600)

    def _deltas_of(self, request: Request) -> list[Delta]:
        usage = Usage(prompt=len(request.prompt_ids))
        if isinstance(request, ScoreRequest):
            logprobs = [[-1.0] * len(choice) for choice in request.choices]
            return [
                Delta(
                    request_id=request.request_id,
                    choice_logprobs=logprobs,
                    usage=usage,
                    finish_reason="stop",
                )
            ]
        count = min(request.sampling.max_tokens or 0, len(self._ids))
        deltas = [
            Delta(
                request_id=request.request_id,
                index=index,
                token_ids=[token],
                text=self._tokenizer.decode([token]),
            )
            for index, token in enumerate(self._ids[:count])
        ] or [Delta(request_id=request.request_id)]
        deltas[-1].finish_reason, deltas[-1].usage = "length", usage
        return deltas

    def _error(self, request: Request, index: int) -> Delta:
        error = self._rng.choice(ERRORS)(f"fault of {request.request_id}")
        info = ErrorInfo.of(error)
        return Delta(request_id=request.request_id, index=index, finish_reason="error", error=info)


class FaultyTransport:
    """A `Transport` to faulty actors: a new one takes the place of each that died."""

    def __init__(self, tokenizer: Tokenizer, seed: int, fault_rate: float = 0.25) -> None:
        self.tokenizer = tokenizer
        self.info = ModelInfo(
            name="faulty",
            context_length=2048,
            pool_tokens=65536,
            vocab_size=tokenizer.vocab_size,
            eos_token_ids=(2,),
            dtype="float32",
            max_queued_requests=100_000,
        )
        self.actors: list[FaultyActor] = []
        self._channels: list[Channel] = []
        self._rng = random.Random(seed)
        self._fault_rate = fault_rate

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        async with aclosing(self._channel().run(request)) as deltas:
            async for delta in deltas:
                yield delta

    async def score(self, request: ScoreRequest) -> ScoreResult:
        async with aclosing(self._channel().run(request)) as deltas:
            async for delta in deltas:
                if delta.choice_logprobs is not None and delta.usage is not None:
                    return ScoreResult(
                        request_id=request.request_id,
                        logprobs=delta.choice_logprobs,
                        usage=delta.usage,
                    )
        raise AbortedError("the request was aborted")

    async def flush(self) -> int:
        return 0

    async def stats(self) -> dict[str, EngineStats]:
        return {}

    @property
    def met(self) -> dict[str, int]:
        return {fault: sum(a.met[fault] for a in self.actors) for fault in FAULTS}

    @property
    def live(self) -> list[str]:
        """Requests that some actor works on, or a channel waits for."""
        running = [i for actor in self.actors for i in actor.live]
        return running + [i for channel in self._channels for i in channel._inboxes]

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    def _channel(self) -> Channel:
        if not self._channels or self._channels[-1].broken:
            self.actors.append(FaultyActor(self.tokenizer, self._rng, self._fault_rate))
            self._channels.append(Channel(f"faulty-{len(self.actors)}", self.actors[-1]))
        return self._channels[-1]


class _Method:
    def __init__(self, call: Any) -> None:
        self.remote = call

    def options(self, **_: Any) -> _Method:
        return self


async def _done(value: bytes) -> bytes:
    return value
