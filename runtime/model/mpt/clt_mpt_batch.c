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
 * goes on with a text (m->past) is one document. */
static void set_temperatures(clt_mpt *m, const clt_model_pass *b) {
    float *to = (float *)(void *)clt_mpt_host(m, m->row_temperature);
    const int32_t *seq_ids = b->batch->field[CLT_TEXT_SEQ_IDS];
    int64_t T = m->shape.seq, place = 0;
    for (int64_t r = 0; r < b->batch->samples * T; r++) {
        bool first = r % T == 0;
        place = first ? m->past : seq_ids[r] == seq_ids[r - 1] ? place + 1 : 0;
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
    memcpy(clt_mpt_host(m, m->tokens), field[CLT_TEXT_TOKENS], bytes);
    memcpy(clt_mpt_host(m, m->targets), field[CLT_TEXT_TARGETS], bytes);
    if (m->seq_ids.buf) memcpy(clt_mpt_host(m, m->seq_ids), field[CLT_TEXT_SEQ_IDS], bytes);
    if (m->row_temperature.buf) set_temperatures(m, b);
    if (b->sample_weight) set_row_weights(m, b);
    if (grad) m->unique = sort_lookups(m, b);
    return clt_buffer_write(m->tokens.buf, 0, m->host, (size_t)(grad ? m->words : m->forward_words) * 4);
}

/* The head on `rows` rows of norm_f's output; the use of its unit has begun. */
static clt_status head_logits(clt_mpt *m, clt_ref from, int64_t rows, float *logits) {
    int64_t C = m->cfg.d_model, V = m->cfg.vocab_size;
    for (int64_t at = 0; at < rows; at += m->head_rows) {
        int64_t n = CLT_MIN(m->head_rows, rows - at);
        clt_ref x = clt_ref_at(from, (uint64_t)(at * C));
        clt_gemm_params g = clt_mpt_linear(m, n, m->index.lm_head, -1, x, C, m->logits, V);
        CLT_TRY(clt_op_gemm(m->ops, &g));
        CLT_TRY(clt_ref_read_as(m->logits, m->type, logits + at * V, (size_t)(n * V)));
    }
    float scale = (float)m->cfg.logit_scale, cap = (float)m->cfg.final_logit_softcapping;
    for (int64_t i = 0; i < rows * V; i++) {
        float z = logits[i] * scale;
        logits[i] = cap > 0 ? cap * clt_ref_act(CLT_ACT_TANH, z / cap) : z;
    }
    return CLT_OK;
}

/* After the last operation of a forward pass that reads the head. */
static clt_status end_head(clt_mpt *m) {
    CLT_TRY(clt_mpt_head_done(m));
    return clt_mpt_done(m, clt_mpt_head_unit(&m->cfg));
}

/* How many positions of the text need no pass: those before `first` that the cache has, but not the last. */
static int64_t known(const clt_mpt *m, const int32_t *tokens, int64_t len, int64_t first) {
    int64_t n = 0, most = CLT_MIN(m->n_cached, CLT_MIN(first, len - 1));
    while (n < most && tokens[n] == m->cached[n]) n++;
    return n;
}

clt_status clt_mpt_logits(clt_model *model, const int32_t *tokens, int64_t len, int64_t first, int64_t rows,
                          float *logits) {
    clt_mpt *m = (clt_mpt *)model;
    int64_t seq = m->shape.seq;
    if (len < 1 || len > seq)
        return clt_error(CLT_BAD_CONFIG, "a text of %lld tokens does not fit max_seq_len %lld",
                         (long long)len, (long long)seq);
    m->past = known(m, tokens, len, first);
    m->n_cached = 0; /* until the pass is done */
    int64_t n = len - m->past;
    const size_t bytes = (size_t)n * sizeof(int32_t);
    int32_t *targets = clt_try_malloc(bytes), *ids = clt_try_calloc(bytes, 1);
    if (!targets || !ids) {
        clt_free(targets);
        clt_free(ids);
        m->past = 0;
        return clt_no_memory("the tokens of a text", 2 * bytes);
    }
    for (int64_t i = 0; i < n; i++) targets[i] = CLT_LABEL_IGNORE;
    const clt_batch text = {
        .samples = 1,
        .field = {
            [CLT_TEXT_TOKENS] = tokens + m->past, [CLT_TEXT_TARGETS] = targets, [CLT_TEXT_SEQ_IDS] = ids}};
    const clt_model_pass b = {.batch = &text};
    m->shape.seq = n; /* one shorter sample in the places of a full one */
    clt_status st = clt_mpt_upload(m, &b, false);
    if (st == CLT_OK) st = clt_mpt_forward(m, &b);
    if (st == CLT_OK) st = clt_mpt_head_need(m);
    const clt_ref x = clt_ref_at(m->nf, (uint64_t)((first - m->past) * m->cfg.d_model));
    if (st == CLT_OK) st = head_logits(m, x, rows, logits);
    if (st == CLT_OK) st = end_head(m);
    m->shape.seq = seq;
    m->past = 0;
    if (st == CLT_OK && m->cached) {
        memcpy(m->cached, tokens, (size_t)len * sizeof *tokens);
        m->n_cached = len;
    }
    clt_free(targets);
    clt_free(ids);
    return st;
}

/* Copies the spans' rows of norm_f's output, one behind the other, to the place of the last block's output,
 * which nothing reads any more. */
static clt_status gather_spans(clt_mpt *m, int64_t samples, const clt_model_span *span, clt_ref *to,
                               int64_t *rows) {
    const int64_t C = m->cfg.d_model, T = m->shape.seq;
    const clt_tensor from = clt_tensor_of(m->nf, C, m->type), into = clt_tensor_of(m->x_last, C, m->type);
    *rows = 0;
    for (int64_t s = 0; s < samples; s++) {
        const int64_t n = span[s].end - span[s].first;
        CLT_TRY(clt_op_copy_rows(m->ops, n, C, clt_tensor_at(from, s * T + span[s].first, 0),
                                 clt_tensor_at(into, *rows, 0)));
        *rows += n;
    }
    *to = into.ref;
    return CLT_OK;
}

/* The logits of the gathered rows, so many at a time as fit the limit. */
static clt_status emit_logits(clt_mpt *m, clt_ref x, int64_t rows, clt_model_logits_fn fn, void *ctx) {
    enum { LIMIT = 32 << 20 };
    const int64_t C = m->cfg.d_model, V = m->cfg.vocab_size;
    const int64_t most = CLT_MIN(rows, CLT_MAX(LIMIT / (V * (int64_t)sizeof(float)), 1));
    const size_t bytes = (size_t)(most * V) * sizeof(float);
    float *logits = clt_try_malloc(CLT_MAX(bytes, 1));
    if (!logits) return clt_no_memory("logits", bytes);
    clt_status st = clt_mpt_head_need(m);
    for (int64_t at = 0; at < rows && st == CLT_OK; at += most) {
        const int64_t n = CLT_MIN(most, rows - at);
        st = head_logits(m, clt_ref_at(x, (uint64_t)(at * C)), n, logits);
        if (st == CLT_OK) st = fn(ctx, at, n, logits);
    }
    clt_free(logits);
    return st == CLT_OK ? end_head(m) : st;
}

clt_status clt_mpt_span_logits(clt_model *model, const int32_t *tokens, int64_t samples, int64_t len,
                               const clt_model_span *span, clt_model_logits_fn fn, void *ctx) {
    clt_mpt *m = (clt_mpt *)model;
    const int64_t seq = m->shape.seq;
    if (len < 1 || len > seq || samples > m->shape.microbatch)
        return clt_error(CLT_BAD_CONFIG,
                         "%lld texts of %lld tokens do not fit a model of %lld texts of %lld tokens",
                         (long long)samples, (long long)len, (long long)m->shape.microbatch, (long long)seq);
    const size_t bytes = (size_t)(samples * len) * sizeof(int32_t);
    int32_t *targets = clt_try_malloc(bytes), *ids = clt_try_calloc(bytes, 1);
    clt_ref x;
    int64_t rows;
    for (int64_t i = 0; i < samples * len && targets; i++) targets[i] = CLT_LABEL_IGNORE;
    const clt_batch texts = {
        .samples = samples,
        .field = {[CLT_TEXT_TOKENS] = tokens, [CLT_TEXT_TARGETS] = targets, [CLT_TEXT_SEQ_IDS] = ids}};
    const clt_model_pass b = {.batch = &texts};
    clt_status st = targets && ids ? CLT_OK : clt_no_memory("the tokens of a batch", 2 * bytes);
    m->shape.seq = len; /* shorter samples in the places of full ones */
    if (st == CLT_OK) st = clt_mpt_upload(m, &b, false);
    if (st == CLT_OK) st = clt_mpt_forward(m, &b);
    if (st == CLT_OK) st = gather_spans(m, samples, span, &x, &rows);
    if (st == CLT_OK) st = emit_logits(m, x, rows, fn, ctx);
    m->shape.seq = seq;
    clt_free(targets);
    clt_free(ids);
    return st;
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
