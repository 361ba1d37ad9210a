"""``/radixray/v1/*``: what programs on other machines ask, with all that a `Transport` can do."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from math import ceil

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from radixray.actors.transport import Explains, Transport
from radixray.actors.wire import ServedModel
from radixray.constraint import Constraint
from radixray.errors import (
    ConstraintError,
    DeploymentError,
    EngineError,
    InvalidRequestError,
    OverloadedError,
    RadixRayError,
)
from radixray.explanation import Explanation, without_content
from radixray.protocol import ErrorInfo, GenerateRequest, SamplingParams, ScoreRequest
from radixray.serve.admission import admit
from radixray.serve.answer import json_response
from radixray.serve.connection import Connection
from radixray.serve.disconnect import while_connected
from radixray.serve.errors import RETRY_AFTER_S, ClientGoneError, log_fault, status_of
from radixray.serve.http_config import HttpConfig
from radixray.serve.parse import parse, read_body
from radixray.serve.tenants import Tenant
from radixray.transports import native
from radixray.transports.native import Line

Emit = Callable[[Line], Awaitable[None]]

_PIECE = 1024 * 1024
"""Bytes sent at once: Ray Serve's messages are limited, and a tokenizer can be large."""


class SentSampling(SamplingParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SamplingParams of a stranger: a field of a later version is refused, not lost."""


class SentConstraint(Constraint, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Likewise."""


class SentGenerate(
    GenerateRequest, frozen=True, kw_only=True, tag="generate", forbid_unknown_fields=True
):
    """Likewise."""

    sampling: SentSampling = SentSampling()
    constraint: SentConstraint | None = None


class SentScore(ScoreRequest, frozen=True, kw_only=True, tag="score", forbid_unknown_fields=True):
    """Likewise."""


async def served_model(request: Request) -> Response:
    """``GET model``: the model's limits and its tokenizer, to tokenise where the program runs."""
    transport = await _transport(request)
    served = ServedModel(info=transport.info, tokenizer=transport.tokenizer.files)
    body = await asyncio.to_thread(_zipped, served)
    pieces = (body[start : start + _PIECE] for start in range(0, len(body), _PIECE))
    headers = {"content-encoding": "gzip"}
    return StreamingResponse(pieces, headers=headers, media_type="application/json")


async def generate(request: Request) -> Response:
    """``POST generate``: the Deltas of a GenerateRequest."""
    body = await read_body(request)

    async def work(emit: Emit) -> None:
        asked = parse(body, SentGenerate)
        if asked.constraint is not None and asked.constraint.predicate is not None:
            raise ConstraintError(
                "predicate is code, which is not taken over HTTP", param="predicate"
            )
        transport = await _transport(request)
        asked.validate(transport.info)
        async with aclosing(admit(request, transport, [asked]).generate(asked)) as deltas:
            async for delta in deltas:
                await emit(Line(delta=delta))

    return Lines(work)


async def score(request: Request) -> Response:
    """``POST score``: the ScoreResult of a ScoreRequest."""
    body = await read_body(request)

    async def work(emit: Emit) -> None:
        asked = parse(body, SentScore)
        transport = await _transport(request)
        asked.validate(transport.info)
        tenant: Tenant = request.state.tenant
        tenant.ask(len(asked.prompt_ids) + sum(map(len, asked.choices)))
        async with request.app.state.admission.shares.slot(tenant.name):
            result = await transport.score(asked)
        await emit(Line(score=result))

    return Lines(work)


async def stats(request: Request) -> Response:
    """``GET stats``: EngineStats of each model actor by name."""
    return json_response(await (await _transport(request)).stats())


async def flush(request: Request) -> Response:
    """``POST flush``: empties the caches of what no request uses."""
    return json_response(native.Flushed(await (await _transport(request)).flush()))


async def explain(request: Request) -> Response:
    """``GET explain/{request_id}``: why it went where it went, and found what it found.

    An answer's id stands for the first of its sequences. Where several keys share the server,
    nothing is told of what prompts and cache hold.
    """
    transport = await _transport(request)
    if not isinstance(transport, Explains):
        raise DeploymentError("nothing is remembered of requests here")
    asked: str = request.path_params["request_id"]
    config: HttpConfig = request.app.state.config
    try:
        found = await transport.explain(asked)
    except InvalidRequestError as unknown:
        with suppress(InvalidRequestError):
            found = await transport.explain(f"{asked}-0")
            return json_response(_shown(found, config))
        raise unknown
    return json_response(_shown(found, config))


def _shown(found: Explanation, config: HttpConfig) -> Explanation:
    return without_content(found) if len(config.keys) > 1 else found


ROUTES = [
    Route(f"{native.EXPLAIN}/{{request_id}}", explain, methods=["GET"]),
    Route(native.MODEL, served_model, methods=["GET"]),
    Route(native.GENERATE, generate, methods=["POST"]),
    Route(native.SCORE, score, methods=["POST"]),
    Route(native.STATS, stats, methods=["GET"]),
    Route(native.FLUSH, flush, methods=["POST"]),
]


class Lines(Response):
    """Sends what `work` emits, a line each.

    A failure before anything was sent decides the status; each failure is a line with its type.
    `work` is cancelled when the client disconnects.
    """

    def __init__(self, work: Callable[[Emit], Awaitable[None]]) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer.

        Raises:
            ClientGoneError: the client went away before anything was sent.
        """
        writer = _LineWriter(send)
        try:
            await while_connected(receive, self._run(writer))
            await writer.write(b"", more=False)
        except ClientGoneError:
            if not writer.started:
                raise
        except Exception as error:
            log_fault(error)
            await writer.fail(error)

    async def _run(self, writer: _LineWriter) -> None:
        alive = asyncio.create_task(writer.keep_alive())
        try:
            await self._work(writer.emit)
        finally:
            alive.cancel()
            await asyncio.gather(alive, return_exceptions=True)


class _LineWriter:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = asyncio.Lock()
        self.started = False

    async def emit(self, line: Line) -> None:
        await self.write(msgspec.json.encode(line) + b"\n")

    async def keep_alive(self) -> None:
        while True:
            await asyncio.sleep(native.KEEP_ALIVE_S)
            await self.write(b"\n")

    async def fail(self, error: Exception) -> None:
        known = error
        if not isinstance(known, RadixRayError):
            known = EngineError("the server failed on this request; its log says why")
        status, headers = status_of(error), {}
        if status in (429, 503):
            after = error.retry_after_s if isinstance(error, OverloadedError) else RETRY_AFTER_S
            headers["retry-after"] = str(ceil(after))
        line = msgspec.json.encode(Line(error=ErrorInfo.of(known))) + b"\n"
        await self.write(line, more=False, status=status, headers=headers)

    async def write(
        self,
        body: bytes,
        *,
        more: bool = True,
        status: int = 200,
        headers: dict[str, str] | None = None,
    ) -> None:
        async with self._lock:
            if not self.started:
                self.started = True
                named = {"content-type": "application/x-ndjson", "cache-control": "no-cache"}
                named |= {"x-accel-buffering": "no", **(headers or {})}
                raw = [(name.encode(), value.encode()) for name, value in named.items()]
                await self._send({"type": "http.response.start", "status": status, "headers": raw})
            pieces = [body[start : start + _PIECE] for start in range(0, len(body), _PIECE)] or [
                b""
            ]
            for number, piece in enumerate(pieces, start=1):
                last = number == len(pieces) and not more
                await self._send(
                    {"type": "http.response.body", "body": piece, "more_body": not last}
                )


def _zipped(served: ServedModel) -> bytes:
    return gzip.compress(msgspec.json.encode(served), compresslevel=5)


async def _transport(request: Request) -> Transport:
    connection: Connection = request.app.state.connection
    return await connection.transport()
