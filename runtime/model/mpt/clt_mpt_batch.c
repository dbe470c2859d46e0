/* What goes to the device with each microbatch, and what tests and tools read back. */
#include "runtime/model/mpt/clt_mpt_internal.h"

#include "runtime/ops/ref/clt_ref.h"

#include <string.h>

/* Groups the microbatch's rows by token id: unique ids in order of first appearance, each with its rows
 * ascending.
 */
static int64_t sort_lookups(clt_mpt *m, const clt_model_pass *b) {
    const int32_t *tokens = b->batch->field[CLT_TEXT_TOKENS];
    int64_t rows = b->batch->samples * m->shape.seq, unique = 0;
    bool own = m->lookup.buf; /* an accumulator of their own, whose rows start from +0 */
    int32_t *ids = clt_mpt_host(m, m->unique_ids), *first = clt_mpt_host(m, m->unique_first),
            *begin = clt_mpt_host(m, m->unique_begin), *order = clt_mpt_host(m, m->row_of);
    if (b->lane_first) {
        for (int64_t i = 0; i < m->lane_count; i++) m->seen_in_lane[m->lane_list[i]] = 0;
        m->lane_count = 0;
    }
    for (int64_t r = 0; r < rows; r++) {
        int32_t id = tokens[r];
        if (m->slot_of_id[id] < 0) {
            m->slot_of_id[id] = (int32_t)unique;
            ids[unique] = id;
            m->fill[unique] = 0;
            first[unique] = own && !m->seen_in_lane[id];
            if (!m->seen_in_lane[id]) m->lane_list[m->lane_count++] = id;
            m->seen_in_lane[id] = 1;
            unique++;
        }
        m->fill[m->slot_of_id[id]]++;
    }
    begin[0] = 0;
    for (int64_t u = 0; u < unique; u++) {
        begin[u + 1] = begin[u] + m->fill[u];
        m->fill[u] = begin[u];
    }
    for (int64_t r = 0; r < rows; r++) order[m->fill[m->slot_of_id[tokens[r]]]++] = (int32_t)r;
    for (int64_t u = 0; u < unique; u++) m->slot_of_id[ids[u]] = -1;
    return unique;
}

int32_t *clt_mpt_host(const clt_mpt *m, clt_ref place) {
    return m->host + place.off;
}

/* Each row's temperature. The ids of a sample never fall, so a document's tokens lie together; a pass that
 * goes on with texts is one document of each. */
static void set_temperatures(clt_mpt *m, const clt_model_pass *b) {
    float *to = (float *)(void *)clt_mpt_host(m, m->row_temperature);
    const int32_t *seq_ids = b->batch->field[CLT_TEXT_SEQ_IDS];
    int64_t T = m->shape.seq, place = 0;
    for (int64_t r = 0; r < b->batch->samples * T; r++) {
        bool first = r % T == 0;
        place = first ? m->past : seq_ids[r] == seq_ids[r - 1] ? place + 1 : 0;
        if (m->step) place = m->step->position[r];
        to[r] = m->temperature_at[place];
    }
}

/* Each sample's weight at all its tokens. */
static void set_row_weights(clt_mpt *m, const clt_model_pass *b) {
    float *to = (float *)(void *)clt_mpt_host(m, m->row_weight);
    const int64_t T = m->shape.seq;
    for (int64_t r = 0; r < b->batch->samples * T; r++) to[r] = b->sample_weight[r / T];
}

clt_status clt_mpt_upload(clt_mpt *m, const clt_model_pass *b, bool grad) {
    const void *const *field = b->batch->field;
    size_t bytes = (size_t)(b->batch->samples * m->shape.seq) * 4;
    m->ahead.step.rows = 0; /* its tokens are overwritten */
    memcpy(clt_mpt_host(m, m->tokens), field[CLT_TEXT_TOKENS], bytes);
    memcpy(clt_mpt_host(m, m->targets), field[CLT_TEXT_TARGETS], bytes);
    if (m->seq_ids.buf) memcpy(clt_mpt_host(m, m->seq_ids), field[CLT_TEXT_SEQ_IDS], bytes);
    if (m->row_temperature.buf) set_temperatures(m, b);
    if (b->sample_weight) set_row_weights(m, b);
    if (grad) m->unique = sort_lookups(m, b);
    return clt_buffer_write(m->tokens.buf, 0, m->host, (size_t)(grad ? m->words : m->forward_words) * 4);
}

clt_status clt_mpt_activation(clt_model *model, const char *name, float *out, size_t count) {
    clt_mpt *m = (clt_mpt *)model;
    clt_ref r = clt_ref_none();
    clt_dtype type = CLT_F32;
    int64_t layer;
    if (strcmp(name, "emb") == 0) r = m->acts[0].x;
    if (strcmp(name, "norm_f") == 0) {
        r = m->nf;
        type = m->type;
    }
    if (strncmp(name, "block", 5) == 0 && clt_parse_i64(name + 5, &layer) && layer >= 0 &&
        layer < m->cfg.n_layers)
        r = layer + 1 < m->cfg.n_layers ? m->acts[layer + 1].x : m->x_last;
    if (!r.buf || !m->shape.training)
        return clt_error(CLT_FAIL, "the model keeps no activation named '%s'", name);
    return clt_ref_read_as(r, type, out, count);
}
