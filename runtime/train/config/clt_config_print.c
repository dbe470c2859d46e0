/* Printing configurations and what is known about keys. */
#include <stdlib.h>
#include <string.h>

#include "runtime/train/config/clt_config_internal.h"

void clt_config_notices(const clt_config *c) {
    clt_strv lines = {0};
    clt_notices_lines(&c->notices, &lines);
    for (size_t i = 0; i < lines.n; i++) clt_info("%s", lines.v[i]);
    for (size_t i = 0; i < c->remarks.n; i++) clt_info("%s", c->remarks.v[i]);
    for (size_t i = 0; i < c->warnings.n; i++) clt_warn("%s", c->warnings.v[i]);
    clt_strv_free(&lines);
}

static const char spike_callback[] = "callbacks.kill_loss_spike";
static const char *const spike_keys[] = {"loss_spike", "spike_window"}; /* that it sets */

static char *origin(void *ctx, const char *path) {
    static const char guards[] = "cltrain.guards.";
    const clt_config *c = ctx;
    if (clt_yaml_has(c->yaml, path)) return clt_yaml_place(c->yaml, path);
    bool guard = strncmp(path, guards, strlen(guards)) == 0 && clt_config_given(c, spike_callback);
    for (size_t i = 0; i < CLT_COUNT_OF(spike_keys) && guard; i++)
        if (strcmp(path + strlen(guards), spike_keys[i]) == 0) return clt_strdup(spike_callback);
    return clt_strdup("default");
}

/* Adds the defaults of keys that do something and are not given. A section that is on when it is given stays
 * away. */
static void add_defaults(json_t *to, const clt_schema *s) {
    for (size_t i = 0; i < s->n; i++) {
        const clt_key *k = &s->keys[i];
        json_t *have = json_object_get(to, k->name);
        if (k->status != CLT_KEY_HONOURED || strcmp(k->name, "*") == 0) continue;
        if (k->kind == &clt_kind_section && (!have || json_is_null(have))) {
            if (k->at.size > 0) continue;
            json_t *fresh = json_object();
            add_defaults(fresh, k->section);
            if (json_object_size(fresh) > 0)
                json_object_set_new(to, k->name, fresh);
            else
                json_decref(fresh);
        } else if (k->section && json_is_object(have)) {
            add_defaults(have, k->section);
        } else if (!have && k->def && strcmp(k->def, CLT_KEY_REQUIRED) != 0) {
            json_t *d = json_loads(k->def, JSON_DECODE_ANY, NULL);
            if (d) json_object_set_new(to, k->name, d);
        }
    }
}

static json_t *with_defaults(const json_t *merged) {
    json_t *all = json_deep_copy(merged);
    add_defaults(all, &clt_config_top_schema);
    add_defaults(json_object_get(all, "model"), clt_model_schema(json_object_get(all, "model")));
    return all;
}

/* The guard's values that a callback has set take the place of their defaults. */
static void add_guards(const clt_config *c, json_t *all) {
    static const char *const names[] = {"off", "warn", "skip", "stop"};
    json_t *guards = json_object_get(json_object_get(all, "cltrain"), "guards");
    if (!clt_config_given(c, spike_callback)) return;
    json_object_set_new(guards, spike_keys[0], json_string(names[c->guards.loss_spike]));
    json_object_set_new(guards, spike_keys[1], json_integer(c->guards.spike_window));
}

/* Its default depends on other keys. */
static void add_lanes(const clt_config *c, json_t *all) {
    json_t *own = json_object_get(all, "cltrain");
    if (!c->lanes_given) json_object_set_new(own, "exact_lanes", json_integer(c->exact_lanes));
}

void clt_config_print(const clt_config *c, bool with_origin, clt_str *out) {
    clt_yaml_style style = {.sort = true};
    if (!with_origin) {
        clt_yaml_dump(c->merged, &style, out);
        return;
    }
    json_t *all = with_defaults(c->merged);
    add_guards(c, all);
    add_lanes(c, all);
    style.comment = origin;
    style.ctx = (void *)c;
    clt_yaml_dump(all, &style, out);
    json_decref(all);
}

/* --- what differs from another configuration --- */

/* One place that differs: { "path": [was, is] }; null where it is not given. */
static void add_difference(json_t *out, const char *path, const json_t *was, const json_t *is) {
    json_t *pair = json_array();
    json_array_append_new(pair, was ? json_deep_copy(was) : json_null());
    json_array_append_new(pair, is ? json_deep_copy(is) : json_null());
    json_object_set_new(out, path, pair);
}

