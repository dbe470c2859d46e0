/* Where a model's activations and workspaces lie, and how much they take. The same walk plans and allocates.
 */
#include "runtime/model/mpt/clt_mpt_internal.h"

#include <string.h>

enum {
    MIB = 1 << 20,
    LOGITS_MIB_FP32 = 256,
    LOGITS_MIB_NARROW = CLT_MODEL_LOGITS_LEAST / MIB,
    LOGITS_MIB_MOST = 2048,
    SMALL_HEAD = 2048
};

/* Places that share a buffer start at multiples of this many elements: vector loads and tensor maps want it.
 */
enum { PLACE = 512 };

clt_status clt_mpt_take(clt_mpt *m, uint64_t *pool, const char *name, int64_t count, uint64_t element,
                        clt_ref *out) {
    uint64_t bytes = CLT_ROUND_UP((uint64_t)CLT_MAX(count, 1) * element, (uint64_t)4);
    *pool += bytes;
    m->memory.largest = CLT_MAX(m->memory.largest, bytes);
    if (!m->ops) return CLT_OK;
    clt_buffer *b;
    CLT_TRY(clt_buffer_create(clt_ops_device(m->ops), bytes, name, &b));
    if (m->n_buffers == m->cap_buffers) {
        m->cap_buffers = CLT_MAX(64, 2 * m->cap_buffers);
        m->buffers = clt_realloc(m->buffers, (size_t)m->cap_buffers * sizeof *m->buffers);
    }
    m->buffers[m->n_buffers++] = b;
    *out = (clt_ref){b, 0};
    return CLT_OK;
}

/* Activations: fp32 ones, and those of the branches' type. */
static clt_status take_wide(clt_mpt *m, const char *name, int64_t count, clt_ref *out) {
    return clt_mpt_take(m, &m->memory.activations, name, count, 4, out);
}
static clt_status take_act(clt_mpt *m, const char *name, int64_t count, clt_ref *out) {
    return clt_mpt_take(m, &m->memory.activations, name, count, clt_dtype_bytes(m->type), out);
}
static clt_status take_other(clt_mpt *m, const char *name, int64_t count, clt_ref *out) {
    return clt_mpt_take(m, &m->memory.other, name, count, 4, out);
}

/* Blocks share the places of their norms' and activations' outputs: the backward pass makes these again, or
 * reads the inputs that clt_mpt_keeps_inputs kept. */
static bool norms_are_shared(const clt_mpt *m) {
    return m->shape.training && (m->shape.recompute == CLT_RECOMPUTE_NORMS || clt_mpt_keeps_inputs(m));
}

static clt_status take_post_norms(clt_mpt *m, clt_mpt_acts *a) {
    for (int i = 0; i < 2; i++) {
        CLT_TRY(take_act(m, "branch output", m->rows * m->cfg.d_model, &a->post[i].out));
        CLT_TRY(take_wide(m, "norm statistics", m->rows, &a->post[i].mean));
        CLT_TRY(take_wide(m, "norm statistics", m->rows, &a->post[i].rstd));
    }
    return CLT_OK;
}

