"""``POST /v1/responses``."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixray.protocol import Delta, Usage
from radixray.serve.admission import admit
from radixray.serve.answer import answer
from radixray.serve.chat_prompt import chat_prompt, template_messages
from radixray.serve.connection import Connection
from radixray.serve.errors import error_detail
from radixray.serve.generation import named_as_in
from radixray.serve.job import Job, check_model, make_job
from radixray.serve.openai_protocol import UsageBody, worth_telling
from radixray.serve.parse import parse, read_body
from radixray.serve.responses_input import NAMES, chat_of, tools_of
from radixray.serve.responses_items import ItemWriter
from radixray.serve.responses_protocol import (
    ErrorEvent,
    Event,
    IncompleteDetails,
    InputDetails,
    OutputDetails,
    ResponseBody,
    ResponseEvent,
    ResponseFailure,
    ResponsesBody,
    ResponsesUsage,
    TextFormat,
)
from radixray.serve.sse import Framing
from radixray.serve.tool_calls import CallPiece, ToolCallParser
from radixray.serve.tools import ToolUse


async def create_response(request: Request) -> Response:
    """Answer a text or a chat, as one response of messages and calls; nothing is stored."""
    body = parse(await read_body(request), ResponsesBody)
    chat, tools = chat_of(body), tools_of(body)
    connection: Connection = request.app.state.connection
    transport = await connection.transport()
    check_model(body.model, transport.info)
    with named_as_in(NAMES):
        messages = template_messages(chat.messages, transport.info.name)
        job = make_job(
            chat,
            [await chat_prompt(messages, tools, transport)],
            transport.info,
            prefix="resp",
            prompt_param="input",
            default_max_tokens=None,
            logprobs=None,
            tools=tools,
        )
    job = dataclasses.replace(
        job, names={ours: NAMES.get(theirs, theirs) for ours, theirs in job.names.items()}
    )
    shape = ResponseShape(body, job, tools)
    admitted = admit(request, transport, job.requests)
    return await answer(request, admitted, job, shape, shape.framing)


class ResponseShape:
    """A response, and the events that tell how it grows.

    Attributes:
        framing: of the events.
    """

    def __init__(self, body: ResponsesBody, job: Job, tools: ToolUse | None) -> None:
        self._job = job
        self._parser: ToolCallParser | None = None
        if tools is not None:
            inside = tools.forced is not None
            self._parser = ToolCallParser(inside=inside, max_calls=tools.max_calls)
        self._items = ItemWriter()
        self._response = ResponseBody(
            id=job.id,
            created_at=job.created,
            status="in_progress",
            model=job.model,
            output=[],
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata,
            parallel_tool_calls=body.parallel_tool_calls,
            temperature=body.temperature,
            text={"format": _shown(body.text.format or TextFormat())},
            tool_choice=body.tool_choice,
            tools=body.tools,
            top_p=body.top_p,
        )
        self.framing = ResponseFraming(self)

    def whole(self, outputs: list[Delta], usage: UsageBody) -> ResponseBody:
        self.pieces(0, outputs[0], first=True)
        return self._response

    def pieces(self, index: int, delta: Delta, *, first: bool) -> list[msgspec.Struct]:
        events: list[msgspec.Struct] = []
        if first:
            begun = ("response.created", "response.in_progress")
            events += [ResponseEvent(type=kind, response=self._response) for kind in begun]
        events += self._items.write(self._read(delta))
        if delta.finish_reason is not None:
            events += self._finish(delta)
        return events

    def usage(self, usage: UsageBody) -> msgspec.Struct:
        raise AssertionError("the last event has it")

    def failed(self, error: ResponseFailure) -> ResponseEvent:
        """The last event of a stream that `error` cuts short."""
        self._items.close("incomplete")
        self._end("failed", error=error)
        return ResponseEvent(type="response.failed", response=self._response)

    def _read(self, delta: Delta) -> list[str | CallPiece]:
        if self._parser is None:
            return [delta.text] if delta.text else []
        pieces = self._parser.push(delta.text)
        return [*pieces, *(self._parser.finish() if delta.finish_reason is not None else ())]

    def _finish(self, delta: Delta) -> list[Event]:
        complete = delta.finish_reason == "stop"
        events = self._items.end("completed" if complete else "incomplete")
        usage = _usage(self._job.usage([delta.usage or Usage()]))
        grammar = worth_telling(delta.grammar)
        if complete:
            self._end("completed", usage=usage, completed_at=int(time.time()))
        elif delta.finish_reason == "length":
            details = IncompleteDetails("max_output_tokens")
            self._end("incomplete", usage=usage, incomplete_details=details, grammar=grammar)
        else:
            why = ResponseFailure("server_error", "the format allowed the output no further")
            self._end("failed", usage=usage, error=why, grammar=grammar)
        kind = f"response.{self._response.status}"
        return [*events, ResponseEvent(type=kind, response=self._response)]

    def _end(self, status: str, **news: object) -> None:
        self._response = msgspec.structs.replace(
            self._response, status=status, output=self._items.items, **news
        )


class ResponseFraming(Framing):
    """Events by name, numbered; a stream ends with what became of the response."""

    def __init__(self, shape: ResponseShape) -> None:
        self._shape = shape
        self._sent = 0

    def event(self, struct: msgspec.Struct) -> bytes:
        assert isinstance(struct, Event)
        struct.sequence_number = self._sent
        self._sent += 1
        return b"event: " + struct.type.encode() + b"\n" + super().event(struct)

    def end(self) -> bytes:
        return b""

    def failure(self, error: Exception) -> bytes:
        detail = error_detail(error)
        event = ErrorEvent(code=detail.code, message=detail.message, param=detail.param)
        failure = ResponseFailure(detail.code or detail.type, detail.message)
        return self.event(event) + self.event(self._shape.failed(failure))


def _shown(given: TextFormat) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(given).items() if value is not None}


def _usage(usage: UsageBody) -> ResponsesUsage:
    cached = usage.prompt_tokens_details.cached_tokens
    return ResponsesUsage(
        usage.prompt_tokens,
        InputDetails(cached, usage.prompt_tokens - cached),
        usage.completion_tokens,
        OutputDetails(),
        usage.total_tokens,
    )
