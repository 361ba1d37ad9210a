"""How far products and attention are from float64, on every path; `test_ops` has the rest.

In float32 the bound is a few roundings. In bfloat16 the result is rounded once, and so are the
weights of attention; torch's attention rounds the scores, too.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_cases import Case, make_case
from test_exact_attention import DTYPES, RUNNABLE

from radixray.kernels.cpu.select import (
    CpuKernels,
    native_kernels,
    numba_kernels,
    torch_kernels,
)

ATTENTION = {torch.float32: 8e-6, torch.bfloat16: 2**-7}
"""Relative to the weighted sum of magnitudes."""
TORCH_ATTENTION = {torch.float32: 8e-6, torch.bfloat16: 2**-5}
LINEAR = {torch.float32: 2e-6, torch.bfloat16: 2**-8 * 1.01}
"""Relative to the result: of bfloat16, half a step."""

RAGGED = {
    "lengths of one": ([(1, 1), (1, 2), (1, 1)], 0),
    "decode around blocks and splits": ([(1, n) for n in (15, 16, 17, 63, 64, 65, 256, 257)], 0),
    "extend": ([(2, 2), (16, 16), (17, 17), (33, 300), (5, 256), (64, 321)], 0),
    "mixed": ([(1, 300), (1, 17), (3, 3), (40, 70)], 0),
    "cascade": ([(1, 258), (1, 257), (1, 300), (2, 270), (20, 290)], 256),
    "cascade within a split": ([(1, 60 + i) for i in range(9)], 50),
}
SHAPES = [
    *((64, heads) for heads in ((2, 2), (6, 2), (8, 2), (8, 1))),
    *((dim, (6, 2)) for dim in (80, 96, 128, 256)),
]
"""Head sizes, and numbers of query and of KV heads."""


@pytest.fixture(params=["torch", "numba", *RUNNABLE], scope="module")
def kernels(request: pytest.FixtureRequest) -> CpuKernels:
    kinds = {"torch": torch_kernels, "numba": numba_kernels}
    make = kinds.get(request.param)
    return native_kernels(request.param) if make is None else make()


def poison_unused(case: Case) -> None:
    """Slots that no sequence has, and those of other layers."""
    used = np.unique(np.concatenate(case.context_slots))
    unused = torch.from_numpy(np.setdiff1d(np.arange(case.pool.num_slots), used))
    for cache in (case.pool.k, case.pool.v):
        cache[0] = torch.nan
        cache[1][:, unused] = torch.nan


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("dim", "heads"), SHAPES, ids=str)
@pytest.mark.parametrize("ragged", RAGGED)
def test_attention(
    kernels: CpuKernels, ragged: str, dim: int, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    sequences, shared = RAGGED[ragged]
    case = make_case(sequences, heads=heads, dim=dim, dtype=dtype, shared=shared)
    poison_unused(case)
    error = (case.run(kernels.attention).double() - case.expected()).abs()
    case.contexts = [(k, v.abs()) for k, v in case.contexts]
    bound = (TORCH_ATTENTION if kernels.name == "torch" else ATTENTION)[dtype]
    assert (error <= bound * case.expected()).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(960, 576), (37, 96), (300, 4864)], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 33, 512])
@pytest.mark.parametrize("kind", ["torch", RUNNABLE[0]])
def test_linear(kind: str, rows: int, shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    weight, x = torch.randn(shape).to(dtype), torch.randn(rows, shape[1]).to(dtype)
    with torch.inference_mode():
        made = torch_kernels() if kind == "torch" else native_kernels(kind)
        got = made.linear(weight)(x).double()
    want, terms = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
    # Sums are in float32, whose roundings come to little of what all terms weigh together.
    assert ((got - want).abs() <= LINEAR[dtype] * want.abs() + 1e-6 * terms).all()
