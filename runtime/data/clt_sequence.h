/* clt_sequence: which sample is at which position of an epoch, for clt_loader: clt_order for one data set,
 * clt_streams for several or for parts of them, and index order for evaluation.
 *
 * `device_per_stream` and replication ask for something that depends on ranks. Device d of `devices` is then
 * the d-th of that many equal parts of every global batch: what rank d has when the ranks have equal shares
 * of it. With replication r, r neighbouring devices get the same samples. Everything else does not depend on
 * the number of ranks. */
#ifndef CLT_SEQUENCE_H
#define CLT_SEQUENCE_H

#include "runtime/data/clt_loader.h"

typedef struct clt_sequence clt_sequence;

/* shards[i] of the `n` shard sizes belong to stream i, one stream behind the other (one stream without
 * p->streams). Nothing of them is kept. CLT_BAD_CONFIG, CLT_BAD_DATA, CLT_NO_MEMORY. */
clt_status clt_sequence_open(const clt_loader_params *p, const int64_t *shard_samples, const size_t *shards,
                             clt_sequence **out);
void clt_sequence_close(clt_sequence *s);

/* Positions of an epoch that are used for batches; with replication, copies count. */
int64_t clt_sequence_num_samples(const clt_sequence *s);
int64_t clt_sequence_canonical_nodes(const clt_sequence *s);
/* floor(N / B), or ceil(N / B) when the short last batch is kept. */
int64_t clt_sequence_batches(const clt_sequence *s, int64_t global_batch, bool drop_last);
/* ids_out[i] = sample at position first + i of epoch `epoch`. Not thread-safe. CLT_BAD_CONFIG: past the end.
 */
clt_status clt_sequence_batch(clt_sequence *s, int64_t epoch, int64_t first, int64_t count, int64_t *ids_out);

#endif
