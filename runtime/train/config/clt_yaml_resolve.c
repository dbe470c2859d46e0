/* Dotted overrides and ${...} references. */
#include <string.h>

#include "runtime/train/config/clt_yaml_tree.h"

static bool is_empty_scalar(const clt_yaml_node *n) {
    return n->kind == CLT_YAML_SCALAR && !n->quoted &&
           (!*n->text || !strcmp(n->text, "null") || !strcmp(n->text, "~"));
}

/* Puts `from` (taken over) in place of slot; maps are merged key by key, later ones win. */
static void merge_into(clt_yaml *y, clt_yaml_node **slot, clt_yaml_node *from) {
    clt_yaml_node *to = *slot;
    if (to->kind != CLT_YAML_MAP || from->kind != CLT_YAML_MAP) {
        clt_yaml_node_free(to);
        *slot = from;
        return;
    }
    for (size_t i = 0; i < from->n; i++) {
        long at = clt_yaml_node_index(to, from->keys[i], strlen(from->keys[i]));
        if (at >= 0)
            merge_into(y, &to->child[at], from->child[i]);
        else
            clt_yaml_node_add(y, to, from->keys[i], from->child[i]);
        from->child[i] = NULL;
    }
    clt_yaml_node_free(from);
}

/* Makes every node of an override say that it came from the command line. */
static void set_source(clt_yaml_node *n, const char *source) {
    n->source = source;
    n->line = n->column = n->key_line = n->key_column = 0;
    for (size_t i = 0; i < n->n; i++) set_source(n->child[i], source);
}

static clt_status parse_value(clt_yaml *y, const char *text, const char *source, clt_yaml_node **out) {
    clt_yaml *v;
    CLT_TRY(clt_yaml_parse(text, strlen(text), source, &v));
    clt_yaml_node *n = v->root;
    if (n->kind == CLT_YAML_MAP && n->n == 0 && !strchr(text, '{')) { /* nothing after '=' */
        clt_yaml_node_free(n);
        n = clt_yaml_node_new(v, CLT_YAML_SCALAR, source, 0, 0);
        n->text = clt_strdup("");
    }
    v->root = NULL;
    y->nodes += v->nodes;
    y->bytes += v->bytes;
    set_source(n, source);
    clt_yaml_free(v);
    *out = n;
    return clt_yaml_within(y, n);
}

/* The slot of one more path component below `n`, made if it is missing. */
static clt_status descend(clt_yaml *y, clt_yaml_node *n, const char *name, size_t len, const char *source,
                          clt_yaml_node ***slot) {
    long i = clt_yaml_node_index(n, name, len);
    if (i < 0 && n->kind == CLT_YAML_MAP) {
        clt_yaml_node *fresh = clt_yaml_node_new(y, CLT_YAML_SCALAR, source, 0, 0);
        fresh->text = clt_strdup("");
        char *key = clt_strndup(name, len);
        clt_yaml_node_add(y, n, key, fresh);
        clt_free(key);
        i = (long)n->n - 1;
    }
    if (i < 0)
        return clt_error(CLT_BAD_CONFIG, "%s: the %s has no element '%.*s'", source,
                         n->kind == CLT_YAML_SEQ ? "list" : "value", (int)len, name);
    *slot = &n->child[i];
    return CLT_OK;
}

/* `path` is `bytes` long. */
static clt_status set_value(clt_yaml *y, const char *path, size_t bytes, const char *text,
                            const char *source) {
    if (y->root->kind != CLT_YAML_MAP) return clt_yaml_node_fail(y->root, "a configuration is a map of keys");
    clt_yaml_node **slot = &y->root;
    int depth = 0;
    for (const char *p = path, *end = path + bytes; p < end;) {
        size_t len = CLT_MIN(strcspn(p, "."), (size_t)(end - p));
        if (len == 0 || len > CLT_YAML_MAX_KEY || ++depth > CLT_YAML_MAX_DEPTH)
            return clt_error(CLT_BAD_CONFIG, "%s: the key is not of the form key.sub", source);
        if (is_empty_scalar(*slot)) {
            clt_yaml_node_free(*slot);
            *slot = clt_yaml_node_new(y, CLT_YAML_MAP, source, 0, 0);
        }
        CLT_TRY(descend(y, *slot, p, len, source, &slot));
        p += len;
        if (p < end && ++p == end) return clt_error(CLT_BAD_CONFIG, "%s: the key ends in a dot", source);
    }
    clt_yaml_node *value = NULL;
    clt_status st = parse_value(y, text, source, &value);
    if (st == CLT_OK)
        merge_into(y, slot, value);
    else
        clt_yaml_node_free(value);
    return st;
}

clt_status clt_yaml_override(clt_yaml *y, const char *assignment) {
    const char *eq = strchr(assignment, '=');
    if (!eq || eq == assignment)
        return clt_error(CLT_USAGE, "'%s' is not an override: write key.sub=value", assignment);
    clt_strv_add_owned(&y->sources, clt_format("command line (%s)", assignment));
    return set_value(y, assignment, (size_t)(eq - assignment), eq + 1, y->sources.v[y->sources.n - 1]);
}

clt_status clt_yaml_set(clt_yaml *y, const char *path, const char *value, const char *source) {
    clt_strv_add(&y->sources, source);
    return set_value(y, path, strlen(path), value, y->sources.v[y->sources.n - 1]);
}

/* --- ${...} --- */

