/* cltrain data order --spec FILE: the order of one case over several streams, as the reference divides it
 * among ranks, as JSON. */
#include <math.h>
#include <string.h>

#include "tools/cltrain/data_commands.h"
#include "runtime/base/clt_json.h"
#include "runtime/base/clt_schema.h"
#include "runtime/data/clt_digest.h"
#include "runtime/data/clt_streams.h"

typedef struct {
    json_t *streams, *epoch_size, *resume; /* borrowed */
    const char *sampling_method, *batching_method, *algo, *partition_algo;
    int64_t sampling_granularity, replication, canonical, nodes, ranks, workers, batch, seed, block, epoch;
    bool shuffle;
} spec_fields;

typedef struct {
    spec_fields f;
    clt_streams_params p;
    clt_stream *stream;
    int64_t **sizes;
    int64_t epoch, from;
    int64_t copies; /* ranks with the same samples */
    clt_strv strings;
} spec_case;

#define KEY(name, field, def, help, ...) CLT_KEY(spec_fields, name, field, def, help, __VA_ARGS__)

static const clt_key spec_keys[] = {
    CLT_KEY_OF(&clt_kind_list, spec_fields, "streams", streams, CLT_KEY_REQUIRED, "shards and weights"),
    CLT_KEY_OF(&clt_kind_any, spec_fields, "epoch_size_given", epoch_size, NULL, "samples of an epoch",
               .nullable = true),
    CLT_KEY_OF(&clt_kind_map, spec_fields, "resume", resume, NULL, "a saved position", .nullable = true),
    KEY("sampling_method", sampling_method, "\"balanced\"", "balanced or fixed"),
    KEY("sampling_granularity", sampling_granularity, "1", "samples drawn from a shard at a time"),
    KEY("batching_method", batching_method, "\"random\"", "how streams are mixed"),
    KEY("replication", replication, "1", "ranks with the same samples", .nullable = true),
    KEY("partition_algo", partition_algo, "\"relaxed\"", "relaxed or orig"),
    KEY("num_canonical_nodes_given", canonical, "0", "canonical nodes", .nullable = true),
    KEY("physical_nodes", nodes, "1", "nodes"),
    KEY("ranks_per_node", ranks, "1", "ranks of each node"),
    KEY("workers", workers, "0", "DataLoader workers"),
    KEY("batch_size", batch, "1", "batch size of a rank"),
    KEY("shuffle", shuffle, "true", "whether samples are shuffled"),
    KEY("algo", algo, "\"py1e\"", "shuffle algorithm"),
    KEY("seed_given", seed, "9176", "shuffle seed"),
    KEY("block_size_given", block, "0", "shuffle block size", .nullable = true),
    KEY("epoch", epoch, "0", "epoch"),
};

/* --- reading --- */

typedef struct {
    double proportion, repeat, choose;
    json_t *shard_sizes;
} stream_fields;

static const clt_key stream_keys[] = {
    CLT_KEY_OF(&clt_kind_list, stream_fields, "shard_sizes", shard_sizes, CLT_KEY_REQUIRED,
               "samples of each shard"),
    CLT_KEY(stream_fields, "proportion", proportion, NULL, "relative weight", .nullable = true),
    CLT_KEY(stream_fields, "repeat", repeat, NULL, "times that it is seen", .nullable = true),
    CLT_KEY(stream_fields, "choose", choose, NULL, "samples drawn from it", .nullable = true),
};

