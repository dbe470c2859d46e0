/* clt_op_embedding: token and position lookups and their gradients (clkernels/embedding). All tensors are
 * fp32 and have no gaps. */
#ifndef CLT_OP_EMBEDDING_H
#define CLT_OP_EMBEDDING_H

#include "runtime/ops/clt_ops_context.h"

/* out[r] = wte[ids[r]] (+ wpe[r % T]); with a fraction f other than 1 (the model's embedding_fraction):
 * f*x + (1-f)*x. */
typedef struct {
    int64_t rows, seq, cols, vocab;
    clt_ref ids; /* int32 [rows] */
    clt_tensor wte, wpe, out;
    float fraction;
} clt_embedding_params;
clt_status clt_op_embedding_forward(clt_ops *ops, const clt_embedding_params *p);

/* Lookup gradients without atomics: the host sorts the microbatch's (token id, row) pairs once. The row list
 * of each distinct id is ascending, so each table row is one chain over (sample, position).
 * first[i] != 0: unique id i occurs for the first time in the lane, and its row starts from +0.
 * dwte[id] (+)= fraction * sum of dx rows.  dwpe[t] (+)= sum over samples (accumulate_wpe false: from +0). */
typedef struct {
    int64_t rows, seq, cols, unique;
    clt_tensor dx;                         /* [rows, cols] */
    clt_ref ids, first, row_begin, row_of; /* int32: [unique], [unique], [unique+1], [rows] */
    clt_tensor dwte, dwpe;
    bool accumulate_wpe;
    float fraction;
} clt_embedding_grad_params;
clt_status clt_op_embedding_backward(clt_ops *ops, const clt_embedding_grad_params *p);

/* dst[ids[i]] += src[ids[i]] for `unique` table rows (tied wte: the lookup accumulator into the head's). */
typedef struct {
    int64_t unique, cols;
    clt_ref ids; /* int32 [unique] */
    clt_tensor src, dst;
} clt_embedding_add_params;
clt_status clt_op_embedding_add_rows(clt_ops *ops, const clt_embedding_add_params *p);

#endif
