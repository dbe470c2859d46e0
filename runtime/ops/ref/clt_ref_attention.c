/* The oracle of attention: clkernels/attention/README.md, line for line. */
#include "runtime/ops/ref/clt_ref.h"

#include "runtime/ops/clt_dropout.h"
#include "runtime/ops/ref/clt_clc.h"
#include "clkernels/include/clt_math.clh"

enum { BLOCK = 64 };

typedef clt_ref_attention_params params;

int64_t clt_ref_attention_begin(const params *p, int64_t i) {
    return p->window >= 0 && i > p->window ? i - p->window : 0;
}

int64_t clt_ref_attention_end(const params *p, int64_t i) {
    if (p->mask == CLT_MASK_CAUSAL) return i + 1;
    return p->window >= 0 && p->window < p->seq - 1 - i ? i + p->window + 1 : p->seq;
}

static bool in_range(const params *p, int64_t i, int64_t j) {
    return clt_ref_attention_begin(p, i) <= j && j < clt_ref_attention_end(p, i);
}

static const float *row(const float *x, int64_t ld, const params *p, int64_t b, int64_t i, int64_t head) {
    return x + (b * p->seq + i) * ld + head * p->head_dim;
}

static float chain(const float *x, const float *y, int64_t n) {
    float s = 0.0f;
    for (int64_t d = 0; d < n; d++) s = fma(x[d], y[d], s);
    return s;
}

/* The score of a pair inside the range; *t: the tanh of the softcap, for its derivative. */
static float score(const params *p, int64_t b, int64_t h, int64_t i, int64_t j, float *t) {
    int64_t g = h / (p->heads / p->kv_heads);
    float s = chain(row(p->q, p->ldq, p, b, i, h), row(p->k, p->ldk, p, b, j, g), p->head_dim) * p->scale;
    *t = 0.0f;
    if (p->softcap > 0.0f) {
        *t = clt_tanh(s / p->softcap);
        s = p->softcap * *t;
    }
    if (p->slopes) s = fma(p->slopes[h], (float)(j < i ? j - i : i - j), s);
    if (p->seq_ids && p->seq_ids[b * p->seq + i] != p->seq_ids[b * p->seq + j]) s = -INFINITY;
    return s;
}

static float dropout_factor(const params *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    if (!(p->dropout > 0.0f)) return 1.0f;
    uint64_t element = (uint64_t)((h * p->seq + i) * p->seq + j);
    return clt_ref_dropout_factor(p->dropout, p->seed, p->step, p->first_sample + b, p->layer,
                                  CLT_SITE_ATTENTION, element);
}

/* One block of keys [begin, end) of a row; updates m, l and o. */
static void forward_block(const params *p, int64_t b, int64_t h, int64_t i, int64_t begin, int64_t end,
                          float *m, float *l, float *o) {
    float s[BLOCK], w[BLOCK] = {0}, n = *m, unused;
    for (int64_t j = begin; j < end; j++) {
        s[j % BLOCK] = score(p, b, h, i, j, &unused);
        if (s[j % BLOCK] > n) n = s[j % BLOCK];
    }
    float r = n == -INFINITY ? 0.0f : n, a = clt_exp(*m - r);
    for (int64_t j = begin; j < end; j++) w[j % BLOCK] = clt_exp(s[j % BLOCK] - r);
    *l = fma(*l, a, clt_ref_row_sum(w, BLOCK));
    *m = n;
    for (int64_t d = 0; d < p->head_dim; d++) o[d] = o[d] * a;
    for (int64_t j = begin; j < end; j++) {
        const float *v = row(p->v, p->ldv, p, b, j, h / (p->heads / p->kv_heads));
        float x = w[j % BLOCK];
        if (p->dropout > 0.0f) x = x * dropout_factor(p, b, h, i, j);
        for (int64_t d = 0; d < p->head_dim; d++) o[d] = fma(x, v[d], o[d]);
    }
}

static void forward_row(const params *p, int64_t b, int64_t h, int64_t i) {
    float *o = p->o + (b * p->seq + i) * p->ldo + h * p->head_dim;
    float m = -INFINITY, l = 0.0f;
    for (int64_t d = 0; d < p->head_dim; d++) o[d] = 0.0f;
    int64_t first = clt_ref_attention_begin(p, i), after = clt_ref_attention_end(p, i);
    for (int64_t block = first / BLOCK; block * BLOCK < after; block++) {
        int64_t begin = CLT_MAX(first, block * BLOCK), end = CLT_MIN(after, (block + 1) * BLOCK);
        forward_block(p, b, h, i, begin, end, &m, &l, o);
    }
    float inv = 1.0f / l;
    for (int64_t d = 0; d < p->head_dim; d++) o[d] = o[d] * inv;
    p->lse[(b * p->heads + h) * p->seq + i] = m + clt_log(l);
}

params clt_ref_attention_of(const clt_attention_params *p) {
    return (params){.batch = p->batch,
                    .seq = p->seq,
                    .heads = p->heads,
                    .kv_heads = p->kv_heads,
                    .head_dim = p->head_dim,
                    .ldq = p->q.ld,
                    .ldk = p->k.ld,
                    .ldv = p->v.ld,
                    .ldo = p->o.ld,
                    .scale = p->scale,
                    .softcap = p->softcap,
                    .mask = p->mask,
                    .window = p->window,
                    .dropout = p->dropout,
                    .seed = p->seed,
                    .step = p->step,
                    .first_sample = p->first_sample,
                    .layer = p->layer};
}

