#include "runtime/device/clt_slab.h"

#include <string.h>

#include "runtime/base/clt_env.h"
#include "runtime/device/clt_shards.h"

enum { PACK = 64 }; /* small tensors start at multiples of this many elements */

int clt_slab_table_add(clt_slab_table *t, const char *name, int dims, const int64_t *shape) {
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 64;
        t->entry = clt_realloc(t->entry, (size_t)t->cap * sizeof *t->entry);
    }
    clt_slab_entry *e = &t->entry[t->n];
    *e = (clt_slab_entry){.name = clt_strdup(name), .dims = dims, .count = 1};
    for (int d = 0; d < dims; d++) {
        e->shape[d] = shape[d];
        e->count *= (uint64_t)shape[d];
    }
    /* While tensors are added, total is the first free element. */
    e->offset = CLT_ROUND_UP(t->total, e->count >= CLT_CHUNK ? (uint64_t)CLT_CHUNK : (uint64_t)PACK);
    t->total = e->offset + e->count;
    return t->n++;
}

void clt_slab_table_finish(clt_slab_table *t) {
    t->total = CLT_ROUND_UP(t->total, (uint64_t)CLT_CHUNK);
}

int clt_slab_table_find(const clt_slab_table *t, const char *name) {
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->entry[i].name, name) == 0) return i;
    return -1;
}

void clt_slab_table_free(clt_slab_table *t) {
    for (int i = 0; i < t->n; i++) clt_free(t->entry[i].name);
    clt_free(t->entry);
    *t = (clt_slab_table){0};
}

/* --- creation --- */

/* Borders of the pieces of a whole slab: a piece ends at the last allowed border before it exceeds `limit`
 * elements, or at the first one after a tensor that is larger than that. Returns the number of pieces;
 * start[] has room for t->n + 2. */
static int cut(const clt_slab_table *t, uint64_t limit, uint64_t *start) {
    int n = 0;
    uint64_t last = 0; /* last border inside the current piece */
    start[0] = 0;
    for (int i = 0; i <= t->n; i++) {
        uint64_t border = i < t->n ? t->entry[i].offset : t->total;
        if (border % CLT_CHUNK || border == last) continue;
        if (border - start[n] > limit && last > start[n]) start[++n] = last;
        if (border - start[n] > limit && border < t->total) {
            start[++n] = border;
        }
        last = border;
    }
    start[++n] = t->total;
    return n;
}

static uint64_t default_bytes(clt_device *dev) {
    const long mib = clt_env_long(CLT_ENV_BUFFER_MIB, 1024);
    return CLT_MIN((uint64_t)CLT_MAX(mib, 1) << 20, clt_device_get_facts(dev)->max_alloc);
}

/* A slab of `pieces` pieces, all holes yet, that may own as many buffers. */
static clt_slab *new_slab(const clt_slab_table *t, int pieces, uint32_t element_bytes) {
    clt_slab *s = clt_calloc(1, sizeof *s);
    s->table = t;
    s->element_bytes = element_bytes;
    s->n = pieces;
    s->start = clt_calloc((size_t)pieces + 1, sizeof *s->start);
    s->origin = clt_calloc((size_t)pieces, sizeof *s->origin);
    s->piece = clt_calloc((size_t)pieces, sizeof(clt_buffer *));
    s->buffer = clt_calloc((size_t)pieces, sizeof(clt_buffer *));
    return s;
}

/* Ends a creation: clears the slab if that is asked for; destroys it after a failure. */
static clt_status complete(clt_slab *s, clt_status st, bool clear, clt_slab **out) {
    if (st == CLT_OK && clear) st = clt_slab_zero(s);
    if (st != CLT_OK) {
        clt_slab_destroy(s);
        return st;
    }
    *out = s;
    return CLT_OK;
}

