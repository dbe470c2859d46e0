#include "runtime/data/clt_streams.h"

#include <math.h>
#include <string.h>

#include "runtime/data/clt_nprng.h"
#include "runtime/data/clt_streams_internal.h"

/* Streams that are ordered as one data set: all of them for random, else a single one. */
typedef struct {
    size_t first, n; /* streams */
    int64_t samples, block;
    clt_stream_units units;
    clt_order *order;
    /* The order is read in rounds: `batch` samples of each rank of each of `nodes` nodes. */
    int64_t nodes, batch;
    int64_t physical; /* nodes that the order is made for */
    int64_t length;   /* samples of these nodes in the order */
    int64_t part;     /* stratified: samples of a global batch */
} pool;

/* Batches of one stream each, in the order of training. device_per_stream has one list for each node. */
typedef struct {
    int64_t n;
    int64_t *stream, *ordinal; /* batch i is the ordinal[i]-th of its stream */
    int64_t *count;            /* batches of each stream */
} batch_list;

struct clt_streams {
    clt_batching batching;
    clt_order_params order;
    int64_t ranks, batch, global_batch;
    bool fixed;
    int64_t granularity;
    size_t n;
    clt_stream_shards *streams;
    int64_t *sizes, *choose;
    double *share;
    int64_t epoch_size, batches; /* batches: whole and incomplete global batches of the stream methods */
    pool *pools;
    size_t num_pools;
    batch_list *lists;
    size_t num_lists;
    int64_t epoch;
};

static const char *const batching_names[] = {[CLT_BATCHING_RANDOM] = "random",
                                             [CLT_BATCHING_STRATIFIED] = "stratified",
                                             [CLT_BATCHING_PER_STREAM] = "per_stream",
                                             [CLT_BATCHING_DEVICE_PER_STREAM] = "device_per_stream"};

void clt_streams_params_default(clt_streams_params *p) {
    *p = (clt_streams_params){.sampling_granularity = 1, .ranks_per_node = 1, .batch_size = 1};
    clt_order_params_default(&p->order);
}

/* --- opening --- */

static clt_status parse_methods(const clt_streams_params *p, clt_streams *s) {
    const char *sampling = p->sampling_method ? p->sampling_method : "balanced";
    const char *batching = p->batching_method ? p->batching_method : "random";
    s->fixed = strcmp(sampling, "fixed") == 0;
    if (!s->fixed && strcmp(sampling, "balanced") != 0)
        return clt_error(CLT_BAD_CONFIG, "unknown sampling_method '%.40s'; known are balanced and fixed",
                         sampling);
    size_t k = 0;
    while (k < CLT_COUNT_OF(batching_names) && strcmp(batching, batching_names[k]) != 0) k++;
    if (k == CLT_COUNT_OF(batching_names))
        return clt_error(CLT_BAD_CONFIG,
                         "unknown batching_method '%.40s'; known are random, stratified, per_stream and "
                         "device_per_stream",
                         batching);
    s->batching = (clt_batching)k;
    if (p->sampling_granularity < 1)
        return clt_error(CLT_BAD_CONFIG, "sampling_granularity %lld must be at least 1",
                         (long long)p->sampling_granularity);
    /* Any number above the size of a shard is one pick for each; sums with larger ones would overflow. */
    s->granularity = CLT_MIN(p->sampling_granularity, INT64_C(1) << 60);
    return CLT_OK;
}

static clt_status check_world(const clt_streams_params *p) {
    enum { MOST = 1 << 20 };
    if (p->ranks_per_node < 1 || p->ranks_per_node > MOST || p->batch_size < 1 || p->batch_size > MOST ||
        p->order.physical_nodes < 1 || p->order.physical_nodes > MOST)
        return clt_error(CLT_BAD_CONFIG, "nodes, ranks per node and batch size must be 1 to %d", MOST);
    if (p->n == 0) return clt_error(CLT_BAD_CONFIG, "there are no streams: give at least one");
    return CLT_OK;
}

