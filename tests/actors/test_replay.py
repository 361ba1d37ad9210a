"""Model actors are killed in the middle of all that they can do; nothing that comes out changes.

RADIXRAY_CHAOS_STREAMS and RADIXRAY_CHAOS_KILLS make it longer (`make chaos`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
import ray
from ray.exceptions import RayError

from radixray.actors.deployment import Deployment, deploy
from radixray.actors.engine_client import EngineClient
from radixray.actors.handles import actor_handle
from radixray.actors.replay import Replay
from radixray.config import DeploymentConfig, EngineConfig
from radixray.constraint import Constraint
from radixray.errors import DeadlineExceededError, EngineDiedError, PoisonedRequestError
from radixray.protocol import (
    Delta,
    GenerateRequest,
    Request,
    SamplingParams,
    ScoreRequest,
    join_deltas,
)

STREAMS = int(os.environ.get("RADIXRAY_CHAOS_STREAMS", "60"))
KILLS = int(os.environ.get("RADIXRAY_CHAOS_KILLS", "4"))

CONFIG = DeploymentConfig(
    name="replay",
    model_actors=3,
    # Killed at random moments, actors often die while they compute a request alone.
    poisoned_after=6,
    engine=EngineConfig(max_total_tokens=16_384, cpu_threads=1, check_invariants=True),
)
NAMES = [CONFIG.model_actor(i) for i in range(CONFIG.model_actors)]
SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 30}, "age": '
    '{"type": "integer", "maximum": 200}, "tags": {"type": "array", "maxItems": 4, "items": '
    '{"enum": ["a fairly long tag", "another long tag"]}}}, "required": ["name", "age", "tags"], '
    '"additionalProperties": false}'
)


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


def sampled(seed: int | None, **settings: Any) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=120, ignore_eos=True, **settings)


KINDS: list[tuple[SamplingParams, Constraint | None, bool]] = [
    (SamplingParams(temperature=0, max_tokens=150, ignore_eos=True), None, False),
    (sampled(7, frequency_penalty=0.5, presence_penalty=0.5), None, False),
    (sampled(8, top_p=0.9, top_k=50, logprobs=2), None, False),
    (sampled(9, stop=("and then she said", "\n\n\n", "e of the th"), min_tokens=9), None, False),
    (sampled(10), Constraint(regex=r"(?:Step [0-9]{1,2}: [a-z ]{20,60}\n){3,6}"), False),
    (sampled(11, logprobs=1), Constraint(regex=r"(?:<item>[a-z]{5,9}</item>\n){9}"), False),
    (sampled(12), Constraint(json_schema=SCHEMA), False),
    (SamplingParams(temperature=0, max_tokens=90, ignore_eos=True), None, True),
]  # fmt: skip


def requests_of(client: EngineClient, count: int, name: str) -> list[Request]:
    """All kinds in turn; some prompts have a beginning in common."""
    rng = random.Random(5)
    made: list[Request] = []
    for number in range(count):
        topic = rng.choice(["rivers", "the moon", "a small town", "bread"])
        prompt = f"A story for children about {topic}, number {number % 9}.\n\nOnce"
        prompt_ids = client.tokenizer.encode(prompt)
        request_id = f"{name}-{number}"
        sampling, constraint, whole = KINDS[number % len(KINDS)]
        if number % 10 == 9:
            choices = [client.tokenizer.encode(text) for text in (" upon a time", " there was")]
            made.append(ScoreRequest(request_id=request_id, prompt_ids=prompt_ids, choices=choices))
        else:
            made.append(
                GenerateRequest(
                    request_id=request_id,
                    prompt_ids=prompt_ids,
                    sampling=sampling,
                    constraint=constraint,
                    whole=whole,
                )
            )
    return made


async def outcome(client: EngineClient, request: Request) -> Any:
    """All that came, in one; what depends on caches, as it may, is left out."""
    if isinstance(request, ScoreRequest):
        return (await client.score(request)).logprobs
    deltas: list[Delta] = []
    async for delta in client.generate(request):
        assert delta.index == sum(len(d.token_ids) for d in deltas)
        deltas.append(delta)
    joined = join_deltas(deltas)
    assert joined.usage is not None
    assert joined.usage.completion == len(joined.token_ids)
    assert joined.usage.jumped == joined.jumped
    joined.usage.cached = 0
    return msgspec.structs.replace(joined, request_id="")


async def kill(name: str) -> None:
    """SIGKILL, as the kernel sends it when memory is short."""
    handle = actor_handle(name)
    with contextlib.suppress(RayError):  # it is being started again
        pid = await asyncio.wait_for(handle.__ray_call__.remote(lambda _: os.getpid()), 10)
        os.kill(pid, signal.SIGKILL)


async def up(client: EngineClient) -> None:
    """Until all actors answer."""
    async with asyncio.timeout(120):
        while not all(stats.reachable for stats in (await client.stats()).values()):
            await asyncio.sleep(0.2)


async def test_nothing_changes_when_actors_die(client: EngineClient) -> None:
    undisturbed = await asyncio.gather(
        *(outcome(client, request) for request in requests_of(client, STREAMS, "calm"))
    )
    disturbed = asyncio.gather(
        *(outcome(client, request) for request in requests_of(client, STREAMS, "chaos"))
    )
    rng = random.Random(11)
    kills = 0
    while kills < KILLS and not disturbed.done():
        await asyncio.sleep(rng.uniform(0.2, 2.0))
        await kill(rng.choice(NAMES))
        kills += 1
        if kills in (KILLS // 3, 2 * KILLS // 3):
            with contextlib.suppress(RayError):
                ray.kill(actor_handle(CONFIG.scheduler_actor), no_restart=False)
    assert kills >= min(KILLS, 3), "the streams ended before the actors were killed"
    async with asyncio.timeout(600):
        for got, wanted in zip(await disturbed, undisturbed, strict=True):
            assert got == wanted
    await up(client)
    for stats in (await client.stats()).values():
        assert (stats.running, stats.waiting, stats.pages_leased) == (0, 0, 0)
        assert stats.pages_free + stats.pages_tree == stats.pages_total
        assert stats.ledger_violations == 0


def generation(client: EngineClient, name: str, **settings: Any) -> GenerateRequest:
    sampling = {"temperature": 0, "max_tokens": 2000, "ignore_eos": True} | settings
    prompt_ids = client.tokenizer.encode("Once upon a time")
    return GenerateRequest(
        request_id=name, prompt_ids=prompt_ids, sampling=SamplingParams(**sampling)
    )


async def test_a_request_that_kills_is_given_up(client: EngineClient) -> None:
    """It does not matter how it does that; here, we kill whoever has taken it into a batch."""
    await up(client)
    client.config = msgspec.structs.replace(CONFIG, poisoned_after=2)
    poison = generation(client, "poison")
    poison = msgspec.structs.replace(poison, prompt_ids=poison.prompt_ids * 1500)
    running = asyncio.create_task(outcome(client, poison))
    deaths = 0
    while not running.done():
        for name, stats in (await client.stats()).items():
            if stats.running:
                await asyncio.sleep(0.3)  # its caller hears that it has begun
                await kill(name)
                deaths += 1
        await asyncio.sleep(0.01)
    with pytest.raises(PoisonedRequestError, match="poison"):
        await running
    # The first may have died of another; one more, of which its caller heard too late, may be.
    assert 3 <= deaths <= 5
    assert (
        await outcome(client, generation(client, "well", max_tokens=5))
    ).finish_reason == "length"


async def test_limits(deployment: Deployment, client: EngineClient) -> None:
    await up(client)
    other = await deployment.connect()
    other.config = msgspec.structs.replace(CONFIG, max_replays=0)
    try:
        running = asyncio.create_task(outcome(other, generation(client, "fragile")))
        while not running.done():
            for name, stats in (await client.stats()).items():
                if stats.running:
                    await kill(name)
            await asyncio.sleep(0.05)
        with pytest.raises(EngineDiedError):
            await running
    finally:
        await other.close()


async def test_when_to_give_up() -> None:
    """The rules, without actors."""
    died = EngineDiedError("died")
    request = GenerateRequest(
        request_id="r", prompt_ids=[1], sampling=SamplingParams(max_tokens=9), timeout_s=3600
    )
    token = Delta(request_id="r", token_ids=[5], text="a")
    begun = Delta(request_id="r")

    replay = Replay(request, CONFIG)
    first = replay.request()
    assert isinstance(first, GenerateRequest) and first.attempt == 0 and first.emitted is None
    for number in range(3):  # with a token between deaths it may go on
        assert replay.take(token)
        await replay.survive(died)
        again = replay.request()
        assert isinstance(again, GenerateRequest) and again.emitted is not None
        assert (again.attempt, again.emitted.token_ids) == (number + 1, [5] * (number + 1))
        assert again.emitted.text_length == number + 1
        assert again.sampling.seed == first.sampling.seed is not None
        assert again.timeout_s is not None and again.timeout_s < 3600
    config = msgspec.structs.replace(CONFIG, poisoned_after=2)
    replay = Replay(request, config)
    for _ in range(4):  # it shared a batch at first, and then was never in one
        await replay.survive(died)
    assert not replay.take(begun)
    await replay.survive(died)
    assert not replay.take(begun) and replay.take(token)
    await replay.survive(died)  # it was not alone any more
    for _ in range(2):
        assert not replay.take(begun)
        with contextlib.nullcontext() if _ == 0 else pytest.raises(PoisonedRequestError):
            await replay.survive(died)

    replay = Replay(request, msgspec.structs.replace(CONFIG, max_replays=1))
    await replay.survive(died)
    with pytest.raises(EngineDiedError, match="max_replays=1"):
        await replay.survive(died)

    replay = Replay(request, msgspec.structs.replace(CONFIG, replay_timeout_s=0))
    with pytest.raises(EngineDiedError, match="replay_timeout_s=0"):
        await replay.survive(died)

    replay = Replay(msgspec.structs.replace(request, timeout_s=0.01), CONFIG)
    await replay.survive(died)
    await asyncio.sleep(0.02)
    with pytest.raises(DeadlineExceededError):
        replay.request()
