"""``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixray.actors.transport import Transport
from radixray.errors import ContextLengthError, InvalidRequestError, TemplateError
from radixray.protocol import Delta
from radixray.serve.answer import answer
from radixray.serve.connection import Connection
from radixray.serve.job import Job, check_model, make_job
from radixray.serve.logprobs import ChatLogprobs, chat_logprobs
from radixray.serve.openai_protocol import (
    AssistantMessage,
    ChatBody,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatResponse,
    MaybeUsage,
    Message,
    UsageBody,
    worth_telling,
)
from radixray.serve.parse import parse, read_body
from radixray.serve.tokenize import encode
from radixray.tokenizer.tokenizer import Tokenizer


async def create_chat_completion(request: Request) -> Response:
    """The assistant's next message, `n` times."""
    body = parse(await read_body(request), ChatBody)
    messages = template_messages(body.messages)
    connection: Connection = request.app.state.connection
    transport = await connection.transport()
    check_model(body.model, transport.info)
    job = make_job(
        body,
        [await _prompt(messages, transport)],
        transport.info,
        prefix="chatcmpl",
        prompt_param="messages",
        default_max_tokens=None,
        logprobs=_logprobs(body),
    )
    return await answer(request, transport, job, ChatShape(job, transport.tokenizer))


def template_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """`messages` as chat templates expect them.

    Text parts are joined, a null content is empty, and ``developer``, OpenAI's newer word for
    ``system``, becomes that: open models' templates know only the older one.

    Raises:
        InvalidRequestError: no message, or a part that is not text.
    """
    if not messages:
        raise InvalidRequestError("messages must hold at least one message", param="messages")
    return [_template_message(i, message) for i, message in enumerate(messages)]


class ChatShape:
    """Chat completions and their chunks."""

    def __init__(self, job: Job, tokenizer: Tokenizer) -> None:
        self._job = job
        self._tokenizer = tokenizer

    def whole(self, outputs: list[Delta], usage: UsageBody) -> ChatResponse:
        job = self._job
        choices = [
            ChatChoice(
                i,
                AssistantMessage(output.text),
                output.finish_reason or "",
                self._logprobs(output),
                grammar=worth_telling(output.grammar),
            )
            for i, output in enumerate(outputs)
        ]
        return ChatResponse(job.id, job.created, job.model, choices, usage)

    def pieces(self, index: int, delta: Delta, *, first: bool) -> list[msgspec.Struct]:
        # As at OpenAI, the role comes first and the finish reason last, each with no more text.
        choices: list[ChatChunkChoice] = []
        if first:
            choices.append(ChatChunkChoice(index, ChatDelta(role="assistant", content="")))
        logprobs = self._logprobs(delta)
        if delta.text or logprobs:
            said = ChatDelta(content=delta.text)
            choices.append(ChatChunkChoice(index, said, logprobs=logprobs))
        if delta.finish_reason is not None:
            grammar = worth_telling(delta.grammar)
            choices.append(
                ChatChunkChoice(index, ChatDelta(), delta.finish_reason, grammar=grammar)
            )
        return [self._chunk([choice], self._job.chunk_usage) for choice in choices]

    def usage(self, usage: UsageBody) -> ChatChunk:
        return self._chunk([], usage)

    def _logprobs(self, delta: Delta) -> ChatLogprobs | None:
        return chat_logprobs(self._tokenizer, delta.logprobs) if delta.logprobs else None

    def _chunk(self, choices: list[ChatChunkChoice], usage: MaybeUsage) -> ChatChunk:
        job = self._job
        return ChatChunk(job.id, job.created, job.model, choices, usage)


def _logprobs(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidRequestError(
            "top_logprobs is only allowed when logprobs is true", param="top_logprobs"
        )
    return None


async def _prompt(messages: list[dict[str, Any]], transport: Transport) -> list[int]:
    try:
        text = transport.tokenizer.chat_template.render(messages, add_generation_prompt=True)
    except TemplateError as error:
        error.param = "messages"
        raise
    try:
        # The template has written the special tokens itself.
        return await encode(transport, text, add_special_tokens=False)
    except ContextLengthError as error:
        error.param = "messages"
        raise


def _template_message(index: int, message: Message) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    result: dict[str, Any] = {"role": role, "content": _content(index, message)}
    for name in ("name", "tool_calls", "tool_call_id"):
        value = getattr(message, name)
        if value is not None:
            result[name] = value
    return result


def _content(index: int, message: Message) -> str:
    if not isinstance(message.content, list):
        return message.content or ""
    texts: list[str] = []
    for number, part in enumerate(message.content):
        param = f"messages[{index}].content[{number}]"
        if part.type != "text" or part.text is None:
            raise InvalidRequestError(
                f"{param} of type {part.type!r} is not supported; only text is", param=param
            )
        texts.append(part.text)
    return "".join(texts)
