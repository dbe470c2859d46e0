/* clt_op_slab: operations over flat fp32 slabs of weights, gradients and optimizer state: norms, the guard of
 * a step, hashes, optimizers (clkernels/reduce, guard, hash, optimizer). A chunk is CLT_CHUNK = 65,536
 * elements (clt_slab.h). The functions do not check sizes, except clt_op_hash. */
#ifndef CLT_OP_SLAB_H
#define CLT_OP_SLAB_H

#include "runtime/device/clt_sum_parts.h"
#include "runtime/ops/clt_ops_context.h"

/* out[i] = the sum of squares of chunk i of x [chunks * 65536], by the row rule of docs/numerics.md, for each
 * i < chunks. */
clt_status clt_op_chunk_sumsq(clt_ops *ops, clt_ref x, uint64_t chunks, clt_ref out);
/* out[0] = the sum of squares of the `count` elements of x, by the row rule over all of them. */
clt_status clt_op_sumsq(clt_ops *ops, clt_ref x, uint64_t count, clt_ref out);

/* From the sums of squares of all chunks of the slab:
 *     status[0] = norm = inv_scale * sqrt(sum of chunk_sums by the row rule)
 *     status[1] = the factor of the gradients: inv_scale * min(1, threshold / (norm + 1e-6)); inv_scale if
 *                 threshold <= 0
 *     status[2] = 1 if norm is finite, otherwise 0: then the optimizers skip the step */
typedef struct {
    clt_ref chunk_sums; /* [chunks], of clt_op_chunk_sumsq */
    uint64_t chunks;
    /* threshold: the largest norm without clipping; 0 or below: no clipping. inv_scale: 1 / the loss scale,
     * which must be a power of two so that the product is exact; 1 without a loss scale */
    float threshold, inv_scale;
    clt_ref status; /* [3], output */
} clt_norm_status_params;
clt_status clt_op_norm_status(clt_ops *ops, const clt_norm_status_params *p);

/* Sets g[0] to NaN if an element of x [count] is not finite or flag[0] is not 1; otherwise g is unchanged.
 * With g a gradient that is then added up over ranks, every rank skips the update if a loss on one rank is
 * not finite or the previous step was bad. */
clt_status clt_op_guard(clt_ops *ops, clt_ref x, uint64_t count, clt_ref flag, clt_ref g);

/* A hash of the bits of the fp32 elements x [count], for comparing copies. It is the sum modulo 2^64 of
 * CLT_HASH_SUMS numbers of 8 bytes, which are written to `sums`; sums.off counts numbers of 8 bytes. Read
 * them and add them up with clt_hash_total (clkernels/hash/hash.cl has the formula). The single numbers
 * differ between devices, the total does not. `first` is the index, in the whole tensor, of the first element
 * of x: so the totals of the parts of a tensor add up to the total of the whole. Tensors that differ in
 * exactly one element have different totals. count and first must be even, otherwise CLT_FAIL. */
enum { CLT_HASH_SUMS = 256 };
clt_status clt_op_hash(clt_ops *ops, clt_ref x, uint64_t count, uint64_t first, clt_ref sums);
/* The sum modulo 2^64 of n numbers in host memory: of one part (n = CLT_HASH_SUMS) or of several. */
uint64_t clt_hash_total(const uint64_t *sums, size_t n);

/* g[i] = clamp(g[i], -limit, limit) for i < count, in place; NaN stays NaN (clipping_type value). */
clt_status clt_op_clip_values(clt_ops *ops, clt_ref g, uint64_t count, float limit);
/* dst[i] = dst[i] + src[i] for i < count. */
clt_status clt_op_add(clt_ops *ops, clt_ref dst, clt_ref src, uint64_t count);
/* The sum of parts in fp32 and bf16 in the order of a tree (clt_sum_parts.h), as one kernel. CLT_FAIL: there
 * are none or too many. */
clt_status clt_op_sum_parts(clt_ops *ops, const clt_sum_parts *s);

/* The constants of one parameter group for step t. The host computes each in double and rounds it once
 * (docs/numerics.md). The layout is that of 14 floats, which kernels read. */
