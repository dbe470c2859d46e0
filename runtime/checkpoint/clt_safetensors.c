#include "runtime/checkpoint/clt_safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_hash.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"

/* Deepest valid nesting: the object, a tensor, its list. */
enum { MAX_DEPTH = 4 };

static const struct {
    const char *name;
    int bits;
} dtypes[CLT_ST_DTYPES] = {
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
};

struct clt_safetensors {
    char *path;
    clt_file *file;      /* NULL after clt_safetensors_parse */
    uint64_t data_start; /* offset of the data part in the file */
    clt_st_tensor *tensor;
    int n;
    int *by_name;  /* indices of tensors, sorted by name */
    clt_strv meta; /* key, value, key, value */
};

const char *clt_st_dtype_name(clt_st_dtype t) {
    return dtypes[t].name;
}
int clt_st_dtype_bits(clt_st_dtype t) {
    return dtypes[t].bits;
}

/* --- checks of the header --- */

/* jansson reads "-0" as the integer 0 and "1e3" as a real; the format knows plain digits only. */
static clt_status check_numbers(const char *s, size_t n, const char *what) {
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (in_string) {
            if (s[i] == '\\')
                i++;
            else if (s[i] == '"')
                in_string = false;
        } else if (s[i] == '"') {
            in_string = true;
        } else if (s[i] == '-' || s[i] == '+' || s[i] == '.') {
            return clt_error(CLT_BAD_DATA,
                             "%s: header byte %zu: a number with '%c' is not an unsigned integer", what, i,
                             s[i]);
        }
    }
    return CLT_OK;
}

static clt_status get_u64(json_t *v, const char *what, const char *name, const char *field, uint64_t *out) {
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return clt_error(CLT_BAD_DATA, "%s: tensor '%s': %s must hold unsigned integers", what, name, field);
    *out = (uint64_t)json_integer_value(v);
    return CLT_OK;
}

static clt_status parse_dtype(json_t *o, const char *what, clt_st_tensor *t) {
    json_t *v = json_object_get(o, "dtype");
    if (!json_is_string(v))
        return clt_error(CLT_BAD_DATA, "%s: tensor '%s': field dtype is missing or not a string", what,
                         t->name);
    for (int i = 0; i < CLT_ST_DTYPES; i++)
        if (!strcmp(json_string_value(v), dtypes[i].name)) {
            t->dtype = (clt_st_dtype)i;
            return CLT_OK;
        }
    return clt_error(CLT_BAD_DATA, "%s: tensor '%s': unknown dtype '%s'", what, t->name,
                     json_string_value(v));
}

/* Shape, element count and byte count; every product is checked for overflow. */
static clt_status parse_shape(json_t *o, const char *what, clt_st_tensor *t, uint64_t *bytes) {
    json_t *shape = json_object_get(o, "shape");
    if (!json_is_array(shape))
        return clt_error(CLT_BAD_DATA, "%s: tensor '%s': field shape is missing or not a list", what,
                         t->name);
    if (json_array_size(shape) > CLT_ST_MAX_DIMS)
        return clt_error(CLT_BAD_DATA, "%s: tensor '%s' has %zu dimensions, at most %d are allowed", what,
                         t->name, json_array_size(shape), CLT_ST_MAX_DIMS);
    t->dims = (int)json_array_size(shape);
    t->count = 1;
    uint64_t bits;
    for (int d = 0; d < t->dims; d++) {
        CLT_TRY(get_u64(json_array_get(shape, (size_t)d), what, t->name, "shape", &t->shape[d]));
        if (__builtin_mul_overflow(t->count, t->shape[d], &t->count))
            return clt_error(CLT_BAD_DATA, "%s: tensor '%s': the product of the shape overflows 64 bits",
                             what, t->name);
    }
    if (__builtin_mul_overflow(t->count, (uint64_t)dtypes[t->dtype].bits, &bits))
        return clt_error(CLT_BAD_DATA, "%s: tensor '%s': the size in bits overflows 64 bits", what, t->name);
    if (bits % 8)
        return clt_error(CLT_BAD_DATA, "%s: tensor '%s': %llu elements of %s do not fill whole bytes", what,
                         t->name, (unsigned long long)t->count, dtypes[t->dtype].name);
    *bytes = bits / 8;
    return CLT_OK;
}

