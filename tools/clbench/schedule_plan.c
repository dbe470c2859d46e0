#include "tools/clbench/schedule_plan.h"

/* The optimizer waits for a sum over the whole gradient. */
static bool waits_for_norm(const clt_config *c) {
    return c->clip_type == CLT_CLIP_NORM || c->guards.gradient_norm || c->precision == CLT_F16 ||
           c->guards.loss_spike != CLT_SPIKE_OFF;
}

step_plan schedule_plan_of(const clt_config *c, const step_model *m, int ranks, int hosts, int stage,
                           int microbatches) {
    enum { BUCKET_CHUNKS = 64 };
    const double narrow = c->precision == CLT_F32 ? 0 : 2;
    const uint64_t chunks = (uint64_t)CLT_MAX(ranks, (int)BUCKET_CHUNKS);
    return (step_plan){.ranks = ranks,
                       .hosts = hosts,
                       .stage = stage,
                       .microbatches = microbatches,
                       .each = stage >= 2 && c->numerics == CLT_FAST,
                       .clip = waits_for_norm(c),
                       .bucket = CLT_MIN(chunks * CLT_CHUNK, m->total),
                       .gradient_bytes = c->reduce_bf16 ? 2 : 4,
                       .weight_bytes = narrow > 0 ? narrow : 4,
                       .update_bytes = (12 + 8 * clt_optimizer_of(c->optimizer.kind)->moments) + narrow};
}

double schedule_forward_share(const clt_config *c) {
    return c->recompute == CLT_RECOMPUTE_BLOCKS ? 0.25 : 1.0 / 3;
}
