#include "runtime/train/run/clt_sample.h"

#include <stdlib.h>

#include "runtime/base/clt_dmath.h"
#include "runtime/base/clt_philox.h"

/* --- repetition --- */

void clt_sample_penalize(float *logits, const int32_t *ids, size_t n, double penalty, bool *seen) {
    for (size_t i = 0; i < n; i++) {
        float *x = &logits[ids[i]];
        if (!seen[ids[i]]) *x = (float)(*x < 0 ? *x * penalty : *x / penalty);
        seen[ids[i]] = true;
    }
    for (size_t i = 0; i < n; i++) seen[ids[i]] = false;
}

/* --- the most likely tokens --- */

typedef struct {
    float logit;
    int32_t id;
} candidate;

static int by_logit(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Sifts c[0] down in a heap of k whose root is the smallest: parents come after their children in by_logit's
 * order. */
static void sift(candidate *c, int64_t k) {
    for (int64_t at = 0, child; (child = 2 * at + 1) < k; at = child) {
        if (child + 1 < k && by_logit(&c[child + 1], &c[child]) > 0) child++;
        if (by_logit(&c[at], &c[child]) > 0) return;
        candidate t = c[at];
        c[at] = c[child];
        c[child] = t;
    }
}

/* Whether one of BLOCK logits is larger: without branches, so that the loop is vectorised. Few blocks have
 * one, and this pass is a large part of a token's time on a fast device. */
enum { BLOCK = 64 };
static bool any_above(const float *logits, float limit) {
    int any = 0;
    for (int i = 0; i < BLOCK; i++) any |= logits[i] > limit;
    return any;
}

/* The k largest logits, largest first; the caller frees them. */
static candidate *largest(const float *logits, int64_t vocab, int64_t k) {
    candidate *c = clt_malloc((size_t)k * sizeof *c);
    for (int64_t i = 0; i < k; i++) c[i] = (candidate){logits[i], (int32_t)i};
    qsort(c, (size_t)k, sizeof *c, by_logit);
    for (int64_t i = 0; i < k / 2; i++) { /* in reverse order it is a heap */
        candidate t = c[i];
        c[i] = c[k - 1 - i];
        c[k - 1 - i] = t;
    }
    for (int64_t i = k; i < vocab;) {
        if (vocab - i >= BLOCK && !any_above(logits + i, c[0].logit)) {
            i += BLOCK;
            continue;
        }
        for (const int64_t end = CLT_MIN(i + BLOCK, vocab); i < end; i++) {
            if (!(logits[i] > c[0].logit)) continue; /* of equal ones the first counts */
            c[0] = (candidate){logits[i], (int32_t)i};
            sift(c, k);
        }
    }
    qsort(c, (size_t)k, sizeof *c, by_logit);
    return c;
}

/* --- one of them --- */

/* How many of the first k weights, which descend, together reach the share p of their sum. */
static int64_t nucleus(const double *weight, int64_t k, double sum, double p) {
    double reached = 0;
    for (int64_t i = 0; i < k; i++)
        if ((reached += weight[i]) >= p * sum) return i + 1;
    return k;
}

static int64_t draw(const candidate *c, int64_t k, const clt_sample_params *p, uint64_t position) {
    double sum = 0, *weight = clt_malloc((size_t)k * sizeof *weight);
    for (int64_t i = 0; i < k; i++) {
        double z = ((double)c[i].logit - (double)c[0].logit) / p->temperature;
        sum += weight[i] = z < -600 ? 0 : clt_dexp(z);
    }
    if (p->top_p < 1) {
        k = nucleus(weight, k, sum, p->top_p);
        sum = 0;
        for (int64_t i = 0; i < k; i++) sum += weight[i];
    }
    uint32_t key[2], w[4];
    clt_philox_key(p->seed, CLT_RNG_SAMPLE, key);
    clt_philox4x32((uint32_t[]){(uint32_t)position, (uint32_t)(position >> 32), 0, 0}, key, w);
    double u = clt_philox_double(w[0], w[1]) * sum;
    int64_t i = 0;
    for (; i < k - 1 && u >= weight[i]; i++) u -= weight[i];
    clt_free(weight);
    return i;
}

int32_t clt_sample_token(const float *logits, int64_t vocab, const clt_sample_params *p, uint64_t position) {
    const bool random = p->temperature > 0;
    const int64_t k = !random ? 1 : p->top_k > 0 ? CLT_MIN(p->top_k, vocab) : vocab;
    candidate *c = largest(logits, vocab, k);
    const int32_t chosen = c[random ? draw(c, k, p, position) : 0].id;
    clt_free(c);
    return chosen;
}
