#include "runtime/train/engine/clt_plan.h"

#include <string.h>

#include "runtime/base/clt_host.h"

const char *clt_recompute_text(const clt_plan *p) {
    static const char *const text[] = {"", ", norms recomputed", ", activations recomputed"};
    if (p->memory.model.host) return ", activations recomputed from inputs in host memory";
    return p->memory.model.file ? ", activations recomputed from inputs in a file" : text[p->recompute];
}

uint64_t clt_plan_files_bytes(const clt_plan_memory *m) {
    return m->file + m->file_weights + m->file_gradients + m->model.file;
}

uint64_t clt_plan_pinned_bytes(const clt_plan_memory *m) {
    return m->host + m->host_weights + m->host_gradients + m->model.host + m->slots + m->spool;
}

/* Of a rank that has as many lanes as any. */
static int64_t most_microbatches(const clt_config *c, const clt_plan *p) {
    const int64_t lanes = CLT_CEIL_DIV(p->lanes, p->ranks),
                  samples = CLT_CEIL_DIV(c->global_train_batch_size, (int64_t)p->lanes);
    return CLT_MIN(lanes * CLT_CEIL_DIV(samples, p->microbatch), c->global_train_batch_size);
}

/* Bytes in all: the forward and the backward pass read weights; the first sum comes from nowhere. One rank
 * adds a lane to one sum; several bring all of them. */
static clt_plan_traffic traffic_of(const clt_config *c, const clt_plan *p, uint64_t weights, uint64_t sums,
                                   uint64_t inputs, clt_plan_update_bytes update) {
    clt_plan_traffic t = {.microbatches = most_microbatches(c, p)};
    const uint64_t n = (uint64_t)t.microbatches;
    if (sums && p->ranks == 1) sums /= (uint64_t)p->memory.gradient_sums;
    t.in = n * (2 * weights + inputs) + (n - 1) * sums + update.in;
    t.out = n * (inputs + sums) + update.out;
    return t;
}

clt_plan_traffic clt_plan_link(const clt_config *c, const clt_plan *p) {
    const clt_plan_memory *m = &p->memory;
    return traffic_of(c, p, m->host_weights + m->file_weights, m->host_gradients + m->file_gradients,
                      m->model.host + m->model.file, m->update);
}

clt_plan_traffic clt_plan_files(const clt_config *c, const clt_plan *p) {
    const clt_plan_memory *m = &p->memory;
    return traffic_of(c, p, m->file_weights, m->file_gradients, m->model.file, m->update_files);
}

/* --- lanes --- */

static int sum(const int *v, int n) {
    int all = 0;
    for (int i = 0; i < n; i++) all += v[i];
    return all;
}

void clt_plan_take_counts(clt_plan *p, int lanes, const int *counts) {
    clt_free(p->lanes_per_rank);
    p->lanes = lanes;
    p->lanes_per_rank = clt_memdup(counts, (size_t)p->ranks * sizeof *counts);
}

void clt_plan_divide_evenly(clt_plan *p) {
    clt_free(p->lanes_per_rank);
    p->lanes_per_rank = NULL;
    p->shards_by_lanes = false;
    p->lanes = CLT_MAX(p->lanes, p->ranks);
}

static void divide(const clt_config *c, clt_plan *p) {
    const bool given = c->n_lanes_per_rank == p->ranks;
    const int of_ranks = given ? sum(c->lanes_per_rank, p->ranks) : 0;
    p->lanes = 1;
    if (c->numerics == CLT_EXACT)
        p->lanes = (int)p->exact_lanes;
    else if (given)
        p->lanes = of_ranks;
    while (c->numerics == CLT_FAST && p->lanes < p->ranks) p->lanes *= 2;
    clt_free(p->lanes_per_rank);
    p->lanes_per_rank = NULL;
    p->shards_by_lanes = false;
    if (given && of_ranks == p->lanes) clt_plan_take_counts(p, p->lanes, c->lanes_per_rank);
}

