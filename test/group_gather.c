#include "test/group_gather.h"

#include <string.h>

#include "collectives/clt_reduce.h"
#include "test/group_data.h"
#include "test/lane_total.h"

typedef struct {
    clt_shards shards, keep;
    int number; /* of this rank in its group */
    clt_group *ranks, *replicas;
    clt_reduce_plan *all, *inside, *between;
    clt_slab *kept, *whole, *other;
    float *want; /* the whole slab */
} rig;

static void open_plans(clt_device *dev, int each, rig *g) {
    ok(clt_group_split(group, rank / each, 0, &g->ranks), "split");
    ok(clt_group_split(group, g->number, 0, &g->replicas), "split");
    ok(clt_gather_plan_create(group, dev, &g->shards, 1, 0, &g->all), "plan of all ranks");
    ok(clt_gather_plan_create(g->ranks, dev, &g->keep, 1, 0, &g->inside), "plan inside a group");
    ok(clt_gather_plan_create(g->replicas, dev, &g->shards, each, g->number, &g->between),
       "plan between groups");
}

static void open_rig(clt_device *dev, const clt_slab_table *t, int each, rig *g) {
    ok(clt_shards_create(t, size, NULL, &g->shards), "shards");
    g->keep = clt_shards_of_group(&g->shards, each);
    g->number = rank % each;
    open_plans(dev, each, g);
    ok(clt_slab_create_shard(dev, t, &g->keep, g->number, 4, "kept", &g->kept), "shard");
    ok(clt_slab_create(dev, t, 0, "whole", &g->whole), "slab");
    ok(clt_slab_create(dev, t, 0, "other", &g->other), "slab");
    g->want = clt_malloc(t->total * sizeof *g->want);
    lt_values(0, 0, t->total, g->want);
}

static void close_rig(rig *g) {
    clt_reduce_plan *plans[] = {g->all, g->inside, g->between};
    clt_slab *slabs[] = {g->kept, g->whole, g->other};
    for (size_t i = 0; i < CLT_COUNT_OF(plans); i++) clt_reduce_plan_destroy(plans[i]);
    for (size_t i = 0; i < CLT_COUNT_OF(slabs); i++) clt_slab_destroy(slabs[i]);
    clt_group_destroy(g->replicas);
    clt_group_destroy(g->ranks);
    clt_shards_free(&g->shards);
    clt_free(g->want);
}

/* What this rank owns of all. */
static void write_own(const rig *g, clt_slab *s) {
    for (int b = 0; b < g->shards.buckets; b++) {
        const clt_slab_range x = clt_shards_range(&g->shards, b, rank);
        ok(clt_slab_write(s, x.first, g->want + x.first, x.count), "slab_write");
    }
}

/* What `who` has of s. */
static void compare(const rig *g, const clt_slab *s, const clt_shards *shards, int who, const char *what) {
    float *got = clt_malloc(s->table->total * sizeof *got);
    for (int b = 0; b < shards->buckets; b++) {
        const clt_slab_range x = clt_shards_range(shards, b, who);
        ok(clt_slab_read(s, x.first, got, x.count), "slab_read");
        check(memcmp(got, g->want + x.first, x.count * sizeof *got) == 0, what, b, who, (int64_t)x.count);
    }
    clt_free(got);
}

static int64_t gather(clt_reduce_plan *p, const clt_shards *s, clt_slab *from, clt_slab *to) {
    int64_t op = 0;
    for (int b = 0; b < s->buckets; b++)
        ok(clt_gather_begin(p, clt_whole_bucket(b), from, to, CLT_GATHER_AS_IT_IS, NULL, 0, &op), "gather");
    return op;
}

/* Owners hand their ranges to the replicas, and those hand what they keep to their groups, while a gather
 * over all ranks is on its way. */
void test_gathers_in_groups(clt_device *dev, const clt_slab_table *t, int each) {
    rig g = {0};
    if (each >= size || size % each) return;
    open_rig(dev, t, each, &g);
    write_own(&g, g.other);
    const int64_t last = gather(g.all, &g.shards, g.other, g.other);
    write_own(&g, g.kept);
    ok(clt_exchange_join(g.between, gather(g.between, &g.shards, g.kept, g.kept)), "join");
    compare(&g, g.kept, &g.keep, g.number, "gather between groups");
    ok(clt_exchange_join(g.inside, gather(g.inside, &g.keep, g.kept, g.whole)), "join");
    ok(clt_exchange_join(g.all, last), "join");
    for (int r = 0; r < size; r++) compare(&g, g.whole, &g.shards, r, "gather inside a group");
    for (int r = 0; r < size; r++) compare(&g, g.other, &g.shards, r, "gather over all ranks");
    close_rig(&g);
}