/* What one block needs between forward and backward, without its input and its q|k|v. */
static clt_status take_block(clt_mpt *m, clt_mpt_acts *a) {
    const clt_mpt_config *c = &m->cfg;
    int64_t R = m->rows, C = c->d_model, F = c->ffn_hidden;
    bool qk_norm = c->qk_ln || c->qk_gn, clip = c->clip_qkv > 0;
    if (!norms_are_shared(m)) {
        CLT_TRY(take_act(m, "norm_1", R * C, &a->n1));
        CLT_TRY(take_act(m, "norm_2", R * C, &a->n2));
        if (!(m->shape.training && clt_mpt_casts_activate(m)))
            CLT_TRY(take_act(m, "mlp activation", R * F, &a->act));
    }
    CLT_TRY(take_wide(m, "norm statistics", R, &a->mean1));
    CLT_TRY(take_wide(m, "norm statistics", R, &a->rstd1));
    if (clip || qk_norm) CLT_TRY(take_act(m, "qkv before clip or norm", R * m->width, &a->raw));
    if (clip && qk_norm) CLT_TRY(take_act(m, "qkv before norm", R * m->width, &a->clipped));
    if (qk_norm) {
        CLT_TRY(take_wide(m, "norm statistics", R * c->n_heads, &a->q_mean));
        CLT_TRY(take_wide(m, "norm statistics", R * c->n_heads, &a->q_rstd));
        CLT_TRY(take_wide(m, "norm statistics", R * c->kv_n_heads, &a->k_mean));
        CLT_TRY(take_wide(m, "norm statistics", R * c->kv_n_heads, &a->k_rstd));
    }
    CLT_TRY(take_act(m, "attention output", R * c->n_heads * c->head_dim, &a->att));
    CLT_TRY(take_wide(m, "attention log-sum-exp", R * c->n_heads, &a->lse));
    a->mid = m->mid;
    if (!c->parallel_residual) CLT_TRY(take_wide(m, "residual", R * C, &a->mid));
    CLT_TRY(take_wide(m, "norm statistics", R, &a->mean2));
    CLT_TRY(take_wide(m, "norm statistics", R, &a->rstd2));
    if (c->post_norms) CLT_TRY(take_post_norms(m, a));
    if (c->glu) CLT_TRY(take_act(m, "mlp gate", R * F, &a->gate));
    if (c->glu || m->shape.training) CLT_TRY(take_act(m, "mlp up", R * F, &a->up));
    return CLT_OK;
}

/* Blocks keep their own places in training; with recomputation of blocks or without training they share one
 * set, except the inputs (recomputation starts from them) and the keys and values that later blocks use. */
static clt_status take_blocks(clt_mpt *m) {
    bool share = !m->shape.training || m->shape.recompute == CLT_RECOMPUTE_BLOCKS;
    int64_t R = m->rows, C = m->cfg.d_model;
    clt_mpt_acts shared = {0};
    clt_ref shared_qkv = clt_ref_none(), pair[2] = {clt_ref_none(), clt_ref_none()};
    if (m->cfg.parallel_residual) CLT_TRY(take_wide(m, "residual", R * C, &m->mid));
    if (share) {
        CLT_TRY(take_block(m, &shared));
        CLT_TRY(take_act(m, "qkv", R * m->width, &shared_qkv));
    }
    if (!m->shape.training)
        for (int i = 0; i < 2; i++) CLT_TRY(take_wide(m, "residual", R * C, &pair[i]));
    for (int i = 0; i < m->cfg.n_layers; i++) {
        clt_mpt_acts *a = &m->acts[i];
        *a = shared;
        if (!share) CLT_TRY(take_block(m, a));
        a->qkv = shared_qkv;
        if (!share || m->source_of_kv[i]) CLT_TRY(take_act(m, "qkv", R * m->width, &a->qkv));
        a->x = pair[i % 2];
    }
    if (m->shape.training) CLT_TRY(clt_mpt_inputs_take(m));
    m->x_last = pair[m->cfg.n_layers % 2];
    if (m->shape.training) CLT_TRY(take_wide(m, "residual", R * C, &m->x_last));
    return CLT_OK;
}

/* Columns of a row of the largest things that live only inside one branch's backward pass. */
static int64_t mlp_places(const clt_mpt_config *c) {
    return (c->glu ? 3 : 1) * c->ffn_hidden; /* dup, and with GLU dgate and dact */
}

/* Without dropout the gradient of a branch lies where the last block's output was: it is used backward only.
 * With shared norms and 16-bit types the other half of that place holds the norms' outputs, forward
 * too: they are done with when that block's output is written. */
