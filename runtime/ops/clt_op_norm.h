/* clt_op_norm: layer norms and RMS norms, and sums down columns (clkernels/norm). */
#ifndef CLT_OP_NORM_H
#define CLT_OP_NORM_H

#include "runtime/ops/clt_ops_context.h"

/* Layer norm (rms false): y = (x - mean) * rstd * w + b. RMS norm (rms true): y = x * rstd * w + b. An absent
 * w counts as 1 and an absent b as 0. mean and rstd = 1 / sqrt(mean square + eps) are taken over a group of
 * `cols` elements. The row of a token holds `heads` such groups side by side: group g belongs to token g /
 * heads and begins at column (g % heads) * cols. x and y may have different types; w and b must be fp32.
 * CLT_FAIL: rows < 0, cols or heads < 1, an unsupported type. rows 0 does nothing. */
typedef struct {
    bool rms;
    float eps;                 /* added to the variance, or to the mean square */
    int64_t rows, cols, heads; /* tokens; elements of a group; groups per token, at least 1 */
    clt_tensor x, y;           /* [rows, heads * cols] */
    clt_tensor w, b;           /* [cols], each optional; used for every group */
    clt_ref mean, rstd;        /* [rows * heads], outputs for the backward pass; mean is unused with rms */
} clt_norm_params;
clt_status clt_op_norm_forward(clt_ops *ops, const clt_norm_params *p);

/* The gradients of a norm. dx = residual + (the gradient for x), without residual the gradient alone. dw and
 * db are sums over all groups, in the order of rule "down a column" of docs/numerics.md: blocks of 64 groups
 * inside a sample. Each of dx, dw and db is optional; residual, dx_copy and dx_sum need dx.
 *
 * dx may be the same memory as residual, or as dy if dx and dy have one type and ld. dx and residual must
 * have one type; w, b, dw, db and dx_sum must be fp32.
 *
 * Optional results, which a caller would compute next from the same rows. If any of them is present, x, dx,
 * dx_copy and y must have no gaps (ld = heads * cols).
 *   dx_copy  dx rounded to dx_copy's type, which must be a 16-bit type; dx itself must then be fp32
 *   dx_sum   [cols]: the column sums over all groups of dx_copy, or of dx if there is no copy, with the same
 *            bits as clt_op_column_sum
 *   y        the forward pass's output again, from x, w, b and the saved statistics
 *
 * CLT_FAIL: rows < 0, cols, heads or rows_per_sample < 1, rows_per_sample does not divide rows, or one of the
 * rules above on types, gaps and on residual and dx_sum is broken. */
typedef struct {
    bool rms;
    float eps;                                  /* as in the forward pass */
    int64_t rows, cols, heads, rows_per_sample; /* rows and rows_per_sample count tokens */
    /* x and w as in the forward pass; dy, dx and residual [rows, heads * cols]; dw and db [cols] */
    clt_tensor x, w, dy, dx, residual, dw, db;
    clt_ref mean, rstd;               /* inputs, from the forward pass; mean is unused with rms */
    bool accumulate;                  /* dw, db and dx_sum are added to, not overwritten */
    clt_tensor dx_copy, dx_sum, y, b; /* see above; b is used for y only */
} clt_norm_grad_params;
clt_status clt_op_norm_backward(clt_ops *ops, const clt_norm_grad_params *p);

/* out[c] = the sum over all rows r of x[r, c], in the order of rule "down a column" of docs/numerics.md (bias
 * gradients). CLT_FAIL: rows < 0, cols or rows_per_sample < 1, rows_per_sample does not divide rows, out is
 * not fp32. With rows 0 the sum is +0. */
typedef struct {
    int64_t rows, cols, rows_per_sample;
    clt_tensor x, out; /* x [rows, cols], gaps between rows are allowed; out [cols], fp32 */
    bool accumulate;   /* out is added to, not overwritten */
} clt_column_sum_params;
clt_status clt_op_column_sum(clt_ops *ops, const clt_column_sum_params *p);

/* Between clt_op_sums_later and clt_op_sums_now, norm backward may postpone the last launch of dw, db and
 * dx_sum, so that one launch serves several calls. Until clt_op_sums_now those tensors must not be read,
 * written or released. The bits are the same either way. clt_op_column_sum is not affected. */
void clt_op_sums_later(clt_ops *ops);
/* Queues the postponed launches and ends the postponing. Does nothing if nothing was postponed. */
clt_status clt_op_sums_now(clt_ops *ops);
/* Upper bound in bytes of the scratch memory of postponed sums if all norm backward calls have these sizes,
 * for the memory plan; 0 on CPU devices, which postpone nothing. rows and rows_per_sample count tokens *
 * heads; rows_per_sample must be at least 1. */
uint64_t clt_op_sums_workspace(clt_device_type type, int64_t rows, int64_t cols, int64_t rows_per_sample);

#endif
