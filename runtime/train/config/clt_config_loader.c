/* train_loader, eval_loader, eval_loaders. */
#include <string.h>

#include "runtime/train/config/clt_config_internal.h"

#define AT(field) offsetof(clt_loader_config, field)
#define NOWHERE CLT_KEY_NOWHERE

static clt_status read_loader_name(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                                   void *field) {
    (void)k;
    (void)field;
    const char *name = json_string_value(v);
    if (name && strcmp(name, "text") == 0) return CLT_OK;
    if (name && strcmp(name, "finetuning") == 0)
        return clt_schema_fail(
            r, path,
            "is finetuning, which is not supported: convert the texts to token samples and "
            "use text");
    return clt_schema_fail(r, path, "must be text");
}

static const char *const shuffle_algos[] = {"naive", "py1s", "py1b", "py1br", "py1e", "py2s", NULL};
static const char *const partition_algos[] = {"relaxed", "orig", NULL};
static const char *const sampling_methods[] = {"balanced", "fixed", NULL};
static const char *const batching_methods[] = {"random", "stratified", "per_stream", "device_per_stream",
                                               NULL};
static const char *const token_types[] = {"int64",  "int32",  "int16", "int8", "uint64",
                                          "uint32", "uint16", "uint8", NULL};

static const clt_key dataset_keys[] = {
    {"local", CLT_KEY_STR, CLT_KEY_HONOURED, true, "null", "folder of the MDS shards", AT(local), NULL, NULL,
     NULL},
    {"remote", CLT_KEY_STR, CLT_KEY_ACCEPTED, true, "null",
     "shards are read from dataset.local, nothing is downloaded", AT(remote), NULL, NULL, NULL},
    {"split", CLT_KEY_STR, CLT_KEY_HONOURED, true, "null", "sub-folder of local", AT(split), NULL, NULL,
     NULL},
    {"shuffle", CLT_KEY_BOOL, CLT_KEY_HONOURED, false, "false", "shuffle samples every epoch", AT(shuffle),
     NULL, NULL, NULL},
    {"shuffle_algo", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, false, "\"py1e\"",
     "which shuffle; those that this program cannot reproduce are refused when a run starts",
     AT(shuffle_algo), shuffle_algos, NULL, clt_config_read_name},
    {"shuffle_seed", CLT_KEY_INT, CLT_KEY_HONOURED, false, "9176", "seed of the sample order",
     AT(shuffle_seed), NULL, NULL, NULL},
    {"shuffle_block_size", CLT_KEY_INT, CLT_KEY_HONOURED, true, "null", "unit of block shuffles",
     AT(shuffle_block_size), NULL, NULL, NULL},
    {"max_seq_len", CLT_KEY_INT, CLT_KEY_HONOURED, true, "null",
     "tokens of a sample; max_seq_len, and it cannot differ", AT(max_seq_len), NULL, NULL, NULL},
    {"num_canonical_nodes", CLT_KEY_INT, CLT_KEY_HONOURED, true, "null",
     "groups that the sample order is made of", AT(num_canonical_nodes), NULL, NULL, NULL},
    {"partition_algo", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, false, "\"relaxed\"",
     "how samples are dealt to ranks", AT(partition_algo), partition_algos, NULL, clt_config_read_name},
    {"sampling_method", CLT_KEY_CUSTOM, CLT_KEY_ACCEPTED, false, "\"balanced\"", "there is one stream",
     NOWHERE, sampling_methods, NULL, clt_config_read_name},
    {"sampling_granularity", CLT_KEY_INT, CLT_KEY_ACCEPTED, false, "1", "there is one stream", NOWHERE, NULL,
     NULL, NULL},
    {"batching_method", CLT_KEY_CUSTOM, CLT_KEY_ACCEPTED, false, "\"random\"", "there is one stream", NOWHERE,
     batching_methods, NULL, clt_config_read_name},
    {"replication", CLT_KEY_INT, CLT_KEY_REFUSED, true, "null",
     "ranks that see the same samples are not supported", NOWHERE, NULL, NULL, NULL},
    {"predownload", CLT_KEY_INT, CLT_KEY_ACCEPTED, true, "null", "nothing is downloaded", NOWHERE, NULL, NULL,
     NULL},
    {"token_encoding_type", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, false, "\"int64\"",
     "type of token bytes in the shards", AT(token_encoding_type), token_types, NULL, clt_config_read_name},
    {"eos_token_id", CLT_KEY_INT, CLT_KEY_HONOURED, true, "null", "ends documents: sequence ids count them",
     AT(eos_token_id), NULL, NULL, NULL},
    {"bos_token_id", CLT_KEY_INT, CLT_KEY_HONOURED, true, "null", "begins documents: sequence ids count them",
     AT(bos_token_id), NULL, NULL, NULL},
    {"streams", CLT_KEY_MAP, CLT_KEY_REFUSED, true, "null",
     "mixing several data sets is not supported: give one folder as dataset.local", NOWHERE, NULL, NULL,
     NULL},
    {"epoch_size", CLT_KEY_ANY, CLT_KEY_REFUSED, true, "null", "an epoch is the whole data set", NOWHERE,
     NULL, NULL, NULL},
    {"cache_limit", CLT_KEY_ANY, CLT_KEY_ACCEPTED, true, "null",
     "nothing is downloaded, so nothing is evicted", NOWHERE, NULL, NULL, NULL},
    {"keep_zip", CLT_KEY_BOOL, CLT_KEY_ACCEPTED, false, "false", "compressed shards stay as they are",
     NOWHERE, NULL, NULL, NULL},
    {"validate_hash", CLT_KEY_STR, CLT_KEY_HONOURED, true, "null",
     "checksum to check each shard with; null: the fastest of its raw bytes, none: no check",
     AT(validate_hash), NULL, NULL, NULL},
    {"download_retry", CLT_KEY_INT, CLT_KEY_ACCEPTED, false, "2", "nothing is downloaded", NOWHERE, NULL,
     NULL, NULL},
    {"download_timeout", CLT_KEY_FLOAT, CLT_KEY_ACCEPTED, false, "60", "nothing is downloaded", NOWHERE, NULL,
     NULL, NULL},
    {"allow_unsafe_types", CLT_KEY_BOOL, CLT_KEY_ACCEPTED, false, "false", "pickled columns are never read",
     NOWHERE, NULL, NULL, NULL},
};
static const clt_schema dataset_schema = CLT_SCHEMA(dataset_keys);

