/* clt_ops: the operations that a training step is made of, each in its own file under runtime/ops/.
 *
 * An operation is a C function that takes a params struct of sizes and places (clt_ref), picks the kernel
 * variant for this device and shape, and queues launches; it never waits and never allocates after its first
 * call at a shape. What it computes, to the last bit, is defined in docs/numerics.md and written out in plain
 * C by the oracle of the same name in runtime/ops/ref/clt_ref.h; every variant gives the oracle's bits in
 * `numerics: exact`, and is checked against it on this device before it may be used.
 *
 * Types. Tensors are fp32 unless a params struct names a type field for them (zero: CLT_F32). 16-bit elements
 * are stored as their bits; an operation widens what it reads to fp32 (exactly), computes in fp32 and rounds
 * to nearest even once at each store. A row that requires nothing more gives the bits of the fp32 oracle on
 * the widened inputs, rounded; rows for matrix units add in an order of their own and are checked against a
 * stated bound.
 *
 * Conventions. Matrices are row-major. Dimension letters: B batch, T sequence, C d_model, H heads,
 * D head size, V vocabulary. Rows are tokens, sample after sample: row = sample * T + position. `ld*` is the
 * distance between rows in elements. A clt_ref with buf NULL is an absent optional tensor. `accumulate` false
 * means the target starts from +0 (it need not be cleared), true that the result is added to it. */
#ifndef CLT_OPS_H
#define CLT_OPS_H

#include "runtime/device/clt_device.h"

typedef struct clt_ops clt_ops;

typedef enum { CLT_EXACT, CLT_FAST } clt_numerics;
typedef enum { CLT_F32, CLT_BF16, CLT_F16 } clt_dtype; /* 16-bit types are stored as ushort bits */
static inline uint64_t clt_dtype_bytes(clt_dtype t) {
    return t == CLT_F32 ? 4 : 2;
}

/* Whether operations that choose among kernels by shape use what was measured: never; what is in the device's
 * cache folder; and measure what is not there when a shape is first met, within tune_seconds. */
typedef enum { CLT_TUNE_OFF, CLT_TUNE_CACHE, CLT_TUNE_FILL } clt_tune_mode;

typedef struct {
    clt_numerics numerics;
    bool skip_check; /* tests of the checker only: use variants without their check */
    clt_tune_mode tune;
    double tune_seconds;
    bool tune_again; /* measure anew what is in the cache */
} clt_ops_params;
clt_ops_params clt_ops_params_default(void);

/* Loads the variant tables (clkernels/<op>/<op>.vt) and filters them by the device's facts. */
clt_status clt_ops_create(clt_device *dev, const clt_ops_params *p, clt_ops **out);
void clt_ops_destroy(clt_ops *ops);

/* A measured choice: a line of tune.csv (clt_tune.h). */
typedef struct {
    char op[32], shape[96], variant[48];
    double seconds; /* of a call; 0: no row could take part */
    double error;   /* against the oracle, relative to the bound of any order; 0: the same bits */
    char key[33], device[128], driver[128];
    int today; /* whether the key is today's: 1 yes, -1 no, 0 not looked at */
} clt_tuned;
/* The key of a checked-in choice (clkernels/tuned.csv), which is not bound to a driver or a kernel's text. */
#define CLT_TUNE_KNOWN "-"
/* A choice as a line with this key. */
void clt_tuned_add(clt_str *b, const clt_tuned *t, const char *key);
/* What is known of this and other devices; borrowed until the next operation. */
const clt_tuned *clt_ops_tuned(const clt_ops *ops, int *n);
/* Writes what was measured to the cache folder now, not when ops is destroyed. false, with a warning: it
 * could not be kept. */
bool clt_ops_keep_tuned(clt_ops *ops);
clt_device *clt_ops_device(const clt_ops *ops);
clt_numerics clt_ops_numerics(const clt_ops *ops);
/* While on, an operation that would check or time kernels first returns CLT_STOPPED once a signal asks the
 * run to stop (clt_signal_received). Off at first: the caller has to see to it that all ranks leave together.
 */
