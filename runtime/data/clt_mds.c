#include "runtime/data/clt_mds.h"

#include <string.h>

#include "runtime/base/clt_signal.h"
#include "runtime/data/clt_digest.h"
#include "runtime/data/clt_mds_shards.h"
#include "runtime/data/clt_utf8.h"

struct clt_mds {
    char *dir;
    int bytes_dtype; /* of legacy 'bytes' columns */
    mds_shards s;
    _Alignas(16) char piece[MDS_BUFFER]; /* values before they become int32 */
};

static const size_t default_cache = (size_t)1 << 30;
static const size_t preload_bytes = (size_t)64 << 20;

/* --- opening --- */

static bool has_hash(const mds_file *f, int algo) {
    for (size_t i = 0; i < f->num_hashes; i++)
        if (f->hashes[i].algo == algo) return true;
    return false;
}

static clt_status choose_checks(mds_shards *s, const char *validate) {
    s->check_any = validate == NULL;
    if (!validate || strcmp(validate, "none") == 0) return CLT_OK;
    int algo;
    CLT_TRY(clt_digest_parse("validate_hash", validate, &algo));
    for (size_t i = 0; i < s->x.n; i++) {
        const mds_shard *sh = &s->x.shards[i];
        if (!has_hash(sh->use_zip ? &sh->zip : &sh->raw, algo))
            return clt_error(
                CLT_BAD_CONFIG,
                "validate_hash: index.json of %s has no %s of shard %zu; remove validate_hash or name "
                "an algorithm that the dataset was written with",
                s->dir, validate, i);
    }
    s->check_algo = algo;
    return CLT_OK;
}

static clt_status apply_params(clt_mds *m, const clt_mds_params *p) {
    const char *type = p->token_encoding_type ? p->token_encoding_type : "int64";
    m->bytes_dtype = mds_dtype_find(type, strlen(type));
    if (!mds_dtype_is_integer(m->bytes_dtype))
        return clt_error(
            CLT_BAD_CONFIG,
            "token_encoding_type '%s' is not an integer type; known are int8 to int64 and uint8 to uint64",
            type);
    return choose_checks(&m->s, p->validate_hash);
}

clt_status clt_mds_open(const char *dir, const clt_mds_params *p, clt_mds **out) {
    static const clt_mds_params defaults;
    mds_index x;
    if (!p) p = &defaults;
    const clt_fetch_set set = {.remote = p->remote,
                               .local = dir,
                               .validate_hash = p->validate_hash,
                               .keep_zip = p->keep_zip,
                               .retries = p->retries,
                               .timeout = p->timeout};
    size_t first = 0;
    if (p->fetch) CLT_TRY(clt_fetch_index(&set));
    CLT_TRY(mds_index_load(dir, p->fetch != NULL, &x));
    if (p->fetch) {
        const clt_status added = clt_fetch_add(p->fetch, &set, &x, &first);
        if (added != CLT_OK) mds_index_free(&x);
        CLT_TRY(added);
    }
    clt_mds *m = clt_try_calloc(1, sizeof *m);
    if (!m) {
        mds_index_free(&x);
        return clt_no_memory("the buffers of a dataset", sizeof *m);
    }
    m->dir = clt_strdup(dir);
    clt_status st = mds_shards_init(&m->s, m->dir, x, p->cache_bytes ? p->cache_bytes : default_cache);
    m->s.fetch = p->fetch;
    m->s.fetch_first = first;
    if (st == CLT_OK) st = apply_params(m, p);
    if (st == CLT_OK)
        *out = m;
    else
        clt_mds_close(m);
    return st;
}

void clt_mds_close(clt_mds *m) {
    if (!m) return;
    mds_shards_free(&m->s);
    clt_free(m->dir);
    clt_free(m);
}

clt_status clt_mds_preload(clt_mds *m) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < m->s.x.n; i++) bytes += m->s.x.shards[i].raw.bytes;
    if (m->s.fetch || bytes > preload_bytes || m->s.x.n > MDS_OPEN_FILES) return CLT_OK;
    for (size_t i = 0; i < m->s.x.n; i++) {
        if (clt_signal_received()) return CLT_STOPPED;
        CLT_TRY(mds_shard_use(&m->s, i));
    }
    return CLT_OK;
}