static clt_status piece_too_large(const clt_slab *s, int i, uint64_t bytes, const clt_device_facts *facts) {
    const clt_slab_table *t = s->table;
    int entry = 0;
    while (entry + 1 < t->n && t->entry[entry].offset < s->start[i]) entry++;
    return clt_error(
        CLT_NO_MEMORY, "tensor '%s' (%llu bytes with padding) exceeds the largest buffer of %s (%llu bytes)",
        t->entry[entry].name, (unsigned long long)bytes, facts->name, (unsigned long long)facts->max_alloc);
}

/* A slab without holes, in new buffers or, with `host`, in the caller's memory. `limit`: elements of a piece.
 */
static clt_status create_whole(clt_device *dev, const clt_slab_table *t, uint64_t limit, char *host,
                               uint32_t element_bytes, const char *name, clt_slab **out) {
    if (t->total == 0) return clt_error(CLT_FAIL, "slab '%s' has no tensors", name);
    const clt_device_facts *facts = clt_device_get_facts(dev);
    uint64_t *start = clt_calloc((size_t)t->n + 2, sizeof *start);
    clt_slab *s = new_slab(t, cut(t, limit, start), element_bytes);
    memcpy(s->start, start, ((size_t)s->n + 1) * sizeof *start);
    clt_free(start);
    clt_status st = CLT_OK;
    for (int i = 0; i < s->n && st == CLT_OK; i++) {
        const uint64_t bytes = (s->start[i + 1] - s->start[i]) * element_bytes;
        if (bytes > facts->max_alloc)
            st = piece_too_large(s, i, bytes, facts);
        else if (host)
            st = clt_buffer_wrap(dev, host + s->start[i] * element_bytes, (size_t)bytes, name, &s->piece[i]);
        else
            st = clt_buffer_create(dev, (size_t)bytes, name, &s->piece[i]);
        if (st == CLT_OK) s->buffer[s->buffers++] = s->piece[i];
    }
    return complete(s, st, !host, out);
}

clt_status clt_slab_create(clt_device *dev, const clt_slab_table *t, uint64_t piece_bytes, const char *name,
                           clt_slab **out) {
    if (piece_bytes == 0) piece_bytes = default_bytes(dev);
    return create_whole(dev, t, piece_bytes / sizeof(float), NULL, sizeof(float), name, out);
}

clt_status clt_slab_create_in(clt_device *dev, const clt_slab_table *t, void *host, uint32_t element_bytes,
                              const char *name, clt_slab **out) {
    if (!host) return clt_error(CLT_FAIL, "slab '%s' is created in a null pointer", name);
    return create_whole(dev, t, default_bytes(dev) / sizeof(float), host, element_bytes, name, out);
}

clt_status clt_slab_create_narrow(clt_device *dev, const clt_slab *like, const char *name, clt_slab **out) {
    clt_slab *s = new_slab(like->table, like->n, sizeof(uint16_t));
    memcpy(s->start, like->start, ((size_t)like->n + 1) * sizeof *s->start);
    memcpy(s->origin, like->origin, (size_t)like->n * sizeof *s->origin);
    clt_status st = CLT_OK;
    for (int b = 0; b < like->buffers && st == CLT_OK; b++) {
        const size_t bytes = clt_buffer_bytes(like->buffer[b]) / like->element_bytes * s->element_bytes;
        st = clt_buffer_create(dev, bytes, name, &s->buffer[b]);
        if (st == CLT_OK) s->buffers++;
        for (int i = 0; i < s->n; i++)
            if (like->piece[i] == like->buffer[b]) s->piece[i] = s->buffer[b];
    }
    return complete(s, st, true, out);
}

/* --- slabs with holes --- */

/* Adds a piece that ends before element `end`, in buffer number `buffer` (-1: a hole) from element `origin`
 * on, or makes the last piece longer if this continues it. of[i]: the buffer's number of piece i. */
static void append(clt_slab *s, int *of, int buffer, uint64_t origin, uint64_t end) {
    if (s->n == 0 || of[s->n - 1] != buffer) {
        s->origin[s->n] = origin;
        of[s->n++] = buffer;
    }
    s->start[s->n] = end;
}

