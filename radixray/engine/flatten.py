"""From sequences and their pages to the flat batch that a model runs."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from radixray.engine.sequence import LiveSequence
from radixray.models.batch import ForwardBatch


def flatten(work: list[tuple[LiveSequence, int]]) -> ForwardBatch:
    """The batch that computes so many more tokens of each sequence.

    Args:
        work: those with one token first; each has a lease with room for its tokens. Logits are
            wanted from each sequence's `reusable` on.
    """
    ids, positions, out_slots, contexts, logit_rows = [], [], [], [], []
    first_row = 0
    for sequence, tokens in work:
        start, end = sequence.computed, sequence.computed + tokens
        assert sequence.lease is not None
        slots = sequence.lease.slots(end)
        ids.append(sequence.tokens[start:end])
        positions.append(np.arange(start, end))
        out_slots.append(slots[start:])
        contexts.append(slots)
        logit_rows.append(np.arange(max(start, sequence.reusable), end) - start + first_row)
        first_row += tokens
    lens = np.array([tokens for _, tokens in work], np.int32)
    return ForwardBatch(
        token_ids=_int64(ids),
        positions=_int64(positions),
        out_slots=_int64(out_slots),
        query_lens=lens,
        num_decode=int((lens == 1).sum()),
        context_slots=contexts,
        logit_rows=_int64(logit_rows),
    )


def _int64(parts: list[NDArray[np.integer]]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))
