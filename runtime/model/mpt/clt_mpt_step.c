/* One new token for each of a few texts (m->step). All modes gather the rows of the tables at the texts'
 * positions, and the plain pass (clt_mpt_forward) reads these. In numerics fast, on devices that have the
 * kernels, a block is five launches: q|k|v with norm_1, attention with rotation and cache, out_proj, the
 * MLP's hidden values with norm_2, down_proj; the activations between them are fp32. For one text, one launch
 * does all five where the device has that kernel (clt_op_block_step). */
#include "runtime/model/mpt/clt_mpt_internal.h"

#include <string.h>

/* --- tables --- */

/* Rows of a table at the step's positions. */
static clt_status gather(clt_mpt *m, clt_tensor table, int64_t cols, clt_ref to) {
    const clt_tensor into = clt_tensor_of(to, cols, table.type);
    for (int64_t r = 0; r < m->step->rows && to.buf && clt_tensor_present(table); r++)
        CLT_TRY(clt_op_copy_rows(m->ops, 1, cols, clt_tensor_at(table, m->step->position[r], 0),
                                 clt_tensor_at(into, r, 0)));
    return CLT_OK;
}

clt_status clt_mpt_gather_tables(clt_mpt *m) {
    const clt_mpt_config *c = &m->cfg;
    CLT_TRY(gather(m, clt_mpt_lookup(m, m->index.wpe), c->d_model, m->at.wpe));
    if (m->fused > 0) return CLT_OK; /* its kernels read the other tables at the positions */
    CLT_TRY(gather(m, clt_tensor_of(m->rope, c->rope_dims, CLT_F32), c->rope_dims, m->at.angles));
    return gather(m, clt_tensor_of(m->temperature, 1, CLT_F32), 1, m->at.temperature);
}

/* --- a block's launches --- */

/* norm(x) * W^T (+ bias) into y: entries of the table, -1 where there is none. */
static clt_linear_params linear(const clt_mpt *m, clt_ref x, int norm_w, int norm_b, int w, int b,
                                clt_ref y) {
    const clt_slab_entry *e = &m->weights->table->entry[w];
    const bool rms = m->cfg.rms_norm;
    return (clt_linear_params){.rows = m->step ? m->step->rows : 1,
                               .n = e->shape[0],
                               .k = e->shape[1],
                               .norm = rms ? CLT_LINEAR_RMS_NORM : CLT_LINEAR_LAYER_NORM,
                               .eps = (float)m->cfg.norm_eps,
                               .norm_w = clt_mpt_weight(m, norm_w),
                               .norm_b = clt_mpt_weight(m, norm_b),
                               .x = clt_tensor_of(x, e->shape[1], CLT_F32),
                               .w = clt_mpt_matrix(m, w),
                               .bias = clt_mpt_weight(m, b),
                               .y = clt_tensor_of(y, e->shape[0], CLT_F32)};
}

/* The three products of q|k|v, or one where they are fused or keys and values are another block's. */
static int qkv_of(const clt_mpt *m, int layer, clt_linear_params out[3]) {
    const clt_mpt_config *c = &m->cfg;
    const clt_mpt_block_index *x = &m->index.block[layer];
    const clt_ref from = m->acts[layer].x;
    const int64_t Q = c->n_heads * c->head_dim, K = c->kv_n_heads * c->head_dim;
    const int w[] = {x->wq, x->wk, x->wv}, b[] = {x->bq, x->bk, x->bv};
    const int64_t at[] = {0, Q, Q + K};
    const int n = x->wqkv >= 0 || c->layer[layer].reuse_kv >= 0 ? 1 : 3;
    for (int i = 0; i < n; i++) {
        out[i] = x->wqkv >= 0 ? linear(m, from, x->norm1_w, x->norm1_b, x->wqkv, x->bqkv, m->at.qkv)
                              : linear(m, from, x->norm1_w, x->norm1_b, w[i], b[i], m->at.qkv);
        out[i].y = clt_tensor_at(clt_tensor_of(m->at.qkv, m->width, CLT_F32), 0, at[i]);
    }
    return n;
}

/* The positions that attention is launched for: rounded up, so that many steps have the same launches. */
static int64_t longest_of(const clt_mpt *m) {
    int64_t longest = 0;
    for (int64_t r = 0; r < m->step->rows; r++) longest = CLT_MAX(longest, (int64_t)m->step->position[r] + 1);
    return CLT_MIN(CLT_ROUND_UP(longest, (int64_t)CLT_MPT_STEP_KEYS), m->room);
}

