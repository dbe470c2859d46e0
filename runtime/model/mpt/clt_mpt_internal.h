/* clt_mpt_internal: what the files of the MPT share: its state on a device, and the parts of its passes. The
 * model is LLM Foundry's MPT; formulas and the orders of sums are in docs/numerics.md.
 *
 * Rows are tokens, sample after sample; C d_model, H query heads, KV key/value heads, D head size, F hidden
 * width of the MLP, V vocabulary, T sequence. Only for this folder and runtime/model/hf. */
#ifndef CLT_MPT_INTERNAL_H
#define CLT_MPT_INTERNAL_H

#include "runtime/model/mpt/clt_mpt_config.h"
#include "runtime/device/clt_mark.h"
#include "runtime/device/clt_sequence.h"
#include "runtime/ops/clt_dropout.h"

typedef struct clt_mpt clt_mpt;

/* --- parameters (clt_mpt_params.c), as the members of clt_model_family --- */

clt_status clt_mpt_table(const clt_model_config *config, clt_slab_table *table);
double clt_mpt_train_flops_per_token(const clt_model_config *config, int64_t seq);
void clt_mpt_init_range(const clt_model_config *config, const clt_slab_table *table, int entry, uint64_t seed,
                        uint64_t first, uint64_t count, float *out);

/* How a tensor is filled: a, or a * normal, or a + (b - a) * u with uniform u; then divided. */
typedef struct {
    enum { CLT_MPT_INIT_CONSTANT, CLT_MPT_INIT_NORMAL, CLT_MPT_INIT_UNIFORM } kind;
    double a, b, divisor;
} clt_mpt_init_rule;
/* Elements [first, first + count) of tensor `entry`, of counter-based random numbers. */
void clt_mpt_init_fill(const clt_mpt_init_rule *rule, int entry, uint64_t seed, uint64_t first,
                       uint64_t count, float *out);

/* Index of each tensor of a block in the parameter table; -1: the model has no such tensor. */
typedef struct {
    int norm1_w, norm1_b, wqkv, bqkv, wq, bq, wk, bk, wv, bv, q_ln_w, q_ln_b, k_ln_w, k_ln_b, wout, bout,
        norm2_w, norm2_b, wgate, bgate, wup, bup, wdown, bdown;
    int post_w[2], post_b[2]; /* post_norms, by clt_mpt_branch */
} clt_mpt_block_index;

typedef struct {
    int wte, wpe, norm_f_w, norm_f_b, lm_head;
    clt_mpt_block_index *block; /* [n_layers] */
} clt_mpt_index;

/* Finds every tensor by name. */
void clt_mpt_index_create(const clt_mpt_config *cfg, const clt_slab_table *table, clt_mpt_index *out);
void clt_mpt_index_free(clt_mpt_index *x);

/* --- units (clt_mpt_units.c), as the members of clt_model_family --- */

/* The units of a model of n blocks: PREFIX, the block's number, '.' and NORM name the first tensor of a
 * block, `head` that of the head. */
int clt_mpt_units_of(const clt_slab_table *table, int64_t n, const char *prefix, const char *norm,
                     const char *head, clt_model_unit **units);
int clt_mpt_units(const clt_model_config *config, const clt_slab_table *table, clt_model_unit **units);
int clt_mpt_order(const clt_model_config *config, clt_model_order_kind kind, int **order);
bool clt_mpt_reads_wide(const clt_model_config *config, const clt_model_shape *shape,
                        const clt_slab_table *table, int entry);

/* wte and wpe; then each block; then norm_f and, if it is not wte, the head's matrix */
enum { CLT_MPT_EMBEDDING_UNIT = 0 };
static inline int clt_mpt_block_unit(int layer) {
    return 1 + layer;
}
static inline int clt_mpt_head_unit(const clt_mpt_config *c) {
    return clt_mpt_block_unit((int)c->n_layers);
}

/* The hooks of a unit. need and gradients_need: CLT_FAIL if the hook left a tensor of the unit absent. */
clt_status clt_mpt_need(clt_mpt *m, int unit);
clt_status clt_mpt_done(clt_mpt *m, int unit);
clt_status clt_mpt_gradients_need(clt_mpt *m, const clt_model_pass *b, int unit);

/* --- the model --- */

typedef enum { CLT_MPT_ATTENTION, CLT_MPT_MLP } clt_mpt_branch;

