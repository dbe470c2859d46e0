/* The checks of attention's rows: a small problem with the head size, the type and the features of the call,
 * two query heads on one key/value head. Exact rows get two blocks of keys, one partly filled, and must give
 * the oracle's bits. Rows that require numerics=fast get two samples of a few tiles and are compared with the
 * formula in double. */
#include <math.h>
#include <string.h>

#include "runtime/base/clt_thread.h"
#include "runtime/ops/clt_op_attention_internal.h"
#include "runtime/ops/ref/clt_ref.h"

enum { HEADS = 2, EXACT_SEQ = 75, FAST_SEQ = 299 };
enum { T_Q, T_K, T_V, T_DOUT, T_O, T_DQ, T_DK, T_DV, TENSORS };
static const char *const name_of[TENSORS] = {"q", "k", "v", "dout", "output", "dq", "dk", "dv"};

typedef clt_attention_params params;

typedef struct {
    clt_ops *ops;
    bool fast;
    clt_attention_grad_params g;
    clt_ref_attention_params ref;
    clt_buffer *data, *stat; /* the tensors above; log-sum-exp, slopes, sequence ids */
    float *host, *host_stat; /* the oracle's copies, fp32 */
    size_t at[TENSORS + 1], slopes, ids, stats;
} check_case;

static int64_t heads_of(int tensor) {
    return tensor == T_K || tensor == T_V || tensor == T_DK || tensor == T_DV ? 1 : HEADS;
}

static void tensors_of(clt_attention_grad_params *g, clt_tensor *out[TENSORS]) {
    clt_tensor *const all[TENSORS] = {&g->fwd.q, &g->fwd.k, &g->fwd.v, &g->dout,
                                      &g->fwd.o, &g->dq,    &g->dk,    &g->dv};
    memcpy(out, all, sizeof all);
}

static void place_tensors(check_case *c, const params *p) {
    const size_t rows = (size_t)(p->batch * p->seq);
    for (int i = 0; i < TENSORS; i++)
        c->at[i + 1] = CLT_ROUND_UP(c->at[i] + rows * (size_t)(heads_of(i) * p->head_dim), 64);
    c->slopes = rows * HEADS;
    c->ids = c->slopes + HEADS;
    c->stats = c->ids + rows;
}

/* Inputs: a fixed sequence of numbers in [-2, 2), rounded to the type; the sequence ids change in the middle
 * of the first block. */
static void fill(check_case *c) {
    const params *p = &c->g.fwd;
    uint32_t x = 12345;
    for (size_t i = 0; i < c->at[TENSORS]; i++) {
        x = x * 1664525u + 1013904223u;
        c->host[i] = (float)(x >> 8) * 0x1p-22f - 2.0f;
    }
    clt_ref_round(p->q.type, c->host, c->at[TENSORS]);
    for (int i = 0; i < HEADS; i++) c->host_stat[c->slopes + (size_t)i] = 1.0f / (float)(4 << i);
    int32_t *ids = (int32_t *)(void *)(c->host_stat + c->ids);
    for (int64_t i = 0; i < p->batch * p->seq; i++) ids[i] = (int32_t)(i % p->seq / 30);
}

static void make_call(check_case *c, const params *like) {
    int64_t d = like->head_dim;
    params *p = &c->g.fwd;
    *p = *like;
    p->batch = c->fast ? 2 : 1, p->seq = c->fast ? FAST_SEQ : EXACT_SEQ, p->heads = HEADS, p->kv_heads = 1;
    p->window = like->window >= 0 ? 40 : -1;
    clt_tensor *t[TENSORS];
    tensors_of(&c->g, t);
    for (int i = 0; i < TENSORS; i++) *t[i] = clt_tensor_of(clt_ref_none(), heads_of(i) * d, like->q.type);
    place_tensors(c, p);
}

static clt_status make_buffers(check_case *c, const params *like) {
    params *p = &c->g.fwd;
    clt_device *dev = clt_ops_device(c->ops);
    CLT_TRY(clt_buffer_create(dev, c->at[TENSORS] * clt_dtype_bytes(p->q.type), "attention check", &c->data));
    CLT_TRY(clt_buffer_create(dev, c->stats * sizeof(float), "attention check", &c->stat));
    clt_tensor *t[TENSORS];
    tensors_of(&c->g, t);
    for (int i = 0; i < TENSORS; i++) t[i]->ref = (clt_ref){c->data, c->at[i]};
    p->lse = (clt_ref){c->stat, 0};
    if (like->slopes.buf) p->slopes = (clt_ref){c->stat, c->slopes};
    if (like->seq_ids.buf) p->seq_ids = (clt_ref){c->stat, c->ids};
    return CLT_OK;
}

