/* Samples of several data sets as one: ids count through the streams in order. */
#include <string.h>

#include "runtime/data/clt_reader.h"

typedef struct {
    clt_reader base;
    int n;
    clt_reader **streams;
    int64_t *first; /* id of each stream's first sample; first[n]: all samples */
} streams_reader;

/* The stream of a sample; *sample becomes its id there. */
static clt_reader *find_stream(const streams_reader *t, int64_t *sample) {
    int i = 0;
    while (i + 1 < t->n && *sample >= t->first[i + 1]) i++;
    *sample -= t->first[i];
    return t->streams[i];
}

static clt_status read_sample(clt_reader *r, int64_t sample, int64_t epoch,
                              void *const row[CLT_BATCH_MAX_FIELDS], clt_sample_counts *out) {
    clt_reader *stream = find_stream((const streams_reader *)r, &sample);
    return stream->ops->read(stream, sample, epoch, row, out);
}

static clt_status show_sample(clt_reader *r, int64_t epoch, int64_t sample, clt_loader_view *v) {
    clt_reader *stream = find_stream((const streams_reader *)r, &sample);
    return stream->ops->show(stream, epoch, sample, v);
}

static size_t shard_of(const clt_reader *r, int64_t sample) {
    const clt_reader *stream = find_stream((const streams_reader *)r, &sample);
    return stream->ops->shard(stream, sample);
}

static void close_streams(clt_reader *r) {
    streams_reader *t = (streams_reader *)r;
    for (int i = 0; i < t->n; i++)
        if (t->streams[i]) t->streams[i]->ops->close(t->streams[i]);
    clt_free(t->streams);
    clt_free(t->first);
    clt_free(t->base.shard_samples);
    clt_free(t->base.stream_shards);
    clt_free(t);
}

clt_loader_params clt_loader_params_of_stream(const clt_loader_params *all, int i) {
    enum { DEFAULT_CACHE = 1 << 30 };
    const clt_loader_stream *s = &all->streams[i];
    clt_loader_params p = *all;
    p.local = s->local;
    p.remote = s->remote;
    if (s->split) p.split = s->split;
    if (s->validate_hash) p.validate_hash = s->validate_hash;
    if (s->has_retry) p.download_retry = s->download_retry;
    if (s->has_timeout) p.download_timeout = s->download_timeout;
    if (s->has_keep_zip) p.keep_zip = s->keep_zip;
    p.cache_bytes = (all->cache_bytes ? all->cache_bytes : DEFAULT_CACHE) / (size_t)all->n_streams;
    return p;
}

/* Opens a stream; a failure names it. */
static clt_status open_one(const clt_loader_params *all, int i, clt_reader **out) {
    const clt_loader_stream *s = &all->streams[i];
    const clt_loader_params p = clt_loader_params_of_stream(all, i);
    char why[1024];
    clt_error_quiet(true);
    clt_status st = clt_text_reader_open(&p, out);
    clt_error_quiet(false);
    if (st == CLT_OK) return st;
    snprintf(why, sizeof why, "%s", clt_last_error());
    return clt_error(st, "stream '%s': %s", s->name, why);
}

static clt_status open_all(streams_reader *t, const clt_loader_params *p) {
    size_t shards = 0;
    for (int i = 0; i < p->n_streams; i++) {
        CLT_TRY(open_one(p, i, &t->streams[i]));
        t->base.stream_shards[i] = t->streams[i]->shards;
        shards += t->streams[i]->shards;
    }
    t->base.layout = t->streams[0]->layout;
    t->base.shard_samples = clt_try_calloc(shards, sizeof *t->base.shard_samples);
    if (!t->base.shard_samples) return clt_no_memory("the shards of streams", shards * sizeof(int64_t));
    for (int i = 0; i < t->n; i++) {
        const clt_reader *s = t->streams[i];
        t->first[i + 1] = t->first[i];
        for (size_t k = 0; k < s->shards; k++) t->first[i + 1] += s->shard_samples[k];
        memcpy(t->base.shard_samples + t->base.shards, s->shard_samples, s->shards * sizeof(int64_t));
        t->base.shards += s->shards;
    }
    return CLT_OK;
}

clt_status clt_streams_reader_open(const clt_loader_params *p, clt_reader **out) {
    static const clt_reader_ops ops = {.name = "streams",
                                       .read = read_sample,
                                       .show = show_sample,
                                       .shard = shard_of,
                                       .close = close_streams};
    streams_reader *t = clt_calloc(1, sizeof *t);
    const size_t n = (size_t)p->n_streams;
    t->base.ops = &ops;
    t->n = p->n_streams;
    t->streams = clt_calloc(n, sizeof *t->streams);
    t->first = clt_calloc(n + 1, sizeof *t->first);
    t->base.stream_shards = clt_calloc(n, sizeof *t->base.stream_shards);
    clt_status st = open_all(t, p);
    if (st == CLT_OK)
        *out = &t->base;
    else
        close_streams(&t->base);
    return st;
}