typedef struct {
    float lr;              /* Lion, SGD: learning rate lr_t; AdamW does not read it */
    float decay;           /* AdamW, Lion: factor of the weights, which includes the decay; 1: none */
    float step_size;       /* AdamW: lr_t / (1 - beta1^t) */
    float bias_correction; /* AdamW: sqrt(1 - beta2^t) */
    float beta1;           /* SGD: the momentum */
    float beta2, one_minus_beta1, one_minus_beta2, eps;
    float frozen; /* nonzero: p, m and v of this group are not updated */
    float l2; /* SGD, AdamW: its product with the weight is added to the gradient, LAMB: to the direction */
    float nesterov;                /* SGD: nonzero: Nesterov's momentum */
    float least_ratio, most_ratio; /* LAMB: limits of the ratio of every tensor; most_ratio 0: none */
} clt_optimizer_group;
enum { CLT_MAX_PARAM_GROUPS = 64 };

/* An optimizer step, in place, over `chunks` contiguous chunks of the slab. Gradients are multiplied by
 * status[1] when they are read; g is not changed. Unless status[2] is 1, nothing is written, `copy` included.
 * CLT_FAIL if no variant supports copy's type. */
typedef struct {
    uint64_t chunks;
    clt_ref p, g, m, v; /* weights, gradients, first and second moment: [chunks * 65536]; Lion, SGD: no v */
    clt_ref groups;     /* floats, laid out as an array of clt_optimizer_group */
    clt_ref group_of_block; /* uint8 [chunks * 1024], off counts bytes: the index in `groups` of each 64
                             * consecutive elements (tensors start at multiples of 64) */
    clt_ref status;         /* [3], of clt_op_norm_status */
    clt_tensor copy;        /* optional output [chunks * 65536], ld ignored: the new weights rounded to its
                             * type, those of frozen groups included */
} clt_optimizer_params;
clt_status clt_op_adamw(clt_ops *ops, const clt_optimizer_params *p);
clt_status clt_op_lion(clt_ops *ops, const clt_optimizer_params *p);
clt_status clt_op_sgd(clt_ops *ops, const clt_optimizer_params *p);

/* LAMB in parts: a direction for every element, sums of squares of the segments of tensors, a ratio for each
 * tensor, and the step. A segment is what a tensor has in one chunk; ranks own whole chunks, so each segment
 * has one owner.
 *
 * direction: p, m, v, groups, group_of_block, status and chunks of clt_optimizer_params; writes m and v, and
 * the direction in place of g; group.step_size is 1 / (1 - beta1^t) here. copy is not used. */
clt_status clt_op_lamb_direction(clt_ops *ops, const clt_optimizer_params *p);

/* out[place[k]] = the sum of squares, by the row rule, of x in segment k, for n consecutive segments, whose
 * elements are all in x. */
typedef struct {
    uint64_t n;
    clt_ref segment; /* uint32 [n, 2]: first block of 64 elements in the slab; elements */
    clt_ref place;   /* uint32 [n] */
    clt_ref x;       /* begins with block first_block of the slab */
    uint64_t first_block;
    clt_ref out;
} clt_segment_sumsq_params;
clt_status clt_op_segment_sumsq(clt_ops *ops, const clt_segment_sumsq_params *p);

/* ratio[t] = |weights| / |direction| of tensor t, from the sums of its segments, added ascending; 1 if one of
 * both is 0. With a most_ratio it is between least_ratio and most_ratio; without one it is 1 if the group has
 * no weight decay (l2). */
typedef struct {
    uint64_t tensors;
    clt_ref tensor;                 /* uint32 [tensors, 4]: first segment, end, first block, 0 */
    clt_ref place;                  /* uint32: of all segments */
    clt_ref weights, directions;    /* sums of squares, at the segments' places */
    clt_ref groups, group_of_block; /* as in clt_optimizer_params, of the whole slab */
    clt_ref ratio;                  /* [tensors], output */
} clt_lamb_ratios_params;
clt_status clt_op_lamb_ratios(clt_ops *ops, const clt_lamb_ratios_params *p);

/* p = p - (lr * ratio) * direction, which is in g; m and v are not used. tensor_of_block: uint16 [chunks *
 * 1024], off counts them. */
clt_status clt_op_lamb_apply(clt_ops *ops, const clt_optimizer_params *p, clt_ref tensor_of_block,
                             clt_ref ratio);

#endif
