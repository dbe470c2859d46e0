#include "runtime/data/clt_convert.h"

#include <string.h>

#include "runtime/base/clt_signal.h"
#include "runtime/base/clt_thread.h"
#include "runtime/data/clt_utf8.h"

/* Work is done in rounds. In a round, the batches of one set are tokenized, each by any thread; meanwhile one
 * thread hands on the results of the other set in order and reads its next batches. */

enum { BATCHES_PER_THREAD = 16, MOST_THREADS = 16, KEPT_BYTES = 4 << 20 };

/* What became of a piece of a batch. */
typedef struct {
    size_t end; /* of its ids, or of its text, in the job's output */
    bool bad;   /* left out */
} result;

typedef struct {
    clt_doc_batch in;
    result *results; /* [in.n] */
    size_t results_cap;
    int32_t *ids;
    size_t n, cap;
    clt_str text;
    clt_status read, status; /* of reading the batch; of it or of the work on it */
    char *error;             /* of the first failure, or of the first piece that was left out */
} job;

typedef struct {
    job *jobs;
    size_t n; /* that hold a batch */
} job_set;

typedef struct {
    const clt_convert_params *p;
    clt_convert_counts *counts;
    clt_docs *docs;
    clt_packer packer;
    unsigned flags;
    size_t per_set;
    job_set sets[2];
    job_set *working, *other;
    clt_status status; /* of handing on */
} converter;

/* --- one piece: on any thread --- */

static clt_status reserve_ids(job *j, size_t n) {
    if (j->n + n <= j->cap) return CLT_OK;
    size_t cap = CLT_MAX(j->cap + j->cap / 2, j->n + n);
    int32_t *ids = cap <= SIZE_MAX / sizeof *ids ? clt_try_realloc(j->ids, cap * sizeof *ids) : NULL;
    if (!ids) return clt_no_memory("the token ids of a text", (uint64_t)cap * sizeof *ids);
    j->ids = ids;
    j->cap = cap;
    return CLT_OK;
}

static void add_template(const converter *c, job *j, bool after) {
    size_t n;
    const int32_t *ids = clt_tokenizer_template(c->p->tokenizer, after, &n);
    if (n && (c->flags & CLT_TOKEN_TEMPLATE)) memcpy(j->ids + j->n, ids, n * sizeof *ids);
    j->n += c->flags & CLT_TOKEN_TEMPLATE ? n : 0;
}

static clt_status tokenize(const converter *c, job *j, const clt_doc_piece *p, const char *text,
                           size_t bytes) {
    const clt_tokenizer *t = c->p->tokenizer;
    const unsigned flags =
        (c->flags & ~(unsigned)CLT_TOKEN_TEMPLATE) | (p->first ? 0u : (unsigned)CLT_TOKEN_CONTINUED);
    const size_t max = clt_tokenizer_max_ids(t, bytes); /* the template included */
    size_t n = 0;
    CLT_TRY(reserve_ids(j, max));
    if (p->first) add_template(c, j, false);
    if (bytes) CLT_TRY(clt_tokenizer_encode(t, text, bytes, flags, j->ids + j->n, max, &n));
    j->n += n;
    if (p->last) add_template(c, j, true);
    return CLT_OK;
}

static clt_status keep_text(job *j, const clt_doc_piece *p, const char *text, size_t bytes) {
    if (!clt_utf8_valid(text, bytes))
        return clt_error(CLT_BAD_DATA, "%s: the text is not UTF-8", p->file->path);
    if (!clt_str_try_reserve(&j->text, bytes)) return clt_no_memory("a text", j->text.len + bytes);
    clt_str_addn(&j->text, text, bytes);
    return CLT_OK;
}

static clt_status use_text(const converter *c, job *j, const clt_doc_piece *p, const char *text,
                           size_t bytes) {
    return c->p->length ? tokenize(c, j, p, text, bytes) : keep_text(j, p, text, bytes);
}

static clt_status use_line(const converter *c, job *j, const clt_doc_piece *p) {
    const clt_jsonl_line line = {.path = p->file->path,
                                 .number = p->line,
                                 .text = j->in.bytes.s + p->begin,
                                 .bytes = p->end - p->begin};
    json_t *o;
    const char *text;
    size_t bytes;
    if (p->error) return clt_error(CLT_BAD_DATA, "%s", p->error);
    CLT_TRY(clt_jsonl_parse(&line, &o));
    clt_status st = clt_jsonl_get_str(&line, o, c->p->field ? c->p->field : "text", &text, &bytes);
    if (st == CLT_OK) st = use_text(c, j, p, text, bytes);
    json_decref(o);
    return st;
}

