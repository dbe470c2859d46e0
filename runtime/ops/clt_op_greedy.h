/* clt_op_greedy: the likeliest next token of texts, chosen on the device. The host then waits for a few bytes
 * instead of reading and searching all logits, and the next token's launches can be queued before it knows
 * the choice. */
#ifndef CLT_OP_GREEDY_H
#define CLT_OP_GREEDY_H

#include "runtime/ops/clt_ops_context.h"
#include "runtime/ops/clt_tensor.h"

/* token[r] (int32) = the column of the largest element of row r of x, fp32 [rows, cols]; of equal elements
 * the first; NaN counts as -infinity. position[r] (int32, optional: buf NULL) is increased by 1. cols is
 * below 2^31. The result does not depend on the device. CLT_FAIL: a tensor exceeds its buffer or is not fp32.
 */
clt_status clt_op_greedy(clt_ops *ops, int64_t rows, int64_t cols, clt_tensor x, clt_ref token,
                         clt_ref position);

#endif
