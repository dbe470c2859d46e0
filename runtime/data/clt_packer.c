#include "runtime/data/clt_packer.h"

#include <string.h>

clt_status clt_packer_init(clt_packer *p, size_t length, bool no_wrap, clt_sample_fn emit, void *ctx) {
    *p = (clt_packer){.length = length, .no_wrap = no_wrap, .emit = emit, .ctx = ctx};
    p->sample = clt_try_calloc(length, sizeof *p->sample);
    return p->sample ? CLT_OK : clt_no_memory("a sample", (uint64_t)length * sizeof *p->sample);
}

void clt_packer_free(clt_packer *p) {
    clt_free(p->sample);
    *p = (clt_packer){0};
}

clt_status clt_packer_add(clt_packer *p, const int32_t *ids, size_t n) {
    while (n > 0 && !p->full) {
        size_t take = CLT_MIN(n, p->length - p->have);
        memcpy(p->sample + p->have, ids, take * sizeof *ids);
        p->have += take;
        ids += take;
        n -= take;
        if (p->have < p->length) return CLT_OK;
        CLT_TRY(p->emit(p->ctx, p->sample, p->length));
        p->have = 0;
        p->full = p->no_wrap;
    }
    p->dropped += (int64_t)n;
    return CLT_OK;
}

void clt_packer_end_document(clt_packer *p) {
    p->full = false;
}
