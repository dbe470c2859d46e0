/* clt_bpe: byte-pair encoding of one piece of text. The pair of neighbours with the lowest rank is merged,
 * the leftmost first, until no pair can be merged. Two alphabets: bytes (a byte-level model, whose vocabulary
 * writes each byte as one character), or characters with a fallback to bytes (as SentencePiece).
 *
 * A clt_bpe is read by any number of threads; each uses a clt_bpe_work of its own. Internal to this folder.
 */
#ifndef CLT_BPE_H
#define CLT_BPE_H

#include "runtime/data/tokenizer/clt_vocab.h"

typedef struct {
    uint32_t rank; /* UINT32_MAX: the slot is empty */
    int32_t left, right, merged;
} clt_bpe_merge;

typedef struct {
    const clt_vocab *vocab;
    bool byte_level;    /* the alphabet is bytes */
    bool ignore_merges; /* a piece that is a token is that token */
    bool byte_fallback; /* a character without a token becomes the tokens of its bytes, if all exist */
    bool fuse_unk;      /* consecutive unknown characters are one unknown token */
    /* Characters: a merge never joins U+2581 to a different character before it, so that a text can be
     * divided there. */
    bool divides;
    int32_t unk;          /* -1: unknown characters are dropped */
    int32_t byte_id[256]; /* of the bytes, or with characters of "<0x00>" to "<0xFF>"; -1: there is none */
    int32_t ascii_id[128];
    clt_vocab raw;         /* with byte_level and ignore_merges: the bytes of the tokens */
    uint64_t pairs[1024];  /* a bit for each two bytes that are neighbours in a merged token */
    bool divides_at_pairs; /* pairs is valid: a text can be divided between two bytes that are not such a pair
                            */
    clt_bpe_merge *merges;
    size_t mask, n_merges;
} clt_bpe;

/* Room for n merges. CLT_NO_MEMORY. */
clt_status clt_bpe_reserve(clt_bpe *b, size_t n);
/* Adds the next merge. The later one of two for the same pair counts. */
void clt_bpe_add_merge(clt_bpe *b, int32_t left, int32_t right, int32_t merged);
/* Fills byte_id, ascii_id, raw, pairs and the rules of dividing; vocab, the flags and the merges are set.
 * CLT_NO_MEMORY. */
clt_status clt_bpe_prepare(clt_bpe *b);
void clt_bpe_free(clt_bpe *b);

/* The ids of a text; at most `max` are kept. */
typedef struct {
    int32_t *ids;
    size_t n, max;
} clt_id_list;

typedef struct clt_bpe_work clt_bpe_work;
clt_bpe_work *clt_bpe_work_create(void); /* NULL: not enough memory */
void clt_bpe_work_destroy(clt_bpe_work *w);

/* Appends the ids of a piece of UTF-8. Takes time proportional to its length (times its logarithm where a
 * long piece cannot be divided). CLT_NO_MEMORY; CLT_BAD_DATA: 2^31 bytes or more. */
clt_status clt_bpe_encode(const clt_bpe *b, clt_bpe_work *w, const char *piece, size_t bytes,
                          clt_id_list *out);

/* --- the characters of byte-level vocabularies --- */

/* The character that stands for a byte: itself where it is visible in Latin-1, otherwise U+0100 and up.
 * Written to `out` in UTF-8; returns its bytes. Source: bytes_to_unicode in GPT-2's encoder.py. */
size_t clt_byte_char(unsigned char byte, char out[2]);
/* The bytes of a text of such characters, at most as long as the text; *n is how many. false: the text has
 * another character. */
bool clt_byte_chars_decode(const char *text, size_t bytes, char *out, size_t *n);

#endif