clt_plan clt_plan_begin(const clt_config *c, int ranks) {
    clt_plan p = {.seed = c->seed,
                  .exact_lanes = c->exact_lanes,
                  .shuffle_seed = c->train.shuffle_seed,
                  .canonical_nodes = c->train.num_canonical_nodes,
                  .ranks = ranks,
                  .per_host = ranks,
                  .shard_ranks = 1,
                  .replicas = ranks,
                  .recompute = c->recompute};
    divide(c, &p);
    return p;
}

clt_status clt_plan_divide(const clt_config *c, clt_plan *p) {
    CLT_TRY(clt_config_check_ranks(c, p->exact_lanes, p->ranks));
    divide(c, p);
    return CLT_OK;
}

void clt_plan_free(clt_plan *p) {
    clt_free(p->lanes_per_rank);
    p->lanes_per_rank = NULL;
}

clt_lane_split clt_plan_split(const clt_plan *p) {
    return (clt_lane_split){.lanes = p->lanes, .ranks = p->ranks, .count = p->lanes_per_rank};
}

clt_status clt_plan_shards(const clt_plan *p, const clt_slab_table *t, clt_shards *out) {
    if (!p->shards_by_lanes) return clt_shards_create(t, p->ranks, NULL, out);
    double *weight = clt_calloc((size_t)p->ranks, sizeof *weight);
    for (int r = 0; r < p->ranks; r++) weight[r] = p->lanes_per_rank[r];
    const clt_status st = clt_shards_create(t, p->ranks, weight, out);
    clt_free(weight);
    return st;
}

/* --- memory --- */

clt_plan_room clt_plan_room_of(const clt_device_facts *d, int ranks_on_device) {
    /* Not all memory that a driver reports is free: leave a tenth. */
    return (clt_plan_room){.type = d->type,
                           .capacity = d->global_mem / 10 * 9 / (uint64_t)CLT_MAX(ranks_on_device, 1),
                           .max_alloc = d->max_alloc,
                           .host = d->type == CLT_DEVICE_CPU ? 0 : clt_host_memory() / 10 * 9};
}

clt_model_shape clt_plan_shape(const clt_config *c, const clt_plan *p, bool training) {
    const bool away = c->inputs && p->recompute == CLT_RECOMPUTE_BLOCKS;
    return (clt_model_shape){.microbatch = p->microbatch,
                             .seq = c->max_seq_len,
                             .training = training,
                             .recompute = p->recompute,
                             .host_inputs = away,
                             .file_inputs = away && c->inputs == CLT_OFFLOAD_FILE,
                             .numerics = c->numerics,
                             .logits_bytes = p->logits_bytes,
                             .type = c->precision,
                             .eight_bits = c->eight_bits,
                             .eight_weights = (c->eight_bits || (c->fp8 && training)) && p->stage < 3,
                             .fp8 = c->fp8 && training,
                             .eight_attention = c->attention_bits == 8};
}

/* Whether weights, gradients and the inputs of blocks fit beside those of the host's other ranks. Offloaded
 * state takes what is left. */
static bool host_has_room(const clt_plan *p, const clt_plan_room *r, const clt_plan_memory *m) {
    const uint64_t need = m->host_weights + m->host_gradients + m->model.host + m->slots + m->spool;
    return !r->host || need <= r->host / (uint64_t)p->per_host;
}

static bool fits(const clt_config *c, const clt_plan *p, const clt_plan_room *r, int64_t microbatch,
                 clt_plan_memory *m) {
    return clt_plan_memory_of(c, p, r->type, microbatch, m) == CLT_OK && m->total <= r->capacity &&
           m->largest <= r->max_alloc && host_has_room(p, r, m);
}

/* Without the logits buffer, whose size may shrink with more samples (its groups are even), memory grows with
 * the microbatch, as the binary search needs. */
