/* Linear layers in bfloat16: out = x @ weight.T, sums in float. Compiled with native.c; without
 * instructions that multiply pairs of bfloat16 there is nothing here.
 *
 * An element of the result is one chain of pair products over the inputs, from the first pair to
 * the last: its bits depend on its row of x and its row of the weight, and on nothing else. (The
 * instruction rounds each sum to nearest and takes numbers below 2^-126 as 0.)
 *
 * The weight is packed into panels of PANEL outputs, one after another in memory, in the order in
 * which a register tile of GROUP rows reads them:
 *     packed[panel][pair of inputs][output within the panel][2]
 * A thread has a run of panels. For a batch of few rows reading the weight from memory takes longer
 * than computing, for one of many rows computing does, and between them the two take as long; so
 * they must go on at once. While a panel, by then in the L2 cache, is multiplied with one group of
 * rows after another, the next panel is asked for, evenly spread over the groups. Long panels are
 * cut to blocks for that; the sums of a block begin with those of the block before.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "native.h"

#if HAS_LINEAR
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    LANES = 16,
    VECS = 3, /* GROUP * VECS sums, VECS weights and a factor are 28 of 32 registers */
    GROUP = 8,
    PANEL = VECS * LANES,
    LINE = 64,   /* bytes of a cache line: the weights of LANES outputs and a pair of inputs */
    STRETCH = 8, /* pairs between two rounds of prefetching */
    /* Shares of an L2 cache of 1 MiB: */
    BLOCK = 1024,        /* most pairs of a panel at a time: 192 KiB, and as much that is next */
    X_BYTES = 400 << 10, /* of x that is used again and again while blocks pass by */
    CARRIED = X_BYTES / (BLOCK / 2 * 4) + 2 * GROUP, /* most rows of so much x, if in blocks */
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

/* A block of a panel, and what it is multiplied with. */
typedef struct {
    const char *weights;
    int pairs;
    int width;       /* outputs: fewer than PANEL in the last panel */
    int first, last; /* whether sums begin and end with this block, or are carried over */
    ptrdiff_t x_row, out_row; /* numbers from row to row */
} Block;

