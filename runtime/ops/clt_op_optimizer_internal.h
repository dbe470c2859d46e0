/* clt_op_optimizer_internal: what the files of the optimizers share (clt_op_optimizer.c, clt_op_lamb.c). */
#ifndef CLT_OP_OPTIMIZER_INTERNAL_H
#define CLT_OP_OPTIMIZER_INTERNAL_H

#include "runtime/ops/clt_op_slab.h"
#include "runtime/ops/clt_variant.h"

/* The row of the table `op` that takes the call p, with the type of its copy as an option. The first call of
 * a row runs `check`. Errors of clt_variant_pick_for; CLT_FAIL for a copy of another type than floats. */
clt_status clt_optimizer_pick(clt_ops *ops, const char *op, clt_variant_check check,
                              const clt_optimizer_params *p, const clt_variant **v);

#endif
