/* clt_vocab: the texts of a vocabulary by id, and the ids by text. Internal to this folder. */
#ifndef CLT_VOCAB_H
#define CLT_VOCAB_H

#include "runtime/base/clt_base.h"

typedef struct {
    uint32_t at, bytes; /* in the arena; at is UINT32_MAX for an unused id */
} clt_vocab_text;

typedef struct {
    clt_str arena; /* the texts, each with a terminating 0 */
    clt_vocab_text *texts;
    size_t n;        /* ids are 0 to n - 1 */
    uint32_t *slots; /* hash table of id + 1; 0: empty */
    size_t mask;
} clt_vocab;

/* An empty vocabulary of `n` ids whose texts have together at most `bytes` bytes. CLT_NO_MEMORY. */
clt_status clt_vocab_create(clt_vocab *v, size_t n, size_t bytes);
void clt_vocab_free(clt_vocab *v);
/* Adds a text; id < n. false: the id has a text, or the text has an id. */
bool clt_vocab_add(clt_vocab *v, int32_t id, const char *text, size_t bytes);
/* -1: there is no such text. */
int32_t clt_vocab_find(const clt_vocab *v, const char *text, size_t bytes);
/* NULL: the id is unused. Borrowed, with a terminating 0. */
const char *clt_vocab_get(const clt_vocab *v, int32_t id, size_t *bytes);

#endif
