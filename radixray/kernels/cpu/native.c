/* CPU kernels whose results depend on a token's own inputs only, never on its neighbours in a batch.
 *
 * One source for all processors: vectors of W floats by the compiler's vector extensions, with
 * intrinsics only where those have no word (fused multiply-add, rounding, bfloat16 products).
 * native.py chooses the instruction set at run time and compiles for it; see there.
 *
 * How bits stay equal. Every sum has one order, fixed by the position of its terms:
 *   - a score adds its products over the head dimension one after another;
 *   - a row's softmax runs over blocks of BLOCK keys counted from position 0 (online softmax, as in
 *     FlashAttention: Dao et al., 2022), and within a block key after key;
 *   - every SPLIT keys the running state is closed, and closed states are merged in order, so that
 *     splits of one row can be computed apart (Flash-Decoding) or for many rows at once.
 * A key that a row may not see adds an exact zero. So tiling, batching and threads choose only who
 * computes which numbers. The compiler must not contract or reorder floating point arithmetic:
 * native.py passes -ffp-contract=off and no fast-math flag.
 *
 * "Word" below: 32 bits, which hold one float or a pair of bfloat16 for the pair product.
 */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

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

enum {
    PANEL = 4,        /* vectors of a register tile's rows */
    BLOCK = 64,       /* keys of a block; a multiple of PANEL * W */
    SPLIT = 256,      /* keys after which a row's state is closed; a multiple of BLOCK */
    TILE_TOKENS = 32, /* most tokens whose rows share a loaded block */
    /* Less is done before other threads wake up: */
    WORTH_TOKENS = 64,       /* to write to the pool */
    WORTH_NUMBERS = 1 << 17, /* of a row-wise operation */
};

/* Below every score, yet finite, so that a state without keys merges as an exact nothing. */
#define NO_KEY (-1e30f)
#define LOG2_E 1.44269504088896340736f

#define INLINE static inline __attribute__((always_inline))
#define EXPORT __attribute__((visibility("default")))

typedef float vec __attribute__((vector_size(4 * W)));
typedef int32_t ivec __attribute__((vector_size(4 * W)));
typedef uint32_t uvec __attribute__((vector_size(4 * W)));
typedef uint16_t hvec __attribute__((vector_size(2 * W)));

/* ---- Vectors ---------------------------------------------------------------------------------- */

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

/* ---- The product both halves of attention are made of ------------------------------------------ */

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
    for (; at < width; at += W)
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

/* ---- Attention --------------------------------------------------------------------------------- */

/* A run of at most SPLIT slots, and at most TILE_TOKENS tokens that attend to it. */
typedef struct {
    int32_t slots_begin, count;     /* in Attention.slots */
    int32_t first_member, members; /* in Attention.members */
} Run;

/* A token that attends to the first `visible` slots of a run; its state goes to `partial`. */
typedef struct {
    int32_t token, visible, partial;
} Member;

/* A token whose closed states are partials `first` to `first + count - 1`. */
typedef struct {
    int32_t token, first, count;
} Merge;

/* At most TILE_TOKENS consecutive tokens of one sequence, from position `position` on. */
typedef struct {
    int32_t slots_begin, token, tokens, position;
} Chunk;

/* One layer of one step. Mirrored in native.py, field by field. */
typedef struct {
    const void *q, *k, *v; /* [tokens, heads or kv_heads, head_dim], row strides below */
    void *out;             /* [tokens, heads, head_dim] */
    void *k_cache, *v_cache; /* [kv_heads, num_slots, head_dim] */
    const int64_t *out_slots; /* [tokens] */
    const int32_t *slots;
    const Run *runs;
    const Member *members;
    const Merge *merges;
    const Chunk *chunks;
    float *partials; /* [partials, heads, partial_floats()] */
    float *scratch;  /* [threads, scratch_floats()] */
    int64_t q_row, k_row, v_row, num_slots, tokens;
    int32_t num_runs, num_merges, num_chunks;
    int32_t heads, kv_heads, head_dim, bf16, threads;
} Attention;

static int round_up(int n, int to) { return (n + to - 1) / to * to; }

/* Floats of a row of outputs. */
static int width_of(int head_dim) { return round_up(head_dim, W); }

/* A closed state: largest score as a power of 2, sum of weights, weighted sum of values. */
static int state_floats(int head_dim) { return 2 + width_of(head_dim); }

