/* The oracle of the softmax cross-entropy. clkernels/loss/README.md has the formulas. */
#include "runtime/ops/ref/clt_ref.h"

#include <math.h>

#include "runtime/base/clt_base.h"
#include "runtime/ops/ref/clt_clc.h"

#include "clkernels/include/clt_math.clh"

typedef struct {
    float scale, softcap;
    bool grad, apart;
} loss_form;

/* z of one logit; *t is its tanh (softcap only). */
static float z_of(float x, float scale, float softcap, float *t) {
    *t = softcap > 0.0f ? clt_tanh(x * scale / softcap) : 0.0f;
    return softcap > 0.0f ? *t * softcap : x * scale;
}

static void gradient_row(float *x, const float *e, int64_t vocab, int32_t target, const loss_form *f,
                         float weight, float sum) {
    const float r = 1.0f / sum;
    for (int64_t v = 0; v < vocab; v++) {
        float t, d = e[v] * r;
        z_of(x[v], f->scale, f->softcap, &t);
        if (v == target && !f->apart) d = d - 1.0f;
        d = d * weight;
        if (f->softcap > 0.0f) d = d * fmaf(-t, t, 1.0f);
        x[v] = d * f->scale;
    }
}

/* One row whose target is inside the vocabulary; e: scratch for a row. */
static void loss_row(float *x, float *e, int64_t vocab, int32_t target, const loss_form *f, float weight,
                     float *token_loss, int32_t *correct) {
    float m = -INFINITY, t;
    int64_t best = -1;
    for (int64_t v = 0; v < vocab; v++) {
        float z = z_of(x[v], f->scale, f->softcap, &t);
        if (z > m || best < 0) {
            if (z > m || z == m) best = v;
            m = z > m ? z : m;
        }
    }
    for (int64_t v = 0; v < vocab; v++) e[v] = clt_exp(z_of(x[v], f->scale, f->softcap, &t) - m);
    float sum = clt_ref_row_sum(e, vocab);
    *token_loss = clt_log(sum) + (m - z_of(x[target], f->scale, f->softcap, &t));
    if (correct) *correct = best == target;
    if (f->grad) gradient_row(x, e, vocab, target, f, weight, sum);
}

/* The place of logit `label` among the n sorted ones. */
static int32_t rank_of(const float *x, int64_t n, int32_t label) {
    int32_t before = 0;
    if (label < 0 || label >= n || isnan(x[label])) return (int32_t)n;
    for (int64_t v = 0; v < n; v++) before += x[v] > x[label] || (x[v] == x[label] && v < label);
    return before;
}

void clt_ref_loss_soft(int64_t rows, int64_t vocab, int64_t ld, float *logits, const float *targets,
                       const int32_t *label, bool grad, float weight, const float *row_weight,
                       float *row_loss, int32_t *rank) {
    float *e = clt_malloc(2 * (size_t)vocab * sizeof *e), *below = e + vocab;
    for (int64_t r = 0; r < rows; r++) {
        float *x = logits + r * ld, m = -INFINITY;
        const float *t = targets + r * vocab, w = row_weight ? row_weight[r] : weight;
        for (int64_t v = 0; v < vocab; v++) m = x[v] > m ? x[v] : m;
        for (int64_t v = 0; v < vocab; v++) {
            e[v] = clt_exp(x[v] - m);
            below[v] = t[v] * (m - x[v]);
        }
        const float sum = clt_ref_row_sum(e, vocab), total = clt_ref_row_sum(t, vocab), part = 1.0f / sum;
        row_loss[r] = clt_log(sum) * total + clt_ref_row_sum(below, vocab);
        if (rank) rank[r] = rank_of(x, vocab, label[r]);
        for (int64_t v = 0; grad && v < vocab; v++) x[v] = (e[v] * part * total - t[v]) * w;
    }
    clt_free(e);
}

void clt_ref_loss(int64_t rows, int64_t vocab, int64_t ld, float *logits, const int32_t *targets, float scale,
                  float softcap, bool grad, bool apart, float weight, const float *row_weight,
                  float *token_loss, int32_t *correct) {
    const loss_form f = {scale, softcap, grad, apart};
    float *e = clt_malloc((size_t)vocab * sizeof *e);
    for (int64_t r = 0; r < rows; r++) {
        float *x = logits + r * ld;
        int32_t *ok = correct ? &correct[r] : NULL;
        if (targets[r] >= 0 && targets[r] < vocab) {
            loss_row(x, e, vocab, targets[r], &f, row_weight ? row_weight[r] : weight, &token_loss[r], ok);
            continue;
        }
        token_loss[r] = targets[r] < 0 ? 0.0f : NAN;
        if (ok) *ok = 0;
        for (int64_t v = 0; grad && v < vocab; v++) x[v] = 0.0f;
    }
    clt_free(e);
}
