/* The forward pass of an MPT, top to bottom: embedding, blocks, final norm, head and loss. */
#include "runtime/model/mpt/clt_mpt_internal.h"

#include <string.h>

clt_tensor clt_mpt_entry(const clt_slab *slab, int entry) {
    if (entry < 0) return clt_tensor_none();
    const clt_slab_entry *e = &slab->table->entry[entry];
    return clt_tensor_of(clt_slab_ref(slab, entry), e->dims > 1 ? e->shape[1] : 0, CLT_F32);
}

clt_tensor clt_mpt_weight(const clt_mpt *m, int entry) {
    return clt_mpt_entry(m->weights, entry);
}

clt_tensor clt_mpt_matrix(const clt_mpt *m, int entry) {
    clt_tensor t = clt_mpt_entry(m->narrow ? m->narrow : m->weights, entry);
    t.type = m->type;
    return t;
}

clt_tensor clt_mpt_lookup(const clt_mpt *m, int entry) {
    return m->shape.narrow_embeddings ? clt_mpt_matrix(m, entry) : clt_mpt_weight(m, entry);
}

clt_gemm_params clt_mpt_linear(const clt_mpt *m, int64_t rows, int w, int b, clt_ref x, int64_t ldx,
                               clt_ref y, int64_t ldy) {
    const clt_slab_entry *e = &m->weights->table->entry[w];
    return (clt_gemm_params){.form = CLT_GEMM_NT,
                             .m = rows,
                             .n = e->shape[0],
                             .k = e->shape[1],
                             .a = clt_tensor_of(x, ldx, m->type),
                             .b = clt_mpt_matrix(m, w),
                             .c = clt_tensor_of(y, ldy, m->type),
                             .bias = clt_mpt_weight(m, b)};
}

clt_status clt_mpt_norm_weight(clt_mpt *m, int w, clt_tensor *out) {
    *out = clt_mpt_weight(m, w);
    if (!m->norm_weight.buf) return CLT_OK;
    const clt_ref stored = out->ref;
    out->ref = m->norm_weight;
    return clt_op_offset(m->ops, stored, m->norm_weight, (uint64_t)m->cfg.d_model, (float)m->cfg.norm_offset);
}

/* A norm over rows of C. */
static clt_status norm(clt_mpt *m, int64_t rows, clt_tensor x, int w, int b, clt_tensor y, clt_ref mean,
                       clt_ref rstd) {
    const clt_mpt_config *c = &m->cfg;
    clt_norm_params p = {.rms = c->rms_norm,
                         .eps = (float)c->norm_eps,
                         .rows = rows,
                         .cols = c->d_model,
                         .heads = 1,
                         .x = x,
                         .b = clt_mpt_weight(m, b),
                         .y = y,
                         .mean = mean,
                         .rstd = rstd};
    CLT_TRY(clt_mpt_norm_weight(m, w, &p.w));
    return clt_op_norm_forward(m->ops, &p);
}

/* The same in front of a branch or the head: y is of the branches' type. */
static clt_status pre_norm(clt_mpt *m, int64_t rows, clt_ref x, int w, int b, clt_ref y, clt_ref mean,
                           clt_ref rstd) {
    const int64_t C = m->cfg.d_model;
    return norm(m, rows, clt_tensor_of(x, C, CLT_F32), w, b, clt_tensor_of(y, C, m->type), mean, rstd);
}

clt_status clt_mpt_dropout(clt_mpt *m, const clt_model_pass *b, double p, int layer, int site,
                           clt_dtype x_type, clt_ref x, clt_ref residual, clt_dtype y_type, clt_ref y) {
    const int64_t C = m->cfg.d_model;
    const bool whole = site == CLT_SITE_ATTENTION_PATH || site == CLT_SITE_FFN_PATH;
    return clt_op_dropout(m->ops, &(clt_dropout_params){.rows = b->batch->samples * m->shape.seq,
                                                        .seq = m->shape.seq,
                                                        .cols = C,
                                                        .x = clt_tensor_of(x, C, x_type),
                                                        .y = clt_tensor_of(y, C, y_type),
                                                        .residual = clt_tensor_of(residual, C, y_type),
                                                        .p = (float)p,
                                                        .seed = b->seed,
                                                        .step = b->step,
                                                        .first_sample = b->batch->first,
                                                        .layer = layer,
                                                        .site = site,
                                                        .whole_samples = whole});
}