static clt_status copy_streams(const clt_streams_params *p, clt_streams *s) {
    size_t shards = 0;
    for (size_t i = 0; i < p->n; i++) shards += p->stream[i].num_shards;
    s->n = p->n;
    s->streams = clt_calloc(s->n, sizeof *s->streams);
    s->choose = clt_calloc(s->n, sizeof *s->choose);
    s->share = clt_calloc(s->n, sizeof *s->share);
    s->sizes = clt_try_calloc(CLT_MAX(shards, (size_t)1), sizeof *s->sizes);
    if (!s->sizes) return clt_no_memory("the shards of streams", shards * sizeof *s->sizes);
    int64_t *at = s->sizes, first = 0;
    for (size_t i = 0; i < s->n; i++) {
        const clt_stream *from = &p->stream[i];
        clt_stream_shards *to = &s->streams[i];
        *to = (clt_stream_shards){.size = at, .n = from->num_shards, .first_id = first};
        for (size_t k = 0; k < from->num_shards; k++) {
            if (from->shard_samples[k] < 0 || from->shard_samples[k] > (int64_t)1 << 40)
                return clt_error(CLT_BAD_CONFIG, "stream '%s': shard %zu has %lld samples", from->name, k,
                                 (long long)from->shard_samples[k]);
            to->total += *at++ = from->shard_samples[k];
            if (to->total > (int64_t)1 << 40)
                return clt_error(CLT_BAD_CONFIG, "stream '%s': more than 2^40 samples are not supported",
                                 from->name);
        }
        if (to->total == 0) return clt_error(CLT_BAD_DATA, "stream '%s' has no samples", from->name);
        first += to->total;
    }
    return CLT_OK;
}

static clt_status weigh(const clt_streams_params *p, clt_streams *s) {
    int64_t *totals = clt_calloc(s->n, sizeof *totals);
    for (size_t i = 0; i < s->n; i++) totals[i] = s->streams[i].total;
    clt_status st = clt_streams_weigh(p, totals, s->choose, s->share);
    clt_free(totals);
    for (size_t i = 0; i < s->n; i++) s->epoch_size += s->choose[i];
    return st;
}

/* Nodes and batch size with which the order of one stream is made and read. */
static void set_rounds(const clt_streams *s, pool *p) {
    p->nodes = p->batch = 1;
    p->physical = s->order.physical_nodes;
    if (s->batching == CLT_BATCHING_STRATIFIED) {
        p->physical = 1;
    } else if (s->batching == CLT_BATCHING_DEVICE_PER_STREAM) {
        p->nodes = s->order.canonical_nodes / s->order.physical_nodes;
        p->physical = s->order.canonical_nodes;
    } else {
        p->nodes = p->physical;
        p->batch = s->batch;
    }
}

/* The order of a pool without its shuffle costs nothing; it tells the length. */
static clt_status measure_pool(clt_streams *s, pool *p) {
    clt_order_params op = s->order;
    clt_order *o;
    op.shuffle = false;
    op.shard_samples = &p->samples;
    op.num_shards = 1;
    op.physical_nodes = p->physical;
    CLT_TRY(clt_order_create(&op, &o));
    if (s->batching == CLT_BATCHING_PER_STREAM && clt_order_dealing_nodes(o) != p->nodes) {
        /* Resumed on other nodes: in the rounds of the first run, which have the same global batch. */
        p->nodes = clt_order_dealing_nodes(o);
        p->batch = s->global_batch / (p->nodes * s->ranks);
    }
    p->length = p->nodes * s->ranks * clt_order_dealt_count(o, s->ranks);
    clt_order_destroy(o);
    if (s->batching == CLT_BATCHING_PER_STREAM && p->nodes * s->ranks * p->batch != s->global_batch)
        return clt_error(CLT_BAD_CONFIG,
                         "global batch %lld does not divide over the %lld ranks of the first run",
                         (long long)s->global_batch, (long long)(p->nodes * s->ranks));
    return CLT_OK;
}