/* A branch's output [R, C] of the branches' type and the statistics [R] of the norm that follows it. */
typedef struct {
    clt_ref out, mean, rstd;
} clt_mpt_post;

/* What a block keeps from its forward pass for its backward pass. R rows. x, mid and the statistics are fp32,
 * the rest is of the branches' type. */
typedef struct {
    clt_ref x;                /* block input [R, C] */
    clt_ref n1, mean1, rstd1; /* norm_1 [R, C], [R] */
    clt_ref raw;              /* q|k|v as the GEMM made it, where clip or a qk norm follows [R, W] */
    clt_ref clipped;          /* after clip, where a qk norm follows too [R, W] */
    clt_ref q_mean, q_rstd, k_mean, k_rstd; /* qk norms [R * heads] */
    clt_ref qkv;                            /* final q|k|v [R, W] */
    clt_ref cache;    /* shape.texts: k|v of all positions of all places [texts * T, 2*KV*D] */
    clt_ref att, lse; /* attention output [R, H*D], [B, H, T] */
    clt_ref mid;      /* after the attention branch [R, C]; with parallel_residual m->mid */
    clt_ref n2, mean2, rstd2;
    clt_mpt_post post[2];  /* post_norms, by clt_mpt_branch */
    clt_ref gate, up, act; /* MLP [R, F]; gate only with GLU */
} clt_mpt_acts;

/* One new position for each of a few texts. */
enum { CLT_MPT_STEP_ROWS = 8 };
typedef struct {
    int64_t rows;
    int32_t position[CLT_MPT_STEP_ROWS], place[CLT_MPT_STEP_ROWS];
} clt_mpt_step;
/* What steps need on the device; rows: those of a step. */
typedef struct {
    clt_ref position, place;          /* int32 [rows], parts of the microbatch's buffer */
    clt_ref angles, temperature, wpe; /* rows of the tables at the steps' positions */
    clt_ref qkv, att, hidden, logits; /* numerics fast: fp32 [rows, W], [rows, H*D], [rows, F], [rows, V] */
} clt_mpt_step_places;

/* The launches of the last step, for the next one with the same `rows` and `longest`. */
typedef struct {
    clt_sequence *launches; /* NULL: none are noted */
    int64_t rows, longest;  /* longest: positions + 1, rounded up to multiples of CLT_MPT_STEP_KEYS */
    bool chooses;           /* the tokens are chosen on the device */
    bool seen;              /* such a step ran, so that all of its kernels are built and checked */
} clt_mpt_repeat;
/* A step that was queued behind the choice of its tokens; rows 0: none. */
typedef struct {
    clt_mpt_step step;
    int32_t token[CLT_MPT_STEP_ROWS];
} clt_mpt_ahead;
enum { CLT_MPT_STEP_KEYS = 512 };

/* shape.eight_bits: where operands are quantised. DY is across; a gradient's other orientation is in A. */
typedef enum {
    CLT_MPT_EIGHT_A,  /* x or dy along, for the products that follow next */
    CLT_MPT_EIGHT_B,  /* x across, and weights without shape.eight_weights */
    CLT_MPT_EIGHT_DY, /* dy across, until its weight gradient; more where several wait together: */
    CLT_MPT_EIGHT_DY_1,
    CLT_MPT_EIGHT_DY_2,
    CLT_MPT_EIGHT_PLACES
} clt_mpt_eight_place;

/* shape.eight_weights: the copies of a weight [rows, cols], for x W^T and dy W. */
typedef struct {
    clt_tensor from;
    int64_t rows, cols;
    clt_blocks8 along, across; /* across: training only */
    uint64_t made;             /* from weights of this version, counted from 1; 0: not made */
} clt_mpt_eight_weight;

typedef struct {
    clt_ref q[CLT_MPT_EIGHT_PLACES], scale[CLT_MPT_EIGHT_PLACES];
    int64_t q_bytes[CLT_MPT_EIGHT_PLACES], scales[CLT_MPT_EIGHT_PLACES]; /* sizes of these places */
    clt_mpt_eight_weight *weight;                                        /* [weights] */
    int weights;
} clt_mpt_eight;

/* The input of a Linear of a block in 8 bits, across, from the forward pass until the weight gradient; see
 * clt_mpt_keeps_inputs. */
