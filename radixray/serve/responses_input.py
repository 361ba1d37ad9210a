"""From a request of the Responses API to the chat it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from radixray.errors import InvalidRequestError
from radixray.serve.constraints import ResponseFormat, SchemaFormat
from radixray.serve.openai_protocol import (
    ChatBody,
    Message,
    SentFunction,
    SentToolCall,
    TextPart,
)
from radixray.serve.parse import struct_of
from radixray.serve.responses_protocol import (
    ChosenFunction,
    InputCall,
    InputCallOutput,
    InputMessage,
    ResponsesBody,
    TextFormat,
)
from radixray.serve.tools import Function, FunctionName, NamedChoice, Tool, ToolUse, tool_use_of

NAMES = {
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}
"""What the Responses API calls parameters of a chat."""

MAX_METADATA = 16
"""As at OpenAI."""

_SAME_NAMES = (
    "model",
    "temperature",
    "top_p",
    "stream",
    "stream_options",
    "top_k",
    "min_p",
    "repetition_penalty",
    "seed",
    "cache_salt",
    "priority",
)


def chat_of(body: ResponsesBody) -> ChatBody:
    """The chat that `body` asks for; its tools are another matter.

    Raises:
        InvalidRequestError: an input that is no text, no message or no call, by its place.
    """
    if len(body.metadata) > MAX_METADATA:
        raise InvalidRequestError(
            f"metadata must have at most {MAX_METADATA} entries, not {len(body.metadata)}",
            param="metadata",
        )
    return ChatBody(
        messages=_messages(body),
        max_completion_tokens=body.max_output_tokens,
        response_format=_response_format(body.text.format or TextFormat()),
        **{name: getattr(body, name) for name in _SAME_NAMES},
    )


def tools_of(body: ResponsesBody) -> ToolUse | None:
    """How the answer may use tools. Raises as `tool_use_of`."""
    tools = [
        Tool("function", Function(tool.name, tool.description, tool.parameters, tool.strict))
        for tool in body.tools
    ]
    choice = body.tool_choice
    if isinstance(choice, ChosenFunction):
        choice = NamedChoice("function", FunctionName(choice.name))
    elif choice == "auto" and not tools:
        choice = None
    with _flat_tools():
        return tool_use_of(tools, choice, parallel=body.parallel_tool_calls)


@contextmanager
def _flat_tools() -> Iterator[None]:
    # A tool of a chat has its name one level deeper.
    try:
        yield
    except InvalidRequestError as error:
        error.message = error.message.replace("].function.", "].")
        error.param = (error.param or "").replace("].function.", "].")
        raise


def _response_format(given: TextFormat) -> ResponseFormat:
    if given.type != "json_schema":
        return ResponseFormat(given.type)
    if given.schema is None:
        raise InvalidRequestError(
            "text.format.schema is required with type json_schema", param="text.format.schema"
        )
    return ResponseFormat("json_schema", SchemaFormat(given.schema))


def _messages(body: ResponsesBody) -> list[Message]:
    messages: list[Message] = []
    if body.instructions:
        messages.append(Message("system", body.instructions))
    if isinstance(body.input, str):
        return [*messages, Message("user", body.input)]
    if not body.input:
        raise InvalidRequestError("input must hold at least one item", param="input")
    for i, item in enumerate(body.input):
        _add(messages, item, f"input[{i}]")
    return messages


def _add(messages: list[Message], item: dict[str, Any], at: str) -> None:
    kind = item.get("type") or "message"
    # What comes from an earlier answer may be full of nulls.
    item = {name: value for name, value in item.items() if value is not None}
    if kind == "message":
        said = struct_of(item, InputMessage, at=at)
        messages.append(Message(said.role, _text(said.content, f"{at}.content")))
    elif kind == "function_call_output":
        output = struct_of(item, InputCallOutput, at=at)
        text = _text(output.output, f"{at}.output")
        messages.append(Message("tool", text, tool_call_id=output.call_id))
    elif kind == "function_call":
        sent = struct_of(item, InputCall, at=at)
        call = SentToolCall(SentFunction(sent.name, sent.arguments), sent.call_id)
        # A chat has the text and all calls of one turn in one message.
        turn = Message("assistant")
        if messages and messages[-1].role == "assistant":
            turn = messages.pop()
        calls = [*(turn.tool_calls or ()), call]
        messages.append(Message("assistant", turn.content, tool_calls=calls))
    else:
        raise InvalidRequestError(
            f"{at} of type {kind!r:.80} is not supported; message, function_call and "
            "function_call_output are",
            param=f"{at}.type",
        )


def _text(content: str | list[TextPart], at: str) -> str:
    if isinstance(content, str):
        return content
    for i, part in enumerate(content):
        if part.type not in ("input_text", "output_text") or part.text is None:
            raise InvalidRequestError(
                f"{at}[{i}] of type {part.type!r:.80} is not supported; only text is",
                param=f"{at}[{i}]",
            )
    return "".join(part.text or "" for part in content)