static clt_attention_step_params attention_of(const clt_mpt *m, int layer) {
    const clt_mpt_config *c = &m->cfg;
    const clt_mpt_layer_config *l = &c->layer[layer];
    const int source = l->reuse_kv >= 0 ? (int)l->reuse_kv : layer;
    const bool rotated = c->rope != CLT_ROPE_NONE && !l->nope;
    clt_attention_step_params p = {
        .rows = m->step ? m->step->rows : 1,
        .heads = c->n_heads,
        .kv_heads = c->kv_n_heads,
        .head_dim = c->head_dim,
        .longest = 1,
        .qkv = clt_tensor_of(m->at.qkv, m->width, CLT_F32),
        .shared = source != layer,
        .cache = clt_tensor_of(m->acts[source].cache, 2 * c->kv_n_heads * c->head_dim, m->type),
        .room = m->room,
        .position = m->at.position,
        .place = m->at.place,
        .rotated = rotated ? c->rope_dims : 0,
        .angles = m->rope,
        .temperature = m->temperature,
        .slopes = m->slopes,
        .scale = (float)c->softmax_scale,
        .softcap = (float)c->attn_logit_softcapping,
        .window = l->window,
        .o = clt_tensor_of(m->at.att, c->n_heads * c->head_dim, CLT_F32)};
    if (m->step) p.longest = longest_of(m);
    return p;
}

/* A branch's end: x + in * W^T (+ bias). */
static clt_linear_params branch_end(const clt_mpt *m, clt_ref in, int w, int b, clt_ref x, clt_ref y) {
    clt_linear_params p = linear(m, in, -1, -1, w, b, y);
    p.norm = CLT_LINEAR_PLAIN;
    p.residual = clt_tensor_of(x, m->cfg.d_model, CLT_F32);
    return p;
}

static clt_linear_params hidden_of(const clt_mpt *m, int layer) {
    const clt_mpt_block_index *x = &m->index.block[layer];
    clt_linear_params p =
        linear(m, clt_mpt_mlp_input(m, layer), x->norm2_w, x->norm2_b, x->wup, x->bup, m->at.hidden);
    p.act = m->cfg.activation;
    if (m->cfg.glu) {
        p.gate = clt_mpt_matrix(m, x->wgate);
        p.gate_bias = clt_mpt_weight(m, x->bgate);
    }
    return p;
}

/* The steps of a block behind q|k|v, and with one product of q|k|v all five. */
static clt_block_step_params block_of(const clt_mpt *m, int layer, clt_ref x_out) {
    const clt_mpt_block_index *x = &m->index.block[layer];
    const clt_mpt_acts *a = &m->acts[layer];
    return (clt_block_step_params){.out = branch_end(m, m->at.att, x->wout, x->bout, a->x, a->mid),
                                   .hidden = hidden_of(m, layer),
                                   .down = branch_end(m, m->at.hidden, x->wdown, x->bdown, a->mid, x_out),
                                   .attention = attention_of(m, layer)};
}

static clt_status run_block(clt_mpt *m, int layer, clt_ref x_out) {
    clt_block_step_params b = block_of(m, layer, x_out);
    clt_linear_params qkv[3];
    const int n = qkv_of(m, layer, qkv);
    b.qkv = qkv[0];
    if (m->whole_blocks && m->step->rows == 1) return clt_op_block_step(m->ops, &b);
    for (int i = 0; i < n; i++) CLT_TRY(clt_op_linear(m->ops, &qkv[i]));
    CLT_TRY(clt_op_attention_step(m->ops, &b.attention));
    CLT_TRY(clt_op_linear(m->ops, &b.out));
    CLT_TRY(clt_op_linear(m->ops, &b.hidden));
    return clt_op_linear(m->ops, &b.down);
}

static clt_linear_params head_of(const clt_mpt *m) {
    return linear(m, m->x_last, m->index.norm_f_w, m->index.norm_f_b, m->index.lm_head, -1, m->at.logits);
}

/* --- whether the kernels fit --- */

static clt_status linear_takes(clt_mpt *m, const clt_linear_params *p, bool *all) {
    bool takes = false;
    if (*all) CLT_TRY(clt_op_linear_takes(m->ops, p, &takes));
    *all &= takes;
    return CLT_OK;
}

