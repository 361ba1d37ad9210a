"""The config file of Ray Serve, as ``serve run`` runs it: two ingress processes, two model actors.

Its metrics are the same from either process, and the terminal chat talks to it.
"""

from __future__ import annotations

import asyncio
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import openai
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

MODEL = "smollm2-135m"
START_WITHIN_S = 240
CONFIG = Path(__file__).parents[2] / "serve.yaml"

pytestmark = pytest.mark.timeout(START_WITHIN_S + 120)

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str, None, None]:
    """Where the repository's file is served, on a free port and with less memory."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    config = yaml.safe_load(CONFIG.read_text())
    assert config["http_options"]["host"] == "127.0.0.1"
    config["http_options"]["port"] = port
    [application] = config["applications"]
    application["args"] |= {"model_actors": 2, "max_total_tokens": 4096}
    folder = tmp_path_factory.mktemp("serve")
    (folder / "serve.yaml").write_text(yaml.safe_dump(config))
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.serve.scripts", "run", "--address", "local", "serve.yaml"],
            cwd=folder,
            env=env | {"PYTHONPATH": str(CONFIG.parent)},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_WITHIN_S
        while not is_ready(f"http://127.0.0.1:{port}"):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.3)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def is_ready(url: str) -> bool:
    try:
        return urllib.request.urlopen(f"{url}/ready", timeout=10).status == 200
    except (OSError, urllib.error.URLError):
        return False


@pytest.fixture
async def client(url: str) -> AsyncGenerator[openai.AsyncOpenAI, None]:
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=100
    ) as client:
        yield client


def scrape(url: str) -> Samples:
    with urllib.request.urlopen(f"{url}/metrics", timeout=20) as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        page = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def total(found: Samples, name: str, **labels: str) -> float:
    """Of all samples of that name with these labels."""
    return sum(
        value for key, value in found.items() if key[0] == name and labels.items() <= set(key[1])
    )


async def test_answers_and_their_metrics(url: str, client: openai.AsyncOpenAI) -> None:
    before = scrape(url)
    prompts = ["The capital of France is", "The capital of Italy is", "One, two, three,"] * 4
    answers = await asyncio.gather(
        *(
            client.completions.create(
                model=MODEL,
                prompt=prompt,
                max_tokens=5,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
            for prompt in prompts
        )
    )
    assert len({answer.choices[0].text for answer in answers}) == 3
    with pytest.raises(openai.BadRequestError):
        await client.completions.create(model=MODEL, prompt="x", max_tokens=-1)
    usages = [answer.usage for answer in answers if answer.usage]
    expected = {
        "vllm:prompt_tokens_total": sum(usage.prompt_tokens for usage in usages),
        "vllm:generation_tokens_total": 60,
        "vllm:request_success_total": 12,
        "vllm:time_to_first_token_seconds_count": 12,
        "sglang:inter_token_latency_seconds_count": 48,
        "radixray:cached_tokens_total": sum(
            usage.prompt_tokens_details.cached_tokens or 0
            for usage in usages
            if usage.prompt_tokens_details
        ),
        "radixray:placements_total": 12,
    }
    await asyncio.sleep(1.5)  # what one process answered, the other knows of after a second
    # Which process answers is a matter of chance: twenty scrapes meet both.
    for _ in range(20):
        found = scrape(url)
        assert {name: total(found, name) - total(before, name) for name in expected} == expected
        sent = {"method": "POST", "route": "/v1/completions"}
        assert total(found, "radixray:http_requests_total", status="200", **sent) == 12
        assert total(found, "radixray:http_requests_total", status="400", **sent) == 1
    assert total(found, "radixray:actor_up", model_name=MODEL) == 2
    assert total(found, "vllm:request_success_total", finished_reason="length") == 12
    assert total(found, "vllm:num_requests_running") == 0
    pages = {state: total(found, f"radixray:pages_{state}") for state in ("free", "tree", "active")}
    assert sum(pages.values()) == total(found, "radixray:pages") == 2 * 4096
    assert pages["tree"] > 0


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *command: str) -> None:
        pid, self._fd = pty.fork()
        if pid == 0:
            os.environ["TERM"] = "dumb"
            os.environ["PYTHONPATH"] = str(CONFIG.parent)
            os.execv(command[0], command)
        self._pid = pid
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, pattern: str, within: float = 100) -> str:
        """Waits for `pattern` in what comes from now on, and takes it all."""
        deadline = time.monotonic() + within
        while (found := re.search(pattern, self.shown)) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.shown!r}"
            if select.select([self._fd], [], [], 0.1)[0]:
                self.shown += os.read(self._fd, 65536).decode(errors="replace")
        text, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return text

    def end(self) -> int:
        """Its exit status."""
        _, status = os.waitpid(self._pid, 0)
        os.close(self._fd)
        return os.waitstatus_to_exitcode(status)


def test_chat_in_a_terminal(url: str) -> None:
    terminal = Terminal(
        *(sys.executable, "-m", "radixray.cli", "chat", "--url", url, "--temperature", "0"),
        *("--max-tokens", "200"),
    )
    terminal.until(f"{MODEL} at {url}")
    terminal.until("> ")
    terminal.type("What is the capital of France?\n")
    terminal.until(r"France\?\s+\w+")
    terminal.until(r"\d+ cached; \d+ tokens, \d+/s; the first after [\d.]+ s")
    terminal.until("> ")
    terminal.type("Write a long story about a dragon.\n")
    terminal.until(r"dragon\.\s+\w+")  # echoed; and the answer begins
    terminal.type("\x03")
    assert "the first after" not in terminal.until("stopped")
    terminal.until("> ")
    terminal.type("And of Italy?\n")
    again = terminal.until(r"[1-9]\d* cached; \d+ tokens")
    assert "prompt tokens" in again
    terminal.until("> ")
    terminal.type("/reset\n")
    terminal.until("forgotten")
    terminal.until("> ")
    terminal.type("\x04")
    assert terminal.end() == 0
    assert total(scrape(url), "vllm:num_requests_running") == 0


def test_chat_without_a_server(url: str) -> None:
    command = [sys.executable, "-m", "radixray.cli", "chat", "--url", "http://127.0.0.1:9"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=CONFIG.parent)
    assert ended.returncode == 1
    assert re.fullmatch(r"error: no server answers at http://127.0.0.1:9 .*\n", ended.stderr)
