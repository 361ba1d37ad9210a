"""What the last requests found in the cache, and where they left what was cached."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice

import numpy as np

from radixray.cache.radix_node import RadixNode, TokenArray
from radixray.engine.sequence import LiveSequence
from radixray.explanation import HitNote
from radixray.scheduler.divergence import Around, around, told
from radixray.scheduler.index import Parting

MAX_HITS = 8192
"""Of more, the first is forgotten."""

MOST_BRANCHES = 16
"""Cached continuations looked at to find the nearest."""


@dataclass(frozen=True, slots=True)
class _Hit:
    at: float
    tokens: int
    cached: int
    divergence: Around | None


class HitLog:
    """A ring by request id. Filled by the engine's thread; others may read."""

    def __init__(self) -> None:
        self._hits: OrderedDict[str, _Hit] = OrderedDict()

    def started(self, sequence: LiveSequence) -> None:
        """A sequence just took its first lease."""
        assert sequence.lease is not None
        tokens, cached = sequence.tokens, sequence.computed
        parting = None
        if cached < sequence.reusable:
            parting = _nearest(sequence.lease.node, tokens, cached)
        self._hits.pop(sequence.task.request_id, None)
        self._hits[sequence.task.request_id] = _Hit(
            time.time(),
            len(tokens),
            cached,
            None if parting is None else around(tokens, parting),
        )
        if len(self._hits) > MAX_HITS:
            self._hits.popitem(last=False)

    def found(self, request_id: str) -> int:
        """Tokens that a request found in the cache; -1 where that is not known."""
        hit = self._hits.get(request_id)
        return -1 if hit is None else hit.cached

    def note(self, request_id: str) -> HitNote | None:
        """What is remembered of a request."""
        hit = self._hits.get(request_id)
        if hit is None:
            return None
        return HitNote(
            at=hit.at,
            prompt_tokens=hit.tokens,
            cached=hit.cached,
            divergence=None if hit.divergence is None else told(hit.divergence),
        )


def _nearest(node: RadixNode, tokens: TokenArray, at: int) -> Parting | None:
    """Where `tokens` leaves what is cached below `node`, which ends at `at`."""
    best: tuple[int, int, TokenArray] | None = None
    for child in islice(node.children.values(), MOST_BRANCHES):
        size = min(len(child.tokens), len(tokens) - at)
        differ = np.flatnonzero(child.tokens[:size] != tokens[at : at + size])
        if len(differ):
            common = int(differ[0])
            # Alike beyond the last whole page, or else used last.
            if best is None or (common, child.last_access) > best[:2]:
                best = common, child.last_access, child.tokens
    return None if best is None else Parting(at + best[0], best[2][best[0] :])
