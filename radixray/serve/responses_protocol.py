"""The bodies and events of OpenAI's Responses API; `parse.py` lists what is refused."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from radixray.serve.openai_protocol import MaybeGrammar, StreamOptions, TextPart


class TextFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the text must match. `name`, `description` and `strict` change nothing."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    schema: dict[str, Any] | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`text` of a request."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ResponsesTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function the model may call; other kinds of tools are not known."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChosenFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The one function that must be called."""

    type: Literal["function"]
    name: str


class ResponsesBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/responses``."""

    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    text: TextOptions = TextOptions()
    tools: tuple[ResponsesTool, ...] = ()
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction = "auto"
    parallel_tool_calls: bool = True
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    stream: bool = False
    stream_options: StreamOptions | None = None
    # Beyond OpenAI's, as on the other routes.
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    cache_salt: str = ""
    priority: int = 0


class InputMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message of the input, or of an earlier answer."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    type: str = "message"
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class InputCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of an earlier answer, sent back."""

    call_id: str
    name: str
    arguments: str
    type: str
    id: str | None = None
    status: str | None = None


class InputCallOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a called function gave."""

    call_id: str
    output: str | list[TextPart]
    type: str
    id: str | None = None
    status: str | None = None


class OutputText(msgspec.Struct, frozen=True):
    """The text of a message."""

    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()
    type: str = "output_text"


class OutputMessage(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """A message of the answer."""

    id: str
    status: str
    content: list[OutputText]
    role: str = "assistant"


class OutputCall(msgspec.Struct, frozen=True, tag_field="type", tag="function_call"):
    """A call in the answer."""

    id: str
    status: str
    call_id: str
    name: str
    arguments: str


OutputItem = OutputMessage | OutputCall


class InputDetails(msgspec.Struct, frozen=True):
    """`cached_tokens` were found in the radix cache, the others were computed and are there now."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(msgspec.Struct, frozen=True):
    """No served model has hidden reasoning."""

    reasoning_tokens: int = 0


class ResponsesUsage(msgspec.Struct, frozen=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why an answer is cut off."""

    reason: str


class ResponseFailure(msgspec.Struct, frozen=True):
    """Why there is no answer."""

    code: str
    message: str


class ResponseBody(msgspec.Struct, frozen=True, kw_only=True):
    """A response, whole or as far as it is. `grammar` is ours, as on the other routes."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str
    model: str
    output: list[OutputItem]
    usage: ResponsesUsage | None = None
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    grammar: MaybeGrammar = msgspec.UNSET
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    temperature: float
    text: dict[str, dict[str, Any]]
    tool_choice: str | ChosenFunction
    tools: tuple[ResponsesTool, ...]
    top_p: float
    background: bool = False
    previous_response_id: None = None
    store: bool = False
    truncation: str = "disabled"


class Event(msgspec.Struct, kw_only=True):
    """An event of a stream; its place in it is numbered when it is sent."""

    type: str
    sequence_number: int = 0


class ResponseEvent(Event, kw_only=True):
    """`type` tells what became of the response: created, in progress, completed and so on."""

    response: ResponseBody


class ItemEvent(Event, kw_only=True):
    """An item begins or is complete."""

    output_index: int
    item: OutputItem


class PartEvent(Event, kw_only=True):
    """The text of a message begins or is complete."""

    item_id: str
    output_index: int
    part: OutputText
    content_index: int = 0


class TextDelta(Event, kw_only=True):
    """A piece of the text."""

    item_id: str
    output_index: int
    delta: str
    content_index: int = 0
    logprobs: tuple[()] = ()
    type: str = "response.output_text.delta"


class TextDone(Event, kw_only=True):
    """The whole text."""

    item_id: str
    output_index: int
    text: str
    content_index: int = 0
    logprobs: tuple[()] = ()
    type: str = "response.output_text.done"


class ArgumentsDelta(Event, kw_only=True):
    """A piece of a call's arguments."""

    item_id: str
    output_index: int
    delta: str
    type: str = "response.function_call_arguments.delta"


class ArgumentsDone(Event, kw_only=True):
    """A call's arguments."""

    item_id: str
    output_index: int
    name: str
    arguments: str
    type: str = "response.function_call_arguments.done"


class ErrorEvent(Event, kw_only=True):
    """The stream cannot go on."""

    code: str | None
    message: str
    param: str | None
    type: str = "error"
