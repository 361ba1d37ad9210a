"""The packed linear layer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from radixray.kernels.cpu import linear, native
from radixray.kernels.cpu.linear import NativeLinear, PackedLinear, run_in_turn
from radixray.kernels.cpu.select import native_kernels

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
SHAPES = [
    (960, 576),
    (576, 1536),
    (300, 4864),
    (37, 96),
    (48, 2),
    (49, 3),
    (5, 7),
    (1, 1),
    (30, 30_001),
]
"""Some are no multiple of a panel of outputs, or of a pair of inputs; some are cut to blocks."""


@pytest.fixture
def packer(native_kernels: None) -> NativeLinear:
    """Where this CPU multiplies pairs of bfloat16."""
    library = native.load()
    assert native.has_linear(library) == (native.instructions() == "avx512_bf16")
    if not native.has_linear(library):
        pytest.skip("this CPU has no native product")
    return NativeLinear(library)


@pytest.fixture(params=["onednn", "native"])
def kind(request: pytest.FixtureRequest) -> NativeLinear | None:
    """What `PackedLinear` is made with."""
    return None if request.param == "onednn" else request.getfixturevalue("packer")


def relative_error(layer: PackedLinear, x: torch.Tensor, weight: torch.Tensor) -> float:
    with torch.inference_mode():
        got = layer(x).double()
    want = x.double() @ weight.double().T
    return float((got - want).abs().max() / want.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 8, 33, 512])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_packing_serves_every_batch(
    shape: tuple[int, int], rows: int, dtype: torch.dtype, kind: NativeLinear | None
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(shape).to(dtype)
    x = torch.randn(rows, shape[1]).to(dtype)
    assert relative_error(PackedLinear(weight, kind), x, weight) < TOLERANCE[dtype]


@pytest.mark.usefixtures("native_kernels")
def test_instructions_without_a_product() -> None:
    assert native_kernels("plain").native_linear is None


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_rows(dtype: torch.dtype, kind: NativeLinear | None) -> None:
    with torch.inference_mode():
        layer = PackedLinear(torch.randn(12, 8).to(dtype), kind)
        assert layer(torch.empty(0, 8, dtype=dtype)).shape == (0, 12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_a_row_does_not_depend_on_the_others(
    shape: tuple[int, int], dtype: torch.dtype, kind: NativeLinear | None
) -> None:
    torch.manual_seed(0)
    layer = PackedLinear(torch.randn(shape).to(dtype), kind)
    x = torch.randn(600, shape[1]).to(dtype)
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU multiplies no bfloat16")
    assert layer.product is not None
    with torch.inference_mode():
        expected = layer(x)
        for rows in [*range(1, 34), 64, 100, 512]:
            got = layer(x[rows : 2 * rows] if rows < 300 else x[:rows])
            assert torch.equal(got, expected[rows : 2 * rows] if rows < 300 else expected[:rows])


@pytest.fixture(params=[1, 2, 3, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.usefixtures("threads")
def test_neither_cuts_nor_threads_change_a_bit(
    shape: tuple[int, int], packer: NativeLinear
) -> None:
    """Each row alone, by one thread, against random cuts of the batch by several threads."""
    generator = torch.Generator().manual_seed(1)
    layer = PackedLinear(torch.randn(shape, generator=generator).bfloat16(), packer)
    x = torch.randn(700, shape[1], generator=generator).bfloat16()
    used = torch.get_num_threads()
    torch.set_num_threads(1)
    expected = torch.cat([layer(row) for row in x.split(1)])
    torch.set_num_threads(used)
    assert torch.equal(layer(x), expected)
    for most in (3, 20, 90, 400):
        begin = 0
        while begin < len(x):
            rows = int(torch.randint(1, most, (), generator=generator))
            assert torch.equal(layer(x[begin : begin + rows]), expected[begin : begin + rows])
            begin += rows


def test_rows_apart_in_memory(kind: NativeLinear | None) -> None:
    """Rows that are parts of longer ones, and columns that do not follow each other."""
    layer = PackedLinear(torch.randn(60, 32).bfloat16(), kind)
    x = torch.randn(20, 70).bfloat16()
    with torch.inference_mode():
        assert torch.equal(layer(x[:, 1:33]), layer(x[:, 1:33].clone()))
        assert torch.equal(layer(x[:, ::2][:, :32]), layer(x[:, ::2][:, :32].clone()))


def test_what_the_native_product_refuses(packer: NativeLinear) -> None:
    """It gets addresses, so nothing else would notice."""
    layer = PackedLinear(torch.randn(60, 32).bfloat16(), packer)
    for x in (torch.randn(3, 32), torch.randn(3, 31).bfloat16()):
        with pytest.raises(ValueError, match=r"\[T, 32\] expected"):
            layer(x)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_in_its_row(value: float, kind: NativeLinear | None) -> None:
    layer = PackedLinear(torch.ones(60, 33).bfloat16(), kind)
    x = torch.ones(20, 33).bfloat16()
    with torch.inference_mode():
        clean = layer(x)
        x[7, 32] = value
        got = layer(x)
    assert torch.equal(got[7], torch.full((60,), value).bfloat16()) or got[7].isnan().all()
    assert torch.equal(got[[*range(7), *range(8, 20)]], clean[1:])


def test_the_weight_that_follows_changes_no_result(packer: NativeLinear) -> None:
    """Called in turn or not, and with weights of other sizes."""
    torch.manual_seed(0)
    layers = [PackedLinear(torch.randn(shape).bfloat16(), packer) for shape in SHAPES]
    inputs = {rows: [torch.randn(rows, i).bfloat16() for _, i in SHAPES] for rows in (1, 40, 300)}

    def results() -> list[torch.Tensor]:
        return [layer(x) for xs in inputs.values() for layer, x in zip(layers, xs, strict=True)]

    before = results()
    run_in_turn([layers[0], PackedLinear(torch.randn(4, 4)), *layers[1:]])
    for got, want in zip(results() + results(), before + before, strict=True):
        assert torch.equal(got, want)
    for i in reversed(range(len(layers))):
        assert torch.equal(layers[i](inputs[40][i]), before[len(layers) + i])


def test_onednn_is_kept_where_it_multiplies_tiles(
    packer: NativeLinear, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_cpu_flags", lambda: {"avx512_bf16", "amx_bf16"})
    assert native_kernels().native_linear is None
    monkeypatch.setattr(native, "_cpu_flags", lambda: {"avx512_bf16"})
    assert native_kernels().native_linear is not None
