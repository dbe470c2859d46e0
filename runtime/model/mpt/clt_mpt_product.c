/* The products of a pass. Without shape.eight_bits they are clt_op_gemm. With it both operands are quantised
 * to 8-bit blocks first, weights with a scale per tile, so that data gradients read the forward pass's words
 * (docs/numerics.md, "Eight-bit blocks"). What several products read is quantised once: weights
 * (shape.eight_weights), the input of several Linears, and gradients, in both orientations by one pass. */
#include "runtime/model/mpt/clt_mpt_internal.h"

enum { BLOCK = 128 };

/* --- where quantised operands are --- */

typedef struct {
    int64_t q, scale; /* bytes; floats */
} operand_size;

/* Floats from a block's scales to the next one's: a multiple of 16 bytes, as copy engines need it. */
static int64_t scales_of(int64_t rows, int32_t tile) {
    return CLT_ROUND_UP(CLT_CEIL_DIV(rows, (int64_t)tile), (int64_t)4);
}

static operand_size size_of(int64_t rows, int64_t k, int32_t tile) {
    return (operand_size){rows * k, k / BLOCK * scales_of(rows, tile)};
}

static void grow(clt_mpt_eight *e, clt_mpt_eight_place place, operand_size n) {
    e->q_bytes[place] = CLT_MAX(e->q_bytes[place], n.q);
    e->scales[place] = CLT_MAX(e->scales[place], n.scale);
}

void clt_mpt_eight_plan_gradient(clt_mpt *m, clt_mpt_eight_place place, int64_t rows, int64_t out) {
    grow(&m->eight, place, size_of(out, clt_blocks8_across_k(rows, m->shape.seq, BLOCK), 1));
}

/* The operands of a layer's products with `rows` rows of x: x W^T, dy W, dy^T x. */
void clt_mpt_eight_plan(clt_mpt *m, int64_t rows, int64_t out, int64_t in) {
    clt_mpt_eight *e = &m->eight;
    const int64_t in_k = clt_blocks8_along_k(in, BLOCK), out_k = clt_blocks8_along_k(out, BLOCK),
                  tokens = clt_blocks8_across_k(rows, m->shape.seq, BLOCK);
    grow(e, CLT_MPT_EIGHT_A, size_of(rows, in_k, 1));
    if (!m->shape.eight_weights) grow(e, CLT_MPT_EIGHT_B, size_of(out, in_k, BLOCK));
    if (!m->shape.training) return;
    grow(e, CLT_MPT_EIGHT_A, size_of(rows, out_k, 1));
    if (!m->shape.eight_weights) grow(e, CLT_MPT_EIGHT_B, size_of(in, out_k, BLOCK));
    grow(e, CLT_MPT_EIGHT_B, size_of(in, tokens, 1));
    clt_mpt_eight_plan_gradient(m, CLT_MPT_EIGHT_DY, rows, out);
}

/* A matrix with `lines` rows along a contraction k at q and scale. */
static clt_blocks8 blocks_at(clt_ref q, clt_ref scale, int64_t lines, int64_t k, int32_t tile) {
    return (clt_blocks8){
        .q = q, .ld = k, .scale = scale, .ld_scale = scales_of(lines, tile), .block = BLOCK, .tile = tile};
}

static clt_blocks8 in_place(const clt_mpt *m, clt_mpt_eight_place place, int64_t lines, int64_t k,
                            int32_t tile) {
    return blocks_at(m->eight.q[place], m->eight.scale[place], lines, k, tile);
}

/* --- weights --- */

void clt_mpt_eight_weight_size(const clt_mpt *m, int64_t rows, int64_t cols, int64_t *bytes,
                               int64_t *scales) {
    const operand_size along = size_of(rows, clt_blocks8_along_k(cols, BLOCK), BLOCK),
                       across = size_of(cols, clt_blocks8_along_k(rows, BLOCK), BLOCK);
    *bytes = along.q + (m->shape.training ? across.q : 0);
    *scales = along.scale + (m->shape.training ? across.scale : 0);
}

