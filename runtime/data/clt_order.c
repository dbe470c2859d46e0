#include "runtime/data/clt_order.h"

#include <string.h>

/* The table of clt_order.h. With too few samples for it, ids repeat. */
typedef struct {
    int64_t n, nodes;
    int64_t row; /* S = ceil(N / NCN) */
    int64_t pad; /* extra positions of a row when `q` physical nodes share a canonical node */
    int64_t q;
    bool repeated; /* ids 0..N-1 repeated, row after row */
} partition;

struct clt_order {
    int64_t n, physical, canonical, initial, block;
    bool relaxed; /* resumed under 'relaxed' on a node count for which the table was not made */
    partition part;
    clt_shuffle *shuffle;
    int64_t epoch; /* of the shuffle; -1: not computed */
};

enum { MAX_NODES = 1 << 20, SHARED_SAMPLES = 1 << 20 };
static const int64_t max_samples = (int64_t)1 << 40;

void clt_order_params_default(clt_order_params *p) {
    *p = (clt_order_params){
        .physical_nodes = 1, .seed = 9176, .shuffle = true, .algo = "py1e", .partition_algo = "relaxed"};
}

static bool divides_either_way(int64_t a, int64_t b) {
    return a % b == 0 || b % a == 0;
}

static clt_status partition_init(partition *p, int64_t n, int64_t canonical, int64_t physical) {
    if (!divides_either_way(canonical, physical))
        return clt_error(CLT_BAD_CONFIG,
                         "num_canonical_nodes %lld and %lld physical nodes must divide one another; change "
                         "num_canonical_nodes "
                         "or the number of nodes",
                         (long long)canonical, (long long)physical);
    *p = (partition){.n = n, .nodes = canonical, .row = CLT_CEIL_DIV(n, canonical), .q = 1};
    if (canonical < physical) {
        p->q = physical / canonical;
        p->pad = CLT_ROUND_UP(p->row, p->q) - p->row;
    }
    p->repeated = !(n > canonical || (n == canonical && canonical >= physical));
    if (!p->repeated && p->pad > 0 && p->row - p->pad - p->q + 1 < 0)
        return clt_error(
            CLT_BAD_CONFIG,
            "%lld samples in %lld canonical nodes are too few for %lld physical nodes; use fewer nodes",
            (long long)n, (long long)canonical, (long long)physical);
    return CLT_OK;
}

static int64_t partition_length(const partition *p) {
    return p->nodes * (p->row + p->pad);
}

/* Id at position t of the sequence, before the shuffle. */
static int64_t partition_at(const partition *p, int64_t t) {
    int64_t c = t % p->nodes, k = t / p->nodes;
    if (p->repeated) return (c * (p->row + p->pad) + k) % p->n;
    if (k >= p->row) k = p->row - p->pad - p->q + 1 + (k - p->row);
    int64_t start = c * p->n / p->nodes, stop = (c + 1) * p->n / p->nodes;
    return CLT_MIN(start + k, stop - 1);
}

static clt_status check_params(const clt_order_params *p, int64_t *n_out) {
    int64_t n = 0;
    for (size_t i = 0; i < p->num_shards; i++) {
        if (p->shard_samples[i] < 0 || p->shard_samples[i] > max_samples)
            return clt_error(CLT_BAD_CONFIG, "shard %zu has %lld samples", i, (long long)p->shard_samples[i]);
        n += p->shard_samples[i];
        if (n > max_samples) return clt_error(CLT_BAD_CONFIG, "more than 2^40 samples are not supported");
    }
    if (n == 0) return clt_error(CLT_BAD_DATA, "the dataset has no samples");
    if (p->physical_nodes < 1 || p->physical_nodes > MAX_NODES || p->initial_nodes < 0 ||
        p->initial_nodes > MAX_NODES)
        return clt_error(CLT_BAD_CONFIG, "the number of physical nodes must be 1 to %d", MAX_NODES);
    if (p->canonical_nodes < 0 || p->canonical_nodes > MAX_NODES)
        return clt_error(CLT_BAD_CONFIG, "num_canonical_nodes must be 1 to %d", MAX_NODES);
    if (p->block_size < 0 || p->block_size > max_samples)
        return clt_error(CLT_BAD_CONFIG, "shuffle_block_size must be 1 to 2^40");
    *n_out = n;
    return CLT_OK;
}

