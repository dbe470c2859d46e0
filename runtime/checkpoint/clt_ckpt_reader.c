#include "runtime/checkpoint/clt_ckpt_internal.h"

#include <stdlib.h>
#include <string.h>

struct clt_ckpt_reader {
    char *path;
    clt_manifest *m;
    size_t *by_name; /* tensors sorted by role, then name */
    clt_chunk_codec *codec;
    float *buffer;
    const float *data;   /* the chunk that was decoded last: `buffer`, or memory of `ahead` */
    size_t chunk_loaded; /* SIZE_MAX: none */
    bool unopened;       /* the last load failed because its file cannot be opened */
    clt_file *file;      /* the data file that is open */
    uint32_t file_index;
    size_t *expected; /* chunks that will be read, in this order */
    size_t n_expected, cap_expected;
    clt_ahead *ahead; /* reads them; NULL: nobody does */
};

static int by_key(const void *a, const void *b, void *tensors) {
    const clt_man_tensor *t = tensors, *x = &t[*(const size_t *)a], *y = &t[*(const size_t *)b];
    int c = strcmp(x->role, y->role);
    return c ? c : strcmp(x->name, y->name);
}

static clt_status index_names(clt_ckpt_reader *r) {
    const clt_manifest *m = r->m;
    r->by_name = clt_try_calloc(m->tensors, sizeof *r->by_name);
    if (!r->by_name)
        return clt_no_memory("the list of a checkpoint's tensors", m->tensors * sizeof *r->by_name);
    for (size_t i = 0; i < m->tensors; i++) r->by_name[i] = i;
    if (m->tensors > 1) qsort_r(r->by_name, m->tensors, sizeof *r->by_name, by_key, m->tensor);
    return CLT_OK;
}

static clt_status open_reader(clt_ckpt_reader *r) {
    size_t largest = 1;
    CLT_TRY(clt_manifest_load(r->path, true, &r->m));
    CLT_TRY(index_names(r));
    for (size_t i = 0; i < r->m->chunks; i++) largest = CLT_MAX(largest, (size_t)r->m->chunk[i].count);
    CLT_TRY(clt_chunk_codec_create(largest, &r->codec));
    r->buffer = clt_try_malloc(largest * sizeof *r->buffer);
    return r->buffer ? CLT_OK : clt_no_memory("a chunk of a checkpoint", largest * sizeof *r->buffer);
}

static void end_ahead(clt_ckpt_reader *r) {
    if (r->ahead) r->chunk_loaded = SIZE_MAX;
    clt_ahead_stop(r->ahead);
    clt_free(r->expected);
    r->ahead = NULL;
    r->expected = NULL;
    r->n_expected = r->cap_expected = 0;
}

clt_status clt_ckpt_open(const char *path, clt_ckpt_reader **out) {
    clt_ckpt_reader *r = clt_calloc(1, sizeof *r);
    r->path = clt_strdup(path);
    r->chunk_loaded = SIZE_MAX;
    clt_status st = open_reader(r);
    if (st != CLT_OK) {
        clt_ckpt_close(r);
        return st;
    }
    *out = r;
    return CLT_OK;
}

void clt_ckpt_close(clt_ckpt_reader *r) {
    if (!r) return;
    end_ahead(r);
    clt_file_close(r->file);
    clt_manifest_free(r->m);
    clt_chunk_codec_destroy(r->codec);
    clt_free(r->buffer);
    clt_free(r->by_name);
    clt_free(r->path);
    clt_free(r);
}

const char *clt_ckpt_path(const clt_ckpt_reader *r) {
    return r->path;
}
const clt_checkpoint_state *clt_ckpt_state(const clt_ckpt_reader *r) {
    return &r->m->state;
}
const char *clt_ckpt_run_id(const clt_ckpt_reader *r) {
    return r->m->run_id;
}
int clt_ckpt_count(const clt_ckpt_reader *r) {
    return (int)r->m->tensors;
}

void clt_ckpt_at(const clt_ckpt_reader *r, int i, clt_ckpt_tensor *out) {
    const clt_man_tensor *t = &r->m->tensor[i];
    *out = (clt_ckpt_tensor){
        .name = t->name, .role = t->role, .dims = t->dims, .count = t->count, .chunks = t->chunks};
    memcpy(out->shape, t->shape, sizeof t->shape);
    for (int k = 0; k < t->chunks; k++) out->stored += r->m->chunk[t->first_chunk + (size_t)k].at.stored;
}

