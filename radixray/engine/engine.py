"""The engine: live requests, a prefix cache and a model, advanced one batch a step.

Single-threaded and synchronous; `EngineThread` puts it beside an event loop.
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import torch

from radixray.cache.page_pool import LedgerError
from radixray.cache.prefix_cache import PrefixCache
from radixray.config import SchedulePolicy
from radixray.engine.counters import Counters
from radixray.engine.deadlines import Deadlines
from radixray.engine.flatten import flatten
from radixray.engine.generate import GenerateTask
from radixray.engine.outbox import Outbox
from radixray.engine.pace import Pace
from radixray.engine.roster import Batch, Roster
from radixray.engine.sampler import SamplingRow, sample
from radixray.engine.score import ScoreTask
from radixray.engine.sequence import LiveSequence
from radixray.engine.tasks import Task
from radixray.errors import (
    DeadlineExceededError,
    EngineError,
    InvalidRequestError,
    OverloadedError,
    RadixRayError,
)
from radixray.fsm.jump import Jumper
from radixray.fsm.matcher import Matcher
from radixray.kernels.kv_pool import KVPool
from radixray.metrics.reports import ActorReport
from radixray.models.llama import LlamaModel
from radixray.protocol import MAX_SEED, Delta, GenerateRequest, ModelInfo, Request
from radixray.reports import CacheEvent, EngineStats
from radixray.scheduler.plan import BatchLimits
from radixray.tokenizer.tokenizer import Tokenizer

CHECK_EVERY_S = 5.0
"""An idle engine checks its page ledger this often if it changed since."""

log = logging.getLogger("radixray")


@dataclass(slots=True)
class StepOutput:
    """What there is to tell after a step.

    Attributes:
        deltas: at most one for each request.
        events: changes of the radix tree, in order.
        prefilled: ids of requests whose prompts were computed.
    """

    deltas: list[Delta] = field(default_factory=list)
    events: list[CacheEvent] = field(default_factory=list)
    prefilled: list[str] = field(default_factory=list)


class Engine:
    """Runs requests on one model replica.

    Attributes:
        info: what callers must know.
        roster: sequences that wait and run.
        stats: counters; see `snapshot_stats` for gauges.
        counters: of what requests went through.
    """

    def __init__(
        self,
        model: LlamaModel,
        kv_pool: KVPool,
        cache: PrefixCache,
        tokenizer: Tokenizer,
        info: ModelInfo,
        limits: BatchLimits,
        *,
        schedule_policy: SchedulePolicy = "lpm",
        overlap: bool = True,
        fsm_debug: bool = False,
        check_invariants: bool = False,
    ) -> None:
        self.info = info
        self.tokenizer = tokenizer
        self.stats = EngineStats(pages_total=cache.pool.num_pages)
        self.counters = Counters()
        self.roster = Roster(cache, limits, schedule_policy, self.stats)
        self._model = model
        self._kv_pool = kv_pool
        self._check_invariants = check_invariants
        self._fsm_debug = fsm_debug
        self._jumper = Jumper(
            lambda text: tokenizer.encode(text.decode()),
            tokenizer.pieces if tokenizer.has_pieces else None,
        )
        self._tasks: dict[str, Task] = {}
        self._arrivals = itertools.count()
        self._outbox = Outbox()
        self._beside = ThreadPoolExecutor(1, "radixray-beside") if overlap else None
        self._deadlines = Deadlines()
        self._pace = Pace()

    @property
    def cache(self) -> PrefixCache:
        """Radix tree and page ledger."""
        return self.roster.cache

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        roster = self.roster
        return bool(roster.waiting or roster.running or self._outbox or self.cache.has_events)

    def add(
        self, request: Request, matcher: Matcher | None = None, *, arrived: float | None = None
    ) -> None:
        """Queues a request.

        Args:
            arrived: when it came, on the monotonic clock; None is now.

        Raises:
            InvalidRequestError, ContextLengthError: it can never run here.
            OverloadedError: too many requests wait.
        """
        request.validate(self.info)
        if request.request_id in self._tasks:
            raise InvalidRequestError(
                f"request_id {request.request_id!r} is in use", param="request_id"
            )
        waiting = len(self.roster.waiting)
        if waiting >= self.info.max_queued_requests:
            # A request may have several sequences, and it is requests that are limited.
            waiting = self.roster.waiting.requests()
        if waiting >= self.info.max_queued_requests:
            error = OverloadedError(
                f"{waiting} requests wait; the limit is max_queued_requests="
                f"{self.info.max_queued_requests}",
                param="max_queued_requests",
            )
            error.retry_after_s = self._pace.seconds_for(waiting)
            self.counters.metrics.refused += 1
            raise error
        arrival = next(self._arrivals)
        task: Task
        if isinstance(request, GenerateRequest):
            task = GenerateTask(
                request,
                self.info,
                self.tokenizer,
                matcher,
                self._jumper,
                seed=random.randint(0, MAX_SEED),
                arrival=arrival,
                fsm_debug=self._fsm_debug,
            )
        else:
            task = ScoreTask(request, self.info, arrival=arrival)
        if arrived is not None:
            task.times.arrived = arrived
        self._count_jump(task.usage.jumped)
        if task.finished:  # the constraint leaves one text only, or failed at once
            self.counters.finished(task)
            self._outbox.due(task)
            return
        self._tasks[task.request_id] = task
        if request.timeout_s is not None:
            self._deadlines.add(task, request.timeout_s)
        for sequence in task.sequences:
            self.roster.queue(sequence)

    def abort(self, request_id: str) -> None:
        """Ends a request and frees its pages now; the next step tells its consumer.

        An unknown or finished request is ignored: the abort crossed its last Delta.
        """
        task = self._tasks.get(request_id)
        if task is not None:
            self._outbox.last(task.abort())
            self._drop(task)

    def step(self, tell: Callable[[StepOutput], None] | None = None) -> StepOutput:
        """Runs one batch.

        With overlap, what the last step chose becomes text while the model computes this one, and
        is told meanwhile; without, this step's is told at its end.

        A fault of the model ends the requests of that batch with EngineError; the engine and
        all other requests live on.

        Args:
            tell: called once with what there is to tell, as soon as it is known; with overlap in
                another thread.

        Returns:
            What was told.
        """
        began = time.monotonic()
        self._end_late_requests()
        self.cache.expire(began)
        batch = self.roster.next_batch(self._started)
        output = self._run(batch, tell)
        self.counters.step(time.monotonic() - began, [tokens for _, tokens in batch])
        return output

    def _run(
        self,
        batch: Batch,
        tell: Callable[[StepOutput], None] | None,
    ) -> StepOutput:
        if self._beside is None:
            self._complete(batch, lambda: self._forward(batch))
            return self._tell(tell)
        told = self._beside.submit(self._meanwhile, batch, tell)

        def logits() -> torch.Tensor:
            try:
                return self._forward(batch)
            finally:
                wait([told])

        self._complete(batch, logits)
        return told.result()

    def reset(self, error: RadixRayError) -> StepOutput:
        """Ends every request with `error` and starts over with an empty cache."""
        for task in self._tasks.values():
            self.counters.finished(task)
        deltas = self._outbox.abandon(self._tasks, error)
        self._tasks.clear()
        self._deadlines.clear()
        self.roster.reset()
        return StepOutput(deltas, [CacheEvent(kind="clear")])

    def snapshot_stats(self) -> EngineStats:
        """Counters and gauges of this moment."""
        stats, cache = self.stats, self.cache
        stats.running, stats.waiting = len(self.roster.running), len(self.roster.waiting)
        stats.pages_free = cache.pool.num_free
        stats.pages_tree = cache.tree.num_pages
        stats.pages_leased = cache.leased_pages
        stats.pages_pinned = cache.pins.pages
        return stats

    def report(self) -> ActorReport:
        """All that is counted, as of this moment. Any thread may ask."""
        return ActorReport(
            stats=self.snapshot_stats(),
            engine=self.counters.metrics,
            queued=self.roster.waiting.by_priority(),
            page_size=self.cache.page_size,
            context_length=self.info.context_length,
            pages_evictable=self.cache.tree.num_evictable,
        )

    def _end_late_requests(self) -> None:
        for task, timeout in self._deadlines.passed():
            error = DeadlineExceededError(
                f"the request did not finish within timeout_s={timeout:g}; it has "
                f"{task.usage.completion} tokens",
                param="timeout_s",
            )
            self._end(task, error)

    def _started(self, sequence: LiveSequence) -> None:
        self.counters.started(sequence)
        if sequence.task.suspect:
            self._outbox.due(sequence.task)

    def _forward(self, batch: Batch) -> torch.Tensor:
        """float32 logits [rows, vocab]: for each sequence in order, the rows from `reusable` on."""
        work = [(sequence, tokens) for sequence, tokens in batch if tokens > 0]
        if not work:
            return torch.empty(0)
        with torch.inference_mode():
            return self._model.forward(flatten(work), self._kv_pool)

    def _meanwhile(
        self,
        batch: Batch,
        tell: Callable[[StepOutput], None] | None,
    ) -> StepOutput:
        """In another thread, while the model computes: nothing here may use torch.

        OpenMP keeps a team of threads for each thread that computes in parallel. A second team
        would make more threads than cores, and all would wait for each other asleep.
        """
        output = self._tell(tell)
        self._look_ahead(batch)
        return output

    def _tell(self, tell: Callable[[StepOutput], None] | None) -> StepOutput:
        prefilled, self.counters.prefilled = self.counters.prefilled, []
        output = StepOutput(self._outbox.collect(), self.cache.drain_events(), prefilled)
        if tell is not None:
            tell(output)
        return output

    def _look_ahead(self, batch: Batch) -> None:
        """What the end of this step and the next step need, while the model computes."""
        for sequence, tokens in batch:
            if sequence.computed + tokens == sequence.num_tokens:
                sequence.task.prepare()
        leaving = any(sequence.remaining <= 1 for sequence, _ in batch)
        if leaving or self.roster.has_seats:
            self.roster.waiting.rank_ahead()

    def _complete(self, batch: Batch, logits: Callable[[], torch.Tensor]) -> None:
        """Takes the model's results; what is finished leaves."""
        try:
            with torch.inference_mode():
                self._take(batch, logits())
        except Exception as error:
            log.error("a step failed; its %d sequences end with an error", len(batch))
            if isinstance(error, LedgerError):
                self.roster.repair_ledger()
            self._fail(batch, error)
        self.stats.steps += 1
        if self._check_invariants:
            violations = self.cache.check()
            assert not violations, violations

    def _take(self, batch: Batch, logits: torch.Tensor) -> None:
        to_sample: list[tuple[GenerateTask, int]] = []
        row = 0
        for sequence, tokens in batch:
            task = sequence.task
            start = max(sequence.computed, sequence.reusable)
            prefilling = sequence.computed < task.usage.prompt
            sequence.computed += tokens
            rows = max(0, sequence.computed - start)
            done = sequence.computed == sequence.num_tokens
            if prefilling:
                # What others may share becomes theirs now. Output follows at the end, all at once.
                assert sequence.lease is not None
                sequence.lease.commit(sequence.tokens[: sequence.computed])
                self.stats.prefill_tokens += tokens
            if isinstance(task, ScoreTask):
                if rows:
                    task.score(sequence, start, logits[row : row + rows])
                if done:
                    task.sequence_done(sequence)
                    self.roster.release(sequence)
            elif isinstance(task, GenerateTask):
                task.score(start, logits[row : row + rows])
                if done and task.max_new > 0:
                    to_sample.append((task, row + rows - 1))
                elif done:
                    task.finish_prefill()
            if task.finished:
                self._finish(task)
            row += rows
        self._sample(to_sample, logits)

    def _sample(self, to_sample: list[tuple[GenerateTask, int]], logits: torch.Tensor) -> None:
        """Chooses a token for each task from its row of `logits`."""
        rows: list[SamplingRow] = []
        chosen_for: list[tuple[GenerateTask, int]] = []
        for task, row in to_sample:
            try:
                rows.append(task.sampling_row())
            except Exception as error:
                self._end(task, _typed(error))
            else:
                chosen_for.append((task, row))
        if not rows:
            return
        used = logits
        if len(rows) < len(logits) or any(task.wants_logprobs for task, _ in chosen_for):
            # A copy: sampling changes it, and log-probabilities are of the model's own logits.
            used = logits[[row for _, row in chosen_for]]
        tokens = sample(used, rows)
        self.counters.tokens(task for task, _ in chosen_for)
        for (task, row), token in zip(chosen_for, tokens, strict=True):
            jumped = task.usage.jumped
            try:
                task.accept(token, logits[row])
            except Exception as error:
                self._end(task, _typed(error))
                continue
            self._count_jump(task.usage.jumped - jumped)
            self.stats.generated_tokens += 1
            self._outbox.due(task)
            if task.finished:
                self._finish(task)

    def _count_jump(self, tokens: int) -> None:
        self.stats.jumped_tokens += tokens
        self.stats.generated_tokens += tokens

    def _drop(self, task: Task, *, keep: bool = True) -> None:
        del self._tasks[task.request_id]
        self.counters.finished(task)
        for sequence in task.sequences:
            self.roster.release(sequence, keep=keep)

    def _finish(self, task: Task) -> None:
        self.stats.cached_tokens += task.usage.cached
        self._pace.finished()
        self._outbox.due(task)
        self._drop(task)

    def _end(self, task: Task, error: RadixRayError, *, keep: bool = True) -> None:
        self._outbox.last(task.fail(error))
        self._drop(task, keep=keep)

    def _fail(self, batch: Batch, error: Exception) -> None:
        cause = _typed(error)
        for task in {id(s.task): s.task for s, _ in batch}.values():
            if task.request_id in self._tasks:
                # Its KV may be half written: nothing of it may reach the cache.
                self._end(task, cause, keep=False)


def _typed(error: Exception) -> RadixRayError:
    """`error`, or what its request is told of an unforeseen one."""
    if isinstance(error, RadixRayError):
        return error
    log.error("unforeseen error in a step", exc_info=error)
    return EngineError(f"the engine failed in a step: {type(error).__name__}: {error}")