typedef struct {
    int entry; /* of the Linear's weight; with shape.eight_bits that of the first one with this input */
    clt_ref q, scale; /* scale: shape.eight_bits only */
} clt_mpt_kept;

/* shape.fp8: where a product's two operands are cast to, a place for the transpose of a gradient that data
 * gradients cast along with it, and the arrays on the device of all tensors' scales, inverse scales and
 * largest magnitudes. */
enum { CLT_MPT_FP8_PLACES = 3 };
/* shape.eight_weights: the copies of weight `entry`, for x W^T and, in training, dy W. */
typedef struct {
    int entry;
    int64_t rows, cols;
    clt_ref along, across;
    uint64_t made; /* as in clt_mpt_eight_weight */
} clt_mpt_fp8_weight;
typedef struct {
    clt_ref q[CLT_MPT_FP8_PLACES], numbers;
    int64_t q_bytes[CLT_MPT_FP8_PLACES];
    clt_mpt_fp8_weight *weight; /* [weights] */
    int weights;
    int turned;       /* entry of the Linear whose transposed gradient is there, -1: none */
    clt_fp8 *formats; /* of the tensors */
} clt_mpt_fp8;

/* The rows of a microbatch grouped by an id, and the sum that a lane's microbatches add to: one chain per id,
 * over its rows ascending, whatever the microbatches are. The lists are those of clt_embedding_grad_params.
 */
typedef struct {
    clt_ref sum;                       /* [V, C], or none: the gradient itself takes the rows */
    clt_ref ids, first, begin, row_of; /* int32, parts of the microbatch's buffer */
    clt_ref lane_ids;                  /* int32 [V]: with `sum`, the ids of the lane */
    int32_t *lane_list;                /* [V] the same on the host */
    uint8_t *in_lane;                  /* [V] */
    int64_t unique, lane_count;
} clt_mpt_lists;

/* What a family has before and behind the blocks. Every function gets a model of `bytes` bytes, which begins
 * with its clt_mpt. MPT's own are clt_mpt_token_ends. */
typedef struct {
    size_t bytes;
    bool tokens; /* batches are tokens, and every row goes through norm_f to the head; false: one row of each
                    sample does */
    void (*begin)(clt_mpt *m, const clt_model_config *config); /* in a zeroed model with cfg and shape */
    void (*index)(clt_mpt *m);                                 /* sets m->index; weights are there */
    clt_status (*take)(clt_mpt *m);      /* the ends' buffers, by clt_mpt_take; writes tables to them */
    clt_status (*take_host)(clt_mpt *m); /* m->host, m->host_correct and what else the host needs */
    uint64_t (*workspace)(const clt_mpt *m, clt_device_type type); /* of the ends' operations, a bound */
    clt_status (*upload)(clt_mpt *m, const clt_model_pass *b, bool grad);
    clt_status (*embed)(clt_mpt *m, const clt_model_pass *b);          /* to acts[0].x */
    clt_status (*embed_backward)(clt_mpt *m, const clt_model_pass *b); /* from dx; may change it */
    clt_status (*out)(clt_mpt *m, const clt_model_pass *b);            /* from x_last to nf */
    clt_status (*out_backward)(clt_mpt *m, const clt_model_pass *b);   /* from dnf to dx; NULL: a norm
                                                                          of every row */
    /* Logits and losses, with `grad` also dnf and the gradients of the head's matrix; else `correct`, as the
     * model's member of that name. */
    clt_status (*head)(clt_mpt *m, const clt_model_pass *b, bool grad, clt_ref correct);
} clt_mpt_ends;
extern const clt_mpt_ends clt_mpt_token_ends;

/* With shape.host_inputs: the inputs of all blocks but the last CLT_MPT_INPUT_PLACES wait in host memory or
 * in a file. acts[i].x is place i % CLT_MPT_INPUT_PLACES: blocks take turns in the places (clt_mpt_inputs.c).
 */
enum { CLT_MPT_INPUT_PLACES = 3 };
typedef struct {
    clt_buffer **away; /* [count] pinned, or in a file; NULL: the device keeps all */
    int count;         /* blocks */
    /* Behind the copy from a place, and behind the copy to it; NULL: it was waited for. */
    clt_mark *left[CLT_MPT_INPUT_PLACES], *there[CLT_MPT_INPUT_PLACES];
    clt_mark *sent; /* behind the last copy from the device */
} clt_mpt_inputs;

