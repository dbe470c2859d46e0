/* LAMB's trust ratios: which segments the tensors have, where their sums of squares are, and the exchange of
 * the sums. A segment is what a tensor has in one chunk. Sums are in `slots` arrays of one number for each
 * chunk, so that ranks exchange them as they exchange the chunks' own sums. */
#include <string.h>

#include "runtime/train/engine/clt_engine_internal.h"

enum { BLOCK = 64, BLOCKS = CLT_CHUNK / BLOCK, MOST_TENSORS = UINT16_MAX };

static uint64_t chunks_of(const clt_engine *e) {
    return e->table.total / CLT_CHUNK;
}

static uint64_t last_chunk(const clt_slab_entry *t) {
    return (t->offset + t->count - 1) / CLT_CHUNK;
}

/* Counts the segments of each chunk behind those before it: first_of[chunk] ... first_of[chunk + 1] - 1. */
static void count_segments(clt_engine *e) {
    clt_engine_lamb *l = &e->lamb;
    const uint64_t chunks = chunks_of(e);
    l->first_of = clt_calloc((size_t)chunks + 1, sizeof *l->first_of);
    for (int i = 0; i < e->table.n; i++) {
        const clt_slab_entry *t = &e->table.entry[i];
        for (uint64_t c = t->offset / CLT_CHUNK; c <= last_chunk(t); c++) l->first_of[c + 1]++;
    }
    for (uint64_t c = 0; c < chunks; c++) {
        l->slots = CLT_MAX(l->slots, l->first_of[c + 1]);
        l->first_of[c + 1] += l->first_of[c];
    }
}

/* The tables that the device reads. */
typedef struct {
    uint32_t *segment; /* [segments, 2] first block, elements */
    uint32_t *place;   /* [segments] */
    uint32_t *tensor;  /* [tensors, 4] first segment, end, first block, 0 */
    uint16_t *of_block;
} tables;

static void fill(const clt_engine *e, const tables *x) {
    uint32_t k = 0;
    for (int i = 0; i < e->table.n; i++) {
        const clt_slab_entry *t = &e->table.entry[i];
        const uint64_t end = t->offset + t->count;
        x->tensor[4 * i] = k;
        x->tensor[4 * i + 2] = (uint32_t)(t->offset / BLOCK);
        for (uint64_t c = t->offset / CLT_CHUNK; c <= last_chunk(t); c++, k++) {
            const uint64_t first = CLT_MAX(t->offset, c * CLT_CHUNK),
                           stop = CLT_MIN(end, (c + 1) * CLT_CHUNK);
            x->segment[2 * k] = (uint32_t)(first / BLOCK);
            x->segment[2 * k + 1] = (uint32_t)(stop - first);
            x->place[k] = (uint32_t)((k - e->lamb.first_of[c]) * chunks_of(e) + c);
        }
        x->tensor[4 * i + 1] = k;
        for (uint64_t b = t->offset / BLOCK; b < CLT_CEIL_DIV(end, (uint64_t)BLOCK); b++)
            x->of_block[b] = (uint16_t)i;
    }
}

static clt_status upload(clt_engine *e, const void *data, size_t bytes, clt_buffer **out) {
    CLT_TRY(clt_buffer_create(clt_ops_device(e->ops), bytes, "LAMB", out));
    return clt_buffer_write(*out, 0, data, bytes);
}

clt_status clt_engine_lamb_create(clt_engine *e) {
    clt_engine_lamb *l = &e->lamb;
    if (e->cfg->optimizer.kind != CLT_OPTIMIZER_LAMB) return CLT_OK;
    if (e->table.n > MOST_TENSORS)
        return clt_error(CLT_FAIL, "lamb: the model has %d tensors, at most %d are supported", e->table.n,
                         MOST_TENSORS);
    count_segments(e);
    const size_t segments = l->first_of[chunks_of(e)], n = (size_t)e->table.n,
                 blocks = (size_t)(e->table.total / BLOCK), sums = (size_t)(l->slots * chunks_of(e));
    const tables x = {clt_calloc(segments, 8), clt_calloc(segments, 4), clt_calloc(n, 16),
                      clt_calloc(blocks, 2)};
    fill(e, &x);
    clt_status st = upload(e, x.segment, segments * 8, &l->segment);
    if (st == CLT_OK) st = upload(e, x.place, segments * 4, &l->place);
    if (st == CLT_OK) st = upload(e, x.tensor, n * 16, &l->tensor);
    if (st == CLT_OK) st = upload(e, x.of_block, blocks * 2, &l->tensor_of_block);
    clt_device *dev = clt_ops_device(e->ops);
    for (int i = 0; i < 2 && st == CLT_OK; i++) st = clt_buffer_create(dev, sums * 4, "LAMB", &l->sums[i]);
    if (st == CLT_OK) st = clt_buffer_create(dev, n * 4, "LAMB", &l->ratio);
    clt_free(x.segment);
    clt_free(x.place);
    clt_free(x.tensor);
    clt_free(x.of_block);
    return st;
}

void clt_engine_lamb_destroy(clt_engine *e) {
    clt_engine_lamb *l = &e->lamb;
    clt_buffer *all[] = {l->segment, l->place,   l->tensor, l->tensor_of_block,
                         l->sums[0], l->sums[1], l->ratio};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) clt_buffer_destroy(all[i]);
    clt_free(l->first_of);
}

clt_status clt_engine_lamb_sums(clt_engine *e, const clt_optimizer_params *p, clt_slab_range x) {
    const clt_engine_lamb *l = &e->lamb;
    const uint64_t first = l->first_of[x.first / CLT_CHUNK],
                   end = l->first_of[(x.first + x.count) / CLT_CHUNK];
    clt_segment_sumsq_params s = {.n = end - first,
                                  .segment = {l->segment, first},
                                  .place = {l->place, first},
                                  .first_block = x.first / BLOCK};
    for (int i = 0; i < 2; i++) {
        s.x = i ? p->g : p->p;
        s.out = (clt_ref){l->sums[i], 0};
        CLT_TRY(clt_op_segment_sumsq(e->ops, &s));
    }
    return CLT_OK;
}

clt_status clt_engine_lamb_ratios(clt_engine *e) {
    const clt_engine_lamb *l = &e->lamb;
    for (int i = 0; i < 2; i++)
        for (uint64_t slot = 0; slot < l->slots; slot++)
            CLT_TRY(clt_engine_gather_numbers(e, l->sums[i], slot * chunks_of(e)));
    return clt_op_lamb_ratios(e->ops, &(clt_lamb_ratios_params){.tensors = (uint64_t)e->table.n,
                                                                .tensor = {l->tensor, 0},
                                                                .place = {l->place, 0},
                                                                .weights = {l->sums[0], 0},
                                                                .directions = {l->sums[1], 0},
                                                                .groups = {e->groups, 0},
                                                                .group_of_block = {e->block_group, 0},
                                                                .ratio = {l->ratio, 0}});
}
