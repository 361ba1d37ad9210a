"""The real command with two ingress processes: what strangers find, and what nobody may."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import warnings
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import jsonschema
import openai
import pytest
from real_server import API_KEY, START_WITHIN_S, Server, start_server, stop

MODEL = "smollm2-135m"
PROMPT = "a sentence that no log may hold"
ORDER = {
    "type": "object",
    "properties": {"city": {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"}},
    "required": ["city"],
    "additionalProperties": False,
}

pytestmark = pytest.mark.timeout(START_WITHIN_S + 60)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exposure")


@pytest.fixture(scope="module")
def server(files: Path) -> Generator[Server, None, None]:
    keys = files / "keys.toml"
    keys.write_text('[keys.alice]\nkey = "alice-secret"\nmax_concurrent = 1\n')
    server = start_server(
        *("--api-key-file", str(keys)),
        *("--access-log", str(files / "access.jsonl")),
        *("--body-timeout", "1"),
        *("--ingress-replicas", "2"),
    )
    yield server
    stop(server.process)


@pytest.fixture
async def real(server: Server) -> AsyncGenerator[openai.AsyncOpenAI, None]:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key=API_KEY, max_retries=0, timeout=60
    ) as client:
        yield client


def descendants(pid: int) -> dict[int, str]:
    """Command lines of the processes that `pid` started, and those started, by process id."""
    parents: dict[int, int] = {}
    lines: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            number = int(folder.name)
            # The name, in parentheses, can have spaces in it.
            parents[number] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
            lines[number] = line.decode(errors="replace")
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {number: lines[number] for number in found - {pid} if number in lines}


def ports_of(pid: int) -> list[int]:
    """The TCP ports a process listens on."""
    sockets = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(link))
    ports = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in sockets:
                ports.append(int(local.rpartition(":")[2], 16))
    return ports


class Touch:
    """Its pickle makes a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._file,)


async def test_the_replicas_ports_run_nothing_from_strangers(server: Server, files: Path) -> None:
    """Ray Serve unpickles what comes there; it must not, without Ray's token."""
    with warnings.catch_warnings(action="ignore"):  # of what Serve itself does
        from ray.serve.generated import serve_pb2
    made = files / "made"
    payload = pickle.dumps(Touch(made))
    message = serve_pb2.ASGIRequest(pickled_request_metadata=payload).SerializeToString()
    codes: list[grpc.StatusCode] = []
    for pid, line in descendants(server.process.pid).items():
        for port in ports_of(pid) if "ray::ServeReplica" in line else ():
            for given in ((), (("authorization", "Bearer wrong"),)):
                async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                    call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
                    with pytest.raises(grpc.RpcError) as caught:
                        await call(message, timeout=10, metadata=given)
                    codes.append(caught.value.code())
    # Each replica has that port, and Ray's own, which knows no such method.
    assert codes.count(grpc.StatusCode.UNAUTHENTICATED) == 4
    assert codes.count(grpc.StatusCode.UNIMPLEMENTED) == len(codes) - 4
    assert not made.exists()


def test_the_keys_are_in_no_process_of_ray(server: Server) -> None:
    started = descendants(server.process.pid)
    assert sum("ray::ServeReplica" in line for line in started.values()) == 2
    for pid, line in started.items():
        assert "alice-secret" not in line
        with contextlib.suppress(OSError):
            assert API_KEY.encode() not in Path(f"/proc/{pid}/environ").read_bytes(), line


async def test_what_serve_says_without_a_key(server: Server) -> None:
    async with aiohttp.ClientSession(base_url=server.url) as http:
        async with http.get("/-/routes") as answer:
            assert await answer.json() == {"/": "radixray-default"}
        async with http.get("/-/healthz") as answer:
            assert await answer.text() == "success"
        for path in ("/v1/models", "/get_server_info", "/openapi.json", "/docs", "/metrics"):
            async with http.get(path) as answer:
                assert answer.status == 401, path
        for path in ("/health", "/ready"):
            async with http.get(path) as answer:
                assert answer.status == 200


async def test_a_request_in_the_log(server: Server, files: Path) -> None:
    async with aiohttp.ClientSession(base_url=server.url) as http:
        headers = {"Authorization": "Bearer alice-secret", "x-request-id": "req-77"}
        body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 4}
        async with http.post("/v1/completions", json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.headers.getall("x-request-id") == ["req-77"]
            usage = (await answer.json())["usage"]
    text = (files / "access.jsonl").read_text()
    [entry] = [e for e in map(json.loads, text.splitlines()) if e["request_id"] == "req-77"]
    assert (entry["key"], entry["status"]) == ("alice", 200)
    assert entry["prompt_tokens"] == usage["prompt_tokens"]
    assert not any(secret in text for secret in (PROMPT, "alice-secret", API_KEY))
    assert not any(secret in line for secret in (PROMPT, "alice-secret") for line in server.log)


async def test_a_body_that_trickles_in(server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
        b"Authorization: Bearer alice-secret\r\n\r\n"
    )

    async def trickle() -> None:
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.1)

    trickling = asyncio.create_task(trickle())
    async with asyncio.timeout(20):
        answer = await reader.read()  # to the end: the server hangs up
    trickling.cancel()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 408")


async def test_a_limit_on_the_way(real: openai.AsyncOpenAI) -> None:
    """Limits hold in each ingress process, so that two may run at once, and no third."""
    alice = real.with_options(api_key="alice-secret")
    asked: dict[str, Any] = {"model": MODEL, "prompt": "x", "max_tokens": 100}
    answers = await asyncio.gather(
        *(alice.completions.create(extra_body={"ignore_eos": True}, **asked) for _ in range(8)),
        return_exceptions=True,
    )
    refused = [each for each in answers if isinstance(each, openai.RateLimitError)]
    served = [each for each in answers if not isinstance(each, BaseException)]
    assert len(refused) + len(served) == 8
    assert 1 <= len(served) <= 2
    assert all(int(each.response.headers["retry-after"]) >= 1 for each in refused)


async def test_responses(real: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "input": "Name a city.",
        "temperature": 0,
        "max_output_tokens": 32,
        "text": {"format": {"type": "json_schema", "name": "order", "schema": ORDER}},
    }
    whole = await real.responses.create(**asked)
    jsonschema.validate(json.loads(whole.output_text), ORDER)
    assert whole.status == "completed"
    stream = await real.responses.create(stream=True, **asked)
    events = [event async for event in stream]
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == whole.output_text
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == whole.output_text
    assert last.response.usage is not None
    assert last.response.usage.input_tokens_details.cached_tokens > 0
    with pytest.raises(openai.BadRequestError) as caught:
        await real.responses.create(
            model=MODEL,
            input="x",
            text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "odd"}}},
        )
    assert caught.value.param == "text.format"
    forced = await real.responses.create(
        model=MODEL,
        input="The weather in Paris?",
        tools=[{"type": "function", "name": "weather", "parameters": ORDER, "strict": True}],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
    )
    [call] = forced.output
    assert call.type == "function_call"
    jsonschema.validate(json.loads(call.arguments), ORDER)
