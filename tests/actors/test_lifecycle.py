"""A deployment is scaled and reloaded while requests run: none is lost, and none is changed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import ray

import radixray as rr
from radixray.actors.deployment import Deployment, attach, deploy
from radixray.actors.engine_client import EngineClient
from radixray.actors.handles import actor_handle
from radixray.actors.lifecycle import check_same
from radixray.actors.members import living_model_actors
from radixray.config import DeploymentConfig, EngineConfig
from radixray.protocol import GenerateRequest, ModelInfo, SamplingParams, join_deltas
from radixray.reports import EngineStats

CONFIG = DeploymentConfig(
    name="elastic",
    model_actors=2,
    engine=EngineConfig(max_total_tokens=8192, cpu_threads=1, check_invariants=True),
)
SHARED = "You are a guide to a small town by the sea. Answer in one sentence, and be kind. " * 4


@pytest.fixture(scope="module")
async def deployment(runtime: Any) -> AsyncGenerator[Deployment, None]:
    deployment = deploy(CONFIG)
    yield deployment
    deployment.shutdown()
    assert living_model_actors("elastic") == []


@pytest.fixture
async def client(deployment: Deployment) -> AsyncGenerator[EngineClient, None]:
    client = await deployment.connect()
    yield client
    await client.close()


def requests_of(client: EngineClient, count: int, name: str) -> list[GenerateRequest]:
    return [
        GenerateRequest(
            request_id=f"{name}-{number}",
            prompt_ids=client.tokenizer.encode(f"{SHARED}Question {number % 5}: Where is"),
            sampling=SamplingParams(
                temperature=number % 2, seed=number, max_tokens=100, ignore_eos=True
            ),
            whole=number % 7 == 3,
        )
        for number in range(count)
    ]


async def outcome(client: EngineClient, request: GenerateRequest) -> tuple[list[int], str]:
    joined = join_deltas([delta async for delta in client.generate(request)])
    return joined.token_ids, joined.text


async def outcomes(client: EngineClient, count: int, name: str) -> list[tuple[list[int], str]]:
    return await asyncio.gather(*(outcome(client, r) for r in requests_of(client, count, name)))


async def until_running(client: EngineClient, *names: str) -> None:
    """Until one of these works."""
    async with asyncio.timeout(60):
        stats = await client.stats()
        while not any(stats[name].running for name in names):
            await asyncio.sleep(0.02)
            stats = await client.stats()


async def balanced(client: EngineClient) -> dict[str, EngineStats]:
    """All actors idle, with every page free or in the tree."""
    async with asyncio.timeout(60):
        while True:
            stats = await client.stats()
            if all(s.reachable and not (s.running or s.waiting) for s in stats.values()):
                break
            await asyncio.sleep(0.05)
    for each in stats.values():
        assert each.pages_leased == each.ledger_violations == 0
        assert each.pages_free + each.pages_tree == each.pages_total
    return stats


async def test_scaled_up_and_down_under_load(deployment: Deployment, client: EngineClient) -> None:
    calm = await outcomes(client, 18, "calm")
    grown = asyncio.create_task(outcomes(client, 18, "grown"))
    await until_running(client, "elastic/model-0")
    await asyncio.to_thread(deployment.scale, 3)
    assert deployment.config.model_actors == 3
    assert await grown == calm

    shrunk = asyncio.create_task(outcomes(client, 18, "shrunk"))
    await until_running(client, "elastic/model-2")
    assert await actor_handle("elastic/model-2").drain.remote(0.0)  # some go on elsewhere
    await asyncio.to_thread(deployment.scale, 1, grace_s=0.0)
    assert await shrunk == calm
    assert list(await balanced(client)) == ["elastic/model-0"]
    assert living_model_actors("elastic") == ["elastic/model-0"]
    assert await outcomes(client, 3, "after") == calm[:3]


async def test_a_lone_client_learns_of_new_actors_and_a_new_scheduler_too(
    deployment: Deployment, client: EngineClient
) -> None:
    await asyncio.to_thread(deployment.scale, 1)
    calm = await outcomes(client, 12, "one")
    await asyncio.to_thread(attach("elastic").scale, 2)  # as another process would
    running = asyncio.create_task(outcomes(client, 12, "two"))
    ray.kill(actor_handle(CONFIG.scheduler_actor), no_restart=False)
    assert await running == calm
    async with asyncio.timeout(30):
        while attach("elastic").config.model_actors != 2:
            await asyncio.sleep(0.1)
    async with asyncio.timeout(60):
        number = 0
        while not (await client.stats())["elastic/model-1"].generated_tokens:
            number += 1
            await outcomes(client, 30, f"more-{number}")
    await balanced(client)


def other_folder(model_folder: Path, folder: Path, change: Callable[[Path], None]) -> Path:
    shutil.copytree(model_folder, folder, symlinks=False, copy_function=_link)
    change(folder)
    return folder


def _link(source: str, target: str) -> None:
    Path(target).symlink_to(Path(source).resolve())


async def test_reloaded_one_by_one_under_load(
    deployment: Deployment, client: EngineClient, model_folder: Path, tmp_path: Path
) -> None:
    await asyncio.to_thread(deployment.scale, 2)
    calm = await outcomes(client, 10, "before")
    before = [actor_handle(f"elastic/model-{n}")._actor_id for n in range(2)]
    same = other_folder(model_folder, tmp_path / "same", lambda folder: None)
    running = asyncio.create_task(outcomes(client, 10, "meanwhile"))
    await until_running(client, "elastic/model-0", "elastic/model-1")
    engine = msgspec.structs.replace(CONFIG.engine, model=str(same), max_num_seqs=8)
    await asyncio.to_thread(deployment.reload, engine, grace_s=0.2)
    assert await running == calm
    assert await outcomes(client, 10, "behind") == calm
    assert not {actor_handle(f"elastic/model-{n}")._actor_id for n in range(2)} & set(before)
    assert deployment.config.engine == engine
    assert client.info.name == str(same)
    await balanced(client)

    # A new scheduler actor knows of it.
    ray.kill(actor_handle(CONFIG.scheduler_actor), no_restart=False)
    assert (await asyncio.to_thread(attach, "elastic")).config.engine == engine


async def test_a_reload_of_a_lone_actor_fails_nothing(
    deployment: Deployment, client: EngineClient
) -> None:
    await asyncio.to_thread(deployment.scale, 1)
    calm = await outcomes(client, 8, "quiet")
    running = asyncio.create_task(outcomes(client, 8, "busy"))
    await until_running(client, "elastic/model-0")
    await asyncio.to_thread(deployment.reload, grace_s=0.0)
    assert await running == calm
    await balanced(client)


async def test_what_cannot_take_its_place_is_refused(
    deployment: Deployment, client: EngineClient, model_folder: Path, tmp_path: Path
) -> None:
    def rewrite(folder: Path) -> None:
        file = folder / "tokenizer.json"
        text = file.read_text()
        file.unlink()
        file.write_text(text + "\n")

    def break_weights(folder: Path) -> None:
        for file in folder.glob("*.safetensors"):
            file.unlink()
            file.write_bytes(b"no weights")

    engine = deployment.config.engine
    actor = actor_handle("elastic/model-0")._actor_id

    def reload(**changes: Any) -> Any:
        new = msgspec.structs.replace(engine, **changes)
        return asyncio.to_thread(deployment.reload, new, grace_s=0.0)

    other = other_folder(model_folder, tmp_path / "other", rewrite)
    with pytest.raises(rr.DeploymentError, match="another tokenizer") as caught:
        await reload(model=str(other))
    assert caught.value.param == "model"
    with pytest.raises(rr.ModelNotFoundError):
        await reload(model="no/such-model")
    assert actor_handle("elastic/model-0")._actor_id == actor
    for count in (0, -1, "2"):
        with pytest.raises(rr.InvalidRequestError, match="model_actors"):
            deployment.scale(count)  # type: ignore[arg-type]

    # These show only when it starts; the one before takes its place again.
    broken = other_folder(model_folder, tmp_path / "broken", break_weights)
    with pytest.raises(rr.RadixRayError, match="0 of 1 model actors had been reloaded"):
        await reload(model=str(broken))
    assert attach("elastic").config.engine == engine
    assert await outcomes(client, 2, "still")


def test_what_was_valid_stays_valid() -> None:
    before = ModelInfo(
        name="m",
        context_length=4096,
        pool_tokens=8192,
        vocab_size=100,
        eos_token_ids=(2,),
        dtype="bfloat16",
        max_queued_requests=10,
    )
    check_same(before, msgspec.structs.replace(before, name="n", pool_tokens=5000))
    for change in ({"pool_tokens": 2048}, {"context_length": 2048}):
        with pytest.raises(rr.DeploymentError, match="2048 tokens") as caught:
            check_same(before, msgspec.structs.replace(before, **change))
        assert caught.value.param == "context_length"
    for other in ({"vocab_size": 99}, {"eos_token_ids": (1,)}):
        with pytest.raises(rr.DeploymentError, match="vocabulary"):
            check_same(before, msgspec.structs.replace(before, **other))


async def test_one_change_at_a_time(deployment: Deployment) -> None:
    scheduler = actor_handle(CONFIG.scheduler_actor)
    assert await scheduler.claim.remote("another", 60.0)
    with pytest.raises(rr.DeploymentError, match="another process"):
        deployment.scale(2)
    await scheduler.claim.remote("another", 0.0)


async def test_deployments_beside_each_other_keep_apart(
    deployment: Deployment, client: EngineClient
) -> None:
    config = msgspec.structs.replace(CONFIG, name="elastic/model-1", model_actors=1)
    other = deploy(config)
    try:
        theirs = await other.connect()
        await asyncio.to_thread(deployment.scale, 1)
        assert list(await theirs.stats()) == ["elastic/model-1/model-0"]
        assert living_model_actors("elastic") == ["elastic/model-0"]
        before = (await client.stats())["elastic/model-0"].generated_tokens
        assert await outcomes(theirs, 2, "theirs")
        assert (await client.stats())["elastic/model-0"].generated_tokens == before
        assert list(await client.stats()) == ["elastic/model-0"]

        # Those that another process adds have no owner, and end with the scheduler actor.
        await asyncio.to_thread(attach(config.name).scale, 2)
        assert len(living_model_actors(config.name)) == 2
        # No request was there, and it has what the other one was asked for.
        tree = (await theirs.cache_tree())[config.model_actor(1)]
        shared = client.tokenizer.encode(SHARED)
        assert any(n.start + n.length >= len(shared) - 2 for n in tree.nodes), tree
        await theirs.close()
        ray.kill(actor_handle(config.scheduler_actor), no_restart=True)
        async with asyncio.timeout(60):
            while living_model_actors(config.name) != ["elastic/model-1/model-0"]:
                await asyncio.sleep(0.1)
    finally:
        other.shutdown()
    assert living_model_actors(config.name) == []
    assert await outcomes(client, 1, "ours")


async def test_one_that_dies_of_its_start_waits_before_the_next(
    deployment: Deployment, client: EngineClient
) -> None:
    await asyncio.to_thread(deployment.scale, 2)
    name = "elastic/model-1"
    before = (await client.stats())[name].restarts
    scheduler = actor_handle(CONFIG.scheduler_actor)
    for deaths in range(1, 3):
        ray.kill(actor_handle(name), no_restart=False)
        async with asyncio.timeout(60):
            while (s := (await client.stats())[name]).restarts < before + deaths or not s.reachable:
                await asyncio.sleep(0.05)
    report = (await client.measure()).scheduler
    assert report is not None and report.restarts[name] == before + 2
    assert await scheduler.starting.remote(name, True) == 1.0  # after 0 and 0.5
    assert await outcomes(client, 2, "then")
