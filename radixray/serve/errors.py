"""Errors as HTTP: which status and OpenAI error body each cause becomes."""

from __future__ import annotations

import logging
from math import ceil
from typing import NamedTuple

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ExceptionHandler

from radixray.errors import (
    AbortedError,
    ConstraintError,
    ContextLengthError,
    DeadlineExceededError,
    DeploymentError,
    EngineDiedError,
    EngineError,
    GrammarTooComplexError,
    InvalidRequestError,
    ModelNotFoundError,
    NotInitializedError,
    OverloadedError,
    RadixRayError,
    RateLimitError,
    UnsupportedInputError,
)
from radixray.serve.openai_protocol import ErrorBody, ErrorDetail

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1


class ClientGoneError(Exception):
    """The client closed its connection before the answer was complete."""


class _Rule(NamedTuple):
    status: int
    type: str
    code: str | None


# Looked up along the error's class hierarchy: the most derived class wins.
_RULES: dict[type[Exception], _Rule] = {
    ContextLengthError: _Rule(400, "invalid_request_error", "context_length_exceeded"),
    GrammarTooComplexError: _Rule(400, "invalid_request_error", "grammar_too_complex"),
    UnsupportedInputError: _Rule(400, "invalid_request_error", "unsupported_input"),
    ConstraintError: _Rule(400, "invalid_request_error", "invalid_constraint"),
    InvalidRequestError: _Rule(400, "invalid_request_error", None),
    ModelNotFoundError: _Rule(404, "invalid_request_error", "model_not_found"),
    DeadlineExceededError: _Rule(504, "server_error", "deadline_exceeded"),
    OverloadedError: _Rule(429, "rate_limit_error", "overloaded"),
    RateLimitError: _Rule(429, "rate_limit_error", "rate_limit_exceeded"),
    EngineDiedError: _Rule(503, "server_error", "engine_died"),
    DeploymentError: _Rule(503, "server_error", "not_ready"),
    NotInitializedError: _Rule(503, "server_error", "not_ready"),
    AbortedError: _Rule(503, "server_error", "aborted"),
    EngineError: _Rule(500, "server_error", "engine_error"),
    Exception: _Rule(500, "server_error", "internal_error"),
}

_HTTP_CODES = {
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
}


def status_of(error: Exception) -> int:
    """The HTTP status for `error`."""
    return _rule(error).status


def error_body(error: Exception) -> bytes:
    """The JSON of `error` in OpenAI's shape."""
    return msgspec.json.encode(ErrorBody(error_detail(error)))


def error_detail(error: Exception) -> ErrorDetail:
    """`error` in OpenAI's shape; an unforeseen one keeps its details in the log."""
    rule = _rule(error)
    if isinstance(error, RadixRayError):
        message, param = error.message, error.param
    elif isinstance(error, HTTPException):
        message, param = error.detail, None
    else:
        message, param = "the server failed on this request; its log says why", None
    return ErrorDetail(message, rule.type, param, rule.code)


def error_response(error: Exception) -> Response:
    """The whole HTTP answer for `error`; busy or restarting servers say when to come again."""
    headers = dict(getattr(error, "headers", None) or {})
    status = status_of(error)
    if status in (429, 503):
        after = error.retry_after_s if isinstance(error, OverloadedError) else RETRY_AFTER_S
        headers["Retry-After"] = str(max(1, ceil(after)))
    return Response(error_body(error), status, headers, "application/json")


def log_fault(error: Exception) -> None:
    """Log `error` if it is the server's fault; an unforeseen one with its traceback."""
    if not isinstance(error, RadixRayError | HTTPException):
        logger.error("unforeseen error in an HTTP request", exc_info=error)
    elif status_of(error) >= 500:
        logger.warning("HTTP request failed: %s: %s", type(error).__name__, error)


def exception_handlers() -> dict[type[Exception], ExceptionHandler]:
    """What Starlette needs so that every failure leaves in OpenAI's shape."""

    async def on_error(_: Request, error: Exception) -> Response:
        log_fault(error)
        return error_response(error)

    async def on_gone(_: Request, error: Exception) -> Response:
        return Response(status_code=499)  # nobody reads it; the access log does

    return {
        RadixRayError: on_error,
        HTTPException: on_error,
        ClientGoneError: on_gone,
        Exception: on_error,
    }


def _rule(error: Exception) -> _Rule:
    if isinstance(error, HTTPException):
        kind = "invalid_request_error" if error.status_code < 500 else "server_error"
        return _Rule(error.status_code, kind, _HTTP_CODES.get(error.status_code))
    return next(_RULES[cls] for cls in type(error).__mro__ if cls in _RULES)