/* How a slab with holes fills its buffers. */
typedef struct {
    uint64_t limit;         /* elements of a buffer */
    bool whole;             /* a tensor lies in one buffer, which may therefore exceed the limit */
    uint64_t resident;      /* the first elements of the ranges, which have buffers of their own */
    int *of;                /* the buffer of each piece; -1: a hole */
    uint64_t *held;         /* elements of each buffer */
    int buffers, residents; /* buffers in all; those of `resident`, the first ones */
} packing;

/* How many of the range's elements go into the last buffer: all of them, or those before a place where the
 * range may be cut. The places are those of a whole slab (cut), or every element at a buffer's end. */
static uint64_t fitting(const clt_slab_table *t, const packing *p, clt_slab_range x) {
    const uint64_t held = p->held[p->buffers - 1], room = p->limit > held ? p->limit - held : 0;
    uint64_t fits = 0;
    if (x.count <= room) return x.count;
    if (!p->whole) return room;
    for (int i = 0; i < t->n; i++) {
        const uint64_t border = t->entry[i].offset;
        if (border <= x.first || border >= x.first + x.count || border % CLT_CHUNK) continue;
        if (border - x.first > room && (fits || held)) return fits;
        fits = border - x.first;
        if (fits > room) return fits;
    }
    return fits || held ? fits : x.count;
}

/* Sets the pieces: the ranges one behind the other in buffers, and the holes. */
static void pack(clt_slab *s, packing *p, const clt_slab_range *range, int n) {
    uint64_t left = p->resident;
    s->n = 0;
    p->buffers = 1;
    for (int i = 0; i < n; i++) {
        clt_slab_range x = range[i];
        while (x.count > 0) {
            const uint64_t fits = fitting(s->table, p, x), count = left ? CLT_MIN(fits, left) : fits;
            if (count == 0) {
                p->buffers++;
                continue;
            }
            if (x.first > s->start[s->n]) append(s, p->of, -1, 0, x.first);
            append(s, p->of, p->buffers - 1, p->held[p->buffers - 1], x.first + count);
            p->held[p->buffers - 1] += count;
            x = (clt_slab_range){x.first + count, x.count - count};
            if (left > 0 && (left -= count) == 0) p->residents = p->buffers++;
        }
    }
    if (s->start[s->n] < s->table->total) append(s, p->of, -1, 0, s->table->total);
    if (p->held[p->buffers - 1] == 0) p->buffers--; /* no range at all, or all of it is resident */
    if (left > 0) p->residents = p->buffers;
}

typedef clt_status (*buffer_maker)(clt_device *dev, size_t bytes, const char *name, clt_buffer **out);

/* What slabs with holes differ in. */
typedef struct {
    bool whole;        /* as in packing */
    uint64_t resident; /* as in packing; made with clt_buffer_create */
    uint32_t element_bytes;
    const char *name;
    buffer_maker make;
    clt_scratch *file; /* where the buffers are; NULL: `make` makes them */
} range_kind;

static clt_status create_buffers(clt_device *dev, clt_slab *s, const packing *p, const range_kind *k) {
    const clt_device_facts *facts = clt_device_get_facts(dev);
    for (int b = 0; b < p->buffers; b++) {
        const uint64_t bytes = p->held[b] * s->element_bytes;
        int first = 0;
        while (p->of[first] != b) first++;
        if (bytes > facts->max_alloc) return piece_too_large(s, first, bytes, facts);
        if (b < p->residents)
            CLT_TRY(clt_buffer_create(dev, (size_t)bytes, k->name, &s->buffer[b]));
        else
            CLT_TRY(k->file ? clt_buffer_create_in_file(dev, k->file, (size_t)bytes, k->name, &s->buffer[b])
                            : k->make(dev, (size_t)bytes, k->name, &s->buffer[b]));
        s->buffers++;
    }
    for (int i = 0; i < s->n; i++) s->piece[i] = p->of[i] < 0 ? NULL : s->buffer[p->of[i]];
    return CLT_OK;
}