static clt_status read_stream(clt_schema_reader *r, spec_case *c, json_t *v, size_t i) {
    const clt_schema schema = CLT_SCHEMA(stream_keys);
    stream_fields f = {.proportion = NAN, .repeat = NAN, .choose = NAN};
    char path[32];
    snprintf(path, sizeof path, "streams.%zu", i);
    if (!json_is_object(v)) return clt_schema_fail(r, path, "must be a map, not %s", clt_json_type_name(v));
    CLT_TRY(clt_schema_read(r, &schema, path, v, &f));
    const size_t n = json_array_size(f.shard_sizes);
    int64_t *sizes = c->sizes[i] = clt_calloc(n + 1, sizeof *sizes);
    for (size_t k = 0; k < n; k++) {
        json_t *size = json_array_get(f.shard_sizes, k);
        if (!json_is_integer(size)) return clt_schema_fail(r, path, "has a shard size that is no integer");
        sizes[k] = json_integer_value(size);
    }
    char *name = clt_format("%zu", i);
    clt_strv_add(&c->strings, name);
    clt_free(name);
    c->stream[i] = (clt_stream){.name = c->strings.v[c->strings.n - 1],
                                .shard_samples = sizes,
                                .num_shards = n,
                                .proportion = f.proportion,
                                .repeat = f.repeat,
                                .choose = f.choose};
    return CLT_OK;
}

static clt_status read_epoch_size(clt_schema_reader *r, const spec_case *c, int64_t *out) {
    const json_t *v = c->f.epoch_size;
    if (!v || json_is_null(v)) return CLT_OK;
    if (json_is_string(v)) return clt_streams_parse_size(json_string_value(v), out);
    if (json_is_number(v) && json_number_value(v) >= 0 && json_number_value(v) <= 0x1p40) {
        *out = (int64_t)json_number_value(v);
        return CLT_OK;
    }
    return clt_schema_fail(r, "epoch_size_given", "must be a number of samples that is not negative");
}

/* The saved position: a saved epoch before the requested one is out of date and has no effect. */
static clt_status read_resume(const spec_case *c, clt_order_params *o, int64_t *epoch, int64_t *from) {
    int64_t saved, seed, initial = 0;
    json_t *v = c->f.resume;
    *epoch = c->f.epoch;
    if (!v || json_is_null(v)) return CLT_OK;
    CLT_TRY(clt_json_get_i64(v, "epoch", "resume", &saved));
    if (saved < *epoch) return CLT_OK;
    CLT_TRY(clt_json_get_i64(v, "sample_in_epoch", "resume", from));
    CLT_TRY(clt_json_get_i64(v, "num_canonical_nodes", "resume", &o->canonical_nodes));
    CLT_TRY(clt_json_get_i64(v, "shuffle_seed", "resume", &seed));
    if (json_is_integer(json_object_get(v, "initial_physical_nodes")))
        CLT_TRY(clt_json_get_i64(v, "initial_physical_nodes", "resume", &initial));
    if (saved < 0 || *from < 0 || seed < 0 || o->canonical_nodes < 1 || initial < 0)
        return clt_error(CLT_BAD_CONFIG, "resume: numbers must not be negative, num_canonical_nodes not 0");
    o->initial_nodes = initial;
    o->seed = (uint64_t)seed;
    *epoch = saved;
    return CLT_OK;
}

/* The world of samples: with replication it has fewer ranks, on as many full nodes as they fill, else on one.
 */
static clt_status set_world(spec_case *c) {
    const spec_fields *f = &c->f;
    if (f->nodes < 1 || f->nodes > 4096 || f->ranks < 1 || f->ranks > 4096)
        return clt_error(CLT_BAD_CONFIG, "physical_nodes and ranks_per_node must be 1 to 4096");
    if (f->replication < 1)
        return clt_error(CLT_BAD_CONFIG, "replication %lld must be at least 1", (long long)f->replication);
    const int64_t all = f->nodes * f->ranks, ranks = all / f->replication;
    if (all % f->replication != 0)
        return clt_error(CLT_BAD_CONFIG, "replication %lld must divide the %lld ranks",
                         (long long)f->replication, (long long)all);
    c->copies = f->replication;
    c->p.order.physical_nodes = ranks % f->ranks == 0 ? ranks / f->ranks : 1;
    c->p.ranks_per_node = ranks / c->p.order.physical_nodes;
    c->p.batch_size = f->batch;
    return CLT_OK;
}

