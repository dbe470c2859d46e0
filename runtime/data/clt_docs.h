/* clt_docs: reads the documents of a list of files in order, in batches of about CLT_DOCS_BATCH bytes, so
 * that several threads can work on batches at once while memory stays bounded. A text file is one document, a
 * JSONL file one per line, a file of token ids one. A document that is longer than a batch comes in pieces:
 * text is cut where the tokenizer allows it (clt_tokenizer_cut). Used by one thread at a time. */
#ifndef CLT_DOCS_H
#define CLT_DOCS_H

#include "runtime/data/clt_jsonl.h"
#include "runtime/data/clt_tokenizer.h"

enum { CLT_DOCS_BATCH = 1 << 17 };

typedef enum { CLT_DOCS_TEXT, CLT_DOCS_JSONL, CLT_DOCS_UINT16, CLT_DOCS_INT32 } clt_docs_kind;

typedef struct {
    const char *path; /* clt_io.h */
    clt_docs_kind kind;
} clt_docs_file;

/* A document, or a part of one. */
typedef struct {
    const clt_docs_file *file;
    int64_t line;      /* of a JSONL file, from 1; else 0 */
    uint64_t at;       /* of the piece's first byte in the file */
    size_t begin, end; /* in the batch's bytes */
    bool first, last;  /* the document begins, ends here */
    char *error;       /* the line cannot be read: the message; NULL otherwise */
} clt_doc_piece;

typedef struct {
    clt_str bytes; /* a JSONL line as it is in the file; text; little-endian token ids */
    clt_doc_piece *pieces;
    size_t n, cap;
} clt_doc_batch;

typedef struct clt_docs clt_docs;

/* `files` is borrowed. Text is cut for `t`; NULL: text documents come whole, and one of more than
 * CLT_JSONL_MAX_LINE bytes is an error. */
clt_docs *clt_docs_create(const clt_docs_file *files, size_t n, const clt_tokenizer *t);
void clt_docs_destroy(clt_docs *d); /* NULL is allowed */

/* Replaces the batch with the next documents; n = 0 at the end. A batch grows beyond CLT_DOCS_BATCH by at
 * most one line, or by text in which the tokenizer finds no cut. CLT_IO, CLT_BAD_DATA with the file,
 * CLT_NO_MEMORY; an unusable line is no failure but a piece with an error. */
clt_status clt_docs_next(clt_docs *d, clt_doc_batch *b);
void clt_doc_batch_free(clt_doc_batch *b); /* {0} is allowed */

/* Bytes of the files that were put into batches so far, for progress. */
uint64_t clt_docs_position(const clt_docs *d);

#endif
