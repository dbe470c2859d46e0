#include "runtime/data/clt_docs.h"

#include <string.h>

#include "runtime/base/clt_io.h"

enum { MOST_PIECES = 1 << 13 }; /* of a batch */

struct clt_docs {
    const clt_docs_file *files;
    size_t n, next; /* files; the one to open next */
    const clt_tokenizer *t;
    uint64_t done; /* bytes of finished files */
    /* the open file: one of the two */
    clt_jsonl *lines;
    clt_file *file;
    uint64_t size, at; /* of `file`; read so far */
    clt_str rest;      /* text that was read and belongs to the next piece */
    bool begun;        /* a piece of the document was returned */
};

clt_docs *clt_docs_create(const clt_docs_file *files, size_t n, const clt_tokenizer *t) {
    clt_docs *d = clt_calloc(1, sizeof *d);
    *d = (clt_docs){.files = files, .n = n, .t = t};
    return d;
}

void clt_docs_destroy(clt_docs *d) {
    if (!d) return;
    clt_jsonl_close(d->lines);
    clt_file_close(d->file);
    clt_str_free(&d->rest);
    clt_free(d);
}

uint64_t clt_docs_position(const clt_docs *d) {
    return d->done + (d->lines ? clt_jsonl_position(d->lines) : d->at);
}

/* --- batches --- */

static void clear(clt_doc_batch *b) {
    for (size_t i = 0; i < b->n; i++) clt_free(b->pieces[i].error);
    b->n = b->bytes.len = 0;
}

void clt_doc_batch_free(clt_doc_batch *b) {
    clear(b);
    clt_str_free(&b->bytes);
    clt_free(b->pieces);
    *b = (clt_doc_batch){0};
}

/* A new piece, which begins at the end of the batch's bytes. */
static clt_status add_piece(clt_docs *d, clt_doc_batch *b, clt_doc_piece **out) {
    if (b->n == b->cap) {
        size_t cap = b->cap ? 2 * b->cap : 64;
        clt_doc_piece *pieces = clt_try_realloc(b->pieces, cap * sizeof *pieces);
        if (!pieces) return clt_no_memory("a batch of documents", cap * sizeof *pieces);
        b->pieces = pieces;
        b->cap = cap;
    }
    *out = &b->pieces[b->n++];
    **out = (clt_doc_piece){.file = &d->files[d->next - 1], .begin = b->bytes.len, .end = b->bytes.len};
    return CLT_OK;
}

static clt_status add_bytes(clt_doc_batch *b, const char *data, size_t n) {
    if (!clt_str_try_reserve(&b->bytes, n)) return clt_no_memory("a batch of documents", b->bytes.len + n);
    clt_str_addn(&b->bytes, data, n);
    return CLT_OK;
}

/* --- JSONL --- */

/* `error`: why the line cannot be read; NULL: it was. */
static clt_status add_line(clt_docs *d, clt_doc_batch *b, const clt_jsonl_line *line, const char *error) {
    clt_doc_piece *p;
    CLT_TRY(add_piece(d, b, &p));
    p->line = line->number;
    p->at = line->offset;
    p->first = p->last = true;
    if (error)
        p->error = clt_strdup(error);
    else
        CLT_TRY(add_bytes(b, line->text, line->bytes));
    p->end = b->bytes.len;
    return CLT_OK;
}

static clt_status next_line(clt_docs *d, clt_doc_batch *b) {
    clt_jsonl_line line;
    clt_error_quiet(true);
    clt_status st = clt_jsonl_next_line(d->lines, &line);
    clt_error_quiet(false);
    if (st == CLT_OK && line.text) return add_line(d, b, &line, NULL);
    if (st != CLT_OK) {
        char *why = clt_strdup(clt_last_error());
        st = st == CLT_BAD_DATA ? add_line(d, b, &line, why) : clt_error(st, "%s", why);
        clt_free(why);
        return st;
    }
    d->done += clt_jsonl_size(d->lines);
    clt_jsonl_close(d->lines);
    d->lines = NULL;
    return CLT_OK;
}

/* --- files of text and of token ids --- */

static const char *path_of(const clt_docs *d) {
    return d->files[d->next - 1].path;
}

static size_t width_of(clt_docs_kind kind) {
    return kind == CLT_DOCS_INT32 ? 4 : kind == CLT_DOCS_UINT16 ? 2 : 1;
}

