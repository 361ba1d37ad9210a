"""A model whose "KV" is a hash of the whole prefix, so that one wrong slot shows in its output.

What a position's KV holds depends on every token before it, and the logits depend on the KV that
is read from the pool. So an engine that mixes up pages, evicts what is in use, or resumes a
retracted request wrongly gives other tokens than `expected_tokens`, which knows nothing of pages.
"""

from __future__ import annotations

import numpy as np
import torch

from radixray.engine.sampler import SamplingRow, sample
from radixray.models.batch import ForwardBatch
from radixray.protocol import SamplingParams

VOCAB = 256
_MASK = (1 << 64) - 1
_SEED = 0x1234_5678_9ABC_DEF0


def _mix(state: int, token: int) -> int:
    value = (state ^ (token + 0x9E37_79B9_7F4A_7C15)) * 0xBF58_476D_1CE4_E5B9 & _MASK
    return value ^ (value >> 29)


def _logits(state: int) -> np.ndarray:
    return np.random.default_rng(state).standard_normal(VOCAB).astype(np.float32) * 3


class HashModel:
    """Stands in for a network behind `forward`; its KV is its own, the pool given is ignored."""

    def __init__(self, num_slots: int) -> None:
        self._kv = np.zeros(num_slots, np.uint64)
        self.tokens_computed = 0

    def forward(self, batch: ForwardBatch, kv_pool: object) -> torch.Tensor:
        ids, out_slots = batch.token_ids.tolist(), batch.out_slots.tolist()
        self.tokens_computed += len(ids)
        states: list[int] = []
        row = 0
        for length, context in zip(batch.query_lens.tolist(), batch.context_slots, strict=True):
            start = len(context) - length
            state = int(self._kv[context[start - 1]]) if start else _SEED
            for position in range(start, len(context)):
                assert out_slots[row] == context[position]
                assert int(batch.positions[row]) == position
                state = _mix(state, ids[row])
                self._kv[context[position]] = state
                states.append(state)
                row += 1
        rows = [_logits(states[r]) for r in batch.logit_rows.tolist()]
        return torch.from_numpy(np.stack(rows)) if rows else torch.empty(0, VOCAB)


def expected_tokens(prompt: list[int], params: SamplingParams, count: int) -> list[int]:
    """What the model continues `prompt` with: one token after the other, no pages, no batch."""
    state = _SEED
    for token in prompt:
        state = _mix(state, token)
    output: list[int] = []
    for _ in range(count):
        row = SamplingRow(
            params,
            params.seed or 0,
            len(prompt) + len(output),
            None,
            np.array(prompt + output, np.int32),
            len(prompt),
        )
        (token,) = sample(torch.from_numpy(_logits(state))[None], [row])
        output.append(token)
        state = _mix(state, token)
    return output


def expected_logprobs(prompt: list[int], choice: list[int]) -> list[float]:
    """The log-probability of each token of `choice` after `prompt`."""
    state = _SEED
    for token in prompt:
        state = _mix(state, token)
    found = []
    for token in choice:
        found.append(float(torch.log_softmax(torch.from_numpy(_logits(state)), -1)[token]))
        state = _mix(state, token)
    return found
