"""Steps of attention with random inputs, and attention in float64, the slow and obvious way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from radixray.kernels.attention import AttentionBackend
from radixray.kernels.kv_pool import KVPool

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


@dataclass
class Case:
    """A step's inputs, and the keys and values every position should have."""

    query_lens: np.ndarray
    num_decode: int
    context_slots: list[np.ndarray]
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out_slots: torch.Tensor
    pool: KVPool
    contexts: list[tuple[torch.Tensor, torch.Tensor]]

    def run(self, backend: AttentionBackend, layer: int = 1) -> torch.Tensor:
        metadata = backend.prepare(self.query_lens, self.num_decode, self.context_slots)
        return backend.forward(layer, self.q, self.k, self.v, self.out_slots, self.pool, metadata)

    def expected(self) -> torch.Tensor:
        outs, start = [], 0
        for length, (k, v) in zip(self.query_lens.tolist(), self.contexts, strict=True):
            outs.append(naive_attention(self.q[start : start + length], k, v))
            start += length
        return torch.cat(outs)


def naive_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Query by query and head by head, in float64."""
    queries, heads, dim = q.shape
    context, kv_heads, _ = k.shape
    q, k, v = q.double(), k.double(), v.double()
    out = torch.empty(queries, heads, dim, dtype=torch.float64)
    for row in range(queries):
        seen = context - queries + row + 1
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            scores = k[:seen, kv_head] @ q[row, head] / dim**0.5
            out[row, head] = scores.softmax(0) @ v[:seen, kv_head]
    return out


def make_case(
    sequences: list[tuple[int, int]],
    *,
    heads: tuple[int, int] = (6, 2),
    dim: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    shared: int = 0,
) -> Case:
    """A step over `sequences` of (query length, context length) with randomly placed slots.

    The first `shared` positions of all lie in the same slots, none of them new.
    """
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    num_heads, kv_heads = heads
    total = sum(context for _, context in sequences)
    slots = torch.randperm(total + 7, generator=generator)[:total].int().numpy()
    context_slots = np.split(slots, np.cumsum([context for _, context in sequences])[:-1])
    pool = KVPool(2, kv_heads, dim, total + 7, dtype)
    contexts, news = [], []
    for index, (length, context) in enumerate(sequences):
        k, v = randn(context, kv_heads, dim), randn(context, kv_heads, dim)
        where = context_slots[index]
        if shared and contexts:
            k[:shared], v[:shared] = contexts[0][0][:shared], contexts[0][1][:shared]
            where[:shared] = context_slots[0][:shared]
        old = torch.from_numpy(where[: context - length].astype(np.int64))
        pool.k[1][:, old] = k[: context - length].transpose(0, 1)
        pool.v[1][:, old] = v[: context - length].transpose(0, 1)
        contexts.append((k, v))
        news.append((k[context - length :], v[context - length :], where[context - length :]))
    return Case(
        query_lens=np.array([length for length, _ in sequences], np.int32),
        num_decode=next((i for i, (n, _) in enumerate(sequences) if n != 1), len(sequences)),
        context_slots=context_slots,
        q=randn(sum(length for length, _ in sequences), num_heads, dim),
        k=torch.cat([k for k, _, _ in news]),
        v=torch.cat([v for _, v, _ in news]),
        out_slots=torch.from_numpy(np.concatenate([s for _, _, s in news]).astype(np.int64)),
        pool=pool,
        contexts=contexts,
    )


SEQUENCES = {
    "one token": [(1, 1)],
    "decode": [(1, 5), (1, 33), (1, 1), (1, 64)],
    "decode of very different lengths": [(1, 3), (1, 900), (1, 40), (1, 1300), (1, 310)],
    "prefill": [(70, 70)],
    "extend": [(5, 40), (64, 65), (130, 300)],
    "mixed": [(1, 17), (1, 100), (3, 3), (66, 90), (2, 50)],
}