static clt_status parse_offsets(json_t *o, const char *what, clt_st_tensor *t, uint64_t bytes,
                                uint64_t data_bytes) {
    json_t *range = json_object_get(o, "data_offsets");
    if (!json_is_array(range) || json_array_size(range) != 2)
        return clt_error(CLT_BAD_DATA, "%s: tensor '%s': data_offsets must be a list of two numbers", what,
                         t->name);
    CLT_TRY(get_u64(json_array_get(range, 0), what, t->name, "data_offsets", &t->begin));
    CLT_TRY(get_u64(json_array_get(range, 1), what, t->name, "data_offsets", &t->end));
    if (t->begin > t->end || t->end > data_bytes)
        return clt_error(CLT_BAD_DATA,
                         "%s: tensor '%s': bad offsets [%llu, %llu], the data part has %llu bytes", what,
                         t->name, (unsigned long long)t->begin, (unsigned long long)t->end,
                         (unsigned long long)data_bytes);
    if (t->end - t->begin != bytes)
        return clt_error(CLT_BAD_DATA, "%s: tensor '%s': its shape needs %llu bytes, its offsets give %llu",
                         what, t->name, (unsigned long long)bytes, (unsigned long long)(t->end - t->begin));
    return CLT_OK;
}

static clt_status parse_tensor(json_t *o, const char *what, uint64_t data_bytes, clt_st_tensor *t) {
    uint64_t bytes = 0;
    if (!json_is_object(o))
        return clt_error(CLT_BAD_DATA, "%s: tensor '%s' is not a JSON object", what, t->name);
    CLT_TRY(parse_dtype(o, what, t));
    CLT_TRY(parse_shape(o, what, t, &bytes));
    CLT_TRY(parse_offsets(o, what, t, bytes, data_bytes));
    if (json_object_size(o) != 3)
        return clt_error(CLT_BAD_DATA, "%s: tensor '%s' has fields besides dtype, shape and data_offsets",
                         what, t->name);
    return CLT_OK;
}

static clt_status add_text(const char *text, const char *what, clt_strv *list) {
    const size_t bytes = strlen(text) + 1;
    char *copy = clt_try_malloc(bytes);
    if (!copy) return clt_no_memory(what, bytes);
    memcpy(copy, text, bytes);
    clt_strv_add_owned(list, copy);
    return CLT_OK;
}

static clt_status parse_meta(json_t *o, const char *what, clt_strv *meta) {
    const char *key;
    json_t *v;
    if (!json_is_object(o)) return clt_error(CLT_BAD_DATA, "%s: __metadata__ is not a JSON object", what);
    meta->cap = 2 * json_object_size(o);
    meta->v = clt_try_calloc(meta->cap, sizeof *meta->v);
    if (!meta->v) return clt_no_memory(what, meta->cap * sizeof *meta->v);
    json_object_foreach(o, key, v) {
        if (!json_is_string(v))
            return clt_error(CLT_BAD_DATA, "%s: __metadata__ must map strings to strings, '%s' does not",
                             what, key);
        CLT_TRY(add_text(key, what, meta));
        CLT_TRY(add_text(json_string_value(v), what, meta));
    }
    return CLT_OK;
}

