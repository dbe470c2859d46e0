#include <stdlib.h>
#include <string.h>

#include "runtime/checkpoint/clt_ckpt_internal.h"
#include "runtime/checkpoint/clt_weight_source_internal.h"

enum { CONFIG_LIMIT = 1 << 20, INDEX_LIMIT = 256 << 20, MAX_DEPTH = 32, MAX_SHARDS = 4096 };

/* Blocks of timm's Vision Transformer begin as MPT's without "transformer.". */
static bool is_timm(const char *name) {
    static const char *const part[] = {".norm1.", ".norm2.", ".attn.qkv.", ".attn.proj.", ".mlp."};
    for (size_t i = 0; i < CLT_COUNT_OF(part); i++)
        if (strstr(name, part[i])) return true;
    return false;
}

/* Composer writes "model." in front of every name, and the transformers package a model without its head
 * (MptModel) without "transformer.". */
static const char *plain_name(clt_weight_source *s, const char *name) {
    static const char *const body[] = {"wte.", "wpe.", "blocks.", "norm_f."};
    static const char *const wrapped[] = {"transformer.", "model.", "gpt_neox.", "lm_head.", "embed_out."};
    for (size_t i = 0; i < CLT_COUNT_OF(wrapped); i++)
        if (!strncmp(name, "model.", 6) && !strncmp(name + 6, wrapped[i], strlen(wrapped[i])))
            return name + 6;
    for (size_t i = 0; i < CLT_COUNT_OF(body); i++) {
        if (strncmp(name, body[i], strlen(body[i])) != 0 || is_timm(name)) continue;
        clt_strv_add_owned(&s->names, clt_format("transformer.%s", name));
        return s->names.v[s->names.n - 1];
    }
    return name;
}