static clt_status make_pools(const clt_streams_params *p, clt_streams *s) {
    const bool all = s->batching == CLT_BATCHING_RANDOM;
    s->num_pools = all ? 1 : s->n;
    s->pools = clt_calloc(s->num_pools, sizeof *s->pools);
    for (size_t i = 0; i < s->num_pools; i++) {
        pool *q = &s->pools[i];
        *q = (pool){.first = i, .n = 1, .samples = s->choose[i]};
        q->block = (int64_t)((double)s->order.block_size * s->share[i]);
        if (all) *q = (pool){.n = s->n, .samples = s->epoch_size, .block = s->order.block_size};
        set_rounds(s, q);
        if (all) continue;
        if (q->samples == 0)
            return clt_error(CLT_BAD_CONFIG,
                             "stream '%s': an epoch draws no sample of it, which batching_method %s cannot "
                             "batch: remove the stream or give it a weight",
                             p->stream[i].name, batching_names[s->batching]);
        if (q->block == 0 && s->order.shuffle && s->batching == CLT_BATCHING_DEVICE_PER_STREAM)
            return clt_error(CLT_BAD_CONFIG,
                             "stream '%s': its share of shuffle_block_size %lld is 0: use a larger one",
                             p->stream[i].name, (long long)s->order.block_size);
        CLT_TRY(measure_pool(s, q));
    }
    return CLT_OK;
}

/* --- the batching methods: how many batches --- */

/* A value and the index that it comes from. */
typedef struct {
    double value;
    size_t index;
} remainder_of;

/* Compares the places whose numbers differ in the bits of `mask`; the larger value goes to the higher place,
 * equal ones stay. */
static void compare_places(remainder_of *x, size_t n, size_t mask) {
    for (size_t i = 0; i < n; i++) {
        const size_t other = i ^ mask;
        if (other < i || x[i].value <= x[other].value) continue;
        const remainder_of larger = x[i];
        x[i] = x[other];
        x[other] = larger;
    }
}

/* The order of NumPy's argsort of up to 256 doubles on a processor with AVX2 or AVX-512: a bitonic network,
 * in which equal values do not keep their order. For more values, or on other processors, NumPy has other
 * orders of equal values. */
static void sort_indices(const double *v, size_t n, size_t *index) {
    size_t places = 1;
    while (places < n) places *= 2;
    remainder_of *x = clt_calloc(places, sizeof *x);
    for (size_t i = 0; i < places; i++) x[i] = (remainder_of){i < n ? v[i] : INFINITY, i};
    for (size_t block = 2; block <= places; block *= 2) {
        compare_places(x, places, block - 1);
        for (size_t mask = block / 4; mask > 0; mask /= 2) compare_places(x, places, mask);
    }
    for (size_t i = 0; i < n; i++) index[i] = x[i].index;
    clt_free(x);
}

/* Each stream's part of a global batch: its share rounded down, and one more for the largest remainders. */
static clt_status divide_batch(const clt_streams_params *p, clt_streams *s) {
    double *rest = clt_calloc(s->n, sizeof *rest);
    size_t *order = clt_calloc(s->n, sizeof *order);
    const double global = (double)s->global_batch;
    int64_t missing = s->global_batch;
    for (size_t i = 0; i < s->n; i++) {
        s->pools[i].part = (int64_t)(s->share[i] * global);
        rest[i] = global * s->share[i] - (double)s->pools[i].part;
        missing -= s->pools[i].part;
    }
    sort_indices(rest, s->n, order);
    for (size_t k = s->n; k > 0 && missing > 0; k--, missing--) s->pools[order[k - 1]].part++;
    clt_free(rest);
    clt_free(order);
    s->batches = INT64_MAX;
    for (size_t i = 0; i < s->n; i++) {
        if (s->pools[i].part == 0)
            return clt_error(CLT_BAD_CONFIG,
                             "stream '%s': its share %g of a global batch of %lld is less than a sample: "
                             "increase the global batch or the stream's weight",
                             p->stream[i].name, s->share[i], (long long)s->global_batch);
        s->batches = CLT_MIN(s->batches, s->pools[i].length / s->pools[i].part);
    }
    return CLT_OK;
}