void clt_ops_let_stop(clt_ops *ops, bool on);
bool clt_ops_stops(const clt_ops *ops); /* whether it would */
/* Device scratch bytes that the operations hold now (their workspaces), for the memory table. */
uint64_t clt_ops_workspace_bytes(const clt_ops *ops);

/* --- GEMM (clt_op_gemm.c, clkernels/gemm) --- */

typedef enum {
    CLT_GEMM_NT, /* c[m,n] = a[m,k] * b[n,k]^T    forward: x * W^T */
    CLT_GEMM_NN, /* c[m,n] = a[m,k] * b[k,n]      data gradient: dy * W */
    CLT_GEMM_TN  /* c[m,n] = a[k,m]^T * b[k,n]    weight gradient: dy^T * x, k counts tokens */
} clt_gemm_form;

/* Activations of spec name; in epilogues and as operations of their own. */
typedef enum {
    CLT_ACT_NONE,
    CLT_ACT_GELU,       /* 0.5 x (1 + erf(x/sqrt 2)) */
    CLT_ACT_GELU_TANH,  /* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
    CLT_ACT_QUICK_GELU, /* x sigmoid(1.702 x) */
    CLT_ACT_RELU,
    CLT_ACT_SILU,
    CLT_ACT_TANH,
    CLT_ACT_SIGMOID,
    CLT_ACT_RELU2,      /* relu(x)^2 */
    CLT_ACT_ELU,        /* alpha 1 */
    CLT_ACT_LEAKY_RELU, /* slope 0.01 */
    CLT_ACT_SOFTPLUS,   /* log(1 + e^x), x above 20 */
    CLT_ACT_MISH,       /* x tanh(softplus(x)) */
    CLT_ACT_COUNT
} clt_activation;

/* v = chain over k (TN: per group of k_group rows one chain from +0, group results added ascending);
 * v = v + bias[n];  pre[m,n] = v;  v = act(v);
 * v = v * act'(grad_pre[m,n]) (with grad_act, the derivative of that activation);
 * v = residual[m,n] + v;
 * c = v, or c + v with accumulate. Steps whose tensor is absent are left out. TN takes no epilogue, but
 * a_sum[m] (+)= sum over k of a[k,m] (a layer's bias gradient beside its weight gradient), exact rows with
 * the words of clt_op_column_sum in samples of k_group rows. */
typedef struct {
    clt_gemm_form form;
    int64_t m, n, k;
    int64_t k_group; /* TN: tokens per sample, divides k; others: ignored */
    clt_ref a, b, c;
    int64_t lda, ldb, ldc;
    bool accumulate; /* TN: the first group result is added to c, not to +0; a_sum, too */
    clt_ref a_sum;   /* TN: fp32 [m], or absent */
    clt_ref bias;    /* [n] */
    clt_activation act;
    clt_ref pre; /* [m,n], ldc: gets the value before the activation */
    int64_t ldpre;
    clt_activation grad_act;
    clt_ref grad_pre; /* [m,n] */
    int64_t ldgrad;
    clt_ref again; /* [m,n], with grad_act: gets act(grad_pre), for a caller that has not kept it */
    int64_t ldagain;
    clt_ref residual; /* [m,n], fp32 */
    int64_t ldres;
    clt_dtype in_type;  /* of a and b */
    clt_dtype c_type;   /* of c; accumulate, and TN of more than one group, want fp32 */
    clt_dtype aux_type; /* of pre, grad_pre and again */
} clt_gemm_params;
clt_status clt_op_gemm(clt_ops *ops, const clt_gemm_params *p);
/* Allocates workspaces and checks and compiles what this shape class needs, without a launch that counts. */
clt_status clt_op_gemm_prepare(clt_ops *ops, const clt_gemm_params *p);
/* Id of the variant that this call takes, "" if there is none (the reason was printed). Borrowed from ops. */
const char *clt_op_gemm_variant(clt_ops *ops, const clt_gemm_params *p);
/* Upper bound of the workspace that this call needs on this kind of device, for the memory plan (no device).
 */
uint64_t clt_op_gemm_workspace(clt_device_type type, const clt_gemm_params *p);

/* --- normalisation (clt_op_norm.c, clkernels/norm) --- */