static clt_status block_takes(clt_mpt *m, int layer, bool *all) {
    const clt_block_step_params b = block_of(m, layer, m->x_last);
    clt_linear_params p[6];
    int n = qkv_of(m, layer, p);
    p[n++] = b.out;
    p[n++] = b.hidden;
    p[n++] = b.down;
    for (int i = 0; i < n; i++) CLT_TRY(linear_takes(m, &p[i], all));
    bool takes = false;
    if (*all) CLT_TRY(clt_op_attention_step_takes(m->ops, &b.attention, &takes));
    *all &= takes;
    return CLT_OK;
}

/* Whether a block for one text can be one launch. */
static clt_status whole_block_takes(clt_mpt *m, int layer, bool *all) {
    clt_block_step_params b = block_of(m, layer, m->x_last);
    clt_linear_params qkv[3];
    bool takes = false;
    if (qkv_of(m, layer, qkv) != 1) *all = false;
    if (!*all) return CLT_OK;
    b.qkv = qkv[0];
    b.qkv.rows = b.out.rows = b.hidden.rows = b.down.rows = b.attention.rows = 1;
    CLT_TRY(clt_op_block_step_takes(m->ops, &b, &takes));
    *all &= takes;
    return CLT_OK;
}

/* Whether the formula of a step is this model's. */
static bool has_plain_blocks(const clt_mpt *m) {
    const clt_mpt_config *c = &m->cfg;
    return m->shape.numerics == CLT_FAST && !c->post_norms && c->norm_offset == 0 && !c->qk_ln && !c->qk_gn &&
           !(c->clip_qkv > 0) && !m->base.watch && !m->row_temperature.buf;
}

static clt_status ask(clt_mpt *m) {
    bool all = has_plain_blocks(m);
    for (int i = 0; i < m->cfg.n_layers && all; i++) CLT_TRY(block_takes(m, i, &all));
    if (all) {
        const clt_linear_params head = head_of(m);
        CLT_TRY(linear_takes(m, &head, &all));
    }
    bool whole = all;
    for (int i = 0; i < m->cfg.n_layers && whole; i++) CLT_TRY(whole_block_takes(m, i, &whole));
    m->whole_blocks = whole;
    m->fused = all ? 1 : -1;
    return CLT_OK;
}

/* --- the step --- */

clt_status clt_mpt_ask_step(clt_mpt *m) {
    return m->fused ? CLT_OK : ask(m);
}

/* Positions, places and tokens, which lie first and in this order, go to the device in one write. */
static clt_status upload(clt_mpt *m, const int32_t *tokens) {
    const size_t bytes = (size_t)m->step->rows * sizeof *tokens;
    m->ahead.step.rows = 0;
    memcpy(clt_mpt_host(m, m->tokens), tokens, bytes);
    memcpy(clt_mpt_host(m, m->at.position), m->step->position, bytes);
    memcpy(clt_mpt_host(m, m->at.place), m->step->place, bytes);
    return clt_buffer_write(m->tokens.buf, 0, m->host, (size_t)m->tokens.off * sizeof *m->host + bytes);
}

/* All launches from the embedding to the logits, and to the chosen tokens, which take the places of the
 * step's; then every position is the next one. */
static clt_status queue_step(clt_mpt *m, bool chooses) {
    const clt_mpt_config *c = &m->cfg;
    const clt_batch sample = {.samples = 1}; /* of as many tokens as there are texts */
    const clt_model_pass b = {.batch = &sample};
    CLT_TRY(clt_mpt_need(m, CLT_MPT_EMBEDDING_UNIT));
    m->shape.seq = m->step->rows;
    const clt_status st = clt_mpt_embed(m, &b);
    m->shape.seq = m->room;
    CLT_TRY(st);
    CLT_TRY(clt_mpt_done(m, CLT_MPT_EMBEDDING_UNIT));
    for (int i = 0; i < c->n_layers; i++) {
        CLT_TRY(clt_mpt_need(m, clt_mpt_block_unit(i)));
        CLT_TRY(run_block(m, i, i + 1 < c->n_layers ? m->acts[i + 1].x : m->x_last));
        CLT_TRY(clt_mpt_done(m, clt_mpt_block_unit(i)));
    }
    CLT_TRY(clt_mpt_need(m, clt_mpt_head_unit(c)));
    CLT_TRY(clt_mpt_head_need(m));
    const clt_linear_params head = head_of(m);
    CLT_TRY(clt_op_linear(m->ops, &head));
    CLT_TRY(clt_mpt_head_done(m));
    CLT_TRY(clt_mpt_done(m, clt_mpt_head_unit(c)));
    return chooses ? clt_op_greedy(m->ops, head.rows, head.n, head.y, m->tokens, m->at.position) : CLT_OK;
}

