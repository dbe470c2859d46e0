/* clt_reader: makes the arrays that a model takes from the samples of a data set. A reader opens the data set
 * and fills one row of each array at a time; clt_loader decides which samples, and when.
 *
 * Readers are a table of functions; `text` (clt_text_reader.c: MDS shards of tokens or of text) is the
 * example to copy. Not for other folders. */
#ifndef CLT_READER_H
#define CLT_READER_H

#include "runtime/data/clt_loader.h"
#include "runtime/data/clt_mds.h"

typedef struct clt_reader clt_reader;

/* What one row counts. */
typedef struct {
    int64_t targets; /* in the loss */
    int64_t tokens;  /* without padding */
    int64_t sample;  /* readers with rows of their own: the first sample of the row */
} clt_sample_counts;

/* A whole request, for readers that fill its rows at once. */
typedef struct {
    int64_t epoch, count, rows; /* rows: positions of an epoch */
    const int64_t *samples;     /* [count] */
    const int64_t *positions;   /* [count] in the epoch */
    void *const *field;         /* arrays of the layout, [count] each */
    clt_sample_counts *counts;  /* [count] to fill */
    /* The sample at a position that the request need not have. */
    clt_status (*sample_at)(void *loader, int64_t epoch, int64_t position, int64_t *sample);
    void *loader;
} clt_reader_request;

typedef struct {
    const char *name;
    /* Fills row[i], layout.field[i].bytes each (NULL: the field is absent), with a sample of epoch `epoch`.
     */
    clt_status (*read)(clt_reader *r, int64_t sample, int64_t epoch, void *const row[CLT_BATCH_MAX_FIELDS],
                       clt_sample_counts *out);
    /* Instead of `read`, where what a row holds depends on its position, or rows are filled on several
     * threads. NULL: rows are read one by one. Only for readers without rows of their own. */
    clt_status (*read_rows)(clt_reader *r, const clt_reader_request *q);
    /* The same row as the reference's collator writes it; v's arrays exist. */
    clt_status (*show)(clt_reader *r, int64_t epoch, int64_t sample, clt_loader_view *v);
    /* Readers with rows of their own (packing): the rows of an epoch. Then `sample` above is the position of
     * a row in its epoch, and clt_order is not used. Called by any thread. NULL: each sample is a row. */
    clt_status (*rows)(clt_reader *r, int64_t epoch, int64_t *rows);
    /* All samples of a row of such a reader, as clt_loader_row_samples. Called by any thread. */
    clt_status (*members)(clt_reader *r, int64_t epoch, int64_t row, int64_t **ids, size_t *cap, size_t *n);
    /* The samples of rows [first, first + count) of such readers. CLT_BAD_CONFIG: a row has several. */
    clt_status (*ids)(clt_reader *r, int64_t epoch, int64_t first, int64_t count, int64_t *ids);
    /* The number in the loader's clt_fetch of the shard that has a sample; SIZE_MAX: none. NULL: unknown. */
    size_t (*shard)(const clt_reader *r, int64_t sample);
    /* As clt_loader_class_name. NULL: classes have no names. */
    const char *(*class_name)(const clt_reader *r, int64_t label);
    void (*close)(clt_reader *r);
} clt_reader_ops;

/* Begins the struct of every reader. */
struct clt_reader {
    const clt_reader_ops *ops;
    clt_batch_layout layout;
    int64_t *shard_samples; /* [shards] owned by the reader; the sample order is made from them */
    size_t shards;
    size_t *stream_shards;            /* shards of each of the loader's streams, owned; NULL: one data set */
    int64_t samples, canonical_nodes; /* of readers with rows of their own */
};

/* Opens p->local as text for sequences of p->max_seq_len tokens. CLT_BAD_DATA or CLT_BAD_CONFIG with the
 * folder and the reason, CLT_NO_MEMORY. */
clt_status clt_text_reader_open(const clt_loader_params *p, clt_reader **out);
/* The same for the folders of p->streams, p->n_streams >= 1; a failure names the stream. */
clt_status clt_streams_reader_open(const clt_loader_params *p, clt_reader **out);
/* Opens p->local, a folder of MDS shards or of classes, as pictures. The same failures. */
clt_status clt_image_reader_open(const clt_loader_params *p, clt_reader **out);
/* Opens the samples of p->finetune. The same failures. */
clt_status clt_finetune_reader_open(const clt_loader_params *p, clt_reader **out);

/* The parameters of stream i as those of the only data set; its share of cache_bytes. */
clt_loader_params clt_loader_params_of_stream(const clt_loader_params *p, int i);
/* The MDS data set of p->local and p->split. */
clt_status clt_reader_open_mds(const clt_loader_params *p, clt_mds **out);

#endif