static void make_oracle(check_case *c) {
    const params *p = &c->g.fwd;
    float *t[TENSORS];
    for (int i = 0; i < TENSORS; i++) t[i] = c->host + c->at[i];
    c->ref = clt_ref_attention_of(p);
    clt_ref_attention_params *r = &c->ref;
    r->q = t[T_Q], r->k = t[T_K], r->v = t[T_V], r->o = t[T_O], r->lse = c->host_stat;
    r->slopes = p->slopes.buf ? c->host_stat + c->slopes : NULL;
    r->seq_ids = p->seq_ids.buf ? (const int32_t *)(const void *)(c->host_stat + c->ids) : NULL;
    r->dout = t[T_DOUT], r->dq = t[T_DQ], r->dk = t[T_DK], r->dv = t[T_DV];
    r->lddout = c->g.dout.ld, r->lddq = c->g.dq.ld, r->lddk = c->g.dk.ld, r->lddv = c->g.dv.ld;
    r->accumulate_kv = c->g.accumulate_kv;
}

static clt_status write_all(const check_case *c) {
    size_t n = c->at[TENSORS], bytes = n * clt_dtype_bytes(c->g.fwd.q.type);
    void *packed = clt_try_malloc(bytes);
    if (!packed) return clt_no_memory("checking attention", bytes);
    clt_ref_narrow(c->g.fwd.q.type, c->host, n, packed);
    clt_status st = clt_buffer_write(c->data, 0, packed, bytes);
    clt_free(packed);
    if (st == CLT_OK) st = clt_buffer_write(c->stat, 0, c->host_stat, c->stats * sizeof(float));
    return st;
}

static size_t elements(const check_case *c, int t) {
    return (size_t)(c->g.fwd.batch * c->g.fwd.seq * heads_of(t) * c->g.fwd.head_dim);
}

/* The device's tensor t, widened; freed by the caller. */
static clt_status read_tensor(const check_case *c, int t, float **out) {
    const size_t n = elements(c, t);
    *out = clt_try_malloc(n * sizeof(float));
    if (!*out) return clt_no_memory("checking attention", n * sizeof(float));
    return clt_ref_read_as((clt_ref){c->data, c->at[t]}, c->g.fwd.q.type, *out, n);
}

static clt_status compare_bits(const check_case *c, int t) {
    float *got;
    clt_status st = read_tensor(c, t, &got);
    const float *want = c->host + c->at[t];
    for (size_t i = 0; i < elements(c, t) && st == CLT_OK; i++)
        if (memcmp(&got[i], &want[i], 4) != 0 && !(isnan(got[i]) && isnan(want[i])))
            st = clt_variant_fail(c->ops, "%s: element %zu is %.9g, the oracle has %.9g", name_of[t], i,
                                  (double)got[i], (double)want[i]);
    clt_free(got);
    return st;
}

/* --- forward --- */

/* The formula's results, computed by all cores: this is the longest part of a first start's checks. */
typedef struct {
    const check_case *c;
    double *want, *bound; /* laid out as tensor o */
    clt_ref_attention_bound *lse;
} formula;

static clt_ref_attention_at place_of(const check_case *c, size_t row) {
    const int64_t seq = c->g.fwd.seq, i = (int64_t)row;
    return (clt_ref_attention_at){i / (HEADS * seq), i / seq % HEADS, i % seq};
}

static void formula_row(void *ctx, size_t row) {
    const formula *f = ctx;
    const params *p = &f->c->g.fwd;
    const clt_ref_attention_at at = place_of(f->c, row);
    const int64_t to = (at.sample * p->seq + at.row) * p->o.ld + at.head * p->head_dim;
    f->lse[row] = clt_ref_attention_row(&f->c->ref, p->q.type, at, f->want + to, f->bound + to);
}

/* Tensor t within the bound of the formula; both contiguous. */
static clt_status compare_near(const check_case *c, int t, const double *want, const double *bound) {
    float *got;
    clt_status st = read_tensor(c, t, &got);
    for (size_t i = 0; i < elements(c, t) && st == CLT_OK; i++)
        if (!(fabs((double)got[i] - want[i]) <= bound[i]))
            st = clt_variant_fail(c->ops, "%s: element %zu is %.9g, the formula gives %.9g, bound %.3g",
                                  name_of[t], i, (double)got[i], want[i], bound[i]);
    clt_free(got);
    return st;
}

static clt_status compare_lse(const check_case *c, const clt_ref_attention_bound *want) {
    float *got = clt_malloc(c->slopes * sizeof *got);
    clt_status st = clt_buffer_read(c->stat, 0, got, c->slopes * sizeof *got);
    for (size_t i = 0; i < c->slopes && st == CLT_OK; i++)
        if (!(fabs((double)got[i] - want[i].lse) <= want[i].lse_bound))
            st = clt_variant_fail(c->ops, "log-sum-exp %zu: %.9g, the formula gives %.9g", i, (double)got[i],
                                  want[i].lse);
    clt_free(got);
    return st;
}

static clt_status compare_formula(const check_case *c) {
    const size_t n = elements(c, T_O), rows = c->slopes;
    double *want = clt_try_malloc(2 * n * sizeof *want);
    if (!want) return clt_no_memory("checking attention", 2 * n * sizeof *want);
    formula f = {c, want, want + n, clt_malloc(rows * sizeof *f.lse)};
    clt_parallel_for(rows, 0, formula_row, &f);
    clt_status st = compare_lse(c, f.lse);
    if (st == CLT_OK) st = compare_near(c, T_O, f.want, f.bound);
    clt_free(f.lse);
    clt_free(want);
    return st;
}

