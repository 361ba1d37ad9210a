"""Which CPU kernels this process uses: native C, else numba's, else torch's."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from radixray.errors import InvalidRequestError
from radixray.kernels.attention import AttentionBackend
from radixray.kernels.cpu import native
from radixray.kernels.cpu.attention import CpuAttention
from radixray.kernels.cpu.linear import NativeLinear, PackedLinear
from radixray.kernels.cpu.native import KernelsUnavailableError
from radixray.kernels.cpu.native_attention import NativeAttention
from radixray.kernels.cpu.native_layers import LayerWeights, NativeLayers, fit
from radixray.kernels.cpu.native_ops import NativeOps
from radixray.kernels.cpu.torch_ops import TorchOps
from radixray.kernels.kv_pool import KVPool
from radixray.kernels.ops import Ops

VARIABLE = "RADIXRAY_CPU_KERNELS"

log = logging.getLogger("radixray")


@dataclass(frozen=True, slots=True)
class CpuKernels:
    """Kernels that belong together; for one model, as they keep buffers.

    Attributes:
        name: "native", "numba" or "torch".
        native_linear: what packs bfloat16 weights, if not oneDNN.
        library: of native kernels.
    """

    name: str
    attention: AttentionBackend[Any]
    ops: Ops
    native_linear: NativeLinear | None = None
    library: ctypes.CDLL | None = None

    def linear(self, weight: torch.Tensor) -> PackedLinear:
        """A linear layer of a weight ``[out_features, in_features]``; see `PackedLinear`."""
        return PackedLinear(weight, self.native_linear)

    def layers(
        self, layers: Sequence[LayerWeights], following: PackedLinear, eps: float
    ) -> NativeLayers | None:
        """All of a Llama's layers in one call, where there is such a call for these weights."""
        if self.library is None or not fit(layers, following):
            return None
        return NativeLayers(self.library, layers, following, eps)


def torch_kernels() -> CpuKernels:
    """The kernels that need nothing but torch."""
    return CpuKernels("torch", CpuAttention(), TorchOps())


def native_kernels(instructions: str | None = None) -> CpuKernels:
    """The kernels in C, checked against the others on a small case.

    Raises:
        KernelsUnavailableError: they cannot be had, or they are wrong.
    """
    library = native.load(instructions)
    ours = native.has_linear(library) and not native.has_tiles()
    linear = NativeLinear(library) if ours else None
    kernels = CpuKernels("native", NativeAttention(library), NativeOps(library), linear, library)
    for dtype in (torch.float32, torch.bfloat16):
        _check(kernels, torch_kernels(), dtype)
    return kernels


def numba_kernels() -> CpuKernels:
    """The kernels that numba compiles, checked against torch's on a small case.

    Raises:
        KernelsUnavailableError: they cannot be had, or they are wrong.
    """
    try:
        # Here, as nobody else needs numba.
        from radixray.kernels.cpu.numba_attention import NumbaAttention
        from radixray.kernels.cpu.numba_ops import NumbaOps

        kernels = CpuKernels("numba", NumbaAttention(), NumbaOps())
        for dtype in (torch.float32, torch.bfloat16):
            _check(kernels, torch_kernels(), dtype)
    except KernelsUnavailableError:
        raise
    except Exception as error:  # numba and LLVM have many, for processors they do not know
        raise KernelsUnavailableError(f"{type(error).__name__}: {error}") from error
    return kernels


_KINDS = {"native": native_kernels, "numba": numba_kernels, "torch": torch_kernels}
"""By name, the fastest first."""


def cpu_kernels() -> CpuKernels:
    """New kernels of the kind this process uses.

    `$RADIXRAY_CPU_KERNELS` says which: "native", "numba", "torch", or by default the first of them
    that works.

    Raises:
        InvalidRequestError: the variable has another value.
        KernelsUnavailableError: the kind it asks for does not work here.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked and asked not in _KINDS:
        names = ", ".join(f'"{name}"' for name in _KINDS)
        raise InvalidRequestError(f"{VARIABLE} must be one of {names}, not {asked!r}")
    return _KINDS[asked or _first_that_works()]()


@functools.cache
def _first_that_works() -> str:
    for name, make in _KINDS.items():
        try:
            make()
        except KernelsUnavailableError as error:
            log.warning("the %s CPU kernels are unavailable: %s", name, error)
            continue
        detail = f" ({native.instructions()})" if name == "native" else ""
        log.info("CPU kernels: %s%s", name, detail)
        return name
    raise AssertionError("torch's kernels always work")


def _check(kernels: CpuKernels, reference: CpuKernels, dtype: torch.dtype) -> None:
    """Compare results on a step of two decodes and an extend."""
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    slots = np.random.default_rng(0).permutation(420).astype(np.int32)
    contexts = [slots[:70], slots[70:370], slots[370:]]
    lens = np.array([1, 1, 40], np.int32)
    out_slots = np.concatenate([c[-n:] for c, n in zip(contexts, lens.tolist(), strict=True)])
    pool = KVPool(1, 2, 32, 420, dtype)
    pool.k.copy_(randn(*pool.k.shape))
    pool.v.copy_(randn(*pool.v.shape))
    qkv, x, delta, weight = randn(42, 10, 32), randn(42, 96), randn(42, 96), randn(96)
    matrix = randn(100, 96)
    angles = torch.arange(42 * 16).view(42, 1, 16)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def results(used: CpuKernels) -> list[torch.Tensor]:
        rotated = used.ops.rotate(qkv.clone(), 8, cos, sin)
        metadata = used.attention.prepare(lens, 2, contexts)
        attended = used.attention.forward(
            0, rotated[:, :6], rotated[:, 6:], qkv[:, 8:], torch.from_numpy(out_slots).long(),
            pool, metadata,
        )  # fmt: skip
        summed = x.clone()
        normed = used.ops.add_rms_norm(summed, delta, weight, 1e-5)
        product = used.linear(matrix)(x)
        return [rotated, attended, summed, normed, used.ops.silu_multiply(x), product]

    tolerance = 1e-4 if dtype == torch.float32 else 6e-2
    with torch.inference_mode():
        for got, want in zip(results(kernels), results(reference), strict=True):
            if not torch.allclose(got.float(), want.float(), rtol=tolerance, atol=tolerance):
                raise KernelsUnavailableError(f"their results in {dtype} are wrong")