/* What a thread works in, and the rows it works on. */
typedef struct {
    int rows, words, width, pairs, bf16, head_dim;
    float scale;      /* from products to powers of 2 */
    float *keys;      /* [words, BLOCK]: transposed, so that keys lie in lanes */
    float *values;    /* [BLOCK or BLOCK / 2 words, width] */
    float *q;         /* [rows, words] */
    float *weights;   /* [GROUP, BLOCK]: scores, then weights in place */
    float *state;     /* [rows, state_floats]: of the splits so far, merged */
    float *out;       /* [rows, width]: of this split, like the next two */
    float *lane_sums; /* [rows, W] */
    float *top;       /* [rows and W more]: largest product */
    int32_t *visible; /* [rows]: keys of this split that a row sees */
} Tile;

static size_t tile_layout(Tile *tile, float *base, int head_dim, int group) {
    int rows = TILE_TOKENS * group, width = width_of(head_dim);
    float *next = base;
#define TAKE(field, n)              \
    do {                            \
        if (tile) tile->field = (void *)next; \
        next += round_up((n), 16);  \
    } while (0)
    TAKE(keys, round_up(head_dim, W) * BLOCK);
    TAKE(values, BLOCK * width);
    TAKE(q, rows * round_up(head_dim, W));
    TAKE(weights, GROUP * BLOCK);
    TAKE(state, rows * state_floats(head_dim));
    TAKE(out, rows * width);
    TAKE(lane_sums, rows * W);
    TAKE(top, rows + W);
    TAKE(visible, rows);
#undef TAKE
    return next - base;
}

EXPORT int64_t rr_scratch_floats(int32_t head_dim, int32_t group) {
    return (int64_t)tile_layout(NULL, NULL, head_dim, group);
}

EXPORT int32_t rr_state_floats(int32_t head_dim) { return state_floats(head_dim); }
EXPORT int32_t rr_split(void) { return SPLIT; }
EXPORT int32_t rr_tile_tokens(void) { return TILE_TOKENS; }

/* W words from word i of a row of `words`. */
INLINE vec load_words(const void *row, int i, int words, int widening) {
    return get(row, i, words, widening);
}

/* Keys of n slots to [words, BLOCK]; the lanes of missing keys are zeroed up to a multiple of W. */
static void load_keys(const Tile *t, const char *cache, const int32_t *slots, int n) {
    const ptrdiff_t row_bytes = (ptrdiff_t)t->head_dim * (t->bf16 ? 2 : 4);
    const int widening = t->bf16 && !t->pairs;
    for (int key = 0; key < n; key += W) {
        int count = n - key < W ? n - key : W;
        for (int word = 0; word < t->words; word += W) {
            vec rows[W];
#pragma GCC unroll 16
            for (int i = 0; i < W; i++)
                rows[i] = i < count ? load_words(cache + slots[key + i] * row_bytes, word, t->words,
                                                 widening)
                                    : splat(0.0f);
            transpose(rows);
            int last = t->words - word < W ? t->words - word : W;
            for (int i = 0; i < last; i++) store(t->keys + (word + i) * BLOCK + key, rows[i]);
        }
    }
}

/* Values of n slots to [n, width], or, paired, to [n / 2 rounded up, width] words. */
static void load_values(const Tile *t, const char *cache, const int32_t *slots, int n) {
    const ptrdiff_t row_bytes = (ptrdiff_t)t->head_dim * (t->bf16 ? 2 : 4);
    if (!t->pairs) {
        for (int key = 0; key < n; key++)
            for (int d = 0; d < t->head_dim; d += W)
                store(t->values + key * t->width + d,
                      get(cache + slots[key] * row_bytes, d, t->head_dim, t->bf16));
        return;
    }
    for (int key = 0; key < n; key += 2) {
        const char *even = cache + slots[key] * row_bytes;
        const char *odd = key + 1 < n ? cache + slots[key + 1] * row_bytes : NULL;
        for (int d = 0; d < t->head_dim; d += W) {
            uvec low = (uvec)get(even, d, t->head_dim, 1) >> 16;
            uvec high = odd ? (uvec)get(odd, d, t->head_dim, 1) : (uvec)splat(0.0f);
            store(t->values + key / 2 * t->width + d, (vec)(low | high));
        }
    }
}

