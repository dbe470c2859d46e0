#include "runtime/data/clt_sequence.h"

#include <math.h>
#include <string.h>

#include "runtime/data/clt_streams.h"

struct clt_sequence {
    clt_order *order;     /* one whole data set */
    clt_streams *streams; /* NULL: order */
    /* Replication: each of `copies` neighbouring devices gets the same `part` samples of a global batch. */
    int64_t copies, part, distinct; /* distinct samples of a global batch */
};

static void set_order(const clt_loader_params *p, clt_order_params *o) {
    clt_order_params_default(o);
    o->shuffle = p->shuffle && !p->eval;
    o->seed = p->shuffle_seed;
    o->share = p->devices > 1;
    o->canonical_nodes = p->eval ? 1 : p->num_canonical_nodes;
    o->block_size = p->eval ? 0 : p->shuffle_block_size;
    if (p->shuffle_algo) o->algo = p->shuffle_algo;
    if (p->partition_algo) o->partition_algo = p->partition_algo;
}

static bool per_device(const clt_loader_params *p) {
    return p->batching_method && strcmp(p->batching_method, "device_per_stream") == 0;
}

static bool needs_streams(const clt_loader_params *p) {
    const bool random = !p->batching_method || strcmp(p->batching_method, "random") == 0;
    return !p->eval && (p->n_streams > 0 || p->epoch_size > 0 || p->replication > 1 || !random);
}

static clt_status set_devices(const clt_loader_params *p, clt_sequence *s, clt_streams_params *sp) {
    s->copies = CLT_MAX(p->replication, 1);
    const int64_t batch = p->global_batch, devices = CLT_MAX(p->devices, 1);
    const bool device = per_device(p);
    if (batch < 1) return clt_error(CLT_BAD_CONFIG, "streams need the size of the global batch");
    if (devices % s->copies != 0)
        return clt_error(CLT_BAD_CONFIG, "replication %lld must divide the number of ranks, %lld",
                         (long long)s->copies, (long long)devices);
    if ((device || s->copies > 1) && batch % devices != 0)
        return clt_error(CLT_BAD_CONFIG,
                         "%s needs equal batches of all ranks: %lld ranks do not divide "
                         "global_train_batch_size %lld",
                         device ? "batching_method device_per_stream" : "replication", (long long)devices,
                         (long long)batch);
    s->part = batch / devices;
    s->distinct = batch / s->copies;
    sp->ranks_per_node = device ? devices / s->copies : 1;
    sp->batch_size = s->distinct / sp->ranks_per_node;
    return CLT_OK;
}

static clt_status open_streams(const clt_loader_params *p, const int64_t *shard_samples, const size_t *shards,
                               clt_sequence *s) {
    clt_streams_params sp;
    clt_streams_params_default(&sp);
    set_order(p, &sp.order);
    CLT_TRY(set_devices(p, s, &sp));
    sp.n = (size_t)CLT_MAX(p->n_streams, 1);
    sp.epoch_size = p->epoch_size;
    sp.sampling_method = p->sampling_method;
    sp.sampling_granularity = p->sampling_granularity > 0 ? p->sampling_granularity : 1;
    sp.batching_method = p->batching_method;
    sp.weight_seed = p->shuffle_seed;
    clt_stream *stream = clt_calloc(sp.n, sizeof *stream);
    for (size_t i = 0; i < sp.n; shard_samples += shards[i++]) {
        stream[i] = (clt_stream){.name = p->local,
                                 .shard_samples = shard_samples,
                                 .num_shards = shards[i],
                                 .proportion = NAN,
                                 .repeat = NAN,
                                 .choose = NAN};
        if (p->n_streams == 0) continue;
        stream[i].name = p->streams[i].name;
        stream[i].proportion = p->streams[i].proportion;
        stream[i].repeat = p->streams[i].repeat;
        stream[i].choose = p->streams[i].choose;
    }
    sp.stream = stream;
    clt_status st = clt_streams_create(&sp, &s->streams);
    clt_free(stream);
    return st;
}

static clt_status open_order(const clt_loader_params *p, const int64_t *shard_samples, const size_t *shards,
                             clt_sequence *s) {
    clt_order_params op;
    set_order(p, &op);
    op.shard_samples = shard_samples;
    for (int i = 0; i < CLT_MAX(p->n_streams, 1); i++) op.num_shards += shards[i];
    return clt_order_create(&op, &s->order);
}

clt_status clt_sequence_open(const clt_loader_params *p, const int64_t *shard_samples, const size_t *shards,
                             clt_sequence **out) {
    clt_sequence *s = clt_calloc(1, sizeof *s);
    s->copies = 1;
    clt_status st = (needs_streams(p) ? open_streams : open_order)(p, shard_samples, shards, s);
    if (st == CLT_OK)
        *out = s;
    else
        clt_sequence_close(s);
    return st;
}

void clt_sequence_close(clt_sequence *s) {
    if (!s) return;
    clt_order_destroy(s->order);
    clt_streams_destroy(s->streams);
    clt_free(s);
}

int64_t clt_sequence_num_samples(const clt_sequence *s) {
    return s->streams ? s->copies * clt_streams_num_samples(s->streams) : clt_order_num_samples(s->order);
}

int64_t clt_sequence_canonical_nodes(const clt_sequence *s) {
    return s->streams ? clt_streams_canonical_nodes(s->streams) : clt_order_canonical_nodes(s->order);
}

int64_t clt_sequence_batches(const clt_sequence *s, int64_t global_batch, bool drop_last) {
    const int64_t n = clt_sequence_num_samples(s);
    return drop_last ? n / global_batch : CLT_CEIL_DIV(n, global_batch);
}

/* Position among distinct samples. In a last batch that is not made of whole parts, copies are neighbours. */
static int64_t without_copies(const clt_sequence *s, int64_t at) {
    const int64_t batch = s->distinct * s->copies, first = at / batch * s->distinct, x = at % batch;
    const int64_t rest = CLT_MIN(clt_streams_num_samples(s->streams) - first, s->distinct);
    if (rest % s->part != 0) return first + x / s->copies;
    return first + x / s->part / s->copies * s->part + x % s->part;
}

clt_status clt_sequence_batch(clt_sequence *s, int64_t epoch, int64_t first, int64_t count,
                              int64_t *ids_out) {
    if (!s->streams) return clt_order_batch(s->order, epoch, first, count, ids_out);
    if (s->copies == 1) return clt_streams_batch(s->streams, epoch, first, count, ids_out);
    if (first < 0 || count < 0 || first > clt_sequence_num_samples(s) - count)
        return clt_error(CLT_BAD_CONFIG, "positions %lld to %lld do not exist: an epoch has %lld",
                         (long long)first, (long long)(first + count),
                         (long long)clt_sequence_num_samples(s));
    for (int64_t i = 0; i < count; i++)
        CLT_TRY(clt_streams_batch(s->streams, epoch, without_copies(s, first + i), 1, ids_out + i));
    return CLT_OK;
}
