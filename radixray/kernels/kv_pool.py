"""The KV pool: one slot per token, for every layer and KV head."""

from __future__ import annotations

import torch


class KVPool:
    """Keys and values of all cached tokens, allocated once.

    A slot holds one token's keys and values in every layer. Which sequence owns which slots is
    not the pool's business: kernels get slot lists. This is paged attention (Kwon et al., 2023,
    "Efficient Memory Management for Large Language Model Serving with PagedAttention") with the
    page table flattened to tokens, so that any page size uses the same kernel.

    The layout is head-major: one KV head's rows lie next to each other, which is what an attention
    kernel that works head by head reads.

    Attributes:
        k: keys, after rotary embedding, ``[layer, kv_head, slot, head_dim]``.
        v: values, same shape.
        num_slots: tokens the pool holds.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_slots: int,
        dtype: torch.dtype,
    ) -> None:
        # Zeros, not garbage: kernels may read a slot nobody wrote yet under a mask, and
        # 0 * NaN is NaN. Pages of zeros cost no memory until they are written.
        shape = (num_layers, num_kv_heads, num_slots, head_dim)
        # Not on large pages: attention over scattered slots would take a fifth less time, but the
        # kernel may look for them for most of a second, when requests first come to new slots.
        self.k = torch.zeros(shape, dtype=dtype)
        self.v = torch.zeros(shape, dtype=dtype)
        self.num_slots = num_slots

    @staticmethod
    def bytes_per_slot(
        num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """Bytes one token takes: keys and values of all layers."""
        return 2 * num_layers * num_kv_heads * head_dim * dtype.itemsize
