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
    if (!m->shape.eight_weights) e->q_bytes[B] = CLT_MAX(e->q_bytes[B], CLT_MAX(out * in_k, in * out_k));
    if (!m->shape.training) return;
    e->q_bytes[A] = CLT_MAX(e->q_bytes[A], rows * out_k);
    e->q_bytes[B] = CLT_MAX(e->q_bytes[B], in * rows_k);
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
    for (int i = 0; i < m->fp8.weights; i++) m->fp8.weight[i].made = 0;
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

/* --- casts --- */

/* What a cast reads: tensor `kind` of the Linear with weights `entry`. */
typedef struct {
    clt_mpt_operand of;
    int kind, entry;
    bool records; /* its largest magnitude */
} source;

/* x [rows, cols], or what is given. */
static clt_mpt_operand operand_of(const clt_mpt_blocks *given, clt_tensor x, int64_t rows, int64_t cols) {
    return given ? given->of : (clt_mpt_operand){.x = x, .rows = rows, .cols = cols};
}

/* The matrix of a source in a place, not yet written. */
static clt_codes8 codes_of(const clt_mpt *m, int place, int way, const source *s) {
    const size_t tensor = (size_t)KINDS * (size_t)s->entry + (size_t)s->kind;
    return (clt_codes8){.q = m->fp8.q[place],
                        .ld = clt_codes8_k(way == ALONG ? s->of.cols : s->of.rows),
                        .format = formats[s->kind],
                        .inverse = place_of(m, INVERSE, tensor)};
}

/* along, across: one of them may be NULL. */
static clt_status cast(clt_mpt *m, const source *s, const clt_codes8 *along, const clt_codes8 *across) {
    const size_t tensor = (size_t)KINDS * (size_t)s->entry + (size_t)s->kind;
    clt_cast_fp8_params p = {.rows = s->of.rows,
                             .cols = s->of.cols,
                             .x = s->of.x,
                             .act = s->of.act,
                             .grad_act = s->of.grad_act,
                             .grad_pre = s->of.grad_pre};
    if (s->of.grad_act) p.y = s->of.x;
    p.scale = place_of(m, SCALE, tensor);
    /* Copies of weights that an evaluation made stay for the step that follows. */
    if (s->records && (m->in_training_pass || s->kind == WEIGHT)) p.amax = place_of(m, AMAX, tensor);
    if (along) p.along = *along;
    if (across) p.across = *across;
    return clt_op_cast_fp8(m->ops, &p);
}

/* --- weights --- */

int64_t clt_mpt_fp8_weight_bytes(const clt_mpt *m, int64_t rows, int64_t cols) {
    return rows * clt_codes8_k(cols) + (m->shape.training ? cols * clt_codes8_k(rows) : 0);
}

void clt_mpt_fp8_weight_set(clt_mpt *m, int entry, int64_t rows, int64_t cols, clt_ref q) {
    m->fp8.weight[m->fp8.weights++] =
        (clt_mpt_fp8_weight){.entry = entry,
                             .rows = rows,
                             .cols = cols,
                             .along = q,
                             .across = clt_ref_at(q, (uint64_t)(rows * clt_codes8_k(cols)))};
}

/* Makes the copies again if the weights or their scales have changed. A rehearsal makes nothing. */
static clt_status refresh(clt_mpt *m, clt_mpt_fp8_weight *w, const source *s, clt_codes8 along,
                          clt_codes8 across) {
    const uint64_t now = m->base.weights_version + 1;
    if (w->made == now) return CLT_OK;
    CLT_TRY(cast(m, s, &along, m->shape.training ? &across : NULL));
    w->made = clt_device_rehearses(clt_ops_device(m->ops)) ? 0 : now;
    return CLT_OK;
}

/* Weight `entry` [rows, cols], b of the product g, in the orientation that g's form reads. */
static clt_status weight_of(clt_mpt *m, const clt_gemm_params *g, int entry, clt_codes8 *out) {
    const bool nt = g->form == CLT_GEMM_NT;
    const source w = {operand_of(NULL, g->b, nt ? g->n : g->k, nt ? g->k : g->n), WEIGHT, entry, nt};
    clt_mpt_fp8_weight *kept = NULL;
    *out = codes_of(m, B, nt ? ALONG : ACROSS, &w);
    for (int i = 0; i < m->fp8.weights && !kept; i++)
        if (m->fp8.weight[i].entry == entry) kept = &m->fp8.weight[i];
    if (!kept) return cast(m, &w, nt ? out : NULL, nt ? NULL : out);
    clt_codes8 along = codes_of(m, B, ALONG, &w), across = codes_of(m, B, ACROSS, &w);
    along.q = kept->along;
    across.q = kept->across;
    *out = nt ? along : across;
    return refresh(m, kept, &w, along, across);
}

/* --- products --- */

