from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from scripted_transport import ScriptedTransport

from radixray.client.run_context import RunContext
from radixray.client.state import State
from radixray.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(model_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(model_folder)


@pytest.fixture(scope="session")
def oracle(hf_tokenizer: Any) -> Any:
    """What transformers makes of the same files."""
    return hf_tokenizer


@pytest.fixture
def transport(tokenizer: Tokenizer) -> ScriptedTransport:
    return ScriptedTransport(tokenizer)


@pytest.fixture
async def state(transport: ScriptedTransport) -> AsyncIterator[State]:
    """A root state; after the test nothing of it runs."""
    run = RunContext(transport, {})
    yield State(run)
    await run.close()
    assert transport.live == 0
