#include "runtime/data/finetune/clt_finetune_samples.h"

#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/base/clt_thread.h"
#include "runtime/data/clt_jsonl.h"
#include "runtime/data/clt_reader.h"
#include "runtime/data/finetune/clt_finetune_example.h"
#include "runtime/data/finetune/clt_finetune_files.h"
#include "runtime/data/finetune/clt_finetune_format.h"

typedef struct {
    int32_t *v;
    size_t n, cap;
} int_list;

/* Where a sample's ids and spans begin; those of the next sample are the end. */
typedef struct {
    uint64_t ids, spans;
} place;

struct clt_finetune_samples {
    int_list ids, spans;
    place *at; /* [n + 1] */
    size_t n, cap;
    int32_t pad;
    bool pads_left;
};

/* A line that is being tokenized. */
typedef struct {
    clt_str text;        /* JSONL: the line; MDS: the prompt, or the JSON column */
    clt_str response;    /* MDS */
    clt_jsonl_line line; /* JSONL */
    char *where;
    clt_finetune_turns turns;
    clt_status st;
} slot;

enum { SLOTS = 256, MOST_BYTES = 32 << 20 /* of lines that are tokenized together */ };

typedef struct {
    const clt_loader_params *p;
    const clt_finetune_params *f;
    clt_finetune_samples *s;
    clt_tokenizer *tokenizer;
    clt_chat *chat;
    char *chat_error;
    clt_finetune_text text;
    int64_t eos;
    bool from_mds;
    const char *json; /* MDS: the name of its JSON column; NULL: it has pairs of texts */
    int64_t read, dropped;
    slot slots[SLOTS];
} loading;

/* --- growing lists --- */

static clt_status list_reserve(int_list *l, size_t more) {
    if (more <= l->cap - l->n) return CLT_OK;
    const size_t cap = CLT_MAX(l->n + more, l->cap + l->cap / 2);
    int32_t *grown = clt_try_realloc(l->v, cap * sizeof *grown);
    if (!grown) return clt_no_memory("the token ids of the data", cap * sizeof *grown);
    l->v = grown;
    l->cap = cap;
    return CLT_OK;
}

static clt_status list_end(clt_finetune_samples *s) {
    if (s->n + 1 >= s->cap) {
        const size_t cap = CLT_MAX(1024, s->cap + s->cap / 2);
        place *grown = clt_try_realloc(s->at, cap * sizeof *grown);
        if (!grown) return clt_no_memory("the list of samples", cap * sizeof *grown);
        s->at = grown;
        s->cap = cap;
    }
    s->at[s->n] = (place){s->ids.n, s->spans.n};
    return CLT_OK;
}

/* --- from turns to a row --- */

static bool has_empty_text(const clt_finetune_turns *t) {
    for (size_t i = 0; i < t->turns; i++)
        if (t->turn[i].prompt == 0 || t->turn[i].response == 0) return true;
    return t->turns == 0;
}

/* Positions [begin, end) of the row count, as far as it has them; joined to the span before. */
static void add_span(int_list *spans, size_t first, int64_t begin, int64_t end, int64_t most) {
    end = CLT_MIN(end, most);
    if (begin >= end) return;
    if (spans->n > first && spans->v[spans->n - 1] == begin) {
        spans->v[spans->n - 1] = (int32_t)end;
        return;
    }
    spans->v[spans->n++] = (int32_t)begin;
    spans->v[spans->n++] = (int32_t)end;
}

/* Appends the spans of the turns; the last response has `eos` more ids. */
static void add_spans(const loading *l, const clt_finetune_turns *t, int eos) {
    const clt_finetune_params *f = l->f;
    int_list *spans = &l->s->spans;
    const size_t first = spans->n;
    int64_t at = 0;
    for (size_t i = 0; i < t->turns; i++) {
        const bool last = i + 1 == t->turns;
        const int64_t prompt = t->turn[i].prompt, response = t->turn[i].response + (last ? eos : 0);
        if (f->target_prompts >= 0 && prompt >= f->target_prompts)
            add_span(spans, first, at, at + prompt, l->p->max_seq_len);
        if (f->target_responses == CLT_TARGET_ALL || (f->target_responses == CLT_TARGET_LAST && last))
            add_span(spans, first, at + prompt, at + prompt + response, l->p->max_seq_len);
        at += prompt + response;
    }
}

