#include "runtime/data/tokenizer/clt_corpus.h"

#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_signal.h"
#include "runtime/base/clt_thread.h"
#include "runtime/data/clt_utf8.h"
#include "runtime/data/tokenizer/clt_nfc.h"

enum { CHUNK = 1 << 20, MOST_THREADS = 16 };

/* Whole lines of a file, and the thread's table. */
typedef struct {
    const clt_docs_file *file;
    int64_t line;  /* number of the first one, from 1 */
    clt_str bytes; /* the chunk, and behind it the beginning of the next line */
    size_t use;    /* bytes of the chunk */
    clt_word_count words;
    clt_split_work *work;
    clt_str normal; /* a text in form C */
    int64_t skipped;
    clt_status status;
    char *error; /* the message; NULL: none */
} counter;

typedef struct {
    const clt_tokenizer_train_params *p;
    const clt_splitter *splitter;
    counter *counters;
    size_t threads;
    /* the file that is being read */
    clt_file *file;
    uint64_t size, read;
    int64_t line;
    clt_str rest; /* bytes that were read and belong to the next chunk */
    clt_tokenizer_train_counts *counts;
} corpus;

/* --- one text: on any thread --- */

static clt_status count_text(const corpus *c, counter *w, const char *text, size_t bytes) {
    if (c->p->nfc && !clt_nfc_quick_check(text, bytes)) {
        w->normal.len = 0;
        CLT_TRY(clt_nfc_normalize(text, bytes, &w->normal));
        text = w->normal.s;
        bytes = w->normal.len;
    }
    clt_split s = clt_split_begin(c->splitter, w->work, text, bytes);
    for (size_t start, end;;) {
        CLT_TRY(clt_split_next(&s, &start, &end));
        if (start == end) return CLT_OK;
        CLT_TRY(clt_word_count_add(&w->words, text + start, end - start, 1));
    }
}

static clt_status use_text(const corpus *c, counter *w, int64_t line, const char *text, size_t bytes) {
    if (!clt_utf8_valid(text, bytes))
        return clt_error(CLT_BAD_DATA, "%s:%lld: the text is not UTF-8", w->file->path, (long long)line);
    return count_text(c, w, text, bytes);
}

static clt_status use_object(const corpus *c, counter *w, int64_t number, const char *at, size_t bytes) {
    const clt_jsonl_line line = {.path = w->file->path, .number = number, .text = at, .bytes = bytes};
    json_t *o;
    const char *text;
    size_t length;
    CLT_TRY(clt_jsonl_parse(&line, &o));
    clt_status st = clt_jsonl_get_str(&line, o, c->p->field ? c->p->field : "text", &text, &length);
    if (st == CLT_OK) st = count_text(c, w, text, length);
    json_decref(o);
    return st;
}

static bool is_blank(const char *s, size_t n) {
    return strspn(s, " \t\r\n") >= n;
}

/* bytes: with the line's end */
static clt_status use_line(const corpus *c, counter *w, int64_t number, const char *at, size_t bytes) {
    if (w->file->kind != CLT_DOCS_JSONL) return use_text(c, w, number, at, bytes);
    if (is_blank(at, bytes)) return CLT_OK;
    clt_status st = use_object(c, w, number, at, bytes - (at[bytes - 1] == '\n'));
    if (st != CLT_BAD_DATA || !c->p->skip_bad) return st;
    w->skipped++;
    return CLT_OK;
}

/* A clt_parallel_fn. The message of a failure is kept; which one is printed does not depend on the threads.
 */
static void count_chunk(void *ctx, size_t index) {
    const corpus *c = ctx;
    counter *w = &c->counters[index];
    int64_t number = w->line;
    clt_error_quiet(true);
    for (size_t at = 0; at < w->use && w->status == CLT_OK; number++) {
        const char *line = w->bytes.s + at, *end = memchr(line, '\n', w->use - at);
        const size_t bytes = end ? (size_t)(end - line) + 1 : w->use - at;
        w->status = use_line(c, w, number, line, bytes);
        at += bytes;
    }
    if (w->status != CLT_OK) w->error = clt_strdup(clt_last_error());
    clt_error_quiet(false);
}

/* --- chunks --- */

static clt_status open_file(corpus *c, const clt_docs_file *f) {
    c->read = 0;
    c->line = 1;
    CLT_TRY(clt_file_open(f->path, CLT_IO_READ, &c->file));
    return clt_file_size(c->file, &c->size);
}

/* Where the last whole line of the chunk ends; a line of CLT_JSONL_MAX_LINE bytes is cut between two
 * characters, because memory is bounded. 0: more must be read. */
