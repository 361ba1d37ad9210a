"""Vectors of 16 floats for numba: the words that kernels are written in.

numba's own loops become vectors only where the compiler proves that it may, and never where that
reorders a sum. These functions are LLVM vector operations, one each, which LLVM turns into whatever
registers the processor has. Memory is pointers to float32, or to bfloat16 as uint16, which is
widened when loaded and rounded when stored. Not arrays: numba counts references to those, in
every function that takes one.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportUnusedExpression=false
# numba gives intrinsics other parameters than it calls them with.

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.imputils import impl_ret_untracked
from numba.extending import intrinsic, models, register_model

LANES = 16

_FEATURES = llvmlite.binding.get_host_cpu_features()
_FUSED = bool(_FEATURES.get("fma")) or platform.machine() not in ("x86_64", "AMD64")
"""Whether a product and a sum are one instruction. Without it, LLVM would call a function."""

ROWS, PANEL = (6, 4) if _FEATURES.get("avx512f") else (2, 2)
"""Rows and vectors of the largest `tile` whose sums fit in registers."""

_I32, _FLOAT = ir.IntType(32), ir.FloatType()
_FLOATS, _WORDS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_I32, LANES)
_HALVES = ir.VectorType(ir.IntType(16), LANES)


class Vector(types.Type):
    """The type of 16 floats, to numba."""

    def __init__(self) -> None:
        super().__init__(name="float32x16")


VECTOR = Vector()


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, _FLOATS)


def _same(value: float) -> ir.Constant:
    return ir.Constant(_FLOATS, [value] * LANES)


def _words(value: int) -> ir.Constant:
    return ir.Constant(_WORDS, [value] * LANES)


def _call(builder: ir.IRBuilder, name: str, result: ir.Type, *arguments: Any) -> Any:
    """Call an LLVM intrinsic."""
    of = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, of, name), arguments)


def _fma(builder: ir.IRBuilder, a: Any, b: Any, c: Any) -> Any:
    if _FUSED:
        return _call(builder, "llvm.fma.v16f32", _FLOATS, a, b, c)
    return builder.fadd(builder.fmul(a, b), c)


def _splat(builder: ir.IRBuilder, number: Any) -> Any:
    vector = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), number, _I32(0))
    return builder.shuffle_vector(vector, vector, _words(0))


def _shuffle(builder: ir.IRBuilder, a: Any, b: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(_WORDS, lanes))


def _load(builder: ir.IRBuilder, kind: Any, pointer: Any) -> Any:
    if kind.dtype == types.float32:
        pointer = builder.bitcast(pointer, _FLOATS.as_pointer())
        return builder.load(pointer, align=4)
    pointer = builder.bitcast(pointer, _HALVES.as_pointer())
    return _widen(builder, builder.load(pointer, align=2))


def _widen(builder: ir.IRBuilder, halves: Any) -> Any:
    return builder.bitcast(builder.shl(builder.zext(halves, _WORDS), _words(16)), _FLOATS)


def _narrow(builder: ir.IRBuilder, floats: Any) -> Any:
    """To bfloat16, ties to even; not-a-number stays one."""
    bits = builder.bitcast(floats, _WORDS)
    odd = builder.and_(builder.lshr(bits, _words(16)), _words(1))
    rounded = builder.lshr(builder.add(builder.add(bits, _words(0x7FFF)), odd), _words(16))
    is_nan = builder.fcmp_unordered("uno", floats, floats)
    return builder.trunc(builder.select(is_nan, _words(0x7FC0), rounded), _HALVES)


def _first(builder: ir.IRBuilder, count: Any) -> Any:
    """Which lanes are below `count`."""
    count = builder.trunc(count, _I32)
    vector = builder.insert_element(ir.Constant(_WORDS, ir.Undefined), count, _I32(0))
    vector = builder.shuffle_vector(vector, vector, _words(0))
    return builder.icmp_signed("<", ir.Constant(_WORDS, list(range(LANES))), vector)


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
    x = _emit_larger(builder, _same(-127.0), x)
    # 1.5 * 2 ** 23: adding it rounds to a whole number, which the lowest bits then hold.
    shifted = builder.fadd(x, _same(12582912.0))
    fraction = builder.fsub(x, builder.fsub(shifted, _same(12582912.0)))
    value = _same(1.32647254e-3)
    for factor in (9.67151277e-3, 5.55073375e-2, 2.40222421e-1, 6.93146978e-1, 1.0):
        value = _fma(builder, value, fraction, _same(factor))
    whole = builder.sub(builder.bitcast(shifted, _WORDS), _words(0x4B400000 - 127))
    # An exponent of -127 is the number zero.
    return builder.fmul(value, builder.bitcast(builder.shl(whole, _words(23)), _FLOATS))


add = _float_operation(lambda builder, a, b: builder.fadd(a, b), 2)
subtract = _float_operation(lambda builder, a, b: builder.fsub(a, b), 2)
multiply = _float_operation(lambda builder, a, b: builder.fmul(a, b), 2)
divide = _float_operation(lambda builder, a, b: builder.fdiv(a, b), 2)
multiply_add = _float_operation(_fma, 3)
larger = _float_operation(_emit_larger, 2)
"""Lane by lane; the second where either is not a number."""
exp2 = _float_operation(_emit_exp2, 1)
"""2 to the power of x <= 127: exactly 1 at 0, exactly 0 below -126.5, within 2e-7 elsewhere. The
polynomial is the best of degree 5 that is 1 at 0."""


@intrinsic
def splat(typing: Any, number: Any) -> Any:
    """The same float32 in all lanes."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _splat(builder, arguments[0])

    return VECTOR(types.float32), codegen


