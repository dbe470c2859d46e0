#include "runtime/data/clt_mds_index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/data/clt_digest.h"
#include "runtime/data/clt_utf8.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"

enum { MAX_DEPTH = 16, MAX_COLUMNS = 1024, MAX_DIMS = 63, MAX_NAME = 4096 };
static const size_t max_index_bytes = (size_t)1 << 29;

/* --- element types and encodings --- */

static const struct {
    const char *name;
    int code, size;
} dtypes[] = {
    {"uint8", MDS_U8, 1},    {"int8", MDS_I8, 1},    {"uint16", MDS_U16, 2},  {"int16", MDS_I16, 2},
    {"float16", MDS_F16, 2}, {"uint32", MDS_U32, 4}, {"int32", MDS_I32, 4},   {"float32", MDS_F32, 4},
    {"uint64", MDS_U64, 8},  {"int64", MDS_I64, 8},  {"float64", MDS_F64, 8},
};

static const char *const picture_encodings[] = {"pil", "jpeg", "png"};
static const char *const variable_encodings[] = {"str_int",   "str_float", "str_decimal", "jpeg_array",
                                                 "jpegarray", "list[pil]", "list[jpeg]",  "list[png]"};

int64_t mds_dtype_size(int dtype) {
    for (size_t i = 0; i < CLT_COUNT_OF(dtypes); i++)
        if (dtypes[i].code == dtype) return dtypes[i].size;
    return 0;
}

int mds_dtype_find(const char *name, size_t len) {
    for (size_t i = 0; i < CLT_COUNT_OF(dtypes); i++)
        if (strlen(dtypes[i].name) == len && strncmp(dtypes[i].name, name, len) == 0) return dtypes[i].code;
    return 0;
}

bool mds_dtype_is_integer(int dtype) {
    return mds_dtype_size(dtype) > 0 && dtype % 8 < 2;
}

/* "d0,d1,..." -> dimensions and their product; false if it is malformed or too large. */
static bool parse_shape(const char *s, int *ndim, int64_t *elements) {
    *ndim = 0;
    *elements = 1;
    for (;;) {
        if (*s < '0' || *s > '9' || ++*ndim > MAX_DIMS) return false;
        char *end;
        errno = 0;
        long long d = strtoll(s, &end, 10);
        if (errno || d < 1 || d > ((long long)1 << 32) / *elements) return false;
        *elements *= d;
        if (*end == 0) return true;
        if (*end != ',') return false;
        s = end + 1;
    }
}

/* ndarray, ndarray:dtype, ndarray:dtype:shape. */
static bool parse_ndarray(const char *s, mds_column *c) {
    c->kind = MDS_NDARRAY;
    s += strlen("ndarray");
    if (*s == 0) return true;
    if (*s++ != ':') return false;
    size_t n = strcspn(s, ":");
    c->dtype = mds_dtype_find(s, n);
    if (!c->dtype) return false;
    if (s[n] == 0) return true;
    if (!parse_shape(s + n + 1, &c->ndim, &c->elements)) return false;
    c->size = c->elements * mds_dtype_size(c->dtype);
    return true;
}

static bool listed(const char *s, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(s, list[i]) == 0) return true;
    return false;
}

/* Fills kind, dtype, shape and the size that the encoding implies. */
static bool parse_encoding(mds_column *c) {
    const char *s = c->encoding;
    c->size = -1;
    c->kind = MDS_OTHER;
    if (strncmp(s, "ndarray", strlen("ndarray")) == 0) return parse_ndarray(s, c);
    if (strcmp(s, "bytes") == 0)
        c->kind = MDS_BYTES;
    else if (strcmp(s, "str") == 0)
        c->kind = MDS_STR;
    else if (strcmp(s, "json") == 0)
        c->kind = MDS_JSON;
    else if (strcmp(s, "int") == 0 || mds_dtype_find(s, strlen(s))) {
        const int dtype = strcmp(s, "int") == 0 ? MDS_I64 : mds_dtype_find(s, strlen(s));
        c->size = mds_dtype_size(dtype);
        if (mds_dtype_is_integer(dtype)) {
            c->kind = MDS_INT;
            c->dtype = dtype;
        }
    } else if (listed(s, picture_encodings, CLT_COUNT_OF(picture_encodings)))
        c->kind = MDS_PICTURE;
    else
        return listed(s, variable_encodings, CLT_COUNT_OF(variable_encodings));
    return true;
}

