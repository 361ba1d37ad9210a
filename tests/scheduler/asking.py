"""A request for a policy, from plain numbers."""

from __future__ import annotations

import numpy as np

from radixray.scheduler.policies import Ask
from radixray.scheduler.routing import ActorLoad


def ask(
    tokens: int,
    matched: list[int],
    loads: list[ActorLoad],
    *,
    numbers: list[int] | None = None,
    session: str = "",
    held: list[int] | None = None,
    shared: int = 0,
) -> Ask:
    rows = list(range(len(loads))) if numbers is None else numbers
    return Ask(
        np.arange(tokens, dtype=np.int32),
        session,
        shared,
        np.array(rows, np.int64),
        np.array(matched, np.int64),
        np.array([load.cost for load in loads], np.int64),
        np.array([load.requests for load in loads], np.int64),
        lambda number: 0 if held is None else held[rows.index(number)],
    )
