/* clt_op_gemm_fp8_internal: what the parts of the product in 8-bit floating point share. Private to
 * runtime/ops/clt_op_gemm_fp8*.c. */
#ifndef CLT_OP_GEMM_FP8_INTERNAL_H
#define CLT_OP_GEMM_FP8_INTERNAL_H

#include "runtime/device/clt_tensor_map.h"
#include "runtime/ops/clt_op_fp8.h"
#include "runtime/ops/clt_op_gemm_internal.h"

/* The arguments of a main kernel: CLT_GEMM_FP8_ARGS of gemm_fp8.clh. */
enum { CLT_GEMM_FP8_ARGS = 3 + 2 * 5 + CLT_EP_ARG_COUNT };
void clt_gemm_fp8_args(const clt_gemm_fp8_params *p, clt_arg args[CLT_GEMM_FP8_ARGS]);
/* Writes the build options of a kernel for this call: v's options, `more`, the operands' formats, then the
 * types and activations of the epilogue. `out` must have room. */
void clt_gemm_fp8_options(const clt_gemm_fp8_params *p, const clt_variant *v, const char *more, char *out,
                          size_t size);
/* Whether row v supports a checked call. */
bool clt_gemm_fp8_takes(const clt_variant *v, const clt_gemm_fp8_params *p);
/* Runs a checked call with row v. */
clt_status clt_gemm_fp8_run(clt_ops *ops, const clt_variant *v, const clt_gemm_fp8_params *p);
/* The body `wgmma` (clt_op_gemm_fp8_wgmma.c); p->to.again is absent. */
clt_status clt_gemm_fp8_wgmma(clt_ops *ops, const clt_variant *v, const clt_gemm_fp8_params *p);
/* `lines` rows by one step of 128 elements of an operand, as both bodies for matrix units copy them. */
clt_tensor_map_params clt_gemm_fp8_box(const clt_codes8 *m, int64_t rows, int64_t k, int64_t lines);
/* The body `gemm_wgmma` (clt_op_gemm_fp8_pieces.c): whether it supports a call, the call, and the memory that
 * a call needs. */
bool clt_gemm_fp8_pieces_takes(const clt_variant *v, const clt_gemm_fp8_params *p);
clt_status clt_gemm_fp8_pieces(clt_ops *ops, const clt_variant *v, const clt_gemm_fp8_params *p);
clt_status clt_gemm_fp8_pieces_prepare(clt_ops *ops, const clt_variant *v, const clt_gemm_fp8_params *p);
/* A clt_variant_check: compares row v with the oracle (clt_op_gemm_fp8_check.c). ctx: the call, of which the
 * formats and split are used. */
clt_status clt_gemm_fp8_check(clt_ops *ops, const clt_variant *v, void *ctx);

/* How rows are timed at a shape (clt_op_gemm_fp8_tune.c). */
extern const clt_tune_kind clt_gemm_fp8_tune;
/* Writes the shape of a call to `out` as clt_tune_question.shape needs it: sizes, formats, whether it splits,
 * type of c, whether it adds. */
void clt_gemm_fp8_shape(const clt_gemm_fp8_params *p, char *out, size_t size);

#endif
