"""Building, caching and falling back."""

from __future__ import annotations

import logging
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from radixray.errors import InvalidRequestError
from radixray.kernels.cpu import native, select
from radixray.kernels.cpu.native import KernelsUnavailableError
from radixray.kernels.cpu.native_ops import NativeOps
from radixray.kernels.cpu.select import VARIABLE, cpu_kernels, native_kernels

LOAD = "from radixray.kernels.cpu import native; native.load('plain')"


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing built yet, and no decision made yet."""
    monkeypatch.setenv("RADIXRAY_HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    select._first_that_works.cache_clear()
    yield tmp_path
    select._first_that_works.cache_clear()


def libraries(home: Path) -> list[Path]:
    return list((home / "kernels").iterdir())


def test_two_processes_build_at_once(empty_home: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", LOAD]) for _ in range(2)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    (path,) = libraries(empty_home)
    before = path.stat().st_mtime_ns
    native.load("plain")
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize("size", [0, 10, 5000])
def test_a_damaged_file_is_built_again(empty_home: Path, size: int) -> None:
    native.load("plain")
    (path,) = libraries(empty_home)
    content = path.read_bytes()
    path.unlink()  # the loaded one stays as it is
    path.write_bytes(content[:size])
    native.load("plain")
    assert path.read_bytes() == content


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


def failing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")


def unwritable_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIXRAY_HOME", "/dev/null/home")


def wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        NativeOps, "silu_multiply", lambda self, x: torch.zeros(len(x), x.shape[1] // 2)
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without_compiler, "no C compiler"),
        (failing_compiler, "false .*failed"),
        (unwritable_home, "NotADirectoryError"),
        (wrong_results, "results .* wrong"),
    ],
)
def test_falls_back_and_says_why(
    empty_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    spoil: object,
    message: str,
) -> None:
    assert callable(spoil)
    spoil(monkeypatch)
    with pytest.raises(KernelsUnavailableError, match=message):
        native_kernels()
    monkeypatch.setitem(sys.modules, "numba", None)  # as if it were not installed
    for module in [name for name in sys.modules if name.startswith("radixray.kernels.cpu.numba")]:
        monkeypatch.delitem(sys.modules, module)
    with caplog.at_level(logging.INFO, "radixray"):
        assert [cpu_kernels().name for _ in range(2)] == ["torch", "torch"]
    messages = [record.message for record in caplog.records]
    assert "native CPU kernels are unavailable" in messages[0]
    assert "numba CPU kernels are unavailable" in messages[1]
    assert messages[2:] == ["CPU kernels: torch"]
    monkeypatch.setenv(VARIABLE, "native")
    with pytest.raises(KernelsUnavailableError, match=message):
        cpu_kernels()


def test_the_variable_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "numba", "native"):
        monkeypatch.setenv(VARIABLE, name)
        assert cpu_kernels().name == name
    monkeypatch.setenv(VARIABLE, "fast")
    with pytest.raises(InvalidRequestError, match="not 'fast'"):
        cpu_kernels()


def test_native_is_the_default(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    select._first_that_works.cache_clear()
    with caplog.at_level(logging.INFO, "radixray"):
        assert cpu_kernels().name == "native"
    (record,) = caplog.records
    assert native.instructions() in record.message


def test_numba_is_the_default_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    without_compiler(monkeypatch)
    select._first_that_works.cache_clear()
    try:
        with caplog.at_level(logging.INFO, "radixray"):
            assert cpu_kernels().name == "numba"
    finally:
        select._first_that_works.cache_clear()
    assert "no C compiler" in caplog.records[0].message
    assert caplog.records[1].message == "CPU kernels: numba"


def test_wrong_numba_kernels_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from radixray.kernels.cpu.numba_ops import NumbaOps

    monkeypatch.setattr(
        NumbaOps, "silu_multiply", lambda self, x: torch.zeros(len(x), x.shape[1] // 2)
    )
    with pytest.raises(KernelsUnavailableError, match=r"results .* wrong"):
        select.numba_kernels()


def test_numba_compiles_for_a_processor_with_nothing_special() -> None:
    code = (
        "from radixray.kernels.cpu import numba_ir, select; select.numba_kernels(); "
        "assert not numba_ir._FUSED and numba_ir.ROWS == 2"
    )
    features = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+sse2"}
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the features of another kind of processor")
    subprocess.run([sys.executable, "-c", code], env=os.environ | features, check=True, timeout=280)
