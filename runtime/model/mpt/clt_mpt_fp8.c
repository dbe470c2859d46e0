/* Products of the blocks' Linears in 8-bit floating point (shape.fp8): inputs and weights are E4M3, gradients
 * of outputs E5M2, with one scale for each tensor that stays as it is during a step (docs/numerics.md, "8-bit
 * floating point"). Scales and largest magnitudes of all tensors are arrays on the device. */
#include "runtime/model/mpt/clt_mpt_internal.h"

#include <string.h>

enum { INPUT, WEIGHT, GRADIENT, KINDS }; /* tensors of a Linear: number KINDS * its entry + kind */
enum { SCALE, INVERSE, AMAX, ARRAYS };
enum { A, B, TURNED }; /* places */
enum { ALONG, ACROSS };
static const clt_fp8 formats[KINDS] = {CLT_FP8_E4M3, CLT_FP8_E4M3, CLT_FP8_E5M2};

/* The operands of a layer's products with `rows` rows of x: x W^T, dy W, dy^T x. */
void clt_mpt_fp8_plan(clt_mpt *m, int64_t rows, int64_t out, int64_t in) {
    clt_mpt_fp8 *e = &m->fp8;
    const int64_t in_k = clt_codes8_k(in), out_k = clt_codes8_k(out), rows_k = clt_codes8_k(rows);
    e->q_bytes[A] = CLT_MAX(e->q_bytes[A], rows * in_k);
    e->q_bytes[B] = CLT_MAX(e->q_bytes[B], out * in_k);
    if (!m->shape.training) return;
    e->q_bytes[A] = CLT_MAX(e->q_bytes[A], rows * out_k);
    e->q_bytes[B] = CLT_MAX(e->q_bytes[B], CLT_MAX(in * out_k, in * rows_k));
    e->q_bytes[TURNED] = CLT_MAX(e->q_bytes[TURNED], out * rows_k);
}

/* Of the arrays: more than the entries of a table need, which a memory plan does not have. */
static size_t tensors_of(const clt_mpt *m) {
    enum { MOST_OF_BLOCK = 32, OTHERS = 8 };
    return (size_t)KINDS * ((size_t)m->cfg.n_layers * MOST_OF_BLOCK + OTHERS);
}

int64_t clt_mpt_fp8_words(const clt_mpt *m) {
    return ARRAYS * (int64_t)tensors_of(m);
}

/* --- the state of delayed scaling --- */

static clt_ref place_of(const clt_mpt *m, int array, size_t tensor) {
    return clt_ref_at(m->fp8.numbers, (uint64_t)((size_t)array * tensors_of(m) + tensor));
}

size_t clt_mpt_fp8_formats(const clt_model *model, const clt_fp8 **out) {
    const clt_mpt *m = (const clt_mpt *)model;
    if (!m->shape.fp8) return 0;
    *out = m->fp8.formats;
    return tensors_of(m);
}

clt_status clt_mpt_fp8_set_scales(clt_model *model, const float *scale) {
    clt_mpt *m = (clt_mpt *)model;
    const size_t n = tensors_of(m);
    float *all = clt_calloc(ARRAYS * n, sizeof *all);
    memcpy(all + SCALE * n, scale, n * sizeof *all);
    for (size_t i = 0; i < n; i++) all[INVERSE * n + i] = 1.0f / scale[i];
    const clt_status st = clt_ref_write_f32(m->fp8.numbers, all, ARRAYS * n);
    clt_free(all);
    return st;
}

clt_status clt_mpt_fp8_amax(clt_model *model, float *amax) {
    clt_mpt *m = (clt_mpt *)model;
    return clt_ref_read_f32(place_of(m, AMAX, 0), amax, tensors_of(m));
}

clt_status clt_mpt_fp8_begin(clt_mpt *m) {
    const size_t n = tensors_of(m);
    float *ones = clt_malloc(n * sizeof *ones);
    m->fp8.formats = clt_malloc(n * sizeof *m->fp8.formats);
    for (size_t i = 0; i < n; i++) m->fp8.formats[i] = formats[i % KINDS], ones[i] = 1.0f;
    const clt_status st = clt_mpt_fp8_set_scales(&m->base, ones);
    clt_free(ones);
    return st;
}

/* --- products --- */

/* What a cast reads: x [rows, cols], tensor `kind` of the Linear with weights `entry`. */
typedef struct {
    clt_tensor x;
    int64_t rows, cols;
    int kind, entry;
    bool records; /* its largest magnitude */
} source;

