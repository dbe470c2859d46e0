/* clt_op_block_step_internal: what the parts of clt_op_block_step share. Private to
 * runtime/ops/clt_op_block_step*.c. */
#ifndef CLT_OP_BLOCK_STEP_INTERNAL_H
#define CLT_OP_BLOCK_STEP_INTERNAL_H

#include "runtime/ops/clt_op_block_step.h"
#include "runtime/ops/clt_variant.h"

enum { CLT_BLOCK_MOST_HEAD = 128 };

/* What the program of a call is made for, as build options, and the launch. */
typedef struct {
    char options[256];
    int64_t columns, norm_columns, units; /* of the kernel's local memory */
    int64_t splits;
} clt_block_plan;
clt_block_plan clt_block_plan_of(clt_ops *ops, const clt_block_step_params *p);

/* Queues a call with row v of block_step.vt, whose options are those of `plan`. in_check: work-groups that
 * wait too long for the others mark the counters instead of ending the program. */
clt_status clt_block_run(clt_ops *ops, const clt_variant *v, const clt_block_step_params *p,
                         const clt_block_plan *plan, bool in_check);
/* A clt_variant_check: compares row v with the formula in double, each step from what the row computed before
 * it. ctx: the call (clt_block_step_params), whose program is checked. */
clt_status clt_block_check(clt_ops *ops, const clt_variant *v, void *ctx);

#endif
