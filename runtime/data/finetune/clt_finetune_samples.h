/* clt_finetune_samples: all samples of a fine-tuning data set as token ids in memory, each cut to the length
 * of a row, with the positions whose label counts. Texts are tokenized once, on all cores, when the data are
 * opened; memory is that of the ids. */
#ifndef CLT_FINETUNE_SAMPLES_H
#define CLT_FINETUNE_SAMPLES_H

#include "runtime/data/clt_loader.h"

typedef struct clt_finetune_samples clt_finetune_samples;

/* The shards of MDS data, from whose sizes the sample order is made. */
typedef struct {
    int64_t *samples;  /* of each shard, stream behind stream; NULL: the data are JSONL files */
    size_t *of_stream; /* shards of each stream, or of the only data set */
} clt_finetune_shards;
void clt_finetune_shards_free(clt_finetune_shards *s);

/* p->finetune says where the samples are, or p->local or p->streams; ids count through streams in order. In
 * JSONL files, samples with an empty prompt or response, and those without a target in the first
 * p->max_seq_len tokens, are dropped; in an MDS data set, whose samples have places, the second is an error.
 * CLT_BAD_DATA names file and line or sample; CLT_BAD_CONFIG, CLT_IO, CLT_NO_MEMORY. The caller frees *out
 * and *shards, also after a failure. */
clt_status clt_finetune_samples_load(const clt_loader_params *p, clt_finetune_samples **out,
                                     clt_finetune_shards *shards);
void clt_finetune_samples_free(clt_finetune_samples *s); /* NULL is allowed */

int64_t clt_finetune_samples_count(const clt_finetune_samples *s);
/* The id at padding, and whether rows are padded on the left. */
int32_t clt_finetune_samples_pad(const clt_finetune_samples *s, bool *left);

typedef struct {
    const int32_t *ids; /* [n] */
    int32_t n;
    const int32_t *span; /* [2 * spans]: begin and end of the stretches of ids whose label counts */
    int32_t spans;
} clt_finetune_row;
clt_finetune_row clt_finetune_samples_get(const clt_finetune_samples *s, int64_t sample);

#endif