static const clt_key loader_keys[] = {
    {"name", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, false, CLT_KEY_REQUIRED, "text", NOWHERE, NULL, NULL,
     read_loader_name},
    {"label", CLT_KEY_STR, CLT_KEY_HONOURED, true, "null", "name of an evaluation data set", AT(label), NULL,
     NULL, NULL},
    {"dataset", CLT_KEY_SECTION, CLT_KEY_HONOURED, false, NULL,
     "where the samples are and in which order they come", 0, NULL, &dataset_schema, NULL},
    {"drop_last", CLT_KEY_BOOL, CLT_KEY_HONOURED, false, "false", "leave out a last batch that is not full",
     AT(drop_last), NULL, NULL, NULL},
    {"num_workers", CLT_KEY_INT, CLT_KEY_ACCEPTED, false, "0",
     "a thread of each rank reads ahead, and the order of samples does not depend on workers", NOWHERE, NULL,
     NULL, NULL},
    {"pin_memory", CLT_KEY_BOOL, CLT_KEY_ACCEPTED, false, "true", "the device decides", NOWHERE, NULL, NULL,
     NULL},
    {"prefetch_factor", CLT_KEY_INT, CLT_KEY_ACCEPTED, true, "2", "batches are always read ahead", NOWHERE,
     NULL, NULL, NULL},
    {"persistent_workers", CLT_KEY_BOOL, CLT_KEY_ACCEPTED, false, "true", "there are no worker processes",
     NOWHERE, NULL, NULL, NULL},
    {"timeout", CLT_KEY_FLOAT, CLT_KEY_ACCEPTED, false, "0", "there are no worker processes", NOWHERE, NULL,
     NULL, NULL},
};
const clt_schema clt_config_loader_schema = CLT_SCHEMA(loader_keys);

