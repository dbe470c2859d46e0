/* Sharded gradients: lanes are dealt out in rounds, one lane of each rank at once, and each lane is one pass.
 * A unit's gradients leave as soon as the pass has made them; their owners add up the lanes of a round and
 * keep complete subtrees until the next one. So no rank ever holds whole gradients. */
#include "runtime/train/engine/clt_engine_internal.h"

int64_t clt_engine_lane_begin(const clt_engine *e, int64_t samples, int i) {
    const int rank = clt_group_rank(e->group);
    int64_t at = 0;
    for (int k = 0; k < i; k++) {
        const int lane = clt_lane_at(&e->split, rank, k);
        at += clt_lane_sample_begin(samples, e->split.lanes, lane + 1) -
              clt_lane_sample_begin(samples, e->split.lanes, lane);
    }
    return at;
}

int64_t clt_engine_passes(const clt_engine *e, int64_t samples, int rank) {
    int64_t passes = 0;
    for (int k = 0; k < clt_lane_count(&e->split, rank); k++) {
        const int lane = clt_lane_at(&e->split, rank, k);
        passes += CLT_CEIL_DIV(clt_lane_sample_begin(samples, e->split.lanes, lane + 1) -
                                   clt_lane_sample_begin(samples, e->split.lanes, lane),
                               e->plan->microbatch);
    }
    return passes;
}

/* What this rank brings to round i. */
static void open_round(clt_engine *e, const clt_batch *b, int i) {
    const int rank = clt_group_rank(e->group);
    e->step.has_lane = i < e->lanes;
    e->step.sum = (clt_lane_sum){.width = 1, .slab = e->grads[0], .empty = true};
    e->step.lane_samples = 0;
    if (!e->step.has_lane) return;
    e->step.sum.first = clt_lane_at(&e->split, rank, i);
    e->step.lane_at = clt_engine_lane_begin(e, b->global_samples, i);
    e->step.lane_samples = clt_engine_lane_begin(e, b->global_samples, i + 1) - e->step.lane_at;
    e->step.sum.empty = e->step.lane_samples == 0;
}

static clt_status run_round(clt_engine *e, const clt_batch *b, int64_t step, int i) {
    open_round(e, b, i);
    CLT_TRY(clt_engine_host_parts_open(e, i));
    CLT_TRY(clt_engine_host_sums_open(e, i, clt_lane_rounds(&e->split), e->step.sum.empty));
    CLT_TRY(e->step.sum.empty ? clt_engine_go_along(e, true, true)
                              : clt_engine_run_lane(e, b, step, i, e->grads[0]));
    return clt_engine_host_sums_close(e);
}

clt_status clt_engine_run_rounds(clt_engine *e, const clt_batch *b, int64_t step) {
    const int rounds = clt_lane_rounds(&e->split);
    for (int i = 0; i < rounds; i++) {
        /* A pass that has begun is finished: other ranks wait for what it hands out. */
        const bool stops = clt_group_stop_asked(e->group);
        CLT_TRY(clt_group_agree(e->group, stops ? CLT_STOPPED : CLT_OK));
        if (i > 0) CLT_TRY(clt_reduce_next_round(e->reduce));
        CLT_TRY(run_round(e, b, step, i));
    }
    e->step.total = e->level[0];
    CLT_TRY(clt_engine_enter(e, CLT_PHASE_EXCHANGE));
    CLT_TRY(clt_engine_host_parts_close(e));
    if (e->spool) CLT_TRY(clt_spool_flush(e->spool)); /* the update reads the file itself */
    return clt_exchange_join(e->reduce, e->step.reduced);
}

clt_status clt_engine_go_along_lanes(clt_engine *e, int64_t samples) {
    int64_t most = 0;
    if (!e->sharded_weights) return CLT_OK;
    for (int r = 0; r < clt_group_size(e->group); r++) most = CLT_MAX(most, clt_engine_passes(e, samples, r));
    for (int64_t i = clt_engine_passes(e, samples, clt_group_rank(e->group)); i < most; i++)
        CLT_TRY(clt_engine_go_along(e, true, false));
    return CLT_OK;
}