static int by_begin(const void *a, const void *b) {
    const clt_st_tensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Sorts the tensors by offset and checks that they cover the data part exactly once. */
static clt_status check_tiling(clt_safetensors *s, uint64_t data_bytes) {
    uint64_t at = 0;
    if (s->n > 1) qsort(s->tensor, (size_t)s->n, sizeof *s->tensor, by_begin);
    for (int i = 0; i < s->n; i++) {
        const clt_st_tensor *t = &s->tensor[i];
        if (t->begin != at)
            return clt_error(CLT_BAD_DATA,
                             "%s: %s in the data before tensor '%s': it begins at %llu, expected %llu",
                             s->path, t->begin > at ? "hole" : "overlap", t->name,
                             (unsigned long long)t->begin, (unsigned long long)at);
        at = t->end;
    }
    if (at != data_bytes)
        return clt_error(CLT_BAD_DATA, "%s: the data part has %llu bytes, the tensors cover %llu", s->path,
                         (unsigned long long)data_bytes, (unsigned long long)at);
    return CLT_OK;
}

/* Indices sorted by name, for binary search. */
static int by_tensor_name(const void *a, const void *b, void *tensors) {
    const clt_st_tensor *t = tensors;
    return strcmp(t[*(const int *)a].name, t[*(const int *)b].name);
}

static clt_status index_names(clt_safetensors *s) {
    s->by_name = clt_try_calloc((size_t)s->n, sizeof *s->by_name);
    if (!s->by_name) return clt_no_memory(s->path, (size_t)s->n * sizeof *s->by_name);
    for (int i = 0; i < s->n; i++) s->by_name[i] = i;
    if (s->n > 1) qsort_r(s->by_name, (size_t)s->n, sizeof *s->by_name, by_tensor_name, s->tensor);
    return CLT_OK;
}

static clt_status parse_root(clt_safetensors *s, json_t *root, uint64_t data_bytes) {
    const char *key;
    json_t *v;
    if (!json_is_object(root)) return clt_error(CLT_BAD_DATA, "%s: the header is not a JSON object", s->path);
    if (json_object_size(root) > CLT_ST_MAX_TENSORS)
        return clt_error(CLT_BAD_DATA, "%s: %zu tensors, at most %d are allowed", s->path,
                         json_object_size(root), CLT_ST_MAX_TENSORS);
    s->tensor = clt_try_calloc(json_object_size(root), sizeof *s->tensor);
    if (!s->tensor) return clt_no_memory(s->path, json_object_size(root) * sizeof *s->tensor);
    json_object_foreach(root, key, v) {
        if (!strcmp(key, "__metadata__")) {
            CLT_TRY(parse_meta(v, s->path, &s->meta));
            continue;
        }
        clt_st_tensor *t = &s->tensor[s->n++];
        if (strlen(key) > CLT_ST_MAX_NAME)
            return clt_error(CLT_BAD_DATA, "%s: a tensor name has %zu bytes, at most %d are allowed", s->path,
                             strlen(key), CLT_ST_MAX_NAME);
        t->name = clt_strdup(key);
        CLT_TRY(parse_tensor(v, s->path, data_bytes, t));
    }
    CLT_TRY(check_tiling(s, data_bytes));
    return index_names(s);
}

static clt_status parse_header(clt_safetensors *s, const char *header, size_t bytes, uint64_t data_bytes) {
    json_t *root;
    if (bytes == 0 || header[0] != '{')
        return clt_error(CLT_BAD_DATA, "%s: the header must start with '{'", s->path);
    CLT_TRY(check_numbers(header, bytes, s->path));
    CLT_TRY(clt_json_parse(header, bytes, MAX_DEPTH, s->path, &root));
    clt_status st = parse_root(s, root, data_bytes);
    json_decref(root);
    return st;
}

clt_status clt_safetensors_parse(const char *header, size_t bytes, uint64_t data_bytes, const char *what,
                                 clt_safetensors **out) {
    clt_safetensors *s = clt_calloc(1, sizeof *s);
    s->path = clt_strdup(what);
    clt_status st = parse_header(s, header, bytes, data_bytes);
    if (st != CLT_OK) {
        clt_safetensors_close(s);
        return st;
    }
    *out = s;
    return CLT_OK;
}

static clt_status open_and_check(clt_safetensors *s) {
    unsigned char raw[8];
    uint64_t size = 0, n = 0;
    CLT_TRY(clt_file_open(s->path, CLT_IO_READ, &s->file));
    CLT_TRY(clt_file_size(s->file, &size));
    if (size < sizeof raw)
        return clt_error(CLT_BAD_DATA, "%s: %llu bytes are too few for a safetensors file", s->path,
                         (unsigned long long)size);
    CLT_TRY(clt_file_pread(s->file, raw, sizeof raw, 0));
    for (int i = 7; i >= 0; i--) n = n << 8 | raw[i];
    if (n > CLT_ST_MAX_HEADER || n > size - sizeof raw)
        return clt_error(CLT_BAD_DATA, "%s: header length %llu exceeds %s", s->path, (unsigned long long)n,
                         n > CLT_ST_MAX_HEADER ? "the limit of the format (100,000,000)" : "the file");
    char *header = clt_try_malloc((size_t)n + 1);
    if (!header) return clt_no_memory(s->path, n);
    clt_status st = clt_file_pread(s->file, header, (size_t)n, sizeof raw);
    s->data_start = sizeof raw + n;
    if (st == CLT_OK) st = parse_header(s, header, (size_t)n, size - s->data_start);
    clt_free(header);
    return st;
}

clt_status clt_safetensors_open(const char *path, clt_safetensors **out) {
    clt_safetensors *s = clt_calloc(1, sizeof *s);
    s->path = clt_strdup(path);
    clt_status st = open_and_check(s);
    if (st != CLT_OK) {
        clt_safetensors_close(s);
        return st;
    }
    *out = s;
    return CLT_OK;
}

void clt_safetensors_close(clt_safetensors *s) {
    if (!s) return;
    clt_file_close(s->file);
    for (int i = 0; i < s->n; i++) clt_free(s->tensor[i].name);
    clt_free(s->tensor);
    clt_free(s->by_name);
    clt_strv_free(&s->meta);
    clt_free(s->path);
    clt_free(s);
}

/* --- tensors and metadata --- */

int clt_safetensors_count(const clt_safetensors *s) {
    return s->n;
}
const clt_st_tensor *clt_safetensors_at(const clt_safetensors *s, int i) {
    return &s->tensor[i];
}
const char *clt_safetensors_path(const clt_safetensors *s) {
    return s->path;
}

int clt_safetensors_find(const clt_safetensors *s, const char *name) {
    int lo = 0, hi = s->n - 1;
    while (lo <= hi) {
        int mid = lo + (hi - lo) / 2, c = strcmp(name, s->tensor[s->by_name[mid]].name);
        if (c == 0) return s->by_name[mid];
        if (c < 0)
            hi = mid - 1;
        else
            lo = mid + 1;
    }
    return -1;
}

int clt_safetensors_meta_count(const clt_safetensors *s) {
    return (int)(s->meta.n / 2);
}

void clt_safetensors_meta_at(const clt_safetensors *s, int i, const char **key, const char **value) {
    *key = s->meta.v[2 * i];
    *value = s->meta.v[2 * i + 1];
}

const char *clt_safetensors_meta(const clt_safetensors *s, const char *key) {
    for (size_t i = 0; i + 1 < s->meta.n; i += 2)
        if (!strcmp(s->meta.v[i], key)) return s->meta.v[i + 1];
    return NULL;
}

/* --- reading --- */

clt_status clt_safetensors_read(clt_safetensors *s, int i, uint64_t first, void *dst, size_t bytes) {
    const clt_st_tensor *t = &s->tensor[i];
    uint64_t size = t->end - t->begin;
    if (!s->file || first > size || bytes > size - first)
        return clt_error(CLT_FAIL, "%s: tensor '%s': bytes [%llu, +%zu) exceed its %llu bytes", s->path,
                         t->name, (unsigned long long)first, bytes, (unsigned long long)size);
    return clt_file_pread(s->file, dst, bytes, s->data_start + t->begin + first);
}

static float from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static float f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h >> 15) << 31, e = h >> 10 & 31, m = h & 1023;
    if (e == 31) return from_bits(sign | 0x7F800000u | m << 13);
    if (e == 0) { /* zero or subnormal: m * 2^-24, exact in fp32 */
        float f = (float)m * 0x1p-24f;
        return sign ? -f : f;
    }
    return from_bits(sign | (e + 112) << 23 | m << 13);
}

