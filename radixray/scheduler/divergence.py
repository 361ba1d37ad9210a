"""Where a prompt leaves what is cached, small enough to be kept for every request."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from radixray.cache.radix_tree import TokenArray
from radixray.explanation import Divergence
from radixray.scheduler.index import Parting, token_array

BEFORE_TOKENS = 8
AFTER_TOKENS = 16


class Around(NamedTuple):
    """The tokens around a parting, as int32 bytes of their own: a view would keep all alive."""

    position: int
    before: bytes
    prompt: bytes
    cached: bytes


def around(tokens: TokenArray, parting: Parting) -> Around:
    """What to keep of where `tokens` leaves what is cached."""
    at = parting.position
    return Around(
        at,
        tokens[max(0, at - BEFORE_TOKENS) : at].tobytes(),
        tokens[at : at + AFTER_TOKENS].tobytes(),
        np.asarray(parting.cached[:AFTER_TOKENS], np.int32).tobytes(),
    )


def told(kept: Around) -> Divergence:
    """The same, to tell."""
    before, prompt, cached = (token_array(raw).tolist() for raw in kept[1:])
    return Divergence(position=kept.position, before=before, prompt=prompt, cached=cached)
