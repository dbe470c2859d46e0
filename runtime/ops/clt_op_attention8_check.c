/* The checks of attention in 8-bit blocks: a small problem with the head size, the type and the features of
 * the call, two query heads on one key/value head, three blocks of keys of which the last is partly filled,
 * rows of very different sizes. Every row must give the oracle's bits. */
#include <string.h>

#include "runtime/ops/clt_check.h"
#include "runtime/ops/clt_op_attention8_internal.h"
#include "runtime/ops/ref/clt_ref.h"

enum { HEADS = 2, SEQ = 149 };

typedef clt_attention_params params;

typedef struct { /* a tensor on both sides */
    clt_tensor device;
    float *host;
    size_t n;
} both;

typedef struct {
    clt_check c;
    clt_attention_grad_params g;
    clt_ref_attention_params ref;
    both q, k, v, o, dout, dq, dk, dv;
    float *lse;
} problem;

static both make(problem *x, int64_t heads, uint64_t seed) {
    const params *p = &x->g.fwd;
    const int64_t ld = heads * p->head_dim;
    both t = {.n = (size_t)(SEQ * ld)};
    t.host = clt_check_random(&x->c, t.n, seed);
    for (size_t i = 0; i < t.n; i++) t.host[i] *= (float)(1 << (i / (size_t)ld * 7 % 5));
    t.device = clt_tensor_of(clt_check_upload_as(&x->c, p->q.type, t.host, t.n), ld, p->q.type);
    return t;
}

static void make_tensors(problem *x, const params *like) {
    params *p = &x->g.fwd;
    x->q = make(x, HEADS, 1), x->k = make(x, 1, 2), x->v = make(x, 1, 3), x->o = make(x, HEADS, 4);
    x->dout = make(x, HEADS, 5), x->dq = make(x, HEADS, 6), x->dk = make(x, 1, 7), x->dv = make(x, 1, 8);
    x->lse = clt_check_zeros(&x->c, HEADS * SEQ);
    float *slopes = clt_check_zeros(&x->c, HEADS), *ids = clt_check_zeros(&x->c, SEQ);
    for (int i = 0; i < HEADS; i++) slopes[i] = 1.0f / (float)(4 << i);
    for (int32_t i = 0; i < SEQ; i++) memcpy(&ids[i], &(int32_t){i / 60}, 4);
    p->q = x->q.device, p->k = x->k.device, p->v = x->v.device, p->o = x->o.device;
    p->slopes = like->slopes.buf ? clt_check_upload(&x->c, slopes, HEADS) : clt_ref_none();
    p->seq_ids = like->seq_ids.buf ? clt_check_upload(&x->c, ids, SEQ) : clt_ref_none();
    x->g.dout = x->dout.device, x->g.dq = x->dq.device, x->g.dk = x->dk.device, x->g.dv = x->dv.device;
    clt_ref_attention_params *r = &x->ref;
    *r = clt_ref_attention_of(p);
    r->q = x->q.host, r->k = x->k.host, r->v = x->v.host, r->o = x->o.host, r->lse = x->lse;
    r->slopes = like->slopes.buf ? slopes : NULL;
    r->seq_ids = like->seq_ids.buf ? (const int32_t *)(const void *)ids : NULL;
    r->dout = x->dout.host, r->dq = x->dq.host, r->dk = x->dk.host, r->dv = x->dv.host;
    r->lddout = r->lddq = r->ldq, r->lddk = r->lddv = r->ldk;
    r->accumulate_kv = x->g.accumulate_kv;
}

static void make_problem(problem *x, const params *like, bool accumulate_kv) {
    params *p = &x->g.fwd;
    *p = *like;
    p->batch = 1, p->seq = SEQ, p->heads = HEADS, p->kv_heads = 1;
    p->window = like->window >= 0 ? 70 : -1;
    x->g.accumulate_kv = accumulate_kv;
    make_tensors(x, like);
}

static void compare(problem *x, const char *what, const both *t) {
    clt_check_compare_as(&x->c, t->device.type, what, t->device.ref, t->host, t->n);
}

clt_status clt_attention8_check_forward(clt_ops *ops, const clt_variant *v, void *ctx) {
    problem x = {.c = {.ops = ops, .aligned = true}};
    make_problem(&x, ctx, false);
    x.g.fwd.lse = clt_check_blank(&x.c, HEADS * SEQ);
    if (x.c.st == CLT_OK) x.c.st = clt_attention8_run_forward(ops, v, &x.g.fwd);
    if (x.c.st == CLT_OK && !clt_variant_is_rehearsed(ops)) {
        clt_ref_attention8_forward(&x.ref);
        compare(&x, "output", &x.o);
        clt_check_compare(&x.c, "log-sum-exp", x.g.fwd.lse, x.lse, HEADS * SEQ);
    }
    return clt_check_end(&x.c);
}

/* The body starts from the oracle's output and log-sum-exp. */
clt_status clt_attention8_check_backward(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_attention_grad_params *like = ctx;
    problem x = {.c = {.ops = ops, .aligned = true}};
    make_problem(&x, &like->fwd, like->accumulate_kv);
    if (!clt_variant_is_rehearsed(ops)) clt_ref_attention8_forward(&x.ref);
    x.g.fwd.o.ref = clt_check_upload_as(&x.c, x.o.device.type, x.o.host, x.o.n);
    x.g.fwd.lse = clt_check_upload(&x.c, x.lse, HEADS * SEQ);
    if (x.c.st == CLT_OK) x.c.st = clt_attention8_run_backward(ops, v, &x.g);
    if (x.c.st == CLT_OK && !clt_variant_is_rehearsed(ops)) {
        clt_ref_attention8_backward(&x.ref);
        compare(&x, "dq", &x.dq);
        compare(&x, "dk", &x.dk);
        compare(&x, "dv", &x.dv);
    }
    return clt_check_end(&x.c);
}
