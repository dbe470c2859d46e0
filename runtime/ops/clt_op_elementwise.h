/* clt_op_elementwise: operations on each element alone, or on pairs (rotary positions)
 * (clkernels/activation, cast, dropout, rope). Factors and tables are fp32. The tensors of one call must have
 * one type unless a comment says otherwise, and all have the shape [rows, cols], each with its own ld; a
 * wrong type is CLT_FAIL. Sizes are not checked: with rows or cols of 0 or below nothing is computed. "y may
 * be x" means the same place, type and ld; other overlaps are not allowed. */
#ifndef CLT_OP_ELEMENTWISE_H
#define CLT_OP_ELEMENTWISE_H

#include "runtime/ops/clt_activation.h"
#include "runtime/ops/clt_ops_context.h"

/* y = act(x). CLT_FAIL, in the first four operations, for an unknown activation. */
typedef struct {
    clt_activation act;
    int64_t rows, cols;
    clt_tensor x, y;
} clt_activation_params;
clt_status clt_op_activation_forward(clt_ops *ops, const clt_activation_params *p);

/* dx = dy * act'(x), where x is the input of the activation; dx may be dy. */
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

/* y = clamp(x, -limit, limit); NaN stays NaN; y may be x. */
typedef struct {
    float limit;
    int64_t rows, cols;
    clt_tensor x, y;
} clt_clip_params;
clt_status clt_op_clip_forward(clt_ops *ops, const clt_clip_params *p);

/* dx = dy where |x| <= limit, otherwise +0; x holds the values before the clamp; dx may be dy. */
typedef struct {
    float limit;
    int64_t rows, cols;
    clt_tensor x, dy, dx;
} clt_clip_grad_params;
clt_status clt_op_clip_backward(clt_ops *ops, const clt_clip_grad_params *p);

/* Rotary positions, in place. In each row r, heads 0 ... heads - 1 begin at columns h * head_dim. In each
 * head the pairs of elements (i, i + D/2), i < D/2, are rotated by the angle of position r % seq; D = dims.
 * Other dimensions of a head, and columns after the last of these heads, are not changed. CLT_FAIL: dims is
 * odd, below 0 or above head_dim. */
typedef struct {
    int64_t rows, seq, heads, head_dim; /* seq at least 1 */
    clt_tensor x;
    clt_ref cos_sin; /* [seq, D/2, 2]: cosine and sine of each angle */
    bool inverse;    /* rotate by the negative angle, which gives the gradient */
    int64_t dims;    /* dimensions of a head that rotate, the first ones; 0: head_dim, which is then even */
} clt_rope_params;
clt_status clt_op_rope(clt_ops *ops, const clt_rope_params *p);

/* x[r, c] = x[r, c] * factor[r % seq], in place (attn_temperature_tuning). The backward pass is the same call
 * on the gradient. seq must be at least 1. */
typedef struct {
    int64_t rows, seq, cols;
    clt_tensor x;
    clt_ref factor; /* [seq] */
} clt_scale_rows_params;
clt_status clt_op_scale_rows(clt_ops *ops, const clt_scale_rows_params *p);

/* y[c] = x[c] + value for c < count, contiguous and fp32; y may be x. */
clt_status clt_op_offset(clt_ops *ops, clt_ref x, clt_ref y, uint64_t count, float value);

/* y = x * f, plus residual if it is present, where f is 0 with probability p and 1 / (1 - p) otherwise. Row r
 * is position r % seq of sample first_sample + r / seq of the global batch. Whether an element is dropped
 * depends on seed, step, sample, layer, site and the element's index in its sample alone (docs/numerics.md);
 * so the backward pass is the same call on the gradient, without residual. y may be x. y and residual must
 * have one type; x may have another. All must have no gaps (ld = cols). CLT_BAD_CONFIG if p is not in [0, 1).
 */
typedef struct {
    int64_t rows, seq, cols;   /* seq at least 1 */
    clt_tensor x, y, residual; /* residual: optional */
    float p;                   /* probability of dropping an element */
    uint64_t seed, step;       /* of step the low 32 bits are used */
    int64_t first_sample; /* index of this microbatch's first sample in the global batch; low 32 bits used */
    int32_t layer, site;  /* layer 0 ... 8191; site: CLT_SITE_* (clt_dropout.h) */
    bool whole_samples;   /* all elements of a sample have the factor of its first one (drop path) */
} clt_dropout_params;
clt_status clt_op_dropout(clt_ops *ops, const clt_dropout_params *p);

/* dst[r, c] = src[r, c] for r < rows and c < cols. */
clt_status clt_op_copy_rows(clt_ops *ops, int64_t rows, int64_t cols, clt_tensor src, clt_tensor dst);

/* dst[i] = src[i] for i < count; the ld of both is ignored. Exactly one of src and dst must be fp32, the
 * other a 16-bit type, otherwise CLT_FAIL. Rounds to nearest even; what exceeds the range becomes infinite;
 * NaN stays NaN (quiet, sign kept). */
clt_status clt_op_cast(clt_ops *ops, clt_tensor src, clt_tensor dst, uint64_t count);

/* Adds to counter[0], a uint32 whose place counts 4-byte words, the number of NaN and infinite elements among
 * the first `count` contiguous elements of x (ld is ignored). The caller clears the counter. */
clt_status clt_op_count_nonfinite(clt_ops *ops, clt_tensor x, uint64_t count, clt_ref counter);

#endif
