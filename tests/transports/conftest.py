from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

import pytest
from http_app import KEY, serving

import radixray as rr
from radixray.config import EngineConfig
from radixray.serve.app import build_app
from radixray.transports.in_process import InProcessEngine, InProcessTransport


@pytest.fixture(scope="package")
def engine() -> Iterator[InProcessEngine]:
    """A real engine of its own, with a small queue."""
    engine = InProcessEngine(EngineConfig(dtype="float32", max_total_tokens=4096))
    yield engine
    engine.shutdown()


@pytest.fixture
async def direct(engine: InProcessEngine) -> AsyncGenerator[InProcessTransport, None]:
    """The engine without anything between."""
    transport = await engine.connect()
    yield transport
    await transport.close()


@pytest.fixture(scope="package")
async def url(engine: InProcessEngine) -> AsyncGenerator[str, None]:
    """A real server on the engine; it wants KEY."""
    async with serving(build_app(engine.connect, api_key=KEY)) as url:
        yield url


@pytest.fixture(autouse=True)
def no_runtime() -> Iterator[None]:
    """Each test starts without a runtime, unless its module has one."""
    yield
    from radixray.client import runtime

    if runtime._current is not None and not runtime._current.owned:
        rr.shutdown()
