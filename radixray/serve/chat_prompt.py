"""From the messages and tools of a chat to its prompt, through the model's own template."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from radixray.actors.transport import Transport
from radixray.errors import ContextLengthError, InvalidRequestError, TemplateError
from radixray.images import no_images_error
from radixray.serve.openai_protocol import Message, SentToolCall
from radixray.serve.tokenize import encode
from radixray.serve.tool_calls import CLOSE, OPEN
from radixray.serve.tools import ToolUse

_TOOLS = """You may call functions to help with the user's request. These are their signatures:
<tools>
{tools}
</tools>
To call a function, write its name and arguments as JSON between tags, one call at a time:
{open}
{{"name": <function name>, "arguments": <arguments as a JSON object>}}
{close}"""


def template_messages(messages: list[Message], model: str) -> list[dict[str, Any]]:
    """`messages` as chat templates expect them.

    Text parts are joined, a null content is empty, and ``developer``, OpenAI's newer word for
    ``system``, becomes that: open models' templates know only the older one.

    Raises:
        UnsupportedInputError: an image; `model` takes none.
        InvalidRequestError: no message, or another part that is not text.
    """
    if not messages:
        raise InvalidRequestError("messages must hold at least one message", param="messages")
    return [_template_message(i, message, model) for i, message in enumerate(messages)]


async def chat_prompt(
    messages: list[dict[str, Any]], tools: ToolUse | None, transport: Transport
) -> list[int]:
    """Token ids of `messages`, up to where the model's answer begins.

    Where it must begin with a call, the prompt ends inside of the block that holds it. A template
    that knows nothing of tools, or of calls, has them written into messages.

    Raises:
        TemplateError: the template refuses the messages.
        ContextLengthError: they cannot fit.
    """
    template = transport.tokenizer.chat_template
    source = template.source or ""
    extra: dict[str, Any] = {}
    if "tool_calls" not in source:
        messages = [_with_calls_as_text(message) for message in messages]
    if tools is not None and "tools" in source:
        extra["tools"] = tools.tools
    elif tools is not None:
        messages = _with_tools_as_text(messages, tools)
    try:
        text = template.render(messages, add_generation_prompt=True, **extra)
    except TemplateError as error:
        error.param = "messages"
        raise
    if tools is not None and tools.forced is not None and (OPEN in source or not extra):
        text += f"{OPEN}\n"
    try:
        # The template has written the special tokens itself.
        return await encode(transport, text, add_special_tokens=False)
    except ContextLengthError as error:
        error.param = "messages"
        raise


def _with_tools_as_text(messages: list[dict[str, Any]], tools: ToolUse) -> list[dict[str, Any]]:
    shown = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools.tools)
    text = _TOOLS.format(tools=shown, open=OPEN, close=CLOSE)
    first, *rest = messages
    if first["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    return [{**first, "content": f"{first['content']}\n\n{text}"}, *rest]


def _with_calls_as_text(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return message
    texts = [message["content"]] if message["content"] else []
    for call in calls:
        text = json.dumps(call["function"], ensure_ascii=False)
        texts.append(f"{OPEN}\n{text}\n{CLOSE}")
    return {**message, "content": "\n".join(texts)}


def _template_message(index: int, message: Message, model: str) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    result: dict[str, Any] = {"role": role, "content": _content(index, message, model)}
    for name in ("name", "tool_call_id"):
        value = getattr(message, name)
        if value is not None:
            result[name] = value
    if message.tool_calls:
        result["tool_calls"] = [_template_call(call) for call in message.tool_calls]
    return result


def _template_call(call: SentToolCall) -> dict[str, Any]:
    arguments = call.function.arguments
    if isinstance(arguments, str):
        # Templates write them as JSON themselves.
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _content(index: int, message: Message, model: str) -> str:
    if not isinstance(message.content, list):
        return message.content or ""
    texts: list[str] = []
    for number, part in enumerate(message.content):
        param = f"messages[{index}].content[{number}]"
        if part.type == "image_url":
            raise no_images_error(model, param)
        if part.type != "text" or part.text is None:
            raise InvalidRequestError(
                f"{param} of type {part.type!r} is not supported; only text is", param=param
            )
        texts.append(part.text)
    return "".join(texts)
