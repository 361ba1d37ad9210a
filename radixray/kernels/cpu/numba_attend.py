"""What a thread does in attention by numba: native_attention.c, in the words of `numba_vectors`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from radixray.kernels.cpu.numba_ir import LANES, ROWS
from radixray.kernels.cpu.numba_jit import FLOAT, INT, WORD, inlined
from radixray.kernels.cpu.numba_product import product, transpose_rows
from radixray.kernels.cpu.numba_vectors import (
    add,
    exp2,
    larger,
    largest_of,
    load,
    load_first,
    multiply,
    multiply_add,
    pointer,
    prefetch,
    splat,
    store,
    store_first,
    sum_of,
)

BLOCK = 64
"""Keys of a block; a multiple of PANEL * LANES."""

SPLIT = 256
"""Keys after which a row's state is closed; a multiple of BLOCK."""

TILE_TOKENS = 32
"""Most tokens whose rows share a loaded block."""

_NO_KEY = np.float32(-1e30)
"""Below every score, yet finite, so that a state without keys merges as an exact nothing."""

_ONE, _ZERO, _HIDDEN = np.float32(1), np.float32(0), np.float32(-math.inf)
_LOG2_E = 1.4426950408889634


class Step(NamedTuple):
    """A layer of a step: pointers to memory, and numbers; all int64 in Python, in this order.

    Attributes:
        q, k, v: ``[tokens, heads or kv_heads, head_dim]``, float32, or bfloat16 as uint16; rows are
            `q_row`, `k_row` and `v_row` numbers apart.
        out: ``[tokens, heads, head_dim]``.
        k_cache, v_cache: ``[kv_heads, num_slots, head_dim]``.
        out_slots: int64 ``[tokens]``.
        slots, runs, members, merges, chunks: int32, rows as in `Work`.
        partials: float32 ``[partials, heads, 2 + width]``: closed states, each the largest score
            as a power of 2, the sum of weights, and the weighted sum of values.
        width: head_dim, rounded up to whole vectors.
        memory, memory_bytes: address of the memory of all threads, and the bytes of each.
        counter: address of an int64, 0 at first.
        scale: float32, from products to powers of 2; made of head_dim.
    """

    q: Any
    k: Any
    v: Any
    out: Any
    k_cache: Any
    v_cache: Any
    out_slots: Any
    slots: Any
    runs: Any
    members: Any
    merges: Any
    chunks: Any
    partials: Any
    q_row: Any
    k_row: Any
    v_row: Any
    num_slots: Any
    tokens: Any
    num_runs: Any
    num_merges: Any
    num_chunks: Any
    heads: Any
    kv_heads: Any
    head_dim: Any
    width: Any
    memory: Any
    memory_bytes: Any
    counter: Any
    scale: Any


class Tile(NamedTuple):
    """What a thread works in: pointers to float32, the last two to int32.

    Attributes:
        keys: ``[width, BLOCK]``: transposed, so that keys lie in lanes.
        values: ``[BLOCK, width]``.
        q: ``[rows, width]``.
        weights: ``[ROWS, BLOCK]``: scores, then weights in place.
        fade: ``[LANES]``: what earlier sums of a group's rows are multiplied with; also
            where the last numbers of a key are put for a moment.
        state: ``[rows, 2 + width]``: of the splits so far, merged.
        out: ``[rows, width]``: of this split, like the next two.
        lane_sums: ``[rows, LANES]``.
        top: ``[rows]``: largest product.
        visible: ``[rows]``: keys of this split that a row sees.
        places: ``[BLOCK]``: slots of this block.
    """

    keys: Any
    values: Any
    q: Any
    weights: Any
    fade: Any
    state: Any
    out: Any
    lane_sums: Any
    top: Any
    visible: Any
    places: Any


@inlined
def make_step(arguments, like):
    """A `Step` from its words; the elements of `like` are of the type of queries and keys."""
    words = pointer(arguments, WORD)
    return Step(
        pointer(words[0], like), pointer(words[1], like), pointer(words[2], like),
        pointer(words[3], like), pointer(words[4], like), pointer(words[5], like),
        pointer(words[6], WORD), pointer(words[7], INT), pointer(words[8], INT),
        pointer(words[9], INT), pointer(words[10], INT), pointer(words[11], INT),
        pointer(words[12], FLOAT), words[13], words[14], words[15], words[16], words[17],
        words[18], words[19], words[20], words[21], words[22], words[23], words[24], words[25],
        words[26], words[27], np.float32(_LOG2_E / np.sqrt(words[23])),
    )  # fmt: skip


