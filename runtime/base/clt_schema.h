/* clt_schema: structs filled from untrusted JSON values by a declared table of keys. The table is the one
 * place that says what a key is called, its type, its default, and what happens to it: honoured, accepted
 * although it has no effect here, or refused with the reason. Messages, `--list-keys` and
 * docs/configuration.md come from it. YAML and JSON files share it: both become jansson values first; `place`
 * says where a value stands. */
#ifndef CLT_SCHEMA_H
#define CLT_SCHEMA_H

#include <jansson.h>

#include "runtime/base/clt_base.h"

typedef enum {
    CLT_KEY_BOOL,    /* bool */
    CLT_KEY_INT,     /* int64_t; 2.0 counts as a whole number */
    CLT_KEY_FLOAT,   /* double; whole numbers too */
    CLT_KEY_STR,     /* const char *, owned by the reader's `strings`; numbers are taken as their text */
    CLT_KEY_CHOICE,  /* int: index into `choices` */
    CLT_KEY_SECTION, /* a map with a table of its own, stored at the same struct + offset */
    CLT_KEY_MAP,     /* a map whose keys are free; not looked into */
    CLT_KEY_LIST,    /* a list whose elements are free */
    CLT_KEY_ANY,
    CLT_KEY_CUSTOM /* `read` decides */
} clt_key_type;

typedef enum {
    CLT_KEY_HONOURED,
    CLT_KEY_ACCEPTED, /* no effect here: one line says so when it is set to something else than its default */
    CLT_KEY_REFUSED   /* an error with the reason, unless it is null or its default */
} clt_key_status;

typedef struct clt_schema clt_schema;
typedef struct clt_schema_reader clt_schema_reader;
typedef struct clt_key clt_key;

/* Reads v (never null) into `field`; errors through clt_schema_fail. */
typedef clt_status (*clt_key_read_fn)(clt_schema_reader *r, const clt_key *key, const char *path, json_t *v,
                                      void *field);

struct clt_key {
    const char *name; /* "*" as the last row: any other name */
    clt_key_type type;
    clt_key_status status;
    bool nullable;    /* null means: leave the default */
    const char *def;  /* the default as JSON text; NULL: none. "required" in place of it: must be there */
    const char *help; /* what it does; why it has no effect; why it is refused */
    size_t offset;    /* into the struct; CLT_KEY_NOWHERE: checked, not stored */
    const char *const *choices; /* CHOICE: ended by NULL */
    const clt_schema *section;  /* SECTION */
    clt_key_read_fn read;       /* CUSTOM */
};

#define CLT_KEY_NOWHERE ((size_t)-1)
#define CLT_KEY_REQUIRED "required"

struct clt_schema {
    const clt_key *keys;
    size_t n;
};
#define CLT_SCHEMA(table) ((clt_schema){(table), sizeof(table) / sizeof((table)[0])})

struct clt_schema_reader {
    const char *what; /* file name for messages */
    char *(*place)(void *ctx,
                   const char *path); /* malloc'ed "run.yaml:3:5" of a dotted path, or NULL: `what` */
    char *(*key_place)(void *ctx, const char *path); /* where the key itself stands; NULL: as place */
    void *ctx;
    clt_status status;   /* what a wrong value returns: CLT_BAD_CONFIG or CLT_BAD_DATA */
    bool ignore_unknown; /* keys that the table does not have are skipped */
    clt_strv *strings;   /* owns every CLT_KEY_STR */
    clt_strv *notices;   /* gets one line per accepted key without effect; NULL: none */
};

/* Sets every key's default, then reads the object (NULL or null: only the defaults). `prefix` is the dotted
 * path of the object, "" for the root. Stops at the first error, which it has printed. */
clt_status clt_schema_read(clt_schema_reader *r, const clt_schema *s, const char *prefix, json_t *object,
                           void *out);

/* "PLACE: key 'PATH' ..." with the reader's status. */
clt_status clt_schema_fail(clt_schema_reader *r, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* "a whole number", "a map" ...: what a key's type is called in messages; and of a value. */
const char *clt_key_type_name(clt_key_type t);
const char *clt_json_type_name(const json_t *v);

/* The table as Markdown rows "| `path` | type | default | status | help |", sections after their parents. */
void clt_schema_list(const clt_schema *s, const char *prefix, clt_str *out);
/* Whether the table (with sections) knows this dotted path; keys below a free map are known. */
bool clt_schema_knows(const clt_schema *s, const char *path);

#endif
