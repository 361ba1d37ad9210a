"""The OpenAI-compatible ASGI app."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from radixray.actors.transport import Transport
from radixray.serve.access_log import AccessLog, RequestIds
from radixray.serve.admission import Admission
from radixray.serve.application import build as build
from radixray.serve.auth import KeyCheck
from radixray.serve.chat import create_chat_completion
from radixray.serve.completions import create_completion
from radixray.serve.connection import Connection
from radixray.serve.errors import exception_handlers
from radixray.serve.health import Watch, live, ready
from radixray.serve.http_config import HttpConfig
from radixray.serve.keys import ApiKey
from radixray.serve.live_requests import LiveRequests
from radixray.serve.metrics import CountAnswers, HttpCounts, metrics
from radixray.serve.models import get_model, list_models
from radixray.serve.native_routes import ROUTES as NATIVE_ROUTES
from radixray.serve.openapi import openapi
from radixray.serve.responses import create_response
from radixray.serve.sglang_generate import native_generate
from radixray.serve.sglang_server import (
    abort_request,
    flush_cache,
    health_generate,
    model_info,
    server_info,
)
from radixray.serve.slow_clients import SendTimeout
from radixray.serve.token_routes import detokenize, embeddings, tokenize


def build_app(
    connect: Callable[[], Awaitable[Transport]],
    *,
    api_key: str | None = None,
    config: HttpConfig | None = None,
) -> Starlette:
    """The app; it connects at its lifespan's start, or, if that fails, at a later request.

    Args:
        connect: gives a connected Transport, on the loop that serves the requests. If the
            Transport has an async ``close()``, it is called at the lifespan's end.
        api_key: a key without limits, beside those of `config`.
        config: who may send what.

    Raises:
        InvalidRequestError: the access log cannot be opened.
    """
    config = config or HttpConfig()
    if api_key is not None:
        keys = (*config.keys, ApiKey.of("default", api_key))
        config = msgspec.structs.replace(config, keys=keys)
    admission = Admission(config)
    connection = Connection(connect)
    http_counts = HttpCounts(connection)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        await connection.warm_up()
        yield
        await connection.close()

    app = Starlette(
        routes=[
            Route("/health", live, methods=["GET"]),
            Route("/ready", ready, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
            Route("/health_generate", health_generate, methods=["GET"]),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/detokenize", detokenize, methods=["POST"]),
            Route("/generate", native_generate, methods=["POST"]),
            Route("/abort_request", abort_request, methods=["POST"]),
            Route("/get_model_info", model_info, methods=["GET"]),
            Route("/model_info", model_info, methods=["GET"]),
            Route("/get_server_info", server_info, methods=["GET"]),
            Route("/server_info", server_info, methods=["GET"]),
            Route("/flush_cache", flush_cache, methods=["POST"]),
            Route("/openapi.json", openapi, methods=["GET"]),
            Route("/v1/embeddings", embeddings, methods=["POST"]),
            Route("/v1/models", list_models, methods=["GET"]),
            Route("/v1/models/{id:path}", get_model, methods=["GET"]),
            Route("/v1/responses", create_response, methods=["POST"]),
            Route("/v1/completions", create_completion, methods=["POST"]),
            Route("/v1/chat/completions", create_chat_completion, methods=["POST"]),
            *NATIVE_ROUTES,
        ],
        middleware=[Middleware(CountAnswers, http_counts), *_middleware(config, admission)],
        exception_handlers=exception_handlers(),
        lifespan=lifespan,
    )
    app.state.config = config
    app.state.admission = admission
    app.state.connection = connection
    app.state.http_counts = http_counts
    app.state.watch = Watch()
    app.state.live = LiveRequests()
    app.state.created = int(time.time())
    return app


def _middleware(config: HttpConfig, admission: Admission) -> list[Middleware]:
    """From the outside in."""
    chain: list[Middleware] = []
    if config.answers_request_id or config.access_log is not None:
        log = None if config.access_log is None else AccessLog(config.access_log)
        chain.append(Middleware(RequestIds, config.answers_request_id, log))
    if config.cors_origins:
        chain.append(
            Middleware(
                CORSMiddleware,
                allow_origins=config.cors_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "retry-after"],
            )
        )
    chain.append(Middleware(KeyCheck, admission))
    if config.send_timeout_s is not None:
        chain.append(Middleware(SendTimeout, config.send_timeout_s))
    return chain
