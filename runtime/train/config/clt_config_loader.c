/* train_loader, eval_loader, eval_loaders. */
#include <string.h>

#include "runtime/train/config/clt_config_finetune.h"
#include "runtime/train/config/clt_config_image.h"

#define KEY(name, field, def, help, ...) CLT_KEY(clt_loader_config, name, field, def, help, __VA_ARGS__)
#define IGNORED(kind, name, def, same, why, ...)                                                             \
    CLT_KEY_IGNORED(&clt_kind_##kind, name, def, same, why, __VA_ARGS__)
#define REFUSE(name, def, why) CLT_KEY_REFUSE(name, def, why)

static const char *const loader_names[] = {"text", "finetuning", "image", NULL}; /* clt_loader_kind */
static const clt_refusal refused_loaders[] = {{"contrastive_pairs", "contrastive training is not supported"},
                                              {NULL, NULL}};
static const char *const shuffle_algos[] = {"naive", "py1s", "py1br", "py1e", "py2s", NULL};
static const clt_refusal refused_shuffles[] = {
    {"py1b", "its order is not reproduced here: use py1br or py1e"}, {NULL, NULL}};
static const char *const partition_algos[] = {"relaxed", "orig", NULL};
static const char *const sampling_methods[] = {"balanced", "fixed", NULL};
static const char *const batching_methods[] = {"random", "stratified", "per_stream", "device_per_stream",
                                               NULL};
static const char *const token_types[] = {"int64",  "int32",  "int16", "int8", "uint64",
                                          "uint32", "uint16", "uint8", NULL};

/* --- dataset --- */

#define NAME_OF(name, field, def, help, list)                                                                \
    CLT_KEY_OF(&clt_kind_name, clt_loader_config, name, field, def, help, .choices = list)
#define IN_ORDER "an evaluation takes every sample once, in index order"

#define PLACE_ROWS                                                                                           \
    KEY("local", local, "null", "folder of the MDS shards; image: or of a folder for each class",            \
        .nullable = true),                                                                                   \
        KEY("remote", remote, "null", "path or URL from which the shards that local lacks are fetched",      \
            .nullable = true),                                                                               \
        KEY("split", split, "null", "sub-folder of local", .nullable = true),                                \
        KEY("max_seq_len", max_seq_len, "null", "tokens of a sample: the same as max_seq_len",               \
            .nullable = true)

#define SHARD_ROWS                                                                                           \
    IGNORED(name, "partition_algo", "\"relaxed\"", NULL,                                                     \
            "the sample order does not depend on the number of hosts", .choices = partition_algos),          \
        CLT_KEY_OF(&clt_kind_name, clt_loader_config, "token_encoding_type", token_encoding_type,            \
                   "\"int64\"", "type of token bytes in the shards", .choices = token_types),                \
        KEY("eos_token_id", eos_token_id, "null", "ends documents: sequence ids count them",                 \
            .nullable = true),                                                                               \
        KEY("bos_token_id", bos_token_id, "null", "begins documents: sequence ids count them",               \
            .nullable = true),                                                                               \
        REFUSE("stream_name", "\"stream\"", "a stream class of Python's cannot be loaded"),                  \
        REFUSE("stream_config", "null", "a stream class of Python's cannot be loaded"),                      \
        KEY("validate_hash", validate_hash, "null",                                                          \
            "checksum to check each shard with; null: the fastest of its raw bytes; none: no check",         \
            .nullable = true),                                                                               \
        KEY("predownload", predownload, "null",                                                              \
            "samples of a rank whose shards are fetched ahead; default: 8 batches of the rank",              \
            .nullable = true),                                                                               \
        CLT_KEY_OF(&clt_kind_bytes, clt_loader_config, "cache_limit", cache_limit, "null",                   \
                   "most bytes of fetched shards in local, like 100gb: the least recently used ones go",     \
                   .nullable = true),                                                                        \
        KEY("keep_zip", keep_zip, "false", "keep fetched shards compressed; false: decompressed"),           \
        KEY("download_retry", download_retry, "2", "further attempts after a failed download"),              \
        KEY("download_timeout", download_timeout, "60", "seconds of each attempt at a download"),            \
        IGNORED(bool, "allow_unsafe_types", "false", "false", "pickled columns are never read")

static const clt_key train_dataset_keys[] = {
    PLACE_ROWS,
    KEY("shuffle", shuffle, "false", "shuffle samples every epoch"),
    CLT_KEY_OF(&clt_kind_name, clt_loader_config, "shuffle_algo", shuffle_algo, "\"py1e\"",
               "order of a shuffle, as Streaming computes it", .choices = shuffle_algos,
               .refused = refused_shuffles),
    KEY("shuffle_seed", shuffle_seed, "null", "seed of the sample order; default: 9176, or 0 with hf_name",
        .nullable = true),
    KEY("shuffle_block_size", shuffle_block_size, "null", "samples of a block that py1br and py1e shuffle",
        .nullable = true),
    KEY("num_canonical_nodes", num_canonical_nodes, "null", "groups that the sample order is made of",
        .nullable = true),
    CLT_KEY_OF(&clt_kind_map, clt_loader_config, "streams", streams_map, NULL,
               "several folders instead of local, by name", .nullable = true,
               .section = &clt_config_train_streams_schema),
    CLT_KEY_OF(&clt_kind_samples, clt_loader_config, "epoch_size", epoch_size, "0",
               "samples that an epoch draws; 0: as many as there are", .nullable = true),
    NAME_OF("sampling_method", sampling_method, "\"balanced\"",
            "samples of a stream that is not taken whole; balanced: others every epoch; fixed: the same",
            sampling_methods),
    KEY("sampling_granularity", sampling_granularity, "1", "samples that are drawn from a shard at a time"),
    NAME_OF("batching_method", batching_method, "\"random\"",
            "random: a batch mixes streams; stratified: in fixed parts; per_stream: it has one stream; "
            "device_per_stream: a rank's batch has one",
            batching_methods),
    KEY("replication", replication, "1", "neighbouring ranks that get the same samples", .nullable = true),
    SHARD_ROWS,
    CLT_CONFIG_FINETUNE_ROWS,
    CLT_CONFIG_IMAGE_ROWS,
    CLT_CONFIG_AUGMENT_ROWS,
};
static const clt_key eval_dataset_keys[] = {
    PLACE_ROWS,
    IGNORED(bool, "shuffle", "false", "false", IN_ORDER),
    IGNORED(name, "shuffle_algo", "\"py1e\"", NULL, IN_ORDER, .choices = shuffle_algos,
            .refused = refused_shuffles),
    IGNORED(int, "shuffle_seed", "9176", NULL, IN_ORDER),
    IGNORED(int, "shuffle_block_size", "null", NULL, IN_ORDER),
    IGNORED(int, "num_canonical_nodes", "null", NULL, IN_ORDER),
    CLT_KEY_OF(&clt_kind_map, clt_loader_config, "streams", streams_map, NULL,
               "several folders instead of local, by name", .nullable = true,
               .section = &clt_config_eval_streams_schema),
    REFUSE("epoch_size", "null", "an evaluation takes every sample once: use eval_subset_num_batches"),
    IGNORED(name, "sampling_method", "\"balanced\"", NULL, IN_ORDER, .choices = sampling_methods),
    IGNORED(int, "sampling_granularity", "1", NULL, IN_ORDER),
    IGNORED(name, "batching_method", "\"random\"", NULL, IN_ORDER, .choices = batching_methods),
    REFUSE("replication", "null", "an evaluation takes every sample once"),
    SHARD_ROWS,
    CLT_CONFIG_FINETUNE_ROWS,
    CLT_CONFIG_IMAGE_ROWS,
};
static const clt_schema train_dataset_schema = CLT_SCHEMA(train_dataset_keys),
                        eval_dataset_schema = CLT_SCHEMA(eval_dataset_keys);

/* --- loaders --- */

#define NAME_ROW                                                                                             \
    KEY("name", kind, CLT_KEY_REQUIRED,                                                                      \
        "text: token ids or text; finetuning: prompts and responses; image: pictures with labels",           \
        .choices = loader_names, .refused = refused_loaders)

#define READS_AHEAD                                                                                          \
    "each rank reads ahead in one thread of its own, and the sample order does not depend on workers"
#define WORKER_ROWS                                                                                          \
    KEY("drop_last", drop_last, "false", "drop a last batch that is not full"),                              \
        IGNORED(int, "num_workers", "0", NULL, READS_AHEAD),                                                 \
        IGNORED(bool, "pin_memory", "true", NULL, READS_AHEAD),                                              \
        IGNORED(int, "prefetch_factor", "2", NULL, READS_AHEAD),                                             \
        IGNORED(bool, "persistent_workers", "true", NULL, READS_AHEAD),                                      \
        IGNORED(float, "timeout", "0", NULL, READS_AHEAD)

static const clt_key train_keys[] = {
    NAME_ROW,
    IGNORED(str, "label", "null", NULL, "only evaluation data has a label"),
    CLT_KEY_SECTION("dataset", NULL, "the samples and their order", 0, &train_dataset_schema),
    WORKER_ROWS,
};
static const clt_key eval_keys[] = {
    NAME_ROW,
    KEY("label", label, "null", "name of the data in metrics; needed with several loaders", .nullable = true),
    CLT_KEY_SECTION("dataset", NULL, "the samples", 0, &eval_dataset_schema),
    WORKER_ROWS,
};
const clt_schema clt_config_train_schema = CLT_SCHEMA(train_keys),
                 clt_config_eval_schema = CLT_SCHEMA(eval_keys);

/* --- checks --- */

static clt_status check_length(clt_schema_reader *r, const clt_config *c, const char *key, int64_t length) {
    if (length < 2)
        return clt_schema_fail(r, key, "is %lld: a sample needs at least 2 tokens", (long long)length);
    const clt_model_facts model = clt_model_get_facts(c->model);
    if (length > model.max_seq_len)
        return clt_schema_fail(
            r, key,
            "is %lld, more than model.max_seq_len %lld (of a Hugging Face folder: the positions of its "
            "config.json): make the model's larger or this smaller",
            (long long)length, (long long)model.max_seq_len);
    if (length != c->max_seq_len) /* the engine has one length for all loaders */
        return clt_schema_fail(r, key, "is %lld, and max_seq_len is %lld: give both the same value",
                               (long long)length, (long long)c->max_seq_len);
    return CLT_OK;
}

static clt_status check_sequences(clt_schema_reader *r, const char *path, const clt_loader_config *l) {
    if (l->eos_token_id < 0 || l->bos_token_id < 0) return CLT_OK;
    char *eos = clt_format("%s.dataset.eos_token_id", path),
         *bos = clt_format("%s.dataset.bos_token_id", path);
    clt_status st = clt_config_fail_both(r, eos, bos, "only one of them can mark documents");
    clt_free(eos);
    clt_free(bos);
    return st;
}

static clt_status check_loader(clt_schema_reader *r, clt_config *c, const char *path, bool eval,
                               clt_loader_config *l) {
    const clt_model_facts model = clt_model_get_facts(c->model);
    if (l->max_seq_len == 0) l->max_seq_len = c->max_seq_len;
    char *key = clt_format("%s.dataset.max_seq_len", path);
    clt_status st = check_length(r, c, key, l->max_seq_len);
    clt_free(key);
    if (st == CLT_OK) st = clt_config_check_finetune(r, c, path, eval, l);
    if (st == CLT_OK) st = clt_config_check_image(r, c, path, eval, l);
    const struct {
        const char *name;
        int64_t v, least, most;
    } ranges[] = {{"num_canonical_nodes", l->num_canonical_nodes, 0, INT64_MAX},
                  {"shuffle_block_size", l->shuffle_block_size, 0, INT64_MAX},
                  {"shuffle_seed", l->shuffle_seed, 0, INT64_MAX},
                  {"predownload", l->predownload, 0, INT64_MAX},
                  {"download_retry", l->download_retry, 0, INT64_MAX},
                  {"sampling_granularity", l->sampling_granularity, 0, INT64_MAX},
                  {"replication", l->replication, 0, INT64_MAX},
                  {"eos_token_id", l->eos_token_id, -1, model.vocab_size - 1},
                  {"bos_token_id", l->bos_token_id, -1, model.vocab_size - 1}};
    for (size_t i = 0; i < CLT_COUNT_OF(ranges) && st == CLT_OK; i++) {
        key = clt_format("%s.dataset.%s", path, ranges[i].name);
        if (ranges[i].v < ranges[i].least && ranges[i].least == 0)
            st = clt_schema_fail(r, key, "is %lld: it must not be negative", (long long)ranges[i].v);
        else if (ranges[i].v < ranges[i].least || ranges[i].v > ranges[i].most)
            st = clt_schema_fail(r, key, "is %lld, outside model.vocab_size %lld", (long long)ranges[i].v,
                                 (long long)model.vocab_size);
        clt_free(key);
    }
    if (st == CLT_OK && !(l->download_timeout > 0)) {
        key = clt_format("%s.dataset.download_timeout", path);
        st = clt_schema_fail(r, key, "is %g: it must be more than 0 seconds", l->download_timeout);
        clt_free(key);
    }
    if (st == CLT_OK) st = check_sequences(r, path, l);
    return st == CLT_OK ? clt_config_resolve_streams(r, path, eval, l->streams_map, l) : st;
}

static clt_status read_eval(clt_schema_reader *r, clt_config_builder *b, const char *path, json_t *v, int i) {
    clt_loader_config *l = &b->c.evals[i];
    *l = (clt_loader_config){.eos_token_id = -1, .bos_token_id = -1, .finetune.max_leftover = -1};
    if (!json_is_object(v)) return clt_schema_fail(r, path, "must be a map, not %s", clt_json_type_name(v));
    CLT_TRY(clt_schema_read(r, &clt_config_eval_schema, path, v, l));
    return check_loader(r, &b->c, path, true, l);
}

static clt_status check_label(clt_schema_reader *r, const clt_config *c, const char *path, int i,
                              bool several) {
    const char *label = c->evals[i].label;
    if (!label && several)
        return clt_schema_fail(r, path, "needs a label, as every one of several evaluation data sets does");
    for (int j = 0; j < i; j++)
        if (strcmp(label, c->evals[j].label) == 0)
            return clt_schema_fail(r, path, "has the same label '%.40s' as another one", label);
    return CLT_OK;
}

clt_status clt_config_resolve_loaders(clt_schema_reader *r, clt_config_builder *b) {
    enum { MOST = 256 };
    clt_config *c = &b->c;
    CLT_TRY(check_loader(r, c, "train_loader", false, &c->train));
    if (b->eval_loader && b->eval_loaders)
        return clt_config_fail_both(r, "eval_loader", "eval_loaders", "use one of them");
    const char *key = b->eval_loader ? "eval_loader" : "eval_loaders";
    json_t *v = b->eval_loader ? b->eval_loader : b->eval_loaders;
    if (!v) return CLT_OK;
    bool list = json_is_array(v);
    size_t n = list ? json_array_size(v) : 1;
    if (n > MOST) return clt_schema_fail(r, key, "has more than %d entries", MOST);
    c->evals = clt_calloc(n, sizeof *c->evals);
    for (size_t i = 0; i < n; i++) {
        char *path = list ? clt_format("%s.%zu", key, i) : clt_strdup(key);
        c->n_evals = (int)i + 1; /* what it owns is freed after an error, too */
        clt_status st = read_eval(r, b, path, list ? json_array_get(v, i) : v, (int)i);
        if (st == CLT_OK) st = check_label(r, c, path, (int)i, n > 1);
        clt_free(path);
        CLT_TRY(st);
        if (!c->evals[i].label) c->evals[i].label = "eval";
    }
    return CLT_OK;
}