int clt_ckpt_find(const clt_ckpt_reader *r, const char *role, const char *name) {
    size_t lo = 0, hi = r->m->tensors;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const clt_man_tensor *t = &r->m->tensor[r->by_name[mid]];
        int c = strcmp(role, t->role);
        if (c == 0) c = strcmp(name, t->name);
        if (c == 0) return (int)r->by_name[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return -1;
}

/* --- chunks --- */

static clt_status damaged(const clt_ckpt_reader *r, const clt_man_chunk *c, const char *why) {
    const clt_man_tensor *t = &r->m->tensor[c->tensor];
    return clt_error(
        CLT_BAD_DATA, "%s/%s is damaged: tensor '%s' (%s), chunk %d of %d, bytes [%llu, +%llu): %s", r->path,
        r->m->file[c->file].name, t->name, t->role, (int)((size_t)(c - r->m->chunk) - t->first_chunk),
        t->chunks, (unsigned long long)c->at.offset, (unsigned long long)c->at.stored, why);
}

static clt_status switch_file(clt_ckpt_reader *r, uint32_t file) {
    if (r->file && r->file_index == file) return CLT_OK;
    clt_file_close(r->file);
    r->file = NULL;
    char *path = clt_path_join(r->path, r->m->file[file].name);
    clt_status st = clt_file_open(path, CLT_IO_READ_PLAIN, &r->file);
    clt_free(path);
    r->file_index = file;
    return st;
}

static clt_status load_here(clt_ckpt_reader *r, size_t i) {
    const clt_man_chunk *c = &r->m->chunk[i];
    clt_status opened = switch_file(r, c->file);
    r->unopened = opened != CLT_OK;
    CLT_TRY(opened);
    CLT_TRY(clt_file_pread(r->file, clt_chunk_codec_buffer(r->codec), c->at.stored, c->at.offset));
    const char *why;
    clt_status st = clt_chunk_decode(r->codec, &c->at, r->buffer, c->count, &why);
    if (st == CLT_BAD_DATA) return damaged(r, c, why);
    r->data = r->buffer;
    return st;
}

static clt_status load_chunk(clt_ckpt_reader *r, size_t i) {
    clt_status st = CLT_OK;
    if (r->chunk_loaded == i) return CLT_OK;
    r->chunk_loaded = SIZE_MAX;
    r->unopened = false;
    clt_ahead_result got = r->ahead ? clt_ahead_take(r->ahead, i, &r->data, &st) : CLT_AHEAD_ABSENT;
    if (got == CLT_AHEAD_ABSENT || got == CLT_AHEAD_UNREAD) st = load_here(r, i);
    r->unopened |= got == CLT_AHEAD_UNOPENED;
    if (st == CLT_OK) r->chunk_loaded = i;
    return st;
}

/* The chunk of tensor t that holds element `first`. */
static size_t chunk_of(const clt_ckpt_reader *r, const clt_man_tensor *t, uint64_t first) {
    size_t lo = t->first_chunk, hi = t->first_chunk + (size_t)t->chunks - 1;
    while (lo < hi) {
        size_t mid = lo + (hi - lo + 1) / 2;
        if (r->m->chunk[mid].first <= first)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

clt_status clt_ckpt_read(clt_ckpt_reader *r, int i, uint64_t first, float *dst, uint64_t count) {
    const clt_man_tensor *t = &r->m->tensor[i];
    if (first > t->count || count > t->count - first)
        return clt_error(CLT_FAIL, "%s: tensor '%s': elements [%llu, +%llu) exceed its %llu", r->path,
                         t->name, (unsigned long long)first, (unsigned long long)count,
                         (unsigned long long)t->count);
    for (uint64_t done = 0; done < count;) {
        size_t k = chunk_of(r, t, first + done);
        const clt_man_chunk *c = &r->m->chunk[k];
        CLT_TRY(load_chunk(r, k));
        uint64_t at = first + done - c->first, n = CLT_MIN(c->count - at, count - done);
        memcpy(dst + done, r->data + at, n * sizeof *dst);
        done += n;
    }
    return CLT_OK;
}

/* --- what will be read --- */

static void expect_chunk(clt_ckpt_reader *r, size_t chunk) {
    if (r->n_expected == r->cap_expected) {
        const size_t cap = 2 * r->cap_expected + 64;
        size_t *more = clt_try_realloc(r->expected, cap * sizeof *more);
        if (!more) return; /* fewer are read ahead */
        r->expected = more;
        r->cap_expected = cap;
    }
    r->expected[r->n_expected++] = chunk;
}

static void expect_read(clt_ckpt_reader *r, int i, uint64_t first, uint64_t count) {
    const clt_man_tensor *t = &r->m->tensor[i];
    if (!count) return;
    for (size_t k = chunk_of(r, t, first), end = chunk_of(r, t, first + count - 1); k <= end; k++)
        if (!r->n_expected || r->expected[r->n_expected - 1] != k) expect_chunk(r, k);
}

static void begin_ahead(clt_ckpt_reader *r) {
    if (r->n_expected) r->ahead = clt_ahead_start(r->path, r->m, r->expected, r->n_expected);
    r->expected = NULL;
    r->n_expected = r->cap_expected = 0;
}

clt_status clt_ckpt_verify(clt_ckpt_reader *r) {
    return clt_ckpt_verify_share(r, 0, 1);
}

clt_status clt_ckpt_verify_share(clt_ckpt_reader *r, int share, int shares) {
    clt_status worst = CLT_OK;
    size_t n = r->m->chunks, first = n * (size_t)share / (size_t)shares;
    size_t end = n * (size_t)(share + 1) / (size_t)shares;
    /* A file that cannot be opened is reported once, not for each chunk. */
    bool *closed = clt_try_calloc(r->m->files, sizeof *closed);
    if (!closed) return clt_no_memory("the list of a checkpoint's files", r->m->files * sizeof *closed);
    for (size_t i = first; i < end; i++) expect_chunk(r, i);
    begin_ahead(r);
    for (size_t i = first; i < end; i++) {
        if (closed[r->m->chunk[i].file]) continue;
        clt_status st = load_chunk(r, i);
        if (r->unopened) closed[r->m->chunk[i].file] = true;
        if (st != CLT_OK && worst != CLT_BAD_DATA) worst = st;
    }
    end_ahead(r);
    clt_free(closed);
    return worst;
}

/* --- loading and hashing --- */

static int set_count(void *ctx) {
    return clt_ckpt_count(ctx);
}
static void set_at(void *ctx, int i, clt_ckpt_tensor *out) {
    clt_ckpt_at(ctx, i, out);
}
static int set_find(void *ctx, const char *role, const char *name) {
    return clt_ckpt_find(ctx, role, name);
}
static clt_status set_read(void *ctx, int i, uint64_t first, float *dst, uint64_t count) {
    return clt_ckpt_read(ctx, i, first, dst, count);
}

static void set_expect(void *ctx, int i, uint64_t first, uint64_t count) {
    expect_read(ctx, i, first, count);
}
static void set_begin(void *ctx) {
    begin_ahead(ctx);
}

clt_status clt_ckpt_load(clt_ckpt_reader *r, const clt_slab_table *table, const clt_ckpt_part *parts, int n,
                         const clt_load_options *opt) {
    const clt_tensor_set set = {.path = r->path,
                                .ctx = r,
                                .count = set_count,
                                .at = set_at,
                                .find = set_find,
                                .read = set_read,
                                .expect = set_expect,
                                .begin = set_begin};
    clt_status st = clt_tensor_set_load(&set, table, parts, n, opt);
    end_ahead(r);
    return st;
}

/* The tensors of one role in the checkpoint's order, as a part over a table of their own. */
typedef struct {
    clt_ckpt_reader *r;
    int *tensor; /* entry -> tensor of the checkpoint */
} role_view;

static clt_status read_view(void *ctx, int entry, uint64_t first, float *dst, uint64_t count) {
    role_view *v = ctx;
    return clt_ckpt_read(v->r, v->tensor[entry], first, dst, count);
}

static clt_status hash_role(clt_ckpt_reader *r, const char *role, clt_hash_state *h) {
    size_t n = r->m->tensors;
    role_view v = {r, clt_try_calloc(n, sizeof(int))};
    clt_slab_table table = {.entry = clt_try_calloc(n, sizeof(clt_slab_entry))};
    clt_status st = v.tensor && table.entry ? CLT_OK
                                            : clt_no_memory("the list of a checkpoint's tensors",
                                                            n * (sizeof(int) + sizeof(clt_slab_entry)));
    for (size_t i = 0; i < n && st == CLT_OK; i++) {
        const clt_man_tensor *t = &r->m->tensor[i];
        if (strcmp(t->role, role)) continue;
        clt_slab_entry *e = &table.entry[table.n];
        *e = (clt_slab_entry){.name = t->name, .dims = t->dims, .count = t->count};
        memcpy(e->shape, t->shape, sizeof e->shape);
        v.tensor[table.n++] = (int)i;
    }
    clt_ckpt_part part = {.role = role, .read = read_view, .ctx = &v};
    if (st == CLT_OK) st = clt_ckpt_hash_role(&table, &part, h);
    clt_free(table.entry);
    clt_free(v.tensor);
    return st;
}

static void expect_role(clt_ckpt_reader *r, const char *role) {
    for (size_t i = 0; i < r->m->tensors; i++)
        if (!strcmp(r->m->tensor[i].role, role)) expect_read(r, (int)i, 0, r->m->tensor[i].count);
}

/* The roles in alphabetical order: the one after `last`, NULL: none. by_name has them in this order. */
static const char *role_after(const clt_ckpt_reader *r, const char *last) {
    for (size_t i = 0; i < r->m->tensors; i++) {
        const char *role = r->m->tensor[r->by_name[i]].role;
        if (strcmp(role, last) > 0) return role;
    }
    return NULL;
}

clt_status clt_ckpt_hash(clt_ckpt_reader *r, clt_state_hash *out) {
    static const char weight[] = "weight";
    clt_hash_state *weights = clt_hash_begin(), *optimizer = clt_hash_begin();
    clt_state_hash h = {.has_optimizer = false};
    expect_role(r, weight);
    for (const char *role = ""; (role = role_after(r, role));)
        if (strcmp(role, weight) != 0) expect_role(r, role);
    begin_ahead(r);
    clt_status st = hash_role(r, weight, weights);
    for (const char *role = ""; (role = role_after(r, role)) && st == CLT_OK;) {
        if (!strcmp(role, weight)) continue;
        h.has_optimizer = true;
        st = hash_role(r, role, optimizer);
    }
    end_ahead(r);
    h.weights = clt_hash_end(weights);
    h.optimizer = clt_hash_end(optimizer);
    if (st == CLT_OK) *out = h;
    return st;
}
