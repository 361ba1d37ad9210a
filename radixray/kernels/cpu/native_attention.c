/* Attention over the KV pool.
 *
 * The order of sums:
 *   - a score adds its products over the head dimension one after another;
 *   - a row's softmax runs over blocks of BLOCK keys counted from position 0 (online softmax, as in
 *     FlashAttention: Dao et al., 2022), and within a block key after key;
 *   - every SPLIT keys the running state is closed, and closed states are merged in order, so that
 *     splits of one row can be computed apart (Flash-Decoding) or for many rows at once.
 * A key that a row may not see adds an exact zero.
 */

#include "native.h"
#include "native_product.h"
#include "native_vectors.h"

enum {
    BLOCK = 64,       /* keys of a block; a multiple of PANEL * W */
    SPLIT = 256,      /* keys after which a row's state is closed; a multiple of BLOCK */
    TILE_TOKENS = 32, /* most tokens whose rows share a loaded block */
};

/* Below every score, yet finite, so that a state without keys merges as an exact nothing. */
#define NO_KEY (-1e30f)

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

/* A head's keys and values at some slots. */
typedef struct {
    const char *k, *v;
    const int32_t *slots;
    int count;
} Keys;

static ptrdiff_t row_bytes_of(const Tile *t) { return (ptrdiff_t)t->head_dim * (t->bf16 ? 2 : 4); }

/* Ask for the rows from `first` up to `end`, as far as there are so many. Slots may lie anywhere, so
 * the processor cannot guess the next. */
static void prefetch(const Tile *t, const char *cache, const Keys *keys, int first, int end) {
    const ptrdiff_t row_bytes = row_bytes_of(t);
    if (end > keys->count) end = keys->count;
    for (int key = first; key < end; key++)
        for (ptrdiff_t at = 0; at < row_bytes; at += 64)
            __builtin_prefetch(cache + keys->slots[key] * row_bytes + at, 0, 3);
}

/* A block's keys to [words, BLOCK]; the lanes of missing keys are zeroed up to a multiple of W.
 * While they are loaded, the keys `ahead` are asked for, a few at a time: asked for at once, they
 * would be more than the processor can wait for. */
static void load_keys(const Tile *t, const Keys *now, const Keys *ahead) {
    const ptrdiff_t row_bytes = row_bytes_of(t);
    const int widening = t->bf16 && !t->pairs, n = now->count;
    for (int key = 0; key < n; key += W) {
        int count = n - key < W ? n - key : W;
        prefetch(t, ahead->k, ahead, key, key + W < n ? key + W : BLOCK);
        for (int word = 0; word < t->words; word += W) {
            vec rows[W];
#pragma GCC unroll 16
            for (int i = 0; i < W; i++)
                rows[i] = i < count ? load_words(now->k + now->slots[key + i] * row_bytes, word,
                                                 t->words, widening)
                                    : splat(0.0f);
            transpose(rows);
            int last = t->words - word < W ? t->words - word : W;
            for (int i = 0; i < last; i++) store(t->keys + (word + i) * BLOCK + key, rows[i]);
        }
    }
}

/* Words of a row of bfloat16 and another one above it, zero if NULL. */
static void pair_rows(const char *low_row, const char *high_row, int size, float *words) {
#if PAIRS
#define PAIR(i) (i) | (32 + (i)) << 16
#define PAIRS_FROM(i)                                                                           \
    {PAIR(i),      PAIR(i + 1),  PAIR(i + 2),  PAIR(i + 3), PAIR(i + 4),  PAIR(i + 5),          \
     PAIR(i + 6),  PAIR(i + 7),  PAIR(i + 8),  PAIR(i + 9), PAIR(i + 10), PAIR(i + 11),         \
     PAIR(i + 12), PAIR(i + 13), PAIR(i + 14), PAIR(i + 15)}
    const ivec first = PAIRS_FROM(0), last = PAIRS_FROM(16);
    for (int d = 0; d < size; d += 2 * W) {
        const int left = size - d;
        const __mmask32 there = left < 2 * W ? (1u << left) - 1 : ~0u;
        __m512i low = _mm512_maskz_loadu_epi16(there, low_row + 2 * d);
        __m512i high = high_row ? _mm512_maskz_loadu_epi16(there, high_row + 2 * d)
                                : _mm512_setzero_si512();
        store(words + d, (vec)_mm512_permutex2var_epi16(low, (__m512i)first, high));
        if (left > W)
            store(words + d + W, (vec)_mm512_permutex2var_epi16(low, (__m512i)last, high));
    }
#undef PAIRS_FROM
#undef PAIR
#else
    (void)low_row, (void)high_row, (void)size, (void)words;
#endif
}

