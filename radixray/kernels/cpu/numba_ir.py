"""LLVM's instructions for vectors of 16 floats, emitted one by one: what numba's kernels need."""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba.core import cgutils, config, types

LANES = 16


def _has(feature: str) -> bool:
    """Whether the processor that numba compiles for has it; $NUMBA_CPU_NAME may name another."""
    settings: Any = config
    if settings.CPU_NAME or settings.CPU_FEATURES:
        return f"+{feature}" in (settings.CPU_FEATURES or "").split(",")
    return bool(llvmlite.binding.get_host_cpu_features().get(feature))


_FUSED = _has("fma") or platform.machine() not in ("x86_64", "AMD64")
"""Whether a product and a sum are one instruction. Without it, LLVM would call a function."""

ROWS, PANEL = (6, 4) if _has("avx512f") else (2, 2)
"""Rows and vectors of the largest part of a product whose sums fit in registers."""

I32 = ir.IntType(32)
FLOATS, WORDS = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(I32, LANES)
HALVES = ir.VectorType(ir.IntType(16), LANES)


def same(value: float) -> ir.Constant:
    return ir.Constant(FLOATS, [value] * LANES)


def words(value: int) -> ir.Constant:
    return ir.Constant(WORDS, [value] * LANES)


def call_llvm(builder: ir.IRBuilder, name: str, result: ir.Type, *arguments: Any) -> Any:
    """Call an LLVM intrinsic."""
    of = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, of, name), arguments)


def fma(builder: ir.IRBuilder, a: Any, b: Any, c: Any) -> Any:
    if _FUSED:
        return call_llvm(builder, "llvm.fma.v16f32", FLOATS, a, b, c)
    return builder.fadd(builder.fmul(a, b), c)


def spread(builder: ir.IRBuilder, number: Any) -> Any:
    vector = builder.insert_element(ir.Constant(FLOATS, ir.Undefined), number, I32(0))
    return builder.shuffle_vector(vector, vector, words(0))


def shuffle(builder: ir.IRBuilder, a: Any, b: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(WORDS, lanes))


def load_vector(builder: ir.IRBuilder, kind: Any, pointer: Any) -> Any:
    if kind.dtype == types.float32:
        pointer = builder.bitcast(pointer, FLOATS.as_pointer())
        return builder.load(pointer, align=4)
    pointer = builder.bitcast(pointer, HALVES.as_pointer())
    return widen(builder, builder.load(pointer, align=2))


def widen(builder: ir.IRBuilder, halves: Any) -> Any:
    return builder.bitcast(builder.shl(builder.zext(halves, WORDS), words(16)), FLOATS)


def narrow(builder: ir.IRBuilder, floats: Any) -> Any:
    """To bfloat16, ties to even; not-a-number stays one."""
    bits = builder.bitcast(floats, WORDS)
    odd = builder.and_(builder.lshr(bits, words(16)), words(1))
    rounded = builder.lshr(builder.add(builder.add(bits, words(0x7FFF)), odd), words(16))
    is_nan = builder.fcmp_unordered("uno", floats, floats)
    return builder.trunc(builder.select(is_nan, words(0x7FC0), rounded), HALVES)


def first_lanes(builder: ir.IRBuilder, count: Any) -> Any:
    """Which lanes are below `count`."""
    count = builder.trunc(count, I32)
    vector = builder.insert_element(ir.Constant(WORDS, ir.Undefined), count, I32(0))
    vector = builder.shuffle_vector(vector, vector, words(0))
    return builder.icmp_signed("<", ir.Constant(WORDS, list(range(LANES))), vector)
