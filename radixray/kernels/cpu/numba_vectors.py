"""Vectors of 16 floats for numba: the words that kernels are written in.

numba's own loops become vectors only where the compiler proves that it may, and never where that
reorders a sum. These functions are LLVM vector operations, one each, which LLVM turns into whatever
registers the processor has. Memory is pointers to float32, or to bfloat16 as uint16, which is
widened when loaded and rounded when stored. Not arrays: numba counts references to those, in
every function that takes one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba.extending
from llvmlite import ir
from numba.core import types
from numba.core.imputils import impl_ret_untracked
from numba.extending import models, register_model

from radixray.kernels.cpu.numba_ir import (
    FLOATS,
    HALVES,
    I32,
    LANES,
    WORDS,
    call_llvm,
    first_lanes,
    fma,
    load_vector,
    narrow,
    same,
    shuffle,
    spread,
    widen,
    words,
)

intrinsic: Any = numba.extending.intrinsic
"""numba calls what it makes with other parameters than the function it gets."""


class Vector(types.Type):
    """The type of 16 floats, to numba."""

    def __init__(self) -> None:
        super().__init__(name="float32x16")


VECTOR = Vector()


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, FLOATS)


def _float_operation(emit: Callable[..., Any], arity: int) -> Any:
    """A function of `arity` vectors to a vector."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return impl_ret_untracked(context, builder, VECTOR, emit(builder, *arguments))

    result = VECTOR(*[VECTOR] * arity)
    if arity == 1:
        return intrinsic(lambda typing, a: (result, codegen))
    if arity == 2:
        return intrinsic(lambda typing, a, b: (result, codegen))
    return intrinsic(lambda typing, a, b, c: (result, codegen))


