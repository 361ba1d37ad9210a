"""The branches of a fork."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from radixray.client.expressions import Expression
from radixray.errors import InvalidRequestError, ProgramError

if TYPE_CHECKING:
    from radixray.client.state import State

Append = Expression | str


class Forks(Sequence["State"]):
    """The branches that `State.fork` made, by index.

    As an ``async with`` scope: leaving it joins. As soon as one branch fails, the others are
    cancelled, and the scope raises an ExceptionGroup of what failed. A body left by an exception
    cancels all branches.
    """

    def __init__(self, parent: State, branches: list[State]) -> None:
        self._parent = parent
        self._branches = branches
        self._failed: list[ProgramError] = []
        self._cancelled = False

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

    async def join(self, *, return_exceptions: bool = False) -> list[State | ProgramError]:
        """Waits for all branches, and gathers the variables set in them.

        Each such variable becomes a list on the parent, aligned with the branches; a branch that
        did not set it has None there. It replaces a variable of the same name.

        Cancelling the wait leaves the branches running, and the program's end waits for them;
        `cancel` ends them.

        Args:
            return_exceptions: a failed branch does not raise; its ProgramError stands at its
                index, in the lists too.

        Returns:
            The branches.

        Raises:
            ExceptionGroup: of the ProgramError of each failed branch.
        """
        for branch in self._branches:
            await branch._queue.drained()
        failed = [branch.error for branch in self._branches if branch.error is not None]
        for error in failed:
            self._parent._run.delivered.add(error)
        if failed and not return_exceptions:
            raise self._group(failed)
        self._gather()
        return [branch.error or branch for branch in self._branches]

    def cancel(self) -> None:
        """Aborts what the branches still run, in their own forks too. Results stay."""
        self._cancelled = True
        for branch in self._branches:
            branch._cancel()

    async def __aenter__(self) -> Forks:
        for branch in self._branches:
            branch._queue.on_failure = lambda branch=branch: self._on_failure(branch)
            if branch.error is not None:
                self._on_failure(branch)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.cancel()
        for branch in self._branches:
            await branch._queue.drained()
        # The body often meets a branch's failure itself, or a sibling's that was cancelled for
        # it. What it raises of its own goes on unchanged.
        if self._failed and (error is None or isinstance(error, ProgramError)):
            raise self._group(self._failed) from error
        if error is None:
            self._gather()

    def _on_failure(self, branch: State) -> None:
        if self._cancelled or branch.error is None:
            return
        self._failed.append(branch.error)
        self._parent._run.delivered.add(branch.error)
        self.cancel()

    def _gather(self) -> None:
        own = [branch._own_variables() for branch in self._branches]
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
