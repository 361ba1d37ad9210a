"""A transport that answers from a script, token by token, as an engine would."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from radixray.protocol import Delta, GenerateRequest, ModelInfo, ScoreRequest, ScoreResult, Usage
from radixray.reports import EngineStats
from radixray.tokenizer.detokenizer import IncrementalDetokenizer
from radixray.tokenizer.stop import StopStrings
from radixray.tokenizer.tokenizer import Tokenizer

Answer = str | list[int] | Exception
Reply = Callable[[GenerateRequest], Answer | Awaitable[Answer]]


class ScriptedTransport:
    """Answers each generation with `reply(request)`: a text, ids, or an error.

    Attributes:
        requests: all requests, in the order they came.
        ended: ids of requests whose stream was closed.
        live: requests now running.
    """

    def __init__(self, tokenizer: Tokenizer, reply: Reply | Answer = " ok") -> None:
        self.tokenizer = tokenizer
        self.info = ModelInfo(
            name="scripted",
            context_length=2048,
            pool_tokens=65536,
            vocab_size=tokenizer.vocab_size,
            eos_token_ids=(2,),
            dtype="float32",
            max_queued_requests=100,
        )
        self.requests: list[Any] = []
        self.ended: list[str] = []
        self.live = 0
        self.reply = reply
        self.score_reply: Callable[[ScoreRequest], Any] = lambda r: [
            [-float(i + 1)] * len(c) for i, c in enumerate(r.choices)
        ]

    @property
    def generations(self) -> list[GenerateRequest]:
        return [
            r
            for r in self.requests
            if isinstance(r, GenerateRequest) and r.sampling.max_tokens != 0
        ]

    @property
    def commits(self) -> list[GenerateRequest]:
        return [
            r
            for r in self.requests
            if isinstance(r, GenerateRequest) and r.sampling.max_tokens == 0
        ]

    def prompt(self, request: GenerateRequest | ScoreRequest) -> str:
        return "".join(
            self.tokenizer.token_bytes[i].decode() or f"<{i}>" for i in request.prompt_ids
        )

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        self.requests.append(request)
        self.live += 1
        try:
            await asyncio.sleep(0)
            if request.sampling.max_tokens == 0 and not callable(self.reply):
                answer: Any = ""
            else:
                answer = self.reply(request) if callable(self.reply) else self.reply
            if inspect.isawaitable(answer):
                answer = await answer
            if isinstance(answer, Exception):
                raise answer
            for delta in self._deltas(request, answer):
                await asyncio.sleep(0)
                yield delta
            await asyncio.sleep(0)  # the end of a stream comes after its last delta
        finally:
            self.live -= 1
            self.ended.append(request.request_id)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        self.requests.append(request)
        await asyncio.sleep(0)
        logprobs: Any = self.score_reply(request)
        if inspect.isawaitable(logprobs):
            logprobs = await logprobs
        if isinstance(logprobs, Exception):
            raise logprobs
        return ScoreResult(
            request_id=request.request_id,
            logprobs=logprobs,
            usage=Usage(prompt=len(request.prompt_ids)),
        )

    async def stats(self) -> dict[str, EngineStats]:
        return {}

    def _deltas(self, request: GenerateRequest, answer: str | list[int]) -> list[Delta]:
        sampling = request.sampling
        ids = self.tokenizer.encode(answer) if isinstance(answer, str) else answer
        ids = [*ids, *self.info.eos_token_ids]
        limit = len(ids) if sampling.max_tokens is None else sampling.max_tokens
        detokenizer = IncrementalDetokenizer(self.tokenizer)
        stops = StopStrings(sampling.stop)
        deltas: list[Delta] = []
        reason: tuple[str, int | str | None] = ("length", None)
        for token in ids[:limit]:
            if token in (*self.info.eos_token_ids, *sampling.stop_token_ids):
                deltas.append(self._delta(request, deltas, [token], ""))
                reason = ("stop", token)
                break
            text, matched = stops.push(detokenizer.push([token]))
            deltas.append(self._delta(request, deltas, [token], text))
            if matched:
                reason = ("stop", matched)
                break
        if not deltas:
            deltas.append(self._delta(request, deltas, [], ""))
        if not isinstance(reason[1], str):
            text, matched = stops.push(detokenizer.finish())
            deltas[-1].text += text + stops.finish()
        deltas[-1].finish_reason, deltas[-1].stop_reason = reason
        deltas[-1].usage = Usage(
            prompt=len(request.prompt_ids),
            cached=1,
            completion=sum(len(d.token_ids) for d in deltas),
        )
        return deltas

    def _delta(
        self, request: GenerateRequest, before: list[Delta], ids: list[int], text: str
    ) -> Delta:
        index = sum(len(d.token_ids) for d in before)
        return Delta(request_id=request.request_id, index=index, token_ids=ids, text=text)
