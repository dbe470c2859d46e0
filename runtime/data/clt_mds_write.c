#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/data/clt_codec.h"
#include "runtime/data/clt_digest.h"
#include "runtime/data/clt_mds.h"

enum { MAX_HASHES = 32, INDEX_ENTRY = 16384 /* more than a shard takes in index.json */ };

typedef struct {
    char *data;
    size_t len, cap;
} bytes;

struct clt_mds_writer {
    char *dir;
    char *columns;     /* `"column_encodings": ... "size_limit": N, ` as both JSON texts of a shard begin */
    char *config;      /* the JSON inside a shard */
    char *compression; /* NULL: none */
    const clt_codec *codec;
    int level;
    int hashes[MAX_HASHES];
    size_t num_hashes;
    int64_t size_limit, samples;
    clt_str index;  /* the shards of index.json so far */
    clt_strv files; /* names written */
    /* the open shard */
    bytes body, offsets, raw, zip;
    uint32_t in_shard;
};

void clt_mds_writer_params_default(clt_mds_writer_params *p) {
    *p = (clt_mds_writer_params){.size_limit = (int64_t)1 << 26};
}

/* Room for n more bytes; nothing is added. */
static clt_status reserve(bytes *b, size_t n) {
    if (b->len + n <= b->cap) return CLT_OK;
    size_t cap = CLT_MAX(2 * b->cap, b->len + n);
    char *data = clt_try_realloc(b->data, cap);
    if (!data) return clt_no_memory("a shard that is being written", cap);
    b->data = data;
    b->cap = cap;
    return CLT_OK;
}

/* Adds bytes that there is room for. */
static void put(bytes *b, const void *data, size_t n) {
    memcpy(b->data + b->len, data, n);
    b->len += n;
}
static void put_u32(bytes *b, uint32_t v) {
    put(b, &v, sizeof v);
}

/* --- options --- */

static clt_status parse_compression(clt_mds_writer *w, const char *text) {
    if (!text || !*text) return CLT_OK;
    CLT_TRY(clt_codec_parse(text, &w->codec, &w->level));
    w->compression = clt_strdup(text);
    return CLT_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(clt_digest_name(*(const int *)a), clt_digest_name(*(const int *)b));
}

static clt_status parse_hashes(clt_mds_writer *w, const char *text) {
    while (text && *text) {
        size_t n = strcspn(text, ",");
        char *name = clt_strndup(text, n);
        int algo;
        clt_status st = clt_digest_parse("hashes", name, &algo);
        clt_free(name);
        CLT_TRY(st);
        bool known = false;
        for (size_t i = 0; i < w->num_hashes; i++) known |= w->hashes[i] == algo;
        if (!known && w->num_hashes < MAX_HASHES) w->hashes[w->num_hashes++] = algo;
        text += n + (text[n] == ',');
    }
    qsort(w->hashes, w->num_hashes, sizeof *w->hashes, by_name);
    return CLT_OK;
}

/* Keys in sorted order, separated by ", " and ": ": byte for byte what the reference writes. */
static void make_config(clt_mds_writer *w, bool text) {
    clt_str a = {0}, b = {0};
    clt_str_addf(&a, "\"column_encodings\": [\"%s\"], \"column_names\": [\"%s\"], \"column_sizes\": [null], ",
                 text ? "str" : "ndarray:int32", text ? "text" : "tokens");
    clt_str_addf(&a, w->compression ? "\"compression\": \"%s\", " : "\"compression\": null, ",
                 w->compression);
    clt_str_add(&a, "\"format\": \"mds\", \"hashes\": [");
    for (size_t i = 0; i < w->num_hashes; i++)
        clt_str_addf(&a, "%s\"%s\"", i ? ", " : "", clt_digest_name(w->hashes[i]));
    clt_str_add(&a, "], ");
    clt_str_addf(&b, "{%s\"size_limit\": %lld, \"version\": 2}", a.s, (long long)w->size_limit);
    w->columns = a.s;
    w->config = b.s;
}

static void writer_free(clt_mds_writer *w) {
    clt_free(w->dir);
    clt_free(w->columns);
    clt_free(w->config);
    clt_free(w->compression);
    clt_str_free(&w->index);
    clt_strv_free(&w->files);
    clt_free(w->body.data);
    clt_free(w->offsets.data);
    clt_free(w->raw.data);
    clt_free(w->zip.data);
    clt_free(w);
}