struct clt_mpt {
    clt_model base;
    const clt_mpt_ends *ends;
    clt_mpt_config cfg;
    clt_model_shape shape;
    clt_ops *ops; /* NULL while planning */
    clt_slab *weights, *narrow;
    clt_dtype type;       /* of branches: shape.type */
    clt_dtype dnorm_type; /* of the gradient of a norm's output: fp32 where several GEMMs add to it */
    clt_mpt_index index;
    clt_model_unit *units;                 /* [clt_mpt_head_unit + 1] */
    int64_t rows;                          /* microbatch * seq */
    int64_t width;                         /* columns of q|k|v: (H + 2 KV) * D */
    int64_t head_rows;                     /* rows of the logits buffer: whole samples */
    int64_t out_rows;                      /* rows of norm_f: `rows`, or one per sample (ends->tokens) */
    bool source_of_kv[CLT_MPT_MAX_LAYERS]; /* later blocks use this block's keys and values */

    clt_mpt_acts *acts; /* [n_layers]; blocks may share places (recompute, evaluation) */
    clt_ref x_last;     /* output of the last block [R, C] */
    clt_ref nf, meanf, rstdf;
    clt_ref logits, token_loss;
    clt_ref correct; /* int32 [out_rows]: 1 where the target is the most likely token; without ends->tokens
                        the rank of the label, 0 for the most likely one */
    clt_ref mid;     /* parallel_residual: no block needs its own backward [R, C] */
    clt_ref dx;      /* gradient of the residual stream [R, C], fp32 */
    clt_ref dmid;    /* parallel_residual: dx and the MLP branch's part; attention still needs dx [R, C] */
    clt_ref dbranch; /* what enters a branch backward (and leaves it before dropout) [R, C] */
    clt_ref dnorm;   /* of a block's norm [R, C], dnorm_type */
    clt_ref dnf;     /* of norm_f, the same; often the same place */
    clt_ref datt;    /* [R, H*D] */
    clt_ref spare;   /* where nothing stands while attention goes backward */
    uint64_t spare_elements;
    clt_ref *dqkv;            /* [n_layers]: [R, W], shared unless the block is a source of keys and values */
    clt_ref dup, dgate, dact; /* [R, F] */
    clt_ref slopes, rope;
    clt_ref norm_weight;     /* norm_offset: the weight of the norm that runs next, with the offset [C] */
    clt_ref embedding_scale; /* [1], none where it is 1 */
    clt_ref temperature;     /* [T]; none where the factors are row_temperature */
    /* What each microbatch brings, in one buffer that one write fills from `host`; words: its 4-byte
     * elements. */
    clt_ref tokens, targets, seq_ids, row_weight; /* int32 / float [R] */
    clt_ref row_temperature;                      /* float [R], see clt_mpt_temperature_by_row */
    clt_mpt_lists lookups;                        /* rows by token; tied wte: with a sum of its own */
    clt_mpt_lists ones;                           /* rows by target, see clt_mpt_has_ones */
    clt_ref one_id, one_factor; /* int32, float [R]: each row's target and its part of the loss's gradient */
    int32_t *host;
    int32_t *host_correct;        /* [out_rows] */
    float *temperature_at;        /* [T]: what row_temperature takes its factors from */
    int64_t forward_words, words; /* a forward pass alone takes the first forward_words */

    /* host side of the lookup gradients, allocated once */
    int32_t *slot_of_id; /* [V]: place among the microbatch's unique ids, -1 */
    int32_t *fill;       /* [R] */

    clt_buffer **buffers;
    int n_buffers, cap_buffers;
    clt_model_memory memory;

    /* shape.texts: a pass's rows are positions past .. past + shape.seq - 1 of the text in `place`, whose
     * first positions are in the blocks' caches; or, with `step`, one position of each of several texts. */
    int64_t past, place, room; /* room: shape.seq as it was created, the positions of a place */
    int32_t *cached;           /* [texts, T] the tokens whose keys and values are there */
    int64_t *n_cached;         /* [texts] */
    clt_mpt_step *step;        /* NULL: not in a step */
    int fused;                 /* whether a step takes its own kernels: 1 yes, -1 no, 0 not asked yet */
    bool whole_blocks;         /* a block for one text is one launch */
    clt_mpt_step_places at;
    clt_mpt_repeat repeat;
    clt_mpt_ahead ahead;
    clt_mpt_eight eight;
    clt_mpt_fp8 fp8;
    clt_mpt_kept *kept; /* [n_kept] */
    int n_kept;
    bool in_training_pass;
    clt_mpt_inputs inputs;
};