static bool fits_without_logits(const clt_config *c, const clt_plan *p, const clt_plan_room *r,
                                int64_t microbatch) {
    clt_plan_memory m;
    return clt_plan_memory_of(c, p, r->type, microbatch, &m) == CLT_OK &&
           m.total - m.model.logits <= r->capacity && host_has_room(p, r, &m);
}

/* The largest microbatch up to `most` that fits, 0 if none does. */
static int64_t largest_that_fits(const clt_config *c, const clt_plan *p, const clt_plan_room *r,
                                 int64_t most) {
    clt_plan_memory m;
    int64_t least = 0;
    /* Whole lanes may need less memory than parts of them: clt_plan_lane_is_split. */
    if (p->stage >= 2 && most > 0 && fits(c, p, r, most, &m)) return most;
    while (least < most) {
        const int64_t middle = most - (most - least) / 2;
        if (fits_without_logits(c, p, r, middle))
            least = middle;
        else
            most = middle - 1;
    }
    while (least > 0 && !fits(c, p, r, least, &m)) least--;
    return least;
}

/* --- what would fit --- */

/* Advice to use fewer layers of the same model; NULL: not even one layer fits. */
static char *fewer_layers(clt_config c, const clt_plan *p, const clt_plan_room *r) {
    clt_plan_memory m;
    char b[32], *advice = NULL;
    const clt_model_facts facts = clt_model_get_facts(c.model);
    for (int64_t layers = facts.layers - 1; facts.layers_key && layers >= 1 && !advice; layers--) {
        clt_model_config *smaller = clt_model_config_with_layers(c.model, layers);
        clt_model_config *whole = c.model;
        c.model = smaller;
        if (fits(&c, p, r, 1, &m))
            advice = clt_format("model.%s: %lld with cltrain.recompute: blocks and microbatch 1 (%s)",
                                facts.layers_key, (long long)layers, clt_human_bytes((double)m.total, b));
        c.model = whole;
        clt_model_config_free(smaller);
    }
    return advice;
}

/* Weights are sharded inside groups of `degree` ranks. Below stage 3 a smaller group than all ranks would
 * only take memory: every rank has the whole weights anyway. */
static void set_groups(clt_plan *p, int degree) {
    static const int weights = 3; /* the stage that shards them */
    p->shard_ranks = p->stage == 0 ? 1 : p->stage < weights ? p->ranks : degree;
    p->replicas = p->ranks / p->shard_ranks;
}

/* Advice to keep on the device only what kernels need at a time, with all of it in host memory or, if that is
 * too small, the state or everything in files; NULL: none of these fits, or it is configured. */
static char *all_offloaded(clt_config c, clt_plan p, const clt_plan_room *r) {
    static const struct {
        clt_offload state, rest;
    } choices[] = {{CLT_OFFLOAD_HOST, CLT_OFFLOAD_HOST},
                   {CLT_OFFLOAD_FILE, CLT_OFFLOAD_HOST},
                   {CLT_OFFLOAD_FILE, CLT_OFFLOAD_FILE}};
    const clt_offload state = c.shard.offload, rest = CLT_MIN(c.shard.gradients, c.shard.parameters);
    clt_plan_memory m;
    char b[32];
    if (r->type == CLT_DEVICE_CPU) return NULL;
    p.recompute = CLT_RECOMPUTE_BLOCKS;
    p.stage = CLT_MOST_STAGE;
    if (p.shard_ranks == 1) set_groups(&p, p.ranks);
    p.whole_gradients = false;
    p.host_room = r->host;
    for (size_t i = 0; i < CLT_COUNT_OF(choices); i++) {
        if (choices[i].state < state || choices[i].rest < rest) continue;
        if (choices[i].state == state && choices[i].rest == rest) continue;
        if (choices[i].rest == CLT_OFFLOAD_FILE && p.replicas > 1) continue;
        c.shard.offload = choices[i].state;
        c.shard.gradients = c.shard.parameters = choices[i].rest;
        const int64_t microbatch = largest_that_fits(&c, &p, r, p.microbatch);
        if (!microbatch || !fits(&c, &p, r, microbatch, &m) || m.gradient_slabs) continue;
        return clt_format("cltrain.zero_stage: 3 with cltrain.offload: %s%s, cltrain.offload_parameters: %s, "
                          "cltrain.offload_gradients: %s, cltrain.recompute: blocks and microbatch %lld (%s)",
                          clt_offload_names[choices[i].state],
                          choices[i].state == CLT_OFFLOAD_FILE ? " with cltrain.offload_folder" : "",
                          clt_offload_names[choices[i].rest], clt_offload_names[choices[i].rest],
                          (long long)microbatch, clt_human_bytes((double)m.total, b));
    }
    return NULL;
}

