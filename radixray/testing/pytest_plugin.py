"""A recording for each test.

In the topmost ``conftest.py``: ``pytest_plugins = ["radixray.testing.pytest_plugin"]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from radixray.testing.contexts import record, replay
from radixray.testing.player import Replay
from radixray.testing.recorder import Recorder


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--record-calls``."""
    parser.getgroup("radixray").addoption(
        "--record-calls",
        action="store_true",
        help="record the calls of RadixRay programs anew, which needs a runtime",
    )


@pytest.fixture
def recorded_calls(request: pytest.FixtureRequest) -> Iterator[Recorder | Replay]:
    """The test's programs are played back from ``recordings/FILE-TEST.jsonl`` beside its file.

    With ``--record-calls`` it is recorded, by the runtime that the test, or a fixture, provides.
    """
    name = re.sub(r"[^\w.-]+", "_", request.node.name)
    path = request.path.parent / "recordings" / f"{request.path.stem}-{name}.jsonl"
    how = record if request.config.getoption("--record-calls") else replay
    with how(path) as calls:
        yield calls