/* The places of the blocks' inputs, a part of the layout of training; and their end. */
clt_status clt_mpt_inputs_take(clt_mpt *m);
void clt_mpt_inputs_free(clt_mpt *m);
/* In a training pass, when the input of `block` is queued, before its forward pass is: the input leaves, and
 * the place of the output becomes free. */
clt_status clt_mpt_inputs_leave(clt_mpt *m, int block);
/* Before the backward pass of `block` is queued, whose input is there when it runs. The input of an earlier
 * one is brought, where the input of the block behind was. Blocks come from the last one to the first. */
clt_status clt_mpt_inputs_return(clt_mpt *m, int block);

/* Lays out (and with ops, allocates) all buffers. */
clt_status clt_mpt_layout(clt_mpt *m);
/* As the members of clt_model_family. */
clt_status clt_mpt_plan(const clt_model_config *config, const clt_model_shape *shape, clt_device_type type,
                        clt_model_memory *out);
clt_status clt_mpt_create(const clt_model_config *config, const clt_model_shape *shape, clt_ops *ops,
                          clt_slab *weights, clt_slab *narrow, clt_model **out);
/* The same for another family's ends; its configuration begins with a clt_mpt_config. */
clt_status clt_mpt_plan_as(const clt_mpt_ends *ends, const clt_model_config *config,
                           const clt_model_shape *shape, clt_device_type type, clt_model_memory *out);
clt_status clt_mpt_create_as(const clt_mpt_ends *ends, const clt_model_config *config,
                             const clt_model_shape *shape, clt_ops *ops, clt_slab *weights, clt_slab *narrow,
                             clt_model **out);
/* For ends: adds `count` elements of `element` bytes to *pool, a member of m->memory, and, with a device,
 * creates the buffer, which the model frees. */
clt_status clt_mpt_take(clt_mpt *m, uint64_t *pool, const char *name, int64_t count, uint64_t element,
                        clt_ref *out);
/* A place in the buffer that brings a microbatch; `there` false: none. */
typedef struct {
    clt_ref *place;
    int64_t count; /* words */
    bool there;
} clt_mpt_part;
/* That buffer, with these parts in this order; sets m->words. Parts from `later` on are for training alone:
 * they are not in m->forward_words. */
clt_status clt_mpt_take_batch(clt_mpt *m, const clt_mpt_part *part, size_t n, const clt_ref *later);
/* A zeroed host array; NULL adds its bytes to *lack. */
void *clt_mpt_host_array(size_t count, size_t size, size_t *lack);
void clt_mpt_destroy(clt_model *model);
/* Places of the microbatch's arrays within m->host, in words. */
int32_t *clt_mpt_host(const clt_mpt *m, clt_ref place);

/* Attention temperatures go by a token's place in its document, which sequence ids begin anew inside a
 * sample. */
static inline bool clt_mpt_temperature_by_row(const clt_mpt_config *c) {
    return c->temperature_attn_scale != 0 && c->attn_uses_sequence_id;
}
/* Queries (or their gradients), R rows in the first columns of `x`, times their temperatures. */
clt_status clt_mpt_temper(clt_mpt *m, int64_t R, clt_ref x);

/* y = x * W^T (+ bias), W [n, k] entry w of the weights; x, y and the places of the epilogue are of the
 * branches' type unless the caller changes that. */
clt_gemm_params clt_mpt_linear(const clt_mpt *m, int64_t rows, int w, int b, clt_ref x, int64_t ldx,
                               clt_ref y, int64_t ldy);
/* Entry of a slab as fp32 tensor, a vector or a matrix; absent for -1. */
clt_tensor clt_mpt_entry(const clt_slab *slab, int entry);
clt_tensor clt_mpt_weight(const clt_mpt *m, int entry); /* of the weights */
clt_tensor clt_mpt_matrix(const clt_mpt *m, int entry); /* as GEMMs read it: of the branches' type */
clt_tensor clt_mpt_lookup(const clt_mpt *m, int entry); /* as the lookup reads it, see narrow_embeddings */
/* The weight that a C-wide norm multiplies by: entry w, or, with norm_offset, m->norm_weight until the next
 * call. */
