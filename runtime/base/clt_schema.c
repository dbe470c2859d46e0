#include "runtime/base/clt_schema.h"

#include <string.h>

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
        return "null";
    }
}

clt_status clt_schema_fail(clt_schema_reader *r, const char *path, const char *fmt, ...) {
    char *place = r->place ? r->place(r->ctx, path) : clt_strdup(r->what);
    va_list ap;
    va_start(ap, fmt);
    char *text = clt_vformat(fmt, ap);
    va_end(ap);
    clt_error(r->status, "%s: key '%s' %s", place, path, text);
    clt_free(text);
    clt_free(place);
    return r->status;
}

clt_status clt_schema_fail_kind(clt_schema_reader *r, const clt_key *k, const char *path, const json_t *v) {
    if (json_is_string(v))
        return clt_schema_fail(r, path, "must be %s, not '%.60s'", k->kind->name, json_string_value(v));
    return clt_schema_fail(r, path, "must be %s, not %s", k->kind->name, clt_json_type_name(v));
}

static char *join(const char *prefix, const char *name) {
    return *prefix ? clt_format("%s.%s", prefix, name) : clt_strdup(name);
}

static const clt_key *find(const clt_schema *s, const char *name) {
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->keys[i].name, name) == 0 || strcmp(s->keys[i].name, "*") == 0) return &s->keys[i];
    return NULL;
}

static bool is_required(const clt_key *k) {
    return k->def && strcmp(k->def, CLT_KEY_REQUIRED) == 0;
}

/* --- one key --- */

/* A row that stores what is not as large as its field would be a fault of the table; a test looks at all. */
static void store(clt_schema_reader *r, const clt_key *k, json_t *v, char *out) {
    if (k->at.size > 0 && k->at.size == k->kind->size) k->kind->store(r, k, v, out + k->at.offset);
}

/* Whether v asks for what is done anyway. */
static bool is_same(const clt_key *k, json_t *v) {
    json_t *same = k->same ? json_loads(k->same, JSON_DECODE_ANY, NULL) : NULL;
    bool equal = same && (json_equal(same, v) || (json_is_number(same) && json_is_number(v) &&
                                                  json_number_value(same) == json_number_value(v)));
    json_decref(same);
    return equal;
}

static clt_status read_object(clt_schema_reader *r, const clt_schema *s, const char *prefix, json_t *object,
                              char *out);

static clt_status read_null(clt_schema_reader *r, const clt_key *k, const char *path) {
    bool may = !is_required(k) && (k->nullable || k->status != CLT_KEY_HONOURED);
    return may ? CLT_OK : clt_schema_fail(r, path, "must be %s, not null", k->kind->name);
}

static clt_status read_key(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v, char *out) {
    if (json_is_null(v)) return read_null(r, k, path);
    if (k->status == CLT_KEY_REFUSED)
        return is_same(k, v) ? CLT_OK : clt_schema_fail(r, path, "is refused: %s", k->help);
    if (k->kind->check) CLT_TRY(k->kind->check(r, k, path, v));
    store(r, k, v, out);
    if (k->kind == &clt_kind_section) CLT_TRY(read_object(r, k->section, path, v, out + k->base));
    if (k->status != CLT_KEY_NO_EFFECT || !r->notices || is_same(k, v)) return CLT_OK;
    if (!r->satisfied || !r->satisfied(r->ctx, path, v)) clt_notices_add(r->notices, path, k->help);
    return CLT_OK;
}

/* --- a table --- */

/* The defaults of this table and of its sections are part of the program: they are not checked. */
static void set_defaults(clt_schema_reader *r, const clt_schema *s, char *out) {
    for (size_t i = 0; i < s->n; i++) {
        const clt_key *k = &s->keys[i];
        if (k->kind == &clt_kind_section) set_defaults(r, k->section, out + k->base);
        if (k->at.size == 0 || k->kind->borrows || !k->def || is_required(k)) continue;
        json_t *d = json_loads(k->def, JSON_DECODE_ANY, NULL);
        if (d && !json_is_null(d)) store(r, k, d, out);
        json_decref(d);
    }
}

/* "; known are a, b" if there are few; the caller frees it. */
static char *known_keys(const clt_schema *s) {
    enum { MOST = 14 };
    clt_str text = {0};
    for (size_t i = 0; i < s->n && s->n <= MOST; i++)
        if (s->keys[i].status != CLT_KEY_REFUSED && strcmp(s->keys[i].name, "*") != 0)
            clt_str_addf(&text, "%s%s", text.len ? ", " : "; known are ", s->keys[i].name);
    return text.s ? text.s : clt_strdup("");
}

