/* The functions of clt_reduce.h: ownership, and which exchange serves a plan. */
#include <string.h>

#include "collectives/clt_exchange.h"

/* --- who owns what of a slab --- */

uint64_t clt_owned_run(const clt_slab_table *t, int ranks) {
    const uint64_t chunks = t->total / CLT_CHUNK;
    const uint64_t buckets = CLT_MAX(CLT_CEIL_DIV(chunks, (uint64_t)CLT_BUCKET_CHUNKS), (uint64_t)1);
    return CLT_MAX(CLT_CEIL_DIV(chunks, buckets * (uint64_t)ranks), (uint64_t)1) * CLT_CHUNK;
}

clt_slab_range clt_owned_range(const clt_slab_table *t, int ranks, int rank, uint64_t i) {
    const uint64_t run = clt_owned_run(t, ranks);
    const uint64_t first = CLT_MIN((i * (uint64_t)ranks + (uint64_t)rank) * run, t->total);
    return (clt_slab_range){first, CLT_MIN(run, t->total - first)};
}

/* --- which exchange serves --- */

/* The first that serves on all ranks is taken. */
static const clt_exchange_ops *const by_priority[] = {&clt_exchange_loopback, &clt_exchange_shm,
                                                      &clt_exchange_mpi};
enum { EXCHANGES = CLT_COUNT_OF(by_priority) };

/* A group of one rank exchanges nothing, whatever the variable says. */
static bool is_excluded(int i, int ranks) {
    const char *only = clt_env(CLT_ENV_TRANSPORT);
    return ranks > 1 && only && strcmp(by_priority[i]->name, only) != 0;
}

clt_status clt_exchange_check_environment(void) {
    const char *only = clt_env(CLT_ENV_TRANSPORT);
    clt_str names = {0};
    for (int i = 0; i < EXCHANGES; i++) {
        if (!only || strcmp(by_priority[i]->name, only) == 0) {
            clt_str_free(&names);
            return CLT_OK;
        }
        clt_str_addf(&names, "%s%s", i ? ", " : "", by_priority[i]->name);
    }
    clt_status st =
        clt_error(CLT_BAD_CONFIG, "CLTRAIN_TRANSPORT is '%s', it must be one of %s", only, names.s);
    clt_str_free(&names);
    return st;
}

static clt_status none_serves(const clt_reduce_plan *p) {
    const int ranks = p->group->size;
    clt_str why = {0};
    for (int i = 0; i < EXCHANGES; i++) {
        if (is_excluded(i, ranks)) continue;
        const char *text = by_priority[i]->refusal(p);
        clt_str_addf(&why, "%s%s: %s", why.s ? "; " : "", by_priority[i]->name,
                     text ? text : "another rank cannot take part, or its CLTRAIN_TRANSPORT differs");
    }
    clt_status st = clt_error(CLT_BAD_CONFIG, "no exchange of gradients serves these %d ranks (%s)%s", ranks,
                              why.s, clt_env(CLT_ENV_TRANSPORT) ? "; unset CLTRAIN_TRANSPORT" : "");
    clt_str_free(&why);
    return st;
}

/* All ranks take the same exchange, although what each can do may differ. */
static clt_status choose_exchange(clt_reduce_plan *p) {
    const int ranks = p->group->size;
    uint32_t mine = 0, common = ~0u, *all = clt_calloc((size_t)ranks, sizeof *all);
    for (int i = 0; i < EXCHANGES; i++)
        if (!is_excluded(i, ranks) && !by_priority[i]->refusal(p)) mine |= 1u << i;
    clt_status st = clt_group_all_gather(p->group, &mine, sizeof mine, all);
    for (int r = 0; st == CLT_OK && r < ranks; r++) common &= all[r];
    clt_free(all);
    if (st != CLT_OK) return st;
    for (int i = 0; i < EXCHANGES && !p->exchange; i++)
        if (common & 1u << i) p->exchange = by_priority[i];
    /* It is the same on all ranks: they agree, so that one of them prints why. */
    return p->exchange ? CLT_OK : clt_group_agree(p->group, none_serves(p));
}

/* --- plans --- */

clt_status clt_reduce_plan_create(clt_group *g, clt_device *dev, const clt_slab_table *t,
                                  const clt_lane_split *split, const clt_reduce_math *math,
                                  clt_reduce_plan **out) {
    if (g->size > split->lanes)
        return clt_error(
            CLT_BAD_CONFIG,
            "%d ranks but only %d lanes: a rank owns at least one lane; start fewer ranks or raise "
            "cltrain.exact_lanes (a new run only)",
            g->size, split->lanes);
    clt_reduce_plan *p = clt_calloc(1, sizeof *p);
    *p = (clt_reduce_plan){.group = g, .dev = dev, .table = t, .split = *split, .math = *math};
    clt_status st = choose_exchange(p);
    if (st == CLT_OK) st = p->exchange->plan(p);
    if (st != CLT_OK) {
        clt_free(p);
        return st;
    }
    *out = p;
    return CLT_OK;
}

void clt_reduce_plan_destroy(clt_reduce_plan *p) {
    if (!p) return;
    p->exchange->unplan(p);
    clt_free(p);
}

const char *clt_reduce_plan_exchange(const clt_reduce_plan *p) {
    return p->exchange->name;
}

uint64_t clt_reduce_plan_bytes(const clt_slab_table *t, const clt_lane_split *split, bool bf16) {
    uint64_t most = 0;
    for (int i = 0; i < EXCHANGES && split->ranks > 1; i++)
        if (!is_excluded(i, split->ranks)) most = CLT_MAX(most, by_priority[i]->device_bytes(t, split, bf16));
    return most;
}

clt_status clt_group_reduce(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total) {
    return p->exchange->reduce(p, sums, n, total);
}

clt_status clt_group_reduce_scatter(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total) {
    return p->exchange->reduce_scatter(p, sums, n, total);
}

clt_status clt_group_all_gather_slab(clt_reduce_plan *p, clt_slab *s) {
    return p->exchange->all_gather(p, s);
}
