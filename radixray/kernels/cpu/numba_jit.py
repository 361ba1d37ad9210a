"""Compiling kernels with numba, and running them on several threads.

A kernel is a function of one address, where its arguments lie as 64-bit words, and of its thread's
number and the number of threads. It calls `inlined` functions, so it is compiled once, at its first
use, and kept in ``home() / "kernels"``. That is the reason for this form: what numba compiles as a
function of its own it optimises again in every caller, and its parallel loops three times more.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from numba import prange
from numba.core import config as _config

from radixray.config import home
from radixray.kernels.cpu.numba_vectors import call

config: Any = _config

Kernel = Callable[[], int]
"""Compiles a kernel if need be, and returns its address."""

WORD, INT = np.empty(0, np.int64), np.empty(0, np.int32)
FLOAT, HALF = np.empty(0, np.float32), np.empty(0, np.uint16)
"""For `numba_vectors.pointer`: of which type the memory is."""

# No fast-math flag: sums must run in the order they are written.
_OPTIONS: dict[str, Any] = {"error_model": "numpy"}
_LOCK, _SETTING = threading.Lock(), threading.RLock()


def inlined(function: Callable[..., Any]) -> Any:
    """For what kernels are made of."""
    return numba.njit(inline="always", **_OPTIONS)(function)


def kernel(function: Callable[[int, int, int], None]) -> Kernel:
    """Make a kernel of ``function(arguments, thread, threads)``."""

    @functools.cache
    def compiled() -> Any:
        with _cache_folder():
            return numba.cfunc("void(int64, int64, int64)", cache=True, **_OPTIONS)(function)

    return lambda: compiled().address


def run(kernels: list[Kernel], arguments: np.ndarray, threads: int) -> None:
    """Run kernels one after another, each on `threads` threads at once.

    Args:
        arguments: int64, for all of them.
        threads: at most `most_threads`.
    """
    addresses = np.array([kernel() for kernel in kernels], np.int64)
    # One at a time in a process: the threads that numba has where there is no OpenMP end the
    # process when two functions use them at once.
    with _LOCK:
        numba.set_num_threads(threads)
        _launcher()(addresses, arguments.ctypes.data, threads)


def most_threads(worth: int) -> int:
    """How many threads `run` should use for work that is worth waking `worth` of them."""
    return min(worth, torch.get_num_threads(), config.NUMBA_NUM_THREADS)


@functools.cache
def _launcher() -> Any:
    with _cache_folder():
        return numba.njit(cache=True, parallel=True, nogil=True, **_OPTIONS)(_launch)


def _launch(addresses, arguments, threads):
    for address in addresses:
        for thread in prange(threads):
            call(address, arguments, thread, threads)


@contextmanager
def _cache_folder() -> Iterator[None]:
    # numba reads its setting when it decorates; others' functions keep theirs.
    with _SETTING:
        before, config.CACHE_DIR = config.CACHE_DIR, str(home() / "kernels" / _version())
        try:
            yield
        finally:
            config.CACHE_DIR = before


@functools.cache
def _version() -> str:
    """A name for all that is compiled: numba itself would not see that a callee changed."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("numba_*.py")):
        digest.update(path.read_bytes())
    return f"numba-{digest.hexdigest()[:16]}"
