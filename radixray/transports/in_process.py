"""The engine in a thread of this process: nothing but a model and a program."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

import numpy as np

from radixray.config import EngineConfig
from radixray.errors import (
    AbortedError,
    EngineDiedError,
    EngineError,
    InvalidRequestError,
    RadixRayError,
)
from radixray.explanation import Explanation, explanation_of
from radixray.namespaces import namespace_of
from radixray.protocol import (
    Delta,
    GenerateRequest,
    ModelInfo,
    Request,
    ScoreRequest,
    ScoreResult,
)
from radixray.reports import CacheTree, EngineStats, PinReport
from radixray.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from radixray.engine.engine import StepOutput
    from radixray.fsm.matcher import Matcher

NAME = "in-process"
"""What stands for the engine in reports."""

Inbox = asyncio.Queue[Delta | RadixRayError]

log = logging.getLogger("radixray")


class InProcessEngine:
    """A place where programs run: one engine, for all event loops of this process.

    Raises:
        ModelNotFoundError, UnsupportedModelError, InvalidRequestError: from loading the model.
    """

    config = None
    owned = True

    def __init__(self, config: EngineConfig) -> None:
        from radixray.kernels.cpu.threads import set_waiting

        set_waiting()  # before torch loads its OpenMP
        from radixray.engine.start import start_compiler, start_engine

        self.identity = self.identity_of(config)
        self.closed = False
        self._lock = threading.Lock()
        self._owners: dict[str, tuple[asyncio.AbstractEventLoop, Inbox]] = {}
        self.thread = start_engine(config, 1, self._from_engine)
        self.compiler = start_compiler(self.thread)

    @staticmethod
    def identity_of(config: EngineConfig) -> str:
        """The identity that an engine of this configuration has."""
        return f"{NAME} {config}"

    async def connect(self) -> InProcessTransport:
        """A transport for the running event loop.

        Raises:
            EngineDiedError: the engine was shut down.
        """
        self.check_open()
        return InProcessTransport(self)

    def shutdown(self) -> None:
        """Stops the engine after the step under way; requests under way fail."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            owners, self._owners = self._owners, {}
        for loop, inbox in owners.values():
            _call(loop, inbox.put_nowait, _shut_down())
        self.thread.stop()
        self.compiler.close()

    def check_open(self) -> None:
        """Raises EngineDiedError once the engine was shut down."""
        if self.closed:
            raise _shut_down()

    def own(self, request_id: str, inbox: Inbox) -> None:
        """The request's Deltas go to `inbox`, of the running loop, from now on.

        Raises:
            InvalidRequestError: the id is in use.
            EngineDiedError: the engine was shut down.
        """
        with self._lock:
            self.check_open()
            if request_id in self._owners:
                raise InvalidRequestError(
                    f"request_id {request_id!r} is in use", param="request_id"
                )
            self._owners[request_id] = asyncio.get_running_loop(), inbox

    def disown(self, request_id: str) -> None:
        """Nobody waits for the request any more."""
        with self._lock:
            self._owners.pop(request_id, None)

    def _from_engine(self, output: StepOutput) -> None:
        # In the engine's thread: one wake-up of a loop a step.
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Inbox, Delta]]] = defaultdict(list)
        with self._lock:
            for delta in output.deltas:
                if (owner := self._owners.get(delta.request_id)) is not None:
                    by_loop[owner[0]].append((owner[1], delta))
        for loop, items in by_loop.items():
            if not _call(loop, _deliver, items):
                for _, delta in items:
                    self.disown(delta.request_id)
                    if delta.finish_reason is None:
                        self.thread.abort(delta.request_id)


