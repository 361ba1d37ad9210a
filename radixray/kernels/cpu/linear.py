"""A linear layer whose weight is reordered once for the matrix kernels that multiply by it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F

from radixray.kernels.cpu.memory import LongLived
from radixray.kernels.cpu.native import Weight

Product = Callable[[torch.Tensor], torch.Tensor]
"""``[T, in_features]`` to ``[T, out_features]``."""

_PACK_ROWS = 512
"""Rows of input oneDNN's packing is chosen for. One packing serves every batch: measured within
noise of a packing made for exactly 1, 8, 32 or 64 rows, which a packing for 1 row is not."""


class PackedLinear:
    """``y = x @ weight.T`` without bias.

    An unpacked weight makes oneDNN reorder it on every call, which costs more than a small batch's
    arithmetic. Packed, a row's result is also the same bits whatever rows share the batch.

    Args:
        weight: ``[out_features, in_features]``, bfloat16 or float32. Not kept where packing works,
            so that the caller can drop the only unpacked copy.
        native: what packs bfloat16, if not oneDNN.

    Attributes:
        product: with the packed weight; None if it could not be packed.
    """

    def __init__(self, weight: torch.Tensor, native: NativeLinear | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.product: Product | None
        if native is not None and weight.dtype == torch.bfloat16:
            self.product = native.pack(weight)
        else:
            self.product = _onednn_product(weight)
        self._weight = weight if self.product is None else None

    @property
    def packed(self) -> bool:
        """Whether the weight could be packed."""
        return self.product is not None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, in_features]`` to ``[T, out_features]``, both in the dtype of the weight."""
        if self.product is not None:
            return self.product(x)
        assert self._weight is not None
        return F.linear(x, self._weight)


def run_in_turn(layers: Iterable[PackedLinear]) -> None:
    """Say that these are called one after the other, and then again from the first.

    While one is computed, the weight of the next then begins to come into the cache. Results stay
    as they are, also if calls come otherwise.
    """
    products = [layer.product for layer in layers]
    native = [product for product in products if isinstance(product, NativeProduct)]
    for product, following in zip(native, native[1:] + native[:1], strict=True):
        product.following = following.weight


class NativeLinear:
    """Packs bfloat16 weights for native_linear.c.

    Args:
        library: for which `native.has_linear`.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._memory = LongLived()

    def pack(self, weight: torch.Tensor) -> NativeProduct:
        """The product with ``[out_features, in_features]``, which is not kept."""
        out_features, in_features = weight.shape
        packed = Weight(in_features=in_features, out_features=out_features)
        memory = self._memory.take(self._library.rr_linear_bytes(packed))
        packed.packed = memory.data_ptr()
        weight = weight.contiguous()
        self._library.rr_pack_linear(weight.data_ptr(), packed, torch.get_num_threads())
        return NativeProduct(self._library, packed, memory)


class NativeProduct:
    """The product with a packed weight.

    Attributes:
        weight: the packed weight.
        following: the weight of the product that is likely to be next.
    """

    def __init__(self, library: ctypes.CDLL, weight: Weight, memory: torch.Tensor) -> None:
        self._multiply = library.rr_linear
        self._memory = memory
        self._size = (weight.in_features, weight.out_features)
        self.weight = weight
        self.following: Weight | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, in_features]`` to ``[T, out_features]``."""
        rows, size = x.shape
        in_features, out_features = self._size
        if size != in_features or x.dtype != torch.bfloat16:
            raise ValueError(f"bfloat16 [T, {in_features}] expected, not {x.dtype} {[*x.shape]}")
        if size % 2:
            x = F.pad(x, (0, 1))  # inputs are read in pairs
        elif x.stride(1) != 1:
            x = x.contiguous()
        out = x.new_empty(rows, out_features)
        self._multiply(
            x.data_ptr(),
            x.stride(0),
            out.data_ptr(),
            rows,
            self.weight,
            self.following,
            torch.get_num_threads(),
        )
        return out


def _onednn_product(weight: torch.Tensor) -> Product | None:
    """By oneDNN, or None where this CPU or torch build cannot use its layout.

    oneDNN cuts the sum over the inputs by the weight's shape alone, except that it does not cut it
    for a single row. So a single row is computed as two.
    """
    packed = _pack(weight)
    if packed is None:
        return None

    def product(x: torch.Tensor) -> torch.Tensor:
        if len(x) == 1:
            return product(x.expand(2, -1))[:1]
        return torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")

    return product


def _pack(weight: torch.Tensor) -> torch.Tensor | None:
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
