"""The packed linear layer."""

from __future__ import annotations

import pytest
import torch

from radixray.kernels.cpu import linear
from radixray.kernels.cpu.linear import PackedLinear

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


def relative_error(layer: PackedLinear, x: torch.Tensor, weight: torch.Tensor) -> float:
    with torch.inference_mode():
        got = layer(x).double()
    want = x.double() @ weight.double().T
    return float((got - want).abs().max() / want.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 8, 33, 512])
@pytest.mark.parametrize("shape", [(960, 576), (576, 1536), (37, 96), (5, 7)], ids=str)
def test_one_packing_serves_every_batch(
    shape: tuple[int, int], rows: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(shape).to(dtype)
    x = torch.randn(rows, shape[1]).to(dtype)
    assert relative_error(PackedLinear(weight), x, weight) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_without_packing(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_pack", lambda weight: None)
    weight, x = torch.randn(12, 8).to(dtype), torch.randn(3, 8).to(dtype)
    assert relative_error(PackedLinear(weight), x, weight) < TOLERANCE[dtype]


def test_a_build_without_the_operators_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*args: object) -> None:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", unavailable)
    weight, x = torch.randn(12, 8), torch.randn(3, 8)
    assert relative_error(PackedLinear(weight), x, weight) < 1e-6


def test_no_rows() -> None:
    with torch.inference_mode():
        assert PackedLinear(torch.randn(12, 8))(torch.empty(0, 8)).shape == (0, 12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(960, 576), (576, 1536), (300, 4864)], ids=str)
def test_a_row_does_not_depend_on_the_others(shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer, x = PackedLinear(torch.randn(shape).to(dtype)), torch.randn(600, shape[1]).to(dtype)
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU multiplies no bfloat16")
    assert layer._packed
    with torch.inference_mode():
        expected = layer(x)
        for rows in [*range(1, 34), 64, 100, 512]:
            got = layer(x[rows : 2 * rows] if rows < 300 else x[:rows])
            assert torch.equal(got, expected[rows : 2 * rows] if rows < 300 else expected[:rows])
