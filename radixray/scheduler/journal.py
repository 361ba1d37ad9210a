"""The last placements and why they were made, so that each can be explained."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from radixray.cache.radix_tree import TokenArray
from radixray.explanation import Candidate, PlacementNote
from radixray.scheduler.divergence import Around, around, told
from radixray.scheduler.fleet import Fleet
from radixray.scheduler.index import Parting
from radixray.scheduler.routing import RECOMPUTE_COST, ActorLoad

MAX_RECORDS = 8192
MAX_BYTES = 32 * 1024 * 1024
"""Of the records' columns; with very many actors, fewer records are kept."""

FEWEST_RECORDS = 64

MOST_SHOWN = 32
"""Candidates of one placement that are told."""


@dataclass(slots=True)
class Record:
    """One placement; columns are by actor number.

    Attributes:
        found: tokens its actor did find; None until it says so.
    """

    at: float
    actor: int
    reason: str
    session: str
    prompt_tokens: int
    predicted: int
    matched: NDArray[np.int32]
    requests: NDArray[np.int32]
    prefill_tokens: NDArray[np.int32]
    up: NDArray[np.bool_]
    divergence: Around | None
    found: int | None = None


class Journal:
    """A ring of Records by request id; a later placement of a request replaces an earlier one.

    Args:
        fleet: whose numbers the records speak of.
        policy: its name.
    """

    def __init__(self, fleet: Fleet, policy: str) -> None:
        self._fleet = fleet
        self._policy = policy
        self._records: OrderedDict[str, Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def add(
        self,
        request_id: str,
        tokens: TokenArray,
        *,
        actor: int,
        reason: str,
        session: str,
        predicted: int,
        matched: NDArray[np.int64],
        parting: Parting | None,
    ) -> None:
        """A placement; to be called before it counts as load."""
        fleet = self._fleet
        self._records.pop(request_id, None)
        self._records[request_id] = Record(
            time.time(),
            actor,
            reason,
            session,
            len(tokens),
            predicted,
            matched.astype(np.int32),
            fleet.requests.astype(np.int32),
            fleet.prefill_tokens.astype(np.int32),
            fleet.up.copy(),
            None if parting is None else around(tokens, parting),
        )
        most = max(FEWEST_RECORDS, min(MAX_RECORDS, MAX_BYTES // (13 * len(fleet) + 1024)))
        while len(self._records) > most:
            self._records.popitem(last=False)

    def get(self, request_id: str) -> Record | None:
        """The last placement of a request, if it is still remembered."""
        return self._records.get(request_id)

    def note(self, request_id: str) -> PlacementNote | None:
        """The same, to tell."""
        record = self._records.get(request_id)
        if record is None:
            return None
        names = self._fleet.names
        loads = [
            ActorLoad(int(requests), int(prefill))
            for requests, prefill in zip(record.requests, record.prefill_tokens, strict=True)
        ]

        def work(number: int) -> tuple[bool, int, bool]:
            cost = loads[number].cost - RECOMPUTE_COST * int(record.matched[number])
            return number != record.actor, cost, not record.up[number]

        order = sorted(range(len(loads)), key=work)
        return PlacementNote(
            at=record.at,
            policy=self._policy,
            actor=names[record.actor],
            reason=record.reason,
            session=record.session,
            prompt_tokens=record.prompt_tokens,
            predicted=record.predicted,
            found=record.found,
            candidates=[
                Candidate(
                    actor=names[number],
                    matched=int(record.matched[number]),
                    requests=loads[number].requests,
                    prefill_tokens=loads[number].prefill_tokens,
                    up=bool(record.up[number]),
                )
                for number in order[:MOST_SHOWN]
            ],
            left_out=max(0, len(order) - MOST_SHOWN),
            divergence=None if record.divergence is None else told(record.divergence),
        )
