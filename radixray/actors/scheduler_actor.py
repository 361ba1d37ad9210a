"""The scheduler actor: says where requests should run; tokens never pass through it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayError

from radixray.actors.handles import actor_handle
from radixray.actors.wire import (
    CohortHint,
    decode_cohort_hint,
    decode_place_request,
    decode_report,
    decode_snapshot,
    encode,
)
from radixray.config import DeploymentConfig
from radixray.metrics.reports import SchedulerReport
from radixray.scheduler.index import token_array
from radixray.scheduler.policies import policy_of
from radixray.scheduler.router import Router

log = logging.getLogger("radixray")


OPTIONS: dict[str, Any] = {
    "num_cpus": 0,
    "max_restarts": -1,
    "max_task_retries": 0,
    "max_concurrency": 10_000,
}
"""How Ray is to run a SchedulerActor."""


class SchedulerActor:
    """A `Router` that hears from the model actors. Exchanges msgpack (`radixray.actors.wire`)."""

    def __init__(self, config: DeploymentConfig) -> None:
        self._config = config
        self._actors = [config.model_actor(i) for i in range(config.model_actors)]
        self._router = Router(
            self._actors,
            policy_of(config.load_balancing_policy, threshold=config.tree_cache_threshold),
            policy_name=config.load_balancing_policy,
            sticky=config.sticky_sessions,
            page_size=config.engine.page_size,
        )
        self._asking: set[str] = set()
        self._placements: dict[str, dict[str, int]] = {}
        self._matched_tokens = 0
        self._shared: dict[str, dict[str, int]] = {}
        self._background: set[asyncio.Future[Any]] = set()

    async def describe(self) -> DeploymentConfig:
        """The deployment this scheduler belongs to."""
        return self._config

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
        task = asyncio.ensure_future(self._take_snapshot(actor))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

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
