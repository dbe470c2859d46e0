/* Kinds of values with a form of their own. */
#include <math.h>
#include <string.h>

#include "runtime/train/config/clt_config_internal.h"

static void keep(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    (void)k;
    *(json_t **)field = v;
}

/* --- times --- */

static bool read_time(const json_t *v, clt_time *out) {
    const int64_t most_epochs = 1000000000000;
    if (json_is_string(v)) return clt_time_parse(json_string_value(v), out);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > most_epochs) return false;
    *out = (clt_time){.unit = CLT_TIME_EPOCH, .value = json_integer_value(v)};
    return true;
}

static clt_status check_time(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    clt_time t;
    (void)k;
    return read_time(v, &t)
               ? CLT_OK
               : clt_schema_fail(r, path, "must be a time such as 100ba, 1ep, 2000000tok, 5000sp or 0.1dur");
}

static void store_time(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    (void)k;
    read_time(v, field);
}
const clt_kind clt_kind_time = {"a time", sizeof(clt_time), check_time, store_time};

/* Composer's schedulers take no bare numbers: whether batches or epochs were meant is unknown. */
static clt_status check_schedule_time(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    const char *s = json_string_value(v);
    double number;
    if (json_is_number(v) || (s && clt_parse_f64(s, &number)))
        return clt_schema_fail(r, path,
                               "has no unit: add one, as in 100ba, 1ep, 2000000tok, 5000sp or 0.1dur");
    return check_time(r, k, path, v);
}
const clt_kind clt_kind_schedule_time = {"a time with a unit", sizeof(clt_time), check_schedule_time,
                                         store_time};

/* --- numbers and switches --- */

static bool is_auto(const json_t *v) {
    return json_is_string(v) && strcmp(json_string_value(v), "auto") == 0;
}

static clt_status check_microbatch(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    static const double most = 1e9;
    double d = json_number_value(v);
    (void)k;
    if (is_auto(v)) return CLT_OK;
    if (!json_is_number(v)) return clt_schema_fail(r, path, "must be a whole number of samples or auto");
    if (d < 1 || d > most || d != floor(d))
        return clt_schema_fail(r, path, "is %.17g: it must be a whole number from 1 to %.0f, or auto", d,
                               most);
    return CLT_OK;
}

static void store_microbatch(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    (void)k;
    *(int64_t *)field = is_auto(v) ? 0 : (int64_t)json_number_value(v);
}
const clt_kind clt_kind_microbatch = {"a whole number or auto", sizeof(int64_t), check_microbatch,
                                      store_microbatch};

static clt_status check_switch(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    return json_is_boolean(v) ? CLT_OK : clt_schema_fail_kind(r, k, path, v);
}

static void store_switch(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    (void)k;
    *(int *)field = json_is_true(v);
}
const clt_kind clt_kind_switch = {"true or false", sizeof(int), check_switch, store_switch};

/* true and false are whole blocks and nothing. */
static clt_status check_recompute(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    return json_is_boolean(v) ? CLT_OK : clt_kind_choice.check(r, k, path, v);
}

static void store_recompute(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    if (json_is_boolean(v))
        *(int *)field = json_is_true(v) ? CLT_RECOMPUTE_BLOCKS : CLT_RECOMPUTE_NONE;
    else
        clt_kind_choice.store(r, k, v, field);
}
const clt_kind clt_kind_recompute = {"a name", sizeof(int), check_recompute, store_recompute};

static clt_status check_stage(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    const json_int_t stage = json_integer_value(v);
    if (is_auto(v) || (json_is_integer(v) && stage >= 0 && stage <= CLT_MOST_STAGE)) return CLT_OK;
    return clt_schema_fail_kind(r, k, path, v);
}

static void store_stage(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    (void)k;
    *(int *)field = is_auto(v) ? CLT_STAGE_AUTO : (int)json_integer_value(v);
}
const clt_kind clt_kind_stage = {"auto, 0, 1, 2 or 3", sizeof(int), check_stage, store_stage};

