"""Row-wise operations against float64, and that a row does not depend on the others."""

from __future__ import annotations

import pytest
import torch
from test_exact_attention import DTYPES, RUNNABLE

from radixray.kernels.cpu import native
from radixray.kernels.cpu.native_ops import NativeOps
from radixray.kernels.cpu.numba_ops import NumbaOps
from radixray.kernels.cpu.torch_ops import TorchOps
from radixray.kernels.ops import Ops

BOUND = {torch.float32: 2e-6, torch.bfloat16: 2**-7 * 1.01}
"""Relative to the result, or to the terms it is a sum of: in bfloat16 two roundings, each of half a
step at most."""


@pytest.fixture(params=["torch", "numba", *RUNNABLE], scope="module")
def ops(request: pytest.FixtureRequest) -> Ops:
    kinds = {"torch": TorchOps, "numba": NumbaOps}
    make = kinds.get(request.param)
    return NativeOps(native.load(request.param)) if make is None else make()


def close(got: torch.Tensor, want: torch.Tensor, terms: torch.Tensor | None = None) -> bool:
    error = (got.double() - want).abs()
    bound = BOUND[got.dtype] * (want if terms is None else terms).abs()
    return bool((error <= bound + 1e-30).all())


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("rows", "size"), [(0, 64), (1, 576), (3, 20), (300, 576), (5, 1023), (64, 2048)]
)
def test_rms_norm(ops: Ops, rows: int, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, delta, weight = (
        torch.randn(shape).to(dtype) for shape in ((rows, size), (rows, size), size)
    )
    assert close(ops.rms_norm(x, weight, 1e-5), norm(x, weight))
    summed = (x.double() + delta.double()).to(dtype)
    got = ops.add_rms_norm(x, delta, weight, 1e-5)
    assert torch.equal(x, summed)
    assert close(got, norm(summed, weight))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("rows", "dim"), [(1, 64), (200, 64), (3, 80), (7, 96), (64, 128), (2, 10), (5, 256)]
)
def test_rotate(ops: Ops, rows: int, dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    qkv, angles = torch.randn(rows, 5, dim).to(dtype), torch.randn(rows, 1, dim // 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    first, second = qkv[:, :4].double().chunk(2, -1)
    c, s = cos.double(), sin.double()
    want = torch.cat([first * c - second * s, second * c + first * s], -1)
    last = qkv[:, 4].clone()
    terms = torch.cat(
        [(first * c).abs() + (second * s).abs(), (second * c).abs() + (first * s).abs()], -1
    )
    assert close(ops.rotate(qkv, 4, cos, sin), want, terms)
    assert torch.equal(qkv[:, 4], last)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "size"), [(1, 1536), (200, 1536), (7, 21), (3, 2)])
def test_silu_multiply(ops: Ops, rows: int, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gate_up = (30 * torch.randn(rows, 2 * size)).to(dtype)
    gate_up[0, :4] = torch.tensor([0.0, 300.0, -300.0, -88.0])
    gate, up = gate_up.double().chunk(2, dim=1)
    want = gate * gate.sigmoid() * up
    # An exponential is off by the rounding of its argument, the more the larger that is.
    assert close(ops.silu_multiply(gate_up), want, want * (1 + gate.abs()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_does_not_depend_on_the_others(ops: Ops, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(300, 576).to(dtype), torch.randn(576).to(dtype)
    normed, product = ops.rms_norm(x, weight, 1e-5), ops.silu_multiply(x)
    for row in (0, 7, 299):
        assert torch.equal(ops.rms_norm(x[row : row + 1], weight, 1e-5)[0], normed[row])
        assert torch.equal(ops.silu_multiply(x[row : row + 1])[0], product[row])
