/* clt_finetune_plan: which samples make each row of an epoch. Without packing a row is a sample, in the order
 * of torch's DistributedSampler (JSONL) or of StreamingDataset (MDS), each with one rank. With packing the
 * rows follow from that order and from the bins that the batch before left behind, from the first batch of
 * the run on, across epochs.
 *
 * A plan is a pure function of data and settings: any position of any epoch can be asked for, at the price of
 * packing all epochs before it again, by lengths alone. The rows of two epochs are kept. Any thread may ask.
 */
#ifndef CLT_FINETUNE_PLAN_H
#define CLT_FINETUNE_PLAN_H

#include "runtime/data/finetune/clt_finetune_samples.h"

typedef struct clt_finetune_plan clt_finetune_plan;

/* `samples` is borrowed; nothing of `shards` is kept. CLT_BAD_CONFIG, CLT_BAD_DATA: what clt_sequence_open
 * gives; CLT_NO_MEMORY. */
clt_status clt_finetune_plan_create(const clt_loader_params *p, const clt_finetune_samples *samples,
                                    const clt_finetune_shards *shards, clt_finetune_plan **out);
void clt_finetune_plan_destroy(clt_finetune_plan *p); /* NULL is allowed */

/* Samples of an epoch. */
int64_t clt_finetune_plan_samples(const clt_finetune_plan *p);
/* Rows of an epoch. */
clt_status clt_finetune_plan_rows(clt_finetune_plan *p, int64_t epoch, int64_t *rows);
/* Samples of a row, in order, into *sample [*n], an array of *cap entries that grows as needed (clt_free).
 * CLT_BAD_CONFIG: there is no such row. */
clt_status clt_finetune_plan_row(clt_finetune_plan *p, int64_t epoch, int64_t row, int64_t **sample,
                                 size_t *cap, size_t *n);

/* Samples that are collated at a time; with packing, int(batch * ratio). */
int64_t clt_finetune_plan_read(const clt_finetune_plan *p);
bool clt_finetune_plan_packs(const clt_finetune_plan *p);
int64_t clt_finetune_plan_canonical_nodes(const clt_finetune_plan *p);

#endif
