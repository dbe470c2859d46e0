/* train_loader.dataset.streams: several folders mixed into one epoch; and the parameters of loaders. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "runtime/data/clt_streams.h"
#include "runtime/train/config/clt_config_finetune.h"
#include "runtime/train/config/clt_config_image.h"

#define KEY(name, field, def, help, ...) CLT_KEY(clt_loader_stream, name, field, def, help, __VA_ARGS__)
#define IGNORED(kind, name, why) CLT_KEY_IGNORED(&clt_kind_##kind, name, NULL, NULL, why)
#define IN_ORDER "an evaluation takes every sample once, in index order"

#define PLACE_ROWS                                                                                           \
    KEY("local", local, NULL, "folder of the MDS shards", .nullable = true),                                 \
        KEY("remote", remote, NULL, "path or URL from which the shards that local lacks are fetched",        \
            .nullable = true),                                                                               \
        KEY("split", split, NULL, "sub-folder of local; default: the one of dataset", .nullable = true),     \
        KEY("validate_hash", validate_hash, NULL, "as in dataset, which is the default", .nullable = true),  \
        KEY("download_retry", download_retry, NULL, "as in dataset, which is the default"),                  \
        KEY("download_timeout", download_timeout, NULL, "as in dataset, which is the default"),              \
        CLT_KEY_OF(&clt_kind_bool, clt_loader_stream, "keep_zip", keep_zip, NULL,                            \
                   "as in dataset, which is the default")

static const clt_key train_stream_keys[] = {
    PLACE_ROWS,
    KEY("proportion", proportion, NULL,
        "share of an epoch relative to the other streams; all have it or none", .nullable = true),
    KEY("repeat", repeat, NULL, "how often an epoch has each sample; a fraction is drawn", .nullable = true),
    KEY("choose", choose, NULL, "samples that an epoch draws from the stream; default: all",
        .nullable = true),
};
static const clt_key eval_stream_keys[] = {
    PLACE_ROWS,
    IGNORED(float, "proportion", IN_ORDER),
    IGNORED(float, "repeat", IN_ORDER),
    IGNORED(float, "choose", IN_ORDER),
};
static const clt_schema train_stream_schema = CLT_SCHEMA(train_stream_keys),
                        eval_stream_schema = CLT_SCHEMA(eval_stream_keys);

#define BY_NAME(schema)                                                                                      \
    { .name = "*", .kind = &clt_kind_section, .help = "a stream by its name", .section = &(schema) }
static const clt_key train_names[] = {BY_NAME(train_stream_schema)};
static const clt_key eval_names[] = {BY_NAME(eval_stream_schema)};
const clt_schema clt_config_train_streams_schema = CLT_SCHEMA(train_names),
                 clt_config_eval_streams_schema = CLT_SCHEMA(eval_names);

/* --- epoch_size --- */

static clt_status check_size(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    int64_t size;
    clt_status st = CLT_OK;
    clt_error_quiet(true);
    if (json_is_string(v)) st = clt_streams_parse_size(json_string_value(v), &size);
    clt_error_quiet(false);
    if (st != CLT_OK || (json_is_number(v) && !(json_number_value(v) >= 0 && json_number_value(v) <= 0x1p40)))
        return clt_schema_fail(r, path, "must be a number of samples up to 2^40, like 100, 10k, 1.5m or 2b");
    return json_is_string(v) || json_is_number(v) ? CLT_OK : clt_schema_fail_kind(r, k, path, v);
}

static void store_size(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    int64_t *size = field;
    (void)r;
    (void)k;
    if (json_is_string(v))
        clt_streams_parse_size(json_string_value(v), size); /* checked */
    else
        *size = (int64_t)json_number_value(v);
}
const clt_kind clt_kind_samples = {"a number of samples such as 100 or 10k", sizeof(int64_t), check_size,
                                   store_size, false};

/* --- cache_limit --- */

