/* clt_yaml: the subset of YAML that configurations use, read from untrusted files into a tree that remembers
 * where every value stands. Built on libyaml's events.
 *
 * Refused: anchors, aliases, merge keys and tags, several documents, keys that are not plain text, duplicate
 * keys, nesting above 32, files above 1 MiB. Plain scalars are read as in YAML 1.2 (so yes, no, on and off
 * are text), except that numbers such as 1e-3 need no dot. `${a.b}` refers to another value of the same
 * configuration. */
#ifndef CLT_YAML_H
#define CLT_YAML_H

#include <jansson.h>

#include "runtime/base/clt_base.h"

typedef struct clt_yaml clt_yaml;

enum { CLT_YAML_MAX_DEPTH = 32, CLT_YAML_MAX_BYTES = 1 << 20, CLT_YAML_MAX_NODES = 1 << 17 };

/* Both: CLT_BAD_CONFIG with "WHAT:line:column: ..." when it is not such a document. */
clt_status clt_yaml_load(const char *path, clt_yaml **out);
clt_status clt_yaml_parse(const char *text, size_t bytes, const char *what, clt_yaml **out);
/* The same; a document that is no map is refused, too. */
clt_status clt_yaml_parse_map(const char *text, size_t bytes, const char *what, clt_yaml **out);
void clt_yaml_free(clt_yaml *y);

/* Sets one value from "key.sub=value" (the value is YAML; a number in the path picks a list element). A map
 * given for a map is merged into it, anything else replaces. Missing maps on the way are made. */
clt_status clt_yaml_override(clt_yaml *y, const char *assignment);

/* Replaces every ${a.b} by what it refers to; a value that is nothing but one ${...} takes over type and
 * content.
 * ${a.${b}} and references to references work; circles, unknown keys, relative references and resolvers such
 * as
 * ${oc.env:X} are refused with the place. "\${" stands for "${". */
clt_status clt_yaml_interpolate(clt_yaml *y);

/* The tree as jansson values (caller owns). CLT_BAD_CONFIG for .inf and .nan and numbers out of range. */
clt_status clt_yaml_to_json(const clt_yaml *y, json_t **out);

/* Where the value at a dotted path stands: "run.yaml:3:5", "command line (a.b=1)"; of the nearest parent that
 * is there when the path is not. malloc'ed. */
char *clt_yaml_place(const clt_yaml *y, const char *path);
/* The same of the key, where the document has it. malloc'ed. */
char *clt_yaml_key_place(const clt_yaml *y, const char *path);
/* Whether the path itself is in the document. */
bool clt_yaml_has(const clt_yaml *y, const char *path);

/* A jansson value as block style YAML. `comment`, if given, returns the text after "# " for a leaf
 * (malloc'ed, or NULL for none). */
typedef struct {
    bool sort; /* keys in alphabetical order, as Composer prints its configuration */
    char *(*comment)(void *ctx, const char *path);
    void *ctx;
} clt_yaml_style;
void clt_yaml_dump(const json_t *value, const clt_yaml_style *style, clt_str *out);

#endif
