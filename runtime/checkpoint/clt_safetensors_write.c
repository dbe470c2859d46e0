#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_hash.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/checkpoint/clt_safetensors.h"

typedef struct {
    const clt_st_spec *spec; /* the caller's */
    int index;               /* its place in the caller's list */
    uint64_t count, begin, bytes;
    clt_hash128 hash;
} item;

static int by_layout(const void *a, const void *b) {
    const item *x = a, *y = b;
    int bx = clt_st_dtype_bits(x->spec->dtype), by = clt_st_dtype_bits(y->spec->dtype);
    return bx != by ? by - bx : strcmp(x->spec->name, y->spec->name);
}

static clt_status plan(const char *path, const clt_st_spec *tensors, int n, item *items) {
    uint64_t at = 0;
    for (int i = 0; i < n; i++) {
        const clt_st_spec *t = &tensors[i];
        if (t->dtype != CLT_ST_F32 && t->dtype != CLT_ST_BF16)
            return clt_error(CLT_FAIL, "%s: tensor '%s': only F32 and BF16 are written, not %s", path,
                             t->name, clt_st_dtype_name(t->dtype));
        items[i] = (item){.spec = t, .index = i, .count = 1};
        for (int d = 0; d < t->dims; d++) items[i].count *= t->shape[d];
        items[i].bytes = items[i].count * (uint64_t)clt_st_dtype_bits(t->dtype) / 8;
    }
    if (n > 1) qsort(items, (size_t)n, sizeof *items, by_layout);
    for (int i = 0; i < n; i++) {
        items[i].begin = at;
        at += items[i].bytes;
    }
    return CLT_OK;
}

/* The header. Its length does not depend on the hashes' values, so the data can be written first. */
static void make_header(const item *items, int n, const char *const *meta, int n_meta, clt_str *out) {
    clt_str_add(out, "{\"__metadata__\":{");
    for (int i = 0; i < n_meta; i++) {
        clt_json_escape(out, meta[2 * i]);
        clt_str_add(out, ":");
        clt_json_escape(out, meta[2 * i + 1]);
        clt_str_add(out, i + 1 < n_meta || n ? "," : "");
    }
    for (int i = 0; i < n; i++) {
        char hex[33], *key = clt_format("cltrain.xxh3.%s", items[i].spec->name);
        clt_hash_hex(items[i].hash, hex);
        clt_json_escape(out, key);
        clt_str_addf(out, ":\"%s\"%s", hex, i + 1 < n ? "," : "");
        clt_free(key);
    }
    clt_str_add(out, "}");
    for (int i = 0; i < n; i++) {
        const clt_st_spec *t = items[i].spec;
        clt_str_add(out, ",");
        clt_json_escape(out, t->name);
        clt_str_addf(out, ":{\"dtype\":\"%s\",\"shape\":[", clt_st_dtype_name(t->dtype));
        for (int d = 0; d < t->dims; d++)
            clt_str_addf(out, "%s%llu", d ? "," : "", (unsigned long long)t->shape[d]);
        clt_str_addf(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)items[i].begin,
                     (unsigned long long)(items[i].begin + items[i].bytes));
    }
    clt_str_add(out, "}");
    while (out->len % 8) clt_str_add(out, " ");
}

static uint16_t f32_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(u >> 16 | 0x40); /* NaN, kept quiet */
    return (uint16_t)((u + 0x7FFFu + (u >> 16 & 1)) >> 16);
}

static clt_status write_tensor(clt_file *f, uint64_t data_start, item *it, float *block,
                               size_t block_elements, clt_st_fill fill, void *ctx) {
    clt_hash_state *h = clt_hash_begin();
    clt_status st = CLT_OK;
    size_t size = (size_t)clt_st_dtype_bits(it->spec->dtype) / 8;
    for (uint64_t at = 0; at < it->count && st == CLT_OK; at += block_elements) {
        size_t n = (size_t)CLT_MIN((uint64_t)block_elements, it->count - at);
        st = fill(ctx, it->index, at, block, n);
        if (st != CLT_OK) break;
        if (it->spec->dtype == CLT_ST_BF16)
            for (size_t i = 0; i < n; i++) { /* in place: word i is written after words up to i were read */
                uint16_t b = f32_to_bf16(block[i]);
                memcpy((char *)block + 2 * i, &b, sizeof b);
            }
        clt_hash_add(h, block, n * size);
        st = clt_file_pwrite(f, block, n * size, data_start + it->begin + at * size);
    }
    it->hash = clt_hash_end(h);
    return st;
}

static clt_status write_all(const char *tmp, item *items, int n, const char *const *meta, int n_meta,
                            clt_st_fill fill, void *ctx) {
    enum { BLOCK = 1 << 20 };
    clt_str header = {0};
    clt_file *f = NULL;
    make_header(items, n, meta, n_meta, &header);
    uint64_t length = header.len;
    unsigned char raw[8];
    for (int i = 0; i < 8; i++) raw[i] = (unsigned char)(length >> (8 * i));
    float *block = clt_malloc(BLOCK * sizeof *block);
    clt_status st = clt_file_open(tmp, CLT_IO_CREATE, &f);
    for (int i = 0; i < n && st == CLT_OK; i++)
        st = write_tensor(f, sizeof raw + length, &items[i], block, BLOCK, fill, ctx);
    if (st == CLT_OK) {
        clt_str_free(&header);
        make_header(items, n, meta, n_meta, &header);
        st = clt_file_pwrite(f, raw, sizeof raw, 0);
    }
    if (st == CLT_OK) st = clt_file_pwrite(f, header.s, header.len, sizeof raw);
    if (st == CLT_OK) st = clt_file_sync(f);
    clt_status closed = clt_file_close(f);
    clt_free(block);
    clt_str_free(&header);
    return st != CLT_OK ? st : closed;
}

clt_status clt_safetensors_write(const char *path, const clt_st_spec *tensors, int n, const char *const *meta,
                                 int n_meta, clt_st_fill fill, void *ctx) {
    item *items = clt_calloc((size_t)n, sizeof *items);
    char *tmp = clt_io_temporary(path), *dir = clt_path_dir(path);
    clt_status st = plan(path, tensors, n, items);
    if (st == CLT_OK) {
        st = write_all(tmp, items, n, meta, n_meta, fill, ctx);
        if (st == CLT_OK) st = clt_io_rename(tmp, path);
        if (st == CLT_OK)
            st = clt_io_sync_dir(dir);
        else
            clt_io_try_unlink(tmp);
    }
    clt_free(dir);
    clt_free(tmp);
    clt_free(items);
    return st;
}
