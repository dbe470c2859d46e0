#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_hash.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/checkpoint/clt_safetensors.h"

enum { BLOCK = 1 << 20 }; /* elements that are converted and written at a time */

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
        if (t->dtype != CLT_ST_F32 && t->dtype != CLT_ST_BF16 && t->dtype != CLT_ST_F16)
            return clt_error(CLT_FAIL, "%s: tensor '%s': only F32, BF16 and F16 can be written, not %s", path,
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

/* An upper bound of the header's length: an escaped byte takes at most six. */
static size_t header_room(const item *items, int n, const char *const *meta, int n_meta) {
    size_t room = 256;
    for (int i = 0; i < 2 * n_meta; i++) room += 8 + 6 * strlen(meta[i]);
    for (int i = 0; i < n; i++) room += 256 + 12 * strlen(items[i].spec->name) + 21 * (size_t)CLT_ST_MAX_DIMS;
    return room;
}

/* The header. Its length does not depend on the hashes' values, so the data can be written first. */
static clt_status make_header(const item *items, int n, const char *const *meta, int n_meta, clt_str *out) {
    const size_t room = header_room(items, n, meta, n_meta);
    if (!clt_str_try_reserve(out, room)) return clt_no_memory("the header of a safetensors file", room);
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
    return CLT_OK;
}

static uint16_t f32_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(u >> 16 | 0x40); /* NaN, kept quiet */
    return (uint16_t)((u + 0x7FFFu + (u >> 16 & 1)) >> 16);
}

static uint16_t f32_to_f16(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    const uint32_t sign = u >> 16 & 0x8000, x = u & 0x7FFFFFFF;
    if (x > 0x7F800000) return (uint16_t)(sign | 0x7E00 | (x >> 13 & 0x3FF)); /* NaN, kept quiet */
    if (x >= 0x477FF000) return (uint16_t)(sign | 0x7C00);                    /* rounds above 65504 */
    if (x < 0x33000000) return (uint16_t)sign;                                /* below half of 2^-24 */
    /* The bits of the result are those of `mantissa` without the last `drop`, rounded to nearest even. */
    const uint32_t exponent = x >> 23, drop = exponent < 113 ? 126 - exponent : 13;
    const uint32_t mantissa = exponent < 113 ? (x & 0x7FFFFF) | 0x800000 : x - (112u << 23);
    const uint32_t half = (1u << (drop - 1)) - 1 + (mantissa >> drop & 1);
    return (uint16_t)(sign | (mantissa + half) >> drop);
}

/* f NULL: hashes only. */
static clt_status write_tensor(clt_file *f, uint64_t data_start, item *it, float *block,
                               size_t block_elements, clt_st_fill fill, void *ctx) {
    clt_hash_state *h = clt_hash_begin();
    clt_status st = CLT_OK;
    size_t size = (size_t)clt_st_dtype_bits(it->spec->dtype) / 8;
    for (uint64_t at = 0; at < it->count && st == CLT_OK; at += block_elements) {
        size_t n = (size_t)CLT_MIN((uint64_t)block_elements, it->count - at);
        st = fill(ctx, it->index, at, block, n);
        if (st != CLT_OK) break;
        if (size == sizeof(uint16_t))
            for (size_t i = 0; i < n; i++) { /* in place: value i is written after values up to i are read */
                const uint16_t b =
                    it->spec->dtype == CLT_ST_BF16 ? f32_to_bf16(block[i]) : f32_to_f16(block[i]);
                memcpy((char *)block + 2 * i, &b, sizeof b);
            }
        clt_hash_add(h, block, n * size);
        if (f) st = clt_file_pwrite(f, block, n * size, data_start + it->begin + at * size);
    }
    it->hash = clt_hash_end(h);
    return st;
}

static clt_status write_tensors(clt_file *f, uint64_t data_start, item *items, int n, float *block,
                                clt_st_fill fill, void *ctx) {
    for (int i = 0; i < n; i++) CLT_TRY(write_tensor(f, data_start, &items[i], block, BLOCK, fill, ctx));
    return CLT_OK;
}

/* The data first, since the header has their hashes. Storage that takes a file only in order gets the header
 * first: the tensors are converted once for the hashes and once more to be written. */
static clt_status write_parts(clt_file *f, item *items, int n, const char *const *meta, int n_meta,
                              float *block, clt_str *header, clt_st_fill fill, void *ctx) {
    const bool ordered = !clt_io_can(clt_file_path(f), CLT_IO_CAN_WRITE_RANGES);
    unsigned char raw[8];
    CLT_TRY(make_header(items, n, meta, n_meta, header));
    const uint64_t length = header->len;
    for (int i = 0; i < 8; i++) raw[i] = (unsigned char)(length >> (8 * i));
    const uint64_t data_start = sizeof raw + length;
    CLT_TRY(write_tensors(ordered ? NULL : f, data_start, items, n, block, fill, ctx));
    header->len = 0;
    CLT_TRY(make_header(items, n, meta, n_meta, header));
    CLT_TRY(clt_file_pwrite(f, raw, sizeof raw, 0));
    CLT_TRY(clt_file_pwrite(f, header->s, header->len, sizeof raw));
    if (ordered) CLT_TRY(write_tensors(f, data_start, items, n, block, fill, ctx));
    return clt_file_sync(f);
}

static clt_status write_all(const char *path, clt_io_mode mode, item *items, int n, const char *const *meta,
                            int n_meta, clt_st_fill fill, void *ctx) {
    clt_str header = {0};
    clt_file *f = NULL;
    float *block = clt_try_malloc(BLOCK * sizeof *block);
    if (!block) return clt_no_memory("a block of tensors", BLOCK * sizeof *block);
    clt_status st = clt_file_open(path, mode, &f);
    if (st == CLT_OK) st = write_parts(f, items, n, meta, n_meta, block, &header, fill, ctx);
    if (st == CLT_OK)
        st = clt_file_close(f);
    else
        clt_file_abandon(f);
    clt_free(block);
    clt_str_free(&header);
    return st;
}

static clt_status write_and_rename(const char *path, item *items, int n, const char *const *meta, int n_meta,
                                   clt_st_fill fill, void *ctx) {
    char *tmp = clt_io_temporary(path), *dir = clt_path_dir(path);
    clt_status st = write_all(tmp, CLT_IO_CREATE_NEW, items, n, meta, n_meta, fill, ctx);
    if (st == CLT_OK) st = clt_io_rename(tmp, path);
    if (st == CLT_OK)
        st = clt_io_sync_dir(dir);
    else
        clt_io_try_unlink(tmp);
    clt_free(dir);
    clt_free(tmp);
    return st;
}

clt_status clt_safetensors_write(const char *path, const clt_st_spec *tensors, int n, const char *const *meta,
                                 int n_meta, clt_st_fill fill, void *ctx) {
    const bool whole = clt_io_can(path, CLT_IO_APPEARS_WHOLE);
    if (!whole)
        CLT_TRY(
            clt_io_require(path, CLT_IO_CAN_RENAME | CLT_IO_CAN_WRITE_RANGES, "writing a safetensors file"));
    item *items = clt_try_calloc((size_t)n, sizeof *items);
    if (!items) return clt_no_memory("the list of tensors to write", (size_t)n * sizeof *items);
    clt_status st = plan(path, tensors, n, items);
    if (st == CLT_OK)
        st = whole ? write_all(path, CLT_IO_CREATE, items, n, meta, n_meta, fill, ctx)
                   : write_and_rename(path, items, n, meta, n_meta, fill, ctx);
    clt_free(items);
    return st;
}
