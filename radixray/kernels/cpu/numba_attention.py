"""Attention over the KV pool by numba: native_attention.c's algorithm where there is no C compiler.

The work is cut the same way (`kernels.cpu.work`), and bits stay equal for the same reasons: see the
top of native_attention.c. Products of bfloat16 are of floats here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from radixray.kernels.cpu.numba_attend import (
    BLOCK,
    SPLIT,
    TILE_TOKENS,
    Step,
    attend_unit,
    make_step,
    make_tile,
    merge_token,
    row_width,
    tile_words,
)
from radixray.kernels.cpu.numba_jit import FLOAT, HALF, WORD, inlined, kernel, most_threads, run
from radixray.kernels.cpu.numba_vectors import pointer, take_number
from radixray.kernels.cpu.work import Work, dense_rows, plan_work
from radixray.kernels.kv_pool import KVPool

_WORTH_A_THREAD = 1 << 18
"""Numbers of keys (and of values) to attend to that are worth waking one more thread for."""


@inlined
def _write_tokens(arguments, like, thread, threads):
    """New keys and values to the pool."""
    s = make_step(arguments, like)
    for token in range(s.tokens * thread // threads, s.tokens * (thread + 1) // threads):
        for head in range(s.kv_heads):
            to = (head * s.num_slots + s.out_slots[token]) * s.head_dim
            key, value = token * s.k_row + head * s.head_dim, token * s.v_row + head * s.head_dim
            for d in range(s.head_dim):
                s.k_cache[to + d] = s.k[key + d]
                s.v_cache[to + d] = s.v[value + d]


@inlined
def _attend_units(arguments, like, thread):
    """Runs and chunks, the next one that nobody has taken, until none is left."""
    s = make_step(arguments, like)
    t = make_tile(s.memory + thread * s.memory_bytes, _rows(s), s.width)
    for i in range(BLOCK * s.width):
        t.values[i] = np.float32(0)  # lanes beyond head_dim stay 0
    units = (s.num_runs + s.num_chunks) * s.kv_heads
    while True:
        number = take_number(pointer(s.counter, WORD))
        if number >= units:
            break
        attend_unit(s, t, number // s.kv_heads, number % s.kv_heads)


@inlined
def _merge_units(arguments, like, thread, threads):
    s = make_step(arguments, like)
    t = make_tile(s.memory + thread * s.memory_bytes, _rows(s), s.width)
    units = s.num_merges * s.kv_heads
    for unit in range(units * thread // threads, units * (thread + 1) // threads):
        merge_token(s, t, unit // s.kv_heads, unit % s.kv_heads)


@inlined
def _rows(step):
    return TILE_TOKENS * (step.heads // step.kv_heads)


@kernel
def _write_floats(arguments, thread, threads):
    _write_tokens(arguments, FLOAT, thread, threads)


@kernel
def _write_halves(arguments, thread, threads):
    _write_tokens(arguments, HALF, thread, threads)


@kernel
def _attend_floats(arguments, thread, threads):
    _attend_units(arguments, FLOAT, thread)


@kernel
def _attend_halves(arguments, thread, threads):
    _attend_units(arguments, HALF, thread)


@kernel
def _merge_floats(arguments, thread, threads):
    _merge_units(arguments, FLOAT, thread, threads)


@kernel
def _merge_halves(arguments, thread, threads):
    _merge_units(arguments, HALF, thread, threads)


_KERNELS = {
    torch.float32: [_write_floats, _attend_floats, _merge_floats],
    torch.bfloat16: [_write_halves, _attend_halves, _merge_halves],
}


class NumbaAttention:
    """The `AttentionBackend` of this module; its promise is `NativeAttention`'s."""

    def __init__(self) -> None:
        self._partials = np.empty(0, np.float32)
        self._memory = np.empty(0, np.int32)

    def prepare(
        self, query_lens: np.ndarray, num_decode: int, context_slots: Sequence[np.ndarray]
    ) -> Work:
        """See `AttentionBackend.prepare`."""
        return plan_work(query_lens, context_slots, SPLIT, TILE_TOKENS)

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
        q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
        out = torch.empty((tokens, heads, head_dim), dtype=q.dtype)
        width = row_width(head_dim)
        words_each = tile_words(TILE_TOKENS * heads // kv_heads, width)
        self._partials = _at_least(self._partials, metadata.num_partials * heads * (2 + width))
        worth = metadata.num_keys * kv_heads * head_dim // _WORTH_A_THREAD
        threads = most_threads(1 + worth)
        self._memory = _at_least(self._memory, threads * words_each)
        counter = np.zeros(1, np.int64)
        step = Step(
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            out.data_ptr(),
            pool.k[layer].data_ptr(),
            pool.v[layer].data_ptr(),
            out_slots.data_ptr(),
            metadata.slots.ctypes.data,
            metadata.runs.ctypes.data,
            metadata.members.ctypes.data,
            metadata.merges.ctypes.data,
            metadata.chunks.ctypes.data,
            self._partials.ctypes.data,
            q.stride(0),
            k.stride(0),
            v.stride(0),
            pool.num_slots,
            tokens,
            len(metadata.runs),
            len(metadata.merges),
            len(metadata.chunks),
            heads,
            kv_heads,
            head_dim,
            width,
            self._memory.ctypes.data,
            4 * words_each,
            counter.ctypes.data,
            0,
        )
        run(_KERNELS[q.dtype], np.array(step, np.int64), threads)
        return out


def _at_least(buffer: np.ndarray, size: int) -> np.ndarray:
    return buffer if len(buffer) >= size else np.empty(size, buffer.dtype)