clt_status clt_mpt_norm_weight(clt_mpt *m, int w, clt_tensor *out);
/* Rows of C times embedding_scale, in place. */
clt_status clt_mpt_scale_embedding(clt_mpt *m, int64_t rows, clt_ref x);

/* A product of the pass: clt_op_gemm, or with shape.eight_bits clt_op_gemm8 of the quantised operands, where
 * b of NT and NN is a weight. */
clt_status clt_mpt_product(clt_mpt *m, const clt_gemm_params *g);
/* g->a_sum of a weight gradient, where it is present: 8-bit products do not make it. */
clt_status clt_mpt_sum_a(clt_mpt *m, const clt_gemm_params *g);
/* An operand of products, before it is cast to 8 bits: x [rows, cols], act(x), or x * grad_act'(grad_pre),
 * which then also replaces x. */
typedef struct {
    clt_tensor x;
    int64_t rows, cols;
    clt_activation act, grad_act; /* CLT_ACT_NONE: x itself */
    clt_tensor grad_pre;
} clt_mpt_operand;
/* Whether the forward pass keeps the inputs of the blocks' Linears in 8 bits, as weight gradients read them.
 * Then the outputs of norms and activations, which nothing else needs, are not kept, and an input is read
 * once to be quantised in both orientations. FP8 pads the rows of a sample in exact numerics. */
static inline bool clt_mpt_keeps_inputs(const clt_mpt *m) {
    const clt_model_shape *s = &m->shape;
    const bool padded = s->fp8 && s->numerics == CLT_EXACT && s->seq % CLT_CODES8_ALIGN;
    return s->training && s->recompute == CLT_RECOMPUTE_NONE && (s->eight_bits || s->fp8) && !padded;
}
/* The place of the input of the Linear with weight `entry`, for the training pass that runs; NULL: there is
 * none. */
const clt_mpt_kept *clt_mpt_find_kept(const clt_mpt *m, int entry);

/* Operands that several products share. With shape.eight_bits they are quantised; with shape.fp8 each product
 * casts them, and reads `of`; otherwise they are x. */
typedef struct {
    clt_blocks8 along, across;
    clt_mpt_operand of;
} clt_mpt_blocks;
/* x, the input of the Linear with weight `entry` and of those that share it, for the next products x W^T,
 * until the next operand takes place A. */
clt_status clt_mpt_input(clt_mpt *m, int entry, const clt_mpt_operand *x, clt_mpt_blocks *out);
/* The same for the next products dy^T x: what the forward pass has kept, or until the next operand takes
 * place B. */
clt_status clt_mpt_input_again(clt_mpt *m, int entry, const clt_mpt_operand *x, clt_mpt_blocks *out);
/* dy in both orientations: for the next product dy W, and, in `place`, for dy^T x. */
clt_status clt_mpt_gradient(clt_mpt *m, clt_mpt_eight_place place, const clt_mpt_operand *dy,
                            clt_mpt_blocks *out);
/* clt_mpt_product with g->a and, in a weight gradient, g->b from these; NULL: quantised for this product. */
clt_status clt_mpt_product_with(clt_mpt *m, const clt_gemm_params *g, const clt_mpt_blocks *a,
                                const clt_mpt_blocks *b);
/* Note the operands of the products of a Linear with `rows` rows, and a gradient that waits in `place`, in
 * m->eight. */
void clt_mpt_eight_plan(clt_mpt *m, int64_t rows, int64_t out, int64_t in);
void clt_mpt_eight_plan_gradient(clt_mpt *m, clt_mpt_eight_place place, int64_t rows, int64_t out);
/* Bytes and scales of a weight's copies; and w is the weight with copies at q and scale. */
void clt_mpt_eight_weight_size(const clt_mpt *m, int64_t rows, int64_t cols, int64_t *bytes, int64_t *scales);
void clt_mpt_eight_weight_set(clt_mpt *m, clt_mpt_eight_weight *w, clt_tensor from, int64_t rows,
                              int64_t cols, clt_ref q, clt_ref scale);
/* clt_op_gemm8_workspace of the product. */
uint64_t clt_mpt_eight_workspace(clt_device_type type, const clt_gemm_params *g);

