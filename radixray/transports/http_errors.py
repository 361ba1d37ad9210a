"""What a server answers instead of an output, as the typed error it means."""

from __future__ import annotations

from typing import Any

import msgspec

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
    OverloadedError,
    RadixRayError,
    RateLimitError,
)

_BY_CODE: dict[str, type[RadixRayError]] = {
    "context_length_exceeded": ContextLengthError,
    "grammar_too_complex": GrammarTooComplexError,
    "invalid_constraint": ConstraintError,
    "model_not_found": ModelNotFoundError,
    "deadline_exceeded": DeadlineExceededError,
    "engine_died": EngineDiedError,
    "not_ready": DeploymentError,
    "aborted": AbortedError,
    "insufficient_quota": InvalidRequestError,
    "rate_limit_exceeded": RateLimitError,
}
_BY_STATUS: dict[int, type[RadixRayError]] = {
    401: InvalidRequestError,
    403: InvalidRequestError,
    408: DeadlineExceededError,
    429: OverloadedError,
    502: EngineDiedError,
    503: EngineDiedError,
    504: DeadlineExceededError,
}
_SHOWN = 500


def error_of(status: int, body: bytes, retry_after: str | None = None) -> RadixRayError:
    """The error that an answer in OpenAI's shape, or in any other, stands for.

    Args:
        status: of HTTP; 0 for an error inside a stream.
        body: of the answer.
        retry_after: that header.
    """
    detail = _detail(body)
    text = detail.get("message")
    message = text if isinstance(text, str) else body.decode(errors="replace").strip()[:_SHOWN]
    where = f"the server answered {status}" if status else "the server's stream ended"
    kind = _BY_CODE.get(str(detail.get("code"))) or _BY_STATUS.get(status)
    if kind is None:
        kind = InvalidRequestError if 400 <= status < 500 else EngineError
    param = detail.get("param")
    if status in (401, 403):
        param = "api_key"
    error = kind(f"{where}: {message}", param=param if isinstance(param, str) else None)
    if isinstance(error, OverloadedError) and retry_after is not None:
        error.retry_after_s = _seconds(retry_after, error.retry_after_s)
    return error


def unreachable(url: str, error: BaseException) -> EngineDiedError:
    """The error where no connection could be made, or it broke."""
    return EngineDiedError(f"{url} cannot be reached: {str(error) or type(error).__name__}")


def _detail(body: bytes) -> dict[str, Any]:
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    if not isinstance(fields, dict):
        return {}
    inner = fields.get("error", fields)
    return inner if isinstance(inner, dict) else {"message": inner}


def _seconds(header: str, default: float) -> float:
    try:
        return max(0.0, float(header))
    except ValueError:  # a date
        return default
