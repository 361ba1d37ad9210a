"""Forty constraints of all kinds, each with a recogniser that shares no code with ours."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jsonschema

from radixray.protocol import Constraint

Recogniser = Callable[[str], bool]


class Spec(NamedTuple):
    constraint: Constraint
    is_member: Recogniser


def _regex(pattern: str) -> Spec:
    return Spec(Constraint(regex=pattern), lambda text: re.fullmatch(pattern, text) is not None)


def _schema(schema: dict[str, Any], whitespace: str | None = None) -> Spec:
    validator = jsonschema.Draft202012Validator(schema)

    def is_member(text: str) -> bool:
        return validator.is_valid(json.loads(text))

    return Spec(Constraint(json_schema=json.dumps(schema), whitespace=whitespace), is_member)


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _choices(*choices: str) -> Spec:
    return Spec(Constraint(choices=choices), choices.__contains__)


def _balanced(text: str, pairs: dict[str, str]) -> bool:
    """A reader of nested brackets by a stack; other characters are passed over."""
    stack: list[str] = []
    for char in text:
        if char in pairs:
            stack.append(pairs[char])
        elif char in pairs.values() and (not stack or stack.pop() != char):
            return False
    return not stack


def _is_sum(text: str) -> bool:
    if not re.fullmatch(r"[0-9+*() ]+", text) or "**" in text or "()" in text:
        return False
    try:  # Python's own parser; leading zeros are no numbers of Python's
        compile(re.sub(r"[0-9]+", "1", text), "sum", "eval")
    except SyntaxError:
        return False
    return "  " not in text and _balanced(text, {"(": ")"}) and not re.search(r"\)\(|\)1|1\(", text)


def _is_xml(text: str) -> bool:
    stack: list[str] = []
    for closing, name in re.findall(r"<(/?)([a-z]+)>", text):
        if closing and (not stack or stack.pop() != name):
            return False
        if not closing:
            stack.append(name)
    return not stack and re.fullmatch(r"(?:<b>|</b>|<i>|</i>|[a-z])+", text) is not None


def _is_anbn(text: str) -> bool:
    half = len(text) // 2
    return text == "a" * half + "b" * half


SUM = """root ::= term (" + " term)*
term ::= factor ("*" factor)*
factor ::= [0-9]{1,3} | "(" root ")"
"""
XML = """root ::= node
node ::= "<b>" inner "</b>" | "<i>" inner "</i>"
inner ::= [a-z]{1,4} | node node?
"""
LARK_LIST = """start: "[" (item (", " item)*)? "]"
item: /[a-z]{1,5}/ | start
"""


class Vowels:
    """Only vowels and spaces, at most twelve characters, never two spaces; then a full stop."""

    def start(self) -> tuple[int, bool, bool]:
        return 0, True, False

    def step(self, state: tuple[int, bool, bool], byte: int) -> tuple[int, bool, bool] | None:
        count, space, done = state
        if done or (count >= 12 and byte != 46):
            return None
        if byte == 46:
            return count, space, True
        if byte == 32:
            return None if space else (count + 1, True, False)
        return (count + 1, False, False) if byte in b"aeiou" else None

    def final(self, state: tuple[int, bool, bool]) -> bool:
        return state[2]

    def forced(self, state: tuple[int, bool, bool]) -> bytes:
        return b"." if state[0] >= 12 and not state[2] else b""


ADDRESS = _object(
    street={"type": "string", "maxLength": 12},
    house_number={"type": "integer", "minimum": 1, "maximum": 99},
)
TREE: dict[str, Any] = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": _object(
            value={"type": "integer", "minimum": 0, "maximum": 9},
            children={"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
        )
    },
}

SPECS = [
    # Regular expressions.
    _regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    _regex(r"(?:yes|no|maybe), (?:I|you|they) (?:do|will)\."),
    _regex(r"(?:25[0-5]|1?[0-9]{1,2})(?:\.(?:25[0-5]|1?[0-9]{1,2})){3}"),
    _regex(r"[A-Z][a-z]{1,7}(?: [A-Z][a-z]{1,7})?"),
    _regex(r"The answer, as far as we can tell today, is: [a-z]{1,8}\. Nothing else is known\."),
    _regex(r"\s?\w{1,8}!"),
    _regex(r"(?:größe|grüße|日本語|😀){1,3}"),
    _regex(r"(?i:abc|ABD)x?"),
    _regex(r"#[0-9a-f]{6}"),
    _regex(r"a{20}[bc]"),
    _regex(r"def [a-z_]{1,8}\(self\):\n    return [0-9]{1,3}\n"),
    _regex(r""),
    _regex(r"<\|im_end\|>[ab]"),
    # Choices.
    _choices("positive", "negative", "neutral"),
    _choices("Above", "Above Average", "Average", "Below average, by far"),
    _choices("a", "ab", "abc", "abcd"),
    _choices("", "nothing"),
    _choices("東京駅", "東京湾", "東"),
    _choices("only this one, however long it is and whatever the model would say"),
    # JSON Schema.
    _schema(_object(name={"type": "string", "maxLength": 8}, age={"type": "integer"}), "compact"),
    _schema(_object(first_name={"enum": ["Ada", "Alan"]}, is_alive={"type": "boolean"})),
    _schema(_object(address=ADDRESS, second_address=ADDRESS), "compact"),
    _schema(_object(state={"const": "done"}, note={"type": ["null", "boolean"]}), "flexible"),
    _schema({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 4}),
    _schema({"type": "string", "pattern": "^[a-z]+@[a-z]+$", "maxLength": 14}),
    _schema({"type": "number", "minimum": -5, "maximum": 12.5}),
    _schema({"enum": ["red", "green", 1, None, [2], {"a": "b"}]}, "compact"),
    _schema({"anyOf": [_object(kind={"const": "a"}), _object(kind={"const": "b"})]}),
    _schema(TREE, "compact"),
    _schema({"type": "string", "format": "date"}),
    # Grammars.
    Spec(Constraint(ebnf=SUM), _is_sum),
    Spec(Constraint(ebnf=XML), _is_xml),
    Spec(Constraint(ebnf='root ::= "a" root "b" | ""'), _is_anbn),
    Spec(
        Constraint(ebnf='root ::= ("key=" [a-z]{1,5} "; "){1,3}'),
        lambda text: all(re.fullmatch("key=[a-z]{1,5}", part) for part in text.split("; ")[:-1]),
    ),
    Spec(
        Constraint(lark=LARK_LIST),
        lambda text: (
            _balanced(text, {"[": "]"}) and re.fullmatch(r"[\[\]a-z, ]+", text) is not None
        ),
    ),
    Spec(Constraint(lark='start: "x=" /[0-9]+/'), lambda t: bool(re.fullmatch("x=[0-9]+", t))),
    # Python code.
    Spec(
        Constraint(predicate=Vowels()),  # type: ignore[arg-type]
        lambda text: len(text) <= 13 and bool(re.fullmatch(r"(?:[aeiou]+ ?)*\.", text)),
    ),
    Spec(
        Constraint(predicate=lambda text: len(text) <= 6 and text == text.lower()),  # type: ignore[arg-type]
        lambda text: len(text) <= 6 and text == text.lower(),
    ),
    # After a marker.
    Spec(
        Constraint(regex="[0-9]{3} apples", start_after=" "),
        lambda text: bool(re.fullmatch("[0-9]{3} apples", text.partition(" ")[2])),
    ),
    Spec(
        Constraint(json_schema=json.dumps(_object(a={"type": "null"})), start_after="e"),
        lambda text: json.loads(text.partition("e")[2]) == {"a": None},
    ),
]
"""Forty."""
