/* clt_op_loss: softmax cross-entropy and the sums of token losses (clkernels/loss, clkernels/reduce). */
#ifndef CLT_OP_LOSS_H
#define CLT_OP_LOSS_H

#include "runtime/ops/clt_ops_context.h"

/* Softmax cross-entropy over rows of logits [rows, V], one row per token. z = logits * scale; with softcap c:
 * z = c * tanh(z / c). token_loss[r] = log(sum over v of exp(z[v])) - z[targets[r]].
 *
 * With `grad` row r of the logits is overwritten by weight * d(token_loss[r])/d(logits of row r): there is no
 * second copy. Without it the logits keep their values.
 *
 * With `apart` the gradient at the target is that of the other logits, weight * scale * softmax(z) (times the
 * softcap's slope): the caller adds the part of -z[targets[r]] elsewhere. Used with grad only.
 *
 * A row with a negative target (-100) is ignored: its token_loss and gradient are +0, its `correct` is 0. A
 * target of V or more is an error that the host cannot see: token_loss is NaN, gradient +0, correct 0.
 *
 * CLT_FAIL: rows < 0, V < 1, logits.ld < V, unsupported type of the logits. rows 0 does nothing. */
typedef struct {
    int64_t rows, vocab;
    clt_tensor logits;
    clt_ref targets;    /* int32 [rows] */
    clt_ref token_loss; /* [rows], output, without any weight */
    clt_ref correct; /* optional output, int32 [rows]: 1 if targets[r] is the lowest index of the largest z,
                      * otherwise 0 */
    float scale, softcap; /* scale: factor of the logits; softcap 0 or below: off */
    bool grad, apart;
    float weight;       /* used with grad only: 1/N for N tokens in the global batch, rounded once */
    clt_ref row_weight; /* optional [rows]: used instead of weight, one for each row (per-sample means) */
} clt_loss_params;
clt_status clt_op_loss(clt_ops *ops, const clt_loss_params *p);

/* Softmax cross-entropy whose targets are probabilities t [rows, V], fp32 without gaps:
 * row_loss[r] = sum over v of t[v] * (log(sum over u of exp(z[u])) - z[v]). With `grad` the logits are
 * overwritten as in clt_op_loss. A row whose only probability is a 1 has the bits of clt_op_loss.
 *
 * rank[r] is the number of logits before that of label[r] if they are sorted, the largest first and equal
 * ones by their index: 0 if it is the largest. V if the label is not in 0 ... V - 1 or its logit is a NaN.
 *
 * CLT_FAIL as clt_op_loss, and V of 2^24 or more. */
typedef struct {
    int64_t rows, vocab;
    clt_tensor logits;
    clt_ref targets, label; /* [rows, V]; int32 [rows], used for rank only */
    clt_ref row_loss;       /* [rows], output, without any weight */
    clt_ref rank;           /* optional output, int32 [rows] */
    bool grad;
    float weight;
    clt_ref row_weight; /* optional [rows], instead of weight */
} clt_loss_soft_params;
clt_status clt_op_loss_soft(clt_ops *ops, const clt_loss_soft_params *p);

/* out[r] = the sum of row r of x [rows, cols], in the order of the row rule of docs/numerics.md. x must be
 * fp32 and may have gaps between rows; out is [rows]. Used to add up a sample's token losses. */
clt_status clt_op_row_sum(clt_ops *ops, int64_t rows, int64_t cols, clt_tensor x, clt_ref out);

#endif
