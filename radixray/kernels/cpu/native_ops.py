"""Row-wise operations by native_rows.c: each is one pass over its rows, rounded once at its end."""

from __future__ import annotations

import ctypes

import torch


class NativeOps:
    """`Ops` of native_rows.c."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `Ops.rms_norm`."""
        return self._rms_norm(x.contiguous(), None, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See `Ops.add_rms_norm`."""
        return self._rms_norm(x, delta.contiguous(), weight, eps)

    def _rms_norm(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        out = torch.empty_like(x)
        self._library.rr_rms_norm(
            x.data_ptr(),
            None if delta is None else delta.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            *x.shape,
            eps,
            _is_bf16(x),
            torch.get_num_threads(),
        )
        return out

    def rotate(
        self, qkv: torch.Tensor, heads: int, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """See `Ops.rotate`."""
        rows, all_heads, head_dim = qkv.shape
        self._library.rr_rotate(
            qkv.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            rows,
            all_heads * head_dim,
            heads,
            head_dim,
            _is_bf16(qkv),
            torch.get_num_threads(),
        )
        return qkv[:, :heads]

    def silu_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Ops.silu_multiply`."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, size)
        self._library.rr_silu_and_multiply(
            gate_up.data_ptr(),
            out.data_ptr(),
            rows,
            size,
            _is_bf16(gate_up),
            torch.get_num_threads(),
        )
        return out


def _is_bf16(x: torch.Tensor) -> bool:
    return x.dtype == torch.bfloat16