static bool branches_drop(const clt_mpt *m) {
    return m->cfg.resid_pdrop > 0 || m->cfg.drop_path > 0;
}
static bool branches_in_x_last(const clt_mpt *m) {
    return m->type != CLT_F32 && !branches_drop(m) && m->shape.recompute != CLT_RECOMPUTE_BLOCKS;
}

/* With shared norms, what lives only inside one branch or the head shares one buffer:
 *   head       logits | norm_f's output | its gradient
 *   MLP        hidden values | their gradient (with GLU, three)
 *   attention  gradient of q|k|v | gradient of the attention's output
 * and the gradient of a norm's output, which follows both from dup and from dqkv, lies over what is done with
 * by then. */
static clt_status take_scratch(clt_mpt *m) {
    const clt_mpt_config *c = &m->cfg;
    int64_t R = m->rows, F = c->ffn_hidden, hidden = CLT_ROUND_UP(R * F, (int64_t)PLACE);
    int64_t norm = CLT_ROUND_UP(R * c->d_model, (int64_t)PLACE),
            qkv = CLT_ROUND_UP(R * m->width, (int64_t)PLACE);
    int64_t logits = CLT_ROUND_UP(m->head_rows * c->vocab_size, (int64_t)PLACE);
    int64_t mlp = hidden * (1 + mlp_places(c) / F), att = qkv + R * c->n_heads * c->head_dim;
    int64_t dnorm = qkv + norm <= hidden ? qkv : CLT_ROUND_UP(CLT_MAX(mlp, att), (int64_t)PLACE);
    bool inside = m->dnorm_type == m->type;
    int64_t nf = CLT_ROUND_UP(m->out_rows * c->d_model, (int64_t)PLACE);
    int64_t most = CLT_MAX(CLT_MAX(mlp, att), logits + (inside ? 2 : 1) * nf);
    clt_ref s, n = clt_ref_at(m->x_last, (uint64_t)(R * c->d_model));
    if (inside) most = CLT_MAX(most, dnorm + norm);
    CLT_TRY(take_act(m, "branch", most, &s));
    if (!branches_in_x_last(m)) CLT_TRY(take_act(m, "norm", R * c->d_model, &n));
    if (!m->ops) return CLT_OK;
    m->logits = s;
    m->nf = clt_ref_at(s, (uint64_t)logits);
    if (inside) m->dnf = clt_ref_at(s, (uint64_t)(logits + nf));
    if (inside) m->dnorm = clt_ref_at(s, (uint64_t)dnorm);
    m->dup = clt_ref_at(s, (uint64_t)hidden);
    if (c->glu) m->dgate = clt_ref_at(s, (uint64_t)(2 * hidden));
    if (c->glu) m->dact = clt_ref_at(s, (uint64_t)(3 * hidden));
    m->datt = clt_ref_at(s, (uint64_t)qkv);
    att = CLT_ROUND_UP(att, (int64_t)PLACE);
    m->spare = clt_ref_at(s, (uint64_t)att);
    m->spare_elements = (uint64_t)CLT_MAX(most - att, 0);
    for (int i = 0; i < c->n_layers; i++) {
        m->acts[i].n1 = m->acts[i].n2 = n;
        m->acts[i].act = m->dqkv[i] = s;
    }
    return CLT_OK;
}

/* The same with a buffer for each. */
static clt_status take_places(clt_mpt *m) {
    const clt_mpt_config *c = &m->cfg;
    int64_t R = m->rows;
    clt_ref shared = clt_ref_none();
    CLT_TRY(take_act(m, "norm_f", m->out_rows * c->d_model, &m->nf));
    CLT_TRY(clt_mpt_take(m, &m->memory.logits, "logits", m->head_rows * c->vocab_size,
                         clt_dtype_bytes(m->type), &m->logits));
    if (!m->shape.training) return CLT_OK;
    CLT_TRY(take_act(m, "gradient of attention", R * c->n_heads * c->head_dim, &m->datt));
    CLT_TRY(take_act(m, "gradient of qkv", R * m->width, &shared));
    for (int i = 0; i < c->n_layers; i++) m->dqkv[i] = shared;
    CLT_TRY(take_act(m, "gradient of mlp", R * c->ffn_hidden, &m->dup));
    m->spare = m->dup;
    m->spare_elements = (uint64_t)(R * c->ffn_hidden);
    if (c->glu) CLT_TRY(take_act(m, "gradient of mlp", R * c->ffn_hidden, &m->dgate));
    if (c->glu) CLT_TRY(take_act(m, "gradient of mlp", R * c->ffn_hidden, &m->dact));
    return CLT_OK;
}

