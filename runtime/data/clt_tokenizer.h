/* clt_tokenizer: text to token ids and back. A tokenizer is opened by its name:
 *
 * - "bytes": ids 0 to 255 are the bytes, 256 is <|endoftext|> (clt_tokenizer_bytes.c);
 * - a path or URL of a tokenizer.json, or of a folder that has one: recognised, not supported yet;
 * - anything else is the name of a tokenizer on a hub, which is not fetched. It is needed only when text is
 *   tokenized, not for token columns and files of token ids.
 *
 * Several tokenizers may be open at once; each is used by any number of threads. clt_token_encoder and
 * clt_token_decoder work on text and ids that come in pieces, one thread each. */
#ifndef CLT_TOKENIZER_H
#define CLT_TOKENIZER_H

#include "runtime/base/clt_base.h"

typedef struct clt_tokenizer clt_tokenizer;

/* Whether clt_tokenizer_open supports this kind of tokenizer. `source` may be NULL. */
bool clt_tokenizer_known(const char *source);
/* CLT_BAD_CONFIG: the message says why it cannot be opened and what to do. */
clt_status clt_tokenizer_open(const char *source, clt_tokenizer **out);
void clt_tokenizer_close(clt_tokenizer *t); /* NULL is allowed */

/* Ids are 0 to vocab_size - 1. */
int64_t clt_tokenizer_vocab_size(const clt_tokenizer *t);
/* -1: the tokenizer has none. */
int64_t clt_tokenizer_bos_id(const clt_tokenizer *t);
int64_t clt_tokenizer_eos_id(const clt_tokenizer *t);
int64_t clt_tokenizer_pad_id(const clt_tokenizer *t);

/* --- whole texts --- */

/* The ids of a whole text, at most `max`; *n is how many were written, and when it is `max` the text may have
 * more. Nothing is added. With `allow_special` the text of a special token ("<|endoftext|>") becomes its id;
 * otherwise it is text like any other, so that a document cannot end itself. */
clt_status clt_tokenizer_encode(const clt_tokenizer *t, const char *text, size_t bytes, bool allow_special,
                                int32_t *ids, size_t max, size_t *n);
/* An upper bound of the ids of a text of so many bytes. */
size_t clt_tokenizer_max_ids(const clt_tokenizer *t, size_t bytes);
/* Appends the bytes that the ids stand for, which need not be UTF-8. CLT_BAD_DATA: an id is outside the
 * vocabulary; CLT_NO_MEMORY. */
clt_status clt_tokenizer_decode(const clt_tokenizer *t, const int32_t *ids, size_t n, clt_str *out);

/* --- text in pieces --- */

/* Receives the ids of one text in order, some at a time. */
typedef clt_status (*clt_token_fn)(void *ctx, const int32_t *ids, size_t n);

typedef struct clt_token_encoder clt_token_encoder;
clt_token_encoder *clt_token_encoder_create(const clt_tokenizer *t, bool allow_special, clt_token_fn emit,
                                            void *ctx);
/* The next bytes of the text, cut anywhere. The emitted ids are those of the whole text: bytes whose ids
 * depend on what follows are held back. CLT_NO_MEMORY, or what `emit` returns. */
clt_status clt_token_encoder_add(clt_token_encoder *e, const char *text, size_t bytes);
/* The text is complete; the encoder is ready for the next one. */
clt_status clt_token_encoder_end(clt_token_encoder *e);
void clt_token_encoder_destroy(clt_token_encoder *e); /* NULL is allowed */

/* --- ids in pieces --- */

/* Turns ids into text one by one, always whole UTF-8 characters: the bytes of an unfinished one are held
 * back, and what is not UTF-8 becomes U+FFFD, one for each part of a character. */
typedef struct {
    const clt_tokenizer *t;
    char held[4];
    size_t n_held;
} clt_token_decoder;

clt_token_decoder clt_token_decoder_begin(const clt_tokenizer *t);
/* Appends the text that the id completes, which may be empty. CLT_BAD_DATA: the id is outside the vocabulary.
 */
clt_status clt_token_decoder_add(clt_token_decoder *d, int32_t id, clt_str *out);
/* Appends U+FFFD if a character is unfinished. */
void clt_token_decoder_end(clt_token_decoder *d, clt_str *out);

#endif
