/* CPU kernels whose results depend on a token's own inputs only, never on its neighbours in a batch.
 *
 * One source for all processors; native.py chooses the instruction set at run time and compiles for
 * it, see there.
 *
 * How bits stay equal. Every sum has one order, fixed by the position of its terms; each file says
 * which. So tiling, batching and threads choose only who computes which numbers. The compiler must
 * not contract or reorder floating point arithmetic: native.py passes -ffp-contract=off and no
 * fast-math flag.
 *
 * What is exported starts threads of its own. The rest is for one token, or, if it ends in _in_team,
 * is called by all threads of a team together and has no barrier at its end.
 */
#pragma once

#include <stdint.h>

#ifdef _OPENMP
#include <omp.h>
#else
static inline int omp_get_thread_num(void) { return 0; }
static inline int omp_get_num_threads(void) { return 1; }
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    defined(__AVX512BF16__)
#define HAS_LINEAR 1
#else
#define HAS_LINEAR 0 /* oneDNN has all linear layers */
#endif

#define EXPORT __attribute__((visibility("default")))

enum {
    /* Less is done before other threads wake up: */
    WORTH_TOKENS = 64,       /* to write to the pool */
    WORTH_NUMBERS = 1 << 17, /* of a row-wise operation */
};

/* How many of the pieces of some work are taken; on a cache line of its own. */
typedef struct {
    int64_t taken;
    char unused[56];
} Counter;

static inline int64_t take(Counter *counter) {
    return __atomic_fetch_add(&counter->taken, 1, __ATOMIC_RELAXED);
}

/* ---- Attention: native_attention.c ------------------------------------------------------------- */

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

void write_token(const Attention *a, int64_t token);
void attend_in_team(const Attention *a, Counter *units);
void merge_in_team(const Attention *a);

/* ---- Row-wise operations: native_rows.c --------------------------------------------------------- */

void rms_norm_row(void *x, const void *delta, const void *weight, void *out, int64_t row,
                  int64_t size, float eps, int bf16);
void rotate_row(void *x, const void *cos, const void *sin, int64_t row, int64_t row_size, int heads,
                int head_dim, int bf16);
void silu_and_multiply_row(const void *x, void *out, int64_t row, int64_t size, int bf16);

/* ---- Linear layers: native_linear.c ------------------------------------------------------------- */

/* A packed weight. Mirrored in native.py, field by field. */
typedef struct {
    char *packed;
    int64_t in_features, out_features;
} Weight;

void linear_in_team(const uint16_t *x, int64_t x_row, uint16_t *out, int64_t rows, const Weight *w,
                    const Weight *next, Counter *panels);
