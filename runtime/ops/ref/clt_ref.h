/* clt_ref: the oracle. The arithmetic of the operations of clt_ops.h in plain C over host arrays, written for
 * clarity instead of speed, in exactly the order that docs/numerics.md defines. Tests and checks of variants
 * compare kernels with it bit by bit (any NaN equals any NaN). Members and arguments have the meaning of
 * those with the same name in the params structs of the operations; pointers here already include the offset,
 * and ld* is a distance between rows in elements. Trivial operations (copies, clamps, casts) have no
 * function. For numerics fast, clt_ref_gemm_near_at and clt_ref_attention_row, among others, compute the
 * formula in double, with a bound.
 *
 * The functions check nothing, return no errors and do not touch the device, except clt_ref_read_as.
 * Temporary arrays come from clt_malloc, whose failure clt_memory.h describes. Several threads may call them
 * at once for different outputs. */
#ifndef CLT_REF_H
#define CLT_REF_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/ops/clt_fp8.h"
#include "runtime/ops/clt_op_fp8.h"
#include "runtime/ops/clt_ops.h"

/* The sum of n elements by the row rule: lane l of 64 adds x[l], x[l + 64], ... starting from +0; then lane l
 * adds lane l + d, for all l < d, with d = 32, 16, 8, 4, 2, 1. Lane 0 is the result. */
float clt_ref_row_sum(const float *x, int64_t n);

/* Host form of clt_gemm_params, without again and a_sum. A NULL pointer is an absent tensor. Elements of
 * every type are stored as floats: inputs must hold values that their type can represent; c is rounded to
 * c_type and pre to aux_type. ldpre, ldgrad and ldres belong to pre, grad_pre and residual. */
typedef struct {
    clt_gemm_form form;
    int64_t m, n, k, k_group;
    const float *a, *b;
    float *c;
    int64_t lda, ldb, ldc;
    bool accumulate;
    const float *bias;
    clt_activation act;
    float *pre;
    int64_t ldpre;
    clt_activation grad_act;
    const float *grad_pre;
    int64_t ldgrad;
    const float *residual;
    int64_t ldres;
    clt_dtype c_type, aux_type;
} clt_ref_gemm_params;
/* The host form of a call: everything but the pointers to tensors, which are NULL; the caller sets them. */
clt_ref_gemm_params clt_ref_gemm_of(const clt_gemm_params *p);
/* All outputs; uses several threads at large shapes. */
void clt_ref_gemm(const clt_ref_gemm_params *p);
/* Output (i, j) alone, for sampled checks at large shapes. Writes c[i,j], and pre[i,j] if pre is set. */
void clt_ref_gemm_at(const clt_ref_gemm_params *p, int64_t i, int64_t j);
/* The epilogue: from the finished chain v of output (i, j) to c[i,j], and pre[i,j] if pre is set. */
void clt_ref_gemm_finish(const clt_ref_gemm_params *p, int64_t i, int64_t j, float v);

/* Host form of clt_blocks8. */
typedef struct {
    int8_t *q;
    int64_t ld;
    float *scale;
    int64_t ld_scale;
    int32_t block, tile;
} clt_ref_blocks8;
/* The scale of values whose largest magnitude is `amax`: amax / 127 rounded up to 8 significant bits, at
 * least 2^-126 (docs/numerics.md says how); +0 for 0, NaN for infinity or NaN. */
float clt_ref_scale8(float amax);
/* Host form of clt_quantize_params; an absent output has no q. y is rounded to `type`, that of x. */
typedef struct {
    int64_t rows, cols, rows_per_sample;
    const float *x;
    int64_t ldx;
    clt_ref_blocks8 along, across;
    clt_activation act, grad_act;
    const float *grad_pre;
    int64_t ldgrad;
    float *y; /* NULL, or an output, which may be x */
    int64_t ldy;
    clt_dtype type;
} clt_ref_quantize_params;
void clt_ref_quantize(const clt_ref_quantize_params *p);

/* Host form of clt_gemm8_params: `to` has the outputs, the epilogue, m, n, k and k_group; its a, b and form
 * are not used. */
typedef struct {
    clt_gemm8_form form;
    clt_ref_blocks8 a, b;
    clt_ref_gemm_params to;
} clt_ref_gemm8_params;
/* All outputs; uses several threads at large shapes. */
void clt_ref_gemm8(const clt_ref_gemm8_params *p);
/* Output (i, j) alone, for sampled checks at large shapes. */
void clt_ref_gemm8_at(const clt_ref_gemm8_params *p, int64_t i, int64_t j);

