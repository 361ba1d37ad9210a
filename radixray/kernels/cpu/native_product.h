/* The product that both halves of attention are made of. */
#pragma once

#include "native_vectors.h"

enum { PANEL = 4 }; /* vectors of a register tile's rows */

/* c[r][..] = c[r][..] * scale[r] + sum over i < n of a[r][i] * b[i][..], for `vecs` vectors.
 * Without scale, c starts at zero. Each element is one chain over i, whatever the tile's shape. */
INLINE void register_tile(const int rows, const int vecs, const int pairs, float *c, ptrdiff_t c_row,
                          const float *scale, const float *a, ptrdiff_t a_row, const float *b,
                          ptrdiff_t b_row, int n) {
    vec sums[GROUP][PANEL];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            sums[r][v] = scale ? load(c + r * c_row + v * W) * splat(scale[r]) : splat(0.0f);
    for (int i = 0; i < n; i++) {
        vec factors[PANEL];
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) factors[v] = load(b + i * b_row + v * W);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vec factor = (vec)((ivec)splat(0.0f) + ((const int32_t *)a)[r * a_row + i]);
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v++)
                sums[r][v] = multiply_add(pairs, factor, factors[v], sums[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) store(c + r * c_row + v * W, sums[r][v]);
}

/* A product of any width, a multiple of W. */
INLINE void product_rows(const int rows, const int pairs, float *c, ptrdiff_t c_row,
                         const float *scale, const float *a, ptrdiff_t a_row, const float *b,
                         ptrdiff_t b_row, int n, int width) {
    int at = 0;
    for (; at + PANEL * W <= width; at += PANEL * W)
        register_tile(rows, PANEL, pairs, c + at, c_row, scale, a, a_row, b + at, b_row, n);
    if (at + PANEL / 2 * W <= width) {
        register_tile(rows, PANEL / 2, pairs, c + at, c_row, scale, a, a_row, b + at, b_row, n);
        at += PANEL / 2 * W;
    }
    if (at < width)
        register_tile(rows, 1, pairs, c + at, c_row, scale, a, a_row, b + at, b_row, n);
}

static void product(int rows, int pairs, float *c, ptrdiff_t c_row, const float *scale,
                    const float *a, ptrdiff_t a_row, const float *b, ptrdiff_t b_row, int n,
                    int width) {
#define CASE(r, p)                                                                       \
    case 2 * r + p:                                                                      \
        product_rows(r, p, c, c_row, scale, a, a_row, b, b_row, n, width);               \
        break;
    switch (2 * rows + pairs) {
        CASE(1, 0)
        CASE(2, 0)
#if GROUP > 2
        CASE(3, 0)
        CASE(4, 0)
        CASE(5, 0)
        CASE(6, 0)
#endif
#if PAIRS
        CASE(1, 1)
        CASE(2, 1)
        CASE(3, 1)
        CASE(4, 1)
        CASE(5, 1)
        CASE(6, 1)
#endif
    }
#undef CASE
}
