/* clt_schema: structs filled from untrusted JSON values by a declared table of keys. The table is the one
 * place that says what a key is called, which values it takes, its default, and what happens to it: honoured,
 * accepted although it has no effect, or refused with the reason. Messages, `--list-keys` and
 * docs/configuration.md come from it. YAML and JSON files share it: both become jansson values first; `place`
 * says where a value was written.
 *
 * Checking and storing are separate. A kind of value (clt_kind) has a `check`, which gets no field and so
 * cannot store, and a `store`, which the reader calls only for a key with a place in the struct: with a
 * default from the table, and with a value that `check` has passed. A row without a place is therefore safe
 * with every kind.
 *
 * A reader is used by one thread at a time; tables are constants that all threads may share. */
#ifndef CLT_SCHEMA_H
#define CLT_SCHEMA_H

#include <jansson.h>

#include "runtime/base/clt_base.h"
#include "runtime/base/clt_notice.h"

typedef enum {
    CLT_KEY_HONOURED,
    CLT_KEY_NO_EFFECT, /* checked; a notice says so, unless the value is null or asks for what is done anyway
                        * (`same`, or the reader's `satisfied`) */
    CLT_KEY_REFUSED    /* an error with the reason, unless the value is null or equals `same` */
} clt_key_status;

typedef struct clt_schema clt_schema;
typedef struct clt_schema_reader clt_schema_reader;
typedef struct clt_key clt_key;

/* --- kinds of values --- */

typedef struct {
    const char *name; /* "a whole number": in messages and documentation */
    size_t size;      /* bytes of the field that `store` fills; 0: such values are never stored */
    /* CLT_OK if v, which is never null, is valid for `key`; otherwise what clt_schema_fail returns. NULL:
     * every value is valid. */
    clt_status (*check)(clt_schema_reader *r, const clt_key *key, const char *path, json_t *v);
    /* Writes a valid v, or a default, into a field of `size` bytes. Must not fail. */
    void (*store)(clt_schema_reader *r, const clt_key *key, json_t *v, void *field);
    bool borrows; /* `store` keeps a pointer into the document, which must then outlive the struct; defaults
                   * of such keys are only documentation and are not stored */
} clt_kind;

/* With the C type of their fields. */
extern const clt_kind clt_kind_bool,           /* bool */
    clt_kind_int,                              /* int64_t; also takes a real such as 2.0, below 9e15 */
    clt_kind_float,                            /* double; also takes whole numbers */
    clt_kind_str,                              /* const char *, owned by the reader's `strings`; also takes
                                                  numbers, as their text */
    clt_kind_choice,                           /* int: index into `choices` */
    clt_kind_name,                             /* const char *: a member of `choices` */
    clt_kind_map, clt_kind_list, clt_kind_any, /* json_t *, borrowed from the document */
    clt_kind_section;                          /* a map with a table of its own (`section`); bool: set to true
                                                  if the document has the map */

/* --- rows --- */

/* Where a value is stored: offset and size in bytes of a field of the struct that the table fills. size 0:
 * the value is not stored. */
typedef struct {
    size_t offset, size;
} clt_key_place;

/* A value of a choice that is refused with the reason `why`. */
typedef struct {
    const char *value, *why;
} clt_refusal;

struct clt_key {
    const char *name; /* "*", only in the last row: every name that no other row has */
    const clt_kind *kind;
    clt_key_status status;
    const char *def;  /* the default as JSON text; NULL: none; CLT_KEY_REQUIRED: the key must be given */
    const char *help; /* what the key does, why it has no effect, or why it is refused, by `status` */
    bool nullable;    /* honoured keys: null is accepted like an absent key; not with CLT_KEY_REQUIRED */
    const char
        *same; /* keys that are not honoured: the value, as JSON text, that asks for what is done anyway */
    clt_key_place at;
    const char *const *choices; /* the accepted values of clt_kind_choice and clt_kind_name; ended by NULL */
    const clt_refusal *refused; /* values with a refusal of their own; ended by {0}; NULL: none */
    const clt_schema *section;  /* the keys below this one: read for clt_kind_section, else only documented */
    size_t base; /* clt_kind_section: offset, in this table's struct, of the struct that `section` fills */
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
                        ...) /* checked and not stored: every valid value asks for what is done anyway */    \
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
    /* Functions, which get `ctx` and the dotted path of a key; each may be NULL. */
    /* Where the value is written ("run.yaml:3:5"), freed by the reader with clt_free, never NULL; no
     * function: `what`. */
    char *(*place)(void *ctx, const char *path);
    char *(*key_place)(void *ctx, const char *path); /* where the key is written; no function: as `place` */
    /* Why a key that no row has may be accepted without effect: a string that lives as long as the notices.
     * NULL, or no function: the key is an error. */
    const char *(*harmless)(void *ctx, const char *path);
    /* Whether a value of a key without effect asks for what is done anyway although it is not `same`. No
     * function: false. */
    bool (*satisfied)(void *ctx, const char *path, const json_t *v);
    void *ctx;
    clt_status status;    /* of every failure: CLT_BAD_CONFIG or CLT_BAD_DATA */
    bool ignore_unknown;  /* keys that no row has are skipped; false: they are errors, or `harmless` */
    clt_strv *strings;    /* gets and owns what clt_kind_str stores; must outlive the struct */
    clt_notices *notices; /* gets the keys without effect; NULL: there are no notices */
};

/* Fills *out: stores the defaults, reads the keys in the order of the table, then looks for unknown keys,
 * then for required keys that are missing. `object` is a JSON object; NULL or null is like {}. The caller
 * must check that it is no other kind of value. `prefix` is the dotted path of the object, "" for the root.
 * The first error is printed, ends the reading and gives r->status; *out is then partly filled. Fields
 * without a default and a value keep what they had. */
clt_status clt_schema_read(clt_schema_reader *r, const clt_schema *s, const char *prefix, json_t *object,
                           void *out);

/* Prints the error "PLACE: key 'PATH' TEXT" and returns r->status. */
clt_status clt_schema_fail(clt_schema_reader *r, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* clt_schema_fail with the text "must be KIND, not VALUE". */
clt_status clt_schema_fail_kind(clt_schema_reader *r, const clt_key *key, const char *path, const json_t *v);

/* What a value is called in messages: "a whole number", "a map" ...; "null" for NULL. A constant. */
const char *clt_json_type_name(const json_t *v);

/* Appends the table as Markdown rows "| `path` | type | default | status | help |", each followed by the rows
 * of its section. */
void clt_schema_list(const clt_schema *s, const char *prefix, clt_str *out);
/* Whether the table, with its sections, has the key at this dotted path. Every path below a key without a
 * section counts as known. */
bool clt_schema_knows(const clt_schema *s, const char *path);

#endif