bool clt_mpt_branch_drops(const clt_mpt *m, const clt_model_pass *b, int layer, clt_mpt_branch branch,
                          double *p, int *site) {
    const clt_mpt_config *c = &m->cfg;
    const bool path = c->drop_path > 0, attention = branch == CLT_MPT_ATTENTION;
    *p = path ? c->drop_path * layer / (double)CLT_MAX(c->n_layers - 1, 1) : c->resid_pdrop;
    *site = path        ? attention ? CLT_SITE_ATTENTION_PATH : CLT_SITE_FFN_PATH
            : attention ? CLT_SITE_ATTENTION_OUT
                        : CLT_SITE_FFN_OUT;
    return b->dropout && *p > 0;
}

/* What a branch ends with. */
typedef struct {
    int w, bias;
} branch_tail;

static branch_tail tail_of(const clt_mpt *m, int layer, clt_mpt_branch branch) {
    const clt_mpt_block_index *x = &m->index.block[layer];
    return branch == CLT_MPT_ATTENTION ? (branch_tail){x->wout, x->bout} : (branch_tail){x->wdown, x->bdown};
}

/* The product at the end of a branch. */
static clt_status branch_product(clt_mpt *m, const clt_gemm_params *g, int layer, clt_mpt_branch branch) {
    const int w = tail_of(m, layer, branch).w;
    if (branch != CLT_MPT_MLP || !clt_mpt_casts_activate(m))
        return clt_mpt_linear_product(m, g, w, NULL, NULL);
    const clt_mpt_operand hidden = clt_mpt_hidden_operand(m, layer, g->m);
    clt_mpt_blocks in;
    CLT_TRY(clt_mpt_input(m, w, &hidden, &in));
    return clt_mpt_linear_product(m, g, w, &in, NULL);
}

/* y = x + norm(in * W^T + bias) */
static clt_status branch_end_with_norm(clt_mpt *m, int64_t R, int layer, clt_mpt_branch branch, clt_ref in,
                                       int64_t ldin, clt_ref x, clt_ref y) {
    const clt_mpt_block_index *index = &m->index.block[layer];
    const clt_mpt_post *post = &m->acts[layer].post[branch];
    const branch_tail end = tail_of(m, layer, branch);
    const int64_t C = m->cfg.d_model;
    const clt_gemm_params g = clt_mpt_linear(m, R, end.w, end.bias, in, ldin, post->out, C);
    CLT_TRY(branch_product(m, &g, layer, branch));
    CLT_TRY(clt_model_made(&m->base, m->type, post->out, (uint64_t)(R * C), "block %d: input of post_norm_%d",
                           layer, branch + 1));
    CLT_TRY(norm(m, R, g.c, index->post_w[branch], index->post_b[branch], clt_tensor_of(y, C, CLT_F32),
                 post->mean, post->rstd));
    return clt_op_add(m->ops, y, x, (uint64_t)(R * C));
}

/* y = x + dropout(in * W^T + bias), or with a norm: the end of both branches of a block. */
static clt_status branch_end(clt_mpt *m, const clt_model_pass *b, int layer, clt_mpt_branch branch,
                             clt_ref in, int64_t ldin, clt_ref x, clt_ref y) {
    int64_t R = b->batch->samples * m->shape.seq, C = m->cfg.d_model;
    const branch_tail end = tail_of(m, layer, branch);
    if (m->cfg.post_norms) return branch_end_with_norm(m, R, layer, branch, in, ldin, x, y);
    clt_gemm_params g = clt_mpt_linear(m, R, end.w, end.bias, in, ldin, y, C);
    double p;
    int site;
    if (!clt_mpt_branch_drops(m, b, layer, branch, &p, &site)) {
        g.residual = clt_tensor_of(x, C, CLT_F32);
        g.c.type = CLT_F32;
        return branch_product(m, &g, layer, branch);
    }
    g.c.ref = m->dbranch;
    CLT_TRY(branch_product(m, &g, layer, branch));
    return clt_mpt_dropout(m, b, p, layer, site, m->type, m->dbranch, x, CLT_F32, y);
}

