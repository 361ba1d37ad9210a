"""Which CPU kernels this process uses: native.c where it works, torch elsewhere."""

from __future__ import annotations

import functools
import logging
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from radixray.errors import InvalidRequestError
from radixray.kernels.attention import AttentionBackend
from radixray.kernels.cpu import native
from radixray.kernels.cpu.attention import CpuAttention
from radixray.kernels.cpu.native import NativeUnavailableError
from radixray.kernels.cpu.native_attention import NativeAttention
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
        name: "native" or "torch".
    """

    name: str
    attention: AttentionBackend[Any]
    ops: Ops


def torch_kernels() -> CpuKernels:
    """The kernels that need nothing but torch."""
    return CpuKernels("torch", CpuAttention(), TorchOps())


def native_kernels(instructions: str | None = None) -> CpuKernels:
    """The kernels of native.c, checked against the others on a small case.

    Raises:
        NativeUnavailableError: they cannot be had, or they are wrong.
    """
    library = native.load(instructions)
    kernels = CpuKernels("native", NativeAttention(library), NativeOps(library))
    for dtype in (torch.float32, torch.bfloat16):
        _check(kernels, torch_kernels(), dtype)
    return kernels


def cpu_kernels() -> CpuKernels:
    """New kernels of the kind this process uses.

    `$RADIXRAY_CPU_KERNELS` says which: "native", "torch", or by default whichever works.

    Raises:
        InvalidRequestError: the variable has another value.
        NativeUnavailableError: it is "native", and they do not work here.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "native", "torch"):
        raise InvalidRequestError(f'{VARIABLE} must be "native" or "torch", not {asked!r}')
    if asked == "native":
        return native_kernels()
    return torch_kernels() if asked == "torch" or not _native_works() else native_kernels()


@functools.cache
def _native_works() -> bool:
    try:
        native_kernels()
    except NativeUnavailableError as error:
        log.warning("CPU kernels: torch, as the native ones are unavailable: %s", error)
        return False
    log.info("CPU kernels: native (%s)", native.instructions())
    return True


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
        return [rotated, attended, summed, normed, used.ops.silu_multiply(x)]

    tolerance = 1e-4 if dtype == torch.float32 else 6e-2
    with torch.inference_mode():
        for got, want in zip(results(kernels), results(reference), strict=True):
            if not torch.allclose(got.float(), want.float(), rtol=tolerance, atol=tolerance):
                raise NativeUnavailableError(f"their results in {dtype} are wrong")
