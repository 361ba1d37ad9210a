"""What an OpenAI-compatible endpoint streams, read leniently: servers differ in what they add."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from radixray.errors import EngineDiedError, EngineError, OutputError
from radixray.protocol import Usage
from radixray.transports.http_errors import error_of
from radixray.transports.http_session import lines_of

_REASONS = {"stop": "stop", "eos": "stop", "eos_token": "stop", "length": "length"}


@dataclass
class Piece:
    """What one event says.

    Attributes:
        text: that came.
        finish_reason: ``stop`` or ``length`` in the last one with text.
        stop_reason: what stopped it, where the endpoint says so.
        usage: of the request, once it is known.
        tokens: the bytes of each token of `text`, where they were asked for and given.
    """

    text: str = ""
    finish_reason: str | None = None
    stop_reason: str | None = None
    usage: Usage | None = None
    tokens: list[bytes] = field(default_factory=list)


async def pieces_of(response: aiohttp.ClientResponse) -> AsyncGenerator[Piece, None]:
    """The pieces of a streamed answer.

    Raises:
        RadixRayError: the endpoint refused, failed, or ended the stream before its end.
    """
    if response.status != 200:
        retry_after = response.headers.get("Retry-After")
        raise error_of(response.status, await response.read(), retry_after)
    if response.content_type != "text/event-stream":
        raise EngineError(f"the endpoint answered with {response.content_type}, not with events")
    finished = False
    async with aclosing(lines_of(response)) as lines:
        async for line in lines:
            name, _, data = line.strip().partition(b":")
            data = data.strip()
            if name != b"data" or data == b"[DONE]" or not data:
                continue
            piece = _piece(data)
            finished = finished or piece.finish_reason is not None
            yield piece
    if not finished:
        raise EngineDiedError("the endpoint ended the answer without a finish reason")


def decoded(raw: bytes) -> dict[str, Any]:
    """An object of JSON; raises EngineError."""
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineError(f"the endpoint's answer cannot be read: {error}") from error
    if not isinstance(fields, dict):
        raise EngineError(f"the endpoint's answer is no object: {fields!r:.200}")
    return fields


def usage_of(fields: dict[str, Any]) -> Usage | None:
    """The usage an answer tells of."""
    given = fields.get("usage")
    if not isinstance(given, dict):
        return None
    details = given.get("prompt_tokens_details") or {}
    return Usage(
        prompt=int(given.get("prompt_tokens") or 0),
        cached=int(details.get("cached_tokens") or 0),
        completion=int(given.get("completion_tokens") or 0),
    )


def _piece(data: bytes) -> Piece:
    fields = decoded(data)
    if fields.get("error"):
        raise error_of(0, data)
    piece = Piece(usage=usage_of(fields))
    choices = fields.get("choices") or []
    if not choices:
        return piece
    choice = choices[0]
    delta = choice.get("delta")
    piece.text = (choice.get("text") if delta is None else delta.get("content")) or ""
    piece.tokens = _tokens(choice.get("logprobs"))
    stop = choice.get("stop_reason")
    # An id would be one of the model's, which mean nothing here.
    piece.stop_reason = stop if isinstance(stop, str) else None
    reason = choice.get("finish_reason")
    if reason is not None:
        if reason not in _REASONS:
            raise OutputError(f"the endpoint ended the output with {reason!r}", text=piece.text)
        piece.finish_reason = _REASONS[reason]
    return piece


def _tokens(logprobs: Any) -> list[bytes]:
    if not isinstance(logprobs, dict):
        return []
    content = logprobs.get("content")
    if content is None:
        return [token.encode() for token in logprobs.get("tokens") or []]
    return [
        bytes(each["bytes"]) if each.get("bytes") is not None else each["token"].encode()
        for each in content
    ]
