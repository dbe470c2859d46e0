/* clt_mds_index: index.json as a table. Internal to clt_mds. */
#ifndef CLT_MDS_INDEX_H
#define CLT_MDS_INDEX_H

#include "runtime/base/clt_io.h"
#include "runtime/data/clt_codec.h"

typedef enum { MDS_BYTES, MDS_STR, MDS_JSON, MDS_NDARRAY, MDS_INT, MDS_PICTURE, MDS_OTHER } mds_kind;

/* Element types by their codes in array headers; 0: not known from the encoding. */
enum {
    MDS_U8 = 8,
    MDS_I8 = 9,
    MDS_U16 = 16,
    MDS_I16 = 17,
    MDS_F16 = 18,
    MDS_U32 = 32,
    MDS_I32 = 33,
    MDS_F32 = 34,
    MDS_U64 = 64,
    MDS_I64 = 65,
    MDS_F64 = 66
};

typedef struct {
    char *name, *encoding;
    mds_kind kind;
    int dtype;        /* of a whole number, and of an ndarray whose encoding names it; else 0 */
    int64_t size;     /* bytes when fixed, else -1 */
    int ndim;         /* of an ndarray whose encoding has a shape, else 0 */
    int64_t elements; /* product of that shape */
} mds_column;

typedef struct {
    mds_column *columns;
    size_t n;
    size_t num_variable;
    size_t main; /* the column that a run reads: tokens, text, prompt, or turns or messages */
    bool has_tokens;
    bool has_pairs; /* `main` is prompt, and `response` the column that belongs to it */
    size_t response;
    bool has_json;         /* `main` is turns or messages */
    bool has_pictures;     /* column `picture` is a picture and `label` its class */
    size_t picture, label; /* `main` is `picture` where there is none of the others */
} mds_schema;

typedef struct {
    int algo;
    char *hex;
} mds_hash;

typedef struct {
    char *name;
    uint64_t bytes;
    mds_hash *hashes;
    size_t num_hashes;
} mds_file;

typedef struct {
    mds_schema *schema; /* shared by consecutive shards with equal columns */
    bool owns_schema;
    char *compression;      /* NULL: none; otherwise as in index.json */
    const clt_codec *codec; /* of compression */
    mds_file raw, zip;      /* zip.name NULL without compression */
    int64_t first, samples;
    bool use_zip; /* false when the raw file exists beside a compressed one */
    bool checked;
} mds_shard;

typedef struct {
    mds_shard *shards;
    size_t n;
    int64_t num_samples;
} mds_index;

/* Bytes of an element, 0 for a dtype that is not in the list above. */
int64_t mds_dtype_size(int dtype);
/* By name ("int32"); 0 if unknown. */
int mds_dtype_find(const char *name, size_t len);
bool mds_dtype_is_integer(int dtype);

/* The files of a dataset are reached through these two alone; `dir` is a path or a URL. */
clt_status mds_file_stat(const char *dir, const char *name, clt_io_info *info);
clt_status mds_file_open(const char *dir, const char *name, clt_file **out);

/* Reads and checks dir/index.json and the sizes of the files it names; not those of a cache (clt_fetch.h),
 * whose files come later. */
clt_status mds_index_load(const char *dir, bool cache, mds_index *out);
/* Compares the size of the compressed file beside the raw one that is read. *there: whether it exists; a
 * cache deletes it. */
clt_status mds_zip_beside(const char *dir, const mds_shard *s, bool *there);
void mds_index_free(mds_index *x);

#endif
