#include "runtime/checkpoint/clt_ckpt_internal.h"

#include <fnmatch.h>
#include <string.h>

#include "runtime/base/clt_signal.h"

/* --- parts --- */

clt_status clt_ckpt_check_shards(const clt_group *g, const clt_ckpt_part *parts, int n) {
    for (int p = 0; p < n; p++) {
        const clt_shards *s = parts[p].shards;
        if (s && s->ranks != clt_ckpt_size(g))
            return clt_error(CLT_FAIL, "part '%s' is sharded over %d ranks, its group has %d; this is a bug",
                             parts[p].role, s->ranks, clt_ckpt_size(g));
    }
    return CLT_OK;
}

clt_status clt_ckpt_part_read(const clt_ckpt_part *p, const clt_slab_table *t, int entry, uint64_t first,
                              float *dst, uint64_t count) {
    if (p->read) return p->read(p->ctx, entry, first, dst, count);
    uint64_t at = t->entry[entry].offset + first;
    if (p->slab) return clt_slab_read(p->slab, at, dst, count);
    memcpy(dst, p->host + at, count * sizeof *dst);
    return CLT_OK;
}

/* Whether this rank keeps any of these elements. */
static bool wanted(const clt_ckpt_part *p, const clt_slab_entry *e, uint64_t first, uint64_t count) {
    return !p->slab || clt_slab_touches(p->slab, e->offset + first, count);
}

clt_status clt_ckpt_part_write(const clt_ckpt_part *p, const clt_slab_table *t, int entry, uint64_t first,
                               const float *src, uint64_t count) {
    uint64_t at = t->entry[entry].offset + first;
    if (p->write) return p->write(p->ctx, entry, first, src, count);
    if (p->slab) return clt_slab_write(p->slab, at, src, count);
    memcpy(p->host + at, src, count * sizeof *src);
    return CLT_OK;
}

/* --- load --- */

/* A pattern matches a path or a folder above it: "state/optimizers" skips all moments. */
static bool matches_path(const char *pattern, char *path) {
    bool found = fnmatch(pattern, path, 0) == 0;
    for (char *s = path; (s = strchr(s, '/')) && !found; s++) {
        *s = 0;
        found = fnmatch(pattern, path, 0) == 0;
        *s = '/';
    }
    return found;
}

/* The paths of a tensor in Composer's checkpoints, where names may begin with "model.". */
static bool matches(const char *pattern, const char *role, const char *name) {
    static const char *const optimizers[] = {"DecoupledAdamW", "DecoupledLionW"}, *const prefixes[] = {
                                                                                      "", "model."};
    if (fnmatch(pattern, name, 0) == 0) return true;
    bool yes = false;
    for (size_t p = 0; p < CLT_COUNT_OF(prefixes) && !yes; p++)
        for (size_t o = 0; o < CLT_COUNT_OF(optimizers) && !yes; o++) {
            char *path = strcmp(role, "weight") == 0 ? clt_format("state/model/%s%s", prefixes[p], name)
                                                     : clt_format("state/optimizers/%s/state/%s%s/%s",
                                                                  optimizers[o], prefixes[p], name, role);
            yes = matches_path(pattern, path);
            clt_free(path);
        }
    return yes;
}

bool clt_load_ignores(const clt_load_options *opt, const char *role, const char *name) {
    for (int i = 0; opt && i < opt->ignore_count; i++)
        if (matches(opt->ignore[i], role, name)) return true;
    return false;
}

/* A pattern that matches nothing is probably mistyped. */
static void warn_unused(const clt_tensor_set *set, const clt_slab_table *table, const clt_ckpt_part *parts,
                        int n, const clt_load_options *opt) {
    for (int i = 0; opt && i < opt->ignore_count; i++) {
        bool used = false;
        for (int p = 0; p < n && !used; p++)
            for (int e = 0; e < table->n && !used; e++)
                used = matches(opt->ignore[i], parts[p].role, table->entry[e].name);
        for (int k = 0, all = set->count(set->ctx); k < all && !used; k++) {
            clt_ckpt_tensor t;
            set->at(set->ctx, k, &t);
            used = matches(opt->ignore[i], t.role, t.name);
        }
        if (!used)
            clt_warn("load_ignore_keys: pattern '%s' matches no tensor; nothing is skipped", opt->ignore[i]);
    }
}

