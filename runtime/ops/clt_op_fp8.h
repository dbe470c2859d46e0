/* clt_op_fp8: matrices of 8-bit floating point with one scale each, making them from fp32, bf16 and fp16, and
 * their products (clkernels/fp8). docs/numerics.md, "8-bit floating point", defines the results.
 *
 * Scales and largest magnitudes lie in device memory, one fp32 each, so that no call waits for the device.
 * Delayed scaling (clt_fp8.h) computes the scales on the host, once a step. */
#ifndef CLT_OP_FP8_H
#define CLT_OP_FP8_H

#include "runtime/ops/clt_fp8.h"
#include "runtime/ops/clt_op_gemm.h"

/* A matrix [rows, k] whose contraction k is the fast dimension: element (r, i) has the value of code
 * q[r * ld + i] times *inverse. k is a multiple of 16: a shorter contraction is padded with codes of 0.
 *
 * q.off and ld are multiples of 16 bytes, so that kernels can use loads of 16 bytes everywhere. */
typedef struct {
    clt_ref q;       /* codes, off counts bytes; buf NULL: the matrix is absent */
    int64_t ld;      /* from a row to the next, in bytes; at least k */
    clt_fp8 format;  /* of the codes */
    clt_ref inverse; /* fp32, one: 1 / scale. Products read it, the cast does not */
} clt_codes8;

enum { CLT_CODES8_ALIGN = 16 };
static inline bool clt_codes8_present(const clt_codes8 *m) {
    return m->q.buf != NULL;
}
/* k of a matrix for a contraction over n elements: with padding. */
static inline int64_t clt_codes8_k(int64_t n) {
    return CLT_ROUND_UP(n, (int64_t)CLT_CODES8_ALIGN);
}

/* Casts x [rows, cols] in one pass, in one or both of two orientations, and records its largest magnitude.
 * Before that x can pass an activation, or the derivative of one:
 *     y = x, or act(x), or x * grad_act'(grad_pre), as x's type stores it
 *   along   [rows, clt_codes8_k(cols)]: the contraction goes along x's rows
 *   across  [cols, clt_codes8_k(rows)]: the transpose, whose contraction goes down x's columns
 *     code = cast(y * scale), padding is 0
 *     amax = the larger of amax and |y| over all elements, compared as bits: a NaN is larger than infinity
 * Both outputs have the same format and at least one of them is present. An element of either has the same
 * code.
 *
 * y has the bits that clt_op_activation_forward or clt_op_activation_backward give on this device, so that
 * the cast equals that operation and a cast of its result; the bits of a NaN that is computed are free, and
 * so is the sign of its code. y may be x or grad_pre ("may be": clt_op_elementwise.h).
 *
 * CLT_FAIL: a size outside 1 ... INT_MAX, a tensor exceeds its buffer, the tensors have different types or
 * another one than fp32, bf16 or fp16, scale is missing, an activation is unknown, act and grad_act are both
 * given, grad_act without grad_pre, an output overlaps another tensor of the call in a way that is not
 * allowed, or a rule of clt_codes8 is broken. */
typedef struct {
    int64_t rows, cols;
    clt_tensor x;
    clt_ref scale;            /* fp32, one, positive and finite */
    clt_ref amax;             /* fp32, one, in and out; optional */
    clt_codes8 along, across; /* outputs, each optional */
    clt_activation act;       /* CLT_ACT_NONE: no activation */
    clt_activation grad_act;  /* CLT_ACT_NONE: no factor. Not together with act */
    clt_tensor grad_pre;      /* [rows, cols] of x's type: the input of grad_act; ignored without it */
    clt_tensor y;             /* [rows, cols] of x's type, output, optional */
} clt_cast_fp8_params;
clt_status clt_op_cast_fp8(clt_ops *ops, const clt_cast_fp8_params *p);

/* c[m,n] = a[m,k] * b[n,k]^T, for output (i, j):
 *     sum = the sum over k of the values of the codes a[i,k] * b[j,k], in fp32
 *     v = (*a.inverse * *b.inverse) * sum, then the epilogue of clt_op_gemm
 * With numerics exact a sum is one chain acc = fma(a, b, acc) from +0, k ascending. With numerics fast the
 * order is free, and matrix units keep fewer bits than fp32 of each partial sum; with `split` they add at
 * most 128 products before the result is added in fp32 (docs/numerics.md has the bounds).
 *
 * `to` has m, n, k (with padding), c, accumulate, bias, act, pre, grad_act, grad_pre, again and residual, as
 * clt_op_gemm reads them; its form, k_group, a, b and a_sum are ignored.
 *
 * CLT_FAIL: a size outside 1 ... INT_MAX, k is not a multiple of 16, an operand or its inverse is missing or
 * exceeds its buffer, one format is FNUZ and the other is not, a rule of clt_op_gemm's epilogue is broken. */
typedef struct {
    clt_codes8 a, b;
    bool split;
    clt_gemm_params to;
} clt_gemm_fp8_params;
clt_status clt_op_gemm_fp8(clt_ops *ops, const clt_gemm_fp8_params *p);
/* As clt_op_gemm_prepare, clt_op_gemm_variant and clt_op_gemm_workspace. */
clt_status clt_op_gemm_fp8_prepare(clt_ops *ops, const clt_gemm_fp8_params *p);
const char *clt_op_gemm_fp8_variant(clt_ops *ops, const clt_gemm_fp8_params *p);
uint64_t clt_op_gemm_fp8_workspace(clt_device_type type, const clt_gemm_fp8_params *p);

/* CLT_FAIL, with a message that begins with `op` and names the matrix, unless m is present, obeys the rules
 * above, and [rows, k] lies inside its buffer. */
clt_status clt_codes8_check(const char *op, const char *name, const clt_codes8 *m, int64_t rows, int64_t k);

#endif