/* Text of a file: errors of the tokenizer get its name. */
static clt_status use_file(const converter *c, job *j, const clt_doc_piece *p) {
    clt_status st = use_text(c, j, p, j->in.bytes.s + p->begin, p->end - p->begin);
    if (st != CLT_BAD_DATA || strncmp(clt_last_error(), p->file->path, strlen(p->file->path)) == 0) return st;
    char *why = clt_strdup(clt_last_error());
    clt_error(st, "%s: %s", p->file->path, why);
    clt_free(why);
    return st;
}

static clt_status use_ids(job *j, const clt_doc_piece *p) {
    const size_t width = p->file->kind == CLT_DOCS_INT32 ? 4 : 2, n = (p->end - p->begin) / width;
    const char *from = j->in.bytes.s + p->begin;
    CLT_TRY(reserve_ids(j, n));
    for (size_t i = 0; i < n; i++) {
        uint16_t narrow;
        int32_t id;
        if (width == 4)
            memcpy(&id, from + 4 * i, 4);
        else
            id = (memcpy(&narrow, from + 2 * i, 2), narrow);
        if (id < 0)
            return clt_error(CLT_BAD_DATA, "%s: token %llu is %d; ids must not be negative", p->file->path,
                             (unsigned long long)(p->at / width + i), id);
        j->ids[j->n++] = id;
    }
    return CLT_OK;
}

static clt_status use_piece(const converter *c, job *j, const clt_doc_piece *p) {
    if (p->file->kind == CLT_DOCS_JSONL) return use_line(c, j, p);
    return p->file->kind == CLT_DOCS_TEXT ? use_file(c, j, p) : use_ids(j, p);
}

/* --- a batch --- */

static clt_status prepare(job *j) {
    j->n = j->text.len = 0;
    j->status = CLT_OK;
    if (j->in.n <= j->results_cap) return CLT_OK;
    result *results = clt_try_realloc(j->results, j->in.n * sizeof *results);
    if (!results) return clt_no_memory("a batch of documents", j->in.n * sizeof *results);
    j->results = results;
    j->results_cap = j->in.n;
    return CLT_OK;
}

static void remember_error(job *j) {
    clt_free(j->error);
    j->error = clt_strdup(clt_last_error());
}

/* The message of a failure is kept; which one is printed does not depend on the threads. */
static void work(const converter *c, job *j) {
    bool any_bad = false;
    j->status = j->read;
    if (j->read != CLT_OK) return;
    clt_error_quiet(true);
    j->status = prepare(j);
    for (size_t i = 0; i < j->in.n && j->status == CLT_OK; i++) {
        const clt_doc_piece *p = &j->in.pieces[i];
        const size_t n = j->n, len = j->text.len;
        clt_status st = use_piece(c, j, p);
        const bool bad = st == CLT_BAD_DATA && c->p->skip_bad && p->file->kind == CLT_DOCS_JSONL;
        if (bad) {
            j->n = n;
            j->text.len = len;
            if (!any_bad) remember_error(j);
            any_bad = true;
            st = CLT_OK;
        }
        j->results[i] = (result){c->p->length ? j->n : j->text.len, bad};
        j->status = st;
    }
    if (j->status != CLT_OK) remember_error(j);
    clt_error_quiet(false);
}

/* --- handing on, in order --- */

static clt_status hand_on_piece(converter *c, const job *j, size_t i, size_t begin) {
    const clt_convert_params *p = c->p;
    const clt_doc_piece *piece = &j->in.pieces[i];
    const size_t n = j->results[i].end - begin;
    c->counts->documents += piece->last;
    if (!p->length) {
        c->counts->samples++;
        return p->text(p->ctx, j->text.s ? j->text.s + begin : "", n);
    }
    if (piece->first) CLT_TRY(clt_packer_add(&c->packer, p->bos, p->num_bos));
    CLT_TRY(clt_packer_add(&c->packer, j->ids + begin, n));
    if (!piece->last) return CLT_OK;
    CLT_TRY(clt_packer_add(&c->packer, p->eos, p->num_eos));
    clt_packer_end_document(&c->packer);
    return CLT_OK;
}