/* The qk norms (always layer norms with eps 1e-5) of `heads` heads of the columns at `col`. */
static clt_status qk_norm(clt_mpt *m, int64_t rows, int64_t heads, int64_t col, clt_ref in, clt_ref out,
                          int w, int b, clt_ref mean, clt_ref rstd) {
    const clt_mpt_config *c = &m->cfg;
    clt_norm_params p = {.eps = 1e-5f,
                         .rows = rows,
                         .cols = c->qk_gn ? c->head_dim : heads * c->head_dim,
                         .heads = c->qk_gn ? heads : 1,
                         .x = clt_tensor_of(clt_ref_at(in, (uint64_t)col), m->width, m->type),
                         .y = clt_tensor_of(clt_ref_at(out, (uint64_t)col), m->width, m->type),
                         .w = clt_mpt_weight(m, w),
                         .b = clt_mpt_weight(m, b),
                         .mean = mean,
                         .rstd = rstd};
    return clt_op_norm_forward(m->ops, &p);
}

/* q|k|v = n1 * Wqkv^T + bias (or q alone where keys and values come from an earlier block), clip, norms. */
static clt_status make_qkv(clt_mpt *m, int64_t R, int layer) {
    const clt_mpt_config *c = &m->cfg;
    const clt_mpt_block_index *x = &m->index.block[layer];
    clt_mpt_acts *a = &m->acts[layer];
    bool own_kv = c->layer[layer].reuse_kv < 0, norms = c->qk_ln || c->qk_gn, clip = c->clip_qkv > 0;
    int64_t Q = c->n_heads * c->head_dim, K = c->kv_n_heads * c->head_dim, W = m->width, C = c->d_model;
    int64_t cols = own_kv ? W : Q;
    clt_ref made = clip || norms ? a->raw : a->qkv;
    const int w[] = {x->wq, x->wk, x->wv}, b[] = {x->bq, x->bk, x->bv};
    const int64_t at[] = {0, Q, Q + K};
    if (x->wqkv >= 0) {
        clt_gemm_params g = clt_mpt_linear(m, R, x->wqkv, x->bqkv, a->n1, C, made, W);
        CLT_TRY(clt_mpt_linear_product(m, &g, x->wqkv, NULL, NULL));
    }
    clt_mpt_blocks n1;
    const clt_mpt_operand in = {.x = clt_tensor_of(a->n1, C, m->type), .rows = R, .cols = C};
    if (x->wqkv < 0) CLT_TRY(clt_mpt_input(m, x->wq, &in, &n1));
    for (int i = 0; x->wqkv < 0 && i < (own_kv ? 3 : 1); i++) {
        clt_gemm_params g = clt_mpt_linear(m, R, w[i], b[i], a->n1, C, clt_ref_at(made, (uint64_t)at[i]), W);
        CLT_TRY(clt_mpt_linear_product(m, &g, w[i], &n1, NULL));
    }
    CLT_TRY(clt_model_made(&m->base, m->type, made, (uint64_t)(R * W),
                           "block %d: attention's q, k, v projection", layer));
    if (clip) {
        clt_ref to = norms ? a->clipped : a->qkv;
        CLT_TRY(clt_op_clip_forward(m->ops, &(clt_clip_params){.limit = (float)c->clip_qkv,
                                                               .rows = R,
                                                               .cols = cols,
                                                               .x = clt_tensor_of(made, W, m->type),
                                                               .y = clt_tensor_of(to, W, m->type)}));
        made = to;
    }
    if (!norms) return CLT_OK;
    CLT_TRY(qk_norm(m, R, c->n_heads, 0, made, a->qkv, x->q_ln_w, x->q_ln_b, a->q_mean, a->q_rstd));
    if (!own_kv) return CLT_OK;
    CLT_TRY(qk_norm(m, R, c->kv_n_heads, Q, made, a->qkv, x->k_ln_w, x->k_ln_b, a->k_mean, a->k_rstd));
    CLT_TRY(clt_op_copy_rows(m->ops, R, K, clt_tensor_at(clt_tensor_of(made, W, m->type), 0, Q + K),
                             clt_tensor_at(clt_tensor_of(a->qkv, W, m->type), 0, Q + K)));
    return clt_model_made(&m->base, m->type, a->qkv, (uint64_t)(R * W), "block %d: norms of q and k", layer);
}