void clt_ref_attention_forward(const clt_ref_attention_params *p) {
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->heads; h++)
            for (int64_t i = 0; i < p->seq; i++) forward_row(p, b, h, i);
}

/* What a pair inside the range contributes to the gradients: ds to dq and dk, w to dv. */
typedef struct {
    float ds, w;
} pair;

static float delta_of(const params *p, int64_t b, int64_t h, int64_t i) {
    return chain(row(p->dout, p->lddout, p, b, i, h), row(p->o, p->ldo, p, b, i, h), p->head_dim);
}

static pair pair_of(const params *p, int64_t b, int64_t h, int64_t i, int64_t j, float delta) {
    const float *v = row(p->v, p->ldv, p, b, j, h / (p->heads / p->kv_heads));
    float t, s = score(p, b, h, i, j, &t), prob = clt_exp(s - p->lse[(b * p->heads + h) * p->seq + i]);
    float dp = chain(row(p->dout, p->lddout, p, b, i, h), v, p->head_dim), w = prob;
    if (p->dropout > 0.0f) {
        float factor = dropout_factor(p, b, h, i, j);
        w = w * factor;
        dp = dp * factor;
    }
    float ds = prob * (dp - delta);
    if (p->softcap > 0.0f) ds = ds * fma(-t, t, 1.0f);
    return (pair){ds * p->scale, w};
}

static void add_row(float x, const float *y, int64_t n, float *out) {
    for (int64_t d = 0; d < n; d++) out[d] = fma(x, y[d], out[d]);
}

static void backward_row(const params *p, int64_t b, int64_t h, int64_t i) {
    int64_t n = p->head_dim, g = h / (p->heads / p->kv_heads);
    float *dq = p->dq + (b * p->seq + i) * p->lddq + h * n, delta = delta_of(p, b, h, i);
    for (int64_t d = 0; d < n; d++) dq[d] = 0.0f;
    for (int64_t j = clt_ref_attention_begin(p, i); j < clt_ref_attention_end(p, i); j++) {
        pair x = pair_of(p, b, h, i, j, delta);
        add_row(x.ds, row(p->k, p->ldk, p, b, j, g), n, dq);
        add_row(x.ds, row(p->q, p->ldq, p, b, i, h), n, p->dk + (b * p->seq + j) * p->lddk + g * n);
        add_row(x.w, row(p->dout, p->lddout, p, b, i, h), n, p->dv + (b * p->seq + j) * p->lddv + g * n);
    }
}

void clt_ref_attention_forward_at(const params *p, clt_ref_attention_at at) {
    forward_row(p, at.sample, at.head, at.row);
}

void clt_ref_attention_dq_at(const params *p, clt_ref_attention_at at) {
    int64_t b = at.sample, h = at.head, i = at.row, n = p->head_dim;
    float *dq = p->dq + (b * p->seq + i) * p->lddq + h * n, delta = delta_of(p, b, h, i);
    for (int64_t d = 0; d < n; d++) dq[d] = 0.0f;
    for (int64_t j = clt_ref_attention_begin(p, i); j < clt_ref_attention_end(p, i); j++)
        add_row(pair_of(p, b, h, i, j, delta).ds, row(p->k, p->ldk, p, b, j, h / (p->heads / p->kv_heads)), n,
                dq);
}

void clt_ref_attention_dkv_at(const params *p, clt_ref_attention_at at) {
    int64_t b = at.sample, g = at.head, j = at.row, n = p->head_dim, group = p->heads / p->kv_heads;
    float *dk = p->dk + (b * p->seq + j) * p->lddk + g * n, *dv = p->dv + (b * p->seq + j) * p->lddv + g * n;
    for (int64_t d = 0; d < n && !p->accumulate_kv; d++) dk[d] = dv[d] = 0.0f;
    for (int64_t h = g * group; h < (g + 1) * group; h++)
        for (int64_t i = 0; i < p->seq; i++) {
            if (!in_range(p, i, j)) continue;
            pair x = pair_of(p, b, h, i, j, delta_of(p, b, h, i));
            add_row(x.ds, row(p->q, p->ldq, p, b, i, h), n, dk);
            add_row(x.w, row(p->dout, p->lddout, p, b, i, h), n, dv);
        }
}

static void clear_kv(const params *p, int64_t b) {
    for (int64_t j = 0; j < p->seq; j++)
        for (int64_t c = 0; c < p->kv_heads * p->head_dim; c++) {
            p->dk[(b * p->seq + j) * p->lddk + c] = 0.0f;
            p->dv[(b * p->seq + j) * p->lddv + c] = 0.0f;
        }
}

void clt_ref_attention_backward(const clt_ref_attention_params *p) {
    for (int64_t b = 0; b < p->batch; b++) {
        if (!p->accumulate_kv) clear_kv(p, b);
        for (int64_t h = 0; h < p->heads; h++)
            for (int64_t i = 0; i < p->seq; i++) backward_row(p, b, h, i);
    }
}