void clt_mpt_eight_weight_set(clt_mpt *m, clt_mpt_eight_weight *w, clt_tensor from, int64_t rows,
                              int64_t cols, clt_ref q, clt_ref scale) {
    const int64_t k = clt_blocks8_along_k(cols, BLOCK);
    const operand_size n = size_of(rows, k, BLOCK);
    *w = (clt_mpt_eight_weight){.from = from, .rows = rows, .cols = cols};
    w->along = blocks_at(q, scale, rows, k, BLOCK);
    if (!m->shape.training) return;
    /* rows of q start at multiples of 16 bytes: n.q is a multiple of BLOCK */
    w->across = blocks_at(clt_ref_at(q, (uint64_t)n.q), clt_ref_at(scale, (uint64_t)n.scale), cols,
                          clt_blocks8_along_k(rows, BLOCK), BLOCK);
}

static clt_mpt_eight_weight *find_weight(const clt_mpt *m, clt_tensor b) {
    for (int i = 0; i < m->eight.weights; i++) {
        clt_mpt_eight_weight *w = &m->eight.weight[i];
        if (w->from.ref.buf == b.ref.buf && w->from.ref.off == b.ref.off) return w;
    }
    return NULL;
}

/* Makes the copies again if the weights have changed. A rehearsal makes nothing. */
static clt_status refresh(clt_mpt *m, clt_mpt_eight_weight *w) {
    const uint64_t now = m->base.weights_version + 1;
    if (w->made == now) return CLT_OK;
    const clt_quantize_params p = {.rows = w->rows,
                                   .cols = w->cols,
                                   .rows_per_sample = w->rows,
                                   .x = w->from,
                                   .along = w->along,
                                   .across = w->across};
    CLT_TRY(clt_op_quantize(m->ops, &p));
    w->made = clt_device_rehearses(clt_ops_device(m->ops)) ? 0 : now;
    return CLT_OK;
}

/* --- quantising --- */

static clt_quantize_params quantised(const clt_mpt_operand *x) {
    return (clt_quantize_params){.rows = x->rows,
                                 .cols = x->cols,
                                 .x = x->x,
                                 .act = x->act,
                                 .grad_act = x->grad_act,
                                 .grad_pre = x->grad_pre,
                                 .y = x->grad_act ? x->x : clt_tensor_none()};
}

static clt_status along(clt_mpt *m, clt_mpt_eight_place place, const clt_mpt_operand *x, int32_t tile,
                        clt_blocks8 *out) {
    clt_quantize_params p = quantised(x);
    *out = p.along = in_place(m, place, x->rows, clt_blocks8_along_k(x->cols, BLOCK), tile);
    return clt_op_quantize(m->ops, &p);
}

static clt_status across(clt_mpt *m, clt_mpt_eight_place place, const clt_mpt_operand *x,
                         int64_t rows_per_sample, int32_t tile, clt_blocks8 *out) {
    clt_quantize_params p = quantised(x);
    p.rows_per_sample = rows_per_sample;
    *out = p.across =
        in_place(m, place, x->cols, clt_blocks8_across_k(x->rows, rows_per_sample, BLOCK), tile);
    return clt_op_quantize(m->ops, &p);
}

/* x along in place A, and across. */
static clt_status both(clt_mpt *m, const clt_mpt_operand *x, clt_blocks8 across, clt_mpt_blocks *out) {
    clt_quantize_params p = quantised(x);
    p.rows_per_sample = m->shape.seq;
    out->along = p.along = in_place(m, CLT_MPT_EIGHT_A, x->rows, clt_blocks8_along_k(x->cols, BLOCK), 1);
    out->across = p.across = across;
    return clt_op_quantize(m->ops, &p);
}