static clt_status read_unknown(clt_schema_reader *r, const clt_schema *s, const char *path,
                               const char *name) {
    const char *why = r->harmless ? r->harmless(r->ctx, path) : NULL;
    if (why) {
        if (r->notices) clt_notices_add(r->notices, path, why);
        return CLT_OK;
    }
    const char **known = clt_calloc(s->n, sizeof *known);
    for (size_t i = 0; i < s->n; i++) known[i] = s->keys[i].name;
    const char *near = clt_nearest(name, known, s->n);
    clt_free(known);
    clt_schema_reader at_key = *r;
    if (r->key_place) at_key.place = r->key_place;
    if (near) return clt_schema_fail(&at_key, path, "is unknown; did you mean '%s'?", near);
    char *keys = known_keys(s);
    clt_status st = clt_schema_fail(&at_key, path, "is unknown%s", keys);
    clt_free(keys);
    return st;
}

/* Keys that no row names, among them those that the row "*" stands for. */
static clt_status read_others(clt_schema_reader *r, const clt_schema *s, const char *prefix, json_t *object,
                              char *out) {
    const char *name;
    json_t *v;
    json_object_foreach(object, name, v) {
        const clt_key *k = find(s, name);
        if (k ? strcmp(k->name, "*") != 0 : r->ignore_unknown) continue;
        char *path = join(prefix, name);
        clt_status st = k ? read_key(r, k, path, v, out) : read_unknown(r, s, path, name);
        clt_free(path);
        CLT_TRY(st);
    }
    return CLT_OK;
}

static clt_status fail_missing(clt_schema_reader *r, const clt_key *k, const char *path) {
    return clt_error(r->status, "%s: key '%s' is missing: it must be given (%s)", r->what, path, k->help);
}

static clt_status read_object(clt_schema_reader *r, const clt_schema *s, const char *prefix, json_t *object,
                              char *out) {
    for (size_t i = 0; i < s->n; i++) {
        const clt_key *k = &s->keys[i];
        json_t *v = json_object_get(object, k->name);
        if (!v || strcmp(k->name, "*") == 0) continue;
        char *path = join(prefix, k->name);
        clt_status st = read_key(r, k, path, v, out);
        clt_free(path);
        CLT_TRY(st);
    }
    CLT_TRY(read_others(r, s, prefix, object, out));
    for (size_t i = 0; i < s->n; i++) {
        if (!is_required(&s->keys[i]) || json_object_get(object, s->keys[i].name)) continue;
        char *path = join(prefix, s->keys[i].name);
        clt_status st = fail_missing(r, &s->keys[i], path);
        clt_free(path);
        return st;
    }
    return CLT_OK;
}

clt_status clt_schema_read(clt_schema_reader *r, const clt_schema *s, const char *prefix, json_t *object,
                           void *out) {
    set_defaults(r, s, out);
    return read_object(r, s, prefix, json_is_null(object) ? NULL : object, out);
}

/* --- about tables --- */

static void list_kind(const clt_key *k, clt_str *out) {
    if (!k->choices) clt_str_add(out, k->kind->name);
    for (int i = 0; k->choices && k->choices[i]; i++) clt_str_addf(out, "%s%s", i ? ", " : "", k->choices[i]);
}

/* "; a, b refused: WHY": neighbours with the same reason together. */
static void list_refused(const clt_key *k, clt_str *out) {
    for (const clt_refusal *x = k->refused; x && x->value; x++) {
        bool last = !x[1].value || strcmp(x[1].why, x->why) != 0;
        bool first = x == k->refused || strcmp(x[-1].why, x->why) != 0;
        clt_str_addf(out, "%s%s", first ? "; " : ", ", x->value);
        if (last) clt_str_addf(out, " refused: %s", x->why);
    }
}

void clt_schema_list(const clt_schema *s, const char *prefix, clt_str *out) {
    static const char *const status[] = {"honoured", "no effect", "refused"};
    for (size_t i = 0; i < s->n; i++) {
        const clt_key *k = &s->keys[i];
        char *path = join(prefix, k->name);
        clt_str_addf(out, "| `%s` | ", path);
        list_kind(k, out);
        clt_str_addf(out, " | %s | %s | %s", k->def ? k->def : "", status[k->status], k->help);
        list_refused(k, out);
        clt_str_add(out, " |\n");
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
