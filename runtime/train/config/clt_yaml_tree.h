/* The node tree inside clt_yaml, shared by its three files: clt_yaml.c parses, clt_yaml_merge.c overrides and
 * interpolates, clt_yaml_json.c gives values their types and prints them. */
#ifndef CLT_YAML_TREE_H
#define CLT_YAML_TREE_H

#include "runtime/train/config/clt_yaml.h"

typedef enum { CLT_YAML_SCALAR, CLT_YAML_MAP, CLT_YAML_SEQ } clt_yaml_kind;

typedef struct clt_yaml_node clt_yaml_node;
struct clt_yaml_node {
    clt_yaml_kind kind;
    char *text;  /* scalar */
    bool quoted; /* scalar: text whatever it looks like */
    char **keys; /* map */
    clt_yaml_node **child;
    size_t n, cap;
    const char *source;                                        /* owned by the document */
    int line, column;                                          /* from 1; 0 on the command line */
    int key_line, key_column;                                  /* of the key in a map; 0: none */
    enum { CLT_YAML_RAW, CLT_YAML_BUSY, CLT_YAML_DONE } state; /* interpolation */
};

struct clt_yaml {
    clt_yaml_node *root;
    clt_strv sources;
    size_t nodes; /* made so far, bounds what interpolation may copy */
};

clt_yaml_node *clt_yaml_node_new(clt_yaml *y, clt_yaml_kind kind, const char *source, int line, int column);
void clt_yaml_node_free(clt_yaml_node *n);
/* Takes over child and copies key (NULL in lists). */
void clt_yaml_node_add(clt_yaml_node *parent, const char *key, clt_yaml_node *child);
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

#endif
