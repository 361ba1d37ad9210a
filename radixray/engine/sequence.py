"""One sequence of tokens that the engine computes, and where its KV is."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from radixray.cache.prefix_cache import Lease, PrefixCache
from radixray.cache.watches import Watch
from radixray.scheduler.plan import RequestView

if TYPE_CHECKING:
    from radixray.engine.tasks import Task


class LiveSequence:
    """Tokens, how many of them have KV, and the lease on the pages that hold it.

    Attributes:
        sequence_id: the request's id, or one derived from it when a request has several.
        task: the request this sequence is computed for.
        arrival: order of arrival, kept through retraction.
        num_tokens: prompt and output tokens so far.
        computed: of these, how many have their KV in pages.
        reusable: most tokens that may be taken from the cache; the logits of those after it are
            needed, so they must be computed.
        lease: while running.
        since_step: the engine step in which it began to wait, by arrival or retraction.
        priority: of its request.
        max_new: output tokens it may generate in all; 0 where none are wanted.
        draw: a random number, for the ``random`` schedule policy.
    """

    def __init__(
        self,
        sequence_id: str,
        namespace: str,
        token_ids: list[int],
        task: Task,
        *,
        reusable: int,
        arrival: int,
        priority: int = 0,
        max_new: int = 0,
    ) -> None:
        self.sequence_id = sequence_id
        self.namespace = namespace
        self.task = task
        self.arrival = arrival
        self.num_tokens = len(token_ids)
        self.reusable = reusable
        self.computed = 0
        self.lease: Lease | None = None
        self.since_step = 0
        self.priority = priority
        self.max_new = max_new
        self.draw = random.random()
        self._tokens = np.array(token_ids, np.int32)
        self._watch: Watch | None = None

    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32 [num_tokens]; a view."""
        return self._tokens[: self.num_tokens]

    def append(self, token: int) -> None:
        """Adds an output token; the logits after it are needed then."""
        if self.num_tokens == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
        self._tokens[self.num_tokens] = token
        self.num_tokens += 1
        self.reusable = self.num_tokens - 1

    def wait(self, cache: PrefixCache, step: int) -> None:
        """Begins to wait, with an eye on how much of it is cached."""
        self.since_step = step
        self._watch = cache.watch(self.namespace, self.tokens[: self.reusable])

    def start(self, cache: PrefixCache) -> None:
        """Takes a lease with the longest cached prefix."""
        self._look_away()
        self.lease = cache.acquire(
            self.namespace,
            self.tokens[: self.reusable],
            owner=self.sequence_id,
            priority=self.priority,
        )
        self.computed = self.lease.cached_tokens

    def stop(self, *, keep: bool = True) -> None:
        """Gives the pages back; what was computed stays in the cache if `keep`."""
        self._look_away()
        if self.lease is not None:
            self.lease.release(self.tokens[: self.computed] if keep else None)
            self.lease = None
        self.computed = 0

    @property
    def remaining(self) -> int:
        """Output tokens it may still generate."""
        return max(0, self.max_new - (self.num_tokens - self.task.usage.prompt))

    @property
    def matched(self) -> int:
        """While waiting: tokens it would find in the cache now."""
        return 0 if self._watch is None else self._watch.length

    def cached_path(self) -> list[int]:
        """While waiting: ids of the radix nodes it would find, from the root down."""
        return [] if self._watch is None else self._watch.path()

    def waiting_view(self, step: int) -> RequestView:
        """What the planner sees while this sequence waits."""
        assert self._watch is not None
        return RequestView(
            self.sequence_id,
            self.arrival,
            self.num_tokens,
            self._watch.length,
            reclaimable=self._watch.unlocked_pages(),
            remaining=self.remaining,
            passed_over=step - self.since_step,
            alone=self.task.suspect,
            namespace=self.namespace,
            tokens=self.tokens,
        )

    def running_view(self) -> RequestView:
        """What the planner sees while this sequence runs."""
        assert self.lease is not None
        return RequestView(
            self.sequence_id,
            self.arrival,
            self.num_tokens,
            self.computed,
            pages=self.lease.num_pages,
            reclaimable=self.lease.reclaimable_pages(),
            remaining=self.remaining,
            alone=self.task.suspect,
            namespace=self.namespace,
            tokens=self.tokens,
        )

    def _look_away(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
