"""`ForwardBatch`: the whole contract between the engine and a model's forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step over N sequences, flattened: the new tokens of all sequences, one after another.

    A sequence's new tokens are the last ones of its context and attend causally to all of it.
    Prefill chunks and single-token decode steps go through the same batch (Sarathi: Agrawal et
    al., 2023); decoding sequences come first so that kernels can treat them as one block.

    Attributes:
        token_ids: int64 ``[T]``.
        positions: int64 ``[T]``, position of each token in its sequence.
        out_slots: int64 ``[T]``, KV slot each token's keys and values are written to.
        query_lens: int32 ``[N]``, new tokens of each sequence, at least 1; T is their sum.
        num_decode: the first `num_decode` sequences have exactly one new token.
        context_slots: N arrays, int32 ``[context]``: the slots of positions 0 .. context - 1 of
            the sequence, this step's tokens included.
        logit_rows: int64 ``[R]``, rows of T whose logits are wanted; may be empty.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    out_slots: torch.Tensor
    query_lens: np.ndarray
    num_decode: int
    context_slots: Sequence[np.ndarray]
    logit_rows: torch.Tensor