/* A block's n values to [n, width], or, paired, to [n / 2 rounded up, width] words; asks for the
 * values `ahead`. */
static void load_values(const Tile *t, const Keys *now, const Keys *ahead) {
    const ptrdiff_t row_bytes = row_bytes_of(t);
    const int step = t->pairs ? 2 : 1, n = now->count;
    for (int key = 0; key < n; key += step) {
        const char *row = now->v + now->slots[key] * row_bytes;
        float *to = t->values + key / step * t->width;
        prefetch(t, ahead->v, ahead, key, key + step < n ? key + step : BLOCK);
        if (!t->pairs)
            for (int d = 0; d < t->head_dim; d += W)
                store(to + d, get(row, d, t->head_dim, t->bf16));
        else
            pair_rows(row, key + 1 < n ? now->v + now->slots[key + 1] * row_bytes : NULL,
                      t->head_dim, to);
    }
}

/* Scores of a row over `vecs` vectors of keys become weights; adds them to the row's sums. */
INLINE void weigh(float *row, const int vecs, float *lane_sums, float top, float fade, float scale,
                  int pairs) {
    vec weights[BLOCK / W], sum = load(lane_sums) * splat(fade);
#pragma GCC unroll 16
    for (int i = 0; i < vecs; i++) {
        weights[i] = exp2_(fma_(load(row + i * W), splat(scale), splat(-top * scale)));
        sum += weights[i];
    }
    store(lane_sums, sum);
#pragma GCC unroll 16
    for (int i = 0; i < vecs; i++) {
        if (!pairs) store(row + i * W, weights[i]);
        else if (i % 2) store(row + i / 2 * W, pair_up(weights[i - 1], weights[i]));
    }
}

/* One block of keys from key `begin` of the split on, for a group of rows that see `seen` > 0 keys
 * of it at most; `vecs` vectors, an even number, have room for them. */
INLINE void attend_vecs(Tile *t, int row, int rows, int begin, int seen, const int vecs) {
    float top[W] = {0}, fade[W];
    product(rows, t->pairs, t->weights, BLOCK, NULL, t->q + row * t->words, t->words, t->keys,
            BLOCK, t->words, vecs * W);
    for (int r = 0; r < rows; r++) {
        float *scores = t->weights + r * BLOCK;
        int visible = t->visible[row + r] - begin;
        for (int i = visible > 0 ? visible : 0; i < vecs * W; i++) scores[i] = -INFINITY;
        vec most = splat(t->top[row + r]);
#pragma GCC unroll 16
        for (int i = 0; i < vecs; i++) most = larger(load(scores + i * W), most);
        top[r] = largest_of(most);
    }
    /* What earlier sums are to be multiplied with: all rows' at once. */
    store(fade, exp2_((load(t->top + row) - load(top)) * splat(t->scale)));
    for (int r = 0; r < rows; r++) {
        t->top[row + r] = top[r];
        weigh(t->weights + r * BLOCK, vecs, t->lane_sums + (row + r) * W, top[r], fade[r],
              t->scale, t->pairs);
    }
    product(rows, t->pairs, t->out + row * t->width, t->width, fade, t->weights, BLOCK, t->values,
            t->width, t->pairs ? (seen + 1) / 2 : seen, t->width);
}

/* What rows do not see weighs an exact 0, so that leaving it out changes no bit. */
static void attend(Tile *t, int row, int rows, int begin, int seen) {
    if (seen > BLOCK / 2) attend_vecs(t, row, rows, begin, seen, BLOCK / W);
    else attend_vecs(t, row, rows, begin, seen, BLOCK / W / 2);
}