const char *clt_mds_dir(const clt_mds *m) {
    return m->dir;
}
int64_t clt_mds_num_samples(const clt_mds *m) {
    return m->s.x.num_samples;
}
size_t clt_mds_num_shards(const clt_mds *m) {
    return m->s.x.n;
}
bool clt_mds_has_tokens(const clt_mds *m) {
    return m->s.x.shards[0].schema->has_tokens;
}

bool clt_mds_has_pairs(const clt_mds *m) {
    return m->s.x.shards[0].schema->has_pairs;
}

const char *clt_mds_json_column(const clt_mds *m) {
    const mds_schema *sc = m->s.x.shards[0].schema;
    return sc->has_json ? sc->columns[sc->main].name : NULL;
}

bool clt_mds_has_pictures(const clt_mds *m) {
    return m->s.x.shards[0].schema->has_pictures;
}

void clt_mds_shard_info(const clt_mds *m, size_t shard, clt_mds_shard *out) {
    const mds_shard *s = &m->s.x.shards[shard];
    const mds_file *f = s->use_zip ? &s->zip : &s->raw;
    *out = (clt_mds_shard){.file = f->name,
                           .compression = s->compression ? s->compression : "none",
                           .first = s->first,
                           .samples = s->samples,
                           .raw_bytes = s->raw.bytes,
                           .file_bytes = f->bytes,
                           .num_columns = s->schema->n};
}

void clt_mds_column_info(const clt_mds *m, size_t shard, size_t column, const char **name,
                         const char **encoding, int64_t *size) {
    const mds_column *c = &m->s.x.shards[shard].schema->columns[column];
    *name = c->name;
    *encoding = c->encoding;
    *size = c->size;
}

size_t clt_mds_hash_names(const clt_mds *m, size_t shard, const char **names, size_t max) {
    const mds_file *f = &m->s.x.shards[shard].raw;
    for (size_t i = 0; i < f->num_hashes && i < max; i++) names[i] = clt_digest_name(f->hashes[i].algo);
    return f->num_hashes;
}

/* --- one sample --- */

/* A sample, and its text for messages. */
typedef struct {
    size_t shard;
    int64_t in_shard;
    char text[1024]; /* "sample 3 of DIR/shard.00001.mds [sample 10 of the dataset]" */
} place;

/* Bytes [begin, end) of the raw shard. */
typedef struct {
    uint64_t begin, end;
} range;

