"""Actors and consumers die; nothing hangs, and the next request works.

Uses a deployment of its own, on the Ray that the `runtime` fixture started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
import pytest
import ray

import radixray as rr
from radixray.actors.deployment import Deployment, attach, deploy
from radixray.actors.engine_client import EngineClient
from radixray.actors.handles import actor_handle
from radixray.actors.model_actor import LEASE_S
from radixray.actors.wire import PlaceRequest, decode_placements, encode_request
from radixray.config import DeploymentConfig, EngineConfig
from radixray.namespaces import namespace_of
from radixray.protocol import GenerateRequest, SamplingParams

CONFIG = DeploymentConfig(name="faults", model_actors=2, engine=EngineConfig(max_total_tokens=4096))
PROMPT = list(range(100, 300))


@pytest.fixture(scope="module")
async def deployment(runtime: Any) -> AsyncGenerator[Deployment, None]:
    deployment = deploy(CONFIG)
    yield deployment
    deployment.shutdown()


@pytest.fixture
async def client(deployment: Deployment) -> AsyncGenerator[EngineClient, None]:
    client = await deployment.connect()
    yield client
    await client.close()


def generation(name: str, max_tokens: int) -> GenerateRequest:
    return GenerateRequest(
        request_id=name,
        prompt_ids=PROMPT,
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True),
    )


async def generate(client: EngineClient, name: str, max_tokens: int = 4) -> str:
    request = generation(name, max_tokens)
    return "".join([delta.text async for delta in client.generate(request)])


async def until(condition: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.1)


async def test_a_dead_model_actor_loses_nothing_and_comes_back(client: EngineClient) -> None:
    want = await generate(client, "before", max_tokens=300)
    running = asyncio.create_task(generate(client, "moved", max_tokens=300))
    stats = {}

    async def is_running() -> bool:
        nonlocal stats
        stats = await client.stats()
        return any(s.running for s in stats.values())

    await until(is_running, 20)
    (home,) = (name for name, s in stats.items() if s.running)
    ray.kill(actor_handle(home), no_restart=False)
    assert await asyncio.wait_for(running, 60) == want

    async def is_back() -> bool:
        return (await client.stats())[home].reachable

    await until(is_back, 60)


async def test_losing_the_scheduler_stops_nothing(client: EngineClient) -> None:
    await generate(client, "warm")
    running = asyncio.create_task(generate(client, "on", max_tokens=300))
    await asyncio.sleep(0.3)
    ray.kill(actor_handle(CONFIG.scheduler_actor), no_restart=False)
    during = await asyncio.wait_for(generate(client, "during"), 30)
    assert during == await generate(client, "later")
    assert len(await asyncio.wait_for(running, 60)) > 0

    # It rebuilds its index from snapshots: requests still find their prefix.
    scheduler = actor_handle(CONFIG.scheduler_actor)

    async def knows() -> bool:
        await generate(client, f"again-{time.monotonic()}")
        ask = PlaceRequest(
            f"ask-{time.monotonic()}",
            namespace_of("smollm2-135m"),
            np.array(PROMPT, np.int32).tobytes(),
        )
        (placement,) = decode_placements(await scheduler.place.remote([encode_request(ask)]))
        return placement.matched >= len(PROMPT) - 1

    await until(knows, 30)


async def test_a_killed_consumer_leaves_nothing_running(
    deployment: Deployment, client: EngineClient
) -> None:
    code = f"""
import asyncio, radixray as rr
@rr.function
async def endless(s):
    s += "On and on"
    print("started", flush=True)
    await s.gen("x", max_tokens=3900, ignore_eos=True)
async def main():
    rr.attach("faults", address={ray.get_runtime_context().gcs_address!r})
    await endless.run()
asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:

        async def is_running() -> bool:
            return any(s.running for s in (await client.stats()).values())

        await until(is_running, 60)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    async def is_idle() -> bool:
        stats = await client.stats()
        return all(s.running == s.pages_leased == 0 for s in stats.values())

    await until(is_idle, LEASE_S + 10)


