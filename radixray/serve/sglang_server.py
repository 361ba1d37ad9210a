"""What SGLang's clients ask of a server beside text."""

from __future__ import annotations

import uuid

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import radixray
from radixray.errors import InvalidRequestError
from radixray.protocol import GenerateRequest, Handle, SamplingParams
from radixray.serve.answer import json_response
from radixray.serve.connection import Connection
from radixray.serve.disconnect import while_connected
from radixray.serve.generation import complete
from radixray.serve.live_requests import LiveRequests
from radixray.serve.parse import parse, read_body
from radixray.serve.sglang_protocol import NativeModelInfo, NativeServerInfo


async def model_info(request: Request) -> Response:
    """``GET /get_model_info``."""
    connection: Connection = request.app.state.connection
    name = (await connection.transport()).info.name
    return json_response(NativeModelInfo(name, name))


async def server_info(request: Request) -> Response:
    """``GET /get_server_info``: the model, and the counters of each model actor."""
    connection: Connection = request.app.state.connection
    transport = await connection.transport()
    info, stats = transport.info, await transport.stats()
    states = [{"name": name, **msgspec.to_builtins(each)} for name, each in stats.items()]
    return json_response(
        NativeServerInfo(
            model_path=info.name,
            context_length=info.context_length,
            max_total_num_tokens=info.pool_tokens,
            dtype=info.dtype,
            version=radixray.__version__,
            internal_states=states,
        )
    )


async def flush_cache(request: Request) -> Response:
    """``/flush_cache``: empty the caches of what no request uses."""
    connection: Connection = request.app.state.connection
    pages = await (await connection.transport()).flush()
    return Response(f"Cache flushed: {pages} pages are free again.\n")


class AbortBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which request, by the `rid` its sender gave it, or all."""

    rid: str = ""
    abort_all: bool = False


async def abort_request(request: Request) -> Response:
    """``POST /abort_request``: end requests of ``/generate``; each answers with what it has.

    Only those of the same API key; whichever process of the ingress they came to, once they are at
    a model actor.
    """
    body = parse(await read_body(request), AbortBody)
    if bool(body.rid) == body.abort_all:
        raise InvalidRequestError("give one of rid and abort_all", param="rid")
    live: LiveRequests = request.app.state.live
    connection: Connection = request.app.state.connection
    handle = Handle(request.state.tenant.name, body.rid)
    await live.abort(await connection.transport(), handle)
    return Response()


async def health_generate(request: Request) -> Response:
    """``GET /health_generate``: 200 once a model actor has made a token."""
    connection: Connection = request.app.state.connection
    transport = await connection.transport()
    await read_body(request)
    probe = GenerateRequest(
        request_id=f"health-{uuid.uuid4().hex}",
        prompt_ids=[transport.info.eos_token_ids[0] if transport.info.eos_token_ids else 0],
        sampling=SamplingParams(max_tokens=1, temperature=0.0),
        whole=True,
    )
    await while_connected(request.receive, complete(transport, probe))
    return Response()
