/* clt_op_attention: attention in the flash form, forward and backward (clkernels/attention, whose README.md
 * is the definition). No T x T matrix is stored. */
#ifndef CLT_OP_ATTENTION_H
#define CLT_OP_ATTENTION_H

#include "runtime/ops/clt_ops_context.h"

/* Which keys a query may see. */
typedef enum {
    CLT_MASK_CAUSAL, /* those up to its own position */
    CLT_MASK_NONE    /* all: encoders, vision transformers */
} clt_attention_mask;

/* Column h*D of a row of q is head h; query head h uses key/value head h / (H / KV). q, k, v, o and their
 * gradients have one type.
 *
 * Query i sees key j if the mask, the window and the sequence ids allow it:
 *
 *     mask    without a window   window w
 *     causal  j <= i             i - w <= j <= i
 *     none    every j            i - w <= j <= i + w
 *
 * and, with sequence ids, both positions have the same id. (FlashAttention's window_size is (w, 0) and (w,
 * w).) ALiBi adds -slope * |i - j| to a score. */
typedef struct {
    int64_t batch, seq, heads, kv_heads, head_dim;
    clt_tensor q, k, v, o;
    clt_ref lse;    /* [B, H, T] */
    float scale;    /* softmax scale */
    float softcap;  /* 0: off */
    clt_ref slopes; /* ALiBi: [H] */
    clt_attention_mask mask;
    int64_t window;  /* -1: off */
    clt_ref seq_ids; /* int32 [B, T] */
    float dropout;   /* probability, 0: off */
    uint64_t seed;   /* dropout: counter words, docs/numerics.md */
    uint64_t step;
    int64_t first_sample; /* place of sample 0 in the global batch */
    int32_t layer;
} clt_attention_params;
clt_status clt_op_attention_forward(clt_ops *ops, const clt_attention_params *p);
/* The last `rows` of the p->seq rows that clt_op_attention_forward gives, in exact numerics with the same
 * words: for a text that grows, whose earlier keys and values are kept. q and o begin with the first of these
 * rows, k and v with position 0; lse is not written. One sample, no sequence ids, no dropout; CLT_FAIL
 * otherwise. */
clt_status clt_op_attention_last(clt_ops *ops, const clt_attention_params *p, int64_t rows);

typedef struct {
    clt_attention_params fwd; /* o and lse are inputs here */
    clt_tensor dout;
    clt_tensor dq, dk, dv; /* written, not added to */
    bool accumulate_kv;    /* dk and dv are added to (layers that share keys and values) */
    /* Memory that is unused during the call, or none: at a multiple of 8 elements, counted in elements of q's
     * type. Variants that store what others compute twice use it; without it they take up to 1152 MiB of
     * scratch memory. */
    clt_ref spare;
    uint64_t spare_elements;
} clt_attention_grad_params;
clt_status clt_op_attention_backward(clt_ops *ops, const clt_attention_grad_params *p);

/* Ids of the variants that these calls take; "" if there is none (the reason was printed). Borrowed from
 * ops. */
const char *clt_op_attention_variant(clt_ops *ops, const clt_attention_params *p);
const char *clt_op_attention_backward_variant(clt_ops *ops, const clt_attention_grad_params *p);
/* Upper bound in bytes of the workspace of both passes, for the memory plan. */
uint64_t clt_op_attention_workspace(clt_device_type type, const clt_attention_params *p);

#endif
