"""One coroutine a row, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any

from radixray.client.results import ProgramResult
from radixray.errors import AbortedError


async def map_rows(
    run_row: Callable[[int, Any], Awaitable[ProgramResult]],
    rows: Iterable[Any],
    concurrency: int,
    ordered: bool,
    return_errors: bool,
) -> AsyncGenerator[ProgramResult, None]:
    """Yields the results of `run_row` with their row's index; cancels all when it is closed.

    Raises:
        Exception: what `run_row` raised, unless `return_errors`.
    """

    async def one(index: int, row: Any) -> ProgramResult:
        try:
            return replace(await run_row(index, row), index=index)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The program cancelled itself, which is no reason to cancel the other rows.
            error: Exception = AbortedError(f"the program of row {index} was cancelled")
        except Exception as failure:
            error = failure
        if not return_errors:
            raise error
        return ProgramResult(index=index, error=error)

    remaining = enumerate(rows)
    running: set[asyncio.Task[ProgramResult]] = set()
    done: set[asyncio.Task[ProgramResult]] = set()
    early: dict[int, ProgramResult] = {}  # finished before a row that must be yielded first
    next_index = 0
    exhausted = False
    try:
        while True:
            while not exhausted and len(running) < concurrency:
                if (numbered := next(remaining, None)) is None:
                    exhausted = True
                else:
                    running.add(asyncio.create_task(one(*numbered)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for result in sorted((task.result() for task in done), key=lambda r: r.index):
                if not ordered:
                    yield result
                    continue
                early[result.index] = result
                while next_index in early:
                    yield early.pop(next_index)
                    next_index += 1
    finally:
        for task in running:
            task.cancel()
        # The first failure was raised; others that came with it end here.
        await asyncio.gather(*running, *done, return_exceptions=True)