static clt_status init_partition(clt_order *o, const char *algo) {
    bool relaxed = strcmp(algo, "relaxed") == 0;
    if (!relaxed && strcmp(algo, "orig") != 0)
        return clt_error(CLT_BAD_CONFIG, "unknown partition_algo '%s'; known are relaxed and orig", algo);
    o->relaxed = relaxed && o->initial > 0 && !divides_either_way(o->canonical, o->physical);
    return partition_init(&o->part, o->n, o->canonical, o->relaxed ? o->initial : o->physical);
}

clt_status clt_order_params_resolve(clt_order_params *p) {
    clt_shuffle_algo algo = CLT_SHUFFLE_PY1E;
    if (p->algo) CLT_TRY(clt_shuffle_parse(p->algo, &algo));
    if (p->canonical_nodes == 0) {
        p->canonical_nodes = p->initial_nodes ? p->initial_nodes : p->physical_nodes;
        if (algo == CLT_SHUFFLE_PY1S || algo == CLT_SHUFFLE_PY2S) p->canonical_nodes *= 64;
    }
    if (p->block_size == 0) p->block_size = CLT_MAX(4000000 / p->canonical_nodes, 262144);
    return CLT_OK;
}

clt_status clt_order_create(const clt_order_params *given, clt_order **out) {
    clt_order_params resolved = *given, *p = &resolved;
    clt_order o = {.physical = p->physical_nodes, .initial = p->initial_nodes, .epoch = -1};
    CLT_TRY(check_params(p, &o.n));
    CLT_TRY(clt_order_params_resolve(p));
    clt_shuffle_algo algo = CLT_SHUFFLE_PY1E;
    if (p->algo) CLT_TRY(clt_shuffle_parse(p->algo, &algo));
    o.canonical = p->canonical_nodes;
    o.block = p->block_size;
    CLT_TRY(init_partition(&o, p->partition_algo ? p->partition_algo : "relaxed"));
    if (p->shuffle)
        CLT_TRY(clt_shuffle_create(algo, p->shard_samples, p->num_shards, o.canonical, p->seed, o.block,
                                   p->share && o.n >= SHARED_SAMPLES, &o.shuffle));
    *out = clt_memdup(&o, sizeof o);
    return CLT_OK;
}

void clt_order_destroy(clt_order *o) {
    if (!o) return;
    clt_shuffle_destroy(o->shuffle);
    clt_free(o);
}

int64_t clt_order_num_samples(const clt_order *o) {
    return o->n;
}
int64_t clt_order_canonical_nodes(const clt_order *o) {
    return o->canonical;
}
int64_t clt_order_block_size(const clt_order *o) {
    return o->block;
}
int64_t clt_order_length(const clt_order *o) {
    return partition_length(&o->part);
}

void clt_order_use_epoch(clt_order *o, int64_t epoch) {
    if (!o->shuffle || o->epoch == epoch) return;
    clt_shuffle_epoch(o->shuffle, epoch);
    o->epoch = epoch;
}

static int64_t sample_at(const clt_order *o, int64_t t) {
    int64_t id = partition_at(&o->part, t);
    return o->shuffle ? clt_shuffle_id(o->shuffle, id) : id;
}

clt_status clt_order_batch(clt_order *o, int64_t epoch, int64_t first, int64_t count, int64_t *ids_out) {
    int64_t length = partition_length(&o->part);
    if (epoch < 0 || first < 0 || count < 0 || first > length || count > length - first)
        return clt_error(
            CLT_BAD_CONFIG,
            "positions %lld to %lld of epoch %lld do not exist: an epoch of this dataset has %lld",
            (long long)first, (long long)(first + count), (long long)epoch, (long long)length);
    clt_order_use_epoch(o, epoch);
    for (int64_t i = 0; i < count; i++) ids_out[i] = sample_at(o, first + i);
    return CLT_OK;
}

/* --- samples of a rank --- */

/* What a node's ranks share: positions from + node + i * nodes of the sequence, padded to a multiple of the
 * ranks. */
typedef struct {
    const clt_order *o;
    int64_t from, nodes, ranks;
    int64_t have; /* positions of each node */
} dealing;

