"""Which sequences wait and which run, and the pages that hold what they have computed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from radixray.cache.page_pool import LedgerError, OutOfPagesError
from radixray.cache.prefix_cache import PrefixCache
from radixray.config import SchedulePolicy
from radixray.engine.sequence import LiveSequence
from radixray.engine.waiting import WaitingQueue
from radixray.reports import EngineStats
from radixray.scheduler.admission import GrowthEstimate
from radixray.scheduler.isolation import plan_apart
from radixray.scheduler.plan import BatchLimits, BatchPlan

CHECK_EVERY_S = 5.0
"""An idle engine checks its page ledger this often if it changed since."""

Batch = list[tuple[LiveSequence, int]]
"""Sequences, and how many of their tokens a step computes."""

log = logging.getLogger("radixray")


class Roster:
    """Carries out what `plan_apart` decides.

    Attributes:
        cache: radix tree and page ledger.
        waiting: sequences without pages.
        running: sequences with a lease, by their id.
        last_plan: the plan of the last step, for inspection.

    Args:
        stats: its counters of steps, retractions and ledger violations.
    """

    def __init__(
        self, cache: PrefixCache, limits: BatchLimits, policy: SchedulePolicy, stats: EngineStats
    ) -> None:
        self.cache = cache
        self.waiting = WaitingQueue(policy)
        self.running: dict[str, LiveSequence] = {}
        self.last_plan = BatchPlan()
        self._limits = limits
        self._stats = stats
        self._growth = GrowthEstimate()
        self._next_check = 0.0
        self._checked_version = 0

    @property
    def has_seats(self) -> bool:
        """Whether more could run."""
        return len(self.running) < self._limits.max_num_seqs

    def queue(self, sequence: LiveSequence) -> None:
        """It waits from now on."""
        sequence.wait(self.cache, self._stats.steps)
        self.waiting.add(sequence)

    def next_batch(self, started: Callable[[LiveSequence], None]) -> Batch:
        """Plans a step and takes its pages; decodes first, as `ForwardBatch` wants them.

        Args:
            started: is told of each sequence that was taken in.
        """
        return self._reserve(self._carry_out(self._plan(), started))

    def _plan(self) -> BatchPlan:
        seats = self._limits.max_num_seqs - len(self.running)
        steps = self._stats.steps
        self.last_plan = plan_apart(
            [s.waiting_view(steps) for s in self.waiting.candidates(seats)],
            [s.running_view() for s in self.running.values()],
            self.cache.available_pages,
            self._limits,
            growth=self._growth.value,
            turn=steps % 2 == 1,
        )
        return self.last_plan

    def _carry_out(self, plan: BatchPlan, started: Callable[[LiveSequence], None]) -> Batch:
        for sequence_id in plan.retract:
            self.retract(self.running[sequence_id])
        # Leases of all admitted first: an eviction for one must not take another's prefix.
        for sequence_id in plan.admit:
            sequence = self.waiting.pop(sequence_id)
            assert sequence is not None
            sequence.start(self.cache)
            sequence.task.started(sequence)
            started(sequence)
            self.running[sequence_id] = sequence
        self._growth.after_step(len(plan.retract))
        if not self.running:
            self._growth.reset()
        return [
            (self.running[sequence_id], tokens)
            for sequence_id, tokens in plan.extend
            if sequence_id in self.running
        ]

    def _reserve(self, batch: Batch) -> Batch:
        kept = []
        for sequence, tokens in sorted(batch, key=lambda item: item[1] != 1):
            assert sequence.lease is not None
            try:
                sequence.lease.extend(sequence.computed + tokens)
            except OutOfPagesError:
                log.warning(
                    "the plan counted on pages that are not there; retracting %s",
                    sequence.sequence_id,
                )
                self.retract(sequence)
                continue
            kept.append((sequence, tokens))
        return kept

    def retract(self, sequence: LiveSequence) -> None:
        """It gives its pages back and waits again."""
        self._start_over(sequence)
        self._stats.retractions += 1
        if not self.running and self.cache.pins.remove_all():
            # It had the pool to itself but for them, and would be retracted for ever.
            log.warning("%s does not fit beside the pins; they end", sequence.sequence_id)

    def release(self, sequence: LiveSequence, *, keep: bool = True) -> None:
        """It leaves; what it computed stays in the cache if `keep`."""
        self.waiting.pop(sequence.sequence_id)
        self.running.pop(sequence.sequence_id, None)
        self._stop(sequence, keep=keep)

    def reset(self) -> None:
        """Nobody waits or runs, and nothing is cached."""
        self.waiting.clear()
        self.running.clear()
        self.cache = self.cache.fresh()

    def idle(self) -> None:
        """Housekeeping between requests: pins expire, and now and then the ledger is checked."""
        now = time.monotonic()
        self.cache.expire(now)
        if now >= self._next_check and self._checked_version != self.cache.pool.version:
            self.repair_ledger()
            # A huge tree takes longer to check, so it is checked less often.
            took = time.monotonic() - now
            self._next_check = now + max(CHECK_EVERY_S, 100 * took)
            self._checked_version = self.cache.pool.version

    def repair_ledger(self) -> int:
        """Finds and repairs violations of the page ledger; returns how many there were.

        Requests whose pages may be damaged compute them again; none is lost.
        """
        repair = self.cache.repair()
        if repair.violations:
            self._stats.ledger_violations += len(repair.violations)
            log.error(
                "%d violations of the page ledger were repaired: %d cached tokens dropped, "
                "%d leases start over: %s",
                len(repair.violations),
                repair.dropped_tokens,
                len(repair.damaged),
                "; ".join(repair.violations[:8]),
            )
            for sequence in list(self.running.values()):
                if sequence.lease is not None and sequence.lease.damaged:
                    self._start_over(sequence)
        return len(repair.violations)

    def _start_over(self, sequence: LiveSequence) -> None:
        del self.running[sequence.sequence_id]
        self._stop(sequence)
        self.queue(sequence)

    def _stop(self, sequence: LiveSequence, *, keep: bool = True) -> None:
        try:
            sequence.stop(keep=keep)
        except LedgerError:
            # What it computed is not kept, but its last Delta must not be lost for that.
            self.repair_ledger()
            sequence.stop(keep=False)
