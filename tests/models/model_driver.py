"""The smallest engine: sequences with randomly placed slots, run in whatever chunks a test says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from radixray.kernels.kv_pool import KVPool
from radixray.models.batch import ForwardBatch
from radixray.models.llama import LlamaModel

Rows = Literal["last", "all", "none"]


@dataclass
class Tokens:
    """Tokens of a sequence, of which the first `computed` are in the pool at `slots`."""

    tokens: list[int]
    computed: int = 0
    slots: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))


class Driver:
    """Runs a model over a pool; `reset` gives all slots back, in a new random order."""

    def __init__(self, model: LlamaModel, num_slots: int = 8000) -> None:
        config = model.config
        self.model = model
        self.pool = KVPool(
            config.num_layers, config.num_kv_heads, config.head_dim, num_slots, model.dtype
        )
        self.reset(0)

    def reset(self, seed: int) -> None:
        order = np.random.default_rng(seed).permutation(self.pool.num_slots)
        self.free: np.ndarray = order.astype(np.int32)

    def step(self, work: Sequence[tuple[Tokens, int]], *, rows: Rows = "last") -> torch.Tensor:
        """Compute the next n tokens of each sequence; logits of the last, all or none of them.

        Sequences with one token must come first.
        """
        for sequence, n in work:
            taken, self.free = self.free[:n], self.free[n:]
            sequence.slots = np.concatenate([sequence.slots, taken])
            sequence.computed += n
        lens = np.array([n for _, n in work], np.int32)
        ends = np.cumsum(lens)
        batch = ForwardBatch(
            token_ids=_flat([s.tokens[s.computed - n : s.computed] for s, n in work]),
            positions=_flat([range(s.computed - n, s.computed) for s, n in work]),
            out_slots=_flat([s.slots[s.computed - n :] for s, n in work]),
            query_lens=lens,
            num_decode=int((np.cumprod(lens == 1)).sum()),
            context_slots=[s.slots for s, _ in work],
            logit_rows=_flat({"last": [ends - 1], "all": [range(ends[-1])], "none": [[]]}[rows]),
        )
        return self.model.forward(batch, self.pool)

    def logits(self, tokens: list[int], chunk: int = 512, *, rows: Rows = "all") -> torch.Tensor:
        """Logits float32 of all rows, or of the last of each chunk, computed chunk by chunk."""
        self.reset(len(tokens))
        sequence = Tokens(tokens)
        parts = []
        while sequence.computed < len(tokens):
            n = min(chunk, len(tokens) - sequence.computed)
            parts.append(self.step([(sequence, n)], rows=rows))
        return torch.cat(parts)

    def greedy(
        self, prompts: list[list[int]], steps: int, *, chunks: Sequence[int] = (512,), seed: int = 0
    ) -> list[list[int]]:
        """Continue all prompts at once; prompt i is prefilled in chunks of ``chunks[i % len]``.

        A prompt that is ready decodes while others are still prefilled, in the same batches.
        """
        self.reset(seed)
        sequences = [Tokens(list(prompt)) for prompt in prompts]
        goals = [len(prompt) + steps for prompt in prompts]
        while True:
            work = []
            for i, (sequence, goal) in enumerate(zip(sequences, goals, strict=True)):
                left = len(sequence.tokens) - sequence.computed
                if left and len(sequence.tokens) < goal:
                    work.append((sequence, min(left, chunks[i % len(chunks)])))
            if not work:
                return [s.tokens[len(p) :] for s, p in zip(sequences, prompts, strict=True)]
            work.sort(key=lambda item: item[1] > 1)
            chosen = self.step(work).argmax(-1).tolist()
            for (sequence, _), token in zip(work, chosen, strict=True):
                if sequence.computed == len(sequence.tokens):
                    sequence.tokens.append(token)


def _flat(parts: Sequence[Sequence[int] | np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([np.asarray(part, np.int64) for part in parts]))
