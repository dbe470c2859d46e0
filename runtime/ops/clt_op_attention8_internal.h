/* clt_op_attention8_internal: what the parts of attention in 8-bit blocks share. Private to
 * runtime/ops/clt_op_attention8*.c. */
#ifndef CLT_OP_ATTENTION8_INTERNAL_H
#define CLT_OP_ATTENTION8_INTERNAL_H

#include "runtime/ops/clt_op_attention8.h"
#include "runtime/ops/clt_op_attention_internal.h"

/* A tensor's heads as whole numbers (bf16, [B, heads, T, head size up to a multiple of 8]) with a scale per
 * row (fp32, [B, heads, T]), in scratch memory. */
typedef struct {
    clt_ref numbers, scales;
} clt_attention8_rows;

/* What the rows' bodies read instead of the tensors. delta: [B, heads, R], backward only, as dout. k_values,
 * v_values: numbers times their scales, for rows of the body wgmma: the forward pass has k_values instead
 * of k.numbers, the backward pass has v_values instead of v.numbers. */
typedef struct {
    clt_attention8_rows q, k, v, dout;
    clt_ref k_values, v_values;
    clt_ref delta, lse; /* lse: a copy with rows as far apart as delta's */
} clt_attention8_input;

/* ATTENTION8_ARGS of clkernels/attention8/attention8.clh. */
clt_attention_args clt_attention8_common_args(const clt_attention_params *p, const clt_attention8_input *in);

/* A kind of body: how rows of the two tables with this word `body` run, from what was made before. */
typedef struct {
    const char *name;
    clt_status (*forward)(clt_ops *ops, const clt_variant *v, const clt_attention_params *p,
                          const clt_attention8_input *in);
    clt_status (*backward)(clt_ops *ops, const clt_variant *v, const clt_attention_grad_params *g,
                           const clt_attention8_input *in);
    bool (*takes_forward)(const clt_variant *v, const clt_attention_params *p); /* NULL: every call */
    bool (*takes_backward)(const clt_variant *v, const clt_attention_params *p);
    bool blocks; /* clt_attention8_cpu_round rounds the operands, and the body computes D itself */
} clt_attention8_body;
extern const clt_attention8_body clt_attention8_wgmma, clt_attention8_cpu;

/* Rounds q, k, v and, unless it is NULL, dout for body "cpu". */
clt_status clt_attention8_cpu_round(clt_ops *ops, const clt_variant *v, const clt_attention_params *p,
                                    const clt_tensor *dout, const clt_attention8_input *in);
/* Upper bound in bytes of the scratch memory that body "cpu" uses besides the operands. */
uint64_t clt_attention8_cpu_workspace(const clt_attention_params *p);

/* Whether row v supports this call; if not, a later row of the table is tried. */
bool clt_attention8_takes_forward(const clt_variant *v, const clt_attention_params *p);
bool clt_attention8_takes_backward(const clt_variant *v, const clt_attention_grad_params *g);

/* Queues one pass with row v's body; the call must have been checked, and v must support it. */
clt_status clt_attention8_run_forward(clt_ops *ops, const clt_variant *v, const clt_attention_params *p);
clt_status clt_attention8_run_backward(clt_ops *ops, const clt_variant *v,
                                       const clt_attention_grad_params *g);

/* Checks of rows (clt_variant_check) against the oracle's bits. ctx: the params of the call that needs the
 * row; backward: clt_attention_grad_params. */
clt_status clt_attention8_check_forward(clt_ops *ops, const clt_variant *v, void *ctx);
clt_status clt_attention8_check_backward(clt_ops *ops, const clt_variant *v, void *ctx);

/* How rows of the two tables are timed at a shape (clt_op_attention8_tune.c). */
extern const clt_tune_kind clt_attention8_tune_forward, clt_attention8_tune_backward;

#endif