static source rows_of(source s, int64_t first, int64_t rows) {
    s.of.x = clt_tensor_at(s.of.x, first, 0);
    s.of.rows = rows;
    return s;
}

/* The products of p for samples whose rows are no multiples of 16, so that each is cast, and padded, by
 * itself. */
static clt_status sample_gradients(clt_mpt *m, clt_gemm_fp8_params *p, const source *dy, const source *x,
                                   int64_t rows, int64_t samples) {
    m->fp8.turned = -1;
    p->a.ld = p->b.ld = p->to.k = clt_codes8_k(rows);
    for (int64_t s = 0; s < samples; s++) {
        const source a = rows_of(*dy, s * rows, rows), b = rows_of(*x, s * rows, rows);
        CLT_TRY(cast(m, &a, NULL, &p->a));
        CLT_TRY(cast(m, &b, NULL, &p->b));
        CLT_TRY(clt_op_gemm_fp8(m->ops, p));
        p->to.accumulate = true;
    }
    return CLT_OK;
}

/* dy^T x. In exact numerics each sample is a sum of its own, so that microbatches change no bits. Forward and
 * data gradient have recorded what this casts again. */
static clt_status weight_gradient(clt_mpt *m, const clt_gemm_params *g, int entry, const clt_mpt_blocks *b) {
    const bool exact = m->shape.numerics == CLT_EXACT;
    const int64_t rows = exact ? g->k_group : g->k;
    clt_gemm_fp8_params p = {.split = true, .to = *g};
    p.to.a_sum = clt_tensor_none();
    const source dy = {operand_of(NULL, g->a, g->k, g->m), GRADIENT, entry, false},
                 x = {operand_of(b, g->b, g->k, g->n), INPUT, entry, false};
    p.a = codes_of(m, TURNED, ACROSS, &dy);
    p.b = codes_of(m, B, ACROSS, &x);
    if (exact && rows % CLT_CODES8_ALIGN) {
        CLT_TRY(sample_gradients(m, &p, &dy, &x, rows, g->k / rows));
        return clt_mpt_sum_a(m, g);
    }
    if (m->fp8.turned != entry) CLT_TRY(cast(m, &dy, NULL, &p.a));
    m->fp8.turned = -1;
    const clt_mpt_kept *kept = clt_mpt_find_kept(m, entry);
    if (kept)
        p.b.q = kept->q;
    else
        CLT_TRY(cast(m, &x, NULL, &p.b));
    p.to.k = clt_codes8_k(rows);
    for (int64_t at = 0; at < g->k; at += rows) {
        CLT_TRY(clt_op_gemm_fp8(m->ops, &p));
        p.a.q.off += (uint64_t)rows, p.b.q.off += (uint64_t)rows;
        p.to.accumulate = true;
    }
    return clt_mpt_sum_a(m, g);
}

static clt_status forward(clt_mpt *m, const clt_gemm_params *g, int entry, const clt_mpt_blocks *a) {
    const source x = {operand_of(a, g->a, g->m, g->k), INPUT, entry, true};
    clt_gemm_fp8_params p = {.a = codes_of(m, A, ALONG, &x), .split = false, .to = *g};
    const clt_mpt_kept *kept = clt_mpt_find_kept(m, entry);
    clt_codes8 across = codes_of(m, B, ACROSS, &x);
    if (kept) across.q = kept->q;
    CLT_TRY(cast(m, &x, &p.a, kept ? &across : NULL));
    CLT_TRY(weight_of(m, g, entry, &p.b));
    p.to.k = p.a.ld;
    return clt_op_gemm_fp8(m->ops, &p);
}

/* dy W. It also leaves the transpose of dy for the weight gradient, which follows. */
static clt_status data_gradient(clt_mpt *m, const clt_gemm_params *g, int entry, const clt_mpt_blocks *a) {
    const source dy = {operand_of(a, g->a, g->m, g->k), GRADIENT, entry, true};
    clt_gemm_fp8_params p = {.a = codes_of(m, A, ALONG, &dy), .split = true, .to = *g};
    const clt_codes8 turned = codes_of(m, TURNED, ACROSS, &dy);
    m->fp8.turned = -1;
    CLT_TRY(cast(m, &dy, &p.a, &turned));
    m->fp8.turned = entry;
    CLT_TRY(weight_of(m, g, entry, &p.b));
    p.to.k = p.a.ld;
    return clt_op_gemm_fp8(m->ops, &p);
}

clt_status clt_mpt_fp8_product(clt_mpt *m, const clt_gemm_params *g, int entry, const clt_mpt_blocks *a,
                               const clt_mpt_blocks *b) {
    if (g->form == CLT_GEMM_TN) return weight_gradient(m, g, entry, b);
    return g->form == CLT_GEMM_NT ? forward(m, g, entry, a) : data_gradient(m, g, entry, a);
}
