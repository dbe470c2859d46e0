/* clt_ops: the operations that a training step consists of. This header includes all of them.
 *
 * An operation is a C function that takes a params struct of sizes and tensors, picks the kernel variant for
 * this device and shape, and queues launches. It never waits, and allocates nothing after its first call at a
 * shape. docs/numerics.md defines the result to the last bit; the oracle of the same name in
 * runtime/ops/ref/clt_ref.h is that definition in plain C. With `numerics: exact` every variant gives the
 * oracle's bits, and is checked against it on this device before its first use.
 *
 * Types. clt_tensor names the type of each tensor. An operation widens 16-bit elements to fp32, which is
 * exact, computes in fp32 and rounds to nearest even once at each store. A variant without requirements gives
 * the bits of the fp32 oracle on the widened inputs, rounded. Variants for matrix units add in their own
 * order and are checked against a stated bound. A type, or a combination of types, that no kernel supports is
 * CLT_FAIL with a message that names the tensors and their types.
 *
 * Conventions. Matrices are row-major. Dimension letters: B batch, T sequence, C d_model, H heads, D head
 * size, V vocabulary. Rows are tokens, sample after sample: row = sample * T + position. An absent optional
 * tensor has no buffer. A clt_ref is fp32 unless its comment names another type, and has no gaps. With
 * `accumulate` the result is added to the target; without it the target starts from +0 and need not be
 * cleared. Functions return CLT_FAIL, with a message, for params that make no sense. */
#ifndef CLT_OPS_H
#define CLT_OPS_H

#include "runtime/ops/clt_op_attention.h"
#include "runtime/ops/clt_op_elementwise.h"
#include "runtime/ops/clt_op_embedding.h"
#include "runtime/ops/clt_op_gemm.h"
#include "runtime/ops/clt_op_loss.h"
#include "runtime/ops/clt_op_norm.h"
#include "runtime/ops/clt_op_slab.h"

#endif
