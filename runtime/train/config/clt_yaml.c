#include <string.h>
#include <yaml.h>

#include "runtime/base/clt_io.h"
#include "runtime/train/config/clt_yaml_tree.h"

clt_yaml_node *clt_yaml_node_new(clt_yaml *y, clt_yaml_kind kind, const char *source, int line, int column) {
    clt_yaml_node *n = clt_calloc(1, sizeof *n);
    *n = (clt_yaml_node){.kind = kind, .source = source, .line = line, .column = column};
    y->nodes++;
    return n;
}

void clt_yaml_node_free(clt_yaml_node *n) {
    if (!n) return;
    for (size_t i = 0; i < n->n; i++) {
        clt_yaml_node_free(n->child[i]);
        if (n->keys) clt_free(n->keys[i]);
    }
    clt_yaml_node_free(n->merge);
    clt_free(n->keys);
    clt_free(n->child);
    clt_free(n->text);
    clt_free(n);
}

void clt_yaml_node_set_text(clt_yaml *y, clt_yaml_node *n, const char *text) {
    clt_free(n->text);
    n->text = clt_strdup(text);
    y->bytes += strlen(text);
}

void clt_yaml_node_add(clt_yaml *y, clt_yaml_node *parent, const char *key, clt_yaml_node *child) {
    if (parent->n == parent->cap) {
        parent->cap = CLT_MAX(parent->cap * 2, (size_t)8);
        parent->child = clt_realloc(parent->child, parent->cap * sizeof *parent->child);
        if (key) parent->keys = clt_realloc(parent->keys, parent->cap * sizeof *parent->keys);
    }
    if (key) {
        parent->keys[parent->n] = clt_strdup(key);
        y->bytes += strlen(key);
    }
    parent->child[parent->n++] = child;
}

clt_status clt_yaml_within(const clt_yaml *y, const clt_yaml_node *at) {
    if (y->nodes <= CLT_YAML_MAX_NODES && y->bytes <= CLT_YAML_MAX_TEXT) return CLT_OK;
    char *place = clt_yaml_node_place(at);
    clt_status st = clt_error(CLT_BAD_DATA,
                              "%s: with its aliases and references written out, the document holds more than "
                              "65,536 values or 4 MiB of text",
                              place);
    clt_free(place);
    return st;
}

long clt_yaml_node_index(const clt_yaml_node *n, const char *name, size_t len) {
    if (n->kind == CLT_YAML_SEQ) {
        char number[24];
        int64_t i;
        if (len >= sizeof number) return -1;
        memcpy(number, name, len);
        number[len] = 0;
        return clt_parse_i64(number, &i) && i >= 0 && (size_t)i < n->n ? (long)i : -1;
    }
    for (size_t i = 0; n->kind == CLT_YAML_MAP && i < n->n; i++)
        if (strlen(n->keys[i]) == len && memcmp(n->keys[i], name, len) == 0) return (long)i;
    return -1;
}

clt_yaml_node *clt_yaml_node_find(const clt_yaml *y, const char *path, clt_yaml_node **nearest) {
    clt_yaml_node *n = y->root;
    while (n) {
        if (nearest) *nearest = n;
        if (!*path) return n;
        size_t len = strcspn(path, ".");
        long i = clt_yaml_node_index(n, path, len);
        if (i < 0) return NULL;
        n = n->child[i];
        path += len + (path[len] == '.');
    }
    return NULL;
}

char *clt_yaml_node_place(const clt_yaml_node *n) {
    return n->line ? clt_format("%s:%d:%d", n->source, n->line, n->column) : clt_strdup(n->source);
}

clt_status clt_yaml_node_fail(const clt_yaml_node *n, const char *fmt, ...) {
    char *place = clt_yaml_node_place(n);
    va_list ap;
    va_start(ap, fmt);
    char *text = clt_vformat(fmt, ap);
    va_end(ap);
    clt_error(CLT_BAD_CONFIG, "%s: %s", place, text);
    clt_free(text);
    clt_free(place);
    return CLT_BAD_CONFIG;
}

