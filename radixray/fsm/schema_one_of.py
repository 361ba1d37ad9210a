"""`oneOf` where no value can be valid in two of its branches: it means `anyOf` then.

That two of them do not hold at once cannot be seen while a value is generated, so anything else is
refused. Branches are told apart by type, by fixed values, or by a property that both require and
that is told apart in turn, such as the tag of a union.
"""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

Schema = dict[str, Any]

_EVERY_TYPE = frozenset({"null", "boolean", "number", "string", "array", "object"})
_MOST_LEVELS = 8


def are_disjoint(branches: list[Any], definitions: Schema) -> bool:
    """Whether each two of some translated schemas provably have no value in common."""
    return all(
        _apart(first, second, definitions, _MOST_LEVELS)
        for first, second in combinations(branches, 2)
    )


def _apart(first: Any, second: Any, definitions: Schema, levels: int) -> bool:
    if first is False or second is False:
        return True
    if first is True or second is True or not levels:
        return False
    for one, other in ((first, second), (second, first)):
        if "$ref" in one:
            target = definitions[one["$ref"].removeprefix("#/$defs/")]
            if _apart(target, other, definitions, levels - 1):
                return True
        if any(_apart(part, other, definitions, levels - 1) for part in one.get("allOf", [])):
            return True
        if "anyOf" in one and all(
            _apart(part, other, definitions, levels - 1) for part in one["anyOf"]
        ):
            return True
    values, others = _values(first), _values(second)
    if values is not None and others is not None:
        return not values & others
    types, other_types = _types(first), _types(second)
    if not types & other_types:
        return True
    if types & other_types != {"object"}:
        return False
    common = {*first.get("required", ())} & {*second.get("required", ())}
    return any(
        _apart(
            first.get("properties", {}).get(name, True),
            second.get("properties", {}).get(name, True),
            definitions,
            levels - 1,
        )
        for name in common
    )


def _values(schema: Schema) -> set[str] | None:
    """The values an `enum` or `const` leaves, as text; None where there is neither."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return None if values is None else {_text(value) for value in values}


def _text(value: Any) -> str:
    """Equal for values that JSON Schema takes for equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, dict):
        return json.dumps({key: _text(value[key]) for key in sorted(value)})
    if isinstance(value, list):
        return json.dumps([_text(item) for item in value])
    is_whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if is_whole else value)


def _types(schema: Schema) -> frozenset[str]:
    """The types a value may have."""
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return frozenset(_type_of(value) for value in values)
    types = schema.get("type", _EVERY_TYPE)
    names = {types} if isinstance(types, str) else types
    return frozenset("number" if name == "integer" else name for name in names)


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    for types, name in ((bool, "boolean"), (int | float, "number"), (str, "string"),
                        (list, "array")):  # fmt: skip
        if isinstance(value, types):
            return name
    return "object"
