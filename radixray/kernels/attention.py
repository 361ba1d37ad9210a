"""The protocol between a model and an attention kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch

from radixray.kernels.kv_pool import KVPool

Metadata = TypeVar("Metadata")


class AttentionBackend(Protocol[Metadata]):
    """Causal grouped-query attention of new tokens over their sequences' slots in the pool.

    A step calls `prepare` once and `forward` once a layer, so whatever depends only on the
    batch's shape (index matrices, masks, work splits) is built once a step.
    """

    def prepare(
        self,
        query_lens: np.ndarray,
        num_decode: int,
        context_slots: Sequence[np.ndarray],
    ) -> Metadata:
        """Turn the batch's shape into what `forward` needs.

        Args:
            query_lens: int32 ``[N]``, new tokens of each sequence, all at least 1.
            num_decode: how many sequences, from the first on, have exactly one new token.
            context_slots: for each sequence int32 ``[context]``: the slots of its positions
                ``0 .. context - 1``, this step's tokens included (they are the last ones).
        """
        ...

    def forward(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out_slots: torch.Tensor,
        pool: KVPool,
        metadata: Metadata,
    ) -> torch.Tensor:
        """Write the new keys and values to the pool, then attend.

        Args:
            layer: index of the layer in the pool.
            q: ``[T, num_heads, head_dim]``, T the sum of `query_lens`, sequence after sequence.
            k, v: ``[T, num_kv_heads, head_dim]``; may be strided views.
            out_slots: int64 ``[T]``, the slot each new token's keys and values go to.
            pool: the KV pool, of the same dtype as q, k and v.
            metadata: what `prepare` returned for this step.

        Returns:
            ``[T, num_heads, head_dim]``, in the dtype of q.
        """
        ...