static clt_status take_gradients(clt_mpt *m) {
    const clt_mpt_config *c = &m->cfg;
    int64_t R = m->rows, C = c->d_model;
    CLT_TRY(take_wide(m, "gradient", R * C, &m->dx));
    if (c->parallel_residual) CLT_TRY(take_wide(m, "gradient", R * C, &m->dmid));
    if (!norms_are_shared(m) || m->dnorm_type != m->type) {
        CLT_TRY(clt_mpt_take(m, &m->memory.activations, "gradient", R * C, clt_dtype_bytes(m->dnorm_type),
                             &m->dnorm));
        m->dnf = m->dnorm;
    }
    if (branches_in_x_last(m))
        m->dbranch = m->x_last;
    else if (branches_drop(m) || c->post_norms || m->type != CLT_F32)
        CLT_TRY(take_act(m, "gradient", R * C, &m->dbranch));
    for (int i = 0; i < c->n_layers; i++)
        if (m->source_of_kv[i]) CLT_TRY(take_act(m, "gradient of qkv", R * m->width, &m->dqkv[i]));
    return CLT_OK;
}

clt_status clt_mpt_take_batch(clt_mpt *m, const clt_mpt_part *part, size_t n, const clt_ref *later) {
    int64_t words = 0;
    clt_ref all = clt_ref_none();
    for (size_t i = 0; i < n; i++) {
        if (part[i].place == later) m->forward_words = words;
        if (!part[i].there) continue;
        part[i].place->off = (uint64_t)words;
        words += CLT_ROUND_UP(part[i].count, (int64_t)PLACE);
    }
    m->words = words;
    if (!later) m->forward_words = words;
    CLT_TRY(take_other(m, "microbatch", words, &all));
    for (size_t i = 0; i < n; i++)
        if (part[i].there) part[i].place->buf = all.buf;
    return CLT_OK;
}

/* Rows, outputs and inputs of the kinds of Linear; the last one is the head. */
enum { LINEARS = 5 };
static void linears_of(const clt_mpt *m, int64_t out[LINEARS][3]) {
    const clt_mpt_config *c = &m->cfg;
    const int64_t R = m->rows, C = c->d_model, F = c->ffn_hidden,
                  linear[LINEARS][3] = {{R, m->width, C},
                                        {R, C, c->n_heads * c->head_dim},
                                        {R, F, C},
                                        {R, C, F},
                                        {m->head_rows, c->vocab_size, C}};
    memcpy(out, linear, sizeof linear);
}

/* The copies of weight [rows, cols], entry w of the table. */
static clt_status take_weight(clt_mpt *m, int w, int64_t rows, int64_t cols) {
    clt_ref q = clt_ref_none(), scale = clt_ref_none();
    int64_t bytes, scales;
    if (m->shape.fp8) {
        CLT_TRY(clt_mpt_take(m, &m->memory.other, "weights in 8 bits",
                             clt_mpt_fp8_weight_bytes(m, rows, cols), 1, &q));
        if (m->ops) clt_mpt_fp8_weight_set(m, w, rows, cols, q);
        return CLT_OK;
    }
    clt_mpt_eight_weight_size(m, rows, cols, &bytes, &scales);
    CLT_TRY(clt_mpt_take(m, &m->memory.other, "weights in 8 bits", bytes, 1, &q));
    CLT_TRY(take_other(m, "scales of weights", scales, &scale));
    if (m->ops)
        clt_mpt_eight_weight_set(m, &m->eight.weight[m->eight.weights++], clt_mpt_matrix(m, w), rows, cols, q,
                                 scale);
    return CLT_OK;
}

