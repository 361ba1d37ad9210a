"""The transport over Ray: placements from the scheduler actor, tokens from model actors."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError

from radixray.actors import explaining, measures
from radixray.actors.channel import Channel
from radixray.actors.handles import actor_handle
from radixray.actors.independent import independent_call
from radixray.actors.members import Members, living_model_actors
from radixray.actors.model_actors import find
from radixray.actors.placing import Placer
from radixray.actors.replay import Replay
from radixray.actors.wire import (
    ServedModel,
    decode_cache_tree,
    decode_pin_report,
    decode_served_model,
    encode,
)
from radixray.config import DeploymentConfig
from radixray.errors import (
    AbortedError,
    EngineDiedError,
    HandedOverError,
    InvalidRequestError,
    OverloadedError,
    RadixRayError,
)
from radixray.explanation import Explanation
from radixray.images import Image
from radixray.metrics.reports import DeploymentReport
from radixray.namespaces import namespace_of
from radixray.protocol import (
    Delta,
    GenerateRequest,
    Handle,
    ModelInfo,
    Request,
    ScoreRequest,
    ScoreResult,
)
from radixray.reports import CacheTree, EngineStats, PinReport
from radixray.tokenizer.tokenizer import Tokenizer

STATS_TIMEOUT_S = 5.0

GONE_S = 10.0
"""A model actor that Ray does not know for so long is not about to be started by a reload."""

NEWS_S = 0.05
"""Seconds in which the scheduler hears all that was reported."""


class EngineClient:
    """A `Transport` to the actors of one deployment. Belongs to one event loop.

    Args:
        info, tokenizer: from `fetch_served_model`.

    Raises:
        EngineDiedError: the deployment has no scheduler actor.
    """

    def __init__(self, config: DeploymentConfig, info: ModelInfo, tokenizer: Tokenizer) -> None:
        self.config = config
        self._info = info
        self._tokenizer = tokenizer
        try:
            self._scheduler = actor_handle(config.scheduler_actor)
        except ValueError as error:
            raise EngineDiedError(f"deployment {config.name!r} is no more: {error}") from error
        self._members = Members(self._scheduler, config, self._reloaded)
        self._channels: dict[str, Channel] = {}
        self._live: set[str] = set()
        self._placer = Placer(self._scheduler, lambda: self._members.names, self._namespace)

    @property
    def info(self) -> ModelInfo:
        """The served model."""
        return self._info

    @property
    def tokenizer(self) -> Tokenizer:
        """The served model's tokenizer and chat template."""
        return self._tokenizer

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """The request's Deltas; see `Transport.generate`."""
        request.validate(self._info)
        async with contextlib.aclosing(self._run(request)) as deltas:
            async for delta in deltas:
                yield delta

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Log-probabilities of the choices; see `Transport.score`."""
        request.validate(self._info)
        async with contextlib.aclosing(self._run(request)) as deltas:
            async for delta in deltas:
                if delta.choice_logprobs is not None and delta.usage is not None:
                    return ScoreResult(
                        request_id=request.request_id,
                        logprobs=delta.choice_logprobs,
                        usage=delta.usage,
                    )
        raise AbortedError(f"request {request.request_id} was aborted")

    async def stats(self) -> dict[str, EngineStats]:
        """Counters of each model actor; see `Transport.stats`."""
        names = await self._names()
        stats = await asyncio.gather(*map(_stats, names))
        for name, each in zip(names, stats, strict=True):
            each.restarts = self._members.restarts.get(name, 0)
        return dict(zip(names, stats, strict=True))

    async def measure(self) -> DeploymentReport:
        """What all actors count; see `Measures.measure`."""
        return await measures.measure(
            self.config.scheduler_actor, await self._names(), self._info.name
        )

    async def share(self, process: str, counts: dict[str, int]) -> None:
        """Counts of this process, for `measure`; see `Measures.share`."""
        await measures.share(self._scheduler, process, counts)

    async def pin(
        self, prompt_ids: list[int], ttl_s: float, *, cache_salt: str = ""
    ) -> dict[str, PinReport]:
        """Keeps what is cached of a prefix, on every model actor, for `ttl_s` seconds.

        The pins end early with this client, or where a lone request needs their pages.

        Raises:
            InvalidRequestError: a bad `ttl_s`, or no room in the pin budget.
            EngineDiedError: an actor cannot be reached.
        """
        tokens = np.array(prompt_ids, np.int32).tobytes()

        async def pin_on(name: str) -> PinReport:
            consumer_id = self._channel(name).consumer_id
            call = actor_handle(name).pin.remote(
                consumer_id, self._namespace(cache_salt), tokens, ttl_s
            )
            return decode_pin_report(await answer_of(name, call))

        names = await self._names()
        return dict(zip(names, await asyncio.gather(*map(pin_on, names)), strict=True))

    async def end(self, handle: Handle) -> None:
        """Ends generations, of other processes too; see `EndsByHandle.end`."""
        message = encode(handle)
        names = await self._names()
        calls = [answer_of(name, actor_handle(name).end.remote(message)) for name in names]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def flush(self) -> int:
        """Empties the caches of all model actors of what no request uses; pages freed.

        Raises:
            EngineDiedError: an actor cannot be reached.
        """
        calls = [answer_of(n, actor_handle(n).flush.remote()) for n in await self._names()]
        return sum(await asyncio.gather(*calls))

    async def cache_tree(self, limit: int = 100) -> dict[str, CacheTree]:
        """What each model actor has cached: at most `limit` nodes each, for people to look at.

        Raises:
            EngineDiedError: an actor cannot be reached.
        """
        names = await self._names()
        raw = await asyncio.gather(
            *(answer_of(name, actor_handle(name).cache_tree.remote(limit)) for name in names)
        )
        return dict(zip(names, map(decode_cache_tree, raw), strict=True))

    async def explain(self, request_id: str) -> Explanation:
        """Why a request went where it went, and found what it found; see `Explains.explain`."""
        names = await self._names()
        return await explaining.gather(request_id, self._scheduler, names, self._tokenizer)

    def expect(
        self,
        prompt_ids: list[int],
        requests: int,
        *,
        at_once: int,
        own_tokens: int = 0,
        cache_salt: str = "",
    ) -> Callable[[], None]:
        """Tells the scheduler of requests to come; see `LooksAhead.expect`."""
        return self._placer.expect(
            prompt_ids, requests, at_once=at_once, own_tokens=own_tokens, cache_salt=cache_salt
        )

    async def close(self) -> None:
        """Closes all channels; requests under way fail."""
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))
        self._channels.clear()

    def abandon(self) -> None:
        """As `close`, without waiting. In the client's loop only, and before Ray is shut down."""
        for channel in self._channels.values():
            channel.abandon()
        self._channels.clear()

    async def _run(self, request: Request) -> AsyncGenerator[Delta, None]:
        if request.request_id in self._live:
            raise InvalidRequestError(
                f"request_id {request.request_id!r} is in use", param="request_id"
            )
        self._live.add(request.request_id)
        try:
            async with contextlib.aclosing(self._run_somewhere(request)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self._live.remove(request.request_id)

    async def _run_somewhere(self, request: Request) -> AsyncGenerator[Delta, None]:
        replay = Replay(request, self.config)
        gone: dict[str, float] = {}
        while True:
            actor, ended = "", False
            self._members.look_soon()
            try:
                attempt = replay.request()
                actor = (await self._placer.place(attempt)).actor
                channel = self._channel(actor)
                async with contextlib.aclosing(channel.run(attempt)) as deltas:
                    async for delta in deltas:
                        ended = delta.finish_reason is not None
                        if replay.take(delta):
                            yield delta
                return
            except OverloadedError as error:
                await replay.survive(error)
            except HandedOverError as error:
                await replay.survive(error)
                await asyncio.sleep(NEWS_S)
            except EngineDiedError as error:
                if not ray.is_initialized():
                    raise
                independent_call(self._scheduler.unreachable.remote, actor)
                if isinstance(error, _ActorGoneError):
                    gone.setdefault(actor, time.monotonic())
                    await self._members.look()
                else:
                    gone.pop(actor, None)
                if self._all_gone(gone):
                    raise
                await replay.survive(error)
                # The last report of a dead actor can arrive after we said that it is dead.
                await asyncio.sleep(NEWS_S)
            finally:
                if not ended:
                    self._placer.gone(request.request_id)

    def _all_gone(self, gone: dict[str, float]) -> bool:
        """Whether there is no model actor left, and none to come."""
        if not gone.keys() >= set(self._members.names):
            return False
        long_ago = time.monotonic() - GONE_S
        return find(self.config.scheduler_actor) is None or max(gone.values()) < long_ago

    async def _names(self) -> list[str]:
        await self._members.look()
        return self._members.names

    async def _reloaded(self) -> None:
        self._info = (await _fetch_served_model(self.config)).info

    def _namespace(self, cache_salt: str, images: Sequence[Image] = ()) -> str:
        return namespace_of(self._info.name, cache_salt, images=[image.key for image in images])

    def _channel(self, actor: str) -> Channel:
        channel = self._channels.get(actor)
        if channel is None or channel.broken:
            try:
                handle = actor_handle(actor)
            except ValueError as error:
                raise _ActorGoneError(f"model actor {actor} is no more: {error}") from error
            channel = self._channels[actor] = Channel(actor, handle)
        return channel


class _ActorGoneError(EngineDiedError):
    """The actor died, and is not started again."""


async def fetch_served_model(config: DeploymentConfig) -> tuple[ModelInfo, Tokenizer]:
    """The served model's limits and tokenizer, from whichever model actor answers.

    Raises:
        EngineDiedError: none can be reached.
    """
    served = await _fetch_served_model(config)
    return served.info, Tokenizer(served.tokenizer)


async def _fetch_served_model(config: DeploymentConfig) -> ServedModel:
    cause: Exception | None = None
    names = [config.model_actor(index) for index in range(config.model_actors)]
    for name in living_model_actors(config.name) or names:
        try:
            return decode_served_model(await actor_handle(name).describe.remote())
        except (RayError, ValueError) as error:
            # An error raised by the actor comes wrapped in its whole remote traceback.
            cause = getattr(error, "cause", None) or error
    raise EngineDiedError(f"deployment {config.name!r} cannot be reached: {cause}") from cause


async def answer_of(name: str, call: Any) -> Any:
    """What an actor answers; its typed errors as they are.

    Raises:
        EngineDiedError: it cannot be reached.
    """
    try:
        return await call
    except RayTaskError as error:
        if isinstance(error.cause, RadixRayError):
            raise error.cause from None
        raise
    except RayError as error:
        raise EngineDiedError(f"model actor {name} cannot be reached") from error


async def _stats(name: str) -> EngineStats:
    try:
        raw = await asyncio.wait_for(actor_handle(name).stats.remote(), STATS_TIMEOUT_S)
    except (RayError, TimeoutError, ValueError):
        return EngineStats(reachable=False)
    return msgspec.msgpack.decode(raw, type=EngineStats)
