from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

import radixray as rr
from radixray.reports import EngineStats

os.environ["RAY_metrics_report_interval_ms"] = "1000"  # noqa: SIM112  ten times as often

ACTORS = ("default/model-0", "default/model-1")


@pytest.fixture(scope="package")
async def runtime() -> AsyncGenerator[rr.Runtime, None]:
    """A real deployment with two model actors on real Ray."""
    async with rr.init(
        model_actors=2, dtype="float32", max_total_tokens=8192, address="local"
    ) as runtime:
        yield runtime


@pytest.fixture
def settled(runtime: rr.Runtime) -> Callable[[], Awaitable[dict[str, EngineStats]]]:
    """Waits until no request runs and no page is leased; the counters then.

    A request's end takes the engine a step or two; this allows it two seconds.
    """

    async def wait() -> dict[str, EngineStats]:
        for _ in range(200):
            gc.collect()
            stats = await runtime.stats()
            if all(s.running == s.waiting == s.pages_leased == 0 for s in stats.values()):
                return stats
            await asyncio.sleep(0.01)
        raise AssertionError(f"requests or pages are left behind: {stats}")

    return wait
