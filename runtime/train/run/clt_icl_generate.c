/* Greedy generation for in-context-learning tasks. Foundry generates the rows of a batch together: the
 * batch ends when every row has its end of text, when one of the stop strings was seen in every row, or after
 * the longest answer. A row alone gives the same tokens, so as many rows as the text model has places go
 * together, each to its own end; the common length follows from where the rows met their ends. */
#include <string.h>

#include "runtime/data/icl/clt_icl_text.h"
#include "runtime/train/run/clt_generate.h"
#include "runtime/train/run/clt_icl_run.h"

typedef struct {
    int32_t *ids; /* context, then what is generated */
    size_t context, made;
    bool ended;       /* the end of text came after `made` tokens */
    int64_t *stopped; /* [n_stop] tokens after which a stop string was seen; -1: not yet */
} text_row;

typedef struct {
    const clt_icl_run *r;
    const clt_icl_set *s;
    int64_t most;         /* tokens to generate */
    size_t *window;       /* [n_stop] tokens in which a stop string is looked for */
    float *logits;        /* [places, V] */
    clt_model_text *text; /* [places] */
    int32_t *id;          /* [places] */
    text_row *row;
    size_t n;
} batch;

/* One token more than the stop string has, because it may be made of other tokens. Tokens without text do not
 * count. */
static clt_status measure_stop(batch *b, const char *stop, size_t *window) {
    const clt_tokenizer *tok = b->s->tok;
    const size_t bytes = strlen(stop), most = clt_tokenizer_max_ids(tok, bytes) + 1;
    int32_t *ids = clt_malloc(most * sizeof *ids);
    size_t n = 0;
    clt_status st = clt_tokenizer_encode(tok, stop, bytes, 0, ids, most, &n);
    *window = 1;
    for (size_t i = 0; i < n && st == CLT_OK; i++) {
        clt_str text = {0};
        st = clt_tokenizer_decode(tok, &ids[i], 1, false, &text);
        *window += text.len > 0;
        clt_str_free(&text);
    }
    clt_free(ids);
    return st;
}

/* Appends the text of n ids. A model's vocabulary may be larger than its tokenizer's; such ids have no
 * text. */
static clt_status decode(const batch *b, const int32_t *ids, size_t n, bool skip_special, clt_str *out) {
    const int64_t known = clt_tokenizer_vocab_size(b->s->tok);
    int32_t *kept = clt_malloc((n + 1) * sizeof *kept);
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < known) kept[k++] = ids[i];
    clt_str_add(out, "");
    clt_status st = clt_tokenizer_decode(b->s->tok, kept, k, skip_special, out);
    if (st == CLT_OK && clt_tokenizer_cleans_up(b->s->tok)) clt_icl_clean_up(out);
    clt_free(kept);
    return st;
}

static clt_status look_for_stops(const batch *b, text_row *t) {
    const size_t n = t->context + t->made;
    for (size_t k = 0; k < b->s->task->n_stop; k++) {
        if (t->stopped[k] >= 0) continue;
        const size_t last = CLT_MIN(b->window[k], n);
        clt_str text = {0};
        CLT_TRY(decode(b, t->ids + n - last, last, false, &text));
        if (strstr(text.s, b->s->task->stop[k])) t->stopped[k] = (int64_t)t->made;
        clt_str_free(&text);
    }
    return CLT_OK;
}

static bool all_stops_seen(const batch *b, const text_row *t) {
    size_t seen = 0;
    for (size_t k = 0; k < b->s->task->n_stop; k++) seen += t->stopped[k] >= 0;
    return seen > 0 && seen == b->s->task->n_stop;
}

/* Whether a row goes on: up to `until` tokens, its end of text, or, with `stops`, all stop strings. */
static bool goes_on(const batch *b, const text_row *t, int64_t until, bool stops) {
    return !t->ended && (int64_t)t->made < until && !(stops && all_stops_seen(b, t));
}

static clt_status take_token(batch *b, text_row *t, int32_t id) {
    t->ended = id == clt_tokenizer_eos_id(b->s->tok);
    if (t->ended) return CLT_OK;
    t->ids[t->context + t->made++] = id;
    return look_for_stops(b, t);
}