/* y = (x - mean) * rstd * w + b (layernorm), y = x * rstd * w (rms). One row is `cols` elements; with heads >
 * 1 a token row holds `heads` such rows side by side (row r: token r / heads, columns (r % heads) * cols
 * ...). mean and rstd: [rows * heads], saved for backward (mean unused and absent with rms). w, b [cols]
 * optional. */
typedef struct {
    bool rms;
    float eps;
    int64_t rows, cols, heads; /* rows: tokens */
    clt_ref x, y, w, b, mean, rstd;
    int64_t ldx, ldy;
    clt_dtype x_type, y_type;
} clt_norm_params;
clt_status clt_op_norm_forward(clt_ops *ops, const clt_norm_params *p);

/* dx = [residual +] dnorm; dw, db over tokens (blocks of 64 tokens inside a sample, see docs/numerics.md).
 * rows_per_sample divides rows. dx may be the same place as residual or dy. */
typedef struct {
    bool rms;
    float eps;
    int64_t rows, cols, heads, rows_per_sample;
    clt_ref x, w, mean, rstd, dy, dx, residual, dw, db;
    int64_t ldx, lddy, lddx, ldres;
    bool accumulate; /* dw and db */
    clt_dtype x_type, dy_type;
    clt_dtype dx_type; /* of dx and residual */
    /* What a caller would make next from the same rows, optional, laid out without gaps (so ldx and lddx are
     * heads * cols): dx (then fp32) once more as copy_type; that copy's column sums [cols], or without a
     * copy those of dx, with the words of clt_op_column_sum (`accumulate` holds for them too); and the
     * forward pass's output again, from x, w and b and the saved mean and rstd. */
    clt_ref dx_copy, dx_sum, y, b;
    clt_dtype copy_type, y_type;
} clt_norm_grad_params;
clt_status clt_op_norm_backward(clt_ops *ops, const clt_norm_grad_params *p);

/* out[cols] (+)= sum over rows of x, in the order of docs/numerics.md rule "down a column" (bias gradients).
 */
typedef struct {
    int64_t rows, cols, rows_per_sample, ldx;
    clt_ref x, out;
    bool accumulate;
    clt_dtype x_type;
} clt_column_sum_params;
clt_status clt_op_column_sum(clt_ops *ops, const clt_column_sum_params *p);

/* From here on dw, db and dx_sum of norm backward may lack their last launch, which makes those of several
 * calls at once; nobody may look at them before clt_op_sums_now, after which they are there. The words are
 * the same. workspace: for the memory plan, as clt_op_gemm_workspace. */
void clt_op_sums_later(clt_ops *ops);
clt_status clt_op_sums_now(clt_ops *ops);
uint64_t clt_op_sums_workspace(clt_device_type type, int64_t rows, int64_t cols, int64_t rows_per_sample);

/* --- embedding (clt_op_embedding.c, clkernels/embedding) --- */

/* out[r] = wte[ids[r]] (+ wpe[r % T]); fraction f != 1: f*x + (1-f)*x, as the model's embedding_fraction. */
typedef struct {
    int64_t rows, seq, cols, vocab;
    clt_ref ids; /* int32 [rows] */
    clt_ref wte, wpe, out;
    float fraction;
} clt_embedding_params;
clt_status clt_op_embedding_forward(clt_ops *ops, const clt_embedding_params *p);

/* Lookup gradients without atomics: the host sorts the microbatch's (token id, row) pairs once; row lists of
 * each distinct id are ascending, so each table row is one chain over (sample, position).
 * first[i] != 0: this is the first time in the lane that unique id i occurs: its row starts from +0.
 * dwte[id] (+)= fraction * sum of dx rows.  dwpe[t] (+)= sum over samples (accumulate_wpe false: from +0). */
typedef struct {
    int64_t rows, seq, cols, unique;
    clt_ref dx;                            /* [rows, cols] */
    clt_ref ids, first, row_begin, row_of; /* int32: [unique], [unique], [unique+1], [rows] */
    clt_ref dwte, dwpe;
    bool accumulate_wpe;
    float fraction;
} clt_embedding_grad_params;
clt_status clt_op_embedding_backward(clt_ops *ops, const clt_embedding_grad_params *p);
/* dst[ids[i]] += src[ids[i]] for `unique` table rows (tied wte: the lookup accumulator into the head's). */
clt_status clt_op_embedding_add_rows(clt_ops *ops, clt_ref dst, clt_ref src, clt_ref ids, int64_t unique,
                                     int64_t cols);