static clt_status check_ids(const loading *l, const slot *q) {
    const int64_t most = l->p->vocab_size > 0 ? l->p->vocab_size : INT32_MAX;
    const size_t n = CLT_MIN(q->turns.n, (size_t)l->p->max_seq_len);
    for (size_t i = 0; i < n; i++)
        if (q->turns.ids[i] >= most)
            return clt_error(
                CLT_BAD_CONFIG,
                "%s: the tokenizer gives id %d, outside model.vocab_size %lld: is this the model's "
                "tokenizer?",
                q->where, q->turns.ids[i], (long long)most);
    return CLT_OK;
}

static clt_status no_target(const loading *l, const slot *q, size_t length) {
    return clt_error(
        CLT_BAD_DATA,
        "%s has %zu tokens, and none of the first %lld is a target: raise max_seq_len, or shorten "
        "the prompt",
        q->where, length, (long long)l->p->max_seq_len);
}

/* Appends the sample of a slot, or drops it. */
static clt_status add_sample(loading *l, const slot *q) {
    clt_finetune_samples *s = l->s;
    const clt_finetune_turns *t = &q->turns;
    const size_t most = (size_t)l->p->max_seq_len, spans = s->spans.n;
    l->read++;
    CLT_TRY(list_reserve(&s->spans, 4 * t->turns + 2));
    add_spans(l, t, 0);
    const bool empty = has_empty_text(t) || s->spans.n == spans;
    s->spans.n = spans;
    if (empty && !l->from_mds) {
        l->dropped++;
        return CLT_OK;
    }
    CLT_TRY(check_ids(l, q));
    const bool eos = l->eos >= 0 && (t->turn[t->turns - 1].response == 0 || t->ids[t->n - 1] != l->eos);
    add_spans(l, t, eos);
    if (s->spans.n == spans && t->n + eos > most) return no_target(l, q, t->n + eos);
    const size_t keep = CLT_MIN(t->n, most);
    CLT_TRY(list_reserve(&s->ids, keep + 1));
    if (keep) memcpy(s->ids.v + s->ids.n, t->ids, keep * sizeof *t->ids);
    s->ids.n += keep;
    if (eos && keep < most) s->ids.v[s->ids.n++] = (int32_t)l->eos;
    s->n++;
    return list_end(s);
}

/* --- tokenizing --- */

/* A sample of MDS: messages, or turns that are ids. */
static clt_status encode_column(loading *l, slot *q) {
    json_t *list;
    CLT_TRY(clt_json_parse_line(q->text.s, q->text.len, CLT_JSONL_MAX_DEPTH, q->where, &list));
    const clt_status st = strcmp(l->json, "turns") == 0
                              ? clt_finetune_read_turns(list, q->where, &q->turns)
                              : clt_finetune_encode_chat(&l->text, list, q->where, &q->turns);
    json_decref(list);
    return st;
}

static void encode_slot(void *ctx, size_t index) {
    loading *l = ctx;
    slot *q = &l->slots[index];
    json_t *o = NULL, *example = NULL;
    if (l->json) {
        q->st = encode_column(l, q);
        return;
    }
    if (l->from_mds) {
        q->st = clt_finetune_encode_pair(&l->text, q->text.s, q->text.len, q->response.s, q->response.len,
                                         q->where, &q->turns);
        return;
    }
    q->line.text = q->text.s;
    q->st = clt_jsonl_parse(&q->line, &o);
    if (q->st != CLT_OK) return;
    q->st = clt_finetune_reformat(&l->f->format, o, q->where, &example);
    if (q->st == CLT_OK) q->st = clt_finetune_encode(&l->text, example, q->where, &q->turns);
    json_decref(example);
    json_decref(o);
}

static void encode_quietly(void *ctx, size_t index) {
    clt_error_quiet(true); /* the thread that reads reports the first bad line */
    encode_slot(ctx, index);
    clt_error_quiet(false);
}

/* Gives back what an unusually long sample needed. */
static void trim(slot *q) {
    enum { KEPT_BYTES = 1 << 20 };
    if (q->text.cap > KEPT_BYTES) clt_str_free(&q->text);
    if (q->response.cap > KEPT_BYTES) clt_str_free(&q->response);
    if (q->turns.cap > KEPT_BYTES / sizeof *q->turns.ids) clt_finetune_turns_free(&q->turns);
}

/* Tokenizes the first n slots and appends their samples in order. */
static clt_status take_slots(loading *l, size_t n) {
    clt_parallel_for(n, 0, encode_quietly, l);
    for (size_t i = 0; i < n; i++) {
        if (l->slots[i].st != CLT_OK) encode_slot(l, i);
        CLT_TRY(l->slots[i].st);
        CLT_TRY(add_sample(l, &l->slots[i]));
        trim(&l->slots[i]);
    }
    return CLT_OK;
}

