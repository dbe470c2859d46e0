/* Sharding: cltrain.zero_stage, cltrain.offload with _parameters and _gradients, fsdp_config as Composer
 * reads it, and the groups of ranks that follow from them. */
#include <math.h>

#include "runtime/train/config/clt_config_internal.h"

static const char stage_key[] = "cltrain.zero_stage", strategy_key[] = "fsdp_config.sharding_strategy",
                  reshard_key[] = "fsdp_config.reshard_after_forward",
                  degree_key[] = "fsdp_config.data_parallel_shard_degree",
                  replicas_key[] = "fsdp_config.data_parallel_replicate_degree";

/* In the order of the key's choices. */
static const struct {
    int stage;
    bool hybrid; /* inside groups of ranks, which are replicas of each other */
    const char *means;
} strategies[] = {{3, false, "FULL_SHARD is stage 3; set one of them"},
                  {2, false, "SHARD_GRAD_OP is stage 2; set one of them"},
                  {0, false, "NO_SHARD is stage 0; set one of them"},
                  {3, true, "HYBRID_SHARD is stage 3; set one of them"},
                  {2, true, "_HYBRID_SHARD_ZERO2 is stage 2; set one of them"}};

const char *const clt_offload_names[] = {
    [CLT_OFFLOAD_NONE] = "none", [CLT_OFFLOAD_HOST] = "host", [CLT_OFFLOAD_FILE] = "file", NULL};

/* --- the stage --- */

static clt_status resolve_stage(clt_schema_reader *r, clt_config_builder *b) {
    const int asked = strategies[b->sharding_strategy].stage;
    int *stage = &b->c.shard.zero_stage;
    if (!b->fsdp_config) return CLT_OK;
    if (*stage == 3 && !b->reshard_after_forward)
        return clt_config_fail_both(r, stage_key, reshard_key,
                                    "false keeps the weights that stage 3 drops: set zero_stage: 2");
    const int kept = asked == 3 && !b->reshard_after_forward ? 2 : asked;
    if (*stage == CLT_STAGE_AUTO)
        *stage = kept;
    else if (clt_config_given(&b->c, strategy_key) && *stage != kept)
        return clt_config_fail_both(r, stage_key, strategy_key, strategies[b->sharding_strategy].means);
    return CLT_OK;
}

static clt_status check_ratio(clt_schema_reader *r, const clt_shard_config *s) {
    static const char key[] = "cltrain.offload_ratio";
    if (isnan(s->offload_ratio)) return CLT_OK;
    if (!(s->offload_ratio >= 0 && s->offload_ratio <= 1))
        return clt_schema_fail(r, key, "is %g: it must be from 0 to 1", s->offload_ratio);
    return s->offload == CLT_OFFLOAD_NONE
               ? clt_schema_fail(r, key, "is for cltrain.offload: host or file, which is not set")
               : CLT_OK;
}

/* The folder is for what is in files, which needs it. */
static clt_status check_folder(clt_schema_reader *r, const clt_config_builder *b) {
    static const char folder[] = "cltrain.offload_folder";
    const clt_shard_config *s = &b->c.shard;
    const char *key = s->offload == CLT_OFFLOAD_FILE               ? "cltrain.offload"
                      : s->parameters == CLT_OFFLOAD_FILE          ? "cltrain.offload_parameters"
                      : s->gradients == CLT_OFFLOAD_FILE           ? "cltrain.offload_gradients"
                      : b->offload_activations == CLT_OFFLOAD_FILE ? "cltrain.offload_activations"
                                                                   : NULL;
    if (key && !s->offload_folder)
        return clt_schema_fail(r, key, "is file, which needs a folder: set %s", folder);
    if (key || !s->offload_folder) return CLT_OK;
    return b->offload >= 0 ? clt_config_fail_both(r, "cltrain.offload", folder,
                                                  "the folder is for what is in files; remove one of them")
                           : clt_schema_fail(r, folder,
                                             "is for what is in files, as with cltrain.offload: file, and "
                                             "nothing is");
}

bool clt_config_has_files(const clt_config *c) {
    const clt_shard_config *s = &c->shard;
    return s->offload == CLT_OFFLOAD_FILE || s->parameters == CLT_OFFLOAD_FILE ||
           s->gradients == CLT_OFFLOAD_FILE || c->inputs == CLT_OFFLOAD_FILE;
}

static clt_status resolve_offload(clt_schema_reader *r, clt_config_builder *b) {
    if (b->cpu_offload && b->offload == CLT_OFFLOAD_NONE)
        return clt_config_fail_both(r, "cltrain.offload", "fsdp_config.cpu_offload",
                                    "true asks for offload: host; set one of them");
    clt_shard_config *s = &b->c.shard;
    const bool given = b->offload >= 0;
    s->offload = given ? (clt_offload)b->offload : b->cpu_offload ? CLT_OFFLOAD_HOST : CLT_OFFLOAD_NONE;
    s->parameters = (clt_offload)b->offload_parameters;
    s->gradients = (clt_offload)b->offload_gradients;
    CLT_TRY(check_folder(r, b));
    if (s->parameters && s->zero_stage != CLT_MOST_STAGE)
        return clt_schema_fail(r, "cltrain.offload_parameters",
                               "is %s, which needs stage 3: set cltrain.zero_stage: 3 or "
                               "fsdp_config.sharding_strategy: FULL_SHARD, or remove it",
                               clt_offload_names[s->parameters]);
    if (s->gradients && s->zero_stage < 2)
        return clt_schema_fail(r, "cltrain.offload_gradients",
                               "is %s, which needs stage 2 or 3: set cltrain.zero_stage, or remove it",
                               clt_offload_names[s->gradients]);
    return check_ratio(r, s);
}

