/* clt_op_attention_step: attention of one new position for each of a few texts that grow, in one launch, with
 * the rotation of q and k and the copy of k and v into the cache (clkernels/attention/attention_step.cl).
 * Only numerics fast on GPUs has such a kernel; clt_op_attention_step_takes says whether a call has one.
 * Where it does not, clt_op_scale_rows, clt_op_rope, clt_op_copy_rows and clt_op_attention_last compute the
 * formula. */
#ifndef CLT_OP_ATTENTION_STEP_H
#define CLT_OP_ATTENTION_STEP_H

#include "runtime/ops/clt_ops_context.h"

/* Row r is position p = position[r] of the text in place[r]. Its query sees positions max(0, p - window) ...
 * p by the formula of clt_attention_params, with the causal mask. Row j of a place holds position j: first
 * the keys, then the values of the kv heads. */
typedef struct {
    int64_t rows, heads, kv_heads, head_dim;
    int64_t longest;  /* the largest position + 1 */
    clt_tensor qkv;   /* fp32 [rows, (heads + 2 kv_heads) * head_dim]: q | k | v before their rotation; q
                         alone with `shared` */
    bool shared;      /* the cache has keys and values of these positions already */
    clt_tensor cache; /* [places * room, 2 * kv_heads * head_dim] */
    int64_t room;     /* positions of a place */
    clt_ref position, place; /* int32 [rows] */
    int64_t rotated;         /* rotary dimensions, even; 0: none */
    clt_ref angles;          /* [positions, rotated / 2, 2]: cosine and sine */
    clt_ref temperature;     /* [positions]: factors of queries; optional */
    clt_ref slopes;          /* ALiBi [heads]; optional */
    float scale, softcap;    /* softcap 0: off */
    int64_t window;          /* -1: off */
    clt_tensor o;            /* fp32 [rows, heads * head_dim] */
} clt_attention_step_params;

/* Whether a kernel of this device computes the call: it may build and check one. *takes is false for exact
 * numerics, for CPUs, and where head_dim or the cache's rows are not multiples of 8. Errors: those of
 * checking (CLT_AGAIN, CLT_NO_MEMORY, CLT_STOPPED). */
clt_status clt_op_attention_step_takes(clt_ops *ops, const clt_attention_step_params *p, bool *takes);
/* Queues the call, which clt_op_attention_step_takes must have accepted. */
clt_status clt_op_attention_step(clt_ops *ops, const clt_attention_step_params *p);

#endif
