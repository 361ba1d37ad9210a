"""Attention over the KV pool by native_attention.c; `kernels.cpu.work` says how it is cut."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from radixray.kernels.cpu.native import Attention
from radixray.kernels.cpu.work import Work, dense_rows, plan_work
from radixray.kernels.kv_pool import KVPool

_WORTH_A_THREAD = 1 << 18
"""Numbers of keys (and of values) to attend to that are worth waking one more thread for."""


class NativeAttention:
    """The `AttentionBackend` of native_attention.c.

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
        return plan_work(query_lens, context_slots, self._split, self._tile)

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
        q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
        out = torch.empty((tokens, heads, head_dim), dtype=q.dtype)
        worth = metadata.num_keys * k.shape[1] * head_dim // _WORTH_A_THREAD
        threads = min(torch.get_num_threads(), 1 + worth)
        arguments = self.arguments(layer, q, k, v, out, out_slots, pool, metadata, threads)
        self._library.rr_attention(arguments)
        return out

    def arguments(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        out_slots: torch.Tensor,
        pool: KVPool,
        metadata: Work,
        threads: int,
    ) -> Attention:
        """The arguments of a call, valid until the next ones are made; tensors with dense rows."""
        tokens, heads, head_dim = q.shape
        kv_heads = k.shape[1]
        state_floats = self._library.rr_state_floats(head_dim)
        scratch_floats = self._library.rr_scratch_floats(head_dim, heads // kv_heads)
        self._partials = _at_least(self._partials, metadata.num_partials * heads * state_floats)
        self._scratch = _at_least(self._scratch, threads * scratch_floats)
        return Attention(
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


def _at_least(buffer: torch.Tensor, size: int) -> torch.Tensor:
    return buffer if len(buffer) >= size else torch.empty(size)