/* A table with `cols` values a position, from the pass's first position on; in a step its gathered rows. */
static clt_ref from_past(const clt_mpt *m, clt_ref table, int64_t cols, clt_ref gathered) {
    if (m->step && table.buf) return gathered;
    return table.buf ? clt_ref_at(table, (uint64_t)(m->past * cols)) : table;
}

clt_status clt_mpt_temper(clt_mpt *m, int64_t R, clt_ref x) {
    bool by_row = m->row_temperature.buf;
    clt_ref factors = by_row ? m->row_temperature : from_past(m, m->temperature, 1, m->at.temperature);
    if (!factors.buf) return CLT_OK;
    int64_t period = by_row ? R : m->shape.seq, cols = m->cfg.n_heads * m->cfg.head_dim;
    return clt_op_scale_rows(
        m->ops, &(clt_scale_rows_params){R, period, cols, clt_tensor_of(x, m->width, m->type), factors});
}

/* Positions act on q and k in place: temperature, then rotation. */
static clt_status place_qk(clt_mpt *m, int64_t R, int layer) {
    const clt_mpt_config *c = &m->cfg;
    clt_mpt_acts *a = &m->acts[layer];
    int64_t T = m->shape.seq, Q = c->n_heads * c->head_dim, W = m->width;
    clt_ref angles = from_past(m, m->rope, c->rope_dims, m->at.angles);
    CLT_TRY(clt_mpt_temper(m, R, a->qkv));
    if (!angles.buf || c->layer[layer].nope) return CLT_OK;
    clt_rope_params p = {.rows = R,
                         .seq = T,
                         .heads = c->n_heads,
                         .head_dim = c->head_dim,
                         .x = clt_tensor_of(a->qkv, W, m->type),
                         .cos_sin = angles,
                         .dims = c->rope_dims};
    CLT_TRY(clt_op_rope(m->ops, &p));
    if (c->layer[layer].reuse_kv >= 0) return CLT_OK;
    p.heads = c->kv_n_heads;
    p.x = clt_tensor_at(p.x, 0, Q);
    return clt_op_rope(m->ops, &p);
}

clt_attention_params clt_mpt_attention(const clt_mpt *m, const clt_model_pass *b, int layer) {
    const clt_mpt_config *c = &m->cfg;
    const clt_mpt_acts *a = &m->acts[layer];
    int64_t source = c->layer[layer].reuse_kv >= 0 ? c->layer[layer].reuse_kv : layer;
    int64_t Q = c->n_heads * c->head_dim, K = c->kv_n_heads * c->head_dim;
    clt_tensor kv = clt_tensor_of(m->acts[source].qkv, m->width, m->type);
    return (clt_attention_params){.batch = b->batch->samples,
                                  .seq = m->shape.seq,
                                  .heads = c->n_heads,
                                  .kv_heads = c->kv_n_heads,
                                  .head_dim = c->head_dim,
                                  .q = clt_tensor_of(a->qkv, m->width, m->type),
                                  .k = clt_tensor_at(kv, 0, Q),
                                  .v = clt_tensor_at(kv, 0, Q + K),
                                  .o = clt_tensor_of(a->att, Q, m->type),
                                  .lse = a->lse,
                                  .scale = (float)c->softmax_scale,
                                  .softcap = (float)c->attn_logit_softcapping,
                                  .slopes = m->slopes,
                                  .mask = c->bidirectional ? CLT_MASK_NONE : CLT_MASK_CAUSAL,
                                  .window = c->layer[layer].window,
                                  .seq_ids = m->seq_ids,
                                  .dropout = b->dropout ? (float)c->attn_pdrop : 0.0f,
                                  .seed = b->seed,
                                  .step = b->step,
                                  .first_sample = b->batch->first,
                                  .layer = layer};
}

