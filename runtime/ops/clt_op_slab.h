/* clt_op_slab: operations over flat fp32 slabs of weights, gradients and optimizer state: norms, the guard of
 * a step, hashes, optimizers (clkernels/reduce, guard, hash, optimizer). */
#ifndef CLT_OP_SLAB_H
#define CLT_OP_SLAB_H

#include "runtime/ops/clt_ops_context.h"

/* Sum of squares of each chunk (65,536 elements) of x [chunks * 65536] into out[chunks], by the row rule. */
clt_status clt_op_chunk_sumsq(clt_ops *ops, clt_ref x, uint64_t chunks, clt_ref out);
/* The same of `count` elements, into out[0]. */
clt_status clt_op_sumsq(clt_ops *ops, clt_ref x, uint64_t count, clt_ref out);

/* From the sums of all chunks of the slab: status[0] = norm = inv_scale * sqrt(sum by the row rule);
 * status[1] = clip coefficient inv_scale * min(1, threshold / (norm + 1e-6)) (inv_scale * 1 when threshold <=
 * 0); status[2] = 1 if norm is finite, else 0. inv_scale undoes a loss scale, which is a power of two, so
 * that the division is exact; the flag then tells the scaler whether the step is valid. Without a loss scale
 * it is 1. */
typedef struct {
    clt_ref chunk_sums;
    uint64_t chunks;
    float threshold, inv_scale;
    clt_ref status; /* [3] */
} clt_norm_status_params;
clt_status clt_op_norm_status(clt_ops *ops, const clt_norm_status_params *p);

/* g[0] becomes NaN if an element of x [count] is not finite or flag[0] is not 1; otherwise it is unchanged.
 * So every rank skips the update if one loss is not finite or the previous step was bad. */
clt_status clt_op_guard(clt_ops *ops, clt_ref x, uint64_t count, clt_ref flag, clt_ref g);

/* A hash of the bits of x [count], for comparing copies: the sum modulo 2^64 of CLT_HASH_SUMS numbers of 8
 * bytes, written to sums.buf from number sums.off on (clkernels/hash/hash.cl has the formula). It depends
 * only on the bits and their places: x begins at element `first` of the hashed tensor, and the hashes of its
 * parts add up to the hash of the whole. Tensors that differ in one element have different hashes. count and
 * first are even. */
enum { CLT_HASH_SUMS = 256 };
clt_status clt_op_hash(clt_ops *ops, clt_ref x, uint64_t count, uint64_t first, clt_ref sums);
uint64_t clt_hash_total(const uint64_t *sums, size_t n);

/* g = clamp(g, -limit, limit) (clipping_type value). */
clt_status clt_op_clip_values(clt_ops *ops, clt_ref g, uint64_t count, float limit);
/* dst += src, `count` contiguous elements. */
clt_status clt_op_add(clt_ops *ops, clt_ref dst, clt_ref src, uint64_t count);

typedef struct {           /* one parameter group; host doubles rounded once, docs/numerics.md */
    float lr;              /* Lion: lr_t */
    float decay;           /* wf = 1 - (lr_t/lr_0) * wd; exactly 1: not applied */
    float step_size;       /* AdamW: st = lr_t / (1 - b1^t) */
    float bias_correction; /* AdamW: bc = sqrt(1 - b2^t) */
    float beta1, beta2, one_minus_beta1, one_minus_beta2, eps;
    float frozen; /* nonzero: this group is not updated */
} clt_optimizer_group;
enum { CLT_MAX_PARAM_GROUPS = 64 };

/* One launch over `chunks` contiguous chunks of the slab. Nothing is written unless status[2] of
 * clt_op_norm_status is 1. */
typedef struct {
    uint64_t chunks;
    clt_ref p, g, m, v;     /* v unused by Lion */
    clt_ref groups;         /* floats, laid out as an array of clt_optimizer_group */
    clt_ref group_of_block; /* uint8 [chunks * 1024]: the group of each 64 elements (tensors start at
                               multiples of 64) */
    clt_ref status;
    clt_tensor copy; /* optional: receives the new weights, also of frozen groups, for 16-bit compute */
} clt_optimizer_params;
clt_status clt_op_adamw(clt_ops *ops, const clt_optimizer_params *p);
clt_status clt_op_lion(clt_ops *ops, const clt_optimizer_params *p);

#endif
