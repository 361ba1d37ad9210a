"""Variables of a state: results that may still be on their way."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Generator
from typing import Any

from radixray.client.expressions import Expression
from radixray.client.op_queue import OpQueue, Pending
from radixray.client.results import Choice, Gen, HasText, plain_value
from radixray.client.text_feed import TextFeed
from radixray.errors import InvalidRequestError, NotReadyError, ProgramError


class Var(Expression, HasText):
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
        feed: TextFeed | None = None,
    ) -> None:
        self.name = name
        self._queue = queue
        self._future = future
        self._constant = constant
        self._feed = feed

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
        """The value of a `Gen` or `Choice`, a list of them for samples, else what was set."""
        return plain_value(self.result)

    @property
    def text(self) -> str:
        """The text that was generated or chosen, else the value as text."""
        result = self.result
        return str(result if isinstance(result, Gen | Choice) else plain_value(result))

    @property
    def reasoning(self) -> str | None:
        """What ``separate_reasoning`` told apart from the text; of samples, the first's."""
        result = self.result
        if isinstance(result, list) and result:
            result = result[0]
        return result.reasoning if isinstance(result, Gen) else None

    async def text_iter(self) -> AsyncGenerator[str, None]:
        """The text as it is generated, from its beginning; of other variables, in one piece.

        Raises:
            ProgramError: the operation failed; after what it had generated.
        """
        if self._feed is None or self._future is None:
            await self
            yield self.text
            return
        async for piece in self._feed.read(self._future):
            yield piece
        await self

    async def outcome(self) -> Any:
        """The result, for another operation (`OpQueue.outcome`)."""
        return self._constant if self._future is None else await self._queue.outcome(self._future)

    def alias(self, name: str) -> Var:
        """The same result under another name."""
        return Var(name, self._queue, self._future, self._constant, self._feed)

    def copy(self) -> Var:
        """For a branch: a set value is copied deeply, so that no branch sees another's changes.

        Raises:
            InvalidRequestError: the value cannot be copied.
        """
        if self._future is not None:
            return self
        try:
            constant = copy.deepcopy(self._constant)
        except Exception as error:
            raise InvalidRequestError(
                f"variable {self.name!r} cannot be copied for the branches of a fork: {error}",
                param=self.name,
            ) from error
        return Var(self.name, self._queue, constant=constant)

    def __deepcopy__(self, memo: dict[int, Any]) -> Var:
        return self  # its result never changes

    def __reduce__(self) -> tuple[Any, ...]:
        # In another process only the result has a meaning.
        return _as_it_is, (self.result,)

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


def _as_it_is(result: Any) -> Any:
    return result


def settled(value: Any) -> Any:
    """`value` with what was under way in it, however deep in lists, tuples and dicts, finished:
    each Var as its value, each Pending as its result."""
    if isinstance(value, Var):
        return settled(value.value)
    if isinstance(value, Pending):
        return value.future.result()
    if type(value) in (list, tuple):
        return type(value)(map(settled, value))
    if type(value) is dict:
        return {key: settled(item) for key, item in value.items()}
    return value