/* Row r of a step attends to its text. */
static clt_status attend_step(clt_mpt *m, const clt_attention_params *all, clt_tensor cache, bool append,
                              int64_t r) {
    const int64_t Q = all->heads * all->head_dim, K = all->kv_heads * all->head_dim;
    const int64_t position = m->step->position[r];
    const clt_tensor text = clt_tensor_at(cache, m->step->place[r] * m->room, 0);
    clt_attention_params p = *all;
    p.q = clt_tensor_at(all->q, r, 0);
    p.o = clt_tensor_at(all->o, r, 0);
    if (append)
        CLT_TRY(
            clt_op_copy_rows(m->ops, 1, 2 * K, clt_tensor_at(p.q, 0, Q), clt_tensor_at(text, position, 0)));
    p.seq = position + 1;
    p.k = text;
    p.v = clt_tensor_at(text, 0, K);
    p.seq_ids = clt_ref_none(); /* the text is one sequence */
    return clt_op_attention_last(m->ops, &p, 1);
}

/* Attention; with a cache, new keys and values go there, and what lies before them is read there. */
static clt_status attend(clt_mpt *m, const clt_model_pass *b, int layer) {
    const clt_mpt_config *c = &m->cfg;
    int64_t source = c->layer[layer].reuse_kv >= 0 ? c->layer[layer].reuse_kv : layer, n = m->shape.seq;
    int64_t Q = c->n_heads * c->head_dim, K = c->kv_n_heads * c->head_dim;
    clt_attention_params p = clt_mpt_attention(m, b, layer);
    clt_tensor cache = clt_tensor_of(m->acts[source].cache, 2 * K, m->type);
    for (int64_t r = 0; m->step && r < n; r++) CLT_TRY(attend_step(m, &p, cache, source == layer, r));
    if (m->step) return CLT_OK;
    cache = clt_tensor_at(cache, m->place * m->room, 0);
    if (clt_tensor_present(cache) && source == layer)
        CLT_TRY(
            clt_op_copy_rows(m->ops, n, 2 * K, clt_tensor_at(p.q, 0, Q), clt_tensor_at(cache, m->past, 0)));
    if (m->past == 0)
        return m->shape.eight_attention ? clt_op_attention8_forward(m->ops, &p)
                                        : clt_op_attention_forward(m->ops, &p);
    p.seq = m->past + n;
    p.k = cache;
    p.v = clt_tensor_at(cache, 0, K);
    p.seq_ids = clt_ref_none(); /* the text is one sequence */
    return clt_op_attention_last(m->ops, &p, n);
}

/* act = activation(n2 * Wup^T + bias), or activation(gate) * up; or what is in front of the activation. */
static clt_status mlp_hidden(clt_mpt *m, int64_t R, int layer) {
    const clt_mpt_config *c = &m->cfg;
    const clt_mpt_block_index *x = &m->index.block[layer];
    clt_mpt_acts *a = &m->acts[layer];
    int64_t C = c->d_model, F = c->ffn_hidden;
    clt_gemm_params up = clt_mpt_linear(m, R, x->wup, x->bup, a->n2, C, a->act, F);
    if (clt_mpt_casts_activate(m)) {
        up.c.ref = clt_mpt_hidden(m, layer);
        return clt_mpt_linear_product(m, &up, x->wup, NULL, NULL);
    }
    if (!c->glu) {
        up.act = c->activation;
        up.pre = clt_tensor_of(a->up, F, m->type);
        return clt_mpt_linear_product(m, &up, x->wup, NULL, NULL);
    }
    clt_gemm_params gate = clt_mpt_linear(m, R, x->wgate, x->bgate, a->n2, C, a->gate, F);
    clt_mpt_blocks n2;
    up.c.ref = a->up;
    CLT_TRY(clt_mpt_input(m, x->wup, &(clt_mpt_operand){.x = up.a, .rows = R, .cols = C}, &n2));
    CLT_TRY(clt_mpt_linear_product(m, &up, x->wup, &n2, NULL));
    CLT_TRY(clt_mpt_linear_product(m, &gate, x->wgate, &n2, NULL));
    return clt_op_glu_forward(m->ops, &(clt_glu_params){.act = c->activation,
                                                        .rows = R,
                                                        .cols = F,
                                                        .gate = gate.c,
                                                        .up = up.c,
                                                        .y = clt_tensor_of(a->act, F, m->type)});
}

