/* The ranks among which weights are sharded: all of them, or groups of neighbours that are replicas
 * (HYBRID_SHARD). Gradients and optimizer state are sharded over all ranks in both cases. */
#include "runtime/train/engine/clt_engine_internal.h"

void clt_engine_group_set(clt_engine *e) {
    const int group = e->sharded_weights ? e->plan->shard_ranks : clt_group_size(e->group);
    e->weights_in.keep = clt_shards_of_group(&e->shards, group);
    e->weights_in.number = clt_group_rank(e->group) % group;
}

clt_status clt_engine_group_create(clt_engine *e) {
    clt_engine_shard_group *w = &e->weights_in;
    clt_device *dev = clt_ops_device(e->ops);
    const int rank = clt_group_rank(e->group), each = w->keep.ranks;
    w->gather = e->reduce;
    if (each == clt_group_size(e->group)) return CLT_OK;
    w->gather = NULL;
    CLT_TRY(clt_group_split(e->group, rank / each, 0, &w->ranks));
    CLT_TRY(clt_group_split(e->group, w->number, 0, &w->replicas));
    e->renewed = clt_calloc((size_t)e->shards.buckets, sizeof *e->renewed);
    CLT_TRY(clt_group_agree(e->group, clt_gather_plan_create(w->ranks, dev, &w->keep, 1, 0, &w->gather)));
    return clt_group_agree(
        e->group, clt_gather_plan_create(w->replicas, dev, &e->shards, each, w->number, &w->between));
}

void clt_engine_group_destroy(clt_engine *e) {
    clt_engine_shard_group *w = &e->weights_in;
    if (w->gather != e->reduce) clt_reduce_plan_destroy(w->gather);
    clt_reduce_plan_destroy(w->between);
    clt_group_destroy(w->replicas);
    clt_group_destroy(w->ranks);
    clt_free(e->renewed);
}