/* Output (i, j) with the sum over k in double, and how far from it a row of `numerics: fast` may be. Such a
 * row may add in any order and, as matrix units do, drop bits of addends that are smaller than the largest of
 * a block. It makes fewer than 2k additions, each with an error of at most 2^-23 of a partial sum; so the
 * sum's error is at most k 2^-22 times the sum of |a b|. The epilogue at most doubles that (activations and
 * derivatives have slopes below 2) and adds a few roundings: of the activation's or derivative's input to
 * aux_type, and of the result to c's type. c_before: c[i,j] before the call, used with accumulate. The
 * results: c and pre are values, *_bound the largest allowed |kernel - value|; pre without rounding. Nothing
 * is written to p's tensors. */
typedef struct {
    double c, c_bound, pre, pre_bound;
} clt_ref_gemm_near;
clt_ref_gemm_near clt_ref_gemm_near_at(const clt_ref_gemm_params *p, int64_t i, int64_t j, double c_before);
/* The epilogue's part of it: v is the exact sum, off how far the kernel's sum may be from v. */
clt_ref_gemm_near clt_ref_gemm_near_of(const clt_ref_gemm_params *p, int64_t i, int64_t j, double c_before,
                                       double v, double off);
/* The same for a_sum[i] of a TN product, as a product with a column of ones. c and c_bound are the result;
 * before: a_sum[i] before the call, used with accumulate. */
clt_ref_gemm_near clt_ref_gemm_near_sum(const clt_ref_gemm_params *p, int64_t i, double before);

/* Host form of clt_codes8. */
typedef struct {
    uint8_t *q;
    int64_t ld;
    clt_fp8 format;
    float inverse;
} clt_ref_codes8;
/* Host form of clt_cast_fp8_params; an absent output has no q. type: that of x, to which y is rounded. */
typedef struct {
    int64_t rows, cols;
    const float *x;
    int64_t ldx;
    float scale;
    float *amax;
    clt_fp8 format;
    clt_ref_codes8 along, across;
    clt_dtype type;
    clt_activation act, grad_act;
    const float *grad_pre;
    int64_t ld_grad;
    float *y;
    int64_t ldy;
} clt_ref_cast_fp8_params;
void clt_ref_cast_fp8(const clt_ref_cast_fp8_params *p);

/* Host form of clt_gemm_fp8_params: `to` has the outputs, the epilogue, m, n and k. */
typedef struct {
    clt_ref_codes8 a, b;
    bool split;
    clt_ref_gemm_params to;
} clt_ref_gemm_fp8_params;
/* All outputs; uses several threads at large shapes. */
void clt_ref_gemm_fp8(const clt_ref_gemm_fp8_params *p);
/* Output (i, j) alone, for sampled checks at large shapes. */
void clt_ref_gemm_fp8_at(const clt_ref_gemm_fp8_params *p, int64_t i, int64_t j);
/* As clt_ref_gemm_near_at. A matrix unit adds 32 products to a sum at once and keeps 13 bits below the
 * largest of these addends, so that each of them, and the result, loses at most 2^-13 of it. */
clt_ref_gemm_near clt_ref_gemm_fp8_near_at(const clt_ref_gemm_fp8_params *p, int64_t i, int64_t j,
                                           double c_before);

float clt_ref_act(clt_activation act, float x);      /* the activation */
float clt_ref_act_grad(clt_activation act, float x); /* its derivative */
/* The absolute error that numerics fast allows for GELU and for its derivative
 * (clkernels/include/clt_act_fast.clh), before the result is rounded to `type`. */
double clt_ref_fast_gelu_off(clt_dtype type);
double clt_ref_fast_gelu_grad_off(clt_dtype type);

typedef struct {
    bool rms;
    float eps;
    int64_t rows, cols, heads, rows_per_sample;
    const float *x, *w, *b;
    float *y, *mean, *rstd; /* mean and rstd: outputs of forward (NULL: not stored), inputs of backward */
    int64_t ldx, ldy;
    /* backward only */
    const float *dy, *residual;
    float *dx, *dw, *db;
    int64_t lddy, lddx, ldres;
    bool accumulate;
    float *dx_sum; /* column sums of dx after each element of dx was rounded to sum_type; dx keeps its bits */
    clt_dtype sum_type;
} clt_ref_norm_params;
void clt_ref_norm_forward(const clt_ref_norm_params *p);
void clt_ref_norm_backward(const clt_ref_norm_params *p);
void clt_ref_column_sum(int64_t rows, int64_t cols, int64_t rows_per_sample, const float *x, int64_t ldx,
                        bool accumulate, float *out);

void clt_ref_embedding_forward(int64_t rows, int64_t seq, int64_t cols, const int32_t *ids, const float *wte,
                               const float *wpe, float fraction, float *out);
void clt_ref_embedding_backward(int64_t rows, int64_t seq, int64_t cols, const int32_t *ids, const float *dx,
                                float fraction, float *dwte,
                                float *dwpe); /* adds to dwte, dwpe; NULL: skipped */