static clt_status check_betas(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    (void)k;
    for (size_t i = 0; i < 2; i++) {
        json_t *x = json_array_get(v, i);
        if (json_array_size(v) != 2 || !json_is_number(x))
            return clt_schema_fail(r, path, "must be a list of two numbers");
        if (!(json_number_value(x) >= 0 && json_number_value(x) < 1))
            return clt_schema_fail(r, path, "holds %g: a decay rate is at least 0 and below 1",
                                   json_number_value(x));
    }
    return CLT_OK;
}

static void store_betas(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    (void)k;
    for (size_t i = 0; i < 2; i++) ((double *)field)[i] = json_number_value(json_array_get(v, i));
}
const clt_kind clt_kind_betas = {"a list of two numbers", 2 * sizeof(double), check_betas, store_betas};

static clt_status check_lanes(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    enum { MOST = 1024 };
    size_t n = json_array_size(v);
    (void)k;
    if (n < 1 || n > MOST)
        return clt_schema_fail(r, path, "must be a list with one number for each rank, at most %d", MOST);
    for (size_t i = 0; i < n; i++) {
        json_int_t x = json_integer_value(json_array_get(v, i));
        if (x < 1 || x > MOST)
            return clt_schema_fail(r, path, "must be a list of whole numbers from 1 to %d", MOST);
    }
    return CLT_OK;
}
const clt_kind clt_kind_lanes = {"a list of whole numbers", sizeof(json_t *), check_lanes, keep, true};

/* --- texts --- */

static clt_status check_strings(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    (void)k;
    for (size_t i = 0; i < n; i++) {
        const char *s = json_string_value(json_is_array(v) ? json_array_get(v, i) : v);
        if (!s || !*s) return clt_schema_fail(r, path, "must be a string or a list of strings");
    }
    return CLT_OK;
}

static void store_strings(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    (void)r;
    (void)k;
    for (size_t i = 0; i < n; i++)
        clt_strv_add(field, json_string_value(json_is_array(v) ? json_array_get(v, i) : v));
}
const clt_kind clt_kind_strings = {"a string or a list", sizeof(clt_strv), check_strings, store_strings};
const clt_kind clt_kind_patterns = {"a string or a list", sizeof(json_t *), check_strings, keep, true};

/* --- maps --- */

static clt_status check_loaders(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    return json_is_object(v) || json_is_array(v) ? CLT_OK : clt_schema_fail_kind(r, k, path, v);
}
const clt_kind clt_kind_loaders = {"a map or a list of maps", sizeof(json_t *), check_loaders, keep, true};

static bool is_among(const char *word, const char *const *list) {
    for (; word && *list; list++)
        if (strcmp(word, *list) == 0) return true;
    return false;
}

static clt_status check_mixed_precision(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    static const char *const words[] = {"FULL", "DEFAULT", "PURE", NULL};
    static const char *const keys[] = {"param_dtype", "reduce_dtype", "buffer_dtype",
                                       "keep_low_precision_grads", NULL};
    static const char *const types[] = {"fp32",     "float32",  "torch.float32",  "bf16",
                                        "amp_bf16", "bfloat16", "torch.bfloat16", NULL};
    const char *key;
    json_t *value;
    (void)k;
    if (is_among(json_string_value(v), words)) return CLT_OK;
    if (!json_is_object(v))
        return clt_schema_fail(r, path,
                               "must be FULL, DEFAULT or PURE, or a map such as {reduce_dtype: bf16}");
    json_object_foreach(v, key, value) {
        if (!is_among(key, keys))
            return clt_schema_fail(r, path,
                                   "may hold param_dtype, reduce_dtype and buffer_dtype, not '%.40s'", key);
    }
    const json_t *type = json_object_get(v, "reduce_dtype");
    if (!type || json_is_null(type) || is_among(json_string_value(type), types)) return CLT_OK;
    return clt_schema_fail(r, path, "has a reduce_dtype that is neither fp32 nor bf16");
}
const clt_kind clt_kind_mixed_precision = {"a name or a map", sizeof(json_t *), check_mixed_precision, keep,
                                           true};
