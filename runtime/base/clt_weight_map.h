/* clt_weight_map: how the tensors of another program's files correspond to those of a model. A tensor of one
 * side can be several parts of the other side: fused matrices (q|k|v), rows that are interleaved by head, and
 * transposed matrices. The map works in both directions: import reads a model's tensor from the file's,
 * export reads a file's tensor from the model's.
 *
 * Tensors are numbered: `tensor` is an index of the model's table, `file` an index of `clt_weight_map.file`.
 * A vector is a matrix with one column. */
#ifndef CLT_WEIGHT_MAP_H
#define CLT_WEIGHT_MAP_H

#include "runtime/base/clt_base.h"

/* A tensor of a file: its full name and its shape there. */
typedef struct {
    char *name;
    int dims; /* 1 or 2 */
    int64_t shape[2];
} clt_map_file;

/* Rows first ... first + rows - 1 of a model's tensor, `cols` elements each. Row first + r of it is row
 * r / block * stride + offset + r % block of the file's tensor. transposed: the file has the whole tensor,
 * with rows and columns exchanged. */
typedef struct {
    int file, tensor;
    int64_t first, rows, cols;
    int64_t block, stride, offset;
    bool transposed;
} clt_map_part;

typedef struct {
    clt_map_file *file;
    int files;
    clt_map_part *part;
    int parts;
    const char *prefix;         /* names in files may lack this beginning; "": none. Static */
    const char *const *ignored; /* shell patterns of tensors that are not weights; ended by NULL. Static */
    const char *head; /* the name of the head's matrix in files, which a tied model may have as a copy
                         of the embedding. Static */
} clt_weight_map;

/* The index of the file's tensor with this name; it is added if it is new. The name is copied. */
int clt_weight_map_add_file(clt_weight_map *m, const char *name, int dims, const int64_t *shape);
void clt_weight_map_add_part(clt_weight_map *m, const clt_map_part *part);
void clt_weight_map_free(clt_weight_map *m); /* NULL is allowed; frees m too */

/* Reads elements [first, first + count) of a tensor of the other side. */
typedef clt_status (*clt_weight_read_fn)(void *ctx, int tensor, uint64_t first, float *dst, uint64_t count);

/* A reader of one direction. It keeps one transposed tensor in memory at a time. */
typedef struct {
    const clt_weight_map *map;
    bool to_file; /* false: gives tensors of the model, from the file's; true: the reverse */
    clt_weight_read_fn read;
    void *ctx;
    int kept; /* the part whose transposed tensor is in `values`; valid if values is not NULL */
    float *values;
} clt_weight_mapper;

/* Elements [first, first + count) of tensor `index` of the side that the mapper gives. CLT_FAIL: no part has
 * them; CLT_NO_MEMORY; the failures of `read`. */
clt_status clt_weight_mapper_read(clt_weight_mapper *x, int index, uint64_t first, float *dst,
                                  uint64_t count);
void clt_weight_mapper_free(clt_weight_mapper *x); /* frees what it keeps */

#endif
