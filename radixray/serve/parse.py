"""From the bytes of a request to a checked struct, with the parameter's name in every refusal."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from ray.exceptions import TaskCancelledError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from radixray.errors import InvalidRequestError
from radixray.serve.errors import ClientGoneError
from radixray.serve.http_config import HttpConfig
from radixray.serve.openai_protocol import ChatBody, CompletionBody
from radixray.serve.responses_protocol import ResponsesBody

IGNORED = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
    }
)
"""Parameters that never change the output: accepted, and nothing is done with them."""

# Parameters of OpenAI's API that would change the output but are not supported yet, with the
# values (beside null) that ask for nothing.
_UNSUPPORTED_BY_ROUTE: dict[type[msgspec.Struct], dict[str, tuple[Any, ...]]] = {
    CompletionBody: {
        "best_of": (1,),
        "suffix": ("",),
    },
    ChatBody: {
        "audio": (),
        "function_call": ("none",),
        "functions": ([],),
        "modalities": (["text"],),
        "prediction": (),
        "reasoning_effort": (),
        "verbosity": (),
        "web_search_options": (),
    },
    ResponsesBody: {
        "background": (False,),
        "context_management": (),
        "conversation": (),
        "include": ([], ["reasoning.encrypted_content"]),  # there is no reasoning
        "max_tool_calls": (),
        "moderation": (),
        "previous_response_id": (),
        "prompt": (),
        "reasoning": ({},),
        "store": (False,),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
    },
}

BodyT = TypeVar("BodyT", bound=msgspec.Struct)


async def read_body(request: Request) -> bytes:
    """The body of `request`.

    Raises:
        HTTPException: 413, it is larger than allowed; 408, it comes too slowly.
        ClientGoneError: the client disconnected before it was complete.
    """
    config: HttpConfig = request.app.state.config
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > config.max_body_bytes:
        raise _too_large(config)
    body = bytearray()
    try:
        async with asyncio.timeout(config.body_timeout_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > config.max_body_bytes:
                    raise _too_large(config)
    except TimeoutError as error:
        raise HTTPException(
            408,
            f"the body did not come within {config.body_timeout_s:g} s",
            # The rest of it is not waited for.
            {"Connection": "close"},
        ) from error
    except (ClientDisconnect, TaskCancelledError) as gone:
        raise ClientGoneError from gone
    return bytes(body)


def parse(body: bytes, kind: type[BodyT], *, nested: str | None = None) -> BodyT:
    """The struct in `body`.

    Args:
        body: JSON.
        kind: of the struct.
        nested: a field that holds parameters, too; there also null means "not given".

    Raises:
        InvalidRequestError: malformed JSON; or a parameter that is missing, unknown, of the wrong
            type, or not supported, by name.
    """
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        param = _broken_field(body)
        where = "the body" if param is None else param
        raise InvalidRequestError(f"{where} is not valid JSON: {error}", param=param) from None
    if not isinstance(fields, dict):
        raise InvalidRequestError("the body must be a JSON object")
    fields = _supported(fields, kind)
    if nested is not None and isinstance(inner := fields.get(nested), dict):
        fields[nested] = {name: value for name, value in inner.items() if value is not None}
    return struct_of(fields, kind)


def struct_of(fields: Mapping[str, Any], kind: type[BodyT], *, at: str = "") -> BodyT:
    """The struct that `fields` describe.

    Args:
        at: where in the body they stand, e.g. ``input[2]``; "" is the body itself.

    Raises:
        InvalidRequestError: a field that is missing, unknown or of the wrong type, by name.
    """
    try:
        return msgspec.convert(fields, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _explain(str(error), at) from None


def _broken_field(body: bytes) -> str | None:
    """The field that makes `body` unreadable; None where it is no JSON object at all.

    A number too large for any use is JSON to the letter.
    """
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    for name, value in fields.items():
        try:
            msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return name
    return None


def _supported(fields: dict[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    unsupported = _UNSUPPORTED_BY_ROUTE.get(kind, {})
    kept: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None:
            continue
        if name not in unsupported:
            if name not in IGNORED or name in kind.__struct_fields__:
                kept[name] = value
        # False == 0 in Python, but not in JSON.
        elif not any(type(value) is type(same) and value == same for same in unsupported[name]):
            raise InvalidRequestError(f"{name} is not supported yet; leave it out", param=name)
    return kept


_PATH = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>.+)`$")
_FIELD = re.compile(r"^Object (?P<what>contains unknown|missing required) field `(?P<name>.*?)`")


def _explain(message: str, at: str) -> InvalidRequestError:
    """msgspec's complaint, with the parameter it is about taken out of its text."""
    path = _PATH.search(message)
    where = ".".join(filter(None, (at, path["path"] if path else "")))
    field = _FIELD.match(message)
    if field is None:
        problem = message[: path.start()] if path else message
        return InvalidRequestError(f"{where or 'the body'}: {problem}", param=where or None)
    param = f"{where}.{field['name']}" if where else field["name"]
    if field["what"] == "missing required":
        return InvalidRequestError(f"{param} is required", param=param)
    return InvalidRequestError(f"unknown parameter {param!r}", param=param)


def _too_large(config: HttpConfig) -> HTTPException:
    return HTTPException(
        413,
        f"the body is larger than {config.max_body_bytes} bytes",
        {"Connection": "close"},
    )
