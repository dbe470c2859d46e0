/* The stretches of a pass over elements of this rank. */
#include "runtime/train/engine/clt_engine_internal.h"

static uint64_t shorter(const clt_slab *s, uint64_t at, uint64_t count) {
    uint64_t run;
    if (!s) return count;
    clt_slab_at(s, at, &run);
    return CLT_MIN(run, count);
}

/* Whether state at this element passes through places on the device. */
static bool is_offloaded(const clt_engine_stretches *s, uint64_t at) {
    bool any = false;
    for (size_t k = 0; k < CLT_COUNT_OF(s->used); k++) {
        const clt_buffer *b = s->used[k] ? clt_slab_at(s->used[k], at, NULL).buf : NULL;
        any = any || (b && !clt_buffer_is_on_device(b));
    }
    return any;
}

bool clt_engine_next_stretch(void *stretches, clt_slab_range *x) {
    clt_engine_stretches *s = stretches;
    clt_slab_range own;
    for (; clt_engine_range(s->e, s->shards, s->range, &own); s->range++, s->done = 0) {
        if (s->done == own.count) continue;
        const uint64_t at = own.first + s->done;
        uint64_t n = own.count - s->done;
        if (is_offloaded(s, at)) n = CLT_MIN(n, s->most);
        for (size_t k = 0; k < CLT_COUNT_OF(s->used); k++) n = shorter(s->used[k], at, n);
        s->done += n;
        *x = (clt_slab_range){at, n};
        return true;
    }
    return false;
}