/* Bytes of a text such as 100gb or 64 KB; -1: it is none. */
static int64_t parse_bytes(const char *text) {
    static const char *const units[] = {"b", "kb", "mb", "gb", "tb", "pb"};
    char *end;
    double v = strtod(text, &end);
    if (end == text || !(v >= 0)) return -1;
    while (*end == ' ') end++;
    size_t i = 0;
    while (*end && i < CLT_COUNT_OF(units) && strcasecmp(end, units[i]) != 0) i++;
    if (i == CLT_COUNT_OF(units)) return -1;
    v = ldexp(v, (int)(10 * i));
    return v <= 0x1p62 ? (int64_t)v : -1;
}

static clt_status check_bytes(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    const bool text = json_is_string(v);
    if (!text && !json_is_integer(v)) return clt_schema_fail_kind(r, k, path, v);
    if (text ? parse_bytes(json_string_value(v)) >= 0 : json_integer_value(v) >= 0) return CLT_OK;
    return clt_schema_fail(r, path, "must be a number of bytes, like 1000000, 500mb or 100gb");
}

static void store_bytes(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    (void)k;
    *(int64_t *)field = json_is_string(v) ? parse_bytes(json_string_value(v)) : json_integer_value(v);
}
const clt_kind clt_kind_bytes = {"a number of bytes such as 1000000 or 100gb", sizeof(int64_t), check_bytes,
                                 store_bytes, false};

/* --- streams --- */

static clt_status read_stream(clt_schema_reader *r, const char *path, const char *name, json_t *v, bool eval,
                              clt_loader_stream *out) {
    *out = (clt_loader_stream){.name = name, .proportion = NAN, .repeat = NAN, .choose = NAN};
    if (!json_is_object(v)) return clt_schema_fail(r, path, "must be a map, not %s", clt_json_type_name(v));
    CLT_TRY(clt_schema_read(r, eval ? &eval_stream_schema : &train_stream_schema, path, v, out));
    out->has_keep_zip = json_object_get(v, "keep_zip") != NULL;
    out->has_retry = json_object_get(v, "download_retry") != NULL;
    if (!out->local && !out->remote)
        return clt_schema_fail(r, path,
                               "has no local: name the folder of the stream's MDS shards, or a remote");
    out->has_timeout = json_object_get(v, "download_timeout") != NULL;
    if (out->has_timeout && !(out->download_timeout > 0))
        return clt_schema_fail(r, path, "has download_timeout %g: it must be more than 0 seconds",
                               out->download_timeout);
    if (out->download_retry < 0)
        return clt_schema_fail(r, path, "has download_retry %lld: it must not be negative",
                               (long long)out->download_retry);
    const double weight[] = {out->proportion, out->repeat, out->choose};
    for (size_t i = 0; i < CLT_COUNT_OF(weight); i++)
        if (weight[i] < 0)
            return clt_schema_fail(r, path, "has the weight %g: it must not be negative", weight[i]);
    if (!isnan(out->choose) && out->choose != floor(out->choose))
        return clt_schema_fail(r, path, "has choose %g: it must be a whole number", out->choose);
    return CLT_OK;
}

/* Errors that need no files; clt_streams_create reports the others. */
static clt_status check_weights(clt_schema_reader *r, const char *path, const clt_loader_config *l) {
    const bool relative = !isnan(l->streams[0].proportion);
    for (int i = 0; i < l->n_streams; i++) {
        const clt_loader_stream *s = &l->streams[i];
        const int given = !isnan(s->proportion) + !isnan(s->repeat) + !isnan(s->choose);
        char *key = clt_format("%s.%s", path, s->name);
        clt_status st = CLT_OK;
        if (given > 1)
            st = clt_schema_fail(r, key, "has %d weights: give one of proportion, repeat and choose", given);
        else if (isnan(s->proportion) == relative)
            st = clt_schema_fail(r, key,
                                 "has %s proportion and '%s' has %s: give all streams a proportion, or none",
                                 relative ? "no" : "a", l->streams[0].name, relative ? "one" : "none");
        clt_free(key);
        CLT_TRY(st);
    }
    return CLT_OK;
}