char *clt_plan_advice(const clt_config *cfg, const clt_plan *plan, const clt_plan_room *r) {
    static const char *const recompute[] = {"none", "norms", "blocks"};
    clt_config c = *cfg; /* a shallow copy for trials; owns nothing */
    clt_plan p = *plan;
    clt_plan_memory m;
    char b[32];
    const int64_t microbatch = largest_that_fits(&c, &p, r, plan->microbatch - 1);
    if (microbatch && fits(&c, &p, r, microbatch, &m))
        return clt_format("device_train_microbatch_size: %lld (%s)", (long long)microbatch,
                          clt_human_bytes((double)m.total, b));
    for (p.recompute = CLT_RECOMPUTE_NORMS; p.recompute <= CLT_RECOMPUTE_BLOCKS; p.recompute++)
        if (plan->recompute < p.recompute && fits(&c, &p, r, 1, &m))
            return clt_format("cltrain.recompute: %s with microbatch 1 (%s)", recompute[p.recompute],
                              clt_human_bytes((double)m.total, b));
    p.recompute = CLT_RECOMPUTE_BLOCKS;
    c.inputs = CLT_OFFLOAD_HOST;
    if (r->type != CLT_DEVICE_CPU && !cfg->inputs && fits(&c, &p, r, 1, &m))
        return clt_format("cltrain.offload_activations: host with microbatch 1 (%s)",
                          clt_human_bytes((double)m.total, b));
    c.inputs = cfg->inputs;
    c.shard.offload = CLT_OFFLOAD_HOST;
    p.host_room = r->host;
    if (r->type != CLT_DEVICE_CPU && fits(&c, &p, r, 1, &m))
        return clt_format("cltrain.offload: host with cltrain.recompute: blocks and microbatch 1 (%s)",
                          clt_human_bytes((double)m.total, b));
    c.shard.offload = cfg->shard.offload;
    if (p.stage == CLT_MOST_STAGE && !cfg->shard.parameters) c.shard.parameters = CLT_OFFLOAD_HOST;
    if (r->type != CLT_DEVICE_CPU && fits(&c, &p, r, 1, &m))
        return clt_format(
            "cltrain.offload_parameters: host with cltrain.recompute: blocks and microbatch 1 (%s)",
            clt_human_bytes((double)m.total, b));
    c.shard.parameters = cfg->shard.parameters;
    char *all = all_offloaded(c, p, r);
    if (all) return all;
    const bool tokens = clt_model_get_facts(c.model).vocab_size > 0;
    for (c.max_seq_len /= 2; tokens && c.max_seq_len >= 64; c.max_seq_len /= 2)
        if (fits(&c, &p, r, 1, &m))
            return clt_format("max_seq_len: %lld with cltrain.recompute: blocks and microbatch 1 (%s)",
                              (long long)c.max_seq_len, clt_human_bytes((double)m.total, b));
    c.max_seq_len = cfg->max_seq_len;
    return fewer_layers(c, &p, r);
}