/* A Linear of a block: entry and shape of its weight. */
typedef struct {
    bool there, shares; /* shares: its input is that of an earlier one */
    int w;
    int64_t rows, cols;
} block_linear;
enum { MOST_WEIGHTS = 8 /* of a block */ };

/* Without a device there is no index. */
static void linears_of_block(const clt_mpt *m, int layer, block_linear out[MOST_WEIGHTS]) {
    static const clt_mpt_block_index none = {.wqkv = -1};
    const clt_mpt_config *c = &m->cfg;
    const clt_mpt_block_index *x = m->ops ? &m->index.block[layer] : &none;
    const int64_t C = c->d_model, F = c->ffn_hidden, Q = c->n_heads * c->head_dim,
                  K = c->kv_n_heads * c->head_dim;
    const bool own_kv = c->layer[layer].reuse_kv < 0, fused = c->fused_qkv && own_kv, kv = !fused && own_kv;
    const block_linear all[] = {{fused, false, x->wqkv, m->width, C},
                                {!fused, false, x->wq, Q, C},
                                {kv, true, x->wk, K, C},
                                {kv, true, x->wv, K, C},
                                {true, false, x->wout, C, Q},
                                {true, false, x->wup, F, C},
                                {c->glu, true, x->wgate, F, C},
                                {true, false, x->wdown, C, F}};
    memcpy(out, all, sizeof all);
}

static clt_status take_block_weights(clt_mpt *m, int layer) {
    block_linear all[MOST_WEIGHTS];
    linears_of_block(m, layer, all);
    for (int i = 0; i < MOST_WEIGHTS; i++)
        if (all[i].there) CLT_TRY(take_weight(m, all[i].w, all[i].rows, all[i].cols));
    return CLT_OK;
}

/* The place of a block's input that is kept. FP8 has another scale for each Linear that reads it. */
static clt_status take_kept_input(clt_mpt *m, const block_linear *l) {
    clt_mpt_kept k = {.entry = l->w, .q = clt_ref_none(), .scale = clt_ref_none()};
    int64_t bytes = l->cols * clt_codes8_k(m->rows), scales = 0;
    if (m->shape.eight_bits) clt_mpt_eight_kept_size(m, m->rows, l->cols, &bytes, &scales);
    CLT_TRY(clt_mpt_take(m, &m->memory.activations, "inputs in 8 bits", bytes, 1, &k.q));
    if (scales) CLT_TRY(take_wide(m, "scales of inputs", scales, &k.scale));
    m->kept[m->n_kept++] = k;
    return CLT_OK;
}

static clt_status take_kept(clt_mpt *m) {
    m->kept = clt_calloc((size_t)(MOST_WEIGHTS * m->cfg.n_layers), sizeof *m->kept);
    for (int layer = 0; layer < m->cfg.n_layers; layer++) {
        block_linear all[MOST_WEIGHTS];
        linears_of_block(m, layer, all);
        for (int i = 0; i < MOST_WEIGHTS; i++)
            if (all[i].there && !(all[i].shares && m->shape.eight_bits)) CLT_TRY(take_kept_input(m, &all[i]));
    }
    return CLT_OK;
}

