/* The check of gemm_fp8.vt's rows against the oracle: ragged rows, columns and k, every epilogue, more than
 * one tile, few tiles with a large k. Rows that compute in numerics exact must give its words; rows of
 * numerics fast must stay within the bound, and give its words where a row of a has a single 1. */
#include <math.h>
#include <string.h>

#include "runtime/base/clt_thread.h"
#include "runtime/ops/clt_check.h"
#include "runtime/ops/clt_op_gemm_fp8_internal.h"
#include "runtime/ops/ref/clt_ref.h"

typedef struct {
    int64_t m, n, k;
    bool accumulate, bias, residual, one_hot, half;
    bool long_k; /* for rows that split tiles along k */
    clt_activation act, grad_act;
} check_shape;

/* An operand on both sides. */
typedef struct {
    clt_codes8 device;
    clt_ref_codes8 host;
} operand;

static operand make_operand(clt_check *c, int64_t rows, int64_t k, clt_fp8 format, float inverse,
                            bool one_hot, uint64_t seed) {
    const int64_t ld = k + 16;
    const size_t bytes = (size_t)(rows * ld);
    float *const random = clt_check_random(c, bytes, seed), *const host = clt_check_zeros(c, bytes / 4 + 1);
    uint8_t *const q = (uint8_t *)host;
    for (size_t i = 0; i < bytes; i++) {
        const int64_t row = (int64_t)i / ld, column = (int64_t)i % ld;
        const float x = one_hot ? (float)(row * 7 % k == column) : random[i] * (i % 3 ? 2.0f : 100.0f);
        q[i] = column < k ? clt_ref_f32_to_fp8(format, x) : 0x7f; /* gaps are NaN, or large */
    }
    host[bytes / 4] = inverse;
    operand o = {.device = {.ld = ld, .format = format}, .host = {q, ld, format, inverse}};
    o.device.q = clt_check_upload(c, q, bytes / 4);
    o.device.q.off *= 4;
    o.device.inverse = clt_check_upload(c, host + bytes / 4, 1);
    return o;
}

static float *add_matrix(clt_check *c, clt_dtype type, int64_t rows, int64_t ld, uint64_t seed,
                         clt_tensor *t) {
    float *x = clt_check_random(c, (size_t)(rows * ld), seed);
    *t = clt_tensor_of(clt_check_upload_as(c, type, x, (size_t)(rows * ld)), ld, type);
    return x;
}

/* What is expected of column j, by all cores, because a first start waits for it. */
typedef struct {
    const clt_ref_gemm_fp8_params *ref;
    const float *before;
    clt_ref_gemm_near *near; /* [n, m] */
} near_outputs;

static void near_column(void *ctx, size_t j) {
    const near_outputs *all = ctx;
    const clt_ref_gemm_params *to = &all->ref->to;
    for (int64_t i = 0; i < to->m; i++)
        all->near[(int64_t)j * to->m + i] =
            clt_ref_gemm_fp8_near_at(all->ref, i, (int64_t)j, (double)all->before[i * to->ldc + (int64_t)j]);
}

/* got: [m, ldc], before: c before the call. */
static void compare_near(clt_check *c, const clt_ref_gemm_fp8_params *r, const float *got,
                         const float *before) {
    const size_t bytes = (size_t)(r->to.m * r->to.n) * sizeof(clt_ref_gemm_near);
    near_outputs all = {r, before, clt_try_malloc(bytes)};
    if (!all.near) {
        if (c->st == CLT_OK) c->st = clt_no_memory("checking a matrix product", bytes);
        return;
    }
    clt_parallel_for((size_t)r->to.n, 0, near_column, &all);
    for (int64_t i = 0; i < r->to.m; i++)
        for (int64_t j = 0; j < r->to.n; j++) {
            const size_t at = (size_t)(i * r->to.ldc + j);
            const clt_ref_gemm_near near = all.near[j * r->to.m + i];
            if (c->st == CLT_OK && !(fabs((double)got[at] - near.c) <= near.c_bound))
                c->st = clt_variant_fail(
                    c->ops,
                    "%lldx%lldx%lld: output (%lld, %lld) is %.9g, the exact value is %.9g, the bound %.3g",
                    (long long)r->to.m, (long long)r->to.n, (long long)r->to.k, (long long)i, (long long)j,
                    (double)got[at], near.c, near.c_bound);
        }
    clt_free(all.near);
}