/* --- columns --- */

/* A copy of a name in the index, which may be hostile. */
static clt_status copy_name(const char *text, const char *what, char **out) {
    if (strlen(text) > MAX_NAME)
        return clt_error(CLT_BAD_DATA, "%s: a name has %zu bytes, at most %d are allowed", what, strlen(text),
                         MAX_NAME);
    *out = clt_strdup(text);
    return CLT_OK;
}

static clt_status read_column(json_t *name, json_t *encoding, json_t *size, const char *what, mds_column *c) {
    if (!json_is_string(name) || !json_is_string(encoding))
        return clt_error(CLT_BAD_DATA, "%s: column_names and column_encodings must hold strings", what);
    CLT_TRY(copy_name(json_string_value(name), what, &c->name));
    CLT_TRY(copy_name(json_string_value(encoding), what, &c->encoding));
    if (strcmp(c->encoding, "pkl") == 0)
        return clt_error(CLT_BAD_DATA,
                         "%s: column encoding pkl (column '%s') is refused as unsafe: it runs code from the "
                         "file; write the "
                         "dataset without it",
                         what, c->name);
    if (!parse_encoding(c))
        return clt_error(CLT_BAD_DATA, "%s: unknown column encoding %s (column '%s')", what, c->encoding,
                         c->name);
    if (c->size < 0 ? !json_is_null(size) : !json_is_integer(size) || json_integer_value(size) != c->size) {
        char text[32] = "null";
        if (json_is_integer(size)) snprintf(text, sizeof text, "%lld", (long long)json_integer_value(size));
        return clt_error(CLT_BAD_DATA, "%s: column size %s is not that of %s (column '%s')", what, text,
                         c->encoding, c->name);
    }
    return CLT_OK;
}

/* The column of a kind with one of two names; s->n: there is none. */
static size_t find_column(const mds_schema *s, mds_kind kind, const char *name, const char *other) {
    for (size_t i = 0; i < s->n; i++) {
        const mds_column *c = &s->columns[i];
        if (c->kind == kind && (strcmp(c->name, name) == 0 || strcmp(c->name, other) == 0)) return i;
    }
    return s->n;
}

/* The column of a kind with one of the names, else the only one of that kind; s->n: there is none. */
static size_t find_named_or_only(const mds_schema *s, mds_kind kind, const char *const *names, size_t n) {
    size_t found = s->n, count = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->columns[i].kind != kind) continue;
        if (listed(s->columns[i].name, names, n)) return i;
        found = i;
        count++;
    }
    return count == 1 ? found : s->n;
}

static void find_picture(mds_schema *s) {
    static const char *const pictures[] = {"image", "x", "img", "jpg", "jpeg", "png"}, *const labels[] = {
                                                                                           "label", "y",
                                                                                           "class", "cls"};
    s->picture = find_named_or_only(s, MDS_PICTURE, pictures, CLT_COUNT_OF(pictures));
    s->label = find_named_or_only(s, MDS_INT, labels, CLT_COUNT_OF(labels));
    s->has_pictures = s->picture < s->n && s->label < s->n;
}

