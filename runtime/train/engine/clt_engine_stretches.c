/* The stretches of a pass over elements of this rank. */
#include "runtime/train/engine/clt_engine_internal.h"

static uint64_t shorter(const clt_slab *s, uint64_t at, uint64_t count) {
    uint64_t run;
    if (!s) return count;
    clt_slab_at(s, at, &run);
    return CLT_MIN(run, count);
}

bool clt_engine_next_stretch(void *stretches, clt_slab_range *x) {
    clt_engine_stretches *s = stretches;
    clt_slab_range own;
    for (; clt_engine_range(s->e, s->shards, s->range, &own); s->range++, s->done = 0) {
        if (s->done == own.count) continue;
        const uint64_t at = own.first + s->done;
        uint64_t n = CLT_MIN(own.count - s->done, s->most);
        for (size_t k = 0; k < CLT_COUNT_OF(s->used); k++) n = shorter(s->used[k], at, n);
        s->done += n;
        *x = (clt_slab_range){at, n};
        return true;
    }
    return false;
}