static clt_status prepare(clt_mds_writer *w, const clt_mds_writer_params *p) {
    CLT_TRY(parse_compression(w, p->compression));
    CLT_TRY(parse_hashes(w, p->hashes));
    if (p->size_limit < 1 || p->size_limit >= (int64_t)1 << 32)
        return clt_error(CLT_BAD_CONFIG, "size_limit %lld must be between 1 and 2^32 - 1 bytes",
                         (long long)p->size_limit);
    CLT_TRY(clt_io_mkdirs(w->dir));
    char *index = clt_path_join(w->dir, "index.json");
    bool there = clt_io_is_file(index);
    clt_free(index);
    if (there)
        return clt_error(CLT_BAD_CONFIG,
                         "%s already holds a dataset (index.json); remove it or choose another folder",
                         w->dir);
    return CLT_OK;
}

clt_status clt_mds_writer_create(const char *dir, const clt_mds_writer_params *p, clt_mds_writer **out) {
    clt_mds_writer *w = clt_calloc(1, sizeof *w);
    w->dir = clt_strdup(dir);
    w->size_limit = p->size_limit;
    clt_status st = prepare(w, p);
    if (st == CLT_OK) {
        make_config(w, p->text);
        *out = w;
    } else {
        writer_free(w);
    }
    return st;
}

int64_t clt_mds_writer_samples(const clt_mds_writer *w) {
    return w->samples;
}
size_t clt_mds_writer_shards(const clt_mds_writer *w) {
    return w->files.n;
}

/* --- shards --- */

static clt_status write_file(clt_mds_writer *w, const char *name, const bytes *b) {
    char *path = clt_path_join(w->dir, name);
    clt_file *f = NULL;
    clt_status st = clt_file_open(path, CLT_IO_CREATE, &f);
    clt_free(path);
    CLT_TRY(st);
    clt_strv_add(&w->files, name);
    st = clt_file_pwrite(f, b->data, b->len, 0);
    if (st == CLT_OK) st = clt_file_sync(f);
    clt_status closed = clt_file_close(f);
    return st == CLT_OK ? closed : st;
}

/* {"basename": ..., "bytes": ..., "hashes": {...}} */
static clt_status describe(clt_mds_writer *w, const char *name, const bytes *b) {
    clt_str_addf(&w->index, "{\"basename\": \"%s\", \"bytes\": %zu, \"hashes\": {", name, b->len);
    for (size_t i = 0; i < w->num_hashes; i++) {
        char hex[CLT_DIGEST_MAX_HEX];
        CLT_TRY(clt_digest_of(w->hashes[i], b->data, b->len, hex));
        clt_str_addf(&w->index, "%s\"%s\": \"%s\"", i ? ", " : "", clt_digest_name(w->hashes[i]), hex);
    }
    clt_str_add(&w->index, "}}");
    return CLT_OK;
}

static clt_status assemble(clt_mds_writer *w) {
    size_t config = strlen(w->config);
    uint32_t start = (uint32_t)(4 + 4 * ((size_t)w->in_shard + 1) + config);
    w->raw.len = 0;
    CLT_TRY(reserve(&w->raw, start + w->body.len));
    put_u32(&w->raw, w->in_shard);
    put_u32(&w->raw, start);
    for (uint32_t i = 0, end; i < w->in_shard; i++) {
        memcpy(&end, w->offsets.data + 4 * (size_t)i, sizeof end);
        put_u32(&w->raw, start + end);
    }
    put(&w->raw, w->config, config);
    put(&w->raw, w->body.data, w->body.len);
    return CLT_OK;
}

static clt_status compress(clt_mds_writer *w) {
    w->zip.len = 0;
    CLT_TRY(reserve(&w->zip, clt_codec_bound(w->codec, w->raw.len)));
    return clt_codec_compress(w->codec, w->level, w->raw.data, w->raw.len, w->zip.data, &w->zip.len);
}

