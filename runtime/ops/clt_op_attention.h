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

/* Row b * T + t of a tensor is position t of sample b. Head h starts at column h * D; query head h uses
 * key/value head h / (H / KV). q, k, v, o and their gradients have one type; lse (required) and slopes are
 * fp32. Without a buffer slopes and seq_ids are off. For query row i and key row j
 *
 *     s = scale * q.k;  s = softcap * tanh(s / softcap);  s = s - slope * |i - j|
 *     o = sum over the visible keys of softmax(s) * v;  lse = log(sum over the visible keys of exp(s))
 *
 * Query i sees key j if the mask, the window and the sequence ids allow it:
 *
 *     mask    without a window   window w
 *     causal  j <= i             i - w <= j <= i
 *     none    every j            i - w <= j <= i + w
 *
 * and, with sequence ids, both positions have the same id. (FlashAttention's window_size is (w, 0) and (w,
 * w).) CLT_FAIL: a size below 1, KV does not divide H, seq above 2^30 - 1, dropout outside [0, 1), tensors of
 * different types. */
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
    uint64_t seed;   /* dropout: the key; step, first_sample and layer are counter words (docs/numerics.md) */
    uint64_t step;
    int64_t first_sample; /* place of sample 0 in the global batch */
    int32_t layer;
} clt_attention_params;
clt_status clt_op_attention_forward(clt_ops *ops, const clt_attention_params *p);
/* Computes output rows [p->seq - rows, p->seq) alone, for a text that grows and whose earlier keys and values
 * are kept. Row 0 of q and o is row p->seq - rows; k and v start at position 0; lse is not written. In exact
 * numerics the bits are those of clt_op_attention_forward. CLT_FAIL unless batch is 1, 1 <= rows <= seq, and
 * there are no sequence ids and no dropout. */
clt_status clt_op_attention_last(clt_ops *ops, const clt_attention_params *p, int64_t rows);

typedef struct {
    clt_attention_params fwd; /* o and lse are inputs here */
    clt_tensor dout;
    clt_tensor dq, dk, dv; /* written, not added to */
    bool accumulate_kv;    /* dk and dv are added to (layers that share keys and values) */
    /* Memory that the call may overwrite; buf NULL: none. Offset (a multiple of 8) and size count elements of
     * q's type. Variants that store what others compute twice use it, and are not taken if it is too small;
     * with none they take up to 1152 MiB of scratch memory. */
    clt_ref spare;
    uint64_t spare_elements;
} clt_attention_grad_params;
clt_status clt_op_attention_backward(clt_ops *ops, const clt_attention_grad_params *p);

/* Ids of the variants that these calls take; "" if there is none (the reason was printed). They choose as the
 * call does, and may check and time kernels. Borrowed from ops. */
const char *clt_op_attention_variant(clt_ops *ops, const clt_attention_params *p);
const char *clt_op_attention_backward_variant(clt_ops *ops, const clt_attention_grad_params *p);
/* Upper bound in bytes of the scratch memory of either pass, for the memory plan, without what a backward
 * pass that has no `spare` takes in addition. */
uint64_t clt_op_attention_workspace(clt_device_type type, const clt_attention_params *p);

#endif
