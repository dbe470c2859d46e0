/* The oracle of matrices in 8-bit floating point: their casts and products, as docs/numerics.md defines them.
 */
#include "runtime/ops/ref/clt_ref.h"

#include <math.h>

#include "runtime/base/clt_thread.h"

/* The element that is cast. */
static float cast_source(const clt_ref_cast_fp8_params *p, int64_t r, int64_t c) {
    float y = p->x[r * p->ldx + c];
    if (p->act) y = clt_ref_act(p->act, y);
    if (p->grad_act) y = y * clt_ref_act_grad(p->grad_act, p->grad_pre[r * p->ld_grad + c]);
    return clt_ref_rounded(p->type, y);
}

void clt_ref_cast_fp8(const clt_ref_cast_fp8_params *p) {
    const clt_ref_codes8 *along = &p->along, *across = &p->across;
    const int64_t k_along = clt_codes8_k(p->cols), k_across = clt_codes8_k(p->rows);
    float amax = p->amax ? *p->amax : 0.0f;
    for (int64_t r = 0; r < k_across; r++)
        for (int64_t c = 0; c < k_along; c++) {
            const bool inside = r < p->rows && c < p->cols;
            const float y = inside ? cast_source(p, r, c) : 0.0f;
            const uint8_t code = inside ? clt_ref_f32_to_fp8(p->format, y * p->scale) : 0;
            if (isnan(y) || (!isnan(amax) && fabsf(y) > amax)) amax = fabsf(y);
            if (inside && p->y) p->y[r * p->ldy + c] = y;
            if (along->q && r < p->rows) along->q[r * along->ld + c] = code;
            if (across->q && c < p->cols) across->q[c * across->ld + r] = code;
        }
    if (p->amax) *p->amax = amax;
}

static float value(const clt_ref_codes8 *m, int64_t row, int64_t k) {
    return clt_ref_fp8_to_f32(m->format, m->q[row * m->ld + k]);
}

void clt_ref_gemm_fp8_at(const clt_ref_gemm_fp8_params *p, int64_t i, int64_t j) {
    float acc = 0.0f;
    for (int64_t k = 0; k < p->to.k; k++) acc = fmaf(value(&p->a, i, k), value(&p->b, j, k), acc);
    clt_ref_gemm_finish(&p->to, i, j, (p->a.inverse * p->b.inverse) * acc);
}

static void gemm_row(void *ctx, size_t i) {
    const clt_ref_gemm_fp8_params *p = ctx;
    for (int64_t j = 0; j < p->to.n; j++) clt_ref_gemm_fp8_at(p, (int64_t)i, j);
}

void clt_ref_gemm_fp8(const clt_ref_gemm_fp8_params *p) {
    const bool small = p->to.m * p->to.n * p->to.k < 1 << 16; /* starting threads takes longer */
    clt_ref_gemm_fp8_params all = *p;
    clt_parallel_for((size_t)p->to.m, small ? 1 : 0, gemm_row, &all);
}

/* What a matrix unit makes of output (i, j): the exact sum, and a bound of what the unit loses. Without split
 * the sum of a piece that starts at some k is a difference of two partial sums from 0. */
typedef struct {
    double sum, size, lost;
} unit_sum;

static unit_sum sum_of_unit(const clt_ref_gemm_fp8_params *p, int64_t i, int64_t j) {
    enum { AT_ONCE = 32, SPLIT = 128 }; /* products of an instruction, and before a sum leaves the unit */
    unit_sum all = {0};
    double partial = 0, low = 0, high = 0; /* low, high: of earlier k at which a piece may start */
    for (int64_t k = 0; k < p->to.k; k += AT_ONCE) {
        if (p->split && k % SPLIT == 0) partial = 0;
        double largest = fmax(high - partial, partial - low), before = partial;
        for (int64_t e = k; e < CLT_MIN(k + AT_ONCE, p->to.k); e++) {
            const double ab = (double)value(&p->a, i, e) * (double)value(&p->b, j, e);
            partial += ab, all.size += fabs(ab);
            largest = fmax(largest, fabs(ab));
        }
        all.sum += partial - before;
        largest = fmax(largest, fmax(high - partial, partial - low));
        all.lost += (AT_ONCE + 2) * 0x1p-13 * largest;
        if (!p->split) low = fmin(low, partial), high = fmax(high, partial);
    }
    return all;
}

clt_ref_gemm_near clt_ref_gemm_fp8_near_at(const clt_ref_gemm_fp8_params *p, int64_t i, int64_t j,
                                           double c_before) {
    const double scale = (double)p->a.inverse * (double)p->b.inverse;
    const unit_sum u = sum_of_unit(p, i, j);
    const double off = 1.01 * u.lost + (double)p->to.k * 0x1p-22 * u.size + 0x1p-22 * fabs(u.sum);
    return clt_ref_gemm_near_of(&p->to, i, j, c_before, u.sum * scale, off * scale);
}
