/* clt_op_gemm: matrix products with fused epilogues (clkernels/gemm). */
#ifndef CLT_OP_GEMM_H
#define CLT_OP_GEMM_H

#include "runtime/ops/clt_activation.h"
#include "runtime/ops/clt_ops_context.h"

typedef enum {
    CLT_GEMM_NT, /* c[m,n] = a[m,k] * b[n,k]^T    forward: x * W^T */
    CLT_GEMM_NN, /* c[m,n] = a[m,k] * b[k,n]      data gradient: dy * W */
    CLT_GEMM_TN  /* c[m,n] = a[k,m]^T * b[k,n]    weight gradient: dy^T * x, k counts tokens */
} clt_gemm_form;

/* v = chain over k (TN: per group of k_group rows one chain from +0, group results added ascending);
 * v = v + bias[n];  pre[m,n] = v;  v = act(v);
 * v = v * act'(grad_pre[m,n]) (with grad_act, the derivative of that activation);
 * v = residual[m,n] + v;
 * c = v, or c + v with accumulate. The step of an absent tensor is skipped. TN takes no epilogue, but
 * a_sum[m] (+)= sum over k of a[k,m] (a layer's bias gradient beside its weight gradient); exact variants
 * give the same words as clt_op_column_sum with samples of k_group rows.
 *
 * Types. Supported today: a and b of one type; c of any, but fp32 with accumulate and for TN of more than one
 * group; pre, grad_pre and again of one type (clt_gemm_aux_type); bias, residual and a_sum fp32. */
typedef struct {
    clt_gemm_form form;
    int64_t m, n, k;
    int64_t k_group; /* TN: tokens per sample, divides k; others: ignored */
    clt_tensor a, b, c;
    bool accumulate;  /* TN: the first group's result is added to c, not to +0; the same for a_sum */
    clt_tensor a_sum; /* TN: [m], or absent */
    clt_tensor bias;  /* [n] */
    clt_activation act;
    /* [m,n]: receives the value before the activation. Its type counts even if it is absent: variants that
     * round that value anyway round it to this type. */
    clt_tensor pre;
    clt_activation grad_act;
    clt_tensor grad_pre; /* [m,n] */
    clt_tensor again;    /* [m,n], with grad_act: receives act(grad_pre), for a caller that did not keep it */
    clt_tensor residual; /* [m,n] */
} clt_gemm_params;
/* The type of the values before an activation: that of grad_pre with grad_act, else that of pre. */
static inline clt_dtype clt_gemm_aux_type(const clt_gemm_params *p) {
    return p->grad_act ? p->grad_pre.type : p->pre.type;
}

clt_status clt_op_gemm(clt_ops *ops, const clt_gemm_params *p);
/* Allocates workspaces, and checks and compiles what this shape class needs, without computing anything. */
clt_status clt_op_gemm_prepare(clt_ops *ops, const clt_gemm_params *p);
/* Id of the variant that this call uses, borrowed from ops; "" if there is none (the reason was printed). */
const char *clt_op_gemm_variant(clt_ops *ops, const clt_gemm_params *p);
/* Upper bound in bytes of the workspace that this call needs on this kind of device, for the memory plan.
 * Needs no device; the tensors' buffers may be absent. */
uint64_t clt_op_gemm_workspace(clt_device_type type, const clt_gemm_params *p);

#endif
