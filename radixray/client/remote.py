"""Programs as Ray tasks. Imported only where it is used: it needs ray."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import ray

from radixray.client.results import ProgramResult
from radixray.client.runtime import attach, current_runtime

if TYPE_CHECKING:
    from radixray.client.function import Function


def submit(
    program: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    num_cpus: float = 0.1,
    deployment: str | None = None,
) -> ray.ObjectRef[ProgramResult]:
    """Starts `program` as a task that attaches to `deployment`, by default the one in use here.

    Ray does not retry it: a program may have effects beyond its state.

    Raises:
        NotInitializedError: no `deployment`, and no runtime.
    """
    if deployment is None:
        deployment = current_runtime().config.name
    task = ray.remote(_run).options(num_cpus=num_cpus, max_retries=0, name=program.__name__)
    return task.remote(program, deployment, args, kwargs)


def _run(
    program: Function, deployment: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ProgramResult:
    runtime = attach(deployment)

    async def run() -> ProgramResult:
        try:
            return await program.run(*args, **kwargs)
        finally:
            # The worker process outlives this loop, to which the transport belongs.
            await runtime.aclose()

    return asyncio.run(run())