/* Continues n rows from `first`, of which row i has place i - first. */
static clt_status extend(batch *b, size_t first, size_t n, int64_t until, bool stops) {
    const int64_t T = b->r->facts.max_seq_len;
    for (;;) {
        int64_t texts = 0;
        for (size_t i = 0; i < n; i++) {
            const text_row *t = &b->row[first + i];
            const int64_t all = (int64_t)(t->context + t->made), len = CLT_MIN(all, T);
            if (goes_on(b, t, until, stops))
                b->text[texts++] = (clt_model_text){(int64_t)i, t->ids + (all - len), len};
        }
        if (texts == 0) return CLT_OK;
        CLT_TRY(clt_model_next_greedy(b->r->text, b->text, texts, b->logits, b->id));
        for (int64_t k = 0; k < texts; k++)
            CLT_TRY(take_token(b, &b->row[first + (size_t)b->text[k].place], b->id[k]));
    }
}

static clt_status extend_all(batch *b, int64_t until, bool stops) {
    const size_t places = (size_t)b->r->places;
    for (size_t i = 0; i < b->n; i += places) CLT_TRY(extend(b, i, CLT_MIN(places, b->n - i), until, stops));
    return CLT_OK;
}

/* Tokens after which the batch ends. */
static int64_t common_length(const batch *b) {
    int64_t length = 0, end = b->most;
    for (size_t i = 0; i < b->n; i++) {
        const int64_t made = (int64_t)b->row[i].made + b->row[i].ended;
        length = CLT_MAX(length, b->row[i].ended ? made : b->most);
    }
    end = CLT_MIN(end, length);
    for (size_t k = 0; k < b->s->task->n_stop; k++) {
        length = 0;
        for (size_t i = 0; i < b->n; i++)
            length = CLT_MAX(length, b->row[i].stopped[k] < 0 ? b->most : b->row[i].stopped[k]);
        end = CLT_MIN(end, length);
    }
    return end;
}

static clt_status generate(batch *b, clt_str *output) {
    for (size_t k = 0; k < b->s->task->n_stop; k++)
        CLT_TRY(measure_stop(b, b->s->task->stop[k], &b->window[k]));
    CLT_TRY(extend_all(b, b->most, true));
    const int64_t end = common_length(b);
    CLT_TRY(extend_all(b, end, false));
    for (size_t i = 0; i < b->n; i++) {
        const text_row *t = &b->row[i];
        CLT_TRY(decode(b, t->ids + t->context, CLT_MIN(t->made, (size_t)end), true, &output[i]));
    }
    return CLT_OK;
}

static clt_status open_rows(batch *b, const clt_icl_row *const *row) {
    const size_t places = (size_t)b->r->places;
    const size_t logits = places * (size_t)b->r->facts.vocab_size * sizeof *b->logits;
    b->text = clt_calloc(places, sizeof *b->text);
    b->id = clt_calloc(places, sizeof *b->id);
    b->logits = clt_try_malloc(logits);
    if (!b->logits) return clt_no_memory("generating text", logits);
    for (size_t i = 0; i < b->n; i++) {
        text_row *t = &b->row[i];
        const size_t bytes = (row[i]->n + (size_t)b->most) * sizeof *t->ids;
        t->context = row[i]->n;
        t->stopped = clt_malloc((b->s->task->n_stop + 1) * sizeof *t->stopped);
        for (size_t k = 0; k < b->s->task->n_stop; k++) t->stopped[k] = -1;
        t->ids = clt_try_malloc(bytes);
        if (!t->ids) return clt_no_memory("generating text", bytes);
        memcpy(t->ids, row[i]->ids, row[i]->n * sizeof *t->ids);
    }
    return CLT_OK;
}

clt_status clt_icl_generate(const clt_icl_run *r, const clt_icl_set *s, const clt_icl_row *const *row,
                            size_t n, clt_str *output) {
    batch b = {.r = r, .s = s, .most = clt_icl_set_max_new(s), .n = n};
    b.window = clt_calloc(s->task->n_stop + 1, sizeof *b.window);
    b.row = clt_calloc(n + 1, sizeof *b.row);
    clt_status st = clt_engine_settle(r->engine);
    if (st == CLT_OK) st = open_rows(&b, row);
    if (st == CLT_OK) st = generate(&b, output);
    for (size_t i = 0; i < n; i++) {
        clt_free(b.row[i].ids);
        clt_free(b.row[i].stopped);
    }
    clt_free(b.row);
    clt_free(b.window);
    clt_free(b.text);
    clt_free(b.id);
    clt_free(b.logits);
    return st;
}