/* Lists without an order yet. */
static clt_status make_lists(const clt_streams_params *p, clt_streams *s) {
    const bool device = s->batching == CLT_BATCHING_DEVICE_PER_STREAM;
    const int64_t nodes = s->order.physical_nodes, size = device ? s->batch : s->global_batch;
    s->num_lists = device ? (size_t)nodes : 1;
    s->lists = clt_calloc(s->num_lists, sizeof *s->lists);
    int64_t most = 0;
    for (size_t k = 0; k < s->num_lists; k++) {
        batch_list *l = &s->lists[k];
        l->count = clt_calloc(s->n, sizeof *l->count);
        for (size_t i = 0; i < s->n; i++) {
            l->n += l->count[i] = s->pools[i].length / size;
            if (l->count[i] == 0)
                return clt_error(CLT_BAD_CONFIG,
                                 "stream '%s' has %lld samples in an epoch, too few for a %s batch of %lld: "
                                 "give it more, or use a smaller batch",
                                 p->stream[i].name, (long long)s->choose[i], device ? "device" : "global",
                                 (long long)size);
        }
        l->stream = clt_try_calloc((size_t)l->n, sizeof *l->stream);
        l->ordinal = clt_try_calloc((size_t)l->n, sizeof *l->ordinal);
        if (!l->stream || !l->ordinal)
            return clt_no_memory("the batches of streams", (uint64_t)l->n * 2 * sizeof *l->stream);
        most = CLT_MAX(most, l->n);
    }
    s->batches = device ? CLT_CEIL_DIV(most, s->ranks) : most;
    return CLT_OK;
}

static clt_status open_streams(const clt_streams_params *p, clt_streams *s) {
    s->order = p->order;
    s->ranks = p->ranks_per_node;
    s->batch = p->batch_size;
    s->epoch = -1;
    CLT_TRY(parse_methods(p, s));
    CLT_TRY(check_world(p));
    CLT_TRY(clt_order_params_resolve(&s->order));
    s->global_batch = s->order.physical_nodes * s->ranks * s->batch;
    CLT_TRY(copy_streams(p, s));
    CLT_TRY(weigh(p, s));
    const bool device = s->batching == CLT_BATCHING_DEVICE_PER_STREAM;
    if (device && s->order.canonical_nodes % s->order.physical_nodes != 0)
        return clt_error(
            CLT_BAD_CONFIG,
            "batching_method device_per_stream needs num_canonical_nodes %lld to be a multiple of "
            "the %lld physical nodes",
            (long long)s->order.canonical_nodes, (long long)s->order.physical_nodes);
    CLT_TRY(make_pools(p, s));
    if (s->batching == CLT_BATCHING_RANDOM) return CLT_OK;
    return s->batching == CLT_BATCHING_STRATIFIED ? divide_batch(p, s) : make_lists(p, s);
}

clt_status clt_streams_create(const clt_streams_params *p, clt_streams **out) {
    clt_streams *s = clt_calloc(1, sizeof *s);
    clt_status st = open_streams(p, s);
    if (st == CLT_OK)
        *out = s;
    else
        clt_streams_destroy(s);
    return st;
}

void clt_streams_destroy(clt_streams *s) {
    if (!s) return;
    for (size_t i = 0; i < s->num_pools; i++) {
        clt_stream_units_free(&s->pools[i].units);
        clt_order_destroy(s->pools[i].order);
    }
    for (size_t i = 0; i < s->num_lists; i++) {
        clt_free(s->lists[i].stream);
        clt_free(s->lists[i].ordinal);
        clt_free(s->lists[i].count);
    }
    clt_free(s->lists);
    clt_free(s->pools);
    clt_free(s->streams);
    clt_free(s->sizes);
    clt_free(s->choose);
    clt_free(s->share);
    clt_free(s);
}

/* --- an epoch --- */

