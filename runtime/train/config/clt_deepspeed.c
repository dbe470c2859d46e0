/* Reading ds_config.json and writing its values into the document of the YAML. */
#include "runtime/train/config/clt_deepspeed.h"

#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/train/config/clt_deepspeed_internal.h"

/* --- the batch triangle --- */

const char *clt_deepspeed_complete(clt_deepspeed_batch *b, int64_t ranks) {
    static const char product[] = "is not train_micro_batch_size_per_gpu times gradient_accumulation_steps "
                                  "times the number of ranks";
    if (!b->has_train && !b->has_micro) return "or train_micro_batch_size_per_gpu must be given";
    if ((b->has_train && b->train < 1) || (b->has_micro && b->micro < 1) ||
        (b->has_accumulation && b->accumulation < 1))
        return "and the other numbers of the batch must be above 0";
    if (!b->has_accumulation)
        b->accumulation = b->has_train && b->has_micro ? b->train / b->micro / ranks : 1;
    if (!b->has_micro) b->micro = b->train / ranks / b->accumulation;
    int64_t samples = 0;
    if (__builtin_mul_overflow(b->micro, b->accumulation, &samples) ||
        __builtin_mul_overflow(samples, ranks, &samples))
        return product;
    if (!b->has_train) b->train = samples;
    return b->micro < 1 || b->accumulation < 1 || b->train != samples ? product : NULL;
}

/* --- values --- */

static const json_t *find(const json_t *v, const char *path) {
    while (v && *path) {
        size_t n = strcspn(path, ".");
        char *name = clt_strndup(path, n);
        v = json_object_get(v, name);
        clt_free(name);
        path += n + (path[n] == '.');
    }
    return v && !json_is_null(v) ? v : NULL;
}

const json_t *clt_deepspeed_get(const clt_deepspeed *d, const char *path) {
    return find(d->values, path);
}

bool clt_deepspeed_true(const clt_deepspeed *d, const char *path) {
    return json_is_true(clt_deepspeed_get(d, path));
}

double clt_deepspeed_number(const clt_deepspeed *d, const char *path, double otherwise) {
    const json_t *v = clt_deepspeed_get(d, path);
    return v ? json_number_value(v) : otherwise;
}

const char *clt_deepspeed_text(const clt_deepspeed *d, const char *path, const char *otherwise) {
    const json_t *v = clt_deepspeed_get(d, path);
    return json_is_string(v) ? json_string_value(v) : otherwise;
}

/* --- writing them into the YAML --- */

static bool same_value(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    if (!json_is_array(a) || !json_is_array(b)) return json_equal(a, b);
    bool same = json_array_size(a) == json_array_size(b);
    for (size_t i = 0; i < json_array_size(a) && same; i++)
        same = same_value(json_array_get(a, i), json_array_get(b, i));
    return same;
}

/* Takes over value. `source` is what messages and --print-config name as its place. */
static clt_status write_value(clt_deepspeed *d, const char *to, json_t *value, char *source) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    clt_status st = clt_yaml_set(d->c->yaml, to, text, source);
    clt_free(text);
    clt_free(source);
    json_decref(value);
    return st;
}

clt_status clt_deepspeed_contradiction(clt_deepspeed *d, const char *from, const char *to, const char *text) {
    char *place = clt_yaml_place(d->c->yaml, to);
    clt_status st = clt_schema_fail(&d->r, from, "contradicts key '%s' (%s): %s", to, place, text);
    clt_free(place);
    return st;
}

clt_status clt_deepspeed_put(clt_deepspeed *d, const char *from, const char *to, json_t *value) {
    const json_t *have = clt_config_value(d->c, to);
    const bool is_auto = json_is_string(have) && !strcmp(json_string_value(have), "auto");
    if (have && !json_is_null(have) && !is_auto) {
        const bool same = same_value(have, value);
        char *a = json_dumps(value, JSON_ENCODE_ANY), *b = json_dumps(have, JSON_ENCODE_ANY),
             *text = clt_format("it asks for %.80s instead of %.80s; remove one of them, or set \"auto\" in "
                                "DeepSpeed's file",
                                a, b);
        clt_status st = same ? CLT_OK : clt_deepspeed_contradiction(d, from, to, text);
        clt_free(text);
        clt_free(a);
        clt_free(b);
        json_decref(value);
        return st;
    }
    char *place = clt_yaml_place(d->file, from);
    clt_status st = write_value(d, to, value, clt_format("%s (%s)", place, from));
    clt_free(place);
    return st;
}

clt_status clt_deepspeed_fill(clt_deepspeed *d, const char *from, const char *to, json_t *value) {
    if (!clt_config_given(d->c, to) && !clt_deepspeed_get(d, from))
        return write_value(d, to, value, clt_format("DeepSpeed's default of %s", from));
    json_decref(value);
    return CLT_OK;
}

/* --- reading --- */

static char *place_of(void *ctx, const char *path) {
    return clt_yaml_place(((clt_deepspeed *)ctx)->file, path);
}

static char *key_place_of(void *ctx, const char *path) {
    return clt_yaml_key_place(((clt_deepspeed *)ctx)->file, path);
}

