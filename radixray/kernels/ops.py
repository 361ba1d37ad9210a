"""The row-wise operations of a network, behind one protocol."""

from __future__ import annotations

from typing import Protocol

import torch


class Ops(Protocol):
    """What a transformer does to each row between its products.

    Tensors of one call have one dtype, float32 or bfloat16; sums are in float32. No row of a
    result depends on the others.
    """

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """``x / sqrt(mean(x ** 2) + eps) * weight`` for rows ``[T, size]`` (Zhang and Sennrich,
        2019)."""
        ...

    def add_rms_norm(
        self, x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Add `delta` to `x` in place, both ``[T, size]``; returns the `rms_norm` of that."""
        ...

    def rotate(
        self, qkv: torch.Tensor, heads: int, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """Rotary embedding of the first `heads` heads, in Hugging Face's half-split layout.

        Args:
            qkv: contiguous ``[T, >= heads, head_dim]``; those heads may be overwritten.
            cos, sin: contiguous ``[T, 1, head_dim / 2]``.

        Returns:
            ``[T, heads, head_dim]``, possibly a view of `qkv`.
        """
        ...

    def silu_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        """``silu(gate) * up`` (SwiGLU: Shazeer, 2020) for contiguous ``[T, 2 * size]``, of which
        each row is gate, then up; returns ``[T, size]``."""
        ...
