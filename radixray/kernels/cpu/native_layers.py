"""All layers of a Llama in one call, by native_layers.c: bfloat16 on packed weights."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from radixray.kernels.cpu.linear import NativeProduct, PackedLinear
from radixray.kernels.cpu.native import COUNTER_BYTES, Layer, Step, Weight
from radixray.kernels.cpu.native_attention import NativeAttention
from radixray.kernels.cpu.work import Work
from radixray.kernels.kv_pool import KVPool


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer: norms ``[hidden]``, and its linear layers in the order of their calls."""

    input_norm: torch.Tensor
    qkv: PackedLinear
    out: PackedLinear
    mlp_norm: torch.Tensor
    gate_up: PackedLinear
    down: PackedLinear

    @property
    def linears(self) -> tuple[PackedLinear, ...]:
        """The linear layers."""
        return self.qkv, self.out, self.gate_up, self.down


class NativeLayers:
    """Layers of pre-norm attention and SwiGLU, whose calls are one.

    The results are the bits that `NativeOps`, `NativeAttention` and `PackedLinear` give. A decode
    step of a small model has some 270 calls of those, which with what Python does between them took
    1.5 of 21 ms at batch 32, and as long at batch 1.

    Args:
        layers: all of which `fit`.
        following: what is called next, whose weight then begins to come into the cache.

    Attributes:
        seconds: float64 ``[3]``, to which the time of row-wise operations, linear layers and
            attention is added; None to read no clock.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        layers: Sequence[LayerWeights],
        following: PackedLinear,
        eps: float,
    ) -> None:
        self._library = library
        self._attention = NativeAttention(library)
        self._eps = eps
        self.seconds: np.ndarray | None = None
        self._kept = layers, following
        self._layers = (Layer * len(layers))()
        for to, layer in zip(self._layers, layers, strict=True):
            to.input_norm, to.mlp_norm = layer.input_norm.data_ptr(), layer.mlp_norm.data_ptr()
            for name in ("qkv", "out", "gate_up", "down"):
                setattr(to, name, _weight(getattr(layer, name)))
        self._next = ctypes.pointer(_weight(following))

    def forward(
        self,
        x: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        out_slots: torch.Tensor,
        pool: KVPool,
        metadata: Work,
        rows: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take `x`, bfloat16 ``[T, hidden]``, which is overwritten, through all layers.

        Args:
            rope: cosines and sines, bfloat16, ``[T, 1, head_dim / 2]``.
            out_slots: int64 ``[T]``, where the new keys and values go.
            metadata: of `NativeAttention.prepare`.
            rows: int64 ``[R]``, those of the last layer's output that are wanted.

        Returns:
            Two parts of ``[R, hidden]`` whose sum is the output.
        """
        tokens, hidden = x.shape
        kv_heads, head_dim = pool.k.shape[1], pool.k.shape[3]
        first = self._layers[0]
        wide, inner = first.out.in_features, first.down.in_features
        heads = wide // head_dim
        delta, normed = torch.empty_like(x), torch.empty_like(x)
        qkv = x.new_empty(tokens, heads + 2 * kv_heads, head_dim)
        q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
        attended = x.new_empty(tokens, heads, head_dim)
        gate_up, gated = x.new_empty(tokens, 2 * inner), x.new_empty(tokens, inner)
        last_x, last_attended = x.new_empty(len(rows), hidden), x.new_empty(len(rows), wide)
        threads = torch.get_num_threads()
        counters = torch.empty(
            len(self._layers) * (4 * threads + 1) * COUNTER_BYTES, dtype=torch.uint8
        )
        cos, sin = rope
        step = Step(
            attention=self._attention.arguments(
                0, q, k, v, attended, out_slots, pool, metadata, threads
            ),
            layers=self._layers,
            next=self._next,
            x=x.data_ptr(),
            delta=delta.data_ptr(),
            normed=normed.data_ptr(),
            qkv=qkv.data_ptr(),
            attended=attended.data_ptr(),
            gate_up=gate_up.data_ptr(),
            gated=gated.data_ptr(),
            last_x=last_x.data_ptr(),
            last_attended=last_attended.data_ptr(),
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            last_tokens=rows.data_ptr(),
            counters=counters.data_ptr(),
            num_layers=len(self._layers),
            last_rows=len(rows),
            hidden=hidden,
            inner=inner,
            layer_bytes=pool.k.stride(0) * pool.k.itemsize,
            eps=self._eps,
            seconds=None if self.seconds is None else self.seconds.ctypes.data,
        )
        self._library.rr_layers(step)
        return last_x, delta[: len(rows)]


def fit(layers: Sequence[LayerWeights], following: PackedLinear) -> bool:
    """Whether `NativeLayers` can be made of them: all are packed for native_linear.c, and even."""
    products = [linear.product for layer in layers for linear in layer.linears]
    return isinstance(following.product, NativeProduct) and all(
        isinstance(product, NativeProduct) and product.weight.in_features % 2 == 0
        for product in products
    )


def _weight(linear: PackedLinear) -> Weight:
    assert isinstance(linear.product, NativeProduct)
    return linear.product.weight