/* Sample i of rank r of a node, -1 past the end. */
static int64_t dealt(const dealing *d, int64_t node, int64_t rank, int64_t i) {
    int64_t x = i * d->ranks + rank, missing = (d->ranks - d->have % d->ranks) % d->ranks;
    if (x >= d->have + missing) return -1;
    if (x >= d->have) {
        /* The reference pads with the items one round of ranks before the end, or repeats all items. */
        if (d->ranks + missing - 1 <= d->have)
            x = d->have - d->ranks - missing + 1 + (x - d->have);
        else
            x %= d->have;
    }
    return sample_at(d->o, d->from + node + x * d->nodes);
}

int64_t clt_order_dealing_nodes(const clt_order *o) {
    return o->relaxed ? o->initial : o->physical;
}

int64_t clt_order_dealt_count(const clt_order *o, int64_t ranks) {
    return CLT_CEIL_DIV(partition_length(&o->part) / clt_order_dealing_nodes(o), ranks);
}

int64_t clt_order_dealt(const clt_order *o, int64_t ranks, int64_t node, int64_t rank, int64_t i) {
    const int64_t nodes = clt_order_dealing_nodes(o);
    const dealing d = {.o = o, .nodes = nodes, .ranks = ranks, .have = partition_length(&o->part) / nodes};
    return dealt(&d, node, rank, i);
}

static clt_status check_world(const clt_order *o, const clt_order_world *w) {
    int64_t world = o->physical * w->ranks_per_node;
    if (w->from > o->n + (world - o->n % world))
        return clt_error(CLT_BAD_DATA, "cannot resume at sample %lld: the dataset has %lld",
                         (long long)w->from, (long long)o->n);
    int64_t initial_world = o->initial * w->ranks_per_node;
    if (o->relaxed && world * w->batch_size % initial_world != 0)
        return clt_error(CLT_BAD_DATA,
                         "global batch %lld does not divide over the %lld ranks of the first run; "
                         "partition_algo 'relaxed' "
                         "needs the global batch size of the first run",
                         (long long)(world * w->batch_size), (long long)initial_world);
    return CLT_OK;
}

clt_status clt_order_rank(clt_order *o, const clt_order_world *w, int64_t node, int64_t rank,
                          int64_t **ids_out, int64_t *count_out) {
    if (w->ranks_per_node < 1 || w->ranks_per_node > MAX_NODES || w->batch_size < 1 ||
        w->batch_size > MAX_NODES || w->from < 0 || w->epoch < 0 || node < 0 || node >= o->physical ||
        rank < 0 || rank >= w->ranks_per_node)
        return clt_error(CLT_USAGE, "ranks per node, batch size (1 to %d), epoch or position out of range",
                         MAX_NODES);
    CLT_TRY(check_world(o, w));
    clt_order_use_epoch(o, w->epoch);
    int64_t nodes = clt_order_dealing_nodes(o), b = w->batch_size, r = w->ranks_per_node;
    int64_t left = CLT_MAX(partition_length(&o->part) - w->from / nodes * nodes, 0);
    dealing d = {.o = o, .from = w->from / nodes * nodes, .nodes = nodes, .ranks = r, .have = left / nodes};
    int64_t b0 = o->relaxed ? o->physical * b / nodes : b; /* batch of a rank of the first run */
    int64_t batches = CLT_CEIL_DIV(CLT_CEIL_DIV(d.have, r), b0);
    int64_t *ids = clt_try_calloc((size_t)CLT_MAX(batches * b, 1), sizeof *ids);
    if (!ids) return clt_no_memory("the samples of a rank", (uint64_t)(batches * b) * sizeof *ids);
    for (int64_t g = 0; g < batches; g++)
        for (int64_t s = 0; s < b; s++) {
            if (o->relaxed) {
                /* The global batch as the first run's ranks had it, divided among the ranks of this one. */
                int64_t x = (node * r + rank) * b + s, from_rank = x / b0;
                ids[g * b + s] = dealt(&d, from_rank / r, from_rank % r, g * b0 + x % b0);
            } else {
                ids[g * b + s] = dealt(&d, node, rank, g * b + s);
            }
        }
    *ids_out = ids;
    *count_out = batches * b;
    return CLT_OK;
}
