/* clt_loader: batches of a data set as host arrays, by position in the epoch. It combines a reader
 * (clt_reader: files and what is made of a sample) with clt_sequence (which sample comes when), and one
 * thread reads the next batch ahead.
 *
 * A rank requests its own part of the global batch: rows are (epoch, first, count), positions in the epoch's
 * sequence (clt_order.h). Global batch g of size B is (g * B, B); a rank that owns samples [a, b) of it
 * requests (g * B + a, b - a). */
#ifndef CLT_LOADER_H
#define CLT_LOADER_H

#include "runtime/base/clt_base.h"
#include "runtime/base/clt_batch.h"
#include "runtime/data/clt_fetch.h"
#include "runtime/data/finetune/clt_finetune.h"
#include "runtime/data/image/clt_image_reader.h"

/* One of several data sets; NULL: as the loader's. */
typedef struct {
    const char *name; /* for messages */
    const char *local, *remote;
    const char *split, *validate_hash;
    double proportion, repeat, choose;         /* NaN: not given; at most one of them (clt_streams.h) */
    bool has_keep_zip, has_retry, has_timeout; /* whether the next three are given */
    bool keep_zip;
    int64_t download_retry;
    double download_timeout;
} clt_loader_stream;

typedef struct {
    const char *local;    /* the dataset: a path or a URL */
    const char *split;    /* sub-folder, NULL or "": none */
    const char *remote;   /* where what `local` lacks is fetched from, a path or a URL; NULL or "": nowhere */
    int64_t predownload;  /* samples of this rank whose shards are fetched ahead; 0: 8 times a request */
    uint64_t cache_limit; /* clt_fetch_params */
    bool keep_zip;        /* clt_fetch_set */
    int64_t download_retry;           /* likewise; default 2 */
    double download_timeout;          /* likewise, seconds; default 60 */
    const clt_loader_stream *streams; /* several data sets instead of `local` */
    int n_streams;                    /* 0: one data set */
    int64_t max_seq_len;
    int64_t vocab_size;    /* of the model: ids outside it are an error that names sample and position */
    const char *tokenizer; /* what clt_tokenizer_open takes; used only when text must be tokenized */
    const char *token_encoding_type; /* of legacy 'bytes' columns; NULL: int64 */
    /* Evaluation: every sample exactly once, in index order; the order options are ignored. */
    bool eval;
    bool shuffle;
    const char *shuffle_algo;    /* NULL: py1e */
    const char *partition_algo;  /* NULL: relaxed */
    uint64_t shuffle_seed;       /* default 9176 */
    int64_t num_canonical_nodes; /* 0: default */
    int64_t shuffle_block_size;  /* 0: default */
    /* Of training, as in clt_streams.h; 0 and NULL: default. */
    int64_t epoch_size, sampling_granularity;
    const char *sampling_method, *batching_method;
    int64_t replication;                /* ranks with the same samples; 0: 1 */
    int64_t global_batch, devices;      /* samples of a global batch and ranks; needed with the keys above */
    int64_t eos_token_id, bos_token_id; /* -1: none; one of them turns sequence ids on */
    int64_t pad_token_id;               /* -1: none; labels that equal it become -100; fills short samples */
    const char *validate_hash;          /* clt_mds_params */
    int64_t max_rows;                   /* largest `count` of a request */
    size_t cache_bytes;                 /* for decompressed shards; 0: 1 GiB (one shard at least) */
    bool finetuning;                    /* prompts and responses instead of text, as the next member says */
    clt_finetune_params finetune;
    bool images; /* pictures instead of text, as the next member says */
    clt_image_params image;
    clt_fetch *fetch; /* the loader's own; callers leave it NULL */
} clt_loader_params;

typedef struct clt_loader clt_loader;

void clt_loader_params_default(clt_loader_params *p);

/* CLT_BAD_DATA or CLT_BAD_CONFIG with the folder and the reason, or CLT_NO_MEMORY. Allocates everything that
 * reading batches needs. */
clt_status clt_loader_open(const clt_loader_params *p, clt_loader **out);
void clt_loader_close(clt_loader *l);