/* At most a block of keys, from some on. */
static Keys part_of(Keys keys, int begin) {
    const int left = keys.count - begin;
    return (Keys){keys.k, keys.v, keys.slots + begin, left < BLOCK ? left : BLOCK};
}

/* One split for all rows of a tile; leaves `top`, `lane_sums` and `out`. Asks for the first of
 * `next`, what this thread is to load thereafter. */
static void attend_split(Tile *t, Keys keys, Keys next) {
    const int groups = (t->rows + GROUP - 1) / GROUP;
    const int step = (t->rows + groups - 1) / groups;
    memset(t->out, 0, sizeof(float) * t->rows * t->width);
    memset(t->lane_sums, 0, sizeof(float) * t->rows * W);
    for (int r = 0; r < t->rows; r++) t->top[r] = NO_KEY;
    for (int begin = 0; begin < keys.count; begin += BLOCK) {
        const Keys now = part_of(keys, begin), rest = part_of(keys, begin + BLOCK);
        const Keys ahead = rest.count > 0 ? rest : part_of(next, 0);
        load_keys(t, &now, &ahead);
        load_values(t, &now, &ahead);
        for (int row = 0; row < t->rows; row += step) {
            int rows = t->rows - row < step ? t->rows - row : step, seen = 0;
            for (int r = 0; r < rows; r++)
                if (t->visible[row + r] > seen) seen = t->visible[row + r];
            seen = seen - begin < now.count ? seen - begin : now.count;
            if (seen > 0) attend(t, row, rows, begin, seen);
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

static Keys keys_of(const Attention *a, int kv_head, int slots_begin, int count) {
    const ptrdiff_t head = (ptrdiff_t)kv_head * a->num_slots * a->head_dim * (a->bf16 ? 2 : 4);
    return (Keys){(const char *)a->k_cache + head, (const char *)a->v_cache + head,
                  a->slots + slots_begin, count};
}

/* A piece of work: a chunk or a run, for one head of keys. */
static Keys keys_of_unit(const Attention *a, int64_t i) {
    const int unit = (int)(i / a->kv_heads), kv_head = (int)(i % a->kv_heads);
    if (unit >= a->num_chunks + a->num_runs) return (Keys){0};
    if (unit < a->num_chunks) {
        const Chunk *chunk = a->chunks + unit;
        return keys_of(a, kv_head, chunk->slots_begin, chunk->position + chunk->tokens);
    }
    const Run *run = a->runs + unit - a->num_chunks;
    return keys_of(a, kv_head, run->slots_begin, run->count);
}

static void attend_run(const Attention *a, Tile *t, const Run *run, int kv_head, Keys next) {
    const int group = a->heads / a->kv_heads, size = state_floats(a->head_dim);
    const Member *members = a->members + run->first_member;
    t->rows = run->members * group;
    for (int i = 0; i < run->members; i++) {
        take_queries(a, t, i * group, members[i].token, kv_head);
        for (int g = 0; g < group; g++) t->visible[i * group + g] = members[i].visible;
    }
    attend_split(t, keys_of(a, kv_head, run->slots_begin, run->count), next);
    for (int row = 0; row < t->rows; row++) {
        ptrdiff_t partial = members[row / group].partial;
        float *state = a->partials + (partial * a->heads + kv_head * group + row % group) * size;
        state[0] = t->top[row] * t->scale;
        state[1] = sum_of(load(t->lane_sums + row * W));
        memcpy(state + 2, t->out + row * t->width, sizeof(float) * t->width);
    }
}

static void merge_token(const Attention *a, const Merge *m, int kv_head) {
    const int group = a->heads / a->kv_heads, size = state_floats(a->head_dim);
    const int width = width_of(a->head_dim);
    float whole[size];
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        clear(whole, width);
        for (ptrdiff_t i = m->first; i < m->first + m->count; i++) {
            const float *state = a->partials + (i * a->heads + head) * size;
            merge(whole, state[0], state[1], state + 2, width);
        }
        finish(a, whole, m->token, head);
    }
}

static void attend_chunk(const Attention *a, Tile *t, const Chunk *chunk, int kv_head, Keys next) {
    const int group = a->heads / a->kv_heads, size = state_floats(a->head_dim);
    const int context = chunk->position + chunk->tokens;
    t->rows = chunk->tokens * group;
    for (int i = 0; i < chunk->tokens; i++)
        take_queries(a, t, i * group, chunk->token + i, kv_head);
    for (int row = 0; row < t->rows; row++) clear(t->state + row * size, t->width);
    for (int begin = 0; begin < context; begin += SPLIT) {
        for (int row = 0; row < t->rows; row++)
            t->visible[row] = chunk->position + row / group + 1 - begin;
        const int left = context - begin;
        Keys keys = keys_of(a, kv_head, chunk->slots_begin + begin, left < SPLIT ? left : SPLIT);
        Keys rest = keys_of(a, kv_head, chunk->slots_begin + begin + SPLIT, left - SPLIT);
        attend_split(t, keys, left > SPLIT ? rest : next);
        for (int row = 0; row < t->rows; row++) {
            float top = t->top[row] * t->scale, sum = sum_of(load(t->lane_sums + row * W));
            merge(t->state + row * size, top, sum, t->out + row * t->width, t->width);
        }
    }
    for (int row = 0; row < t->rows; row++)
        finish(a, t->state + row * size, chunk->token + row / group,
               kv_head * group + row % group);
}

void write_token(const Attention *a, int64_t token) {
    const size_t size = a->bf16 ? 2 : 4, row = a->head_dim * size;
    for (int head = 0; head < a->kv_heads; head++) {
        ptrdiff_t to = (head * a->num_slots + a->out_slots[token]) * row;
        memcpy((char *)a->k_cache + to,
               (const char *)a->k + (token * a->k_row + head * a->head_dim) * size, row);
        memcpy((char *)a->v_cache + to,
               (const char *)a->v + (token * a->v_row + head * a->head_dim) * size, row);
    }
}

/* Runs and chunks, a head of keys at a time; `units` counts those. */
void attend_in_team(const Attention *a, Counter *units) {
    const int64_t all = (int64_t)(a->num_runs + a->num_chunks) * a->kv_heads;
    const int group = a->heads / a->kv_heads;
    Tile t = {.bf16 = a->bf16, .pairs = PAIRS && a->bf16, .head_dim = a->head_dim};
    t.words = t.pairs ? a->head_dim / 2 : a->head_dim;
    t.width = width_of(a->head_dim);
    t.scale = LOG2_E / sqrtf((float)a->head_dim);
    tile_layout(&t, a->scratch + omp_get_thread_num() * tile_layout(NULL, NULL, a->head_dim, group),
                a->head_dim, group);
    memset(t.values, 0, sizeof(float) * BLOCK * t.width); /* lanes beyond head_dim stay 0 */
    /* A thread takes one unit more than it is at, so that it knows what to ask for. */
    for (int64_t i = take(units), next; i < all; i = next) {
        next = take(units);
        Keys ahead = keys_of_unit(a, next);
        int unit = (int)(i / a->kv_heads), kv_head = (int)(i % a->kv_heads);
        if (unit < a->num_chunks) attend_chunk(a, &t, a->chunks + unit, kv_head, ahead);
        else attend_run(a, &t, a->runs + unit - a->num_chunks, kv_head, ahead);
    }
}

/* Once all runs are done. */
void merge_in_team(const Attention *a) {
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < (int64_t)a->num_merges * a->kv_heads; i++)
        merge_token(a, a->merges + i / a->kv_heads, (int)(i % a->kv_heads));
}

/* Write the new keys and values of a layer, then attend. */
EXPORT void rr_attention(const Attention *a) {
    Counter units = {0};
#pragma omp parallel for num_threads(a->threads) schedule(static) if (a->tokens > WORTH_TOKENS)
    for (int64_t token = 0; token < a->tokens; token++) write_token(a, token);
#pragma omp parallel num_threads(a->threads)
    {
        attend_in_team(a, &units);
#pragma omp barrier
        merge_in_team(a);
    }
}