clt_status clt_config_resolve_update(clt_schema_reader *r, clt_config_builder *b) {
    static const char key[] = "cltrain.offload_update";
    b->c.shard.host_update = b->offload_update == CLT_UPDATE_HOST;
    if (!b->c.shard.host_update) return CLT_OK;
    if (b->c.shard.offload != CLT_OFFLOAD_HOST)
        return clt_schema_fail(r, key,
                               "is host, which is for state in host memory: set cltrain.offload: "
                               "host, or remove it");
    if (b->c.shard.parameters == CLT_OFFLOAD_FILE || b->c.shard.gradients == CLT_OFFLOAD_FILE)
        return clt_config_fail_both(
            r, key,
            b->c.shard.parameters == CLT_OFFLOAD_FILE ? "cltrain.offload_parameters"
                                                      : "cltrain.offload_gradients",
            "the host computes steps of what is in memory; use host, or offload_update: device");
    if (b->c.optimizer.kind == CLT_OPTIMIZER_LAMB)
        return clt_config_fail_both(r, key, "optimizer.name",
                                    "the host does not compute lamb's steps; use offload_update: device");
    return CLT_OK;
}

/* --- groups of ranks --- */

static clt_status check_size(clt_schema_reader *r, const char *key, int64_t size) {
    enum { MOST = 1 << 20 };
    if (size == -1 || (size >= 1 && size <= MOST)) return CLT_OK;
    return clt_schema_fail(r, key, "is %lld: it must be a number of ranks, or -1 for the rest",
                           (long long)size);
}

/* What the strategy says about groups, if one is given. */
static clt_status check_strategy(clt_schema_reader *r, const clt_config_builder *b) {
    const clt_shard_config *s = &b->c.shard;
    const bool hybrid = strategies[b->sharding_strategy].hybrid;
    const bool sized = clt_config_given(&b->c, replicas_key);
    if (!clt_config_given(&b->c, strategy_key) || s->zero_stage == 0) return CLT_OK;
    if (hybrid && !sized && s->degree == -1)
        return clt_schema_fail(r, strategy_key, "needs the groups: set %s or %s", degree_key, replicas_key);
    if (!hybrid && sized && s->replicas != 1)
        return clt_config_fail_both(r, strategy_key, replicas_key,
                                    "only HYBRID_SHARD and _HYBRID_SHARD_ZERO2 have replicas");
    return CLT_OK;
}

static clt_status resolve_groups(clt_schema_reader *r, clt_config_builder *b) {
    clt_shard_config *s = &b->c.shard;
    const bool hybrid = b->fsdp_config && strategies[b->sharding_strategy].hybrid;
    if (!clt_config_given(&b->c, replicas_key)) s->replicas = hybrid || s->zero_stage == 0 ? -1 : 1;
    CLT_TRY(check_size(r, degree_key, s->degree));
    CLT_TRY(check_size(r, replicas_key, s->replicas));
    CLT_TRY(check_strategy(r, b));
    if (s->zero_stage == 0) {
        const char *key = clt_config_given(&b->c, strategy_key) ? strategy_key : stage_key;
        if (s->degree > 1) return clt_config_fail_both(r, degree_key, key, "stage 0 shards nothing");
        s->degree = 1;
    }
    if (s->parameters == CLT_OFFLOAD_FILE && s->replicas != 1)
        return clt_config_fail_both(r, "cltrain.offload_parameters",
                                    clt_config_given(&b->c, replicas_key) ? replicas_key : strategy_key,
                                    "groups of ranks hand each other weights in memory; use host");
    if (s->degree == -1 && s->replicas == -1)
        return clt_config_fail_both(r, degree_key, replicas_key, "only one of them can be the rest");
    return CLT_OK;
}

clt_status clt_config_resolve_sharding(clt_schema_reader *r, clt_config_builder *b) {
    CLT_TRY(resolve_stage(r, b));
    CLT_TRY(resolve_offload(r, b));
    return resolve_groups(r, b);
}

/* --- with a number of ranks --- */

clt_status clt_config_divide_ranks(clt_schema_reader *r, const clt_config *c, int ranks, int *degree,
                                   int *replicas) {
    const clt_shard_config *s = &c->shard;
    const int64_t fixed = (s->degree == -1 ? 1 : s->degree) * (s->replicas == -1 ? 1 : s->replicas);
    const bool rest = s->degree == -1 || s->replicas == -1;
    if (ranks == 1) { /* nothing to divide, as in LLM Foundry */
        *degree = *replicas = 1;
        return CLT_OK;
    }
    if (rest ? ranks % fixed != 0 : ranks != fixed)
        return clt_schema_fail(r, s->degree == -1 ? replicas_key : degree_key,
                               "does not suit %d ranks: data_parallel_shard_degree %lld times "
                               "data_parallel_replicate_degree %lld must be the number of ranks (-1: the "
                               "rest)",
                               ranks, (long long)s->degree, (long long)s->replicas);
    *degree = (int)(s->degree == -1 ? ranks / fixed : s->degree);
    *replicas = ranks / *degree;
    return CLT_OK;
}