static clt_status hand_on_job(converter *c, job *j) {
    if (j->status != CLT_OK) return clt_error(j->status, "%s", j->error);
    for (size_t i = 0, begin = 0; i < j->in.n; begin = j->results[i++].end) {
        if (!j->results[i].bad) {
            CLT_TRY(hand_on_piece(c, j, i, begin));
            continue;
        }
        if (c->counts->skipped++ == 0)
            snprintf(c->counts->first_skipped, sizeof c->counts->first_skipped, "%s", j->error);
    }
    return CLT_OK;
}

/* A clt_sample_fn. */
static clt_status count_sample(void *ctx, const int32_t *tokens, size_t n) {
    converter *c = ctx;
    c->counts->samples++;
    return c->p->tokens(c->p->ctx, tokens, n);
}

/* Gives back what an unusually long document needed. */
static void trim(job *j) {
    if (j->cap > KEPT_BYTES / sizeof *j->ids) {
        clt_free(j->ids);
        j->ids = NULL;
        j->cap = 0;
    }
    if (j->text.cap > KEPT_BYTES) clt_str_free(&j->text);
    if (j->in.bytes.cap > KEPT_BYTES) clt_str_free(&j->in.bytes);
}

/* Fills the set with batches, to the bound of its bytes. A failure is reported when its batch is handed on.
 */
static void read_batches(converter *c, job_set *s) {
    const size_t most = c->per_set * CLT_DOCS_BATCH;
    bool more = true;
    s->n = 0;
    for (size_t bytes = 0; more && s->n < c->per_set && bytes < most;) {
        job *j = &s->jobs[s->n];
        trim(j);
        clt_error_quiet(true);
        j->read = clt_docs_next(c->docs, &j->in);
        if (j->read != CLT_OK) remember_error(j);
        clt_error_quiet(false);
        bytes += j->in.bytes.len;
        more = j->read == CLT_OK && j->in.n > 0;
        s->n += j->read != CLT_OK || j->in.n > 0;
    }
}

static clt_status exchange(converter *c, job_set *s) {
    for (size_t i = 0; i < s->n; i++) CLT_TRY(hand_on_job(c, &s->jobs[i]));
    read_batches(c, s);
    return CLT_OK;
}

/* --- rounds --- */

/* A clt_parallel_fn. */
static void do_task(void *ctx, size_t index) {
    converter *c = ctx;
    if (index == 0)
        c->status = exchange(c, c->other);
    else
        work(c, &c->working->jobs[index - 1]);
}

static clt_status run(converter *c) {
    read_batches(c, c->working);
    while (c->working->n || c->other->n) {
        clt_parallel_for(1 + c->working->n, c->p->threads, do_task, c);
        CLT_TRY(c->status);
        if (clt_signal_received()) return CLT_STOPPED;
        job_set *s = c->working;
        c->working = c->other;
        c->other = s;
        c->counts->bytes = clt_docs_position(c->docs);
        if (c->p->progress) c->p->progress(c->p->ctx, c->counts);
    }
    return CLT_OK;
}

static void free_jobs(job_set *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        job *j = &s->jobs[i];
        clt_doc_batch_free(&j->in);
        clt_free(j->results);
        clt_free(j->ids);
        clt_str_free(&j->text);
        clt_free(j->error);
    }
    clt_free(s->jobs);
}

clt_status clt_convert(const clt_docs_file *files, size_t n, const clt_convert_params *p,
                       clt_convert_counts *counts) {
    const int threads = CLT_MIN(p->threads > 0 ? p->threads : clt_cpu_count(), MOST_THREADS);
    converter c = {.p = p, .counts = counts, .per_set = (size_t)threads * BATCHES_PER_THREAD};
    *counts = (clt_convert_counts){0};
    if (p->length) CLT_TRY(clt_packer_init(&c.packer, p->length, p->no_wrap, count_sample, &c));
    c.flags = p->tokenizer ? clt_tokenizer_default_flags(p->tokenizer) : 0;
    for (int i = 0; i < 2; i++) c.sets[i].jobs = clt_calloc(c.per_set, sizeof(job));
    c.working = &c.sets[0];
    c.other = &c.sets[1];
    c.docs = clt_docs_create(files, n, p->length ? p->tokenizer : NULL);
    clt_status st = run(&c);
    counts->left_over = c.packer.dropped + (int64_t)c.packer.have;
    clt_docs_destroy(c.docs);
    for (int i = 0; i < 2; i++) free_jobs(&c.sets[i], c.per_set);
    clt_packer_free(&c.packer);
    return st;
}
