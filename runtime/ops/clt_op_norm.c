/* Normalisation forward and backward, and sums down columns: kernels of clkernels/norm. */
#include <string.h>

#include "clt_check.h"
#include "ref/clt_ref.h"

enum { BLOCK = 64, LANES = 64, SPAN = 1024 };

static bool is_rows(const clt_variant *v) {
    return strcmp(v->body, "rows") == 0;
}

static const char *forward_options(const clt_norm_params *p, const clt_variant *v, char *buf, size_t size) {
    snprintf(buf, size, "-DRMS=%d -DHAS_W=%d -DHAS_B=%d%s", p->rms, p->w.buf != NULL, p->b.buf != NULL,
             v->options);
    return buf;
}

static clt_status run_forward(clt_ops *ops, const clt_variant *v, const clt_norm_params *p) {
    char options[448];
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "norm_forward",
                           forward_options(p, v, options, sizeof options), &k));
    size_t rows = (size_t)(p->rows * p->heads);
    size_t local = is_rows(v) ? 1 : LANES, global = rows * local;
    clt_arg args[] = {CLT_REF(p->x),    CLT_REF(p->w),    CLT_REF(p->b),    CLT_REF(p->y),
                      CLT_REF(p->mean), CLT_REF(p->rstd), CLT_U64(p->cols), CLT_U64(p->heads),
                      CLT_U64(p->ldx),  CLT_U64(p->ldy),  CLT_F32(p->eps)};
    return clt_launch(k, 1, &global, &local, args, CLT_COUNT_OF(args));
}

/* out[cols] (+)= block sums at element `at` of the scratch. */
static clt_status finish_columns(clt_ops *ops, const clt_variant *v, clt_buffer *part, uint64_t at,
                                 clt_ref out, int64_t samples, int64_t blocks, int64_t cols,
                                 bool accumulate) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "columns_finish", v->options, &k));
    size_t local = is_rows(v) ? 1 : LANES, width = is_rows(v) ? 16 : LANES;
    size_t global = CLT_CEIL_DIV((size_t)cols, width) * local;
    clt_arg args[] = {CLT_BUF(part),   CLT_U64(at),   CLT_REF(out),       CLT_U64(samples),
                      CLT_U64(blocks), CLT_U64(cols), CLT_I32(accumulate)};
    return clt_launch(k, 1, &global, &local, args, CLT_COUNT_OF(args));
}

/* What the launches of one backward call share. */
typedef struct {
    int64_t samples, per_sample, blocks; /* rows of a sample, blocks of a sample */
    clt_buffer *part;
    uint64_t part_b; /* dw's block sums lie at 0, db's here */
    char options[448];
} backward_plan;

static clt_status plan_backward(clt_ops *ops, const clt_variant *v, const clt_norm_grad_params *p,
                                backward_plan *b) {
    b->samples = p->rows / p->rows_per_sample;
    b->per_sample = p->rows_per_sample * p->heads;
    b->blocks = CLT_CEIL_DIV(b->per_sample, BLOCK);
    uint64_t sums = (uint64_t)(b->samples * b->blocks * p->cols);
    b->part_b = p->dw.buf ? sums : 0;
    uint64_t bytes = 4 * (b->part_b + (p->db.buf ? sums : 0));
    CLT_TRY(clt_ops_scratch(ops, 0, bytes, &b->part));
    snprintf(b->options, sizeof b->options,
             "-DRMS=%d -DHAS_W=%d -DHAS_DX=%d -DHAS_DW=%d -DHAS_DB=%d -DHAS_RES=%d%s", p->rms,
             p->w.buf != NULL, p->dx.buf != NULL, p->dw.buf != NULL, p->db.buf != NULL,
             p->residual.buf != NULL, v->options);
    return CLT_OK;
}