static clt_status check_loader(clt_schema_reader *r, const clt_config *c, const char *path,
                               clt_loader_config *l) {
    const clt_model_facts model = clt_model_get_facts(c->model);
    char *key = clt_format("%s.dataset.max_seq_len", path);
    clt_status st = CLT_OK;
    if (l->max_seq_len == 0) l->max_seq_len = c->max_seq_len;
    if (l->max_seq_len < 2)
        st = clt_schema_fail(r, key, "is %lld: a sample needs at least 2 tokens", (long long)l->max_seq_len);
    else if (l->max_seq_len > model.max_seq_len)
        st = clt_schema_fail(
            r, key, "is %lld, more than model.max_seq_len %lld: make the model's larger or this smaller",
            (long long)l->max_seq_len, (long long)model.max_seq_len);
    else if (l->max_seq_len != c->max_seq_len) /* the engine has one length for all loaders */
        st = clt_schema_fail(r, key, "is %lld, and max_seq_len is %lld: give both the same value",
                             (long long)l->max_seq_len, (long long)c->max_seq_len);
    clt_free(key);
    CLT_TRY(st);
    const struct {
        const char *name;
        int64_t v;
    } counts[] = {{"num_canonical_nodes", l->num_canonical_nodes},
                  {"shuffle_block_size", l->shuffle_block_size}},
      tokens[] = {{"eos_token_id", l->eos_token_id}, {"bos_token_id", l->bos_token_id}};
    for (size_t i = 0; i < CLT_COUNT_OF(counts) && st == CLT_OK; i++) {
        key = clt_format("%s.dataset.%s", path, counts[i].name);
        if (counts[i].v < 0) st = clt_schema_fail(r, key, "must be above 0");
        clt_free(key);
    }
    if (st == CLT_OK && l->shuffle_seed < 0) { /* numpy.random.default_rng raises */
        key = clt_format("%s.dataset.shuffle_seed", path);
        st = clt_schema_fail(r, key, "is %lld, and a seed cannot be below 0", (long long)l->shuffle_seed);
        clt_free(key);
    }
    for (size_t i = 0; i < CLT_COUNT_OF(tokens) && st == CLT_OK; i++) {
        key = clt_format("%s.dataset.%s", path, tokens[i].name);
        if (tokens[i].v < -1 || tokens[i].v >= model.vocab_size)
            st = clt_schema_fail(r, key, "is %lld, outside model.vocab_size %lld", (long long)tokens[i].v,
                                 (long long)model.vocab_size);
        clt_free(key);
    }
    return st;
}

static clt_status read_eval(clt_schema_reader *r, clt_config_builder *b, const char *path, json_t *v, int i) {
    clt_loader_config *l = &b->c.evals[i];
    *l = (clt_loader_config){.eos_token_id = -1, .bos_token_id = -1};
    if (!json_is_object(v)) return clt_schema_fail(r, path, "must be a map, not %s", clt_json_type_name(v));
    CLT_TRY(clt_schema_read(r, &clt_config_loader_schema, path, v, l));
    return check_loader(r, &b->c, path, l);
}

clt_status clt_config_resolve_loaders(clt_schema_reader *r, clt_config_builder *b) {
    clt_config *c = &b->c;
    CLT_TRY(check_loader(r, c, "train_loader", &c->train));
    if (b->eval_loader && b->eval_loaders)
        return clt_schema_fail(r, "eval_loaders", "cannot stand beside eval_loader: use one of them");
    const char *key = b->eval_loader ? "eval_loader" : "eval_loaders";
    json_t *v = b->eval_loader ? b->eval_loader : b->eval_loaders;
    if (!v) return CLT_OK;
    bool list = json_is_array(v);
    size_t n = list ? json_array_size(v) : 1;
    if (n > 256) return clt_schema_fail(r, key, "has more than 256 entries");
    c->evals = clt_calloc(n, sizeof *c->evals);
    for (size_t i = 0; i < n; i++) {
        char *path = list ? clt_format("%s.%zu", key, i) : clt_strdup(key);
        clt_status st = read_eval(r, b, path, list ? json_array_get(v, i) : v, (int)i);
        if (st == CLT_OK && !c->evals[i].label && n > 1)
            st = clt_schema_fail(r, path, "needs a label, as every one of several evaluation data sets does");
        for (size_t j = 0; j < i && st == CLT_OK; j++)
            if (strcmp(c->evals[i].label, c->evals[j].label) == 0)
                st = clt_schema_fail(r, path, "has the same label '%.40s' as another one", c->evals[i].label);
        clt_free(path);
        CLT_TRY(st);
        if (!c->evals[i].label) c->evals[i].label = "eval";
        c->n_evals = (int)i + 1;
    }
    return CLT_OK;
}
