/* clt_tokenizer: text <-> token ids. Built in is `bytes`: ids 0 to 255 are the bytes, 256 is <|endoftext|>.
 * Files of other tokenizers have no reader yet; a run over token columns does not need one. */
#ifndef CLT_TOKENIZER_H
#define CLT_TOKENIZER_H

#include "runtime/base/clt_base.h"

typedef struct clt_tokenizer clt_tokenizer;

/* Whether clt_tokenizer_open can open this name. */
bool clt_tokenizer_known(const char *name);
/* CLT_BAD_CONFIG for any name but `bytes`. */
clt_status clt_tokenizer_open(const char *name, clt_tokenizer **out);
void clt_tokenizer_close(clt_tokenizer *t);

int64_t clt_tokenizer_vocab_size(const clt_tokenizer *t);
/* -1 where the tokenizer has none. */
int64_t clt_tokenizer_eos_id(const clt_tokenizer *t);
int64_t clt_tokenizer_pad_id(const clt_tokenizer *t);

/* Ids of a whole text, special tokens not recognised or added. Writes at most `max` and sets *n to the number
 * written (a tokenizer may stop early when the rest does not fit). */
clt_status clt_tokenizer_encode(const clt_tokenizer *t, const char *text, size_t bytes, int32_t *ids,
                                size_t max, size_t *n);
/* An upper bound of the ids that a text of so many bytes can have. */
size_t clt_tokenizer_max_ids(const clt_tokenizer *t, size_t bytes);
/* Appends the text of the ids; CLT_BAD_DATA for an id outside the vocabulary. The bytes of ids need not be
 * whole UTF-8 characters. */
clt_status clt_tokenizer_decode(const clt_tokenizer *t, const int32_t *ids, size_t n, clt_str *out);

#endif
