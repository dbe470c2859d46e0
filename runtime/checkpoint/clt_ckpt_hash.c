#include "runtime/checkpoint/clt_ckpt_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MESSAGE = 4 * CLT_CHUNK }; /* elements that an owner sends at once: 1 MiB */

/* --- elements of sharded parts --- */

/* Elements [first, first + count) of a tensor, at most a chunk, into dst: from this rank's part, or from
 * their owner. A rank that has failed (*st) reads nothing more, but goes on to exchange, so that no other
 * rank waits for it. Returns errors of the group; one of the part is kept in *st. */
static clt_status fetch(clt_group *group, const clt_slab_table *table, const clt_ckpt_part *part, int entry,
                        uint64_t first, float *dst, uint64_t count, clt_status *st) {
    const int rank = clt_ckpt_rank(group);
    const int owner =
        part->shards ? clt_shards_owner(part->shards, table->entry[entry].offset + first) : rank;
    if (owner == rank && *st == CLT_OK) *st = clt_ckpt_part_read(part, table, entry, first, dst, count);
    for (uint64_t at = 0; part->shards && group && at < count; at += MESSAGE) {
        const uint64_t n = CLT_MIN((uint64_t)MESSAGE, count - at);
        CLT_TRY(clt_group_broadcast(group, owner, dst + at, n * sizeof *dst));
    }
    return CLT_OK;
}

clt_status clt_ckpt_gather(clt_group *group, const clt_slab_table *table, const clt_ckpt_part *part,
                           int entry, float *dst) {
    const uint64_t all = table->entry[entry].count;
    clt_status st = CLT_OK;
    CLT_TRY(clt_ckpt_check_shards(group, part, 1));
    for (uint64_t at = 0; at < all; at += CLT_CKPT_CHUNK)
        CLT_TRY(
            fetch(group, table, part, entry, at, dst + at, CLT_MIN((uint64_t)CLT_CKPT_CHUNK, all - at), &st));
    return part->shards ? clt_ckpt_agree(group, st) : st;
}

/* --- the hash --- */

/* A walk through a state, in the same order on every rank. */
typedef struct {
    clt_group *group;
    const clt_slab_table *table;
    float *block;  /* a chunk */
    clt_status st; /* of this rank's parts; nothing is hashed after a failure */
} walk;

static void hash_u64(clt_hash_state *h, uint64_t v) {
    unsigned char raw[8];
    for (int i = 0; i < 8; i++) raw[i] = (unsigned char)(v >> (8 * i));
    clt_hash_add(h, raw, sizeof raw);
}

static clt_status add_role(walk *w, const clt_ckpt_part *part, clt_hash_state *h) {
    for (int e = 0; e < w->table->n; e++) {
        const clt_slab_entry *t = &w->table->entry[e];
        clt_hash_add(h, part->role, strlen(part->role) + 1);
        clt_hash_add(h, t->name, strlen(t->name) + 1);
        hash_u64(h, (uint64_t)t->dims);
        for (int d = 0; d < t->dims; d++) hash_u64(h, (uint64_t)t->shape[d]);
        for (uint64_t at = 0; at < t->count; at += CLT_CKPT_CHUNK) {
            const uint64_t n = CLT_MIN((uint64_t)CLT_CKPT_CHUNK, t->count - at);
            CLT_TRY(fetch(w->group, w->table, part, e, at, w->block, n, &w->st));
            if (w->st == CLT_OK) clt_hash_add(h, w->block, n * sizeof *w->block);
        }
    }
    return CLT_OK;
}

static clt_status begin_walk(walk *w) {
    const size_t bytes = CLT_CKPT_CHUNK * sizeof *w->block;
    w->block = clt_try_calloc(CLT_CKPT_CHUNK, sizeof *w->block);
    return w->block ? CLT_OK : clt_no_memory("a chunk of a state", bytes);
}

clt_status clt_ckpt_hash_role(const clt_slab_table *table, const clt_ckpt_part *part, clt_hash_state *h) {
    walk w = {.table = table};
    CLT_TRY(begin_walk(&w));
    const clt_status st = add_role(&w, part, h);
    clt_free(w.block);
    return st == CLT_OK ? w.st : st;
}

static int by_role(const void *a, const void *b) {
    const clt_ckpt_part *x = *(const clt_ckpt_part *const *)a, *y = *(const clt_ckpt_part *const *)b;
    return strcmp(x->role, y->role);
}

/* All parts, in the order of the hash. */
static clt_status hash_parts(walk *w, const clt_ckpt_part *parts, int n, clt_state_hash *out) {
    clt_hash_state *weights = clt_hash_begin(), *optimizer = clt_hash_begin();
    const clt_ckpt_part **sorted = clt_calloc((size_t)n, sizeof *sorted);
    clt_status st = CLT_OK;
    *out = (clt_state_hash){.has_optimizer = false};
    for (int i = 0; i < n; i++) sorted[i] = &parts[i];
    if (n > 1) qsort(sorted, (size_t)n, sizeof *sorted, by_role);
    for (int i = 0; i < n && st == CLT_OK; i++) {
        const bool weight = !strcmp(sorted[i]->role, "weight");
        out->has_optimizer |= !weight;
        st = add_role(w, sorted[i], weight ? weights : optimizer);
    }
    out->weights = clt_hash_end(weights);
    out->optimizer = clt_hash_end(optimizer);
    clt_free(sorted);
    return st;
}

clt_status clt_ckpt_hash_parts(clt_group *group, const clt_slab_table *table, const clt_ckpt_part *parts,
                               int n, clt_state_hash *out) {
    walk w = {.table = table};
    for (int i = 0; i < n; i++)
        if (parts[i].shards) w.group = group;
    clt_state_hash h;
    CLT_TRY(clt_ckpt_check_shards(group, parts, n));
    clt_status st = clt_ckpt_agree(w.group, begin_walk(&w));
    if (st == CLT_OK) st = hash_parts(&w, parts, n, &h);
    if (st == CLT_OK) st = clt_ckpt_agree(w.group, w.st);
    clt_free(w.block);
    if (st == CLT_OK) *out = h;
    return st;
}