class InProcessTransport:
    """A `Transport` to the engine of this process. Belongs to one event loop."""

    def __init__(self, engine: InProcessEngine) -> None:
        self._engine = engine
        self._live: dict[str, Inbox] = {}
        self._closed = False

    @property
    def info(self) -> ModelInfo:
        """The model."""
        return self._engine.thread.info

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer and chat template."""
        return self._engine.thread.tokenizer

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """The request's Deltas; see `Transport.generate`."""
        request.validate(self.info)
        async with aclosing(self._run(request)) as deltas:
            async for delta in deltas:
                yield delta

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Log-probabilities of the choices; see `Transport.score`."""
        request.validate(self.info)
        async with aclosing(self._run(request)) as deltas:
            async for delta in deltas:
                if delta.choice_logprobs is not None and delta.usage is not None:
                    return ScoreResult(
                        request_id=request.request_id,
                        logprobs=delta.choice_logprobs,
                        usage=delta.usage,
                    )
        raise AbortedError(f"request {request.request_id} was aborted")

    async def stats(self) -> dict[str, EngineStats]:
        """The engine's counters, under the name ``in-process``."""
        if self._engine.closed:
            return {NAME: EngineStats(reachable=False)}
        return {NAME: self._engine.thread.stats()}

    async def flush(self) -> int:
        """Empties the cache of what no request uses; pages freed."""
        self._engine.check_open()
        asked = self._engine.thread.ask(lambda engine: engine.cache.flush())
        return await asyncio.wrap_future(asked)

    async def pin(
        self, prompt_ids: list[int], ttl_s: float, *, cache_salt: str = ""
    ) -> dict[str, PinReport]:
        """See `ControlsCache.pin`."""
        self._engine.check_open()
        tokens = np.array(prompt_ids, np.int32).tobytes()
        namespace = namespace_of(self.info.name, cache_salt)
        asked = self._engine.thread.pin(NAME, namespace, tokens, ttl_s)
        return {NAME: await asyncio.wrap_future(asked)}

    async def cache_tree(self, limit: int = 100) -> dict[str, CacheTree]:
        """See `ControlsCache.cache_tree`."""
        self._engine.check_open()
        asked = self._engine.thread.ask(lambda engine: engine.cache.view(limit))
        return {NAME: await asyncio.wrap_future(asked)}

    async def explain(self, request_id: str) -> Explanation:
        """See `Explains.explain`."""
        self._engine.check_open()
        hit = self._engine.thread.hit(request_id)
        return explanation_of(request_id, NAME, None, hit, self.tokenizer.decode)

    async def close(self) -> None:
        """Ends requests under way, which fail; the engine lives on."""
        self.abandon()

    def abandon(self) -> None:
        """As `close`."""
        self._closed = True
        for inbox in self._live.values():
            inbox.put_nowait(EngineDiedError("the transport to the engine was closed"))

    async def _run(self, request: Request) -> AsyncGenerator[Delta, None]:
        if self._closed:
            raise EngineDiedError("the transport to the engine was closed")
        inbox: Inbox = asyncio.Queue()
        self._engine.own(request.request_id, inbox)
        self._live[request.request_id] = inbox
        runs = False
        try:
            matcher = await self._matcher(request)
            self._engine.check_open()
            self._engine.thread.submit(request, matcher)
            runs = True
            while runs:
                delta = await inbox.get()
                if isinstance(delta, RadixRayError):
                    raise delta
                runs = delta.finish_reason is None
                if delta.error is not None:
                    raise delta.error.to_error()
                yield delta
        finally:
            del self._live[request.request_id]
            self._engine.disown(request.request_id)
            if runs and not self._engine.closed:
                self._engine.thread.abort(request.request_id)

    async def _matcher(self, request: Request) -> Matcher | None:
        if isinstance(request, ScoreRequest) or request.constraint is None:
            return None
        try:
            return (await self._engine.compiler.compile_async(request.constraint)).matcher()
        except RadixRayError:
            raise
        except Exception as error:  # a bug of ours; whoever waits must hear of it
            log.exception("a constraint could not be compiled")
            raise EngineError(f"the constraint could not be compiled: {error!r}") from error


def _deliver(items: list[tuple[Inbox, Delta]]) -> None:
    for inbox, delta in items:
        inbox.put_nowait(delta)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> bool:
    """Calls `function` in `loop`; False where that is closed."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        return False
    return True


def _shut_down() -> EngineDiedError:
    return EngineDiedError("the engine of this process was shut down")