const clt_mpt_kept *clt_mpt_find_kept(const clt_mpt *m, int entry) {
    for (int i = 0; m->in_training_pass && i < m->n_kept; i++)
        if (m->kept[i].entry == entry) return &m->kept[i];
    return NULL;
}

void clt_mpt_eight_kept_size(const clt_mpt *m, int64_t rows, int64_t cols, int64_t *bytes, int64_t *scales) {
    const operand_size n = size_of(cols, clt_blocks8_across_k(rows, m->shape.seq, BLOCK), 1);
    *bytes = n.q;
    *scales = n.scale;
}

/* A kept input x, across. */
static clt_blocks8 kept_blocks(const clt_mpt *m, const clt_mpt_kept *kept, const clt_mpt_operand *x) {
    return blocks_at(kept->q, kept->scale, x->cols, clt_blocks8_across_k(x->rows, m->shape.seq, BLOCK), 1);
}

clt_status clt_mpt_input(clt_mpt *m, int entry, const clt_mpt_operand *x, clt_mpt_blocks *out) {
    *out = (clt_mpt_blocks){.of = *x};
    if (!m->shape.eight_bits) return CLT_OK;
    const clt_mpt_kept *kept = clt_mpt_find_kept(m, entry);
    if (!kept) return along(m, CLT_MPT_EIGHT_A, x, 1, &out->along);
    return both(m, x, kept_blocks(m, kept, x), out);
}

clt_status clt_mpt_input_again(clt_mpt *m, int entry, const clt_mpt_operand *x, clt_mpt_blocks *out) {
    *out = (clt_mpt_blocks){.of = *x};
    if (!m->shape.eight_bits) return CLT_OK;
    const clt_mpt_kept *kept = clt_mpt_find_kept(m, entry);
    if (!kept) return across(m, CLT_MPT_EIGHT_B, x, m->shape.seq, 1, &out->across);
    out->across = kept_blocks(m, kept, x);
    return CLT_OK;
}

clt_status clt_mpt_gradient(clt_mpt *m, clt_mpt_eight_place place, const clt_mpt_operand *dy,
                            clt_mpt_blocks *out) {
    *out = (clt_mpt_blocks){.of = *dy};
    if (!m->shape.eight_bits) return CLT_OK;
    const int64_t k = clt_blocks8_across_k(dy->rows, m->shape.seq, BLOCK);
    return both(m, dy, in_place(m, place, dy->cols, k, 1), out);
}

/* --- products --- */

static clt_gemm8_params product_of(const clt_gemm_params *g) {
    return (clt_gemm8_params){.form = g->form == CLT_GEMM_TN ? CLT_GEMM8_CHAIN : CLT_GEMM8_PRODUCT,
                              .m = g->m,
                              .n = g->n,
                              .c = g->c,
                              .accumulate = g->accumulate,
                              .bias = g->bias,
                              .pre = g->pre,
                              .grad_pre = g->grad_pre,
                              .again = g->again,
                              .residual = g->residual,
                              .act = g->act,
                              .grad_act = g->grad_act};
}

/* The weight of NT or NN. */
static clt_status weight_of(clt_mpt *m, const clt_gemm_params *g, clt_blocks8 *out) {
    const bool nt = g->form == CLT_GEMM_NT;
    clt_mpt_eight_weight *w = find_weight(m, g->b);
    const clt_mpt_operand b = {.x = g->b, .rows = nt ? g->n : g->k, .cols = nt ? g->k : g->n};
    if (!w && nt) return along(m, CLT_MPT_EIGHT_B, &b, BLOCK, out);
    if (!w) return across(m, CLT_MPT_EIGHT_B, &b, g->k, BLOCK, out);
    CLT_TRY(refresh(m, w));
    *out = nt ? w->along : w->across;
    return CLT_OK;
}

