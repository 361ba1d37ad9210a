"""Many rows: one limit over all requests, retries, progress, and SGLang's run_batch."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest
from rich.console import Console
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.progress import BatchProgress
from radixray.client.results import ProgramResult
from radixray.protocol import GenerateRequest, Usage


@rr.function
async def ask(s: rr.State, question: str) -> str:
    s += question
    return (await s.gen("x")).text


@rr.function
async def forking(s: rr.State, n: int) -> list[str]:
    s += f"Row {n} begins"
    async with s.fork(5) as forks:
        for i, branch in enumerate(forks):
            branch += f" {i}"
            async with branch.fork(2) as inner:
                inner += rr.gen("x") + rr.select("y", [" a", " b"])
    return s["x"].value


async def test_one_limit_over_branches_too(transport: ScriptedTransport) -> None:
    most = 0

    async def reply(request: GenerateRequest) -> str:
        nonlocal most
        most = max(most, transport.live)
        await asyncio.sleep(0)
        return " ok"

    transport.reply = reply
    async with asyncio.timeout(30):
        results = [r async for r in forking.map(range(8), max_requests=2, transport=transport)]
    assert len(results) == 8
    assert all(r.value == [[" ok"] * 2] * 5 for r in results)
    assert most == 2


async def test_a_request_that_waits_can_be_cancelled(transport: ScriptedTransport) -> None:
    transport.reply = lambda request: asyncio.sleep(60, "x")

    async def run() -> None:
        async for _ in ask.map(["a", "b", "c"], max_requests=1, transport=transport):
            pass

    task = asyncio.create_task(run())
    await asyncio.sleep(0.01)
    assert transport.live == 1
    task.cancel()
    await asyncio.wait([task])
    assert transport.live == 0


def flaky(transport: ScriptedTransport, failures: int, error: Exception) -> None:
    seen: dict[str, int] = {}

    def reply(request: GenerateRequest) -> Any:
        prompt = transport.prompt(request)
        seen[prompt] = seen.get(prompt, 0) + 1
        return error if seen[prompt] <= failures else f"<{prompt}>"

    transport.reply = reply


FAST = rr.Retry(3, delay_s=0.001)


async def test_retry(transport: ScriptedTransport) -> None:
    flaky(transport, 2, rr.EngineDiedError("gone"))
    results = await ask.run_batch(["a", "b"], retry=FAST, transport=transport)
    assert [r.value for r in results] == ["<a>", "<b>"]
    assert len(transport.requests) == 6
    flaky(transport, 3, rr.EngineDiedError("gone"))
    (result,) = await ask.run_batch(["a"], retry=FAST, transport=transport)
    assert isinstance(result.error, rr.ProgramError)


async def test_what_is_not_retried(transport: ScriptedTransport) -> None:
    flaky(transport, 1, rr.ContextLengthError("too long"))
    (result,) = await ask.run_batch(["a"], retry=FAST, transport=transport)
    assert result.error is not None
    assert len(transport.requests) == 1


async def test_branches_that_fail_are_retried(transport: ScriptedTransport) -> None:
    flaky(transport, 1, rr.EngineError("no"))
    retry = rr.Retry(20, delay_s=0)
    (result,) = await forking.run_batch([1], retry=retry, transport=transport)
    assert result.error is None


async def test_a_full_engine_says_how_long(transport: ScriptedTransport) -> None:
    error = rr.OverloadedError("full")
    error.retry_after_s = 0.05
    flaky(transport, 1, error)
    start = asyncio.get_running_loop().time()
    await ask.run_batch(["a"], retry=FAST, transport=transport)
    assert asyncio.get_running_loop().time() - start >= 0.05


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"delay_s": -1}, {"factor": 0.5}, {"jitter": "x"}]
)
def test_wrong_retries(wrong: dict[str, Any]) -> None:
    with pytest.raises(rr.InvalidRequestError) as caught:
        rr.Retry(**wrong)
    assert caught.value.param in wrong


async def test_run_batch(transport: ScriptedTransport, capsys: pytest.CaptureFixture[str]) -> None:
    flaky(transport, 0, ValueError())
    rows = [{"question": "a"}, ("b",), ("too", "many")]
    before = [dict(row) if isinstance(row, dict) else row for row in rows]
    results = await ask.run_batch(rows, progress_bar=True, temperature=0, transport=transport)
    assert [r.value for r in results] == ["<a>", "<b>", None]
    assert [r.index for r in results] == [0, 1, 2]
    assert isinstance(results[2].error, TypeError)
    assert rows == before
    out, err = capsys.readouterr()
    assert out == ""
    assert "3/3" in err
    assert "1 failed" in err
    with pytest.raises(TypeError):
        await ask.run_batch(rows, on_error="raise", transport=transport)
    with pytest.raises(rr.InvalidRequestError):
        await ask.run_batch(rows, max_requests=0, transport=transport)


def test_progress_tells_the_hit_rate() -> None:
    with BatchProgress("x", None, Console(file=io.StringIO())) as bar:
        bar.add(ProgramResult(usage=Usage(prompt=100, cached=25)))
        bar.add(ProgramResult(usage=Usage(prompt=100, cached=75)))
        assert bar.note().endswith("rows/s, 50% cached")