static clt_status set_order(spec_case *c) {
    const spec_fields *f = &c->f;
    clt_order_params *o = &c->p.order;
    if (f->seed < 0)
        return clt_error(CLT_BAD_CONFIG, "shuffle_seed %lld must not be negative", (long long)f->seed);
    if (f->epoch < 0 || f->workers < 0)
        return clt_error(CLT_BAD_CONFIG, "epoch and workers must not be negative");
    c->p.sampling_method = f->sampling_method;
    c->p.batching_method = f->batching_method;
    c->p.sampling_granularity = f->sampling_granularity;
    c->p.weight_seed = (uint64_t)f->seed;
    o->seed = (uint64_t)f->seed;
    o->shuffle = f->shuffle;
    o->algo = f->algo;
    o->partition_algo = f->partition_algo;
    o->canonical_nodes = f->canonical;
    o->block_size = f->block;
    CLT_TRY(set_world(c));
    return read_resume(c, o, &c->epoch, &c->from);
}

/* Unknown keys are skipped: an answer is also a valid case. */
static clt_status read_case(json_t *doc, const char *path, spec_case *c) {
    const clt_schema schema = CLT_SCHEMA(spec_keys);
    clt_schema_reader r = {
        .what = path, .status = CLT_BAD_CONFIG, .ignore_unknown = true, .strings = &c->strings};
    CLT_TRY(clt_schema_read(&r, &schema, "", doc, &c->f));
    clt_streams_params_default(&c->p);
    const size_t n = json_array_size(c->f.streams);
    c->stream = clt_calloc(n + 1, sizeof *c->stream);
    c->sizes = clt_calloc(n + 1, sizeof *c->sizes);
    c->p.stream = c->stream;
    for (size_t i = 0; i < n; i++, c->p.n++) CLT_TRY(read_stream(&r, c, json_array_get(c->f.streams, i), i));
    CLT_TRY(read_epoch_size(&r, c, &c->p.epoch_size));
    return set_order(c);
}

static void free_case(spec_case *c) {
    for (size_t i = 0; c->sizes && i < json_array_size(c->f.streams); i++) clt_free(c->sizes[i]);
    clt_free(c->sizes);
    clt_free(c->stream);
    clt_strv_free(&c->strings);
}

/* --- answering --- */

static void set_int(json_t *o, const char *key, int64_t v) {
    json_object_set_new(o, key, json_integer(v));
}

/* Batches without padding, and their totals. */
static clt_status add_batches(json_t *rank, int64_t *ids, int64_t count, int64_t batch) {
    json_t *batches = json_array();
    int64_t samples = 0, full = 0;
    char hex[CLT_DIGEST_MAX_HEX];
    for (int64_t g = 0; g < count; g += batch) {
        json_t *one = json_array();
        for (int64_t s = g; s < g + batch; s++)
            if (ids[s] >= 0) {
                json_array_append_new(one, json_integer(ids[s]));
                ids[samples++] = ids[s];
            }
        full += json_array_size(one) == (size_t)batch;
        if (json_array_size(one)) json_array_append(batches, one);
        json_decref(one);
    }
    CLT_TRY(clt_digest_of(clt_digest_find("sha256"), ids, (size_t)samples * sizeof *ids, hex));
    set_int(rank, "num_samples", samples);
    set_int(rank, "num_batches", (int64_t)json_array_size(batches));
    set_int(rank, "num_batches_drop_last", full);
    json_object_set_new(rank, "sha256_int64_le", json_string(hex));
    json_object_set_new(rank, "batches", batches);
    return CLT_OK;
}

