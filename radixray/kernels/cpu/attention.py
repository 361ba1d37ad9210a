"""Attention over the KV pool in torch operations.

The rows of a piece of work are gathered from the pool to one block, then attended with two matrix
products. All query heads that share a KV head are rows of the same product (grouped-query
attention: Ainslie et al., 2023), so a gathered row is read once for all of them. Products beat
`scaled_dot_product_attention` here: twice as fast in bfloat16, a quarter slower in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from radixray.kernels.kv_pool import KVPool

_DECODE_TOKENS = 16384
"""Most padded tokens gathered at once, so that the block is still in cache when it is used."""

_TILE = 64
"""Most query rows of one causal tile: an early tile does not look at what only later ones see."""

_ROUND = 32
"""Contexts are padded to multiples of this: oneDNN builds a kernel for every new shape (about a
millisecond), and contexts grow by a token a step."""

_SPARE = 256
"""Padding of a sequence, in tokens, that is cheaper than one more piece of work."""


@dataclass(frozen=True, slots=True)
class Tile:
    """t query rows of each of n sequences, attended at once.

    Attributes:
        rows: int64 ``[n * t]``, which of the step's T tokens they are.
        mask: float32 ``[n, t, context]``, 0 where a query may look and -inf elsewhere. Its
            context may be shorter than what is gathered: later positions are not looked at.
    """

    rows: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class Gather:
    """The contexts of n sequences, gathered at once, and the tiles that look at them.

    Attributes:
        slots: int64 ``[n, context]``, each row padded to the same length.
    """

    slots: torch.Tensor
    tiles: list[Tile]


class CpuAttention:
    """The `AttentionBackend` for any CPU.

    Products of bfloat16 round scores to bfloat16; the softmax is in float32. A sequence's result
    depends on its batch and chunks only through the order of sums: about 1e-6 in float32, where
    greedy tokens are the same; in bfloat16 a last bit, which can turn a close choice of token.
    """

    def __init__(self) -> None:
        self._causal = _causal_mask(1024)

    def prepare(
        self, query_lens: np.ndarray, num_decode: int, context_slots: Sequence[np.ndarray]
    ) -> list[Gather]:
        """See `AttentionBackend.prepare`."""
        lengths = np.array([len(slots) for slots in context_slots], dtype=np.int64)
        self._causal = _at_least(self._causal, int(lengths.max(initial=0)))
        gathers = [
            self._decode(chunk, [context_slots[i] for i in chunk], lengths[chunk])
            for chunk in _chunks(lengths[:num_decode])
        ]
        start = num_decode
        for length, slots in zip(
            query_lens[num_decode:].tolist(), context_slots[num_decode:], strict=True
        ):
            gathers.append(self._extend(start, length, slots))
            start += length
        return gathers

    def forward(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out_slots: torch.Tensor,
        pool: KVPool,
        metadata: list[Gather],
    ) -> torch.Tensor:
        """See `AttentionBackend.forward`."""
        keys, values = pool.k[layer], pool.v[layer]
        keys.index_copy_(1, out_slots, k.transpose(0, 1))
        values.index_copy_(1, out_slots, v.transpose(0, 1))
        out = torch.empty(q.shape, dtype=q.dtype)
        for gather in metadata:
            rows = _row_numbers(gather.slots, *keys.shape[:2])
            gathered_keys = _gather(keys, rows)
            gathered_values = _gather(values, rows)
            for tile in gather.tiles:
                out[tile.rows] = _attend(q[tile.rows], gathered_keys, gathered_values, tile.mask)
        return out

    def _decode(
        self, rows: np.ndarray, context_slots: list[np.ndarray], lengths: np.ndarray
    ) -> Gather:
        context = _rounded(int(lengths.max()))
        slots = np.stack([_padded(slots, context) for slots in context_slots])
        hidden = torch.from_numpy(np.arange(context) >= lengths[:, None])
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf)
        return Gather(torch.from_numpy(slots), [Tile(torch.from_numpy(rows), mask.unsqueeze(1))])

    def _extend(self, start: int, length: int, slots: np.ndarray) -> Gather:
        first = len(slots) - length
        tiles = []
        for offset in range(0, length, _TILE):
            rows = min(_TILE, length - offset)
            mask = self._causal_from(first + offset, rows)
            tiles.append(Tile(torch.arange(start + offset, start + offset + rows), mask))
        padded = _padded(slots, _rounded(len(slots)))
        return Gather(torch.from_numpy(padded).unsqueeze(0), tiles)

    def _causal_from(self, position: int, rows: int) -> torch.Tensor:
        """The mask of `rows` consecutive queries from `position` on: a view of one big mask."""
        width = self._causal.shape[1] - _TILE - _ROUND
        begin = width - position
        return self._causal[None, :rows, begin : begin + _rounded(position + rows)]


def _attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Softmax attention of one tile.

    Args:
        q: ``[n * t, heads, head_dim]``.
        keys, values: ``[kv_heads, n, >= context, head_dim]``.
        mask: ``[n, t, context]``.

    Returns:
        ``[n * t, heads, head_dim]``.
    """
    (n, t, context), (kv_heads, _, _, head_dim) = mask.shape, keys.shape
    group = q.shape[1] // kv_heads
    keys = keys[:, :, :context].flatten(0, 1)
    values = values[:, :, :context].flatten(0, 1)
    q = q.view(n, t, kv_heads, group, head_dim).permute(2, 0, 3, 1, 4)
    scores = torch.bmm(q.reshape(kv_heads * n, group * t, head_dim), keys.transpose(1, 2))
    scores = scores.view(kv_heads, n, group, t, context)
    scores = torch.add(mask[:, None], scores, alpha=1 / math.sqrt(head_dim))
    weights = torch.softmax(scores, -1).to(values.dtype)
    out = torch.bmm(weights.view(kv_heads * n, group * t, context), values)
    out = out.view(kv_heads, n, group, t, head_dim).permute(1, 3, 0, 2, 4)
    return out.reshape(n * t, kv_heads * group, head_dim)


