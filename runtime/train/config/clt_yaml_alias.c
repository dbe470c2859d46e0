/* Aliases and merge keys, written out. Everything that is copied is counted, also what a merge then drops, so
 * that neither memory nor time grow beyond a bound however small the document is. */
#include <string.h>

#include "runtime/train/config/clt_yaml_tree.h"

clt_status clt_yaml_copy(clt_yaml *y, const clt_yaml_node *from, int level, const clt_yaml_node *place,
                         const clt_yaml_node *at, clt_yaml_node **out) {
    if (level > CLT_YAML_MAX_DEPTH)
        return clt_yaml_node_fail(at, "nested more than %d deep with what it refers to", CLT_YAML_MAX_DEPTH);
    const clt_yaml_node *where = place ? place : from;
    clt_yaml_node *n = clt_yaml_node_new(y, from->kind, where->source, where->line, where->column);
    n->quoted = from->quoted;
    n->state = place ? CLT_YAML_DONE : CLT_YAML_RAW;
    if (from->text) clt_yaml_node_set_text(y, n, from->text);
    clt_status st = clt_yaml_within(y, at);
    for (size_t i = 0; i < from->n && st == CLT_OK; i++) {
        clt_yaml_node *child = NULL;
        st = clt_yaml_copy(y, from->child[i], level + 1, place, at, &child);
        if (st != CLT_OK) break;
        child->key_line = place ? 0 : from->child[i]->key_line;
        child->key_column = place ? 0 : from->child[i]->key_column;
        clt_yaml_node_add(y, n, from->keys ? from->keys[i] : NULL, child);
    }
    if (st == CLT_OK && from->merge) st = clt_yaml_copy(y, from->merge, level + 1, place, at, &n->merge);
    if (st == CLT_OK)
        *out = n;
    else
        clt_yaml_node_free(n);
    return st;
}

/* --- anchors --- */

size_t clt_yaml_anchors_add(clt_yaml_anchors *a, const char *name) {
    if (a->n == a->cap) {
        a->cap = CLT_MAX(2 * a->cap, (size_t)8);
        a->v = clt_realloc(a->v, a->cap * sizeof *a->v);
    }
    a->v[a->n].name = clt_strdup(name);
    a->v[a->n].node = NULL;
    return a->n++;
}

clt_status clt_yaml_anchors_expand(clt_yaml *y, const clt_yaml_anchors *a, const char *name, int level,
                                   const clt_yaml_node *at, clt_yaml_node **out) {
    size_t i = a->n;
    while (i > 0 && strcmp(a->v[i - 1].name, name) != 0) i--;
    if (i == 0) return clt_yaml_node_fail(at, "alias '*%.60s' has no anchor '&%.60s' before it", name, name);
    clt_yaml_node *from = a->v[i - 1].node;
    if (!from)
        return clt_yaml_node_fail(
            at, "alias '*%.60s' is part of what it refers to: a value cannot contain itself", name);
    from->used = true;
    return clt_yaml_copy(y, from, level, NULL, at, out);
}

void clt_yaml_anchors_free(clt_yaml_anchors *a) {
    for (size_t i = 0; i < a->n; i++) clt_free(a->v[i].name);
    clt_free(a->v);
    *a = (clt_yaml_anchors){0};
}

/* --- "<<" --- */

/* Moves the keys of `from` that n does not have. */
static clt_status take(clt_yaml *y, clt_yaml_node *n, clt_yaml_node *from) {
    if (from->kind != CLT_YAML_MAP)
        return clt_yaml_node_fail(from, "a merge key (<<) takes a map or a list of maps");
    for (size_t i = 0; i < from->n; i++) {
        if (clt_yaml_node_index(n, from->keys[i], strlen(from->keys[i])) >= 0) continue;
        if (n->n == CLT_YAML_MAX_KEYS)
            return clt_yaml_node_fail(n, "more than 4,096 keys in one map, with those that are merged");
        clt_yaml_node_add(y, n, from->keys[i], from->child[i]);
        from->child[i] = NULL;
    }
    return CLT_OK;
}

clt_status clt_yaml_merge(clt_yaml *y, clt_yaml_node *n) {
    for (size_t i = 0; i < n->n; i++) CLT_TRY(clt_yaml_merge(y, n->child[i]));
    clt_yaml_node *from = n->merge;
    if (!from) return CLT_OK;
    CLT_TRY(clt_yaml_merge(y, from));
    if (from->kind != CLT_YAML_SEQ) CLT_TRY(take(y, n, from));
    for (size_t i = 0; from->kind == CLT_YAML_SEQ && i < from->n; i++) CLT_TRY(take(y, n, from->child[i]));
    clt_yaml_node_free(from);
    n->merge = NULL;
    return CLT_OK;
}
