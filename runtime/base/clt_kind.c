/* The kinds of values that every table may use. */
#include <math.h>
#include <string.h>

#include "runtime/base/clt_json.h"
#include "runtime/base/clt_schema.h"

static clt_status check_bool(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    return json_is_boolean(v) ? CLT_OK : clt_schema_fail_kind(r, k, path, v);
}
static void store_bool(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    (void)k;
    *(bool *)field = json_is_true(v);
}
const clt_kind clt_kind_bool = {"true or false", sizeof(bool), check_bool, store_bool};

static bool whole_number(const json_t *v, int64_t *out) {
    const double limit = 9e15;
    double d = json_real_value(v);
    if (json_is_real(v) && (fabs(d) >= limit || d != floor(d))) return false;
    *out = json_is_real(v) ? (int64_t)d : json_integer_value(v);
    return json_is_number(v);
}
static clt_status check_int(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    int64_t n;
    return whole_number(v, &n) ? CLT_OK : clt_schema_fail_kind(r, k, path, v);
}
static void store_int(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    (void)k;
    whole_number(v, field);
}
const clt_kind clt_kind_int = {"a whole number", sizeof(int64_t), check_int, store_int};

static clt_status check_float(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    return json_is_number(v) ? CLT_OK : clt_schema_fail_kind(r, k, path, v);
}
static void store_float(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    (void)k;
    *(double *)field = json_number_value(v);
}
const clt_kind clt_kind_float = {"a number", sizeof(double), check_float, store_float};

static clt_status check_str(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    return json_is_string(v) || json_is_number(v) ? CLT_OK : clt_schema_fail_kind(r, k, path, v);
}
static void store_str(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    char number[32];
    (void)k;
    if (json_is_string(v))
        clt_strv_add(r->strings, json_string_value(v));
    else if (json_is_real(v))
        clt_strv_add(r->strings, clt_json_real_text(json_real_value(v), number));
    else
        clt_strv_add_owned(r->strings, clt_format("%lld", (long long)json_integer_value(v)));
    *(const char **)field = r->strings->v[r->strings->n - 1];
}
const clt_kind clt_kind_str = {"a string", sizeof(const char *), check_str, store_str};

/* --- one of several names --- */

/* Position in the key's choices, or -1. */
static int choice_of(const clt_key *k, const char *name) {
    for (int i = 0; name && k->choices[i]; i++)
        if (strcmp(k->choices[i], name) == 0) return i;
    return -1;
}

static clt_status fail_choice(clt_schema_reader *r, const clt_key *k, const char *path, const char *name) {
    size_t n = 0;
    clt_str all = {0};
    while (k->choices[n]) n++;
    for (size_t i = 0; i < n; i++) clt_str_addf(&all, "%s%s", i ? ", " : "", k->choices[i]);
    const char *near = clt_nearest(name, k->choices, n);
    clt_status st =
        near ? clt_schema_fail(r, path, "is '%.60s'; did you mean '%s'? It must be one of: %s", name, near,
                               all.s)
             : clt_schema_fail(r, path, "is '%.60s'; it must be %s%s", name, n > 1 ? "one of: " : "", all.s);
    clt_str_free(&all);
    return st;
}

static clt_status check_choice(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    const char *name = json_string_value(v);
    if (!name) return clt_schema_fail_kind(r, k, path, v);
    if (choice_of(k, name) >= 0) return CLT_OK;
    for (const clt_refusal *x = k->refused; x && x->value; x++)
        if (strcmp(x->value, name) == 0)
            return clt_schema_fail(r, path, "is %s, which is refused: %s", name, x->why);
    return fail_choice(r, k, path, name);
}
static void store_choice(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    *(int *)field = choice_of(k, json_string_value(v));
}
const clt_kind clt_kind_choice = {"a name", sizeof(int), check_choice, store_choice};

static void store_name(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    *(const char **)field = k->choices[choice_of(k, json_string_value(v))];
}
const clt_kind clt_kind_name = {"a name", sizeof(const char *), check_choice, store_name};

/* --- values that are kept as they are --- */

static clt_status check_map(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    return json_is_object(v) ? CLT_OK : clt_schema_fail_kind(r, k, path, v);
}
static clt_status check_list(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    return json_is_array(v) ? CLT_OK : clt_schema_fail_kind(r, k, path, v);
}
static void store_value(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    (void)k;
    *(json_t **)field = v;
}
const clt_kind clt_kind_map = {"a map", sizeof(json_t *), check_map, store_value, true};
const clt_kind clt_kind_list = {"a list", sizeof(json_t *), check_list, store_value, true};
const clt_kind clt_kind_any = {"a value", sizeof(json_t *), NULL, store_value, true};

static void store_presence(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    (void)k;
    (void)v;
    *(bool *)field = true;
}
const clt_kind clt_kind_section = {"a map", sizeof(bool), check_map, store_presence};
