#include <string.h>

#include "runtime/data/clt_shared_ids.h"
#include "runtime/data/clt_shuffle_internal.h"

typedef clt_shuffle_span span;

struct clt_shuffle {
    clt_shuffle_algo algo;
    int64_t n, nodes, block;
    uint64_t seed;
    size_t num_shards;
    int64_t *shard_samples;
    span *spans;   /* the constant part: spans in shuffled shard order, cut at canonical node borders */
    size_t *group; /* spans of node c are [group[c], group[c+1]) */
    span *epoch_spans;
    clt_ids source; /* py2s: every span's ids in their constant order */
    clt_ids ids;    /* of the epoch: `own`, or shared with the other processes of the host */
    void *own;      /* room for all ids; while they are shared its pages are not used */
    bool share;
    clt_shared_ids shared;
    int64_t *stagger;   /* py1br, one per node */
    clt_spread *spread; /* py1e */
};

static const char *const algo_names[] = {[CLT_SHUFFLE_NAIVE] = "naive",
                                         [CLT_SHUFFLE_PY1S] = "py1s",
                                         [CLT_SHUFFLE_PY1E] = "py1e",
                                         [CLT_SHUFFLE_PY1BR] = "py1br",
                                         [CLT_SHUFFLE_PY2S] = "py2s"};

clt_status clt_shuffle_parse(const char *name, clt_shuffle_algo *out) {
    for (size_t i = 0; i < CLT_COUNT_OF(algo_names); i++)
        if (strcmp(name, algo_names[i]) == 0) {
            *out = (clt_shuffle_algo)i;
            return CLT_OK;
        }
    const char *near = clt_nearest(name, algo_names, CLT_COUNT_OF(algo_names));
    return clt_error(CLT_BAD_CONFIG,
                     "unknown shuffle_algo '%s'%s%s%s; known are naive, py1s, py1e, py1br, py2s", name,
                     near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "");
}

/* Cuts the span list where a canonical node ends: node c has positions floor(c N / NCN) .. floor((c+1) N /
 * NCN). */
static void divide_spans(clt_shuffle *s, span *in, size_t n_in) {
    size_t next = 0, n_out = 0;
    int64_t done = 0;
    for (int64_t c = 0; c < s->nodes; c++) {
        int64_t stop = s->n * (c + 1) / s->nodes;
        s->group[c] = n_out;
        while (next < n_in && done < stop) {
            int64_t take = CLT_MIN(in[next].end - in[next].begin, stop - done);
            s->spans[n_out++] = (span){in[next].begin, in[next].begin + take};
            in[next].begin += take;
            done += take;
            if (in[next].begin == in[next].end) next++;
        }
    }
    s->group[s->nodes] = n_out;
}

static void fill_range(clt_ids ids, int64_t at, span p) {
    for (int64_t i = p.begin; i < p.end; i++) clt_ids_set(ids, at++, i);
}

static void shuffle_range(clt_nprng *r, clt_ids ids, int64_t at, int64_t n) {
    if (ids.wide)
        clt_nprng_shuffle_i64(r, (int64_t *)ids.v + at, (size_t)n);
    else
        clt_nprng_shuffle_u32(r, (uint32_t *)ids.v + at, (size_t)n);
}

/* What is the same in every epoch: which node has which parts of which shards. */
static void prepare_nodes(clt_shuffle *s) {
    span *shards = s->epoch_spans; /* free until the first epoch */
    int64_t at = 0;
    for (size_t i = 0; i < s->num_shards; i++) {
        shards[i] = (span){at, at + s->shard_samples[i]};
        at = shards[i].end;
    }
    clt_nprng r;
    clt_nprng_seed(&r, s->seed, 0);
    clt_nprng_shuffle(&r, shards, s->num_shards, sizeof *shards);
    if (s->algo == CLT_SHUFFLE_PY2S) {
        /* From here on spans are positions in `source`, which holds every shard's ids in a constant order. */
        at = 0;
        for (size_t i = 0; i < s->num_shards; i++) {
            int64_t n = shards[i].end - shards[i].begin;
            fill_range(s->source, at, shards[i]);
            shuffle_range(&r, s->source, at, n);
            shards[i] = (span){at, at + n};
            at += n;
        }
    }
    divide_spans(s, shards, s->num_shards);
}