void clt_st_to_f32(clt_st_dtype type, const void *src, float *dst, size_t count) {
    const unsigned char *from = src;
    if (type == CLT_ST_F32) {
        memcpy(dst, src, count * sizeof *dst);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (type == CLT_ST_F64) {
            double d;
            memcpy(&d, from + 8 * i, sizeof d);
            dst[i] = (float)d;
        } else {
            uint16_t h;
            memcpy(&h, from + 2 * i, sizeof h);
            dst[i] = type == CLT_ST_BF16 ? from_bits((uint32_t)h << 16) : f16_to_f32(h);
        }
    }
}

clt_status clt_safetensors_read_f32(clt_safetensors *s, int i, uint64_t first, float *dst, uint64_t count) {
    enum { BLOCK = 16384 };
    const clt_st_tensor *t = &s->tensor[i];
    size_t size = (size_t)dtypes[t->dtype].bits / 8;
    if (first > t->count || count > t->count - first)
        return clt_error(CLT_FAIL, "%s: tensor '%s': elements [%llu, +%llu) exceed its %llu", s->path,
                         t->name, (unsigned long long)first, (unsigned long long)count,
                         (unsigned long long)t->count);
    if (t->dtype == CLT_ST_F32) return clt_safetensors_read(s, i, first * 4, dst, (size_t)count * 4);
    if (t->dtype != CLT_ST_F16 && t->dtype != CLT_ST_BF16 && t->dtype != CLT_ST_F64)
        return clt_error(CLT_BAD_DATA, "%s: tensor '%s' is %s; weights are read from F32, F16, BF16 or F64",
                         s->path, t->name, dtypes[t->dtype].name);
    unsigned char *raw = clt_try_malloc(BLOCK * size);
    if (!raw) return clt_no_memory(s->path, BLOCK * size);
    clt_status st = CLT_OK;
    for (uint64_t at = 0; at < count && st == CLT_OK; at += BLOCK) {
        size_t n = (size_t)CLT_MIN((uint64_t)BLOCK, count - at);
        st = clt_safetensors_read(s, i, (first + at) * size, raw, n * size);
        if (st == CLT_OK) clt_st_to_f32(t->dtype, raw, dst + at, n);
    }
    clt_free(raw);
    return st;
}

