"""From a JSON Schema to the plain one that llguidance enforces, or a refusal that says where.

Nothing is ever dropped: a keyword is enforced, says nothing about validity (`title`), or is refused
by name with its JSON pointer. What llguidance takes but gets wrong or loose is rewritten here, or
refused: see `_Translator`. References come out as names of `$defs`, so that no other resolver's
reading of a pointer matters.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

from radixray.errors import ConstraintError
from radixray.fsm.schema_numbers import split_bounds
from radixray.fsm.schema_one_of import are_disjoint
from radixray.fsm.schema_patterns import check_pattern
from radixray.fsm.schema_sanity import check_depth, check_recursion, check_well_formed, pointer_to
from radixray.json_schemas import json_schema_of

__all__ = ["MAX_ENUM_VALUES", "json_schema_of", "schema_grammar"]

MAX_ENUM_VALUES = 10_000
"""Most values of one `enum`."""

LIFTED_LEVEL = 24
"""Schemas this deep in others are lifted out of them: llguidance reads 128 levels of JSON."""

WHITESPACE: dict[str, dict[str, Any]] = {
    "spaced": {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"},
    "compact": {"whitespace_flexible": False},
    "flexible": {"whitespace_pattern": r"(?: |\n {0,40}|\n\t{0,20})?"},
}
"""See `constraint.Constraint`. Bounded in all: where it is not, a model may never stop."""

ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
     "$comment", "$schema", "$defs", "definitions", "contentMediaType", "contentEncoding",
     "contentSchema", "discriminator"}
)  # fmt: skip
"""These say nothing about which values are valid. (`discriminator` is OpenAPI's, from pydantic.)"""

ASSERTIONS = frozenset(
    {"type", "enum", "const", "minLength", "maxLength", "pattern", "format", "minimum", "maximum",
     "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "minProperties",
     "maxProperties", "required"}
)  # fmt: skip
SUBSCHEMA = frozenset(["items", "additionalProperties"])
SUBSCHEMA_LISTS = frozenset(["prefixItems", "anyOf", "oneOf", "allOf"])
SUBSCHEMA_MAPS = frozenset(["properties", "patternProperties"])

FORMATS = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
)  # fmt: skip

Schema = dict[str, Any]