clt_status clt_plan_refuse(const clt_config *c, const clt_plan *p, const clt_plan_room *r) {
    const clt_plan_memory *m = &p->memory;
    char need[32], have[32], *advice = clt_plan_advice(c, p, r);
    const char *lead = advice ? "; what would fit: "
                              : "; no microbatch, sequence length or number of layers fits: use a smaller "
                                "model or a larger device";
    clt_status st;
    if (m->largest > r->max_alloc)
        st = clt_error(CLT_NO_MEMORY, "the largest buffer needs %s, the device allows buffers up to %s%s%s",
                       clt_human_bytes((double)m->largest, need), clt_human_bytes((double)r->max_alloc, have),
                       lead, advice ? advice : "");
    else
        st = clt_error(CLT_NO_MEMORY,
                       "the run needs %s of device memory with microbatch %lld, %s are available%s%s",
                       clt_human_bytes((double)m->total, need), (long long)p->microbatch,
                       clt_human_bytes((double)r->capacity, have), lead, advice ? advice : "");
    clt_free(advice);
    return st;
}

/* --- fitting --- */

/* If the configuration does not decide: no recomputation if the run then takes at most a quarter of the
 * device's memory, with products in 8 bits, which gain more, three quarters. */
static void keep_activations(const clt_config *c, const clt_plan_room *r, clt_plan *p) {
    const clt_plan_room part = {r->type, r->capacity / 4 * (c->eight_bits || c->fp8 ? 3 : 1), r->max_alloc,
                                r->host};
    clt_plan kept = *p;
    kept.recompute = CLT_RECOMPUTE_NONE;
    if (!c->recompute_open) return;
    if (!fits(c, &kept, &part, p->microbatch, &kept.memory)) return;
    p->recompute = kept.recompute;
    p->memory = kept.memory;
}

/* The samples of the largest lane, limited so that the rows of a matrix product fit an int. */
static int64_t most_samples(const clt_config *c, const clt_plan *p) {
    return CLT_MIN(CLT_CEIL_DIV(c->global_train_batch_size, p->lanes),
                   CLT_MAX(INT32_MAX / c->max_seq_len, 1));
}

/* Faster ranks then update more, and make more of the additions. */
static void follow_lanes(const clt_config *c, const clt_plan_room *r, clt_plan *p) {
    clt_plan by_lanes = *p;
    if (p->stage == 0 || !p->lanes_per_rank) return;
    by_lanes.shards_by_lanes = true;
    if (!fits(c, &by_lanes, r, p->microbatch, &by_lanes.memory)) return;
    p->shards_by_lanes = true;
    p->memory = by_lanes.memory;
}

/* Microbatch, recomputation and memory at p's stage. */
static clt_status place(const clt_config *c, const clt_plan_room *r, clt_plan *p, bool *fit) {
    /* A given microbatch above the samples of a lane is lowered, as Composer lowers it to the device's
     * batch. */
    const int64_t wanted = c->device_train_microbatch_size, most = most_samples(c, p);
    const bool open = c->precision != CLT_F32 && c->numerics == CLT_FAST;
    p->type = r->type;
    p->host_room = r->host;
    p->recompute = c->recompute;
    p->shards_by_lanes = false;
    p->logits_bytes = open ? CLT_MODEL_LOGITS_LEAST : 0;
    p->microbatch = wanted ? CLT_MIN(wanted, most) : CLT_MAX(largest_that_fits(c, p, r, most), 1);
    p->logits_bytes = 0;
    if (open && !fits(c, p, r, p->microbatch, &p->memory)) p->logits_bytes = CLT_MODEL_LOGITS_LEAST;
    CLT_TRY(clt_plan_memory_of(c, p, r->type, p->microbatch, &p->memory));
    p->whole_gradients = p->stage >= 2 && p->memory.gradient_slabs > 0;
    *fit = p->memory.total <= r->capacity && p->memory.largest <= r->max_alloc;
    if (*fit) keep_activations(c, r, p);
    if (*fit) follow_lanes(c, r, p);
    return CLT_OK;
}

/* --- the stage --- */

/* Offloaded weights come as at stage 3, and gradients leave as at stage 2, even where one rank keeps all of
 * them. It has nobody to gather weights from that are on its device. */