/* Appends the next `n` bytes of the file, or what is left of it. */
static clt_status read_more(clt_docs *d, clt_doc_batch *b, size_t n) {
    n = (size_t)CLT_MIN(d->size - d->at, (uint64_t)n);
    if (!clt_str_try_reserve(&b->bytes, n)) return clt_no_memory("a piece of text", b->bytes.len + n);
    CLT_TRY(clt_file_pread(d->file, b->bytes.s + b->bytes.len, n, d->at));
    b->bytes.len += n;
    d->at += n;
    return CLT_OK;
}

/* Reads text until it has a cut, doubling it each time, and puts what follows the cut back. */
static clt_status read_to_cut(clt_docs *d, clt_doc_batch *b, const clt_doc_piece *p, size_t *end) {
    const unsigned flags = clt_tokenizer_default_flags(d->t) | (p->first ? 0u : CLT_TOKEN_CONTINUED);
    size_t cut = 0, have = b->bytes.len - p->begin;
    while (cut == 0 && d->at < d->size) {
        CLT_TRY(read_more(d, b, CLT_MAX(have, CLT_DOCS_BATCH)));
        have = b->bytes.len - p->begin;
        cut = d->at < d->size ? clt_tokenizer_cut(d->t, b->bytes.s + p->begin, have, flags) : have;
    }
    if (d->at == d->size) cut = have; /* also when only the rest of the last piece is left */
    d->rest.len = 0;
    if (!clt_str_try_reserve(&d->rest, have - cut)) return clt_no_memory("a piece of text", have - cut);
    clt_str_addn(&d->rest, b->bytes.s + p->begin + cut, have - cut);
    *end = p->begin + cut;
    return CLT_OK;
}

static clt_status next_piece(clt_docs *d, clt_doc_batch *b) {
    const bool text = d->files[d->next - 1].kind == CLT_DOCS_TEXT;
    clt_doc_piece *p;
    size_t end = 0;
    CLT_TRY(add_piece(d, b, &p));
    p->first = !d->begun;
    p->at = d->at - d->rest.len;
    CLT_TRY(add_bytes(b, d->rest.s ? d->rest.s : "", d->rest.len));
    if (text && d->t) {
        CLT_TRY(read_to_cut(d, b, p, &end));
    } else {
        CLT_TRY(read_more(d, b, text ? (size_t)d->size : CLT_DOCS_BATCH));
        end = b->bytes.len;
    }
    p->end = b->bytes.len = end;
    p->last = d->at == d->size && d->rest.len == 0;
    d->begun = !p->last;
    if (!p->last) return CLT_OK;
    d->done += d->size;
    d->at = 0;
    clt_status st = clt_file_close(d->file);
    d->file = NULL;
    return st;
}

static clt_status open_next(clt_docs *d) {
    const clt_docs_file *f = &d->files[d->next++];
    if (f->kind == CLT_DOCS_JSONL) return clt_jsonl_open(f->path, 0, &d->lines);
    CLT_TRY(clt_file_open(f->path, CLT_IO_READ, &d->file));
    CLT_TRY(clt_file_size(d->file, &d->size));
    d->at = 0;
    if (d->size % width_of(f->kind))
        return clt_error(CLT_BAD_DATA, "%s: %llu bytes are not a whole number of %s tokens", f->path,
                         (unsigned long long)d->size, f->kind == CLT_DOCS_INT32 ? "int32" : "uint16");
    if (f->kind == CLT_DOCS_TEXT && !d->t && d->size > CLT_JSONL_MAX_LINE)
        return clt_error(CLT_BAD_DATA,
                         "%s has %llu bytes; a text sample has at most %d: split the file, or pack it into "
                         "samples of tokens",
                         path_of(d), (unsigned long long)d->size, CLT_JSONL_MAX_LINE);
    return CLT_OK;
}

clt_status clt_docs_next(clt_docs *d, clt_doc_batch *b) {
    clear(b);
    while (b->bytes.len < CLT_DOCS_BATCH && b->n < MOST_PIECES) {
        if (d->lines)
            CLT_TRY(next_line(d, b));
        else if (d->file)
            CLT_TRY(next_piece(d, b));
        else if (d->next < d->n)
            CLT_TRY(open_next(d));
        else
            return CLT_OK;
    }
    return CLT_OK;
}
