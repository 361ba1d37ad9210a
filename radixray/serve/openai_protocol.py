"""The bodies of the OpenAI-compatible API.

Request structs hold only what RadixRay acts on; `parse.py` lists what is ignored and refused.
An explicit null means "not given", so no field of a request is optional: each has OpenAI's default.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from radixray.constraint import GrammarReport
from radixray.protocol import MAX_CHOICES
from radixray.serve.constraints import ConstrainedBody
from radixray.serve.logprobs import ChatLogprobs, CompletionLogprobs
from radixray.serve.tools import Tool, ToolChoice

MAX_N = 128
"""Most choices of one prompt, as at OpenAI."""
MAX_SEQUENCES = MAX_CHOICES
"""Most sequences of one HTTP request: prompts times `n`."""


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`include_usage` adds a last chunk with the usage; obfuscation is accepted, never done."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Body(ConstrainedBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both generating routes accept."""

    model: str
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    n: int = 1
    seed: int | None = None
    stop: str | tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    stream: bool = False
    stream_options: StreamOptions | None = None
    cache_salt: str = ""
    priority: int = 0
    fsm_debug: bool = False
    return_token_ids: bool = False


class CompletionBody(Body, frozen=True, kw_only=True):
    """The body of ``POST /v1/completions``; a list of prompts holds only texts or only ids."""

    prompt: str | list[str | int | list[int]]
    echo: bool = False
    logprobs: int | None = None


class TextPart(msgspec.Struct, frozen=True):
    """One part of a message; parts other than text are refused by name."""

    type: str
    text: str | None = None


class SentFunction(msgspec.Struct, frozen=True):
    """What an earlier answer called; `arguments` as it gave them, or as JSON."""

    name: str
    arguments: str | dict[str, Any] = "{}"


class SentToolCall(msgspec.Struct, frozen=True):
    """A call of an earlier answer, sent back."""

    function: SentFunction
    id: str | None = None
    type: Literal["function"] = "function"


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a chat. What the model's own answers carry is accepted when sent back."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[SentToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None


class ChatBody(Body, frozen=True, kw_only=True):
    """The body of ``POST /v1/chat/completions``."""

    messages: list[Message]
    logprobs: bool = False
    top_logprobs: int | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True


class PromptTokensDetails(msgspec.Struct):
    """`cached_tokens` of the prompt were found in the radix cache."""

    cached_tokens: int


class UsageBody(msgspec.Struct):
    """Token counts of one HTTP request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


MaybeUsage = UsageBody | None | msgspec.UnsetType
"""Absent, null (a chunk that is not the last), or the counts."""

MaybeIds = list[int] | msgspec.UnsetType
"""Token ids, where ``return_token_ids`` asks for them."""

MaybeGrammar = GrammarReport | msgspec.UnsetType
"""Only where there is something to say."""


def worth_telling(grammar: GrammarReport | None) -> MaybeGrammar:
    """`grammar`, unless all is well and nobody asked."""
    if grammar is None or (grammar.complete and not grammar.trace):
        return msgspec.UNSET
    return grammar


class CompletionChoice(msgspec.Struct):
    """One choice of a completion, whole or a piece of it.

    `grammar` is ours: whether a constrained output that was cut off is complete, and with
    ``fsm_debug`` how each token came to be.
    """

    index: int
    text: str
    finish_reason: str | None
    logprobs: CompletionLogprobs | None = None
    grammar: MaybeGrammar = msgspec.UNSET
    token_ids: MaybeIds = msgspec.UNSET
    prompt_token_ids: MaybeIds = msgspec.UNSET


class CompletionResponse(msgspec.Struct):
    """A completion, or one chunk of a streamed one: OpenAI gives both the same shape."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: MaybeUsage = msgspec.UNSET
    object: str = "text_completion"


class CalledFunction(msgspec.Struct):
    """What is called, with arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    """A call the model makes."""

    id: str
    function: CalledFunction
    type: str = "function"


class AssistantMessage(msgspec.Struct):
    """What the model said; null where it only calls tools."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct):
    """One choice of a chat completion."""

    index: int
    message: AssistantMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    grammar: MaybeGrammar = msgspec.UNSET
    token_ids: MaybeIds = msgspec.UNSET


class ChatResponse(msgspec.Struct):
    """A chat completion."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    prompt_token_ids: MaybeIds = msgspec.UNSET
    object: str = "chat.completion"


class FunctionDelta(msgspec.Struct):
    """A piece of a call's arguments; the name comes with the first."""

    arguments: str
    name: str | msgspec.UnsetType = msgspec.UNSET


class ToolCallDelta(msgspec.Struct):
    """A piece of the call `index`; id and type come with the first."""

    index: int
    function: FunctionDelta
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: str | msgspec.UnsetType = msgspec.UNSET


class ChatDelta(msgspec.Struct, omit_defaults=True):
    """A piece of what the model said; empty when only the finish reason is news."""

    role: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCallDelta] | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct):
    """A piece of one choice."""

    index: int
    delta: ChatDelta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None
    grammar: MaybeGrammar = msgspec.UNSET
    token_ids: MaybeIds = msgspec.UNSET


class ChatChunk(msgspec.Struct):
    """One chunk of a streamed chat completion."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: MaybeUsage = msgspec.UNSET
    prompt_token_ids: MaybeIds = msgspec.UNSET
    object: str = "chat.completion.chunk"


class ModelBody(msgspec.Struct):
    """One served model; `max_model_len` is the most tokens of one sequence."""

    id: str
    created: int
    max_model_len: int
    owned_by: str = "radixray"
    object: str = "model"


class ModelList(msgspec.Struct):
    """All served models."""

    data: list[ModelBody]
    object: str = "list"


class ErrorDetail(msgspec.Struct):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """The body of every error, and the data of an error event in a stream."""

    error: ErrorDetail
