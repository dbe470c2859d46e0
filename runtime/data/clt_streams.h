/* clt_streams: the sample order of several data sets ("streams") mixed into one epoch, exactly that of
 * StreamingDataset with `streams`.
 *
 * Ids count through the samples of the streams in order. An epoch draws choose[i] samples from stream i,
 * whole shards and random parts of shards; the batching method mixes them: random             all streams are
 * ordered as one data set (clt_order.h) stratified         every global batch has the same number of samples
 * of each stream, one stream behind the other per_stream         every global batch has samples of one
 * stream; incomplete ones are dropped device_per_stream  the same for the batches of single ranks The last
 * three order each stream on its own with clt_order, and only count in whole global batches.
 *
 * As in clt_order, an epoch is one global sequence and the position in it is one number. The world (nodes,
 * ranks of each, batch size of each rank) is part of the parameters: `random`, `stratified` and `per_stream`
 * with one node of one rank that has the global batch do not depend on how ranks share it. */
#ifndef CLT_STREAMS_H
#define CLT_STREAMS_H

#include "runtime/data/clt_order.h"

typedef struct {
    const char *name;             /* for messages */
    const int64_t *shard_samples; /* in index order */
    size_t num_shards;
    double proportion, repeat, choose; /* NaN: not given; at most one of them is */
} clt_stream;

typedef enum {
    CLT_BATCHING_RANDOM,
    CLT_BATCHING_STRATIFIED,
    CLT_BATCHING_PER_STREAM,
    CLT_BATCHING_DEVICE_PER_STREAM
} clt_batching;

typedef struct {
    const clt_stream *stream; /* n of them; copied, except that names are borrowed */
    size_t n;
    int64_t epoch_size;           /* 0: not given */
    const char *sampling_method;  /* default balanced: other samples every epoch; fixed: the same ones */
    int64_t sampling_granularity; /* samples that are drawn from a shard at a time; default 1 */
    const char *batching_method;  /* default random */
    /* Of the streams that get the samples which rounding leaves over. The reference takes the configured
     * shuffle_seed also where a resumed run uses another one. */
    uint64_t weight_seed;
    clt_order_params order;             /* its shards are ignored */
    int64_t ranks_per_node, batch_size; /* batch size of a rank; default 1 */
} clt_streams_params;

typedef struct clt_streams clt_streams;

void clt_streams_params_default(clt_streams_params *p);

/* CLT_BAD_CONFIG, naming the stream: weights that contradict each other, a stream too small for the batching
 * method, unknown methods; CLT_BAD_DATA: a stream has no sample; CLT_NO_MEMORY. */
clt_status clt_streams_create(const clt_streams_params *p, clt_streams **out);
void clt_streams_destroy(clt_streams *s);

/* Samples that an epoch draws from stream i, and the stream's share of the epoch. */
int64_t clt_streams_choose(const clt_streams *s, size_t i);
double clt_streams_share(const clt_streams *s, size_t i);
/* Sum of clt_streams_choose. */
int64_t clt_streams_epoch_size(const clt_streams *s);
/* Positions of an epoch that training uses: the epoch size for random, for the others the samples of the
 * batches that can be made. */
int64_t clt_streams_num_samples(const clt_streams *s);
int64_t clt_streams_canonical_nodes(const clt_streams *s);
int64_t clt_streams_block_size(const clt_streams *s);

/* As clt_order_batch; positions end at clt_streams_num_samples. The first call of an epoch draws its samples
 * and computes its shuffles. */
clt_status clt_streams_batch(clt_streams *s, int64_t epoch, int64_t first, int64_t count, int64_t *ids_out);

/* The samples of a rank when `from` samples of the epoch were seen by all ranks together, in the form of
 * clt_order_rank. For the methods other than random `from` is rounded down to a whole global batch. */
clt_status clt_streams_rank(clt_streams *s, int64_t epoch, int64_t from, int64_t node, int64_t rank,
                            int64_t **ids_out, int64_t *count_out);

/* Sizes of the shards and parts of shards of stream i (-1: of all streams) in the current epoch, as the
 * shuffle gets them; borrowed until the next epoch. Method random has them only for all streams, the other
 * methods only for one. */
void clt_streams_units(const clt_streams *s, int64_t i, const int64_t **sizes, size_t *n);

/* An epoch size as text: "100", "1.5k", with the units k, m, b, t for 10^3, 10^6, 10^9, 10^12. CLT_BAD_CONFIG
 * with the text otherwise, also for a negative one. */
clt_status clt_streams_parse_size(const char *text, int64_t *out);

#endif
