/* How attention's rows are timed at a shape: on tensors made for that. Sampled rows of the output, of dq, dk
 * and dv are compared with the oracle. q, k and v lie side by side in one matrix, as in a model. */
#include <math.h>
#include <string.h>

#include "runtime/ops/clt_op_attention_tune.h"
#include "runtime/ops/ref/clt_ref.h"

enum { SLICES = CLT_ATTENTION_SLICES, SAMPLES = 12 /* places of a slice */ };

typedef clt_attention_params params;
typedef clt_attention_slice slice;
typedef clt_attention_tensors attention_tensors;

static int64_t row_length(const params *p) {
    return (p->heads + 2 * p->kv_heads) * p->head_dim;
}

static uint64_t out_elements(const params *p) {
    return (uint64_t)(p->batch * p->seq * p->heads * p->head_dim);
}

/* --- the host's slices --- */

/* `rows` rows of n elements that begin at element `at` of a tensor of the pattern and are `ld` apart. */
static float *gather(const float *pattern, uint64_t at, int64_t ld, int64_t rows, int64_t n, float *to) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < n; d++)
            to[i * n + d] = pattern[(at + (uint64_t)(i * ld + d)) % CLT_TUNE_PERIOD];
    return to + rows * n;
}

/* ALiBi's slopes decrease with the head; sequences have 100 tokens. */
static float slope_of(int64_t head) {
    return 1.0f / (float)(2 << head % 8);
}
static int32_t id_of(int64_t token) {
    return (int32_t)(token / 100 % 2);
}

static clt_status make_slice(const attention_tensors *t, const float *pattern, slice *s) {
    const params *p = &t->g.fwd;
    const int64_t n = p->head_dim, group = p->heads / p->kv_heads, wide = group * n, T = p->seq;
    const int64_t ld = row_length(p), first = s->sample * T;
    const uint64_t q = (uint64_t)(first * ld + s->head * wide),
                   k = (uint64_t)(p->heads + s->head) * (uint64_t)n,
                   o = (uint64_t)(first * p->o.ld + s->head * wide);
    /* q, o, dout, dq; k, v, dk, dv; lse; slopes */
    const size_t floats = (size_t)(T * (4 * wide + 4 * n + group) + group);
    s->host = clt_try_calloc(floats, sizeof(float));
    s->ids = clt_try_malloc((size_t)T * sizeof *s->ids);
    if (!s->host || !s->ids) return clt_no_memory("tuning attention", floats * sizeof(float));
    s->r = clt_ref_attention_of(p);
    clt_ref_attention_params *r = &s->r;
    r->batch = 1, r->heads = group, r->kv_heads = 1, r->first_sample = p->first_sample + s->sample;
    r->ldq = r->ldo = r->lddout = r->lddq = wide, r->ldk = r->ldv = r->lddk = r->lddv = n;
    float *at = s->host;
    r->q = at, at = gather(pattern, q, ld, T, wide, at);
    r->k = at, at = gather(pattern, (uint64_t)(first * ld) + k, ld, T, n, at);
    r->v = at, at = gather(pattern, (uint64_t)(first * ld) + k + (uint64_t)(p->kv_heads * n), ld, T, n, at);
    r->o = at, at = gather(pattern, o, p->o.ld, T, wide, at);
    r->dout = at, at = gather(pattern, out_elements(p) + o, p->o.ld, T, wide, at);
    r->dq = at, r->dk = r->dq + T * wide, r->dv = r->dk + T * n, r->lse = r->dv + T * n;
    float *slopes = r->lse + T * group;
    for (int64_t i = 0; i < T * group; i++) r->lse[i] = 8.0f;
    for (int64_t h = 0; h < group; h++) slopes[h] = slope_of(s->head * group + h);
    for (int64_t i = 0; i < T; i++) s->ids[i] = id_of(i);
    r->slopes = p->slopes.buf ? slopes : NULL;
    r->seq_ids = p->seq_ids.buf ? s->ids : NULL;
    r->accumulate_kv = t->g.accumulate_kv;
    return CLT_OK;
}

/* --- tensors --- */

void clt_attention_tensors_drop(void *tensors) {
    attention_tensors *t = tensors;
    clt_buffer *all[] = {t->qkv, t->out, t->dqkv, t->stat};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) clt_buffer_destroy(all[i]);
    for (int i = 0; i < SLICES; i++) {
        clt_free(t->s[i].host);
        clt_free(t->s[i].ids);
    }
    clt_free(t);
}

