/* Tensors of other programs' files in the layout of a model. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/checkpoint/clt_ckpt_internal.h"
#include "runtime/checkpoint/clt_weight_source_internal.h"

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

/* A vector of as many elements gets the shape that is asked for. */
static void give_shape(clt_view *v, int dims, const int64_t *shape) {
    int64_t count = 1;
    for (int d = 0; d < dims; d++) count *= shape[d];
    if (!v->flat || v->shape[0] != count) return;
    v->flat = false;
    v->dims = dims;
    memcpy(v->shape, shape, (size_t)dims * sizeof *shape);
}

static clt_status check_file(const clt_weight_source *s, const clt_map_file *f, clt_view *v) {
    give_shape(v, f->dims, f->shape);
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
    clt_view *views = clt_try_calloc((size_t)(s->views + t->n), sizeof *views);
    int n = 0;
    if (!views) return clt_no_memory(s->path, (size_t)(s->views + t->n) * sizeof *views);
    for (int e = 0; e < t->n; e++) {
        const clt_slab_entry *x = &t->entry[e];
        if (!is_complete(s, m, e)) continue;
        clt_strv_add(&s->names, x->name);
        clt_view v = {.name = s->names.v[s->names.n - 1], .shard = -1, .tensor = e, .dims = x->dims};
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
    return clt_source_finish_views(s);
}

static clt_status read_mapped(void *ctx, int file, uint64_t first, float *dst, uint64_t count) {
    const clt_role_reader *r = ctx;
    return clt_source_read_file(r->source, &r->source->file[file], r->role, first, dst, count);
}

clt_status clt_weight_source_use_map(clt_weight_source *s, const clt_slab_table *table, clt_weight_map *map,
                                     const clt_load_options *opt) {
    if (s->ckpt || !map) {
        clt_weight_map_free(map);
        for (int i = 0; i < s->views; i++) {
            const int e = clt_slab_table_find(table, s->view[i].name);
            if (e >= 0) give_shape(&s->view[i], table->entry[e].dims, table->entry[e].shape);
        }
        return CLT_OK;
    }
    s->map = map;
    s->file = clt_calloc((size_t)map->files, sizeof *s->file);
    bool *used = clt_calloc((size_t)s->views + 1, sizeof *used);
    clt_status st = find_files(s, map, table, opt, used);
    if (st == CLT_OK) st = replace_views(s, map, table, used);
    clt_free(used);
    for (int r = 0; r < CLT_SOURCE_ROLES; r++) {
        s->reader[r] = (clt_role_reader){.source = s, .role = r};
        s->mapper[r] = (clt_weight_mapper){.map = map, .read = read_mapped, .ctx = &s->reader[r]};
    }
    return st;
}
