/* clt_schema: structs filled from untrusted JSON values by a declared table of keys. The table is the one
 * place that says what a key is called, which values it takes, its default, and what happens to it: honoured,
 * accepted although it has no effect, or refused with the reason. Messages, `--list-keys` and
 * docs/configuration.md come from it. YAML and JSON files share it: both become jansson values first; `place`
 * says where a value was written.
 *
 * Checking and storing are separate. A kind of value (clt_kind) has a `check`, which gets no field and so
 * cannot store, and a `store`, which the reader calls after the check and only for a key with a place. A row
 * without a place is therefore safe with every kind. */
#ifndef CLT_SCHEMA_H
#define CLT_SCHEMA_H

#include <jansson.h>

#include "runtime/base/clt_base.h"
#include "runtime/base/clt_notice.h"

typedef enum {
    CLT_KEY_HONOURED,
    CLT_KEY_NO_EFFECT, /* one notice says so, unless the value asks for what is done anyway (`same`) */
    CLT_KEY_REFUSED    /* an error with the reason, unless the value is null or `same` */
} clt_key_status;

typedef struct clt_schema clt_schema;
typedef struct clt_schema_reader clt_schema_reader;
typedef struct clt_key clt_key;

/* --- kinds of values --- */

typedef struct {
    const char *name; /* "a whole number": in messages and documentation */
    size_t size;      /* bytes of the field that `store` fills; 0: such values are never stored */
    /* Looks at v, which is never null. Errors through clt_schema_fail. NULL: every value is right. */
    clt_status (*check)(clt_schema_reader *r, const clt_key *key, const char *path, json_t *v);
    /* Puts a value that `check` has passed into a field of `size` bytes. Cannot fail. */
    void (*store)(clt_schema_reader *r, const clt_key *key, json_t *v, void *field);
    bool borrows; /* `store` keeps a pointer into the document: defaults are not stored */
} clt_kind;

extern const clt_kind clt_kind_bool,           /* bool */
    clt_kind_int,                              /* int64_t; 2.0 counts as a whole number */
    clt_kind_float,                            /* double; whole numbers too */
    clt_kind_str,                              /* const char *, owned by the reader's `strings`; numbers
                                                  are taken as their text */
    clt_kind_choice,                           /* int: index into `choices` */
    clt_kind_name,                             /* const char *: one of `choices` itself */
    clt_kind_map, clt_kind_list, clt_kind_any, /* json_t *, borrowed from the document */
    clt_kind_section;                          /* a map with a table of its own; bool: it is given */

/* --- rows --- */

/* Where a value is stored: a field of the struct that the table fills. {0}: nowhere. */
typedef struct {
    size_t offset, size;
} clt_key_place;

/* A choice that is known and refused. */
typedef struct {
    const char *value, *why;
} clt_refusal;

struct clt_key {
    const char *name; /* "*" as the last row: any other name */
    const clt_kind *kind;
    clt_key_status status;
    const char *def;  /* the default as JSON text; NULL: none; CLT_KEY_REQUIRED: the key must be given */
    const char *help; /* what it does; why it has no effect; why it is refused */
    bool nullable;    /* honoured keys: null means "not given" */
    const char *same; /* no effect, refused: the value, as JSON text, that is what is done anyway */
    clt_key_place at;
    const char *const *choices; /* ended by NULL */
    const clt_refusal *refused; /* choices that are refused; ended by {0} */
    const clt_schema *section;  /* the keys below: read with clt_kind_section; else only documented */
    size_t base;                /* section: offset of the struct that its table fills */
};

#define CLT_KEY_REQUIRED "required"
/* Why keys that choose between implementations have no effect. */
#define CLT_KEY_OF_PYTORCH "a setting of PyTorch, which is not used here; the result is the same"

struct clt_schema {
    const clt_key *keys;
    size_t n;
};
#define CLT_SCHEMA(table) ((clt_schema){(table), sizeof(table) / sizeof((table)[0])})

#define CLT_KEY_AT(type, field)                                                                              \
    { offsetof(type, field), sizeof(((type *)0)->field) }