static clt_status flush_shard(clt_mds_writer *w) {
    char raw_name[32], zip_name[40];
    snprintf(raw_name, sizeof raw_name, "shard.%05zu.mds", w->files.n);
    if (w->codec) snprintf(zip_name, sizeof zip_name, "%s.%s", raw_name, clt_codec_name(w->codec));
    CLT_TRY(assemble(w));
    if (!clt_str_try_reserve(&w->index, INDEX_ENTRY)) return clt_no_memory("index.json", w->index.len);
    if (w->files.n) clt_str_add(&w->index, ", ");
    clt_str_addf(&w->index, "{%s\"raw_data\": ", w->columns);
    CLT_TRY(describe(w, raw_name, &w->raw));
    clt_str_addf(&w->index,
                 ", \"samples\": %u, \"size_limit\": %lld, \"version\": 2, \"zip_data\": ", w->in_shard,
                 (long long)w->size_limit);
    if (w->compression) {
        CLT_TRY(compress(w));
        CLT_TRY(describe(w, zip_name, &w->zip));
    } else {
        clt_str_add(&w->index, "null");
    }
    clt_str_add(&w->index, "}");
    CLT_TRY(w->compression ? write_file(w, zip_name, &w->zip) : write_file(w, raw_name, &w->raw));
    w->in_shard = 0;
    w->body.len = w->offsets.len = 0;
    return CLT_OK;
}

/* Begins a sample of `bytes` bytes, its size included: room for it, in a new shard if this one is full. */
static clt_status begin_sample(clt_mds_writer *w, size_t bytes) {
    /* Every sample also costs its offset; a shard its count, the first offset and its JSON. */
    uint64_t now = 4 + 4 + strlen(w->config) + w->body.len + w->offsets.len;
    if (w->in_shard && (uint64_t)w->size_limit < now + bytes + 4) CLT_TRY(flush_shard(w));
    CLT_TRY(reserve(&w->body, bytes));
    CLT_TRY(reserve(&w->offsets, 4));
    put_u32(&w->body, (uint32_t)(bytes - 4)); /* of the only column */
    return CLT_OK;
}

static void end_sample(clt_mds_writer *w) {
    put_u32(&w->offsets, (uint32_t)w->body.len);
    w->in_shard++;
    w->samples++;
}

clt_status clt_mds_writer_add(clt_mds_writer *w, const int32_t *tokens, size_t n) {
    size_t width = n <= UINT8_MAX ? 1 : n <= UINT16_MAX ? 2 : 4;
    if (n == 0) return clt_error(CLT_BAD_DATA, "a sample without tokens cannot be written");
    if (n >= (size_t)1 << 29)
        return clt_error(CLT_BAD_DATA, "a sample of %zu tokens is too long for a shard", n);
    CLT_TRY(begin_sample(w, 4 + 1 + width + 4 * n));
    unsigned char shape = (unsigned char)(1 << 2 | (width == 1 ? 0 : width == 2 ? 1 : 2));
    uint32_t length = (uint32_t)n;
    put(&w->body, &shape, 1);
    put(&w->body, &length, width); /* little-endian */
    put(&w->body, tokens, 4 * n);
    end_sample(w);
    return CLT_OK;
}

clt_status clt_mds_writer_add_text(clt_mds_writer *w, const char *text, size_t bytes) {
    if (bytes >= (size_t)1 << 31)
        return clt_error(CLT_BAD_DATA, "a text of %zu bytes is too long for a shard", bytes);
    CLT_TRY(begin_sample(w, 4 + bytes));
    put(&w->body, text, bytes);
    end_sample(w);
    return CLT_OK;
}

static clt_status finish(clt_mds_writer *w) {
    if (w->in_shard) CLT_TRY(flush_shard(w));
    if (w->samples == 0) return clt_error(CLT_BAD_DATA, "no sample to write to %s", w->dir);
    char *path = clt_path_join(w->dir, "index.json");
    clt_str text = {0};
    clt_status st =
        clt_str_try_reserve(&text, w->index.len + 64) ? CLT_OK : clt_no_memory(path, w->index.len);
    if (st == CLT_OK) {
        clt_str_add(&text, "{\"shards\": [");
        clt_str_addn(&text, w->index.s, w->index.len);
        clt_str_add(&text, "], \"version\": 2}");
        st = clt_io_write_atomic(path, text.s, text.len);
    }
    clt_str_free(&text);
    clt_free(path);
    return st;
}

clt_status clt_mds_writer_finish(clt_mds_writer *w) {
    clt_status st = finish(w);
    if (st == CLT_OK)
        writer_free(w);
    else
        clt_mds_writer_abort(w);
    return st;
}

void clt_mds_writer_abort(clt_mds_writer *w) {
    if (!w) return;
    for (size_t i = 0; i < w->files.n; i++) {
        char *path = clt_path_join(w->dir, w->files.v[i]);
        clt_io_try_unlink(path);
        clt_free(path);
    }
    writer_free(w);
}
