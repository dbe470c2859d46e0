/* clt_tokenizer: text to token ids and back. A tokenizer is opened by its name:
 *
 * - "bytes": ids 0 to 255 are the bytes, 256 is <|endoftext|>;
 * - a path or URL of a tokenizer.json (any name that ends in ".json"), or of a folder that has one, as the
 *   package `tokenizers` writes it (docs/data.md lists what is supported). tokenizer_config.json and
 *   special_tokens_map.json in the same folder name its special tokens;
 * - anything else is the name of a tokenizer on a hub, which is not fetched. It is needed only when text is
 *   tokenized, not for token columns and files of token ids.
 *
 * Several tokenizers may be open at once; each is used by any number of threads. clt_token_encoder and
 * clt_token_decoder work on text and ids that come in pieces, one thread each. */
#ifndef CLT_TOKENIZER_H
#define CLT_TOKENIZER_H

#include "runtime/base/clt_base.h"

typedef struct clt_tokenizer clt_tokenizer;

/* How text is encoded; 0: the ids of the text alone. */
enum {
    /* The text of a special token ("<|endoftext|>") becomes its id. Without this it is text like any other,
     * so that a document cannot end itself. Added tokens that are not special are recognised in any case. */
    CLT_TOKEN_SPECIAL = 1,
    /* The ids that the tokenizer's template puts before and after a text are added, such as bos. */
    CLT_TOKEN_TEMPLATE = 2,
    /* The text continues one whose beginning, up to a clt_tokenizer_cut, was encoded before. */
    CLT_TOKEN_CONTINUED = 1 << 8
};

/* Whether `source` names a tokenizer that is not on a hub: "bytes", or a path. `source` may be NULL. */
bool clt_tokenizer_known(const char *source);
/* CLT_BAD_CONFIG: no such tokenizer, or it uses what is not supported; CLT_BAD_DATA: the file is damaged. The
 * message says what to do. CLT_IO, CLT_NO_MEMORY. */
clt_status clt_tokenizer_open(const char *source, clt_tokenizer **out);
void clt_tokenizer_close(clt_tokenizer *t); /* NULL is allowed */

/* --- tokens --- */

/* Ids are 0 to vocab_size - 1, added tokens included; a vocabulary may leave ids of this range unused. */
int64_t clt_tokenizer_vocab_size(const clt_tokenizer *t);
/* -1: the tokenizer has none. */
int64_t clt_tokenizer_bos_id(const clt_tokenizer *t);
int64_t clt_tokenizer_eos_id(const clt_tokenizer *t);
int64_t clt_tokenizer_pad_id(const clt_tokenizer *t);
int64_t clt_tokenizer_unk_id(const clt_tokenizer *t);
/* Whether batches are padded on the left (padding_side in tokenizer_config.json). */
bool clt_tokenizer_pads_left(const clt_tokenizer *t);
/* Whether transformers removes blanks before punctuation from decoded text (clean_up_tokenization_spaces);
 * clt_tokenizer_decode does not. */
bool clt_tokenizer_cleans_up(const clt_tokenizer *t);

/* The id of a token by its text in the vocabulary ("<|im_end|>", "Ġthe"); -1: there is none. */
int64_t clt_tokenizer_id(const clt_tokenizer *t, const char *text);
/* The token's text in the vocabulary; NULL if the id is unused or outside the vocabulary. Borrowed. */
const char *clt_tokenizer_text(const clt_tokenizer *t, int64_t id);
/* The bytes that the token stands for (" the"), which need not be UTF-8; 0 bytes for an unused id, which must
 * be below vocab_size. Borrowed. */
const char *clt_tokenizer_piece(const clt_tokenizer *t, int32_t id, size_t *bytes);
bool clt_tokenizer_is_special(const clt_tokenizer *t, int64_t id);

/* The ids that CLT_TOKEN_TEMPLATE puts before (or, with `after`, behind) a text; *n is how many, perhaps 0.
 * Borrowed. */
const int32_t *clt_tokenizer_template(const clt_tokenizer *t, bool after, size_t *n);
/* The flags with which the tokenizer's own library encodes a text when nothing else is asked for: special
 * tokens and template for a tokenizer.json, 0 for "bytes". */
