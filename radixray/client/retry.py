"""Running a failed row again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from radixray.errors import InvalidRequestError, OverloadedError, ProgramError, RadixRayError

T = TypeVar("T")


@dataclass(frozen=True)
class Retry:
    """When to run a program again that failed, and after how long.

    It is run again where every cause of its failure is `retryable`: an engine that failed, died or
    was full, an output that could not be read as its type. The whole program is run again, with
    what it does beside generating.

    Attributes:
        attempts: most runs in all.
        delay_s: before the second run; a full engine that names a longer time is given it.
        factor: by how much each next delay is longer.
        jitter: up to this fraction is added to a delay, drawn anew each time.

    Raises:
        InvalidRequestError: a number out of range.
    """

    attempts: int = 3
    delay_s: float = 0.5
    factor: float = 2.0
    jitter: float = 0.25

    def __post_init__(self) -> None:
        for name, least in (("attempts", 1), ("delay_s", 0), ("factor", 1), ("jitter", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
                raise InvalidRequestError(
                    f"{name} must be a number from {least}, not {value!r}", param=name
                )

    async def run(self, program: Callable[[], Awaitable[T]]) -> T:
        """The result of the first run that does not fail.

        Raises:
            Exception: what the last run raised.
        """
        delay = self.delay_s
        for left in range(int(self.attempts) - 1, -1, -1):
            try:
                return await program()
            except Exception as error:
                causes = list(_causes(error))
                if not left or not all(_retryable(cause) for cause in causes):
                    raise
                named = [c.retry_after_s for c in causes if isinstance(c, OverloadedError)]
            await asyncio.sleep(max(delay, *named, 0) * (1 + self.jitter * random.random()))
            delay *= self.factor
        raise AssertionError("the last attempt returns or raises")


def _causes(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    elif isinstance(error, ProgramError) and error.__cause__ is not None:
        yield from _causes(error.__cause__)
    else:
        yield error


def _retryable(error: BaseException) -> bool:
    return isinstance(error, RadixRayError) and error.retryable