def schema_grammar(text: str, whitespace: str) -> str:
    """The llguidance grammar of a JSON Schema.

    Args:
        text: JSON.
        whitespace: a key of WHITESPACE.

    Raises:
        ConstraintError: not JSON, not a schema, a keyword that cannot be enforced, a reference that
            is remote, dangling or leads back to itself without a value, or a schema that no
            finite value meets; the message has the JSON pointer.
        GrammarTooComplexError: nested too deeply.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refusal(f"json_schema is not JSON: {error}") from error
    check_depth(schema)
    check_well_formed(schema)
    translator = _Translator(schema)
    plain = translator.translate(schema, "")
    if plain is False:
        raise _refusal("json_schema is false: no value is valid")
    definitions = translator.definitions()
    check_recursion(plain, definitions, translator.origins())
    options: Schema = {
        # An object's other keys could else spell a declared key with escapes, and pass its schema
        # by: llguidance compares them as written.
        "json_allowed_escapes": 'bfnrt\\"' if translator.open_objects else 'bfnrt\\"u',
        "json_allow_general_unicode_escapes": not translator.open_objects,
    }
    options |= WHITESPACE[whitespace]
    whole = {**({} if plain is True else plain), "$defs": definitions, "x-guidance": options}
    try:
        return "start: %json " + json.dumps(whole, allow_nan=False)
    except ValueError as error:
        raise _refusal(f"json_schema holds a number out of range: {error}") from error


class _Translator:
    """Rewrites schemas; remembers which references it met.

    Attributes:
        open_objects: whether some object names keys and is open to others.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._dialect = root.get("$schema", "") if isinstance(root, dict) else ""
        self._names: dict[str, str] = {}  # pointer of a target -> its name
        self._one_of: list[tuple[Schema, str]] = []  # schemas with oneOf, and where they are
        self.open_objects = False

    def definitions(self) -> Schema:
        """The targets of all references, and of those in them, by name."""
        done: Schema = {}
        while len(done) < len(self._names):
            for target, name in list(self._names.items()):
                if name not in done:
                    schema = _resolve(self._root, target)
                    check_well_formed(schema, target)
                    done[name] = self.translate(schema, target)
        for plain, at in self._one_of:
            branches = plain.pop("oneOf")
            if not are_disjoint(branches, done):
                raise _refusal(
                    "oneOf can be enforced only where no value is valid in two branches, which is "
                    f"not plain here: use anyOf, at {at}/oneOf"
                )
            plain["allOf"] = [*plain.get("allOf", []), {"anyOf": branches}]
        return done

    def origins(self) -> dict[str, str]:
        """For each name of `definitions` the pointer it stands for."""
        return {name: target for target, name in self._names.items()}

    def translate(self, schema: Any, at: str, level: int = 0) -> Any:
        """The plain form of the schema at pointer `at`; that of a boolean is itself."""
        if not isinstance(schema, dict):
            return schema
        if level == LIFTED_LEVEL:
            return {"$ref": self._name(at)}
        plain: Schema = {}
        value: Any  # of the type the keyword demands: the schema is well formed
        for keyword, value in schema.items():
            here = f"{at}/{pointer_to(keyword)}"
            if keyword in ASSERTIONS:
                plain[keyword] = value
            elif keyword == "$ref":
                plain[keyword] = self._reference(schema, value, here)
            elif keyword in SUBSCHEMA_LISTS:
                plain[keyword] = [
                    self.translate(part, f"{here}/{index}", level + 1)
                    for index, part in enumerate(value)
                ]
            elif keyword in SUBSCHEMA_MAPS:
                plain[keyword] = {
                    name: self.translate(part, f"{here}/{pointer_to(name)}", level + 1)
                    for name, part in value.items()
                }
            elif keyword in SUBSCHEMA and not isinstance(value, list):
                plain[keyword] = self.translate(value, here, level + 1)
            elif not _says_nothing(keyword, value, at):
                raise _refusal(f"keyword {keyword!r} cannot be enforced, at {here}")
        if "oneOf" in plain:
            self._one_of.append((plain, at))
        _check_values(plain, at)
        self._check_object(plain, at)
        return split_bounds(plain)

    def _reference(self, schema: Schema, value: str, at: str) -> str:
        if not value.startswith("#"):
            raise _refusal(f"$ref {value!r:.200} is remote: only '#/...' is followed, at {at}")
        target = unquote(value[1:])
        if target and not target.startswith("/"):
            raise _refusal(
                f"$ref {value!r:.200} names an anchor: only '#/...' is followed, at {at}"
            )
        if "draft-0" in self._dialect and schema.keys() - ANNOTATIONS - {"$ref"}:
            raise _refusal(
                f"$ref has keywords beside it, which {self._dialect} ignores: put both in allOf, "
                f"at {at}"
            )
        if _resolve(self._root, target) is _MISSING:
            raise _refusal(f"$ref {value!r:.200} leads nowhere, at {at}")
        return self._name(target)

    def _name(self, target: str) -> str:
        """The reference to what is at a pointer."""
        return "#/$defs/" + self._names.setdefault(target, f"d{len(self._names)}")

    def _check_object(self, plain: Schema, at: str) -> None:
        declared = plain.keys() & {"properties", "patternProperties", "required"}
        if declared and plain.get("additionalProperties", True) is not False:
            self.open_objects = True
        names: Schema = plain.get("properties", {})
        required: list[str] = plain.get("required", [])
        if "minProperties" in plain and plain["minProperties"] <= len(set(required)):
            del plain["minProperties"]
        # An object's other keys may repeat, and count only once.
        if plain.get("minProperties", 0) > 1:
            raise _refusal(
                f"minProperties over 1, and over what required names, cannot be enforced, at "
                f"{at}/minProperties"
            )
        for keyword in plain.keys() & {"minProperties", "maxProperties"}:
            if not names.keys() <= set(required):
                raise _refusal(
                    f"{keyword} cannot be enforced where properties are optional, at {at}/{keyword}"
                )


def _check_values(plain: Schema, at: str) -> None:
    """Raises ConstraintError for a value of a keyword that cannot be enforced."""
    if "pattern" in plain and (reason := check_pattern(plain["pattern"])):
        raise _refusal(f"pattern {reason}, at {at}/pattern")
    for pattern in plain.get("patternProperties", {}):
        if reason := check_pattern(pattern):
            raise _refusal(f"{pattern!r} {reason}, at {at}/patternProperties")
    if "format" in plain and plain["format"] not in FORMATS:
        raise _refusal(
            f"format {plain['format']!r:.80} cannot be enforced (known are "
            f"{', '.join(sorted(FORMATS))}), at {at}/format"
        )
    values = plain.get("enum", [None])
    if not values:
        raise _refusal(f"enum is empty: no value is valid, at {at}/enum")
    if len(values) > MAX_ENUM_VALUES:
        raise _refusal(
            f"enum has {len(values)} values; at most {MAX_ENUM_VALUES} are allowed, at {at}/enum"
        )


def _says_nothing(keyword: str, value: Any, at: str) -> bool:
    """Whether a keyword may be left out without changing which values are valid."""
    if keyword == "uniqueItems":
        return value is False
    if keyword == "$id":
        return not at  # further in it would change what references mean
    return keyword in ANNOTATIONS


_MISSING = object()


def _resolve(root: Any, pointer: str) -> Any:
    """What a JSON pointer leads to, or _MISSING."""
    value = root
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif (
            isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value)
        ):
            value = value[int(step)]
        else:
            return _MISSING
    return value


def _refusal(message: str) -> ConstraintError:
    return ConstraintError(message, param="json_schema")