typedef struct { /* host form of clt_attention_params and clt_attention_grad_params */
    int64_t batch, seq, heads, kv_heads, head_dim;
    const float *q, *k, *v;
    float *o, *lse;
    int64_t ldq, ldk, ldv, ldo;
    float scale, softcap;
    const float *slopes;
    clt_attention_mask mask;
    int64_t window;
    const int32_t *seq_ids;
    float dropout;
    uint64_t seed, step;
    int64_t first_sample;
    int32_t layer;
    const float *dout;
    float *dq, *dk, *dv;
    int64_t lddout, lddq, lddk, lddv;
    bool accumulate_kv;
} clt_ref_attention_params;
/* The host form of a call: its sizes, row distances and numbers. The caller sets all pointers (slopes and
 * seq_ids too, NULL: off) and, for the backward pass, the members from dout on. */
clt_ref_attention_params clt_ref_attention_of(const clt_attention_params *p);
/* The keys that mask and window let query i see, of the same sample: begin is the first key, end the last key
 * +
 * 1. Sequence ids are not considered. */
int64_t clt_ref_attention_begin(const clt_ref_attention_params *p, int64_t i);
int64_t clt_ref_attention_end(const clt_ref_attention_params *p, int64_t i);
void clt_ref_attention_forward(const clt_ref_attention_params *p);
void clt_ref_attention_backward(const clt_ref_attention_params *p);
/* The same in 8-bit blocks (clkernels/attention8/README.md; head_dim at most 256, lse in units of log 2), and
 * the scale of a block whose largest magnitude is amax. */
void clt_ref_attention8_forward(const clt_ref_attention_params *p);
void clt_ref_attention8_backward(const clt_ref_attention_params *p);
float clt_ref_attention8_scale(float amax);

/* The same for one place, for sampled checks of long sequences. forward_at writes o and lse of one query;
 * dq_at its dq; dkv_at dk and dv of one key. They write D elements each (and one lse) into p's arrays. */
typedef struct {
    int64_t sample, head, row; /* row: position in the sample of the query, in dkv_at of the key; head: query
                                * head, in dkv_at key/value head */
} clt_ref_attention_at;
void clt_ref_attention_forward_at(const clt_ref_attention_params *p, clt_ref_attention_at at);
void clt_ref_attention_dq_at(const clt_ref_attention_params *p, clt_ref_attention_at at);
void clt_ref_attention_dkv_at(const clt_ref_attention_params *p, clt_ref_attention_at at);

/* One query by the formula in double, for bodies that add in any order (numerics: fast) and round
 * probabilities and o to `type`. Writes o[D] and bound[D], the largest allowed difference of each element;
 * returns the log-sum-exp and its bound. p's outputs are not touched. */
typedef struct {
    double lse, lse_bound;
} clt_ref_attention_bound;
clt_ref_attention_bound clt_ref_attention_row(const clt_ref_attention_params *p, clt_dtype type,
                                              clt_ref_attention_at at, double *o, double *bound);
/* All gradients in the same way, from p's o and lse, with the bound of each element. g's dq and dq_bound are
 * [B, T, heads, D], the others [B, T, kv_heads, D], without gaps; none may be NULL. With accumulate_kv the
 * values in p->dk and p->dv are added to dk and dv. Uses several threads. */
typedef struct {
    double *dq, *dk, *dv, *dq_bound, *dk_bound, *dv_bound;
} clt_ref_attention_gradients_out;
void clt_ref_attention_gradients(const clt_ref_attention_params *p, clt_dtype type,
                                 const clt_ref_attention_gradients_out *g);
/* The gradients of one place, as clt_ref_attention_at says, D elements in each array of g: dq_at writes dq
 * and dq_bound, dkv_at the four others. Arrays that a function does not write may be NULL. */
void clt_ref_attention_gradients_dq_at(const clt_ref_attention_params *p, clt_dtype type,
                                       clt_ref_attention_at at, const clt_ref_attention_gradients_out *g);
void clt_ref_attention_gradients_dkv_at(const clt_ref_attention_params *p, clt_dtype type,
                                        clt_ref_attention_at at, const clt_ref_attention_gradients_out *g);

void clt_ref_rope(int64_t rows, int64_t seq, int64_t heads, int64_t head_dim, int64_t dims, float *x,
                  int64_t ldx, const float *cos_sin, bool inverse);
void clt_ref_offset(uint64_t n, const float *x, float *y, float value); /* clt_op_offset */
void clt_ref_dropout(int64_t rows, int64_t seq, int64_t cols, const float *x, const float *residual, float p,
                     uint64_t seed, uint64_t step, int64_t first_sample, int32_t layer, int32_t site,
                     bool whole_samples, float *y);
