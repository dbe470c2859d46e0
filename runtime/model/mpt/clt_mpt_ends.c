/* The ends of an MPT: memory for tokens, their targets and texts that grow, and the table of the ends. */
#include "runtime/model/mpt/clt_mpt_internal.h"

#include <string.h>

#include "runtime/model/mpt/clt_positions.h"

static clt_status take_other(clt_mpt *m, const char *name, int64_t count, clt_ref *out) {
    return clt_mpt_take(m, &m->memory.other, name, count, 4, out);
}

static clt_status take_sum(clt_mpt *m, const char *name, clt_mpt_lists *l) {
    CLT_TRY(take_other(m, name, m->cfg.vocab_size * m->cfg.d_model, &l->sum));
    return take_other(m, "ids of a lane", m->cfg.vocab_size, &l->lane_ids);
}

static clt_status take_sums(clt_mpt *m) {
    if (clt_mpt_has_ones(m)) CLT_TRY(take_sum(m, "gradient of targets", &m->ones));
    if (!m->cfg.tie_word_embeddings || m->shape.numerics == CLT_FAST) return CLT_OK;
    return take_sum(m, "gradient of lookups", &m->lookups);
}

static clt_status take_batch(clt_mpt *m) {
    const int64_t R = m->rows;
    const bool ones = clt_mpt_has_ones(m);
    const clt_mpt_part part[] = {{&m->at.position, CLT_MPT_STEP_ROWS, m->shape.texts > 0},
                                 {&m->at.place, CLT_MPT_STEP_ROWS, m->shape.texts > 0},
                                 {&m->tokens, R, true},
                                 {&m->targets, R, true},
                                 {&m->seq_ids, R, m->cfg.attn_uses_sequence_id},
                                 {&m->row_temperature, R, clt_mpt_temperature_by_row(&m->cfg)},
                                 {&m->row_weight, R, m->shape.training},
                                 {&m->lookups.ids, R, m->shape.training},
                                 {&m->lookups.first, R, m->shape.training},
                                 {&m->lookups.begin, R + 1, m->shape.training},
                                 {&m->lookups.row_of, R, m->shape.training},
                                 {&m->ones.ids, R, ones},
                                 {&m->ones.first, R, ones},
                                 {&m->ones.begin, R + 1, ones},
                                 {&m->ones.row_of, R, ones},
                                 {&m->one_id, R, ones},
                                 {&m->one_factor, R, ones}};
    return clt_mpt_take_batch(m, part, CLT_COUNT_OF(part), &m->lookups.ids);
}

/* Keys and values of texts that grow; a block that uses an earlier one's has none. */
static clt_status take_cache(clt_mpt *m) {
    const clt_mpt_config *c = &m->cfg;
    const int64_t positions = m->shape.texts * m->shape.seq;
    for (int i = 0; i < c->n_layers; i++)
        if (c->layer[i].reuse_kv < 0)
            CLT_TRY(clt_mpt_take(m, &m->memory.other, "keys and values",
                                 positions * 2 * c->kv_n_heads * c->head_dim, clt_dtype_bytes(m->type),
                                 &m->acts[i].cache));
    return CLT_OK;
}

/* What steps of texts need. */
static clt_status take_step(clt_mpt *m) {
    enum { ROWS = CLT_MPT_STEP_ROWS };
    const clt_mpt_config *c = &m->cfg;
    clt_mpt_step_places *at = &m->at;
    if (c->rope != CLT_ROPE_NONE) CLT_TRY(take_other(m, "step", ROWS * c->rope_dims, &at->angles));
    if (c->temperature_attn_scale != 0 && !clt_mpt_temperature_by_row(c))
        CLT_TRY(take_other(m, "step", ROWS, &at->temperature));
    if (c->learned_pos_emb) CLT_TRY(take_other(m, "step", ROWS * c->d_model, &at->wpe));
    if (m->shape.numerics != CLT_FAST) return CLT_OK;
    CLT_TRY(take_other(m, "step", ROWS * m->width, &at->qkv));
    CLT_TRY(take_other(m, "step", ROWS * c->n_heads * c->head_dim, &at->att));
    CLT_TRY(take_other(m, "step", ROWS * c->ffn_hidden, &at->hidden));
    return take_other(m, "step", ROWS * c->vocab_size, &at->logits);
}