char *clt_yaml_place(const clt_yaml *y, const char *path) {
    clt_yaml_node *n = y->root;
    clt_yaml_node_find(y, path, &n);
    return clt_yaml_node_place(n);
}

char *clt_yaml_key_place(const clt_yaml *y, const char *path) {
    const clt_yaml_node *n = clt_yaml_node_find(y, path, NULL);
    return n && n->key_line ? clt_format("%s:%d:%d", n->source, n->key_line, n->key_column)
                            : clt_yaml_place(y, path);
}

bool clt_yaml_has(const clt_yaml *y, const char *path) {
    return clt_yaml_node_find(y, path, NULL) != NULL;
}

static bool is_used(const clt_yaml_node *n) {
    bool used = n->used;
    for (size_t i = 0; i < n->n && !used; i++) used = is_used(n->child[i]);
    return used;
}

bool clt_yaml_is_used(const clt_yaml *y, const char *path) {
    const clt_yaml_node *n = clt_yaml_node_find(y, path, NULL);
    return n && is_used(n);
}

/* --- from events to the tree --- */

typedef struct {
    yaml_parser_t parser;
    clt_yaml *doc;
    clt_yaml_anchors anchors;
    const char *source;
} reader;

static clt_status fail_at(const reader *r, yaml_mark_t m, const char *what) {
    return clt_error(CLT_BAD_CONFIG, "%s:%zu:%zu: %s", r->source, m.line + 1, m.column + 1, what);
}

static clt_status next_event(reader *r, yaml_event_t *e) {
    if (yaml_parser_parse(&r->parser, e)) return CLT_OK;
    if (r->parser.error == YAML_MEMORY_ERROR)
        return clt_error(CLT_NO_MEMORY, "%s: out of host memory while reading", r->source);
    yaml_mark_t m = r->parser.problem_mark;
    char *text = clt_format("not valid YAML: %s", r->parser.problem ? r->parser.problem : "damaged text");
    clt_status st = fail_at(r, m, text);
    clt_free(text);
    return st;
}

static clt_yaml_node *new_node(reader *r, clt_yaml_kind kind, const yaml_event_t *e) {
    return clt_yaml_node_new(r->doc, kind, r->source, (int)e->start_mark.line + 1,
                             (int)e->start_mark.column + 1);
}

/* The anchor of a value's first event, NULL: none. */
static const char *anchor_of(const yaml_event_t *e) {
    const yaml_char_t *anchor = e->type == YAML_SCALAR_EVENT          ? e->data.scalar.anchor
                                : e->type == YAML_MAPPING_START_EVENT ? e->data.mapping_start.anchor
                                                                      : e->data.sequence_start.anchor;
    return (const char *)anchor;
}

static bool has_tag(const yaml_event_t *e) {
    return (e->type == YAML_SCALAR_EVENT          ? e->data.scalar.tag
            : e->type == YAML_MAPPING_START_EVENT ? e->data.mapping_start.tag
                                                  : e->data.sequence_start.tag) != NULL;
}

static clt_status read_scalar(reader *r, const yaml_event_t *e, clt_yaml_node *n) {
    if (memchr(e->data.scalar.value, 0, e->data.scalar.length))
        return fail_at(r, e->start_mark, "a value holds a zero byte");
    clt_yaml_node_set_text(r->doc, n, (const char *)e->data.scalar.value);
    n->quoted = e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    return CLT_OK;
}

static clt_status read_node(reader *r, const yaml_event_t *e, int level, clt_yaml_node **out);

static clt_status read_child(reader *r, int level, clt_yaml_node **out) {
    yaml_event_t e;
    CLT_TRY(next_event(r, &e));
    clt_status st = read_node(r, &e, level, out);
    yaml_event_delete(&e);
    return st;
}

static clt_status fail_twice(const reader *r, yaml_mark_t m, const char *key) {
    char *text = clt_format("key '%s' is given twice", key);
    clt_status st = fail_at(r, m, text);
    clt_free(text);
    return st;
}

static bool is_merge_key(const yaml_event_t *e) {
    return e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && !strcmp((char *)e->data.scalar.value, "<<");
}

