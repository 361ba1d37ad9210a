"""Row-wise operations in torch: correct everywhere, and the reference for faster ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F


class TorchOps:
    """`Ops` in torch."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `Ops.rms_norm`."""
        return F.rms_norm(x, (x.shape[-1],), weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See `Ops.add_rms_norm`."""
        x += delta
        return self.rms_norm(x, weight, eps)

    def rotate(
        self, qkv: torch.Tensor, heads: int, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """See `Ops.rotate`."""
        x = qkv[:, :heads]
        first, second = x.chunk(2, dim=-1)
        half = first.shape[-1]
        out = torch.empty(x.shape, dtype=x.dtype)
        torch.mul(first, cos, out=out[..., :half]).addcmul_(second, sin, value=-1)
        torch.mul(second, cos, out=out[..., half:]).addcmul_(first, sin)
        return out

    def silu_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Ops.silu_multiply`."""
        gate, up = gate_up.chunk(2, dim=1)
        return F.silu(gate).mul_(up)
