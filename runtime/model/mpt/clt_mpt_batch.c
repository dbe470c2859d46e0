/* What goes to the device with each microbatch, and what tests and tools read back. */
#include "runtime/model/mpt/clt_mpt_internal.h"

#include "runtime/ops/ref/clt_ref.h"

#include <string.h>

static bool is_id(const clt_mpt *m, int32_t id) {
    return id >= 0 && id < m->cfg.vocab_size;
}

/* Appends a list of the microbatch for the id. */
static void begin_list(clt_mpt *m, clt_mpt_lists *l, int32_t id) {
    const int64_t u = l->unique++;
    m->slot_of_id[id] = (int32_t)u;
    clt_mpt_host(m, l->ids)[u] = id;
    m->fill[u] = 0;
    clt_mpt_host(m, l->first)[u] = l->sum.buf && !l->in_lane[id]; /* rows of a sum start from +0 */
    if (!l->in_lane[id]) l->lane_list[l->lane_count++] = id;
    l->in_lane[id] = 1;
}

/* Groups the microbatch's rows by their ids: unique ids in order of first appearance, each with its rows
 * ascending. A row without an id of the vocabulary, or with the id `none`, is in no list. */
static void sort_rows(clt_mpt *m, clt_mpt_lists *l, const clt_model_pass *b, const int32_t *id,
                      int64_t none) {
    const int64_t rows = b->batch->samples * m->shape.seq;
    int32_t *begin = clt_mpt_host(m, l->begin), *order = clt_mpt_host(m, l->row_of);
    if (b->lane_first) {
        for (int64_t i = 0; i < l->lane_count; i++) l->in_lane[l->lane_list[i]] = 0;
        l->lane_count = 0;
    }
    l->unique = 0;
    for (int64_t r = 0; r < rows; r++) {
        if (!is_id(m, id[r]) || id[r] == none) continue;
        if (m->slot_of_id[id[r]] < 0) begin_list(m, l, id[r]);
        m->fill[m->slot_of_id[id[r]]]++;
    }
    begin[0] = 0;
    for (int64_t u = 0; u < l->unique; u++) {
        begin[u + 1] = begin[u] + m->fill[u];
        m->fill[u] = begin[u];
    }
    for (int64_t r = 0; r < rows; r++)
        if (is_id(m, id[r]) && id[r] != none) order[m->fill[m->slot_of_id[id[r]]]++] = (int32_t)r;
    for (int64_t u = 0; u < l->unique; u++) m->slot_of_id[clt_mpt_host(m, l->ids)[u]] = -1;
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
    if (grad) sort_rows(m, &m->lookups, b, field[CLT_TEXT_TOKENS], m->cfg.padding_id);
    if (grad && clt_mpt_has_ones(m)) {
        clt_mpt_ones_set(m, b);
        sort_rows(m, &m->ones, b, field[CLT_TEXT_TARGETS], -1);
    }
    return clt_buffer_write(m->tokens.buf, 0, m->host, (size_t)(grad ? m->words : m->forward_words) * 4);
}

/* Where `name` of a block is ("qkv"), of the branches' type. */
static clt_ref block_part(const clt_mpt_acts *a, const char *name) {
    const struct {
        const char *name;
        clt_ref at;
    } part[] = {{"norm1", a->n1}, {"qkv", a->qkv}, {"heads", a->att},
                {"norm2", a->n2}, {"up", a->up},   {"hidden", a->act}};
    for (size_t i = 0; i < CLT_COUNT_OF(part); i++)
        if (strcmp(name, part[i].name) == 0) return part[i].at;
    return clt_ref_none();
}

/* The activation "block<i>" or "block<i>.<part>"; `name` is what follows "block". */
static clt_ref block_activation(const clt_mpt *m, const char *name, clt_dtype *type) {
    const char *part = strchr(name, '.');
    char *number = clt_strndup(name, part ? (size_t)(part - name) : strlen(name));
    int64_t layer;
    const bool there = clt_parse_i64(number, &layer) && layer >= 0 && layer < m->cfg.n_layers;
    clt_free(number);
    if (!there) return clt_ref_none();
    if (!part) return layer + 1 < m->cfg.n_layers ? m->acts[layer + 1].x : m->x_last;
    *type = m->type;
    return block_part(&m->acts[layer], part + 1);
}

clt_status clt_mpt_activation(clt_model *model, const char *name, float *out, size_t count) {
    clt_mpt *m = (clt_mpt *)model;
    clt_ref r = clt_ref_none();
    clt_dtype type = CLT_F32;
    if (strcmp(name, "emb") == 0) r = m->acts[0].x;
    if (strncmp(name, "block", 5) == 0) r = block_activation(m, name + 5, &type);
    if (strcmp(name, "norm_f") == 0 || strcmp(name, "logits") == 0) {
        r = *name == 'n' ? m->nf : m->logits;
        type = m->type;
    }
    if (!r.buf || !m->shape.training)
        return clt_error(CLT_FAIL, "the model keeps no activation named '%s'", name);
    return clt_ref_read_as(r, type, out, count);
}
