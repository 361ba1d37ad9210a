"""The names under which clients say what the output must match."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from fake_transport import FakeTransport

from radixray.protocol import Constraint

TEXT: dict[str, Any] = {"model": "smollm2-135m", "prompt": "Hi", "max_tokens": 4}
CHAT: dict[str, Any] = {
    "model": "smollm2-135m",
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 4,
}
ROUTES = {"/v1/completions": TEXT, "/v1/chat/completions": CHAT}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TEXT_SCHEMA = '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'
GBNF = 'root ::= "a" root | "b"'
LARK = 'start: "a"+'


def compact(schema: str) -> Constraint:
    return Constraint(json_schema=schema, whitespace="compact")


both_routes = pytest.mark.parametrize("route", ROUTES)


@both_routes
@pytest.mark.parametrize(
    ("given", "constraint"),
    [
        ({"regex": "a+"}, Constraint(regex="a+")),
        ({"guided_regex": "a+"}, Constraint(regex="a+")),
        ({"structured_outputs": {"regex": "a+"}}, Constraint(regex="a+")),
        ({"json_schema": TEXT_SCHEMA}, compact(TEXT_SCHEMA)),
        ({"guided_json": SCHEMA}, compact(TEXT_SCHEMA)),
        ({"guided_json": TEXT_SCHEMA}, compact(TEXT_SCHEMA)),
        ({"structured_outputs": {"json": SCHEMA}}, compact(TEXT_SCHEMA)),
        ({"guided_choice": ["yes", "no"]}, Constraint(choices=("yes", "no"))),
        ({"structured_outputs": {"choice": ["x"]}}, Constraint(choices=("x",))),
        ({"ebnf": GBNF}, Constraint(ebnf=GBNF)),
        ({"guided_grammar": GBNF}, Constraint(ebnf=GBNF)),
        ({"guided_grammar": LARK}, Constraint(lark=LARK)),
        ({"structured_outputs": {"grammar": LARK}}, Constraint(lark=LARK)),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, compact('{"type":"object"}')),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
            compact(TEXT_SCHEMA),
        ),
    ],
    ids=str,
)
async def test_spellings(
    http: aiohttp.ClientSession,
    transport: FakeTransport,
    route: str,
    given: dict[str, Any],
    constraint: Constraint | None,
) -> None:
    async with http.post(route, json=ROUTES[route] | given) as response:
        assert response.status == 200, await response.text()
    assert transport.requests[0].constraint == constraint


@both_routes
@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"regex": "a", "guided_regex": "b"}, "regex"),
        ({"response_format": {"type": "json_object"}, "guided_choice": ["a"]}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"guided_json": "{not json"}, "guided_json"),
        ({"json_schema": 5}, "json_schema"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": "yes"}, "guided_choice"),
        ({"guided_regex": "a" * 20_000}, "guided_regex"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_refused_by_the_name_that_was_used(
    http: aiohttp.ClientSession,
    transport: FakeTransport,
    route: str,
    given: dict[str, Any],
    param: str,
) -> None:
    async with http.post(route, json=ROUTES[route] | given) as response:
        error = (await response.json())["error"]
        assert response.status == 400 and error["type"] == "invalid_request_error"
        assert error["param"] == param
    assert transport.requests == []
