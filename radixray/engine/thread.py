"""The engine in its own thread, so that an event loop beside it never waits for a step."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

import numpy as np

from radixray.engine.engine import Engine, StepOutput
from radixray.errors import EngineError, InvalidRequestError, RadixRayError
from radixray.explanation import HitNote
from radixray.fsm.matcher import Matcher
from radixray.metrics.reports import ActorReport
from radixray.protocol import Delta, ErrorInfo, Request
from radixray.reports import EngineStats, PinReport

IDLE_WAKE_S = 1.0
"""An idle engine still shows its heartbeat this often."""

T = TypeVar("T")

log = logging.getLogger("radixray")


class EngineThread:
    """Builds an engine, runs it, and hands each step's output to `sink`.

    All in one thread, since the threads that help with its computing belong to it.

    Args:
        build: makes the engine; what it raises, the constructor raises.
        sink: called once a step, by one thread at a time; must be quick and must not raise. An
            event loop passes ``loop.call_soon_threadsafe``.

    Attributes:
        info, tokenizer: the engine's.
    """

    def __init__(self, build: Callable[[], Engine], sink: Callable[[StepOutput], None]) -> None:
        self._sink = sink
        self._inbox: deque[Callable[[Engine], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._heartbeat = time.monotonic()
        built: Future[Engine] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(build, built), name="radixray-engine", daemon=True
        )
        self._thread.start()
        self._engine = built.result()
        self.info = self._engine.info
        self.tokenizer = self._engine.tokenizer

    def submit(self, request: Request, matcher: Matcher | None = None) -> None:
        """Queues a request; a refused one comes back as a Delta with an error."""

        arrived = time.monotonic()

        def add(engine: Engine) -> None:
            try:
                engine.add(request, matcher, arrived=arrived)
            except RadixRayError as error:
                self._sink(StepOutput([_error_delta(request.request_id, error)]))

        self._post(add)

    def abort(self, request_id: str) -> None:
        """Ends a request before the next step."""
        self._post(lambda engine: engine.abort(request_id))

    def call(self, function: Callable[[Engine], None]) -> None:
        """Runs `function` in the engine's thread between two steps."""
        self._post(function)

    def ask(self, question: Callable[[Engine], T]) -> Future[T]:
        """Runs `question` in the engine's thread between two steps; its answer or its error."""
        answer: Future[T] = Future()

        def run(engine: Engine) -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(question(engine))
            except Exception as error:
                answer.set_exception(error)

        self._post(run)
        return answer

    def pin(self, owner: str, namespace: str, token_ids: bytes, ttl_s: float) -> Future[PinReport]:
        """Pins a cached prefix; see `PrefixCache.pin` for its errors.

        Args:
            token_ids: little-endian int32.
        """

        def pin(engine: Engine) -> PinReport:
            if len(token_ids) % 4:
                raise InvalidRequestError("token_ids must be int32 ids", param="token_ids")
            tokens = np.frombuffer(token_ids, np.int32)
            cache = engine.cache
            made = cache.pin(namespace, tokens, ttl_s, owner)
            return PinReport(
                pin_id=made.id,
                tokens=made.tokens,
                pages_pinned=cache.pins.pages,
                pin_budget=cache.pins.budget,
            )

        return self.ask(pin)

    def unpin(self, owner: str, pin_id: int | None = None) -> Future[int]:
        """Ends one pin of `owner`, or all; how many ended."""
        return self.ask(
            lambda engine: (
                engine.cache.unpin_owner(owner)
                if pin_id is None
                else int(engine.cache.unpin(pin_id, owner))
            )
        )

    def stats(self) -> EngineStats:
        """Counters and gauges as of now; gauges may be a step old."""
        stats = self._engine.snapshot_stats()
        stats.heartbeat_age_s = time.monotonic() - self._heartbeat
        return stats

    def report(self) -> ActorReport:
        """All that is counted, whether or not the engine moves."""
        report = self._engine.report()
        report.stats.heartbeat_age_s = time.monotonic() - self._heartbeat
        return report

    def found(self, request_id: str) -> int:
        """Tokens that a request found in the cache; -1 where that is not known."""
        return self._engine.counters.hits.found(request_id)

    def hit(self, request_id: str) -> HitNote | None:
        """What is remembered of a request's start."""
        return self._engine.counters.hits.note(request_id)

    def stop(self) -> None:
        """Ends the thread after the step under way."""
        self._stopping = True
        self._post(lambda engine: None)
        self._thread.join()

    def _post(self, item: Callable[[Engine], None]) -> None:
        with self._wake:
            self._inbox.append(item)
            self._wake.notify()

    def _run(self, build: Callable[[], Engine], built: Future[Engine]) -> None:
        try:
            engine = build()
        except BaseException as error:
            built.set_exception(error)
            return
        built.set_result(engine)
        while not self._stopping:
            self._heartbeat = time.monotonic()
            with self._wake:
                if not self._inbox and not engine.has_work:
                    self._wake.wait(IDLE_WAKE_S)
            try:
                while self._inbox:
                    self._inbox.popleft()(engine)
                if not engine.has_work:
                    engine.roster.idle()
                if engine.has_work:
                    engine.step(self._sink)
            except Exception as error:
                # A bug of ours, not a fault of the model (those end in `step`). Nothing may hang
                # on it and the next request must work, so all live requests end and the cache
                # starts anew.
                log.exception("the engine failed outside a model step; it starts afresh")
                self._sink(
                    engine.reset(EngineError(f"the engine failed: {type(error).__name__}: {error}"))
                )
        # Whoever asked something meanwhile gets an answer.
        while self._inbox:
            with suppress(Exception):
                self._inbox.popleft()(engine)


def _error_delta(request_id: str, error: RadixRayError) -> Delta:
    return Delta(request_id=request_id, finish_reason="error", error=ErrorInfo.of(error))