@inlined
def make_tile(memory, rows, width):
    """The parts of a thread's memory, one after another; `tile_words` says how much it takes."""
    keys = pointer(memory, FLOAT)
    values = memory + 4 * width * BLOCK
    q = values + 4 * BLOCK * width
    weights = q + 4 * rows * width
    fade = weights + 4 * ROWS * BLOCK
    state = fade + 4 * LANES
    out = state + 4 * rows * (2 + width)
    lane_sums = out + 4 * rows * width
    top = lane_sums + 4 * rows * LANES
    visible = top + 4 * rows
    places = visible + 4 * rows
    return Tile(
        keys, pointer(values, FLOAT), pointer(q, FLOAT), pointer(weights, FLOAT),
        pointer(fade, FLOAT), pointer(state, FLOAT), pointer(out, FLOAT),
        pointer(lane_sums, FLOAT), pointer(top, FLOAT), pointer(visible, INT),
        pointer(places, INT),
    )  # fmt: skip


def row_width(head_dim: int) -> int:
    """head_dim, rounded up to whole vectors."""
    return -(-head_dim // LANES) * LANES


def tile_words(rows: int, width: int) -> int:
    """32-bit words of a `Tile`."""
    return 2 * width * BLOCK + (ROWS + 1) * BLOCK + LANES + rows * (3 * width + LANES + 4)


@inlined
def _copy_row(array, at, out, to, size):
    """`size` numbers as floats."""
    d = 0
    while d + LANES <= size:
        store(out, to + d, load(array, at + d))
        d += LANES
    if d < size:
        store(out, to + d, load_first(array, at + d, size - d))


@inlined
def _prefetch(step, memory, kv_head, begin, count):
    """Ask for the rows of slots, which may lie anywhere, so the processor cannot guess them."""
    for i in range(begin, begin + count):
        at = (kv_head * step.num_slots + step.slots[i]) * step.head_dim
        for d in range(0, step.head_dim, LANES):
            prefetch(memory, at + d)


@inlined
def _load_block(step, t, kv_head, begin, count, later):
    """Keys and values of `count` slots; what stands in the lanes of missing keys is masked.

    The `later` slots after them are asked for: half a block ahead of their use.
    """
    head_dim, width = step.head_dim, step.width
    for i in range(BLOCK):
        t.places[i] = step.slots[begin + (i if i < count else 0)]
    first = kv_head * step.num_slots * head_dim
    whole = head_dim - head_dim % LANES
    for key in range(0, count, LANES):
        for d in range(0, whole, LANES):
            transpose_rows(
                step.k_cache, first + d, head_dim, t.places, key, t.keys, d * BLOCK + key, BLOCK
            )
    if whole < head_dim:
        for key in range(BLOCK):
            _copy_row(
                step.k_cache, first + t.places[key] * head_dim + whole, t.fade, 0, head_dim - whole
            )
            for d in range(whole, head_dim):
                t.keys[d * BLOCK + key] = t.fade[d - whole]
    _prefetch(step, step.k_cache, kv_head, begin + count, later)
    for key in range(count):
        _copy_row(step.v_cache, first + t.places[key] * head_dim, t.values, key * width, head_dim)
    _prefetch(step, step.v_cache, kv_head, begin + count, later)


@inlined
def _weigh(t, row, at, top, fade, scale):
    """Scores of a row over a block, from element `at` of its weights on, become weights."""
    total = multiply(load(t.lane_sums, row * LANES), splat(fade))
    factor, shift = splat(scale), splat(-top * scale)
    for i in range(at, at + BLOCK, LANES):
        weights = exp2(multiply_add(load(t.weights, i), factor, shift))
        store(t.weights, i, weights)
        total = add(total, weights)
    store(t.lane_sums, row * LANES, total)


@inlined
def _attend(step, t, row, rows, begin, count):
    """One block of `count` keys from key `begin` of the split on, for a group of rows."""
    width, padded = step.width, (count + LANES - 1) // LANES * LANES
    product(
        rows, t.weights, 0, BLOCK, None, t.q, row * width, width, t.keys, BLOCK, step.head_dim,
        padded,
    )  # fmt: skip
    seen = 0
    for r in range(rows):
        visible = max(t.visible[row + r] - begin, 0)
        seen = max(seen, min(visible, count))
        for i in range(r * BLOCK + visible, (r + 1) * BLOCK):
            t.weights[i] = _HIDDEN
        most = splat(t.top[row + r])
        for i in range(r * BLOCK, (r + 1) * BLOCK, LANES):
            most = larger(load(t.weights, i), most)
        top = largest_of(most)
        fade = _exp2_of((t.top[row + r] - top) * step.scale)
        t.fade[r] = fade
        t.top[row + r] = top
        _weigh(t, row + r, r * BLOCK, top, fade, step.scale)
    product(
        rows, t.out, row * width, width, t.fade, t.weights, 0, BLOCK, t.values, width, seen, width
    )


@inlined
def _exp2_of(x):
    return largest_of(exp2(splat(x)))


@inlined
def _attend_split(step, t, rows, kv_head, begin, count):
    """One split for all rows of a tile; leaves `top`, `lane_sums` and `out`."""
    groups = (rows + ROWS - 1) // ROWS
    size = (rows + groups - 1) // groups
    for i in range(rows * step.width):
        t.out[i] = _ZERO
    for i in range(rows * LANES):
        t.lane_sums[i] = _ZERO
    for row in range(rows):
        t.top[row] = _NO_KEY
    for at in range(0, count, BLOCK):
        n = min(count - at, BLOCK)
        if at == 0:
            _prefetch(step, step.v_cache, kv_head, begin, n)
        _load_block(step, t, kv_head, begin + at, n, min(count - at - n, BLOCK))
        for row in range(0, rows, size):
            some = min(rows - row, size)
            seen = 0
            for r in range(row, row + some):
                seen = max(seen, t.visible[r])
            if seen > at:
                _attend(step, t, row, some, at, n)


@inlined
def _merge(state, at, top, total, out, out_at, width):
    """Add a closed state to another: weights of both are taken relative to the larger top."""
    new_top = max(top, state[at])
    keep, take = _exp2_of(state[at] - new_top), _exp2_of(top - new_top)
    state[at] = new_top
    state[at + 1] = state[at + 1] * keep + total * take
    for d in range(0, width, LANES):
        kept = multiply(load(state, at + 2 + d), splat(keep))
        store(state, at + 2 + d, multiply_add(load(out, out_at + d), splat(take), kept))


@inlined
def _clear(state, at, width):
    state[at] = _NO_KEY
    for i in range(at + 1, at + 2 + width):
        state[i] = _ZERO


@inlined
def _finish(step, state, at, token, head):
    """A row's attention, from its state to the output."""
    inverse = splat(_ONE / state[at + 1])
    to, d = (token * step.heads + head) * step.head_dim, 0
    while d + LANES <= step.head_dim:
        store(step.out, to + d, multiply(load(state, at + 2 + d), inverse))
        d += LANES
    if d < step.head_dim:
        last = multiply(load(state, at + 2 + d), inverse)
        store_first(step.out, to + d, step.head_dim - d, last)


@inlined
def attend_unit(step, t, unit, kv_head):
    """A chunk, through all its splits, or a run, which is one split."""
    group, width = step.heads // step.kv_heads, step.width
    chunk = unit < step.num_chunks
    if chunk:
        row = 4 * unit
        slots_begin, token = np.int64(step.chunks[row]), np.int64(step.chunks[row + 1])
        tokens, position = np.int64(step.chunks[row + 2]), np.int64(step.chunks[row + 3])
        end, first = position + tokens, 0
    else:
        row = 4 * (unit - step.num_chunks)
        slots_begin, end = np.int64(step.runs[row]), np.int64(step.runs[row + 1])
        first, tokens = np.int64(step.runs[row + 2]), np.int64(step.runs[row + 3])
        token, position = 0, 0
    rows = tokens * group
    for i in range(tokens):
        number = token + i if chunk else np.int64(step.members[3 * (first + i)])
        for g in range(group):
            at = number * step.q_row + (kv_head * group + g) * step.head_dim
            _copy_row(step.q, at, t.q, (i * group + g) * width, step.head_dim)
            _clear(t.state, (i * group + g) * (2 + width), width)
    for begin in range(0, end, SPLIT):
        for row in range(rows):
            if chunk:
                t.visible[row] = position + row // group + 1 - begin
            else:
                t.visible[row] = step.members[3 * (first + row // group) + 1]
        _attend_split(step, t, rows, kv_head, slots_begin + begin, min(end - begin, SPLIT))
        for row in range(rows):
            total = sum_of(load(t.lane_sums, row * LANES))
            top, state = t.top[row] * step.scale, row * (2 + width)
            _merge(t.state, state, top, total, t.out, row * width, width)
    for row in range(rows):
        head, state = kv_head * group + row % group, row * (2 + width)
        if chunk:
            _finish(step, t.state, state, token + row // group, head)
        else:
            partial = np.int64(step.members[3 * (first + row // group) + 2])
            at = (partial * step.heads + head) * (2 + width)
            for i in range(2 + width):
                step.partials[at + i] = t.state[state + i]


@inlined
def merge_token(step, t, merge, kv_head):
    group, width = step.heads // step.kv_heads, step.width
    token, first = np.int64(step.merges[3 * merge]), np.int64(step.merges[3 * merge + 1])
    count = np.int64(step.merges[3 * merge + 2])
    for head in range(kv_head * group, (kv_head + 1) * group):
        _clear(t.state, 0, width)
        for partial in range(first, first + count):
            at = (partial * step.heads + head) * (2 + width)
            _merge(
                t.state, 0, step.partials[at], step.partials[at + 1], step.partials, at + 2, width
            )
        _finish(step, t.state, 0, token, head)
