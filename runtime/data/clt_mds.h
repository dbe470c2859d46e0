/* clt_mds: reads and writes MDS datasets (the shard format of mosaicml-streaming, version 2): a folder (a
 * path or a URL) with index.json and its shards, plain or compressed. Samples are read at random; memory is
 * bounded whatever the files claim. What index.json states about a shard is checked before the shard is used,
 * and damage is reported with file, sample and fact. The format is described in docs/data.md. Not
 * thread-safe. */
#ifndef CLT_MDS_H
#define CLT_MDS_H

#include "runtime/base/clt_base.h"
#include "runtime/data/clt_fetch.h"

typedef struct {
    /* Checksums to verify when a shard is first read. NULL: the fastest one that index.json has for the raw
     * bytes; a name: that one, also of the compressed file, and index.json must have it; "none". */
    const char *validate_hash;
    /* Element type of legacy 'bytes' token columns; NULL: int64. */
    const char *token_encoding_type;
    /* Most memory for decompressed shards, at least one; 0: 1 GiB. */
    size_t cache_bytes;
    /* A remote data set, of which `dir` is the local copy: files are fetched when they are needed. The fetch
     * is borrowed and ends after the data set. NULL: all files are in `dir`. */
    clt_fetch *fetch;
    const char *remote;
    bool keep_zip; /* as the next in clt_fetch_set */
    int retries;
    double timeout;
} clt_mds_params;

typedef struct clt_mds clt_mds;

/* Opens `dir`, reads index.json and compares the sizes of all files. CLT_BAD_DATA with the fact that is
 * wrong; CLT_BAD_CONFIG: options or storage do not fit; CLT_NO_MEMORY. `p` may be NULL. */
clt_status clt_mds_open(const char *dir, const clt_mds_params *p, clt_mds **out);
void clt_mds_close(clt_mds *m);

/* Opens and checks every shard of a small dataset (at most 64 MiB raw) now, so that nothing is opened or
 * allocated later. No effect on a larger one, nor on one that is fetched. */
clt_status clt_mds_preload(clt_mds *m);
/* The number in `fetch` of the shard that has a sample, SIZE_MAX: there is none, or nothing is fetched. */
size_t clt_mds_fetch_shard(const clt_mds *m, int64_t sample);

const char *clt_mds_dir(const clt_mds *m);
int64_t clt_mds_num_samples(const clt_mds *m);
size_t clt_mds_num_shards(const clt_mds *m);

typedef struct {
    const char *file;        /* name of the file that is read */
    const char *compression; /* "none", or the name in index.json */
    int64_t first, samples;  /* global ids [first, first + samples) */
    uint64_t raw_bytes, file_bytes;
    size_t num_columns;
} clt_mds_shard;
void clt_mds_shard_info(const clt_mds *m, size_t shard, clt_mds_shard *out);
/* Name, encoding and fixed size (-1: variable) of a shard's column; borrowed. */
void clt_mds_column_info(const clt_mds *m, size_t shard, size_t column, const char **name,
                         const char **encoding, int64_t *size);
/* Names of the checksums that index.json has for the shard, at most `max`; returns their number. */
size_t clt_mds_hash_names(const clt_mds *m, size_t shard, const char **names, size_t max);

/* True if samples hold tokens, false if they hold text, pairs of texts or JSON. */
bool clt_mds_has_tokens(const clt_mds *m);
/* True if samples hold the text columns prompt and response (or completion), and neither tokens nor text. */
bool clt_mds_has_pairs(const clt_mds *m);

/* The name of the JSON column, messages or turns, if samples hold it and none of the others; else NULL. */
const char *clt_mds_json_column(const clt_mds *m);

/* True if samples hold a picture and its label: a column jpeg, png or pil and one of whole numbers. Which
 * ones, if there are several: named image, x, img, jpg, jpeg or png, and label, y, class or cls. */
bool clt_mds_has_pictures(const clt_mds *m);

