/* Which samples an epoch draws from the shards of a stream. */
#include <stdlib.h>
#include <string.h>

#include "runtime/data/clt_nprng.h"
#include "runtime/data/clt_streams_internal.h"

/* --- how many from each shard --- */

/* Picks of `granularity` samples, the last one of a shard with what is left. */
typedef struct {
    int64_t n, *shard, *size;
    int64_t *order;
} picks;

static int64_t count_picks(const clt_stream_shards *s, int64_t granularity) {
    int64_t n = 0;
    for (size_t i = 0; i < s->n; i++) n += CLT_CEIL_DIV(s->size[i], granularity);
    return n;
}

/* The reference sets the size of a shard's last pick at the index before the next shard's first pick. For an
 * empty shard that is the last pick of the shard before it (of the last shard, for the first one), which
 * becomes a whole one. */
static void fill_picks(const clt_stream_shards *s, int64_t granularity, picks *p) {
    int64_t at = 0;
    for (size_t i = 0; i < s->n; i++)
        for (int64_t k = CLT_CEIL_DIV(s->size[i], granularity); k > 0; k--) {
            p->shard[at] = (int64_t)i;
            p->size[at++] = granularity;
        }
    at = 0;
    for (size_t i = 0; i < s->n; i++) {
        int64_t n = CLT_CEIL_DIV(s->size[i], granularity);
        at += n;
        p->size[at > 0 ? at - 1 : p->n - 1] = s->size[i] - (n - 1) * granularity;
    }
    for (int64_t k = 0; k < p->n; k++) p->order[k] = k;
}

/* from[i]: samples to draw from shard i, `choose` together: every shard as often as all fit, and random picks
 * for the rest. */
static clt_status divide_among_shards(const clt_stream_shards *s, int64_t choose,
                                      const clt_stream_sampling *how, int64_t *from) {
    int64_t left = choose % s->total;
    for (size_t i = 0; i < s->n; i++) from[i] = s->size[i] * (choose / s->total);
    if (left == 0) return CLT_OK;
    picks p = {.n = count_picks(s, how->granularity)};
    p.shard = clt_try_calloc((size_t)p.n, sizeof *p.shard);
    p.size = clt_try_calloc((size_t)p.n, sizeof *p.size);
    p.order = clt_try_calloc((size_t)p.n, sizeof *p.order);
    const bool good = p.shard && p.size && p.order;
    if (good) {
        clt_nprng r;
        clt_nprng_seed(&r, how->seed, how->every_epoch ? how->epoch : 0);
        fill_picks(s, how->granularity, &p);
        clt_nprng_shuffle_i64(&r, p.order, (size_t)p.n);
        for (int64_t k = 0; k < p.n && left > 0; k++) {
            int64_t take = CLT_MIN(left, p.size[p.order[k]]);
            from[p.shard[p.order[k]]] += take;
            left -= take;
        }
    }
    clt_free(p.shard);
    clt_free(p.size);
    clt_free(p.order);
    return good ? CLT_OK : clt_no_memory("the samples drawn from a stream", (uint64_t)p.n * 3 * sizeof *from);
}

/* --- which ones --- */

static bool grow(int64_t **v, size_t n) {
    int64_t *more = clt_try_calloc(n, sizeof *more);
    if (!more) return false;
    clt_free(*v);
    *v = more;
    return true;
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void add_unit(clt_stream_units *u, int64_t size, int64_t base, int64_t listed) {
    u->size[u->n] = size;
    u->base[u->n] = base;
    u->listed[u->n] = listed;
    u->begin[u->n + 1] = u->begin[u->n] + size;
    u->n++;
}

static clt_status draw_stream(const clt_stream_shards *s, const int64_t *from, clt_nprng *r,
                              clt_stream_units *u) {
    int64_t base = s->first_id;
    for (size_t i = 0; i < s->n; base += s->size[i++]) {
        if (s->size[i] == 0) continue;
        int64_t part = from[i] % s->size[i];
        for (int64_t k = 0; k < from[i] / s->size[i]; k++) add_unit(u, s->size[i], base, -1);
        if (part == 0) continue;
        int64_t *list = u->list + u->list_n;
        if (!clt_nprng_choice(r, s->size[i], part, list))
            return clt_no_memory("a part of a shard", (uint64_t)s->size[i] * sizeof *list);
        qsort(list, (size_t)part, sizeof *list, by_value);
        add_unit(u, part, base, (int64_t)u->list_n);
        u->list_n += (size_t)part;
    }
    return CLT_OK;
}

/* Room for all units and the samples of parts of shards. */
static clt_status reserve(const clt_stream_shards *streams, size_t n, const int64_t *from,
                          clt_stream_units *u) {
    size_t units = 0, listed = 0, at = 0;
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < streams[k].n; i++, at++)
            if (streams[k].size[i] > 0) {
                units += (size_t)(from[at] / streams[k].size[i]) + 1;
                listed += (size_t)(from[at] % streams[k].size[i]);
            }
    if (grow(&u->size, units) && grow(&u->base, units) && grow(&u->begin, units + 1) &&
        grow(&u->listed, units) && grow(&u->list, CLT_MAX(listed, (size_t)1)))
        return CLT_OK;
    return clt_no_memory("the samples drawn from streams", (units * 4 + listed) * sizeof *u->list);
}

clt_status clt_stream_units_draw(const clt_stream_shards *streams, const int64_t *choose, size_t n,
                                 const clt_stream_sampling *how, clt_stream_units *u) {
    size_t shards = 0, at = 0;
    for (size_t k = 0; k < n; k++) shards += streams[k].n;
    int64_t *from = clt_try_calloc(shards, sizeof *from);
    if (!from) return clt_no_memory("the shards of streams", shards * sizeof *from);
    u->n = u->list_n = 0;
    clt_status st = CLT_OK;
    for (size_t k = 0; k < n && st == CLT_OK; at += streams[k++].n)
        st = divide_among_shards(&streams[k], choose[k], how, from + at);
    if (st == CLT_OK) st = reserve(streams, n, from, u);
    clt_nprng r;
    clt_nprng_seed(&r, how->seed, how->fixed ? 0 : how->epoch);
    at = 0;
    for (size_t k = 0; k < n && st == CLT_OK; at += streams[k++].n)
        st = draw_stream(&streams[k], from + at, &r, u);
    clt_free(from);
    return st;
}

int64_t clt_stream_units_id(const clt_stream_units *u, int64_t place) {
    size_t lo = 0, hi = u->n; /* begin[lo] <= place < begin[hi] */
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (u->begin[mid] <= place)
            lo = mid;
        else
            hi = mid;
    }
    int64_t k = place - u->begin[lo];
    return u->base[lo] + (u->listed[lo] < 0 ? k : u->list[u->listed[lo] + k]);
}

void clt_stream_units_free(clt_stream_units *u) {
    clt_free(u->size);
    clt_free(u->base);
    clt_free(u->begin);
    clt_free(u->listed);
    clt_free(u->list);
    *u = (clt_stream_units){0};
}