/* Which column a run reads, and whether it can. */
static clt_status choose_column(mds_schema *s, const char *what) {
    find_picture(s);
    for (size_t i = 0; i < s->n; i++) {
        mds_column *c = &s->columns[i];
        if (strcmp(c->name, "tokens") != 0) continue;
        bool array = c->kind == MDS_NDARRAY && (!c->dtype || mds_dtype_is_integer(c->dtype)) && c->ndim <= 1;
        if (!array && c->kind != MDS_BYTES)
            return clt_error(CLT_BAD_DATA,
                             "%s: column tokens is %s; it must be a one-dimensional integer ndarray or bytes",
                             what, c->encoding);
        s->main = i;
        s->has_tokens = true;
        return CLT_OK;
    }
    s->main = find_column(s, MDS_STR, "text", "text");
    if (s->main < s->n) return CLT_OK;
    s->main = find_column(s, MDS_STR, "prompt", "prompt");
    s->response = find_column(s, MDS_STR, "response", "completion");
    s->has_pairs = s->main < s->n && s->response < s->n;
    if (s->has_pairs) return CLT_OK;
    s->main = find_column(s, MDS_JSON, "turns", "turns");
    if (s->main == s->n) s->main = find_column(s, MDS_JSON, "messages", "messages");
    s->has_json = s->main < s->n;
    if (s->has_json) return CLT_OK;
    s->main = s->picture;
    if (s->has_pictures) return CLT_OK;
    return clt_error(CLT_BAD_DATA,
                     "%s: no column tokens or text, not both of prompt and response, no JSON column messages "
                     "or turns, and no picture (jpeg, png, pil) with a label (int); a run needs one of them "
                     "(`cltrain data convert` writes tokens)",
                     what);
}

static void schema_free(mds_schema *s) {
    if (!s) return;
    for (size_t i = 0; i < s->n; i++) {
        clt_free(s->columns[i].name);
        clt_free(s->columns[i].encoding);
    }
    clt_free(s->columns);
    clt_free(s);
}

static clt_status schema_read(json_t *shard, const char *what, mds_schema **out) {
    json_t *names, *encodings, *sizes;
    CLT_TRY(clt_json_get_arr(shard, "column_names", what, &names));
    CLT_TRY(clt_json_get_arr(shard, "column_encodings", what, &encodings));
    CLT_TRY(clt_json_get_arr(shard, "column_sizes", what, &sizes));
    size_t n = json_array_size(names);
    if (n != json_array_size(encodings) || n != json_array_size(sizes))
        return clt_error(CLT_BAD_DATA, "%s: column_names, column_encodings and column_sizes differ in length",
                         what);
    if (n > MAX_COLUMNS)
        return clt_error(CLT_BAD_DATA, "%s: %zu columns, at most %d are supported", what, n, MAX_COLUMNS);
    mds_schema *s = clt_calloc(1, sizeof *s);
    s->columns = clt_try_calloc(n + 1, sizeof *s->columns);
    s->n = s->columns ? n : 0;
    clt_status st = s->columns ? CLT_OK : clt_no_memory(what, n * sizeof *s->columns);
    for (size_t i = 0; i < s->n && st == CLT_OK; i++) {
        st = read_column(json_array_get(names, i), json_array_get(encodings, i), json_array_get(sizes, i),
                         what, &s->columns[i]);
        s->num_variable += st == CLT_OK && s->columns[i].size < 0;
    }
    if (st == CLT_OK) st = choose_column(s, what);
    if (st == CLT_OK)
        *out = s;
    else
        schema_free(s);
    return st;
}

/* --- files of a shard --- */

static clt_status read_hashes(json_t *hashes, const char *what, mds_file *f) {
    const char *name;
    json_t *value;
    f->hashes = clt_try_calloc(json_object_size(hashes) + 1, sizeof *f->hashes);
    if (!f->hashes) return clt_no_memory(what, json_object_size(hashes) * sizeof *f->hashes);
    json_object_foreach(hashes, name, value) {
        int algo = clt_digest_find(name);
        if (algo < 0) return clt_error(CLT_BAD_DATA, "%s: unknown hash algorithm %s", what, name);
        const char *hex = json_string_value(value);
        size_t digits = clt_digest_hex_size(algo);
        if (!hex || strlen(hex) != digits || strspn(hex, "0123456789abcdef") != digits)
            return clt_error(CLT_BAD_DATA, "%s: %s hash value of %s is not %zu hex digits", what, name,
                             f->name, digits);
        f->hashes[f->num_hashes++] = (mds_hash){algo, clt_strdup(hex)};
    }
    return CLT_OK;
}

