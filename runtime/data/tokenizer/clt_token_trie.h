/* clt_token_trie: finds the texts of added tokens in a text: the leftmost match, the longest of those that
 * begin there, and then on behind it. Internal to this folder. */
#ifndef CLT_TOKEN_TRIE_H
#define CLT_TOKEN_TRIE_H

#include "runtime/base/clt_base.h"

/* Texts have at most so many bytes, which bounds the time of a search. */
enum { CLT_TOKEN_TRIE_BYTES = 1024 };

typedef struct {
    uint32_t child, sibling; /* index of a node; 0: none */
    int32_t value;           /* -1: no text ends here */
    unsigned char byte;
} clt_trie_node;

typedef struct {
    clt_trie_node *nodes; /* the first is the root */
    size_t n, cap;
    uint32_t first[256]; /* the root's children */
} clt_token_trie;

/* Adds a text of 1 to CLT_TOKEN_TRIE_BYTES bytes; the first value of a text counts. CLT_NO_MEMORY. */
clt_status clt_token_trie_add(clt_token_trie *t, const char *text, size_t bytes, int32_t value);
void clt_token_trie_free(clt_token_trie *t);
/* The value of the first match at or after `from`, which is text[*start] to text[*end - 1]; -1: none. */
int32_t clt_token_trie_find(const clt_token_trie *t, const char *text, size_t bytes, size_t from,
                            size_t *start, size_t *end);

#endif