/* Scores of a row over a block become weights; adds them to the row's sums. */
INLINE void weigh(float *row, float *lane_sums, float top, float fade, float scale, int pairs) {
    vec weights[BLOCK / W], sum = load(lane_sums) * splat(fade);
#pragma GCC unroll 16
    for (int i = 0; i < BLOCK / W; i++) {
        weights[i] = exp2_(fma_(load(row + i * W), splat(scale), splat(-top * scale)));
        sum += weights[i];
    }
    store(lane_sums, sum);
#pragma GCC unroll 16
    for (int i = 0; i < BLOCK / W; i++) {
        if (!pairs) store(row + i * W, weights[i]);
        else if (i % 2) store(row + i / 2 * W, pair_up(weights[i - 1], weights[i]));
    }
}

/* One block of `count` keys from key `begin` of the split on, for a group of rows. */
static void attend(Tile *t, int row, int rows, int begin, int count) {
    float top[W] = {0}, fade[W];
    int seen = 0;
    product(rows, t->pairs, t->weights, BLOCK, NULL, t->q + row * t->words, t->words, t->keys,
            BLOCK, t->words, round_up(count, W));
    for (int r = 0; r < rows; r++) {
        float *scores = t->weights + r * BLOCK;
        int visible = t->visible[row + r] - begin;
        for (int i = visible > 0 ? visible : 0; i < BLOCK; i++) scores[i] = -INFINITY;
        if (visible > seen) seen = visible;
        vec most = splat(t->top[row + r]);
#pragma GCC unroll 16
        for (int i = 0; i < BLOCK / W; i++) most = larger(load(scores + i * W), most);
        top[r] = largest_of(most);
    }
    /* What earlier sums are to be multiplied with: all rows' at once. */
    store(fade, exp2_((load(t->top + row) - load(top)) * splat(t->scale)));
    for (int r = 0; r < rows; r++) {
        t->top[row + r] = top[r];
        weigh(t->weights + r * BLOCK, t->lane_sums + (row + r) * W, top[r], fade[r], t->scale,
              t->pairs);
    }
    if (seen > count) seen = count;
    product(rows, t->pairs, t->out + row * t->width, t->width, fade, t->weights, BLOCK, t->values,
            t->width, t->pairs ? (seen + 1) / 2 : seen, t->width);
}

/* Ask for the rows of n slots. Slots may lie anywhere, so the processor cannot guess the next. */
static void prefetch(const Tile *t, const char *cache, const int32_t *slots, int n) {
    const ptrdiff_t row_bytes = (ptrdiff_t)t->head_dim * (t->bf16 ? 2 : 4);
    for (int key = 0; key < n; key++)
        for (ptrdiff_t at = 0; at < row_bytes; at += 64)
            __builtin_prefetch(cache + slots[key] * row_bytes + at, 0, 2);
}

/* One split for all rows of a tile; leaves `top`, `lane_sums` and `out`. */
static void attend_split(Tile *t, const char *k_cache, const char *v_cache, const int32_t *slots,
                         int count) {
    const int groups = (t->rows + GROUP - 1) / GROUP;
    const int step = (t->rows + groups - 1) / groups;
    memset(t->out, 0, sizeof(float) * t->rows * t->width);
    memset(t->lane_sums, 0, sizeof(float) * t->rows * W);
    for (int r = 0; r < t->rows; r++) t->top[r] = NO_KEY;
    for (int begin = 0; begin < count; begin += BLOCK) {
        int n = count - begin < BLOCK ? count - begin : BLOCK;
        /* Half a block ahead of its use, as measured: halves the time of scattered slots. */
        int next = count - begin - n < BLOCK ? count - begin - n : BLOCK;
        if (!begin) prefetch(t, v_cache, slots, n);
        load_keys(t, k_cache, slots + begin, n);
        prefetch(t, k_cache, slots + begin + n, next);
        load_values(t, v_cache, slots + begin, n);
        prefetch(t, v_cache, slots + begin + n, next);
        for (int row = 0; row < t->rows; row += step) {
            int rows = t->rows - row < step ? t->rows - row : step, seen = 0;
            for (int r = 0; r < rows; r++)
                if (t->visible[row + r] > seen) seen = t->visible[row + r];
            if (seen > begin) attend(t, row, rows, begin, n);
        }
    }
}

/* Add a closed state to another: weights of both are taken relative to the larger top. */
static void merge(float *state, float top, float sum, const float *out, int width) {
    float new_top = top > state[0] ? top : state[0];
    float keep = exp2_of(state[0] - new_top), take = exp2_of(top - new_top);
    state[0] = new_top;
    state[1] = state[1] * keep + sum * take;
    for (int d = 0; d < width; d += W)
        store(state + 2 + d,
              fma_(load(out + d), splat(take), load(state + 2 + d) * splat(keep)));
}

