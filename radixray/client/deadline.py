"""A point in time by which requests must have ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from radixray.errors import DeadlineExceededError


@asynccontextmanager
async def before(deadline: float | None) -> AsyncIterator[None]:
    """What runs inside is cancelled at `deadline`, in seconds as `time.time`; None is never.

    Raises:
        DeadlineExceededError: it is past.
    """
    if deadline is None:
        yield
        return
    left = deadline - time.time()
    if left <= 0:
        raise DeadlineExceededError(f"the deadline was {-left:.1f} s ago", param="deadline")
    timeout = asyncio.timeout(left)
    try:
        async with timeout:
            yield
    except TimeoutError as error:
        if not timeout.expired():
            raise
        raise DeadlineExceededError(
            f"the deadline came after {left:.1f} s", param="deadline"
        ) from error
