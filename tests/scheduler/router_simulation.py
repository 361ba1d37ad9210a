"""Model actors in simulated time, with real prefix caches, behind a real router.

One unit of time computes one prompt token, of one request after the other; a generation then takes
`DECODE`, beside others.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from radixray.cache.prefix_cache import PrefixCache
from radixray.reports import CacheSnapshot, StepReport
from radixray.scheduler.router import Router

DECODE = 16


@dataclass
class Actor:
    cache: PrefixCache = field(default_factory=lambda: PrefixCache(10**6))
    queue: deque[tuple[str, np.ndarray, Callable[[], None]]] = field(default_factory=deque)
    busy: bool = False
    sequence: int = 0
    computed: int = 0
    served: int = 0


class Simulation:
    """Attributes:
    now: simulated time.
    """

    def __init__(self, actors: int) -> None:
        self.actors = {f"m{i}": Actor() for i in range(actors)}
        self.router = Router(list(self.actors))
        self.now = 0
        self._ids = itertools.count()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        for name in self.actors:
            self._report(name, [])

    def at(self, time: int, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._ids), do))

    def run(self) -> int:
        while self._events:
            self.now, _, do = heapq.heappop(self._events)
            do()
        return self.now

    def request(self, tokens: list[int], done: Callable[[], None] = lambda: None) -> str:
        """Places a request; the actor's name."""
        name = f"r{next(self._ids)}"
        array = np.array(tokens, np.int32)
        placement = self.router.place(name, "", array)
        self.actors[placement.actor].queue.append((name, array, done))
        self._start(placement.actor)
        return placement.actor

    @property
    def computed(self) -> int:
        return sum(actor.computed for actor in self.actors.values())

    def _start(self, name: str) -> None:
        actor = self.actors[name]
        if actor.busy or not actor.queue:
            return
        actor.busy = True
        request_id, tokens, done = actor.queue.popleft()
        lease = actor.cache.acquire("", tokens)
        uncached = len(tokens) - lease.cached_tokens
        lease.extend(len(tokens))
        actor.computed += uncached
        actor.served += 1

        def prefilled() -> None:
            lease.release(tokens)
            actor.busy = False
            self._start(name)
            self.at(self.now + DECODE, finished)

        def finished() -> None:
            self._report(name, [request_id])
            done()

        self.at(self.now + uncached, prefilled)

    def _report(self, name: str, finished: list[str]) -> None:
        actor = self.actors[name]
        actor.sequence += 1
        report = StepReport(
            actor=name,
            incarnation="1",
            sequence=actor.sequence,
            events=actor.cache.drain_events(),
            finished=finished,
        )
        if not self.router.report(report):
            self.router.restore(
                CacheSnapshot(
                    actor=name,
                    incarnation="1",
                    sequence=actor.sequence,
                    events=actor.cache.snapshot(),
                )
            )
