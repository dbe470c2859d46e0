#include "runtime/data/finetune/clt_finetune_pack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct clt_bin_packer {
    int64_t rows, row_size, most_left;
    clt_pack_bin *bin; /* [n]; between two calls: those that wait, after the `given` ones of the last batch */
    size_t n, cap, given;
    struct sized *order; /* the samples of a batch, longest first */
    size_t order_cap;
    /* [2 * leaves] Within a batch: room[leaves + i] is the free tokens of bin[i], -1 where it moved away, and
     * room[k] the largest of room[2 * k] and room[2 * k + 1]. */
    int64_t *room;
    size_t leaves, room_cap;
};

/* A sample or a bin and its place in the list before it was sorted: qsort is not stable. */
typedef struct sized {
    int64_t size;
    size_t place;
} sized;

static int longest_first(const void *a, const void *b) {
    const sized *x = a, *y = b;
    if (x->size != y->size) return x->size < y->size ? 1 : -1;
    return x->place < y->place ? -1 : 1;
}

clt_bin_packer *clt_bin_packer_create(int64_t rows, int64_t row_size, int64_t most_left) {
    clt_bin_packer *p = clt_calloc(1, sizeof *p);
    p->rows = rows;
    p->row_size = row_size;
    p->most_left = most_left;
    return p;
}

static void drop_bins(clt_bin_packer *p, size_t first, size_t end) {
    for (size_t i = first; i < end; i++) clt_free(p->bin[i].sample);
    memmove(p->bin + first, p->bin + end, (p->n - end) * sizeof *p->bin);
    p->n -= end - first;
}

void clt_bin_packer_destroy(clt_bin_packer *p) {
    if (!p) return;
    drop_bins(p, 0, p->n);
    clt_free(p->bin);
    clt_free(p->order);
    clt_free(p->room);
    clt_free(p);
}

size_t clt_bin_packer_left(const clt_bin_packer *p) {
    return p->n - p->given;
}

/* --- one batch --- */

/* A sample makes one slot, for a new bin or for the one that it moves to the end. */
static clt_status reserve(clt_bin_packer *p, size_t samples) {
    const size_t bins = p->n + samples;
    if (bins > p->cap) {
        clt_pack_bin *grown = clt_try_realloc(p->bin, bins * sizeof *grown);
        if (!grown) return clt_no_memory("the bins of a packed batch", bins * sizeof *grown);
        p->bin = grown;
        p->cap = bins;
    }
    if (bins > p->order_cap) {
        sized *grown = clt_try_realloc(p->order, bins * sizeof *grown);
        if (!grown) return clt_no_memory("the order of a packed batch", bins * sizeof *grown);
        p->order = grown;
        p->order_cap = bins;
    }
    for (p->leaves = 1; p->leaves < bins;) p->leaves *= 2;
    if (2 * p->leaves > p->room_cap) {
        int64_t *grown = clt_try_realloc(p->room, 2 * p->leaves * sizeof *grown);
        if (!grown) return clt_no_memory("the bins of a packed batch", 2 * p->leaves * sizeof *grown);
        p->room = grown;
        p->room_cap = 2 * p->leaves;
    }
    return CLT_OK;
}

/* --- the search for room --- */

static void list_rooms(clt_bin_packer *p) {
    for (size_t i = 0; i < p->leaves; i++)
        p->room[p->leaves + i] = i < p->n ? p->row_size - p->bin[i].size : -1;
    for (size_t k = p->leaves - 1; k > 0; k--) p->room[k] = CLT_MAX(p->room[2 * k], p->room[2 * k + 1]);
}

static void set_room(clt_bin_packer *p, size_t i, int64_t room) {
    size_t k = p->leaves + i;
    p->room[k] = room;
    while ((k /= 2) > 0) p->room[k] = CLT_MAX(p->room[2 * k], p->room[2 * k + 1]);
}

/* The first bin with room; p->n: there is none. */
static size_t find_room(const clt_bin_packer *p, int64_t size) {
    size_t k = 1;
    if (p->room[1] < size) return p->n;
    while (k < p->leaves) k = 2 * k + (p->room[2 * k] < size);
    return k - p->leaves;
}

static clt_status put(clt_pack_bin *b, int64_t sample, int64_t size) {
    if (b->n == b->cap) {
        const int32_t cap = CLT_MAX(4, 2 * b->cap);
        int64_t *grown = clt_try_realloc(b->sample, (size_t)cap * sizeof *grown);
        if (!grown) return clt_no_memory("a packed row", (uint64_t)cap * sizeof *grown);
        b->sample = grown;
        b->cap = cap;
    }
    b->sample[b->n++] = sample;
    b->size += size;
    return CLT_OK;
}

/* The first bin with room; it moves to the end of the list. A new bin if there is none, or with `own`. */
static clt_status put_first_fit(clt_bin_packer *p, int64_t sample, int64_t size, bool own, size_t *live) {
    const size_t i = own ? p->n : find_room(p, size);
    clt_pack_bin b = {0};
    if (i < p->n) {
        b = p->bin[i];
        p->bin[i] = (clt_pack_bin){0};
        set_room(p, i, -1);
    } else {
        ++*live;
    }
    clt_status st = put(&b, sample, size);
    set_room(p, p->n, p->row_size - b.size);
    p->bin[p->n++] = b;
    return st;
}

/* Takes the slots of bins that moved away out of the list. */
static void close_gaps(clt_bin_packer *p) {
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++)
        if (p->bin[i].n) p->bin[n++] = p->bin[i];
    p->n = n;
}

