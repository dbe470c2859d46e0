/* Logits without a loss: of texts that grow, with cached keys and values, and of spans of several texts. */
#include "runtime/model/mpt/clt_mpt_internal.h"

#include "runtime/ops/ref/clt_ref.h"

#include <string.h>

void clt_mpt_scale_logits(const clt_mpt *m, float *logits, int64_t n) {
    const float scale = (float)m->cfg.logit_scale, cap = (float)m->cfg.final_logit_softcapping;
    if (scale == 1.0f && !(cap > 0)) return;
    for (int64_t i = 0; i < n; i++) {
        const float z = logits[i] * scale;
        logits[i] = cap > 0 ? cap * clt_ref_act(CLT_ACT_TANH, z / cap) : z;
    }
}

/* The head on `rows` rows of norm_f's output; the use of its unit has begun. */
static clt_status head_logits(clt_mpt *m, clt_ref from, int64_t rows, float *logits) {
    int64_t C = m->cfg.d_model, V = m->cfg.vocab_size;
    for (int64_t at = 0; at < rows; at += m->head_rows) {
        int64_t n = CLT_MIN(m->head_rows, rows - at);
        clt_ref x = clt_ref_at(from, (uint64_t)(at * C));
        clt_gemm_params g = clt_mpt_linear(m, n, m->index.lm_head, -1, x, C, m->logits, V);
        CLT_TRY(clt_mpt_product(m, &g));
        CLT_TRY(clt_ref_read_as(m->logits, m->type, logits + at * V, (size_t)(n * V)));
    }
    clt_mpt_scale_logits(m, logits, rows * V);
    return CLT_OK;
}

/* After the last operation of a forward pass that reads the head. */
static clt_status end_head(clt_mpt *m) {
    CLT_TRY(clt_mpt_head_done(m));
    return clt_mpt_done(m, clt_mpt_head_unit(&m->cfg));
}

/* --- texts that grow --- */

/* The place's tokens whose keys and values are cached. */
static int32_t *cached_at(const clt_mpt *m, int64_t place) {
    return m->cached + place * m->room;
}

/* How many positions of a text need no pass: those before `first` that its place has, but not the last. */
static int64_t known(const clt_mpt *m, const clt_model_text *t, int64_t first) {
    const int64_t cached = m->shape.texts ? m->n_cached[t->place] : 0;
    int64_t n = 0, most = CLT_MIN(cached, CLT_MIN(first, t->len - 1));
    while (n < most && t->tokens[n] == cached_at(m, t->place)[n]) n++;
    return n;
}

/* Notes that the place has all of the text. */
static void keep_text(clt_mpt *m, const clt_model_text *t) {
    if (!m->shape.texts) return;
    memcpy(cached_at(m, t->place), t->tokens, (size_t)t->len * sizeof *t->tokens);
    m->n_cached[t->place] = t->len;
}

static clt_status check_text(const clt_mpt *m, const clt_model_text *t) {
    if (t->len >= 1 && t->len <= m->room) return CLT_OK;
    return clt_error(CLT_BAD_CONFIG, "a text of %lld tokens does not fit max_seq_len %lld", (long long)t->len,
                     (long long)m->room);
}

/* One sample of n tokens without targets, in the places of a full one, forward to norm_f's output, and the
 * logits of `rows` of its rows from `first` on. */
static clt_status pass_of(clt_mpt *m, const int32_t *tokens, int64_t n, int64_t first, int64_t rows,
                          float *logits) {
    const size_t bytes = (size_t)n * sizeof(int32_t);
    int32_t *targets = clt_try_malloc(bytes), *ids = clt_try_calloc(bytes, 1);
    for (int64_t i = 0; i < n && targets; i++) targets[i] = CLT_LABEL_IGNORE;
    const clt_batch sample = {
        .samples = 1,
        .field = {[CLT_TEXT_TOKENS] = tokens, [CLT_TEXT_TARGETS] = targets, [CLT_TEXT_SEQ_IDS] = ids}};
    const clt_model_pass b = {.batch = &sample};
    clt_status st = targets && ids ? CLT_OK : clt_no_memory("the tokens of a text", 2 * bytes);
    m->shape.seq = n;
    if (st == CLT_OK) st = clt_mpt_upload(m, &b, false);
    if (st == CLT_OK) st = clt_mpt_forward(m, &b);
    if (st == CLT_OK) st = clt_mpt_head_need(m);
    if (st == CLT_OK)
        st = head_logits(m, clt_ref_at(m->nf, (uint64_t)(first * m->cfg.d_model)), rows, logits);
    if (st == CLT_OK) st = end_head(m);
    m->shape.seq = m->room;
    clt_free(targets);
    clt_free(ids);
    return st;
}