/* A block times `rows` rows of x. carried: [rows, PANEL]. */
INLINE void tile(const int rows, const Block *b, const uint16_t *x, uint16_t *out, float *carried,
                 Ahead *ahead) {
    const ptrdiff_t x_row = b->x_row;
    const int pairs = b->pairs;
    const char *line = b->weights;
    __m512 sums[GROUP][VECS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int v = 0; v < VECS; v++)
            sums[r][v] = b->first ? _mm512_setzero_ps()
                                  : _mm512_loadu_ps(carried + r * PANEL + v * LANES);
    for (int begin = 0; begin < pairs; begin += STRETCH) {
        const int end = pairs - begin < STRETCH ? pairs : begin + STRETCH;
        fetch(ahead);
        for (int i = begin; i < end; i++) {
            __m512bh weights[VECS];
#pragma GCC unroll 3
            for (int v = 0; v < VECS; v++)
                weights[v] = (__m512bh)_mm512_loadu_ps((const void *)(line + v * LINE));
            line += VECS * LINE;
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
            if (!b->last) {
                _mm512_storeu_ps(carried + r * PANEL + v * LANES, sums[r][v]);
                continue;
            }
            __m256i rounded = (__m256i)_mm512_cvtneps_pbh(sums[r][v]);
            uint16_t *to = out + r * b->out_row + v * LANES;
            const int left = b->width - v * LANES;
            if (left >= LANES) _mm256_storeu_si256((void *)to, rounded);
            else if (left > 0) _mm256_mask_storeu_epi16(to, (__mmask16)((1 << left) - 1), rounded);
        }
}

static void multiply(int rows, const Block *b, const uint16_t *x, uint16_t *out, float *carried,
                     Ahead *ahead) {
#define CASE(n)                                 \
    case n:                                     \
        tile(n, b, x, out, carried, ahead); \
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

static int64_t panels_of(const Weight *w) { return (w->out_features + PANEL - 1) / PANEL; }

static int64_t pairs_of(const Weight *w) { return (w->in_features + 1) / 2; }

static int64_t panel_bytes(const Weight *w) { return pairs_of(w) * VECS * LINE; }

/* Pairs of a block: a panel's blocks are of almost equal size. */
static int64_t block_of(const Weight *w) {
    const int64_t pairs = pairs_of(w), blocks = (pairs + BLOCK - 1) / BLOCK;
    return (pairs + blocks - 1) / blocks;
}

/* The first of a thread's panels. */
static int64_t first_panel(const Weight *w, int64_t thread, int64_t team) {
    return panels_of(w) * thread / team;
}

/* The block at `at` of a panel. */
static Ahead ahead_of(const Weight *w, int64_t panel, int64_t pair) {
    const int64_t left = pairs_of(w) - pair, pairs = left < block_of(w) ? left : block_of(w);
    const char *at = w->packed + panel * panel_bytes(w) + pair * VECS * LINE;
    return (Ahead){at, at + pairs * VECS * LINE, 0};
}

/* Bytes of a packed weight. */
EXPORT int64_t rr_linear_bytes(const Weight *w) { return panels_of(w) * panel_bytes(w); }

/* Pack a weight [out_features, in_features]; what a panel or a pair lacks is 0. */
EXPORT void rr_pack_linear(const uint16_t *weight, const Weight *w, int32_t threads) {
    const int64_t ins = w->in_features, outs = w->out_features;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t panel = 0; panel < panels_of(w); panel++) {
        char *to = w->packed + panel * panel_bytes(w);
        for (int64_t in = 0; in < ins; in += 2)
            for (int64_t out = panel * PANEL; out < (panel + 1) * PANEL; out++, to += 4) {
                uint16_t pair[2] = {0, 0};
                if (out < outs) pair[0] = weight[out * ins + in];
                if (out < outs && in + 1 < ins) pair[1] = weight[out * ins + in + 1];
                memcpy(to, pair, sizeof pair);
            }
    }
}

/* How the rows of x are cut: into groups of almost equal size, and those into parts likewise. */
typedef struct {
    const uint16_t *x;
    uint16_t *out;
    int64_t x_row, rows, groups, parts;
} Rows;

static int64_t row_of(const Rows *r, int64_t group) { return r->rows * group / r->groups; }

/* A panel times a part of the rows. Asks for the panel `after`, of `next`, if that is not NULL. */
static void multiply_part(const Rows *r, int64_t part, const Weight *w, int64_t panel,
                          const Weight *next, int64_t after) {
    float carried[CARRIED * PANEL]; /* sums of a part's rows, if panels are in blocks */
    const int64_t pairs = pairs_of(w), outs = w->out_features - panel * PANEL;
    const int64_t group_begin = r->groups * part / r->parts;
    const int64_t group_end = r->groups * (part + 1) / r->parts;
    for (int64_t pair = 0; pair < pairs;) {
        const Ahead now = ahead_of(w, panel, pair);
        Block b = {
            .weights = now.at,
            .pairs = (int)((now.end - now.at) / (VECS * LINE)),
            .width = outs < PANEL ? (int)outs : PANEL,
            .first = pair == 0,
            .x_row = r->x_row,
            .out_row = w->out_features,
        };
        b.last = pair + b.pairs == pairs;
        Ahead ahead = !b.last ? ahead_of(w, panel, pair + b.pairs)
                      : next  ? ahead_of(next, after, 0)
                              : (Ahead){NULL, NULL, 0};
        const int64_t rounds = (group_end - group_begin) * ((b.pairs + STRETCH - 1) / STRETCH);
        ahead.rate = ((ahead.end - ahead.at) / LINE + rounds - 1) / rounds * LINE;
        for (int64_t group = group_begin; group < group_end; group++) {
            const int64_t row = row_of(r, group);
            multiply((int)(row_of(r, group + 1) - row), &b, r->x + row * r->x_row + 2 * pair,
                     r->out + row * w->out_features + panel * PANEL,
                     carried + (row - row_of(r, group_begin)) * PANEL, &ahead);
        }
        pair += b.pairs;
    }
}

/* out [rows, out_features] = x [rows, an even number of inputs] times a packed weight. The weight
 * of the next call, if known, begins to come into the cache.
 *
 * panels: a counter for each thread. One that is done with its own panels takes those of others:
 * they may have been interrupted by another process. */
void linear_in_team(const uint16_t *x, int64_t x_row, uint16_t *out, int64_t rows, const Weight *w,
                    const Weight *next, Counter *panels) {
    const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
    const int64_t needed = (rows * block_of(w) * 4 + X_BYTES - 1) / X_BYTES;
    Rows r = {x, out, x_row, rows, (rows + GROUP - 1) / GROUP, 0};
    r.parts = needed < r.groups ? needed : r.groups;
    for (int64_t i = 0; i < team; i++) {
        const int64_t owner = (thread + i) % team, first = first_panel(w, owner, team);
        const int64_t count = first_panel(w, owner + 1, team) - first, all = count * r.parts;
        for (int64_t unit = take(panels + owner); unit < all; unit = take(panels + owner)) {
            const int more = unit + 1 < all;
            multiply_part(&r, unit / count, w, first + unit % count, more ? w : next,
                          more   ? first + (unit + 1) % count
                          : next ? first_panel(next, thread, team)
                                 : 0);
        }
    }
}

EXPORT void rr_linear(const uint16_t *x, int64_t x_row, uint16_t *out, int64_t rows,
                      const Weight *w, const Weight *next, int32_t threads) {
    Counter panels[threads];
    memset(panels, 0, sizeof panels);
#pragma omp parallel num_threads(threads)
    linear_in_team(x, x_row, out, rows, w, next, panels);
}

#endif
