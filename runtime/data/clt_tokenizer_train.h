/* clt_tokenizer_train: makes a byte-level BPE tokenizer from texts, as a tokenizer.json that the package
 * `tokenizers` and clt_tokenizer_open read. Vocabulary and merges are those of the package's BpeTrainer on
 * the same texts with the alphabet of all bytes. They do not depend on the number of threads.
 *
 * A line of a text file, with its end, is a text, as the package reads files; a JSONL file has a text per
 * line. */
#ifndef CLT_TOKENIZER_TRAIN_H
#define CLT_TOKENIZER_TRAIN_H

#include "runtime/data/clt_docs.h"

typedef struct {
    int64_t vocab_size;    /* of the result: special tokens, 256 bytes, merges */
    int64_t min_frequency; /* pairs that occur less often are not merged; 0: all */
    const char
        *pattern;     /* how texts are divided into words: gpt2 (the default if NULL), llama3, qwen2, o200k */
    bool nfc;         /* normalize texts to Unicode's form C, here and in the tokenizer */
    clt_strv special; /* special tokens, which get the first ids; the first one ends texts */
    const char *field; /* of a JSONL line: its text; NULL: "text" */
    bool skip_bad;     /* leave out and count bad JSONL lines; otherwise the first one is an error */
    int threads;       /* 0: clt_cpu_count; at most 16 are used */
    void (*progress)(void *ctx, uint64_t bytes_read); /* often, on the calling thread; may be NULL */
    void *ctx;
} clt_tokenizer_train_params;

typedef struct {
    uint64_t bytes;  /* of the files */
    int64_t words;   /* different ones */
    int64_t skipped; /* lines that skip_bad left out */
    int64_t tokens;  /* of the vocabulary */
} clt_tokenizer_train_counts;

/* Appends the text of the tokenizer.json to *json. CLT_BAD_CONFIG: unknown pattern, a vocab_size below the
 * special tokens and 256 bytes, a special token twice; CLT_BAD_DATA with FILE:LINE: a text that is not UTF-8,
 * a bad line; CLT_IO; CLT_NO_MEMORY; CLT_STOPPED after a request to stop. */
clt_status clt_tokenizer_train(const clt_docs_file *files, size_t n, const clt_tokenizer_train_params *p,
                               clt_str *json, clt_tokenizer_train_counts *counts);

#endif
