#include "runtime/data/finetune/clt_finetune_plan.h"

#include <pthread.h>
#include <string.h>

#include "runtime/data/clt_sequence.h"
#include "runtime/data/finetune/clt_finetune_pack.h"
#include "runtime/data/finetune/clt_torch_random.h"

/* The rows of one epoch. Row i is members first[i] to first[i + 1] - 1; without packing, member i. */
typedef struct {
    int64_t epoch; /* -1: none */
    int64_t *member;
    size_t members, member_cap;
    size_t *first;
    size_t rows, row_cap;
} epoch_rows;

struct clt_finetune_plan {
    const clt_finetune_samples *samples;
    clt_finetune_params f; /* its strings are not used */
    int64_t n, row_size;   /* samples of an epoch */
    bool shuffle;
    uint64_t seed;
    clt_sequence *order; /* MDS */
    int64_t read;        /* samples of a batch */
    bool packs, warned;

    pthread_mutex_t lock;   /* for all below */
    clt_bin_packer *packer; /* after epochs 0 to next - 1 */
    int64_t next;
    int64_t *sequence; /* [n] the samples of an epoch in order */
    int32_t *sizes;    /* [n] their lengths */
    epoch_rows kept[2];
};

int64_t clt_finetune_plan_samples(const clt_finetune_plan *p) {
    return p->n;
}
int64_t clt_finetune_plan_read(const clt_finetune_plan *p) {
    return p->read;
}
bool clt_finetune_plan_packs(const clt_finetune_plan *p) {
    return p->packs;
}
int64_t clt_finetune_plan_canonical_nodes(const clt_finetune_plan *p) {
    return p->order ? clt_sequence_canonical_nodes(p->order) : 1;
}

/* --- the order of samples --- */

static clt_status make_sequence(clt_finetune_plan *p, int64_t epoch) {
    if (p->order) {
        CLT_TRY(clt_sequence_batch(p->order, epoch, 0, p->n, p->sequence));
    } else if (p->shuffle) {
        clt_torch_randperm(p->seed + (uint64_t)epoch, p->sequence, (size_t)p->n);
    } else {
        for (int64_t i = 0; i < p->n; i++) p->sequence[i] = i;
    }
    for (int64_t i = 0; i < p->n; i++) p->sizes[i] = clt_finetune_samples_get(p->samples, p->sequence[i]).n;
    return CLT_OK;
}

/* --- the rows of an epoch --- */

static clt_status reserve(epoch_rows *e, size_t members, size_t rows) {
    if (members > e->member_cap) {
        int64_t *grown = clt_try_realloc(e->member, members * sizeof *grown);
        if (!grown) return clt_no_memory("the rows of an epoch", members * sizeof *grown);
        e->member = grown;
        e->member_cap = members;
    }
    if (rows + 1 > e->row_cap) {
        size_t *grown = clt_try_realloc(e->first, (rows + 1) * sizeof *grown);
        if (!grown) return clt_no_memory("the rows of an epoch", (rows + 1) * sizeof *grown);
        e->first = grown;
        e->row_cap = rows + 1;
    }
    return CLT_OK;
}

static clt_status add_bins(epoch_rows *e, const clt_pack_bin *bins, size_t n) {
    size_t members = 0;
    for (size_t i = 0; i < n; i++) members += (size_t)bins[i].n;
    members += e->members;
    if (members > e->member_cap || e->rows + n + 1 > e->row_cap)
        CLT_TRY(reserve(e, members + members / 4, e->rows + n + e->rows / 4));
    for (size_t i = 0; i < n; i++) {
        e->first[e->rows++] = e->members;
        memcpy(e->member + e->members, bins[i].sample, (size_t)bins[i].n * sizeof *e->member);
        e->members += (size_t)bins[i].n;
    }
    e->first[e->rows] = e->members;
    return CLT_OK;
}