static clt_status create_packed(clt_device *dev, const clt_slab_table *t, const clt_slab_range *range, int n,
                                range_kind k, clt_slab **out) {
    /* The limit is that of fp32, so that the pieces do not depend on element_bytes. */
    packing p = {.limit = CLT_CHUNK * CLT_MAX(default_bytes(dev) / sizeof(float) / CLT_CHUNK, (uint64_t)1),
                 .whole = k.whole,
                 .resident = k.resident};
    const int cuts = k.whole ? t->n : (int)CLT_CEIL_DIV(t->total, p.limit) + 1, most = 2 * n + cuts + 1;
    clt_slab *s = new_slab(t, most, k.element_bytes);
    p.of = clt_calloc((size_t)most, sizeof *p.of);
    p.held = clt_calloc((size_t)most + 1, sizeof *p.held);
    pack(s, &p, range, n);
    const clt_status st = create_buffers(dev, s, &p, &k);
    clt_free(p.of);
    clt_free(p.held);
    return complete(s, st, true, out);
}

clt_status clt_slab_create_ranges(clt_device *dev, const clt_slab_table *t, const clt_slab_range *range,
                                  int n, uint32_t element_bytes, const char *name, clt_slab **out) {
    const range_kind k = {true, 0, element_bytes, name, clt_buffer_create, NULL};
    return create_packed(dev, t, range, n, k, out);
}

clt_status clt_slab_create_pinned(clt_device *dev, const clt_slab_table *t, const clt_slab_range *range,
                                  int n, uint64_t resident, uint32_t element_bytes, const char *name,
                                  clt_slab **out) {
    const range_kind k = {false, resident, element_bytes, name, clt_buffer_create_pinned, NULL};
    return create_packed(dev, t, range, n, k, out);
}

clt_status clt_slab_create_in_file(clt_device *dev, const clt_slab_table *t, const clt_slab_range *range,
                                   int n, uint64_t resident, uint32_t element_bytes, clt_scratch *file,
                                   const char *name, clt_slab **out) {
    const range_kind k = {false, resident, element_bytes, name, NULL, file};
    return create_packed(dev, t, range, n, k, out);
}

clt_status clt_slab_create_shard(clt_device *dev, const clt_slab_table *t, const clt_shards *shards, int rank,
                                 uint32_t element_bytes, const char *name, clt_slab **out) {
    if (shards->border[shards->buckets * shards->ranks] != t->total)
        return clt_error(CLT_FAIL, "slab '%s': its shards belong to another table; this is a bug", name);
    clt_slab_range *own = clt_calloc((size_t)shards->buckets, sizeof *own);
    for (int b = 0; b < shards->buckets; b++) own[b] = clt_shards_range(shards, b, rank);
    const range_kind k = {false, 0, element_bytes, name, clt_buffer_create, NULL};
    const clt_status st = create_packed(dev, t, own, shards->buckets, k, out);
    clt_free(own);
    return st;
}

clt_slab *clt_slab_create_holes(const clt_slab_table *t, const uint64_t *start, int n,
                                uint32_t element_bytes) {
    clt_slab *s = new_slab(t, n, element_bytes);
    memcpy(s->start, start, ((size_t)n + 1) * sizeof *start);
    return s;
}

/* The buffers of `from` belong to `to`. */
static void take_buffers(clt_slab *to, clt_slab *from) {
    for (int b = 0; b < from->buffers; b++) to->buffer[to->buffers++] = from->buffer[b];
    from->buffers = 0;
    clt_slab_destroy(from);
}

clt_slab *clt_slab_join(clt_slab *a, clt_slab *b) {
    clt_slab *s = new_slab(a->table, a->n + b->n, a->element_bytes);
    uint64_t run_a, run_b;
    s->n = 0;
    for (uint64_t at = 0; at < a->table->total; at = s->start[s->n]) {
        const clt_ref in_a = clt_slab_at(a, at, &run_a), in_b = clt_slab_at(b, at, &run_b),
                      in = in_a.buf ? in_a : in_b;
        s->piece[s->n] = in.buf;
        s->origin[s->n] = in.off;
        s->start[++s->n] = at + CLT_MIN(run_a, run_b);
    }
    take_buffers(s, a);
    take_buffers(s, b);
    return s;
}

