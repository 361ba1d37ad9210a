"""What the output must match, under the names that servers have given it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from radixray.errors import InvalidRequestError
from radixray.json_schemas import json_schema_of
from radixray.protocol import Constraint


class SchemaFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named JSON Schema. `name`, `description` and `strict` change nothing: it is enforced."""

    schema: dict[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """OpenAI's name for it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's name for it."""

    regex: str | None = None
    json: dict[str, Any] | str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None


class ConstrainedBody(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a request's body that say what the output must match."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_regex: str | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_choice: tuple[str, ...] | None = None
    guided_grammar: str | None = None
    regex: str | None = None
    json_schema: dict[str, Any] | str | None = None
    ebnf: str | None = None


def constraint_of(body: ConstrainedBody) -> tuple[Constraint | None, dict[str, str]]:
    """The constraint `body` asks for, and how the body calls its fields, for errors.

    Raises:
        InvalidRequestError: several are given, or a part is missing.
        ConstraintError: a schema that is no JSON.
    """
    found = _given(body)
    if not found:
        return None, {}
    (name, (kind, spec)), *others = found.items()
    if others:
        names = " and ".join(found)
        raise InvalidRequestError(f"give one of {names}, not several", param=name)
    if kind == "grammar":
        kind = "ebnf" if "::=" in spec else "lark"
    try:
        fields: dict[str, Any] = {kind: spec}
        if kind == "json_schema":
            # It may come as JSON or as JSON text. Answers are written as OpenAI's are, without
            # whitespace, which leaves most to jump over.
            fields = {kind: json_schema_of(spec), "whitespace": "compact"}
        return Constraint(**fields), {kind: name}
    except InvalidRequestError as error:
        error.param = name
        raise


def _given(body: ConstrainedBody) -> dict[str, tuple[str, Any]]:
    outputs = body.structured_outputs or StructuredOutputs()
    given = {
        "response_format": _response_format(body.response_format),
        "regex": ("regex", body.regex),
        "json_schema": ("json_schema", body.json_schema),
        "ebnf": ("ebnf", body.ebnf),
        "guided_regex": ("regex", body.guided_regex),
        "guided_json": ("json_schema", body.guided_json),
        "guided_choice": ("choices", body.guided_choice),
        "guided_grammar": ("grammar", body.guided_grammar),
        "structured_outputs.regex": ("regex", outputs.regex),
        "structured_outputs.json": ("json_schema", outputs.json),
        "structured_outputs.choice": ("choices", outputs.choice),
        "structured_outputs.grammar": ("grammar", outputs.grammar),
    }
    return {name: pair for name, pair in given.items() if pair[1] is not None}


def _response_format(given: ResponseFormat | None) -> tuple[str, Any]:
    if given is None or given.type == "text":
        return "", None
    if given.type == "json_object":
        return "json_schema", {"type": "object"}
    if given.json_schema is None:
        raise InvalidRequestError(
            "response_format.json_schema is required with type json_schema",
            param="response_format.json_schema",
        )
    return "json_schema", given.json_schema.schema
