/* clt_op_attention_tune: tensors on which rows of attention, in fp32 and 16-bit types or in 8-bit blocks, are
 * timed, and slices of them for the oracle. q, k and v lie side by side in one matrix, as in a model. Private
 * to runtime/ops/clt_op_attention*_tune.c. */
#ifndef CLT_OP_ATTENTION_TUNE_H
#define CLT_OP_ATTENTION_TUNE_H

#include "runtime/ops/clt_op_attention_internal.h"
#include "runtime/ops/ref/clt_ref.h"

enum { CLT_ATTENTION_SLICES = 2 };

/* One key/value head of one sample and its query heads, as a problem for the oracle. */
typedef struct {
    int64_t sample, head;       /* head: the key/value head */
    clt_ref_attention_params r; /* one sample; contiguous tensors */
    float *host;                /* all of them */
    int32_t *ids;
} clt_attention_slice;

typedef struct {
    clt_attention_grad_params g; /* g.fwd: the forward call */
    bool backward;
    clt_buffer *qkv, *out, *dqkv, *stat; /* out: o, then dout */
    clt_attention_slice s[CLT_ATTENTION_SLICES];
} clt_attention_tensors;

/* Tensors with the shape of a call (clt_tune_kind.make); a backward call reads any output, and log-sum-exps
 * of
 * 8. *tensors: a clt_attention_tensors, freed by drop. */
clt_status clt_attention_tensors_make(clt_ops *ops, const clt_attention_params *like, bool backward,
                                      bool accumulate_kv, void **tensors);
void clt_attention_tensors_drop(void *tensors);

#endif
