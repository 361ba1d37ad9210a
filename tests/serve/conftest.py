from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import aiohttp
import openai
import pytest
import uvicorn
from fake_transport import FakeTransport
from http_host import Host, Serve
from starlette.applications import Starlette

from radixray.models.resolve import resolve_model
from radixray.serve.app import build_app
from radixray.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(resolve_model("smollm2-135m"))


@pytest.fixture
def transport(tokenizer: Tokenizer) -> FakeTransport:
    return FakeTransport(tokenizer)


@pytest.fixture(scope="session")
async def host() -> AsyncGenerator[Host, None]:
    """One uvicorn for all tests: starting and stopping it takes longer than most of them."""
    host = Host()
    listener = socket.create_server(("127.0.0.1", 0))
    host.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(
        uvicorn.Config(host, lifespan="off", log_level="error", timeout_graceful_shutdown=1)
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    yield host
    server.should_exit = True
    await task
    listener.close()


@pytest.fixture
async def serve(host: Host) -> AsyncGenerator[Serve, None]:
    """Serve an app on a loopback port until the test ends; gives its URL."""
    async with AsyncExitStack() as stack:

        async def start(app: Starlette) -> str:
            await stack.enter_async_context(app.router.lifespan_context(app))
            host.app = app
            return host.url

        yield start


@pytest.fixture
async def url(serve: Serve, transport: FakeTransport) -> str:
    """An app without API key over `transport`."""

    async def connect() -> FakeTransport:
        return transport

    return await serve(build_app(connect, api_key=None))


@pytest.fixture
async def client(url: str) -> AsyncGenerator[openai.AsyncOpenAI, None]:
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20
    ) as client:
        yield client


@pytest.fixture
async def http(url: str) -> AsyncGenerator[aiohttp.ClientSession, None]:
    async with aiohttp.ClientSession(base_url=url) as session:
        yield session
