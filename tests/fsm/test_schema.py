"""JSON Schema: refused by name and place, or enforced as `jsonschema` understands it."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any, Literal, TypedDict

import jsonschema
import numpy as np
import pytest
from fsm_vocabularies import byte_vocabulary
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from radixray.errors import ConstraintError, GrammarTooComplexError
from radixray.fsm import accepts, compile_constraint, prefix_ok
from radixray.protocol import Constraint


def schema(value: Any, whitespace: str | None = None) -> Constraint:
    return Constraint(json_schema=value, whitespace=whitespace)


REFUSED = [
    ({"not": {}}, "'not'", "/not"),
    ({"items": {"properties": {"a/b": {"contains": {}}}}}, "'contains'",
     "/items/properties/a~1b/contains"),
    ({"type": "array", "uniqueItems": True}, "'uniqueItems'", "/uniqueItems"),
    ({"if": {}, "then": {}}, "'if'", "/if"),
    ({"dependentRequired": {"a": ["b"]}}, "'dependentRequired'", "/dependentRequired"),
    ({"dependentSchemas": {}}, "'dependentSchemas'", "/dependentSchemas"),
    ({"propertyNames": {}}, "'propertyNames'", "/propertyNames"),
    ({"unevaluatedProperties": False}, "'unevaluatedProperties'", "/unevaluatedProperties"),
    ({"anyOf": [{}, {"minContains": 1}]}, "'minContains'", "/anyOf/1/minContains"),
    ({"$dynamicRef": "#a"}, "'$dynamicRef'", "/$dynamicRef"),
    ({"x-guidance": {"lenient": True}}, "'x-guidance'", "/x-guidance"),
    ({"misspelt": 1}, "'misspelt'", "/misspelt"),
    ({"properties": {"a": {"$id": "b"}}}, "'$id'", "/properties/a/$id"),
    ({"format": "iri"}, "'iri'", "/format"),
    ({"pattern": "a(?=b)"}, "look-around", "/pattern"),
    ({"pattern": r"(a)\1"}, "back-reference", "/pattern"),
    ({"pattern": r"a\b"}, r"\b", "/pattern"),
    ({"pattern": "a++"}, "possessive", "/pattern"),
    ({"pattern": "[a&&b]"}, "ambiguous", "/pattern"),
    ({"pattern": "[[:alpha:]]"}, "ambiguous", "/pattern"),
    ({"pattern": r"\Aa"}, "ECMAScript", "/pattern"),
    ({"pattern": r"\p{L}"}, "not a regular expression", "/pattern"),
    ({"pattern": "a{,2}"}, "{,n}", "/pattern"),
    ({"patternProperties": {"(": {}}}, "not a regular expression", "/patternProperties"),
    ({"type": "strnig"}, "not valid", "/type"),
    ({"properties": []}, "object", "/properties"),
    ({"required": "a"}, "array", "/required"),
    ({"minLength": -1}, "minimum", "/minLength"),
    ({"$schema": "http://json-schema.org/draft-03/schema#"}, "dialect", ""),
    ({"enum": []}, "empty", "/enum"),
    (False, "false", ""),
    ({"$ref": "#/$defs/a"}, "nowhere", "/$ref"),
    ({"$ref": "other.json"}, "remote", "/$ref"),
    ({"$ref": "#name"}, "anchor", "/$ref"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": 3}}}, "not valid", "/$defs/a/type"),
    ({"$ref": "#"}, "itself", ""),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {}]}}}, "itself",
     "/$defs/a"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "finite", ""),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "finite", ""),
    ({"$ref": "#/$defs/a", "minLength": 1, "$defs": {"a": {}},
      "$schema": "http://json-schema.org/draft-07/schema#"}, "beside", "/$ref"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "greater", ""),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "", ""),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf", ""),
    ({"items": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}}, "oneOf", "/items/oneOf"),
    ({"minProperties": 2}, "minProperties", "/minProperties"),
    ({"maxProperties": 2, "properties": {"a": {}}}, "maxProperties", "/maxProperties"),
    ('{"type": ', "not JSON", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "reason", "pointer"), REFUSED, ids=[str(r[0])[:60] for r in REFUSED]
)
def test_refusals_name_keyword_and_place(value: Any, reason: str, pointer: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        accepts(schema(value), "1")
    message = str(caught.value)
    assert reason in message and pointer in message, message
    assert caught.value.param == "json_schema"


def test_what_says_nothing_is_left_out() -> None:
    value = {
        "$id": "urn:x", "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "T",
        "description": "d", "default": 3, "examples": [1], "deprecated": False, "$comment": "c",
        "type": "array", "items": {"type": "integer"}, "uniqueItems": False,
        "$defs": {"unused": {"not": {}}},
    }  # fmt: skip
    assert accepts(schema(value), "[1, 2]") and not accepts(schema(value), '["a"]')


def test_references() -> None:
    value = {
        "type": "object",
        "properties": {
            "a/b": {"type": "integer"}, "c d": {"type": "null"}, "~": {"enum": ["t"]},
            "w": {"$ref": "#/properties/a~1b"}, "x": {"$ref": "#/properties/c%20d"},
            "y": {"$ref": "#/properties/~0"},
            "z": {"$ref": "#/$defs/l/prefixItems/0", "minLength": 2},
        },
        "additionalProperties": False, "$defs": {"l": {"prefixItems": [{"type": "string"}]}},
    }  # fmt: skip
    for text in ('{"w":1}', '{"x":null}', '{"y":"t"}', '{"z":"ab"}'):
        assert accepts(schema(value), text), text
    for text in ('{"w":null}', '{"x":1}', '{"y":"u"}', '{"z":"a"}'):
        assert not accepts(schema(value), text), text


def test_recursion_and_deep_nesting() -> None:
    tree = {"type": "array", "items": {"$ref": "#"}}
    assert accepts(schema(tree), "[" * 200 + "]" * 200)
    assert not accepts(schema(tree), "[" * 200 + "]" * 199)
    deep: dict[str, Any] = {"type": "integer"}
    text = "1"
    for level in range(70):
        deep = {"type": "object", "properties": {f"l{level}": deep}, "required": [f"l{level}"],
                "additionalProperties": False}  # fmt: skip
        text = f'{{"l{level}": {text}}}'
    assert accepts(schema(deep), text)
    assert not accepts(schema(deep), text.replace("1}", '"1"}', 1).replace(": 1", ': "1"'))
    with pytest.raises(GrammarTooComplexError, match="nested over 256 levels"):
        accepts(schema("[" * 300 + "]" * 300), "1")


def test_one_of_where_branches_are_apart() -> None:
    tagged = [
        {"type": "object", "properties": {"k": {"const": kind}, "v": {"type": of}},
         "required": ["k", "v"]}
        for kind, of in (("a", "integer"), ("b", "string"))
    ]  # fmt: skip
    value = {"oneOf": [*tagged, {"type": ["null", "integer"]}, {"enum": [True, 0.5, []]}]}
    # 0.5 is no integer, but only whole types are told apart.
    with pytest.raises(ConstraintError, match="oneOf"):
        accepts(schema(value), "1")
    value["oneOf"][3] = {"enum": [True, "s", []]}
    for text in ('{"k":"a","v":1}', '{"k":"b","v":"x"}', "null", "3", "true", "[]"):
        assert accepts(schema(value), text), text
    for text in ('{"k":"a","v":"x"}', '{"k":"c","v":1}', "false", '"t"'):
        assert not accepts(schema(value), text), text
    for values in ([[1], [1.0]], [[{"a": 1}], [{"a": 1.0}]]):
        with pytest.raises(ConstraintError, match="oneOf"):
            accepts(schema({"oneOf": [{"enum": v} for v in values]}), "1")
    assert accepts(schema({"oneOf": [{"enum": [1]}, {"enum": [True]}]}), "true")


def test_whitespace() -> None:
    value = {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"],
             "additionalProperties": False}  # fmt: skip
    compact, spaced = '{"a":[1,2]}', '{"a": [1, 2]}'
    indented, wide = json.dumps({"a": [1, 2]}, indent=2), '{"a":  [1]}'
    for whitespace, allowed in (
        (None, {compact, spaced}),
        ("spaced", {compact, spaced}),
        ("compact", {compact}),
        ("flexible", {compact, spaced, indented, '{ "a" : [1]}'}),
    ):
        for text in (compact, spaced, indented, wide, '{ "a" : [1]}', '{"a":[1]} '):
            assert accepts(schema(value, whitespace), text) == (text in allowed), text
    with pytest.raises(ConstraintError, match="spaced, compact, flexible"):
        accepts(schema(value, "none"), "")


def test_a_declared_key_cannot_be_spelt_around() -> None:
    value = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert accepts(schema(value), '{"b": "x"}')
    assert not accepts(schema(value), '{"\\u0061": "x"}')
    assert not accepts(schema(value), '{"b": 1, "a": "x"}')
    assert accepts(schema({**value, "additionalProperties": False}), '{"a":1}')
    assert accepts(schema({"type": "string"}), '"\\u0061\\ud83d\\ude00"')
    assert not accepts(schema({"type": "string"}), '"\\ud83d"')


class Address(BaseModel):
    street: str
    number: int = Field(ge=1, le=999)


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]


class Person(BaseModel):
    name: str
    home: Address
    work: Address | None = None
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


class Node(BaseModel):
    value: int
    next: Node | None = None


class Point(TypedDict):
    x: Annotated[int, Field(ge=0)]
    y: float


@dataclasses.dataclass
class Size:
    width: int


def test_python_types() -> None:
    person = schema(Person)
    good = '{"name": "A", "home": {"street": "s", "number": 3}, "pet": {"kind": "cat", "lives": 9}}'
    assert accepts(person, good)
    assert Person.model_validate_json(good).home.number == 3
    assert not accepts(person, good.replace("3", "1000"))
    assert not accepts(person, good.replace("cat", "cow"))
    assert accepts(schema(Node), '{"value":1,"next":{"value":2,"next":null}}')
    assert not accepts(schema(Point), '{"x": -1, "y": 1.5}')
    assert accepts(schema(Point), '{"x": 1, "y": 1.5}')
    assert accepts(schema(Size), '{"width": 3}') and not accepts(schema(Size), '{"width": "3"}')
    assert accepts(schema(TypeAdapter(list[int])), "[1]")
    assert accepts(schema(list[Point]), '[{"x": 1, "y": 2}]')
    for wrong in (3, Size(1), object()):
        with pytest.raises(ConstraintError, match="json_schema"):
            schema(wrong)


def test_ends_are_ours() -> None:
    vocabulary = byte_vocabulary()
    matcher = compile_constraint(schema({"type": "integer"}), vocabulary).matcher()
    assert not matcher.mask()[list(vocabulary.eos_token_ids)].any()
    matcher.advance(ord("1"))
    assert matcher.mask()[list(vocabulary.eos_token_ids)].all() and not matcher.is_finished()
    matcher.advance(258)
    assert matcher.is_finished() and not matcher.mask().any() and matcher.viable(b"1") == 0
    matcher.rollback(1)
    assert matcher.mask()[ord("2")]
    with pytest.raises(ConstraintError, match="not allowed"):
        matcher.advance(ord("x"))
    assert matcher.mask()[ord("2")]  # as it was


def test_rollback_after_the_end() -> None:
    vocabulary = byte_vocabulary()
    matcher = compile_constraint(schema({"const": "ab"}), vocabulary).matcher()
    assert matcher.forced() == b'"ab"'
    masks = []
    for byte in b'"ab"':
        masks.append(matcher.mask())
        matcher.advance(byte)
    assert matcher.is_finished() and np.flatnonzero(matcher.mask()).tolist() == [256, 258]
    matcher.advance(256)
    for n in (1, 1, 2, 1):
        matcher.rollback(n)
    assert matcher.forced() == b'"ab"'
    for byte, mask in zip(b'"ab"', masks, strict=True):
        assert (matcher.mask() == mask).all()
        matcher.advance(byte)
    assert [step.allowed for step in matcher.trace()] == [1, 1, 1, 1]


_texts = st.text('abé"\\\n/1', max_size=4)
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-30, 30) | _texts
    | st.sampled_from([0.5, -1.25, 2.2, 2.25, -2.2]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=5,
)  # fmt: skip
_bound = st.integers(-20, 20) | st.sampled_from([0.5, 2.25, -2.25, -1.5])
_leaves = st.one_of(
    st.builds(lambda v: {"enum": v}, st.lists(_values, min_size=1, max_size=3)),
    st.builds(lambda v: {"const": v}, _values),
    st.sampled_from([{"type": t} for t in ("string", "integer", "number", "boolean", "null")]),
    st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={"minLength": st.integers(0, 2), "maxLength": st.integers(2, 4),
                  "pattern": st.sampled_from(["a", "^a", "b$", "^[^1]*$", "a|b", r"\d", "^$"])},
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number", ["number", "null"]])},
        optional={"minimum": _bound, "maximum": _bound, "multipleOf": st.sampled_from([1, 2, 0.5])},
    ),
    st.just({}),
)  # fmt: skip


def _composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("array")},
            optional={"items": inner, "prefixItems": st.lists(inner, min_size=1, max_size=2),
                      "minItems": st.integers(0, 2), "maxItems": st.integers(1, 3)},
        ),
        st.fixed_dictionaries(
            {"type": st.just("object")},
            optional={"properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
                      "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
                      "additionalProperties": inner | st.booleans()},
        ),
        st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda parts: {"allOf": parts}, st.lists(inner, min_size=1, max_size=2)),
    )  # fmt: skip


schemas = st.recursive(_leaves, _composed, max_leaves=4)


def in_order(value: Any, names: list[str]) -> Any:
    """`value` with its keys in the order in which they are generated: declared ones first."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda k: names.index(k) if k in names else len(names))
        return {key: in_order(value[key], names) for key in keys}
    return [in_order(item, names) for item in value] if isinstance(value, list) else value


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(value=schemas, instances=st.lists(_values, min_size=3, max_size=10), data=st.data())
def test_nothing_invalid_is_accepted(value: Any, instances: list[Any], data: st.DataObject) -> None:
    constraint = schema(value)
    try:
        accepts(constraint, "")
    except ConstraintError:
        assume(False)
    checker = jsonschema.Draft202012Validator(value)
    for instance in instances:
        text = json.dumps(instance, ensure_ascii=data.draw(st.booleans()))
        if accepts(constraint, text):
            assert checker.is_valid(instance), text
    # And what it leads to by itself is valid.
    matcher = compile_constraint(constraint, byte_vocabulary()).matcher()
    output = bytearray()
    while len(output) < 60 and not matcher.is_finished():
        allowed = [int(i) for i in np.flatnonzero(matcher.mask())]
        token_id = data.draw(st.sampled_from(allowed))
        matcher.advance(token_id)
        if token_id < 256:
            output.append(token_id)
    if matcher.is_accepting():
        assert checker.is_valid(json.loads(output)), output


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(value=_leaves | st.builds(lambda s: {"type": "array", "items": s}, _leaves),
       instances=st.lists(_values, min_size=3, max_size=10))  # fmt: skip
def test_everything_valid_is_accepted(value: Any, instances: list[Any]) -> None:
    constraint = schema(value)
    try:
        accepts(constraint, "")
    except ConstraintError:
        assume(False)
    checker = jsonschema.Draft202012Validator(value)
    for instance in instances:
        text = json.dumps(in_order(instance, []), ensure_ascii=False)
        if checker.is_valid(instance):
            assert accepts(constraint, text), text
            assert prefix_ok(constraint, text[:-1])