static clt_status backward_rows(clt_ops *ops, const clt_variant *v, const clt_norm_grad_params *p,
                                const backward_plan *b) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "norm_backward", b->options, &k));
    size_t global = (size_t)(b->samples * b->blocks), local = 1;
    clt_arg args[] = {CLT_REF(p->x),          CLT_REF(p->w),      CLT_REF(p->mean),
                      CLT_REF(p->rstd),       CLT_REF(p->dy),     CLT_REF(p->residual),
                      CLT_REF(p->dx),         CLT_BUF(b->part),   CLT_U64(0),
                      CLT_U64(b->part_b),     CLT_U64(p->cols),   CLT_U64(p->heads),
                      CLT_U64(b->per_sample), CLT_U64(b->blocks), CLT_U64(p->ldx),
                      CLT_U64(p->lddy),       CLT_U64(p->ldres),  CLT_U64(p->lddx)};
    return clt_launch(k, 1, &global, &local, args, CLT_COUNT_OF(args));
}

/* The weights' sums come first: dx may lie where dy lies. */
static clt_status backward_group(clt_ops *ops, const clt_variant *v, const clt_norm_grad_params *p,
                                 const backward_plan *b) {
    clt_kernel *k;
    if (p->dw.buf || p->db.buf) {
        CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "norm_backward_w", b->options, &k));
        size_t global[] = {CLT_ROUND_UP((size_t)p->cols, LANES), (size_t)(b->samples * b->blocks)};
        size_t local[] = {LANES, 1};
        clt_arg args[] = {CLT_REF(p->x),          CLT_REF(p->mean),   CLT_REF(p->rstd),
                          CLT_REF(p->dy),         CLT_BUF(b->part),   CLT_U64(0),
                          CLT_U64(b->part_b),     CLT_U64(p->cols),   CLT_U64(p->heads),
                          CLT_U64(b->per_sample), CLT_U64(b->blocks), CLT_U64(p->ldx),
                          CLT_U64(p->lddy)};
        CLT_TRY(clt_launch(k, 2, global, local, args, CLT_COUNT_OF(args)));
    }
    if (!p->dx.buf) return CLT_OK;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "norm_backward_dx", b->options, &k));
    size_t global = (size_t)(p->rows * p->heads) * LANES, local = LANES;
    clt_arg args[] = {CLT_REF(p->x),     CLT_REF(p->w),        CLT_REF(p->mean), CLT_REF(p->rstd),
                      CLT_REF(p->dy),    CLT_REF(p->residual), CLT_REF(p->dx),   CLT_U64(p->cols),
                      CLT_U64(p->heads), CLT_U64(p->ldx),      CLT_U64(p->lddy), CLT_U64(p->ldres),
                      CLT_U64(p->lddx)};
    return clt_launch(k, 1, &global, &local, args, CLT_COUNT_OF(args));
}

static clt_status run_backward(clt_ops *ops, const clt_variant *v, const clt_norm_grad_params *p) {
    backward_plan b;
    CLT_TRY(plan_backward(ops, v, p, &b));
    if (p->rows > 0) CLT_TRY(is_rows(v) ? backward_rows(ops, v, p, &b) : backward_group(ops, v, p, &b));
    if (p->dw.buf)
        CLT_TRY(finish_columns(ops, v, b.part, 0, p->dw, b.samples, b.blocks, p->cols, p->accumulate));
    if (p->db.buf)
        CLT_TRY(finish_columns(ops, v, b.part, b.part_b, p->db, b.samples, b.blocks, p->cols, p->accumulate));
    return CLT_OK;
}

static clt_status column_blocks(clt_ops *ops, const clt_variant *v, const clt_column_sum_params *p,
                                int64_t samples, int64_t blocks, clt_buffer *part) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "columns_blocks", v->options, &k));
    size_t width = is_rows(v) ? SPAN : LANES, local[] = {is_rows(v) ? 1 : LANES, 1};
    size_t global[] = {CLT_CEIL_DIV((size_t)p->cols, width) * local[0], (size_t)(samples * blocks)};
    clt_arg args[] = {
        CLT_REF(p->x),   CLT_BUF(part),   CLT_U64(0),   CLT_U64(p->cols), CLT_U64(p->rows_per_sample),
        CLT_U64(blocks), CLT_U64(p->ldx), CLT_U64(SPAN)};
    return clt_launch(k, 2, global, local, args, CLT_COUNT_OF(args));
}