/* Tokens of a sample (0 <= sample < N), at most max_tokens, into tokens; *num_tokens = how many were written.
 * *full_length (may be NULL) = how many the sample has. With vocab_size > 0 every id must be in [0,
 * vocab_size), otherwise it must fit int32. CLT_BAD_DATA names sample and position. Makes no allocation when
 * the sample's shard is open. CLT_BAD_CONFIG: the samples hold text. */
clt_status clt_mds_get_tokens(clt_mds *m, int64_t sample, int64_t max_tokens, int64_t vocab_size,
                              int32_t *tokens, int64_t *num_tokens, int64_t *full_length);
/* Text of a sample, verified to be UTF-8; replaces *out. CLT_BAD_CONFIG: the samples hold something else. */
clt_status clt_mds_get_text(clt_mds *m, int64_t sample, clt_str *out);
/* Prompt and response of a sample, verified to be UTF-8; replaces both. CLT_BAD_CONFIG: the samples hold no
 * such columns. */
clt_status clt_mds_get_pair(clt_mds *m, int64_t sample, clt_str *prompt, clt_str *response);
/* The JSON column of a sample, verified to be UTF-8; replaces *out. CLT_BAD_CONFIG: there is none. */
clt_status clt_mds_get_json(clt_mds *m, int64_t sample, clt_str *out);

typedef struct {
    clt_str bytes; /* as in the file, not decoded */
    bool pil;      /* raw pixels with Streaming's header; false: a JPEG or a PNG */
    int64_t label;
    char what[1024]; /* file and sample, for messages */
} clt_mds_picture;
/* Picture and label of a sample; replaces *out, whose memory is reused ({0} at first; clt_str_free frees it).
 * CLT_BAD_CONFIG: the samples hold none. */
clt_status clt_mds_get_picture(clt_mds *m, int64_t sample, clt_mds_picture *out);

/* What clt_mds_verify calls; members may be NULL. */
typedef struct {
    /* at intervals, with the number of shards and samples that are done */
    void (*progress)(void *user, size_t shards_done, int64_t samples_done);
    /* for each sample: what this file does not know, such as whether a picture can be decoded */
    clt_status (*check)(void *user, int64_t sample);
    void *user;
} clt_mds_watch;

/* Verifies header, every offset, all checksums and every sample (ids against vocab_size when > 0). Continues
 * with the next shard after a fault; returns the first fault's status, *bad_shards is how many shards have
 * one. watch may be NULL. */
clt_status clt_mds_verify(clt_mds *m, int64_t vocab_size, const clt_mds_watch *watch, size_t *bad_shards);

/* --- writing --- */

typedef struct {
    const char *compression; /* NULL or "" for none, or a codec: "zstd", "zstd:7" (clt_codec.h) */
    const char *hashes;      /* comma-separated names, any order, NULL for none */
    int64_t size_limit;      /* bytes of a raw shard; default 1 << 26 */
    bool text;               /* the column is text = str, not tokens = ndarray:int32 */
} clt_mds_writer_params;

typedef struct clt_mds_writer clt_mds_writer;

void clt_mds_writer_params_default(clt_mds_writer_params *p);
/* Creates `dir`; CLT_BAD_CONFIG if it has an index.json. One column. */
clt_status clt_mds_writer_create(const char *dir, const clt_mds_writer_params *p, clt_mds_writer **out);
/* n >= 1 tokens. Starts a new shard when size_limit < shard + sample, like the reference. */
clt_status clt_mds_writer_add(clt_mds_writer *w, const int32_t *tokens, size_t n);
/* The same for a writer with `text`: a sample of UTF-8 text, which is not checked and may be empty. */
clt_status clt_mds_writer_add_text(clt_mds_writer *w, const char *text, size_t bytes);
/* Writes the last shard, then index.json; until then a reader sees no dataset. CLT_BAD_DATA: no sample was
 * added. Frees w in any case. */
clt_status clt_mds_writer_finish(clt_mds_writer *w);
/* Removes the shards written so far and frees w. NULL is allowed. */
void clt_mds_writer_abort(clt_mds_writer *w);
int64_t clt_mds_writer_samples(const clt_mds_writer *w);
size_t clt_mds_writer_shards(const clt_mds_writer *w);

#endif
