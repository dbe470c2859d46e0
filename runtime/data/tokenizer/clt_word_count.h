/* clt_word_count: counts texts. A growing hash table from a text to how often it was added, for the pieces of
 * a training corpus. Internal to this folder. */
#ifndef CLT_WORD_COUNT_H
#define CLT_WORD_COUNT_H

#include "runtime/base/clt_base.h"

typedef struct {
    size_t at; /* in the arena */
    uint32_t bytes;
    int64_t count;
} clt_word;

/* Start from {0}. */
typedef struct {
    char *arena;
    size_t used, room; /* of the arena, in bytes */
    clt_word *words;   /* in the order in which they were first added */
    size_t n, cap;
    uint32_t *slots; /* index + 1; 0: empty */
    size_t mask;
} clt_word_count;

/* Adds `count` to the word, at most 4 GiB long. CLT_NO_MEMORY: the table is as before. */
clt_status clt_word_count_add(clt_word_count *c, const char *text, size_t bytes, int64_t count);
/* The word's index; -1: it was never added. */
int64_t clt_word_count_find(const clt_word_count *c, const char *text, size_t bytes);
/* Adds all words of `from`. */
clt_status clt_word_count_merge(clt_word_count *c, const clt_word_count *from);
void clt_word_count_free(clt_word_count *c);

#endif