/* Where DeepSpeed skips keys that it does not know. */
static const char *harmless(void *ctx, const char *path) {
    static const char *const open[] = {
        "activation_checkpointing.", "aio.",       "optimizer.", "scheduler.", "checkpoint.", "data_types.",
        "flops_profiler.",           "elasticity."};
    bool found = !strchr(path, '.');
    (void)ctx;
    for (size_t i = 0; i < CLT_COUNT_OF(open) && !found; i++)
        found = !strncmp(path, open[i], strlen(open[i])) && !strchr(path + strlen(open[i]), '.');
    return found ? "DeepSpeed does not know it and skips it, too" : NULL;
}

/* A section that is off asks for nothing. */
static bool satisfied(void *ctx, const char *path, const json_t *v) {
    const char *dot = strchr(path, '.');
    (void)v;
    if (!dot) return false;
    char *key = clt_format("%.*s.enabled", (int)(dot - path), path);
    const bool off = clt_deepspeed_get(ctx, key) && !clt_deepspeed_true(ctx, key);
    clt_free(key);
    return off;
}

static void drop_autos(json_t *object) {
    const char *key;
    json_t *v;
    void *next;
    json_object_foreach_safe(object, next, key, v) {
        if (json_is_string(v) && !strcmp(json_string_value(v), "auto"))
            json_object_del(object, key);
        else if (json_is_object(v))
            drop_autos(v);
    }
}

/* zero_optimization: true is stage 1, false is nothing. */
static void widen_zero(json_t *values) {
    static const char key[] = "zero_optimization";
    const json_t *zero = json_object_get(values, key);
    if (!json_is_boolean(zero)) return;
    json_object_set_new(values, key, json_is_true(zero) ? json_pack("{si}", "stage", 1) : json_object());
}

/* The parameters of optimizer or scheduler, whose table depends on the type. */
static clt_status read_params(clt_deepspeed *d, const char *section,
                              const clt_schema *(*params)(const char *type), const char *known) {
    char *type_key = clt_format("%s.type", section), *params_key = clt_format("%s.params", section);
    const char *type = clt_deepspeed_text(d, type_key, NULL),
               *why = type && params == clt_deepspeed_optimizer_params ? clt_deepspeed_refused_optimizer(type)
                                                                       : NULL;
    const clt_schema *table = type ? params(type) : NULL;
    clt_status st = CLT_OK;
    int nothing;
    if (why)
        st = clt_schema_fail(&d->r, type_key, "is %.60s: %s", type, why);
    else if (type && !table)
        st = clt_schema_fail(&d->r, type_key, "is %.60s, which is unknown: known are %s", type, known);
    else if (table)
        st = clt_schema_read(&d->r, table, params_key, (json_t *)clt_deepspeed_get(d, params_key), &nothing);
    clt_free(type_key);
    clt_free(params_key);
    return st;
}

static clt_status check_keys(clt_deepspeed *d) {
    int nothing;
    CLT_TRY(clt_schema_read(&d->r, &clt_deepspeed_schema, "", d->values, &nothing));
    CLT_TRY(
        read_params(d, "optimizer", clt_deepspeed_optimizer_params, "Adam, AdamW, Lion, Lamb, Adagrad, SGD"));
    return read_params(d, "scheduler", clt_deepspeed_scheduler_params,
                       "WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest");
}

static clt_status load(clt_deepspeed *d) {
    char *text;
    size_t bytes;
    CLT_TRY(clt_io_read_all(d->path, CLT_YAML_MAX_BYTES, &text, &bytes));
    clt_str tidy = clt_deepspeed_tidy(text, bytes);
    clt_free(text);
    clt_status st = clt_yaml_parse_map(tidy.s, tidy.len, d->path, &d->file);
    clt_str_free(&tidy);
    if (st == CLT_OK) st = clt_yaml_to_json(d->file, &d->values);
    if (st != CLT_OK) return st;
    drop_autos(d->values);
    widen_zero(d->values);
    return CLT_OK;
}

/* Notices name the key and the file. */
static void hand_over_notices(clt_deepspeed *d, const clt_notices *from) {
    for (size_t i = 0; i < from->n; i++) {
        char *path = clt_format("deepspeed.%s", from->v[i].path);
        clt_notices_add(&d->c->notices, path, from->v[i].why);
        clt_free(path);
    }
}

static clt_status merge(clt_deepspeed *d) {
    clt_config *c = d->c;
    CLT_TRY(check_keys(d));
    CLT_TRY(clt_deepspeed_map(d));
    json_decref(c->merged);
    c->merged = NULL;
    return clt_yaml_to_json(c->yaml, &c->merged);
}

clt_status clt_deepspeed_apply(clt_config *c, int ranks) {
    static const char key[] = "deepspeed";
    const json_t *path = clt_config_value(c, key);
    if (!json_is_string(path)) return CLT_OK; /* not given; another type is refused by the table */
    clt_notices notices = {0};
    clt_strv strings = {0};
    clt_strv_add(&c->strings, json_string_value(path));
    clt_deepspeed d = {.c = c, .path = c->strings.v[c->strings.n - 1], .ranks = ranks};
    d.r = (clt_schema_reader){.what = d.path,
                              .place = place_of,
                              .key_place = key_place_of,
                              .harmless = harmless,
                              .satisfied = satisfied,
                              .ctx = &d,
                              .status = CLT_BAD_CONFIG,
                              .strings = &strings,
                              .notices = &notices};
    clt_status st = load(&d);
    if (st == CLT_OK) st = merge(&d);
    if (st == CLT_OK) hand_over_notices(&d, &notices);
    clt_notices_free(&notices);
    clt_strv_free(&strings);
    clt_yaml_free(d.file);
    json_decref(d.values);
    return st;
}
