/* clt_yaml: the subset of YAML that configurations use, read from untrusted files into a tree that remembers
 * where every value was written. Built on libyaml's events.
 *
 * Anchors, aliases and merge keys ("<<") are written out while the document is read. Refused: tags, several
 * documents, keys that are not plain text, duplicate keys, nesting above 32, files above 1 MiB, and documents
 * that aliases or references make larger than the limits below. Plain scalars are read as in YAML 1.2 (so
 * yes, no, on and off are text), except that numbers such as 1e-3 need no dot. `${a.b}` refers to another
 * value of the same configuration. */
#ifndef CLT_YAML_H
#define CLT_YAML_H

#include <jansson.h>

#include "runtime/base/clt_base.h"

typedef struct clt_yaml clt_yaml;

enum {
    CLT_YAML_MAX_DEPTH = 32,
    CLT_YAML_MAX_BYTES = 1 << 20, /* of a file */
    CLT_YAML_MAX_KEYS = 4096,     /* of a map */
    CLT_YAML_MAX_KEY = 128,       /* bytes; YAML cannot print those above 1,024 on their line */
    /* With aliases and references written out; what merge keys and overrides replace counts, too. */
    CLT_YAML_MAX_NODES = 1 << 16,
    CLT_YAML_MAX_TEXT = 4 << 20
};

/* Both: CLT_BAD_CONFIG with "WHAT:line:column: ..." when it is not such a document, CLT_BAD_DATA when it is
 * too large with its aliases written out. */
clt_status clt_yaml_load(const char *path, clt_yaml **out);
clt_status clt_yaml_parse(const char *text, size_t bytes, const char *what, clt_yaml **out);
/* The same; a document that is no map is refused, too. */
clt_status clt_yaml_parse_map(const char *text, size_t bytes, const char *what, clt_yaml **out);
void clt_yaml_free(clt_yaml *y);

/* Sets one value from "key.sub=value" (the value is YAML; a number in the path picks a list element). A map
 * given for a map is merged into it, anything else replaces. Missing maps on the way are made. */
clt_status clt_yaml_override(clt_yaml *y, const char *assignment);
/* The same with path and value apart, and with `source` (copied) as the value's place. References in the
 * value stay text when the document's are resolved already. */
clt_status clt_yaml_set(clt_yaml *y, const char *path, const char *value, const char *source);

/* Replaces every ${a.b} by what it refers to; a value that is nothing but one ${...} takes over type and
 * content. ${a.${b}} and references to references work; circles, unknown keys, relative references and
 * resolvers such as ${oc.env:X} are refused with the place. "\${" stands for "${". CLT_BAD_DATA when the
 * document gets too large. */
clt_status clt_yaml_interpolate(clt_yaml *y);

/* The tree as jansson values (caller owns). CLT_BAD_CONFIG for .inf and .nan and numbers out of range. */
clt_status clt_yaml_to_json(const clt_yaml *y, json_t **out);

/* Where the value at a dotted path was written: "run.yaml:3:5" (through aliases: at their anchor), "command
 * line (a.b=1)"; of the nearest parent when nothing is at the path. malloc'ed. */
char *clt_yaml_place(const clt_yaml *y, const char *path);
/* The same of the key, where the document has it. malloc'ed. */
char *clt_yaml_key_place(const clt_yaml *y, const char *path);
/* Whether the path itself is in the document. */
bool clt_yaml_has(const clt_yaml *y, const char *path);
/* Whether an alias or a reference stands for the value at the path, or for one inside it. */
bool clt_yaml_is_used(const clt_yaml *y, const char *path);

/* A jansson value as block style YAML, which clt_yaml_interpolate leaves as it is. `comment`, if given,
 * returns the text after "# " for a leaf (malloc'ed, or NULL for none). */
typedef struct {
    bool sort; /* keys in alphabetical order, as Composer prints its configuration */
    char *(*comment)(void *ctx, const char *path);
    void *ctx;
} clt_yaml_style;
void clt_yaml_dump(const json_t *value, const clt_yaml_style *style, clt_str *out);

#endif
