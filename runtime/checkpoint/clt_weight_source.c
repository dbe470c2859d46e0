#include "runtime/checkpoint/clt_weight_source.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/checkpoint/clt_ckpt_internal.h"
#include "runtime/checkpoint/clt_safetensors.h"

enum { CONFIG_LIMIT = 1 << 20, INDEX_LIMIT = 256 << 20, MAX_DEPTH = 32, MAX_SHARDS = 4096 };

/* A tensor of a safetensors file, under the name by which it is found. */
typedef struct {
    const char *name;      /* belongs to the shard or to `names` */
    const char *next_name; /* while names are replaced */
    int shard, tensor;
} view;

struct clt_weight_source {
    clt_source_kind kind;
    char *path, *model;
    clt_ckpt_reader *ckpt;
    clt_safetensors **shard;
    int shards;
    view *view; /* sorted by name */
    int views;
    clt_strv names; /* of clt_weight_source_use_names */
};

/* Composer writes "model." in front of every name. */
static const char *plain_name(const char *name) {
    return !strncmp(name, "model.transformer.", 18) || !strncmp(name, "model.lm_head.", 14) ? name + 6 : name;
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
    for (int i = 0; i < n; i++)
        s->view[s->views++] =
            (view){.name = plain_name(clt_safetensors_at(f, i)->name), .shard = s->shards, .tensor = i};
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
    for (int i = 0; i < s->shards; i++) clt_safetensors_close(s->shard[i]);
    clt_free(s->shard);
    clt_free(s->view);
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
    const clt_st_tensor *t = clt_safetensors_at(s->shard[s->view[i].shard], s->view[i].tensor);
    *out = (clt_ckpt_tensor){.name = s->view[i].name, .role = "weight", .dims = t->dims, .count = t->count};
    for (int d = 0; d < t->dims; d++) out->shape[d] = (int64_t)t->shape[d];
}

int clt_weight_source_find(const clt_weight_source *s, const char *role, const char *name) {
    if (s->ckpt) return clt_ckpt_find(s->ckpt, role, name);
    view key = {.name = name};
    if (strcmp(role, "weight") || !s->views) return -1;
    const view *v = bsearch(&key, s->view, (size_t)s->views, sizeof key, by_name);
    return v ? (int)(v - s->view) : -1;
}

void clt_weight_source_use_names(clt_weight_source *s, const clt_slab_table *table,
                                 clt_file_name_fn file_name, const void *ctx) {
    if (s->ckpt) return;
    for (int i = 0; i < table->n; i++) {
        int at = clt_weight_source_find(s, "weight", file_name(ctx, table->entry[i].name));
        if (at < 0) continue;
        clt_strv_add(&s->names, table->entry[i].name);
        s->view[at].next_name = s->names.v[s->names.n - 1];
    }
    for (int i = 0; i < s->views; i++) {
        if (s->view[i].next_name) s->view[i].name = s->view[i].next_name;
        s->view[i].next_name = NULL;
    }
    if (s->views > 1) qsort(s->view, (size_t)s->views, sizeof *s->view, by_name);
}

clt_status clt_weight_source_read(clt_weight_source *s, int i, uint64_t first, float *dst, uint64_t count) {
    if (s->ckpt) return clt_ckpt_read(s->ckpt, i, first, dst, count);
    return clt_safetensors_read_f32(s->shard[s->view[i].shard], s->view[i].tensor, first, dst, count);
}

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
    return (clt_tensor_set){
        s->path, s, set_count, set_at, set_find, set_read, s->kind != CLT_SOURCE_CHECKPOINT};
}

clt_status clt_weight_source_load(clt_weight_source *s, const clt_slab_table *table,
                                  const clt_ckpt_part *parts, int n, const clt_load_options *opt) {
    clt_tensor_set set = set_of(s);
    return clt_tensor_set_load(&set, table, parts, n, opt);
}

clt_status clt_weight_source_check(clt_weight_source *s, const clt_slab_table *table, const char *role,
                                   const clt_load_options *opt) {
    clt_tensor_set set = set_of(s);
    return clt_tensor_set_check(&set, table, role, opt);
}
