/* How the rows of gemm_fp8.vt are timed at a shape: on tensors made for timing, with sampled outputs compared
 * with the oracle. */
#include <math.h>

#include "runtime/ops/clt_op_gemm_fp8_internal.h"
#include "runtime/ops/ref/clt_ref.h"

enum { SAMPLES = 64 };

/* An operand is the bytes of a tensor of fp32, which repeats `words`: codes of the operand's format. */
typedef struct {
    clt_gemm_fp8_params p;
    float *words[2]; /* of a and b */
} fp8_tensors;

static const float inverse[2] = {0.37f, 0.011f};

static void drop(void *tensors) {
    fp8_tensors *t = tensors;
    clt_buffer *const all[] = {t->p.a.q.buf, t->p.b.q.buf, t->p.a.inverse.buf, t->p.to.c.ref.buf};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) clt_buffer_destroy(all[i]);
    for (int i = 0; i < 2; i++) clt_free(t->words[i]);
    clt_free(t);
}

/* Each of a pattern's numbers gives four codes, of magnitudes up to 100. */
static clt_status make_words(clt_fp8 format, float **out) {
    CLT_TRY(clt_tune_pattern(CLT_F32, out));
    for (size_t i = 0; i < CLT_TUNE_PERIOD; i++) {
        uint8_t *const code = (uint8_t *)(*out + i);
        float x = (*out)[i];
        for (int c = 0; c < 4; c++, x = x * 16 - roundf(x * 16))
            code[c] = clt_ref_f32_to_fp8(format, x * (i % 3 ? 2.0f : 100.0f));
    }
    return CLT_OK;
}

static clt_status make_operand(clt_ops *ops, clt_fp8 format, int64_t rows, int64_t k, float **words,
                               clt_codes8 *out) {
    *out = (clt_codes8){.ld = k, .format = format};
    CLT_TRY(make_words(format, words));
    return clt_tune_tensor(ops, *words, CLT_F32, (uint64_t)(rows * k / 4), &out->q);
}

static clt_status make_inverses(clt_ops *ops, clt_gemm_fp8_params *p) {
    CLT_TRY(clt_buffer_create(clt_ops_device(ops), sizeof inverse, "tuning", &p->a.inverse.buf));
    p->b.inverse = (clt_ref){p->a.inverse.buf, 1};
    return clt_buffer_write(p->a.inverse.buf, 0, inverse, sizeof inverse);
}

static clt_status make(clt_ops *ops, const void *call, void **tensors) {
    const clt_gemm_fp8_params *p = call;
    const clt_gemm_params *to = &p->to;
    const uint64_t a = (uint64_t)(to->m * to->k), b = (uint64_t)(to->n * to->k),
                   c = (uint64_t)(to->m * to->n) * 4;
    if (!clt_tune_fits(ops, a + b + c, CLT_MAX(CLT_MAX(a, b), c))) return CLT_FAIL;
    fp8_tensors *t = clt_calloc(1, sizeof *t);
    t->p = (clt_gemm_fp8_params){.split = p->split,
                                 .to = {.form = CLT_GEMM_NT,
                                        .m = to->m,
                                        .n = to->n,
                                        .k = to->k,
                                        .k_group = to->k,
                                        .c = {.ld = to->n, .type = to->c.type},
                                        .accumulate = to->accumulate}};
    clt_status st = make_operand(ops, p->a.format, to->m, to->k, &t->words[0], &t->p.a);
    if (st == CLT_OK) st = make_operand(ops, p->b.format, to->n, to->k, &t->words[1], &t->p.b);
    if (st == CLT_OK) st = make_inverses(ops, &t->p);
    if (st == CLT_OK)
        st = clt_tune_tensor(ops, t->words[0], to->c.type, (uint64_t)(to->m * to->n), &t->p.to.c.ref);
    if (st == CLT_OK)
        *tensors = t;
    else
        drop(t);
    return st;
}

static clt_status run(clt_ops *ops, const clt_variant *v, void *tensors) {
    const fp8_tensors *t = tensors;
    return clt_gemm_fp8_run(ops, v, &t->p);
}

/* Row `row` of operand x (0: a, 1: b), to `codes`. */
static clt_ref_codes8 row_of(const fp8_tensors *t, int x, int64_t row, uint8_t *codes) {
    const int64_t k = t->p.to.k;
    const uint8_t *const all = (const uint8_t *)t->words[x];
    for (int64_t i = 0; i < k; i++) codes[i] = all[(row * k + i) % (4 * (int64_t)CLT_TUNE_PERIOD)];
    return (clt_ref_codes8){codes, k, (x ? &t->p.b : &t->p.a)->format, inverse[x]};
}

/* Output (i, j) alone, from +0: the product of two rows. */
static double error_at(const fp8_tensors *t, int64_t i, int64_t j, float got, bool exact, uint8_t *codes) {
    float want = 0;
    clt_ref_gemm_fp8_params r = {row_of(t, 0, i, codes), row_of(t, 1, j, codes + t->p.to.k), t->p.split,
                                 clt_ref_gemm_of(&t->p.to)};
    r.to.m = r.to.n = r.to.ldc = 1;
    r.to.c = &want;
    const clt_ref_gemm_near near = clt_ref_gemm_fp8_near_at(&r, 0, 0, 0);
    clt_ref_gemm_fp8_at(&r, 0, 0);
    if (got == want) return 0;
    const double off = fabs((double)got - near.c) / near.c_bound;
    return exact || isnan(off) ? INFINITY : off;
}

static clt_status error(clt_ops *ops, const clt_variant *v, void *tensors, double *worst) {
    const fp8_tensors *t = tensors;
    const clt_gemm_params *to = &t->p.to;
    const uint64_t outputs = (uint64_t)(to->m * to->n);
    const bool exact = clt_ops_numerics(ops) == CLT_EXACT;
    uint8_t *codes = clt_malloc(2 * (size_t)to->k);
    float got = 0;
    *worst = 0;
    clt_status st = clt_buffer_fill32(to->c.ref.buf, 0, 0, clt_buffer_bytes(to->c.ref.buf));
    if (st == CLT_OK) st = clt_gemm_fp8_run(ops, v, &t->p);
    for (uint64_t s = 0; s < SAMPLES && st == CLT_OK; s++) {
        const uint64_t at = s * 2654435761u % outputs;
        st = clt_ref_read_as(clt_ref_at(to->c.ref, at), to->c.type, &got, 1);
        if (st == CLT_OK)
            *worst =
                CLT_MAX(*worst, error_at(t, (int64_t)at / to->n, (int64_t)at % to->n, got, exact, codes));
    }
    clt_free(codes);
    return st;
}

const clt_tune_kind clt_gemm_fp8_tune = {.make = make, .run = run, .error = error, .drop = drop};

void clt_gemm_fp8_shape(const clt_gemm_fp8_params *p, char *out, size_t size) {
    snprintf(out, size, "%lldx%lldx%lld %s %s%s %s%s", (long long)p->to.m, (long long)p->to.n,
             (long long)p->to.k, clt_fp8_table[p->a.format].name, clt_fp8_table[p->b.format].name,
             p->split ? " split" : "", clt_dtype_name(p->to.c.type), p->to.accumulate ? " added" : "");
}
