/* All layers of a Llama for one step: one team of threads from the first to the last, which calls
 * nobody back. A step of few tokens would otherwise spend much of its time on calling products,
 * norms and the rest one by one. The bits are those of the single calls.
 */

#include <stddef.h>
#include <string.h>
#include <time.h>

#include "native.h"

#if HAS_LINEAR

/* Mirrored in native.py, field by field, like the next. */
typedef struct {
    Weight qkv, out, gate_up, down;
    const void *input_norm, *mlp_norm;
} Layer;

/* A step. All numbers are bfloat16. Of the last layer's outputs only some rows are wanted. */
typedef struct {
    Attention attention; /* of the first layer */
    const Layer *layers;
    const Weight *next;                         /* of the product that follows, or NULL */
    uint16_t *x, *delta, *normed;               /* [tokens, hidden] */
    uint16_t *qkv, *attended, *gate_up, *gated; /* [tokens, what they are wide] */
    uint16_t *last_x, *last_attended;           /* [last_rows, likewise] */
    const void *cos, *sin;                      /* [tokens, head_dim / 2] */
    const int64_t *last_tokens;                 /* [last_rows] */
    Counter *counters;                          /* [num_layers, 4 threads + 1] */
    int64_t num_layers, last_rows, hidden, inner;
    int64_t layer_bytes; /* of k_cache, and of v_cache */
    float eps;
    double *seconds; /* [PARTS], to which the time of each part is added; or NULL */
} Step;

enum { ROWS, LINEAR, ATTENTION, PARTS };

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The part that ends here began where the part before it ended. */
static void end_part(const Step *s, int part, double *began) {
    if (!s->seconds || omp_get_thread_num()) return;
    const double now = seconds_now();
    s->seconds[part] += now - *began;
    *began = now;
}

static void clear_counters(const Step *s) {
    const int64_t all = s->num_layers * (4 * omp_get_num_threads() + 1);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < all; i++) s->counters[i].taken = 0;
}

static void norm_rows(const Step *s, uint16_t *x, const uint16_t *delta, const void *weight,
                      int64_t rows) {
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row++)
        rms_norm_row(x, delta, weight, s->normed, row, s->hidden, s->eps, 1);
}

static void multiply_rows(const uint16_t *x, uint16_t *out, int64_t rows, const Weight *w,
                          const Weight *next, Counter *panels) {
    linear_in_team(x, w->in_features, out, rows, w, next, panels);
#pragma omp barrier
}

static void attend_rows(const Step *s, int64_t layer, Counter *units) {
    Attention a = s->attention;
    const int heads = a.heads + a.kv_heads;
    const int64_t row_size = (int64_t)(heads + a.kv_heads) * a.head_dim;
    a.k_cache = (char *)a.k_cache + layer * s->layer_bytes;
    a.v_cache = (char *)a.v_cache + layer * s->layer_bytes;
#pragma omp for schedule(static)
    for (int64_t token = 0; token < a.tokens; token++) {
        rotate_row(s->qkv, s->cos, s->sin, token, row_size, heads, a.head_dim, 1);
        write_token(&a, token);
    }
    attend_in_team(&a, units);
#pragma omp barrier
    merge_in_team(&a);
#pragma omp barrier
}

/* Keep only the rows that are wanted. */
static void take_rows(const Step *s) {
    const int64_t attended = (int64_t)s->attention.heads * s->attention.head_dim;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < s->last_rows; row++) {
        const int64_t token = s->last_tokens[row];
        memcpy(s->last_x + row * s->hidden, s->x + token * s->hidden, 2 * s->hidden);
        memcpy(s->last_attended + row * attended, s->attended + token * attended, 2 * attended);
    }
}

static void run_layer(const Step *s, int64_t index, double *began) {
    const Layer *l = s->layers + index;
    const int last = index + 1 == s->num_layers, team = omp_get_num_threads();
    Counter *counters = s->counters + index * (4 * team + 1);
    int64_t rows = s->attention.tokens;
    uint16_t *x = s->x, *attended = s->attended;
    norm_rows(s, x, index ? s->delta : NULL, l->input_norm, rows);
    end_part(s, ROWS, began);
    multiply_rows(s->normed, s->qkv, rows, &l->qkv, &l->out, counters);
    end_part(s, LINEAR, began);
    attend_rows(s, index, counters + 4 * team);
    end_part(s, ATTENTION, began);
    if (last) {
        take_rows(s);
        rows = s->last_rows, x = s->last_x, attended = s->last_attended;
    }
    multiply_rows(attended, s->delta, rows, &l->out, &l->gate_up, counters + team);
    end_part(s, LINEAR, began);
    norm_rows(s, x, s->delta, l->mlp_norm, rows);
    end_part(s, ROWS, began);
    multiply_rows(s->normed, s->gate_up, rows, &l->gate_up, &l->down, counters + 2 * team);
    end_part(s, LINEAR, began);
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row++)
        silu_and_multiply_row(s->gate_up, s->gated, row, s->inner, 1);
    end_part(s, ROWS, began);
    multiply_rows(s->gated, s->delta, rows, &l->down, last ? s->next : &l[1].qkv,
                  counters + 3 * team);
    end_part(s, LINEAR, began);
}

/* The output is last_x + the first last_rows rows of delta. */
EXPORT void rr_layers(const Step *s) {
#pragma omp parallel num_threads(s->attention.threads)
    {
        double began = seconds_now();
        clear_counters(s);
        for (int64_t index = 0; index < s->num_layers; index++) run_layer(s, index, &began);
    }
}

#endif