/* Rows that wait for ever are samples that are never trained on, and every batch searches them. */
static void warn_of_rows(clt_finetune_plan *p, int64_t batches) {
    enum { MANY_BATCHES = 100 };
    const size_t left = clt_bin_packer_left(p->packer);
    if (p->warned || left < (size_t)(MANY_BATCHES * p->f.batch)) return;
    p->warned = true;
    clt_warn("packing_ratio is too high for these samples: after batch %lld of %lld samples %zu filled rows "
             "wait for a place, and they become more; a lower ratio (auto finds one) trains on all samples, "
             "max_leftover_bins_to_keep drops what waits",
             (long long)batches, (long long)p->read, left);
}

static clt_status pack_epoch(clt_finetune_plan *p, epoch_rows *e) {
    const int64_t most = p->f.most_batches;
    int64_t batches = p->f.drop_last ? p->n / p->read : CLT_CEIL_DIV(p->n, p->read);
    if (most > 0) batches = CLT_MIN(batches, most);
    for (int64_t b = 0; b < batches; b++) {
        const int64_t at = b * p->read, count = CLT_MIN(p->read, p->n - at);
        const clt_pack_bin *bins;
        size_t n;
        CLT_TRY(clt_bin_packer_add(p->packer, p->sequence + at, p->sizes + at, (size_t)count, &bins, &n));
        CLT_TRY(add_bins(e, bins, n));
        warn_of_rows(p, b + 1);
    }
    return CLT_OK;
}

static void forget(clt_finetune_plan *p) {
    clt_bin_packer_destroy(p->packer);
    p->packer = NULL;
    p->next = 0;
    p->kept[0].epoch = p->kept[1].epoch = -1;
}

/* Makes the rows of the epoch; with packing it is epoch p->next. */
static clt_status make_epoch(clt_finetune_plan *p, int64_t epoch) {
    epoch_rows *e = &p->kept[epoch % 2];
    e->epoch = -1;
    e->members = e->rows = 0;
    CLT_TRY(make_sequence(p, epoch));
    if (p->packs) {
        if (!p->packer) p->packer = clt_bin_packer_create(p->f.batch, p->row_size, p->f.most_leftover);
        CLT_TRY(pack_epoch(p, e));
        p->next = epoch + 1;
    } else {
        CLT_TRY(reserve(e, (size_t)p->n, 0));
        memcpy(e->member, p->sequence, (size_t)p->n * sizeof *e->member);
        e->members = e->rows = (size_t)p->n;
    }
    e->epoch = epoch;
    return CLT_OK;
}

/* Lock held. */
static clt_status find_epoch(clt_finetune_plan *p, int64_t epoch, const epoch_rows **out) {
    clt_status st = epoch < 0 ? clt_error(CLT_FAIL, "epoch %lld", (long long)epoch) : CLT_OK;
    if (st != CLT_OK) return st;
    const epoch_rows *e = &p->kept[epoch % 2];
    *out = e;
    if (e->epoch == epoch) return CLT_OK;
    if (!p->packs) return make_epoch(p, epoch);
    if (epoch < p->next) forget(p);
    while (p->next <= epoch && st == CLT_OK) st = make_epoch(p, p->next);
    if (st != CLT_OK) forget(p); /* the packer may have been left within an epoch */
    return st;
}

clt_status clt_finetune_plan_rows(clt_finetune_plan *p, int64_t epoch, int64_t *rows) {
    const epoch_rows *e;
    pthread_mutex_lock(&p->lock);
    clt_status st = find_epoch(p, epoch, &e);
    if (st == CLT_OK) *rows = (int64_t)e->rows;
    pthread_mutex_unlock(&p->lock);
    return st;
}

static clt_status copy_row(const clt_finetune_plan *p, const epoch_rows *e, int64_t row, int64_t **sample,
                           size_t *cap, size_t *n) {
    if (row < 0 || row >= (int64_t)e->rows)
        return clt_error(CLT_BAD_CONFIG, "row %lld of epoch %lld does not exist: the epoch has %zu",
                         (long long)row, (long long)e->epoch, e->rows);
    const size_t first = p->packs ? e->first[row] : (size_t)row;
    *n = p->packs ? e->first[row + 1] - first : 1;
    if (*n > *cap) {
        int64_t *grown = clt_try_realloc(*sample, *n * sizeof *grown);
        if (!grown) return clt_no_memory("a packed row", *n * sizeof *grown);
        *sample = grown;
        *cap = *n;
    }
    memcpy(*sample, e->member + first, *n * sizeof **sample);
    return CLT_OK;
}

