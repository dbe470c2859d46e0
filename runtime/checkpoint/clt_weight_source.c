#include "runtime/checkpoint/clt_weight_source.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/checkpoint/clt_ckpt_internal.h"
#include "runtime/checkpoint/clt_safetensors.h"

enum { CONFIG_LIMIT = 1 << 20, INDEX_LIMIT = 256 << 20, MAX_DEPTH = 32, MAX_SHARDS = 4096 };

/* A tensor of a safetensors file, or of a model that a map makes of some. */
typedef struct {
    const char *name;  /* under which it is found; belongs to the shard, to `names` or is static */
    int shard, tensor; /* shard -1: tensor is an index of the map's model, with this shape: */
    int dims;
    int64_t shape[CLT_MAX_DIMS];
    float *values; /* clt_weight_source_replace; NULL: those of the file */
} view;

struct clt_weight_source {
    clt_source_kind kind;
    char *path, *model;
    clt_ckpt_reader *ckpt;
    clt_safetensors **shard;
    int shards;
    view *view; /* sorted by name */
    int views;
    view *file; /* with a map: the files' tensors, [mapper.map->files], in the order of the map */
    clt_weight_map *map;
    clt_weight_mapper mapper;
    clt_strv names; /* of the map's model, and those that files have without a prefix */
};

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
    if (!strncmp(name, "model.transformer.", 18) || !strncmp(name, "model.lm_head.", 14)) return name + 6;
    for (size_t i = 0; i < CLT_COUNT_OF(body); i++) {
        if (strncmp(name, body[i], strlen(body[i])) != 0 || is_timm(name)) continue;
        clt_strv_add_owned(&s->names, clt_format("transformer.%s", name));
        return s->names.v[s->names.n - 1];
    }
    return name;
}

static int by_name(const void *a, const void *b) {
    const view *x = a, *y = b;
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
    view *views = clt_try_realloc(s->view, (size_t)(s->views + n) * sizeof *views);
    if (!views) {
        clt_safetensors_close(f);
        return clt_no_memory(path, (size_t)(s->views + n) * sizeof *views);
    }
    s->view = views;
    for (int i = 0; i < n; i++) {
        const clt_st_tensor *t = clt_safetensors_at(f, i);
        view *v = &s->view[s->views++];
        *v = (view){.name = plain_name(s, t->name), .shard = s->shards, .tensor = i, .dims = t->dims};
        for (int d = 0; d < t->dims; d++) v->shape[d] = (int64_t)t->shape[d];
    }
    s->shard[s->shards++] = f;
    return CLT_OK;
}