/* The call on these tensors. */
static void place_tensors(attention_tensors *t, const params *like) {
    params *p = &t->g.fwd;
    const uint64_t n = (uint64_t)p->head_dim, k = (uint64_t)p->heads * n, v = k + (uint64_t)p->kv_heads * n,
                   stats = (uint64_t)(p->batch * p->heads * p->seq);
    const int64_t ld = row_length(p), ldo = p->heads * p->head_dim;
    const clt_dtype type = like->q.type;
    p->q = clt_tensor_of((clt_ref){t->qkv, 0}, ld, type);
    p->k = clt_tensor_of((clt_ref){t->qkv, k}, ld, type);
    p->v = clt_tensor_of((clt_ref){t->qkv, v}, ld, type);
    p->o = clt_tensor_of((clt_ref){t->out, 0}, ldo, type);
    p->lse = (clt_ref){t->stat, 0};
    if (like->slopes.buf) p->slopes = (clt_ref){t->stat, stats};
    if (like->seq_ids.buf) p->seq_ids = (clt_ref){t->stat, stats + (uint64_t)p->heads};
    t->g.dout = clt_tensor_of((clt_ref){t->out, out_elements(p)}, ldo, type);
    t->g.dq = clt_tensor_of((clt_ref){t->dqkv, 0}, ld, type);
    t->g.dk = clt_tensor_of((clt_ref){t->dqkv, k}, ld, type);
    t->g.dv = clt_tensor_of((clt_ref){t->dqkv, v}, ld, type);
}

/* A backward pass may read any output and log-sum-exp: here the pattern, and a constant. */
static clt_status make_stat(clt_ops *ops, attention_tensors *t) {
    const params *p = &t->g.fwd;
    const uint64_t stats = (uint64_t)(p->batch * p->heads * p->seq);
    const int64_t tokens = p->batch * p->seq;
    const size_t bytes = (size_t)(stats + (uint64_t)(p->heads + tokens)) * 4;
    float *x = clt_try_malloc(bytes);
    if (!x) return clt_no_memory("tuning attention", bytes);
    int32_t *ids = (int32_t *)(void *)(x + stats + (uint64_t)p->heads);
    for (uint64_t i = 0; i < stats; i++) x[i] = 8.0f;
    for (int64_t h = 0; h < p->heads; h++) x[stats + (uint64_t)h] = slope_of(h);
    for (int64_t i = 0; i < tokens; i++) ids[i] = id_of(i % p->seq);
    clt_status st = clt_buffer_create(clt_ops_device(ops), bytes, "tuning", &t->stat);
    if (st == CLT_OK) st = clt_buffer_write(t->stat, 0, x, bytes);
    clt_free(x);
    return st;
}

static clt_status make_buffers(clt_ops *ops, attention_tensors *t, const float *pattern) {
    const params *p = &t->g.fwd;
    const uint64_t in = (uint64_t)(p->batch * p->seq * row_length(p)), out = out_elements(p);
    clt_ref r;
    CLT_TRY(clt_tune_tensor(ops, pattern, p->q.type, in, &r));
    t->qkv = r.buf;
    CLT_TRY(clt_tune_tensor(ops, pattern, p->q.type, t->backward ? 2 * out : out, &r));
    t->out = r.buf;
    if (t->backward)
        CLT_TRY(clt_buffer_create(clt_ops_device(ops), in * clt_dtype_bytes(p->q.type), "tuning", &t->dqkv));
    return make_stat(ops, t);
}

clt_status clt_attention_tensors_make(clt_ops *ops, const params *like, bool backward, bool accumulate_kv,
                                      void **tensors) {
    const uint64_t in =
                       (uint64_t)(like->batch * like->seq * row_length(like)) * clt_dtype_bytes(like->q.type),
                   out = out_elements(like) * clt_dtype_bytes(like->q.type) * (backward ? 2 : 1);
    if (!clt_tune_fits(ops, in * (backward ? 2 : 1) + out, CLT_MAX(in, out))) return CLT_FAIL;
    float *pattern;
    CLT_TRY(clt_tune_pattern(like->q.type, &pattern));
    attention_tensors *t = clt_calloc(1, sizeof *t);
    t->backward = backward;
    t->g = (clt_attention_grad_params){.fwd = *like, .accumulate_kv = accumulate_kv};
    t->g.fwd.slopes = t->g.fwd.seq_ids = clt_ref_none();
    clt_status st = make_buffers(ops, t, pattern);
    if (st == CLT_OK) place_tensors(t, like);
    for (int i = 0; st == CLT_OK && i < SLICES; i++) {
        /* Dropout counts heads from 0, as the slice does. */
        const bool last = i == SLICES - 1;
        t->s[i].sample = last ? like->batch - 1 : 0;
        t->s[i].head = last && !(like->dropout > 0.0f) ? like->kv_heads - 1 : 0;
        st = make_slice(t, pattern, &t->s[i]);
    }
    clt_free(pattern);
    if (st == CLT_OK)
        *tensors = t;
    else
        clt_attention_tensors_drop(t);
    return st;
}