/* `depth` bounds references to references, `level` is the nesting level of n in the document. */
static clt_status resolve(clt_yaml *y, clt_yaml_node *n, int depth, int level);

/* The value that a path (already free of ${}) refers to, itself resolved. */
static clt_status refer(clt_yaml *y, const clt_yaml_node *at, const char *path, int depth,
                        clt_yaml_node **out) {
    if (strchr(path, ':'))
        return clt_yaml_node_fail(at,
                                  "${%s} is refused: resolvers such as oc.env are not supported, since a run "
                                  "must not depend on the "
                                  "machine that starts it; use a key=value override",
                                  path);
    if (!*path || *path == '.')
        return clt_yaml_node_fail(at, "${%s} is refused: write the whole path from the top", path);
    clt_yaml_node *n = y->root;
    int level = 0;
    for (const char *p = path;; p++) { /* a reference may pass through another reference */
        size_t len = strcspn(p, ".");
        long i = clt_yaml_node_index(n, p, len);
        if (i < 0) return clt_yaml_node_fail(at, "${%s} refers to a key that is missing", path);
        n = n->child[i];
        level++;
        p += len;
        if (!*p) break;
        if (n->kind == CLT_YAML_SCALAR) CLT_TRY(resolve(y, n, depth + 1, level));
    }
    CLT_TRY(resolve(y, n, depth + 1, level));
    n->used = true;
    *out = n;
    return CLT_OK;
}

/* Expands text from *p up to an unescaped `stop` (0: the end) into `out`. `*p` ends at the stop. `whole` gets
 * the node when the text is one single reference. */
static clt_status expand(clt_yaml *y, const clt_yaml_node *at, const char **p, char stop, int depth,
                         clt_str *out, clt_yaml_node **whole) {
    if (depth > CLT_YAML_MAX_DEPTH) return clt_yaml_node_fail(at, "references are nested too deep");
    const char *begin = *p;
    clt_str_add(out, "");
    while (**p && **p != stop) {
        if ((*p)[0] == '\\' && (*p)[1] == '$' && (*p)[2] == '{') {
            clt_str_add(out, "${");
            *p += 3;
            continue;
        }
        if ((*p)[0] != '$' || (*p)[1] != '{') {
            clt_str_addn(out, (*p)++, 1);
            continue;
        }
        bool first = *p == begin;
        *p += 2;
        clt_str path = {0};
        clt_yaml_node *target = NULL;
        clt_status st = expand(y, at, p, '}', depth + 1, &path, NULL);
        if (st == CLT_OK && **p != '}') st = clt_yaml_node_fail(at, "'${' has no closing '}'");
        if (st == CLT_OK) st = refer(y, at, path.s, depth, &target);
        if (st == CLT_OK && **p == '}') ++*p;
        if (st == CLT_OK && whole && first && !**p) {
            *whole = target;
        } else if (st == CLT_OK && target->kind != CLT_YAML_SCALAR) {
            st = clt_yaml_node_fail(at, "${%s} is a map or a list and cannot be part of a text", path.s);
        } else if (st == CLT_OK) {
            clt_str_add(out, target->text);
            if (out->len > CLT_YAML_MAX_BYTES)
                st = clt_yaml_node_fail(at, "its references make a text above 1 MiB");
        }
        clt_str_free(&path);
        CLT_TRY(st);
    }
    return CLT_OK;
}

/* Puts `copy` (taken over) in place of the scalar n, at the place of n and of its key. */
static void replace(clt_yaml_node *n, clt_yaml_node *copy) {
    copy->line = n->line;
    copy->column = n->column;
    copy->key_line = n->key_line;
    copy->key_column = n->key_column;
    copy->used = n->used;
    clt_free(n->text);
    *n = *copy;
    clt_free(copy);
}

static clt_status resolve_scalar(clt_yaml *y, clt_yaml_node *n, int depth, int level) {
    clt_str text = {0};
    clt_yaml_node *whole = NULL, *copy = NULL;
    const char *p = n->text;
    clt_status st = expand(y, n, &p, 0, depth, &text, &whole);
    if (st == CLT_OK && whole) {
        st = clt_yaml_copy(y, whole, level, n, n, &copy);
        if (st == CLT_OK) replace(n, copy);
    } else if (st == CLT_OK) {
        clt_yaml_node_set_text(y, n, text.s);
        n->quoted = true;
        st = clt_yaml_within(y, n);
    }
    clt_str_free(&text);
    return st;
}

static clt_status resolve(clt_yaml *y, clt_yaml_node *n, int depth, int level) {
    if (n->state == CLT_YAML_DONE) return CLT_OK;
    if (n->state == CLT_YAML_BUSY) return clt_yaml_node_fail(n, "this ${} reference runs in a circle");
    if (depth > 4 * CLT_YAML_MAX_DEPTH) return clt_yaml_node_fail(n, "references are nested too deep");
    n->state = CLT_YAML_BUSY;
    clt_status st = CLT_OK;
    if (n->kind == CLT_YAML_SCALAR && strstr(n->text, "${")) st = resolve_scalar(y, n, depth, level);
    for (size_t i = 0; i < n->n && st == CLT_OK; i++) st = resolve(y, n->child[i], depth + 1, level + 1);
    n->state = CLT_YAML_DONE;
    return st;
}

clt_status clt_yaml_interpolate(clt_yaml *y) {
    return resolve(y, y->root, 0, 0);
}
