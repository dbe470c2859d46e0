/* How rows of attention in 8-bit blocks are timed at a shape: on the tensors of clt_op_attention_tune.h.
 * Sampled rows of the output, of dq, dk and dv must have the oracle's bits. */
#include <math.h>

#include "runtime/ops/clt_op_attention8_internal.h"
#include "runtime/ops/clt_op_attention_tune.h"

enum { SAMPLES = 12 };

typedef clt_attention_params params;
typedef clt_attention_slice slice;

/* The oracle computes its slices at once, seconds for a head of this many products. Longer sequences are not
 * measured. */
static bool is_short(const params *p) {
    const double most = 1e10;
    return (double)p->seq * (double)p->seq * (double)(p->head_dim * p->heads / p->kv_heads) <= most;
}

static clt_status make(clt_ops *ops, const params *p, bool backward, bool accumulate_kv, void **tensors) {
    if (!is_short(p)) return CLT_FAIL;
    CLT_TRY(clt_attention_tensors_make(ops, p, backward, accumulate_kv, tensors));
    clt_attention_tensors *t = *tensors;
    for (int i = 0; i < CLT_ATTENTION_SLICES; i++)
        (backward ? clt_ref_attention8_backward : clt_ref_attention8_forward)(&t->s[i].r);
    return CLT_OK;
}

static clt_status make_forward(clt_ops *ops, const void *call, void **tensors) {
    return make(ops, call, false, false, tensors);
}
static clt_status make_backward(clt_ops *ops, const void *call, void **tensors) {
    const clt_attention_grad_params *g = call;
    return make(ops, &g->fwd, true, g->accumulate_kv, tensors);
}

static clt_status run_forward(clt_ops *ops, const clt_variant *v, void *tensors) {
    const clt_attention_tensors *t = tensors;
    return clt_attention8_run_forward(ops, v, &t->g.fwd);
}
static clt_status run_backward(clt_ops *ops, const clt_variant *v, void *tensors) {
    const clt_attention_tensors *t = tensors;
    return clt_attention8_run_backward(ops, v, &t->g);
}

/* *worst: infinite if a row of head `head` of the device's tensor x is not what the oracle wrote. */
static clt_status compare(const clt_attention_tensors *t, const slice *s, clt_tensor x, int64_t row,
                          int64_t head, const float *want, double *worst) {
    const params *p = &t->g.fwd;
    const size_t n = (size_t)p->head_dim;
    float *got = clt_malloc(n * sizeof *got);
    const clt_ref at = clt_tensor_at(x, s->sample * p->seq + row, head * p->head_dim).ref;
    const clt_status st = clt_ref_read_as(at, x.type, got, n);
    for (size_t d = 0; d < n && st == CLT_OK; d++)
        if (got[d] != clt_ref_rounded(x.type, want[d])) *worst = INFINITY;
    clt_free(got);
    return st;
}

static clt_status forward_error_at(const clt_attention_tensors *t, const slice *s, int64_t row, int64_t head,
                                   double *worst) {
    const params *p = &t->g.fwd;
    const int64_t all = s->head * s->r.heads + head;
    float lse;
    CLT_TRY(clt_ref_read_f32(clt_ref_at(p->lse, (uint64_t)((s->sample * p->heads + all) * p->seq + row)),
                             &lse, 1));
    if (lse != s->r.lse[head * p->seq + row]) *worst = INFINITY;
    return compare(t, s, p->o, row, all, s->r.o + row * s->r.ldo + head * p->head_dim, worst);
}

static clt_status backward_error_at(const clt_attention_tensors *t, const slice *s, int64_t row, int64_t head,
                                    double *worst) {
    const int64_t n = t->g.fwd.head_dim, all = s->head * s->r.heads + head;
    CLT_TRY(compare(t, s, t->g.dq, row, all, s->r.dq + row * s->r.lddq + head * n, worst));
    CLT_TRY(compare(t, s, t->g.dk, row, s->head, s->r.dk + row * n, worst));
    return compare(t, s, t->g.dv, row, s->head, s->r.dv + row * n, worst);
}

/* Elements that a row does not write are noticed: they are NaN before, or 0 where it adds. */
static clt_status error(clt_ops *ops, const clt_variant *v, void *tensors, double *worst) {
    const clt_attention_tensors *t = tensors;
    clt_buffer *to = t->backward ? t->dqkv : t->out;
    const uint32_t before = t->g.accumulate_kv ? 0 : 0xffffffffu;
    clt_status st = CLT_OK;
    *worst = 0;
    CLT_TRY(clt_buffer_fill32(to, 0, before, clt_buffer_bytes(to) / 4 * 4));
    CLT_TRY((t->backward ? run_backward : run_forward)(ops, v, tensors));
    for (int c = 0; c < CLT_ATTENTION_SLICES; c++)
        for (int64_t i = 0; i < SAMPLES && st == CLT_OK; i++) {
            const slice *s = &t->s[c];
            const int64_t row = i == 0 ? s->r.seq - 1 : (i - 1) * 2654435761 % s->r.seq;
            st = (t->backward ? backward_error_at : forward_error_at)(t, s, row, i % s->r.heads, worst);
        }
    return st;
}

const clt_tune_kind clt_attention8_tune_forward = {make_forward, run_forward, error,
                                                   clt_attention_tensors_drop, clt_tune_worth};
const clt_tune_kind clt_attention8_tune_backward = {make_backward, run_backward, error,
                                                    clt_attention_tensors_drop, clt_tune_worth};