clt_status clt_finetune_plan_row(clt_finetune_plan *p, int64_t epoch, int64_t row, int64_t **sample,
                                 size_t *cap, size_t *n) {
    const epoch_rows *e;
    pthread_mutex_lock(&p->lock);
    clt_status st = find_epoch(p, epoch, &e);
    if (st == CLT_OK) st = copy_row(p, e, row, sample, cap, n);
    pthread_mutex_unlock(&p->lock);
    return st;
}

/* --- opening --- */

/* The order of samples for batches of `batch`, on which that of several streams may depend. */
static clt_status make_order(clt_finetune_plan *p, const clt_loader_params *lp,
                             const clt_finetune_shards *shards, int64_t batch) {
    clt_loader_params one = *lp;
    one.global_batch = batch;
    one.devices = one.replication = 1; /* rows do not depend on ranks */
    if (shards->samples) {
        clt_sequence_close(p->order);
        p->order = NULL;
        CLT_TRY(clt_sequence_open(&one, shards->samples, shards->of_stream, &p->order));
        p->n = clt_sequence_num_samples(p->order);
    }
    clt_free(p->sequence);
    clt_free(p->sizes);
    p->sequence = clt_try_calloc((size_t)p->n, sizeof *p->sequence);
    p->sizes = clt_try_calloc((size_t)p->n, sizeof *p->sizes);
    if (p->sequence && p->sizes) return CLT_OK;
    return clt_no_memory("the order of the samples",
                         (uint64_t)p->n * (sizeof *p->sequence + sizeof *p->sizes));
}

/* packing_ratio: auto, by the first samples of epoch 0, which LLM Foundry reads as one batch. */
static clt_status find_ratio(clt_finetune_plan *p, const clt_loader_params *lp,
                             const clt_finetune_shards *shards, double *ratio) {
    const int64_t most = clt_pack_profile_samples(p->f.batch, p->row_size);
    *ratio = 1;
    if (most > 0) {
        CLT_TRY(make_order(p, lp, shards, most));
        CLT_TRY(make_sequence(p, 0));
        CLT_TRY(clt_pack_profile(p->f.batch, p->row_size, p->sizes, (size_t)CLT_MIN(most, p->n), ratio, NULL,
                                 NULL));
    }
    clt_info("packing_ratio: auto is %g", *ratio);
    return CLT_OK;
}

static clt_status open_plan(clt_finetune_plan *p, const clt_loader_params *lp,
                            const clt_finetune_shards *shards) {
    double ratio = p->f.packing_ratio;
    p->n = clt_finetune_samples_count(p->samples);
    p->row_size = lp->max_seq_len;
    p->shuffle = lp->shuffle && !lp->eval;
    p->seed = lp->shuffle_seed;
    if (ratio <= 0) CLT_TRY(find_ratio(p, lp, shards, &ratio));
    p->packs = ratio > 1;
    p->read = p->packs ? (int64_t)((double)p->f.batch * ratio) : p->f.batch;
    return make_order(p, lp, shards, p->read);
}

clt_status clt_finetune_plan_create(const clt_loader_params *lp, const clt_finetune_samples *samples,
                                    const clt_finetune_shards *shards, clt_finetune_plan **out) {
    clt_finetune_plan *p = clt_calloc(1, sizeof *p);
    p->samples = samples;
    p->f = lp->finetune;
    pthread_mutex_init(&p->lock, NULL);
    forget(p);
    clt_status st = open_plan(p, lp, shards);
    if (st == CLT_OK)
        *out = p;
    else
        clt_finetune_plan_destroy(p);
    return st;
}

void clt_finetune_plan_destroy(clt_finetune_plan *p) {
    if (!p) return;
    forget(p);
    for (int i = 0; i < 2; i++) {
        clt_free(p->kept[i].member);
        clt_free(p->kept[i].first);
    }
    clt_free(p->sequence);
    clt_free(p->sizes);
    clt_sequence_close(p->order);
    pthread_mutex_destroy(&p->lock);
    clt_free(p);
}
