/* clt_reader: makes the arrays that a model takes from the samples of a data set. A reader opens the data set
 * and fills one row of each array at a time; clt_loader decides which samples, and when.
 *
 * Readers are a table of functions; `text` (clt_text_reader.c: MDS shards of tokens or of text) is the
 * example to copy. Not for other folders. */
#ifndef CLT_READER_H
#define CLT_READER_H

#include "runtime/data/clt_loader.h"

typedef struct clt_reader clt_reader;

/* What one sample counts. */
typedef struct {
    int64_t targets; /* in the loss */
    int64_t tokens;  /* without padding */
} clt_sample_counts;

typedef struct {
    const char *name;
    /* Fills row[i], layout.field[i].bytes each (NULL: the field is absent), with a sample of epoch `epoch`.
     */
    clt_status (*read)(clt_reader *r, int64_t sample, int64_t epoch, void *const row[CLT_BATCH_MAX_FIELDS],
                       clt_sample_counts *out);
    void (*close)(clt_reader *r);
} clt_reader_ops;

/* Begins the struct of every reader. */
struct clt_reader {
    const clt_reader_ops *ops;
    clt_batch_layout layout;
    int64_t *shard_samples; /* [shards] owned by the reader; the sample order is made from them */
    size_t shards;
    size_t *stream_shards; /* shards of each of the loader's streams, owned; NULL: one data set */
};

/* Opens p->local as text for sequences of p->max_seq_len tokens. CLT_BAD_DATA or CLT_BAD_CONFIG with the
 * folder and the reason, CLT_NO_MEMORY. */
clt_status clt_text_reader_open(const clt_loader_params *p, clt_reader **out);
/* The same for the folders of p->streams, p->n_streams >= 1; a failure names the stream. */
clt_status clt_streams_reader_open(const clt_loader_params *p, clt_reader **out);

#endif
