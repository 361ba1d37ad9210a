"""The operations of one state: run in order, fail together, never hang."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from radixray.client.program_line import in_short, program_line
from radixray.client.turns import take_turn
from radixray.errors import AbortedError, NotReadyError, ProgramError

T = TypeVar("T")


@dataclass
class _Op:
    label: str
    run: Callable[[], Any]
    future: asyncio.Future[Any]
    line: tuple[str, int] | None = None


class DeliveredCauses:
    """Which causes of failure a program has been shown, by an exception raised where it waits.

    A failure that was shown and survived was handled; one never shown must end the program.
    """

    def __init__(self) -> None:
        self._causes: list[BaseException | None] = []

    def add(self, error: ProgramError) -> None:
        """`error` is about to be raised in the program."""
        self._causes.append(error.__cause__)

    def __contains__(self, error: ProgramError) -> bool:
        return any(cause is error.__cause__ for cause in self._causes)


class OpQueue:
    """Runs the operations of one state in order, in one task that lives while there are any.

    After an operation failed, those behind it and those submitted later fail at once with the
    same cause.

    Attributes:
        branch: the state's path of fork indices, for errors.
        error: the failure, or None.
        request_id: the running operation's engine request; set by the operation.
        on_failure: called once when an operation fails.
        on_change: called whenever an operation has ended.
    """

    def __init__(self, branch: tuple[int, ...], delivered: DeliveredCauses) -> None:
        self.branch = branch
        self.error: ProgramError | None = None
        self.request_id: str | None = None
        self.on_failure: Callable[[], None] | None = None
        self.on_change: Callable[[], None] | None = None
        self._delivered = delivered
        self._waiting: deque[_Op] = deque()
        self._running: _Op | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """True when no operation runs or waits."""
        return self._running is None and not self._waiting

    @property
    def line(self) -> tuple[str, int] | None:
        """File and line of the program that appended the running operation, where known."""
        return None if self._running is None else self._running.line

    def submit(self, label: str, run: Callable[[], Awaitable[T]]) -> Pending[T]:
        """Queues an operation."""
        op = self._new(label, run)
        if self.error is not None:
            op.future.set_exception(self._not_run(op))
        else:
            self._enqueue(op)
        return Pending(self, op.future)

    def do(self, label: str, run: Callable[[], T]) -> Pending[T]:
        """An operation that need not wait for anything: done at once where none is before it."""
        if not self.idle or self.error is not None:

            async def later() -> T:
                return run()

            return self.submit(label, later)
        op = self._new(label, run)
        self.request_id = None
        try:
            op.future.set_result(run())
        except Exception as error:
            self._fail(op, error)
        self._changed()
        return Pending(self, op.future)

    def cancel(self) -> None:
        """Ends the running operation, and fails it and those behind it with AbortedError.

        What has finished stays; nothing happens where the queue is idle.
        """
        op = self._running or (self._waiting.popleft() if self._waiting else None)
        if op is None:
            return
        self._fail(op, AbortedError("cancelled"))
        assert self.error is not None
        self._delivered.add(self.error)  # who cancels knows
        if self._task is not None:
            self._task.cancel()
        self._changed()

    async def drained(self) -> None:
        """Returns when the queue is idle and its task has ended; never raises a failure."""
        while (task := self._task) is not None and not task.done():
            await asyncio.wait([task])

    async def result(self, future: asyncio.Future[T]) -> T:
        """The result of one operation; raises its ProgramError. Cancelling leaves it running."""
        try:
            return await self.outcome(future)
        except ProgramError as error:
            self._delivered.add(error)
            raise

    async def outcome(self, future: asyncio.Future[T]) -> T:
        """As `result`, for another operation, which fails with it: the program has seen nothing."""
        # Awaiting the future itself would cancel it together with the waiter.
        await asyncio.wait([future])
        return future.result()

    def raise_undelivered(self) -> None:
        """Raises the failure if nobody has seen its cause yet."""
        if self.error is not None and self.error not in self._delivered:
            self._delivered.add(self.error)
            raise self.error

    def deliver(self, error: ProgramError) -> ProgramError:
        """`error`, noted as shown to the program."""
        self._delivered.add(error)
        return error

    def _new(self, label: str, run: Callable[[], Any]) -> _Op:
        future = asyncio.get_running_loop().create_future()
        # Failures are reported by `raise_undelivered`, not by asyncio's log.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return _Op(label, run, future, program_line())

    def _enqueue(self, op: _Op) -> None:
        self._waiting.append(op)
        if self._task is None:
            self._task = asyncio.create_task(self._drive(), name=f"radixray program {self.branch}")

    async def _drive(self) -> None:
        try:
            while self._waiting:
                op = self._running = self._waiting.popleft()
                self.request_id = None
                try:
                    await take_turn()
                    result = await op.run()
                except asyncio.CancelledError:
                    self._fail(op, AbortedError("cancelled"))
                    raise
                except Exception as error:
                    self._fail(op, error)
                else:
                    if not op.future.done():
                        op.future.set_result(result)
                finally:
                    self._running = None
                    self._changed()
        finally:
            self._task = None

    def _fail(self, op: _Op, error: Exception) -> None:
        if self.error is not None:
            return
        # An error that came from another state keeps its first cause.
        cause = error.__cause__ if isinstance(error, ProgramError) else error
        where = f" in branch {self.branch}" if self.branch else ""
        self.error = ProgramError(
            f"{op.label} failed{where}: {cause}{in_short(op.line)}",
            op=op.label,
            branch=self.branch,
            request_id=self.request_id,
            line=op.line,
        )
        self.error.__cause__ = cause
        if not op.future.done():
            op.future.set_exception(self.error)
        while self._waiting:
            waiting = self._waiting.popleft()
            waiting.future.set_exception(self._not_run(waiting))
        if self.on_failure is not None:
            self.on_failure()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _not_run(self, op: _Op) -> ProgramError:
        assert self.error is not None
        error = ProgramError(
            f"{op.label} was not run: {self.error.message}",
            op=op.label,
            branch=self.branch,
            line=op.line,
        )
        error.__cause__ = self.error.__cause__
        return error


class Pending(Generic[T]):
    """An operation already under way; await it for its result.

    Cancelling the wait aborts the operation, and with it the state.
    """

    def __init__(self, queue: OpQueue, future: asyncio.Future[T]) -> None:
        self._queue = queue
        self.future = future

    def __await__(self) -> Any:
        return self._wait().__await__()

    def __str__(self) -> str:
        # As text it would stand in a prompt, unnoticed.
        raise NotReadyError("an operation that is under way has no text yet: await it")

    async def _wait(self) -> T:
        try:
            return await self._queue.result(self.future)
        except asyncio.CancelledError:
            if not self.future.done():
                self._queue.cancel()
            raise