static clt_status read_file_entry(json_t *o, const char *what, const char *part, mds_file *f) {
    const char *name;
    int64_t bytes;
    json_t *hashes;
    CLT_TRY(clt_json_get_str(o, "basename", what, &name));
    CLT_TRY(clt_json_get_i64(o, "bytes", what, &bytes));
    if (!*name) return clt_error(CLT_BAD_DATA, "%s: %s basename is empty", what, part);
    if (!clt_path_is_safe(name))
        return clt_error(CLT_BAD_DATA,
                         "%s: %s basename %s is not a plain file name inside the dataset's folder", what,
                         part, name);
    if (bytes < 0 || bytes > UINT32_MAX)
        return clt_error(CLT_BAD_DATA, "%s: %s.bytes is %lld, negative or over 2^32, the limit of a shard",
                         what, part, (long long)bytes);
    CLT_TRY(copy_name(name, what, &f->name));
    f->bytes = (uint64_t)bytes;
    CLT_TRY(clt_json_get_obj(o, "hashes", what, &hashes));
    return read_hashes(hashes, what, f);
}

static clt_status read_compression(json_t *shard, const char *what, mds_shard *s) {
    json_t *v = json_object_get(shard, "compression");
    if (!v || json_is_null(v)) return CLT_OK;
    const char *name = json_string_value(v);
    if (!name) return clt_error(CLT_BAD_DATA, "%s: compression must be a string or null", what);
    s->codec = clt_codec_find(name);
    if (!s->codec) return clt_error(CLT_BAD_DATA, "%s: unknown compression %s", what, name);
    return copy_name(name, what, &s->compression);
}

clt_status mds_file_stat(const char *dir, const char *name, clt_io_info *info) {
    char *path = clt_path_join(dir, name);
    clt_status st = clt_io_stat(path, info);
    clt_free(path);
    return st;
}

clt_status mds_file_open(const char *dir, const char *name, clt_file **out) {
    char *path = clt_path_join(dir, name);
    clt_status st = clt_file_open(path, CLT_IO_READ, out);
    clt_free(path);
    return st;
}

/* A file whose size is not the one in index.json. */
static clt_status wrong_size(const char *dir, const char *name, const char *part, uint64_t have,
                             uint64_t want, int64_t samples) {
    if (have == 0) return clt_error(CLT_BAD_DATA, "%s/%s is empty; fetch or write it again", dir, name);
    bool in_table = strcmp(part, "raw_data") == 0 && have < 4 + 4 * ((uint64_t)samples + 1);
    return clt_error(
        CLT_BAD_DATA,
        "%s/%s has %s bytes than index.json says: size %llu is not %s.bytes %llu%s; fetch or write it again",
        dir, name, have < want ? "fewer" : "more", (unsigned long long)have, part, (unsigned long long)want,
        in_table ? "; it ends inside its offset table" : "");
}

/* Chooses the file to read and compares its size. A raw file beside a compressed one (what a cache leaves)
 * has precedence. */
static clt_status check_files(const char *dir, mds_shard *s) {
    clt_io_info info;
    CLT_TRY(mds_file_stat(dir, s->raw.name, &info));
    s->use_zip = s->compression && !(info.kind == CLT_IO_FILE && info.bytes == s->raw.bytes);
    mds_file *f = s->use_zip ? &s->zip : &s->raw;
    if (s->use_zip) CLT_TRY(mds_file_stat(dir, f->name, &info));
    if (info.kind != CLT_IO_FILE)
        return clt_error(CLT_BAD_DATA,
                         "%s/%s %s; index.json names it: fetch the missing shard or write the dataset again",
                         dir, f->name, info.kind != CLT_IO_ABSENT ? "is not a file" : "does not exist");
    if (info.bytes != f->bytes)
        return wrong_size(dir, f->name, s->use_zip ? "zip_data" : "raw_data", info.bytes, f->bytes,
                          s->samples);
    if (s->use_zip && !clt_codec_plausible(s->codec, s->zip.bytes, s->raw.bytes))
        return clt_error(CLT_BAD_DATA, "%s/%s: %llu bytes cannot decompress to raw_data.bytes %llu", dir,
                         f->name, (unsigned long long)s->zip.bytes, (unsigned long long)s->raw.bytes);
    return CLT_OK;
}

