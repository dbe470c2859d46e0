/* Where the plan and the engine differ, and where the plan and the configuration do. */
#include "runtime/train/engine/clt_plan.h"

/* --- the engine --- */

clt_status clt_plan_check_engine(const clt_config *c, const clt_plan *p) {
    (void)c;
    if (p->stage > 0 && p->replicas > 1)
        return clt_error(CLT_BAD_CONFIG,
                         "sharding inside %d groups of %d ranks (HYBRID_SHARD, "
                         "fsdp_config.data_parallel_replicate_degree) is not supported yet: use FULL_SHARD "
                         "or SHARD_GRAD_OP, which shard over all ranks",
                         p->replicas, p->shard_ranks);
    return CLT_OK;
}

/* --- the configuration --- */

static int64_t largest_lane(const clt_config *c, const clt_plan *p) {
    return CLT_CEIL_DIV(c->global_train_batch_size, (int64_t)p->lanes);
}

bool clt_plan_lane_is_split(const clt_config *c, const clt_plan *p, int64_t microbatch) {
    return c->numerics == CLT_EXACT && microbatch < largest_lane(c, p);
}

/* What makes every lane one microbatch. */
static char *how_to_shard_gradients(const clt_config *c, const clt_plan *p) {
    int64_t lanes = p->lanes;
    while (CLT_CEIL_DIV(c->global_train_batch_size, lanes) > p->microbatch) lanes *= 2;
    char *more = lanes <= CLT_MOST_LANES
                     ? clt_format("cltrain.exact_lanes: %lld in a new run, or ", (long long)lanes)
                     : clt_strdup("");
    char *how = clt_format("%sdevice_train_microbatch_size: %lld", more, (long long)largest_lane(c, p));
    clt_free(more);
    return how;
}

static char *whole_gradients_note(const clt_config *c, const clt_plan *p) {
    char *note;
    if (clt_plan_lane_is_split(c, p, p->microbatch)) {
        char *how = how_to_shard_gradients(c, p);
        note = clt_format("every rank keeps whole gradients, as at stage 1: a lane has %lld samples, a "
                          "microbatch %lld; to shard them: %s",
                          (long long)largest_lane(c, p), (long long)p->microbatch, how);
        clt_free(how);
    } else {
        note = clt_strdup("every rank keeps whole gradients, as at stage 1, because another rank's lanes are "
                          "larger than its microbatch");
    }
    return note;
}

void clt_plan_notes(const clt_config *c, const clt_plan *p, clt_strv *lines) {
    if (p->raised)
        clt_strv_add_owned(lines, clt_format("the run does not fit at stage %d: cltrain.zero_stage: auto "
                                             "takes stage %d",
                                             p->stage - 1, p->stage));
    if (c->shard.offload == CLT_OFFLOAD_HOST && p->type == CLT_DEVICE_CPU)
        clt_strv_add(lines,
                     "cltrain.offload: host saves nothing on a CPU device, whose memory is the host's");
    if (p->whole_gradients) clt_strv_add_owned(lines, whole_gradients_note(c, p));
}
