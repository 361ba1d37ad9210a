"""The specification itself: what it takes, what it refuses, how it travels; and explanations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fsm_vocabularies import byte_vocabulary
from typer.testing import CliRunner

from radixray.cli import app
from radixray.constraint import MAX_GRAMMAR_LENGTH, Constraint
from radixray.errors import ConstraintError, GrammarTooComplexError
from radixray.fsm import accepts
from radixray.fsm.choices import choices_automaton
from radixray.fsm.compiler import compile_constraint
from radixray.fsm.explain import explain, table_of, why_not
from radixray.fsm.strings import byte_matcher
from radixray.fsm.vocabulary import TokenVocabulary
from radixray.protocol import ErrorInfo


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({}, "constraint", "empty"),
        ({"regex": "a", "choices": ("b",)}, "choices", "regex and choices"),
        ({"regex": 3}, "regex", "string"),
        ({"regex": "a" * 20_000}, "regex", "16384"),
        ({"ebnf": "a" * (MAX_GRAMMAR_LENGTH + 1)}, "ebnf", "262144"),
        ({"lark": "\ud800"}, "lark", "surrogate"),
        ({"choices": "ab"}, "choices", "list"),
        ({"choices": (1,)}, "choices", "string"),
        ({"choices": ("a",) * 10_001}, "choices", "10000"),
        ({"predicate": b"a" * 2_000_000}, "predicate", "1048576"),
        ({"regex": "a", "whitespace": "compact"}, "whitespace", "json_schema"),
        ({"json_schema": {}, "whitespace": "some"}, "whitespace", "spaced"),
        ({"regex": "a", "start_after": ""}, "start_after", "empty"),
    ],
)
def test_bad_specifications(fields: dict[str, Any], param: str, reason: str) -> None:
    with pytest.raises(ConstraintError, match=reason) as caught:
        Constraint(**fields).validate()
    assert caught.value.param == param


def test_a_specification_travels_and_is_a_key() -> None:
    for constraint in (
        Constraint(regex="a", start_after="b"),
        Constraint(choices=["a", "b"]),  # pyright: ignore[reportArgumentType]
        Constraint(json_schema={"type": "string"}, whitespace="compact"),
        Constraint(predicate=lambda text: True),
    ):
        data = msgspec.msgpack.encode(constraint)
        again = msgspec.msgpack.decode(data, type=Constraint)
        assert again == constraint and hash(again) == hash(constraint)
    error = ErrorInfo.of(GrammarTooComplexError("m", param="regex")).to_error()
    assert isinstance(error, GrammarTooComplexError) and error.param == "regex"


def test_choices() -> None:
    words = ["good", "good enough", "", "bad", "nice enough", "é", "漢é"]
    automaton = choices_automaton(words * 2)
    for word in words:
        assert automaton.accepts(word.encode())
        for other in (word + "x", word[:-1], word[1:]):
            assert automaton.accepts(other.encode()) == (other in words)
    assert len(choices_automaton([f"number {n} of all" for n in range(10_000)])) < 40
    with pytest.raises(ConstraintError, match="empty"):
        choices_automaton([])
    with pytest.raises(GrammarTooComplexError, match="1000000"):
        choices_automaton(["a" * 1_000_001])
    assert not accepts(Constraint(choices=("a",)), "b")
    vocabulary = TokenVocabulary([b"a", b""], {1})
    with pytest.raises(ConstraintError, match="no tokens that spell") as caught:
        compile_constraint(Constraint(choices=("b",)), vocabulary)
    assert caught.value.param == "choices"


def test_explain() -> None:
    constraint = Constraint(regex="(?:yes|no) é[0-9]{2}")
    refused = explain(constraint, "yes é1x")
    assert (refused.verdict, refused.could_be) == ("refused", "0-9")
    assert "x cannot come at byte 7" in refused.why
    assert [step.text for step in refused.steps] == ["y", "e", "s", "' '", "é", "1"]
    assert refused.steps[0].could_be == "n y" and refused.steps[1].forced == "'es é'"[1:-1]
    assert explain(constraint, "yes é").verdict == "prefix"
    member = explain(constraint, "no é12")
    assert member.verdict == "member" and member.why == "matches, and nothing can follow"
    half = explain(Constraint(regex="é"), "è")
    assert half.verdict == "refused" and half.could_be == "\\xa9"
    assert explain(Constraint(regex=""), "\ud800").verdict == "refused"


def test_why_not() -> None:
    vocabulary = TokenVocabulary([b"a", b"ab", b"xyz", b"", "aé".encode()], {3})
    matcher = compile_constraint(Constraint(regex="aba+|aé"), vocabulary).matcher()
    assert why_not(matcher, 1, vocabulary) == "token 1 is allowed"
    assert "after its a" not in why_not(matcher, 2, vocabulary)
    assert "here can follow a, not x" in why_not(matcher, 2, vocabulary)
    assert "does not match yet: next can come a" in why_not(matcher, 3, vocabulary)
    assert "no text" in why_not(matcher, 99, vocabulary)
    matcher.advance(4)
    assert "complete" in why_not(matcher, 0, vocabulary)
    matcher = compile_constraint(Constraint(regex="ab"), vocabulary).matcher()
    assert "no tokens to go on" in why_not(matcher, 0, vocabulary)
    assert "after its a can follow b, not \\xc3" in why_not(matcher, 4, vocabulary)


def test_trace_as_table_and_json() -> None:
    matcher = byte_matcher(Constraint(regex="ab[0-9]"))
    matcher.advance(97, forced=True)
    matcher.advance(98, forced=True)
    matcher.advance(48)
    trace = matcher.trace()
    assert [step.forced for step in trace] == [True, True, False]
    assert trace[0].why == "forced: only 'ab' can follow"
    table = table_of(trace, byte_vocabulary()).splitlines()
    assert len(table) == 4 and table[3].split()[3:5] == ["0", "10"]
    assert json.loads(msgspec.json.encode(trace))[2]["first_allowed"] == list(range(48, 58))


def test_command_line(tmp_path: Path) -> None:
    run = CliRunner().invoke
    good = run(app, ["fsm", "explain", "--regex", "a[bc]", "--text", "ab"])
    assert good.exit_code == 0 and "member" in good.output
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "integer"}')
    bad = run(app, ["fsm", "explain", "--schema", str(schema), "--text", "1x", "--json"])
    assert bad.exit_code == 1
    assert json.loads(bad.output)["verdict"] == "refused"
    grammar = tmp_path / "grammar"
    grammar.write_text('root ::= "a" root | "b"')
    assert run(app, ["fsm", "explain", "--ebnf", str(grammar), "--text", "aab"]).exit_code == 0
    choices = ["fsm", "explain", "--choices", "yes", "--choices", "no", "--text", "n"]
    assert "prefix" in run(app, choices).output
    missing = run(app, ["fsm", "explain", "--schema", str(tmp_path / "none")])
    assert "cannot be read" in str(missing.exception)


def test_llguidance_is_loaded_only_where_it_is_used() -> None:
    code = (
        "import sys; from radixray.fsm import Constraint, accepts;"
        "accepts(Constraint(regex='a'), 'a'); accepts(Constraint(choices=('a',)), 'a');"
        "assert not {'llguidance', 'jsonschema', 'pydantic', 'torch', 'ray'} & set(sys.modules);"
        "accepts(Constraint(json_schema={}), '1'); assert 'llguidance' in sys.modules;"
        "assert not {'torch', 'ray', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
