#include "test/attention_util.h"

#include <math.h>

void attention_problem_round(attention_problem *x) {
    for (int i = 0; i < (x->s.fused ? 1 : 3); i++) {
        clt_ref_round(x->s.type, x->qkv[i], x->n_qkv[i]);
        clt_ref_round(x->s.type, x->dqkv[i], x->n_qkv[i]);
    }
    clt_ref_round(x->s.type, x->o, x->n_o);
    clt_ref_round(x->s.type, x->dout, x->n_o);
}

static void fill(attention_problem *x, uint64_t seed) {
    const attention_shape *s = &x->s;
    int64_t tokens = s->batch * s->seq, wide = s->heads * s->head_dim, narrow = s->kv_heads * s->head_dim;
    float amplitude = s->amplitude > 0.0f ? s->amplitude : 1.0f;
    for (int i = 0; i < 3; i++) {
        x->n_qkv[i] = (size_t)(tokens * (s->fused ? wide + 2 * narrow : i == 0 ? wide : narrow + i));
        if (i > 0 && s->fused) {
            x->qkv[i] = x->qkv[0];
            x->dqkv[i] = x->dqkv[0];
            continue;
        }
        x->qkv[i] = s->extreme ? tu_extreme(x->n_qkv[i], seed + (uint64_t)i)
                               : tu_random(x->n_qkv[i], seed + (uint64_t)i, amplitude);
        x->dqkv[i] = tu_random(x->n_qkv[i], seed + 3 + (uint64_t)i, 1.0f);
    }
    x->n_o = (size_t)(tokens * (wide + 3));
    x->n_lse = (size_t)(s->batch * s->heads * s->seq);
    x->o = tu_random(x->n_o, seed + 6, 1.0f);
    x->lse = tu_random(x->n_lse, seed + 7, 1.0f);
    x->dout = tu_random(x->n_o, seed + 8, 1.0f);
    x->slopes = tu_random((size_t)s->heads, seed + 9, 0.25f);
    attention_problem_round(x);
    x->ids = clt_malloc((size_t)tokens * sizeof *x->ids);
    for (int64_t i = 0, id = 0; i < tokens; i++) {
        if (tu_random_below(seed + 10, (uint64_t)i, 20) == 0) id = tu_random_below(seed + 11, (uint64_t)i, 3);
        x->ids[i] = (int32_t)id;
    }
}

attention_problem *attention_problem_create(const attention_shape *s, uint64_t seed) {
    attention_problem *x = clt_calloc(1, sizeof *x);
    x->s = *s;
    fill(x, seed);
    int64_t wide = s->heads * s->head_dim, narrow = s->kv_heads * s->head_dim, all = wide + 2 * narrow;
    int64_t at[3] = {0, s->fused ? wide : 0, s->fused ? wide + narrow : 0};
    int64_t ld[3] = {s->fused ? all : wide, s->fused ? all : narrow + 1, s->fused ? all : narrow + 2};
    x->call = (clt_attention_params){.batch = s->batch,
                                     .seq = s->seq,
                                     .heads = s->heads,
                                     .kv_heads = s->kv_heads,
                                     .head_dim = s->head_dim,
                                     .q = {.ld = ld[0], .type = s->type},
                                     .k = {.ld = ld[1], .type = s->type},
                                     .v = {.ld = ld[2], .type = s->type},
                                     .o = {.ld = wide + 3, .type = s->type},
                                     .scale = 1.0f / sqrtf((float)s->head_dim),
                                     .softcap = s->softcap,
                                     .mask = s->unmasked ? CLT_MASK_NONE : CLT_MASK_CAUSAL,
                                     .window = s->window - 1,
                                     .dropout = s->dropout,
                                     .seed = 0x123456789abcull,
                                     .step = 17,
                                     .first_sample = 5,
                                     .layer = 3};
    x->p = clt_ref_attention_of(&x->call);
    clt_ref_attention_params *p = &x->p;
    p->q = x->qkv[0], p->k = x->qkv[1] + at[1], p->v = x->qkv[2] + at[2], p->o = x->o, p->lse = x->lse;
    p->slopes = s->alibi ? x->slopes : NULL, p->seq_ids = s->ids ? x->ids : NULL;
    p->dout = x->dout, p->dq = x->dqkv[0], p->dk = x->dqkv[1] + at[1], p->dv = x->dqkv[2] + at[2];
    p->lddout = wide + 3, p->lddq = ld[0], p->lddk = ld[1], p->lddv = ld[2];
    p->accumulate_kv = s->accumulate;
    return x;
}

