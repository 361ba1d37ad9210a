"""What every live request is to the engine."""

from __future__ import annotations

import time
from typing import Protocol

from radixray.engine.counters import RequestTimes
from radixray.engine.sequence import LiveSequence
from radixray.errors import RadixRayError
from radixray.protocol import Delta, ErrorInfo, Request, Usage


class Task(Protocol):
    """A live request.

    Attributes:
        request_id: whose.
        sequences: those the engine must compute; a finished task has none running.
        usage: token counts so far.
        finished: nothing more is to be computed for it.
        suspect: model actors died with it. Until it has a token it runs alone, and its consumer
            hears when it begins.
        times: what it went through, for `Counters`.
    """

    request_id: str
    sequences: list[LiveSequence]
    usage: Usage
    finished: bool
    suspect: bool
    times: RequestTimes

    @property
    def finish_reason(self) -> str | None:
        """Why it finished, once it has."""
        ...

    def started(self, sequence: LiveSequence) -> None:
        """`sequence` took its lease, for the first time or after a retraction."""
        ...

    def prepare(self) -> None:
        """Does what can be done for the end of a step while the model computes."""
        ...

    def take_delta(self) -> Delta:
        """What came since the last Delta; the last one has a finish_reason."""
        ...

    def fail(self, error: RadixRayError) -> Delta:
        """The last Delta, with an error."""
        ...

    def abort(self) -> Delta:
        """The last Delta, with finish_reason ``abort``."""
        ...


class TaskBase:
    """What tasks share; see `Task`."""

    def __init__(self, request: Request) -> None:
        self.request_id = request.request_id
        self.sequences: list[LiveSequence] = []
        self.usage = Usage(prompt=len(request.prompt_ids))
        self.finished = False
        self.suspect = request.attempt > 0
        self.finish_reason: str | None = None
        self.times = RequestTimes(arrived=time.monotonic())
        self._started = False

    def started(self, sequence: LiveSequence) -> None:
        if not self._started:
            self._started = True
            self.usage.cached = min(sequence.computed, self.usage.prompt)

    def prepare(self) -> None:
        pass

    def take_delta(self) -> Delta:
        return Delta(
            request_id=self.request_id,
            finish_reason=self.finish_reason,
            usage=self.usage if self.finished else None,
        )

    def fail(self, error: RadixRayError) -> Delta:
        self.finished, self.finish_reason = True, "error"
        delta = self.take_delta()
        delta.error = ErrorInfo.of(error)
        return delta

    def abort(self) -> Delta:
        self.finished, self.finish_reason = True, "abort"
        return self.take_delta()
