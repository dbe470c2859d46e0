/* block_overrides: which layer gets which override, and what a layer is afterwards. */
#include <string.h>

#include "runtime/model/mpt/clt_mpt_config_internal.h"

typedef struct {
    clt_schema_reader *r;
    const char *path; /* of block_overrides */
    json_t *overrides;
    const char **names; /* of each layer, in order; borrowed from the JSON values */
    int64_t n, limit;
} expansion;

static clt_status fail(clt_schema_reader *r, const char *path, const char *sub, const char *text,
                       const char *name) {
    char *full = *sub ? clt_format("%s.%s", path, sub) : clt_strdup(path);
    clt_status st =
        clt_schema_fail(r, full, "%s%s%s%s", text, name ? " '" : "", name ? name : "", name ? "'" : "");
    clt_free(full);
    return st;
}

static clt_status read_repeat(const expansion *x, json_t *item, int64_t *out) {
    json_t *v = json_object_get(item, "repeat");
    if (v && (!json_is_integer(v) || json_integer_value(v) < 0))
        return fail(x->r, x->path, "order", "has a repeat that is not a whole number of at least 0", NULL);
    *out = v ? json_integer_value(v) : 1;
    return CLT_OK;
}

static clt_status expand(expansion *x, json_t *order, int depth);

static clt_status expand_item(expansion *x, json_t *item, int depth) {
    json_t *name = json_object_get(item, "name"), *order = json_object_get(item, "order");
    const char *key;
    json_t *v;
    if (!json_is_object(item) || !name == !order)
        return fail(x->r, x->path, "order", "needs in each element either name or order", NULL);
    json_object_foreach(item, key, v) {
        if (strcmp(key, "name") && strcmp(key, "order") && strcmp(key, "repeat"))
            return fail(x->r, x->path, "order", "has an element with the unknown key", key);
    }
    int64_t repeat;
    CLT_TRY(read_repeat(x, item, &repeat));
    if (name && !json_is_string(name))
        return fail(x->r, x->path, "order", "has a name that is not a string", NULL);
    const char *text = json_string_value(name);
    if (name && strcmp(text, "default") != 0 && !json_object_get(x->overrides, text))
        return fail(x->r, x->path, "order", "names an override that is not listed under overrides:", text);
    for (int64_t i = 0; i < repeat && x->n <= x->limit; i++) {
        int64_t before = x->n;
        if (name) {
            if (x->n < x->limit) x->names[x->n] = text;
            x->n++;
        } else {
            CLT_TRY(expand(x, order, depth + 1));
        }
        if (x->n == before) break; /* an empty list repeated for ever adds nothing */
    }
    return CLT_OK;
}

static clt_status expand(expansion *x, json_t *order, int depth) {
    if (!json_is_array(order) || depth > 32) return fail(x->r, x->path, "order", "must be a list", NULL);
    for (size_t i = 0; i < json_array_size(order) && x->n <= x->limit; i++)
        CLT_TRY(expand_item(x, json_array_get(order, i), depth));
    return CLT_OK;
}

/* One override of attn_config applied to a layer. first[i]: the layer whose keys and values layer i really
 * uses. */
static clt_status apply(expansion *x, const char *name, json_t *attn, int64_t layer, int64_t *first,
                        clt_mpt_config *cfg) {
    clt_mpt_layer_config *l = &cfg->layer[layer];
    const char *key;
    json_t *v;
    json_object_foreach(attn, key, v) {
        if (strcmp(key, "sliding_window_size") == 0 && json_is_integer(v) && json_integer_value(v) >= -1) {
            l->window = json_integer_value(v);
        } else if (strcmp(key, "nope") == 0 && json_is_boolean(v)) {
            l->nope = json_is_true(v);
        } else if (strcmp(key, "reuse_kv_layer_idx") == 0 && json_is_integer(v)) {
            int64_t back = json_integer_value(v);
            if (back >= 0 || layer + back < 0)
                return fail(
                    x->r, x->path, "overrides",
                    "reuse_kv_layer_idx counts back from the layer and must stay inside the model, in", name);
            l->reuse_kv = first[layer + back];
            first[layer] = l->reuse_kv;
        } else if (strcmp(key, "reuse_kv_x_layer_idx") == 0) {
            return fail(x->r, x->path, "overrides", "is refused: reuse_kv_x_layer_idx is not supported, in",
                        name);
        } else if (strcmp(key, "attn_temperature_tuning") == 0) {
            return fail(x->r, x->path, "overrides",
                        "is refused: attn_temperature_tuning is only supported for the whole model, not in",
                        name);
        } else {
            return fail(
                x->r, x->path, "overrides",
                "may hold attn_config with sliding_window_size, reuse_kv_layer_idx and nope; wrong is", key);
        }
    }
    if (l->nope && (cfg->learned_pos_emb || cfg->alibi))
        return fail(x->r, x->path, "overrides",
                    "nope is supported with rope only, not with learned positions or alibi, in", name);
    return CLT_OK;
}