/* Places for the operands of products in 8 bits; split_qkv: some block's q, k and v are three Linears. */
static clt_status take_eight(clt_mpt *m, bool split_qkv) {
    const clt_mpt_config *c = &m->cfg;
    const int64_t K = c->kv_n_heads * c->head_dim;
    int64_t linear[LINEARS][3];
    clt_mpt_eight *e = &m->eight;
    linears_of(m, linear);
    for (int i = 0; i < LINEARS; i++) clt_mpt_eight_plan(m, linear[i][0], linear[i][1], linear[i][2]);
    if (m->shape.training && c->glu)
        clt_mpt_eight_plan_gradient(m, CLT_MPT_EIGHT_DY_1, m->rows, c->ffn_hidden);
    for (int i = CLT_MPT_EIGHT_DY_1; m->shape.training && split_qkv && i <= CLT_MPT_EIGHT_DY_2; i++)
        clt_mpt_eight_plan_gradient(m, (clt_mpt_eight_place)i, m->rows, K);
    for (int i = 0; i < CLT_MPT_EIGHT_PLACES; i++) {
        if (!e->q_bytes[i]) continue;
        CLT_TRY(clt_mpt_take(m, &m->memory.other, "operands in 8 bits", e->q_bytes[i], 1, &e->q[i]));
        CLT_TRY(take_other(m, "scales of operands", e->scales[i], &e->scale[i]));
    }
    if (!m->shape.eight_weights) return CLT_OK;
    e->weight = clt_calloc((size_t)(MOST_WEIGHTS * c->n_layers + 1), sizeof *e->weight);
    for (int i = 0; i < c->n_layers; i++) CLT_TRY(take_block_weights(m, i));
    return m->ends->tokens ? take_weight(m, m->index.lm_head, c->vocab_size, c->d_model) : CLT_OK;
}

/* The same in 8-bit floating point, without the head, which is the last one. */
static clt_status take_fp8(clt_mpt *m) {
    int64_t linear[LINEARS][3];
    clt_mpt_fp8 *e = &m->fp8;
    linears_of(m, linear);
    for (int i = 0; i < LINEARS - 1; i++) clt_mpt_fp8_plan(m, linear[i][0], linear[i][1], linear[i][2]);
    for (int i = 0; i < CLT_MPT_FP8_PLACES; i++)
        CLT_TRY(clt_mpt_take(m, &m->memory.other, "operands in 8 bits", e->q_bytes[i], 1, &e->q[i]));
    CLT_TRY(take_other(m, "scales of operands", clt_mpt_fp8_words(m), &e->numbers));
    if (m->shape.eight_weights) {
        e->weight = clt_calloc((size_t)(MOST_WEIGHTS * m->cfg.n_layers), sizeof *e->weight);
        for (int i = 0; i < m->cfg.n_layers; i++) CLT_TRY(take_block_weights(m, i));
    }
    return m->ops ? clt_mpt_fp8_begin(m) : CLT_OK;
}

/* Largest workspace that any operation of a step asks for: a bound from the shapes, without a device. */
static uint64_t workspace_bound(const clt_mpt *m, clt_device_type type) {
    const clt_mpt_config *c = &m->cfg;
    int64_t R = m->rows, C = c->d_model, T = m->shape.seq, linear[LINEARS][3];
    uint64_t most = 0;
    linears_of(m, linear);
    for (int i = 0; i < LINEARS; i++) {
        int64_t rows = linear[i][0], out = linear[i][1], in = linear[i][2];
        clt_gemm_params g[] = {{.form = CLT_GEMM_NT, .m = rows, .n = out, .k = in, .a = {.type = m->type}},
                               {.form = CLT_GEMM_NN, .m = rows, .n = in, .k = out, .a = {.type = m->type}},
                               {.form = CLT_GEMM_TN,
                                .m = out,
                                .n = in,
                                .k = rows,
                                .k_group = rows % T ? 1 : T,
                                .a = {.type = m->type}}};
        for (int f = 0; f < (m->shape.training ? 3 : 1); f++) {
            const clt_gemm_fp8_params p = {.split = f > 0, .to = g[f]};
            most = CLT_MAX(most, m->shape.eight_bits ? clt_mpt_eight_workspace(type, &g[f])
                                                     : clt_op_gemm_workspace(type, &g[f]));
            if (m->shape.fp8) most = CLT_MAX(most, clt_op_gemm_fp8_workspace(type, &p));
        }
    }
    clt_attention_params a = {.batch = m->shape.microbatch,
                              .seq = T,
                              .heads = c->n_heads,
                              .kv_heads = c->kv_n_heads,
                              .head_dim = c->head_dim,
                              .window = -1,
                              .q = {.type = m->type}};
    if (m->shape.training) most += clt_op_sums_workspace(type, R, C, T);
    return most + (m->shape.eight_attention ? clt_op_attention8_workspace(type, &a)
                                            : clt_op_attention_workspace(type, &a));
}

