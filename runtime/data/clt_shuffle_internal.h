/* What the files of the shuffles share. Not for other folders. */
#ifndef CLT_SHUFFLE_INTERNAL_H
#define CLT_SHUFFLE_INTERNAL_H

#include "runtime/data/clt_nprng.h"
#include "runtime/data/clt_order.h"

/* Ids [begin, end) of one shard, or the part of it in one canonical node. */
typedef struct {
    int64_t begin, end;
} clt_shuffle_span;

/* Sample ids: 4 bytes each where all of them fit. */
typedef struct {
    void *v;
    bool wide; /* int64_t, else uint32_t */
} clt_ids;

static inline bool clt_ids_are_wide(int64_t n) {
    return n > (int64_t)UINT32_MAX;
}
static inline size_t clt_ids_size(bool wide) {
    return wide ? sizeof(int64_t) : sizeof(uint32_t);
}
static inline int64_t clt_ids_get(clt_ids a, int64_t i) {
    return a.wide ? ((const int64_t *)a.v)[i] : (int64_t)((const uint32_t *)a.v)[i];
}
static inline void clt_ids_set(clt_ids a, int64_t i, int64_t id) {
    if (a.wide)
        ((int64_t *)a.v)[i] = id;
    else
        ((uint32_t *)a.v)[i] = (uint32_t)id;
}

/* --- py1e: the samples of a span move by random amounts --- */

typedef struct clt_spread clt_spread;
/* Work space for canonical nodes of at most `largest` samples in spans of at most `span`, with this shuffle
 * block size: about 20 bytes for each of 1.25 * block + span samples. NULL: no memory. */
clt_spread *clt_spread_create(int64_t largest, int64_t span, int64_t block);
void clt_spread_destroy(clt_spread *s);
/* ids[first ... first + n) are the samples of a node, span after span in the order of `spans`. Adds to the
 * position of each sample a shift that is uniform over a range of its span, about a block wide around it, and
 * sorts by position; of equal positions the earlier sample comes first. */
void clt_spread_node(clt_spread *s, clt_nprng *r, const clt_shuffle_span *spans, size_t num_spans,
                     clt_ids ids, int64_t first, int64_t n);

#endif
