"""The model actor: one model replica, its radix cache and batch loop, as an asyncio Ray actor."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import msgspec
import ray

from radixray.actors.consumers import Consumers
from radixray.actors.draining import Draining
from radixray.actors.handles import actor_handle
from radixray.actors.ray_metrics import Publisher, RayMetrics
from radixray.actors.starting import check_tokenizer, end_with, wait_for_turn
from radixray.actors.warming import budget_of, warm_up, with_salts
from radixray.actors.wire import (
    ServedModel,
    decode_engine_config,
    decode_handle,
    decode_hot_prefixes,
    decode_request,
    encode,
)
from radixray.config import EngineConfig
from radixray.errors import (
    EngineError,
    InvalidRequestError,
    RadixRayError,
)
from radixray.metrics.reports import ActorReport
from radixray.protocol import Delta, ErrorInfo, GenerateRequest, Request
from radixray.reports import CacheSnapshot, StepReport

if TYPE_CHECKING:
    from radixray.engine.engine import Engine, StepOutput

HEARTBEAT_S = 2.0
"""How often a consumer shows life."""

LEASE_S = 10.0
"""A consumer silent for so long is taken for dead; its requests are aborted."""

log = logging.getLogger("radixray")


OPTIONS: dict[str, Any] = {
    "num_cpus": 0,
    "max_restarts": -1,
    # Ray would run an interrupted stream again from its start; callers resume by themselves.
    "max_task_retries": 0,
    "concurrency_groups": {"control": 64, "generate": 100_000},
}
"""How Ray is to run a ModelActor."""


class ModelActor:
    """Owns one engine. All methods exchange msgpack (`radixray.actors.wire`).

    Group ``generate`` (own loop and thread): requests in, Deltas out, one stream a consumer.
    Group ``control``: questions that must be answered while the other loop is busy.

    Args:
        neighbours: model actors on this machine, itself included, which share its cores.
        detached: it outlives the process that started it, and ends with the scheduler actor.
    """

    def __init__(
        self,
        name: str,
        scheduler: str,
        config: EngineConfig,
        neighbours: int,
        detached: bool = False,
    ) -> None:
        self._name = name
        self._scheduler = actor_handle(scheduler)
        self._config = config
        self._incarnation = uuid.uuid4().hex
        self._sequence = 0
        self._consumers = Consumers()
        self._draining = Draining(name, self._consumers, lambda: self._report([], []))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._background: set[asyncio.Future[Any]] = set()
        self._compiling: dict[str, asyncio.Future[Any]] = {}
        self._startup_error: RadixRayError | None = None
        if detached:
            end_with(scheduler, self._scheduler, name)
        again = wait_for_turn(name, self._scheduler)
        try:
            self._start_engine(config, neighbours)
            # The scheduler learns that this incarnation is there, and has an empty cache.
            self._report([], [])
        except Exception as error:
            if again:
                # It worked before. Ray tries again, after a longer pause; what is raised here
                # would end the actor for good.
                log.exception("model actor %s cannot start again", name)
                os._exit(1)
            if not isinstance(error, RadixRayError):
                raise
            # Raised by `describe`, typed; an exception here would reach the caller as text.
            self._startup_error = error

    def _start_engine(self, config: EngineConfig, neighbours: int) -> None:
        from radixray.kernels.cpu.threads import set_waiting

        set_waiting()  # before torch loads its OpenMP
        from radixray.engine.start import start_compiler, start_engine
        from radixray.models.resolve import resolve_model
        from radixray.tokenizer.tokenizer import read_tokenizer_files

        engine = self._engine = start_engine(config, neighbours, self._from_engine)
        self._info = engine.info
        self._tokenizer_files = read_tokenizer_files(resolve_model(config.model))
        self._compiler = start_compiler(engine)
        self._publisher = Publisher(engine.report, RayMetrics(self._name, engine.info.name))

    @ray.method(concurrency_group="control")
    async def describe(self) -> bytes:
        """A ServedModel, once loaded.

        Raises:
            RadixRayError: the model could not be loaded.
        """
        if self._startup_error is not None:
            raise self._startup_error
        return encode(ServedModel(info=self._info, tokenizer=self._tokenizer_files))

    @ray.method(concurrency_group="control")
    async def configuration(self) -> bytes:
        """EngineConfig."""
        return encode(self._config)

    @ray.method(concurrency_group="control")
    async def check_successor(self, config: bytes) -> None:
        """Whether an actor with that EngineConfig could take this one's place, on this machine.

        Raises:
            ModelNotFoundError: there is no such model here.
            DeploymentError: its tokenizer is another one.
        """
        model = decode_engine_config(config).model
        await asyncio.to_thread(check_tokenizer, model, self._info.name, self._tokenizer_files)

    @ray.method(concurrency_group="control")
    async def hot_prefixes(self) -> bytes:
        """HotPrefixes: of what is cached, that with most hits."""
        most = budget_of(self._info.pool_tokens)
        found = self._engine.ask(lambda engine: engine.cache.hot_prefixes(most))
        return encode(with_salts(await asyncio.wrap_future(found)))

    @ray.method(concurrency_group="control")
    async def stats(self) -> bytes:
        """EngineStats."""
        return encode(self._engine.stats())

    @ray.method(concurrency_group="control")
    async def measure(self) -> bytes:
        """ActorReport."""
        return encode(self._measure())

    @ray.method(concurrency_group="control")
    async def explain(self, request_id: str) -> bytes:
        """HitNote, or None."""
        return encode(self._engine.hit(request_id))

    @ray.method(concurrency_group="control")
    async def pin(self, consumer_id: str, namespace: str, token_ids: bytes, ttl_s: float) -> bytes:
        """Keeps the cached prefix of `token_ids` (int32) cached for `ttl_s` seconds: a PinReport.

        It ends earlier with `unpin`, or with the consumer.

        Raises:
            InvalidRequestError: `ttl_s` is out of range (param ``ttl_s``), or the pin budget
                does not allow it (param ``pin``).
        """
        return encode(
            await asyncio.wrap_future(self._engine.pin(consumer_id, namespace, token_ids, ttl_s))
        )

    @ray.method(concurrency_group="control")
    async def unpin(self, consumer_id: str, pin_id: int | None = None) -> int:
        """Ends one pin of the consumer, or all; how many ended."""
        return await asyncio.wrap_future(self._engine.unpin(consumer_id, pin_id))

    @ray.method(concurrency_group="control")
    async def flush(self) -> int:
        """Drops all cached prefixes that no request and no pin uses; pages freed."""
        return await asyncio.wrap_future(self._engine.ask(lambda engine: engine.cache.flush()))

    @ray.method(concurrency_group="control")
    async def cache_tree(self, limit: int = 100) -> bytes:
        """CacheTree: the radix tree for people, its `limit` biggest nodes."""
        return encode(
            await asyncio.wrap_future(self._engine.ask(lambda engine: engine.cache.view(limit)))
        )

    @ray.method(concurrency_group="control")
    async def snapshot(self) -> bytes:
        """CacheSnapshot: the whole radix tree, and the report it is as new as."""
        from radixray.engine.engine import StepOutput

        answer: Future[bytes] = Future()

        def take(engine: Engine) -> None:
            # An abort or a flush since the last step left events in the cache.
            self._from_engine(StepOutput(events=engine.cache.drain_events()))
            events = engine.cache.snapshot()

            def reply() -> None:
                answer.set_result(
                    encode(
                        CacheSnapshot(
                            actor=self._name,
                            incarnation=self._incarnation,
                            sequence=self._sequence,
                            events=events,
                        )
                    )
                )

            if self._loop is None:
                reply()
            else:
                # Events up to here stand in the queue to the loop that numbers them; they must
                # go first.
                self._loop.call_soon_threadsafe(reply)

        self._engine.call(take)
        return await asyncio.wrap_future(answer)

    @ray.method(concurrency_group="generate")
    async def submit(self, consumer_id: str, requests: list[bytes]) -> None:
        """Queues requests; their Deltas go to the consumer's stream.

        A request that is refused ends with a Delta with an error.
        """
        self._adopt_loop()
        for request in map(decode_request, requests):
            if self._draining.on or self._startup_error is not None:
                error = self._startup_error or self._draining.error()
                self._consumers.get(consumer_id).put(_refusal(request, error))
                continue
            whole = isinstance(request, GenerateRequest) and request.whole
            handle = request.handle if isinstance(request, GenerateRequest) else None
            if not self._consumers.own(consumer_id, request.request_id, whole=whole, handle=handle):
                error = InvalidRequestError(
                    f"request_id {request.request_id!r} is in use", param="request_id"
                )
                self._consumers.get(consumer_id).put(_refusal(request, error))
            elif isinstance(request, GenerateRequest) and request.constraint is not None:
                self._compile(request)
            else:
                self._engine.submit(request)

    @ray.method(concurrency_group="generate")
    async def abort(self, request_ids: list[str]) -> None:
        """Ends requests before the engine's next step; their consumers hear no more of them."""
        for request_id in request_ids:
            if self._consumers.disown(request_id):
                self._abort(request_id)

    @ray.method(concurrency_group="generate")
    async def end(self, handle: bytes) -> None:
        """Ends the requests that a Handle finds; the last Delta of each says ``abort``."""
        for request_id in self._consumers.found_by(decode_handle(handle)):
            if self._abort(request_id):
                cancelled = Delta(request_id=request_id, finish_reason="abort")
                self._consumers.deliver([cancelled])

    @ray.method(concurrency_group="generate")
    async def heartbeat(self, consumer_id: str) -> None:
        """Extends the consumer's lease."""
        self._adopt_loop()
        self._consumers.get(consumer_id)

    @ray.method(concurrency_group="generate")
    async def deltas(self, consumer_id: str) -> AsyncGenerator[bytes, None]:
        """Deltas (msgpack list) of all the consumer's requests, one item an engine step.

        Measured to cost a tenth of a stream for each request.
        """
        self._adopt_loop()
        consumer = self._consumers.get(consumer_id)
        while (batch := await consumer.next_batch()) is not None:
            yield encode(batch)

    @ray.method(concurrency_group="generate")
    async def leave(self, consumer_id: str) -> None:
        """Ends the consumer's stream and aborts its requests."""
        self._remove_consumer(consumer_id)

    @ray.method(concurrency_group="generate")
    async def warm(self, prefixes: bytes) -> int:
        """Computes HotPrefixes ahead of requests, in order, within limits; tokens computed."""
        self._adopt_loop()
        return await warm_up(
            decode_hot_prefixes(prefixes), self._info, self._consumers, self._engine.submit
        )

    @ray.method(concurrency_group="generate")
    async def drain(self, grace_s: float) -> int:
        """Takes no more requests, and returns when it has none left.

        Returns:
            How many had not ended after `grace_s` seconds, and go on on other model actors.
        """
        self._adopt_loop()
        self._spawn(self._draining.reopen_later(grace_s))
        return await self._draining.run(grace_s, self._abort, self._engine.stats)

    def _measure(self) -> ActorReport:
        return msgspec.structs.replace(
            self._engine.report(), tokens_per_s=self._publisher.tokens_per_s
        )

    def _adopt_loop(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._spawn(self._reap_silent_consumers())

    def _spawn(self, coroutine: Any) -> asyncio.Future[Any]:
        task = asyncio.ensure_future(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def _abort(self, request_id: str) -> bool:
        """True where the engine does not know it yet, and so tells nobody of it."""
        compiling = self._compiling.get(request_id)
        if compiling is not None and compiling.cancel():
            return True
        self._engine.abort(request_id)
        return False

    def _compile(self, request: GenerateRequest) -> None:
        """Compiles the request's constraint, as long as somebody waits, and queues it."""
        task = self._compiling[request.request_id] = self._spawn(self._submit_constrained(request))

        def done(_: object) -> None:
            if self._compiling.get(request.request_id) is task:
                del self._compiling[request.request_id]
            if task.cancelled():
                # The engine never knew of it, so the scheduler hears from us that it has ended.
                self._report([], [request.request_id])

        task.add_done_callback(done)

    async def _submit_constrained(self, request: GenerateRequest) -> None:
        assert request.constraint is not None
        try:
            compiled = await self._compiler.compile_async(request.constraint)
        except RadixRayError as error:
            self._refuse(request, error)
            return
        except Exception as error:  # a bug of ours; whoever waits for the request must hear of it
            log.exception("a constraint could not be compiled")
            self._refuse(request, EngineError(f"the constraint could not be compiled: {error!r}"))
            return
        self._engine.submit(request, compiled.matcher())

    def _refuse(self, request: Request, error: RadixRayError) -> None:
        self._consumers.deliver([_refusal(request, error)])
        self._report([], [request.request_id])

    def _from_engine(self, output: StepOutput) -> None:
        # In the engine's thread: one wake-up of the loop a step. Without a loop nothing was ever
        # submitted: the cache is empty, and a flush of it is no news.
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._dispatch, output)

    def _dispatch(self, output: StepOutput) -> None:
        finished = [d.request_id for d in output.deltas if d.finish_reason is not None]
        if output.events or finished or output.prefilled:
            # Before the Deltas: who reads them may place the next request at once.
            self._report(output.events, finished, output.prefilled)
        self._consumers.deliver(output.deltas)

    def _report(
        self, events: list[Any], finished: list[str], prefilled: Sequence[str] = ()
    ) -> None:
        self._sequence += 1
        report = StepReport(
            actor=self._name,
            incarnation=self._incarnation,
            sequence=self._sequence,
            events=events,
            finished=finished,
            found=[self._engine.found(request_id) for request_id in finished],
            prefilled=list(prefilled),
            draining=self._draining.on,
        )
        # Not awaited: a lost report leaves a gap, and a gap asks for a snapshot.
        self._scheduler.report.remote(encode(report))

    def _remove_consumer(self, consumer_id: str) -> None:
        for request_id in self._consumers.remove(consumer_id):
            self._abort(request_id)
        self._engine.unpin(consumer_id)

    async def _reap_silent_consumers(self) -> None:
        while True:
            woke_by = time.monotonic() + HEARTBEAT_S
            await asyncio.sleep(HEARTBEAT_S)
            if time.monotonic() > woke_by + HEARTBEAT_S:
                # We slept, not they: their heartbeats stand in the queue behind this.
                continue
            for consumer_id in self._consumers.silent_since(time.monotonic() - LEASE_S):
                log.warning("consumer %s is silent; its requests are aborted", consumer_id)
                self._remove_consumer(consumer_id)


def _refusal(request: Request, error: RadixRayError) -> Delta:
    return Delta(request_id=request.request_id, finish_reason="error", error=ErrorInfo.of(error))