/* --- attention (clt_op_attention.c, clkernels/attention) --- */

/* Causal attention in the flash form. Column h*D of a q row is head h; query head h uses key/value head
 * h / (H / KV). Query i sees keys j with j <= i, j >= i - window (window >= 0), seq_ids equal. */
typedef struct {
    int64_t batch, seq, heads, kv_heads, head_dim;
    clt_ref q, k, v, o, lse; /* lse: [B, H, T] */
    int64_t ldq, ldk, ldv, ldo;
    float scale;     /* softmax scale */
    float softcap;   /* 0: off */
    clt_ref slopes;  /* ALiBi: [H] */
    int64_t window;  /* -1: off */
    clt_ref seq_ids; /* int32 [B, T] */
    float dropout;   /* probability, 0: off */
    uint64_t seed;   /* dropout: counter words, docs/numerics.md */
    uint64_t step;
    int64_t first_sample; /* place of sample 0 in the global batch */
    int32_t layer;
    clt_dtype type; /* of q, k, v, o, and in the backward pass of dout, dq, dk, dv */
} clt_attention_params;
clt_status clt_op_attention_forward(clt_ops *ops, const clt_attention_params *p);
/* The last `rows` of the p->seq rows that clt_op_attention_forward gives, in exact numerics the same words:
 * for a text that grows, whose earlier keys and values are kept. q and o begin with the first of these rows,
 * k and v with position 0; lse is not written. One sample, no sequence ids, no dropout; CLT_FAIL otherwise.
 */
clt_status clt_op_attention_last(clt_ops *ops, const clt_attention_params *p, int64_t rows);

typedef struct {
    clt_attention_params fwd; /* o and lse are inputs here */
    clt_ref dout, dq, dk, dv; /* dq, dk, dv are written, not added to */
    int64_t lddout, lddq, lddk, lddv;
    bool accumulate_kv; /* dk and dv are added to (layers that share keys and values) */
    /* Memory in which nothing stands during the call, or none, at a multiple of 8 elements of fwd.type. Rows
     * that keep what others compute twice use it; without it they take up to 1152 MiB of scratch of their
     * own. */
    clt_ref spare;
    uint64_t spare_elements;
} clt_attention_grad_params;
clt_status clt_op_attention_backward(clt_ops *ops, const clt_attention_grad_params *p);
/* Ids of the rows that these calls take, "" if there is none (the reason was printed). Borrowed from ops. */
const char *clt_op_attention_variant(clt_ops *ops, const clt_attention_params *p);
const char *clt_op_attention_backward_variant(clt_ops *ops, const clt_attention_grad_params *p);
uint64_t clt_op_attention_workspace(clt_device_type type, const clt_attention_params *p);

/* --- elementwise (clt_op_activation.c, clkernels/activation) --- */

/* All tensors of one call are of `type`, factors and tables fp32. */

/* y = act(x), [rows, cols]. */
clt_status clt_op_activation_forward(clt_ops *ops, clt_dtype type, clt_activation act, int64_t rows,
                                     int64_t cols, clt_ref x, int64_t ldx, clt_ref y, int64_t ldy);
/* dx = dy * act'(x); dx may be dy. */
clt_status clt_op_activation_backward(clt_ops *ops, clt_dtype type, clt_activation act, int64_t rows,
                                      int64_t cols, clt_ref x, int64_t ldx, clt_ref dy, int64_t lddy,
                                      clt_ref dx, int64_t lddx);
/* Gated MLP: y = act(gate) * up;  dgate = dy * up * act'(gate), dup = dy * act(gate). */
clt_status clt_op_glu_forward(clt_ops *ops, clt_dtype type, clt_activation act, int64_t rows, int64_t cols,
                              clt_ref gate, int64_t ldgate, clt_ref up, int64_t ldup, clt_ref y, int64_t ldy);