static clt_status sort_bins(clt_bin_packer *p) {
    clt_pack_bin *old = clt_try_malloc(CLT_MAX(p->n, 1) * sizeof *old);
    if (!old) return clt_no_memory("the bins of a packed batch", p->n * sizeof *old);
    if (p->n) memcpy(old, p->bin, p->n * sizeof *old);
    for (size_t i = 0; i < p->n; i++) p->order[i] = (sized){p->bin[i].size, i};
    qsort(p->order, p->n, sizeof *p->order, longest_first);
    for (size_t i = 0; i < p->n; i++) p->bin[i] = old[p->order[i].place];
    clt_free(old);
    return CLT_OK;
}

clt_status clt_bin_packer_add(clt_bin_packer *p, const int64_t *samples, const int32_t *sizes, size_t n,
                              const clt_pack_bin **bins, size_t *n_bins) {
    const size_t rows = (size_t)p->rows;
    drop_bins(p, 0, p->given);
    p->given = 0;
    CLT_TRY(reserve(p, n));
    for (size_t i = 0; i < n; i++) p->order[i] = (sized){sizes[i], i};
    qsort(p->order, n, sizeof *p->order, longest_first);
    list_rooms(p);
    size_t live = p->n;
    for (size_t i = 0; i < n; i++) {
        /* The samples that remain are just enough to fill the batch. */
        const bool own = live < rows && n - i <= rows - live;
        CLT_TRY(put_first_fit(p, samples[p->order[i].place], p->order[i].size, own, &live));
    }
    close_gaps(p);
    CLT_TRY(sort_bins(p));
    p->given = CLT_MIN(rows, p->n);
    if (p->most_left >= 0 && p->n - p->given > (size_t)p->most_left)
        drop_bins(p, p->given + (size_t)p->most_left, p->n);
    *bins = p->bin;
    *n_bins = p->given;
    return CLT_OK;
}

/* --- packing_ratio: auto --- */

/* Ratios from 1 to row_size / 100 in equal steps, rounded to a tenth (half to even), one for each number of
 * samples of a batch. */
static size_t list_ratios(int64_t rows, int64_t row_size, double ratio[CLT_PACK_RATIOS],
                          int64_t raw[CLT_PACK_RATIOS]) {
    const double step = ((double)row_size / 100 - 1) / (CLT_PACK_RATIOS - 1);
    size_t n = 0;
    for (int i = 0; i < CLT_PACK_RATIOS; i++) {
        const double at = i == CLT_PACK_RATIOS - 1 ? (double)row_size / 100 : 1 + i * step;
        ratio[n] = nearbyint(10 * at) / 10;
        raw[n] = (int64_t)(ratio[n] * (double)rows);
        if (n == 0 || raw[n] != raw[n - 1]) n++;
    }
    return n;
}

/* Rows this short are not packed. */
static bool too_short(int64_t row_size) {
    return row_size <= 100;
}

int64_t clt_pack_profile_samples(int64_t rows, int64_t row_size) {
    double ratio[CLT_PACK_RATIOS];
    int64_t raw[CLT_PACK_RATIOS];
    if (too_short(row_size)) return 0;
    const size_t n = list_ratios(rows, row_size, ratio, raw);
    return raw[n - 1] * 100;
}

/* Packs all samples in batches of `raw`; a batch of fewer than `rows` is skipped. false: all were. */
static clt_status try_ratio(clt_bin_packer *p, int64_t raw, const int32_t *sizes, const int64_t *ids,
                            size_t n, clt_pack_trial *out, bool *packed) {
    int64_t in_rows = 0, of_samples = 0, rows = 0;
    for (size_t at = 0; at < n; at += (size_t)raw) {
        const size_t count = CLT_MIN((size_t)raw, n - at);
        const clt_pack_bin *bins;
        size_t n_bins;
        if (count < (size_t)p->rows) continue;
        CLT_TRY(clt_bin_packer_add(p, ids + at, sizes + at, count, &bins, &n_bins));
        for (size_t i = 0; i < n_bins; i++) in_rows += bins[i].size;
        for (size_t i = 0; i < count; i++) of_samples += sizes[at + i];
        rows += p->rows;
    }
    *packed = rows > 0;
    if (!rows) return CLT_OK;
    out->padding = 100 * (1 - (double)in_rows / (double)(p->row_size * rows));
    out->waste = 100 * (1 - (double)in_rows / (double)of_samples);
    return CLT_OK;
}

clt_status clt_pack_profile(int64_t rows, int64_t row_size, const int32_t *sizes, size_t n, double *ratio,
                            clt_pack_trial *tried, size_t *n_tried) {
    double ratios[CLT_PACK_RATIOS];
    int64_t raw[CLT_PACK_RATIOS];
    clt_status st = CLT_OK;
    bool good = true;
    *ratio = 1;
    if (n_tried) *n_tried = 0;
    if (too_short(row_size) || n == 0) return CLT_OK;
    int64_t *ids = clt_try_calloc(n, sizeof *ids); /* the rows do not matter */
    if (!ids) return clt_no_memory("the samples of packing_ratio: auto", n * sizeof *ids);
    const size_t count = list_ratios(rows, row_size, ratios, raw);
    for (size_t i = 0; i < count && good && st == CLT_OK; i++) {
        clt_pack_trial t = {.ratio = ratios[i]};
        clt_bin_packer *p = clt_bin_packer_create(rows, row_size, -1);
        st = try_ratio(p, raw[i], sizes, ids, n, &t, &good);
        clt_bin_packer_destroy(p);
        if (st == CLT_OK && good && tried) tried[(*n_tried)++] = t;
        good = good && !(t.waste > 0);
        if (good) *ratio = ratios[i];
    }
    clt_free(ids);
    return st;
}
