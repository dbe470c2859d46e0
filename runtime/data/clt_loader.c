#include "runtime/data/clt_loader.h"

#include <pthread.h>
#include <string.h>

#include "runtime/data/clt_mds.h"
#include "runtime/data/clt_order.h"
#include "runtime/data/clt_tokenizer.h"
#include "runtime/base/clt_io.h"

/* Which rows. */
typedef struct {
    int64_t epoch, first, count;
} rows;

typedef struct {
    rows key;
    clt_status st;
    int64_t *samples;
    int32_t *tokens, *targets, *seq_ids, *row_tokens;
    int64_t loss_tokens, num_tokens;
} buffer;

typedef enum { IDLE, REQUESTED, BUSY, READY } thread_state;

struct clt_loader {
    int64_t T, vocab_size, max_rows;
    int32_t eos, bos, pad; /* -1: none */
    clt_mds *mds;
    clt_order *order;
    clt_tokenizer *tokenizer; /* NULL for token columns */
    clt_str text;
    buffer buffers[2];
    int front; /* what the caller holds; the thread fills the other one */
    /* The thread alone touches mds, order and the back buffer while BUSY; the caller otherwise. */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    thread_state state;
    bool quit, thread_runs;
};

void clt_loader_params_default(clt_loader_params *p) {
    *p = (clt_loader_params){
        .shuffle_seed = 9176, .eos_token_id = -1, .bos_token_id = -1, .pad_token_id = -1, .max_rows = 1};
}

/* --- one row --- */

static clt_status read_row(clt_loader *l, int64_t sample, int32_t *row, int64_t *n) {
    if (!l->tokenizer) return clt_mds_get_tokens(l->mds, sample, l->T, l->vocab_size, row, n, NULL);
    size_t got;
    CLT_TRY(clt_mds_get_text(l->mds, sample, &l->text));
    CLT_TRY(clt_tokenizer_encode(l->tokenizer, l->text.s, l->text.len, row, (size_t)l->T, &got));
    *n = (int64_t)got;
    return CLT_OK;
}

/* Labels: the next token; ignored past the end and where it is the padding id. Returns how many count. */
static int64_t make_targets(const clt_loader *l, const int32_t *row, int64_t n, int32_t *targets) {
    int64_t counted = 0;
    for (int64_t t = 0; t < l->T; t++) {
        bool ignored = t + 1 >= n || (l->pad >= 0 && row[t + 1] == l->pad);
        targets[t] = ignored ? CLT_LABEL_IGNORE : row[t + 1];
        counted += !ignored;
    }
    return counted;
}

static void make_seq_ids(const clt_loader *l, const int32_t *row, int32_t *ids) {
    int32_t id = 0;
    for (int64_t t = 0; t < l->T; t++) {
        if (l->bos >= 0) id += row[t] == l->bos;
        ids[t] = id;
        if (l->eos >= 0) id += row[t] == l->eos;
    }
}

static clt_status fill(clt_loader *l, buffer *b) {
    int64_t T = l->T;
    b->loss_tokens = b->num_tokens = 0;
    CLT_TRY(clt_order_batch(l->order, b->key.epoch, b->key.first, b->key.count, b->samples));
    for (int64_t i = 0; i < b->key.count; i++) {
        int32_t *row = b->tokens + i * T;
        int64_t n;
        CLT_TRY(read_row(l, b->samples[i], row, &n));
        for (int64_t t = n; t < T; t++) row[t] = l->pad >= 0 ? l->pad : 0;
        b->row_tokens[i] = (int32_t)n;
        b->num_tokens += n;
        b->loss_tokens += make_targets(l, row, n, b->targets + i * T);
        if (b->seq_ids) make_seq_ids(l, row, b->seq_ids + i * T);
    }
    return CLT_OK;
}

/* --- the thread --- */

