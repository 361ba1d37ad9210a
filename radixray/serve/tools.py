"""Tools of a chat: what the model may call, and what its calls are held to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from radixray.constraint import Constraint
from radixray.errors import InvalidRequestError

MAX_TOOLS = 128
"""As at OpenAI."""
MAX_CALLS = 16
"""Most calls of one answer that must call."""

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_NO_SCHEMAS = ("const", "enum", "default", "examples")
"""Keywords whose values are data, in which ``$ref`` means nothing."""


class Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function the model may call. Forced calls are always `strict`, others never."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool; only functions are known."""

    type: Literal["function"]
    function: Function


class FunctionName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names a function."""

    name: str


class NamedChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The one function that must be called."""

    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedChoice


@dataclass(frozen=True, kw_only=True)
class ToolUse:
    """How an answer may use tools.

    Attributes:
        tools: as chat templates expect them.
        forced: what the output must match where the model must call: an array of calls.
        max_calls: further calls are dropped.
    """

    tools: list[dict[str, Any]]
    forced: Constraint | None
    max_calls: int


def tool_use_of(
    tools: Sequence[Tool], choice: ToolChoice | None, *, parallel: bool
) -> ToolUse | None:
    """What a request's `tools`, `tool_choice` and `parallel_tool_calls` ask for; None is no tools.

    Raises:
        InvalidRequestError: a bad name, one given twice, or a choice that is no tool.
    """
    names = [tool.function.name for tool in tools]
    if len(tools) > MAX_TOOLS:
        raise InvalidRequestError(
            f"tools must hold at most {MAX_TOOLS} tools, not {len(tools)}", param="tools"
        )
    for i, name in enumerate(names):
        param = f"tools[{i}].function.name"
        if not _NAME.fullmatch(name):
            raise InvalidRequestError(
                f"{param} must be 1 to 64 letters, digits, '_', '-' and '.', not {name!r:.80}",
                param=param,
            )
        if name in names[:i]:
            raise InvalidRequestError(f"{param} {name!r} is given twice", param=param)
    if choice == "none" or (choice is None and not tools):
        return None
    if not tools:
        raise InvalidRequestError("tool_choice is only allowed with tools", param="tool_choice")
    forced = None
    max_calls = MAX_CALLS if parallel else 1
    if isinstance(choice, NamedChoice):
        wanted = [tool for tool in tools if tool.function.name == choice.function.name]
        if not wanted:
            raise InvalidRequestError(
                f"tool_choice names {choice.function.name!r}; tools has {', '.join(names)}",
                param="tool_choice",
            )
        max_calls = 1
        forced = _calls_of(wanted, max_calls)
    elif choice == "required":
        forced = _calls_of(tools, max_calls)
    shown = [msgspec.to_builtins(tool) for tool in tools]
    for tool in shown:
        given = {name: value for name, value in tool["function"].items() if value is not None}
        given.pop("strict", None)
        tool["function"] = given
    return ToolUse(tools=shown, forced=forced, max_calls=max_calls)


def _calls_of(tools: Sequence[Tool], max_calls: int) -> Constraint:
    """One to `max_calls` calls of `tools`, each ``{"name":...,"arguments":...}``."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                "arguments": {"$ref": f"#/$defs/{tool.function.name}"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    schema = {
        "$defs": {tool.function.name: _parameters(tool.function) for tool in tools},
        "type": "array",
        "items": calls[0] if len(calls) == 1 else {"anyOf": calls},
        "minItems": 1,
        "maxItems": max_calls,
    }
    return Constraint(json_schema=msgspec.json.encode(schema).decode(), whitespace="compact")


def _parameters(function: Function) -> dict[str, Any]:
    given = function.parameters
    if given is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    given = {name: value for name, value in given.items() if name not in ("$schema", "$id")}
    return {"type": "object", **_moved(given, f"#/$defs/{function.name}")}


def _moved(schema: Any, base: str) -> Any:
    """`schema` with references that are right where it stands at `base` of another."""
    if isinstance(schema, list):
        return [_moved(item, base) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "$ref" and isinstance(value, str) and value.startswith("#"):
            moved[name] = base + value[1:]
        else:
            moved[name] = value if name in _NO_SCHEMAS else _moved(value, base)
    return moved
