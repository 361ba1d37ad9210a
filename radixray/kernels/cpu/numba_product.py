"""The matrix product and the transposition that attention by numba is made of."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from radixray.kernels.cpu.numba_ir import (
    FLOATS,
    I32,
    LANES,
    PANEL,
    ROWS,
    fma,
    load_vector,
    same,
    shuffle,
    spread,
)
from radixray.kernels.cpu.numba_vectors import intrinsic


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
            number = builder.load(builder.gep(slot, [I32(i)]))
            number = builder.sext(number, ir.IntType(64))
            where = builder.add(first, builder.mul(number, row))
            rows.append(load_vector(builder, cache, builder.gep(memory, [where])))
        # Each of log2(16) rounds is a perfect shuffle of the rows.
        half = LANES // 2
        lower = [lane for i in range(half) for lane in (i, i + LANES)]
        upper = [lane + half for lane in lower]
        for _ in range(4):
            rows = [
                shuffle(builder, rows[i], rows[i + half], lanes)
                for i in range(half)
                for lanes in (lower, upper)
            ]
        for i, vector in enumerate(rows):
            where = builder.add(to, builder.mul(step, ir.IntType(64)(i)))
            pointer = builder.bitcast(builder.gep(columns, [where]), FLOATS.as_pointer())
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
        return builder.load(builder.bitcast(pointer, FLOATS.as_pointer()), align=4)

    starts = [builder.mul(c_row, i64(r)) for r in range(rows)]
    outs = [at(c, starts[r], i64(v * LANES)) for r in range(rows) for v in range(panel)]
    sums: list[Any] = [same(0.0)] * len(outs)
    if scale is not None:
        for r in range(rows):
            factor = spread(builder, builder.load(at(scale, i64(r))))
            for v in range(r * panel, (r + 1) * panel):
                sums[v] = builder.fmul(vector(outs[v]), factor)
    lefts = [at(a, builder.mul(a_row, i64(r))) for r in range(rows)]
    before = builder.block
    head, body, done = (builder.append_basic_block(f"tile.{x}") for x in ("head", "body", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    i = builder.phi(i64)
    i.add_incoming(i64(0), before)
    running = [builder.phi(FLOATS) for _ in sums]
    for phi, value in zip(running, sums, strict=True):
        phi.add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<", i, n), body, done)
    builder.position_at_end(body)
    line = at(b, builder.mul(i, b_row))
    factors = [vector(at(line, i64(v * LANES))) for v in range(panel)]
    for r in range(rows):
        left = spread(builder, builder.load(at(lefts[r], i)))
        for v, phi in enumerate(running[r * panel : (r + 1) * panel]):
            phi.add_incoming(fma(builder, left, factors[v], phi), body)
    i.add_incoming(builder.add(i, i64(1)), body)
    builder.branch(head)
    builder.position_at_end(done)
    for pointer, phi in zip(outs, running, strict=True):
        builder.store(phi, builder.bitcast(pointer, FLOATS.as_pointer()), align=4)