static void compare(clt_check *c, const clt_variant *v, const check_shape *s, const clt_gemm_fp8_params *p,
                    const clt_ref_gemm_fp8_params *r) {
    const clt_dtype type = p->to.c.type;
    const size_t n = (size_t)(r->to.m * r->to.ldc);
    if (!strstr(v->requires, "numerics=fast") || s->one_hot) {
        clt_ref_gemm_fp8(r);
        clt_check_compare_as(c, type, "c", p->to.c.ref, r->to.c, n);
        if (r->to.pre) clt_check_compare_as(c, p->to.pre.type, "pre", p->to.pre.ref, r->to.pre, n);
        return;
    }
    float *got = clt_check_zeros(c, n);
    if (clt_variant_is_rehearsed(c->ops)) return;
    if (c->st == CLT_OK) c->st = clt_ref_read_as(p->to.c.ref, type, got, n);
    compare_near(c, r, got, r->to.c);
}

static clt_status run_shape(clt_ops *ops, const clt_variant *v, const check_shape *s,
                            const clt_gemm_fp8_params *like) {
    clt_check c = {.ops = ops, .aligned = true};
    const clt_dtype type = s->half ? CLT_BF16 : CLT_F32;
    const int64_t ld = s->n + 8;
    const operand a = make_operand(&c, s->m, s->k, like->a.format, 0.37f, s->one_hot, 1),
                  b = make_operand(&c, s->n, s->k, like->b.format, 0.011f, false, 2);
    clt_gemm_fp8_params p = {.a = a.device, .b = b.device, .split = like->split};
    clt_gemm_params *to = &p.to;
    to->m = s->m, to->n = s->n, to->k = to->k_group = s->k, to->accumulate = s->accumulate;
    to->act = s->act, to->grad_act = s->grad_act;
    float *const c_host = add_matrix(&c, type, s->m, ld, 3, &to->c), *pre = NULL, *grad = NULL,
                 *residual = NULL, *bias = NULL;
    if (s->act) pre = add_matrix(&c, type, s->m, ld, 4, &to->pre);
    if (s->grad_act) grad = add_matrix(&c, type, s->m, ld, 5, &to->grad_pre);
    if (s->residual) residual = add_matrix(&c, CLT_F32, s->m, ld, 6, &to->residual);
    if (s->bias) bias = add_matrix(&c, CLT_F32, 1, s->n, 7, &to->bias);
    clt_ref_gemm_fp8_params r = {a.host, b.host, like->split, clt_ref_gemm_of(to)};
    r.to.c = c_host, r.to.pre = pre, r.to.grad_pre = grad, r.to.residual = residual, r.to.bias = bias;
    if (clt_gemm_fp8_takes(v, &p)) {
        if (c.st == CLT_OK) c.st = clt_gemm_fp8_run(ops, v, &p);
        compare(&c, v, s, &p, &r);
    }
    return clt_check_end(&c);
}

clt_status clt_gemm_fp8_check(clt_ops *ops, const clt_variant *v, void *ctx) {
    static const check_shape shape[] = {
        {.m = 37, .n = 149, .k = 48},
        {.m = 140, .n = 264, .k = 400, .one_hot = true},
        {.m = 300, .n = 272, .k = 400, .one_hot = true, .bias = true, .half = true},
        {.m = 133, .n = 70, .k = 272, .bias = true, .residual = true},
        {.m = 67, .n = 152, .k = 144, .bias = true, .act = CLT_ACT_GELU, .half = true},
        {.m = 67, .n = 130, .k = 16, .grad_act = CLT_ACT_GELU, .half = true},
        {.m = 140, .n = 33, .k = 704, .accumulate = true},
        {.m = 133, .n = 72, .k = 272, .bias = true, .residual = true},
        {.m = 37, .n = 72, .k = 8208, .accumulate = true, .long_k = true},
        {.m = 5, .n = 1032, .k = 8208, .bias = true, .residual = true, .long_k = true},
        {.m = 5, .n = 1032, .k = 8208, .bias = true, .half = true, .long_k = true},
    };
    const clt_gemm_fp8_params *like = ctx;
    const long types = clt_variant_param(v, "TYPES", -1);
    const bool cuts = !strcmp(v->body, "gemm_wgmma");
    for (size_t i = 0; i < CLT_COUNT_OF(shape); i++)
        if (types >> (shape[i].half ? CLT_BF16 : CLT_F32) & 1 && (cuts || !shape[i].long_k))
            CLT_TRY(run_shape(ops, v, &shape[i], like));
    return CLT_OK;
}
