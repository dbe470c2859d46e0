/* clt_safetensors: reading and writing of .safetensors files, the exchange format of model weights.
 *
 * The reader trusts nothing. Before a tensor is available, the whole header is checked: sizes, UTF-8, JSON
 * without duplicate keys, every field, every product for overflow, and that the tensors' byte ranges tile the
 * data part exactly, without holes and overlaps. A file that fails is CLT_BAD_DATA with the reason. Memory
 * use is bounded by the header's size (CLT_NO_MEMORY); data are read on demand.
 *
 * Layout: u64 little-endian N, N bytes of JSON, data. Each key of the JSON object is a tensor
 * {"dtype", "shape", "data_offsets": [begin, end]}, or "__metadata__" (text to text). */
#ifndef CLT_SAFETENSORS_H
#define CLT_SAFETENSORS_H

#include "runtime/base/clt_base.h"

enum {
    CLT_ST_MAX_DIMS = 8,
    CLT_ST_MAX_HEADER = 100000000,
    CLT_ST_MAX_TENSORS = 1000000,
    CLT_ST_MAX_NAME = 1024
};

/* In the order of clt_st_dtype_name's table. */
typedef enum {
    CLT_ST_BOOL,
    CLT_ST_F4,
    CLT_ST_F6_E2M3,
    CLT_ST_F6_E3M2,
    CLT_ST_U8,
    CLT_ST_I8,
    CLT_ST_F8_E5M2,
    CLT_ST_F8_E4M3,
    CLT_ST_F8_E8M0,
    CLT_ST_F8_E4M3FNUZ,
    CLT_ST_F8_E5M2FNUZ,
    CLT_ST_I16,
    CLT_ST_U16,
    CLT_ST_F16,
    CLT_ST_BF16,
    CLT_ST_I32,
    CLT_ST_U32,
    CLT_ST_F32,
    CLT_ST_C64,
    CLT_ST_F64,
    CLT_ST_I64,
    CLT_ST_U64,
    CLT_ST_DTYPES
} clt_st_dtype;

const char *clt_st_dtype_name(clt_st_dtype t); /* "F32" */
int clt_st_dtype_bits(clt_st_dtype t);

typedef struct {
    char *name;
    clt_st_dtype dtype;
    int dims; /* 0: a scalar */
    uint64_t shape[CLT_ST_MAX_DIMS];
    uint64_t count;      /* elements, may be 0 */
    uint64_t begin, end; /* bytes in the data part */
} clt_st_tensor;

typedef struct clt_safetensors clt_safetensors;

/* Opens and checks a file. Only its header is read. */
clt_status clt_safetensors_open(const char *path, clt_safetensors **out);
/* The same checks on a header in memory, for a data part of `data_bytes`; nothing can be read from the
 * result. `what` names the source in messages. */
clt_status clt_safetensors_parse(const char *header, size_t bytes, uint64_t data_bytes, const char *what,
                                 clt_safetensors **out);
void clt_safetensors_close(clt_safetensors *s); /* NULL is allowed */

/* Tensors in file order. The results belong to `s`. */
int clt_safetensors_count(const clt_safetensors *s);
const clt_st_tensor *clt_safetensors_at(const clt_safetensors *s, int i);
int clt_safetensors_find(const clt_safetensors *s, const char *name); /* -1: absent */
const char *clt_safetensors_path(const clt_safetensors *s);
/* Metadata pairs, in file order. */
int clt_safetensors_meta_count(const clt_safetensors *s);
void clt_safetensors_meta_at(const clt_safetensors *s, int i, const char **key, const char **value);
const char *clt_safetensors_meta(const clt_safetensors *s, const char *key); /* NULL: absent */

/* Bytes [first, first + bytes) of tensor i. Ranges outside the tensor are CLT_FAIL. */
clt_status clt_safetensors_read(clt_safetensors *s, int i, uint64_t first, void *dst, size_t bytes);
/* Elements [first, first + count) as fp32, from F32, F16, BF16 (exact) or F64 (rounded to nearest). Other
 * types are CLT_BAD_DATA. */
clt_status clt_safetensors_read_f32(clt_safetensors *s, int i, uint64_t first, float *dst, uint64_t count);

/* Converts `count` elements of F32, F16, BF16 (exact) or F64 (rounded to nearest) at `src`, little endian. */
void clt_st_to_f32(clt_st_dtype type, const void *src, float *dst, size_t count);

/* Hashes every tensor that has a "cltrain.xxh3.NAME" in the metadata; CLT_BAD_DATA names the first that
 * differs. *checked: how many tensors have one. */
clt_status clt_safetensors_verify(clt_safetensors *s, int *checked);

/* One tensor to write: F32, BF16 or F16 (rounded to nearest even), filled by calls of read(ctx, index, first,
 * dst, count). */
typedef struct {
    const char *name;
    clt_st_dtype dtype;
    int dims;
    uint64_t shape[CLT_ST_MAX_DIMS];
} clt_st_spec;
typedef clt_status (*clt_st_fill)(void *ctx, int index, uint64_t first, float *dst, uint64_t count);

/* Writes a file: temporary name, fsync, rename, fsync of the folder (CLT_BAD_CONFIG: the storage cannot
 * rename or write in any order). Tensors are laid out by alignment, then name; the data part is 8-aligned;
 * metadata get one XXH3-128 per tensor. `meta`: n_meta pairs key, value. Bounded memory. */
clt_status clt_safetensors_write(const char *path, const clt_st_spec *tensors, int n, const char *const *meta,
                                 int n_meta, clt_st_fill fill, void *ctx);

#endif