static clt_status take_inputs(clt_mpt *m) {
    const clt_mpt_config *c = &m->cfg;
    int64_t R = m->rows, T = m->shape.seq;
    CLT_TRY(take_batch(m));
    CLT_TRY(take_other(m, "token losses", R, &m->token_loss));
    CLT_TRY(take_other(m, "correct", R, &m->correct));
    if (c->alibi) CLT_TRY(take_other(m, "alibi slopes", c->n_heads, &m->slopes));
    if (c->rope != CLT_ROPE_NONE) CLT_TRY(take_other(m, "rope table", T * c->rope_dims, &m->rope));
    if (c->norm_offset != 0) CLT_TRY(take_other(m, "norm weight", c->d_model, &m->norm_weight));
    if (c->embedding_scale != 1) CLT_TRY(take_other(m, "embedding scale", 1, &m->embedding_scale));
    if (c->temperature_attn_scale != 0 && !clt_mpt_temperature_by_row(c))
        CLT_TRY(take_other(m, "temperature factors", T, &m->temperature));
    return CLT_OK;
}

static clt_status upload_tables(clt_mpt *m) {
    const clt_mpt_config *c = &m->cfg;
    int64_t T = m->shape.seq, most = CLT_MAX(T * c->head_dim, c->n_heads);
    float *t = clt_malloc((size_t)most * sizeof *t);
    clt_status st = CLT_OK;
    if (m->slopes.buf) {
        clt_alibi_slopes(c->n_heads, c->alibi_bias_max, t);
        st = clt_ref_write_f32(m->slopes, t, (size_t)c->n_heads);
    }
    if (m->rope.buf && st == CLT_OK) {
        clt_rope_table(c, T, t);
        st = clt_ref_write_f32(m->rope, t, (size_t)(T * c->rope_dims));
    }
    if (m->temperature.buf && st == CLT_OK) {
        clt_temperature_factors(c, T, t);
        st = clt_ref_write_f32(m->temperature, t, (size_t)T);
    }
    if (m->embedding_scale.buf && st == CLT_OK) {
        t[0] = (float)c->embedding_scale;
        st = clt_ref_write_f32(m->embedding_scale, t, 1);
    }
    clt_free(t);
    return st;
}

static clt_status take_token_ends(clt_mpt *m) {
    CLT_TRY(take_inputs(m));
    if (m->shape.texts) CLT_TRY(take_cache(m));
    if (m->shape.texts) CLT_TRY(take_step(m));
    if (m->shape.training) CLT_TRY(take_sums(m));
    return m->ops ? upload_tables(m) : CLT_OK;
}

static void take_lane(const clt_mpt *m, clt_mpt_lists *l, size_t *lack) {
    l->in_lane = clt_mpt_host_array((size_t)m->cfg.vocab_size, 1, lack);
    l->lane_list = clt_mpt_host_array((size_t)m->cfg.vocab_size, sizeof *l->lane_list, lack);
}

/* Host arrays that grow with the batch, the text or the vocabulary. */
static clt_status take_host(clt_mpt *m) {
    const size_t rows = (size_t)m->rows, vocab = (size_t)m->cfg.vocab_size, seq = (size_t)m->shape.seq;
    size_t lack = 0;
    m->host = clt_mpt_host_array((size_t)m->words, sizeof *m->host, &lack);
    m->host_correct = clt_mpt_host_array(rows, sizeof *m->host_correct, &lack);
    if (m->shape.texts)
        m->cached = clt_mpt_host_array((size_t)m->shape.texts * seq, sizeof *m->cached, &lack);
    if (m->shape.texts) m->n_cached = clt_mpt_host_array((size_t)m->shape.texts, sizeof *m->n_cached, &lack);
    if (m->row_temperature.buf) m->temperature_at = clt_mpt_host_array(seq, sizeof *m->temperature_at, &lack);
    if (m->shape.training) {
        m->slot_of_id = clt_mpt_host_array(vocab, sizeof *m->slot_of_id, &lack);
        take_lane(m, &m->lookups, &lack);
        if (clt_mpt_has_ones(m)) take_lane(m, &m->ones, &lack);
        m->fill = clt_mpt_host_array(rows, sizeof *m->fill, &lack);
    }
    if (lack) return clt_no_memory("the model's host arrays", lack);
    if (m->temperature_at) clt_temperature_factors(&m->cfg, m->shape.seq, m->temperature_at);
    if (m->slot_of_id) memset(m->slot_of_id, 0xff, vocab * sizeof *m->slot_of_id);
    return CLT_OK;
}

const clt_mpt_ends clt_mpt_token_ends = {
    .bytes = sizeof(clt_mpt),
    .tokens = true,
    .index = clt_mpt_token_index,
    .take = take_token_ends,
    .take_host = take_host,
    .upload = clt_mpt_upload,
    .embed = clt_mpt_embed,
    .embed_backward = clt_mpt_embedding_backward,
    .out = clt_mpt_out,
    .head = clt_mpt_head,
};
