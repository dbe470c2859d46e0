/* The functions of clt_reduce.h that are not about single operations: which wire serves, plans, whole slabs.
 */
#include "collectives/clt_reduce.h"

#include <string.h>

#include "collectives/clt_exchange.h"
#include "collectives/clt_hosts.h"

/* --- which wire serves --- */

/* The first that serves on all ranks is taken. */
static const clt_wire *const by_priority[] = {&clt_wire_loopback, &clt_wire_shm, &clt_wire_hosts,
                                              &clt_wire_mpi};
enum { WIRES = CLT_COUNT_OF(by_priority) };

/* A group of one rank exchanges nothing, whatever the variable says. */
static bool is_excluded(int i, int ranks) {
    const char *only = clt_env(CLT_ENV_TRANSPORT);
    return ranks > 1 && only && strcmp(by_priority[i]->name, only) != 0;
}

clt_status clt_exchange_check_environment(void) {
    const char *only = clt_env(CLT_ENV_TRANSPORT);
    clt_str names = {0};
    for (int i = 0; i < WIRES; i++) {
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

static const char *why_not(const clt_reduce_plan *p, int i) {
    const char *text = by_priority[i]->refusal(p);
    return text ? text : "another rank cannot take part, or its CLTRAIN_TRANSPORT differs";
}

static clt_status none_serves(const clt_reduce_plan *p) {
    const int ranks = p->group->size;
    clt_str why = {0};
    for (int i = 0; i < WIRES; i++) {
        if (is_excluded(i, ranks)) continue;
        clt_str_addf(&why, "%s%s: %s", why.s ? "; " : "", by_priority[i]->name, why_not(p, i));
    }
    clt_status st = clt_error(CLT_BAD_CONFIG, "no exchange of gradients serves these %d ranks (%s)%s", ranks,
                              why.s, clt_env(CLT_ENV_TRANSPORT) ? "; unset CLTRAIN_TRANSPORT" : "");
    clt_str_free(&why);
    return st;
}

/* All ranks take the same wire, although what each can do may differ. */
static clt_status choose_wire(clt_reduce_plan *p) {
    const int ranks = p->group->size;
    uint32_t mine = 0, common = ~0u, *all = clt_calloc((size_t)ranks, sizeof *all);
    for (int i = 0; i < WIRES; i++)
        if (!is_excluded(i, ranks) && !by_priority[i]->refusal(p)) mine |= 1u << i;
    clt_status st = clt_group_all_gather(p->group, &mine, sizeof mine, all);
    for (int r = 0; st == CLT_OK && r < ranks; r++) common &= all[r];
    clt_free(all);
    if (st != CLT_OK) return st;
    for (int i = 0; i < WIRES && !p->wire; i++)
        if (common & 1u << i)
            p->wire = by_priority[i];
        else if (ranks > 1 && !is_excluded(i, ranks))
            clt_debug("exchange of gradients: not %s: %s", by_priority[i]->name, why_not(p, i));
    /* It is the same on all ranks: they agree, so that one of them prints why. */
    return p->wire ? CLT_OK : clt_group_agree(p->group, none_serves(p));
}

/* --- sizes --- */

uint64_t clt_exchange_longest(const clt_shards *s) {
    uint64_t most = 0;
    for (int b = 0; b < s->buckets; b++)
        for (int r = 0; r < s->ranks; r++) most = CLT_MAX(most, clt_shards_range(s, b, r).count);
    return most;
}

/* Elements of fp32 and of bf16 on the device. */
static void scratch_elements(uint64_t places, uint64_t strip, bool bf16, bool shares_host, uint64_t *wide,
                             uint64_t *narrow) {
    *wide = bf16 || !shares_host ? places * strip : 0;
    *narrow = bf16 ? 2 * strip : 0;
}

uint64_t clt_exchange_device_bytes(uint64_t places, uint64_t strip, bool bf16, bool shares_host) {
    uint64_t wide, narrow;
    scratch_elements(places, strip, bf16, shares_host, &wide, &narrow);
    return wide * sizeof(float) + narrow * sizeof(uint16_t);
}

uint64_t clt_reduce_plan_bytes(const clt_shards *shards, const clt_lane_split *split, int per_host, bool bf16,
                               bool shares_host) {
    const clt_exchange_view all = {0, split->ranks, 1, 0};
    const bool hops = per_host > 1 && per_host < split->ranks && split->ranks % per_host == 0;
    if (split->ranks == 1) return 0;
    const uint64_t places = (uint64_t)split->ranks * (uint64_t)clt_exchange_most_sums(split, &all);
    const uint64_t one = clt_exchange_device_bytes(places, clt_exchange_longest(shards), bf16, shares_host);
    return hops ? CLT_MAX(one, clt_hosts_bytes(shards, split, per_host, bf16, shares_host)) : one;
}

/* --- plans --- */

/* A device with memory of its own copies fast from and to memory that its driver has mapped. It stays mapped:
 * unmapping would move it to the device. */
static clt_status wrap_ring(clt_reduce_plan *p, int r) {
    void *at = NULL;
    CLT_TRY(clt_buffer_wrap(p->dev, p->host[r], p->host_bytes[r], "exchange window", &p->window[r]));
    if (clt_device_shares_host(p->dev)) return CLT_OK;
    clt_status st = clt_buffer_map(p->window[r], true, 0, p->host_bytes[r], &at);
    if (st == CLT_OK && at != p->host[r]) st = clt_error(CLT_FAIL, "the driver maps it elsewhere");
    if (st == CLT_OK) return CLT_OK;
    clt_buffer_destroy(p->window[r]);
    p->window[r] = NULL;
    return st;
}

static void unwrap_rings(clt_reduce_plan *p) {
    for (int r = 0; r < p->group->size && p->window; r++) {
        if (p->window[r] && !clt_device_shares_host(p->dev)) clt_buffer_unmap(p->window[r], p->host[r]);
        clt_buffer_destroy(p->window[r]);
    }
}

/* Makes the rings known to the device. Where its driver refuses, copies are slower. */
static void wrap_rings(clt_reduce_plan *p) {
    bool all = true;
    clt_error_quiet(true);
    for (int r = 0; r < p->group->size; r++) all &= wrap_ring(p, r) == CLT_OK;
    clt_error_quiet(false);
    if (!all)
        clt_warn("%s does not map the memory that ranks share (%s): the exchange of gradients is slower",
                 clt_device_get_facts(p->dev)->name, clt_last_error());
}

static bool wraps_all(const clt_reduce_plan *p) {
    for (int r = 0; r < p->group->size; r++)
        if (!p->window[r]) return false;
    return true;
}

static clt_status take_device(clt_reduce_plan *p) {
    uint64_t wide, narrow;
    wrap_rings(p);
    const uint64_t places = p->math.add ? (uint64_t)p->group->size * (uint64_t)p->most : 0;
    scratch_elements(places, p->strip, p->math.to_bf16 != NULL,
                     clt_device_shares_host(p->dev) && wraps_all(p), &wide, &narrow);
    if (wide) CLT_TRY(clt_buffer_create(p->dev, wide * sizeof(float), "exchange", &p->scratch));
    for (int i = 0; i < 2 && narrow; i++)
        CLT_TRY(clt_buffer_create(p->dev, narrow / 2 * sizeof(uint16_t), "exchange", &p->narrow[i]));
    return clt_exchange_find_host(p);
}

clt_status clt_exchange_open(clt_reduce_plan *p) {
    const size_t ranks = (size_t)p->group->size;
    p->most = clt_exchange_most_sums(&p->split, &p->view);
    p->levels = clt_reduce_levels(&p->split);
    const size_t places = ranks * (size_t)p->most;
    p->bytes = p->math.to_bf16 ? sizeof(uint16_t) : sizeof(float);
    for (int i = 0; i < CLT_EXCHANGE_ROUNDS; i++) {
        p->round[i].entry = clt_calloc(places, sizeof *p->round[i].entry);
        p->round[i].sums_of = clt_calloc(ranks, sizeof *p->round[i].sums_of);
        p->round[i].before = clt_calloc(CLT_LANE_LEVELS + places, sizeof *p->round[i].before);
        p->round[i].empty = clt_calloc(CLT_LANE_LEVELS, sizeof *p->round[i].empty);
    }
    p->stack = clt_calloc(CLT_LANE_LEVELS + places, sizeof *p->stack);
    p->host = clt_calloc(ranks, sizeof *p->host);
    p->host_bytes = clt_calloc(ranks, sizeof *p->host_bytes);
    p->window = clt_calloc(ranks, sizeof *p->window);
    if (ranks == 1) return CLT_OK;
    clt_exchange_set_strip(p, clt_exchange_longest(p->shards));
    CLT_TRY(p->wire->open(p));
    if (!p->hosts) CLT_TRY(clt_group_agree(p->group, take_device(p)));
    return clt_exchange_make_ring(p);
}

/* A plan of which `like` has what the caller gives. */
static clt_status create(const clt_reduce_plan *like, clt_reduce_plan **out) {
    clt_reduce_plan *p = clt_memdup(like, sizeof *like);
    clt_status st = clt_hosts_look(p);
    if (st == CLT_OK) st = choose_wire(p);
    if (st == CLT_OK) st = clt_exchange_open(p);
    if (st != CLT_OK) {
        clt_reduce_plan_destroy(p);
        return st;
    }
    *out = p;
    return CLT_OK;
}

clt_status clt_reduce_plan_create(clt_group *g, clt_device *dev, const clt_shards *shards,
                                  const clt_lane_split *split, const clt_reduce_math *math,
                                  clt_reduce_plan **out) {
    if (g->size > split->lanes)
        return clt_error(
            CLT_BAD_CONFIG,
            "%d ranks but only %d lanes: a rank owns at least one lane; start fewer ranks or raise "
            "cltrain.exact_lanes (a new run only)",
            g->size, split->lanes);
    return create(&(clt_reduce_plan){.group = g,
                                     .dev = dev,
                                     .shards = shards,
                                     .split = *split,
                                     .view = {0, g->size, 1, 0},
                                     .math = *math},
                  out);
}

clt_status clt_gather_plan_create(clt_group *g, clt_device *dev, const clt_shards *shards, int each, int turn,
                                  clt_reduce_plan **out) {
    return create(&(clt_reduce_plan){.group = g,
                                     .dev = dev,
                                     .shards = shards,
                                     .split = {.lanes = shards->ranks, .ranks = shards->ranks},
                                     .view = {0, g->size, each, turn}},
                  out);
}

void clt_exchange_close(clt_reduce_plan *p) {
    unwrap_rings(p);
    clt_buffer_destroy(p->scratch);
    for (int i = 0; i < 2; i++) clt_buffer_destroy(p->narrow[i]);
    if (p->wire && p->wire->close) p->wire->close(p);
    clt_exchange_free_ring(p);
    for (int i = 0; i < CLT_EXCHANGE_ROUNDS; i++) {
        clt_free(p->round[i].entry);
        clt_free(p->round[i].sums_of);
        clt_free(p->round[i].before);
        clt_free(p->round[i].empty);
    }
    clt_free(p->stack);
    clt_free(p->host);
    clt_free(p->host_bytes);
    clt_free(p->window);
}

void clt_reduce_plan_destroy(clt_reduce_plan *p) {
    if (!p) return;
    /* After a failure the others do not take part any more. */
    if (p->begun && p->failed == CLT_OK && !p->group->run->failed) clt_exchange_drain(p);
    clt_exchange_set_idle(p, false);
    if (p->begun) clt_device_finish(p->dev);
    clt_exchange_close(p);
    clt_free(p);
}

const char *clt_reduce_plan_wire(const clt_reduce_plan *p) {
    return p->wire->name;
}

uint64_t clt_reduce_plan_sent(const clt_reduce_plan *p) {
    return p->sent_bytes + (p->hosts ? clt_hosts_sent(p) : 0);
}

/* --- whole slabs --- */

/* From the last bucket to the first, as backward passes finish them. */
clt_status clt_group_reduce_scatter(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total) {
    int64_t op = 0;
    for (int b = p->shards->buckets - 1; b >= 0; b--)
        CLT_TRY(clt_reduce_begin(p, clt_whole_bucket(b), sums, n, &total, &op));
    return clt_exchange_join(p, op);
}

static clt_status gather_all(clt_reduce_plan *p, clt_slab *s, clt_gather_kind kind) {
    int64_t op = 0;
    for (int b = 0; b < p->shards->buckets; b++)
        CLT_TRY(clt_gather_begin(p, clt_whole_bucket(b), s, s, kind, NULL, 0, &op));
    return clt_exchange_join(p, op);
}

clt_status clt_group_reduce(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total) {
    CLT_TRY(clt_group_reduce_scatter(p, sums, n, total));
    return gather_all(p, total, CLT_GATHER_TOTALS);
}

clt_status clt_group_all_gather_slab(clt_reduce_plan *p, clt_slab *s) {
    return gather_all(p, s, CLT_GATHER_AS_IT_IS);
}
