/* The check of gemm8.vt's rows against the oracle, word for word: every form and shape of scales that the row
 * takes, ragged rows and columns, the full range of int8, scales of 0, extreme scales, and epilogues. */
#include <string.h>

#include "runtime/ops/clt_check.h"
#include "runtime/ops/clt_op_gemm8_internal.h"
#include "runtime/ops/ref/clt_ref.h"

typedef struct {
    clt_gemm8_form form;
    int64_t m, n, blocks, group; /* blocks of k, of a sample */
    bool a_tile, b_tile, accumulate, bias, residual;
    clt_activation act, grad_act;
} check_shape;

/* An operand on both sides. */
typedef struct {
    clt_blocks8 device;
    clt_ref_blocks8 host;
} operand;

static operand make_operand(clt_check *c, int64_t rows, int64_t k, int32_t block, bool tile, uint64_t seed,
                            int64_t align_s) {
    const int64_t blocks = k / block, ld = k + 16;
    const int64_t ld_scale = CLT_ROUND_UP((tile ? CLT_CEIL_DIV(rows, block) : rows) + 2, align_s);
    const size_t words = (size_t)(rows * ld / 4), scales = (size_t)(blocks * ld_scale);
    float *const random = clt_check_random(c, (size_t)(rows * ld) + scales, seed);
    float *const host = clt_check_zeros(c, words + scales), *const scale = host + words;
    int8_t *const q = (int8_t *)host;
    for (int64_t i = 0; i < rows * ld; i++) q[i] = (int8_t)(random[i] * 128.0f);
    q[0] = q[1] = -128;
    for (size_t i = 0; i < scales;
         i++) { /* 2^-12 ... 2^4, some 0 and some far apart; of 8 significant bits */
        const float bits8 = (float)(128 + i * 37 % 128) / 128;
        scale[i] = i % 11 == 3   ? 0.0f
                   : i % 13 == 5 ? (seed & 1 ? 0x1p70f : 0x1p-120f)
                                 : bits8 / (float)(1 << (int)(random[rows * ld + (int64_t)i] * 8 + 8)) * 16;
    }
    operand o = {.device = {.ld = ld, .ld_scale = ld_scale, .block = block, .tile = tile ? block : 1},
                 .host = {q, ld, scale, ld_scale, block, tile ? block : 1}};
    o.device.q = clt_check_upload(c, q, words);
    o.device.q.off *= 4;
    o.device.scale = clt_check_upload(c, scale, scales);
    return o;
}

static float *add_matrix(clt_check *c, clt_dtype type, int64_t rows, int64_t ld, uint64_t seed,
                         clt_tensor *t) {
    float *x = clt_check_random(c, (size_t)(rows * ld), seed);
    *t = clt_tensor_of(clt_check_upload_as(c, type, x, (size_t)(rows * ld)), ld, type);
    return x;
}

static clt_status run_shape(clt_ops *ops, const clt_variant *v, const check_shape *s, int32_t block) {
    clt_check c = {.ops = ops, .aligned = true};
    const clt_dtype type = s->act ? CLT_BF16 : CLT_F32;
    const int64_t align = clt_variant_param(v, "ALIGN_C", 1), n = CLT_ROUND_UP(s->n, align);
    const int64_t ld = CLT_ROUND_UP(n + 5, align), k = s->blocks * block;
    const int64_t align_s = clt_variant_param(v, "ALIGN_S", 1);
    const operand a = make_operand(&c, s->m, k, block, s->a_tile, 1, align_s),
                  b = make_operand(&c, n, k, block, s->b_tile, 2, align_s);
    clt_gemm8_params p = {.form = s->form, .m = s->m, .n = n, .k = k, .k_group = s->group * block};
    p.a = a.device, p.b = b.device, p.accumulate = s->accumulate, p.act = s->act, p.grad_act = s->grad_act;
    float *const c_host = add_matrix(&c, type, s->m, ld, 3, &p.c), *pre = NULL, *grad = NULL,
                 *residual = NULL, *bias = NULL;
    if (s->act) pre = add_matrix(&c, type, s->m, ld, 4, &p.pre);
    if (s->grad_act) grad = add_matrix(&c, type, s->m, ld, 5, &p.grad_pre);
    if (s->residual) residual = add_matrix(&c, CLT_F32, s->m, ld, 6, &p.residual);
    if (s->bias) bias = add_matrix(&c, CLT_F32, 1, n, 7, &p.bias);
    const clt_gemm_params to = clt_gemm8_epilogue(&p);
    clt_ref_gemm8_params r = {s->form, a.host, b.host, clt_ref_gemm_of(&to)};
    r.to.c = c_host, r.to.pre = pre, r.to.grad_pre = grad, r.to.residual = residual, r.to.bias = bias;
    if (c.st == CLT_OK) c.st = clt_gemm8_run(ops, v, &p);
    clt_ref_gemm8(&r);
    clt_check_compare_as(&c, type, "c", p.c.ref, c_host, (size_t)(s->m * ld));
    if (pre) clt_check_compare_as(&c, type, "pre", p.pre.ref, pre, (size_t)(s->m * ld));
    return clt_check_end(&c);
}

clt_status clt_gemm8_check(clt_ops *ops, const clt_variant *v, void *ctx) {
    static const check_shape shape[] = {
        {.form = CLT_GEMM8_PRODUCT, .m = 37, .n = 149, .blocks = 3},
        {.form = CLT_GEMM8_PRODUCT,
         .m = 133,
         .n = 70,
         .blocks = 2,
         .b_tile = true,
         .bias = true,
         .residual = true},
        {.form = CLT_GEMM8_PRODUCT,
         .m = 67,
         .n = 150,
         .blocks = 5,
         .b_tile = true,
         .bias = true,
         .act = CLT_ACT_GELU},
        {.form = CLT_GEMM8_PRODUCT, .m = 67, .n = 130, .blocks = 1, .b_tile = true, .grad_act = CLT_ACT_GELU},
        {.form = CLT_GEMM8_PRODUCT, .m = 140, .n = 33, .blocks = 2, .a_tile = true, .b_tile = true},
        {.form = CLT_GEMM8_PRODUCT, .m = 140, .n = 33, .blocks = 2, .a_tile = true, .accumulate = true},
        {.form = CLT_GEMM8_SAMPLES, .m = 69, .n = 140, .blocks = 6, .group = 2, .accumulate = true},
        {.form = CLT_GEMM8_SAMPLES, .m = 130, .n = 35, .blocks = 4, .group = 1},
        {.form = CLT_GEMM8_CHAIN, .m = 69, .n = 140, .blocks = 5, .accumulate = true},
        {.form = CLT_GEMM8_CHAIN, .m = 33, .n = 17, .blocks = 2},
    };
    const long forms = clt_variant_param(v, "FORMS", -1), scales = clt_variant_param(v, "SCALES", -1),
               types = clt_variant_param(v, "TYPES", -1);
    const int32_t block = ((const clt_gemm8_params *)ctx)->a.block;
    for (size_t i = 0; i < CLT_COUNT_OF(shape); i++) {
        const check_shape *s = &shape[i];
        const clt_dtype type = s->act ? CLT_BF16 : CLT_F32;
        if (!(forms >> s->form & 1) || !(scales >> (s->a_tile + 2 * s->b_tile) & 1)) continue;
        if (!(types >> type & 1)) continue;
        CLT_TRY(run_shape(ops, v, s, block));
    }
    return CLT_OK;
}