/* The same while its launches are noted. */
static clt_status note_step(clt_mpt *m, bool chooses) {
    clt_device *dev = clt_ops_device(m->ops);
    clt_sequence_free(m->repeat.launches);
    m->repeat.launches = NULL;
    CLT_TRY(clt_sequence_begin(dev));
    const clt_status st = queue_step(m, chooses);
    CLT_TRY(clt_sequence_end(dev, &m->repeat.launches));
    return st;
}

/* The first step of its kind builds and checks kernels, the second is noted, and others repeat that. Units
 * that come and go change places, so that nothing can be repeated. */
static clt_status run_step(clt_mpt *m, bool chooses) {
    clt_mpt_repeat *r = &m->repeat;
    const int64_t rows = m->step->rows, longest = longest_of(m);
    const bool same = r->seen && r->rows == rows && r->longest == longest && r->chooses == chooses;
    if (m->base.need) return queue_step(m, chooses);
    if (same && r->launches && clt_sequence_is_current(r->launches)) return clt_sequence_run(r->launches);
    if (same) return note_step(m, chooses);
    clt_sequence_free(r->launches);
    *r = (clt_mpt_repeat){.rows = rows, .longest = longest, .chooses = chooses, .seen = true};
    return queue_step(m, chooses);
}

clt_status clt_mpt_step_logits(clt_mpt *m, const int32_t *tokens, float *logits) {
    const size_t n = (size_t)(m->step->rows * m->cfg.vocab_size);
    CLT_TRY(clt_mpt_gather_tables(m));
    CLT_TRY(upload(m, tokens));
    CLT_TRY(run_step(m, false));
    CLT_TRY(clt_ref_read_f32(m->at.logits, logits, n));
    clt_mpt_scale_logits(m, logits, (int64_t)n);
    return CLT_OK;
}

/* --- tokens that the device chooses --- */

bool clt_mpt_step_chooses(const clt_mpt *m) {
    return m->fused > 0 && m->cfg.logit_scale == 1 && !(m->cfg.final_logit_softcapping > 0);
}

/* Whether the step was queued behind the choice of its tokens. */
static bool is_queued(const clt_mpt *m, const int32_t *tokens) {
    const clt_mpt_step *a = &m->ahead.step, *s = m->step;
    const size_t bytes = (size_t)s->rows * sizeof *tokens;
    return a->rows == s->rows && memcmp(a->position, s->position, bytes) == 0 &&
           memcmp(a->place, s->place, bytes) == 0 && memcmp(m->ahead.token, tokens, bytes) == 0;
}

/* Queues the step behind this one, whose tokens and positions the device has. Nothing is queued where weights
 * come and go, because they would for a step that may be wasted. */
static clt_status queue_next(clt_mpt *m) {
    m->ahead.step.rows = 0;
    if (m->base.need) return CLT_OK;
    for (int64_t r = 0; r < m->step->rows; r++)
        if (++m->step->position[r] >= m->room) return CLT_OK;
    CLT_TRY(clt_mpt_gather_tables(m));
    CLT_TRY(run_step(m, true));
    m->ahead.step = *m->step;
    return CLT_OK;
}

/* The read of the choice is queued before the next step, so that it does not wait for that. */
clt_status clt_mpt_step_tokens(clt_mpt *m, const int32_t *tokens, bool with_next, int32_t *chosen) {
    const size_t word = sizeof *chosen, bytes = (size_t)m->step->rows * word;
    clt_later read;
    if (!is_queued(m, tokens)) {
        CLT_TRY(clt_mpt_gather_tables(m));
        CLT_TRY(upload(m, tokens));
        CLT_TRY(run_step(m, true));
    }
    m->ahead.step.rows = 0;
    CLT_TRY(clt_buffer_read_begin(m->tokens.buf, (size_t)m->tokens.off * word, bytes, &read));
    const clt_status st = with_next ? queue_next(m) : CLT_OK, end = clt_buffer_read_end(&read, chosen);
    memcpy(m->ahead.token, chosen, bytes);
    return st == CLT_OK ? end : st;
}
