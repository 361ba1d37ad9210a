"""Explanations over real Ray: with two model actors, and where the scheduler is not asked."""

from __future__ import annotations

import uuid

import pytest

import radixray as rr
from radixray.actors.deployment import deploy
from radixray.actors.engine_client import EngineClient
from radixray.actors.transport import Transport
from radixray.config import DeploymentConfig, EngineConfig
from radixray.protocol import GenerateRequest, SamplingParams


async def ask(transport: Transport, text: str) -> tuple[str, int]:
    """Runs a request; its id, and the prompt tokens it found cached by its own usage."""
    request = GenerateRequest(
        request_id=f"explained-{uuid.uuid4().hex}",
        prompt_ids=transport.tokenizer.encode(text),
        sampling=SamplingParams(max_tokens=2, temperature=0, ignore_eos=True),
    )
    cached = 0
    async for delta in transport.generate(request):
        cached = delta.usage.cached if delta.usage is not None else cached
    return request.request_id, cached


HEAD = "Report of the lighthouse keeper on the northern shore, written at "


async def test_where_a_request_went_and_where_it_left_the_cache(runtime: rr.Runtime) -> None:
    transport = await runtime.transport()
    first, _ = await ask(transport, f"{HEAD}09:14. The sea was calm.")
    second, cached = await ask(transport, f"{HEAD}17:52. The sea was calm.")
    cold, warm = await runtime.explain(first), await runtime.explain(second)
    assert cold.placement is not None and cold.hit is not None
    assert (cold.placement.reason, cold.hit.cached) == ("load", 0)
    assert warm.placement is not None and warm.hit is not None
    assert warm.actor == cold.actor
    assert warm.placement.reason == "prefix"
    assert {c.actor for c in warm.placement.candidates} == {"default/model-0", "default/model-1"}
    # What it says it found is what its usage said, and what was predicted.
    assert warm.hit.cached == warm.placement.predicted == warm.placement.found == cached > 5
    shared = len(transport.tokenizer.encode(HEAD))
    for note in (warm.hit, warm.placement):
        assert note.divergence is not None
        assert abs(note.divergence.position - shared) <= 2
        assert note.divergence.prompt_text is not None and "7:52" in note.divergence.prompt_text
        assert note.divergence.cached_text is not None and "9:14" in note.divergence.cached_text
        assert note.divergence.before_text is not None
        assert "written at" in note.divergence.before_text
    assert "differs from the nearest prefix that this actor had cached" in " ".join(warm.why)
    with pytest.raises(rr.InvalidRequestError, match="nothing is known of request 'never'"):
        await runtime.explain("never")


async def test_predictions_are_compared(runtime: rr.Runtime) -> None:
    transport = await runtime.transport()
    config = runtime.config
    assert isinstance(transport, EngineClient)

    async def counts() -> tuple[int, int, int]:
        scheduler = (await transport.measure()).scheduler
        assert scheduler is not None
        assert set(scheduler.predictions) == {config.model_actor(0), config.model_actor(1)}
        each = scheduler.predictions.values()
        return (
            sum(p.requests for p in each),
            sum(p.predicted_tokens for p in each),
            sum(p.found_tokens for p in each),
        )

    before = await counts()
    _, first = await ask(transport, "Predictions are compared with what was found.")
    _, second = await ask(transport, "Predictions are compared with what was found. Always.")
    after = await counts()
    assert after[0] - before[0] == 2
    assert after[2] - before[2] == first + second
    assert after[1] - before[1] == first + second  # nothing was evicted meanwhile


async def test_with_one_model_actor_nobody_asks_the_scheduler(runtime: rr.Runtime) -> None:
    """The model actor itself remembers."""
    engine = EngineConfig(max_total_tokens=4096, cpu_threads=1)
    deployment = deploy(DeploymentConfig(name="lone", engine=engine))
    client = await deployment.connect()
    try:
        await ask(client, "A lone actor knows, too: blue.")
        second, cached = await ask(client, "A lone actor knows, too: green.")
        found = await client.explain(second)
        assert found.placement is None and found.hit is not None
        assert (found.actor, found.hit.cached) == ("lone/model-0", cached)
        assert found.hit.divergence is not None
        assert found.hit.divergence.cached_text is not None
        assert found.hit.divergence.cached_text.strip().startswith("blue")
        assert found.hit.divergence.prompt_text is not None
        assert found.hit.divergence.prompt_text.strip().startswith("green")
        assert "no choice among model actors is remembered" in found.why[0]
    finally:
        await client.close()
        deployment.shutdown()
