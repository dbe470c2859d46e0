/* clt_op_block_step: a whole block of a model for the next token of one text, in one launch
 * (clkernels/block/block_step.cl): what clt_op_linear, clt_op_attention_step and three more clt_op_linear
 * compute in five. A launch costs several microseconds more than its bytes, which is as long as a small
 * product takes.
 *
 * The work-groups of the launch wait for each other, so all of them must run at the same time. The kernel is
 * used only if it is seen to do that when the row is checked; one that does not later, fails with an error of
 * the device after seconds instead of hanging. */
#ifndef CLT_OP_BLOCK_STEP_H
#define CLT_OP_BLOCK_STEP_H

#include "runtime/ops/clt_op_attention_step.h"
#include "runtime/ops/clt_op_linear.h"

/* The five calls, each as if it were made alone, in this order:
 *
 *     qkv: y = norm(x) w^T (+ bias)                   -> attention.qkv
 *     attention                                       -> attention.o = out.x; its contents are undefined
 * after out: y = x w^T (+ bias) + residual              -> hidden.x hidden: y = act(norm(x) w^T (+ bias)) ->
 * down.x;  or with a gate down: y = x w^T (+ bias) + residual */
typedef struct {
    clt_linear_params qkv, out, hidden, down;
    clt_attention_step_params attention;
} clt_block_step_params;

/* Whether a kernel of this device computes the call: it may build and check one. *takes is false for several
 * rows, weights that are not of one 16-bit type with the cache, keys and values of another layer
 * (attention.shared), steps that do not read what the one before wrote, and where sizes or distances are not
 * multiples of 8. The buffers may be absent. Errors: those of checking (CLT_AGAIN, CLT_NO_MEMORY,
 * CLT_STOPPED). */
clt_status clt_op_block_step_takes(clt_ops *ops, const clt_block_step_params *p, bool *takes);
/* Queues the call, which clt_op_block_step_takes must have accepted. CLT_FAIL: it did not, or a tensor
 * exceeds its buffer. */
clt_status clt_op_block_step(clt_ops *ops, const clt_block_step_params *p);

#endif
