/* clt_op_gemm: matrix products with fused epilogues (clkernels/gemm). An epilogue is the steps after the sum
 * over k: bias, activation, derivative, residual. */
#ifndef CLT_OP_GEMM_H
#define CLT_OP_GEMM_H

#include "runtime/ops/clt_activation.h"
#include "runtime/ops/clt_ops_context.h"

typedef enum {
    CLT_GEMM_NT, /* c[m,n] = a[m,k] * b[n,k]^T    forward: x * W^T */
    CLT_GEMM_NN, /* c[m,n] = a[m,k] * b[k,n]      data gradient: dy * W */
    CLT_GEMM_TN  /* c[m,n] = a[k,m]^T * b[k,n]    weight gradient: dy^T * x, k counts tokens */
} clt_gemm_form;

/* NT and NN compute, for output element (i, j):
 *     v = sum over k, as one chain of fma from +0 with ascending k
 *     v = v + bias[j];  pre[i,j] = v;  v = act(v)
 *     v = v * grad_act'(grad_pre[i,j])
 *     v = residual[i,j] + v
 *     c[i,j] = v, or c[i,j] + v with accumulate
 * The step of an absent tensor, or of an activation CLT_ACT_NONE, is skipped. TN computes one chain from +0
 * for each group of k_group consecutive k and adds the groups' results in ascending order, starting from +0,
 * or from c with accumulate. TN must have no bias, pre, act, grad_act or residual. It can also compute
 * a_sum[i] = (a_sum[i] with accumulate +) sum over k of a[k,i], a layer's bias gradient beside its weight
 * gradient; exact variants give the same bits as clt_op_column_sum with rows_per_sample = k_group.
 *
 * Types. a and b must have one type; c may have any type, but must be fp32 with accumulate and for TN with
 * more than one group; the present ones of pre, grad_pre and again must have one type; bias, residual and
 * a_sum must be fp32.
 *
 * Memory. c may be the same memory as residual or grad_pre if the types and row distances are equal;
 * clt_op_gemm refuses an overlap of different types and does not detect other partial overlaps.
 *
 * CLT_FAIL: a size outside 1 ... INT_MAX, k_group does not divide k (TN), a tensor exceeds its buffer or has
 * ld below its columns, grad_act and grad_pre are not given together, again without grad_act, a_sum with
 * another form than TN, or one of the rules above is broken. */
typedef struct {
    clt_gemm_form form;
    int64_t m, n, k;
    int64_t k_group;    /* TN: tokens per sample, must divide k; NT and NN ignore it */
    clt_tensor a, b, c; /* required; shapes as clt_gemm_form says */
    bool accumulate;    /* c is read and added to; with TN a_sum too */
    clt_tensor a_sum;   /* TN only, optional: [m], output */
    clt_tensor bias;    /* [n], optional */
    clt_activation act; /* CLT_ACT_NONE: no activation */
    /* [m,n], optional output: the value before the activation. Its type must be valid even if it is absent:
     * fast variants that round this value anyway round it to this type. */
    clt_tensor pre;
    clt_activation grad_act; /* the activation whose derivative is a factor; CLT_ACT_NONE: no factor */
    clt_tensor grad_pre;     /* [m,n], required with grad_act: the input of that activation */
    clt_tensor again;        /* [m,n], optional output with grad_act: grad_act(grad_pre) */
    clt_tensor residual;     /* [m,n], optional */
} clt_gemm_params;
/* The type of the values before an activation: with grad_act that of grad_pre, otherwise that of pre. */
static inline clt_dtype clt_gemm_aux_type(const clt_gemm_params *p) {
    return p->grad_act ? p->grad_pre.type : p->pre.type;
}

clt_status clt_op_gemm(clt_ops *ops, const clt_gemm_params *p);
/* Does what the first clt_op_gemm with these params would do besides computing: picks, checks and compiles
 * kernels and allocates scratch memory. It launches a tiny product on scratch memory, because some drivers
 * compile at the first launch. The call's tensors must be present, and are neither read nor written. Errors
 * as clt_op_gemm. */
clt_status clt_op_gemm_prepare(clt_ops *ops, const clt_gemm_params *p);
/* Id of the variant that clt_op_gemm uses for p; it may check and time kernels to find out. p must be valid:
 * it is not checked. The string belongs to ops. "" if no variant can be used (the reason was printed). */
const char *clt_op_gemm_variant(clt_ops *ops, const clt_gemm_params *p);
/* Upper bound in bytes of the scratch memory of the product on this kind of device, for the memory plan,
 * without the scratch memory of clt_op_column_sum, which variants use that do not compute a_sum themselves.
 * Needs no device. The tensors' types must be set; their buffers may be absent. */
uint64_t clt_op_gemm_workspace(clt_device_type type, const clt_gemm_params *p);

#endif