static clt_status finish_views(clt_weight_source *s) {
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

static clt_status open_hf(clt_weight_source *s) {
    char *config = clt_path_join(s->path, "config.json"), *one = clt_path_join(s->path, "model.safetensors");
    char *index = clt_path_join(s->path, "model.safetensors.index.json");
    json_t *root = NULL;
    s->kind = CLT_SOURCE_HF;
    clt_status st = clt_json_load(config, CONFIG_LIMIT, MAX_DEPTH, &root);
    if (st == CLT_OK) {
        st = json_is_object(root) ? clt_json_dump(root, config, &s->model)
                                  : clt_error(CLT_BAD_DATA, "%s: not a JSON object", config);
        json_decref(root);
    }
    if (st == CLT_OK) st = clt_io_is_file(one) ? add_shard(s, one) : open_sharded(s, index);
    if (st == CLT_OK) st = finish_views(s);
    clt_free(config);
    clt_free(one);
    clt_free(index);
    return st;
}

static clt_status open_checkpoint(clt_weight_source *s) {
    s->kind = CLT_SOURCE_CHECKPOINT;
    CLT_TRY(clt_ckpt_open(s->path, &s->ckpt));
    const char *model = clt_ckpt_state(s->ckpt)->model;
    s->model = model ? clt_strdup(model) : NULL;
    return CLT_OK;
}

static clt_status open_any(clt_weight_source *s) {
    char *manifest = clt_path_join(s->path, CLT_MANIFEST);
    clt_status st;
    if (clt_io_is_file(manifest)) {
        st = open_checkpoint(s);
    } else if (clt_io_is_dir(s->path)) {
        st = open_hf(s);
    } else {
        s->kind = CLT_SOURCE_SAFETENSORS;
        st = add_shard(s, s->path);
        if (st == CLT_OK) st = finish_views(s);
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
    for (int i = 0; i < s->views; i++) clt_free(s->view[i].values);
    for (int i = 0; i < s->shards; i++) clt_safetensors_close(s->shard[i]);
    clt_free(s->shard);
    clt_free(s->view);
    clt_free(s->file);
    clt_weight_mapper_free(&s->mapper);
    clt_weight_map_free(s->map);
    clt_strv_free(&s->names);
    clt_free(s->path);
    clt_free(s->model);
    clt_free(s);
}

/* --- tensors --- */

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
int clt_weight_source_count(const clt_weight_source *s) {
    return s->ckpt ? clt_ckpt_count(s->ckpt) : s->views;
}

void clt_weight_source_at(const clt_weight_source *s, int i, clt_ckpt_tensor *out) {
    if (s->ckpt) {
        clt_ckpt_at(s->ckpt, i, out);
        return;
    }
    const view *v = &s->view[i];
    *out = (clt_ckpt_tensor){.name = v->name, .role = "weight", .dims = v->dims, .count = 1};
    for (int d = 0; d < v->dims; d++) out->count *= (uint64_t)(out->shape[d] = v->shape[d]);
}

int clt_weight_source_find(const clt_weight_source *s, const char *role, const char *name) {
    if (s->ckpt) return clt_ckpt_find(s->ckpt, role, name);
    view key = {.name = name};
    if (strcmp(role, "weight") || !s->views) return -1;
    const view *v = bsearch(&key, s->view, (size_t)s->views, sizeof key, by_name);
    return v ? (int)(v - s->view) : -1;
}

static clt_status read_file(clt_weight_source *s, const view *v, uint64_t first, float *dst, uint64_t count) {
    return clt_safetensors_read_f32(s->shard[v->shard], v->tensor, first, dst, count);
}

clt_status clt_weight_source_read(clt_weight_source *s, int i, uint64_t first, float *dst, uint64_t count) {
    if (s->ckpt) return clt_ckpt_read(s->ckpt, i, first, dst, count);
    const view *v = &s->view[i];
    if (v->values) {
        memcpy(dst, v->values + first, count * sizeof *dst);
        return CLT_OK;
    }
    if (v->shard >= 0) return read_file(s, v, first, dst, count);
    return clt_weight_mapper_read(&s->mapper, v->tensor, first, dst, count);
}

void clt_weight_source_replace(clt_weight_source *s, int i, const int64_t *shape, float *values) {
    if (s->ckpt) {
        clt_free(values);
        return;
    }
    view *v = &s->view[i];
    memcpy(v->shape, shape, (size_t)v->dims * sizeof *shape);
    clt_free(v->values);
    v->values = values;
}

/* --- a model of another layout --- */

/* Whether a name of a file is this one; names in files may lack the map's prefix. */
static int find_file(const clt_weight_source *s, const clt_weight_map *m, const char *name) {
    const size_t prefix = strlen(m->prefix);
    int i = clt_weight_source_find(s, "weight", name);
    if (i < 0 && prefix && !strncmp(name, m->prefix, prefix))
        i = clt_weight_source_find(s, "weight", name + prefix);
    return i;
}

static bool is_ignored(const clt_weight_map *m, const char *name) {
    for (int i = 0; m->ignored && m->ignored[i]; i++)
        if (fnmatch(m->ignored[i], name, 0) == 0) return true;
    return false;
}

/* Whether every tensor of the model that needs this one keeps its value. */
static bool is_unneeded(const clt_weight_map *m, const clt_slab_table *t, int file,
                        const clt_load_options *opt) {
    for (int i = 0; i < m->parts; i++)
        if (m->part[i].file == file && !clt_load_ignores(opt, "weight", t->entry[m->part[i].tensor].name))
            return false;
    return true;
}

static clt_status check_file(const clt_weight_source *s, const clt_map_file *f, const view *v) {
    if (v->dims == f->dims && !memcmp(v->shape, f->shape, (size_t)f->dims * sizeof *f->shape)) return CLT_OK;
    char *have = clt_shape_text(v->dims, v->shape), *want = clt_shape_text(f->dims, f->shape);
    clt_status st =
        clt_error(CLT_BAD_DATA, "%s: tensor '%s' has shape %s, the model of its config.json needs %s",
                  s->path, v->name, have, want);
    clt_free(have);
    clt_free(want);
    return st;
}

/* Finds the files' tensors; used[i]: view i is one of them. s->file[i].name is NULL where one is missing. */
static clt_status find_files(clt_weight_source *s, const clt_weight_map *m, const clt_slab_table *t,
                             const clt_load_options *opt, bool *used) {
    for (int i = 0; i < m->files; i++) {
        const int at = find_file(s, m, m->file[i].name);
        if (at < 0) {
            if (is_unneeded(m, t, i, opt)) continue;
            if (opt && opt->loose) continue; /* the load names the model's tensor */
            return clt_error(CLT_BAD_DATA,
                             "%s: tensor '%s' is missing, which the model of its config.json has", s->path,
                             m->file[i].name);
        }
        CLT_TRY(check_file(s, &m->file[i], &s->view[at]));
        s->file[i] = s->view[at];
        used[at] = true;
    }
    return CLT_OK;
}

/* Whether all files of this tensor of the model were found. */
static bool is_complete(const clt_weight_source *s, const clt_weight_map *m, int tensor) {
    bool any = false;
    for (int i = 0; i < m->parts; i++) {
        if (m->part[i].tensor != tensor) continue;
        if (!s->file[m->part[i].file].name) return false;
        any = true;
    }
    return any;
}

/* The model's tensors, and those of the files that are none of them, under their own names; the head of a
 * tied model under the name that a load compares with the embedding. */
static clt_status replace_views(clt_weight_source *s, const clt_weight_map *m, const clt_slab_table *t,
                                const bool *used) {
    view *views = clt_try_calloc((size_t)(s->views + t->n), sizeof *views);
    int n = 0;
    if (!views) return clt_no_memory(s->path, (size_t)(s->views + t->n) * sizeof *views);
    for (int e = 0; e < t->n; e++) {
        const clt_slab_entry *x = &t->entry[e];
        if (!is_complete(s, m, e)) continue;
        clt_strv_add(&s->names, x->name);
        view v = {.name = s->names.v[s->names.n - 1], .shard = -1, .tensor = e, .dims = x->dims};
        memcpy(v.shape, x->shape, (size_t)x->dims * sizeof *x->shape);
        views[n++] = v;
    }
    for (int i = 0; i < s->views; i++) {
        if (used[i] || is_ignored(m, s->view[i].name)) continue;
        views[n] = s->view[i];
        if (!strcmp(s->view[i].name, m->head)) views[n].name = "lm_head.weight";
        n++;
    }
    clt_free(s->view);
    s->view = views;
    s->views = n;
    return finish_views(s);
}

static clt_status read_mapped(void *ctx, int file, uint64_t first, float *dst, uint64_t count) {
    clt_weight_source *s = ctx;
    return read_file(s, &s->file[file], first, dst, count);
}

clt_status clt_weight_source_use_map(clt_weight_source *s, const clt_slab_table *table, clt_weight_map *map,
                                     const clt_load_options *opt) {
    if (s->ckpt || !map) {
        clt_weight_map_free(map);
        return CLT_OK;
    }
    s->map = map;
    s->file = clt_calloc((size_t)map->files, sizeof *s->file);
    bool *used = clt_calloc((size_t)s->views + 1, sizeof *used);
    clt_status st = find_files(s, map, table, opt, used);
    if (st == CLT_OK) st = replace_views(s, map, table, used);
    clt_free(used);
    s->mapper = (clt_weight_mapper){.map = map, .read = read_mapped, .ctx = s};
    return st;
}

const char *clt_weight_source_dtype(const clt_weight_source *s) {
    const view *v = s->map ? s->file : s->view;
    int bf16 = 0, f16 = 0, all = 0;
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
    if (s->ckpt) return clt_ckpt_load(s->ckpt, table, parts, n, opt);
    clt_tensor_set set = set_of(s);
    return clt_tensor_set_load(&set, table, parts, n, opt);
}

clt_status clt_weight_source_check(clt_weight_source *s, const clt_slab_table *table, const char *role,
                                   const clt_load_options *opt) {
    clt_tensor_set set = set_of(s);
    CLT_TRY(clt_tensor_set_check(&set, table, role, opt));
    return clt_tensor_set_check_head(&set, table, opt);
}
