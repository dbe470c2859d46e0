/* Sorting by position without holding all positions: a sample moves by at most half a block, so while the
 * spans are read in order only about a block of samples is in flight. They wait in buckets of WIDTH
 * positions; a bucket that no later span can reach is sorted and written behind the ids that were read, in
 * place. */
#include <string.h>

#include "runtime/data/clt_shuffle_internal.h"

enum { SHIFT = 12, WIDTH = 1 << SHIFT, CHUNK = 128 /* samples */ };

typedef struct {
    double pos;
    int64_t id;
} placed;

typedef struct chunk {
    struct chunk *next;
    placed item[CHUNK];
} chunk;

typedef struct {
    chunk *first, *last;
    int64_t n;
} bucket;

struct clt_spread {
    int64_t block;
    size_t num_buckets, num_chunks, used_chunks;
    bucket *buckets;
    chunk *chunks, *spare;  /* used_chunks of `chunks` have been used; `spare`: those that are free again */
    placed *items, *sorted; /* of one bucket */
    uint32_t *slot;         /* [WIDTH + 1] */
};

static int64_t lowest_block(int64_t block) {
    return (int64_t)(0.75 * (double)block);
}

static int64_t highest_block(int64_t block) {
    return (int64_t)(1.25 * (double)block);
}

clt_spread *clt_spread_create(int64_t largest, int64_t span, int64_t block) {
    clt_spread *s = clt_calloc(1, sizeof *s);
    /* After a span has been read, the samples in flight are those of the span, and those that are less than a
     * highest block and a bucket in front of it. */
    const int64_t flight = CLT_MIN(largest, highest_block(block) + 2 * WIDTH + span);
    const int64_t open = flight / WIDTH + 2;
    s->block = block;
    s->num_buckets = (size_t)(largest / WIDTH + 1);
    s->num_chunks = (size_t)(flight / CHUNK + open);
    s->buckets = clt_try_calloc(s->num_buckets, sizeof *s->buckets);
    s->chunks = clt_try_calloc(s->num_chunks, sizeof *s->chunks);
    s->items = clt_try_calloc((size_t)flight, sizeof *s->items);
    s->sorted = clt_try_calloc((size_t)flight, sizeof *s->sorted);
    s->slot = clt_try_calloc(WIDTH + 1, sizeof *s->slot);
    if (s->buckets && s->chunks && s->items && s->sorted && s->slot) return s;
    clt_spread_destroy(s);
    return NULL;
}

void clt_spread_destroy(clt_spread *s) {
    if (!s) return;
    clt_free(s->buckets);
    clt_free(s->chunks);
    clt_free(s->items);
    clt_free(s->sorted);
    clt_free(s->slot);
    clt_free(s);
}

static void open_chunk(clt_spread *s, bucket *b) {
    chunk *c = s->spare;
    if (c)
        s->spare = c->next;
    else
        c = &s->chunks[s->used_chunks++];
    c->next = NULL;
    if (b->last)
        b->last->next = c;
    else
        b->first = c;
    b->last = c;
}

static inline void add(clt_spread *s, double pos, int64_t id) {
    bucket *b = &s->buckets[(int64_t)pos >> SHIFT];
    const int64_t at = b->n++ % CHUNK;
    if (at == 0) open_chunk(s, b);
    b->last->item[at] = (placed){pos, id};
}

/* Moves the samples of a bucket to s->items, in the order in which they came. */
static void empty_bucket(clt_spread *s, bucket *b) {
    int64_t at = 0;
    for (chunk *c = b->first, *next; c; c = next) {
        const int64_t n = CLT_MIN(b->n - at, (int64_t)CHUNK);
        memcpy(s->items + at, c->item, (size_t)n * sizeof *s->items);
        at += n;
        next = c->next;
        c->next = s->spare;
        s->spare = c;
    }
    *b = (bucket){0};
}

/* Stable: by whole positions, about one sample each, then by insertion. */
static void sort_items(clt_spread *s, int64_t n, double base) {
    placed *v = s->sorted;
    memset(s->slot, 0, (WIDTH + 1) * sizeof *s->slot);
    for (int64_t i = 0; i < n; i++) s->slot[(int64_t)(s->items[i].pos - base) + 1]++;
    for (int64_t k = 0; k < WIDTH; k++) s->slot[k + 1] += s->slot[k];
    for (int64_t i = 0; i < n; i++) v[s->slot[(int64_t)(s->items[i].pos - base)]++] = s->items[i];
    for (int64_t i = 1; i < n; i++) {
        const placed one = v[i];
        int64_t k = i;
        for (; k > 0 && v[k - 1].pos > one.pos; k--) v[k] = v[k - 1];
        v[k] = one;
    }
}

/* Writes bucket b; returns how many samples that were. */
static int64_t write_bucket(clt_spread *s, int64_t b, clt_ids ids, int64_t at) {
    const int64_t n = s->buckets[b].n;
    empty_bucket(s, &s->buckets[b]);
    sort_items(s, n, (double)(b << SHIFT));
    for (int64_t i = 0; i < n; i++) clt_ids_set(ids, at + i, s->sorted[i].id);
    return n;
}

void clt_spread_node(clt_spread *s, clt_nprng *r, const clt_shuffle_span *spans, size_t num_spans,
                     clt_ids ids, int64_t first, int64_t n) {
    const int64_t lo_block = lowest_block(s->block), hi_block = highest_block(s->block);
    const int64_t reach = hi_block / 2 + 1; /* more than any sample moves */
    int64_t off = 0, done = 0, written = 0;
    s->used_chunks = 0;
    s->spare = NULL;
    for (size_t i = 0; i < num_spans; i++) {
        const int64_t z = spans[i].end - spans[i].begin;
        double cut = (double)(clt_nprng_integer(r, lo_block, hi_block) - z) / 2.0;
        if (cut < 0) cut = 0;
        const double lo = CLT_MAX(-cut, -(double)off), hi = CLT_MIN(cut, (double)(n - off - z));
        for (int64_t k = off; k < off + z; k++)
            add(s, (double)k + clt_nprng_uniform(r, lo, hi), clt_ids_get(ids, first + k));
        off += z;
        for (; (done + 1) * WIDTH <= off - reach; done++)
            written += write_bucket(s, done, ids, first + written);
    }
    for (; done * WIDTH < n; done++) written += write_bucket(s, done, ids, first + written);
}