static int by_name(const void *a, const void *b) {
    const clt_view *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* --- opening --- */

static clt_status add_shard(clt_weight_source *s, const char *path) {
    clt_safetensors *f;
    CLT_TRY(clt_safetensors_open(path, &f));
    int n = clt_safetensors_count(f);
    for (int i = 0; i < n; i++) {
        const clt_st_tensor *t = clt_safetensors_at(f, i);
        if (t->dims <= CLT_MAX_DIMS) continue;
        clt_status st = clt_error(CLT_BAD_DATA, "%s: tensor '%s' has %d dimensions, a weight has at most %d",
                                  path, t->name, t->dims, CLT_MAX_DIMS);
        clt_safetensors_close(f);
        return st;
    }
    s->shard = clt_realloc(s->shard, ((size_t)s->shards + 1) * sizeof *s->shard);
    clt_view *views = clt_try_realloc(s->view, (size_t)(s->views + n) * sizeof *views);
    if (!views) {
        clt_safetensors_close(f);
        return clt_no_memory(path, (size_t)(s->views + n) * sizeof *views);
    }
    s->view = views;
    for (int i = 0; i < n; i++) {
        const clt_st_tensor *t = clt_safetensors_at(f, i);
        clt_view *v = &s->view[s->views++];
        *v = (clt_view){.name = plain_name(s, t->name), .shard = s->shards, .tensor = i, .dims = t->dims};
        for (int d = 0; d < t->dims; d++) v->shape[d] = (int64_t)t->shape[d];
    }
    s->shard[s->shards++] = f;
    return CLT_OK;
}

clt_status clt_source_finish_views(clt_weight_source *s) {
    if (s->views > 1) qsort(s->view, (size_t)s->views, sizeof *s->view, by_name);
    for (int i = 1; i < s->views; i++)
        if (!strcmp(s->view[i - 1].name, s->view[i].name))
            return clt_error(CLT_BAD_DATA, "%s: tensor '%s' appears twice", s->path, s->view[i].name);
    return CLT_OK;
}

static int file_index(const clt_strv *files, const char *name) {
    for (size_t i = 0; i < files->n; i++)
        if (!strcmp(files->v[i], name)) return (int)i;
    return -1;
}

/* The files that a weight map names, without duplicates. */
static clt_status list_shards(json_t *map, const char *what, clt_strv *files) {
    const char *key;
    json_t *v;
    json_object_foreach(map, key, v) {
        const char *file = json_string_value(v);
        if (!file || !clt_path_is_safe(file) || strchr(file, '/'))
            return clt_error(CLT_BAD_DATA, "%s: tensor '%s' is mapped to a file outside this folder", what,
                             key);
        if (file_index(files, file) < 0) clt_strv_add(files, file);
        if (files->n > MAX_SHARDS)
            return clt_error(CLT_BAD_DATA, "%s names more than %d files", what, MAX_SHARDS);
    }
    return CLT_OK;
}

/* Every tensor is in the file that the map names, and the map has all tensors. */
static clt_status check_map(const clt_weight_source *s, json_t *map, const char *what,
                            const clt_strv *files) {
    const char *key;
    json_t *v;
    if (json_object_size(map) != (size_t)s->views)
        return clt_error(CLT_BAD_DATA, "%s lists %zu tensors, its files have %d", what, json_object_size(map),
                         s->views);
    json_object_foreach(map, key, v) {
        int f = file_index(files, json_string_value(v));
        if (f < 0 || clt_safetensors_find(s->shard[f], key) < 0)
            return clt_error(CLT_BAD_DATA, "%s: tensor '%s' is not in %s", what, key, json_string_value(v));
    }
    return CLT_OK;
}

static clt_status open_sharded(clt_weight_source *s, const char *index) {
    json_t *root, *map;
    clt_strv files = {0};
    CLT_TRY(clt_json_load(index, INDEX_LIMIT, MAX_DEPTH, &root));
    clt_status st = clt_json_get_obj(root, "weight_map", index, &map);
    if (st == CLT_OK) st = list_shards(map, index, &files);
    for (size_t i = 0; i < files.n && st == CLT_OK; i++) {
        char *path = clt_path_join(s->path, files.v[i]);
        st = add_shard(s, path);
        clt_free(path);
    }
    if (st == CLT_OK) st = check_map(s, map, index, &files);
    clt_strv_free(&files);
    json_decref(root);
    return st;
}

static clt_status load_config(clt_weight_source *s, const char *config) {
    json_t *root = NULL;
    CLT_TRY(clt_json_load(config, CONFIG_LIMIT, MAX_DEPTH, &root));
    clt_status st = json_is_object(root) ? clt_json_dump(root, config, &s->model)
                                         : clt_error(CLT_BAD_DATA, "%s: not a JSON object", config);
    json_decref(root);
    return st;
}

static clt_status open_hf(clt_weight_source *s) {
    char *config = clt_path_join(s->path, "config.json"), *one = clt_path_join(s->path, "model.safetensors");
    char *index = clt_path_join(s->path, "model.safetensors.index.json");
    s->kind = CLT_SOURCE_HF;
    clt_status st = load_config(s, config);
    if (st == CLT_OK) st = clt_io_is_file(one) ? add_shard(s, one) : open_sharded(s, index);
    if (st == CLT_OK) st = clt_source_finish_views(s);
    clt_free(config);
    clt_free(one);
    clt_free(index);
    return st;
}

/* The model's configuration is no part of a universal checkpoint: config.json in it, or beside it. */
static clt_status read_config(clt_weight_source *s) {
    char *above = clt_path_dir(s->path);
    const char *const folders[] = {s->path, above};
    clt_status st = CLT_OK;
    for (size_t i = 0; i < CLT_COUNT_OF(folders) && !s->model && st == CLT_OK; i++) {
        char *config = clt_path_join(folders[i], "config.json");
        if (clt_io_is_file(config)) st = load_config(s, config);
        clt_free(config);
    }
    clt_free(above);
    return st;
}

static clt_status open_universal(clt_weight_source *s) {
    s->kind = CLT_SOURCE_UNIVERSAL;
    CLT_TRY(clt_universal_open(s->path, &s->universal));
    const int n = clt_universal_count(s->universal);
    s->view = clt_try_calloc((size_t)n, sizeof *s->view);
    if (!s->view) return clt_no_memory(s->path, (size_t)n * sizeof *s->view);
    s->views = n;
    for (int i = 0; i < s->views; i++) {
        const clt_universal_param *p = clt_universal_at(s->universal, i);
        clt_view *v = &s->view[i];
        if (p->dims > CLT_MAX_DIMS)
            return clt_error(CLT_BAD_DATA, "%s: tensor '%s' has %d dimensions, a weight has at most %d",
                             s->path, p->name, p->dims, CLT_MAX_DIMS);
        *v = (clt_view){.name = plain_name(s, p->name), .tensor = i, .dims = p->dims, .flat = p->flat};
        for (int d = 0; d < p->dims; d++) v->shape[d] = (int64_t)p->shape[d];
    }
    CLT_TRY(clt_source_finish_views(s));
    return read_config(s);
}

static clt_status open_checkpoint(clt_weight_source *s) {
    s->kind = CLT_SOURCE_CHECKPOINT;
    CLT_TRY(clt_ckpt_open(s->path, &s->ckpt));
    const char *model = clt_ckpt_state(s->ckpt)->model;
    s->model = model ? clt_strdup(model) : NULL;
    return CLT_OK;
}

/* In the order of clt_ckpt_resolve. */
static clt_status open_folder(clt_weight_source *s) {
    char *folder = NULL;
    if (clt_ckpt_is_hf_folder(s->path)) return open_hf(s);
    CLT_TRY(clt_universal_find(s->path, &folder));
    clt_status st = folder ? open_universal(s) : open_hf(s);
    clt_free(folder);
    return st;
}

static clt_status open_any(clt_weight_source *s) {
    char *manifest = clt_path_join(s->path, CLT_MANIFEST);
    clt_status st;
    if (clt_io_is_file(manifest)) {
        st = open_checkpoint(s);
    } else if (clt_io_is_dir(s->path)) {
        st = open_folder(s);
    } else {
        s->kind = CLT_SOURCE_SAFETENSORS;
        st = add_shard(s, s->path);
        if (st == CLT_OK) st = clt_source_finish_views(s);
    }
    clt_free(manifest);
    return st;
}

clt_status clt_weight_source_open(const char *path, clt_weight_source **out) {
    clt_weight_source *s = clt_calloc(1, sizeof *s);
    clt_status st = clt_ckpt_resolve(NULL, path, &s->path);
    if (st == CLT_OK) st = open_any(s);
    if (st != CLT_OK) {
        clt_weight_source_close(s);
        return st;
    }
    *out = s;
    return CLT_OK;
}

void clt_weight_source_close(clt_weight_source *s) {
    if (!s) return;
    clt_ckpt_close(s->ckpt);
    for (int i = 0; i < s->n_replaced; i++) clt_free(s->replaced[i].values);
    clt_free(s->replaced);
    for (int i = 0; i < s->views; i++) clt_free(s->view[i].values);
    for (int i = 0; i < s->shards; i++) clt_safetensors_close(s->shard[i]);
    clt_free(s->shard);
    clt_free(s->view);
    clt_free(s->file);
    clt_universal_close(s->universal);
    for (int r = 0; r < CLT_SOURCE_ROLES; r++) clt_weight_mapper_free(&s->mapper[r]);
    clt_weight_map_free(s->map);
    clt_strv_free(&s->names);
    clt_free(s->path);
    clt_free(s->model);
    clt_free(s);
}

/* --- tensors --- */

static const clt_replaced *find_replaced(const clt_weight_source *s, int i) {
    for (int n = 0; n < s->n_replaced; n++)
        if (s->replaced[n].tensor == i) return &s->replaced[n];
    return NULL;
}

/* Shape and count of a tensor with out->dims dimensions. */
static void set_shape(clt_ckpt_tensor *out, const int64_t *shape) {
    out->count = 1;
    for (int d = 0; d < out->dims; d++) out->count *= (uint64_t)(out->shape[d] = shape[d]);
}

clt_source_kind clt_weight_source_kind(const clt_weight_source *s) {
    return s->kind;
}
const char *clt_weight_source_path(const clt_weight_source *s) {
    return s->path;
}
const char *clt_weight_source_model(const clt_weight_source *s) {
    return s->model;
}
clt_ckpt_reader *clt_weight_source_checkpoint(const clt_weight_source *s) {
    return s->ckpt;
}
const clt_universal *clt_weight_source_universal(const clt_weight_source *s) {
    return s->universal;
}

/* Roles of the views: moments follow each other, the second never comes without the first. */
static int roles(const clt_weight_source *s) {
    int n = 1;
    while (s->universal && n < CLT_SOURCE_ROLES && clt_universal_has(s->universal, (clt_universal_state)n))
        n++;
    return n;
}

int clt_weight_source_count(const clt_weight_source *s) {
    return s->ckpt ? clt_ckpt_count(s->ckpt) : s->views * roles(s);
}

void clt_weight_source_at(const clt_weight_source *s, int i, clt_ckpt_tensor *out) {
    if (s->ckpt) {
        const clt_replaced *r = find_replaced(s, i);
        clt_ckpt_at(s->ckpt, i, out);
        if (r) set_shape(out, r->shape);
        return;
    }
    const clt_view *v = &s->view[i % s->views];
    *out = (clt_ckpt_tensor){
        .name = v->name, .role = clt_universal_role((clt_universal_state)(i / s->views)), .dims = v->dims};
    set_shape(out, v->shape);
}

int clt_weight_source_find(const clt_weight_source *s, const char *role, const char *name) {
    if (s->ckpt) return clt_ckpt_find(s->ckpt, role, name);
    clt_view key = {.name = name};
    int r = 0;
    while (r < roles(s) && strcmp(role, clt_universal_role((clt_universal_state)r)) != 0) r++;
    if (r == roles(s) || !s->views) return -1;
    const clt_view *v = bsearch(&key, s->view, (size_t)s->views, sizeof key, by_name);
    return v ? r * s->views + (int)(v - s->view) : -1;
}

clt_status clt_source_read_file(clt_weight_source *s, const clt_view *v, int role, uint64_t first, float *dst,
                                uint64_t count) {
    if (s->universal)
        return clt_universal_read(s->universal, v->tensor, (clt_universal_state)role, first, dst, count);
    return clt_safetensors_read_f32(s->shard[v->shard], v->tensor, first, dst, count);
}

clt_status clt_weight_source_read(clt_weight_source *s, int i, uint64_t first, float *dst, uint64_t count) {
    const clt_replaced *r = find_replaced(s, i);
    if (r) {
        memcpy(dst, r->values + first, count * sizeof *dst);
        return CLT_OK;
    }
    if (s->ckpt) return clt_ckpt_read(s->ckpt, i, first, dst, count);
    const clt_view *v = &s->view[i % s->views];
    const int role = i / s->views;
    if (v->values && role == 0) {
        memcpy(dst, v->values + first, count * sizeof *dst);
        return CLT_OK;
    }
    if (v->shard >= 0) return clt_source_read_file(s, v, role, first, dst, count);
    return clt_weight_mapper_read(&s->mapper[role], v->tensor, first, dst, count);
}

void clt_weight_source_replace(clt_weight_source *s, int i, const int64_t *shape, float *values) {
    if (s->ckpt) {
        clt_ckpt_tensor t;
        clt_ckpt_at(s->ckpt, i, &t);
        s->replaced = clt_realloc(s->replaced, ((size_t)s->n_replaced + 1) * sizeof *s->replaced);
        clt_replaced *r = &s->replaced[s->n_replaced++];
        *r = (clt_replaced){.tensor = i, .values = values};
        memcpy(r->shape, shape, (size_t)t.dims * sizeof *shape);
        return;
    }
    clt_view *v = &s->view[i];
    memcpy(v->shape, shape, (size_t)v->dims * sizeof *shape);
    clt_free(v->values);
    v->values = values;
}

const char *clt_weight_source_dtype(const clt_weight_source *s) {
    const clt_view *v = s->map ? s->file : s->view;
    int bf16 = 0, f16 = 0, all = 0;
    if (s->universal) return "float32";
    for (int i = 0, n = s->map ? s->map->files : s->views; i < n; i++) {
        if (!v[i].name) continue;
        const clt_st_dtype type = clt_safetensors_at(s->shard[v[i].shard], v[i].tensor)->dtype;
        bf16 += type == CLT_ST_BF16;
        f16 += type == CLT_ST_F16;
        all++;
    }
    if (all && bf16 == all) return "bfloat16";
    return all && f16 == all ? "float16" : "float32";
}

/* --- loading --- */

clt_status clt_weight_source_verify(clt_weight_source *s, int *hashed) {
    int sum = 0;
    if (s->ckpt) {
        CLT_TRY(clt_ckpt_verify(s->ckpt));
        sum = clt_ckpt_count(s->ckpt);
    }
    for (int i = 0; i < s->shards; i++) {
        int n = 0;
        CLT_TRY(clt_safetensors_verify(s->shard[i], &n));
        sum += n;
    }
    if (s->universal) {
        CLT_TRY(clt_universal_verify(s->universal));
        sum = clt_weight_source_count(s);
    }
    if (hashed) *hashed = sum;
    return CLT_OK;
}

static int set_count(void *ctx) {
    return clt_weight_source_count(ctx);
}
static void set_at(void *ctx, int i, clt_ckpt_tensor *out) {
    clt_weight_source_at(ctx, i, out);
}
static int set_find(void *ctx, const char *role, const char *name) {
    return clt_weight_source_find(ctx, role, name);
}
static clt_status set_read(void *ctx, int i, uint64_t first, float *dst, uint64_t count) {
    return clt_weight_source_read(ctx, i, first, dst, count);
}

static clt_tensor_set set_of(clt_weight_source *s) {
    return (clt_tensor_set){.path = s->path,
                            .ctx = s,
                            .count = set_count,
                            .at = set_at,
                            .find = set_find,
                            .read = set_read,
                            .tied_head = s->kind != CLT_SOURCE_CHECKPOINT};
}

clt_status clt_weight_source_load(clt_weight_source *s, const clt_slab_table *table,
                                  const clt_ckpt_part *parts, int n, const clt_load_options *opt) {
    if (s->ckpt && !s->n_replaced) return clt_ckpt_load(s->ckpt, table, parts, n, opt);
    clt_tensor_set set = set_of(s);
    return clt_tensor_set_load(&set, table, parts, n, opt);
}

clt_status clt_weight_source_check(clt_weight_source *s, const clt_slab_table *table, const char *role,
                                   const clt_load_options *opt) {
    clt_tensor_set set = set_of(s);
    CLT_TRY(clt_tensor_set_check(&set, table, role, opt));
    return clt_tensor_set_check_head(&set, table, opt);
}
