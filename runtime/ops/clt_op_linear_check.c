/* The check of linear.vt's rows: a few small calls with every part of the formula, edges of outputs, columns
 * that need several chunks, and rows that are fewer than the program's, as far as the row takes them, against
 * the formula in double. */
#include <math.h>
#include <string.h>

#include "runtime/ops/clt_check.h"
#include "runtime/ops/clt_op_linear_internal.h"
#include "runtime/ops/ref/clt_ref.h"

typedef struct {
    int64_t rows, n, k;
    clt_linear_norm norm;
    bool gated, bias, residual;
    clt_activation act;
} linear_case;

static const linear_case cases[] = {
    {1, 37, 264, CLT_LINEAR_PLAIN, false, true, true, CLT_ACT_NONE},
    {5, 133, 96, CLT_LINEAR_RMS_NORM, false, true, true, CLT_ACT_RELU},
    {8, 40, 4128, CLT_LINEAR_LAYER_NORM, true, true, true, CLT_ACT_SILU},
    {1, 16, 1088, CLT_LINEAR_LAYER_NORM, false, true, false, CLT_ACT_GELU},
    {3, 21, 4104, CLT_LINEAR_RMS_NORM, true, false, false, CLT_ACT_SILU},
    {7, 9, 1032, CLT_LINEAR_LAYER_NORM, true, true, true, CLT_ACT_GELU_TANH},
    {2, 1, 8, CLT_LINEAR_RMS_NORM, false, false, false, CLT_ACT_NONE},
};

/* The host's arrays of a case; bias and residual also where the case does not use them. */
typedef struct {
    float *x, *z, *w, *gate, *norm_w, *norm_b, *bias, *gate_bias, *residual;
} arrays;

static arrays make_arrays(clt_check *c, const linear_case *l) {
    const size_t x = (size_t)(l->rows * l->k), w = (size_t)(l->n * l->k), n = (size_t)l->n, k = (size_t)l->k;
    const arrays a = {
        clt_check_random(c, x, 1), clt_check_zeros(c, x),     clt_check_random(c, w, 2),
        clt_check_random(c, w, 3), clt_check_random(c, k, 4), clt_check_random(c, k, 5),
        clt_check_random(c, n, 6), clt_check_random(c, n, 7), clt_check_random(c, (size_t)l->rows * n, 8)};
    return a;
}

/* The call with its tensors on the device; rounds the weights on the host to their type. */
static clt_linear_params upload(clt_check *c, const linear_case *l, const arrays *a, clt_dtype type) {
    const size_t w = (size_t)(l->n * l->k), n = (size_t)l->n, k = (size_t)l->k, y = (size_t)l->rows * n;
    const bool affine = l->norm == CLT_LINEAR_LAYER_NORM;
    clt_linear_params p = {
        .rows = l->rows, .n = l->n, .k = l->k, .norm = l->norm, .eps = 1e-5f, .act = l->act};
    p.x = clt_tensor_of(clt_check_upload(c, a->x, (size_t)(l->rows * l->k)), l->k, CLT_F32);
    p.w = clt_tensor_of(clt_check_upload_as(c, type, a->w, w), l->k, type);
    if (l->gated) p.gate = clt_tensor_of(clt_check_upload_as(c, type, a->gate, w), l->k, type);
    if (l->norm) p.norm_w = clt_tensor_vector(clt_check_upload(c, a->norm_w, k), CLT_F32);
    if (affine) p.norm_b = clt_tensor_vector(clt_check_upload(c, a->norm_b, k), CLT_F32);
    if (l->bias) p.bias = clt_tensor_vector(clt_check_upload(c, a->bias, n), CLT_F32);
    if (l->bias && l->gated) p.gate_bias = clt_tensor_vector(clt_check_upload(c, a->gate_bias, n), CLT_F32);
    if (l->residual) p.residual = clt_tensor_of(clt_check_upload(c, a->residual, y), l->n, CLT_F32);
    p.y = clt_tensor_of(clt_check_blank(c, y), l->n, CLT_F32);
    return p;
}