static clt_status check_key(const reader *r, const clt_yaml_node *map, const yaml_event_t *e) {
    if (e->type != YAML_SCALAR_EVENT) return fail_at(r, e->start_mark, "a key must be plain text");
    if (anchor_of(e) || has_tag(e))
        return fail_at(r, e->start_mark, "a key can have neither an anchor (&) nor a tag (!)");
    const char *key = (const char *)e->data.scalar.value;
    size_t n = e->data.scalar.length;
    if (n == 0 || memchr(key, 0, n)) return fail_at(r, e->start_mark, "a key must be text that is not empty");
    if (n > CLT_YAML_MAX_KEY) return fail_at(r, e->start_mark, "a key has more than 128 bytes");
    if (map->n == CLT_YAML_MAX_KEYS) return fail_at(r, e->start_mark, "more than 4,096 keys in one map");
    bool twice = is_merge_key(e) ? map->merge != NULL : clt_yaml_node_index(map, key, n) >= 0;
    return twice ? fail_twice(r, e->start_mark, key) : CLT_OK;
}

static clt_status read_entry(reader *r, clt_yaml_node *map, const yaml_event_t *e, int level) {
    clt_yaml_node *child = NULL;
    CLT_TRY(check_key(r, map, e));
    CLT_TRY(read_child(r, level, &child));
    if (is_merge_key(e)) {
        map->merge = child;
        return CLT_OK;
    }
    child->key_line = (int)e->start_mark.line + 1;
    child->key_column = (int)e->start_mark.column + 1;
    clt_yaml_node_add(r->doc, map, (const char *)e->data.scalar.value, child);
    return CLT_OK;
}

static clt_status read_map(reader *r, clt_yaml_node *map, int level) {
    for (;;) {
        yaml_event_t e;
        CLT_TRY(next_event(r, &e));
        bool end = e.type == YAML_MAPPING_END_EVENT;
        clt_status st = end ? CLT_OK : read_entry(r, map, &e, level);
        yaml_event_delete(&e);
        if (st != CLT_OK || end) return st;
    }
}

static clt_status read_seq(reader *r, clt_yaml_node *seq, int level) {
    for (;;) {
        yaml_event_t e;
        CLT_TRY(next_event(r, &e));
        clt_yaml_node *child = NULL;
        bool end = e.type == YAML_SEQUENCE_END_EVENT;
        clt_status st = end ? CLT_OK : read_node(r, &e, level, &child);
        yaml_event_delete(&e);
        if (st != CLT_OK || end) return st;
        clt_yaml_node_add(r->doc, seq, NULL, child);
    }
}

static clt_status read_alias(reader *r, const yaml_event_t *e, int level, clt_yaml_node **out) {
    clt_yaml_node at = {
        .source = r->source, .line = (int)e->start_mark.line + 1, .column = (int)e->start_mark.column + 1};
    return clt_yaml_anchors_expand(r->doc, &r->anchors, (const char *)e->data.alias.anchor, level, &at, out);
}

static clt_status read_content(reader *r, const yaml_event_t *e, int level, clt_yaml_node *n) {
    if (n->kind == CLT_YAML_SCALAR) CLT_TRY(read_scalar(r, e, n));
    CLT_TRY(clt_yaml_within(r->doc, n));
    if (n->kind == CLT_YAML_MAP) return read_map(r, n, level + 1);
    return n->kind == CLT_YAML_SEQ ? read_seq(r, n, level + 1) : CLT_OK;
}

/* The value that begins with this event, at that nesting level. */
static clt_status read_node(reader *r, const yaml_event_t *e, int level, clt_yaml_node **out) {
    if (level > CLT_YAML_MAX_DEPTH) return fail_at(r, e->start_mark, "nested more than 32 deep");
    if (e->type == YAML_ALIAS_EVENT) return read_alias(r, e, level, out);
    if (has_tag(e)) return fail_at(r, e->start_mark, "tags (!) are refused");
    const char *name = anchor_of(e);
    size_t anchor = 0;
    if (name && r->anchors.n == CLT_YAML_MAX_ANCHORS)
        return fail_at(r, e->start_mark, "more than 1,024 anchors (&) in one document");
    if (name) anchor = clt_yaml_anchors_add(&r->anchors, name);
    clt_yaml_node *n = new_node(r,
                                e->type == YAML_SCALAR_EVENT          ? CLT_YAML_SCALAR
                                : e->type == YAML_MAPPING_START_EVENT ? CLT_YAML_MAP
                                                                      : CLT_YAML_SEQ,
                                e);
    clt_status st = read_content(r, e, level, n);
    if (st != CLT_OK) {
        clt_yaml_node_free(n);
        return st;
    }
    if (name) r->anchors.v[anchor].node = n;
    *out = n;
    return CLT_OK;
}

