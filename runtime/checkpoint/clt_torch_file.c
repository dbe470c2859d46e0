#include "runtime/checkpoint/clt_torch_file.h"

#include <string.h>

#include "runtime/checkpoint/clt_safetensors.h"
#include "runtime/checkpoint/clt_torch_zip.h"

struct clt_torch_file {
    clt_zip *zip;
    char *path, *root; /* the folder in the archive, "fp32" */
    char *text;        /* data.pkl */
    clt_pickle *pickle;
};

static clt_status bad(const clt_torch_file *f, const char *why) {
    return clt_error(CLT_BAD_DATA, "%s: %s", f->path, why);
}

/* --- opening --- */

/* The one folder that all entries are in. */
static clt_status find_root(clt_torch_file *f) {
    static const char file[] = "data.pkl";
    for (int i = 0; i < f->zip->entries; i++) {
        const char *name = f->zip->entry[i].name, *slash = strchr(name, '/');
        if (!slash || strcmp(slash + 1, file) != 0) continue;
        if (f->root) return bad(f, "two pickles in one archive");
        f->root = clt_format("%.*s", (int)(slash - name), name);
    }
    return f->root ? CLT_OK : bad(f, "no file of torch.save: the archive has no data.pkl");
}

static const clt_zip_entry *entry_of(const clt_torch_file *f, const char *name, size_t n) {
    char *full = clt_format("%s/%.*s", f->root, (int)n, name);
    const clt_zip_entry *e = clt_zip_find(f->zip, full);
    clt_free(full);
    return e;
}

/* Absent in files before PyTorch 2.1, which were little endian on all but a few machines. */
static clt_status check_byteorder(clt_torch_file *f) {
    static const char want[] = "little";
    char have[sizeof want] = {0};
    const clt_zip_entry *e = entry_of(f, "byteorder", 9);
    if (!e) return CLT_OK;
    if (e->bytes != sizeof want - 1) return bad(f, "its byte order is not little");
    CLT_TRY(clt_zip_read(f->zip, e, 0, have, sizeof want - 1));
    return strcmp(have, want) == 0 ? CLT_OK : bad(f, "its byte order is not little");
}

static clt_status read_pickle(clt_torch_file *f, unsigned flags) {
    const clt_zip_entry *e = entry_of(f, "data.pkl", 8);
    if (e->bytes > CLT_PICKLE_MAX_BYTES) return bad(f, "its pickle has more than 16 MiB");
    f->text = clt_try_malloc((size_t)e->bytes + 1);
    if (!f->text) return clt_no_memory(f->path, e->bytes);
    CLT_TRY(clt_zip_verify(f->zip, e));
    CLT_TRY(clt_zip_read(f->zip, e, 0, f->text, (size_t)e->bytes));
    return clt_pickle_parse(f->text, (size_t)e->bytes, flags, f->path, &f->pickle);
}

static clt_status open_file(clt_torch_file *f, unsigned flags) {
    CLT_TRY(clt_zip_open(f->path, &f->zip));
    CLT_TRY(find_root(f));
    CLT_TRY(check_byteorder(f));
    return read_pickle(f, flags);
}

clt_status clt_torch_open(const char *path, unsigned flags, clt_torch_file **out) {
    clt_torch_file *f = clt_calloc(1, sizeof *f);
    f->path = clt_strdup(path);
    clt_status st = open_file(f, flags);
    if (st != CLT_OK) {
        clt_torch_close(f);
        return st;
    }
    *out = f;
    return CLT_OK;
}

void clt_torch_close(clt_torch_file *f) {
    if (!f) return;
    clt_pickle_free(f->pickle);
    clt_zip_close(f->zip);
    clt_free(f->text);
    clt_free(f->root);
    clt_free(f->path);
    clt_free(f);
}

const clt_pickle_value *clt_torch_root(const clt_torch_file *f) {
    return clt_pickle_root(f->pickle);
}

/* --- tensors --- */

/* The file of a tensor's storage, which has its size. */
static clt_status find_storage(clt_torch_file *f, const clt_pickle_value *t, const clt_zip_entry **out) {
    const clt_pickle_value *s = t->tensor.storage, *key = s->storage.key;
    const uint64_t bytes = s->storage.count * (uint64_t)clt_pickle_dtype_bytes(s->storage.dtype);
    char *name = clt_format("data/%.*s", (int)CLT_MIN(key->text.n, (size_t)64), key->text.s);
    *out = entry_of(f, name, strlen(name));
    clt_free(name);
    if (!*out) return bad(f, "the data of a tensor are missing");
    if ((*out)->bytes != bytes)
        return clt_error(CLT_BAD_DATA, "%s: the data of a tensor have %llu bytes, its storage %llu", f->path,
                         (unsigned long long)(*out)->bytes, (unsigned long long)bytes);
    return CLT_OK;
}

clt_status clt_torch_verify(clt_torch_file *f, const clt_pickle_value *tensor) {
    const clt_zip_entry *e;
    CLT_TRY(find_storage(f, tensor, &e));
    return clt_zip_verify(f->zip, e);
}

