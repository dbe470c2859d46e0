/* clt_op_gemm_fp8_internal: what the parts of the product in 8-bit floating point share. Private to
 * runtime/ops/clt_op_gemm_fp8*.c. */
#ifndef CLT_OP_GEMM_FP8_INTERNAL_H
#define CLT_OP_GEMM_FP8_INTERNAL_H

#include "runtime/ops/clt_op_fp8.h"
#include "runtime/ops/clt_op_gemm_internal.h"

/* The arguments of a main kernel: CLT_GEMM_FP8_ARGS of gemm_fp8.clh. */
enum { CLT_GEMM_FP8_ARGS = 3 + 2 * 5 + CLT_EP_ARG_COUNT };
void clt_gemm_fp8_args(const clt_gemm_fp8_params *p, clt_arg args[CLT_GEMM_FP8_ARGS]);
/* Writes the build options of a kernel for this call: v's options, `more`, the operands' formats, then the
 * types and activations of the epilogue. `out` must have room. */
void clt_gemm_fp8_options(const clt_gemm_fp8_params *p, const clt_variant *v, const char *more, char *out,
                          size_t size);
/* Runs a checked call with row v. */
clt_status clt_gemm_fp8_run(clt_ops *ops, const clt_variant *v, const clt_gemm_fp8_params *p);
/* The body `wgmma` (clt_op_gemm_fp8_wgmma.c); p->to.again is absent. */
clt_status clt_gemm_fp8_wgmma(clt_ops *ops, const clt_variant *v, const clt_gemm_fp8_params *p);
/* A clt_variant_check: compares row v with the oracle (clt_op_gemm_fp8_check.c). ctx: the call, of which the
 * formats, split and the type of c are used. */
clt_status clt_gemm_fp8_check(clt_ops *ops, const clt_variant *v, void *ctx);

#endif