static clt_status make_forward(clt_ops *ops, const void *call, void **tensors) {
    return clt_attention_tensors_make(ops, call, false, false, tensors);
}
static clt_status make_backward(clt_ops *ops, const void *call, void **tensors) {
    const clt_attention_grad_params *g = call;
    CLT_TRY(clt_attention_tensors_make(ops, &g->fwd, true, g->accumulate_kv, tensors));
    attention_tensors *t = *tensors;
    t->g.spare = g->spare, t->g.spare_elements = g->spare_elements;
    return CLT_OK;
}

static clt_status run_forward(clt_ops *ops, const clt_variant *v, void *tensors) {
    const attention_tensors *t = tensors;
    return clt_attention_run_forward(ops, v, &t->g.fwd);
}
static clt_status run_backward(clt_ops *ops, const clt_variant *v, void *tensors) {
    const attention_tensors *t = tensors;
    return clt_attention_run_backward(ops, v, &t->g);
}

/* --- errors --- */

/* The largest error of a row of the device's tensor: against `exact`, the oracle's fp32 values (rounded
 * here), or, if that is NULL, against `want` relative to `bound`. */
static clt_status compare(const params *p, clt_ref from, float *exact, const double *want,
                          const double *bound, double *worst) {
    const size_t n = (size_t)p->head_dim;
    float *got = clt_malloc(n * sizeof *got);
    const clt_status st = clt_ref_read_as(from, p->q.type, got, n);
    if (exact) clt_ref_round(p->q.type, exact, n);
    for (size_t d = 0; d < n && st == CLT_OK; d++) {
        double e = exact ? (got[d] == exact[d] ? 0 : INFINITY) : fabs((double)got[d] - want[d]) / bound[d];
        if (!exact && (double)got[d] == want[d]) e = 0; /* a bound may be 0 */
        *worst = CLT_MAX(*worst, isnan(e) ? INFINITY : e);
    }
    clt_free(got);
    return st;
}

/* The i-th sampled row: the last one, the first one, then others. */
static int64_t sampled_row(int64_t i, int64_t rows) {
    return i == 0 ? rows - 1 : (i - 1) * 2654435761 % rows;
}

static clt_ref head_at(clt_tensor x, const attention_tensors *t, const slice *s, int64_t row, int64_t head) {
    const params *p = &t->g.fwd;
    return clt_tensor_at(x, s->sample * p->seq + row, head * p->head_dim).ref;
}

static clt_status forward_error_at(const attention_tensors *t, const slice *s, clt_ref_attention_at at,
                                   bool exact, double *work, double *worst) {
    const params *p = &t->g.fwd;
    const int64_t group = s->r.heads, head = s->head * group + at.head, n = p->head_dim;
    const clt_ref o = head_at(p->o, t, s, at.row, head);
    const size_t stat = (size_t)(at.head * p->seq + at.row);
    float lse;
    CLT_TRY(clt_ref_read_f32(clt_ref_at(p->lse, (uint64_t)((s->sample * p->heads + head) * p->seq + at.row)),
                             &lse, 1));
    if (exact) {
        clt_ref_attention_forward_at(&s->r, at);
        if (lse != s->r.lse[stat]) *worst = INFINITY;
        return compare(p, o, s->r.o + at.row * s->r.ldo + at.head * n, NULL, NULL, worst);
    }
    const clt_ref_attention_bound b = clt_ref_attention_row(&s->r, p->q.type, at, work, work + n);
    const double e = fabs((double)lse - b.lse) / b.lse_bound;
    *worst = CLT_MAX(*worst, isnan(e) ? INFINITY : e);
    return compare(p, o, NULL, work, work + n, worst);
}