static void name_slot(slot *q, char *where) {
    clt_free(q->where);
    q->where = where;
}

static clt_status copy_line(slot *q, const clt_jsonl_line *line) {
    q->line = *line;
    q->text.len = 0;
    if (!clt_str_try_reserve(&q->text, line->bytes)) return clt_no_memory(line->path, line->bytes);
    clt_str_addn(&q->text, line->text, line->bytes);
    name_slot(q, clt_format("%s:%lld", line->path, (long long)line->number));
    return CLT_OK;
}

static clt_status read_file(loading *l, const char *path) {
    clt_jsonl *file;
    clt_jsonl_line line;
    size_t n = 0, bytes = 0;
    CLT_TRY(clt_jsonl_open(path, 0, &file));
    clt_status st;
    while ((st = clt_jsonl_next_line(file, &line)) == CLT_OK && line.text) {
        st = copy_line(&l->slots[n], &line);
        bytes += line.bytes;
        if (st == CLT_OK && (++n == SLOTS || bytes >= MOST_BYTES)) {
            st = take_slots(l, n);
            n = bytes = 0;
            clt_progress(false, "%s: line %lld", path, (long long)line.number);
        }
        if (st != CLT_OK) break;
    }
    if (st == CLT_OK) st = take_slots(l, n);
    clt_jsonl_close(file);
    return st;
}

static clt_status read_jsonl(loading *l) {
    clt_strv paths = {0};
    clt_status st = clt_finetune_find_files(l->f, l->p->split, &paths);
    if (st == CLT_OK && l->f->format.function)
        clt_info("%s: lines are changed as LLM Foundry's function %s does", paths.v[0],
                 l->f->format.function);
    for (size_t i = 0; i < paths.n && st == CLT_OK; i++) st = read_file(l, paths.v[i]);
    clt_progress_end();
    if (st == CLT_OK && l->s->n == 0)
        st =
            clt_error(CLT_BAD_DATA,
                      "%s: none of its %lld samples can be used: prompt or response is empty, or the first "
                      "%lld tokens (max_seq_len) have no target",
                      paths.n ? paths.v[0] : l->f->hf_name, (long long)l->read, (long long)l->p->max_seq_len);
    if (st == CLT_OK && l->dropped)
        clt_info("%s: dropped %lld of %lld samples: an empty prompt or response, or no target in the first "
                 "%lld tokens",
                 paths.v[0], (long long)l->dropped, (long long)l->read, (long long)l->p->max_seq_len);
    clt_strv_free(&paths);
    return st;
}

static clt_status read_mds_sample(const loading *l, clt_mds *m, int64_t sample, slot *q) {
    name_slot(q, clt_format("sample %lld of %s", (long long)sample, clt_mds_dir(m)));
    return l->json ? clt_mds_get_json(m, sample, &q->text)
                   : clt_mds_get_pair(m, sample, &q->text, &q->response);
}

static clt_status read_mds(loading *l, clt_mds *m) {
    const int64_t n = clt_mds_num_samples(m);
    size_t count = 0, bytes = 0;
    l->from_mds = true;
    l->json = clt_mds_json_column(m);
    for (int64_t sample = 0; sample < n; sample++) {
        slot *q = &l->slots[count];
        CLT_TRY(read_mds_sample(l, m, sample, q));
        bytes += q->text.len + q->response.len;
        if (++count < SLOTS && bytes < MOST_BYTES && sample + 1 < n) continue;
        CLT_TRY(take_slots(l, count));
        count = bytes = 0;
        clt_progress(false, "%s: sample %lld of %lld", clt_mds_dir(m), (long long)sample + 1, (long long)n);
    }
    return CLT_OK;
}

/* --- opening --- */