@intrinsic
def load(typing: Any, memory: Any, at: Any) -> Any:
    """The 16 numbers from element `at` on."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _load(builder, memory, builder.gep(arguments[0], [arguments[1]]))

    return VECTOR(memory, types.int64), codegen


@intrinsic
def store(typing: Any, memory: Any, at: Any, vector: Any) -> Any:
    """To the 16 numbers from element `at` on."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, at, vector = arguments
        pointer = builder.gep(pointer, [at])
        if memory.dtype == types.float32:
            builder.store(vector, builder.bitcast(pointer, _FLOATS.as_pointer()), align=4)
        else:
            halves = _narrow(builder, vector)
            builder.store(halves, builder.bitcast(pointer, _HALVES.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(memory, types.int64, VECTOR), codegen


@intrinsic
def load_first(typing: Any, memory: Any, at: Any, count: Any) -> Any:
    """The `count` < 16 numbers from element `at` on, then zeros."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, at, count = arguments
        pointer, mask = builder.gep(pointer, [at]), _first(builder, count)
        if memory.dtype == types.float32:
            pointer = builder.bitcast(pointer, _FLOATS.as_pointer())
            zeros = _same(0.0)
            name = "llvm.masked.load.v16f32.p0"
            return _call(builder, name, _FLOATS, pointer, _I32(4), mask, zeros)
        pointer = builder.bitcast(pointer, _HALVES.as_pointer())
        zeros = ir.Constant(_HALVES, [0] * LANES)
        name = "llvm.masked.load.v16i16.p0"
        return _widen(builder, _call(builder, name, _HALVES, pointer, _I32(2), mask, zeros))

    return VECTOR(memory, types.int64, types.int64), codegen


@intrinsic
def store_first(typing: Any, memory: Any, at: Any, count: Any, vector: Any) -> Any:
    """The first `count` < 16 lanes, from element `at` on."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, at, count, vector = arguments
        pointer, mask = builder.gep(pointer, [at]), _first(builder, count)
        if memory.dtype == types.float32:
            kind, stored, align = _FLOATS, vector, 4
            name = "llvm.masked.store.v16f32.p0"
        else:
            kind, stored, align = _HALVES, _narrow(builder, vector), 2
            name = "llvm.masked.store.v16i16.p0"
        pointer = builder.bitcast(pointer, kind.as_pointer())
        _call(builder, name, ir.VoidType(), stored, pointer, _I32(align), mask)
        return context.get_dummy_value()

    return types.void(memory, types.int64, types.int64, VECTOR), codegen


def _folded(emit: Callable[..., Any]) -> Any:
    """A function of a vector to one float: halves onto each other, in one order."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, half = arguments[0], LANES // 2
        while half:
            upper = _shuffle(builder, vector, vector, [half + i % half for i in range(LANES)])
            vector, half = emit(builder, vector, upper), half // 2
        return builder.extract_element(vector, _I32(0))

    return intrinsic(lambda typing, vector: (types.float32(VECTOR), codegen))


sum_of = _folded(lambda builder, a, b: builder.fadd(a, b))
largest_of = _folded(_emit_larger)


@intrinsic
def transpose_rows(
    typing: Any, cache: Any, first: Any, row: Any, slots: Any, at: Any, out: Any, to: Any, step: Any
) -> Any:
    """16 columns of 16 rows, each column to its own row of `out`.

    Row i begins at element ``first + slots[at + i] * row`` of `cache`; column j goes to the 16
    floats from element ``to + j * step`` of `out` on.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        memory, first, row, places, at, columns, to, step = arguments
        slot = builder.gep(places, [at])
        rows = []
        for i in range(LANES):
            number = builder.load(builder.gep(slot, [_I32(i)]))
            number = builder.sext(number, ir.IntType(64))
            where = builder.add(first, builder.mul(number, row))
            rows.append(_load(builder, cache, builder.gep(memory, [where])))
        # Each of log2(16) rounds is a perfect shuffle of the rows.
        half = LANES // 2
        lower = [lane for i in range(half) for lane in (i, i + LANES)]
        upper = [lane + half for lane in lower]
        for _ in range(4):
            rows = [
                _shuffle(builder, rows[i], rows[i + half], lanes)
                for i in range(half)
                for lanes in (lower, upper)
            ]
        for i, vector in enumerate(rows):
            where = builder.add(to, builder.mul(step, ir.IntType(64)(i)))
            pointer = builder.bitcast(builder.gep(columns, [where]), _FLOATS.as_pointer())
            builder.store(vector, pointer, align=4)
        return context.get_dummy_value()

    whole = types.int64
    return types.void(cache, whole, whole, slots, whole, out, whole, whole), codegen


@intrinsic
def product(
    typing: Any, rows: Any, c: Any, c_at: Any, c_row: Any, scale: Any,
    a: Any, a_at: Any, a_row: Any, b: Any, b_row: Any, n: Any, width: Any,
) -> Any:  # fmt: skip
    """``c[r] = c[r] * scale[r] + sum over i < n of a[r, i] * b[i]`` for `rows` <= ROWS rows of
    `width` numbers, whole vectors; without the first term where `scale` is None.

    Each number is one chain over i, whatever the rows. All memory is float32; `c` and `a` come
    with the element their matrix begins at, and matrices with the elements from row to row.
    """
    keep, whole = not isinstance(scale, types.NoneType), types.int64

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # A function that is not inlined: its many tiles would take long to compile in each caller.
        name, module = f"radixray.product.{keep}", builder.module
        if not keep:
            arguments = [*arguments[:4], arguments[1], *arguments[5:]]
        function = module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
            function = ir.Function(module, kind, name)
            function.linkage = "linkonce_odr"
            function.attributes.add("noinline")
            _emit_product(ir.IRBuilder(function.append_basic_block()), keep, *function.args)
        builder.call(function, arguments)
        return context.get_dummy_value()

    signature = types.void(
        whole, c, whole, whole, scale, a, whole, whole, b, whole, whole, whole
    )  # fmt: skip
    return signature, codegen


def _emit_product(
    builder: ir.IRBuilder, keep: bool, rows: Any, c: Any, c_at: Any, c_row: Any, scale: Any,
    a: Any, a_at: Any, a_row: Any, b: Any, b_row: Any, n: Any, width: Any,
) -> None:  # fmt: skip
    i64 = ir.IntType(64)
    c, a = builder.gep(c, [c_at]), builder.gep(a, [a_at])
    rest = builder.sub(width, builder.srem(width, i64(PANEL * LANES)))
    done = builder.append_basic_block("done")
    choice = builder.switch(rows, done)
    for height in range(1, ROWS + 1):
        case = builder.append_basic_block(f"rows.{height}")
        choice.add_case(i64(height), case)
        builder.position_at_end(case)
        for begin, end, panel in ((i64(0), rest, PANEL), (rest, width, 1)):
            step = i64(panel * LANES)
            with cgutils.for_range_slice(builder, begin, end, step, i64) as (at, _):
                _tile(
                    builder, height, panel, builder.gep(c, [at]), c_row, scale if keep else None,
                    a, a_row, builder.gep(b, [at]), b_row, n,
                )  # fmt: skip
        builder.branch(done)
    builder.position_at_end(done)
    builder.ret_void()


def _tile(
    builder: ir.IRBuilder, rows: int, panel: int, c: Any, c_row: Any, scale: Any,
    a: Any, a_row: Any, b: Any, b_row: Any, n: Any,
) -> None:  # fmt: skip
    """A `product` of `rows` by `panel` vectors, whose sums stay in registers."""
    i64 = ir.IntType(64)

    def at(pointer: Any, *terms: Any) -> Any:
        for term in terms:
            pointer = builder.gep(pointer, [term])
        return pointer

    def vector(pointer: Any) -> Any:
        return builder.load(builder.bitcast(pointer, _FLOATS.as_pointer()), align=4)

    starts = [builder.mul(c_row, i64(r)) for r in range(rows)]
    outs = [at(c, starts[r], i64(v * LANES)) for r in range(rows) for v in range(panel)]
    sums = [_same(0.0)] * len(outs)
    if scale is not None:
        for r in range(rows):
            factor = _splat(builder, builder.load(at(scale, i64(r))))
            for v in range(r * panel, (r + 1) * panel):
                sums[v] = builder.fmul(vector(outs[v]), factor)
    lefts = [at(a, builder.mul(a_row, i64(r))) for r in range(rows)]
    before = builder.block
    head, body, done = (builder.append_basic_block(f"tile.{x}") for x in ("head", "body", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    i = builder.phi(i64)
    i.add_incoming(i64(0), before)
    running = [builder.phi(_FLOATS) for _ in sums]
    for phi, value in zip(running, sums, strict=True):
        phi.add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<", i, n), body, done)
    builder.position_at_end(body)
    line = at(b, builder.mul(i, b_row))
    factors = [vector(at(line, i64(v * LANES))) for v in range(panel)]
    for r in range(rows):
        left = _splat(builder, builder.load(at(lefts[r], i)))
        for v, phi in enumerate(running[r * panel : (r + 1) * panel]):
            phi.add_incoming(_fma(builder, left, factors[v], phi), body)
    i.add_incoming(builder.add(i, i64(1)), body)
    builder.branch(head)
    builder.position_at_end(done)
    for pointer, phi in zip(outs, running, strict=True):
        builder.store(phi, builder.bitcast(pointer, _FLOATS.as_pointer()), align=4)


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
        read, near, data = _I32(0), _I32(2), _I32(1)
        _call(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, read, near, data)
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