clt_status clt_safetensors_verify(clt_safetensors *s, int *checked) {
    enum { BLOCK = 1 << 20 };
    clt_status st = CLT_OK;
    char *raw = clt_try_malloc(BLOCK);
    int n = 0;
    if (!raw) return clt_no_memory(s->path, BLOCK);
    for (int i = 0; i < s->n && st == CLT_OK; i++) {
        const clt_st_tensor *t = &s->tensor[i];
        char *key = clt_format("cltrain.xxh3.%s", t->name), hex[33];
        const char *want = clt_safetensors_meta(s, key);
        clt_free(key);
        if (!want) continue;
        clt_hash_state *h = clt_hash_begin();
        for (uint64_t at = 0, size = t->end - t->begin; at < size && st == CLT_OK; at += BLOCK) {
            size_t part = (size_t)CLT_MIN((uint64_t)BLOCK, size - at);
            st = clt_safetensors_read(s, i, at, raw, part);
            if (st == CLT_OK) clt_hash_add(h, raw, part);
        }
        clt_hash_hex(clt_hash_end(h), hex);
        n++;
        if (st == CLT_OK && strcmp(hex, want))
            st =
                clt_error(CLT_BAD_DATA, "%s: tensor '%s' is damaged: its XXH3-128 is %s, the metadata say %s",
                          s->path, t->name, hex, want);
    }
    clt_free(raw);
    if (st == CLT_OK && checked) *checked = n;
    return st;
}
