"""What actors count, over Ray; and what is left out when one does not answer."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import Any

import pytest
import ray

import radixray as rr
from radixray.actors import measures
from radixray.actors.handles import actor_handle
from radixray.actors.measures import Measures
from radixray.protocol import GenerateRequest, SamplingParams


async def generate(runtime: rr.Runtime, request_id: str, prompt: list[int]) -> None:
    transport = await runtime.transport()
    sampling = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    request = GenerateRequest(request_id=request_id, prompt_ids=prompt, sampling=sampling)
    async for _ in transport.generate(request):
        pass


async def test_all_of_a_deployment(runtime: rr.Runtime) -> None:
    transport = await runtime.transport()
    assert isinstance(transport, Measures)
    before = await transport.measure()
    prompt = list(range(700, 740))
    for number in range(3):
        await generate(runtime, f"measured-{number}", prompt)
    await transport.share("one", {"x": 1})
    await transport.share("two", {"x": 5})
    await transport.share("one", {"x": 2})
    after = await transport.measure()
    assert list(after.actors) == ["default/model-0", "default/model-1"]
    assert after.model == "smollm2-135m"

    def grew(read: Any) -> float:
        reports = [(a, before.actors[name]) for name, a in after.actors.items()]
        return sum(read(a) - read(b) for a, b in reports if a is not None and b is not None)

    assert grew(lambda r: r.engine.finished.get("length", 0)) == 3
    assert grew(lambda r: r.stats.generated_tokens) == 12
    assert grew(lambda r: r.engine.prompt_tokens) == 120
    assert grew(lambda r: r.engine.cached_tokens) == 2 * 39
    assert before.scheduler is not None
    assert after.scheduler is not None
    placed, already = (
        {
            reason: sum(each.get(reason, 0) for each in scheduler.placements.values())
            for reason in ("prefix", "load")
        }
        for scheduler in (after.scheduler, before.scheduler)
    )
    assert placed["prefix"] - already["prefix"] == 2
    assert placed["load"] - already["load"] == 1
    assert after.scheduler.matched_tokens - before.scheduler.matched_tokens == 2 * 40
    assert {name: after.scheduler.shared[name] for name in ("one", "two")} == {
        "one": {"x": 2},
        "two": {"x": 5},
    }


async def test_who_does_not_answer_is_left_out(
    runtime: rr.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One actor is not there, one is silent, and the scheduler is silent, too."""

    class Silent:
        measure: Any = property(lambda self: self)
        share: Any = property(lambda self: self)

        def remote(self, *_: object) -> asyncio.Future[bytes]:
            return asyncio.get_running_loop().create_future()

    def handle(name: str) -> Any:
        silent = name in ("default/model-1", "default/scheduler")
        return Silent() if silent else actor_handle(name)

    monkeypatch.setattr(measures, "actor_handle", handle)
    monkeypatch.setattr(measures, "TIMEOUT_S", 0.5)
    names = [f"default/model-{number}" for number in range(3)]
    async with asyncio.timeout(5):
        found = await measures.measure("default/scheduler", names, "m")
        await measures.share(Silent(), "p", {})
    assert {name: each is not None for name, each in found.actors.items()} == {
        "default/model-0": True,
        "default/model-1": False,
        "default/model-2": False,
    }
    assert found.scheduler is None


async def test_ray_shows_them_too(runtime: rr.Runtime) -> None:
    await generate(runtime, "shown", [5, 6, 7])
    [node] = ray.nodes()
    url = f"http://127.0.0.1:{node['MetricsExportPort']}/metrics"
    wanted = {
        f"ray_radixray_{name}"
        for name in (
            "requests_running",
            "generation_tokens_total",
            "inter_token_latency_seconds_sum_total",
        )
    }
    async with asyncio.timeout(40):
        missing = wanted
        while missing:
            await asyncio.sleep(0.3)
            page = await asyncio.to_thread(read, url)
            shown = [line for line in page.splitlines() if 'model_name="smollm2-135m"' in line]
            missing = wanted - {line.partition("{")[0] for line in shown}


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()
