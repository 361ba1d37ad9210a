"""Row-wise operations by numba: each is one pass over its rows, rounded once at its end."""

from __future__ import annotations

import numpy as np
import torch

from radixray.kernels.cpu.numba_ir import LANES
from radixray.kernels.cpu.numba_jit import (
    FLOAT,
    HALF,
    WORD,
    Kernel,
    inlined,
    kernel,
    most_threads,
    run,
)
from radixray.kernels.cpu.numba_vectors import (
    add,
    divide,
    exp2,
    larger,
    load,
    load_first,
    multiply,
    multiply_add,
    pointer,
    splat,
    store,
    store_first,
    subtract,
    sum_of,
)

_WORTH_A_THREAD = 1 << 16
"""Numbers that are worth waking one more thread for."""

_DOUBLE = np.empty(0, np.float64)
_ZERO, _ONE, _LOG2_E = np.float32(0), np.float32(1), np.float32(1.4426950408889634)


@inlined
def _get(array, at, end):
    """A vector from element `at` on; zeros from `end` on."""
    if at + LANES <= end:
        return load(array, at)
    return load_first(array, at, end - at)


@inlined
def _put(array, at, end, vector):
    if at + LANES <= end:
        store(array, at, vector)
    else:
        store_first(array, at, end - at, vector)


@inlined
def _rms_norm(arguments, like, thread, threads):
    """Words: x, weight, out and delta (or 0), rows, size, and the bits of a float64, eps."""
    words = pointer(arguments, WORD)
    x, weight, out = pointer(words[0], like), pointer(words[1], like), pointer(words[2], like)
    adds, delta, rows, size = words[3] != 0, pointer(words[3], like), words[4], words[5]
    eps = np.float32(pointer(arguments, _DOUBLE)[6])
    for row in range(rows * thread // threads, rows * (thread + 1) // threads):
        begin, end = row * size, (row + 1) * size
        squares = splat(_ZERO)
        for i in range(begin, end, LANES):
            if adds:
                _put(x, i, end, add(_get(x, i, end), _get(delta, i, end)))
            v = _get(x, i, end)  # as rounded
            squares = multiply_add(v, v, squares)
        mean = sum_of(squares) / np.float32(size)
        factor = splat(_ONE / np.sqrt(mean + eps))
        for i in range(begin, end, LANES):
            scaled = multiply(_get(x, i, end), factor)
            _put(out, i, end, multiply(scaled, _get(weight, i - begin, size)))


@inlined
def _rotate(arguments, like, thread, threads):
    """Words: x, cos, sin, rows, numbers of a row, heads to rotate, and half a head's numbers."""
    words = pointer(arguments, WORD)
    x, cos, sin = pointer(words[0], like), pointer(words[1], like), pointer(words[2], like)
    rows, row_size, heads, half = words[3], words[4], words[5], words[6]
    for row in range(rows * thread // threads, rows * (thread + 1) // threads):
        for head in range(heads):
            first = row * row_size + head * 2 * half
            second, end = first + half, first + 2 * half
            for i in range(0, half, LANES):
                a, b = _get(x, first + i, second), _get(x, second + i, end)
                c = _get(cos, row * half + i, (row + 1) * half)
                s = _get(sin, row * half + i, (row + 1) * half)
                minus = subtract(splat(_ZERO), multiply(b, s))
                _put(x, first + i, second, multiply_add(a, c, minus))
                _put(x, second + i, end, multiply_add(b, c, multiply(a, s)))


@inlined
def _silu_multiply(arguments, like, thread, threads):
    """Words: gate and up, out, rows, size."""
    words = pointer(arguments, WORD)
    gate_up, out, rows, size = pointer(words[0], like), pointer(words[1], like), words[2], words[3]
    for row in range(rows * thread // threads, rows * (thread + 1) // threads):
        gate, up, to = 2 * row * size, (2 * row + 1) * size, row * size
        for i in range(0, size, LANES):
            g, u = _get(gate_up, gate + i, up), _get(gate_up, up + i, up + size)
            # -log2(e) g, at most 126: beyond, silu is 0 in any case.
            power = larger(splat(np.float32(-126)), multiply(g, splat(_LOG2_E)))
            power = subtract(splat(_ZERO), power)
            silu = divide(g, add(splat(_ONE), exp2(power)))
            _put(out, to + i, to + size, multiply(silu, u))


@kernel
def _rms_norm_floats(arguments, thread, threads):
    _rms_norm(arguments, FLOAT, thread, threads)


@kernel
def _rms_norm_halves(arguments, thread, threads):
    _rms_norm(arguments, HALF, thread, threads)


@kernel
def _rotate_floats(arguments, thread, threads):
    _rotate(arguments, FLOAT, thread, threads)


@kernel
def _rotate_halves(arguments, thread, threads):
    _rotate(arguments, HALF, thread, threads)


@kernel
def _silu_multiply_floats(arguments, thread, threads):
    _silu_multiply(arguments, FLOAT, thread, threads)


@kernel
def _silu_multiply_halves(arguments, thread, threads):
    _silu_multiply(arguments, HALF, thread, threads)


_RMS_NORM = {torch.float32: _rms_norm_floats, torch.bfloat16: _rms_norm_halves}
_ROTATE = {torch.float32: _rotate_floats, torch.bfloat16: _rotate_halves}
_SILU_MULTIPLY = {torch.float32: _silu_multiply_floats, torch.bfloat16: _silu_multiply_halves}


class NumbaOps:
    """`Ops` by numba."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `Ops.rms_norm`."""
        return self._rms_norm(x.contiguous(), None, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See `Ops.add_rms_norm`."""
        return self._rms_norm(x, delta.contiguous(), weight, eps)

    def _rms_norm(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        out = torch.empty_like(x)
        bits = int(np.float64(eps).view(np.int64))
        _run(_RMS_NORM, x, x, weight, out, delta, *x.shape, bits)
        return out

    def rotate(
        self, qkv: torch.Tensor, heads: int, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """See `Ops.rotate`."""
        rows, all_heads, head_dim = qkv.shape
        sizes = rows, all_heads * head_dim, heads, head_dim // 2
        _run(_ROTATE, qkv, qkv, cos, sin, *sizes)
        return qkv[:, :heads]

    def silu_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Ops.silu_multiply`."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, size)
        _run(_SILU_MULTIPLY, gate_up, gate_up, out, rows, size)
        return out


def _run(
    kernels: dict[torch.dtype, Kernel], x: torch.Tensor, *words: torch.Tensor | int | None
) -> None:
    """Run the kernel of x's dtype, on as many threads as x is worth."""
    addresses = [word.data_ptr() if isinstance(word, torch.Tensor) else word or 0 for word in words]
    threads = most_threads(1 + x.numel() // _WORTH_A_THREAD)
    run([kernels[x.dtype]], np.array(addresses, np.int64), threads)