/* The gradient of the head's weight is read and written again for each group, which counts where the head is
 * much of the model: its part of a step falls with d_model squared. Which groups there are changes no bits in
 * exact numerics. */
static uint64_t logits_budget(const clt_mpt *m) {
    const uint64_t C = (uint64_t)m->cfg.d_model;
    uint64_t mib = m->type == CLT_F32 ? LOGITS_MIB_FP32 : LOGITS_MIB_NARROW;
    if (m->shape.logits_bytes) return m->shape.logits_bytes;
    const bool quick = m->shape.numerics == CLT_FAST || m->shape.eight_bits;
    if (m->type != CLT_F32 && m->shape.training && quick && C < SMALL_HEAD)
        mib = CLT_MIN(mib * SMALL_HEAD * SMALL_HEAD / (C * C), (uint64_t)LOGITS_MIB_MOST);
    return mib * MIB;
}

/* Rows of the logits buffer: groups of whole samples, as even as they can be, within the budget and what the
 * buffer has anyway. */
static int64_t head_rows(const clt_mpt *m) {
    const clt_mpt_config *c = &m->cfg;
    uint64_t bytes = clt_dtype_bytes(m->type), budget = logits_budget(m);
    if (norms_are_shared(m))
        budget = CLT_MAX(budget, (uint64_t)(m->rows * (c->ffn_hidden + mlp_places(c))) * bytes);
    int64_t fit = (int64_t)(budget / ((uint64_t)m->shape.seq * (uint64_t)c->vocab_size * bytes));
    int64_t groups = CLT_CEIL_DIV(m->shape.microbatch, CLT_MAX(fit, 1));
    return CLT_CEIL_DIV(m->shape.microbatch, groups) * m->shape.seq;
}

clt_status clt_mpt_layout(clt_mpt *m) {
    const clt_mpt_config *c = &m->cfg;
    bool split_qkv = false;
    m->type = m->shape.type;
    m->room = m->shape.seq;
    m->rows = m->shape.microbatch * m->shape.seq;
    m->width = (c->n_heads + 2 * c->kv_n_heads) * c->head_dim;
    m->out_rows = m->ends->tokens ? m->rows : m->shape.microbatch;
    m->head_rows = m->ends->tokens ? head_rows(m) : m->out_rows;
    m->acts = clt_calloc((size_t)c->n_layers, sizeof *m->acts);
    m->dqkv = clt_calloc((size_t)c->n_layers, sizeof *m->dqkv);
    for (int i = 0; i < c->n_layers; i++) {
        if (c->layer[i].reuse_kv >= 0) m->source_of_kv[c->layer[i].reuse_kv] = true;
        split_qkv |= !c->fused_qkv && c->layer[i].reuse_kv < 0;
    }
    m->dnorm_type = c->glu || split_qkv ? CLT_F32 : m->type;

    CLT_TRY(take_blocks(m));
    CLT_TRY(norms_are_shared(m) ? take_scratch(m) : take_places(m));
    CLT_TRY(take_wide(m, "norm statistics", m->out_rows, &m->meanf));
    CLT_TRY(take_wide(m, "norm statistics", m->out_rows, &m->rstdf));
    CLT_TRY(m->ends->take(m));
    if (m->shape.training) CLT_TRY(take_gradients(m));
    if (clt_mpt_keeps_inputs(m)) CLT_TRY(take_kept(m));
    if (m->shape.eight_bits) CLT_TRY(take_eight(m, split_qkv));
    return m->shape.fp8 ? take_fp8(m) : CLT_OK;
}