static size_t end_of_lines(const corpus *c, const clt_str *b) {
    if (c->read == c->size) return b->len;
    const char *last = b->len ? memrchr(b->s, '\n', b->len) : NULL;
    if (last) return (size_t)(last - b->s) + 1;
    size_t cut = b->len;
    if (cut < CLT_JSONL_MAX_LINE) return 0;
    while (cut > 1 && ((unsigned char)b->s[cut - 1] & 0xc0) == 0x80) cut--;
    return cut - 1;
}

static int64_t count_lines(const char *s, size_t n) {
    int64_t lines = 0;
    for (const char *end = s + n; (s = memchr(s, '\n', (size_t)(end - s))); s++) lines++;
    return lines;
}

/* Fills the counter with the next lines of the file, which has more. */
static clt_status read_chunk(corpus *c, const clt_docs_file *f, counter *w) {
    clt_str *b = &w->bytes;
    b->len = 0;
    if (!clt_str_try_reserve(b, c->rest.len)) return clt_no_memory("a line of text", c->rest.len);
    clt_str_addn(b, c->rest.s ? c->rest.s : "", c->rest.len);
    do {
        const size_t n = (size_t)CLT_MIN(c->size - c->read, (uint64_t)CHUNK);
        if (!clt_str_try_reserve(b, n)) return clt_no_memory("a line of text", b->len + n);
        CLT_TRY(clt_file_pread(c->file, b->s + b->len, n, c->read));
        b->len += n;
        c->read += n;
        w->use = end_of_lines(c, b);
    } while (w->use == 0 && c->read < c->size);
    w->file = f;
    w->line = c->line;
    c->line += count_lines(b->s, w->use);
    c->rest.len = 0;
    if (!clt_str_try_reserve(&c->rest, b->len - w->use)) return clt_no_memory("a line of text", b->len);
    clt_str_addn(&c->rest, b->s + w->use, b->len - w->use);
    return CLT_OK;
}

static clt_status count_all(corpus *c, size_t n) {
    clt_parallel_for(n, (int)c->threads, count_chunk, c);
    for (size_t i = 0; i < n; i++) {
        counter *w = &c->counters[i];
        c->counts->bytes += w->use;
        if (w->status != CLT_OK) return clt_error(w->status, "%s", w->error);
    }
    if (c->p->progress) c->p->progress(c->p->ctx, c->counts->bytes);
    return clt_signal_received() ? CLT_STOPPED : CLT_OK;
}

static clt_status count_files(corpus *c, const clt_docs_file *files, size_t n) {
    size_t ready = 0;
    for (size_t i = 0; i < n; i++) {
        CLT_TRY(open_file(c, &files[i]));
        while (c->read < c->size || c->rest.len) {
            CLT_TRY(read_chunk(c, &files[i], &c->counters[ready++]));
            if (ready < c->threads) continue;
            CLT_TRY(count_all(c, ready));
            ready = 0;
        }
        clt_file_close(c->file);
        c->file = NULL;
    }
    return count_all(c, ready);
}

static clt_status create_counters(corpus *c) {
    c->counters = clt_calloc(c->threads, sizeof *c->counters);
    for (size_t i = 0; i < c->threads; i++)
        if (!(c->counters[i].work = clt_split_work_create())) return clt_no_memory("a regular expression", 0);
    return CLT_OK;
}

static void free_counters(corpus *c) {
    for (size_t i = 0; i < c->threads; i++) {
        counter *w = &c->counters[i];
        clt_str_free(&w->bytes);
        clt_str_free(&w->normal);
        clt_word_count_free(&w->words);
        clt_split_work_destroy(w->work);
        clt_free(w->error);
    }
    clt_free(c->counters);
}

clt_status clt_corpus_count(const clt_docs_file *files, size_t n, const clt_tokenizer_train_params *p,
                            const clt_splitter *splitter, clt_word_count *words,
                            clt_tokenizer_train_counts *counts) {
    corpus c = {.p = p, .splitter = splitter, .counts = counts};
    c.threads = (size_t)CLT_MIN(p->threads > 0 ? p->threads : clt_cpu_count(), MOST_THREADS);
    clt_status st = create_counters(&c);
    if (st == CLT_OK) st = count_files(&c, files, n);
    for (size_t i = 0; i < c.threads && st == CLT_OK; i++) {
        counts->skipped += c.counters[i].skipped;
        st = clt_word_count_merge(words, &c.counters[i].words);
    }
    if (c.file) clt_file_close(c.file);
    clt_str_free(&c.rest);
    free_counters(&c);
    return st;
}
