"""Ten constraints: what our engine, llguidance and xgrammar are each given, and members to follow.

All three must take the same language, so a schema is without whitespace and the grammars are
written in what GBNF dialects have in common.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workloads import ORDER_SCHEMA, VOCABULARY

from radixray.constraint import Constraint
from radixray.fsm.compiler import prepare

Form = dict[str, str]
"""For a peer: ``kind`` (regex, json_schema, lark, ebnf) and ``text``."""


@dataclass(frozen=True)
class Spec:
    """One constraint.

    Attributes:
        asked: the end of the prompt.
        member: makes a member of the language, by chance.
        max_tokens: of a generation; enough for all but recursive ones.
        must_double: whether jumping must make decoding twice as fast.
    """

    name: str
    constraint: Constraint
    asked: str
    member: Callable[[random.Random], str]
    max_tokens: int
    must_double: bool = False

    def form(self, peer: str) -> Form:
        """What a peer is given."""
        constraint = self.constraint
        if constraint.choices is not None:
            # Both lists are of plain words: a JSON string is a literal in either dialect.
            literals = " | ".join(map(json.dumps, constraint.choices))
            if peer == "xgrammar":
                return {"kind": "ebnf", "text": f"root ::= {literals}"}
            return {"kind": "lark", "text": f"start: {literals}"}
        if constraint.ebnf is not None and peer == "llguidance":
            lark = prepare(constraint)
            assert isinstance(lark, str), "it is regular"
            return {"kind": "lark", "text": lark}
        return {"kind": constraint.kind, "text": getattr(constraint, constraint.kind)}


def _word(rng: random.Random) -> str:
    return rng.choice([word for word in VOCABULARY if 3 <= len(word) <= 8])


def _order(rng: random.Random) -> str:
    properties = ORDER_SCHEMA["properties"]
    order = {
        "recipient_full_name": f"{_word(rng).title()} {_word(rng).title()}",
        "purchase_order_number": f"PO-{rng.randrange(100_000, 1_000_000)}",
        "fulfilment_state": rng.choice(properties["fulfilment_state"]["enum"]),
        "quantity_of_articles": rng.randint(1, 99),
        "is_gift_wrapped": rng.random() < 0.5,
        "preferred_delivery": rng.choice(properties["preferred_delivery"]["enum"]),
    }
    return json.dumps(order, separators=(",", ":"))


def _nested(levels: int) -> dict[str, Any]:
    inside: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 999}
    for level in range(levels, 0, -1):
        inside = {
            "type": "object",
            "properties": {"kind": {"enum": ["node", "leaf"]}, f"level_{level}": inside},
            "required": ["kind", f"level_{level}"],
            "additionalProperties": False,
        }
    return inside


def _nested_member(rng: random.Random) -> str:
    inside: Any = rng.randint(0, 999)
    for level in range(10, 0, -1):
        inside = {"kind": rng.choice(["node", "leaf"]), f"level_{level}": inside}
    return json.dumps(inside, separators=(",", ":"))


def _articles() -> tuple[str, ...]:
    rng = random.Random(0)
    names = {f"{_word(rng)} {_word(rng)} {rng.randrange(100)}" for _ in range(1_100)}
    return tuple(sorted(names)[:1_000])


ARTICLES = _articles()
LETTER = (
    "Dear {}, thank you for your order. It was packed this morning and will leave our warehouse "
    "in {} tomorrow. Please keep this letter until everything has arrived, and write to us within "
    "fourteen days if anything is missing or broken. With kind regards, {}"
)
LETTER_REGEX = LETTER.replace(".", r"\.").format(*["[A-Z][a-z]{2,8}"] * 3)
BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
SUM = """root ::= term (" + " term | " - " term)*
term ::= factor ("*" factor | "/" factor)*
factor ::= number | "(" root ")"
number ::= [0-9] [0-9]? [0-9]?
"""
QUERY = """root ::= "SELECT " columns " FROM " name where? order? ";"
columns ::= "*" | column (", " column)*
column ::= name | ("COUNT" | "SUM" | "MIN" | "MAX") "(" name ")"
where ::= " WHERE " condition
condition ::= test ((" AND " | " OR ") test)*
test ::= name (" = " | " < " | " > ") value | "(" condition ")"
order ::= " ORDER BY " name (" ASC" | " DESC")
value ::= [0-9] [0-9]? [0-9]? | "'" [a-z]+ "'"
name ::= [a-z] [a-z_]*
"""
XML = """root ::= section
section ::= "<section title=\\"" text "\\">" (section | paragraph)+ "</section>"
paragraph ::= "<paragraph>" text "</paragraph>"
text ::= [a-zA-Z] [a-zA-Z ]*
"""


def _sum(rng: random.Random, depth: int = 0) -> str:
    def factor() -> str:
        if depth < 3 and rng.random() < 0.4:
            return f"({_sum(rng, depth + 1)})"
        return str(rng.randrange(1000))

    def term() -> str:
        return rng.choice("*/").join(factor() for _ in range(rng.randint(1, 2)))

    return rng.choice([" + ", " - "]).join(term() for _ in range(rng.randint(1, 3)))


def _query(rng: random.Random) -> str:
    tests = [f"{_word(rng)} {rng.choice('=<>')} {rng.randrange(999)}" for _ in range(3)]
    columns = f"{_word(rng)}, SUM({_word(rng)}), {_word(rng)}_{_word(rng)}"
    where = f"{tests[0]} AND ({tests[1]} OR {tests[2]}) AND {_word(rng)} = '{_word(rng)}'"
    return f"SELECT {columns} FROM {_word(rng)} WHERE {where} ORDER BY {_word(rng)} DESC;"


def _xml(rng: random.Random, depth: int = 0) -> str:
    inside = [f"<paragraph>{_word(rng)} {_word(rng)}</paragraph>" for _ in range(2)]
    if depth < 3:
        inside.insert(rng.randrange(3), _xml(rng, depth + 1))
    return f'<section title="{_word(rng)}">{"".join(inside)}</section>'


def _schema(schema: dict[str, Any]) -> Constraint:
    return Constraint(json_schema=schema, whitespace="compact")  # pyright: ignore[reportArgumentType]


SPECS = (
    Spec(
        "small regex",
        Constraint(regex=r"[A-Z][a-z]{2,8} [0-9]{1,3}"),
        "A street and a number:",
        lambda rng: f"{_word(rng).title()} {rng.randrange(1000)}",
        20,
    ),
    Spec(
        "IP address",
        Constraint(regex=rf"(?:{BYTE}\.){{3}}{BYTE}"),
        "The address of the server:",
        lambda rng: ".".join(str(rng.randrange(256)) for _ in range(4)),
        20,
    ),
    Spec(
        "date",
        Constraint(regex=r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"),
        "Today is",
        lambda rng: f"{rng.randrange(10_000):04}-{rng.randint(1, 12):02}-{rng.randint(1, 31):02}",
        20,
    ),
    Spec(
        "JSON, 6 long keys",
        _schema(ORDER_SCHEMA),
        "The order as JSON:",
        _order,
        160,
        must_double=True,
    ),
    Spec(
        "JSON, 10 levels",
        _schema(_nested(10)),
        "The tree as JSON:",
        _nested_member,
        200,
        must_double=True,
    ),
    Spec(
        "enum of 1,000",
        Constraint(choices=ARTICLES),
        "The article:",
        lambda rng: rng.choice(ARTICLES),
        30,
    ),
    Spec(
        "fixed template",
        Constraint(regex=LETTER_REGEX),
        "The letter:",
        lambda rng: LETTER.format(*(_word(rng).title() for _ in range(3))),
        160,
    ),
    Spec("arithmetic", Constraint(ebnf=SUM), "The sum:", _sum, 48),
    Spec("SQL subset", Constraint(ebnf=QUERY), "The query:", _query, 64),
    Spec("XML-like", Constraint(ebnf=XML), "The text as XML:", _xml, 96),
)
