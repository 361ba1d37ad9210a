"""``GET /openapi.json``: the API as an OpenAPI document, made from the structs of the bodies."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import radixray
from radixray.serve.health import Health
from radixray.serve.openai_protocol import (
    ChatBody,
    ChatResponse,
    CompletionBody,
    CompletionResponse,
    ErrorBody,
    ModelBody,
    ModelList,
)
from radixray.serve.parse import IGNORED
from radixray.serve.responses_protocol import ResponseBody, ResponsesBody
from radixray.serve.sglang_protocol import (
    NativeAnswer,
    NativeBody,
    NativeModelInfo,
    NativeServerInfo,
)
from radixray.serve.sglang_server import AbortBody
from radixray.serve.token_routes import DetokenizeBody, Detokenized, TokenizeBody, Tokens


class _Operation(NamedTuple):
    """One route; without an answer, its status says all."""

    path: str
    summary: str
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None


_OPERATIONS = (
    _Operation("/v1/completions", "Continue texts", CompletionBody, CompletionResponse),
    _Operation("/v1/chat/completions", "Answer a chat", ChatBody, ChatResponse),
    _Operation("/v1/responses", "Answer a chat, item by item", ResponsesBody, ResponseBody),
    _Operation("/v1/models", "The served model", None, ModelList),
    _Operation("/v1/models/{id}", "The served model, by name", None, ModelBody),
    _Operation("/tokenize", "From text to token ids", TokenizeBody, Tokens),
    _Operation("/detokenize", "From token ids to text", DetokenizeBody, Detokenized),
    _Operation("/generate", "Continue texts, as SGLang does", NativeBody, NativeAnswer),
    _Operation("/abort_request", "End requests of /generate", AbortBody),
    _Operation("/flush_cache", "Empty the caches"),
    _Operation("/get_model_info", "The served model", None, NativeModelInfo),
    _Operation("/get_server_info", "Its actors, too", None, NativeServerInfo),
    _Operation("/health", "Whether the server lives", None, Health),
    _Operation("/ready", "Whether it takes requests", None, Health),
    _Operation("/health_generate", "Whether it makes tokens"),
)

_OPEN = ("/health", "/ready")
"""Need no API key."""


async def openapi(request: Request) -> Response:
    """The document."""
    return Response(_encoded(), media_type="application/json")


@cache
def _encoded() -> bytes:
    return msgspec.json.encode(document())


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document of all routes for clients that speak JSON.

    Left out are SGLang's second names for some, and what answers no question: ``/metrics``,
    ``/v1/embeddings``.
    """
    structs: set[Any] = {ErrorBody}
    for operation in _OPERATIONS:
        structs |= {operation.body, operation.answer} - {None}
    kinds = sorted(structs, key=lambda kind: kind.__name__)
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    for name in ("CompletionBody", "ChatBody"):
        schemas[name]["properties"] |= {each: {} for each in sorted(IGNORED)}
    paths: dict[str, Any] = {}
    for operation in _OPERATIONS:
        takes_body = operation.body is not None or operation.path == "/flush_cache"
        paths[operation.path] = {"post" if takes_body else "get": _described(operation)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "RadixRay", "version": radixray.__version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _described(operation: _Operation) -> dict[str, Any]:
    error = {"description": "An error", "content": _json(_ref(ErrorBody))}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {"200": _answer(operation), "default": error},
    }
    if "{id}" in operation.path:
        name = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
        described["parameters"] = [name]
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _json(_ref(operation.body))}
    if operation.path in _OPEN:
        described["security"] = []
        described["responses"]["503"] = _answer(operation)
    return described


def _answer(operation: _Operation) -> dict[str, Any]:
    if operation.answer is None:
        return {"description": "Done"}
    schema = _ref(operation.answer)
    if operation.body is NativeBody:  # several prompts have several answers
        schema = {"anyOf": [schema, {"type": "array", "items": schema}]}
    content = _json(schema)
    if operation.body is not None and "stream" in operation.body.__struct_fields__:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": "The answer", "content": content}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _ref(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