char *clt_shape_text(int dims, const int64_t *shape) {
    clt_str s = {0};
    clt_str_add(&s, "[");
    for (int d = 0; d < dims; d++) clt_str_addf(&s, "%s%lld", d ? ", " : "", (long long)shape[d]);
    clt_str_add(&s, "]");
    return s.s;
}

/* Compares the shapes of the set's tensor and the entry; prints the difference. */
static clt_status check_shape(const clt_tensor_set *set, const clt_slab_entry *e, const clt_ckpt_tensor *t) {
    if (e->dims == t->dims && !memcmp(e->shape, t->shape, (size_t)e->dims * sizeof *e->shape)) return CLT_OK;
    char *want = clt_shape_text(e->dims, e->shape), *have = clt_shape_text(t->dims, t->shape);
    clt_status st = clt_error(
        CLT_BAD_DATA, "%s belongs to another model: tensor '%s' (%s) has shape %s, this model needs %s",
        set->path, t->name, t->role, have, want);
    clt_free(want);
    clt_free(have);
    return st;
}

/* Reports the first difference in table order: missing tensors and other shapes, then tensors that the model
 * does not have. */
clt_status clt_tensor_set_check(const clt_tensor_set *set, const clt_slab_table *table, const char *role,
                                const clt_load_options *opt) {
    bool loose = opt && opt->loose;
    for (int e = 0; e < table->n; e++) {
        const char *name = table->entry[e].name;
        int i = set->find(set->ctx, role, name);
        clt_ckpt_tensor t;
        if (clt_load_ignores(opt, role, name)) continue;
        if (i < 0 && !loose)
            return clt_error(CLT_BAD_DATA, "%s belongs to another model: tensor '%s' (%s) is missing",
                             set->path, name, role);
        if (i < 0) {
            clt_warn("%s has no tensor '%s' (%s); it keeps its initial value", set->path, name, role);
            continue;
        }
        set->at(set->ctx, i, &t);
        CLT_TRY(check_shape(set, &table->entry[e], &t));
    }
    for (int i = 0, n = set->count(set->ctx); i < n; i++) {
        clt_ckpt_tensor t;
        set->at(set->ctx, i, &t);
        if (strcmp(t.role, role) || clt_slab_table_find(table, t.name) >= 0 ||
            clt_load_ignores(opt, role, t.name))
            continue;
        if (set->tied_head && !strcmp(t.name, "lm_head.weight")) continue;
        if (!loose)
            return clt_error(CLT_BAD_DATA, "%s belongs to another model: this model has no tensor '%s' (%s)",
                             set->path, t.name, role);
        clt_warn("%s: tensor '%s' (%s) is not used by this model", set->path, t.name, role);
    }
    return CLT_OK;
}

/* An lm_head.weight beside the embedding, which this model uses as its head, is a copy of it; otherwise the
 * weights belong to a model with a separate head. */
