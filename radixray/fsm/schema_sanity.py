"""What a JSON Schema must be before it is worth translating: well formed, bounded, satisfiable."""

from __future__ import annotations

from functools import cache
from typing import Any

from radixray.errors import ConstraintError, GrammarTooComplexError

MAX_DEPTH = 256
"""Deepest nesting of a schema's JSON; three or so for each level of objects it describes."""

_CHECKED_LEVELS = 12
"""Schemas within schemas that are checked at once: the checker's stack is a multiple of that."""

_SCHEMA = {"items", "additionalProperties", "additionalItems", "contains", "not", "if", "then",
           "else", "propertyNames", "unevaluatedItems", "unevaluatedProperties"}  # fmt: skip
_LISTS = {"prefixItems", "anyOf", "oneOf", "allOf", "items"}
_MAPS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}

DIALECTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
)


def pointer_to(name: str) -> str:
    """`name` as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def check_depth(schema: Any) -> None:
    """Raises GrammarTooComplexError if `schema` is nested too deeply."""
    level: list[Any] = [schema]
    for _ in range(MAX_DEPTH + 1):
        level = [
            child
            for value in level
            if isinstance(value, dict | list)
            for child in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise GrammarTooComplexError(
        f"json_schema is nested over {MAX_DEPTH} levels deep", param="json_schema"
    )


def check_well_formed(schema: Any, at: str = "") -> None:
    """Raises ConstraintError unless `schema`, found at pointer `at`, is one by its dialect."""
    from jsonschema.exceptions import best_match

    dialect = schema.get("$schema", DIALECTS[0]) if isinstance(schema, dict) else DIALECTS[0]
    if not isinstance(dialect, str) or dialect.rstrip("#") not in DIALECTS:
        raise ConstraintError(
            f"json_schema: the dialect {dialect!r:.80} is not known; known are "
            f"{', '.join(DIALECTS)}",
            param="json_schema",
        )
    checker = _checker(dialect.rstrip("#"))
    pending = [(schema, at)]
    while pending:
        part, where = pending.pop()
        error = best_match(checker.iter_errors(_pruned(part, where, _CHECKED_LEVELS, pending)))
        if error is not None:
            path = where + "".join(f"/{pointer_to(str(step))}" for step in error.absolute_path)
            raise ConstraintError(
                f"json_schema is not a valid schema: {error.message:.300}, at {path or 'the root'}",
                param="json_schema",
            )


@cache
def _checker(dialect: str) -> Any:
    from jsonschema.validators import validator_for

    cls: Any = validator_for({"$schema": dialect})
    return cls(cls.META_SCHEMA)


def _pruned(schema: Any, at: str, levels: int, pending: list[tuple[Any, str]]) -> Any:
    """`schema` with what lies `levels` schemas deep replaced; that goes to `pending`."""
    if not isinstance(schema, dict):
        return schema
    if levels == 0:
        pending.append((schema, at))
        return True

    def below(part: Any, step: str) -> Any:
        return _pruned(part, f"{at}/{step}", levels - 1, pending)

    result: dict[str, Any] = {}
    for keyword, value in schema.items():
        if isinstance(value, dict) and keyword in _SCHEMA:
            result[keyword] = below(value, keyword)
        elif isinstance(value, list) and keyword in _LISTS:
            result[keyword] = [below(part, f"{keyword}/{i}") for i, part in enumerate(value)]
        elif isinstance(value, dict) and keyword in _MAPS:
            result[keyword] = {
                name: below(part, f"{keyword}/{pointer_to(name)}") for name, part in value.items()
            }
        else:
            result[keyword] = value
    return result


def check_recursion(root: Any, definitions: dict[str, Any], origins: dict[str, str]) -> None:
    """Raises ConstraintError where recursion never ends.

    Args:
        root: a translated schema.
        definitions: its `$defs`, each used by it or by another.
        origins: for each of them its pointer in the schema as it was given.
    """
    reached = {name: _in_place(schema) for name, schema in definitions.items()}
    settled: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise ConstraintError(
                f"json_schema: the reference to {origins[name] or 'the root'} leads back to itself "
                "without a value in between",
                param="json_schema",
            )
        if name not in settled:
            for target in reached[name]:
                visit(target, (*above, name))
            settled.add(name)

    for name in reached:
        visit(name, ())
    finite: set[str] = set()
    while new := {n for n in definitions if n not in finite and _is_finite(definitions[n], finite)}:
        finite |= new
    if not _is_finite(root, finite):
        raise ConstraintError(
            "json_schema: no finite value is valid: every one would need another of its kind "
            "inside",
            param="json_schema",
        )


def _target(schema: dict[str, Any]) -> str:
    return schema["$ref"].removeprefix("#/$defs/")


def _in_place(schema: Any) -> set[str]:
    """The definitions that a value must meet itself, not a part of it."""
    if not isinstance(schema, dict):
        return set()
    found = {_target(schema)} if "$ref" in schema else set()
    for keyword in ("anyOf", "allOf"):
        for part in schema.get(keyword, []):
            found |= _in_place(part)
    return found


def _is_finite(schema: Any, finite: set[str]) -> bool:
    """Whether a finite value may be valid, given the definitions that have one."""
    if not isinstance(schema, dict):
        return schema is not False
    if "$ref" in schema and _target(schema) not in finite:
        return False
    if not all(_is_finite(part, finite) for part in schema.get("allOf", [])):
        return False
    if "anyOf" in schema and not any(_is_finite(part, finite) for part in schema["anyOf"]):
        return False
    types = schema.get("type")
    if types is None or not ({types} if isinstance(types, str) else set(types)) <= {
        "object",
        "array",
    }:
        return True  # some plain value
    if types == "object":
        properties = schema.get("properties", {})
        return all(
            _is_finite(properties.get(name, True), finite) for name in schema.get("required", [])
        )
    if types == "array":
        prefix = schema.get("prefixItems", [])
        parts = [*prefix, schema.get("items", True)][: max(0, schema.get("minItems", 0))]
        return all(_is_finite(part, finite) for part in parts)
    return True  # some plain value may be