static clt_status forward(check_case *c, const clt_variant *v) {
    CLT_TRY(write_all(c));
    CLT_TRY(clt_attention_run_forward(c->ops, v, &c->g.fwd));
    if (clt_variant_is_rehearsed(c->ops)) return CLT_OK;
    if (c->fast) return compare_formula(c);
    clt_ref_attention_forward(&c->ref);
    clt_ref_round(c->g.fwd.q.type, c->host + c->at[T_O], elements(c, T_O));
    CLT_TRY(clt_variant_compare(c->ops, "log-sum-exp", c->g.fwd.lse, c->host_stat, c->slopes));
    return compare_bits(c, T_O);
}

/* The last rows of two texts: those in the second block of keys, and two rows of a shorter text. */
static clt_status last(check_case *c, const clt_variant *v) {
    const int64_t seqs[] = {EXACT_SEQ, 40}, rows[] = {EXACT_SEQ - 64, 2};
    const params *p = &c->g.fwd;
    CLT_TRY(write_all(c));
    for (int i = 0; i < 2; i++) {
        params call = *p;
        const int64_t first = seqs[i] - rows[i];
        c->ref.seq = seqs[i];
        clt_ref_attention_forward(&c->ref);
        call.seq = seqs[i];
        call.q = clt_tensor_at(p->q, first, 0);
        call.o.ref = (clt_ref){c->data, c->at[T_DQ]}; /* a place that is unused here */
        CLT_TRY(clt_attention_run_last(c->ops, v, &call, rows[i]));
        CLT_TRY(clt_variant_compare_as(c->ops, p->q.type, "output", call.o.ref,
                                       c->host + c->at[T_O] + first * p->o.ld, (size_t)(rows[i] * p->o.ld)));
    }
    return CLT_OK;
}

/* --- backward --- */

static clt_status compare_gradients(const check_case *c) {
    const size_t n = elements(c, T_DQ), m = elements(c, T_DK);
    double *w = clt_try_malloc((2 * n + 4 * m) * sizeof *w);
    if (!w) return clt_no_memory("checking attention", (2 * n + 4 * m) * sizeof *w);
    clt_ref_attention_gradients_out g = {
        w, w + n, w + n + m, w + n + 2 * m, w + 2 * n + 2 * m, w + 2 * n + 3 * m};
    clt_ref_attention_gradients(&c->ref, c->g.fwd.q.type, &g);
    clt_status st = compare_near(c, T_DQ, g.dq, g.dq_bound);
    if (st == CLT_OK) st = compare_near(c, T_DK, g.dk, g.dk_bound);
    if (st == CLT_OK) st = compare_near(c, T_DV, g.dv, g.dv_bound);
    clt_free(w);
    return st;
}

/* The body starts from the oracle's output and log-sum-exp. */
static clt_status backward(check_case *c, const clt_variant *v) {
    if (clt_variant_is_rehearsed(c->ops)) return clt_attention_run_backward(c->ops, v, &c->g);
    clt_ref_attention_forward(&c->ref);
    clt_ref_round(c->g.fwd.q.type, c->host + c->at[T_O], elements(c, T_O));
    CLT_TRY(write_all(c));
    CLT_TRY(clt_attention_run_backward(c->ops, v, &c->g));
    if (c->fast) return compare_gradients(c);
    clt_ref_attention_backward(&c->ref);
    clt_ref_round(c->g.fwd.q.type, c->host + c->at[T_DQ], c->at[TENSORS] - c->at[T_DQ]);
    for (int t = T_DQ; t <= T_DV; t++) CLT_TRY(compare_bits(c, t));
    return CLT_OK;
}

static clt_status run(clt_ops *ops, const clt_variant *v, const params *like, bool accumulate_kv,
                      clt_status (*pass)(check_case *, const clt_variant *)) {
    check_case c = {.ops = ops, .fast = strstr(v->requires, "numerics=fast") != NULL};
    c.g.accumulate_kv = accumulate_kv;
    make_call(&c, like);
    c.host = clt_try_malloc(c.at[TENSORS] * sizeof(float));
    if (!c.host) return clt_no_memory("checking attention", c.at[TENSORS] * sizeof(float));
    c.host_stat = clt_calloc(c.stats, sizeof(float));
    fill(&c);
    clt_status st = make_buffers(&c, like);
    make_oracle(&c);
    if (st == CLT_OK) st = pass(&c, v);
    clt_free(c.host);
    clt_free(c.host_stat);
    clt_buffer_destroy(c.data);
    clt_buffer_destroy(c.stat);
    return st;
}

clt_status clt_attention_check_forward(clt_ops *ops, const clt_variant *v, void *ctx) {
    return run(ops, v, ctx, false, forward);
}

clt_status clt_attention_check_backward(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_attention_grad_params *g = ctx;
    return run(ops, v, &g->fwd, g->accumulate_kv, backward);
}

clt_status clt_attention_check_last(clt_ops *ops, const clt_variant *v, void *ctx) {
    return run(ops, v, ctx, false, last);
}
