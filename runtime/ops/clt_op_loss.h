/* clt_op_loss: softmax cross-entropy and the sums of token losses (clkernels/loss, clkernels/reduce). */
#ifndef CLT_OP_LOSS_H
#define CLT_OP_LOSS_H

#include "runtime/ops/clt_ops_context.h"

/* Softmax cross-entropy over rows of logits [rows, V]. z = logits * scale; with softcap c: z = c * tanh(z /
 * c). token_loss[r] = log sum exp(z) - z[target], +0 if ignored. With `grad` the logits are replaced in place
 * by d(sum of token losses * weight)/d(logits): there is no second copy. */
typedef struct {
    int64_t rows, vocab;
    clt_tensor logits;
    clt_ref targets;    /* int32 [rows]; a negative target (-100) is ignored */
    clt_ref token_loss; /* [rows] */
    clt_ref correct;    /* optional, int32 [rows]: 1 if the target is the argmax (the lowest index on ties) */
    float scale, softcap;
    bool grad;
    float weight;       /* 1/N of the global batch, rounded once */
    clt_ref row_weight; /* optional [rows]: replaces weight (per-sample means) */
} clt_loss_params;
clt_status clt_op_loss(clt_ops *ops, const clt_loss_params *p);

/* out[r] = sum of row r of x [rows, cols] by the row rule: a sample's token losses. x is fp32. */
clt_status clt_op_row_sum(clt_ops *ops, int64_t rows, int64_t cols, clt_tensor x, clt_ref out);

#endif