clt_status clt_mpt_block_forward(clt_mpt *m, const clt_model_pass *b, int layer, clt_ref x_out) {
    const clt_mpt_config *c = &m->cfg;
    const clt_mpt_block_index *x = &m->index.block[layer];
    clt_mpt_acts *a = &m->acts[layer];
    int64_t R = b->batch->samples * m->shape.seq, C = c->d_model, Q = c->n_heads * c->head_dim;

    CLT_TRY(pre_norm(m, R, a->x, x->norm1_w, x->norm1_b, a->n1, a->mean1, a->rstd1));
    CLT_TRY(clt_model_made(&m->base, m->type, a->n1, (uint64_t)(R * C), "block %d: norm_1", layer));
    CLT_TRY(make_qkv(m, R, layer));
    CLT_TRY(place_qk(m, R, layer));
    CLT_TRY(attend(m, b, layer));
    CLT_TRY(clt_model_made(&m->base, m->type, a->att, (uint64_t)(R * Q), "block %d: attention", layer));
    CLT_TRY(branch_end(m, b, layer, CLT_MPT_ATTENTION, a->att, Q, a->x, a->mid));
    CLT_TRY(clt_model_made(&m->base, CLT_F32, a->mid, (uint64_t)(R * C), "block %d: attention's out_proj",
                           layer));

    CLT_TRY(pre_norm(m, R, clt_mpt_mlp_input(m, layer), x->norm2_w, x->norm2_b, a->n2, a->mean2, a->rstd2));
    CLT_TRY(clt_model_made(&m->base, m->type, a->n2, (uint64_t)(R * C), "block %d: norm_2", layer));
    CLT_TRY(mlp_hidden(m, R, layer));
    const clt_ref hidden = clt_mpt_hidden(m, layer);
    CLT_TRY(clt_model_made(&m->base, m->type, hidden, (uint64_t)(R * c->ffn_hidden),
                           clt_mpt_casts_activate(m) ? "block %d: mlp's up_proj"
                                                     : "block %d: mlp's up_proj and activation",
                           layer));
    CLT_TRY(branch_end(m, b, layer, CLT_MPT_MLP, hidden, c->ffn_hidden, a->mid, x_out));
    return clt_model_made(&m->base, CLT_F32, x_out, (uint64_t)(R * C), "block %d: mlp's down_proj", layer);
}

static clt_ref block_output(const clt_mpt *m, int layer) {
    return layer + 1 < m->cfg.n_layers ? m->acts[layer + 1].x : m->x_last;
}

clt_status clt_mpt_scale_embedding(clt_mpt *m, int64_t rows, clt_ref x) {
    const int64_t C = m->cfg.d_model;
    if (!m->embedding_scale.buf) return CLT_OK;
    return clt_op_scale_rows(
        m->ops, &(clt_scale_rows_params){rows, 1, C, clt_tensor_of(x, C, CLT_F32), m->embedding_scale});
}

/* The learned positions of the pass's rows. */
static clt_tensor positions_of(const clt_mpt *m) {
    const clt_tensor all = clt_mpt_lookup(m, m->index.wpe);
    if (m->step && clt_tensor_present(all)) return clt_tensor_of(m->at.wpe, all.ld, all.type);
    return clt_tensor_at(all, m->past, 0);
}

clt_status clt_mpt_embed(clt_mpt *m, const clt_model_pass *b) {
    const clt_mpt_config *c = &m->cfg;
    int64_t R = b->batch->samples * m->shape.seq, C = c->d_model;
    clt_ref x0 = m->acts[0].x;
    CLT_TRY(
        clt_op_embedding_forward(m->ops, &(clt_embedding_params){.rows = R,
                                                                 .seq = m->shape.seq,
                                                                 .cols = C,
                                                                 .vocab = c->vocab_size,
                                                                 .ids = m->tokens,
                                                                 .wte = clt_mpt_lookup(m, m->index.wte),
                                                                 .wpe = positions_of(m),
                                                                 .out = clt_tensor_of(x0, C, CLT_F32),
                                                                 .fraction = (float)c->embedding_fraction}));
    CLT_TRY(clt_mpt_scale_embedding(m, R, x0));
    if (b->dropout && c->emb_pdrop > 0)
        CLT_TRY(clt_mpt_dropout(m, b, c->emb_pdrop, 0, CLT_SITE_EMBEDDING, CLT_F32, x0, clt_ref_none(),
                                CLT_F32, x0));
    return clt_model_made(&m->base, CLT_F32, x0, (uint64_t)(R * C), "embedding");
}

