/* clt_op_linear_internal: what the parts of clt_op_linear share. Private to runtime/ops/clt_op_linear*.c. */
#ifndef CLT_OP_LINEAR_INTERNAL_H
#define CLT_OP_LINEAR_INTERNAL_H

#include "runtime/ops/clt_op_linear.h"
#include "runtime/ops/clt_variant.h"

/* Queues a checked call with row v of linear.vt. */
clt_status clt_linear_run(clt_ops *ops, const clt_variant *v, const clt_linear_params *p);
/* A clt_variant_check: compares row v with the formula in double. ctx: the call (clt_linear_params), of which
 * the type of w is used. */
clt_status clt_linear_check(clt_ops *ops, const clt_variant *v, void *ctx);

#endif
