/* clt_ref: the oracle. Every operation of clt_ops.h in plain C over host arrays, written for clarity instead
 * of speed, in exactly the order that docs/numerics.md defines. Tests compare kernels with it by memcmp.
 * Strides and meanings are those of the params structs in clt_ops.h; pointers here already include the
 * offset. Functions with the suffix `_f64` compute the formula in double: the oracle of numerics fast and of
 * results without an exact definition. */
#ifndef CLT_REF_H
#define CLT_REF_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/ops/clt_ops.h"

/* The row rule: 64 lanes, lane l adds x[l], x[l+64], ... from +0, then the binary tree l += l+32 ... l+1. */
float clt_ref_row_sum(const float *x, int64_t n);

/* Host form of clt_gemm_params; NULL pointers are absent tensors. Elements of every type are floats here:
 * inputs should be values of their type, c and pre are rounded to theirs. */
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
/* The host form of a call; the caller adds the tensors. */
clt_ref_gemm_params clt_ref_gemm_of(const clt_gemm_params *p);
void clt_ref_gemm(const clt_ref_gemm_params *p);
/* Only output (i, j): for sampled checks at large shapes. Writes c (and pre) at that place only. */
void clt_ref_gemm_at(const clt_ref_gemm_params *p, int64_t i, int64_t j);

/* Output (i, j) with the sum over k in double, and how far from it a row of `numerics: fast` may be. Such a
 * row may add in any order and, as matrix units do, drop bits of addends that are smaller than the largest of
 * a block. It makes fewer than 2k additions, each with an error of at most 2^-23 of a partial sum; so the
 * sum's error is at most k 2^-22 times the sum of |a b|. The epilogue at most doubles that (activations and
 * derivatives have slopes below 2) and adds a few roundings: of the activation's or derivative's input to
 * aux_type, and of the result to c's type. c_before: c's element before the call. */
typedef struct {
    double c, c_bound, pre, pre_bound;
} clt_ref_gemm_near;
clt_ref_gemm_near clt_ref_gemm_near_at(const clt_ref_gemm_params *p, int64_t i, int64_t j, double c_before);
/* The same for a TN product's a_sum[i], as a product with a column of ones (c and c_bound). */
clt_ref_gemm_near clt_ref_gemm_near_sum(const clt_ref_gemm_params *p, int64_t i, double before);

float clt_ref_act(clt_activation act, float x);      /* the activation */
float clt_ref_act_grad(clt_activation act, float x); /* its derivative */
/* The error allowed with numerics fast for GELU and its derivative (clkernels/include/clt_act_fast.clh),
 * before rounding to this type. */
double clt_ref_fast_gelu_off(clt_dtype type);
double clt_ref_fast_gelu_grad_off(clt_dtype type);

typedef struct {
    bool rms;
    float eps;
    int64_t rows, cols, heads, rows_per_sample;
    const float *x, *w, *b;
    float *y, *mean, *rstd; /* mean and rstd are inputs of backward */
    int64_t ldx, ldy;
    /* backward only */
    const float *dy, *residual;
    float *dx, *dw, *db;
    int64_t lddy, lddx, ldres;
    bool accumulate;
    float *dx_sum; /* column sums of dx, rounded to sum_type */
    clt_dtype sum_type;
} clt_ref_norm_params;
void clt_ref_norm_forward(const clt_ref_norm_params *p);
void clt_ref_norm_backward(const clt_ref_norm_params *p);
void clt_ref_column_sum(int64_t rows, int64_t cols, int64_t rows_per_sample, const float *x, int64_t ldx,
                        bool accumulate, float *out);

void clt_ref_embedding_forward(int64_t rows, int64_t seq, int64_t cols, const int32_t *ids, const float *wte,
                               const float *wpe, float fraction, float *out);
void clt_ref_embedding_backward(int64_t rows, int64_t seq, int64_t cols, const int32_t *ids, const float *dx,
                                float fraction, float *dwte, float *dwpe); /* both accumulate */

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
/* The host form of a call: its sizes, row distances and numbers. The caller adds tensors and the fields of
 * the backward pass. */
clt_ref_attention_params clt_ref_attention_of(const clt_attention_params *p);
/* The range of query row i: its first key, and the key after its last one. */
int64_t clt_ref_attention_begin(const clt_ref_attention_params *p, int64_t i);
int64_t clt_ref_attention_end(const clt_ref_attention_params *p, int64_t i);
void clt_ref_attention_forward(const clt_ref_attention_params *p);
void clt_ref_attention_backward(const clt_ref_attention_params *p);