clt_status clt_mpt_out(clt_mpt *m, const clt_model_pass *b) {
    const int64_t R = b->batch->samples * m->shape.seq, C = m->cfg.d_model;
    CLT_TRY(pre_norm(m, R, m->x_last, m->index.norm_f_w, m->index.norm_f_b, m->nf, m->meanf, m->rstdf));
    return clt_model_made(&m->base, m->type, m->nf, (uint64_t)(R * C), "norm_f");
}

clt_status clt_mpt_forward(clt_mpt *m, const clt_model_pass *b) {
    const clt_mpt_config *c = &m->cfg;
    CLT_TRY(clt_mpt_need(m, CLT_MPT_EMBEDDING_UNIT));
    CLT_TRY(m->ends->embed(m, b));
    CLT_TRY(clt_mpt_done(m, CLT_MPT_EMBEDDING_UNIT));
    for (int i = 0; i < c->n_layers; i++) {
        CLT_TRY(clt_mpt_need(m, clt_mpt_block_unit(i)));
        CLT_TRY(clt_mpt_inputs_leave(m, i));
        CLT_TRY(clt_mpt_block_forward(m, b, i, block_output(m, i)));
        CLT_TRY(clt_mpt_done(m, clt_mpt_block_unit(i)));
    }
    CLT_TRY(clt_mpt_need(m, clt_mpt_head_unit(c)));
    return m->ends->out(m, b);
}

/* --- head and loss --- */

clt_status clt_mpt_head_need(clt_mpt *m) {
    return m->cfg.tie_word_embeddings ? clt_mpt_need(m, CLT_MPT_EMBEDDING_UNIT) : CLT_OK;
}

clt_status clt_mpt_head_done(clt_mpt *m) {
    return m->cfg.tie_word_embeddings ? clt_mpt_done(m, CLT_MPT_EMBEDDING_UNIT) : CLT_OK;
}

/* Gradients of the head for the rows whose d(logits) lie in m->logits. */
static clt_status head_backward(clt_mpt *m, const clt_model_pass *b, int64_t first, int64_t rows) {
    int64_t C = m->cfg.d_model, V = m->cfg.vocab_size;
    uint64_t at = (uint64_t)(first * C);
    clt_gemm_params data = {.form = CLT_GEMM_NN,
                            .m = rows,
                            .n = C,
                            .k = V,
                            .a = clt_tensor_of(m->logits, V, m->type),
                            .b = clt_mpt_matrix(m, m->index.lm_head),
                            .c = clt_tensor_of(clt_ref_at(m->dnf, at), C, m->dnorm_type)};
    if (clt_mpt_has_ones(m)) data.residual = clt_tensor_of(clt_ref_at(m->dx, at), C, CLT_F32);
    clt_gemm_params weight = {.form = CLT_GEMM_TN,
                              .m = V,
                              .n = C,
                              .k = rows,
                              .k_group = m->shape.seq,
                              .a = clt_tensor_of(m->logits, V, m->type),
                              .b = clt_tensor_of(clt_ref_at(m->nf, at), C, m->type),
                              .c = clt_mpt_entry(b->grads, m->index.lm_head),
                              .accumulate = !(b->lane_first && first == 0)};
    clt_mpt_blocks d;
    CLT_TRY(
        clt_mpt_gradient(m, CLT_MPT_EIGHT_DY, &(clt_mpt_operand){.x = data.a, .rows = rows, .cols = V}, &d));
    CLT_TRY(clt_mpt_product_with(m, &data, &d, NULL));
    CLT_TRY(clt_model_made(&m->base, m->dnorm_type, data.c.ref, (uint64_t)(rows * C),
                           "gradient of the head's input"));
    CLT_TRY(clt_mpt_product_with(m, &weight, &d, NULL));
    return clt_model_made(&m->base, CLT_F32, weight.c.ref, (uint64_t)(V * C),
                          "gradient of the head's weight");
}