static clt_status check_block(const clt_shuffle *s) {
    int64_t lo = (int64_t)(0.75 * (double)s->block), hi = (int64_t)(1.25 * (double)s->block);
    if (s->algo == CLT_SHUFFLE_PY1E && lo >= hi)
        return clt_error(CLT_BAD_CONFIG, "shuffle_block_size %lld is too small", (long long)s->block);
    if (s->algo == CLT_SHUFFLE_PY1BR && lo < 1)
        return clt_error(CLT_BAD_CONFIG, "shuffle_block_size %lld is too small for py1br; use 2 or more",
                         (long long)s->block);
    if (s->algo == CLT_SHUFFLE_PY1E && s->n < s->nodes)
        return clt_error(
            CLT_BAD_CONFIG,
            "py1e cannot shuffle %lld samples over %lld canonical nodes: a node would have none; "
            "reduce num_canonical_nodes",
            (long long)s->n, (long long)s->nodes);
    return CLT_OK;
}

static int64_t largest_shard(const clt_shuffle *s, const int64_t *shard_samples, size_t num_shards) {
    int64_t most = 0;
    for (size_t i = 0; i < num_shards; i++) most = CLT_MAX(most, shard_samples[i]);
    return CLT_MIN(most, CLT_CEIL_DIV(s->n, s->nodes));
}

static clt_status allocate(clt_shuffle *s, const int64_t *shard_samples, size_t num_shards) {
    const size_t n = (size_t)s->n, nodes = (size_t)s->nodes, spans = num_shards + nodes;
    s->ids.wide = s->source.wide = clt_ids_are_wide(s->n);
    const size_t size = clt_ids_size(s->ids.wide);
    bool good = (s->shard_samples = clt_try_calloc(num_shards, sizeof *s->shard_samples)) &&
                (s->own = clt_try_calloc(n, size));
    s->ids.v = s->own;
    if (s->algo != CLT_SHUFFLE_NAIVE)
        good = good && (s->spans = clt_try_calloc(spans, sizeof *s->spans)) &&
               (s->epoch_spans = clt_try_calloc(spans, sizeof *s->spans)) &&
               (s->group = clt_try_calloc(nodes + 1, sizeof *s->group));
    if (s->algo == CLT_SHUFFLE_PY2S) good = good && (s->source.v = clt_try_calloc(n, size));
    if (s->algo == CLT_SHUFFLE_PY1BR) good = good && (s->stagger = clt_try_calloc(nodes, sizeof *s->stagger));
    if (s->algo == CLT_SHUFFLE_PY1E)
        good = good && (s->spread = clt_spread_create(CLT_CEIL_DIV(s->n, s->nodes),
                                                      largest_shard(s, shard_samples, num_shards), s->block));
    return good ? CLT_OK : clt_no_memory("the sample order of an epoch", (uint64_t)n * size);
}

clt_status clt_shuffle_create(clt_shuffle_algo algo, const int64_t *shard_samples, size_t num_shards,
                              int64_t canonical_nodes, uint64_t seed, int64_t block_size, bool share,
                              clt_shuffle **out) {
    clt_shuffle probe = {
        .algo = algo, .nodes = canonical_nodes, .block = block_size, .seed = seed, .share = share};
    for (size_t i = 0; i < num_shards; i++) probe.n += shard_samples[i];
    CLT_TRY(check_block(&probe));
    clt_shuffle *s = clt_memdup(&probe, sizeof probe);
    clt_status st = allocate(s, shard_samples, num_shards);
    if (st != CLT_OK) {
        clt_shuffle_destroy(s);
        return st;
    }
    /* The reference drops empty shards; its writer makes one before a sample over size_limit. */
    for (size_t i = 0; i < num_shards; i++)
        if (shard_samples[i] > 0) s->shard_samples[s->num_shards++] = shard_samples[i];
    if (algo != CLT_SHUFFLE_NAIVE) prepare_nodes(s);
    *out = s;
    return CLT_OK;
}

void clt_shuffle_destroy(clt_shuffle *s) {
    if (!s) return;
    clt_free(s->shard_samples);
    clt_free(s->spans);
    clt_free(s->epoch_spans);
    clt_free(s->group);
    clt_free(s->source.v);
    clt_shared_ids_close(&s->shared);
    clt_free(s->own);
    clt_free(s->stagger);
    clt_spread_destroy(s->spread);
    clt_free(s);
}

/* A new order of the spans of node c. */
static void shuffle_node(clt_shuffle *s, clt_nprng *r, int64_t c) {
    clt_nprng_shuffle(r, s->epoch_spans + s->group[c], s->group[c + 1] - s->group[c], sizeof *s->spans);
}

/* py1s and py2s: the ids of every span are shuffled, span after span. py2s shuffles the spans of a node when
 * it reaches that node. */
static void epoch_spans_alone(clt_shuffle *s, clt_nprng *r) {
    const size_t size = clt_ids_size(s->ids.wide);
    int64_t at = 0;
    for (int64_t c = 0; c < s->nodes; c++) {
        if (s->source.v) shuffle_node(s, r, c);
        for (size_t i = s->group[c]; i < s->group[c + 1]; i++) {
            span p = s->epoch_spans[i];
            const int64_t n = p.end - p.begin;
            if (s->source.v)
                memcpy((char *)s->ids.v + (size_t)at * size, (char *)s->source.v + (size_t)p.begin * size,
                       (size_t)n * size);
            else
                fill_range(s->ids, at, p);
            shuffle_range(r, s->ids, at, n);
            at += n;
        }
    }
}