static clt_status use_pool(clt_streams *s, pool *p, int64_t epoch) {
    const clt_stream_sampling how = {.granularity = s->granularity,
                                     .seed = s->order.seed,
                                     .epoch = (uint64_t)epoch,
                                     .every_epoch = s->order.shuffle && !s->fixed,
                                     .fixed = s->fixed};
    CLT_TRY(clt_stream_units_draw(s->streams + p->first, s->choose + p->first, p->n, &how, &p->units));
    clt_order_destroy(p->order);
    p->order = NULL;
    clt_order_params op = s->order;
    op.shard_samples = p->units.size;
    op.num_shards = p->units.n;
    op.block_size = p->block;
    if (p->block == 0) { /* clt_order takes 0 as the default */
        clt_shuffle_algo algo = CLT_SHUFFLE_PY1E;
        if (op.algo) CLT_TRY(clt_shuffle_parse(op.algo, &algo));
        if (op.shuffle && (algo == CLT_SHUFFLE_PY1E || algo == CLT_SHUFFLE_PY1BR))
            return clt_error(CLT_BAD_CONFIG,
                             "a stream's share of shuffle_block_size %lld is 0: use a larger one",
                             (long long)s->order.block_size);
        op.block_size = 1;
    }
    op.physical_nodes = p->physical;
    CLT_TRY(clt_order_create(&op, &p->order));
    clt_order_use_epoch(p->order, epoch);
    return CLT_OK;
}

static void order_list(clt_streams *s, batch_list *l, clt_nprng *r) {
    int64_t at = 0, *next = clt_calloc(s->n, sizeof *next);
    for (size_t i = 0; i < s->n; i++)
        for (int64_t k = 0; k < l->count[i]; k++) l->stream[at++] = (int64_t)i;
    clt_nprng_shuffle_i64(r, l->stream, (size_t)l->n);
    for (int64_t k = 0; k < l->n; k++) l->ordinal[k] = next[l->stream[k]]++;
    clt_free(next);
}

static clt_status use_epoch(clt_streams *s, int64_t epoch) {
    if (s->epoch == epoch) return CLT_OK;
    s->epoch = -1;
    for (size_t i = 0; i < s->num_pools; i++) CLT_TRY(use_pool(s, &s->pools[i], epoch));
    clt_nprng r;
    clt_nprng_seed(&r, s->order.seed, s->order.shuffle && !s->fixed ? (uint64_t)epoch : 0);
    for (size_t k = 0; k < s->num_lists; k++) order_list(s, &s->lists[k], &r);
    s->epoch = epoch;
    return CLT_OK;
}

/* Sample k of what a stream's order gives the node. */
static int64_t pool_at(const clt_streams *s, size_t stream, int64_t node, int64_t k) {
    const pool *p = &s->pools[stream];
    const int64_t round = p->nodes * s->ranks * p->batch, g = k / round, x = k % round;
    const int64_t from = node * p->nodes + x / (s->ranks * p->batch), rank = x / p->batch % s->ranks;
    return clt_stream_units_id(&p->units,
                               clt_order_dealt(p->order, s->ranks, from, rank, g * p->batch + x % p->batch));
}

/* Sample x of global batch g, or -1. */
static int64_t batch_at(const clt_streams *s, int64_t g, int64_t x) {
    if (g >= s->batches) return -1;
    if (s->batching == CLT_BATCHING_STRATIFIED) {
        size_t i = 0;
        while (x >= s->pools[i].part) x -= s->pools[i++].part;
        return pool_at(s, i, 0, g * s->pools[i].part + x);
    }
    const bool device = s->batching == CLT_BATCHING_DEVICE_PER_STREAM;
    const int64_t nodes = device ? s->order.physical_nodes : 1, size = device ? s->batch : s->global_batch;
    const int64_t j = g * (s->global_batch / size) + x / size, node = j % nodes, k = j / nodes;
    const batch_list *l = &s->lists[node];
    if (k >= l->n) return -1;
    return pool_at(s, (size_t)l->stream[k], node, l->ordinal[k] * size + x % size);
}

/* --- access --- */

