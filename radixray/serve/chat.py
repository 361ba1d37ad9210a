"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixray.errors import InvalidRequestError
from radixray.protocol import Delta
from radixray.serve.admission import admit
from radixray.serve.answer import answer
from radixray.serve.chat_prompt import chat_prompt, template_messages
from radixray.serve.connection import Connection
from radixray.serve.job import Job, check_model, make_job
from radixray.serve.logprobs import ChatLogprobs, chat_logprobs
from radixray.serve.openai_protocol import (
    AssistantMessage,
    CalledFunction,
    ChatBody,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatResponse,
    FunctionDelta,
    MaybeUsage,
    ToolCall,
    ToolCallDelta,
    UsageBody,
    worth_telling,
)
from radixray.serve.parse import parse, read_body
from radixray.serve.tool_calls import CallPiece, ToolCallParser
from radixray.serve.tools import ToolUse, tool_use_of
from radixray.tokenizer.tokenizer import Tokenizer


async def create_chat_completion(request: Request) -> Response:
    """The assistant's next message, `n` times."""
    body = parse(await read_body(request), ChatBody)
    tools = tool_use_of(body.tools, body.tool_choice, parallel=body.parallel_tool_calls)
    connection: Connection = request.app.state.connection
    transport = await connection.transport()
    check_model(body.model, transport.info)
    messages = template_messages(body.messages, transport.info.name)
    job = make_job(
        body,
        [await chat_prompt(messages, tools, transport)],
        transport.info,
        prefix="chatcmpl",
        prompt_param="messages",
        default_max_tokens=None,
        logprobs=_logprobs(body),
        tools=tools,
    )
    shape = ChatShape(job, transport.tokenizer, tools)
    return await answer(request, admit(request, transport, job.requests), job, shape)


class ChatShape:
    """Chat completions and their chunks."""

    def __init__(self, job: Job, tokenizer: Tokenizer, tools: ToolUse | None) -> None:
        self._job = job
        self._tokenizer = tokenizer
        self._parsers: list[ToolCallParser] = []
        if tools is not None:
            inside, most = tools.forced is not None, tools.max_calls
            self._parsers = [ToolCallParser(inside=inside, max_calls=most) for _ in job.requests]

    def whole(self, outputs: list[Delta], usage: UsageBody) -> ChatResponse:
        job = self._job
        choices = [self._choice(i, output) for i, output in enumerate(outputs)]
        prompt_ids = job.shown_ids(job.requests[0].prompt_ids)
        return ChatResponse(job.id, job.created, job.model, choices, usage, prompt_ids)

    def pieces(self, index: int, delta: Delta, *, first: bool) -> list[msgspec.Struct]:
        # As at OpenAI, the role comes first and the finish reason last, each with no more text.
        choices: list[ChatChunkChoice] = []
        if first:
            choices.append(ChatChunkChoice(index, ChatDelta(role="assistant", content="")))
        said = [_chat_delta(piece) for piece in self._read(index, delta)]
        logprobs = self._logprobs(delta)
        ids = self._job.shown_ids(delta.token_ids)
        if (logprobs or ids) and not said:
            said = [ChatDelta(content="")]
        for piece in said:
            choices.append(ChatChunkChoice(index, piece, logprobs=logprobs, token_ids=ids))
            logprobs, ids = None, msgspec.UNSET
        if delta.finish_reason is not None:
            reason, grammar = self._finish_reason(index, delta), worth_telling(delta.grammar)
            choices.append(ChatChunkChoice(index, ChatDelta(), reason, grammar=grammar))
        chunks = [self._chunk([choice], self._job.chunk_usage) for choice in choices]
        if first:
            chunks[0].prompt_token_ids = self._job.shown_ids(self._job.requests[0].prompt_ids)
        return [*chunks]

    def _choice(self, index: int, output: Delta) -> ChatChoice:
        pieces = self._read(index, output)
        content = "".join(piece for piece in pieces if isinstance(piece, str))
        calls = _tool_calls(piece for piece in pieces if isinstance(piece, CallPiece))
        return ChatChoice(
            index,
            AssistantMessage(content or (None if calls else ""), tool_calls=calls or msgspec.UNSET),
            self._finish_reason(index, output),
            self._logprobs(output),
            grammar=worth_telling(output.grammar),
            token_ids=self._job.shown_ids(output.token_ids),
        )

    def _read(self, index: int, delta: Delta) -> list[str | CallPiece]:
        if not self._parsers:
            return [delta.text] if delta.text else []
        parser = self._parsers[index]
        pieces = parser.push(delta.text)
        return pieces if delta.finish_reason is None else pieces + parser.finish()

    def _finish_reason(self, index: int, delta: Delta) -> str:
        if delta.finish_reason == "stop" and self._parsers and self._parsers[index].calls:
            return "tool_calls"
        return delta.finish_reason or ""

    def usage(self, usage: UsageBody) -> ChatChunk:
        return self._chunk([], usage)

    def _logprobs(self, delta: Delta) -> ChatLogprobs | None:
        return chat_logprobs(self._tokenizer, delta.logprobs) if delta.logprobs else None

    def _chunk(self, choices: list[ChatChunkChoice], usage: MaybeUsage) -> ChatChunk:
        job = self._job
        return ChatChunk(job.id, job.created, job.model, choices, usage)


def _chat_delta(piece: str | CallPiece) -> ChatDelta:
    if isinstance(piece, str):
        return ChatDelta(content=piece)
    if piece.id is None:
        call = ToolCallDelta(piece.index, FunctionDelta(piece.arguments))
    else:
        function = FunctionDelta(piece.arguments, piece.name or "")
        call = ToolCallDelta(piece.index, function, piece.id, "function")
    return ChatDelta(tool_calls=[call])


def _tool_calls(pieces: Iterable[CallPiece]) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for piece in pieces:
        if piece.id is not None:
            calls.append(ToolCall(piece.id, CalledFunction(piece.name or "", "")))
        calls[piece.index].function.arguments += piece.arguments
    return calls


def _logprobs(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidRequestError(
            "top_logprobs is only allowed when logprobs is true", param="top_logprobs"
        )
    return None