static void set_stage(const clt_config *c, clt_plan *p, int stage, int degree) {
    const bool brings = c->shard.parameters && stage == CLT_MOST_STAGE,
               sends = c->shard.gradients && p->ranks == 1 && stage >= 2;
    p->stage = degree > 1 || brings ? stage : sends ? 2 : 0;
    p->whole_gradients = p->raised = false;
    set_groups(p, degree);
}

/* From stage 1 on each part of the state has one owner, and a flipped bit of it nothing to be compared with.
 * In numerics exact, stage 0 costs little beside the computation. */
static int first_stage(const clt_config *c) {
    return c->numerics == CLT_EXACT && c->guards.replica_hash_interval > 0 ? 0 : 1;
}

clt_status clt_plan_choose(const clt_config *c, const clt_plan_room *r, clt_plan *p, bool *fits) {
    const bool open = c->shard.zero_stage == CLT_STAGE_AUTO;
    const int last = open ? CLT_MOST_STAGE : c->shard.zero_stage;
    const int first = open ? first_stage(c) : last;
    int degree, replicas, stage = first;
    CLT_TRY(clt_config_shard_groups(c, p->ranks, &degree, &replicas));
    do {
        set_stage(c, p, stage, degree);
        p->raised = stage > first;
        CLT_TRY(place(c, r, p, fits));
    } while (!*fits && p->stage == stage && stage++ < last);
    return CLT_OK;
}

clt_status clt_plan_fit(const clt_config *c, const clt_plan_room *r, clt_plan *p) {
    bool fit;
    CLT_TRY(clt_plan_choose(c, r, p, &fit));
    return fit ? CLT_OK : clt_plan_refuse(c, p, r);
}

clt_status clt_plan_fit_stage(const clt_config *c, const clt_plan_room *r, int stage, clt_plan *p,
                              bool *fits) {
    int degree, replicas;
    CLT_TRY(clt_config_shard_groups(c, p->ranks, &degree, &replicas));
    set_stage(c, p, stage, c->shard.zero_stage == 0 ? p->ranks : degree);
    return place(c, r, p, fits);
}

/* All ranks own equal parts if one of them must. */
static clt_status agree_on_shards(clt_group *g, const clt_config *c, const clt_plan_room *r, clt_plan *p) {
    int64_t equal = !p->shards_by_lanes;
    CLT_TRY(clt_group_max_i64(g, &equal, 1));
    if (!equal || !p->shards_by_lanes) return CLT_OK;
    p->shards_by_lanes = false;
    return clt_plan_memory_of(c, p, r->type, p->microbatch, &p->memory);
}

clt_status clt_plan_agree(clt_group *g, const clt_config *c, const clt_plan_room *r, clt_plan *p) {
    int64_t most[] = {p->stage, p->raised}, whole;
    clt_status st = CLT_OK;
    int degree, replicas;
    bool fit = true;
    CLT_TRY(clt_group_max_i64(g, most, CLT_COUNT_OF(most)));
    CLT_TRY(clt_config_shard_groups(c, p->ranks, &degree, &replicas));
    const bool higher = most[0] > p->stage;
    p->stage = (int)most[0];
    p->raised = most[1];
    set_groups(p, degree);
    if (higher) st = place(c, r, p, &fit);
    whole = p->whole_gradients;
    CLT_TRY(clt_group_max_i64(g, &whole, 1));
    const bool more = whole > p->whole_gradients;
    p->whole_gradients = whole;
    if (st == CLT_OK && more) st = place(c, r, p, &fit);
    CLT_TRY(clt_group_agree(g, st == CLT_OK && !fit ? clt_plan_refuse(c, p, r) : st));
    return clt_group_agree(g, agree_on_shards(g, c, r, p));
}

clt_status clt_plan_make(const clt_config *c, int ranks, const clt_plan_room *room, clt_plan *out) {
    *out = clt_plan_begin(c, ranks);
    return clt_plan_fit(c, room, out);
}
