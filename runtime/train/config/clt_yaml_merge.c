/* Dotted overrides and ${...} references. */
#include <string.h>

#include "runtime/train/config/clt_yaml_tree.h"

static bool is_empty_scalar(const clt_yaml_node *n) {
    return n->kind == CLT_YAML_SCALAR && !n->quoted &&
           (!*n->text || !strcmp(n->text, "null") || !strcmp(n->text, "~"));
}

/* Puts `from` (taken over) in place of slot; maps are merged key by key, later ones win. */
static void merge_into(clt_yaml_node **slot, clt_yaml_node *from) {
    clt_yaml_node *to = *slot;
    if (to->kind != CLT_YAML_MAP || from->kind != CLT_YAML_MAP) {
        clt_yaml_node_free(to);
        *slot = from;
        return;
    }
    for (size_t i = 0; i < from->n; i++) {
        long at = clt_yaml_node_index(to, from->keys[i], strlen(from->keys[i]));
        if (at >= 0)
            merge_into(&to->child[at], from->child[i]);
        else
            clt_yaml_node_add(to, from->keys[i], from->child[i]);
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
    set_source(n, source);
    clt_yaml_free(v);
    *out = n;
    return CLT_OK;
}

/* The slot of one more path component below `n`, made if it is missing. */
static clt_status descend(clt_yaml *y, clt_yaml_node *n, const char *name, size_t len, const char *source,
                          clt_yaml_node ***slot) {
    long i = clt_yaml_node_index(n, name, len);
    if (i < 0 && n->kind == CLT_YAML_MAP) {
        clt_yaml_node *fresh = clt_yaml_node_new(y, CLT_YAML_SCALAR, source, 0, 0);
        fresh->text = clt_strdup("");
        char *key = clt_strndup(name, len);
        clt_yaml_node_add(n, key, fresh);
        clt_free(key);
        i = (long)n->n - 1;
    }
    if (i < 0)
        return clt_error(CLT_BAD_CONFIG, "%s: there is no element '%.*s' in that %s", source, (int)len, name,
                         n->kind == CLT_YAML_SEQ ? "list" : "value");
    *slot = &n->child[i];
    return CLT_OK;
}

clt_status clt_yaml_override(clt_yaml *y, const char *assignment) {
    const char *eq = strchr(assignment, '=');
    if (!eq || eq == assignment)
        return clt_error(CLT_USAGE, "'%s' is no override: write key.sub=value", assignment);
    clt_strv_add_owned(&y->sources, clt_format("command line (%s)", assignment));
    const char *source = y->sources.v[y->sources.n - 1];
    if (y->root->kind != CLT_YAML_MAP) return clt_yaml_node_fail(y->root, "a configuration is a map of keys");
    clt_yaml_node **slot = &y->root;
    int depth = 0;
    for (const char *p = assignment; p < eq;) {
        size_t len = strcspn(p, ".=");
        if (len == 0 || ++depth > CLT_YAML_MAX_DEPTH)
            return clt_error(CLT_BAD_CONFIG, "%s: the key is not of the form key.sub", source);
        if (is_empty_scalar(*slot)) {
            clt_yaml_node_free(*slot);
            *slot = clt_yaml_node_new(y, CLT_YAML_MAP, source, 0, 0);
        }
        CLT_TRY(descend(y, *slot, p, len, source, &slot));
        p += len;
        if (p < eq && *++p == '=') return clt_error(CLT_BAD_CONFIG, "%s: the key ends in a dot", source);
    }
    clt_yaml_node *value;
    CLT_TRY(parse_value(y, eq + 1, source, &value));
    merge_into(slot, value);
    return CLT_OK;
}

/* --- ${...} --- */

static clt_status resolve(clt_yaml *y, clt_yaml_node *n, int depth);

static clt_yaml_node *copy_tree(clt_yaml *y, const clt_yaml_node *from, const clt_yaml_node *place) {
    clt_yaml_node *n = clt_yaml_node_new(y, from->kind, place->source, place->line, place->column);
    n->state = CLT_YAML_DONE;
    n->quoted = from->quoted;
    if (from->text) n->text = clt_strdup(from->text);
    for (size_t i = 0; i < from->n && y->nodes < CLT_YAML_MAX_NODES; i++)
        clt_yaml_node_add(n, from->keys ? from->keys[i] : NULL, copy_tree(y, from->child[i], place));
    return n;
}

/* The value that a path (already free of ${}) refers to, itself resolved. */
static clt_status refer(clt_yaml *y, const clt_yaml_node *at, const char *path, int depth,
                        clt_yaml_node **out) {
    if (strchr(path, ':'))
        return clt_yaml_node_fail(
            at,
            "${%s} is refused: resolvers such as oc.env are not supported, a run must not depend "
            "on the machine it is started on; use a key=value override",
            path);
    if (!*path || *path == '.')
        return clt_yaml_node_fail(at, "${%s} is refused: write the whole path from the top", path);
    clt_yaml_node *n = y->root;
    for (const char *p = path;; p++) { /* a reference may pass through another reference */
        size_t len = strcspn(p, ".");
        long i = clt_yaml_node_index(n, p, len);
        if (i < 0) return clt_yaml_node_fail(at, "${%s} refers to a key that is not there", path);
        n = n->child[i];
        p += len;
        if (!*p) break;
        if (n->kind == CLT_YAML_SCALAR) CLT_TRY(resolve(y, n, depth + 1));
    }
    CLT_TRY(resolve(y, n, depth + 1));
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
            if (out->len > CLT_YAML_MAX_BYTES) st = clt_yaml_node_fail(at, "the references grow above 1 MiB");
        }
        clt_str_free(&path);
        CLT_TRY(st);
    }
    return CLT_OK;
}

static clt_status resolve_scalar(clt_yaml *y, clt_yaml_node *n, int depth) {
    clt_str text = {0};
    clt_yaml_node *whole = NULL;
    const char *p = n->text;
    clt_status st = expand(y, n, &p, 0, depth, &text, &whole);
    if (st == CLT_OK && whole) {
        clt_yaml_node *copy = copy_tree(y, whole, n);
        if (y->nodes >= CLT_YAML_MAX_NODES)
            st = clt_yaml_node_fail(n, "the references grow above all bounds");
        clt_free(n->text);
        int line = n->line, column = n->column;
        *n = *copy;
        n->line = line;
        n->column = column;
        clt_free(copy);
    } else if (st == CLT_OK) {
        clt_free(n->text);
        n->text = clt_strdup(text.s);
        n->quoted = true;
    }
    clt_str_free(&text);
    return st;
}

static clt_status resolve(clt_yaml *y, clt_yaml_node *n, int depth) {
    if (n->state == CLT_YAML_DONE) return CLT_OK;
    if (n->state == CLT_YAML_BUSY) return clt_yaml_node_fail(n, "this ${} reference runs in a circle");
    if (depth > 4 * CLT_YAML_MAX_DEPTH) return clt_yaml_node_fail(n, "references are nested too deep");
    n->state = CLT_YAML_BUSY;
    clt_status st = CLT_OK;
    if (n->kind == CLT_YAML_SCALAR && strstr(n->text, "${")) st = resolve_scalar(y, n, depth);
    for (size_t i = 0; i < n->n && st == CLT_OK; i++) st = resolve(y, n->child[i], depth + 1);
    n->state = CLT_YAML_DONE;
    return st;
}

clt_status clt_yaml_interpolate(clt_yaml *y) {
    return resolve(y, y->root, 0);
}
