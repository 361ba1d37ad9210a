"""What all states of one run of a program share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from radixray.actors.transport import Transport
from radixray.client.lookahead import Announcements
from radixray.client.op_queue import DeliveredCauses, OpQueue
from radixray.client.results import StreamEvent
from radixray.protocol import Usage


class RunContext:
    """One run of a program.

    Attributes:
        transport: the way to the engine.
        defaults: parameters of generations that set none of their own.
        listener: gets the text of states as it comes, or None.
        delivered: the failures the program has been shown.
        usage: the sum over all requests of the run.
        announcements: what the scheduler was told of requests to come.
    """

    def __init__(
        self,
        transport: Transport,
        defaults: Mapping[str, Any],
        listener: Callable[[StreamEvent], None] | None = None,
        outer: RunContext | None = None,
    ) -> None:
        self.transport = transport
        self.defaults = defaults
        self.listener = listener
        self.delivered = DeliveredCauses()
        self.usage = Usage()
        self.announcements = Announcements(transport)
        self._outer = outer
        self._queues: list[OpQueue] = []

    def nested(self, defaults: Mapping[str, Any]) -> RunContext:
        """The run of a program that this one calls; `defaults` go before this one's.

        A failure is the caller's to handle when the called program has ended with it, whatever
        that program has seen of it.
        """
        return RunContext(self.transport, {**self.defaults, **defaults}, self.listener, self)

    def count(self, usage: Usage) -> None:
        """Adds to the usage of this run, and of those around it."""
        self.usage += usage
        if self._outer is not None:
            self._outer.count(usage)

    def new_queue(self, branch: tuple[int, ...]) -> OpQueue:
        """The queue of a new state."""
        queue = OpQueue(branch, self.delivered)
        self._queues.append(queue)
        return queue

    def listener_of(
        self,
        name: str,
        branch: tuple[int, ...],
        kind: Literal["text", "reasoning"] = "text",
    ) -> Callable[[str], None] | None:
        """What gets the text of variable `name` as it comes, or None."""
        listener = self.listener
        if listener is None:
            return None
        return lambda delta: listener(StreamEvent(kind=kind, var=name, branch=branch, delta=delta))

    def prompt_listener_of(self, branch: tuple[int, ...]) -> Callable[[str], None] | None:
        """What gets the text that the program itself appends, or None."""
        listener = self.listener
        if listener is None or self._outer is not None:
            # A called program's state has no path of its own to tell it from its caller's.
            return None
        return lambda delta: listener(StreamEvent(kind="prompt", branch=branch, delta=delta))

    @property
    def cache_salt(self) -> str:
        """That of all requests which set none of their own."""
        return self.defaults.get("cache_salt") or ""

    @property
    def timeout_s(self) -> float | None:
        """That of all requests which set none of their own."""
        return self.defaults.get("timeout_s")

    async def drain(self) -> None:
        """Waits for all operations; raises the first failure that nobody has seen.

        Raises:
            ProgramError: an operation that was never awaited failed.
        """
        # A program that is called may append to the states of its caller.
        while any(not queue.idle for queue in self._queues):
            for queue in self._queues:
                await queue.drained()
        for queue in self._queues:
            await queue.drained()
            queue.raise_undelivered()

    async def close(self) -> None:
        """Cancels what still runs, and waits until it has ended."""
        for queue in self._queues:
            queue.cancel()
        for queue in self._queues:
            await queue.drained()