static void clear(float *state, int width) {
    memset(state, 0, sizeof(float) * (2 + width));
    state[0] = NO_KEY;
}

/* The attention of a row from its state to [head_dim] of the output. */
static void finish(const Attention *a, const float *state, int64_t token, int head) {
    vec inverse = splat(1.0f / state[1]);
    ptrdiff_t begin = (token * a->heads + head) * a->head_dim;
    for (int d = 0; d < a->head_dim; d += W)
        put(a->out, begin + d, begin + a->head_dim, load(state + 2 + d) * inverse, a->bf16);
}

/* Copy the query rows of a token's group of heads into the tile. */
static void take_queries(const Attention *a, Tile *t, int row, int64_t token, int kv_head) {
    const int group = a->heads / a->kv_heads, widening = t->bf16 && !t->pairs;
    for (int g = 0; g < group; g++) {
        ptrdiff_t begin = token * a->q_row + (kv_head * group + g) * a->head_dim;
        float *q = t->q + (row + g) * t->words;
        if (widening)
            for (int d = 0; d < a->head_dim; d++) {
                uint32_t bits = (uint32_t)((const uint16_t *)a->q)[begin + d] << 16;
                memcpy(q + d, &bits, 4);
            }
        else
            memcpy(q, (const char *)a->q + begin * (a->bf16 ? 2 : 4), sizeof(float) * t->words);
    }
}

static const char *cache_of(const Attention *a, const void *cache, int kv_head) {
    return (const char *)cache + (ptrdiff_t)kv_head * a->num_slots * a->head_dim * (a->bf16 ? 2 : 4);
}

static void attend_run(const Attention *a, Tile *t, const Run *run, int kv_head) {
    const int group = a->heads / a->kv_heads, size = state_floats(a->head_dim);
    const Member *members = a->members + run->first_member;
    t->rows = run->members * group;
    for (int i = 0; i < run->members; i++) {
        take_queries(a, t, i * group, members[i].token, kv_head);
        for (int g = 0; g < group; g++) t->visible[i * group + g] = members[i].visible;
    }
    attend_split(t, cache_of(a, a->k_cache, kv_head), cache_of(a, a->v_cache, kv_head),
                 a->slots + run->slots_begin, run->count);
    for (int row = 0; row < t->rows; row++) {
        ptrdiff_t partial = members[row / group].partial;
        float *state = a->partials + (partial * a->heads + kv_head * group + row % group) * size;
        state[0] = t->top[row] * t->scale;
        state[1] = sum_of(load(t->lane_sums + row * W));
        memcpy(state + 2, t->out + row * t->width, sizeof(float) * t->width);
    }
}

static void merge_token(const Attention *a, Tile *t, const Merge *m, int kv_head) {
    const int group = a->heads / a->kv_heads, size = state_floats(a->head_dim);
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        clear(t->state, t->width);
        for (ptrdiff_t i = m->first; i < m->first + m->count; i++) {
            const float *state = a->partials + (i * a->heads + head) * size;
            merge(t->state, state[0], state[1], state + 2, t->width);
        }
        finish(a, t->state, m->token, head);
    }
}

static void attend_chunk(const Attention *a, Tile *t, const Chunk *chunk, int kv_head) {
    const int group = a->heads / a->kv_heads, size = state_floats(a->head_dim);
    const int context = chunk->position + chunk->tokens;
    t->rows = chunk->tokens * group;
    for (int i = 0; i < chunk->tokens; i++)
        take_queries(a, t, i * group, chunk->token + i, kv_head);
    for (int row = 0; row < t->rows; row++) clear(t->state + row * size, t->width);
    for (int begin = 0; begin < context; begin += SPLIT) {
        for (int row = 0; row < t->rows; row++)
            t->visible[row] = chunk->position + row / group + 1 - begin;
        attend_split(t, cache_of(a, a->k_cache, kv_head), cache_of(a, a->v_cache, kv_head),
                     a->slots + chunk->slots_begin + begin,
                     context - begin < SPLIT ? context - begin : SPLIT);
        for (int row = 0; row < t->rows; row++) {
            float top = t->top[row] * t->scale, sum = sum_of(load(t->lane_sums + row * W));
            merge(t->state + row * size, top, sum, t->out + row * t->width, t->width);
        }
    }
    for (int row = 0; row < t->rows; row++)
        finish(a, t->state + row * size, chunk->token + row / group,
               kv_head * group + row % group);
}

