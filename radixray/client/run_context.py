"""What all states of one run of a program share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from radixray.actors.transport import Transport
from radixray.client.op_queue import DeliveredCauses, OpQueue
from radixray.client.results import StreamEvent
from radixray.protocol import Usage


class RunContext:
    """One run of a program.

    Attributes:
        transport: the way to the engine.
        defaults: parameters of generations that set none of their own.
        listener: gets the text of generations as it comes, or None.
        delivered: the failures the program has been shown.
        usage: the sum over all requests of the run.
    """

    def __init__(
        self,
        transport: Transport,
        defaults: Mapping[str, Any],
        listener: Callable[[StreamEvent], None] | None = None,
    ) -> None:
        self.transport = transport
        self.defaults = defaults
        self.listener = listener
        self.delivered = DeliveredCauses()
        self.usage = Usage()
        self._queues: list[OpQueue] = []

    def new_queue(self, branch: tuple[int, ...]) -> OpQueue:
        """The queue of a new state."""
        queue = OpQueue(branch, self.delivered)
        self._queues.append(queue)
        return queue

    async def drain(self) -> None:
        """Waits for all operations; raises the first failure that nobody has seen.

        Raises:
            ProgramError: an operation that was never awaited failed.
        """
        for queue in self._queues:
            await queue.drained()
            queue.raise_undelivered()

    async def close(self) -> None:
        """Cancels what still runs, and waits until it has ended."""
        for queue in self._queues:
            queue.cancel()
        for queue in self._queues:
            await queue.drained()