/* The one document of the stream; an empty one is an empty scalar. */
static clt_status read_stream(reader *r) {
    bool have = false;
    for (;;) {
        yaml_event_t e;
        CLT_TRY(next_event(r, &e));
        yaml_event_type_t type = e.type;
        clt_status st = CLT_OK;
        if (type == YAML_DOCUMENT_START_EVENT) {
            if (have) st = fail_at(r, e.start_mark, "a second document (---) is refused");
            have = true;
        } else if (type != YAML_STREAM_START_EVENT && type != YAML_STREAM_END_EVENT &&
                   type != YAML_DOCUMENT_END_EVENT) {
            st = read_node(r, &e, 0, &r->doc->root);
        }
        yaml_event_delete(&e);
        if (st != CLT_OK || type == YAML_STREAM_END_EVENT) return st;
    }
}

clt_status clt_yaml_parse(const char *text, size_t bytes, const char *what, clt_yaml **out) {
    if (bytes > CLT_YAML_MAX_BYTES)
        return clt_error(CLT_BAD_CONFIG, "%s: larger than 1 MiB, which is too large for a configuration",
                         what);
    reader r = {.doc = clt_calloc(1, sizeof(clt_yaml))};
    clt_strv_add(&r.doc->sources, what);
    r.source = r.doc->sources.v[0];
    if (!yaml_parser_initialize(&r.parser)) {
        clt_yaml_free(r.doc);
        return clt_error(CLT_NO_MEMORY, "%s: out of host memory while reading", what);
    }
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, bytes);
    clt_status st = read_stream(&r);
    clt_yaml_anchors_free(&r.anchors);
    yaml_parser_delete(&r.parser);
    if (st == CLT_OK && r.doc->root) st = clt_yaml_merge(r.doc, r.doc->root);
    if (st == CLT_OK && !r.doc->root) r.doc->root = clt_yaml_node_new(r.doc, CLT_YAML_MAP, r.source, 1, 1);
    if (st == CLT_OK)
        *out = r.doc;
    else
        clt_yaml_free(r.doc);
    return st;
}

clt_status clt_yaml_parse_map(const char *text, size_t bytes, const char *what, clt_yaml **out) {
    clt_yaml *y;
    CLT_TRY(clt_yaml_parse(text, bytes, what, &y));
    clt_status st = y->root->kind == CLT_YAML_MAP
                        ? CLT_OK
                        : clt_yaml_node_fail(y->root, "a configuration is a map of keys");
    if (st == CLT_OK)
        *out = y;
    else
        clt_yaml_free(y);
    return st;
}

clt_status clt_yaml_load(const char *path, clt_yaml **out) {
    char *text;
    size_t n;
    if (clt_io_is_dir(path))
        return clt_error(CLT_BAD_CONFIG,
                         "%s is a folder: give a YAML file (load_path names a folder of weights)", path);
    if (!clt_io_is_file(path))
        return clt_error(CLT_BAD_CONFIG, "%s: no such file (the configuration is a YAML file)", path);
    clt_status st = clt_io_read_all(path, CLT_YAML_MAX_BYTES, &text, &n);
    if (st != CLT_OK) return st == CLT_BAD_DATA ? CLT_BAD_CONFIG : st;
    st = clt_yaml_parse_map(text, n, path, out);
    clt_free(text);
    return st;
}

void clt_yaml_free(clt_yaml *y) {
    if (!y) return;
    clt_yaml_node_free(y->root);
    clt_strv_free(&y->sources);
    clt_free(y);
}