/* A model without a device. */
static clt_mpt *begin(const clt_mpt_ends *ends, const clt_model_config *config,
                      const clt_model_shape *shape) {
    clt_mpt *m = clt_calloc(1, ends->bytes);
    m->ends = ends;
    m->cfg = *(const clt_mpt_config *)config;
    m->shape = *shape;
    if (ends->begin) ends->begin(m, config);
    return m;
}

clt_status clt_mpt_plan_as(const clt_mpt_ends *ends, const clt_model_config *config,
                           const clt_model_shape *shape, clt_device_type type, clt_model_memory *out) {
    clt_mpt *m = begin(ends, config, shape);
    clt_status st = clt_mpt_layout(m);
    if (st == CLT_OK) {
        m->memory.workspace = workspace_bound(m, type);
        if (ends->workspace) m->memory.workspace = CLT_MAX(m->memory.workspace, ends->workspace(m, type));
        m->memory.total = m->memory.activations + m->memory.logits + m->memory.workspace + m->memory.other;
        *out = m->memory;
    }
    clt_mpt_destroy(&m->base);
    return st;
}

clt_status clt_mpt_plan(const clt_model_config *config, const clt_model_shape *shape, clt_device_type type,
                        clt_model_memory *out) {
    return clt_mpt_plan_as(&clt_mpt_token_ends, config, shape, type, out);
}

void *clt_mpt_host_array(size_t count, size_t size, size_t *lack) {
    void *p = clt_try_calloc(count, size);
    if (!p) *lack += count * size;
    return p;
}

clt_status clt_mpt_create_as(const clt_mpt_ends *ends, const clt_model_config *config,
                             const clt_model_shape *shape, clt_ops *ops, clt_slab *weights, clt_slab *narrow,
                             clt_model **out) {
    clt_mpt *m = begin(ends, config, shape);
    m->ops = ops;
    m->weights = weights;
    m->narrow = narrow;
    ends->index(m);
    clt_model_units(config, weights->table, &m->units);
    clt_status st = clt_mpt_layout(m);
    if (st == CLT_OK) st = ends->take_host(m);
    if (st != CLT_OK) {
        clt_mpt_destroy(&m->base);
        return st;
    }
    *out = &m->base;
    return CLT_OK;
}

clt_status clt_mpt_create(const clt_model_config *config, const clt_model_shape *shape, clt_ops *ops,
                          clt_slab *weights, clt_slab *narrow, clt_model **out) {
    return clt_mpt_create_as(&clt_mpt_token_ends, config, shape, ops, weights, narrow, out);
}

void clt_mpt_destroy(clt_model *model) {
    clt_mpt *m = (clt_mpt *)model;
    clt_sequence_free(m->repeat.launches);
    clt_mpt_inputs_free(m);
    for (int i = 0; i < m->n_buffers; i++) clt_buffer_destroy(m->buffers[i]);
    clt_free(m->buffers);
    clt_free(m->acts);
    clt_free(m->dqkv);
    clt_free(m->eight.weight);
    clt_free(m->kept);
    clt_free(m->slot_of_id);
    clt_free(m->lookups.in_lane);
    clt_free(m->lookups.lane_list);
    clt_free(m->ones.in_lane);
    clt_free(m->ones.lane_list);
    clt_free(m->fill);
    clt_free(m->host);
    clt_free(m->host_correct);
    clt_free(m->cached);
    clt_free(m->n_cached);
    clt_free(m->temperature_at);
    clt_free(m->units);
    clt_free(m->fp8.formats);
    clt_free(m->fp8.weight);
    clt_mpt_index_free(&m->index);
    clt_free(m);
}