clt_status clt_tensor_set_check_head(const clt_tensor_set *set, const clt_slab_table *table,
                                     const clt_load_options *opt) {
    static const char head[] = "lm_head.weight", embedding[] = "transformer.wte.weight";
    const int h = set->find(set->ctx, "weight", head), w = set->find(set->ctx, "weight", embedding);
    clt_ckpt_tensor t, u;
    if (!set->tied_head || h < 0 || w < 0 || clt_slab_table_find(table, head) >= 0) return CLT_OK;
    if (clt_load_ignores(opt, "weight", head) || clt_load_ignores(opt, "weight", embedding)) return CLT_OK;
    set->at(set->ctx, h, &t);
    set->at(set->ctx, w, &u);
    const uint64_t count = t.count;
    float *a = clt_try_malloc(2 * CLT_CKPT_CHUNK * sizeof *a), *b;
    if (!a) return clt_no_memory("two chunks of a state", 2 * CLT_CKPT_CHUNK * sizeof *a);
    b = a + CLT_CKPT_CHUNK;
    bool same = count == u.count;
    clt_status st = CLT_OK;
    for (uint64_t at = 0; at < count && same && st == CLT_OK; at += CLT_CKPT_CHUNK) {
        const uint64_t n = CLT_MIN((uint64_t)CLT_CKPT_CHUNK, count - at);
        st = set->read(set->ctx, h, at, a, n);
        if (st == CLT_OK) st = set->read(set->ctx, w, at, b, n);
        if (st == CLT_OK) same = memcmp(a, b, n * sizeof *a) == 0;
    }
    clt_free(a);
    if (st != CLT_OK || same) return st;
    if (opt && opt->loose) {
        clt_warn("%s: '%s' differs from '%s' and is not used by this model", set->path, head, embedding);
        return CLT_OK;
    }
    return clt_error(CLT_BAD_DATA,
                     "%s belongs to another model: its '%s' differs from '%s', and this model has one tensor "
                     "for both (tie_word_embeddings)",
                     set->path, head, embedding);
}

/* What a load does with the elements of one chunk of the table: tensor i of the set, entry e. */
typedef struct {
    const clt_tensor_set *set;
    const clt_slab_table *table;
    const clt_ckpt_part *part;
    float *block; /* NULL: only tells the set what will be read */
} loading;

static clt_status load_elements(const loading *l, int i, int e, uint64_t at, uint64_t n) {
    if (!l->block) {
        l->set->expect(l->set->ctx, i, at, n);
        return CLT_OK;
    }
    if (clt_signal_received()) return CLT_STOPPED;
    CLT_TRY(l->set->read(l->set->ctx, i, at, l->block, n));
    return clt_ckpt_part_write(l->part, l->table, e, at, l->block, n);
}

static clt_status load_role(const loading *l, const clt_load_options *opt) {
    for (int e = 0; e < l->table->n; e++) {
        const clt_slab_entry *t = &l->table->entry[e];
        int i = l->set->find(l->set->ctx, l->part->role, t->name);
        if (i < 0 || clt_load_ignores(opt, l->part->role, t->name)) continue;
        for (uint64_t at = 0; at < t->count; at += CLT_CKPT_CHUNK) {
            uint64_t n = CLT_MIN((uint64_t)CLT_CKPT_CHUNK, t->count - at);
            if (wanted(l->part, t, at, n)) CLT_TRY(load_elements(l, i, e, at, n));
        }
    }
    return CLT_OK;
}

static clt_status load_parts(loading *l, const clt_ckpt_part *parts, int n, const clt_load_options *opt) {
    clt_status st = CLT_OK;
    for (int p = 0; p < n && st == CLT_OK; p++) {
        l->part = &parts[p];
        st = load_role(l, opt);
    }
    return st;
}

clt_status clt_tensor_set_load(const clt_tensor_set *set, const clt_slab_table *table,
                               const clt_ckpt_part *parts, int n, const clt_load_options *opt) {
    for (int p = 0; p < n; p++) CLT_TRY(clt_tensor_set_check(set, table, parts[p].role, opt));
    warn_unused(set, table, parts, n, opt);
    CLT_TRY(clt_tensor_set_check_head(set, table, opt));
    loading l = {.set = set, .table = table};
    float *block = clt_try_malloc(CLT_CKPT_CHUNK * sizeof *block);
    if (!block) return clt_no_memory("a chunk of a state", CLT_CKPT_CHUNK * sizeof *block);
    if (set->expect) {
        (void)load_parts(&l, parts, n, opt);
        set->begin(set->ctx);
    }
    l.block = block;
    clt_status st = load_parts(&l, parts, n, opt);
    clt_free(block);
    return st;
}
