/* Row-wise operations: each is one pass over a row, rounded once at its end. */

#include "native.h"
#include "native_vectors.h"

/* Add `delta` (or nothing, if NULL) to a row of x in place, then scale it to unit mean square:
 * out = x / sqrt(mean(x^2) + eps) * weight. x, delta and out are [rows, size]. */
void rms_norm_row(void *x, const void *delta, const void *weight, void *out, int64_t row,
                  int64_t size, float eps, int bf16) {
    const ptrdiff_t begin = row * size, end = begin + size;
    vec squares = splat(0.0f);
    for (ptrdiff_t i = begin; i < end; i += W) {
        vec v = get(x, i, end, bf16);
        if (delta) {
            put(x, i, end, v + get(delta, i, end, bf16), bf16);
            v = get(x, i, end, bf16); /* as rounded */
        }
        squares = fma_(v, v, squares);
    }
    vec factor = splat(1.0f / sqrtf(sum_of(squares) / (float)size + eps));
    for (ptrdiff_t i = begin; i < end; i += W)
        put(out, i, end, get(x, i, end, bf16) * factor * get(weight, i - begin, size, bf16), bf16);
}

EXPORT void rr_rms_norm(void *x, const void *delta, const void *weight, void *out, int64_t rows,
                        int64_t size, float eps, int32_t bf16, int32_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * size > WORTH_NUMBERS)
    for (int64_t row = 0; row < rows; row++)
        rms_norm_row(x, delta, weight, out, row, size, eps, bf16);
}

/* Rotate the first `heads` heads of a row of x [rows, row_size] in place; halves of a head are the
 * two parts of its pairs. cos and sin: [rows, head_dim / 2]. */
void rotate_row(void *x, const void *cos, const void *sin, int64_t row, int64_t row_size, int heads,
                int head_dim, int bf16) {
    const int half = head_dim / 2;
    for (int head = 0; head < heads; head++) {
        const ptrdiff_t first = row * row_size + head * head_dim, second = first + half;
        for (int i = 0; i < half; i += W) {
            vec a = get(x, first + i, first + half, bf16);
            vec b = get(x, second + i, second + half, bf16);
            vec c = get(cos, row * half + i, (row + 1) * half, bf16);
            vec s = get(sin, row * half + i, (row + 1) * half, bf16);
            put(x, first + i, first + half, fma_(a, c, -(b * s)), bf16);
            put(x, second + i, second + half, fma_(b, c, a * s), bf16);
        }
    }
}

EXPORT void rr_rotate(void *x, const void *cos, const void *sin, int64_t rows, int64_t row_size,
                      int32_t heads, int32_t head_dim, int32_t bf16, int32_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * row_size > WORTH_NUMBERS)
    for (int64_t row = 0; row < rows; row++)
        rotate_row(x, cos, sin, row, row_size, heads, head_dim, bf16);
}

/* out = silu(gate) * up for a row of x [rows, 2 size], which is gate, then up. */
void silu_and_multiply_row(const void *x, void *out, int64_t row, int64_t size, int bf16) {
    const ptrdiff_t gate = 2 * row * size, up = gate + size, to = row * size;
    for (ptrdiff_t i = 0; i < size; i += W) {
        vec g = get(x, gate + i, up, bf16), u = get(x, up + i, up + size, bf16);
        /* -log2(e) g, at most 126: beyond, silu is 0 in any case. */
        vec power = -larger(splat(-126.0f), g * splat(LOG2_E));
        put(out, to + i, to + size, g / (splat(1.0f) + exp2_(power)) * u, bf16);
    }
}

EXPORT void rr_silu_and_multiply(const void *x, void *out, int64_t rows, int64_t size, int32_t bf16,
                                 int32_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * size > WORTH_NUMBERS)
    for (int64_t row = 0; row < rows; row++) silu_and_multiply_row(x, out, row, size, bf16);
}