/* py1e: all spans of a node are shuffled before the first sample moves. */
static void epoch_expanded(clt_shuffle *s, clt_nprng *r) {
    int64_t first = 0;
    for (int64_t c = 0; c < s->nodes; c++) {
        const span *spans = s->epoch_spans + s->group[c];
        const size_t n = s->group[c + 1] - s->group[c];
        int64_t at = first;
        for (size_t i = 0; i < n; i++) {
            const int64_t z = spans[i].end - spans[i].begin;
            fill_range(s->ids, at, spans[i]);
            shuffle_range(r, s->ids, at, z);
            at += z;
        }
        clt_spread_node(s->spread, r, spans, n, s->ids, first, at - first);
        first = at;
    }
}

/* py1br: within a node, blocks of random length, staggered per node, are each shuffled. Blocks may overlap,
 * and all lengths of a node are drawn before its first shuffle, so the lengths are drawn twice: to advance
 * the generator, and from a copy to use them. */
static void epoch_blocks(clt_shuffle *s, clt_nprng *r) {
    int64_t lo_block = (int64_t)(0.75 * (double)s->block), hi_block = (int64_t)(1.25 * (double)s->block);
    for (int64_t c = 0; c < s->nodes; c++) s->stagger[c] = clt_nprng_integer(r, 0, lo_block);
    int64_t start = 0;
    for (int64_t c = 0; c < s->nodes; c++) {
        int64_t stop = start;
        for (size_t i = s->group[c]; i < s->group[c + 1]; i++) {
            fill_range(s->ids, stop, s->epoch_spans[i]);
            stop += s->epoch_spans[i].end - s->epoch_spans[i].begin;
        }
        clt_nprng lengths = *r;
        for (int pass = 0; pass < 2; pass++) {
            clt_nprng *from = pass == 0 ? r : &lengths;
            for (int64_t end = start; end < stop;) {
                int64_t length = clt_nprng_integer(from, lo_block, hi_block);
                int64_t b = CLT_MAX(end - s->stagger[c], start),
                        e = CLT_MIN(end + length - s->stagger[c], stop);
                if (pass == 1) shuffle_range(r, s->ids, b, e - b);
                end += e - b;
            }
        }
        start = stop;
    }
}

int64_t clt_shuffle_id(const clt_shuffle *s, int64_t i) {
    return clt_ids_get(s->ids, i);
}

/* What the order of an epoch follows from. */
static clt_hash128 key_of(const clt_shuffle *s, int64_t epoch) {
    const int64_t facts[] = {1, /* version of the order and of the file */
                             s->algo, s->n, s->nodes, s->block, (int64_t)s->seed, epoch};
    clt_hash_state *h = clt_hash_begin();
    clt_hash_add(h, facts, sizeof facts);
    clt_hash_add(h, s->shard_samples, s->num_shards * sizeof *s->shard_samples);
    return clt_hash_end(h);
}

static void compute(clt_shuffle *s, int64_t epoch) {
    clt_nprng r;
    clt_nprng_seed(&r, s->seed, (uint64_t)epoch);
    if (s->algo == CLT_SHUFFLE_NAIVE) {
        fill_range(s->ids, 0, (span){0, s->n});
        shuffle_range(&r, s->ids, 0, s->n);
        return;
    }
    memcpy(s->epoch_spans, s->spans, s->group[s->nodes] * sizeof *s->spans);
    for (int64_t c = 0; c < s->nodes && s->algo != CLT_SHUFFLE_PY2S; c++) shuffle_node(s, &r, c);
    switch (s->algo) {
    case CLT_SHUFFLE_PY1E:
        epoch_expanded(s, &r);
        break;
    case CLT_SHUFFLE_PY1BR:
        epoch_blocks(s, &r);
        break;
    default:
        epoch_spans_alone(s, &r);
        break;
    }
}

void clt_shuffle_epoch(clt_shuffle *s, int64_t epoch) {
    const size_t bytes = (size_t)s->n * clt_ids_size(s->ids.wide);
    bool needed = true;
    clt_shared_ids_close(&s->shared);
    s->share = s->share && clt_shared_ids_open(key_of(s, epoch), bytes, &s->shared, &needed);
    s->ids.v = s->share ? s->shared.ids : s->own;
    if (needed) compute(s, epoch);
    if (needed && s->share) clt_shared_ids_publish(&s->shared);
}
