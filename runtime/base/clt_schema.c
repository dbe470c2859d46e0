#include "runtime/base/clt_schema.h"

#include <math.h>
#include <string.h>

#include "runtime/base/clt_json.h"

const char *clt_key_type_name(clt_key_type t) {
    static const char *const names[] = {"true or false", "a whole number", "a number", "a string", "a name",
                                        "a map",         "a map",          "a list",   "a value",  "a value"};
    return names[t];
}

const char *clt_json_type_name(const json_t *v) {
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT:
        return "a map";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "a whole number";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    default:
        return "nothing (null)";
    }
}

clt_status clt_schema_fail(clt_schema_reader *r, const char *path, const char *fmt, ...) {
    char *place = r->place ? r->place(r->ctx, path) : clt_strdup(r->what);
    char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0) text = NULL;
    va_end(ap);
    clt_error(r->status, "%s: key '%s' %s", place, path, text ? text : fmt);
    clt_free(text);
    clt_free(place);
    return r->status;
}

static char *join(const char *prefix, const char *name) {
    return *prefix ? clt_format("%s.%s", prefix, name) : clt_strdup(name);
}

static const clt_key *find(const clt_schema *s, const char *name) {
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->keys[i].name, name) == 0 || strcmp(s->keys[i].name, "*") == 0) return &s->keys[i];
    return NULL;
}

static clt_status fail_unknown(clt_schema_reader *r, const clt_schema *s, const char *path,
                               const char *name) {
    const char **known = clt_calloc(s->n, sizeof *known);
    for (size_t i = 0; i < s->n; i++) known[i] = s->keys[i].name;
    const char *near = clt_nearest(name, known, s->n);
    clt_free(known);
    clt_schema_reader at_key = *r;
    if (r->key_place) at_key.place = r->key_place;
    return near ? clt_schema_fail(&at_key, path, "is not known; did you mean '%s'?", near)
                : clt_schema_fail(&at_key, path, "is not known");
}

static clt_status fail_type(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    if (json_is_string(v))
        return clt_schema_fail(r, path, "must be %s, not '%.60s'", clt_key_type_name(k->type),
                               json_string_value(v));
    return clt_schema_fail(r, path, "must be %s, not %s", clt_key_type_name(k->type), clt_json_type_name(v));
}

static clt_status read_choice(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v, int *out) {
    if (!json_is_string(v)) return fail_type(r, k, path, v);
    clt_str all = {0};
    for (int i = 0; k->choices[i]; i++) {
        if (strcmp(k->choices[i], json_string_value(v)) == 0) {
            if (out) *out = i;
            clt_str_free(&all);
            return CLT_OK;
        }
        clt_str_addf(&all, "%s%s", i ? ", " : "", k->choices[i]);
    }
    clt_status st =
        clt_schema_fail(r, path, "is '%.60s'; known are: %s (%s)", json_string_value(v), all.s, k->help);
    clt_str_free(&all);
    return st;
}

static clt_status read_string(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                              const char **out) {
    if (!json_is_string(v) && !json_is_number(v)) return fail_type(r, k, path, v);
    if (!out) return CLT_OK;
    char number[32];
    if (json_is_string(v))
        clt_strv_add(r->strings, json_string_value(v));
    else if (json_is_real(v))
        clt_strv_add(r->strings, clt_json_real_text(json_real_value(v), number));
    else
        clt_strv_add_owned(r->strings, clt_format("%lld", (long long)json_integer_value(v)));
    *out = r->strings->v[r->strings->n - 1];
    return CLT_OK;
}

static clt_status read_int(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                           int64_t *out) {
    int64_t n;
    if (json_is_integer(v))
        n = json_integer_value(v);
    else if (json_is_real(v) && fabs(json_real_value(v)) < 9e15 &&
             json_real_value(v) == floor(json_real_value(v)))
        n = (int64_t)json_real_value(v);
    else
        return fail_type(r, k, path, v);
    if (out) *out = n;
    return CLT_OK;
}

static clt_status read_value(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                             void *field) {
    switch (k->type) {
    case CLT_KEY_BOOL:
        if (!json_is_boolean(v)) return fail_type(r, k, path, v);
        if (field) *(bool *)field = json_is_true(v);
        return CLT_OK;
    case CLT_KEY_INT:
        return read_int(r, k, path, v, field);
    case CLT_KEY_FLOAT:
        if (!json_is_number(v)) return fail_type(r, k, path, v);
        if (field) *(double *)field = json_number_value(v);
        return CLT_OK;
    case CLT_KEY_STR:
        return read_string(r, k, path, v, field);
    case CLT_KEY_CHOICE:
        return read_choice(r, k, path, v, field);
    case CLT_KEY_MAP:
        return json_is_object(v) ? CLT_OK : fail_type(r, k, path, v);
    case CLT_KEY_LIST:
        return json_is_array(v) ? CLT_OK : fail_type(r, k, path, v);
    case CLT_KEY_CUSTOM:
        return k->read(r, k, path, v, field);
    default:
        return CLT_OK;
    }
}