def _row_numbers(slots: torch.Tensor, kv_heads: int, num_slots: int) -> torch.Tensor:
    """Where slots ``[n, context]`` are in a layer as one matrix: ``[kv_heads, n, context]``."""
    return slots + torch.arange(0, kv_heads * num_slots, num_slots).view(-1, 1, 1)


def _gather(cache: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows of a layer ``[kv_heads, slot, head_dim]``: ``[kv_heads, n, context, head_dim]``."""
    # Selecting whole rows of a matrix is twice as fast as selecting along dim 1.
    matrix = cache.view(-1, cache.shape[-1])
    return matrix.index_select(0, rows.flatten()).view(*rows.shape, -1)


def _chunks(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Split sequences so that those of like length are padded together.

    Args:
        lengths: int64 ``[n]``, tokens of each context.

    Yields:
        int64 arrays of indices into `lengths`; together all of them, longest contexts first.
    """
    order = np.argsort(-lengths, kind="stable")
    begin = 0
    for end in range(1, len(order) + 1):
        if end < len(order):
            longest, next_length = int(lengths[order[begin]]), int(lengths[order[end]])
            fits = (end - begin + 1) * longest <= _DECODE_TOKENS
            padding = longest - next_length
            if fits and padding <= max(_SPARE, longest // 4):
                continue
        yield order[begin:end]
        begin = end


def _causal_mask(width: int) -> torch.Tensor:
    """``[_TILE, width + _TILE + _ROUND]``: row r may look at columns up to ``width + r``.

    Queries that start at position p of any sequence find their mask at column ``width - p``.
    """
    shape = (_TILE, width + _TILE + _ROUND)
    return torch.full(shape, -math.inf).triu_(width + 1)


def _at_least(mask: torch.Tensor, context: int) -> torch.Tensor:
    width = mask.shape[1] - _TILE - _ROUND
    return mask if context <= width else _causal_mask(max(context, 2 * width))


def _rounded(length: int) -> int:
    return -(-length // _ROUND) * _ROUND


def _padded(slots: np.ndarray, length: int) -> np.ndarray:
    """Slots as int64 ``[length]``; the padding is the sequence's own first slot, so that no other
    sequence's values (which might be infinite) meet a weight of zero."""
    padded = np.full(length, slots[0], dtype=np.int64)
    padded[: len(slots)] = slots
    return padded