static void write_token(const Attention *a, int64_t token) {
    const size_t size = a->bf16 ? 2 : 4, row = a->head_dim * size;
    for (int head = 0; head < a->kv_heads; head++) {
        ptrdiff_t to = (head * a->num_slots + a->out_slots[token]) * row;
        memcpy((char *)a->k_cache + to,
               (const char *)a->k + (token * a->k_row + head * a->head_dim) * size, row);
        memcpy((char *)a->v_cache + to,
               (const char *)a->v + (token * a->v_row + head * a->head_dim) * size, row);
    }
}

/* Write the new keys and values of a layer, then attend. */
EXPORT void rr_attention(const Attention *a) {
    const int64_t units = (int64_t)(a->num_runs + a->num_chunks) * a->kv_heads;
#pragma omp parallel for num_threads(a->threads) schedule(static) if (a->tokens > WORTH_TOKENS)
    for (int64_t token = 0; token < a->tokens; token++) write_token(a, token);
#pragma omp parallel num_threads(a->threads)
    {
        Tile t = {.bf16 = a->bf16, .pairs = PAIRS && a->bf16, .head_dim = a->head_dim};
        int thread = 0, group = a->heads / a->kv_heads;
#ifdef _OPENMP
        thread = omp_get_thread_num();
#endif
        size_t size = tile_layout(NULL, NULL, a->head_dim, group);
        tile_layout(&t, a->scratch + thread * size, a->head_dim, group);
        t.words = t.pairs ? a->head_dim / 2 : a->head_dim;
        t.width = width_of(a->head_dim);
        t.scale = LOG2_E / sqrtf((float)a->head_dim);
        memset(t.values, 0, sizeof(float) * BLOCK * t.width); /* lanes beyond head_dim stay 0 */
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < units; i++) {
            int unit = (int)(i / a->kv_heads), kv_head = (int)(i % a->kv_heads);
            if (unit < a->num_chunks) attend_chunk(a, &t, a->chunks + unit, kv_head);
            else attend_run(a, &t, a->runs + unit - a->num_chunks, kv_head);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < (int64_t)a->num_merges * a->kv_heads; i++)
            merge_token(a, &t, a->merges + i / a->kv_heads, (int)(i % a->kv_heads));
    }
}

/* ---- Row-wise operations ----------------------------------------------------------------------- */

/* Add `delta` (or nothing, if NULL) to x in place, then scale each row to unit mean square:
 * out = x / sqrt(mean(x^2) + eps) * weight. x, delta and out are [rows, size]. */
EXPORT void rr_rms_norm(void *x, const void *delta, const void *weight, void *out, int64_t rows,
                        int64_t size, float eps, int32_t bf16, int32_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * size > WORTH_NUMBERS)
    for (int64_t row = 0; row < rows; row++) {
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
            put(out, i, end, get(x, i, end, bf16) * factor * get(weight, i - begin, size, bf16),
                bf16);
    }
}

/* Rotate the first `heads` heads of each row of x [rows, row_size] in place; halves of a head are
 * the two parts of its pairs. cos and sin: [rows, head_dim / 2]. */
EXPORT void rr_rotate(void *x, const void *cos, const void *sin, int64_t rows, int64_t row_size,
                      int32_t heads, int32_t head_dim, int32_t bf16, int32_t threads) {
    const int half = head_dim / 2;
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * row_size > WORTH_NUMBERS)
    for (int64_t row = 0; row < rows; row++) {
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
}

/* out = silu(gate) * up for x [rows, 2 size], of which each row is gate, then up. */
EXPORT void rr_silu_and_multiply(const void *x, void *out, int64_t rows, int64_t size, int32_t bf16,
                                 int32_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * size > WORTH_NUMBERS)
    for (int64_t row = 0; row < rows; row++) {
        const ptrdiff_t gate = 2 * row * size, up = gate + size, to = row * size;
        for (ptrdiff_t i = 0; i < size; i += W) {
            vec g = get(x, gate + i, up, bf16), u = get(x, up + i, up + size, bf16);
            /* -log2(e) g, at most 126: beyond, silu is 0 in any case. */
            vec power = -larger(splat(-126.0f), g * splat(LOG2_E));
            put(out, to + i, to + size, g / (splat(1.0f) + exp2_(power)) * u, bf16);
        }
    }
}
