"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from radixray.protocol import ModelInfo
from radixray.serve.answer import json_response
from radixray.serve.connection import Connection
from radixray.serve.job import check_model
from radixray.serve.openai_protocol import ModelBody, ModelList


async def list_models(request: Request) -> Response:
    """The one served model."""
    return json_response(ModelList([_body(request, await _info(request))]))


async def get_model(request: Request) -> Response:
    """The served model, if it has the name asked for."""
    info = await _info(request)
    check_model(request.path_params["id"], info)
    return json_response(_body(request, info))


async def _info(request: Request) -> ModelInfo:
    connection: Connection = request.app.state.connection
    return (await connection.transport()).info


def _body(request: Request, info: ModelInfo) -> ModelBody:
    return ModelBody(info.name, request.app.state.created, info.max_sequence_tokens)
