/* clt_op_elementwise: operations on each element alone (clkernels/activation, cast). Factors and
 * tables are fp32; the tensors of one call have one type, unless a comment says otherwise. */
#ifndef CLT_OP_ELEMENTWISE_H
#define CLT_OP_ELEMENTWISE_H

#include "runtime/ops/clt_activation.h"
#include "runtime/ops/clt_ops_context.h"

/* y = act(x), [rows, cols]. */
typedef struct {
    clt_activation act;
    int64_t rows, cols;
    clt_tensor x, y;
} clt_activation_params;
clt_status clt_op_activation_forward(clt_ops *ops, const clt_activation_params *p);

/* dx = dy * act'(x); dx may be dy. */
typedef struct {
    clt_activation act;
    int64_t rows, cols;
    clt_tensor x, dy, dx;
} clt_activation_grad_params;
clt_status clt_op_activation_backward(clt_ops *ops, const clt_activation_grad_params *p);

/* Gated MLP: y = act(gate) * up. */
typedef struct {
    clt_activation act;
    int64_t rows, cols;
    clt_tensor gate, up, y;
} clt_glu_params;
clt_status clt_op_glu_forward(clt_ops *ops, const clt_glu_params *p);

/* dgate = dy * up * act'(gate), dup = dy * act(gate); dgate may be gate, and dup may be up. */
typedef struct {
    clt_activation act;
    int64_t rows, cols;
    clt_tensor gate, up, dy, dgate, dup;
} clt_glu_grad_params;
clt_status clt_op_glu_backward(clt_ops *ops, const clt_glu_grad_params *p);

/* y = clamp(x, -limit, limit); y may be x. */
typedef struct {
    float limit;
    int64_t rows, cols;
    clt_tensor x, y;
} clt_clip_params;
clt_status clt_op_clip_forward(clt_ops *ops, const clt_clip_params *p);

/* dx = |x| <= limit ? dy : +0, where x are the values before the clamp; dx may be dy. */
typedef struct {
    float limit;
    int64_t rows, cols;
    clt_tensor x, dy, dx;
} clt_clip_grad_params;
clt_status clt_op_clip_backward(clt_ops *ops, const clt_clip_grad_params *p);

/* Rotary positions, half-split pairs (i, i + D/2), in place on `heads` heads of each row. inverse: the
 * gradient (rotation by the negative angle). */
typedef struct {
    int64_t rows, seq, heads, head_dim;
    clt_tensor x;
    clt_ref cos_sin; /* [T, D/2, 2], from the host */
    bool inverse;
} clt_rope_params;
clt_status clt_op_rope(clt_ops *ops, const clt_rope_params *p);

/* x[r, :] *= factor[r % seq] in place (attn_temperature_tuning); the gradient is the same call. */
typedef struct {
    int64_t rows, seq, cols;
    clt_tensor x;
    clt_ref factor; /* [seq] */
} clt_scale_rows_params;
clt_status clt_op_scale_rows(clt_ops *ops, const clt_scale_rows_params *p);

/* y = [residual +] x * mask * 1/(1-p), rows without gaps; the mask's counter is {step, sample in the global
 * batch, layer and site, element/4}. The backward pass is the same call on the gradient. y may be x. y and
 * residual have one type, x may have another. */
typedef struct {
    int64_t rows, seq, cols;
    clt_tensor x, y, residual;
    float p;
    uint64_t seed, step;
    int64_t first_sample;
    int32_t layer, site;
} clt_dropout_params;
clt_status clt_op_dropout(clt_ops *ops, const clt_dropout_params *p);

/* dst[r, 0..cols) = src[r, 0..cols) */
clt_status clt_op_copy_rows(clt_ops *ops, int64_t rows, int64_t cols, clt_tensor src, clt_tensor dst);

/* dst = src, `count` contiguous elements, between fp32 and a 16-bit type: round to nearest even; NaN stays
 * NaN (quiet, sign kept). */
clt_status clt_op_cast(clt_ops *ops, clt_tensor src, clt_tensor dst, uint64_t count);

/* counter[0] (uint32) += the number of NaN and infinite elements among the `count` contiguous ones of x. The
 * replay of a bad step uses it. */
clt_status clt_op_count_nonfinite(clt_ops *ops, clt_tensor x, uint64_t count, clt_ref counter);

#endif
