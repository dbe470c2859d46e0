/* clt_convert: documents to samples, on several threads: reads files (clt_docs.h), takes the text out of
 * JSONL lines, tokenizes, and packs tokens into samples (clt_packer.h) or passes each text on as a sample.
 * Samples come in the order of the documents and do not depend on the number of threads.
 *
 * Memory: two sets of 16 batches per thread with their ids, about 25 MiB per thread, and about 25 times the
 * longest JSONL line or stretch of text without a cut, most of it in the tokenizer. */
#ifndef CLT_CONVERT_H
#define CLT_CONVERT_H

#include "runtime/data/clt_docs.h"
#include "runtime/data/clt_packer.h"

typedef struct {
    int64_t documents;
    int64_t skipped;         /* lines that skip_bad left out */
    char first_skipped[512]; /* why the first of them is bad */
    int64_t left_over;       /* tokens that filled no sample */
    uint64_t bytes;          /* of the files read so far */
    int64_t samples;
} clt_convert_counts;

typedef struct {
    const clt_tokenizer *tokenizer; /* of text and JSONL; NULL with length 0 or files of token ids */
    const char *field;              /* of a JSONL line: its text; default "text" */
    size_t length;                  /* tokens per sample; 0: samples are texts */
    const int32_t *bos, *eos;       /* ids before and after every document, beside the tokenizer's template */
    size_t num_bos, num_eos;
    bool no_wrap;  /* clt_packer.h */
    bool skip_bad; /* leave out and count bad JSONL lines; otherwise the first one is an error */
    int threads;   /* 0: clt_cpu_count; at most 16 are used */
    /* Receive samples in order; the one for the kind of sample is called. Fails with what they return. */
    clt_sample_fn tokens;
    clt_status (*text)(void *ctx, const char *text, size_t bytes);
    void (*progress)(void *ctx,
                     const clt_convert_counts *now); /* often, on the calling thread; may be NULL */
    void *ctx;
} clt_convert_params;

/* Converts all files; `counts` is set in any case. CLT_BAD_DATA with FILE or FILE:LINE: a bad line, text that
 * is not UTF-8, a negative token id; CLT_IO; CLT_NO_MEMORY; CLT_STOPPED after a request to stop. */
clt_status clt_convert(const clt_docs_file *files, size_t n, const clt_convert_params *p,
                       clt_convert_counts *counts);

#endif