/* The kind of a field that needs no more than its C type. */
#define CLT_KIND_OF(type, field)                                                                             \
    _Generic(((type *)0)->field, bool                                                                        \
             : &clt_kind_bool, int64_t                                                                       \
             : &clt_kind_int, double                                                                         \
             : &clt_kind_float, const char *                                                                 \
             : &clt_kind_str, int                                                                            \
             : &clt_kind_choice)

/* The rows of tables; `...`: more members of clt_key, such as .nullable = true. A file defines shorter names
 * for the struct that its tables fill. */
#define CLT_KEY_OF(kind_, type, name_, field, def_, help_, ...)                                              \
    { .name = name_, .kind = kind_, .at = CLT_KEY_AT(type, field), .def = def_, .help = help_, __VA_ARGS__ }
#define CLT_KEY(type, name_, field, def_, help_, ...)                                                        \
    CLT_KEY_OF(CLT_KIND_OF(type, field), type, name_, field, def_, help_, __VA_ARGS__)
#define CLT_KEY_CHECKED(kind_, name_, def_, help_,                                                           \
                        ...) /* its values say no more than what is done anyway */                           \
    { .name = name_, .kind = kind_, .def = def_, .help = help_, __VA_ARGS__ }
#define CLT_KEY_SECTION(name_, def_, help_, base_, section_, ...)                                            \
    {                                                                                                        \
        .name = name_, .kind = &clt_kind_section, .def = def_, .help = help_, .nullable = true,              \
        .base = base_, .section = section_, __VA_ARGS__                                                      \
    }
#define CLT_KEY_IGNORED(kind_, name_, def_, same_, why_, ...)                                                \
    {                                                                                                        \
        .name = name_, .kind = kind_, .status = CLT_KEY_NO_EFFECT, .def = def_, .same = same_, .help = why_, \
        __VA_ARGS__                                                                                          \
    }
#define CLT_KEY_REFUSE(name_, def_, why_)                                                                    \
    {                                                                                                        \
        .name = name_, .kind = &clt_kind_any, .status = CLT_KEY_REFUSED, .def = def_, .same = def_,          \
        .help = why_                                                                                         \
    }

/* --- reading --- */

struct clt_schema_reader {
    const char *what; /* file name for messages */
    /* malloc'ed "run.yaml:3:5" of the value at a dotted path; NULL: `what` */
    char *(*place)(void *ctx, const char *path);
    char *(*key_place)(void *ctx, const char *path); /* where the key itself is written; NULL: as place */
    /* Whether a key that no table has is harmless, and why (a string that lives as long as the notices);
     * NULL: no such key is. */
    const char *(*harmless)(void *ctx, const char *path);
    /* Whether a value without effect asks for what is done anyway, beside those that `same` names; NULL: no.
     */
    bool (*satisfied)(void *ctx, const char *path, const json_t *v);
    void *ctx;
    clt_status status;    /* what a wrong value returns: CLT_BAD_CONFIG or CLT_BAD_DATA */
    bool ignore_unknown;  /* keys that the table does not have are skipped */
    clt_strv *strings;    /* owns what clt_kind_str stores */
    clt_notices *notices; /* gets the keys without effect; NULL: nobody wants them */
};

/* Stores every key's default, then reads the object (NULL or null: only the defaults) in the order of the
 * table, then looks for unknown keys. `prefix` is the dotted path of the object, "" for the root. Stops at
 * the first error, which it has printed. */
clt_status clt_schema_read(clt_schema_reader *r, const clt_schema *s, const char *prefix, json_t *object,
                           void *out);

/* "PLACE: key 'PATH' ..." with the reader's status. */
clt_status clt_schema_fail(clt_schema_reader *r, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* "PLACE: key 'PATH' must be KIND, not ..." */
clt_status clt_schema_fail_kind(clt_schema_reader *r, const clt_key *key, const char *path, const json_t *v);

/* What a value is called in messages: "a whole number", "a map" ... */
const char *clt_json_type_name(const json_t *v);

/* The table as Markdown rows "| `path` | type | default | status | help |", sections after their parents. */
void clt_schema_list(const clt_schema *s, const char *prefix, clt_str *out);
/* Whether the table (with sections) knows this dotted path; keys below a free map are known. */
bool clt_schema_knows(const clt_schema *s, const char *path);

#endif
