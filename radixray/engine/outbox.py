"""Deltas on their way out."""

from __future__ import annotations

from collections.abc import Iterable

from radixray.engine.tasks import Task
from radixray.errors import RadixRayError
from radixray.protocol import Delta, ErrorInfo


class Outbox:
    """What requests have to tell their consumers.

    Making a Delta costs text; it is made when it is collected, while the model computes the next
    step, and not between two steps.
    """

    def __init__(self) -> None:
        self._made: list[Delta] = []
        self._due: dict[str, Task] = {}

    def __bool__(self) -> bool:
        return bool(self._made or self._due)

    def due(self, task: Task) -> None:
        """`task` has something to tell."""
        self._due[task.request_id] = task

    def last(self, delta: Delta) -> None:
        """The last Delta of a request, which holds all it had to tell."""
        self._due.pop(delta.request_id, None)
        self._made.append(delta)

    def collect(self) -> list[Delta]:
        """All Deltas, at most one for each request."""
        deltas = self._made + [task.take_delta() for task in self._due.values()]
        self._clear()
        return deltas

    def abandon(self, unfinished: Iterable[str], error: RadixRayError) -> list[Delta]:
        """The last Deltas of all requests, where something is broken, and not known what.

        Args:
            unfinished: ids of requests that end with `error`. Those that had finished end well, if
                their last Delta can still be made.
        """
        failed = ErrorInfo.of(error)
        ends = {name: _failure(name, failed) for name in unfinished}
        for name, task in self._due.items():
            if name not in ends:
                try:
                    ends[name] = task.take_delta()
                except Exception:
                    ends[name] = _failure(name, failed)
        deltas = self._made + list(ends.values())
        self._clear()
        return deltas

    def _clear(self) -> None:
        self._made = []
        self._due.clear()


def _failure(request_id: str, error: ErrorInfo) -> Delta:
    return Delta(request_id=request_id, finish_reason="error", error=error)