/* The same for one place, for sampled checks of long sequences: output and log-sum-exp of a query row; its
 * row of dq; and the rows of dk and dv of a key, where `head` is a key/value head and `row` the key. */
typedef struct {
    int64_t sample, head, row;
} clt_ref_attention_at;
void clt_ref_attention_forward_at(const clt_ref_attention_params *p, clt_ref_attention_at at);
void clt_ref_attention_dq_at(const clt_ref_attention_params *p, clt_ref_attention_at at);
void clt_ref_attention_dkv_at(const clt_ref_attention_params *p, clt_ref_attention_at at);

/* One query row by the formula in double, for bodies that add in any order (numerics: fast) and round
 * probabilities to `type`: o[D], and by how much each element (bound[D]) and the log-sum-exp may differ. */
typedef struct {
    double lse, lse_bound;
} clt_ref_attention_bound;
clt_ref_attention_bound clt_ref_attention_row(const clt_ref_attention_params *p, clt_dtype type,
                                              clt_ref_attention_at at, double *o, double *bound);
/* The gradients in the same way, from p's o and lse: [B, T, heads, D] and [B, T, kv_heads, D], contiguous,
 * all written; with accumulate_kv the values in p->dk and p->dv are added. */
typedef struct {
    double *dq, *dk, *dv, *dq_bound, *dk_bound, *dv_bound;
} clt_ref_attention_gradients_out;
void clt_ref_attention_gradients(const clt_ref_attention_params *p, clt_dtype type,
                                 const clt_ref_attention_gradients_out *g);
/* Those of one row, D elements each: dq, or dk and dv; the others may be NULL. */
void clt_ref_attention_gradients_dq_at(const clt_ref_attention_params *p, clt_dtype type,
                                       clt_ref_attention_at at, const clt_ref_attention_gradients_out *g);
void clt_ref_attention_gradients_dkv_at(const clt_ref_attention_params *p, clt_dtype type,
                                        clt_ref_attention_at at, const clt_ref_attention_gradients_out *g);

void clt_ref_rope(int64_t rows, int64_t seq, int64_t heads, int64_t head_dim, float *x, int64_t ldx,
                  const float *cos_sin, bool inverse);
void clt_ref_dropout(int64_t rows, int64_t seq, int64_t cols, const float *x, const float *residual, float p,
                     uint64_t seed, uint64_t step, int64_t first_sample, int32_t layer, int32_t site,
                     float *y);
/* Key, counter and threshold of one dropout element, shared by clt_ref_dropout and attention. */
float clt_ref_dropout_factor(float p, uint64_t seed, uint64_t step, int64_t sample, int32_t layer,
                             int32_t site, uint64_t element);

void clt_ref_loss(int64_t rows, int64_t vocab, int64_t ld, float *logits, const int32_t *targets, float scale,
                  float softcap, bool grad, float weight, const float *row_weight, float *token_loss,
                  int32_t *correct);

float clt_ref_row_sumsq(const float *x, int64_t n);
float clt_ref_chunk_sumsq(const float *x); /* one chunk */
/* status[0..2] of clt_op_norm_status */
void clt_ref_norm_status(const float *chunk_sums, uint64_t n, float threshold, float inv_scale,
                         float status[3]);
uint64_t clt_ref_hash(const float *x, uint64_t count, uint64_t first); /* the total of clt_op_hash */
void clt_ref_guard(uint64_t n, const float *x, float flag, float *g);  /* clt_op_guard */
void clt_ref_adamw(uint64_t n, float *p, const float *g, float *m, float *v, const clt_optimizer_group *group,
                   float clip);
void clt_ref_lion(uint64_t n, float *p, const float *g, float *m, const clt_optimizer_group *group,
                  float clip);

uint16_t clt_ref_f32_to_bf16(float x);
float clt_ref_bf16_to_f32(uint16_t b);
uint16_t clt_ref_f32_to_f16(float x);
float clt_ref_f16_to_f32(uint16_t h);
/* Converts n elements between fp32 and storage as `type`; rounds n elements to `type` in place. */
void clt_ref_narrow(clt_dtype type, const float *x, size_t n, void *out);
void clt_ref_widen(clt_dtype type, const void *in, size_t n, float *x);
/* The n elements of `type` at r, read from the device and widened. */
clt_status clt_ref_read_as(clt_ref r, clt_dtype type, float *x, size_t n);
/* The oracle of a typed operation: clt_ref_round of its inputs, the fp32 oracle, clt_ref_round of its
 * results. */
void clt_ref_round(clt_dtype type, float *x, size_t n);
float clt_ref_rounded(clt_dtype type, float x); /* the same of one */

#endif
