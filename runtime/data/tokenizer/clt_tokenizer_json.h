/* clt_tokenizer_json: a tokenizer.json of the package `tokenizers` with a BPE model: what its reader
 * (clt_tokenizer_read.c, clt_tokenizer_names.c) gives to the encoder and decoder (clt_tokenizer_json.c).
 * Internal to this folder. */
#ifndef CLT_TOKENIZER_JSON_H
#define CLT_TOKENIZER_JSON_H

#include <jansson.h>
#include <pthread.h>

#include "runtime/data/tokenizer/clt_bpe.h"
#include "runtime/data/tokenizer/clt_splitter.h"
#include "runtime/data/tokenizer/clt_token_trie.h"
#include "runtime/data/tokenizer/clt_tokenizer_component.h"

enum { CLT_MAX_STEPS = 12 };

/* A part of the normalizer. */
typedef struct {
    enum { CLT_NORMALIZE_NFC, CLT_NORMALIZE_PREPEND, CLT_NORMALIZE_REPLACE } kind;
    char *from, *to; /* PREPEND: to; REPLACE: both */
} clt_normalize_step;

/* A part of the pre-tokenizer, which divides or changes every piece of the part before it. */
typedef struct {
    enum {
        CLT_PRE_SPLIT,
        CLT_PRE_SPACE, /* a space comes before a piece that does not begin with one */
        CLT_PRE_MARKS, /* spaces become `mark`, and one comes first as `prepend` says */
    } kind;
    clt_splitter *splitter;
    char *mark;
    enum { CLT_PREPEND_NEVER, CLT_PREPEND_FIRST, CLT_PREPEND_ALWAYS } prepend;
} clt_pre_step;

typedef struct {
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} clt_added_token;

/* Buffers and caches of one thread. */
typedef struct clt_encode_work clt_encode_work;

typedef struct {
    clt_tokenizer base;
    char *path;       /* of the file, for messages */
    clt_vocab vocab;  /* of the model */
    clt_vocab tokens; /* added tokens */
    clt_bpe bpe;
    clt_added_token *added;
    size_t n_added;
    clt_token_trie in_raw, in_normalized; /* values are indices of `added` */
    clt_normalize_step normalize[CLT_MAX_STEPS];
    clt_pre_step pre[CLT_MAX_STEPS];
    size_t n_normalize, n_pre;
    bool byte_level_alone;   /* the pre-tokenizer is ByteLevel, not a Sequence that has it */
    bool cuts;               /* a text can be divided before a space that follows an ASCII letter or digit */
    bool *special, *is_byte; /* by id; is_byte: the decoder makes a byte of the token */
    bool byte_level_decoder, byte_fallback_decoder; /* what the decoder makes of a token */
    char *decode_from, *decode_to;                  /* what the decoder replaces in a token; NULL: nothing */
    clt_vocab_text *pieces;                         /* by id, in piece_arena */
    clt_str piece_arena;
    pthread_mutex_t lock;
    clt_encode_work *idle; /* work of threads that do not encode now */
} clt_json_tokenizer;

/* Reads the file `path` into *t, which is zeroed apart from `base.ops`, `path` and `lock`. */
clt_status clt_tokenizer_read(clt_json_tokenizer *t);
/* bos, eos, pad, unk and padding side from the files beside tokenizer.json, or from the well-known names of
 * tokens; the template of classes that make their own; and whether ByteLevel puts a space first. */
clt_status clt_tokenizer_read_names(clt_json_tokenizer *t);
/* The template: one special token or none before and after, replaces what there is. */
void clt_tokenizer_set_template(clt_json_tokenizer *t, int64_t before, int64_t after);

/* The text of a gap between added tokens, normalized; *text may remain as it is. `first`: the text's
 * beginning is part of it. */
clt_status clt_tokenizer_normalize(const clt_json_tokenizer *t, bool prepends, const char **text,
                                   size_t *bytes, clt_str buffers[2]);
/* The id of an added token or of one of the vocabulary; -1. */
int64_t clt_tokenizer_json_id(const clt_tokenizer *t, const char *text);

#endif
