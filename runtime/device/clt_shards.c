#include "runtime/device/clt_shards.h"

#include <math.h>

/* --- atoms --- */

/* The borders of all atoms, ascending, 0 and the table's total included. */
typedef struct {
    uint64_t *at;
    size_t n; /* atoms; borders are at[0 ... n] */
} atoms;

static atoms find_atoms(const clt_slab_table *t) {
    atoms a = {.at = clt_calloc(CLT_CEIL_DIV(t->total, CLT_CHUNK) + 1, sizeof *a.at)};
    int e = 0; /* the first tensor that ends behind x */
    for (uint64_t x = 0; x < t->total;) {
        x = CLT_MIN(x + CLT_CHUNK, t->total);
        while (e < t->n && t->entry[e].offset + t->entry[e].count <= x) e++;
        const bool inside = e < t->n && t->entry[e].offset < x;
        if (!inside || (x - t->entry[e].offset) % CLT_CKPT_CHUNK == 0) a.at[++a.n] = x;
    }
    return a;
}

/* --- buckets and ranges --- */

/* Elements that a bucket has at least: about 1/128 of the slab. */
static uint64_t bucket_target(const clt_slab_table *t) {
    const uint64_t chunks = t->total / CLT_CHUNK / 128;
    return CLT_CHUNK *
           CLT_MIN(CLT_MAX(chunks, (uint64_t)CLT_BUCKET_MIN_CHUNKS), (uint64_t)CLT_BUCKET_MAX_CHUNKS);
}

/* The atom behind the last one of the bucket that begins with atom `first`. */
static size_t bucket_end(const atoms *a, size_t first, size_t ranks, uint64_t target) {
    size_t end = CLT_MIN(first + ranks, a->n);
    while (end < a->n && a->at[end] - a->at[first] < target) end++;
    return end;
}

/* share[r]: the part of the whole that ranks 0 ... r shall own together. */
static clt_status make_shares(int ranks, const double *weight, double *share) {
    double sum = 0;
    for (int r = 0; r < ranks; r++) {
        const double w = weight ? weight[r] : 1.0;
        if (!(w >= 0) || isinf(w))
            return clt_error(CLT_FAIL, "rank %d has the invalid weight %g: weights are numbers from 0 on", r,
                             w);
        share[r] = sum += w;
    }
    if (!(sum > 0) || isinf(sum))
        return clt_error(CLT_FAIL, "the weights of %d ranks have the invalid sum %g", ranks, sum);
    for (int r = 0; r < ranks; r++) share[r] /= sum;
    return CLT_OK;
}

/* Cuts atoms [first, end) for the ranks: border[r] becomes the start of rank r's range. owned[r]: what ranks
 * 0 ... r own together so far. Each cut is the atom border nearest to the one with which this sum would be
 * exactly its share of all elements up to the bucket's end. Deviations therefore do not add up over buckets.
 */
static void cut_bucket(const atoms *a, size_t first, size_t end, int ranks, const double *share,
                       uint64_t *owned, uint64_t *border) {
    const uint64_t begin = a->at[first], all = a->at[end];
    border[0] = begin;
    for (int r = 0; r < ranks; r++) {
        const uint64_t ideal = (uint64_t)(share[r] * (double)all);
        const uint64_t want = ideal > owned[r] ? begin + (ideal - owned[r]) : begin;
        while (first < end && a->at[first + 1] <= want) first++;
        if (first < end && want > a->at[first] && want - a->at[first] > a->at[first + 1] - want) first++;
        if (r == ranks - 1) first = end;
        border[r + 1] = a->at[first];
        owned[r] += border[r + 1] - begin;
    }
}

clt_status clt_shards_create(const clt_slab_table *t, int ranks, const double *weight, clt_shards *out) {
    if (t->total == 0) return clt_error(CLT_FAIL, "a slab without tensors cannot be divided among ranks");
    if (ranks < 1) return clt_error(CLT_FAIL, "a slab cannot be divided among %d ranks", ranks);
    double *share = clt_calloc((size_t)ranks, sizeof *share);
    clt_status st = make_shares(ranks, weight, share);
    if (st == CLT_OK) {
        const atoms a = find_atoms(t);
        const size_t most = t->total / CLT_CHUNK / CLT_BUCKET_MIN_CHUNKS + 1;
        uint64_t *owned = clt_calloc((size_t)ranks, sizeof *owned);
        *out = (clt_shards){.ranks = ranks};
        out->border = clt_calloc(most * (size_t)ranks + 1, sizeof *out->border);
        for (size_t first = 0, end; first < a.n; first = end) {
            end = bucket_end(&a, first, (size_t)ranks, bucket_target(t));
            cut_bucket(&a, first, end, ranks, share, owned, out->border + out->buckets++ * ranks);
        }
        clt_free(owned);
        clt_free(a.at);
    }
    clt_free(share);
    return st;
}

void clt_shards_free(clt_shards *s) {
    clt_free(s->border);
    *s = (clt_shards){0};
}

clt_shards clt_shards_of_group(const clt_shards *s, int group) {
    return (clt_shards){group, s->buckets * (s->ranks / group), s->border};
}

/* --- questions --- */

clt_slab_range clt_shards_range(const clt_shards *s, int bucket, int rank) {
    const uint64_t *b = s->border + (size_t)bucket * (size_t)s->ranks + rank;
    return (clt_slab_range){b[0], b[1] - b[0]};
}

clt_slab_range clt_shards_bucket(const clt_shards *s, int bucket) {
    const uint64_t *b = s->border + (size_t)bucket * (size_t)s->ranks;
    return (clt_slab_range){b[0], b[s->ranks] - b[0]};
}

/* The index in border[] of the range that holds an element: the last border at or before it. */
static size_t range_of(const clt_shards *s, uint64_t element) {
    size_t lo = 0, hi = (size_t)s->buckets * (size_t)s->ranks - 1;
    while (lo < hi) {
        const size_t mid = (lo + hi + 1) / 2;
        if (s->border[mid] <= element)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

int clt_shards_owner(const clt_shards *s, uint64_t element) {
    return (int)(range_of(s, element) % (size_t)s->ranks);
}

uint64_t clt_shards_owned(const clt_shards *s, int rank) {
    uint64_t sum = 0;
    for (int b = 0; b < s->buckets; b++) sum += clt_shards_range(s, b, rank).count;
    return sum;
}

bool clt_shards_has(const clt_shards *s, int rank, uint64_t first, uint64_t count) {
    const uint64_t end = first + count;
    while (first < end) {
        const size_t i = range_of(s, first);
        if ((int)(i % (size_t)s->ranks) != rank) return false;
        first = s->border[i + 1];
    }
    return true;
}