int64_t clt_streams_choose(const clt_streams *s, size_t i) {
    return s->choose[i];
}
double clt_streams_share(const clt_streams *s, size_t i) {
    return s->share[i];
}
int64_t clt_streams_epoch_size(const clt_streams *s) {
    return s->epoch_size;
}
int64_t clt_streams_canonical_nodes(const clt_streams *s) {
    return s->order.canonical_nodes;
}
int64_t clt_streams_block_size(const clt_streams *s) {
    return s->order.block_size;
}

int64_t clt_streams_num_samples(const clt_streams *s) {
    if (s->batching == CLT_BATCHING_RANDOM) return s->epoch_size;
    if (s->batching != CLT_BATCHING_DEVICE_PER_STREAM) return s->batches * s->global_batch;
    int64_t n = 0;
    for (size_t k = 0; k < s->num_lists; k++) n += s->lists[k].n * s->batch;
    return n;
}

void clt_streams_units(const clt_streams *s, int64_t i, const int64_t **sizes, size_t *n) {
    const pool *p = &s->pools[CLT_MAX(i, 0)];
    *sizes = p->units.size;
    *n = p->units.n;
}

clt_status clt_streams_batch(clt_streams *s, int64_t epoch, int64_t first, int64_t count, int64_t *ids_out) {
    const int64_t length = clt_streams_num_samples(s);
    if (epoch < 0 || first < 0 || count < 0 || first > length || count > length - first)
        return clt_error(
            CLT_BAD_CONFIG,
            "positions %lld to %lld of epoch %lld do not exist: an epoch of these streams has %lld",
            (long long)first, (long long)(first + count), (long long)epoch, (long long)length);
    CLT_TRY(use_epoch(s, epoch));
    const pool *p = &s->pools[0];
    if (s->batching == CLT_BATCHING_RANDOM) {
        CLT_TRY(clt_order_batch(p->order, epoch, first, count, ids_out));
        for (int64_t i = 0; i < count; i++) ids_out[i] = clt_stream_units_id(&p->units, ids_out[i]);
        return CLT_OK;
    }
    for (int64_t i = 0; i < count; i++)
        ids_out[i] = batch_at(s, (first + i) / s->global_batch, (first + i) % s->global_batch);
    return CLT_OK;
}

static clt_status random_rank(clt_streams *s, int64_t epoch, int64_t from, int64_t node, int64_t rank,
                              int64_t **ids_out, int64_t *count_out) {
    const clt_order_world w = {s->ranks, s->batch, epoch, from};
    const pool *p = &s->pools[0];
    CLT_TRY(clt_order_rank(p->order, &w, node, rank, ids_out, count_out));
    for (int64_t i = 0; i < *count_out; i++)
        if ((*ids_out)[i] >= 0) (*ids_out)[i] = clt_stream_units_id(&p->units, (*ids_out)[i]);
    return CLT_OK;
}

clt_status clt_streams_rank(clt_streams *s, int64_t epoch, int64_t from, int64_t node, int64_t rank,
                            int64_t **ids_out, int64_t *count_out) {
    if (epoch < 0 || from < 0 || node < 0 || node >= s->order.physical_nodes || rank < 0 || rank >= s->ranks)
        return clt_error(CLT_USAGE, "epoch, position, node or rank out of range");
    CLT_TRY(use_epoch(s, epoch));
    if (s->batching == CLT_BATCHING_RANDOM)
        return random_rank(s, epoch, from, node, rank, ids_out, count_out);
    const int64_t first = CLT_MIN(from / s->global_batch, s->batches), n = (s->batches - first) * s->batch;
    int64_t *ids = clt_try_calloc((size_t)CLT_MAX(n, 1), sizeof *ids);
    if (!ids) return clt_no_memory("the samples of a rank", (uint64_t)n * sizeof *ids);
    for (int64_t i = 0; i < n; i++)
        ids[i] = batch_at(s, first + i / s->batch, (node * s->ranks + rank) * s->batch + i % s->batch);
    *ids_out = ids;
    *count_out = n;
    return CLT_OK;
}
