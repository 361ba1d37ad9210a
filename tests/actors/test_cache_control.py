"""Pins, flush and the tree of a model actor, over Ray."""

from __future__ import annotations

import numpy as np
import pytest

import radixray as rr
from radixray.actors.handles import actor_handle
from radixray.actors.wire import decode_cache_tree, decode_pin_report
from radixray.namespaces import namespace_of
from radixray.protocol import GenerateRequest, SamplingParams

PROMPT = list(range(300, 340))
BYTES = np.array(PROMPT, np.int32).tobytes()
NAMESPACE = namespace_of("smollm2-135m")


async def test_pin_flush_and_tree(runtime: rr.Runtime) -> None:
    transport = await runtime.transport()
    request = GenerateRequest(
        request_id="to-pin", prompt_ids=PROMPT, sampling=SamplingParams(max_tokens=0)
    )
    async for _ in transport.generate(request):
        pass
    handles = [actor_handle(f"default/model-{i}") for i in range(2)]
    reports = [decode_pin_report(await h.pin.remote("me", NAMESPACE, BYTES, 60)) for h in handles]
    held = [report.tokens for report in reports]
    assert sorted(held) == [0, len(PROMPT)]
    holder = handles[held.index(len(PROMPT))]
    with pytest.raises(rr.InvalidRequestError, match="ttl_s"):
        await holder.pin.remote("me", NAMESPACE, BYTES, -1)

    await holder.flush.remote()
    (node,) = decode_cache_tree(await holder.cache_tree.remote()).nodes
    assert (node.length, node.holders, node.head[:2]) == (40, ["pin of me"], PROMPT[:2])

    await holder.leave.remote("me")  # as the reaper would
    assert await holder.flush.remote() == len(PROMPT)
    assert decode_cache_tree(await holder.cache_tree.remote()).nodes == []
    assert await holder.unpin.remote("me") == 0
