/* Linear layers in bfloat16: out = x @ weight.T, sums in float. Compiled with native.c; without
 * instructions that multiply pairs of bfloat16 there is nothing here.
 *
 * An element of the result is one chain of pair products over the inputs, from the first pair to
 * the last: its bits depend on its row of x and its row of the weight, and on nothing else.
 *
 * The weight is packed into panels of PANEL outputs, one after another in memory, in the order in
 * which a register tile of GROUP rows reads them:
 *     packed[panel][pair of inputs][output within the panel][2]
 * A thread has a run of panels. For a batch of few rows reading the weight from memory takes longer
 * than computing, for one of many rows computing does, and between them the two take as long; so
 * they must go on at once. While a panel, by then in the L2 cache, is multiplied with one group of
 * rows after another, the next panel is asked for, evenly spread over the groups.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define EXPORT __attribute__((visibility("default")))

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512BF16__)
#include <immintrin.h>

enum {
    LANES = 16,
    VECS = 3, /* GROUP * VECS sums, VECS weights and a factor are 28 of 32 registers */
    GROUP = 8,
    PANEL = VECS * LANES,
    LINE = 64,      /* bytes of a cache line: the weights of LANES outputs and a pair of inputs */
    STRETCH = 8,    /* pairs between two rounds of prefetching */
    X_BYTES = 400 << 10, /* of x that should stay in the L2 cache while panels pass by */
};

/* What should come into the cache while something else is computed. */
typedef struct {
    const char *at, *end;
    ptrdiff_t rate; /* bytes each STRETCH pairs */
} Ahead;

INLINE void fetch(Ahead *ahead) {
    const char *until = ahead->at + ahead->rate;
    if (until > ahead->end) until = ahead->end;
    for (; ahead->at < until; ahead->at += LINE) __builtin_prefetch(ahead->at, 0, 2);
}

/* `rows` rows of x times one panel. x_row, out_row: elements from row to row. */
INLINE void tile(const int rows, const uint16_t *x, ptrdiff_t x_row, const char *panel,
                 uint16_t *out, ptrdiff_t out_row, int pairs, int width, Ahead *ahead) {
    __m512 sums[GROUP][VECS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int v = 0; v < VECS; v++) sums[r][v] = _mm512_setzero_ps();
    for (int begin = 0; begin < pairs; begin += STRETCH) {
        const int end = pairs - begin < STRETCH ? pairs : begin + STRETCH;
        fetch(ahead);
        for (int i = begin; i < end; i++) {
            __m512bh weights[VECS];
#pragma GCC unroll 3
            for (int v = 0; v < VECS; v++)
                weights[v] = (__m512bh)_mm512_loadu_ps((const void *)(panel + v * LINE));
            panel += VECS * LINE;
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                int32_t pair;
                memcpy(&pair, x + r * x_row + 2 * i, sizeof pair);
                __m512bh factor = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 3
                for (int v = 0; v < VECS; v++)
                    sums[r][v] = _mm512_dpbf16_ps(sums[r][v], factor, weights[v]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int v = 0; v < VECS; v++) {
            __m256i rounded = (__m256i)_mm512_cvtneps_pbh(sums[r][v]);
            uint16_t *to = out + r * out_row + v * LANES;
            const int left = width - v * LANES;
            if (left >= LANES) _mm256_storeu_si256((void *)to, rounded);
            else if (left > 0) _mm256_mask_storeu_epi16(to, (__mmask16)((1 << left) - 1), rounded);
        }
}

static void group_of(int rows, const uint16_t *x, ptrdiff_t x_row, const char *panel, uint16_t *out,
                     ptrdiff_t out_row, int pairs, int width, Ahead *ahead) {
#define CASE(n)                                                              \
    case n:                                                                  \
        tile(n, x, x_row, panel, out, out_row, pairs, width, ahead); \
        break;
    switch (rows) {
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
        CASE(7)
        CASE(8)
    }
#undef CASE
}

static int64_t panels_of(int64_t out_features) { return (out_features + PANEL - 1) / PANEL; }

static int64_t pairs_of(int64_t in_features) { return (in_features + 1) / 2; }

/* Bytes of a packed weight. */
EXPORT int64_t rr_linear_bytes(int64_t out_features, int64_t in_features) {
    return panels_of(out_features) * pairs_of(in_features) * VECS * LINE;
}

/* Pack a weight [out_features, in_features]; what is missing of a panel or a pair is 0. */
EXPORT void rr_pack_linear(const uint16_t *weight, uint16_t *packed, int64_t out_features,
                           int64_t in_features, int32_t threads) {
    const int64_t pairs = pairs_of(in_features);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t panel = 0; panel < panels_of(out_features); panel++) {
        uint16_t *to = packed + panel * pairs * PANEL * 2;
        for (int64_t in = 0; in < 2 * pairs; in += 2)
            for (int64_t out = panel * PANEL; out < (panel + 1) * PANEL; out++)
                for (int64_t i = in; i < in + 2; i++)
                    *to++ = out < out_features && i < in_features ? weight[out * in_features + i] : 0;
    }
}

/* out [rows, out_features] = x [rows, an even number of inputs] times a packed weight. */
EXPORT void rr_linear(const uint16_t *x, int64_t x_row, const char *packed, uint16_t *out,
                      int64_t rows, int64_t in_features, int64_t out_features, int32_t threads) {
    const int64_t pairs = pairs_of(in_features), panels = panels_of(out_features);
    const int64_t panel_bytes = pairs * VECS * LINE;
    const int64_t groups = (rows + GROUP - 1) / GROUP;
    /* Groups are of almost equal size, and so are parts, each of which takes all panels. */
    const int64_t parts = (rows * pairs * 4 + X_BYTES - 1) / X_BYTES;
#pragma omp parallel num_threads(threads)
    {
        int64_t thread = 0, team = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num(), team = omp_get_num_threads();
#endif
        const int64_t first = panels * thread / team, last = panels * (thread + 1) / team;
        for (int64_t part = 0; part < parts; part++) {
            const int64_t group_begin = groups * part / parts;
            const int64_t group_end = groups * (part + 1) / parts;
            for (int64_t panel = first; panel < last; panel++) {
                const int64_t width = out_features - panel * PANEL;
                const char *weights = packed + panel * panel_bytes;
                Ahead ahead = {.at = weights + panel_bytes};
                if (panel + 1 == last) ahead.at = part + 1 < parts ? packed + first * panel_bytes : NULL;
                ahead.end = ahead.at ? ahead.at + panel_bytes : NULL;
                const int64_t rate = STRETCH * VECS * LINE / (group_end - group_begin);
                ahead.rate = (rate + LINE - 1) / LINE * LINE;
                for (int64_t group = group_begin; group < group_end; group++) {
                    const int64_t row = rows * group / groups;
                    const int64_t next = rows * (group + 1) / groups;
                    group_of((int)(next - row), x + row * x_row, x_row, weights,
                             out + row * out_features + panel * PANEL, out_features, (int)pairs,
                             width < PANEL ? (int)width : PANEL, &ahead);
                }
            }
        }
    }
}

#endif