static clt_status operands_of(clt_mpt *m, const clt_gemm_params *g, const clt_mpt_blocks *a,
                              const clt_mpt_blocks *b, clt_gemm8_params *p) {
    const bool tn = g->form == CLT_GEMM_TN;
    const clt_mpt_operand first = {.x = g->a, .rows = tn ? g->k : g->m, .cols = tn ? g->m : g->k},
                          second = {.x = g->b, .rows = g->k, .cols = g->n};
    if (a)
        p->a = tn ? a->across : a->along;
    else if (tn)
        CLT_TRY(across(m, CLT_MPT_EIGHT_DY, &first, g->k_group, 1, &p->a));
    else
        CLT_TRY(along(m, CLT_MPT_EIGHT_A, &first, 1, &p->a));
    if (!tn) return weight_of(m, g, &p->b);
    if (!b) return across(m, CLT_MPT_EIGHT_B, &second, g->k_group, 1, &p->b);
    p->b = b->across;
    return CLT_OK;
}

clt_status clt_mpt_sum_a(clt_mpt *m, const clt_gemm_params *g) {
    if (!clt_tensor_present(g->a_sum)) return CLT_OK;
    return clt_op_column_sum(m->ops, &(clt_column_sum_params){.rows = g->k,
                                                              .cols = g->m,
                                                              .rows_per_sample = g->k_group,
                                                              .x = g->a,
                                                              .out = g->a_sum,
                                                              .accumulate = g->accumulate});
}

static clt_status eight_bits(clt_mpt *m, const clt_gemm_params *g, const clt_mpt_blocks *a,
                             const clt_mpt_blocks *b) {
    clt_gemm8_params p = product_of(g);
    CLT_TRY(operands_of(m, g, a, b, &p));
    p.k = p.a.ld;
    CLT_TRY(clt_op_gemm8(m->ops, &p));
    return clt_mpt_sum_a(m, g);
}

uint64_t clt_mpt_eight_workspace(clt_device_type type, const clt_gemm_params *g) {
    const bool tn = g->form == CLT_GEMM_TN;
    clt_gemm8_params p = product_of(g);
    p.k = tn ? clt_blocks8_across_k(g->k, g->k_group, BLOCK) : clt_blocks8_along_k(g->k, BLOCK);
    p.a = p.b = (clt_blocks8){.ld = p.k, .block = BLOCK, .tile = 1};
    p.a.ld_scale = scales_of(g->m, 1);
    if (!tn) p.b.tile = BLOCK;
    p.b.ld_scale = scales_of(g->n, p.b.tile);
    return clt_op_gemm8_workspace(type, &p);
}

clt_status clt_mpt_product_with(clt_mpt *m, const clt_gemm_params *g, const clt_mpt_blocks *a,
                                const clt_mpt_blocks *b) {
    return m->shape.eight_bits ? eight_bits(m, g, a, b) : clt_op_gemm(m->ops, g);
}

clt_status clt_mpt_linear_product(clt_mpt *m, const clt_gemm_params *g, int entry, const clt_mpt_blocks *a,
                                  const clt_mpt_blocks *b) {
    if (m->shape.fp8) return clt_mpt_fp8_product(m, g, entry, a, b);
    clt_mpt_blocks own;
    if (m->shape.eight_bits && g->form == CLT_GEMM_NT && !a) {
        const clt_mpt_operand x = {.x = g->a, .rows = g->m, .cols = g->k};
        CLT_TRY(clt_mpt_input(m, entry, &x, &own));
        a = &own;
    }
    if (m->shape.eight_bits && g->form == CLT_GEMM_TN && !b) {
        const clt_mpt_operand x = {.x = g->b, .rows = g->k, .cols = g->n};
        CLT_TRY(clt_mpt_input_again(m, entry, &x, &own));
        b = &own;
    }
    return clt_mpt_product_with(m, g, a, b);
}

clt_status clt_mpt_product(clt_mpt *m, const clt_gemm_params *g) {
    return clt_mpt_product_with(m, g, NULL, NULL);
}
