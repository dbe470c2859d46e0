/* Finds the first operation of a step that made a NaN or an infinity. */
#include <string.h>

#include "runtime/train/engine/clt_engine_internal.h"

typedef struct {
    clt_engine *e;
    char what[160]; /* the first operation with an output that is not finite; "": none so far */
} finder;

static clt_status look(void *ctx, const char *what, clt_dtype type, clt_ref made, uint64_t count) {
    finder *f = ctx;
    uint32_t bad = 0;
    if (f->what[0]) return CLT_OK;
    CLT_TRY(clt_buffer_fill32(f->e->nonfinite, 0, 0, 4));
    CLT_TRY(clt_op_count_nonfinite(f->e->ops, clt_tensor_vector(made, type), count,
                                   (clt_ref){f->e->nonfinite, 0}));
    CLT_TRY(clt_buffer_read(f->e->nonfinite, 0, &bad, 4));
    if (bad) snprintf(f->what, sizeof f->what, "%s: %u of %llu values", what, bad, (unsigned long long)count);
    return CLT_OK;
}

static clt_status look_at_stretch(finder *f, const char *what, clt_slab_range x) {
    const clt_engine *e = f->e;
    CLT_TRY(clt_offload_bring(e->offload, 1u << CLT_STATE_WEIGHTS, x));
    CLT_TRY(
        look(f, what, CLT_F32, clt_offload_at(e->offload, CLT_STATE_WEIGHTS, e->master, x.first), x.count));
    return clt_offload_leave(e->offload, 0, x);
}

/* Weights that are not finite come first: they explain everything that follows. */
static clt_status look_at_weights(finder *f) {
    const clt_slab_table *t = &f->e->table;
    const uint64_t most = clt_offload_most(f->e->offload, 1u << CLT_STATE_WEIGHTS);
    char what[200];
    CLT_TRY(clt_offload_begin(f->e->offload, 1u << CLT_STATE_WEIGHTS, NULL, NULL));
    for (int i = 0; i < t->n && !f->what[0]; i++) {
        const uint64_t count = t->entry[i].count;
        snprintf(what, sizeof what, "weight %s", t->entry[i].name);
        for (uint64_t done = 0, n; done < count; done += n) { /* what is on this rank */
            const uint64_t first = t->entry[i].offset + done;
            const clt_ref at = clt_slab_at(f->e->master, first, &n);
            n = CLT_MIN(CLT_MIN(n, count - done), most);
            if (at.buf) CLT_TRY(look_at_stretch(f, what, (clt_slab_range){first, n}));
        }
    }
    return clt_offload_end(f->e->offload);
}

clt_status clt_engine_explain(clt_engine *e, const clt_batch *b, int64_t step, char what[CLT_ENGINE_WHAT]) {
    struct {
        int32_t lane; /* -1: nothing found */
        char what[160];
    } mine = {.lane = -1}, all[CLT_GROUP_MAX_RANKS];
    finder f = {.e = e};
    if (e->sharded_weights) {
        snprintf(what, CLT_ENGINE_WHAT,
                 "which operation made it is not looked for while weights are sharded: "
                 "resume with cltrain.zero_stage: 2 to see it");
        return CLT_OK;
    }
    CLT_TRY(clt_engine_settle(e));
    CLT_TRY(look_at_weights(&f));
    if (f.what[0]) mine.lane = 0;
    clt_model_set_watch(e->model, look, &f);
    e->mute = true;
    clt_status st = CLT_OK;
    for (int lane = 0; lane < e->lanes && !f.what[0] && st == CLT_OK; lane++) {
        mine.lane = lane;
        st = clt_engine_run_lane(e, b, step, lane, e->grads[0]);
    }
    clt_model_set_watch(e->model, NULL, NULL);
    e->mute = false;
    clt_engine_forget_units(e);
    CLT_TRY(st);
    mine.lane = f.what[0] ? clt_lane_at(&e->split, clt_group_rank(e->group), mine.lane) : -1;
    memcpy(mine.what, f.what, sizeof mine.what);
    CLT_TRY(clt_group_all_gather(e->group, &mine, sizeof mine, all));
    for (int r = 0; r < clt_group_size(e->group); r++) {
        if (all[r].lane < 0) continue;
        snprintf(what, CLT_ENGINE_WHAT,
                 "the first operation that made a NaN or an infinity: %s (rank %d, lane %d)", all[r].what, r,
                 all[r].lane);
        return CLT_OK;
    }
    snprintf(what, CLT_ENGINE_WHAT,
             "every operation of every lane gives finite values, but the gradients' sum over the lanes is "
             "not finite");
    return CLT_OK;
}
