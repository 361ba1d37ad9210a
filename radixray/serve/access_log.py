"""Request ids, and a line of JSON for each request."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
import uuid
from datetime import UTC, datetime

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixray.errors import InvalidRequestError

logger = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[\w.:/-]{1,128}", re.ASCII)


class AccessEntry(msgspec.Struct):
    """What is told of a request: nothing of its content.

    Attributes:
        status: None if the client went before there was one.
        key: the name of its API key.
        prompt_tokens, cached_tokens, completion_tokens: where something was generated.
    """

    time: str
    request_id: str
    method: str
    path: str
    status: int | None
    duration_ms: float
    key: str | None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


class AccessLog:
    """Where the lines go. Several processes can write to one file.

    Args:
        target: a file, or ``-`` for stderr.

    Raises:
        InvalidRequestError: the file cannot be opened.
    """

    def __init__(self, target: str) -> None:
        if target == "-":
            self._fd = sys.stderr.fileno()
            return
        try:
            self._fd = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise InvalidRequestError(
                f"the access log {target} cannot be opened: {error}", param="access_log"
            ) from error

    def write(self, entry: AccessEntry) -> None:
        """Adds a line, in one write: appended ones do not mix."""
        try:
            os.write(self._fd, msgspec.json.encode(entry) + b"\n")
        except OSError as error:  # a full disk is no reason to fail a request
            logger.warning("the access log cannot be written: %s", error)


class RequestIds:
    """ASGI middleware: each request has an id, the one it came with if that is a sane one.

    Args:
        answers: whether to send it back as ``x-request-id``.
        log: where each request is told of, or None.
    """

    def __init__(self, app: ASGIApp, answers: bool, log: AccessLog | None) -> None:
        self._app = app
        self._answers = answers
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        begun, status = time.monotonic(), None

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self._answers:
                    MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            status = status or 500  # the server's own answer to it comes after this
            raise
        finally:
            if self._log is not None:
                self._log.write(_entry(scope, request_id, status, time.monotonic() - begun))


def _entry(scope: Scope, request_id: str, status: int | None, duration_s: float) -> AccessEntry:
    state = scope["state"]
    tenant, usage = state.get("tenant"), state.get("usage")
    return AccessEntry(
        time=datetime.now(UTC).isoformat(timespec="milliseconds"),
        request_id=request_id,
        method=scope["method"],
        path=scope["path"],
        status=status,
        duration_ms=round(duration_s * 1000, 1),
        key=None if tenant is None else tenant.name,
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        cached_tokens=None if usage is None else usage.prompt_tokens_details.cached_tokens,
        completion_tokens=None if usage is None else usage.completion_tokens,
    )
