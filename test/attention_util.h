/* attention_util: problems of attention on the host, for its tests: random tensors of a shape, the call for
 * them, and the oracle's form of it. */
#ifndef ATTENTION_UTIL_H
#define ATTENTION_UTIL_H

#include "runtime/ops/ref/clt_ref.h"
#include "test/test_util.h"

typedef struct {
    int64_t batch, seq, heads, kv_heads, head_dim;
    bool alibi, ids, unmasked;         /* unmasked: without the causal mask */
    float softcap, dropout, amplitude; /* of the inputs; 0: 1 */
    int64_t window;                    /* 0: off; n: n - 1 */
    bool fused, accumulate, extreme;
    int rows; /* for the tests of variants */
    clt_dtype type;
} attention_shape;

/* A random shape (tu_draw) of about `pairs` pairs of a query and a key at most, over all heads: many short
 * sequences, few long ones, some at the border of a tile. Six sets of head size, type and options, which
 * kernels are built for, are drawn first. */
attention_shape attention_shape_draw(int64_t pairs);

/* q, k, v (and their gradients) are side by side in one matrix if fused, else each is separate, with a gap
 * between rows. All values are rounded to the type. */
typedef struct {
    attention_shape s;
    clt_attention_params call; /* without places */
    clt_ref_attention_params p;
    float *qkv[3], *dqkv[3], *o, *lse, *dout, *slopes;
    size_t n_qkv[3], n_o, n_lse;
    int32_t *ids;
} attention_problem;

/* The same numbers for the same seed; freed by attention_problem_destroy. */
attention_problem *attention_problem_create(const attention_shape *s, uint64_t seed);
void attention_problem_destroy(attention_problem *x);
/* Rounds all tensors to the type. */
void attention_problem_round(attention_problem *x);

/* A problem on a device. Freed by tu_release. */
typedef struct {
    clt_ref qkv[3], dqkv[3], o, lse; /* fused: the first of qkv and of dqkv thrice */
    clt_attention_grad_params g;
} attention_uploaded;

attention_uploaded attention_upload(int device, const attention_problem *x);

#endif
