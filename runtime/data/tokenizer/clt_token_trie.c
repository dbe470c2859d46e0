#include "runtime/data/tokenizer/clt_token_trie.h"

static clt_status new_node(clt_token_trie *t, unsigned char byte, uint32_t sibling, uint32_t *out) {
    if (t->n == t->cap) {
        const size_t cap = t->cap ? 2 * t->cap : 64;
        clt_trie_node *nodes = cap < UINT32_MAX ? clt_try_realloc(t->nodes, cap * sizeof *nodes) : NULL;
        if (!nodes) return clt_no_memory("the added tokens of a tokenizer", cap * sizeof *nodes);
        t->nodes = nodes;
        t->cap = cap;
        if (t->n == 0) t->nodes[t->n++] = (clt_trie_node){.value = -1}; /* the root */
    }
    *out = (uint32_t)t->n;
    t->nodes[t->n++] = (clt_trie_node){.sibling = sibling, .value = -1, .byte = byte};
    return CLT_OK;
}

static uint32_t child_of(const clt_token_trie *t, uint32_t node, unsigned char byte) {
    uint32_t c = t->nodes[node].child;
    while (c && t->nodes[c].byte != byte) c = t->nodes[c].sibling;
    return c;
}

clt_status clt_token_trie_add(clt_token_trie *t, const char *text, size_t bytes, int32_t value) {
    uint32_t node = 0;
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char byte = (unsigned char)text[i];
        uint32_t next = i == 0 ? t->first[byte] : child_of(t, node, byte);
        if (!next) {
            CLT_TRY(new_node(t, byte, i ? t->nodes[node].child : 0, &next));
            if (i == 0)
                t->first[byte] = next;
            else
                t->nodes[node].child = next;
        }
        node = next;
    }
    if (t->nodes[node].value < 0) t->nodes[node].value = value;
    return CLT_OK;
}

void clt_token_trie_free(clt_token_trie *t) {
    clt_free(t->nodes);
    *t = (clt_token_trie){0};
}

int32_t clt_token_trie_find(const clt_token_trie *t, const char *text, size_t bytes, size_t from,
                            size_t *start, size_t *end) {
    if (t->n == 0) return -1;
    for (size_t at = from; at < bytes; at++) {
        int32_t value = -1;
        uint32_t node = t->first[(unsigned char)text[at]];
        for (size_t i = at + 1; node; i++) {
            if (t->nodes[node].value >= 0) {
                value = t->nodes[node].value;
                *end = i;
            }
            node = i < bytes ? child_of(t, node, (unsigned char)text[i]) : 0;
        }
        if (value < 0) continue;
        *start = at;
        return value;
    }
    return -1;
}