static void normalise(const linear_case *l, const arrays *a) {
    if (l->norm == CLT_LINEAR_PLAIN) {
        memcpy(a->z, a->x, (size_t)(l->rows * l->k) * sizeof *a->z);
        return;
    }
    clt_ref_norm_forward(&(clt_ref_norm_params){.rms = l->norm == CLT_LINEAR_RMS_NORM,
                                                .eps = 1e-5f,
                                                .rows = l->rows,
                                                .cols = l->k,
                                                .heads = 1,
                                                .x = a->x,
                                                .w = a->norm_w,
                                                .b = l->norm == CLT_LINEAR_LAYER_NORM ? a->norm_b : NULL,
                                                .y = a->z,
                                                .ldx = l->k,
                                                .ldy = l->k});
}

/* One product of the formula in double with its bound, k 2^-22 times the sum of |z w|: sums of fma take a
 * quarter of it, and the norm's roundings less than another. */
static clt_ref_gemm_near product(const linear_case *l, const float *z, const float *w, const float *bias,
                                 clt_activation act, const float *residual, int64_t i, int64_t j) {
    float c = 0;
    return clt_ref_gemm_near_at(&(clt_ref_gemm_params){.form = CLT_GEMM_NT,
                                                       .m = l->rows,
                                                       .n = l->n,
                                                       .k = l->k,
                                                       .a = z,
                                                       .b = w,
                                                       .c = &c,
                                                       .lda = l->k,
                                                       .ldb = l->k,
                                                       .ldc = l->n,
                                                       .bias = l->bias ? bias : NULL,
                                                       .act = act,
                                                       .residual = residual,
                                                       .ldres = l->n},
                                i, j, 0);
}

static clt_ref_gemm_near formula(const linear_case *l, const arrays *a, int64_t i, int64_t j) {
    const float *residual = l->residual ? a->residual : NULL;
    if (!l->gated) return product(l, a->z, a->w, a->bias, l->act, residual, i, j);
    clt_ref_gemm_near up = product(l, a->z, a->w, a->bias, CLT_ACT_NONE, NULL, i, j);
    const clt_ref_gemm_near gate = product(l, a->z, a->gate, a->gate_bias, l->act, NULL, i, j);
    up.c_bound = fabs(gate.c) * up.c_bound + (fabs(up.c) + up.c_bound) * gate.c_bound;
    up.c = gate.c * up.c + (residual ? (double)residual[i * l->n + j] : 0);
    up.c_bound += 0x1p-22 * (fabs(up.c) + 1);
    return up;
}

static clt_status compare(clt_ops *ops, const linear_case *l, const arrays *a, const float *got) {
    for (int64_t i = 0; i < l->rows; i++)
        for (int64_t j = 0; j < l->n; j++) {
            const clt_ref_gemm_near want = formula(l, a, i, j);
            const double y = (double)got[i * l->n + j];
            if (!(fabs(y - want.c) <= want.c_bound))
                return clt_variant_fail(ops,
                                        "%lld x %lld x %lld: output (%lld, %lld) is %.9g, the formula "
                                        "gives %.9g, bound %.3g",
                                        (long long)l->rows, (long long)l->n, (long long)l->k, (long long)i,
                                        (long long)j, y, want.c, want.c_bound);
        }
    return CLT_OK;
}

static clt_status check_case(clt_ops *ops, const clt_variant *v, const linear_case *l, clt_dtype type) {
    clt_check c = {.ops = ops, .aligned = true};
    const size_t outputs = (size_t)(l->rows * l->n);
    const arrays a = make_arrays(&c, l);
    const clt_linear_params p = upload(&c, l, &a, type);
    float *got = clt_check_zeros(&c, outputs);
    if (c.st == CLT_OK) c.st = clt_linear_run(ops, v, &p);
    if (c.st == CLT_OK && !clt_variant_is_rehearsed(ops)) {
        normalise(l, &a);
        c.st = clt_ref_read_f32(p.y.ref, got, outputs);
        if (c.st == CLT_OK) c.st = compare(ops, l, &a, got);
    }
    return clt_check_end(&c);
}

clt_status clt_linear_check(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_linear_params *call = ctx;
    const long multiple = clt_variant_param(v, "K", 8);
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++)
        if (cases[i].k % multiple == 0) CLT_TRY(check_case(ops, v, &cases[i], call->w.type));
    return CLT_OK;
}