/* clt_mpt_product_with for a Linear of a block, of which `entry` is the weight: with shape.fp8 in 8-bit
 * floating point. The data gradient of a Linear precedes its weight gradient. */
clt_status clt_mpt_linear_product(clt_mpt *m, const clt_gemm_params *g, int entry, const clt_mpt_blocks *a,
                                  const clt_mpt_blocks *b);
/* The same with shape.fp8. */
clt_status clt_mpt_fp8_product(clt_mpt *m, const clt_gemm_params *g, int entry, const clt_mpt_blocks *a,
                               const clt_mpt_blocks *b);
/* Bytes and scales of a kept input [rows, cols]. */
void clt_mpt_eight_kept_size(const clt_mpt *m, int64_t rows, int64_t cols, int64_t *bytes, int64_t *scales);
/* As clt_mpt_eight_plan, in m->fp8; the words of m->fp8.numbers; and what is left to do once they exist. */
void clt_mpt_fp8_plan(clt_mpt *m, int64_t rows, int64_t out, int64_t in);
int64_t clt_mpt_fp8_words(const clt_mpt *m);
/* Bytes of a weight's copies; and those of weight `entry` are at q. */
int64_t clt_mpt_fp8_weight_bytes(const clt_mpt *m, int64_t rows, int64_t cols);
void clt_mpt_fp8_weight_set(clt_mpt *m, int entry, int64_t rows, int64_t cols, clt_ref q);
clt_status clt_mpt_fp8_begin(clt_mpt *m);
/* As the members of clt_model_family. */
size_t clt_mpt_fp8_formats(const clt_model *model, const clt_fp8 **out);
clt_status clt_mpt_fp8_set_scales(clt_model *model, const float *scale);
clt_status clt_mpt_fp8_amax(clt_model *model, float *amax);

/* Whether the loss's gradient leaves out the ones at the targets, so that they do not share the scale of an
 * 8-bit block with probabilities, and the functions below add their part (docs/numerics.md, "Eight-bit
 * blocks"). */
static inline bool clt_mpt_has_ones(const clt_mpt *m) {
    return m->ends->tokens && m->shape.training && m->shape.eight_bits &&
           !(m->cfg.final_logit_softcapping > 0);
}
/* Sets one_id and one_factor of the microbatch on the host. */
void clt_mpt_ones_set(clt_mpt *m, const clt_model_pass *b);
/* m->dx = the ones' part of the gradient of norm_f's output, for the residual of the head's data gradient. */
clt_status clt_mpt_ones_data(clt_mpt *m, const clt_model_pass *b);
/* The ones' part of the gradient of the head's weight, into its sum; with lane_last that is added to the
 * gradient. Overwrites m->dx. */
clt_status clt_mpt_ones_weight(clt_mpt *m, const clt_model_pass *b);
/* The end of a lane: `to` += l->sum at the ids of the lane. */
clt_status clt_mpt_lists_add(clt_mpt *m, const clt_mpt_lists *l, clt_tensor to);

/* Whether casts to 8 bits apply the MLP's activation and its derivative. Then hidden values are not stored: a
 * matrix product whose result stays as it is takes less time than one that ends with an activation, and a
 * cast reads and writes no more for it. */
static inline bool clt_mpt_casts_activate(const clt_mpt *m) {
    return (m->shape.eight_bits || m->shape.fp8) && !m->cfg.glu;
}
/* What the down projection reads [R, F]: hidden values, or what is in front of the activation that the cast
 * applies, which only training keeps in a place of its own. */
static inline clt_ref clt_mpt_hidden(const clt_mpt *m, int layer) {
    const clt_mpt_acts *a = &m->acts[layer];
    return clt_mpt_casts_activate(m) && a->up.buf ? a->up : a->act;
}
/* The operand that the down projection multiplies. */
static inline clt_mpt_operand clt_mpt_hidden_operand(const clt_mpt *m, int layer, int64_t rows) {
    return (clt_mpt_operand){.x = clt_tensor_of(clt_mpt_hidden(m, layer), m->cfg.ffn_hidden, m->type),
                             .rows = rows,
                             .cols = m->cfg.ffn_hidden,
                             .act = clt_mpt_casts_activate(m) ? m->cfg.activation : CLT_ACT_NONE};
}
/* What norm_2 reads [R, C]. */
static inline clt_ref clt_mpt_mlp_input(const clt_mpt *m, int layer) {
    return m->cfg.parallel_residual ? m->acts[layer].x : m->acts[layer].mid;
}