clt_status clt_config_resolve_streams(clt_schema_reader *r, const char *path, bool eval, json_t *map,
                                      clt_loader_config *l) {
    enum { MOST = 4096 };
    const char *name;
    json_t *v;
    if (!map || json_is_null(map) || json_object_size(map) == 0) return CLT_OK;
    char *key = clt_format("%s.dataset.streams", path), *local = clt_format("%s.dataset.local", path);
    clt_status st = CLT_OK;
    if (l->local)
        st = clt_config_fail_both(r, local, key, "give one folder as local, or each stream its own");
    else if (json_object_size(map) > MOST)
        st = clt_schema_fail(r, key, "has more than %d streams", MOST);
    else
        l->streams = clt_calloc(json_object_size(map), sizeof *l->streams);
    json_object_foreach(map, name, v) {
        if (st != CLT_OK) break;
        char *one = clt_format("%s.%s", key, name);
        st = read_stream(r, one, name, v, eval, &l->streams[l->n_streams]);
        clt_free(one);
        l->n_streams += st == CLT_OK;
    }
    if (st == CLT_OK && !eval) st = check_weights(r, key, l);
    clt_free(local);
    clt_free(key);
    return st;
}

/* --- the loader --- */

void clt_config_loader_params(const clt_config *c, const clt_loader_config *l, int ranks,
                              clt_loader_params *out) {
    clt_loader_params_default(out);
    out->local = l->local;
    out->remote = l->remote;
    out->predownload = l->predownload;
    out->cache_limit = (uint64_t)l->cache_limit;
    out->keep_zip = l->keep_zip;
    out->download_retry = l->download_retry;
    out->download_timeout = l->download_timeout;
    out->split = l->split;
    out->streams = l->streams;
    out->n_streams = l->n_streams;
    out->epoch_size = l->epoch_size;
    out->sampling_method = l->sampling_method;
    out->sampling_granularity = l->sampling_granularity;
    out->batching_method = l->batching_method;
    out->replication = l->replication;
    out->global_batch = out->max_rows = c->global_train_batch_size;
    out->devices = ranks;
    out->max_seq_len = c->max_seq_len;
    out->vocab_size = clt_model_get_facts(c->model).vocab_size;
    out->tokenizer = c->tokenizer;
    out->token_encoding_type = l->token_encoding_type;
    out->validate_hash = l->validate_hash;
    out->eval = l != &c->train;
    out->shuffle = l->shuffle;
    out->shuffle_algo = l->shuffle_algo;
    out->shuffle_seed = (uint64_t)l->shuffle_seed;
    out->num_canonical_nodes = l->num_canonical_nodes;
    out->shuffle_block_size = l->shuffle_block_size;
    out->eos_token_id = l->eos_token_id;
    out->bos_token_id = l->bos_token_id;
    out->finetuning = l->kind == CLT_LOADER_FINETUNING;
    out->finetune = clt_config_finetune_params(c, l);
    out->images = l->kind == CLT_LOADER_IMAGE;
    if (out->images) out->image = clt_config_image_params(l);
}

clt_status clt_config_check_batches(const clt_config *c, int64_t samples, int64_t batches) {
    const clt_loader_config *l = &c->train;
    const bool packs = l->kind == CLT_LOADER_FINETUNING && l->finetune.packing_ratio != 1;
    if (batches > 0) return CLT_OK;
    return clt_error(CLT_BAD_DATA,
                     "%s has %lld samples in an epoch, less than one batch (global_train_batch_size %lld%s): "
                     "use more data or a smaller batch",
                     l->local              ? l->local
                     : l->finetune.hf_name ? l->finetune.hf_name
                                           : "train_loader.dataset.streams",
                     (long long)samples, (long long)c->global_train_batch_size,
                     packs ? " times packing_ratio" : "");
}
