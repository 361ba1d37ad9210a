"""Who waits for which request's Deltas, on the model actor's side. Used by one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from radixray.protocol import Delta, Handle, join_deltas


class Consumer:
    """One process that reads Deltas of its requests from one multiplexed stream.

    Attributes:
        requests: ids of its requests under way.
        last_seen: monotonic time of its last sign of life.
    """

    def __init__(self) -> None:
        self.requests: set[str] = set()
        self.last_seen = time.monotonic()
        self._batch: list[Delta] = []
        self._ready = asyncio.Event()
        self._closed = False

    def put(self, delta: Delta) -> None:
        """Adds a Delta to the next batch."""
        self._batch.append(delta)
        self._ready.set()

    def close(self) -> None:
        """Lets `next_batch` return None."""
        self._closed = True
        self._ready.set()

    async def next_batch(self) -> list[Delta] | None:
        """All Deltas since the last call, at least one; None when closed."""
        await self._ready.wait()
        self._ready.clear()
        if self._closed:
            return None
        batch, self._batch = self._batch, []
        return batch


class Consumers:
    """All consumers of one model actor, and the owner of each request."""

    def __init__(self) -> None:
        self._consumers: dict[str, Consumer] = {}
        self._owners: dict[str, Consumer] = {}
        self._held: dict[str, list[Delta]] = {}
        self._handles: dict[str, Handle] = {}

    def get(self, consumer_id: str) -> Consumer:
        """The consumer of that id, made when new; counts as a sign of life."""
        consumer = self._consumers.get(consumer_id)
        if consumer is None:
            consumer = self._consumers[consumer_id] = Consumer()
        consumer.last_seen = time.monotonic()
        return consumer

    def own(
        self,
        consumer_id: str,
        request_id: str,
        *,
        whole: bool = False,
        handle: Handle | None = None,
    ) -> bool:
        """Deltas of the request go to this consumer from now on; False if it has an owner.

        Args:
            whole: they are held until the last, and then go as one.
            handle: by which others find it.
        """
        if request_id in self._owners:
            return False
        consumer = self.get(consumer_id)
        consumer.requests.add(request_id)
        self._owners[request_id] = consumer
        if whole:
            self._held[request_id] = []
        if handle is not None:
            self._handles[request_id] = handle
        return True

    def found_by(self, handle: Handle) -> list[str]:
        """Ids of the requests under way that `handle` finds."""
        return [request_id for request_id, each in self._handles.items() if handle.finds(each)]

    def disown(self, request_id: str) -> bool:
        """Nobody waits for the request any more; False if nobody did."""
        consumer = self._owners.pop(request_id, None)
        self._held.pop(request_id, None)
        self._handles.pop(request_id, None)
        if consumer is None:
            return False
        consumer.requests.discard(request_id)
        return True

    @property
    def request_ids(self) -> list[str]:
        """Of all requests that somebody waits for."""
        return list(self._owners)

    def end(self, delta: Delta) -> None:
        """Hands a request's last Delta to its consumer, and nothing that was held before it."""
        self._owners[delta.request_id].put(delta)
        self.disown(delta.request_id)

    def is_owned(self, request_id: str) -> bool:
        """Whether somebody waits for the request."""
        return request_id in self._owners

    def deliver(self, deltas: Iterable[Delta]) -> None:
        """Hands Deltas to their consumers; those nobody waits for are dropped."""
        for delta in deltas:
            consumer = self._owners.get(delta.request_id)
            if consumer is None:
                continue
            held = self._held.get(delta.request_id)
            if held is not None:
                held.append(delta)
            if delta.finish_reason is not None:
                consumer.put(delta if held is None else join_deltas(held))
                self.disown(delta.request_id)
            elif held is None:
                consumer.put(delta)

    def remove(self, consumer_id: str) -> list[str]:
        """Forgets a consumer; returns its requests, which must be aborted."""
        consumer = self._consumers.pop(consumer_id, None)
        if consumer is None:
            return []
        consumer.close()
        orphans = list(consumer.requests)
        for request_id in orphans:
            self._owners.pop(request_id, None)
            self._held.pop(request_id, None)
            self._handles.pop(request_id, None)
        return orphans

    def silent_since(self, horizon: float) -> list[str]:
        """Ids of consumers that gave no sign of life since `horizon` (monotonic seconds)."""
        return [i for i, c in self._consumers.items() if c.last_seen < horizon]
