"""Gathering what scheduler and model actors remember of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from ray.exceptions import RayError

from radixray.actors.handles import actor_handle
from radixray.explanation import Explanation, HitNote, PlacementNote, explanation_of
from radixray.tokenizer.tokenizer import Tokenizer

NoteT = TypeVar("NoteT")

TIMEOUT_S = 5.0
"""For each actor."""


async def gather(
    request_id: str, scheduler: Any, names: Sequence[str], tokenizer: Tokenizer
) -> Explanation:
    """See `Explains.explain`.

    Args:
        names: of the model actors.
    """
    placement = await _asked(scheduler.explain.remote(request_id), PlacementNote)
    asked = list(names) if placement is None else [placement.actor]
    hits = await asyncio.gather(*(_hit(name, request_id) for name in asked))
    found = [(name, hit) for name, hit in zip(asked, hits, strict=True) if hit is not None]
    # Of several actors that knew it, the last is the one it got to.
    actor, hit = max(found, key=lambda each: each[1].at) if found else (asked[0], None)
    return explanation_of(request_id, actor, placement, hit, tokenizer.decode)


async def _hit(name: str, request_id: str) -> HitNote | None:
    try:
        handle = actor_handle(name)
    except ValueError:  # it is no more
        return None
    return await _asked(handle.explain.remote(request_id), HitNote)


async def _asked(call: Any, kind: type[NoteT]) -> NoteT | None:
    try:
        raw = await asyncio.wait_for(call, TIMEOUT_S)
    except (RayError, TimeoutError):
        return None
    return msgspec.msgpack.decode(raw, type=kind | None)
