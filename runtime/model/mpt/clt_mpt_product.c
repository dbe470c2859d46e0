/* The products of a pass. Without shape.eight_bits they are clt_op_gemm. With it both operands are quantised
 * to 8-bit blocks first, weights with a scale per tile, so that data gradients read the forward pass's words
 * (docs/numerics.md, "Eight-bit blocks"). */
#include "runtime/model/mpt/clt_mpt_internal.h"

enum { BLOCK = 128, ALONG = 0, ACROSS = 1 };

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

static void grow(clt_mpt_eight *e, int operand, operand_size n) {
    e->q_bytes[operand] = CLT_MAX(e->q_bytes[operand], n.q);
    e->scales[operand] = CLT_MAX(e->scales[operand], n.scale);
}

/* The operands of a layer's products with `rows` rows of x: x W^T, dy W, dy^T x. */
void clt_mpt_eight_plan(clt_mpt *m, int64_t rows, int64_t out, int64_t in) {
    clt_mpt_eight *e = &m->eight;
    const int64_t in_k = clt_blocks8_along_k(in, BLOCK), out_k = clt_blocks8_along_k(out, BLOCK),
                  tokens = clt_blocks8_across_k(rows, m->shape.seq, BLOCK);
    grow(e, 0, size_of(rows, in_k, 1));
    grow(e, 1, size_of(out, in_k, BLOCK));
    if (!m->shape.training) return;
    grow(e, 0, size_of(rows, out_k, 1));
    grow(e, 1, size_of(in, out_k, BLOCK));
    grow(e, 0, size_of(out, tokens, 1));
    grow(e, 1, size_of(in, tokens, 1));
}

/* --- products --- */

/* Quantises x [rows, cols] into an operand's place. */
static clt_status quantise(clt_mpt *m, int operand, int way, clt_tensor x, int64_t rows, int64_t cols,
                           int64_t rows_per_sample, int32_t tile, clt_blocks8 *out) {
    const int64_t k = way == ALONG ? clt_blocks8_along_k(cols, BLOCK)
                                   : clt_blocks8_across_k(rows, rows_per_sample, BLOCK),
                  lines = way == ALONG ? rows : cols;
    *out = (clt_blocks8){.q = m->eight.q[operand],
                         .ld = k,
                         .scale = m->eight.scale[operand],
                         .ld_scale = scales_of(lines, tile),
                         .block = BLOCK,
                         .tile = tile};
    clt_quantize_params p = {.rows = rows, .cols = cols, .rows_per_sample = rows_per_sample, .x = x};
    if (way == ALONG)
        p.along = *out;
    else
        p.across = *out;
    return clt_op_quantize(m->ops, &p);
}

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

static clt_status eight_bits(clt_mpt *m, const clt_gemm_params *g) {
    clt_gemm8_params p = product_of(g);
    if (g->form == CLT_GEMM_TN) {
        CLT_TRY(quantise(m, 0, ACROSS, g->a, g->k, g->m, g->k_group, 1, &p.a));
        CLT_TRY(quantise(m, 1, ACROSS, g->b, g->k, g->n, g->k_group, 1, &p.b));
    } else {
        CLT_TRY(quantise(m, 0, ALONG, g->a, g->m, g->k, 1, 1, &p.a));
        if (g->form == CLT_GEMM_NT)
            CLT_TRY(quantise(m, 1, ALONG, g->b, g->n, g->k, 1, BLOCK, &p.b));
        else
            CLT_TRY(quantise(m, 1, ACROSS, g->b, g->k, g->n, g->k, BLOCK, &p.b));
    }
    p.k = p.a.ld;
    CLT_TRY(clt_op_gemm8(m->ops, &p));
    if (!clt_tensor_present(g->a_sum)) return CLT_OK;
    return clt_op_column_sum(m->ops, &(clt_column_sum_params){.rows = g->k,
                                                              .cols = g->m,
                                                              .rows_per_sample = g->k_group,
                                                              .x = g->a,
                                                              .out = g->a_sum,
                                                              .accumulate = g->accumulate});
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

clt_status clt_mpt_product(clt_mpt *m, const clt_gemm_params *g) {
    return m->shape.eight_bits ? eight_bits(m, g) : clt_op_gemm(m->ops, g);
}
