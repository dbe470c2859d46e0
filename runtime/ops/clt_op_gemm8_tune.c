/* How the rows of gemm8.vt are timed at a shape: on tensors made for timing, with sampled outputs compared
 * with the oracle, word for word. */
#include <math.h>
#include <string.h>

#include "runtime/ops/clt_op_gemm8_internal.h"
#include "runtime/ops/ref/clt_ref.h"

enum { SAMPLES = 64 };

/* Elements of 8 bits are the bytes of a tensor of fp32, which repeats `words`; scales repeat `scales`. */
typedef struct {
    clt_gemm8_params p;
    float *words, *scales;
} gemm8_tensors;

static void drop(void *tensors) {
    gemm8_tensors *t = tensors;
    const clt_ref all[] = {t->p.a.q, t->p.a.scale, t->p.b.q, t->p.b.scale, t->p.c.ref};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) clt_buffer_destroy(all[i].buf);
    clt_free(t->words);
    clt_free(t->scales);
    clt_free(t);
}

/* Random bytes; powers of two as scales. */
static clt_status make_patterns(gemm8_tensors *t) {
    CLT_TRY(clt_tune_pattern(CLT_F32, &t->words));
    CLT_TRY(clt_tune_pattern(CLT_F32, &t->scales));
    for (size_t i = 0; i < CLT_TUNE_PERIOD; i++) {
        const uint32_t x = (uint32_t)(int32_t)(t->words[i] * 0x1p23f) * 2654435761u, word = x ^ x >> 15;
        memcpy(&t->words[i], &word, sizeof word);
        t->scales[i] = ldexpf(1.0f, (int)(t->scales[i] * 3) - 12);
    }
    return CLT_OK;
}

/* An operand of as many rows with rows, or tiles, of scales that start where every row of the table takes
 * them. */
static clt_status make_operand(clt_ops *ops, const gemm8_tensors *t, const clt_blocks8 *like, int64_t rows,
                               clt_blocks8 *out) {
    const int64_t k = t->p.k;
    *out = (clt_blocks8){.ld = CLT_ROUND_UP(k, 16),
                         .ld_scale = CLT_ROUND_UP(CLT_CEIL_DIV(rows, like->tile), 4),
                         .block = like->block,
                         .tile = like->tile};
    CLT_TRY(clt_tune_tensor(ops, t->words, CLT_F32, (uint64_t)(rows * out->ld / 4), &out->q));
    return clt_tune_tensor(ops, t->scales, CLT_F32, (uint64_t)(k / like->block * out->ld_scale), &out->scale);
}

static clt_status make(clt_ops *ops, const void *call, void **tensors) {
    const clt_gemm8_params *p = call;
    const uint64_t a = (uint64_t)(p->m * p->k), b = (uint64_t)(p->n * p->k), c = (uint64_t)(p->m * p->n) * 4;
    if (!clt_tune_fits(ops, a + b + c, CLT_MAX(CLT_MAX(a, b), c))) return CLT_FAIL;
    gemm8_tensors *t = clt_calloc(1, sizeof *t);
    t->p = (clt_gemm8_params){.form = p->form,
                              .m = p->m,
                              .n = p->n,
                              .k = p->k,
                              .k_group = p->k_group,
                              .c = {.ld = p->n, .type = p->c.type},
                              .accumulate = p->accumulate};
    clt_status st = make_patterns(t);
    if (st == CLT_OK) st = make_operand(ops, t, &p->a, p->m, &t->p.a);
    if (st == CLT_OK) st = make_operand(ops, t, &p->b, p->n, &t->p.b);
    if (st == CLT_OK) st = clt_tune_tensor(ops, t->scales, p->c.type, (uint64_t)(p->m * p->n), &t->p.c.ref);
    if (st == CLT_OK)
        *tensors = t;
    else
        drop(t);
    return st;
}

static clt_status run(clt_ops *ops, const clt_variant *v, void *tensors) {
    const gemm8_tensors *t = tensors;
    return clt_gemm8_run(ops, v, &t->p);
}

/* One row of an operand with its scales, to be freed with clt_free. */
static clt_ref_blocks8 row_of(const gemm8_tensors *t, const clt_blocks8 *x, int64_t row) {
    const int64_t k = t->p.k, blocks = k / x->block;
    float *memory = clt_malloc((size_t)(k / 4 + blocks) * sizeof *memory);
    for (int64_t i = 0; i < k / 4; i++) memory[i] = t->words[(row * x->ld / 4 + i) % CLT_TUNE_PERIOD];
    for (int64_t i = 0; i < blocks; i++)
        memory[k / 4 + i] = t->scales[(i * x->ld_scale + row / x->tile) % CLT_TUNE_PERIOD];
    return (clt_ref_blocks8){(int8_t *)memory, k, memory + k / 4, 1, x->block, 1};
}

/* Output (i, j) alone, from +0: the product of two rows. */
static float want_at(const gemm8_tensors *t, int64_t i, int64_t j) {
    float want = 0;
    clt_ref_gemm8_params r = {.form = t->p.form, .a = row_of(t, &t->p.a, i), .b = row_of(t, &t->p.b, j)};
    const clt_gemm_params to = clt_gemm8_epilogue(&t->p);
    r.to = clt_ref_gemm_of(&to);
    r.to.m = r.to.n = r.to.ldc = 1;
    r.to.c = &want;
    clt_ref_gemm8_at(&r, 0, 0);
    clt_free(r.a.q);
    clt_free(r.b.q);
    return want;
}

static clt_status error(clt_ops *ops, const clt_variant *v, void *tensors, double *worst) {
    const gemm8_tensors *t = tensors;
    const clt_gemm8_params *p = &t->p;
    const uint64_t outputs = (uint64_t)(p->m * p->n);
    float got = 0;
    *worst = 0;
    clt_status st = clt_buffer_fill32(p->c.ref.buf, 0, 0, clt_buffer_bytes(p->c.ref.buf));
    if (st == CLT_OK) st = clt_gemm8_run(ops, v, p);
    for (uint64_t s = 0; s < SAMPLES && st == CLT_OK; s++) {
        const uint64_t at = s * 2654435761u % outputs;
        st = clt_ref_read_as(clt_ref_at(p->c.ref, at), p->c.type, &got, 1);
        if (st == CLT_OK && got != want_at(t, (int64_t)at / p->n, (int64_t)at % p->n)) *worst = INFINITY;
    }
    return st;
}

const clt_tune_kind clt_gemm8_tune = {make, run, error, drop, clt_tune_worth};

void clt_gemm8_shape(const clt_gemm8_params *p, char *out, size_t size) {
    static const char *const form[] = {"product", "samples", "chain"};
    char group[32] = "";
    if (p->form == CLT_GEMM8_SAMPLES) snprintf(group, sizeof group, "/%lld", (long long)p->k_group);
    snprintf(out, size, "%s %lldx%lldx%lld%s%s tiles %d/%d %s%s", form[p->form], (long long)p->m,
             (long long)p->n, (long long)p->k, group, p->a.block == 64 ? " blocks 64" : "", (int)p->a.tile,
             (int)p->b.tile, clt_dtype_name(p->c.type), p->accumulate ? " added" : "");
}