clt_status mds_zip_beside(const char *dir, const mds_shard *s, bool *there) {
    clt_io_info info;
    CLT_TRY(mds_file_stat(dir, s->zip.name, &info));
    *there = info.kind != CLT_IO_ABSENT;
    if (*there && info.kind != CLT_IO_FILE)
        return clt_error(CLT_BAD_DATA, "%s/%s is not a file", dir, s->zip.name);
    if (*there && info.bytes != s->zip.bytes)
        return wrong_size(dir, s->zip.name, "zip_data", info.bytes, s->zip.bytes, s->samples);
    return CLT_OK;
}

/* --- shards and index --- */

static clt_status check_version(json_t *o, const char *what, const char *kind) {
    int64_t version;
    CLT_TRY(clt_json_get_i64(o, "version", what, &version));
    if (version != 2)
        return clt_error(CLT_BAD_DATA, "%s: %s version %lld is not supported, only 2 is", what, kind,
                         (long long)version);
    return CLT_OK;
}

static clt_status read_samples(json_t *shard, const char *what, mds_shard *s) {
    CLT_TRY(clt_json_get_i64(shard, "samples", what, &s->samples));
    if (s->samples < 0)
        return clt_error(CLT_BAD_DATA, "%s: sample count %lld is negative", what, (long long)s->samples);
    if (s->raw.bytes < 8 || (uint64_t)s->samples > (s->raw.bytes - 8) / 4)
        return clt_error(CLT_BAD_DATA, "%s: sample count %lld cannot fit in the %llu bytes of %s", what,
                         (long long)s->samples, (unsigned long long)s->raw.bytes, s->raw.name);
    return CLT_OK;
}

static clt_status read_shard(json_t *shard, const char *what, mds_shard *s) {
    const char *format;
    json_t *raw, *zip = json_object_get(shard, "zip_data");
    if (!json_is_object(shard)) return clt_error(CLT_BAD_DATA, "%s is not an object", what);
    CLT_TRY(check_version(shard, what, "shard"));
    CLT_TRY(clt_json_get_str(shard, "format", what, &format));
    if (strcmp(format, "mds") != 0)
        return clt_error(CLT_BAD_DATA, "%s: shard format %s is not mds", what, format);
    CLT_TRY(read_compression(shard, what, s));
    CLT_TRY(clt_json_get_obj(shard, "raw_data", what, &raw));
    CLT_TRY(read_file_entry(raw, what, "raw_data", &s->raw));
    if (s->compression) {
        if (!json_is_object(zip))
            return clt_error(CLT_BAD_DATA, "%s: compression is %s but zip_data is %s", what, s->compression,
                             json_is_null(zip) || !zip ? "null" : "not an object");
        CLT_TRY(read_file_entry(zip, what, "zip_data", &s->zip));
    }
    return read_samples(shard, what, s);
}

static bool same_use(const mds_schema *a, const mds_schema *b) {
    return a->has_tokens == b->has_tokens && a->has_pairs == b->has_pairs && a->has_json == b->has_json &&
           a->has_pictures == b->has_pictures;
}

/* Consecutive shards with the same columns share one schema. */
static clt_status share_schema(json_t *shards, size_t i, const char *what, mds_index *x) {
    static const char *const keys[] = {"column_names", "column_encodings", "column_sizes"};
    json_t *now = json_array_get(shards, i), *before = i ? json_array_get(shards, i - 1) : NULL;
    bool same = before != NULL;
    for (size_t k = 0; k < CLT_COUNT_OF(keys) && same; k++)
        same = json_equal(json_object_get(now, keys[k]), json_object_get(before, keys[k]));
    x->shards[i].owns_schema = !same;
    if (same)
        x->shards[i].schema = x->shards[i - 1].schema;
    else
        CLT_TRY(schema_read(now, what, &x->shards[i].schema));
    if (i && !same_use(x->shards[i].schema, x->shards[0].schema))
        return clt_error(CLT_BAD_DATA, "%s: some shards hold tokens, others something else", what);
    return CLT_OK;
}

