"""The engine in this process: no Ray, typed errors, nothing left behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import radixray as rr

NO_RAY = """
import asyncio, sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "ray":
            raise ImportError("ray is blocked")


sys.meta_path.insert(0, Blocked())
import radixray as rr


@rr.function
async def program(s):
    s += "The capital of France is"
    await s.gen("city", max_tokens=16, regex=" [A-Z][a-z]{2,4}")
    async with s.fork(2) as forks:
        forks += " and" + rr.select("word", [" big", " old"])


async def main():
    async with rr.init(in_process=True, dtype="float32", max_total_tokens=2048):
        result = await program.run(temperature=0)
        print(result["city"].text)
        try:
            program.remote()
        except rr.RadixRayError as error:
            print(type(error).__name__)
        except ImportError:
            print("no remote")


asyncio.run(main())
print("ray" in sys.modules)
"""


@rr.function
async def capital(s: rr.State, country: str) -> None:
    s += f"The capital of {country} is"
    await s.gen("city", max_tokens=8)


@rr.function
async def endless(s: rr.State) -> None:
    s += "Once upon a time"
    await s.gen("story", max_tokens=1500, ignore_eos=True)


@pytest.fixture(scope="module")
def runtime() -> Iterator[rr.Runtime]:
    runtime = rr.init(
        in_process=True, dtype="float32", max_total_tokens=2048, max_queued_requests=4
    )
    yield runtime
    runtime.shutdown()


async def settled(runtime: rr.Runtime) -> Any:
    for _ in range(200):
        stats = (await runtime.stats())["in-process"]
        if stats.running == stats.waiting == stats.pages_leased == 0:
            return stats
        await asyncio.sleep(0.01)
    raise AssertionError(stats)


def test_ray_is_never_imported() -> None:
    run = subprocess.run([sys.executable, "-c", NO_RAY], capture_output=True, text=True)
    assert run.stdout.split() == ["Paris", "no", "remote", "False"], run.stderr


async def test_values_equal_transformers(
    runtime: rr.Runtime, hf_model: Any, hf_tokenizer: Any
) -> None:
    import torch

    prompt = "The capital of Egypt is"
    ids = hf_tokenizer(prompt, return_tensors="pt").input_ids
    with torch.no_grad():
        out = hf_model.generate(ids, max_new_tokens=8, do_sample=False)
    result = await capital.run("Egypt", temperature=0)
    assert result["city"].token_ids == out[0, ids.shape[1] :].tolist()
    assert (await runtime.stats())["in-process"].reachable


async def test_cancelling_frees_the_pages(runtime: rr.Runtime) -> None:
    task = asyncio.create_task(endless.run(temperature=0))
    while not (await runtime.stats())["in-process"].running:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await settled(runtime)).generated_tokens < 1500


async def test_errors_are_typed(runtime: rr.Runtime) -> None:
    with pytest.raises(rr.ProgramError) as raised:
        await capital.run("Peru " * 3000)
    assert isinstance(raised.value.__cause__, rr.ContextLengthError)
    with pytest.raises(rr.ProgramError) as raised:
        await capital.run("Peru", timeout_s=0.0)
    assert isinstance(raised.value.__cause__, rr.DeadlineExceededError)
    with pytest.raises(rr.InvalidRequestError, match="model_actors"):
        rr.init(in_process=True, model_actors=2)
    settings = {"dtype": "float32", "max_total_tokens": 2048, "max_queued_requests": 4}
    assert rr.init(in_process=True, **settings) is runtime  # type: ignore[arg-type]
    with pytest.raises(rr.InvalidRequestError, match="another configuration"):
        rr.init(in_process=True)
    with pytest.raises(rr.UnsupportedFeatureError):
        runtime.config  # noqa: B018
    await settled(runtime)


async def test_the_cache_is_in_reach(runtime: rr.Runtime) -> None:
    await runtime.flush()
    await capital.run("Norway", temperature=0)
    pinned = (await runtime.pin("The capital of Norway is", ttl_s=60))["in-process"]
    assert pinned.tokens == 5
    assert (await runtime.cache_tree())["in-process"].pages_pinned == 5
    assert (await runtime.stats())["in-process"].pages_pinned == 5


def test_programs_run_in_several_loops(runtime: rr.Runtime) -> None:
    texts: list[str] = []

    def run() -> None:
        async def main() -> None:
            texts.append((await capital.run("Italy", temperature=0)).text())
            await runtime.aclose()

        asyncio.run(main())

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(texts) == 3 and len(set(texts)) == 1


def engine_threads() -> int:
    return sum(thread.name == "radixray-engine" for thread in threading.enumerate())


async def test_shutting_down_fails_what_runs() -> None:
    rr.shutdown()
    before = engine_threads()
    runtime = rr.init(in_process=True, dtype="float32", max_total_tokens=2048)
    task = asyncio.create_task(endless.run(temperature=0))
    while not (await runtime.stats())["in-process"].running:
        await asyncio.sleep(0.01)
    place: Any = runtime._place
    asked = [place.thread.ask(lambda engine: engine.info.name) for _ in range(9)]
    rr.shutdown()
    assert {answer.result(5) for answer in asked} == {"smollm2-135m"}
    with pytest.raises(rr.ProgramError) as raised:
        await asyncio.wait_for(task, 10)
    assert isinstance(raised.value.__cause__, rr.EngineDiedError)
    with pytest.raises(rr.NotInitializedError):
        await capital.run("Peru")
    with pytest.raises(rr.ModelNotFoundError):
        rr.init("no-such-model", in_process=True)
    assert engine_threads() == before