static clt_status run_column_sum(clt_ops *ops, const clt_variant *v, const clt_column_sum_params *p) {
    clt_buffer *part;
    int64_t samples = p->rows / p->rows_per_sample, blocks = CLT_CEIL_DIV(p->rows_per_sample, BLOCK);
    CLT_TRY(clt_ops_scratch(ops, 0, 4 * (uint64_t)(samples * blocks * p->cols), &part));
    if (p->rows > 0) CLT_TRY(column_blocks(ops, v, p, samples, blocks, part));
    return finish_columns(ops, v, part, 0, p->out, samples, blocks, p->cols, p->accumulate);
}

/* --- the check of a variant: both norms, a tail, several samples and blocks, heads -------------------------
 */

static bool builds(clt_ops *ops, const clt_variant *v) {
    clt_kernel *k;
    return clt_kernel_try(clt_ops_device(ops), v->file, "columns_finish", v->options, &k) == CLT_OK;
}

enum { CHECK_TOKENS = 140, CHECK_PER_SAMPLE = 70, CHECK_COLS = 83, CHECK_HEADS = 2, CHECK_LD = 170 };

static void check_norm(clt_check *c, const clt_variant *v, bool rms) {
    const size_t n = (size_t)CHECK_TOKENS * CHECK_LD, rows = (size_t)CHECK_TOKENS * CHECK_HEADS;
    clt_ref_norm_params r = {.rms = rms,
                             .eps = 1e-5f,
                             .rows = CHECK_TOKENS,
                             .cols = CHECK_COLS,
                             .heads = CHECK_HEADS,
                             .rows_per_sample = CHECK_PER_SAMPLE,
                             .ldx = CHECK_LD,
                             .ldy = CHECK_LD,
                             .lddy = CHECK_LD,
                             .lddx = CHECK_LD,
                             .ldres = CHECK_LD,
                             .accumulate = true};
    float *dy = clt_check_random(c, n, 4), *dx = clt_check_random(c, n, 5);
    r.x = clt_check_random(c, n, 1), r.w = clt_check_random(c, CHECK_COLS, 2),
    r.b = clt_check_random(c, CHECK_COLS, 3);
    r.y = clt_check_zeros(c, n), r.mean = clt_check_zeros(c, rows), r.rstd = clt_check_zeros(c, rows);
    r.dw = clt_check_random(c, CHECK_COLS, 6), r.db = clt_check_random(c, CHECK_COLS, 7);
    r.dy = dy, r.dx = dx, r.residual = dx;
    clt_norm_params f = {.rms = rms,
                         .eps = r.eps,
                         .rows = r.rows,
                         .cols = r.cols,
                         .heads = r.heads,
                         .x = clt_check_upload(c, r.x, n),
                         .y = clt_check_upload(c, r.y, n),
                         .w = clt_check_upload(c, r.w, CHECK_COLS),
                         .b = clt_check_upload(c, r.b, CHECK_COLS),
                         .mean = rms ? clt_ref_none() : clt_check_blank(c, rows),
                         .rstd = clt_check_blank(c, rows),
                         .ldx = CHECK_LD,
                         .ldy = CHECK_LD};
    clt_norm_grad_params g = {.rms = rms,
                              .eps = r.eps,
                              .rows = r.rows,
                              .cols = r.cols,
                              .heads = r.heads,
                              .rows_per_sample = CHECK_PER_SAMPLE,
                              .x = f.x,
                              .w = f.w,
                              .mean = f.mean,
                              .rstd = f.rstd,
                              .dy = clt_check_upload(c, dy, n),
                              .dx = clt_check_upload(c, dx, n),
                              .dw = clt_check_upload(c, r.dw, CHECK_COLS),
                              .db = clt_check_upload(c, r.db, CHECK_COLS),
                              .ldx = CHECK_LD,
                              .lddy = CHECK_LD,
                              .lddx = CHECK_LD,
                              .ldres = CHECK_LD,
                              .accumulate = true};
    g.residual = g.dx;
    if (c->st == CLT_OK) c->st = run_forward(c->ops, v, &f);
    if (c->st == CLT_OK) c->st = run_backward(c->ops, v, &g);
    clt_ref_norm_forward(&r);
    clt_ref_norm_backward(&r);
    clt_check_compare(c, "y", f.y, r.y, n);
    clt_check_compare(c, "rstd", f.rstd, r.rstd, rows);
    clt_check_compare(c, "dx", g.dx, dx, n);
    clt_check_compare(c, "dw", g.dw, r.dw, CHECK_COLS);
    clt_check_compare(c, "db", g.db, r.db, CHECK_COLS);
}

