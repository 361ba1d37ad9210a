"""Which model actors a deployment has: by Ray's names, and as one consumer knows them.

The number may change while consumers are connected; the scheduler actor always knows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import ray
from ray.util import list_named_actors

from radixray.actors.independent import independent_task
from radixray.actors.wire import Membership, decode_membership
from radixray.config import NAMESPACE, DeploymentConfig

LOOK_EVERY_S = 1.0
"""A consumer at work knows so soon of new model actors."""

TIMEOUT_S = 3.0

log = logging.getLogger("radixray")


def living_model_actors(deployment: str) -> list[str]:
    """Names of its model actors that Ray knows, those being started or restarted among them."""
    prefix = f"{deployment}/model-"
    # Ray says dicts, where it is asked for all namespaces.
    named: Any = list_named_actors(all_namespaces=True)
    names = [each["name"] for each in named if each["namespace"] == NAMESPACE]
    return in_order(n for n in names if n.startswith(prefix) and n[len(prefix) :].isdigit())


def in_order(names: Iterable[str]) -> list[str]:
    """Names of model actors by their numbers."""
    return sorted(names, key=lambda name: int(name.rpartition("-")[2]))


class Members:
    """The model actors of a deployment, as one consumer last heard of them.

    Belongs to one event loop.

    Args:
        reloaded: called when they have another engine configuration than before.

    Attributes:
        config: of the deployment, as it is now.
        names: of its model actors, in order; never empty.
        restarts: how often each died and was started again.
    """

    def __init__(
        self,
        scheduler: Any,
        config: DeploymentConfig,
        reloaded: Callable[[], Awaitable[None]],
    ) -> None:
        self.config = config
        self.names = [config.model_actor(index) for index in range(config.model_actors)]
        self.restarts: dict[str, int] = {}
        self._scheduler = scheduler
        self._reloaded = reloaded
        self._heard = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    def look_soon(self) -> None:
        """Asks the scheduler actor, unless it was asked just now; does not wait."""
        if self._looking is None and time.monotonic() - self._heard >= LOOK_EVERY_S:
            self._look()

    async def look(self) -> None:
        """Asks the scheduler actor; one that does not answer changes nothing."""
        if self._looking is not None:
            # It may have been asked before what the caller knows of had come about.
            await asyncio.shield(self._looking)
        await asyncio.shield(self._looking or self._look())

    def _look(self) -> asyncio.Task[None]:
        self._looking = independent_task(self._ask())
        return self._looking

    async def _ask(self) -> None:
        try:
            if ray.is_initialized():
                raw = await asyncio.wait_for(self._scheduler.members.remote(), TIMEOUT_S)
                await self._take(decode_membership(raw))
        except Exception as error:  # Ray raises many kinds; what was known stays, until it answers
            log.debug("no news of the model actors: %r", error)
        finally:
            self._heard = time.monotonic()
            self._looking = None

    async def _take(self, heard: Membership) -> None:
        if not heard.actors:
            return
        self.names = list(heard.actors)
        self.restarts = heard.actors
        if heard.config.engine != self.config.engine:
            await asyncio.wait_for(self._reloaded(), TIMEOUT_S)
        self.config = heard.config
