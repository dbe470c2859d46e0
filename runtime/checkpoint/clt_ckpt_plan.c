/* Which rank writes what of a checkpoint, and the lists of its manifest. */
#include <string.h>

#include "runtime/checkpoint/clt_ckpt_internal.h"

/* Counts chunks, and the elements that are on every rank, and allocates the plan. */
static clt_status allocate_plan(const clt_ckpt_writer_params *p, clt_ckpt_plan *out, uint64_t *elements) {
    const clt_slab_table *t = p->table;
    *elements = 0;
    for (int part = 0; part < p->part_count; part++)
        for (int e = 0; e < t->n; e++) {
            if (!p->parts[part].shards) *elements += t->entry[e].count;
            out->n += CLT_CEIL_DIV(t->entry[e].count, (uint64_t)CLT_CKPT_CHUNK);
        }
    out->item = clt_try_calloc(out->n, sizeof *out->item);
    return out->item ? CLT_OK : clt_no_memory("the plan of a checkpoint", out->n * sizeof *out->item);
}

clt_status clt_ckpt_plan_make(const clt_ckpt_writer_params *p, clt_ckpt_plan *out) {
    const clt_slab_table *t = p->table;
    const uint64_t size = (uint64_t)clt_ckpt_size(p->group);
    uint64_t elements, seen = 0, even = 0;
    size_t n = 0;
    CLT_TRY(clt_ckpt_check_shards(p->group, p->parts, p->part_count));
    CLT_TRY(allocate_plan(p, out, &elements));
    for (int part = 0; part < p->part_count; part++)
        for (int e = 0; e < t->n; e++)
            for (uint64_t first = 0; first < t->entry[e].count; first += CLT_CKPT_CHUNK) {
                const uint64_t count = CLT_MIN((uint64_t)CLT_CKPT_CHUNK, t->entry[e].count - first);
                const clt_shards *s = p->parts[part].shards;
                while (!s && even + 1 < size && seen >= elements / size * (even + 1)) even++;
                const int owner = s ? clt_shards_owner(s, t->entry[e].offset + first) : (int)even;
                out->item[n++] = (clt_ckpt_plan_item){part, e, owner, (uint32_t)count, first};
                out->mine += owner == clt_ckpt_rank(p->group);
                if (!s) seen += count;
            }
    return CLT_OK;
}

/* --- the manifest --- */

/* What the manifest lists. */
typedef struct {
    clt_man_tensor *tensor;
    clt_man_file *file;
    clt_man_chunk *chunk;
    size_t tensors, files;
} lists;

static void free_lists(lists *l) {
    for (size_t f = 0; f < l->files; f++) clt_free(l->file[f].name);
    clt_free(l->tensor);
    clt_free(l->file);
    clt_free(l->chunk);
}

static clt_status allocate_lists(const clt_ckpt_plan *plan, const clt_ckpt_writer_params *p, lists *l) {
    size_t ranks = (size_t)clt_ckpt_size(p->group);
    l->tensors = (size_t)p->part_count * (size_t)p->table->n;
    l->tensor = clt_try_calloc(l->tensors, sizeof *l->tensor);
    l->file = clt_try_calloc(ranks, sizeof *l->file);
    l->chunk = clt_try_calloc(plan->n, sizeof *l->chunk);
    if (l->tensor && l->file && l->chunk) return CLT_OK;
    return clt_no_memory("the lists of a checkpoint's manifest", l->tensors * sizeof *l->tensor +
                                                                     ranks * sizeof *l->file +
                                                                     plan->n * sizeof *l->chunk);
}

static void fill_lists(const clt_ckpt_plan *plan, const clt_ckpt_writer_params *p,
                       const clt_ckpt_commit *commit, const clt_ckpt_stored *rows, lists *l) {
    const clt_slab_table *t = p->table;
    for (size_t i = 0; i < l->tensors; i++) {
        const clt_slab_entry *e = &t->entry[i % (size_t)t->n];
        l->tensor[i] = (clt_man_tensor){
            .role = (char *)p->parts[i / (size_t)t->n].role, .name = e->name, .dims = e->dims};
        memcpy(l->tensor[i].shape, e->shape, sizeof e->shape);
    }
    const size_t ranks = (size_t)clt_ckpt_size(p->group);
    size_t *chunks = clt_calloc(ranks, sizeof *chunks), *row = clt_calloc(ranks, sizeof *row);
    uint32_t *file = clt_calloc(ranks, sizeof *file);
    for (size_t i = 0; i < plan->n; i++) chunks[plan->item[i].owner]++;
    for (size_t r = 0, rows_before = 0; r < ranks; rows_before += chunks[r++]) {
        row[r] = rows_before;
        file[r] = (uint32_t)l->files;
        if (chunks[r]) l->file[l->files++].name = commit->ops->file(commit, (int)r);
    }
    for (size_t i = 0; i < plan->n; i++) {
        const clt_ckpt_plan_item *c = &plan->item[i];
        l->chunk[i] = (clt_man_chunk){.tensor = (uint32_t)(c->part * t->n + c->entry),
                                      .file = file[c->owner],
                                      .count = c->count,
                                      .first = c->first,
                                      .at = rows[row[c->owner]++]};
        l->file[file[c->owner]].bytes += l->chunk[i].at.stored;
    }
    clt_free(file);
    clt_free(row);
    clt_free(chunks);
}

clt_status clt_ckpt_plan_manifest(const clt_ckpt_plan *plan, const clt_ckpt_writer_params *p,
                                  const clt_ckpt_commit *commit, const clt_ckpt_stored *rows, clt_str *head) {
    lists l = {0};
    clt_status st = allocate_lists(plan, p, &l);
    if (st == CLT_OK) {
        fill_lists(plan, p, commit, rows, &l);
        st = clt_manifest_lists(l.tensor, l.tensors, l.file, l.files, l.chunk, plan->n, head);
    }
    if (st == CLT_OK) clt_manifest_seal(head);
    free_lists(&l);
    return st;
}
