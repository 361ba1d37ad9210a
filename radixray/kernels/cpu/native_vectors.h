/* Vectors of W floats: the compiler's vector extensions, with intrinsics only where those have no
 * word (fused multiply-add, rounding, bfloat16 products). native.py chooses the instruction set.
 *
 * "Word" below: 32 bits, which hold one float or a pair of bfloat16 for the pair product.
 */
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include <immintrin.h>
#define W 16
#define GROUP 6 /* rows of a register tile: GROUP * PANEL sums, PANEL factors and one more */
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define W 8
#define GROUP 2
#else
#define W 4
#define GROUP 2
#endif

#if W == 16 && defined(__AVX512BF16__)
#define PAIRS 1
#else
#define PAIRS 0 /* bfloat16 is widened to float when it is loaded */
#endif

#define LOG2_E 1.44269504088896340736f

#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * W)));
typedef int32_t ivec __attribute__((vector_size(4 * W)));
typedef uint32_t uvec __attribute__((vector_size(4 * W)));
typedef uint16_t hvec __attribute__((vector_size(2 * W)));

INLINE vec splat(float x) { return x - (vec){0}; }

INLINE vec load(const float *p) {
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(float *p, vec v) { memcpy(p, &v, sizeof v); }

INLINE vec widen(hvec h) { return (vec)(__builtin_convertvector(h, uvec) << 16); }

/* W numbers from element i on, of floats or bfloat16, as floats. */
INLINE vec load_floats(const void *p, ptrdiff_t i, int bf16) {
    if (!bf16) return load((const float *)p + i);
    hvec h;
    memcpy(&h, (const uint16_t *)p + i, sizeof h);
    return widen(h);
}

/* Round to bfloat16, ties to even; not-a-number stays one. */
INLINE hvec narrow(vec v) {
    uvec bits = (uvec)v;
    uvec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    uvec is_nan = (uvec)(v != v);
    return __builtin_convertvector((rounded & ~is_nan) | (0x7fc0 & is_nan), hvec);
}

/* W pairs of bfloat16 from 2 W floats. */
INLINE vec pair_up(vec low, vec high) {
#if PAIRS
    return (vec)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
#else
    (void)high;
    return low;
#endif
}

INLINE void store_floats(void *p, ptrdiff_t i, vec v, int bf16) {
    if (!bf16) {
        store((float *)p + i, v);
        return;
    }
    hvec h = narrow(v);
    memcpy((uint16_t *)p + i, &h, sizeof h);
}

/* The same for the last n < W numbers of a row; the missing ones read as 0. */
static vec load_tail(const void *p, ptrdiff_t i, int n, int bf16) {
    float row[W] = {0};
    size_t size = bf16 ? 2 : 4;
    memcpy(row, (const char *)p + i * size, n * size);
    return load_floats(row, 0, bf16);
}

static void store_tail(void *p, ptrdiff_t i, int n, vec v, int bf16) {
    float row[W];
    size_t size = bf16 ? 2 : 4;
    store_floats(row, 0, v, bf16);
    memcpy((char *)p + i * size, row, n * size);
}

INLINE vec get(const void *p, ptrdiff_t i, ptrdiff_t end, int bf16) {
    return i + W <= end ? load_floats(p, i, bf16) : load_tail(p, i, (int)(end - i), bf16);
}

INLINE void put(void *p, ptrdiff_t i, ptrdiff_t end, vec v, int bf16) {
    if (i + W <= end) store_floats(p, i, v, bf16);
    else store_tail(p, i, (int)(end - i), v, bf16);
}

/* a * b + c */
INLINE vec fma_(vec a, vec b, vec c) {
#if W == 16
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif W == 8
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* The sum of products of words, each a float or a pair of bfloat16, plus c. */
INLINE vec multiply_add(int pairs, vec a, vec b, vec c) {
#if PAIRS
    if (pairs) return (vec)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#endif
    (void)pairs;
    return fma_(a, b, c);
}

/* The larger lane by lane; b where either is not a number. */
INLINE vec larger(vec a, vec b) {
#if W == 16
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif W == 8
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    ivec above = a > b;
    return (vec)((above & (ivec)a) | (~above & (ivec)b));
#endif
}

INLINE float sum_of(vec v) {
    for (int half = W / 2; half; half /= 2)
        for (int i = 0; i < half; i++) v[i] += v[i + half];
    return v[0];
}

INLINE float largest_of(vec v) {
#if W == 16
    return _mm512_reduce_max_ps((__m512)v);
#else
    float best = v[0];
    for (int i = 1; i < W; i++) best = v[i] > best ? v[i] : best;
    return best;
#endif
}

/* 2 to the power of x <= 252: exactly 1 at 0, exactly 0 far below, within 2e-7 elsewhere. The
 * polynomial is the best of degree 5 that is 1 at 0. */
INLINE vec exp2_(vec x) {
    x = larger(splat(-252.0f), x);
#if W == 16
    vec n = (vec)_mm512_roundscale_ps((__m512)x, 0);
#else
    const vec shift = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to whole numbers */
    vec n = (x + shift) - shift;
#endif
    vec f = x - n; /* in [-0.5, 0.5] */
    vec p = splat(1.32647254e-3f);
    p = fma_(p, f, splat(9.67151277e-3f));
    p = fma_(p, f, splat(5.55073375e-2f));
    p = fma_(p, f, splat(2.40222421e-1f));
    p = fma_(p, f, splat(6.93146978e-1f));
    p = fma_(p, f, splat(1.0f));
#if W == 16
    return (vec)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    /* Two factors, as 2^n alone would leave the range of floats earlier than the product. */
    ivec whole = __builtin_convertvector(n, ivec), half = whole >> 1;
    return p * (vec)((half + 127) << 23) * (vec)((whole - half + 127) << 23);
#endif
}

INLINE float exp2_of(float x) { return exp2_(splat(x))[0]; }

/* a0 b0 a1 b1 ... of the lower and of the upper halves. */
#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif
#if W == 16
#define LOWER(a, b) SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define UPPER(a, b) SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif W == 8
#define LOWER(a, b) SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define UPPER(a, b) SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define LOWER(a, b) SHUFFLE(a, b, 0, 4, 1, 5)
#define UPPER(a, b) SHUFFLE(a, b, 2, 6, 3, 7)
#endif

/* Transpose a W by W matrix of words: log2 W perfect shuffles of its rows. */
INLINE void transpose(vec *rows) {
#pragma GCC unroll 4
    for (int done = 1; done < W; done *= 2) {
        vec next[W];
#pragma GCC unroll 8
        for (int i = 0; i < W / 2; i++) {
            next[2 * i] = LOWER(rows[i], rows[i + W / 2]);
            next[2 * i + 1] = UPPER(rows[i], rows[i + W / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < W; i++) rows[i] = next[i];
    }
}
