"""One consumer's line to one model actor: one multiplexed stream for all its requests."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, TypeVar

import ray

from radixray.actors.independent import independent_call, independent_task
from radixray.actors.model_actor import HEARTBEAT_S
from radixray.actors.wire import decode_deltas, encode_request
from radixray.errors import DeadlineExceededError, EngineDiedError, EngineError, RadixRayError
from radixray.protocol import Delta, GenerateRequest, Request

GRACE_S = 10.0
"""An engine that is so late after a request's `timeout_s` does not work any more."""

log = logging.getLogger("radixray")

T = TypeVar("T")


class Channel:
    """Sends requests to a model actor and hands their Deltas out by request.

    Belongs to one event loop. Once broken (the actor died), it stays broken: all its requests
    fail with EngineDiedError, and a new channel must be made.

    Attributes:
        actor: Ray name of the model actor.
        consumer_id: how the actor knows this consumer.
        broken: set when the stream ended.
    """

    def __init__(self, actor: str, handle: Any) -> None:
        self.actor = actor
        self.broken = False
        self._handle = handle
        self.consumer_id = uuid.uuid4().hex
        self._inboxes: dict[str, asyncio.Queue[Delta | RadixRayError]] = {}
        self._outbox: dict[str, bytes] = {}
        self._aborts: list[str] = []
        self._flushing = False
        self._ended = threading.Event()
        self._reader = independent_task(self._read())
        # A thread, not a task: a program that blocks its loop for long is alive all the same.
        threading.Thread(target=self._show_life, name="radixray-heartbeat", daemon=True).start()

    async def run(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The request's Deltas, in order and complete. Closing the generator aborts it.

        Raises:
            RadixRayError: the typed cause of an ``error`` Delta.
            EngineDiedError: the actor died or cannot be reached.
            DeadlineExceededError: `timeout_s` is long past, and the engine has not said so.
            InvalidRequestError: the request's id is in use at the actor, or a value cannot be
                sent.
        """
        if self.broken:
            raise EngineDiedError(f"model actor {self.actor} cannot be reached")
        message = encode_request(request)
        inbox = self._inboxes[request.request_id] = asyncio.Queue()
        self._outbox[request.request_id] = message
        self._flush_soon()
        timeout_s = request.timeout_s
        late = None if timeout_s is None else time.monotonic() + timeout_s + GRACE_S
        emitted = request.emitted if isinstance(request, GenerateRequest) else None
        expected = 0 if emitted is None else len(emitted.token_ids)
        finished = False
        try:
            while not finished:
                delta = await (inbox.get() if late is None else _before(late, inbox.get()))
                if isinstance(delta, RadixRayError):
                    finished = True
                    raise delta
                finished = delta.finish_reason is not None
                if delta.error is not None:
                    raise delta.error.to_error()
                if delta.index != expected:
                    raise EngineError(
                        f"tokens of request {request.request_id} were lost or repeated: "
                        f"expected token {expected}, got {delta.index}"
                    )
                expected += len(delta.token_ids)
                yield delta
        finally:
            del self._inboxes[request.request_id]
            if not finished:
                self._abort(request)

    async def close(self) -> None:
        """Ends the stream; requests under way are aborted."""
        self.abandon()
        await asyncio.wait([self._reader])

    def abandon(self) -> None:
        """As `close`, without waiting; what is under way fails. In the channel's loop only.

        Must come before Ray is shut down: a stream still read then would end the process.
        """
        self._ended.set()
        self._reader.cancel()
        self._break(EngineDiedError(f"the channel to {self.actor} was closed"))

    def _abort(self, request: Request) -> None:
        if self._outbox.pop(request.request_id, None) is None and not self.broken:
            self._aborts.append(request.request_id)
            self._flush_soon()

    def _flush_soon(self) -> None:
        # All requests of one turn of the loop go in one call: 64 branches cost one message.
        if not self._flushing:
            self._flushing = True
            independent_call(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self.broken:
            return
        requests, self._outbox = list(self._outbox.values()), {}
        aborts, self._aborts = self._aborts, []
        # Not awaited: when the actor dies the stream ends too, and that fails every request.
        if aborts:
            self._handle.abort.remote(aborts)
        if requests:
            self._handle.submit.remote(self.consumer_id, requests)

    async def _read(self) -> None:
        try:
            async for item in self._handle.deltas.options(num_returns="streaming").remote(
                self.consumer_id
            ):
                for delta in decode_deltas(await item):
                    inbox = self._inboxes.get(delta.request_id)
                    if inbox is not None:
                        inbox.put_nowait(delta)
            cause: Exception | None = None
        except asyncio.CancelledError:
            if ray.is_initialized():
                # The loop ends, or the channel is closed: the actor need not wonder about us.
                self._handle.leave.remote(self.consumer_id)
            raise
        except Exception as error:  # whatever it is, nobody may wait for this stream any more
            cause = error
            log.warning("the stream from model actor %s broke: %s", self.actor, error)
            # Should the actor live all the same, it is not to go on for nobody.
            self._handle.leave.remote(self.consumer_id)
        finally:
            self._ended.set()
        what = "ended this stream" if cause is None else "died or cannot be reached"
        died = EngineDiedError(f"model actor {self.actor} {what}")
        died.__cause__ = cause
        self._break(died)

    def _break(self, error: RadixRayError) -> None:
        if self.broken:
            return
        self.broken = True
        for inbox in self._inboxes.values():
            inbox.put_nowait(error)

    def _show_life(self) -> None:
        while not self._ended.wait(HEARTBEAT_S) and ray.is_initialized():
            self._handle.heartbeat.remote(self.consumer_id)


async def _before(late: float, answer: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(late - time.monotonic()):
            return await answer
    except TimeoutError as error:
        raise DeadlineExceededError(
            f"timeout_s is past by {GRACE_S:g} s, and the engine does not answer",
            param="timeout_s",
        ) from error
