/* clt_torch_file: files of torch.save (.pt): a zip archive NAME/data.pkl, NAME/data/0, ..., NAME/byteorder
 * and NAME/version, whose pickle is read without executing anything (clt_pickle.h). Data are read on demand;
 * their CRC-32 is checked before the first of them. Files of PyTorch before 1.6, which are no archives, are
 * CLT_BAD_DATA. */
#ifndef CLT_TORCH_FILE_H
#define CLT_TORCH_FILE_H

#include "runtime/checkpoint/clt_pickle.h"

typedef struct clt_torch_file clt_torch_file;

/* Opens a file and checks archive, pickle and that every storage's file has its size. flags: those of
 * clt_pickle_parse. */
clt_status clt_torch_open(const char *path, unsigned flags, clt_torch_file **out);
void clt_torch_close(clt_torch_file *f); /* NULL is allowed */
const clt_pickle_value *clt_torch_root(const clt_torch_file *f);

/* Reads all data of a tensor of the root and compares the CRC-32 of its storage. */
clt_status clt_torch_verify(clt_torch_file *f, const clt_pickle_value *tensor);
/* Elements [first, first + count) of a tensor as fp32, from float32, float16, bfloat16 (exact), float64 or
 * int64 (rounded to nearest). Other types are CLT_BAD_DATA. The CRC-32 is not checked. */
clt_status clt_torch_read_f32(clt_torch_file *f, const clt_pickle_value *tensor, uint64_t first, float *dst,
                              uint64_t count);

/* Writes a file that torch.load(weights_only=True) reads. `pickle` is what clt_pickle_put_* made of it, with
 * storages "0", "1", ... of counts[i] fp32 elements, which fill(ctx, i, first, dst, count) gives in order.
 * Memory is bounded. The contents are durable afterwards, the name is once the caller has synced the folder;
 * after a failure a part of the file may remain. */
typedef clt_status (*clt_torch_fill)(void *ctx, int storage, uint64_t first, float *dst, uint64_t count);
clt_status clt_torch_write(const char *path, const clt_str *pickle, const uint64_t *counts, int storages,
                           clt_torch_fill fill, void *ctx);

#endif
