/* Log-probabilities of continuations. */
#include <math.h>
#include <string.h>

#include "runtime/base/clt_dmath.h"
#include "runtime/base/clt_thread.h"
#include "runtime/train/run/clt_icl_run.h"

/* --- one position --- */

typedef struct {
    double logprob, prob, most; /* of the token; its probability; the largest probability */
    bool greedy;
} position;

static position look_at(const float *logits, int64_t vocab, int32_t token) {
    int64_t best = 0;
    double sum = 0;
    for (int64_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    for (int64_t i = 0; i < vocab; i++) {
        const double z = (double)logits[i] - (double)logits[best];
        sum += z < -600 ? 0 : clt_dexp(z);
    }
    const double z = (double)logits[token] - (double)logits[best];
    return (position){.logprob = z - clt_dlog(sum),
                      .prob = (z < -600 ? 0 : clt_dexp(z)) / sum,
                      .most = 1 / sum,
                      .greedy = best == token};
}

/* --- a pass --- */

typedef struct {
    int64_t vocab;
    const int32_t *target; /* token of each position of the spans */
    position *at;
    const float *logits; /* of the call of `receive` */
    int64_t first;
} pass;

static void one_position(void *ctx, size_t i) {
    const pass *p = ctx;
    p->at[p->first + (int64_t)i] =
        look_at(p->logits + (int64_t)i * p->vocab, p->vocab, p->target[p->first + (int64_t)i]);
}

/* clt_model_logits_fn */
static clt_status receive(void *ctx, int64_t first, int64_t rows, const float *logits) {
    pass *p = ctx;
    p->first = first;
    p->logits = logits;
    clt_parallel_for((size_t)rows, 0, one_position, p);
    return CLT_OK;
}

static clt_icl_score add_up(const position *p, size_t n) {
    clt_icl_score s = {.confidence = 1, .greedy = true};
    for (size_t i = 0; i < n; i++) {
        s.logprob += p[i].logprob;
        s.mean += p[i].prob / (double)n;
        s.confidence = CLT_MIN(s.confidence, p[i].most);
        s.greedy = s.greedy && p[i].greedy;
    }
    return s;
}

typedef struct {
    int32_t *tokens, *target;
    clt_model_span *span;
    position *at;
} arrays;

static clt_status allocate(arrays *a, size_t rows, size_t len) {
    const size_t n = CLT_MAX(rows * len, 1);
    a->tokens = clt_try_calloc(n, sizeof *a->tokens);
    a->target = clt_try_calloc(n, sizeof *a->target);
    a->span = clt_try_calloc(rows + 1, sizeof *a->span);
    a->at = clt_try_calloc(n, sizeof *a->at);
    return a->tokens && a->target && a->span && a->at
               ? CLT_OK
               : clt_no_memory("the rows of a batch", n * sizeof *a->at);
}

static void free_arrays(arrays *a) {
    clt_free(a->tokens);
    clt_free(a->target);
    clt_free(a->span);
    clt_free(a->at);
}

static void fill(arrays *a, const clt_icl_row *const *row, size_t n, size_t len) {
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        memcpy(a->tokens + i * len, row[i]->ids, row[i]->n * sizeof *a->tokens);
        /* The position before a token has its probability. */
        a->span[i] = (clt_model_span){(int64_t)row[i]->first - 1, (int64_t)row[i]->n - 1};
        for (size_t j = row[i]->first; j < row[i]->n; j++) a->target[k++] = row[i]->ids[j];
    }
}

/* One pass over n rows; none: takes part in the pass of other ranks. */
static clt_status score_pass(const clt_icl_run *r, const clt_icl_row *const *row, size_t n,
                             clt_icl_score *out) {
    arrays a = {0};
    size_t len = 1, k = 0;
    for (size_t i = 0; i < n; i++) len = CLT_MAX(len, row[i]->n);
    clt_status st = allocate(&a, n, len);
    if (st == CLT_OK) {
        fill(&a, row, n, len);
        pass p = {.vocab = r->facts.vocab_size, .target = a.target, .at = a.at};
        st = clt_engine_span_logits(r->engine, a.tokens, (int64_t)n, (int64_t)len, a.span, receive, &p);
    }
    for (size_t i = 0; i < n && st == CLT_OK; i++) {
        out[i] = add_up(a.at + k, row[i]->n - row[i]->first);
        k += row[i]->n - row[i]->first;
    }
    free_arrays(&a);
    return st;
}

clt_status clt_icl_score_rows(const clt_icl_run *r, const clt_icl_row *const *row, size_t n, int64_t passes,
                              clt_icl_score *out) {
    const size_t most = (size_t)clt_engine_most_texts(r->engine);
    int64_t made = 0;
    for (size_t at = 0; at < n; at += most, made++)
        CLT_TRY(score_pass(r, row + at, CLT_MIN(most, n - at), out + at));
    for (; made < passes; made++) CLT_TRY(score_pass(r, NULL, 0, NULL));
    return CLT_OK;
}
