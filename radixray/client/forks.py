"""The branches of a fork."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from radixray.client.expressions import Expression
from radixray.errors import InvalidRequestError, ProgramError

if TYPE_CHECKING:
    from radixray.client.state import State

Append = Expression | str

MODES = ("gather", "concat", "first", "best")
"""Values of `mode` of `Forks.join`."""

SCOPE_MODES = MODES[:3]
"""How leaving a scope may join; ``best`` needs a key, and is called."""


class Forks(Sequence["State"]):
    """The branches that `State.fork` made, by index.

    As an ``async with`` scope: leaving it joins, as `State.fork` was told, unless the body has.
    As soon as one branch fails, the others are cancelled, and the scope raises an ExceptionGroup of
    what failed. A join that can do without some branches, ``first`` or with `return_exceptions`,
    takes failures over: all the while in a scope that was told to join so, else from when the body
    calls it. A body left by an exception, a cancellation too, cancels all branches.

    Outside a scope a branch that fails leaves the others alone. No failure is lost: one that no
    join was told of ends the program.
    """

    def __init__(
        self,
        parent: State,
        branches: list[State],
        mode: str = MODES[0],
        return_exceptions: bool = False,
    ) -> None:
        self._parent = parent
        self._branches = branches
        self._mode = mode
        self._return_exceptions = return_exceptions
        self._tolerant = mode == "first" or return_exceptions
        self._told: list[ProgramError] = []  # failures that somebody deals with
        self._failed: list[ProgramError] = []  # those that cancelled the other branches
        self._cancelled = False
        self._scoped = False
        self._joined = False
        self._taken = False  # one branch was taken, so that nothing is gathered

    def __len__(self) -> int:
        return len(self._branches)

    def __iter__(self) -> Iterator[State]:
        return iter(self._branches)

    def __getitem__(self, index: int) -> State:  # type: ignore[override]  # no slices
        return self._branches[index]

    def __setitem__(self, index: int, branch: State) -> None:
        # Python ends `forks[i] += text` with this.
        if branch is not self._branches[index]:
            raise InvalidRequestError("a branch of a fork cannot be replaced")

    def __iadd__(self, value: Append | Sequence[Append] | Callable[[int], Append]) -> Forks:
        """Appends to every branch: the same, one of a list each, or ``value(index)``.

        Raises:
            InvalidRequestError: a list of another length, or what a state cannot append.
        """
        if isinstance(value, str | Expression):
            each: list[Append] = [value] * len(self)
        elif callable(value):
            each = [value(index) for index in range(len(self))]
        elif isinstance(value, Sequence):
            each = list(value)
        else:
            raise InvalidRequestError(f"forks append expressions, not {type(value).__name__}")
        if len(each) != len(self):
            raise InvalidRequestError(f"{len(each)} items for {len(self)} branches")
        for branch, item in zip(self._branches, each, strict=True):
            branch += item  # a state adds in place
        return self

    @overload
    async def join(
        self, mode: Literal["gather", "concat"] = "gather", *, return_exceptions: bool = False
    ) -> list[State | ProgramError]: ...

    @overload
    async def join(self, mode: Literal["first"]) -> State: ...

    @overload
    async def join(
        self,
        mode: Literal["best"],
        *,
        key: Callable[[State], Any],
        return_exceptions: bool = False,
    ) -> State: ...

    async def join(
        self,
        mode: str = "gather",
        *,
        key: Callable[[State], Any] | None = None,
        return_exceptions: bool = False,
    ) -> list[State | ProgramError] | State:
        """Waits for the branches, and brings what they made to the parent.

        Cancelling the wait leaves the branches running, and the program's end waits for them;
        `cancel` ends them.

        Args:
            mode: ``gather`` makes each variable set in the branches a list on the parent, aligned
                with the branches; one that did not set it has None there. It replaces a variable
                of the same name. ``concat`` also appends what each branch said, in their order.
                ``first`` takes the first branch that has nothing left to do and did not fail,
                and cancels the others; ``best`` the one with the highest `key`. The parent then
                gets the variables that this branch set; `State.adopt` takes its text, too.
            key: of ``best``: called with each branch.
            return_exceptions: a failed branch does not raise; its ProgramError stands at its
                index, in the lists too; ``concat`` and ``best`` pass over it.

        Returns:
            The branches, or the one taken.

        Raises:
            ExceptionGroup: of the ProgramError of each failed branch; with ``first``, and with
                ``best`` where they may fail, only when all did.
            InvalidRequestError: an unknown mode, ``best`` without key, or ``concat`` of branches
                that began or ended messages, or appended images.
        """
        if mode not in MODES:
            raise InvalidRequestError(
                f"mode must be one of {', '.join(MODES)}, not {mode!r:.80}", param="mode"
            )
        if (mode == "best") != (key is not None):
            raise InvalidRequestError("key goes with mode 'best', which needs it", param="key")
        tolerant = self._tolerant
        self._tolerant = tolerant or mode == "first" or return_exceptions
        try:
            result = await self._join(mode, key, return_exceptions)
        finally:
            self._tolerant = tolerant
            if self._scoped:
                self._note_failures()  # those that a join which was given up had taken over
        self._joined = True
        self._failed.clear()
        return result

    async def _join(
        self, mode: str, key: Callable[[State], Any] | None, return_exceptions: bool
    ) -> list[State | ProgramError] | State:
        if mode == "first":
            return self._take(await self._first())
        await self._drained()
        failed = self._failures()
        if failed and not return_exceptions:
            raise self._group(self._failed or failed)
        if key is not None:
            fine = [branch for branch in self._branches if branch.error is None]
            if not fine:
                raise self._group(failed)
            return self._take(max(fine, key=key))
        if mode == "concat":
            self._concat()
        self._gather()
        return [branch.error or branch for branch in self._branches]

    def prune(self, keep: Iterable[int]) -> None:
        """Keeps the branches of these indices, in the order given, and cancels the others.

        Raises:
            InvalidRequestError: an index that is none, or twice the same.
        """
        kept = list(keep)
        if len(set(kept)) < len(kept) or not set(kept) <= set(range(len(self))):
            raise InvalidRequestError(
                f"keep must be different indices below {len(self)}, not {kept!r:.80}", param="keep"
            )
        self._drop([b for index, b in enumerate(self._branches) if index not in kept])
        self._branches = [self._branches[index] for index in kept]

    def cancel(self) -> None:
        """Aborts what the branches still run, in their own forks too. Results stay."""
        self._cancelled = True
        for branch in self._branches:
            branch._cancel()

    async def __aenter__(self) -> Forks:
        self._scoped = True
        for branch in self._branches:
            branch._queue.on_failure = self._note_failures
        self._note_failures()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.cancel()
        try:
            if self._tolerant and not (self._joined or self._cancelled):
                await self._join(self._mode, None, self._return_exceptions)
                self._joined = True
            await self._drained()
        except asyncio.CancelledError:
            self.cancel()
            await self._drained()
            raise
        # The body often meets a branch's failure itself, or a sibling's that was cancelled for
        # it, perhaps in a fork of its own. What it raises of its own goes on unchanged.
        if self._failed and (error is None or _only_programs(error)):
            raise self._group(self._failed) from error
        nobody_won = self._mode == "first" and self._cancelled
        if error is not None or self._taken or nobody_won:
            return
        if self._return_exceptions:
            self._failures()  # of what was appended after a join: they stand in the lists
        if self._mode == "concat" and not self._joined:
            self._concat()
        self._gather()

    def _note_failures(self) -> None:
        """In a scope: what nobody deals with cancels the other branches."""
        if self._cancelled or self._tolerant:
            return
        known = self._told.copy()
        self._failed += [error for error in self._failures() if error not in known]
        if self._failed:
            self.cancel()

    async def _drained(self) -> None:
        for branch in self._branches:
            await branch._queue.drained()

    def _failures(self) -> list[ProgramError]:
        """Those of the branches, which the program is now told of."""
        failed = [branch.error for branch in self._branches if branch.error is not None]
        for error in failed:
            self._tell(error)
        return failed

    def _tell(self, error: ProgramError) -> None:
        self._told.append(error)
        self._parent._run.delivered.add(error)

    async def _first(self) -> State:
        """The first branch to finish without a failure; the others are cancelled."""
        waits = [asyncio.create_task(branch._queue.drained()) for branch in self._branches]
        try:
            while not all(wait.done() for wait in waits):
                if (winner := self._finished(waits)) is not None:
                    break
                running = [wait for wait in waits if not wait.done()]
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            else:
                winner = self._finished(waits)
        finally:
            for wait in waits:
                wait.cancel()
        if winner is None:
            failed = self._failures()
            raise self._group(self._failed or failed)
        losers = [branch for branch in self._branches if branch is not winner]
        self._drop(losers)
        for branch in losers:
            await branch._queue.drained()
        return winner

    def _finished(self, waits: Sequence[asyncio.Task[None]]) -> State | None:
        pairs = zip(self._branches, waits, strict=True)
        return next((b for b, wait in pairs if wait.done() and b.error is None), None)

    def _drop(self, branches: Iterable[State]) -> None:
        """Cancels branches that nobody will ask for any more; their failures count as seen."""
        for branch in branches:
            branch._queue.on_failure = None
            branch._cancel()
            if branch.error is not None:
                self._tell(branch.error)

    def _take(self, branch: State) -> State:
        """The parent gets the branch's own variables."""
        self._taken = True
        self._parent._variables |= branch._variables.own()
        return branch

    def _concat(self) -> None:
        fine = [branch for branch in self._branches if branch.error is None]
        if any(branch._transcript.complete_messages != branch._origin for branch in fine):
            raise InvalidRequestError(
                "concat joins text; these branches began or ended messages", param="mode"
            )
        if any(branch._transcript.num_images != branch._origin_images for branch in fine):
            raise InvalidRequestError(
                "concat joins text; these branches appended images", param="mode"
            )
        for branch in fine:
            self._parent += "".join(branch._said)

    def _gather(self) -> None:
        own = [branch._variables.own() for branch in self._branches]
        for name in dict.fromkeys(name for variables in own for name in variables):
            self._parent.set(
                name,
                [
                    branch.error or (variables[name].value if name in variables else None)
                    for branch, variables in zip(self._branches, own, strict=True)
                ],
            )

    def _group(self, failed: list[ProgramError]) -> ExceptionGroup[ProgramError]:
        return ExceptionGroup(f"{len(failed)} of {len(self)} branches failed", failed)


def _only_programs(error: BaseException) -> bool:
    """Whether nothing but failures of operations was raised."""
    if isinstance(error, BaseExceptionGroup):
        return all(_only_programs(inner) for inner in error.exceptions)
    return isinstance(error, ProgramError)