clt_status clt_op_glu_backward(clt_ops *ops, clt_dtype type, clt_activation act, int64_t rows, int64_t cols,
                               clt_ref gate, int64_t ldgate, clt_ref up, int64_t ldup, clt_ref dy,
                               int64_t lddy, clt_ref dgate, int64_t lddgate, clt_ref dup, int64_t lddup);
/* y = clamp(x, -limit, limit);  dx = |x| <= limit ? dy : +0 (x: the values before the clamp). */
clt_status clt_op_clip_forward(clt_ops *ops, clt_dtype type, float limit, int64_t rows, int64_t cols,
                               clt_ref x, int64_t ldx, clt_ref y, int64_t ldy);
clt_status clt_op_clip_backward(clt_ops *ops, clt_dtype type, float limit, int64_t rows, int64_t cols,
                                clt_ref x, int64_t ldx, clt_ref dy, int64_t lddy, clt_ref dx, int64_t lddx);
/* Rotary positions, half-split pairs (i, i + D/2), in place on `heads` heads of each row; cos_sin: [T, D/2,
 * 2] from the host (clt_rope_table). inverse: the gradient (rotation by the negative angle). */
clt_status clt_op_rope(clt_ops *ops, clt_dtype type, int64_t rows, int64_t seq, int64_t heads,
                       int64_t head_dim, clt_ref x, int64_t ldx, clt_ref cos_sin, bool inverse);
/* x[r, :] *= factor[r % seq] (attn_temperature_tuning); the same for the gradient. */
clt_status clt_op_scale_rows(clt_ops *ops, clt_dtype type, int64_t rows, int64_t seq, int64_t cols, clt_ref x,
                             int64_t ldx, clt_ref factor);
/* y = [residual +] x * mask * 1/(1-p): counter {step, sample in the global batch, layer and site, element/4}.
 * The backward pass is the same call on the gradient. y may be x. */
typedef struct {
    int64_t rows, seq, cols;
    clt_ref x, y, residual;
    float p;
    uint64_t seed, step;
    int64_t first_sample;
    int32_t layer, site;
    clt_dtype x_type;
    clt_dtype y_type; /* of y and residual */
} clt_dropout_params;
clt_status clt_op_dropout(clt_ops *ops, const clt_dropout_params *p);
/* dst += src, `count` contiguous elements. */
clt_status clt_op_add(clt_ops *ops, clt_ref dst, clt_ref src, uint64_t count);
/* dst[r, 0..cols) = src[r, 0..cols) */
clt_status clt_op_copy_rows(clt_ops *ops, clt_dtype type, int64_t rows, int64_t cols, clt_ref src,
                            int64_t ldsrc, clt_ref dst, int64_t lddst);

/* --- loss (clt_op_loss.c, clkernels/loss) --- */

/* Softmax cross-entropy over rows of logits [rows, V]. z = logits * scale; softcap c: z = c * tanh(z / c).
 * targets: int32 [rows], -100 (any negative): ignored. token_loss[r] = log sum exp(z) - z[target], +0 if
 * ignored. With `grad`, logits are replaced in place by d(sum of token losses * weight)/d(logits): no second
 * copy. weight: 1/N of the global batch, rounded once. correct (optional, int32 [rows]): 1 if target is the
 * argmax (the lowest index on ties). */
typedef struct {
    int64_t rows, vocab, ld;
    clt_ref logits, targets, token_loss, correct;
    float scale, softcap;
    bool grad;
    float weight;
    clt_ref row_weight; /* optional [rows]: used instead of weight (per-sample means) */
    clt_dtype type;     /* of logits */
} clt_loss_params;
clt_status clt_op_loss(clt_ops *ops, const clt_loss_params *p);
/* out[s] = sum of a sample's token losses along the row rule: x [samples, seq] -> out [samples]. */
clt_status clt_op_row_sum(clt_ops *ops, int64_t rows, int64_t cols, clt_ref x, int64_t ldx, clt_ref out);

/* --- slab operations (clt_op_optimizer.c, clt_op_reduce.c; clkernels/optimizer, reduce) --- */

/* Sum of squares of each chunk (65,536 elements) of x [chunks * 65536] into out[chunks], along the row rule.
 */
