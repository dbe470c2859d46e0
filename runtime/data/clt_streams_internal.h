/* What the files of clt_streams share. Not for other folders. */
#ifndef CLT_STREAMS_INTERNAL_H
#define CLT_STREAMS_INTERNAL_H

#include "runtime/data/clt_streams.h"

/* --- weights --- */

/* choose[i]: samples that an epoch draws from stream i; share[i]: its share of the epoch. totals[i]: samples
 * of stream i. */
clt_status clt_streams_weigh(const clt_streams_params *p, const int64_t *totals, int64_t *choose,
                             double *share);

/* --- sampling --- */

/* The shards of a stream. */
typedef struct {
    const int64_t *size;
    size_t n;
    int64_t first_id, total; /* id of its first sample; its samples */
} clt_stream_shards;

/* What an epoch draws from one or more streams. Unit u, a shard or a part of it, has the places
 * [begin[u], begin[u+1]); the id at place k of them is base[u] + k - begin[u] if listed[u] is negative, else
 * base[u] + list[listed[u] + k - begin[u]]. */
typedef struct {
    size_t n;
    int64_t *size, *base, *begin, *listed;
    int64_t *list;
    size_t list_n;
} clt_stream_units;

typedef struct {
    int64_t granularity;
    uint64_t seed, epoch;
    bool every_epoch; /* the number drawn from each shard changes with the epoch */
    bool fixed;       /* the samples of a part of a shard do not */
} clt_stream_sampling;

/* Draws choose[i] samples from each of n streams, with one generator for the parts of shards. CLT_NO_MEMORY.
 */
clt_status clt_stream_units_draw(const clt_stream_shards *streams, const int64_t *choose, size_t n,
                                 const clt_stream_sampling *s, clt_stream_units *out);
int64_t clt_stream_units_id(const clt_stream_units *u, int64_t place);
void clt_stream_units_free(clt_stream_units *u);

#endif