static clt_status apply_all(expansion *x, clt_mpt_config *cfg) {
    int64_t first[CLT_MPT_MAX_LAYERS];
    for (int64_t i = 0; i < cfg->n_layers; i++) {
        first[i] = i;
        if (strcmp(x->names[i], "default") == 0) continue;
        json_t *o = json_object_get(x->overrides, x->names[i]), *attn = json_object_get(o, "attn_config");
        if (!json_is_object(o) || json_object_size(o) != (attn ? 1 : 0) || (attn && !json_is_object(attn)))
            return fail(x->r, x->path, "overrides", "may only hold attn_config in", x->names[i]);
        CLT_TRY(apply(x, x->names[i], attn, i, first, cfg));
    }
    return CLT_OK;
}

static clt_status expand_order(expansion *x, json_t *overrides_map, int64_t n_layers) {
    json_t *order = json_object_get(overrides_map, "order");
    int64_t repeat;
    if (!order) return fail(x->r, x->path, "", "needs order", NULL);
    if (!json_is_object(x->overrides)) return fail(x->r, x->path, "", "needs overrides, a map", NULL);
    if (json_object_get(x->overrides, "default"))
        return fail(x->r, x->path, "overrides", "cannot redefine", "default");
    CLT_TRY(read_repeat(x, overrides_map, &repeat));
    for (int64_t i = 0; i < repeat && x->n <= x->limit; i++) {
        int64_t before = x->n;
        CLT_TRY(expand(x, order, 0));
        if (x->n == before) break;
    }
    if (x->n == n_layers) return CLT_OK;
    char *text =
        clt_format("order makes %s%lld layers, n_layers is %lld", x->n > n_layers ? "more than " : "",
                   (long long)CLT_MIN(x->n, n_layers), (long long)n_layers);
    clt_status st = fail(x->r, x->path, "", text, NULL);
    clt_free(text);
    return st;
}

clt_status clt_mpt_config_blocks(clt_schema_reader *r, const char *path, json_t *block_overrides,
                                 int64_t window, clt_mpt_config *cfg) {
    for (int64_t i = 0; i < cfg->n_layers; i++)
        cfg->layer[i] = (clt_mpt_layer_config){.window = window, .reuse_kv = -1};
    if (!block_overrides) return CLT_OK;
    char *full = *path ? clt_format("%s.block_overrides", path) : clt_strdup("block_overrides");
    const char *key;
    json_t *v;
    clt_status st = CLT_OK;
    json_object_foreach(block_overrides, key, v) {
        if (st == CLT_OK && strcmp(key, "order") && strcmp(key, "overrides") && strcmp(key, "repeat"))
            st = fail(r, full, key, "is unknown; it must be order, overrides or repeat", NULL);
    }
    expansion x = {.r = r,
                   .path = full,
                   .overrides = json_object_get(block_overrides, "overrides"),
                   .names = clt_calloc((size_t)cfg->n_layers, sizeof *x.names),
                   .limit = cfg->n_layers};
    if (st == CLT_OK) st = expand_order(&x, block_overrides, cfg->n_layers);
    if (st == CLT_OK) st = apply_all(&x, cfg);
    clt_free(x.names);
    clt_free(full);
    return st;
}