/* The last shard that starts at or before the sample and is not empty. */
static size_t find_shard(const mds_index *x, int64_t sample) {
    size_t lo = 0, hi = x->n - 1;
    while (lo < hi) {
        size_t mid = (lo + hi + 1) / 2;
        if (x->shards[mid].first <= sample)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

size_t clt_mds_fetch_shard(const clt_mds *m, int64_t sample) {
    if (!m->s.fetch || sample < 0 || sample >= m->s.x.num_samples) return SIZE_MAX;
    return m->s.fetch_first + find_shard(&m->s.x, sample);
}

static clt_status find_sample(clt_mds *m, int64_t sample, place *p) {
    const mds_index *x = &m->s.x;
    if (sample < 0 || sample >= x->num_samples)
        return clt_error(CLT_BAD_DATA, "%s has no sample %lld; it has %lld", m->dir, (long long)sample,
                         (long long)x->num_samples);
    const size_t lo = find_shard(x, sample);
    p->shard = lo;
    p->in_shard = sample - x->shards[lo].first;
    snprintf(p->text, sizeof p->text, "sample %lld of %s/%s [sample %lld of the dataset]",
             (long long)p->in_shard, m->dir, x->shards[lo].raw.name, (long long)sample);
    return CLT_OK;
}

static clt_status sample_range(clt_mds *m, const place *p, range *out) {
    const mds_shard *s = &m->s.x.shards[p->shard];
    uint32_t offsets[2];
    CLT_TRY(mds_shard_use(&m->s, p->shard));
    CLT_TRY(mds_shard_read(&m->s, p->shard, 4 + 4 * (uint64_t)p->in_shard, sizeof offsets, offsets));
    /* Checked with the header, and again, because a file can change during a run. */
    if (offsets[0] > offsets[1] || offsets[1] > s->raw.bytes)
        return clt_error(CLT_BAD_DATA, "%s: bad offsets %u and %u; the file changed after it was checked",
                         p->text, offsets[0], offsets[1]);
    *out = (range){offsets[0], offsets[1]};
    return CLT_OK;
}

/* Finds column `want` of the sample; checks the lengths of all columns. */
static clt_status find_column(clt_mds *m, const place *p, size_t want, range *out) {
    const mds_schema *sc = m->s.x.shards[p->shard].schema;
    const uint32_t *sizes = (const uint32_t *)(const void *)m->s.buffer;
    range all = {0};
    CLT_TRY(sample_range(m, p, &all));
    if (all.end - all.begin < 4 * sc->num_variable)
        return clt_error(CLT_BAD_DATA, "%s: its %llu bytes are too few for the column lengths", p->text,
                         (unsigned long long)(all.end - all.begin));
    CLT_TRY(mds_shard_read(&m->s, p->shard, all.begin, 4 * sc->num_variable, m->s.buffer));
    uint64_t at = all.begin + 4 * sc->num_variable;
    for (size_t i = 0, k = 0; i < sc->n; i++) {
        uint64_t bytes = sc->columns[i].size < 0 ? sizes[k++] : (uint64_t)sc->columns[i].size;
        if (bytes > all.end - at)
            return clt_error(CLT_BAD_DATA, "column length %llu (column '%s') runs past the end of %s",
                             (unsigned long long)bytes, sc->columns[i].name, p->text);
        if (i == want) *out = (range){at, at + bytes};
        at += bytes;
    }
    if (at != all.end)
        return clt_error(CLT_BAD_DATA, "%llu bytes left over in %s", (unsigned long long)(all.end - at),
                         p->text);
    return CLT_OK;
}

/* Reads an array's shape (header at r->begin) and advances r to the values. */
static clt_status read_shape(clt_mds *m, const place *p, range *r, int64_t *elements, int *ndim) {
    unsigned char head[8 * 63], shape;
    if (r->begin == r->end) return clt_error(CLT_BAD_DATA, "array header is cut off (%s)", p->text);
    CLT_TRY(mds_shard_read(&m->s, p->shard, r->begin++, 1, &shape));
    *ndim = shape >> 2;
    size_t width = (size_t)1 << (shape & 3), bytes = (size_t)*ndim * width;
    if (*ndim == 0) return clt_error(CLT_BAD_DATA, "array has no dimensions (%s)", p->text);
    if (bytes > r->end - r->begin)
        return clt_error(CLT_BAD_DATA,
                         "array header claims %d dimensions of %zu bytes, more than the column has (%s)",
                         *ndim, width, p->text);
    CLT_TRY(mds_shard_read(&m->s, p->shard, r->begin, bytes, head));
    r->begin += bytes;
    *elements = 1;
    for (int i = 0; i < *ndim; i++) {
        uint64_t d = 0;
        memcpy(&d, head + (size_t)i * width, width); /* little-endian, like the files */
        if (d == 0) return clt_error(CLT_BAD_DATA, "array has a dimension of 0 (%s)", p->text);
        /* A product that exceeds the column's bytes need not be exact. */
        *elements =
            d > (uint64_t)(((int64_t)1 << 33) / *elements) ? (int64_t)1 << 33 : *elements * (int64_t)d;
    }
    return CLT_OK;
}

/* Element type and values of an ndarray column in r; r becomes the values. */
static clt_status read_array(clt_mds *m, const place *p, const mds_column *c, range *r, int *dtype,
                             int *ndim) {
    int64_t elements = c->elements;
    *dtype = c->dtype;
    *ndim = c->ndim;
    if (!c->dtype) {
        unsigned char code = 0;
        if (r->begin == r->end) return clt_error(CLT_BAD_DATA, "array header is cut off (%s)", p->text);
        CLT_TRY(mds_shard_read(&m->s, p->shard, r->begin++, 1, &code));
        if (mds_dtype_size(code) == 0)
            return clt_error(CLT_BAD_DATA, "array has unknown element type %d (%s)", code, p->text);
        *dtype = code;
    }
    if (c->ndim == 0) CLT_TRY(read_shape(m, p, r, &elements, ndim));
    int64_t need = elements * mds_dtype_size(*dtype), have = (int64_t)(r->end - r->begin);
    if (need != have)
        return clt_error(CLT_BAD_DATA, "array shape needs %s bytes than the column has: %lld, not %lld (%s)",
                         need > have ? "more" : "fewer", (long long)need, (long long)have, p->text);
    return CLT_OK;
}

/* --- tokens --- */

static int64_t element(int dtype, const char *src, int64_t i) {
    switch (dtype) {
    case MDS_U8:
        return ((const uint8_t *)src)[i];
    case MDS_I8:
        return ((const int8_t *)src)[i];
    case MDS_U16:
        return ((const uint16_t *)(const void *)src)[i];
    case MDS_I16:
        return ((const int16_t *)(const void *)src)[i];
    case MDS_U32:
        return ((const uint32_t *)(const void *)src)[i];
    case MDS_I32:
        return ((const int32_t *)(const void *)src)[i];
    case MDS_U64:
        return (int64_t)CLT_MIN(((const uint64_t *)(const void *)src)[i], (uint64_t)INT64_MAX);
    default:
        return ((const int64_t *)(const void *)src)[i];
    }
}

/* Values [0, n) of the range as int32 into out (NULL: only checked). */
static clt_status read_values(clt_mds *m, const place *p, range r, int dtype, int64_t n, int64_t vocab_size,
                              int32_t *out) {
    int64_t size = mds_dtype_size(dtype), lo = vocab_size > 0 ? 0 : INT32_MIN,
            hi = vocab_size > 0 ? vocab_size - 1 : INT32_MAX;
    for (int64_t at = 0; at < n;) {
        int64_t take = CLT_MIN(n - at, MDS_BUFFER / size);
        CLT_TRY(mds_shard_read(&m->s, p->shard, r.begin + (uint64_t)(at * size), (size_t)(take * size),
                               m->piece));
        for (int64_t k = 0; k < take; k++, at++) {
            int64_t v = element(dtype, m->piece, k);
            if (v < lo || v > hi)
                return vocab_size > 0 ? clt_error(CLT_BAD_DATA,
                                                  "token id %lld is outside the vocabulary of %lld, at "
                                                  "position %lld of %s; is this "
                                                  "the dataset of this model's tokenizer?",
                                                  (long long)v, (long long)vocab_size, (long long)at, p->text)
                                      : clt_error(CLT_BAD_DATA,
                                                  "token id %lld does not fit int32, at position %lld of %s",
                                                  (long long)v, (long long)at, p->text);
            if (out) out[at] = (int32_t)v;
        }
    }
    return CLT_OK;
}

/* Where the tokens of a sample are, their type and number. */
static clt_status find_tokens(clt_mds *m, const place *p, range *r, int *dtype, int64_t *n) {
    const mds_schema *sc = m->s.x.shards[p->shard].schema;
    const mds_column *c = &sc->columns[sc->main];
    int ndim = 1;
    CLT_TRY(find_column(m, p, sc->main, r));
    if (c->kind == MDS_BYTES) {
        *dtype = m->bytes_dtype;
        if ((int64_t)(r->end - r->begin) % mds_dtype_size(*dtype))
            return clt_error(
                CLT_BAD_DATA,
                "bytes column is not a multiple of %lld: %llu bytes (%s); check token_encoding_type",
                (long long)mds_dtype_size(*dtype), (unsigned long long)(r->end - r->begin), p->text);
    } else {
        CLT_TRY(read_array(m, p, c, r, dtype, &ndim));
        if (ndim != 1)
            return clt_error(CLT_BAD_DATA, "tokens have %d dimensions, they must have one (%s)", ndim,
                             p->text);
        if (!mds_dtype_is_integer(*dtype))
            return clt_error(CLT_BAD_DATA, "tokens are floating-point numbers (%s)", p->text);
    }
    *n = (int64_t)(r->end - r->begin) / mds_dtype_size(*dtype);
    return CLT_OK;
}

/* What the loaders finetuning and image read is refused for others. */
static clt_status refuse_other_loaders(const clt_mds *m) {
    const mds_schema *sc = m->s.x.shards[0].schema;
    if (sc->has_pictures && sc->main == sc->picture)
        return clt_error(CLT_BAD_CONFIG, "%s holds pictures: use the loader image", m->dir);
    if (!clt_mds_has_pairs(m) && !clt_mds_json_column(m)) return CLT_OK;
    return clt_error(CLT_BAD_CONFIG, "%s holds %s: use the loader finetuning", m->dir,
                     clt_mds_has_pairs(m) ? "prompts and responses" : clt_mds_json_column(m));
}

clt_status clt_mds_get_tokens(clt_mds *m, int64_t sample, int64_t max_tokens, int64_t vocab_size,
                              int32_t *tokens, int64_t *num_tokens, int64_t *full_length) {
    place p;
    range r;
    int dtype;
    int64_t n;
    CLT_TRY(refuse_other_loaders(m));
    if (!clt_mds_has_tokens(m))
        return clt_error(
            CLT_BAD_CONFIG,
            "%s holds text, not tokens; only tokenizer 'bytes' works while training: convert the "
            "dataset to tokens first",
            m->dir);
    CLT_TRY(find_sample(m, sample, &p));
    CLT_TRY(find_tokens(m, &p, &r, &dtype, &n));
    CLT_TRY(read_values(m, &p, r, dtype, CLT_MIN(n, max_tokens), vocab_size, tokens));
    *num_tokens = CLT_MIN(n, max_tokens);
    if (full_length) *full_length = n;
    return CLT_OK;
}

/* --- text --- */

/* Appends the column's bytes to *out (NULL: only checked) and checks that they are UTF-8. */
static clt_status read_text(clt_mds *m, const place *p, range r, clt_str *out) {
    clt_utf8 u = {0};
    while (r.begin < r.end) {
        size_t n = (size_t)CLT_MIN(r.end - r.begin, (uint64_t)MDS_BUFFER);
        CLT_TRY(mds_shard_read(&m->s, p->shard, r.begin, n, m->piece));
        clt_utf8_add(&u, m->piece, n);
        if (out) clt_str_addn(out, m->piece, n);
        r.begin += n;
    }
    if (!clt_utf8_ok(&u)) return clt_error(CLT_BAD_DATA, "text of %s is not UTF-8", p->text);
    return CLT_OK;
}

static clt_status get_column(clt_mds *m, const place *p, size_t column, clt_str *out) {
    range r;
    CLT_TRY(find_column(m, p, column, &r));
    out->len = 0;
    if (!clt_str_try_reserve(out, r.end - r.begin)) return clt_no_memory(p->text, r.end - r.begin);
    clt_str_addn(out, "", 0);
    return read_text(m, p, r, out);
}

clt_status clt_mds_get_text(clt_mds *m, int64_t sample, clt_str *out) {
    place p;
    if (clt_mds_has_tokens(m)) return clt_error(CLT_BAD_CONFIG, "%s holds tokens, not text", m->dir);
    CLT_TRY(refuse_other_loaders(m));
    CLT_TRY(find_sample(m, sample, &p));
    return get_column(m, &p, m->s.x.shards[p.shard].schema->main, out);
}

clt_status clt_mds_get_pair(clt_mds *m, int64_t sample, clt_str *prompt, clt_str *response) {
    place p;
    if (!clt_mds_has_pairs(m))
        return clt_error(CLT_BAD_CONFIG,
                         "%s has no text columns prompt and response (or completion), and no JSON column "
                         "messages or turns",
                         m->dir);
    CLT_TRY(find_sample(m, sample, &p));
    const mds_schema *sc = m->s.x.shards[p.shard].schema;
    CLT_TRY(get_column(m, &p, sc->main, prompt));
    return get_column(m, &p, sc->response, response);
}

clt_status clt_mds_get_json(clt_mds *m, int64_t sample, clt_str *out) {
    place p;
    if (!clt_mds_json_column(m))
        return clt_error(CLT_BAD_CONFIG, "%s has no JSON column messages or turns", m->dir);
    CLT_TRY(find_sample(m, sample, &p));
    return get_column(m, &p, m->s.x.shards[p.shard].schema->main, out);
}

/* --- pictures --- */

clt_status clt_mds_get_picture(clt_mds *m, int64_t sample, clt_mds_picture *out) {
    place p;
    range r;
    _Alignas(8) char value[8];
    if (!clt_mds_has_pictures(m))
        return clt_error(CLT_BAD_CONFIG,
                         "%s has no column of pictures (jpeg, png or pil) with a label (int) beside it, or "
                         "several: name them image and label",
                         m->dir);
    CLT_TRY(find_sample(m, sample, &p));
    const mds_schema *sc = m->s.x.shards[p.shard].schema;
    const mds_column *label = &sc->columns[sc->label];
    CLT_TRY(find_column(m, &p, sc->label, &r));
    CLT_TRY(mds_shard_read(&m->s, p.shard, r.begin, (size_t)label->size, value));
    out->label = element(label->dtype, value, 0);
    CLT_TRY(find_column(m, &p, sc->picture, &r));
    const size_t n = (size_t)(r.end - r.begin);
    out->bytes.len = 0;
    if (!clt_str_try_reserve(&out->bytes, n)) return clt_no_memory(p.text, n);
    CLT_TRY(mds_shard_read(&m->s, p.shard, r.begin, n, out->bytes.s));
    out->bytes.len = n;
    out->pil = strcmp(sc->columns[sc->picture].encoding, "pil") == 0;
    memcpy(out->what, p.text, sizeof out->what);
    return CLT_OK;
}

/* --- verification --- */

static clt_status verify_sample(clt_mds *m, int64_t sample, int64_t vocab_size) {
    place p;
    range r;
    int dtype, ndim;
    int64_t n;
    CLT_TRY(find_sample(m, sample, &p));
    const mds_schema *sc = m->s.x.shards[p.shard].schema;
    for (size_t i = 0; i < sc->n; i++) {
        const mds_column *c = &sc->columns[i];
        if (i == sc->main && sc->has_tokens) {
            CLT_TRY(find_tokens(m, &p, &r, &dtype, &n));
            CLT_TRY(read_values(m, &p, r, dtype, n, vocab_size, NULL));
        } else if (c->kind == MDS_NDARRAY || c->kind == MDS_STR || c->kind == MDS_JSON) {
            CLT_TRY(find_column(m, &p, i, &r));
            CLT_TRY(c->kind == MDS_NDARRAY ? read_array(m, &p, c, &r, &dtype, &ndim)
                                           : read_text(m, &p, r, NULL));
        }
    }
    return CLT_OK;
}

clt_status clt_mds_verify(clt_mds *m, int64_t vocab_size, const clt_mds_watch *watch, size_t *bad_shards) {
    const clt_mds_watch w = watch ? *watch : (clt_mds_watch){0};
    clt_status first = CLT_OK;
    *bad_shards = 0;
    m->s.check_all = true;
    for (size_t i = 0; i < m->s.x.n; i++) {
        mds_shard *s = &m->s.x.shards[i];
        mds_shards_forget(&m->s, i);
        clt_status st = mds_shard_use(&m->s, i);
        for (int64_t k = 0; k < s->samples && st == CLT_OK; k++) {
            st = verify_sample(m, s->first + k, vocab_size);
            if (st == CLT_OK && w.check) st = w.check(w.user, s->first + k);
            if (w.progress && k % 256 == 0) w.progress(w.user, i, s->first + k);
        }
        if (w.progress) w.progress(w.user, i + 1, s->first + s->samples);
        if (st == CLT_OK) continue;
        if (first == CLT_OK) first = st;
        ++*bad_shards;
    }
    m->s.check_all = false;
    return first;
}
