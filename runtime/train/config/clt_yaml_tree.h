/* The node tree inside clt_yaml, shared by its files: clt_yaml.c parses, clt_yaml_alias.c writes aliases and
 * merge keys out, clt_yaml_resolve.c overrides and resolves ${...}, clt_yaml_json.c gives values their types
 * and prints them. Not for other folders but runtime/train/run/clt_run_tokenizer.c. */
#ifndef CLT_YAML_TREE_H
#define CLT_YAML_TREE_H

#include "runtime/train/config/clt_yaml.h"

typedef enum { CLT_YAML_SCALAR, CLT_YAML_MAP, CLT_YAML_SEQ } clt_yaml_kind;

typedef struct clt_yaml_node clt_yaml_node;
struct clt_yaml_node {
    clt_yaml_kind kind;
    char *text;  /* scalar */
    bool quoted; /* scalar: text whatever it looks like */
    bool used;   /* an alias or a reference stands for it */
    char **keys; /* map */
    clt_yaml_node **child;
    size_t n, cap;
    clt_yaml_node *merge;     /* map: the value of "<<", until it is merged */
    const char *source;       /* owned by the document */
    int line, column;         /* from 1; 0 on the command line */
    int key_line, key_column; /* of the key in a map; 0: none */
    enum { CLT_YAML_RAW, CLT_YAML_BUSY, CLT_YAML_DONE } state; /* interpolation */
};

struct clt_yaml {
    clt_yaml_node *root;
    clt_strv sources;
    size_t nodes, bytes; /* made so far, and their text: what clt_yaml_within bounds */
};

/* Counts the node; takes over nothing. */
clt_yaml_node *clt_yaml_node_new(clt_yaml *y, clt_yaml_kind kind, const char *source, int line, int column);
void clt_yaml_node_free(clt_yaml_node *n);
/* Gives a scalar its text (copied, counted). */
void clt_yaml_node_set_text(clt_yaml *y, clt_yaml_node *n, const char *text);
/* Takes over child and copies key (NULL in lists); counts the key. */
void clt_yaml_node_add(clt_yaml *y, clt_yaml_node *parent, const char *key, clt_yaml_node *child);
/* CLT_BAD_DATA when the document has grown too large; `at`: the place that the message names. */
clt_status clt_yaml_within(const clt_yaml *y, const clt_yaml_node *at);
/* Position of the child of that name (map) or number (list), or -1. */
long clt_yaml_node_index(const clt_yaml_node *n, const char *name, size_t len);
/* The node at a dotted path, or NULL; *nearest (may be NULL) gets the deepest node on the way. */
clt_yaml_node *clt_yaml_node_find(const clt_yaml *y, const char *path, clt_yaml_node **nearest);
/* "file:line:column" or the source itself; malloc'ed. */
char *clt_yaml_node_place(const clt_yaml_node *n);
/* "PLACE: ..." as CLT_BAD_CONFIG. */
clt_status clt_yaml_node_fail(const clt_yaml_node *n, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* What a plain scalar means: a new reference; NULL with *why set when it is a number that cannot be held. */
json_t *clt_yaml_scalar_value(const clt_yaml_node *n, const char **why);

/* --- clt_yaml_alias.c --- */

/* A copy of `from` to stand at nesting level `level` of the document, each node at its own place or, if
 * `place` is given, at that one, as resolved. CLT_BAD_DATA or CLT_BAD_CONFIG, at `at`, when it makes the
 * document too large or too deep. */
clt_status clt_yaml_copy(clt_yaml *y, const clt_yaml_node *from, int level, const clt_yaml_node *place,
                         const clt_yaml_node *at, clt_yaml_node **out);

/* The anchors of a document while it is read. */
typedef struct {
    struct {
        char *name;
        clt_yaml_node *node; /* NULL: it is not read to its end yet */
    } * v;
    size_t n, cap;
} clt_yaml_anchors;
enum { CLT_YAML_MAX_ANCHORS = 1024 };
/* A new anchor, which hides an older one of that name; its number. */
size_t clt_yaml_anchors_add(clt_yaml_anchors *a, const char *name);
/* What the alias `at`, of that name, stands for: a copy at nesting level `level`. */
clt_status clt_yaml_anchors_expand(clt_yaml *y, const clt_yaml_anchors *a, const char *name, int level,
                                   const clt_yaml_node *at, clt_yaml_node **out);
void clt_yaml_anchors_free(clt_yaml_anchors *a);

/* Merges what stands at "<<" into the maps of n and below: own keys win, then earlier maps of a list. */
clt_status clt_yaml_merge(clt_yaml *y, clt_yaml_node *n);

#endif
