#include "runtime/data/clt_loader.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_thread.h"
#include "runtime/data/clt_reader.h"
#include "runtime/data/clt_sequence.h"

/* Which rows. */
typedef struct {
    int64_t epoch, count; /* count: in all parts */
    clt_loader_rows *part;
    int n, cap;
} rows;

typedef struct {
    rows key;
    clt_status st;
    int64_t *samples;
    int64_t *positions; /* in the epoch; this and the next: NULL without read_rows */
    clt_sample_counts *counts;
    int32_t *targets; /* of each sample */
    void *field[CLT_BATCH_MAX_FIELDS];
    clt_sample_counts all;
} buffer;

typedef enum { IDLE, REQUESTED, BUSY, READY } thread_state;

struct clt_loader {
    int64_t max_rows;
    clt_reader *reader;
    clt_sequence *sequence;
    buffer buffers[2];
    int front; /* what the caller holds; the thread fills the other one */
    /* The thread alone touches reader, sequence and the back buffer while BUSY; the caller otherwise. */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    thread_state state;
    bool quit, thread_runs;
    int64_t shown;        /* the sample of clt_loader_show */
    clt_fetch *fetch;     /* NULL: nothing is fetched */
    bool begun;           /* a request was filled */
    int64_t ahead, step;  /* samples of the window, 0: 8 requests; positions from a request to the next one */
    int64_t *ahead_ids;   /* [ahead_cap] */
    size_t *ahead_shards; /* likewise */
    int64_t ahead_cap;
    clt_loader_stalls stalls;
};

void clt_loader_params_default(clt_loader_params *p) {
    *p = (clt_loader_params){.shuffle_seed = 9176,
                             .eos_token_id = -1,
                             .bos_token_id = -1,
                             .pad_token_id = -1,
                             .max_rows = 1,
                             .download_retry = CLT_FETCH_RETRIES,
                             .download_timeout = CLT_FETCH_TIMEOUT};
    clt_image_params_default(&p->image);
}

/* The samples at some positions; readers with rows of their own take the positions themselves. */
static clt_status find_samples(clt_loader *l, int64_t epoch, clt_loader_rows part, int64_t *ids) {
    if (l->sequence) return clt_sequence_batch(l->sequence, epoch, part.first, part.count, ids);
    for (int64_t i = 0; i < part.count; i++) ids[i] = part.first + i;
    return CLT_OK;
}

/* --- fetching ahead --- */

/* Room for the ids of `n` samples. */
static bool reserve_ahead(clt_loader *l, int64_t n) {
    if (n <= l->ahead_cap) return true;
    void *ids = clt_try_realloc(l->ahead_ids, (size_t)n * sizeof *l->ahead_ids);
    if (ids) l->ahead_ids = ids;
    void *shards = ids ? clt_try_realloc(l->ahead_shards, (size_t)n * sizeof *l->ahead_shards) : NULL;
    if (shards) l->ahead_shards = shards;
    l->ahead_cap = shards ? n : l->ahead_cap;
    return shards != NULL;
}

/* Announces the shards of this request and, with `more_too`, of those that follow it in the epoch: the same
 * stretches of the next global batches. */
static void announce(clt_loader *l, const buffer *b, bool more_too) {
    enum { BATCHES = 8 };
    const int64_t rows = clt_loader_num_samples(l), count = b->key.count, step = CLT_MAX(l->step, count);
    const int64_t ahead = !more_too ? 0 : l->ahead ? l->ahead : BATCHES * count;
    int64_t n = 0;
    if (!l->fetch || !l->reader->ops->shard || count < 1 || !reserve_ahead(l, count + ahead)) return;
    memcpy(l->ahead_ids, b->samples, (size_t)count * sizeof *l->ahead_ids);
    n = count;
    clt_error_quiet(true); /* reading them reports */
    for (int64_t k = 1, more = 1; more && n < count + ahead; k++) {
        more = 0;
        for (int64_t i = 0; i < b->key.n; i++) {
            clt_loader_rows part = b->key.part[i];
            part.first += k * step;
            part.count = CLT_MIN(CLT_MIN(part.count, rows - part.first), count + ahead - n);
            if (part.count < 1 || find_samples(l, b->key.epoch, part, l->ahead_ids + n) != CLT_OK) continue;
            n += part.count;
            more = 1;
        }
    }
    clt_error_quiet(false);
    for (int64_t i = 0; i < n; i++) l->ahead_shards[i] = l->reader->ops->shard(l->reader, l->ahead_ids[i]);
    clt_fetch_announce(l->fetch, l->ahead_shards, (size_t)n);
}