void clt_slab_destroy(clt_slab *s) {
    if (!s) return;
    for (int b = 0; b < s->buffers; b++) clt_buffer_destroy(s->buffer[b]);
    clt_free(s->buffer);
    clt_free(s->piece);
    clt_free(s->origin);
    clt_free(s->start);
    clt_free(s);
}

/* --- access --- */

clt_ref clt_slab_at(const clt_slab *s, uint64_t element, uint64_t *run) {
    int lo = 0, hi = s->n - 1;
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (s->start[mid] <= element)
            lo = mid;
        else
            hi = mid - 1;
    }
    if (run) *run = s->start[lo + 1] - element;
    return s->piece[lo] ? clt_ref_at(clt_slab_part(s, lo), element - s->start[lo]) : clt_ref_none();
}

clt_status clt_slab_host_at(const clt_slab *s, uint64_t element, uint64_t *run, char **host) {
    const clt_ref at = clt_slab_at(s, element, run);
    void *memory;
    *host = NULL;
    if (!at.buf) return CLT_OK;
    CLT_TRY(clt_buffer_host(at.buf, &memory));
    *host = (char *)memory + at.off * s->element_bytes;
    return CLT_OK;
}

bool clt_slab_file_at(const clt_slab *s, uint64_t element, uint64_t *run, uint64_t *offset) {
    const clt_ref at = clt_slab_at(s, element, run);
    if (!at.buf || !clt_buffer_file(at.buf, offset)) return false;
    *offset += at.off * s->element_bytes;
    return true;
}

clt_ref clt_slab_ref(const clt_slab *s, int entry) {
    return clt_slab_at(s, s->table->entry[entry].offset, NULL);
}

bool clt_slab_touches(const clt_slab *s, uint64_t element, uint64_t count) {
    for (uint64_t at = element, run; at < element + count; at += run)
        if (clt_slab_at(s, at, &run).buf) return true;
    return false;
}

static clt_status check_range(const clt_slab *s, uint64_t element, uint64_t count) {
    if (element <= s->table->total && count <= s->table->total - element) return CLT_OK;
    return clt_error(CLT_FAIL, "elements %llu to %llu exceed a slab of %llu", (unsigned long long)element,
                     (unsigned long long)(element + count), (unsigned long long)s->table->total);
}

clt_status clt_slab_read(const clt_slab *s, uint64_t element, float *dst, uint64_t count) {
    CLT_TRY(check_range(s, element, count));
    while (count > 0) {
        uint64_t run;
        clt_ref r = clt_slab_at(s, element, &run);
        run = CLT_MIN(run, count);
        if (!r.buf)
            return clt_error(CLT_FAIL, "elements %llu to %llu of a slab are not on this rank; this is a bug",
                             (unsigned long long)element, (unsigned long long)(element + run));
        CLT_TRY(clt_ref_read_f32(r, dst, (size_t)run));
        element += run;
        dst += run;
        count -= run;
    }
    return CLT_OK;
}

clt_status clt_slab_write(const clt_slab *s, uint64_t element, const float *src, uint64_t count) {
    CLT_TRY(check_range(s, element, count));
    while (count > 0) {
        uint64_t run;
        clt_ref r = clt_slab_at(s, element, &run);
        run = CLT_MIN(run, count);
        if (r.buf) CLT_TRY(clt_ref_write_f32(r, src, (size_t)run));
        element += run;
        src += run;
        count -= run;
    }
    return CLT_OK;
}

clt_status clt_slab_zero(const clt_slab *s) {
    for (int i = 0; i < s->n; i++) {
        const uint64_t count = s->start[i + 1] - s->start[i], bytes = s->element_bytes;
        if (s->piece[i]) CLT_TRY(clt_buffer_fill32(s->piece[i], s->origin[i] * bytes, 0, count * bytes));
    }
    return CLT_OK;
}
