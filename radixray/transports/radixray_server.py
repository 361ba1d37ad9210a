"""A RadixRay server over HTTP, with all that its model actors can do.

The program tokenises where it runs, with the tokenizer that the server sends once, so token ids
travel as they do over Ray.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from radixray.actors.wire import ServedModel
from radixray.errors import DeploymentError, EngineDiedError, EngineError, UnsupportedFeatureError
from radixray.explanation import Explanation
from radixray.protocol import Delta, GenerateRequest, ModelInfo, Request, ScoreRequest, ScoreResult
from radixray.reports import EngineStats
from radixray.tokenizer.tokenizer import Tokenizer
from radixray.transports import native
from radixray.transports.http_errors import error_of
from radixray.transports.http_session import HTTPSession, lines_of

READ_TIMEOUT_S = 6 * native.KEEP_ALIVE_S

T = TypeVar("T")

_decode_line = msgspec.json.Decoder(native.Line).decode


class RadixRayServer:
    """A place where programs run: a RadixRay server.

    Args:
        url: e.g. ``http://127.0.0.1:8000``.
        api_key: what the server wants, if it does.
    """

    config = None
    owned = False

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self.identity = f"{self.url} {api_key}"
        self._api_key = api_key
        self._served: tuple[ModelInfo, Tokenizer] | None = None

    async def connect(self) -> ServerTransport:
        """A transport for the running event loop.

        Raises:
            EngineDiedError: the server cannot be reached.
            DeploymentError: it is no RadixRay server, or its actors are not ready.
            InvalidRequestError: it wants another API key.
        """
        session = HTTPSession(self.url, self._api_key, READ_TIMEOUT_S)
        try:
            if self._served is None:
                served = await _ask(session, "GET", native.MODEL, ServedModel)
                self._served = served.info, Tokenizer(served.tokenizer)
        except BaseException:
            await session.close()
            raise
        return ServerTransport(session, *self._served)

    def shutdown(self) -> None:
        """Does nothing: the server is not ours."""


class ServerTransport:
    """A `Transport` to a RadixRay server. Belongs to one event loop."""

    def __init__(self, session: HTTPSession, info: ModelInfo, tokenizer: Tokenizer) -> None:
        self._session = session
        self._info = info
        self._tokenizer = tokenizer

    @property
    def info(self) -> ModelInfo:
        """The served model."""
        return self._info

    @property
    def tokenizer(self) -> Tokenizer:
        """The served model's tokenizer and chat template."""
        return self._tokenizer

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """The request's Deltas; see `Transport.generate`."""
        if request.constraint is not None and request.constraint.predicate is not None:
            raise UnsupportedFeatureError(
                "predicate is code, which is not sent over HTTP", param="predicate"
            )
        request.validate(self._info)
        expected, finished = 0, False
        async with aclosing(self._lines(native.GENERATE, request)) as lines:
            async for line in lines:
                delta = line.delta
                if delta is None:
                    continue
                if delta.error is not None:
                    raise delta.error.to_error()
                if delta.index != expected:
                    raise EngineError(
                        f"tokens of request {request.request_id} were lost or repeated: expected "
                        f"token {expected}, got {delta.index}"
                    )
                expected += len(delta.token_ids)
                finished = delta.finish_reason is not None
                yield delta
        if not finished:
            raise EngineDiedError(f"{self._session.url} ended the answer before its end")

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Log-probabilities of the choices; see `Transport.score`."""
        request.validate(self._info)
        # Read to the end: only then can the connection serve another request.
        async with aclosing(self._lines(native.SCORE, request)) as lines:
            scores = [line.score async for line in lines if line.score is not None]
        if not scores:
            raise EngineDiedError(f"{self._session.url} ended the answer before its end")
        return scores[0]

    async def stats(self) -> dict[str, EngineStats]:
        """Counters of each model actor by name; none where the server cannot be reached."""
        try:
            return await _ask(self._session, "GET", native.STATS, dict[str, EngineStats])
        except EngineDiedError:
            return {self._session.url: EngineStats(reachable=False)}

    async def flush(self) -> int:
        """Empties the caches of what no request uses; pages freed."""
        return (await _ask(self._session, "POST", native.FLUSH, native.Flushed)).pages

    async def explain(self, request_id: str) -> Explanation:
        """See `Explains.explain`."""
        path = f"{native.EXPLAIN}/{quote(request_id, safe='')}"
        return await _ask(self._session, "GET", path, Explanation)

    async def close(self) -> None:
        """Closes all connections; requests under way fail."""
        await self._session.close()

    def abandon(self) -> None:
        """As `close`, without waiting."""
        self._session.abandon()

    async def _lines(self, path: str, request: Request) -> AsyncGenerator[native.Line, None]:
        body = msgspec.json.encode(request)
        async with self._session.request("POST", path, body) as response:
            await _check(response)
            async with aclosing(lines_of(response)) as lines:
                async for raw in lines:
                    if raw:
                        line = _decoded(raw, native.Line)
                        if line.error is not None:
                            raise line.error.to_error()
                        yield line


async def _ask(session: HTTPSession, method: str, path: str, kind: type[T]) -> T:
    async with session.request(method, path) as response:
        await _check(response)
        return _decoded(await response.read(), kind)


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        return
    body = await response.read()
    if response.content_type == "application/x-ndjson":
        error = _decode_line(body).error
        if error is not None:
            raise error.to_error()
    if response.status == 404:
        raise DeploymentError(
            f"{response.url.origin()} has no {response.url.path}: it is no RadixRay server, or of "
            f"another version; for any OpenAI-compatible endpoint use rr.connect_openai"
        )
    raise error_of(response.status, body, response.headers.get("Retry-After"))


def _decoded(raw: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineError(f"the server's answer cannot be read: {error}") from error
