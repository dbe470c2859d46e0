/* clt_op_gemm8_internal: what the parts of the 8-bit product share. Private to runtime/ops/clt_op_gemm8*.c.
 *
 * clt_op_gemm8.c checks a call and picks the row of gemm8.vt. Each kind of body has a file that turns a call
 * into launches: clt_op_gemm8_group.c (one launch of work-groups), clt_op_gemm8_cpu.c (packed panels),
 * clt_op_gemm8_wgmma.c (NVIDIA's matrix units). A new kind is a file that defines a clt_gemm8_body, named
 * here and in clt_op_gemm8.c. */
#ifndef CLT_OP_GEMM8_INTERNAL_H
#define CLT_OP_GEMM8_INTERNAL_H

#include "runtime/ops/clt_op_gemm8.h"
#include "runtime/ops/clt_op_gemm_internal.h"

/* The epilogue as clt_op_gemm's: everything of the call but a, b and the form. */
clt_gemm_params clt_gemm8_epilogue(const clt_gemm8_params *p);
/* Writes the build options of a kernel for this call: v's options, which include -DBLOCK if it is not 128;
 * -DFORM, -DA_TILE=1 and -DB_TILE=1; then the types and activations of the epilogue. `out` must have room. */
void clt_gemm8_options(const clt_gemm8_params *p, const clt_variant *v, char *out, size_t size);
/* The arguments of a main kernel: m, n, blocks of k, blocks of a group (PRODUCT and CHAIN: all of k); a: q,
 * offset, ld, scales, offset, ld_scale; the same of b; then CLT_EP_ARGS of gemm_epilogue.clh. */
enum { CLT_GEMM8_ARGS = 4 + 2 * 6 + CLT_EP_ARG_COUNT };
void clt_gemm8_args(const clt_gemm8_params *p, clt_arg args[CLT_GEMM8_ARGS]);

/* A kind of body, as clt_gemm_body: the word of the table, and what a row with it does. */
typedef struct {
    const char *name;
    /* Queues the launches of a checked call; p->again is absent. */
    clt_status (*run)(clt_ops *ops, const clt_variant *v, const clt_gemm8_params *p);
    /* Upper bound in bytes of the scratch memory of `run`, on any device; NULL: none. */
    uint64_t (*workspace)(const clt_variant *v, const clt_gemm8_params *p);
    /* Whether the row is a good choice for a call that it supports; NULL: always. */
    bool (*does_well)(const clt_variant *v, const clt_gemm8_params *p);
} clt_gemm8_body;
extern const clt_gemm8_body clt_gemm8_group, clt_gemm8_cpu, clt_gemm8_wgmma;

/* Runs a checked call with row v. */
clt_status clt_gemm8_run(clt_ops *ops, const clt_variant *v, const clt_gemm8_params *p);
/* Whether row v supports the call at all; gemm8.vt describes the params. */
bool clt_gemm8_takes(const clt_variant *v, const clt_gemm8_params *p);
/* A clt_variant_check: compares row v with the oracle (clt_op_gemm8_check.c). ctx: the call, of which the
 * block is used. */
clt_status clt_gemm8_check(clt_ops *ops, const clt_variant *v, void *ctx);
/* How rows are timed (clt_op_gemm8_tune.c), and the shape of a call as tune.csv has it. */
extern const clt_tune_kind clt_gemm8_tune;
void clt_gemm8_shape(const clt_gemm8_params *p, char *out, size_t size);

#endif