def _emit_larger(builder: ir.IRBuilder, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _emit_exp2(builder: ir.IRBuilder, x: Any) -> Any:
    x = _emit_larger(builder, same(-127.0), x)
    # 1.5 * 2 ** 23: adding it rounds to a whole number, which the lowest bits then hold.
    shifted = builder.fadd(x, same(12582912.0))
    fraction = builder.fsub(x, builder.fsub(shifted, same(12582912.0)))
    value = same(1.32647254e-3)
    for factor in (9.67151277e-3, 5.55073375e-2, 2.40222421e-1, 6.93146978e-1, 1.0):
        value = fma(builder, value, fraction, same(factor))
    whole = builder.sub(builder.bitcast(shifted, WORDS), words(0x4B400000 - 127))
    # An exponent of -127 is the number zero.
    return builder.fmul(value, builder.bitcast(builder.shl(whole, words(23)), FLOATS))


add = _float_operation(lambda builder, a, b: builder.fadd(a, b), 2)
subtract = _float_operation(lambda builder, a, b: builder.fsub(a, b), 2)
multiply = _float_operation(lambda builder, a, b: builder.fmul(a, b), 2)
divide = _float_operation(lambda builder, a, b: builder.fdiv(a, b), 2)
multiply_add = _float_operation(fma, 3)
larger = _float_operation(_emit_larger, 2)
"""Lane by lane; the second where either is not a number."""
exp2 = _float_operation(_emit_exp2, 1)
"""2 to the power of x <= 127: exactly 1 at 0, exactly 0 below -126.5, within 2e-7 elsewhere. The
polynomial is the best of degree 5 that is 1 at 0."""


@intrinsic
def splat(typing: Any, number: Any) -> Any:
    """The same float32 in all lanes."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return spread(builder, arguments[0])

    return VECTOR(types.float32), codegen


@intrinsic
def load(typing: Any, memory: Any, at: Any) -> Any:
    """The 16 numbers from element `at` on."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return load_vector(builder, memory, builder.gep(arguments[0], [arguments[1]]))

    return VECTOR(memory, types.int64), codegen


@intrinsic
def store(typing: Any, memory: Any, at: Any, vector: Any) -> Any:
    """To the 16 numbers from element `at` on."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, at, vector = arguments
        pointer = builder.gep(pointer, [at])
        if memory.dtype == types.float32:
            builder.store(vector, builder.bitcast(pointer, FLOATS.as_pointer()), align=4)
        else:
            halves = narrow(builder, vector)
            builder.store(halves, builder.bitcast(pointer, HALVES.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(memory, types.int64, VECTOR), codegen


@intrinsic
def load_first(typing: Any, memory: Any, at: Any, count: Any) -> Any:
    """The `count` < 16 numbers from element `at` on, then zeros."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, at, count = arguments
        pointer, mask = builder.gep(pointer, [at]), first_lanes(builder, count)
        if memory.dtype == types.float32:
            pointer = builder.bitcast(pointer, FLOATS.as_pointer())
            zeros = same(0.0)
            name = "llvm.masked.load.v16f32.p0"
            return call_llvm(builder, name, FLOATS, pointer, I32(4), mask, zeros)
        pointer = builder.bitcast(pointer, HALVES.as_pointer())
        zeros = ir.Constant(HALVES, [0] * LANES)
        name = "llvm.masked.load.v16i16.p0"
        return widen(builder, call_llvm(builder, name, HALVES, pointer, I32(2), mask, zeros))

    return VECTOR(memory, types.int64, types.int64), codegen


@intrinsic
def store_first(typing: Any, memory: Any, at: Any, count: Any, vector: Any) -> Any:
    """The first `count` < 16 lanes, from element `at` on."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, at, count, vector = arguments
        pointer, mask = builder.gep(pointer, [at]), first_lanes(builder, count)
        if memory.dtype == types.float32:
            kind, stored, align = FLOATS, vector, 4
            name = "llvm.masked.store.v16f32.p0"
        else:
            kind, stored, align = HALVES, narrow(builder, vector), 2
            name = "llvm.masked.store.v16i16.p0"
        pointer = builder.bitcast(pointer, kind.as_pointer())
        call_llvm(builder, name, ir.VoidType(), stored, pointer, I32(align), mask)
        return context.get_dummy_value()

    return types.void(memory, types.int64, types.int64, VECTOR), codegen


def _folded(emit: Callable[..., Any]) -> Any:
    """A function of a vector to one float: halves onto each other, in one order."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, half = arguments[0], LANES // 2
        while half:
            upper = shuffle(builder, vector, vector, [half + i % half for i in range(LANES)])
            vector, half = emit(builder, vector, upper), half // 2
        return builder.extract_element(vector, I32(0))

    return intrinsic(lambda typing, vector: (types.float32(VECTOR), codegen))


sum_of = _folded(lambda builder, a, b: builder.fadd(a, b))
largest_of = _folded(_emit_larger)


@intrinsic
def pointer(typing: Any, address: Any, like: Any) -> Any:
    """To memory at an address, of numbers of the type that the array `like` has."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        return builder.inttoptr(arguments[0], kind)

    return types.CPointer(like.dtype)(types.int64, like), codegen


@intrinsic
def prefetch(typing: Any, memory: Any, at: Any) -> Any:
    """Ask for the cache line of element `at`, to be read soon."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.gep(arguments[0], [arguments[1]])
        pointer = builder.bitcast(pointer, ir.IntType(8).as_pointer())
        read, near, data = I32(0), I32(2), I32(1)
        call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, read, near, data)
        return context.get_dummy_value()

    return types.void(memory, types.int64), codegen


@intrinsic
def take_number(typing: Any, counter: Any) -> Any:
    """An int64 in memory, which it then adds one to; safe among threads."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.atomic_rmw("add", arguments[0], ir.IntType(64)(1), "monotonic")

    return types.int64(counter), codegen


@intrinsic
def call(typing: Any, address: Any, arguments: Any, thread: Any, threads: Any) -> Any:
    """Call the kernel at an address; see `kernels.cpu.numba_jit`."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 3)
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])
        return context.get_dummy_value()

    whole = types.int64
    return types.void(whole, whole, whole, whole), codegen
