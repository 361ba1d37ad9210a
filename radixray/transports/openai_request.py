"""Requests in OpenAI's words; what an endpoint has no word for is refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from radixray.constraint import Constraint
from radixray.errors import InvalidRequestError, UnsupportedFeatureError
from radixray.protocol import GenerateRequest
from radixray.transports.message_markup import read_chat

API = Literal["chat", "completions"]
Prefill = Literal["last_message", "continue_final_message"]

PARAMETERS = frozenset(
    {
        "cache_salt",
        "ignore_eos",
        "min_p",
        "min_tokens",
        "priority",
        "repetition_penalty",
        "stop_token_ids",
        "top_k",
    }
)
"""Parameters that some endpoints know beyond OpenAI's, by the same names as we."""

EXTENSIONS = PARAMETERS | {
    "echo_logprobs",
    "ebnf",
    "max_completion_tokens",
    "regex",
    "response_format",
    "structured_outputs",
}
"""Values of `extensions` of `radixray.connect_openai`."""

_STANDARD = frozenset(
    {"top_p", "frequency_penalty", "presence_penalty", "seed", "stop", "logit_bias"}
)
_REFUSED = {
    "logprobs": "the endpoint gives no token ids",
    "prompt_logprobs_from": "the endpoint gives no token ids",
    "fsm_debug": "the endpoint does not report it",
}
_TOLD = frozenset(
    {
        "request_id",
        "prompt_ids",
        "sampling",
        "max_tokens",
        "temperature",
        "constraint",
        "timeout_s",
        # How it is done, not what.
        "jump_forward",
        "whole",
    }
)
"""Fields that are put into words of their own, or are nothing to the endpoint."""


@dataclass(frozen=True)
class Dialect:
    """What an endpoint understands.

    Attributes:
        model: what it calls the model.
        api: ``chat`` sends messages, ``completions`` text.
        prefill: how a chat endpoint is told to go on with a message that has begun, or None.
        extensions: what it knows beyond OpenAI's API, of EXTENSIONS.
    """

    model: str
    api: API = "chat"
    prefill: Prefill | None = None
    extensions: frozenset[str] = frozenset()

    @property
    def path(self) -> str:
        """Of the endpoint, after its base URL."""
        return "/chat/completions" if self.api == "chat" else "/completions"


def body_of(request: GenerateRequest, dialect: Dialect) -> dict[str, Any]:
    """The body of a streamed request.

    Raises:
        UnsupportedFeatureError: the endpoint cannot do what is asked; `param` names it.
    """
    sampling = request.sampling
    body: dict[str, Any] = {"model": dialect.model, "temperature": sampling.temperature}
    body |= _place(request, dialect)
    if sampling.max_tokens is not None:
        known = "max_completion_tokens" in dialect.extensions
        body["max_completion_tokens" if known else "max_tokens"] = sampling.max_tokens
    for name, value in {**_given(sampling, _TOLD), **_given(request, _TOLD)}.items():
        if name in _REFUSED:
            raise _unsupported(name, _REFUSED[name])
        if name not in _STANDARD and name not in dialect.extensions & PARAMETERS:
            raise _unsupported(name, "the endpoint is not said to know it (extensions)")
        body[name] = value
    if request.constraint is not None:
        body |= _constraint(request.constraint, dialect)
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def text_of(prompt_ids: list[int]) -> str:
    """The text that byte tokens spell.

    Raises:
        InvalidRequestError: they end within a character.
    """
    try:
        return bytes(prompt_ids).decode()
    except ValueError:
        raise InvalidRequestError("the prompt is no text", param="prompt") from None


def check_extensions(extensions: frozenset[str]) -> None:
    """Raises InvalidRequestError: one of them is none of EXTENSIONS."""
    for name in sorted(extensions - EXTENSIONS):
        raise InvalidRequestError(
            f"unknown extension {name!r}; known are {', '.join(sorted(EXTENSIONS))}",
            param="extensions",
        )


def _place(request: GenerateRequest, dialect: Dialect) -> dict[str, Any]:
    """What to go on from."""
    text = text_of(request.prompt_ids)
    if dialect.api == "completions":
        return {"prompt": text}
    chat = read_chat(text)
    if not chat.begun:
        return {"messages": chat.messages}
    if dialect.prefill is None:
        raise UnsupportedFeatureError(
            f"a chat endpoint begins the assistant's message itself, so nothing can be generated "
            f"after {chat.begun!r:.80}: see prefill, or num_api_spec_tokens",
            param="prefill",
        )
    messages = [*chat.messages, {"role": "assistant", "content": chat.begun}]
    if dialect.prefill == "last_message":
        return {"messages": messages}
    return {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}


def _constraint(constraint: Constraint, dialect: Dialect) -> dict[str, Any]:
    kind, known = constraint.kind, dialect.extensions
    if constraint.start_after is not None:
        raise _unsupported("start_after", "the endpoint has no such constraint")
    if kind == "json_schema" and (dialect.api == "chat" or "response_format" in known):
        assert constraint.json_schema is not None
        schema = msgspec.json.decode(constraint.json_schema)
        format_ = {"name": "output", "schema": schema, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": format_}}
    if "structured_outputs" in known and kind in ("regex", "choices", "ebnf", "lark"):
        name = {"choices": "choice", "ebnf": "grammar", "lark": "grammar"}.get(kind, kind)
        return {"structured_outputs": {name: getattr(constraint, kind)}}
    if kind in known:
        return {kind: getattr(constraint, kind)}
    if kind == "predicate":
        raise _unsupported(kind, "it is code")
    extension = "'response_format'" if kind == "json_schema" else "'structured_outputs'"
    if kind in EXTENSIONS:
        extension += f" or {kind!r}"
    why = f"the endpoint is not said to know it (extensions: {extension})"
    raise _unsupported(kind, why)


def _given(struct: msgspec.Struct, but: frozenset[str]) -> dict[str, Any]:
    """The fields that are not as by default."""
    given = {}
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if field.name not in but and value != field.default and value not in ({}, (), []):
            given[field.name] = value
    return given


def _unsupported(name: str, why: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(f"{name} is not supported here: {why}", param=name)