/* Maps are compared key by key, everything else as a whole; null is the same as not given. */
static void compare_values(json_t *out, const char *path, const json_t *was, const json_t *is) {
    if ((!was || json_is_null(was)) && (!is || json_is_null(is))) return;
    if (!json_is_object(was) || !json_is_object(is)) {
        bool equal = was && is && json_is_number(was) && json_is_number(is)
                         ? json_number_value(was) == json_number_value(is)
                         : json_equal(was, is);
        if (!equal) add_difference(out, path, was, is);
        return;
    }
    json_t *keys = json_object();
    json_object_update(keys, (json_t *)was);
    json_object_update(keys, (json_t *)is);
    const char *key;
    json_t *value;
    json_object_foreach(keys, key, value) {
        char *below = *path ? clt_format("%s.%s", path, key) : clt_strdup(key);
        compare_values(out, below, json_object_get(was, key), json_object_get(is, key));
        clt_free(below);
    }
    json_decref(keys);
}

json_t *clt_config_differences(const clt_config *c, const char *other) {
    clt_yaml *y = NULL;
    json_t *was = NULL, *out = NULL;
    clt_error_quiet(true);
    clt_status st = clt_yaml_parse(other, strlen(other), "a configuration", &y);
    if (st == CLT_OK) st = clt_yaml_interpolate(y);
    if (st == CLT_OK) st = clt_yaml_to_json(y, &was);
    clt_error_quiet(false);
    if (st == CLT_OK && json_is_object(was)) {
        json_t *a = with_defaults(was), *b = with_defaults(c->merged);
        out = json_object();
        compare_values(out, "", a, b);
        json_decref(a);
        json_decref(b);
    }
    json_decref(was);
    clt_yaml_free(y);
    return out;
}

/* --- as lines --- */

/* Integers and reals with the same value have the same text: 64 and 64.0. */
static void add_number(clt_str *out, const json_t *v) {
    char text[40];
    const double x = json_number_value(v);
    if (json_is_integer(v)) {
        clt_str_addf(out, "%lld", (long long)json_integer_value(v));
        return;
    }
    snprintf(text, sizeof text, "%.15g", x);
    if (strtod(text, NULL) != x) snprintf(text, sizeof text, "%.17g", x);
    clt_str_add(out, text);
}

static void add_lines(clt_str *out, const char *path, const json_t *v) {
    const char *key;
    json_t *value;
    if (json_is_object(v)) {
        json_object_foreach((json_t *)v, key, value) {
            char *below = *path ? clt_format("%s.%s", path, key) : clt_strdup(key);
            add_lines(out, below, value);
            clt_free(below);
        }
        return;
    }
    /* Each rank's own: which of its host's devices it takes. Null is the same as not given. */
    if (strcmp(path, "cltrain.device") == 0 || json_is_null(v)) return;
    clt_str_addf(out, "%s: ", path);
    if (json_is_number(v)) {
        add_number(out, v);
    } else {
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        clt_str_add(out, text);
        clt_free(text);
    }
    clt_str_add(out, "\n");
}

void clt_config_lines(const clt_config *c, clt_str *out) {
    json_t *all = with_defaults(c->merged);
    add_lines(out, "", all);
    json_decref(all);
}

void clt_config_list_keys(clt_str *out) {
    clt_schema_list(&clt_config_top_schema, "", out);
    for (int i = 0; clt_model_schema_at(i); i++) clt_schema_list(clt_model_schema_at(i), "model", out);
}

bool clt_config_knows(const char *dotted_key) {
    if (strncmp(dotted_key, "model.", 6) != 0) return clt_schema_knows(&clt_config_top_schema, dotted_key);
    for (int i = 0; clt_model_schema_at(i); i++)
        if (clt_schema_knows(clt_model_schema_at(i), dotted_key + 6)) return true;
    return false;
}

char *clt_config_expand(const clt_config *c, const char *template_text, const clt_timestamp *t) {
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"epoch", t->epoch},
                   {"batch", t->batch},
                   {"sample", t->sample},
                   {"token", t->token},
                   {"batch_in_epoch", t->batch_in_epoch},
                   {"sample_in_epoch", t->sample_in_epoch},
                   {"token_in_epoch", t->token_in_epoch},
                   {"total_wct", (int64_t)t->wall_seconds},
                   {"rank", 0},
                   {"local_rank", 0},
                   {"node_rank", 0},
                   {"world_size", 1},
                   {"local_world_size", 1}};
    clt_str out = {0};
    clt_str_add(&out, "");
    for (const char *p = template_text; *p;) {
        size_t n = *p == '{' ? strcspn(p, "}") : 0;
        bool known = n > 1 && p[n] == '}' && n == 9 && strncmp(p + 1, "run_name", 8) == 0;
        if (known) clt_str_add(&out, c->run_name);
        for (size_t i = 0; i < CLT_COUNT_OF(numbers) && n > 1 && p[n] == '}' && !known; i++) {
            known = strlen(numbers[i].name) == n - 1 && strncmp(p + 1, numbers[i].name, n - 1) == 0;
            if (known) clt_str_addf(&out, "%lld", (long long)numbers[i].value);
        }
        if (!known) clt_str_addn(&out, p, 1);
        p += known ? n + 1 : 1;
    }
    return out.s;
}