static json_t *default_value(const clt_key *k) {
    if (!k->def || strcmp(k->def, CLT_KEY_REQUIRED) == 0) return NULL;
    return json_loads(k->def, JSON_DECODE_ANY, NULL);
}

static bool is_default(const clt_key *k, json_t *v) {
    json_t *d = default_value(k);
    bool same = d && (json_equal(d, v) || (json_is_number(d) && json_is_number(v) &&
                                           json_number_value(d) == json_number_value(v)));
    json_decref(d);
    return same;
}

static clt_status read_key(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v, char *out) {
    if (json_is_null(v)) {
        bool required = k->def && strcmp(k->def, CLT_KEY_REQUIRED) == 0;
        bool may = !required && (k->nullable || k->type == CLT_KEY_SECTION || k->type == CLT_KEY_ANY ||
                                 k->status != CLT_KEY_HONOURED);
        return may ? CLT_OK : clt_schema_fail(r, path, "must be %s, not empty", clt_key_type_name(k->type));
    }
    if (k->status == CLT_KEY_REFUSED)
        return is_default(k, v) ? CLT_OK : clt_schema_fail(r, path, "is refused: %s", k->help);
    if (k->type == CLT_KEY_SECTION) {
        if (!json_is_object(v)) return fail_type(r, k, path, v);
        return clt_schema_read(r, k->section, path, v, out + (k->offset == CLT_KEY_NOWHERE ? 0 : k->offset));
    }
    void *field = k->offset == CLT_KEY_NOWHERE ? NULL : out + k->offset;
    CLT_TRY(read_value(r, k, path, v, field));
    if (k->status == CLT_KEY_ACCEPTED && r->notices && !is_default(k, v))
        clt_strv_add_owned(r->notices, clt_format("key %s has no effect here: %s", path, k->help));
    return CLT_OK;
}

/* Defaults of this table and of its sections. They are part of the program, so they always read. */
static clt_status set_defaults(clt_schema_reader *r, const clt_schema *s, const char *prefix, char *out) {
    clt_status st = CLT_OK;
    for (size_t i = 0; i < s->n && st == CLT_OK; i++) {
        const clt_key *k = &s->keys[i];
        char *path = join(prefix, k->name);
        if (k->type == CLT_KEY_SECTION && k->offset != CLT_KEY_NOWHERE) {
            st = set_defaults(r, k->section, path, out + k->offset);
        } else if (k->offset != CLT_KEY_NOWHERE) {
            json_t *d = default_value(k);
            if (d && !json_is_null(d)) st = read_value(r, k, path, d, out + k->offset);
            json_decref(d);
        }
        clt_free(path);
    }
    return st;
}

static clt_status check_required(clt_schema_reader *r, const clt_schema *s, const char *prefix,
                                 json_t *object) {
    for (size_t i = 0; i < s->n; i++) {
        const clt_key *k = &s->keys[i];
        if (!k->def || strcmp(k->def, CLT_KEY_REQUIRED) != 0 || json_object_get(object, k->name)) continue;
        char *path = join(prefix, k->name);
        clt_status st =
            clt_error(r->status, "%s: key '%s' is missing: it must be given (%s)", r->what, path, k->help);
        clt_free(path);
        return st;
    }
    return CLT_OK;
}

clt_status clt_schema_read(clt_schema_reader *r, const clt_schema *s, const char *prefix, json_t *object,
                           void *out) {
    CLT_TRY(set_defaults(r, s, prefix, out));
    if (json_is_null(object)) object = NULL;
    const char *name;
    json_t *v;
    json_object_foreach(object, name, v) {
        char *path = join(prefix, name);
        const clt_key *k = find(s, name);
        clt_status st = k                   ? read_key(r, k, path, v, out)
                        : r->ignore_unknown ? CLT_OK
                                            : fail_unknown(r, s, path, name);
        clt_free(path);
        CLT_TRY(st);
    }
    return check_required(r, s, prefix, object);
}

void clt_schema_list(const clt_schema *s, const char *prefix, clt_str *out) {
    static const char *const status[] = {"honoured", "no effect", "refused"};
    for (size_t i = 0; i < s->n; i++) {
        const clt_key *k = &s->keys[i];
        char *path = join(prefix, k->name);
        clt_str type = {0};
        for (int c = 0; k->type == CLT_KEY_CHOICE && k->choices[c]; c++)
            clt_str_addf(&type, "%s%s", c ? ", " : "", k->choices[c]);
        clt_str_addf(out, "| `%s` | %s | %s | %s | %s |\n", path,
                     type.s ? type.s : clt_key_type_name(k->type), k->def ? k->def : "", status[k->status],
                     k->help);
        clt_str_free(&type);
        if (k->section) clt_schema_list(k->section, path, out);
        clt_free(path);
    }
}

bool clt_schema_knows(const clt_schema *s, const char *path) {
    size_t n = strcspn(path, ".");
    char *name = clt_strndup(path, n);
    const clt_key *k = find(s, name);
    clt_free(name);
    if (!k) return false;
    if (!path[n] || !k->section) return true;
    return clt_schema_knows(k->section, path + n + 1);
}