static clt_status dq_error_at(const attention_tensors *t, const slice *s, clt_ref_attention_at at, bool exact,
                              double *work, double *worst) {
    const int64_t n = t->g.fwd.head_dim;
    const clt_ref dq = head_at(t->g.dq, t, s, at.row, s->head * s->r.heads + at.head);
    const clt_ref_attention_gradients_out g = {.dq = work, .dq_bound = work + n};
    if (exact)
        clt_ref_attention_dq_at(&s->r, at);
    else
        clt_ref_attention_gradients_dq_at(&s->r, t->g.fwd.q.type, at, &g);
    return compare(&t->g.fwd, dq, exact ? s->r.dq + at.row * s->r.lddq + at.head * n : NULL, g.dq, g.dq_bound,
                   worst);
}

static clt_status dkv_error_at(const attention_tensors *t, const slice *s, int64_t key, bool exact,
                               double *work, double *worst) {
    const int64_t n = t->g.fwd.head_dim;
    const clt_ref_attention_at at = {0, 0, key};
    const clt_ref dk = head_at(t->g.dk, t, s, key, s->head), dv = head_at(t->g.dv, t, s, key, s->head);
    const clt_ref_attention_gradients_out g = {
        .dk = work, .dk_bound = work + n, .dv = work + 2 * n, .dv_bound = work + 3 * n};
    float *wk = s->r.dk + key * n, *wv = s->r.dv + key * n;
    memset(wk, 0, (size_t)n * sizeof *wk); /* the old values with accumulate_kv */
    memset(wv, 0, (size_t)n * sizeof *wv);
    if (exact)
        clt_ref_attention_dkv_at(&s->r, at);
    else
        clt_ref_attention_gradients_dkv_at(&s->r, t->g.fwd.q.type, at, &g);
    CLT_TRY(compare(&t->g.fwd, dk, exact ? wk : NULL, g.dk, g.dk_bound, worst));
    return compare(&t->g.fwd, dv, exact ? wv : NULL, g.dv, g.dv_bound, worst);
}

static clt_status sampled_error(clt_ops *ops, const attention_tensors *t, double *worst) {
    const bool exact = clt_ops_numerics(ops) == CLT_EXACT;
    double *work = clt_malloc((size_t)(4 * t->g.fwd.head_dim) * sizeof *work);
    clt_status st = CLT_OK;
    *worst = 0;
    for (int c = 0; c < SLICES; c++)
        for (int64_t i = 0; i < SAMPLES && st == CLT_OK; i++) {
            const slice *s = &t->s[c];
            const clt_ref_attention_at at = {0, i % s->r.heads, sampled_row(i, s->r.seq)};
            if (!t->backward) st = forward_error_at(t, s, at, exact, work, worst);
            if (t->backward) st = dq_error_at(t, s, at, exact, work, worst);
            if (t->backward && st == CLT_OK) st = dkv_error_at(t, s, at.row, exact, work, worst);
        }
    clt_free(work);
    return st;
}

/* Elements that a row does not write are noticed: they are NaN before, or 0 where it adds. */
static clt_status error(clt_ops *ops, const clt_variant *v, void *tensors, double *worst) {
    const attention_tensors *t = tensors;
    clt_buffer *to = t->backward ? t->dqkv : t->out;
    const uint32_t before = t->g.accumulate_kv ? 0 : 0xffffffffu;
    CLT_TRY(clt_buffer_fill32(to, 0, before, clt_buffer_bytes(to) / 4 * 4));
    CLT_TRY((t->backward ? run_backward : run_forward)(ops, v, tensors));
    return sampled_error(ops, t, worst);
}

const clt_tune_kind clt_attention_tune_forward = {make_forward, run_forward, error,
                                                  clt_attention_tensors_drop, clt_tune_worth};
const clt_tune_kind clt_attention_tune_backward = {make_backward, run_backward, error,
                                                   clt_attention_tensors_drop, clt_tune_worth};

void clt_attention_shape(const params *p, bool accumulate_kv, char *out, size_t size) {
    char window[32] = "";
    if (p->window >= 0) snprintf(window, sizeof window, " window%lld", (long long)p->window);
    snprintf(out, size, "B%lld T%lld H%lld/%lld D%lld %s%s%s%s%s%s%s%s", (long long)p->batch,
             (long long)p->seq, (long long)p->heads, (long long)p->kv_heads, (long long)p->head_dim,
             clt_dtype_name(p->q.type), p->mask == CLT_MASK_NONE ? " unmasked" : "",
             p->slopes.buf ? " alibi" : "", p->softcap > 0.0f ? " softcap" : "", window,
             p->seq_ids.buf ? " ids" : "", p->dropout > 0.0f ? " dropout" : "",
             accumulate_kv ? " added" : "");
}