async def test_a_consumer_that_blocks_its_loop_is_alive(client: EngineClient) -> None:
    running = asyncio.create_task(generate(client, "patient", max_tokens=50))
    await asyncio.sleep(0.5)
    time.sleep(LEASE_S + 3)  # noqa: ASYNC251 - what a careless program does
    assert await asyncio.wait_for(running, 60)


async def test_a_request_id_in_use_is_refused_and_its_owner_unharmed(
    deployment: Deployment, client: EngineClient
) -> None:
    running = asyncio.create_task(generate(client, "same", max_tokens=900))
    await asyncio.sleep(0.3)
    with pytest.raises(rr.InvalidRequestError) as caught:
        await generate(client, "same")
    assert caught.value.param == "request_id"
    other = await deployment.connect()
    (home,) = (name for name, stats in (await client.stats()).items() if stats.running)
    try:
        with pytest.raises(rr.InvalidRequestError):
            async for _ in other._channel(home).run(generation("same", 4)):
                pass
    finally:
        await other.close()
    assert await asyncio.wait_for(running, 60)


async def test_a_silent_but_living_consumer_can_go_on(client: EngineClient) -> None:
    await generate(client, "one")
    for name in ("faults/model-0", "faults/model-1"):
        for channel in client._channels.values():
            await actor_handle(name).leave.remote(channel.consumer_id)  # as the reaper would
    await asyncio.sleep(0.2)
    assert await generate(client, "two")


async def test_a_model_that_is_not_there_is_a_typed_error(runtime: Any) -> None:
    config = DeploymentConfig(name="nothing", engine=EngineConfig(model="no/such-model"))
    with pytest.raises(rr.ModelNotFoundError) as caught:
        deploy(config)
    assert "no/such-model" in str(caught.value)
    with pytest.raises(rr.NotInitializedError):
        attach("nothing")


async def test_two_deployments_of_one_name_must_agree(deployment: Deployment) -> None:
    assert not deploy(CONFIG).owned
    with pytest.raises(rr.DeploymentError):
        deploy(DeploymentConfig(name="faults", model_actors=1))


async def test_an_actor_dead_for_good_takes_nothing_with_it(runtime: Any) -> None:
    config = DeploymentConfig(
        name="half", model_actors=2, engine=EngineConfig(max_total_tokens=4096)
    )
    deployment = deploy(config)
    client = await deployment.connect()
    try:
        await generate(client, "warm")  # its prefix now lives on the first
        ray.kill(actor_handle("half/model-0"), no_restart=True)
        for number in range(4):
            assert await asyncio.wait_for(generate(client, f"again-{number}"), 60)
        stats = await client.stats()
        assert [stats[f"half/model-{i}"].reachable for i in range(2)] == [False, True]
        other = await deployment.connect()
        assert await generate(other, "from-another-connection")
        await other.close()
    finally:
        await client.close()
        deployment.shutdown()


@pytest.mark.parametrize("where", ["inside", "after"])
def test_shutdown_ends_requests_not_the_process(where: str) -> None:
    inside = "rr.shutdown(); await asyncio.sleep(3)" if where == "inside" else ""
    code = f"""
import asyncio, radixray as rr
@rr.function
async def endless(s):
    s += "On"
    await s.gen("x", max_tokens=900, ignore_eos=True)
async def main():
    rr.init(max_total_tokens=1024, address="local")
    task = asyncio.create_task(endless.run())
    await asyncio.sleep(2)
    {inside}
    if {where == "inside"}:
        try:
            await task
        except rr.ProgramError as error:
            assert isinstance(error.__cause__, rr.EngineDiedError), error.__cause__
            print("failed as it should")
    else:
        task.cancel()
asyncio.run(main())
rr.shutdown()
print("still here")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "still here" in done.stdout
    assert where == "after" or "failed as it should" in done.stdout
