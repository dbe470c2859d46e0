/* The oracle of GEMM: one output after the other, in the order of docs/numerics.md. */
#include "runtime/ops/ref/clt_ref.h"

#include <math.h>

#include "runtime/base/clt_thread.h"

clt_ref_gemm_params clt_ref_gemm_of(const clt_gemm_params *p) {
    return (clt_ref_gemm_params){.form = p->form,
                                 .m = p->m,
                                 .n = p->n,
                                 .k = p->k,
                                 .k_group = p->k_group,
                                 .lda = p->a.ld,
                                 .ldb = p->b.ld,
                                 .ldc = p->c.ld,
                                 .accumulate = p->accumulate,
                                 .act = p->act,
                                 .ldpre = p->pre.ld,
                                 .grad_act = p->grad_act,
                                 .ldgrad = p->grad_pre.ld,
                                 .ldres = p->residual.ld,
                                 .c_type = p->c.type,
                                 .aux_type = clt_gemm_aux_type(p)};
}

static float element_a(const clt_ref_gemm_params *p, int64_t i, int64_t k) {
    return p->form == CLT_GEMM_TN ? p->a[k * p->lda + i] : p->a[i * p->lda + k];
}

static float element_b(const clt_ref_gemm_params *p, int64_t j, int64_t k) {
    return p->form == CLT_GEMM_NT ? p->b[j * p->ldb + k] : p->b[k * p->ldb + j];
}

/* One chain over k in [from, to), from +0. */
static float chain(const clt_ref_gemm_params *p, int64_t i, int64_t j, int64_t from, int64_t to) {
    float acc = 0.0f;
    for (int64_t k = from; k < to; k++) acc = fmaf(element_a(p, i, k), element_b(p, j, k), acc);
    return acc;
}

static void weight_gradient_at(const clt_ref_gemm_params *p, int64_t i, int64_t j) {
    float sum = p->accumulate ? p->c[i * p->ldc + j] : 0.0f;
    for (int64_t k = 0; k < p->k; k += p->k_group) sum = sum + chain(p, i, j, k, k + p->k_group);
    p->c[i * p->ldc + j] = clt_ref_rounded(p->c_type, sum);
}

void clt_ref_gemm_finish(const clt_ref_gemm_params *p, int64_t i, int64_t j, float v) {
    if (p->bias) v = v + p->bias[j];
    if (p->pre) p->pre[i * p->ldpre + j] = clt_ref_rounded(p->aux_type, v);
    if (p->act != CLT_ACT_NONE) v = clt_ref_act(p->act, v);
    if (p->grad_act != CLT_ACT_NONE) v = v * clt_ref_act_grad(p->grad_act, p->grad_pre[i * p->ldgrad + j]);
    if (p->residual) v = p->residual[i * p->ldres + j] + v;
    float *c = p->c + i * p->ldc + j;
    *c = clt_ref_rounded(p->c_type, p->accumulate ? *c + v : v);
}

void clt_ref_gemm_at(const clt_ref_gemm_params *p, int64_t i, int64_t j) {
    if (p->form == CLT_GEMM_TN)
        weight_gradient_at(p, i, j);
    else
        clt_ref_gemm_finish(p, i, j, chain(p, i, j, 0, p->k));
}

static void gemm_row(void *ctx, size_t i) {
    const clt_ref_gemm_params *p = ctx;
    for (int64_t j = 0; j < p->n; j++) clt_ref_gemm_at(p, (int64_t)i, j);
}

void clt_ref_gemm(const clt_ref_gemm_params *p) {
    const bool small = p->m * p->n * p->k < 1 << 20; /* starting threads takes longer */
    clt_ref_gemm_params all = *p;
    clt_parallel_for((size_t)p->m, small ? 1 : 0, gemm_row, &all);
}

/* Half the distance between neighbours of x in this type, at most. */
static double half_step(clt_dtype type, double x) {
    return clt_dtype_table[type].unit * fabs(x) + clt_dtype_table[type].least;
}

clt_ref_gemm_near clt_ref_gemm_near_at(const clt_ref_gemm_params *p, int64_t i, int64_t j, double c_before) {
    double v = 0, size = 0;
    for (int64_t k = 0; k < p->k; k++) {
        const double ab = (double)element_a(p, i, k) * (double)element_b(p, j, k);
        v += ab;
        size += fabs(ab);
    }
    return clt_ref_gemm_near_of(p, i, j, c_before, v, (double)p->k * 0x1p-22 * size);
}

clt_ref_gemm_near clt_ref_gemm_near_of(const clt_ref_gemm_params *p, int64_t i, int64_t j, double c_before,
                                       double v, double off) {
    clt_ref_gemm_near near;
    double largest = fabs(v);
    if (p->bias) v += (double)p->bias[j];
    near.pre = v;
    near.pre_bound = off + half_step(CLT_F32, v) + half_step(p->aux_type, v);
    double rounded = 0;
    if (p->act != CLT_ACT_NONE) {
        rounded = 2 * half_step(p->aux_type, fabs(v) + off) +
                  (p->act == CLT_ACT_GELU ? clt_ref_fast_gelu_off(p->c_type) : 0);
        v = (double)clt_ref_act(p->act, (float)v);
    }
    if (p->grad_act != CLT_ACT_NONE) {
        const double grad = (double)clt_ref_act_grad(p->grad_act, p->grad_pre[i * p->ldgrad + j]);
        const double fast = p->grad_act == CLT_ACT_GELU ? clt_ref_fast_gelu_grad_off(p->c_type) : 0;
        rounded = (half_step(p->aux_type, grad) + fast) * (fabs(v) + off);
        v *= grad;
    }
    if (p->residual) v += (double)p->residual[i * p->ldres + j];
    if (p->accumulate) v += c_before, largest += fabs(c_before);
    if (p->residual) largest += fabs((double)p->residual[i * p->ldres + j]);
    if (p->bias) largest += fabs((double)p->bias[j]);
    near.c = v;
    near.c_bound = 2 * off + rounded + 0x1p-20 * largest + half_step(p->c_type, fabs(v) + 2 * off);
    return near;
}

clt_ref_gemm_near clt_ref_gemm_near_sum(const clt_ref_gemm_params *p, int64_t i, double before) {
    static const float one = 1;
    const clt_ref_gemm_params product = {
        .form = CLT_GEMM_TN, .k = p->k, .a = p->a, .lda = p->lda, .b = &one, .accumulate = p->accumulate};
    return clt_ref_gemm_near_at(&product, i, 0, before);
}
