"""Variables of a state: results that may still be on their way."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Generator
from typing import Any

from radixray.client.expressions import Expression
from radixray.client.op_queue import OpQueue
from radixray.client.results import plain_value
from radixray.errors import NotReadyError, ProgramError


class Var(Expression):
    """A named result. Await it, or append it: an append waits for the value by itself.

    Reading it (`value`, `text`, `str()`, `==`, `bool()`, an f-string) raises NotReadyError while
    the operation runs, and ProgramError when it failed.
    """

    __hash__ = None  # type: ignore[assignment]  # its value, which equality compares, comes late

    def __init__(
        self,
        name: str,
        queue: OpQueue,
        future: asyncio.Future[Any] | None = None,
        constant: Any = None,
    ) -> None:
        self.name = name
        self._queue = queue
        self._future = future
        self._constant = constant

    @property
    def ready(self) -> bool:
        """True when the value is there."""
        future = self._future
        return future is None or (future.done() and future.exception() is None)

    @property
    def result(self) -> Any:
        """The `Gen` or `Choice`, or the value set by `State.set`."""
        if self._future is None:
            return self._constant
        if not self._future.done():
            raise NotReadyError(
                f"variable {self.name!r} is not ready: await it, or append it to a state"
            )
        error = self._future.exception()
        if isinstance(error, ProgramError):
            raise self._queue.deliver(error)
        return self._future.result()

    @property
    def value(self) -> Any:
        """The value: of a `Gen` or `Choice` its text, else what was set."""
        return plain_value(self.result)

    @property
    def text(self) -> str:
        """The value as text."""
        return str(self.value)

    def copy(self) -> Var:
        """For a branch: a set value is copied deeply, so that no branch sees another's changes."""
        if self._future is not None:
            return self
        return Var(self.name, self._queue, constant=copy.deepcopy(self._constant))

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        if self._future is None:
            return self._constant
        return await self._queue.result(self._future)

    def __str__(self) -> str:
        return self.text

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    def __eq__(self, other: object) -> bool:
        return self.value == (other.value if isinstance(other, Var) else plain_value(other))

    def __bool__(self) -> bool:
        return bool(self.value)

    def __repr__(self) -> str:
        return f"Var({self.name!r}, {'ready' if self.ready else 'not ready'})"