/* The matrix of a source in a place, not yet written. */
static clt_codes8 codes_of(const clt_mpt *m, int place, int way, const source *s) {
    const size_t tensor = (size_t)KINDS * (size_t)s->entry + (size_t)s->kind;
    return (clt_codes8){.q = m->fp8.q[place],
                        .ld = clt_codes8_k(way == ALONG ? s->cols : s->rows),
                        .format = formats[s->kind],
                        .inverse = place_of(m, INVERSE, tensor)};
}

/* along, across: one of them may be NULL. */
static clt_status cast(clt_mpt *m, const source *s, const clt_codes8 *along, const clt_codes8 *across) {
    const size_t tensor = (size_t)KINDS * (size_t)s->entry + (size_t)s->kind;
    clt_cast_fp8_params p = {.rows = s->rows, .cols = s->cols, .x = s->x};
    p.scale = place_of(m, SCALE, tensor);
    if (s->records && m->fp8.recording) p.amax = place_of(m, AMAX, tensor);
    if (along) p.along = *along;
    if (across) p.across = *across;
    return clt_op_cast_fp8(m->ops, &p);
}

/* dy^T x. In exact numerics each sample is a sum of its own, so that microbatches change no bits; the plan
 * has made samples multiples of 16 tokens. Forward and data gradient have recorded what this casts again. */
static clt_status weight_gradient(clt_mpt *m, const clt_gemm_params *g, int entry) {
    const bool exact = m->shape.numerics == CLT_EXACT;
    const int64_t rows = exact ? g->k_group : g->k;
    clt_gemm_fp8_params p = {.split = true, .to = *g};
    p.to.a_sum = clt_tensor_none();
    const source dy = {g->a, g->k, g->m, GRADIENT, entry, false}, x = {g->b, g->k, g->n, INPUT, entry, false};
    p.a = codes_of(m, TURNED, ACROSS, &dy);
    p.b = codes_of(m, B, ACROSS, &x);
    if (m->fp8.turned != entry) CLT_TRY(cast(m, &dy, NULL, &p.a));
    m->fp8.turned = -1;
    CLT_TRY(cast(m, &x, NULL, &p.b));
    p.to.k = clt_codes8_k(rows);
    for (int64_t at = 0; at < g->k; at += rows) {
        CLT_TRY(clt_op_gemm_fp8(m->ops, &p));
        p.a.q.off += (uint64_t)rows, p.b.q.off += (uint64_t)rows;
        p.to.accumulate = true;
    }
    return clt_mpt_sum_a(m, g);
}

static clt_status forward(clt_mpt *m, const clt_gemm_params *g, int entry) {
    const source x = {g->a, g->m, g->k, INPUT, entry, true}, w = {g->b, g->n, g->k, WEIGHT, entry, true};
    clt_gemm_fp8_params p = {codes_of(m, A, ALONG, &x), codes_of(m, B, ALONG, &w), .split = false, .to = *g};
    CLT_TRY(cast(m, &x, &p.a, NULL));
    CLT_TRY(cast(m, &w, &p.b, NULL));
    p.to.k = p.a.ld;
    return clt_op_gemm_fp8(m->ops, &p);
}

/* dy W. It also leaves the transpose of dy for the weight gradient, which follows. */
static clt_status data_gradient(clt_mpt *m, const clt_gemm_params *g, int entry) {
    const source dy = {g->a, g->m, g->k, GRADIENT, entry, true}, w = {g->b, g->k, g->n, WEIGHT, entry, false};
    clt_gemm_fp8_params p = {codes_of(m, A, ALONG, &dy), codes_of(m, B, ACROSS, &w), .split = true, .to = *g};
    const clt_codes8 turned = codes_of(m, TURNED, ACROSS, &dy);
    m->fp8.turned = -1;
    CLT_TRY(cast(m, &dy, &p.a, &turned));
    m->fp8.turned = entry;
    CLT_TRY(cast(m, &w, NULL, &p.b));
    p.to.k = p.a.ld;
    return clt_op_gemm_fp8(m->ops, &p);
}

clt_status clt_mpt_linear_product(clt_mpt *m, const clt_gemm_params *g, int entry, const clt_mpt_blocks *a,
                                  const clt_mpt_blocks *b) {
    if (!m->shape.fp8) return clt_mpt_product_with(m, g, a, b);
    if (g->form == CLT_GEMM_TN) return weight_gradient(m, g, entry);
    return g->form == CLT_GEMM_NT ? forward(m, g, entry) : data_gradient(m, g, entry);
}
