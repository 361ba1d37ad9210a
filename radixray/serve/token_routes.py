"""``POST /tokenize`` and ``/detokenize``, as vLLM answers them."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixray.errors import InvalidRequestError
from radixray.serve.answer import json_response
from radixray.serve.chat_prompt import chat_prompt, template_messages
from radixray.serve.connection import Connection
from radixray.serve.job import check_model
from radixray.serve.openai_protocol import Message
from radixray.serve.parse import parse, read_body
from radixray.serve.tokenize import encode


class TokenizeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `prompt`, or the `messages` of a chat as the model is given them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class Tokens(msgspec.Struct):
    """Token ids, and how many the model takes."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Token ids."""

    tokens: list[int]
    model: str | None = None


class Detokenized(msgspec.Struct):
    """Their text, without special tokens."""

    prompt: str


async def tokenize(request: Request) -> Response:
    """The token ids of a text or of a chat."""
    body = parse(await read_body(request), TokenizeBody)
    connection: Connection = request.app.state.connection
    transport = await connection.transport()
    if body.model is not None:
        check_model(body.model, transport.info)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("give one of prompt and messages", param="prompt")
    if body.messages is not None:
        ids = await chat_prompt(
            template_messages(body.messages, transport.info.name), None, transport
        )
    else:
        text, special = body.prompt or "", body.add_special_tokens
        ids = await encode(transport, text, add_special_tokens=special)
    strings = None
    if body.return_token_strs:
        spelling = transport.tokenizer.spelling
        strings = [spelling(token).decode(errors="replace") for token in ids]
    return json_response(Tokens(len(ids), transport.info.max_sequence_tokens, ids, strings))


async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    body = parse(await read_body(request), DetokenizeBody)
    connection: Connection = request.app.state.connection
    transport = await connection.transport()
    if body.model is not None:
        check_model(body.model, transport.info)
    if any(not 0 <= token < transport.info.vocab_size for token in body.tokens):
        raise InvalidRequestError(
            f"tokens must be ids from 0 to {transport.info.vocab_size - 1}", param="tokens"
        )
    return json_response(Detokenized(transport.tokenizer.decode(body.tokens)))


async def embeddings(request: Request) -> Response:
    """Refused: no model served here makes embeddings.

    Raises:
        InvalidRequestError: always.
    """
    raise InvalidRequestError(
        "embeddings are not supported: the served model only generates", param="model"
    )