static clt_status add_rank(const spec_case *c, clt_streams *s, json_t *ranks, int64_t k) {
    const int64_t per_node = c->p.ranks_per_node, own = k / c->copies;
    json_t *rank = json_object();
    json_array_append_new(ranks, rank);
    set_int(rank, "rank", k);
    set_int(rank, "node", k / c->f.ranks);
    set_int(rank, "rank_of_node", k % c->f.ranks);
    if (k % c->copies != 0) {
        json_t *same = json_array_get(ranks, (size_t)(own * c->copies));
        const char *key;
        json_t *v;
        json_object_foreach(same, key, v) if (!json_object_get(rank, key) && strcmp(key, "batches") != 0)
            json_object_set(rank, key, v);
        set_int(rank, "same_as_rank", own * c->copies);
        return CLT_OK;
    }
    int64_t *ids, count;
    CLT_TRY(clt_streams_rank(s, c->epoch, c->from, own / per_node, own % per_node, &ids, &count));
    clt_status st = add_batches(rank, ids, count, c->f.batch);
    clt_free(ids);
    return st;
}

static json_t *list_units(const clt_streams *s, int64_t i) {
    const int64_t *sizes;
    size_t n;
    json_t *list = json_array();
    clt_streams_units(s, i, &sizes, &n);
    for (size_t k = 0; k < n; k++) json_array_append_new(list, json_integer(sizes[k]));
    return list;
}

static void add_effect(const spec_case *c, const clt_streams *s, json_t *out) {
    set_int(out, "num_canonical_nodes", clt_streams_canonical_nodes(s));
    set_int(out, "seed", (int64_t)c->p.order.seed);
    set_int(out, "block_size", clt_streams_block_size(s));
    set_int(out, "epoch", c->epoch);
    set_int(out, "sample_in_epoch", c->from);
    set_int(out, "epoch_size", clt_streams_epoch_size(s));
    json_t *choose = json_array(), *share = json_array();
    for (size_t i = 0; i < c->p.n; i++) {
        json_array_append_new(choose, json_integer(clt_streams_choose(s, i)));
        json_array_append_new(share, json_real(clt_streams_share(s, i)));
    }
    json_object_set_new(out, "choose", choose);
    json_object_set_new(out, "proportion", share);
    json_object_set_new(out, "world_of_samples",
                        json_pack("{s:I,s:I}", "nodes", (json_int_t)c->p.order.physical_nodes,
                                  "ranks_per_node", (json_int_t)c->p.ranks_per_node));
    const char *batching = c->f.batching_method;
    json_t *units = strcmp(batching, "random") == 0 ? list_units(s, -1) : json_array();
    for (size_t i = 0; strcmp(batching, "random") != 0 && i < c->p.n; i++)
        json_array_append_new(units, list_units(s, (int64_t)i));
    json_object_set_new(out, "shuffle_units", units);
}

static clt_status answer(const spec_case *c, json_t *out) {
    clt_streams *s;
    CLT_TRY(clt_streams_create(&c->p, &s));
    json_t *ranks = json_array();
    clt_status st = CLT_OK;
    for (int64_t k = 0; k < c->f.nodes * c->f.ranks && st == CLT_OK; k++) st = add_rank(c, s, ranks, k);
    if (st == CLT_OK) add_effect(c, s, out);
    json_object_set_new(out, "ranks", ranks);
    clt_streams_destroy(s);
    return st;
}

clt_status data_order_spec(const char *path) {
    enum { MOST_BYTES = 64 << 20, MOST_DEPTH = 16 };
    json_t *doc, *out = json_object();
    spec_case c = {0};
    clt_status st = clt_json_load(path, MOST_BYTES, MOST_DEPTH, &doc);
    if (st != CLT_OK) {
        json_decref(out);
        return st;
    }
    st = read_case(doc, path, &c);
    if (st == CLT_OK) st = answer(&c, out);
    if (st != CLT_OK) {
        json_object_clear(out);
        json_object_set_new(out, "error", json_string(clt_last_error()));
    }
    char *text;
    if (clt_json_dump(out, "the order", &text) == CLT_OK) {
        printf("%s\n", text);
        clt_free(text);
    } else if (st == CLT_OK) {
        st = CLT_NO_MEMORY;
    }
    free_case(&c);
    json_decref(doc);
    json_decref(out);
    return st;
}