/* Forward pass of one block on its places; also used again in backward with recomputation. */
clt_status clt_mpt_block_forward(clt_mpt *m, const clt_model_pass *b, int layer, clt_ref x_out);
/* As the members of clt_mpt_ends. */
void clt_mpt_token_index(clt_mpt *m);
clt_status clt_mpt_out(clt_mpt *m, const clt_model_pass *b);
clt_status clt_mpt_embedding_backward(clt_mpt *m, const clt_model_pass *b);
clt_status clt_mpt_embed(clt_mpt *m, const clt_model_pass *b);
/* From the embedding to norm_f's output. Leaves the head's unit in use. */
clt_status clt_mpt_forward(clt_mpt *m, const clt_model_pass *b);
/* From the gradient of norm_f's output to that of the embedding. Ends the use of the head's unit. */
clt_status clt_mpt_backward(clt_mpt *m, const clt_model_pass *b);
/* Before and after the operations that read the head's matrix, which may be in another unit than norm_f. */
clt_status clt_mpt_head_need(clt_mpt *m);
clt_status clt_mpt_head_done(clt_mpt *m);
/* Logits on the host, times logit_scale and softcapped. */
void clt_mpt_scale_logits(const clt_mpt *m, float *logits, int64_t n);
/* Finds out once whether kernels for steps fit this model and device (m->fused). */
clt_status clt_mpt_ask_step(clt_mpt *m);
/* For a plain pass of m->step: gathers the tables' rows at its positions. */
clt_status clt_mpt_gather_tables(clt_mpt *m);
/* The step's logits [rows, V] by these kernels; the step's other texts' positions are in the cache. */
clt_status clt_mpt_step_logits(clt_mpt *m, const int32_t *tokens, float *logits);
/* Whether the likeliest tokens can be chosen on the device: the logits there are those of the model. */
bool clt_mpt_step_chooses(const clt_mpt *m);
/* The likeliest token behind each of the step's texts. with_next: the step behind them is queued, too, unless
 * a text is full. m->step may be changed. */
clt_status clt_mpt_step_tokens(clt_mpt *m, const int32_t *tokens, bool with_next, int32_t *chosen);
/* Head and loss over groups of samples, with gradients into dnf (d of norm_f's output) when `grad`. */
clt_status clt_mpt_head(clt_mpt *m, const clt_model_pass *b, bool grad, clt_ref correct);
/* Uploads the microbatch's arrays; with `grad` also sorts the lookups. */
clt_status clt_mpt_upload(clt_mpt *m, const clt_model_pass *b, bool grad);
/* As the members of clt_model_family. */
clt_status clt_mpt_train(clt_model *model, const clt_model_pass *p);
clt_status clt_mpt_eval(clt_model *model, const clt_model_pass *p, clt_model_correct *correct);
clt_status clt_mpt_logits(clt_model *model, const int32_t *tokens, int64_t len, int64_t first, int64_t rows,
                          float *logits);
clt_status clt_mpt_next(clt_model *model, const clt_model_text *text, int64_t n, float *logits);
clt_status clt_mpt_next_greedy(clt_model *model, const clt_model_text *text, int64_t n, float *logits,
                               int32_t *token);
clt_status clt_mpt_span_logits(clt_model *model, const int32_t *tokens, int64_t samples, int64_t len,
                               const clt_model_span *span, clt_model_logits_fn fn, void *ctx);
clt_status clt_mpt_activation(clt_model *model, const char *name, float *out, size_t count);
/* Whether a branch's output is dropped, whole samples of it (drop_path) or elements; then *p is the
 * probability and *site says which. */
bool clt_mpt_branch_drops(const clt_mpt *m, const clt_model_pass *b, int layer, clt_mpt_branch branch,
                          double *p, int *site);
/* A layer's attention over whole samples. */
clt_attention_params clt_mpt_attention(const clt_mpt *m, const clt_model_pass *b, int layer);
clt_status clt_mpt_dropout(clt_mpt *m, const clt_model_pass *b, double p, int layer, int site,
                           clt_dtype x_type, clt_ref x, clt_ref residual, clt_dtype y_type, clt_ref y);

#endif
