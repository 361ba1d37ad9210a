"""The scheduler actor: says where requests should run; tokens never pass through it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError

from radixray.actors.handles import actor_handle
from radixray.actors.members import in_order, living_model_actors
from radixray.actors.wire import (
    CohortHint,
    Membership,
    decode_cohort_hint,
    decode_engine_config,
    decode_place_request,
    decode_report,
    decode_snapshot,
    encode,
)
from radixray.config import DeploymentConfig
from radixray.metrics.reports import SchedulerReport
from radixray.scheduler.index import token_array
from radixray.scheduler.policies import policy_of
from radixray.scheduler.restarts import Restarts
from radixray.scheduler.router import Router

log = logging.getLogger("radixray")


OPTIONS: dict[str, Any] = {
    "num_cpus": 0,
    "max_restarts": -1,
    "max_task_retries": 0,
    "max_concurrency": 10_000,
}
"""How Ray is to run a SchedulerActor."""

RECALL_TIMEOUT_S = 3.0


class SchedulerActor:
    """A `Router` that hears from the model actors. Exchanges msgpack (`radixray.actors.wire`)."""

    def __init__(self, config: DeploymentConfig) -> None:
        self._config = config
        actors = [config.model_actor(i) for i in range(config.model_actors)]
        again = ray.get_runtime_context().was_current_actor_reconstructed
        self._router = Router(
            # The configuration is that of the first start; since then there may have been changes.
            living_model_actors(config.name) or actors if again else actors,
            policy_of(config.load_balancing_policy, threshold=config.tree_cache_threshold),
            policy_name=config.load_balancing_policy,
            sticky=config.sticky_sessions,
            page_size=config.engine.page_size,
        )
        self._restarts = Restarts()
        self._changer = ("", 0.0)
        self._asking: set[str] = set()
        self._placements: dict[str, dict[str, int]] = {}
        self._matched_tokens = 0
        self._shared: dict[str, dict[str, int]] = {}
        self._background: set[asyncio.Future[Any]] = set()
        self._recalled = self._spawn(self._recall(list(self._router.loads) if again else []))

    async def describe(self) -> DeploymentConfig:
        """The deployment this scheduler belongs to, as it is now."""
        await asyncio.wait([self._recalled])
        return msgspec.structs.replace(self._config, model_actors=len(self._router.loads))

    async def members(self) -> bytes:
        """Membership."""
        restarts = self._restarts.counts
        actors = {name: restarts.get(name, 0) for name in in_order(self._router.loads)}
        return encode(Membership(await self.describe(), actors))

    async def configure(self, engine: bytes) -> None:
        """Model actors have another EngineConfig from now on."""
        await asyncio.wait([self._recalled])
        self._config = msgspec.structs.replace(self._config, engine=decode_engine_config(engine))

    async def starting(self, actor: str, again: bool) -> float:
        """A model actor starts, perhaps again; how many seconds it should wait before it does."""
        return self._restarts.starting(actor, again=again)

    async def removed(self, actor: str) -> None:
        """A model actor was ended for good."""
        self._router.leave(actor)
        self._restarts.leave(actor)

    async def claim(self, changer: str, for_s: float) -> bool:
        """Lets one at a time change the deployment; False while another one does.

        Args:
            changer: whoever asks, by a name of its own; it may ask again, to go on.
            for_s: the claim ends by itself after so many seconds.
        """
        holder, until = self._changer
        if holder != changer and time.monotonic() < until:
            return False
        self._changer = (changer, time.monotonic() + for_s)
        return True

    async def place(
        self, requests: list[bytes], hints: Sequence[bytes] = (), gone: Sequence[str] = ()
    ) -> bytes:
        """Placements for PlaceRequests, in order, after what CohortHints say.

        Args:
            gone: ids of requests that their callers left, perhaps before a model actor knew them.
        """
        for request_id in gone:
            self._router.finished(request_id)
        for hint in map(decode_cohort_hint, hints):
            self._heed(hint)
        placements = [
            self._router.place(r.request_id, r.namespace, token_array(r.tokens), r.session)
            for r in map(decode_place_request, requests)
        ]
        for placement in placements:
            reasons = self._placements.setdefault(placement.actor, {})
            reasons[placement.reason] = reasons.get(placement.reason, 0) + 1
            self._matched_tokens += placement.matched
        return encode(placements)

    def _heed(self, hint: CohortHint) -> None:
        if hint.requests == 0:
            self._router.unexpect(hint.cohort_id)
            return
        self._router.expect(
            hint.cohort_id,
            hint.namespace,
            token_array(hint.tokens),
            hint.requests,
            at_once=hint.at_once,
            own_tokens=hint.own_tokens,
        )

    async def measure(self) -> bytes:
        """SchedulerReport."""
        return encode(
            SchedulerReport(
                placements=self._placements,
                matched_tokens=self._matched_tokens,
                shared=self._shared,
                predictions=self._router.predictions,
                restarts=self._restarts.counts,
            )
        )

    async def explain(self, request_id: str) -> bytes:
        """PlacementNote of the request's last placement, or None."""
        return encode(self._router.explain(request_id))

    async def share(self, process: str, counts: dict[str, int]) -> None:
        """Counts of another process; see `Measures.share`."""
        self._shared[process] = counts

    async def report(self, report: bytes) -> None:
        """News of a model actor's cache and finished requests."""
        news = decode_report(report)
        self._restarts.ready(news.actor)
        if not self._router.report(news):
            self._ask_snapshot(news.actor)

    async def loads(self) -> dict[str, tuple[int, int]]:
        """By model actor: requests under way or expected, and tokens they will compute."""
        loads = self._router.loads.items()
        return {actor: (load.requests, load.prefill_tokens) for actor, load in loads}

    async def unreachable(self, actor: str) -> None:
        """A caller could not reach a model actor; nothing is placed there until it reports."""
        self._router.unreachable(actor)

    def _ask_snapshot(self, actor: str) -> None:
        if actor in self._asking:
            return
        self._asking.add(actor)
        self._spawn(self._take_snapshot(actor))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _recall(self, actors: Sequence[str]) -> None:
        """Asks model actors for the configuration they run, which this actor's death has lost."""
        for actor in actors:
            try:
                call = actor_handle(actor).configuration.remote()
                engine = decode_engine_config(await asyncio.wait_for(call, RECALL_TIMEOUT_S))
            except (RayError, ValueError, TimeoutError):
                continue
            self._config = msgspec.structs.replace(self._config, engine=engine)
            return

    async def _take_snapshot(self, actor: str) -> None:
        try:
            handle = actor_handle(actor)
            up_to_date = self._router.restore(decode_snapshot(await handle.snapshot.remote()))
        except (RayError, ValueError) as error:
            # The actor is gone or restarting; its next report asks again.
            log.warning("no snapshot of %s: %s", actor, error)
            up_to_date = True
        finally:
            self._asking.discard(actor)
        if not up_to_date:
            self._ask_snapshot(actor)
