"""docs/serving.md: its commands run, and its table has every route."""

from __future__ import annotations

import asyncio
import re
import runpy
import shutil
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_transport import FakeTransport
from http_host import Host, Serve
from starlette.routing import Route

from radixray.serve.access_log import AccessEntry
from radixray.serve.app import build_app
from radixray.serve.http_config import HttpConfig
from radixray.serve.keys import ApiKey, KeyLimits, find_key, read_keys

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "serving.md").read_text()
README = (ROOT / "README.md").read_text()
KEY = "secret"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture
async def running(serve: Serve, transport: FakeTransport) -> str:
    async def connect() -> FakeTransport:
        return transport

    return await serve(build_app(connect, config=HttpConfig(keys=(ApiKey.of("a", KEY),))))


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
@pytest.mark.parametrize("command", blocks("sh"), ids=lambda command: command.split()[-3][:20])
async def test_curl(running: str, transport: FakeTransport, command: str) -> None:
    command = command.replace("http://127.0.0.1:8000", running).replace("curl", "curl -sS -f", 1)
    process = await asyncio.create_subprocess_shell(
        command,
        env={"RADIXRAY_API_KEY": KEY, "PATH": "/usr/bin:/bin"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, problem = await process.communicate()
    assert process.returncode == 0, problem
    assert transport.words[0] in out.decode()
    assert len(transport.requests) == 1


async def test_the_openai_package(running: str, capsys: pytest.CaptureFixture[str]) -> None:
    [code] = blocks("python")
    code = code.replace("http://127.0.0.1:8000", running)
    await asyncio.to_thread(exec, compile(code, "serving.md", "exec"), {})
    assert capsys.readouterr().out.startswith("Grüße")


async def test_the_readme_and_the_example(
    running: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{running}/v1")
    monkeypatch.setenv("RADIXRAY_API_KEY", KEY)
    example = ROOT / "examples" / "openai_client.py"
    await asyncio.to_thread(runpy.run_path, str(example), run_name="__main__")
    said = capsys.readouterr().out
    assert re.fullmatch(r"chat: Grüße.*\nstream: Grüße.*\nregex: Grüße.*\n", said, re.DOTALL)

    [code] = re.findall(r"^```python\n(from openai.*?)^```", README, re.MULTILINE | re.DOTALL)
    code = code.replace("http://127.0.0.1:8000", running).replace('"none"', repr(KEY))
    await asyncio.to_thread(exec, compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.count("Grüße") == 2


def test_the_key_file(tmp_path: Path) -> None:
    [text] = blocks("toml")
    tomllib.loads(text)
    file = tmp_path / "keys.toml"
    file.write_text(text)
    keys = read_keys([], file, KeyLimits(requests_per_minute=7))
    alice, batch = find_key(keys, b"alices-own-long-and-random-key"), find_key(keys, b"password")
    assert alice is not None
    assert batch is not None
    assert (alice.name, alice.limits.tokens_per_minute) == ("alice", 100_000)
    assert batch.limits == KeyLimits(max_concurrent=64, requests_per_minute=7)


def test_the_log_line() -> None:
    [line] = blocks("json")
    shown: dict[str, Any] = msgspec.json.decode(line)
    assert list(shown) == list(AccessEntry.__struct_fields__)
    msgspec.json.decode(line, type=AccessEntry)


def test_every_route_is_in_the_table(running: str, host: Host) -> None:
    rows = [line for line in TEXT.splitlines() if re.match(r"\| `(GET|POST) ", line)]
    shown = {route for row in rows for route in re.findall(r"`((?:GET|POST) /\S+)`", row)}
    served = {
        f"{method} {re.sub(':path', '', route.path)}"
        for route in host.app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert shown == served