clt_status clt_op_chunk_sumsq(clt_ops *ops, clt_ref x, uint64_t chunks, clt_ref out);
/* The same of `count` elements, into out[0]. */
clt_status clt_op_sumsq(clt_ops *ops, clt_ref x, uint64_t count, clt_ref out);
/* From all chunk sums of the slab: status[0] = norm = inv_scale * sqrt(sum along the row rule); status[1] =
 * clip coefficient inv_scale * min(1, threshold / (norm + 1e-6)) (inv_scale * 1 when threshold <= 0);
 * status[2] = 1 if norm is finite, else 0. inv_scale takes away the factor of a loss that was scaled (the
 * flag then tells the scaler whether the step counted); a power of two, so exact; 1 without scaling. */
clt_status clt_op_norm_status(clt_ops *ops, clt_ref chunk_sums, uint64_t chunks, float threshold,
                              float inv_scale, clt_ref status);
/* g[0] becomes NaN if an element of x [count] is not finite or flag[0] is not 1; otherwise it stays as it is.
 * So a loss that alone is not finite, and a bad step before this one, keep the weights as they are, on every
 * rank. */
clt_status clt_op_guard(clt_ops *ops, clt_ref x, uint64_t count, clt_ref flag, clt_ref g);
/* A hash of the bits of x [count], for comparing copies: the sum modulo 2^64 of CLT_HASH_SUMS numbers of 8
 * bytes that it writes to sums.buf from number sums.off on (clkernels/hash/hash.cl has the formula). It
 * depends on the bits and on their place alone: x begins at element `first` of what is hashed, and the hashes
 * of its parts add up to that of the whole. Two that differ in one element are never equal. count and first
 * are even. */
enum { CLT_HASH_SUMS = 256 };
clt_status clt_op_hash(clt_ops *ops, clt_ref x, uint64_t count, uint64_t first, clt_ref sums);
uint64_t clt_hash_total(const uint64_t *sums, size_t n);
/* g = clamp(g, -limit, limit) (clipping_type value). */
clt_status clt_op_clip_values(clt_ops *ops, clt_ref g, uint64_t count, float limit);

typedef struct {           /* one parameter group; host doubles rounded once, docs/numerics.md */
    float lr;              /* Lion: lr_t */
    float decay;           /* wf = 1 - (lr_t/lr_0) * wd; exactly 1: not applied */
    float step_size;       /* AdamW: st = lr_t / (1 - b1^t) */
    float bias_correction; /* AdamW: bc = sqrt(1 - b2^t) */
    float beta1, beta2, one_minus_beta1, one_minus_beta2, eps;
    float frozen; /* not 0: this group is not updated */
} clt_optimizer_group;
enum { CLT_MAX_PARAM_GROUPS = 64 };

/* One launch over a contiguous piece of the slab of `chunks` chunks. groups: floats on the device, laid out
 * as an array of clt_optimizer_group; group_of_block: one byte per 64 elements (tensors start at multiples of
 * 64) with the index of its group. status as of clt_op_norm_status: nothing is written unless status[2] is 1.
 */
typedef struct {
    uint64_t chunks;
    clt_ref p, g, m, v; /* v unused by Lion */
    clt_ref groups;
    clt_ref group_of_block; /* uint8 [chunks * 1024] */
    clt_ref status;
    clt_ref copy; /* optional: gets the new weights as copy_type, for 16-bit compute; also of frozen groups */
    clt_dtype copy_type;
} clt_optimizer_params;
clt_status clt_op_adamw(clt_ops *ops, const clt_optimizer_params *p);
clt_status clt_op_lion(clt_ops *ops, const clt_optimizer_params *p);

/* --- casts (clt_op_cast.c, clkernels/cast) --- */

/* dst = (type) src, round to nearest even, NaN stays NaN (quiet, sign kept). */
clt_status clt_op_cast(clt_ops *ops, clt_dtype from, clt_dtype to, clt_ref src, clt_ref dst, uint64_t count);

/* --- finding what broke --- */

/* count[0] (uint32) += number of elements that are NaN or infinite; for the replay of a bad step. */
clt_status clt_op_count_nonfinite(clt_ops *ops, clt_dtype type, clt_ref x, uint64_t count, clt_ref counter);

#endif