/* The factor of one element: 0 or 1 / (1 - p). sample: in the global batch; site: CLT_SITE_*; element: its
 * index in the sample, for attention (head * T + query) * T + key. Shared by clt_ref_dropout and attention.
 */
float clt_ref_dropout_factor(float p, uint64_t seed, uint64_t step, int64_t sample, int32_t layer,
                             int32_t site, uint64_t element);

void clt_ref_loss(int64_t rows, int64_t vocab, int64_t ld, float *logits, const int32_t *targets, float scale,
                  float softcap, bool grad, bool apart, float weight, const float *row_weight,
                  float *token_loss, int32_t *correct);

void clt_ref_loss_soft(int64_t rows, int64_t vocab, int64_t ld, float *logits, const float *targets,
                       const int32_t *label, bool grad, float weight, const float *row_weight,
                       float *row_loss, int32_t *rank);

/* clt_op_image.h */
void clt_ref_unfold_patches(int64_t images, int64_t height, int64_t width, int64_t p, int64_t ld,
                            const float *pixels, float *out);
void clt_ref_place_tokens(int64_t images, int64_t tokens, int64_t cols, const float *first,
                          const float *position, float *x);
void clt_ref_mean_tokens(int64_t images, int64_t tokens, int64_t cols, const float *x, float *y);
void clt_ref_mean_tokens_backward(int64_t images, int64_t tokens, int64_t cols, const float *dy, float *dx);

float clt_ref_row_sumsq(const float *x, int64_t n); /* sum of squares by the row rule */
float clt_ref_chunk_sumsq(const float *x);          /* the same of CLT_CHUNK elements */
/* status of clt_op_norm_status; n: number of chunks */
void clt_ref_norm_status(const float *chunk_sums, uint64_t n, float threshold, float inv_scale,
                         float status[3]);
/* clt_op_sum_parts; in[i]: part i as fp32 [s->count], rounded already if it is bf16 */
void clt_ref_sum_parts(const clt_sum_parts *s, const float *const *in, float *out);
uint64_t clt_ref_hash(const float *x, uint64_t count, uint64_t first); /* the total of clt_op_hash */
void clt_ref_guard(uint64_t n, const float *x, float flag, float *g);  /* clt_op_guard */
int32_t clt_ref_greedy(const float *x, int64_t n);                     /* clt_op_greedy of one row */
void clt_ref_adamw(uint64_t n, float *p, const float *g, float *m, float *v, const clt_optimizer_group *group,
                   float clip);
void clt_ref_lion(uint64_t n, float *p, const float *g, float *m, const clt_optimizer_group *group,
                  float clip);
void clt_ref_sgd(uint64_t n, float *p, const float *g, float *m, const clt_optimizer_group *group,
                 float clip);
/* clt_op_lamb_*: g becomes the direction; the sums of a tensor's segments; the step. */
void clt_ref_lamb_direction(uint64_t n, const float *p, float *g, float *m, float *v,
                            const clt_optimizer_group *group, float clip);
float clt_ref_lamb_ratio(uint64_t segments, const float *weights, const float *directions,
                         const clt_optimizer_group *group);
void clt_ref_lamb_apply(uint64_t n, float *p, const float *u, const clt_optimizer_group *group, float ratio);

uint16_t clt_ref_f32_to_bf16(float x);
float clt_ref_bf16_to_f32(uint16_t b);
uint16_t clt_ref_f32_to_f16(float x);
float clt_ref_f16_to_f32(uint16_t h);
/* The saturating casts of docs/numerics.md, "8-bit floating point". The value of a 16-bit number is exact in
 * fp32, so its cast is that of its fp32 value. */
uint8_t clt_ref_f32_to_fp8(clt_fp8 format, float x);
float clt_ref_fp8_to_f32(clt_fp8 format, uint8_t code);
/* Narrow converts n floats to stored elements of `type` (rounding to nearest even), widen converts back. */
void clt_ref_narrow(clt_dtype type, const float *x, size_t n, void *out);
void clt_ref_widen(clt_dtype type, const void *in, size_t n, float *x);
/* Reads the n elements of `type` at r from the device, waiting for it, and widens them to x. r.off counts
 * elements of `type`. CLT_NO_MEMORY, or the errors of clt_buffer_read. */
clt_status clt_ref_read_as(clt_ref r, clt_dtype type, float *x, size_t n);
/* Rounds n elements to `type` in place, so that they hold values of that type. The oracle of an operation on
 * 16-bit types is: round the inputs, run the fp32 oracle, round the results. */
void clt_ref_round(clt_dtype type, float *x, size_t n);
float clt_ref_rounded(clt_dtype type, float x); /* one element, rounded */

#endif
