/* clt_op_norm: layer norms and RMS norms, and sums down columns (clkernels/norm). */
#ifndef CLT_OP_NORM_H
#define CLT_OP_NORM_H

#include "runtime/ops/clt_ops_context.h"

/* y = (x - mean) * rstd * w + b (layernorm), y = x * rstd * w (rms). A row has `cols` elements. With heads >
 * 1 a token's row holds `heads` such rows side by side (row r: token r / heads, columns (r % heads) * cols
 * ...). w and b are fp32. */
typedef struct {
    bool rms;
    float eps;
    int64_t rows, cols, heads; /* rows: tokens */
    clt_tensor x, y;
    clt_tensor w, b;    /* [cols], optional */
    clt_ref mean, rstd; /* [rows * heads], saved for the backward pass; with rms no mean */
} clt_norm_params;
clt_status clt_op_norm_forward(clt_ops *ops, const clt_norm_params *p);

/* dx = [residual +] dnorm; dw, db over tokens (blocks of 64 tokens inside a sample, see docs/numerics.md).
 * rows_per_sample divides rows. dx may be residual or dy; dx and residual have one type. w,
 * b, dw, db and dx_sum are fp32.
 *
 * Optional results, which a caller would compute next from the same rows. They have no gaps, so x and dx must
 * have none either (ld = heads * cols): a copy of dx, which is then fp32, as dx_copy's type; the column sums
 * [cols] of that copy, or of dx without a copy, with the same words as clt_op_column_sum (`accumulate`
 * applies to them too); and the output y of the forward pass again, from x, w, b and the saved statistics. */
typedef struct {
    bool rms;
    float eps;
    int64_t rows, cols, heads, rows_per_sample;
    clt_tensor x, w, dy, dx, residual, dw, db;
    clt_ref mean, rstd;
    bool accumulate; /* dw and db */
    clt_tensor dx_copy, dx_sum, y, b;
} clt_norm_grad_params;
clt_status clt_op_norm_backward(clt_ops *ops, const clt_norm_grad_params *p);

/* out[cols] (+)= sum over the rows of x, in the order of rule "down a column" of docs/numerics.md (bias
 * gradients). out is fp32. */
typedef struct {
    int64_t rows, cols, rows_per_sample;
    clt_tensor x, out;
    bool accumulate;
} clt_column_sum_params;
clt_status clt_op_column_sum(clt_ops *ops, const clt_column_sum_params *p);

/* After clt_op_sums_later, dw, db and dx_sum of norm backward may lack their last launch, which serves
 * several calls at once: they are valid after clt_op_sums_now. The words are the same. workspace: in bytes,
 * for the memory plan, as clt_op_gemm_workspace. */
void clt_op_sums_later(clt_ops *ops);
clt_status clt_op_sums_now(clt_ops *ops);
uint64_t clt_op_sums_workspace(clt_device_type type, int64_t rows, int64_t cols, int64_t rows_per_sample);

#endif
