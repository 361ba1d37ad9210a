"""Counting what requests go through: when they came, started, spoke and ended."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixray.engine.hits import HitLog
from radixray.metrics.reports import EngineMetrics

if TYPE_CHECKING:
    from radixray.engine.sequence import LiveSequence
    from radixray.engine.tasks import Task


@dataclass(slots=True)
class RequestTimes:
    """Moments of one request, on this process's monotonic clock; 0 is not yet.

    Attributes:
        arrived: it came.
        started: it first ran.
        first, last: its first token, and the last so far.
    """

    arrived: float
    started: float = 0.0
    first: float = 0.0
    last: float = 0.0


class Counters:
    """Fills an `EngineMetrics`. Belongs to the engine's thread; others may read.

    Attributes:
        metrics: what was counted.
        hits: what the last requests found in the cache.
        prefilled: ids of requests that got their first token since somebody took them out.
    """

    def __init__(self) -> None:
        self.metrics = EngineMetrics()
        self.hits = HitLog()
        self.prefilled: list[str] = []

    def started(self, sequence: LiveSequence) -> None:
        """A sequence took its lease, for the first time or again."""
        task, metrics = sequence.task, self.metrics
        times = task.times
        if not times.started:
            self.hits.started(sequence)
            times.started = time.monotonic()
            metrics.queue.observe(times.started - times.arrived)
            metrics.prompt_tokens += task.usage.prompt
            metrics.cached_tokens += task.usage.cached

    def tokens(self, tasks: Iterable[Task]) -> None:
        """Each of `tasks` gets a token now."""
        now = time.monotonic()
        since: dict[float, int] = {}
        for task in tasks:
            times = task.times
            if times.first:
                # Most had their last token in the step before: one entry for all of them.
                since[times.last] = since.get(times.last, 0) + 1
            else:
                times.first = now
                self.prefilled.append(task.request_id)
                self.metrics.first_token.observe(now - times.arrived)
            times.last = now
        for last, how_many in since.items():
            self.metrics.inter_token.observe(now - last, how_many)

    def finished(self, task: Task) -> None:
        """`task` ended."""
        times, usage, metrics = task.times, task.usage, self.metrics
        reason = task.finish_reason or "error"
        metrics.finished[reason] = metrics.finished.get(reason, 0) + 1
        metrics.whole.observe(time.monotonic() - times.arrived)
        metrics.prompt_length.observe(usage.prompt)
        metrics.uncached_length.observe(usage.prompt - usage.cached)
        metrics.output_length.observe(usage.completion)
        if times.first:
            metrics.prefill.observe(times.first - times.started)
            metrics.decode.observe(times.last - times.first)
            metrics.inference.observe(times.last - times.started)
            if usage.completion > 1:
                each = (times.last - times.first) / (usage.completion - 1)
                metrics.per_output_token.observe(each)

    def step(self, seconds: float, batch: list[int]) -> None:
        """A step took so long, in which sequences had so many tokens to compute, decodes first."""
        if batch:
            kind = "prefill" if batch[-1] > 1 else "decode"
            self.metrics.step[kind].observe(seconds)
            self.metrics.step_tokens.observe(sum(batch))
