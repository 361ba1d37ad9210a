"""Deltas on their way out."""

from __future__ import annotations

from radixray.engine.tasks import Task
from radixray.protocol import Delta


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
        self._made = []
        self._due.clear()
        return deltas