unsigned clt_tokenizer_default_flags(const clt_tokenizer *t);

/* --- whole texts --- */

/* The ids of a whole text, at most `max`; *n is how many were written, and when it is `max` the text may have
 * more. flags: CLT_TOKEN_*. With CLT_TOKEN_TEMPLATE a text that is too long is cut on the right so that the
 * template's ids remain, if `max` is at least their number. CLT_BAD_DATA: the text is not UTF-8 ("bytes"
 * takes any bytes); CLT_NO_MEMORY. */
clt_status clt_tokenizer_encode(const clt_tokenizer *t, const char *text, size_t bytes, unsigned flags,
                                int32_t *ids, size_t max, size_t *n);
/* An upper bound of the ids of a text of so many bytes, with any flags. */
size_t clt_tokenizer_max_ids(const clt_tokenizer *t, size_t bytes);
/* Appends the text of the ids as UTF-8; bytes that are not become U+FFFD. With `skip_special`, special tokens
 * have no text. CLT_BAD_DATA: an id is outside the vocabulary; CLT_NO_MEMORY. */
clt_status clt_tokenizer_decode(const clt_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                                clt_str *out);

/* --- text in pieces --- */

/* Where a text may be cut so that its parts can be encoded in any order: the length of the longest known
 * prefix such that the ids of the text, however it continues, are the ids of the prefix followed by the ids
 * of the rest with CLT_TOKEN_CONTINUED. 0: none is known yet. Without regard to the template. */
size_t clt_tokenizer_cut(const clt_tokenizer *t, const char *text, size_t bytes, unsigned flags);

/* Receives the ids of one text in order, some at a time. */
typedef clt_status (*clt_token_fn)(void *ctx, const int32_t *ids, size_t n);

typedef struct clt_token_encoder clt_token_encoder;
/* flags: CLT_TOKEN_*. */
clt_token_encoder *clt_token_encoder_create(const clt_tokenizer *t, unsigned flags, clt_token_fn emit,
                                            void *ctx);
/* The next bytes of the text, cut anywhere. The emitted ids are those of the whole text: bytes whose ids
 * depend on what follows are held back. CLT_BAD_DATA, CLT_NO_MEMORY, or what `emit` returns. */
clt_status clt_token_encoder_add(clt_token_encoder *e, const char *text, size_t bytes);
/* The text is complete; the encoder is ready for the next one. */
clt_status clt_token_encoder_end(clt_token_encoder *e);
void clt_token_encoder_destroy(clt_token_encoder *e); /* NULL is allowed */

/* --- ids in pieces --- */

/* Turns ids into text one by one, always whole UTF-8 characters: the bytes of an unfinished one are held
 * back, and what is not UTF-8 becomes U+FFFD, one for each part of a character. The text is that of
 * clt_tokenizer_decode. A run of the byte tokens of a SentencePiece vocabulary is held back until it ends,
 * because one invalid byte makes U+FFFD of every byte of the run; one of more than CLT_TOKEN_RUN bytes is
 * passed on in parts. */
enum { CLT_TOKEN_RUN = 1024 };
typedef struct {
    const clt_tokenizer *t;
    bool skip_special;
    size_t strip; /* leading spaces that are still to be removed */
    char held[CLT_TOKEN_RUN];
    size_t n_held;
} clt_token_decoder;

clt_token_decoder clt_token_decoder_begin(const clt_tokenizer *t, bool skip_special);
/* Appends the text that the id completes, which may be empty. CLT_BAD_DATA: the id is outside the vocabulary.
 */
clt_status clt_token_decoder_add(clt_token_decoder *d, int32_t id, clt_str *out);
/* Appends the text of what is held back, as clt_token_decoder_end would now; ids may follow. */
void clt_token_decoder_peek(const clt_token_decoder *d, clt_str *out);
/* Appends the text of what is held back: U+FFFD if a character is unfinished. */
void clt_token_decoder_end(clt_token_decoder *d, clt_str *out);

#endif
