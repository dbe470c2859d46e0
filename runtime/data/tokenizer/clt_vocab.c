#include "runtime/data/tokenizer/clt_vocab.h"

#include <string.h>
#include <xxhash.h>

clt_status clt_vocab_create(clt_vocab *v, size_t n, size_t bytes) {
    size_t slots = 16;
    while (slots < 2 * n) slots *= 2;
    *v = (clt_vocab){.n = n, .mask = slots - 1};
    v->texts = clt_try_malloc((n + 1) * sizeof *v->texts);
    v->slots = clt_try_calloc(slots, sizeof *v->slots);
    if (!v->texts || !v->slots || bytes + n >= UINT32_MAX || !clt_str_try_reserve(&v->arena, bytes + n)) {
        clt_vocab_free(v);
        return clt_no_memory("a vocabulary", bytes + n * sizeof *v->texts + slots * sizeof *v->slots);
    }
    for (size_t i = 0; i < n; i++) v->texts[i].at = UINT32_MAX;
    return CLT_OK;
}

void clt_vocab_free(clt_vocab *v) {
    clt_str_free(&v->arena);
    clt_free(v->texts);
    clt_free(v->slots);
    *v = (clt_vocab){0};
}

/* The slot that holds the text, or the empty one where it belongs. */
static uint32_t *slot_of(const clt_vocab *v, const char *text, size_t bytes) {
    for (size_t i = XXH3_64bits(text, bytes) & v->mask;; i = (i + 1) & v->mask) {
        if (v->slots[i] == 0) return &v->slots[i];
        const clt_vocab_text *t = &v->texts[v->slots[i] - 1];
        if (t->bytes == bytes && memcmp(v->arena.s + t->at, text, bytes) == 0) return &v->slots[i];
    }
}

bool clt_vocab_add(clt_vocab *v, int32_t id, const char *text, size_t bytes) {
    uint32_t *slot = slot_of(v, text, bytes);
    if (*slot || v->texts[id].at != UINT32_MAX) return false;
    *slot = (uint32_t)id + 1;
    v->texts[id] = (clt_vocab_text){(uint32_t)v->arena.len, (uint32_t)bytes};
    clt_str_addn(&v->arena, text, bytes);
    clt_str_addn(&v->arena, "", 1);
    return true;
}

int32_t clt_vocab_find(const clt_vocab *v, const char *text, size_t bytes) {
    return v->slots ? (int32_t)*slot_of(v, text, bytes) - 1 : -1;
}

const char *clt_vocab_get(const clt_vocab *v, int32_t id, size_t *bytes) {
    const clt_vocab_text *t = &v->texts[id];
    if (t->at == UINT32_MAX) return NULL;
    *bytes = t->bytes;
    return v->arena.s + t->at;
}
