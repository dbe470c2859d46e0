/* The oracle of products of 8-bit blocks: one output after the other, in the order of docs/numerics.md. */
#include "runtime/ops/ref/clt_ref.h"

#include <math.h>

#include "runtime/base/clt_thread.h"

static float scale_of(const clt_ref_blocks8 *x, int64_t row, int64_t block) {
    return x->scale[block * x->ld_scale + row / x->tile];
}

/* acc after the blocks of k in [from, to). */
static float chain(const clt_ref_gemm8_params *p, int64_t i, int64_t j, int64_t from, int64_t to, float acc) {
    const int8_t *a = p->a.q + i * p->a.ld, *b = p->b.q + j * p->b.ld;
    const int64_t block = p->a.block;
    for (int64_t k0 = from; k0 < to; k0 += block) {
        int32_t sum = 0;
        for (int64_t k = k0; k < k0 + block; k++) sum += (int32_t)a[k] * (int32_t)b[k];
        acc = fmaf((float)sum, scale_of(&p->a, i, k0 / block) * scale_of(&p->b, j, k0 / block), acc);
    }
    return acc;
}

void clt_ref_gemm8_at(const clt_ref_gemm8_params *p, int64_t i, int64_t j) {
    const clt_ref_gemm_params *to = &p->to;
    float *c = to->c + i * to->ldc + j;
    const float before = p->form != CLT_GEMM8_PRODUCT && to->accumulate ? *c : 0.0f;
    if (p->form == CLT_GEMM8_PRODUCT) {
        clt_ref_gemm_finish(to, i, j, chain(p, i, j, 0, to->k, 0.0f));
    } else if (p->form == CLT_GEMM8_CHAIN) {
        *c = chain(p, i, j, 0, to->k, before);
    } else {
        *c = before;
        for (int64_t k = 0; k < to->k; k += to->k_group) *c = *c + chain(p, i, j, k, k + to->k_group, 0.0f);
    }
}

static void gemm8_row(void *ctx, size_t i) {
    const clt_ref_gemm8_params *p = ctx;
    for (int64_t j = 0; j < p->to.n; j++) clt_ref_gemm8_at(p, (int64_t)i, j);
}

void clt_ref_gemm8(const clt_ref_gemm8_params *p) {
    const bool small = p->to.m * p->to.n * p->to.k < 1 << 20; /* starting threads takes longer */
    clt_ref_gemm8_params all = *p;
    clt_parallel_for((size_t)p->to.m, small ? 1 : 0, gemm8_row, &all);
}