bool clt_loader_fetches(const clt_loader *l) {
    return l->fetch != NULL;
}

clt_loader_stalls clt_loader_get_stalls(const clt_loader *l) {
    clt_loader_stalls s = l->stalls;
    if (l->fetch) s.received = clt_fetch_received(l->fetch);
    return s;
}

static void count_row(buffer *b, int64_t i, const clt_sample_counts *one) {
    b->targets[i] = (int32_t)one->targets;
    b->all.targets += one->targets;
    b->all.tokens += one->tokens;
}

static clt_status sample_at(void *loader, int64_t epoch, int64_t position, int64_t *sample) {
    return find_samples(loader, epoch, (clt_loader_rows){position, 1}, sample);
}

/* All rows by one call of the reader. */
static clt_status fill_at_once(clt_loader *l, buffer *b) {
    for (int64_t k = 0, at = 0; k < b->key.n; k++)
        for (int64_t i = 0; i < b->key.part[k].count; i++) b->positions[at++] = b->key.part[k].first + i;
    const clt_reader_request q = {.epoch = b->key.epoch,
                                  .count = b->key.count,
                                  .rows = clt_loader_num_samples(l),
                                  .samples = b->samples,
                                  .positions = b->positions,
                                  .field = b->field,
                                  .counts = b->counts,
                                  .sample_at = sample_at,
                                  .loader = l};
    CLT_TRY(l->reader->ops->read_rows(l->reader, &q));
    for (int64_t i = 0; i < b->key.count; i++) count_row(b, i, &b->counts[i]);
    return CLT_OK;
}

static clt_status fill_one_by_one(clt_loader *l, buffer *b) {
    const clt_batch_layout *layout = &l->reader->layout;
    for (int64_t i = 0; i < b->key.count; i++) {
        void *row[CLT_BATCH_MAX_FIELDS] = {NULL};
        clt_sample_counts one = {0};
        for (int f = 0; f < layout->n; f++)
            if (b->field[f]) row[f] = (char *)b->field[f] + (size_t)i * layout->field[f].bytes;
        CLT_TRY(l->reader->ops->read(l->reader, b->samples[i], b->key.epoch, row, &one));
        if (!l->sequence) b->samples[i] = one.sample;
        count_row(b, i, &one);
    }
    return CLT_OK;
}

static clt_status fill(clt_loader *l, buffer *b) {
    b->all = (clt_sample_counts){0};
    for (int64_t k = 0, at = 0; k < b->key.n; at += b->key.part[k++].count)
        CLT_TRY(find_samples(l, b->key.epoch, b->key.part[k], b->samples + at));
    announce(l, b, l->begun); /* the first request shares the line with no shard that it does not need */
    CLT_TRY(l->reader->ops->read_rows ? fill_at_once(l, b) : fill_one_by_one(l, b));
    if (!l->begun) announce(l, b, true);
    l->begun = true;
    return CLT_OK;
}

/* --- the thread --- */

