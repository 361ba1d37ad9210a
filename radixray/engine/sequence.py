"""One sequence of tokens that the engine computes, and where its KV is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from radixray.cache.prefix_cache import Lease, PrefixCache
from radixray.cache.radix_tree import Peek
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
        passed_over: steps it has waited since it came or was retracted.
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
    ) -> None:
        self.sequence_id = sequence_id
        self.namespace = namespace
        self.task = task
        self.arrival = arrival
        self.num_tokens = len(token_ids)
        self.reusable = reusable
        self.computed = 0
        self.lease: Lease | None = None
        self.passed_over = 0
        self._tokens = np.array(token_ids, np.int32)
        self._peeked: tuple[int, Peek] = (-1, Peek(0, 0))

    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32 [num_tokens]; a view."""
        return self._tokens[: self.num_tokens]

    def append(self, token: int) -> None:
        """Adds an output token; its logits' successor must then be computed."""
        if self.num_tokens == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
        self._tokens[self.num_tokens] = token
        self.num_tokens += 1
        self.reusable = self.num_tokens - 1

    def start(self, cache: PrefixCache) -> None:
        """Takes a lease with the longest cached prefix."""
        self.lease = cache.acquire(
            self.namespace, self.tokens[: self.reusable], owner=self.sequence_id
        )
        self.computed = self.lease.cached_tokens
        self.passed_over = 0

    def stop(self, *, keep: bool = True) -> None:
        """Gives the pages back; what was computed stays in the cache if `keep`."""
        if self.lease is not None:
            self.lease.release(self.tokens[: self.computed] if keep else None)
            self.lease = None
        self.computed = 0
        self._peeked = (-1, Peek(0, 0))

    def waiting_view(self, cache: PrefixCache) -> RequestView:
        """What the planner sees while this sequence waits."""
        if self._peeked[0] != cache.tree.version:
            peek = cache.peek(self.namespace, self.tokens[: self.reusable])
            self._peeked = (cache.tree.version, peek)
        peek = self._peeked[1]
        return RequestView(
            self.sequence_id,
            self.arrival,
            self.num_tokens,
            peek.length,
            reclaimable=peek.unlocked_pages,
            passed_over=self.passed_over,
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
            namespace=self.namespace,
            tokens=self.tokens,
        )
