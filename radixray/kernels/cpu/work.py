"""Cutting the attention of a step to pieces of work whose results do not depend on the cut.

A token attends to the splits of its context: runs of a fixed number of slots, counted from
position 0. Tokens that decode, and those of short extends, go through *runs*: each distinct run of
slots is loaded once for all tokens that attend to it, whichever sequence they belong to, which is
how a prefix shared by many sequences is read once (cascade attention; Hydragen: Juravsky et al.,
2024), and the states of a token's runs are then merged in order. Longer extends go through
*chunks*, which take their tokens over all splits in turn. Both compute the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

_SHORT = 16
"""Most new tokens of a sequence that go through runs: those can be spread over more threads."""


@dataclass(frozen=True, slots=True)
class Work:
    """One step's work; all arrays int32, rows as in the structs of native.h.

    Attributes:
        slots: ``[sum of contexts]``.
        runs: ``[runs, 4]``.
        members: ``[members, 3]``.
        merges: ``[tokens in runs, 3]``.
        chunks: ``[chunks, 4]``.
        num_partials: closed states that the runs leave.
        num_keys: keys to load, for all runs and chunks.
    """

    slots: np.ndarray
    runs: np.ndarray
    members: np.ndarray
    merges: np.ndarray
    chunks: np.ndarray
    num_partials: int
    num_keys: int


def plan_work(
    query_lens: np.ndarray, context_slots: Sequence[np.ndarray], split: int, tile: int
) -> Work:
    """Cut a step; for the arguments, see `AttentionBackend.prepare`.

    Args:
        split: slots of a run.
        tile: most tokens of a run or a chunk.
    """
    runs = _Runs(split, tile)
    chunks: list[tuple[int, int, int, int]] = []
    token = begin = 0
    for length, slots in zip(query_lens.tolist(), context_slots, strict=True):
        first = len(slots) - length
        if length <= _SHORT:
            runs.add(begin, slots, token, first)
        else:
            chunks += (
                (begin, token + i, min(tile, length - i), first + i) for i in range(0, length, tile)
            )
        token += length
        begin += len(slots)
    # Threads take work in this order: the most first, so that they end together.
    chunks.sort(key=lambda chunk: -chunk[3])
    return Work(
        slots=np.concatenate(context_slots, dtype=np.int32),
        **runs.arrays(),
        chunks=_int32(chunks, 4),
        num_partials=runs.num_partials,
        num_keys=runs.num_keys + sum(chunk[2] + chunk[3] for chunk in chunks),
    )


class _Runs:
    """Collects the runs of a step; those with the same slots become one."""

    def __init__(self, split: int, tile: int) -> None:
        self._split = split
        self._tile = tile
        self._runs: list[tuple[int, int]] = []
        self._members: list[list[tuple[int, int, int]]] = []
        self._merges: list[tuple[int, int, int]] = []
        self._open: dict[bytes, int] = {}
        """Slots of a run to its index; the newest, where a full one was followed by another."""
        self.num_partials = 0
        self.num_keys = 0

    def add(self, begin: int, slots: np.ndarray, token: int, position: int) -> None:
        """The tokens from `token` on, whose sequence's slots are at `begin` in `Work.slots`.

        Args:
            slots: int32 ``[context]``, of which the new tokens are the last.
            position: of the first new token.
        """
        first_partials = []
        for i, end in enumerate(range(position + 1, len(slots) + 1)):
            count = -(-end // self._split)
            first_partials.append(self.num_partials)
            self._merges.append((token + i, self.num_partials, count))
            self.num_partials += count
        for index, at in enumerate(range(0, len(slots), self._split)):
            run_slots = slots[at : at + self._split]
            for i, first_partial in enumerate(first_partials):
                visible = min(position + i + 1 - at, len(run_slots))
                if visible > 0:
                    members = self._members_of(run_slots, begin + at)
                    members.append((token + i, visible, first_partial + index))

    def _members_of(self, slots: np.ndarray, begin: int) -> list[tuple[int, int, int]]:
        key = slots.tobytes()
        run = self._open.get(key)
        if run is None or len(self._members[run]) == self._tile:
            run = self._open[key] = len(self._runs)
            self._runs.append((begin, len(slots)))
            self._members.append([])
            self.num_keys += len(slots)
        return self._members[run]

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of `Work` of these names; runs with the most to do first."""
        order = sorted(
            range(len(self._runs)), key=lambda i: -self._runs[i][1] * (2 + len(self._members[i]))
        )
        runs, members = [], []
        for i in order:
            runs.append((*self._runs[i], len(members), len(self._members[i])))
            members += self._members[i]
        return {
            "runs": _int32(runs, 4),
            "members": _int32(members, 3),
            "merges": _int32(self._merges, 3),
        }


def _int32(rows: list[tuple[int, ...]], columns: int) -> np.ndarray:
    return np.array(rows, dtype=np.int32).reshape(len(rows), columns)


def dense_rows(x: torch.Tensor) -> torch.Tensor:
    """``[T, heads, head_dim]`` with the numbers of a token next to each other."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