static clt_status check_variant(clt_ops *ops, const clt_variant *v, void *ctx) {
    (void)ctx;
    if (!builds(ops, v)) return clt_variant_fail(ops, "%s does not build", v->file);
    for (int rms = 0; rms < 2; rms++) {
        clt_check c = {.ops = ops};
        check_norm(&c, v, rms);
        CLT_TRY(clt_check_end(&c));
    }
    clt_check c = {.ops = ops};
    const size_t n = (size_t)CHECK_TOKENS * CHECK_LD;
    float *x = clt_check_random(&c, n, 8), *out = clt_check_random(&c, CHECK_LD, 9);
    clt_column_sum_params p = {.rows = CHECK_TOKENS,
                               .cols = CHECK_LD,
                               .rows_per_sample = CHECK_PER_SAMPLE,
                               .ldx = CHECK_LD,
                               .x = clt_check_upload(&c, x, n),
                               .out = clt_check_upload(&c, out, CHECK_LD),
                               .accumulate = true};
    if (c.st == CLT_OK) c.st = run_column_sum(ops, v, &p);
    clt_ref_column_sum(p.rows, p.cols, p.rows_per_sample, x, p.ldx, true, out);
    clt_check_compare(&c, "column sum", p.out, out, CHECK_LD);
    return clt_check_end(&c);
}

/* --- the operations ----------------------------------------------------------------------------------------
 */

clt_status clt_op_norm_forward(clt_ops *ops, const clt_norm_params *p) {
    if (p->rows < 0 || p->cols < 1 || p->heads < 1)
        return clt_error(CLT_FAIL, "norm: %lld rows of %lld x %lld columns make no sense", (long long)p->rows,
                         (long long)p->heads, (long long)p->cols);
    if (p->rows == 0) return CLT_OK;
    const clt_variant *v;
    CLT_TRY(clt_variant_pick(ops, "norm", check_variant, NULL, &v));
    return run_forward(ops, v, p);
}

static clt_status check_samples(const char *op, int64_t rows, int64_t cols, int64_t per_sample) {
    if (rows >= 0 && cols >= 1 && per_sample >= 1 && rows % per_sample == 0) return CLT_OK;
    return clt_error(CLT_FAIL, "%s: %lld rows of %lld columns in samples of %lld rows make no sense", op,
                     (long long)rows, (long long)cols, (long long)per_sample);
}

clt_status clt_op_norm_backward(clt_ops *ops, const clt_norm_grad_params *p) {
    CLT_TRY(check_samples("norm backward", p->rows, p->heads < 1 ? 0 : p->cols, p->rows_per_sample));
    const clt_variant *v;
    CLT_TRY(clt_variant_pick(ops, "norm", check_variant, NULL, &v));
    return run_backward(ops, v, p);
}

clt_status clt_op_column_sum(clt_ops *ops, const clt_column_sum_params *p) {
    CLT_TRY(check_samples("column sum", p->rows, p->cols, p->rows_per_sample));
    const clt_variant *v;
    CLT_TRY(clt_variant_pick(ops, "norm", check_variant, NULL, &v));
    return run_column_sum(ops, v, p);
}
