/* Where the plan differs from the configuration. */
#include <math.h>

#include "runtime/train/engine/clt_plan.h"

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
        note = clt_format("%s: a lane has %lld samples, a microbatch %lld; %s: %s",
                          p->ranks > 1 ? "every rank keeps whole gradients, as at stage 1"
                                       : "sums of gradients stay on the device",
                          (long long)largest_lane(c, p), (long long)p->microbatch,
                          p->ranks > 1 ? "to shard them" : "to offload them", how);
        clt_free(how);
    } else {
        note = clt_strdup("every rank keeps whole gradients, as at stage 1, because another rank's lanes are "
                          "larger than its microbatch");
    }
    return note;
}

/* The groups that the configuration asks for are those of the weights only. */
static char *groups_note(const clt_config *c, const clt_plan *p) {
    int degree, replicas;
    if (p->stage == 0 || clt_config_shard_groups(c, p->ranks, &degree, &replicas) != CLT_OK) return NULL;
    if (replicas == 1) return NULL;
    if (p->replicas == 1)
        return clt_format("what stage %d shards is sharded over all %d ranks instead of inside groups of %d: "
                          "it takes less memory, and every rank has the whole weights in both cases",
                          p->stage, p->ranks, degree);
    return clt_format("weights are sharded inside %d groups of %d ranks, gradients and optimizer state over "
                      "all %d ranks, which takes less memory",
                      replicas, degree, p->ranks);
}

/* Why a given microbatch is lowered. */
static char *microbatch_note(const clt_config *c, const clt_plan *p) {
    const bool exact = c->numerics == CLT_EXACT;
    return clt_format("device_train_microbatch_size: %lld is lowered to %lld, the samples of a %s%s",
                      (long long)c->device_train_microbatch_size, (long long)p->microbatch,
                      exact ? "lane of exact numerics" : "rank in a batch",
                      exact ? " (cltrain.exact_lanes)" : "");
}

/* Why not all of the state is offloaded. */
static char *resident_note(const clt_plan *p) {
    char stays[32], leaves[32];
    return clt_format(
        "%s of optimizer state stay on the device, because the host's memory takes %s of it for "
        "each of its ranks (cltrain.offload_ratio)",
        clt_human_bytes((double)p->memory.resident_bytes, stays),
        clt_human_bytes((double)p->memory.host, leaves));
}

void clt_plan_notes(const clt_config *c, const clt_plan *p, clt_strv *lines) {
    if (c->device_train_microbatch_size > p->microbatch) clt_strv_add_owned(lines, microbatch_note(c, p));
    if (p->raised)
        clt_strv_add_owned(lines, clt_format("the run does not fit at stage %d: cltrain.zero_stage: auto "
                                             "takes stage %d",
                                             p->stage - 1, p->stage));
    char *groups = groups_note(c, p);
    if (groups) clt_strv_add_owned(lines, groups);
    if (c->shard.offload == CLT_OFFLOAD_HOST && p->type == CLT_DEVICE_CPU)
        clt_strv_add(lines,
                     "cltrain.offload: host saves nothing on a CPU device, whose memory is the host's");
    if (p->memory.host_weights && p->type == CLT_DEVICE_CPU)
        clt_strv_add(lines,
                     "cltrain.offload_parameters: host saves nothing on a CPU device, whose memory is the "
                     "host's");
    if (c->shard.gradients == CLT_OFFLOAD_HOST && p->memory.host_gradients && p->type == CLT_DEVICE_CPU)
        clt_strv_add(lines,
                     "cltrain.offload_gradients: host saves nothing on a CPU device, whose memory is the "
                     "host's");
    if (p->memory.model.host && p->type == CLT_DEVICE_CPU)
        clt_strv_add(lines,
                     "cltrain.offload_activations: host saves nothing on a CPU device, whose memory is "
                     "the host's");
    if (p->memory.resident && isnan(c->shard.offload_ratio)) clt_strv_add_owned(lines, resident_note(p));
    if (p->whole_gradients && (p->ranks > 1 || c->shard.gradients))
        clt_strv_add_owned(lines, whole_gradients_note(c, p));
}

void clt_plan_say_notes(const clt_config *c, const clt_plan *p) {
    clt_strv lines = {0};
    clt_plan_notes(c, p, &lines);
    for (size_t i = 0; i < lines.n; i++) clt_info("%s", lines.v[i]);
    clt_strv_free(&lines);
}