/* The type of safetensors with the same elements; -1: weights have no such type. */
static int st_dtype(clt_pickle_dtype t) {
    switch (t) {
    case CLT_PICKLE_F32:
        return CLT_ST_F32;
    case CLT_PICKLE_F16:
        return CLT_ST_F16;
    case CLT_PICKLE_BF16:
        return CLT_ST_BF16;
    case CLT_PICKLE_F64:
        return CLT_ST_F64;
    default:
        return -1;
    }
}

clt_status clt_torch_read_f32(clt_torch_file *f, const clt_pickle_value *t, uint64_t first, float *dst,
                              uint64_t count) {
    enum { BLOCK = 16384 };
    const clt_pickle_dtype type = t->tensor.storage->storage.dtype;
    const size_t size = (size_t)clt_pickle_dtype_bytes(type);
    const clt_zip_entry *e;
    CLT_TRY(find_storage(f, t, &e));
    if (first > t->tensor.count || count > t->tensor.count - first)
        return clt_error(CLT_FAIL, "%s: elements [%llu, +%llu) exceed the %llu of a tensor", f->path,
                         (unsigned long long)first, (unsigned long long)count,
                         (unsigned long long)t->tensor.count);
    if (st_dtype(type) < 0)
        return clt_error(CLT_BAD_DATA,
                         "%s: a tensor is %s; weights are read from float32, float16, bfloat16 or float64",
                         f->path, clt_pickle_dtype_name(type));
    unsigned char *raw = clt_try_malloc(BLOCK * size);
    if (!raw) return clt_no_memory(f->path, BLOCK * size);
    clt_status st = CLT_OK;
    for (uint64_t at = 0; at < count && st == CLT_OK; at += BLOCK) {
        const size_t n = (size_t)CLT_MIN((uint64_t)BLOCK, count - at);
        st = clt_zip_read(f->zip, e, (t->tensor.offset + first + at) * size, raw, n * size);
        if (st == CLT_OK) clt_st_to_f32((clt_st_dtype)st_dtype(type), raw, dst + at, n);
    }
    clt_free(raw);
    return st;
}

/* --- writing --- */

static clt_status put_text(clt_zip_writer *w, const char *root, const char *name, const char *text) {
    char *full = clt_format("%s/%s", root, name);
    clt_status st = clt_zip_put(w, full, text, strlen(text));
    clt_free(full);
    return st;
}

static clt_status put_storage(clt_zip_writer *w, const char *root, int i, uint64_t count, float *block,
                              size_t room, clt_torch_fill fill, void *ctx) {
    char *name = clt_format("%s/data/%d", root, i);
    clt_status st = clt_zip_begin(w, name, count * sizeof *block);
    for (uint64_t at = 0; at < count && st == CLT_OK; at += room) {
        const size_t n = (size_t)CLT_MIN((uint64_t)room, count - at);
        st = fill(ctx, i, at, block, n);
        if (st == CLT_OK) st = clt_zip_add(w, block, n * sizeof *block);
    }
    if (st == CLT_OK) st = clt_zip_end(w);
    clt_free(name);
    return st;
}

/* data.pkl comes first: readers find the folder's name by it. */
static clt_status put_all(clt_zip_writer *w, const char *root, const clt_str *pickle, const uint64_t *counts,
                          int storages, clt_torch_fill fill, void *ctx) {
    enum { ROOM = 1 << 18 };
    char *first = clt_format("%s/data.pkl", root);
    float *block = clt_try_malloc(ROOM * sizeof *block);
    clt_status st = block ? clt_zip_put(w, first, pickle->s, pickle->len)
                          : clt_no_memory("a block of tensors", ROOM * sizeof *block);
    if (st == CLT_OK) st = put_text(w, root, "byteorder", "little");
    for (int i = 0; i < storages && st == CLT_OK; i++)
        st = put_storage(w, root, i, counts[i], block, ROOM, fill, ctx);
    if (st == CLT_OK) st = put_text(w, root, "version", "3\n");
    if (st == CLT_OK) st = clt_zip_finish(w);
    clt_free(block);
    clt_free(first);
    return st;
}

/* "fp32" of ".../fp32.pt" */
static char *root_of(const char *path) {
    const char *base = clt_path_base(path), *dot = strrchr(base, '.');
    return clt_format("%.*s", (int)(dot && dot > base ? dot - base : (long)strlen(base)), base);
}

clt_status clt_torch_write(const char *path, const clt_str *pickle, const uint64_t *counts, int storages,
                           clt_torch_fill fill, void *ctx) {
    clt_file *f;
    CLT_TRY(clt_file_open(path, CLT_IO_CREATE, &f));
    clt_zip_writer w = {.file = f};
    char *root = root_of(path);
    clt_status st = put_all(&w, root, pickle, counts, storages, fill, ctx);
    if (st == CLT_OK) st = clt_file_sync(f);
    if (st == CLT_OK)
        st = clt_file_close(f);
    else
        clt_file_abandon(f);
    clt_zip_writer_free(&w);
    clt_free(root);
    return st;
}
