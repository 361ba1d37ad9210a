"""Attention over the KV pool by native.c.

A token attends to the splits of its context: runs of a fixed number of slots, counted from
position 0. Tokens that decode, and those of short extends, go through *runs*: each distinct run of
slots is loaded once for all tokens that attend to it, whichever sequence they belong to, which is
how a prefix shared by many sequences is read once (cascade attention; Hydragen: Juravsky et al.,
2024), and the states of a token's runs are then merged in order. Longer extends go through
*chunks*, which take their tokens over all splits in turn. Both compute the same bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from radixray.kernels.cpu.native import Attention
from radixray.kernels.kv_pool import KVPool

_SHORT = 16
"""Most new tokens of a sequence that go through runs: those can be spread over more threads."""

_WORTH_A_THREAD = 1 << 18
"""Numbers of keys (and of values) to attend to that are worth waking one more thread for."""


@dataclass(frozen=True, slots=True)
class Work:
    """One step's work; all arrays int32, rows as in the structs of native.c.

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


class NativeAttention:
    """The `AttentionBackend` of native.c.

    A token's result depends on its query and on the keys and values of its context, bit for bit:
    not on the batch, on how the context was chunked, or on where it lies in the pool.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._split: int = library.rr_split()
        self._tile: int = library.rr_tile_tokens()
        self._partials = torch.empty(0)
        self._scratch = torch.empty(0)

    def prepare(
        self, query_lens: np.ndarray, num_decode: int, context_slots: Sequence[np.ndarray]
    ) -> Work:
        """See `AttentionBackend.prepare`."""
        runs = _Runs(self._split, self._tile)
        chunks: list[tuple[int, int, int, int]] = []
        token = begin = 0
        for length, slots in zip(query_lens.tolist(), context_slots, strict=True):
            first = len(slots) - length
            if length <= _SHORT:
                runs.add(begin, slots, token, first)
            else:
                chunks += (
                    (begin, token + i, min(self._tile, length - i), first + i)
                    for i in range(0, length, self._tile)
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

    def forward(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out_slots: torch.Tensor,
        pool: KVPool,
        metadata: Work,
    ) -> torch.Tensor:
        """See `AttentionBackend.forward`."""
        tokens, heads, head_dim = q.shape
        kv_heads = k.shape[1]
        q, k, v = _dense_rows(q), _dense_rows(k), _dense_rows(v)
        out = torch.empty((tokens, heads, head_dim), dtype=q.dtype)
        worth = metadata.num_keys * kv_heads * head_dim // _WORTH_A_THREAD
        threads = min(torch.get_num_threads(), 1 + worth)
        state_floats = self._library.rr_state_floats(head_dim)
        scratch_floats = self._library.rr_scratch_floats(head_dim, heads // kv_heads)
        self._partials = _at_least(self._partials, metadata.num_partials * heads * state_floats)
        self._scratch = _at_least(self._scratch, threads * scratch_floats)
        arguments = Attention(
            q=q.data_ptr(),
            k=k.data_ptr(),
            v=v.data_ptr(),
            out=out.data_ptr(),
            k_cache=pool.k[layer].data_ptr(),
            v_cache=pool.v[layer].data_ptr(),
            out_slots=out_slots.data_ptr(),
            slots=metadata.slots.ctypes.data,
            runs=metadata.runs.ctypes.data,
            members=metadata.members.ctypes.data,
            merges=metadata.merges.ctypes.data,
            chunks=metadata.chunks.ctypes.data,
            partials=self._partials.data_ptr(),
            scratch=self._scratch.data_ptr(),
            q_row=q.stride(0),
            k_row=k.stride(0),
            v_row=v.stride(0),
            num_slots=pool.num_slots,
            tokens=tokens,
            num_runs=len(metadata.runs),
            num_merges=len(metadata.merges),
            num_chunks=len(metadata.chunks),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            bf16=q.dtype == torch.bfloat16,
            threads=threads,
        )
        self._library.rr_attention(arguments)
        return out


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


def _dense_rows(x: torch.Tensor) -> torch.Tensor:
    """``[T, heads, head_dim]`` with the numbers of a token next to each other."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()


def _at_least(buffer: torch.Tensor, size: int) -> torch.Tensor:
    return buffer if len(buffer) >= size else torch.empty(size)
