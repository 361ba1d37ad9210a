"""Gathering what the processes of a deployment count."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec
from ray.exceptions import RayError

from radixray.actors.handles import actor_handle
from radixray.metrics.reports import ActorReport, DeploymentReport, SchedulerReport

T = TypeVar("T")

TIMEOUT_S = 3.0
"""For each actor; who scrapes gives up after ten seconds by default."""


@runtime_checkable
class Measures(Protocol):
    """A way to ask a deployment what it counts."""

    async def measure(self) -> DeploymentReport:
        """What all actors count; those that do not answer soon are left out."""
        ...

    async def share(self, process: str, counts: dict[str, int]) -> None:
        """Leaves the counts of this process where `measure` finds them, from whichever process.

        They replace those it left before, and stay when it ends. Where nobody takes them, nothing
        happens: the next ones hold all that these did.

        Args:
            process: its name, never used again.
            counts: since it started, of anything.
        """
        ...


async def measure(scheduler: str, names: Sequence[str], model: str) -> DeploymentReport:
    """See `Measures.measure`.

    Args:
        scheduler, names: of the scheduler actor, and of the model actors.
        model: its name.
    """
    *actors, placed = await asyncio.gather(
        *(_asked(name, ActorReport) for name in names),
        _asked(scheduler, SchedulerReport),
    )
    assert placed is None or isinstance(placed, SchedulerReport)
    found = {
        name: report if isinstance(report, ActorReport) else None
        for name, report in zip(names, actors, strict=True)
    }
    return DeploymentReport(model=model, actors=found, scheduler=placed)


async def share(scheduler: Any, process: str, counts: dict[str, int]) -> None:
    """See `Measures.share`."""
    with contextlib.suppress(RayError, TimeoutError):
        await _soon(scheduler.share.remote(process, counts))


async def _asked(name: str, kind: type[T]) -> T | None:
    try:
        return msgspec.msgpack.decode(await _soon(actor_handle(name).measure.remote()), type=kind)
    except (RayError, TimeoutError, ValueError):
        return None


async def _soon(answer: Awaitable[T]) -> T:
    return await asyncio.wait_for(answer, TIMEOUT_S)
