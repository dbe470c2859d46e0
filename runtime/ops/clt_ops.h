/* clt_ops: the operations that a training step consists of. This header includes all of them.
 *
 * An operation is a C function that takes a params struct of sizes and tensors, picks the kernel variant for
 * this device and call, and queues launches. It returns before the results are computed. The first call with
 * a shape, set of types and set of optional tensors may compile, check and time kernels, allocate device
 * memory and wait for the device. A later call only queues launches; a variant that uses tensor maps
 * (clt_tensor_map.h) also waits at the first call with each buffer.
 *
 * docs/numerics.md defines the result to the last bit; the oracle of the same name in
 * runtime/ops/ref/clt_ref.h is that definition in plain C. A variant is checked on this device against the
 * oracle before its first use; verdicts are kept in the cache folder. With `numerics: exact` every variant
 * that passes gives the oracle's bits. With `numerics: fast` variants that stay within a stated bound may be
 * used too.
 *
 * Types. clt_tensor names the type of each tensor. An operation widens 16-bit elements to fp32, which is
 * exact, computes in fp32 and rounds to nearest even once at each store. An exact variant gives the bits of
 * the fp32 oracle on the widened inputs, rounded to the type of the result. Variants for matrix units add in
 * their own order and are compared with a bound. A type, or a combination of types, that no kernel supports
 * is CLT_FAIL with a message that names the tensors and their types.
 *
 * Conventions. Matrices are row-major. Dimension letters: B batch, T sequence, C d_model, H heads, D head
 * size, V vocabulary. Row r of an activation belongs to one token: r = sample * T + position in the sample.
 * An absent optional tensor has no buffer. A clt_ref is fp32 unless its comment names another type, and has
 * no gaps. With `accumulate` the result is added to the target; without it the target is overwritten and need
 * not be initialised. Tensors of one call must not share memory unless a comment allows it. All tensors must
 * be on the device of the clt_ops.
 *
 * Errors. Types, and sizes that the comment of an operation names, are checked; CLT_FAIL with a message if
 * they are invalid. Except in the GEMM, nothing checks that a tensor fits its buffer: the
 * caller must ensure it. Any operation can also return what picking or launching a kernel returns: CLT_FAIL
 * (no variant passes its check, or the driver refuses), CLT_NO_MEMORY, CLT_AGAIN (the device hangs),
 * CLT_STOPPED (only after clt_ops_let_stop). A clt_ops and its device are used by one thread at a time. */
#ifndef CLT_OPS_H
#define CLT_OPS_H

#include "runtime/ops/clt_op_attention.h"
#include "runtime/ops/clt_op_attention8.h"
#include "runtime/ops/clt_op_attention_step.h"
#include "runtime/ops/clt_op_elementwise.h"
#include "runtime/ops/clt_op_embedding.h"
#include "runtime/ops/clt_op_gemm.h"
#include "runtime/ops/clt_op_fp8.h"
#include "runtime/ops/clt_op_gemm8.h"
#include "runtime/ops/clt_op_greedy.h"
#include "runtime/ops/clt_op_linear.h"
#include "runtime/ops/clt_op_loss.h"
#include "runtime/ops/clt_op_norm.h"
#include "runtime/ops/clt_op_quantize.h"
#include "runtime/ops/clt_op_slab.h"

#endif
