"""The OpenAPI document is true: requests made from it are never a fault of the server's."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import hypothesis
import pytest
import schemathesis
from fake_transport import INFO, FakeTransport
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route

from radixray.serve.app import build_app
from radixray.serve.openapi import document

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
SECOND_NAMES = {"/model_info", "/server_info"}
DOCUMENT = document()
OPERATIONS = [
    result.ok() for result in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()
]


async def test_served_as_it_is(http: aiohttp.ClientSession) -> None:
    async with http.get("/openapi.json") as response:
        assert response.status == 200
        assert await response.json() == json.loads(json.dumps(DOCUMENT))


def test_all_routes_are_in_it(transport: FakeTransport) -> None:
    async def connect() -> FakeTransport:
        return transport

    routes = {
        (route.path.replace(":path", ""), method.lower())
        for route in build_app(connect).routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
        if route.path not in SECOND_NAMES and not route.path.startswith("/radixray/")
    }
    described = {(path, method) for path, item in DOCUMENT["paths"].items() for method in item}
    left_out = {("/openapi.json", "get"), ("/metrics", "get"), ("/v1/embeddings", "post")}
    assert routes - described == left_out
    assert described <= routes


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.label)
async def test_what_it_describes(url: str, transport: FakeTransport, operation: Any) -> None:
    """Bodies that the document allows, and bodies that it does not."""
    modes = list(GenerationMode) if operation.body else [GenerationMode.POSITIVE]
    for mode in modes:
        # In a thread: the server's loop is this one.
        await asyncio.to_thread(_check, operation, mode, url)
    assert not transport.live


def _check(operation: Any, mode: GenerationMode, url: str) -> None:
    @hypothesis.settings(
        max_examples=12 if operation.body else 2,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = INFO.name  # any other is only ever not found
        case.call_and_validate(base_url=url, checks=CHECKS)

    check()
