"""Filling the cache of a new model actor with what is asked for most, ahead of requests."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from radixray.actors.consumers import Consumers
from radixray.actors.wire import HotPrefix
from radixray.namespaces import salt_of
from radixray.protocol import GenerateRequest, ModelInfo, SamplingParams

MAX_TOKENS = 8192
"""Most tokens that are computed ahead; and never more than a quarter of the pool."""

WARM_S = 30.0
"""What is not computed by then is left to the requests."""


def budget_of(pool_tokens: int) -> int:
    """Tokens to warm a cache with."""
    return min(MAX_TOKENS, pool_tokens // 4)


def hottest(held: Iterable[Sequence[HotPrefix]]) -> list[HotPrefix]:
    """What model actors hold, in one list, the hottest first."""
    hits: dict[tuple[str, bytes], int] = {}
    for prefix in (each for one in held for each in one):
        key = (prefix.cache_salt, prefix.tokens)
        hits[key] = hits.get(key, 0) + prefix.hits
    order = sorted(hits.items(), key=lambda item: item[1], reverse=True)
    return [HotPrefix(salt, tokens, count) for (salt, tokens), count in order]


def with_salts(found: Iterable[tuple[str, bytes, int]]) -> list[HotPrefix]:
    """Namespaces, tokens and hits as prefixes; what needs more than tokens to compute is left."""
    salted = ((salt_of(namespace), tokens, hits) for namespace, tokens, hits in found)
    return [HotPrefix(salt, tokens, hits) for salt, tokens, hits in salted if salt is not None]


async def warm_up(
    prefixes: Iterable[HotPrefix],
    info: ModelInfo,
    consumers: Consumers,
    submit: Callable[[GenerateRequest], None],
) -> int:
    """Computes prefixes, in order, as far as the budget goes; how many tokens that were.

    Args:
        consumers: of the model actor.
        submit: gives a request to its engine.
    """
    consumer_id = f"warm-up-{uuid.uuid4().hex}"
    consumer = consumers.get(consumer_id)
    left, tokens, asked = budget_of(info.pool_tokens), 0, 0
    for prefix in prefixes:
        prompt_ids = np.frombuffer(prefix.tokens, np.int32).tolist()
        if not 0 < len(prompt_ids) <= min(left, info.max_sequence_tokens - 1):
            continue
        left -= len(prompt_ids)
        tokens += len(prompt_ids)
        asked += 1
        request = GenerateRequest(
            request_id=f"{consumer_id}-{asked}",
            prompt_ids=prompt_ids,
            sampling=SamplingParams(max_tokens=1, temperature=0),
            cache_salt=prefix.cache_salt,
        )
        consumers.own(consumer_id, request.request_id)
        submit(request)
    try:
        async with asyncio.timeout(WARM_S):
            while asked and (batch := await consumer.next_batch()) is not None:
                asked -= sum(delta.finish_reason is not None for delta in batch)
                consumers.get(consumer_id)
    except TimeoutError:
        pass
    return tokens
