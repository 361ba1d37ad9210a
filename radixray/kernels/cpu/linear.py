"""A linear layer whose weight oneDNN has reordered once for its own matrix kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F

_PACK_ROWS = 512
"""Rows of input the packing is chosen for. One packing serves every batch: measured within noise
of a packing made for exactly 1, 8, 32 or 64 rows, which a packing for 1 row is not."""


class PackedLinear:
    """``y = x @ weight.T`` without bias.

    An unpacked weight makes oneDNN reorder it on every call, which costs more than a small batch's
    arithmetic. Packed, a row's result is also the same bits whatever rows share the batch: oneDNN
    cuts the sum over the inputs by the weight's shape alone, except that it does not cut it for a
    single row. So a single row is computed as two.

    Args:
        weight: ``[out_features, in_features]``, bfloat16 or float32. Not kept where packing works,
            so that the caller can drop the only unpacked copy.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self.out_features, self.in_features = weight.shape
        packed = _pack(weight)
        self._packed = packed is not None
        self._weight = weight if packed is None else packed

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, in_features]`` to ``[T, out_features]``, both in the dtype of the weight."""
        if self._packed:
            if len(x) == 1:
                return self(x.expand(2, -1))[:1]
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, None, "none", [], "")
        return F.linear(x, self._weight)


def _pack(weight: torch.Tensor) -> torch.Tensor | None:
    """The weight in oneDNN's layout, or None where this CPU or torch build cannot use it."""
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        if weight.dtype == torch.bfloat16:
            if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
                return None
        elif weight.dtype != torch.float32:
            return None
        # `_linear_pointwise` has no autograd formula and packed tensors have no views: both want
        # inference mode.
        with torch.inference_mode():
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACK_ROWS)
            # The operators are private to torch: try one, so a build that lacks or changes them
            # falls back here, at load, and not in the middle of a step.
            probe = weight.new_zeros(1, weight.shape[1])
            torch.ops.mkldnn._linear_pointwise(probe, packed, None, "none", [], "")
            return packed
    except (AttributeError, RuntimeError):
        return None