static void *read_ahead(void *arg) {
    clt_loader *l = arg;
    clt_error_quiet(true); /* clt_loader_get reads again and reports, if the rows are wanted at all */
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

static bool same_rows(rows a, rows b) {
    return a.epoch == b.epoch && a.first == b.first && a.count == b.count;
}

/* Waits until the thread does nothing; afterwards mds and order are the caller's. Lock held. */
static void settle(clt_loader *l, bool wanted) {
    if (l->state == REQUESTED && !wanted) l->state = IDLE;
    while (l->state == REQUESTED || l->state == BUSY) pthread_cond_wait(&l->changed, &l->lock);
}

clt_status clt_loader_get(clt_loader *l, int64_t epoch, int64_t first, int64_t count, clt_loader_batch *out) {
    rows key = {epoch, first, count};
    if (count > l->max_rows)
        return clt_error(CLT_FAIL, "%lld rows asked of a loader that was opened for %lld", (long long)count,
                         (long long)l->max_rows);
    pthread_mutex_lock(&l->lock);
    buffer *b = &l->buffers[1 - l->front];
    bool announced = l->state != IDLE && same_rows(b->key, key);
    settle(l, announced);
    bool ready = announced && b->st == CLT_OK;
    l->state = IDLE;
    pthread_mutex_unlock(&l->lock);
    if (!ready) {
        b->key = key;
        CLT_TRY(fill(l, b));
    }
    l->front = 1 - l->front;
    *out = (clt_loader_batch){.rows = count,
                              .T = l->T,
                              .samples = b->samples,
                              .tokens = b->tokens,
                              .targets = b->targets,
                              .seq_ids = b->seq_ids,
                              .row_tokens = b->row_tokens,
                              .loss_tokens = b->loss_tokens,
                              .num_tokens = b->num_tokens};
    return CLT_OK;
}

void clt_loader_prefetch(clt_loader *l, int64_t epoch, int64_t first, int64_t count) {
    if (count < 1 || count > l->max_rows) return;
    pthread_mutex_lock(&l->lock);
    settle(l, false);
    l->buffers[1 - l->front].key = (rows){epoch, first, count};
    l->state = REQUESTED;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

/* --- opening --- */

static clt_status check_params(const clt_loader_params *p) {
    if (p->has_streams)
        return clt_error(
            CLT_BAD_CONFIG,
            "dataset.streams: several or weighted streams are not supported; give one dataset in "
            "`local` (merge the folders into one dataset first)");
    if (!p->local || !*p->local)
        return clt_error(CLT_BAD_CONFIG, "dataset.local is missing; name the folder that holds the dataset");
    if (p->max_seq_len < 1 || p->max_seq_len > INT32_MAX)
        return clt_error(CLT_BAD_CONFIG, "dataset.max_seq_len %lld must be at least 1",
                         (long long)p->max_seq_len);
    if (p->vocab_size > INT32_MAX)
        return clt_error(CLT_BAD_CONFIG, "vocab_size %lld does not fit int32", (long long)p->vocab_size);
    if (p->max_rows < 1 || p->max_rows > ((int64_t)1 << 40) / p->max_seq_len)
        return clt_error(CLT_BAD_CONFIG, "%lld samples at once are not possible", (long long)p->max_rows);
    if (p->eos_token_id >= 0 && p->bos_token_id >= 0)
        return clt_error(CLT_BAD_CONFIG,
                         "eos_token_id and bos_token_id cannot both mark sequences; give one of them");
    return CLT_OK;
}

static clt_status open_data(clt_loader *l, const clt_loader_params *p) {
    char *dir = p->split && *p->split ? clt_path_join(p->local, p->split) : clt_strdup(p->local);
    char *index = clt_path_join(dir, "index.json");
    clt_mds_params mp = {p->validate_hash, p->token_encoding_type, p->cache_bytes};
    clt_status st;
    if (p->remote && *p->remote && !clt_io_is_file(index))
        st = clt_error(
            CLT_BAD_CONFIG,
            "dataset.remote %s cannot be fetched, and %s is not there; copy the dataset to `local` first",
            p->remote, index);
    else
        st = clt_mds_open(dir, &mp, &l->mds);
    clt_free(index);
    clt_free(dir);
    CLT_TRY(st);
    if (clt_mds_has_tokens(l->mds)) return clt_mds_preload(l->mds);
    if (!clt_tokenizer_known(p->tokenizer))
        return clt_error(CLT_BAD_CONFIG,
                         "%s holds text and tokenizer '%s' is not loaded; tokenizing while training is only "
                         "there for tokenizer "
                         "'bytes' so far: use that, or a dataset with token columns",
                         clt_mds_dir(l->mds), p->tokenizer ? p->tokenizer : "");
    CLT_TRY(clt_tokenizer_open(p->tokenizer, &l->tokenizer));
    if (l->vocab_size > 0 && l->vocab_size < clt_tokenizer_vocab_size(l->tokenizer))
        return clt_error(CLT_BAD_CONFIG, "vocab_size %lld is smaller than the %lld ids of tokenizer '%s'",
                         (long long)l->vocab_size, (long long)clt_tokenizer_vocab_size(l->tokenizer),
                         p->tokenizer);
    return clt_mds_preload(l->mds);
}

static clt_status open_order(clt_loader *l, const clt_loader_params *p) {
    clt_order_params op;
    size_t n = clt_mds_num_shards(l->mds);
    int64_t *sizes = clt_calloc(n, sizeof *sizes);
    for (size_t i = 0; i < n; i++) {
        clt_mds_shard s;
        clt_mds_shard_info(l->mds, i, &s);
        sizes[i] = s.samples;
    }
    clt_order_params_default(&op);
    op.shard_samples = sizes;
    op.num_shards = n;
    op.shuffle = p->shuffle && !p->eval;
    op.seed = p->shuffle_seed;
    op.canonical_nodes = p->eval ? 1 : p->num_canonical_nodes;
    op.block_size = p->eval ? 0 : p->shuffle_block_size;
    if (p->shuffle_algo) op.algo = p->shuffle_algo;
    if (p->partition_algo) op.partition_algo = p->partition_algo;
    clt_status st = clt_order_create(&op, &l->order);
    clt_free(sizes);
    return st;
}

static clt_status start_thread(clt_loader *l) {
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    int e = pthread_create(&l->thread, NULL, read_ahead, l);
    if (e) return clt_error(CLT_FAIL, "cannot start the data thread: %s", strerror(e));
    l->thread_runs = true;
    return CLT_OK;
}

static clt_status open_all(clt_loader *l, const clt_loader_params *p) {
    CLT_TRY(check_params(p));
    l->T = p->max_seq_len;
    l->vocab_size = p->vocab_size;
    l->max_rows = p->max_rows;
    l->eos = (int32_t)p->eos_token_id;
    l->bos = (int32_t)p->bos_token_id;
    l->pad = (int32_t)p->pad_token_id;
    CLT_TRY(open_data(l, p));
    CLT_TRY(open_order(l, p));
    size_t n = (size_t)l->max_rows, T = (size_t)l->T;
    for (int i = 0; i < 2; i++) {
        buffer *b = &l->buffers[i];
        b->samples = clt_calloc(n, sizeof *b->samples);
        b->tokens = clt_calloc(n * T, sizeof *b->tokens);
        b->targets = clt_calloc(n * T, sizeof *b->targets);
        b->row_tokens = clt_calloc(n, sizeof *b->row_tokens);
        if (l->eos >= 0 || l->bos >= 0) b->seq_ids = clt_calloc(n * T, sizeof *b->seq_ids);
    }
    return start_thread(l);
}

clt_status clt_loader_open(const clt_loader_params *p, clt_loader **out) {
    clt_loader *l = clt_calloc(1, sizeof *l);
    clt_status st = open_all(l, p);
    if (st == CLT_OK)
        *out = l;
    else
        clt_loader_close(l);
    return st;
}

void clt_loader_close(clt_loader *l) {
    if (!l) return;
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
        clt_free(l->buffers[i].samples);
        clt_free(l->buffers[i].tokens);
        clt_free(l->buffers[i].targets);
        clt_free(l->buffers[i].seq_ids);
        clt_free(l->buffers[i].row_tokens);
    }
    clt_str_free(&l->text);
    clt_tokenizer_close(l->tokenizer);
    clt_order_destroy(l->order);
    clt_mds_close(l->mds);
    clt_free(l);
}

int64_t clt_loader_num_samples(const clt_loader *l) {
    return clt_order_num_samples(l->order);
}
int64_t clt_loader_canonical_nodes(const clt_loader *l) {
    return clt_order_canonical_nodes(l->order);
}
bool clt_loader_has_seq_ids(const clt_loader *l) {
    return l->eos >= 0 || l->bos >= 0;
}

int64_t clt_loader_batches(const clt_loader *l, int64_t global_batch, bool drop_last) {
    return clt_order_batches(l->order, global_batch, drop_last);
}