static clt_status open_tokenizer(loading *l) {
    const char *name = l->p->tokenizer;
    CLT_TRY(clt_tokenizer_open(name, &l->tokenizer));
    l->eos = clt_tokenizer_eos_id(l->tokenizer);
    const int64_t pad = clt_tokenizer_pad_id(l->tokenizer);
    l->s->pad = (int32_t)(pad >= 0 ? pad : CLT_MAX(l->eos, 0));
    l->s->pads_left =
        l->f->padding_side ? strcmp(l->f->padding_side, "left") == 0 : clt_tokenizer_pads_left(l->tokenizer);
    if (l->s->pads_left && !l->f->padding_side)
        clt_info(
            "tokenizer '%s' pads on the left; training pads on the right, and cltrain data batches shows "
            "the left",
            name);
    if (l->p->vocab_size > 0 && CLT_MAX(l->eos, l->s->pad) >= l->p->vocab_size)
        return clt_error(CLT_BAD_CONFIG,
                         "tokenizer '%s' ends texts with id %lld and pads with %d, outside model.vocab_size "
                         "%lld",
                         name, (long long)l->eos, l->s->pad, (long long)l->p->vocab_size);
    clt_error_quiet(true); /* it matters only to a line that is a chat */
    if (clt_chat_open(name, l->f->chat_template, &l->chat) != CLT_OK)
        l->chat_error = clt_strdup(clt_last_error());
    clt_error_quiet(false);
    l->text = (clt_finetune_text){l->tokenizer, l->chat, l->chat_error};
    return CLT_OK;
}

/* Adds the shards of stream i behind the `*n` of those before. */
static clt_status add_shards(clt_finetune_shards *s, int i, const clt_mds *m, size_t *n) {
    const size_t more = clt_mds_num_shards(m), bytes = (*n + more) * sizeof *s->samples;
    int64_t *grown = clt_try_realloc(s->samples, bytes);
    if (!grown) return clt_no_memory(clt_mds_dir(m), bytes);
    s->samples = grown;
    s->of_stream[i] = more;
    for (size_t k = 0; k < more; k++) {
        clt_mds_shard shard;
        clt_mds_shard_info(m, k, &shard);
        s->samples[(*n)++] = shard.samples;
    }
    return CLT_OK;
}

static clt_status read_streams(loading *l, clt_finetune_shards *shards) {
    const int streams = CLT_MAX(l->p->n_streams, 1);
    size_t n = 0;
    shards->of_stream = clt_calloc((size_t)streams, sizeof *shards->of_stream);
    for (int i = 0; i < streams; i++) {
        const clt_loader_params p = l->p->n_streams ? clt_loader_params_of_stream(l->p, i) : *l->p;
        clt_mds *m;
        CLT_TRY(clt_reader_open_mds(&p, &m));
        clt_status st = add_shards(shards, i, m, &n);
        if (st == CLT_OK) st = read_mds(l, m);
        clt_progress_end();
        clt_mds_close(m);
        CLT_TRY(st);
    }
    return CLT_OK;
}

void clt_finetune_shards_free(clt_finetune_shards *s) {
    clt_free(s->samples);
    clt_free(s->of_stream);
    *s = (clt_finetune_shards){NULL, NULL};
}

static clt_status load(loading *l, clt_finetune_shards *shards) {
    CLT_TRY(open_tokenizer(l));
    CLT_TRY(list_end(l->s));
    return l->f->hf_name ? read_jsonl(l) : read_streams(l, shards);
}

static void free_loading(loading *l) {
    for (size_t i = 0; i < SLOTS; i++) {
        clt_str_free(&l->slots[i].text);
        clt_str_free(&l->slots[i].response);
        clt_finetune_turns_free(&l->slots[i].turns);
        clt_free(l->slots[i].where);
    }
    clt_tokenizer_close(l->tokenizer);
    clt_chat_close(l->chat);
    clt_free(l->chat_error);
    clt_free(l);
}

clt_status clt_finetune_samples_load(const clt_loader_params *p, clt_finetune_samples **out,
                                     clt_finetune_shards *shards) {
    loading *l = clt_calloc(1, sizeof *l);
    l->p = p;
    l->f = &p->finetune;
    l->s = *out = clt_calloc(1, sizeof **out);
    *shards = (clt_finetune_shards){NULL, NULL};
    clt_status st = load(l, shards);
    free_loading(l);
    return st;
}

void clt_finetune_samples_free(clt_finetune_samples *s) {
    if (!s) return;
    clt_free(s->ids.v);
    clt_free(s->spans.v);
    clt_free(s->at);
    clt_free(s);
}

int64_t clt_finetune_samples_count(const clt_finetune_samples *s) {
    return (int64_t)s->n;
}

int32_t clt_finetune_samples_pad(const clt_finetune_samples *s, bool *left) {
    *left = s->pads_left;
    return s->pad;
}

clt_finetune_row clt_finetune_samples_get(const clt_finetune_samples *s, int64_t sample) {
    const place a = s->at[sample], b = s->at[sample + 1];
    return (clt_finetune_row){s->ids.v + a.ids, (int32_t)(b.ids - a.ids), s->spans.v + a.spans,
                              (int32_t)((b.spans - a.spans) / 2)};
}
