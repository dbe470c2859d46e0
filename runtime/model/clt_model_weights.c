/* Initial weights on a device. Several threads compute a stage in parts while the previous stage is
 * written. */
#include "runtime/base/clt_thread.h"
#include "runtime/model/clt_model.h"

typedef struct {
    const clt_model_config *config;
    const clt_slab_table *table;
    int entry;
    uint64_t seed, first, count;
    float *out;
} init_job;

enum { INIT_BLOCK = 1 << 16, INIT_STAGE = 1 << 22 };

/* Part 0 writes the previous stage; the other parts compute this one. */
typedef struct {
    init_job job;
    clt_slab *weights;
    uint64_t to, n; /* part 0 writes n elements of `ready` to element `to` */
    const float *ready;
    bool failed;
} init_stage;

static void init_part(void *ctx, size_t index) {
    init_stage *s = ctx;
    if (index == 0) {
        s->failed = s->n > 0 && clt_slab_write(s->weights, s->to, s->ready, s->n) != CLT_OK;
        return;
    }
    const init_job *j = &s->job;
    uint64_t at = (uint64_t)(index - 1) * INIT_BLOCK, n = CLT_MIN((uint64_t)INIT_BLOCK, j->count - at);
    if (!clt_slab_touches(s->weights, j->table->entry[j->entry].offset + j->first + at, n)) return;
    clt_model_init_range(j->config, j->table, j->entry, j->seed, j->first + at, n, j->out + at);
}

clt_status clt_model_init_weights(const clt_model_config *c, const clt_slab_table *t, uint64_t seed,
                                  clt_slab *weights) {
    CLT_TRY(clt_slab_zero(weights));
    float *stages = clt_try_malloc(2 * sizeof(float) * INIT_STAGE), *out = stages;
    if (!stages) return clt_no_memory("making initial weights", 2 * sizeof(float) * INIT_STAGE);
    init_stage s = {.weights = weights};
    for (int i = 0; i < t->n && !s.failed; i++) {
        const clt_slab_entry *e = &t->entry[i];
        for (uint64_t at = 0; at < e->count && !s.failed; at += INIT_STAGE) {
            const uint64_t n = CLT_MIN((uint64_t)INIT_STAGE, e->count - at);
            if (!clt_slab_touches(weights, e->offset + at, n)) continue;
            s.job = (init_job){c, t, i, seed, at, n, out};
            clt_parallel_for(1 + CLT_CEIL_DIV(n, (uint64_t)INIT_BLOCK), 0, init_part, &s);
            if (s.failed) break;
            s.to = e->offset + at, s.n = n, s.ready = out;
            out = out == stages ? stages + INIT_STAGE : stages;
        }
    }
    /* Writes the last stage; or repeats the write that failed, so that this thread has its message. */
    clt_status st = clt_slab_write(weights, s.to, s.ready, s.n);
    if (st == CLT_OK && s.failed)
        st = clt_error(CLT_FAIL, "writing the initial weights to the device failed");
    clt_free(stages);
    return st;
}
