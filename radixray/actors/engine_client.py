"""The transport over Ray: placements from the scheduler actor, tokens from model actors."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import numpy as np
from ray.exceptions import RayError

from radixray.actors.channel import Channel
from radixray.actors.handles import actor_handle
from radixray.actors.wire import (
    PlaceRequest,
    decode_placements,
    decode_served_model,
    encode,
)
from radixray.config import DeploymentConfig
from radixray.errors import AbortedError, EngineDiedError
from radixray.protocol import Delta, GenerateRequest, ModelInfo, Request, ScoreRequest, ScoreResult
from radixray.reports import EngineStats, Placement
from radixray.tokenizer.tokenizer import Tokenizer

STATS_TIMEOUT_S = 10.0

log = logging.getLogger("radixray")


class EngineClient:
    """A `Transport` to the actors of one deployment. Belongs to one event loop."""

    def __init__(self, config: DeploymentConfig, info: ModelInfo, tokenizer: Tokenizer) -> None:
        self.config = config
        self._info = info
        self._tokenizer = tokenizer
        self._scheduler = actor_handle(config.scheduler_actor)
        self._actors: dict[str, Any] = {
            name: actor_handle(name) for name in map(config.model_actor, range(config.model_actors))
        }
        self._channels: dict[str, Channel] = {}
        self._to_place: list[tuple[Request, asyncio.Future[Placement]]] = []
        self._placing: set[asyncio.Future[None]] = set()
        self._round_robin = itertools.cycle(self._actors)

    @classmethod
    async def connect(cls, config: DeploymentConfig) -> EngineClient:
        """Fetches the served model's limits and tokenizer.

        Raises:
            EngineDiedError: the deployment's actors cannot be reached.
        """
        try:
            actor = actor_handle(config.model_actor(0))
            served = decode_served_model(await actor.describe.remote())
            return cls(config, served.info, Tokenizer(served.tokenizer))
        except (RayError, ValueError) as error:
            raise EngineDiedError(
                f"deployment {config.name!r} cannot be reached: {error}"
            ) from error

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
        """Counters of each model actor by name.

        Raises:
            EngineDiedError: an actor does not answer within STATS_TIMEOUT_S.
        """
        found = {}
        for name, handle in self._actors.items():
            try:
                raw = await asyncio.wait_for(handle.stats.remote(), STATS_TIMEOUT_S)
            except (RayError, TimeoutError) as error:
                raise EngineDiedError(f"model actor {name} does not answer: {error!r}") from error
            found[name] = msgspec.msgpack.decode(raw, type=EngineStats)
        return found

    async def close(self) -> None:
        """Closes all channels; requests under way are aborted."""
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))
        self._channels.clear()

    async def _run(self, request: Request) -> AsyncGenerator[Delta, None]:
        placement = await self._place(request)
        channel = self._channels.get(placement.actor)
        if channel is None or channel.broken:
            channel = self._channels[placement.actor] = Channel(
                placement.actor, self._actors[placement.actor]
            )
        async with contextlib.aclosing(channel.run(request)) as deltas:
            async for delta in deltas:
                yield delta

    async def _place(self, request: Request) -> Placement:
        if len(self._actors) == 1:
            return Placement(actor=next(iter(self._actors)), matched=0, reason="only")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Placement] = loop.create_future()
        if not self._to_place:
            loop.call_soon(self._ask_scheduler)
        self._to_place.append((request, answer))
        return await answer

    def _ask_scheduler(self) -> None:
        # All requests of one turn of the loop are placed by one call.
        asked, self._to_place = self._to_place, []
        task = asyncio.ensure_future(self._place_all(asked))
        self._placing.add(task)
        task.add_done_callback(self._placing.discard)

    async def _place_all(self, asked: list[tuple[Request, asyncio.Future[Placement]]]) -> None:
        requests = [
            PlaceRequest(
                request.request_id,
                request.cache_salt,
                np.array(request.prompt_ids, np.int32).tobytes(),
            )
            for request, _ in asked
        ]
        try:
            placements = decode_placements(await self._scheduler.place.remote(encode(requests)))
        except RayError as error:
            # The scheduler actor restarts by itself; no request needs to wait for it.
            log.warning("the scheduler actor cannot be reached, placing in turn: %s", error)
            placements = [
                Placement(actor=next(self._round_robin), matched=0, reason="load") for _ in asked
            ]
        for (_, answer), placement in zip(asked, placements, strict=True):
            if not answer.done():
                answer.set_result(placement)
