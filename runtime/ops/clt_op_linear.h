/* clt_op_linear: a layer's product for few rows, with the norm before it, in one launch (clkernels/linear). A
 * new token of a text reads every weight once, and launches are then a large part of its time. Only numerics
 * fast on GPUs has such kernels; clt_op_linear_takes says whether a call has one. Where it does not, norm,
 * GEMM and gated activation as operations of their own compute the same formula. */
#ifndef CLT_OP_LINEAR_H
#define CLT_OP_LINEAR_H

#include "runtime/ops/clt_activation.h"
#include "runtime/ops/clt_ops_context.h"

enum { CLT_LINEAR_ROWS = 8 }; /* rows of a call at most */

typedef enum { CLT_LINEAR_PLAIN, CLT_LINEAR_LAYER_NORM, CLT_LINEAR_RMS_NORM } clt_linear_norm;

/*     y = act(z w^T + bias) + residual
 *     y = act(z gate^T + gate_bias) * (z w^T + bias) + residual       with `gate`
 * where z = x, or norm(x) as clt_norm_params defines it. Sums are fp32 in an order of the kernel's;
 * statistics of the norm are those of its formula, not of clt_op_norm_forward's bits. y may be residual, but
 * not x. */
typedef struct {
    int64_t rows, n, k; /* rows 1 ... CLT_LINEAR_ROWS */
    clt_linear_norm norm;
    float eps;
    clt_tensor norm_w, norm_b;  /* fp32 [k], each optional */
    clt_tensor x;               /* fp32 [rows, k] */
    clt_tensor w, gate;         /* [n, k], of one type; gate is optional */
    clt_tensor bias, gate_bias; /* fp32 [n], each optional */
    clt_activation act;
    clt_tensor residual; /* fp32 [rows, n], optional */
    clt_tensor y;        /* fp32 [rows, n] */
} clt_linear_params;

/* Whether a kernel of this device computes the call: it may build and check one. *takes is false for exact
 * numerics, for CPUs, and where k or the distance between rows is not a multiple of 8. The buffers may be
 * absent. Errors: those of checking (CLT_AGAIN, CLT_NO_MEMORY, CLT_STOPPED). */
clt_status clt_op_linear_takes(clt_ops *ops, const clt_linear_params *p, bool *takes);
/* Queues the call, which clt_op_linear_takes must have accepted. CLT_FAIL: it did not, or a tensor exceeds
 * its buffer or has a type that is not allowed. */
clt_status clt_op_linear(clt_ops *ops, const clt_linear_params *p);

#endif