/* One group of rows: logits, their losses and, with `grad`, all gradients that follow from them. */
static clt_status head_group(clt_mpt *m, const clt_model_pass *b, bool grad, clt_ref correct, int64_t first,
                             int64_t rows) {
    const clt_mpt_config *c = &m->cfg;
    const int64_t C = c->d_model, V = c->vocab_size;
    const uint64_t at = (uint64_t)first;
    if (grad) CLT_TRY(clt_model_turns(&m->base, false));
    clt_gemm_params g =
        clt_mpt_linear(m, rows, m->index.lm_head, -1, clt_ref_at(m->nf, at * (uint64_t)C), C, m->logits, V);
    CLT_TRY(clt_mpt_product(m, &g));
    CLT_TRY(clt_model_made(&m->base, m->type, m->logits, (uint64_t)(rows * V), "logits"));
    CLT_TRY(clt_op_loss(
        m->ops,
        &(clt_loss_params){.rows = rows,
                           .vocab = V,
                           .logits = clt_tensor_of(m->logits, V, m->type),
                           .targets = clt_ref_at(m->targets, at),
                           .token_loss = clt_ref_at(m->token_loss, at),
                           .correct = correct.buf ? clt_ref_at(correct, at) : correct,
                           .scale = (float)c->logit_scale,
                           .softcap = (float)c->final_logit_softcapping,
                           .grad = grad,
                           .apart = clt_mpt_has_ones(m),
                           .weight = b->weight,
                           .row_weight = b->sample_weight ? clt_ref_at(m->row_weight, at) : clt_ref_none()}));
    CLT_TRY(clt_model_made(&m->base, CLT_F32, clt_ref_at(m->token_loss, at), (uint64_t)rows, "loss"));
    if (!grad) return CLT_OK;
    CLT_TRY(clt_model_made(&m->base, m->type, m->logits, (uint64_t)(rows * V), "gradient of the loss"));
    CLT_TRY(clt_model_turns(&m->base, true));
    return head_backward(m, b, first, rows);
}

clt_status clt_mpt_head(clt_mpt *m, const clt_model_pass *b, bool grad, clt_ref correct) {
    const clt_mpt_config *c = &m->cfg;
    const int64_t R = b->batch->samples * m->shape.seq, T = m->shape.seq;
    CLT_TRY(clt_mpt_head_need(m));
    if (grad)
        CLT_TRY(clt_mpt_gradients_need(
            m, b, c->tie_word_embeddings ? CLT_MPT_EMBEDDING_UNIT : clt_mpt_head_unit(c)));
    const bool ones = grad && clt_mpt_has_ones(m);
    if (ones) CLT_TRY(clt_mpt_ones_data(m, b));
    for (int64_t first = 0; first < R; first += m->head_rows)
        CLT_TRY(head_group(m, b, grad, correct, first, CLT_MIN(m->head_rows, R - first)));
    CLT_TRY(clt_mpt_head_done(m));
    if (ones) CLT_TRY(clt_mpt_ones_weight(m, b));
    return clt_op_row_sum(m->ops, b->batch->samples, T, clt_tensor_of(m->token_loss, T, CLT_F32),
                          b->sample_loss);
}

clt_status clt_mpt_eval(clt_model *model, const clt_model_pass *b, clt_model_correct *correct) {
    clt_mpt *m = (clt_mpt *)model;
    const int64_t R = m->out_rows / m->shape.microbatch * b->batch->samples;
    CLT_TRY(m->ends->upload(m, b, false));
    CLT_TRY(clt_mpt_forward(m, b));
    CLT_TRY(m->ends->head(m, b, false, m->correct));
    CLT_TRY(clt_mpt_done(m, clt_mpt_head_unit(&m->cfg)));
    CLT_TRY(clt_buffer_read(m->correct.buf, m->correct.off * 4, m->host_correct, (size_t)R * 4));
    for (int64_t i = 0; i < R; i++) {
        correct->top1 += m->host_correct[i] == m->ends->tokens;
        correct->top5 += !m->ends->tokens && m->host_correct[i] < 5;
    }
    return CLT_OK;
}

clt_status clt_mpt_train(clt_model *model, const clt_model_pass *b) {
    clt_mpt *m = (clt_mpt *)model;
    m->in_training_pass = true;
    m->fp8.turned = -1;
    clt_status st = m->ends->upload(m, b, true);
    if (st == CLT_OK) st = clt_mpt_forward(m, b);
    if (st == CLT_OK) st = m->ends->head(m, b, true, clt_ref_none());
    if (st == CLT_OK) st = clt_mpt_backward(m, b);
    m->in_training_pass = false;
    return st;
}
