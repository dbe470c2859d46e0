#include "runtime/device/clt_slab.h"

#include <string.h>

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

/* Piece borders: a piece ends at the last allowed border before it exceeds `limit` elements, or at the first
 * one after a tensor that is larger than that. Returns the number of pieces; start[] has room for t->n + 2.
 */
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

clt_status clt_slab_create(clt_device *dev, const clt_slab_table *t, uint64_t piece_bytes, const char *name,
                           clt_slab **out) {
    uint64_t most = clt_device_get_facts(dev)->max_alloc;
    if (t->total == 0) return clt_error(CLT_FAIL, "slab '%s' has no tensors", name);
    if (piece_bytes == 0) piece_bytes = CLT_MIN((uint64_t)1 << 30, most);
    clt_slab *s = clt_calloc(1, sizeof *s);
    s->table = t;
    s->element_bytes = sizeof(float);
    s->start = clt_calloc((size_t)t->n + 2, sizeof *s->start);
    s->n = cut(t, piece_bytes / sizeof(float), s->start);
    s->piece = clt_calloc((size_t)s->n, sizeof(clt_buffer *));
    clt_status st = CLT_OK;
    for (int i = 0; i < s->n && st == CLT_OK; i++) {
        uint64_t bytes = (s->start[i + 1] - s->start[i]) * sizeof(float);
        int entry = 0;
        while (entry + 1 < t->n && t->entry[entry].offset < s->start[i]) entry++;
        if (bytes > most)
            st = clt_error(
                CLT_NO_MEMORY,
                "tensor '%s' (%llu bytes with padding) exceeds the largest buffer of %s (%llu bytes)",
                t->entry[entry].name, (unsigned long long)bytes, clt_device_get_facts(dev)->name,
                (unsigned long long)most);
        else
            st = clt_buffer_create(dev, (size_t)bytes, name, &s->piece[i]);
    }
    if (st == CLT_OK) st = clt_slab_zero(s);
    if (st != CLT_OK) {
        clt_slab_destroy(s);
        return st;
    }
    *out = s;
    return CLT_OK;
}

clt_status clt_slab_create_narrow(clt_device *dev, const clt_slab *like, const char *name, clt_slab **out) {
    clt_slab *s = clt_calloc(1, sizeof *s);
    s->table = like->table;
    s->element_bytes = sizeof(uint16_t);
    s->n = like->n;
    s->start = clt_memdup(like->start, ((size_t)like->n + 1) * sizeof *s->start);
    s->piece = clt_calloc((size_t)s->n, sizeof(clt_buffer *));
    clt_status st = CLT_OK;
    for (int i = 0; i < s->n && st == CLT_OK; i++)
        st = clt_buffer_create(dev, (size_t)(s->start[i + 1] - s->start[i]) * s->element_bytes, name,
                               &s->piece[i]);
    if (st == CLT_OK) st = clt_slab_zero(s);
    if (st != CLT_OK) {
        clt_slab_destroy(s);
        return st;
    }
    *out = s;
    return CLT_OK;
}

void clt_slab_destroy(clt_slab *s) {
    if (!s) return;
    for (int i = 0; i < s->n; i++) clt_buffer_destroy(s->piece[i]);
    clt_free(s->piece);
    clt_free(s->start);
    clt_free(s);
}

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
    return (clt_ref){s->piece[lo], element - s->start[lo]};
}

clt_ref clt_slab_ref(const clt_slab *s, int entry) {
    return clt_slab_at(s, s->table->entry[entry].offset, NULL);
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
        CLT_TRY(clt_ref_write_f32(r, src, (size_t)run));
        element += run;
        src += run;
        count -= run;
    }
    return CLT_OK;
}

clt_status clt_slab_zero(const clt_slab *s) {
    for (int i = 0; i < s->n; i++)
        CLT_TRY(clt_buffer_fill32(s->piece[i], 0, 0, clt_buffer_bytes(s->piece[i])));
    return CLT_OK;
}