static clt_status read_shards(json_t *shards, const char *dir, const char *path, bool cache, mds_index *x) {
    size_t n = json_array_size(shards);
    x->shards = clt_try_calloc(n + 1, sizeof *x->shards);
    if (!x->shards) return clt_no_memory(path, n * sizeof *x->shards);
    for (size_t i = 0; i < n; i++) {
        char what[4096];
        snprintf(what, sizeof what, "%s: shard %zu", path, i);
        x->n = i + 1;
        mds_shard *s = &x->shards[i];
        CLT_TRY(read_shard(json_array_get(shards, i), what, s));
        CLT_TRY(share_schema(shards, i, what, x));
        if (!cache) CLT_TRY(check_files(dir, s));
        s->first = x->num_samples;
        x->num_samples += s->samples; /* below 2^30 times the number of shards: no overflow */
    }
    if (x->num_samples == 0) return clt_error(CLT_BAD_DATA, "%s: the dataset has no samples", path);
    return CLT_OK;
}

static clt_status parse_index(const char *path, json_t **out) {
    char *text;
    size_t bytes;
    CLT_TRY(clt_io_read_all(path, max_index_bytes, &text, &bytes));
    clt_status st;
    if (bytes == 0)
        st = clt_error(CLT_BAD_DATA, "%s is empty; fetch or write it again", path);
    else if (!clt_utf8_valid(text, bytes))
        st = clt_error(CLT_BAD_DATA, "%s is not UTF-8", path);
    else
        st = clt_json_parse(text, bytes, MAX_DEPTH, path, out);
    clt_free(text);
    return st;
}

static clt_status load(const char *dir, const char *path, bool cache, mds_index *x) {
    json_t *root, *shards;
    CLT_TRY(parse_index(path, &root));
    clt_status st;
    if (!json_is_object(root))
        st = clt_error(CLT_BAD_DATA, "%s: the JSON is not an object", path);
    else if ((st = check_version(root, path, "index")) == CLT_OK &&
             (st = clt_json_get_arr(root, "shards", path, &shards)) == CLT_OK)
        st = read_shards(shards, dir, path, cache, x);
    json_decref(root);
    return st;
}

clt_status mds_index_load(const char *dir, bool cache, mds_index *out) {
    mds_index x = {0};
    CLT_TRY(clt_io_require(dir, CLT_IO_CAN_READ_RANGES, "reading a dataset in place"));
    if (!clt_io_is_dir(dir))
        return clt_error(CLT_BAD_DATA, "dataset folder %s does not exist; check `local` and `split`", dir);
    char *path = clt_path_join(dir, "index.json");
    clt_status st;
    if (!clt_io_is_file(path))
        st = clt_error(
            CLT_BAD_DATA,
            "no index.json in %s: it is not an MDS dataset; check `local` and `split`, or make one with "
            "`cltrain data convert`",
            dir);
    else
        st = load(dir, path, cache, &x);
    clt_free(path);
    if (st == CLT_OK)
        *out = x;
    else
        mds_index_free(&x);
    return st;
}

static void file_free(mds_file *f) {
    for (size_t i = 0; i < f->num_hashes; i++) clt_free(f->hashes[i].hex);
    clt_free(f->hashes);
    clt_free(f->name);
}

void mds_index_free(mds_index *x) {
    for (size_t i = 0; i < x->n; i++) {
        mds_shard *s = &x->shards[i];
        if (s->owns_schema) schema_free(s->schema);
        clt_free(s->compression);
        file_free(&s->raw);
        file_free(&s->zip);
    }
    clt_free(x->shards);
    *x = (mds_index){0};
}