static void *read_ahead(void *arg) {
    clt_loader *l = arg;
    clt_error_quiet(true); /* clt_loader_get reads these rows again and reports */
    pthread_mutex_lock(&l->lock);
    while (!l->quit) {
        if (l->state != REQUESTED) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        buffer *b = &l->buffers[1 - l->front];
        l->state = BUSY;
        pthread_mutex_unlock(&l->lock);
        b->st = fill(l, b);
        pthread_mutex_lock(&l->lock);
        l->state = READY;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static int64_t count_rows(const clt_loader_rows *part, int n) {
    int64_t count = 0;
    for (int i = 0; i < n; i++) count += part[i].count;
    return count;
}

static bool same_rows(const rows *a, int64_t epoch, const clt_loader_rows *part, int n) {
    bool same = a->epoch == epoch && a->n == n;
    for (int i = 0; i < n && same; i++)
        same = a->part[i].first == part[i].first && a->part[i].count == part[i].count;
    return same;
}

static void set_rows(rows *r, int64_t epoch, const clt_loader_rows *part, int n) {
    if (n > r->cap) {
        r->part = clt_realloc(r->part, (size_t)n * sizeof *part);
        r->cap = n;
    }
    if (n) memcpy(r->part, part, (size_t)n * sizeof *part);
    r->epoch = epoch;
    r->n = n;
    r->count = count_rows(part, n);
}

static void wait_a_moment(clt_loader *l) {
    enum { LOOK = 50000000 }; /* nanoseconds between two looks at requests to stop */
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += (t.tv_nsec + LOOK) / 1000000000;
    t.tv_nsec = (t.tv_nsec + LOOK) % 1000000000;
    pthread_cond_timedwait(&l->changed, &l->lock, &t);
}

/* Waits until the thread is idle; then reader and sequence are the caller's. Lock held. */
static void settle(clt_loader *l, bool wanted) {
    if (l->state == REQUESTED && !wanted) l->state = IDLE;
    while (l->state == REQUESTED || l->state == BUSY) {
        if (!l->fetch) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        wait_a_moment(l);
        if (clt_io_stop_requested()) clt_fetch_stop(l->fetch); /* the data thread may not ask */
    }
}

/* Fills the back buffer unless the thread has done so. */
static clt_status complete(clt_loader *l, buffer *b, int64_t epoch, const clt_loader_rows *part, int n) {
    pthread_mutex_lock(&l->lock);
    bool announced = l->state != IDLE && same_rows(&b->key, epoch, part, n);
    settle(l, announced);
    bool ready = announced && b->st == CLT_OK;
    l->state = IDLE;
    pthread_mutex_unlock(&l->lock);
    if (ready) return CLT_OK;
    set_rows(&b->key, epoch, part, n);
    return fill(l, b);
}

/* The same for data that are fetched: heeds requests to stop and counts how long they were waited for. */
static clt_status complete_fetched(clt_loader *l, buffer *b, int64_t epoch, const clt_loader_rows *part,
                                   int n) {
    const double least = 1e-3, start = clt_now(), before = clt_fetch_waited(l->fetch);
    const bool heeds = clt_io_heed_stop(true);
    const clt_status st = complete(l, b, epoch, part, n);
    clt_io_heed_stop(heeds);
    const double stall = CLT_MIN(clt_now() - start, clt_fetch_waited(l->fetch) - before);
    if (stall >= least) {
        l->stalls.seconds += stall;
        l->stalls.times++;
    }
    return st;
}

clt_status clt_loader_get_rows(clt_loader *l, int64_t epoch, const clt_loader_rows *part, int n,
                               clt_batch *out) {
    const int64_t count = count_rows(part, n);
    if (count > l->max_rows)
        return clt_error(CLT_FAIL, "%lld rows requested, the loader was opened for %lld", (long long)count,
                         (long long)l->max_rows);
    buffer *b = &l->buffers[1 - l->front];
    CLT_TRY(l->fetch ? complete_fetched(l, b, epoch, part, n) : complete(l, b, epoch, part, n));
    l->front = 1 - l->front;
    *out = (clt_batch){.samples = count,
                       .sample_targets = b->targets,
                       .sample_ids = b->samples,
                       .targets = b->all.targets,
                       .tokens = b->all.tokens};
    for (int f = 0; f < l->reader->layout.n; f++) out->field[f] = b->field[f];
    return CLT_OK;
}

void clt_loader_prefetch_rows(clt_loader *l, int64_t epoch, const clt_loader_rows *part, int n) {
    const int64_t count = count_rows(part, n);
    if (count < 1 || count > l->max_rows) return;
    pthread_mutex_lock(&l->lock);
    settle(l, false);
    set_rows(&l->buffers[1 - l->front].key, epoch, part, n);
    l->state = REQUESTED;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

clt_status clt_loader_get(clt_loader *l, int64_t epoch, int64_t first, int64_t count, clt_batch *out) {
    return clt_loader_get_rows(l, epoch, &(clt_loader_rows){first, count}, 1, out);
}

void clt_loader_prefetch(clt_loader *l, int64_t epoch, int64_t first, int64_t count) {
    clt_loader_prefetch_rows(l, epoch, &(clt_loader_rows){first, count}, 1);
}

clt_status clt_loader_ids(clt_loader *l, int64_t epoch, int64_t first, int64_t count, int64_t *ids_out) {
    pthread_mutex_lock(&l->lock);
    settle(l, false);
    l->state = IDLE;
    pthread_mutex_unlock(&l->lock);
    if (l->sequence) return clt_sequence_batch(l->sequence, epoch, first, count, ids_out);
    return l->reader->ops->ids(l->reader, epoch, first, count, ids_out);
}

/* --- opening --- */

static clt_status start_thread(clt_loader *l) {
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    int e = clt_thread_start(&l->thread, read_ahead, l);
    if (e) return clt_error(CLT_FAIL, "cannot start the data thread: %s", strerror(e));
    l->thread_runs = true;
    return CLT_OK;
}

static clt_status allocate(const clt_loader *l, buffer *b) {
    const clt_batch_layout *layout = &l->reader->layout;
    const size_t n = (size_t)l->max_rows;
    size_t bytes = sizeof *b->samples + sizeof *b->targets;
    b->samples = clt_try_calloc(n, sizeof *b->samples);
    b->targets = clt_try_calloc(n, sizeof *b->targets);
    bool good = b->samples && b->targets;
    if (l->reader->ops->read_rows) {
        b->positions = clt_try_calloc(n, sizeof *b->positions);
        b->counts = clt_try_calloc(n, sizeof *b->counts);
        bytes += sizeof *b->positions + sizeof *b->counts;
        good = good && b->positions && b->counts;
    }
    for (int f = 0; f < layout->n && good; f++) {
        if (!layout->field[f].bytes) continue;
        b->field[f] = clt_try_calloc(n, layout->field[f].bytes);
        bytes += layout->field[f].bytes;
        good = b->field[f] != NULL;
    }
    return good ? CLT_OK : clt_no_memory("a batch", (uint64_t)n * bytes);
}

static bool has_remote(const clt_loader_params *p) {
    bool any = p->n_streams == 0 && p->remote && *p->remote;
    for (int i = 0; i < p->n_streams; i++) any |= p->streams[i].remote && *p->streams[i].remote;
    return any;
}

static clt_status open_all(clt_loader *l, const clt_loader_params *p) {
    if (p->max_rows < 1)
        return clt_error(CLT_BAD_CONFIG, "cannot read %lld samples at once", (long long)p->max_rows);
    l->max_rows = p->max_rows;
    l->step = p->global_batch;
    l->ahead = p->predownload;
    clt_loader_params with = *p;
    if (has_remote(p)) {
        CLT_TRY(clt_fetch_create(&(clt_fetch_params){.cache_limit = p->cache_limit}, &l->fetch));
        with.fetch = l->fetch;
        p = &with;
    }
    CLT_TRY(p->images          ? clt_image_reader_open(p, &l->reader)
            : p->finetuning    ? clt_finetune_reader_open(p, &l->reader)
            : p->n_streams > 0 ? clt_streams_reader_open(p, &l->reader)
                               : clt_text_reader_open(p, &l->reader));
    const clt_reader *r = l->reader;
    if (!r->ops->rows)
        CLT_TRY(clt_sequence_open(p, r->shard_samples, r->stream_shards ? r->stream_shards : &r->shards,
                                  &l->sequence));
    for (int i = 0; i < 2; i++) CLT_TRY(allocate(l, &l->buffers[i]));
    return start_thread(l);
}

clt_status clt_loader_open(const clt_loader_params *p, clt_loader **out) {
    clt_loader *l = clt_calloc(1, sizeof *l);
    const bool heeds = clt_io_heed_stop(true);
    clt_status st = open_all(l, p);
    clt_io_heed_stop(heeds);
    if (st == CLT_OK)
        *out = l;
    else
        clt_loader_close(l);
    return st;
}

void clt_loader_close(clt_loader *l) {
    if (!l) return;
    if (l->fetch) clt_fetch_stop(l->fetch);
    if (l->thread_runs) {
        pthread_mutex_lock(&l->lock);
        l->quit = true;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
        pthread_mutex_destroy(&l->lock);
        pthread_cond_destroy(&l->changed);
    }
    for (int i = 0; i < 2; i++) {
        clt_free(l->buffers[i].key.part);
        clt_free(l->buffers[i].samples);
        clt_free(l->buffers[i].targets);
        clt_free(l->buffers[i].positions);
        clt_free(l->buffers[i].counts);
        for (int f = 0; f < CLT_BATCH_MAX_FIELDS; f++) clt_free(l->buffers[i].field[f]);
    }
    clt_sequence_close(l->sequence);
    if (l->reader) l->reader->ops->close(l->reader);
    clt_fetch_close(l->fetch);
    clt_free(l->ahead_ids);
    clt_free(l->ahead_shards);
    clt_free(l);
}

int64_t clt_loader_num_samples(const clt_loader *l) {
    return l->sequence ? clt_sequence_num_samples(l->sequence) : l->reader->samples;
}
int64_t clt_loader_canonical_nodes(const clt_loader *l) {
    return l->sequence ? clt_sequence_canonical_nodes(l->sequence) : l->reader->canonical_nodes;
}
const clt_batch_layout *clt_loader_layout(const clt_loader *l) {
    return &l->reader->layout;
}

int64_t clt_loader_rows_of(clt_loader *l, int64_t epoch) {
    int64_t rows;
    if (l->sequence) return clt_sequence_num_samples(l->sequence);
    clt_error_quiet(true); /* reading the rows fails in the same way, and reports */
    if (l->reader->ops->rows(l->reader, epoch, &rows) != CLT_OK) rows = INT64_MAX;
    clt_error_quiet(false);
    return rows;
}

int64_t clt_loader_batches(clt_loader *l, int64_t global_batch, bool drop_last) {
    if (l->sequence) return clt_sequence_batches(l->sequence, global_batch, drop_last);
    const int64_t rows = clt_loader_rows_of(l, 0);
    return rows / global_batch + (!drop_last && rows % global_batch > 0);
}

const char *clt_loader_class_name(const clt_loader *l, int64_t label) {
    return l->reader->ops->class_name ? l->reader->ops->class_name(l->reader, label) : NULL;
}

bool clt_loader_shares_rows(const clt_loader *l) {
    return l->reader->ops->members != NULL;
}

clt_status clt_loader_row_samples(clt_loader *l, int64_t epoch, int64_t position, int64_t **ids, size_t *cap,
                                  size_t *n) {
    return l->reader->ops->members(l->reader, epoch, position, ids, cap, n);
}

clt_status clt_loader_show(clt_loader *l, int64_t epoch, int64_t position, clt_loader_view *v) {
    pthread_mutex_lock(&l->lock);
    settle(l, false);
    l->state = IDLE;
    pthread_mutex_unlock(&l->lock);
    CLT_TRY(find_samples(l, epoch, (clt_loader_rows){position, 1}, &l->shown));
    v->samples = &l->shown;
    v->num_samples = 1;
    return l->reader->ops->show(l->reader, epoch, l->shown, v);
}