void attention_problem_destroy(attention_problem *x) {
    for (int i = 0; i < (x->s.fused ? 1 : 3); i++) {
        clt_free(x->qkv[i]);
        clt_free(x->dqkv[i]);
    }
    clt_free(x->o);
    clt_free(x->lse);
    clt_free(x->dout);
    clt_free(x->slopes);
    clt_free(x->ids);
    clt_free(x);
}

attention_uploaded attention_upload(int device, const attention_problem *x) {
    attention_uploaded u = {0};
    const clt_ref_attention_params *p = &x->p;
    const clt_dtype type = x->s.type;
    for (int i = 0; i < 3; i++) {
        bool shared = x->s.fused && i > 0;
        u.qkv[i] = shared ? u.qkv[0] : tu_upload_as(device, type, x->qkv[i], x->n_qkv[i]);
        u.dqkv[i] = shared ? u.dqkv[0] : tu_upload_as(device, type, x->dqkv[i], x->n_qkv[i]);
    }
    u.o = tu_upload_as(device, type, x->o, x->n_o);
    u.lse = tu_upload(device, x->lse, x->n_lse);
    clt_ref dout = tu_upload_as(device, type, x->dout, x->n_o);
    clt_attention_params f = x->call;
    f.q.ref = u.qkv[0], f.o.ref = u.o, f.lse = u.lse;
    f.k.ref = clt_ref_at(u.qkv[1], (uint64_t)(p->k - x->qkv[1]));
    f.v.ref = clt_ref_at(u.qkv[2], (uint64_t)(p->v - x->qkv[2]));
    if (p->slopes) f.slopes = tu_upload(device, x->slopes, (size_t)p->heads);
    if (p->seq_ids) f.seq_ids = tu_upload_i32(device, x->ids, (size_t)(p->batch * p->seq));
    u.g = (clt_attention_grad_params){.fwd = f,
                                      .dout = clt_tensor_of(dout, p->lddout, type),
                                      .dq = clt_tensor_of(u.dqkv[0], p->lddq, type),
                                      .dk = clt_tensor_of(u.dqkv[1], p->lddk, type),
                                      .dv = clt_tensor_of(u.dqkv[2], p->lddv, type),
                                      .accumulate_kv = p->accumulate_kv};
    u.g.dk = clt_tensor_at(u.g.dk, 0, p->dk - x->dqkv[1]);
    u.g.dv = clt_tensor_at(u.g.dv, 0, p->dv - x->dqkv[2]);
    return u;
}

/* What kernels are built for. */
static attention_shape draw_style(void) {
    static const int64_t dims[] = {64, 64, 80, 96, 128, 128};
    attention_shape s = {.type = tu_one_in(3) ? CLT_F16 : CLT_BF16};
    s.head_dim = tu_one_in(8) ? 8 * (1 + tu_draw(16)) : dims[tu_draw(CLT_COUNT_OF(dims))];
    s.accumulate = tu_one_in(4), s.unmasked = tu_one_in(3), s.alibi = tu_one_in(4), s.ids = tu_one_in(5);
    s.window = tu_one_in(4);
    if (tu_one_in(5)) s.softcap = 2.5f;
    if (tu_one_in(8)) s.dropout = 0.25f;
    return s;
}

attention_shape attention_shape_draw(int64_t pairs) {
    enum { STYLES = 6, MOST_SAMPLES = 100 };
    static attention_shape style[STYLES];
    for (int i = 0; i < STYLES && !style[i].head_dim; i++) style[i] = draw_style();
    attention_shape s = style[tu_draw(STYLES)];
    s.kv_heads = 1 + tu_draw(4);
    s.heads = s.kv_heads * (1 + tu_draw(4));
    s.seq = tu_one_in(2)   ? 1 + tu_draw(140)
            : tu_one_in(2) ? 1 + tu_draw(600)
                           : 64 * (1 + tu_draw(6)) - 2 + tu_draw(5);
    const int64_t samples = CLT_MAX(pairs / (s.seq * s.seq * s.heads), (int64_t)1);
    s.batch = 1 + tu_draw(CLT_MIN(samples, (int64_t)MOST_SAMPLES));
    s.fused = tu_one_in(2);
    if (s.window) s.window = 1 + tu_draw(s.seq + 10);
    return s;
}