int64_t clt_loader_num_samples(const clt_loader *l);
/* Positions of an epoch that training uses: the samples, or, if several samples share a row, its rows.
 * INT64_MAX if they cannot be computed; reading then fails with the reason. */
int64_t clt_loader_rows_of(clt_loader *l, int64_t epoch);
/* floor(N / B), or ceil(N / B) when the short last batch is kept; N rows of an epoch. */
int64_t clt_loader_batches(clt_loader *l, int64_t global_batch, bool drop_last);
/* Canonical nodes in effect, for the checkpoint. */
int64_t clt_loader_canonical_nodes(const clt_loader *l);
/* The arrays of its batches. Text: tokens, padded on the right (with pad_token_id, or 0 without one);
 * targets, the tokens shifted by one, CLT_LABEL_IGNORE at the last place, at padding, and where the label is
 * the pad id; sequence ids, if eos_token_id or bos_token_id is set: the number of EOS before the token, or of
 * BOS up to it. */
const clt_batch_layout *clt_loader_layout(const clt_loader *l);

/* Positions [first, first + count) of an epoch. */
typedef struct {
    int64_t first, count;
} clt_loader_rows;
/* The samples at n stretches of positions of epoch `epoch`, one behind the other, borrowed from the loader
 * until the next clt_loader_get. out->first and the fields of the global batch are 0. Samples that
 * clt_loader_prefetch announced come from the thread, others are read now. At most max_rows samples; none
 * give an empty batch. Allocates only for more stretches than before. */
clt_status clt_loader_get_rows(clt_loader *l, int64_t epoch, const clt_loader_rows *part, int n,
                               clt_batch *out);
/* Announces the next request, which the thread reads ahead. A wrong guess only costs time; clt_loader_get
 * reads rows whose reading failed again, and reports. */
void clt_loader_prefetch_rows(clt_loader *l, int64_t epoch, const clt_loader_rows *part, int n);
/* The same with one stretch. */
clt_status clt_loader_get(clt_loader *l, int64_t epoch, int64_t first, int64_t count, clt_batch *out);
void clt_loader_prefetch(clt_loader *l, int64_t epoch, int64_t first, int64_t count);
/* Only the ids of the samples at these positions; reads nothing and drops what was announced. CLT_BAD_CONFIG:
 * past the end, or a row has several samples. */
clt_status clt_loader_ids(clt_loader *l, int64_t epoch, int64_t first, int64_t count, int64_t *ids_out);

/* What was waited for: seconds and times that clt_loader_get waited because a shard was still to be fetched,
 * since the loader was opened. */
typedef struct {
    double seconds;
    int64_t times;
    uint64_t received; /* bytes */
} clt_loader_stalls;
/* Whether the loader has a data set with a remote. */
bool clt_loader_fetches(const clt_loader *l);
/* Zeros if nothing is fetched. */
clt_loader_stalls clt_loader_get_stalls(const clt_loader *l);

/* The name of a class of pictures, of the loader's data set; NULL: it has none. */
const char *clt_loader_class_name(const clt_loader *l, int64_t label);

/* --- for people and tests --- */

/* Whether several samples may share a row: clt_batch.sample_ids has the first one of each row. */
bool clt_loader_shares_rows(const clt_loader *l);
/* Then: all samples of the row at a position of an epoch, in order, into *ids [*n], an array of *cap entries
 * that grows as needed (clt_free). Changes nothing about announced rows. */
clt_status clt_loader_row_samples(clt_loader *l, int64_t epoch, int64_t position, int64_t **ids, size_t *cap,
                                  size_t *n);

/* A row as the reference's collator writes it: a label is the id at its own position, or CLT_LABEL_IGNORE. */
typedef struct {
    int32_t *input_ids, *labels, *attention_mask,
        *sequence_id;       /* [seq] of the caller; sequence_id -1: padding */
    int64_t tokens;         /* without padding */
    const int64_t *samples; /* those of the row; until the next such call */
    size_t num_samples;
    bool pads_left, packed; /* rows of fine-tuning data: padding comes first; several samples share a row */
} clt_loader_view;
/* The row at a position of an epoch. v->sequence_id is written only if the layout has sequence ids. */
clt_status clt_loader_show(clt_loader *l, int64_t epoch, int64_t position, clt_loader_view *v);

#endif
