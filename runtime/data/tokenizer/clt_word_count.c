#include "runtime/data/tokenizer/clt_word_count.h"

#include <string.h>
#include <xxhash.h>

static clt_status no_memory(size_t bytes) {
    return clt_no_memory("the different words of the texts", bytes);
}

/* The slot that holds the word, or the empty one where it belongs. */
static uint32_t *slot_of(const clt_word_count *c, const char *text, size_t bytes) {
    for (size_t i = XXH3_64bits(text, bytes) & c->mask;; i = (i + 1) & c->mask) {
        if (c->slots[i] == 0) return &c->slots[i];
        const clt_word *w = &c->words[c->slots[i] - 1];
        if (w->bytes == bytes && memcmp(c->arena + w->at, text, bytes) == 0) return &c->slots[i];
    }
}

/* Twice as many words, in a table that is at most half full. */
static clt_status grow_words(clt_word_count *c) {
    const size_t cap = c->cap ? 2 * c->cap : 1024;
    if (cap > UINT32_MAX / 2) return no_memory(cap * sizeof *c->words);
    clt_word *words = clt_try_realloc(c->words, cap * sizeof *words);
    if (words) c->words = words;
    uint32_t *slots = words ? clt_try_calloc(2 * cap, sizeof *slots) : NULL;
    if (!slots) return no_memory(cap * (sizeof *words + 2 * sizeof *slots));
    clt_free(c->slots);
    c->slots = slots;
    c->cap = cap;
    c->mask = 2 * cap - 1;
    for (size_t i = 0; i < c->n; i++)
        *slot_of(c, c->arena + c->words[i].at, c->words[i].bytes) = (uint32_t)i + 1;
    return CLT_OK;
}

static clt_status grow_arena(clt_word_count *c, size_t bytes) {
    const size_t room = CLT_MAX(2 * c->room, c->used + bytes + (1 << 16));
    char *arena = clt_try_realloc(c->arena, room);
    if (!arena) return no_memory(room);
    c->arena = arena;
    c->room = room;
    return CLT_OK;
}

clt_status clt_word_count_add(clt_word_count *c, const char *text, size_t bytes, int64_t count) {
    if (c->n == c->cap) CLT_TRY(grow_words(c));
    uint32_t *slot = slot_of(c, text, bytes);
    if (*slot == 0) {
        if (c->used + bytes > c->room) CLT_TRY(grow_arena(c, bytes));
        memcpy(c->arena + c->used, text, bytes);
        c->words[c->n] = (clt_word){c->used, (uint32_t)bytes, 0};
        c->used += bytes;
        *slot = (uint32_t)++c->n;
    }
    c->words[*slot - 1].count += count;
    return CLT_OK;
}

int64_t clt_word_count_find(const clt_word_count *c, const char *text, size_t bytes) {
    return c->slots ? (int64_t)*slot_of(c, text, bytes) - 1 : -1;
}

clt_status clt_word_count_merge(clt_word_count *c, const clt_word_count *from) {
    for (size_t i = 0; i < from->n; i++) {
        const clt_word *w = &from->words[i];
        CLT_TRY(clt_word_count_add(c, from->arena + w->at, w->bytes, w->count));
    }
    return CLT_OK;
}

void clt_word_count_free(clt_word_count *c) {
    clt_free(c->arena);
    clt_free(c->words);
    clt_free(c->slots);
    *c = (clt_word_count){0};
}