static clt_status text_logits(clt_mpt *m, const clt_model_text *t, int64_t first, int64_t rows,
                              float *logits) {
    CLT_TRY(check_text(m, t));
    m->past = known(m, t, first);
    m->place = t->place;
    if (m->shape.texts) m->n_cached[t->place] = 0; /* until the pass is done */
    clt_status st = pass_of(m, t->tokens + m->past, t->len - m->past, first - m->past, rows, logits);
    m->past = m->place = 0;
    if (st == CLT_OK) keep_text(m, t);
    return st;
}

/* What a call for texts wants: logits [n, V] of each, or with `token` the likeliest token of each; then
 * `logits` is memory for it. */
typedef struct {
    float *logits;
    int32_t *token;
} wanted;

/* Row i of the logits is there. */
static void choose(const clt_mpt *m, const wanted *w, int64_t i) {
    if (w->token) w->token[i] = clt_ref_greedy(w->logits + i * m->cfg.vocab_size, m->cfg.vocab_size);
}

/* The last tokens of texts that have all others in their places: texts `at` ... at + n - 1 of those that want
 * w. all: there are no others. */
static clt_status step_texts(clt_mpt *m, const clt_model_text *text, int64_t at, int64_t n, bool all,
                             const wanted *w) {
    float *logits = w->logits + at * m->cfg.vocab_size;
    clt_mpt_step step = {.rows = n};
    int32_t tokens[CLT_MPT_STEP_ROWS];
    for (int64_t i = 0; i < n; i++) {
        step.position[i] = (int32_t)(text[i].len - 1);
        step.place[i] = (int32_t)text[i].place;
        tokens[i] = text[i].tokens[text[i].len - 1];
        m->n_cached[text[i].place] = 0;
    }
    m->step = &step;
    clt_status st = clt_mpt_ask_step(m);
    const bool chosen = st == CLT_OK && w->token && clt_mpt_step_chooses(m);
    if (chosen) {
        st = clt_mpt_step_tokens(m, tokens, all, w->token + at);
    } else if (st == CLT_OK && m->fused > 0) {
        st = clt_mpt_step_logits(m, tokens, logits);
    } else {
        if (st == CLT_OK) st = clt_mpt_gather_tables(m);
        if (st == CLT_OK) st = pass_of(m, tokens, n, 0, n, logits);
    }
    m->step = NULL;
    for (int64_t i = 0; i < n && st == CLT_OK && !chosen; i++) choose(m, w, at + i);
    for (int64_t i = 0; i < n && st == CLT_OK; i++) keep_text(m, &text[i]);
    return st;
}

/* Whether the place has all of the text but its last token. */
static bool is_next(const clt_mpt *m, const clt_model_text *t) {
    return known(m, t, t->len - 1) == t->len - 1;
}

static clt_status next(clt_mpt *m, const clt_model_text *text, int64_t n, const wanted *w) {
    const int64_t most = CLT_MIN((int64_t)CLT_MPT_STEP_ROWS, m->rows), V = m->cfg.vocab_size;
    for (int64_t i = 0; i < n; i++) CLT_TRY(check_text(m, &text[i]));
    for (int64_t i = 0; i < n;) {
        int64_t joint = 0; /* neighbours that go together */
        while (joint < most && i + joint < n && is_next(m, &text[i + joint])) joint++;
        if (joint) {
            CLT_TRY(step_texts(m, text + i, i, joint, joint == n, w));
        } else {
            CLT_TRY(text_logits(m, &text[i], text[i].len - 1, 1, w->logits + i * V));
            choose(m, w, i);
        }
        i += CLT_MAX(joint, 1);
    }
    return CLT_OK;
}

clt_status clt_mpt_next(clt_model *model, const clt_model_text *text, int64_t n, float *logits) {
    return next((clt_mpt *)model, text, n, &(wanted){.logits = logits});
}

clt_status clt_mpt_next_greedy(clt_model *model, const clt_model_text *text, int64_t n, float *logits,
                               int32_t *token) {
    return next((clt_mpt *)model, text, n, &(wanted){logits, token});
}

clt_status clt_mpt_logits(clt_model *model, const int32_t *tokens, int64_t len, int64_t first, int64_t rows,
                          float *logits) {
    clt_mpt *m = (clt_mpt *)model;
    const clt_model_text t = {.tokens = tokens, .len = len};
    if (m->shape.texts && rows == 1 && first == len - 1) return clt_mpt_next(model, &t, 1, logits);
    return text_logits(m, &t, first, rows, logits);
}

/* --- spans of several texts --- */

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
