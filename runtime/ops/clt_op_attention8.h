/* clt_op_attention8: attention in the flash form in 8-bit blocks, forward and backward. Every bit is defined
 * (clkernels/attention8/README.md), and the products are exact on matrix units. */
#ifndef CLT_OP_ATTENTION8_H
#define CLT_OP_ATTENTION8_H

#include "runtime/ops/clt_op_attention.h"

enum { CLT_ATTENTION8_MAX_HEAD = 256 }; /* elements of a head: larger sums are not exact in fp32 */

/* As clt_op_attention_forward and clt_op_attention_backward, with these differences: q, k, v and dout are
 * rounded to 8-bit magnitudes with a scale per row of a head, weights and their gradients to such with a
 * scale per 64 keys of a query or 64 queries of a key; lse is in units of log 2, so both passes of a call
 * must be of this kind; `spare` is not used. CLT_FAIL also if head_dim exceeds CLT_ATTENTION8_MAX_HEAD. */
clt_status clt_op_attention8_forward(clt_ops *ops, const clt_attention_params *p);
clt_status clt_op_attention8_backward(clt_ops *ops, const clt_attention_grad_params *p);

/* Ids of the variants that these calls take; "" if there is none (the reason was printed). Borrowed from ops.
 */
const char *clt_op_attention8_variant(clt_ops *ops, const clt_attention_params *p);
const char *clt_op_attention8_backward_variant(clt_ops *ops, const clt_attention_grad_params *p);
/* Upper bound in bytes of the scratch memory of either pass on this kind of device. */
uint64_t clt_op_attention8_workspace(clt_device_type type, const clt_attention_params *p);

#endif
