/* clt_op_embedding: token and position lookups and their gradients (clkernels/embedding). All tensors must
 * have no gaps (ld = cols) and be fp32; only the forward pass also reads tables of another type without
 * scales, the same for wte and wpe. CLT_FAIL if they do not, or if a size is below the limit that its comment
 * names. A row r of an activation is the token at position r % seq of sample r / seq. A row of wte
 * belongs to one token id, a row of wpe to one position. */
#ifndef CLT_OP_EMBEDDING_H
#define CLT_OP_EMBEDDING_H

#include "runtime/ops/clt_ops_context.h"

/* out[r] = e = wte[ids[r]], plus wpe[r % seq] if wpe is present. With a fraction f other than 1 (the model's
 * embedding_fraction) out[r] = f * e + (1 - f) * e, which is e but for rounding. An id outside 0 ... vocab -
 * 1 gives a row of NaN. */
typedef struct {
    int64_t rows, seq, cols, vocab; /* rows 0 ... INT32_MAX (0 does nothing), seq and cols at least 1 */
    clt_ref ids;                    /* int32 [rows] */
    clt_tensor wte, wpe, out;       /* [vocab, cols]; [seq, cols], optional; [rows, cols] */
    float fraction;                 /* 1: off */
} clt_embedding_params;
clt_status clt_op_embedding_forward(clt_ops *ops, const clt_embedding_params *p);

/* Lookup gradients without atomics. The host sorts the microbatch's rows by token id once, and gives the
 * `unique` distinct ids and, for each, the ascending list of rows of dx that hold it: rows
 * row_of[row_begin[i]]
 * ... row_of[row_begin[i + 1] - 1] hold ids[i]. The contents of these lists are not checked.
 *
 *     dwte[ids[i]] = start + fraction * dx of those rows, added one by one in that order; start is +0 if
 *                    first[i] is not 0 (the id's first microbatch of this gradient), else the old value
 *     dwpe[t]      = start + fraction * dx of the rows r with r % seq = t, in ascending order; start is the
 * old value with accumulate_wpe, otherwise +0
 *
 * Each dx row is multiplied by fraction before it is added. Rows of dwte that no id names are not changed. */
typedef struct {
    int64_t rows, seq, cols, unique; /* rows 0 ... INT32_MAX, seq and cols at least 1, unique at least 0 */
    clt_tensor dx;                   /* [rows, cols] */
    clt_ref ids, first, row_begin, row_of; /* int32: [unique], [unique], [unique + 1], [rows] */
    clt_tensor dwte, dwpe;                 /* [vocab, cols], [seq, cols]; each optional */
    bool accumulate_wpe;                   /* false: all `seq` rows of dwpe are overwritten */
    float fraction;                        /* as in the forward pass; 1: off */
} clt_embedding_grad_params;
clt_status clt_op_embedding_backward(clt_ops *ops, const clt_embedding_grad_params *p);

/* dst[ids[i]] = dst[ids[i]] + src[ids[i]] for i < unique, whole rows. The ids must be distinct and inside
 * both tables. Used if wte also serves as the output layer: adds the lookup's gradient to that of the output
 * layer.
 */
typedef struct {
    int64_t unique, cols; /* at least 0; at least 1 */
    clt_ref ids;          /* int32 [unique] */
    clt_tensor src, dst;  /* [vocab, cols] */
} clt_embedding_add_params;
clt_status clt_op_embedding_add_rows(clt_ops *ops, const clt_embedding_add_params *p);

#endif
