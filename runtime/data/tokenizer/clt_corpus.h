/* clt_corpus: counts the words of text and JSONL files on several threads. A file is read in chunks of whole
 * lines; each thread counts in a table of its own, and sums do not depend on their order. Memory is bounded
 * by the different words, the longest line, and 2 MiB per thread. Internal to this folder. */
#ifndef CLT_CORPUS_H
#define CLT_CORPUS_H

#include "runtime/data/clt_tokenizer_train.h"
#include "runtime/data/tokenizer/clt_splitter.h"
#include "runtime/data/tokenizer/clt_word_count.h"

/* Adds the words of all files to *words; of `p` it uses nfc, field, skip_bad, threads and progress, of
 * `counts` it sets bytes and skipped. Errors as clt_tokenizer_train. */
clt_status clt_corpus_count(const clt_docs_file *files, size_t n, const clt_tokenizer_train_params *p,
                            const clt_splitter *splitter, clt_word_count *words,
                            clt_tokenizer_train_counts *counts);

#endif
