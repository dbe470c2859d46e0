#include "runtime/train/config/clt_config.h"

#include <math.h>
#include <string.h>

#include "collectives/clt_group.h"
#include "runtime/base/clt_io.h"
#include "runtime/data/clt_tokenizer.h"
#include "runtime/train/config/clt_config_finetune.h"
#include "runtime/train/config/clt_deepspeed.h"

static char *place_of(void *ctx, const char *path) {
    const clt_config *c = ctx;
    return c->eval_yaml ? clt_config_eval_place(c, path, false) : clt_yaml_place(c->yaml, path);
}

static char *key_place_of(void *ctx, const char *path) {
    const clt_config *c = ctx;
    return c->eval_yaml ? clt_config_eval_place(c, path, true) : clt_yaml_key_place(c->yaml, path);
}

/* A top-level key that is only there to be referred to. */
static const char *harmless(void *ctx, const char *path) {
    const clt_config *c = ctx;
    return !strchr(path, '.') && clt_yaml_is_used(c->eval_yaml ? c->eval_yaml : c->yaml, path)
               ? "only other values refer to it; the place for such values is variables"
               : NULL;
}

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

/* Keys that all files of Foundry's have and that need no notice: a tokenizer's length that is max_seq_len,
 * and how evaluation data would be shuffled while its shuffle is off. */
static bool is_satisfied(void *ctx, const char *path, const json_t *v) {
    static const char *const shuffles[] = {".dataset.shuffle_seed", ".dataset.shuffle_algo",
                                           ".dataset.shuffle_block_size"};
    const clt_config *c = ctx;
    if (strcmp(path, "tokenizer.kwargs.model_max_length") == 0)
        return json_number_value(v) == json_number_value(clt_config_value(c, "max_seq_len"));
    for (size_t i = 0; i < CLT_COUNT_OF(shuffles); i++) {
        if (!ends_with(path, shuffles[i])) continue;
        char *shuffle = clt_format("%.*s.dataset.shuffle", (int)(strlen(path) - strlen(shuffles[i])), path);
        bool asked = json_is_true(clt_config_value(c, shuffle));
        clt_free(shuffle);
        return !asked;
    }
    return false;
}

/* --- reading --- */

static clt_status read_document(clt_config_builder *b, clt_yaml *y, const char *const *overrides, size_t n) {
    b->c.yaml = y;
    for (size_t i = 0; i < n; i++) CLT_TRY(clt_yaml_override(y, overrides[i]));
    CLT_TRY(clt_yaml_interpolate(y));
    CLT_TRY(clt_yaml_to_json(y, &b->c.merged));
    if (!json_is_object(b->c.merged))
        return clt_error(CLT_BAD_CONFIG, "%s: a configuration is a map of keys", b->c.path);
    return clt_deepspeed_apply(&b->c, b->ranks);
}

/* A callback or logger named without arguments ("lr_monitor:") is on, with the defaults. */
static void fill_empty_children(json_t *section) {
    const char *key;
    json_t *v;
    json_object_foreach(section, key, v) {
        if (json_is_null(v)) json_object_set_new(section, key, json_object());
    }
}

/* Values that mean "not given". */
static void preset(clt_config_builder *b) {
    b->autoresume = b->numerics = b->recompute = b->offload = b->offload_activations = -1;
    b->optimizer.min_coeff = b->optimizer.max_coeff = NAN;
    b->optimizer.hyper = (clt_config_hyper){NAN, {NAN, NAN}, NAN, NAN, NAN};
    clt_config_scheduler_raw *s = &b->scheduler;
    s->alpha = s->alpha_i = s->alpha_f = s->alpha_f_decay = s->alpha_f_cooldown = NAN;
    clt_config_preset_rate(s);
    s->t_warmup.value = s->t_scale.value = s->t_cooldown.value = -1;
    b->c.exact_lanes = b->c.check_batches = b->c.icl_subset_num_batches = -1;
    b->c.check_limit = b->c.shard.offload_ratio = NAN;
    b->c.train.eos_token_id = b->c.train.bos_token_id = b->c.train.finetune.max_leftover = -1;
    b->c.train.shuffle_seed = CLT_SEED_NOT_GIVEN;
}

static void resolve_batches(clt_config_builder *b) {
    clt_config *c = &b->c;
    if (!clt_config_given(c, "device_eval_batch_size"))
        c->device_eval_batch_size = CLT_MAX(c->device_train_microbatch_size, (int64_t)1);
}

static void resolve_scale(clt_config *c) {
    clt_loss_scale_config *s = &c->loss_scale;
    const bool pytorch = s->kind == CLT_SCALE_PYTORCH;
    if (!clt_config_given(c, "cltrain.loss_scale.window")) s->window = pytorch ? 2000 : 1000;
    if (!clt_config_given(c, "cltrain.loss_scale.min")) s->min = pytorch ? 0x1p-16 : 1;
}

/* Lanes are the most ranks that a run can have, and a device of a mixed job owns at least one. Each doubling
 * costs up to one more gradient of the whole model, so large models keep the least number. */
static int64_t default_lanes(const clt_config *c, bool divided) {
    enum { LEAST = 8, MOST = 64, SAMPLES = 32 /* of a lane */ };
    static const double room = 8.0 * (1 << 30);
    const double gradient = 4.0 * (double)clt_model_param_count(c->model);
    int64_t lanes = LEAST;
    if (divided || c->numerics == CLT_FAST) return lanes;
    for (double extra = gradient; extra <= room && lanes < MOST; extra += gradient) {
        if (c->global_train_batch_size < 2 * lanes * SAMPLES) break;
        lanes *= 2;
    }
    return lanes;
}

static void resolve_lanes(clt_config_builder *b) {
    clt_config *c = &b->c;
    const json_t *own = json_object_get(c->merged, "cltrain"), *lanes = json_object_get(own, "exact_lanes");
    c->lanes_given = lanes && !json_is_null(lanes);
    if (!c->lanes_given) c->exact_lanes = default_lanes(c, b->lanes_per_rank != NULL);
    if (!b->lanes_per_rank) return;
    c->n_lanes_per_rank = (int)json_array_size(b->lanes_per_rank);
    c->lanes_per_rank = clt_calloc((size_t)c->n_lanes_per_rank, sizeof *c->lanes_per_rank);
    for (int i = 0; i < c->n_lanes_per_rank; i++)
        c->lanes_per_rank[i] = (int)json_integer_value(json_array_get(b->lanes_per_rank, (size_t)i));
}

static void resolve_devices(clt_config *c) {
    const char *env = clt_env(CLT_ENV_DEVICE);
    if (c->devices.n > 0 || !env) return;
    while (*env) {
        size_t n = strcspn(env, ",");
        if (n) clt_strv_add_owned(&c->devices, clt_strndup(env, n));
        env += n + (env[n] == ',');
    }
}

static void remark_tokenizer(clt_config *c) {
    /* Whether a URL exists is asked by the run: reading a configuration asks nothing of a store. */
    if ((c->tokenizer && clt_path_scheme(c->tokenizer)) || clt_tokenizer_known(c->tokenizer)) return;
    clt_strv_add_owned(&c->remarks,
                       clt_format("tokenizer.name '%.80s' is not loaded: data sets with token columns need "
                                  "no tokenizer; for text, name a folder with its tokenizer.json",
                                  c->tokenizer));
}

/* Removes keys that only references use: a printed configuration has no references and would be an error.
 * DeepSpeed's file is part of what is printed. */
static void drop_unknown(clt_config *c) {
    const char *key;
    json_t *v;
    void *next;
    json_object_del(c->merged, "deepspeed");
    json_object_foreach_safe(c->merged, next, key, v) {
        if (!clt_schema_knows(&clt_config_top_schema, key)) json_object_del(c->merged, key);
    }
}

static clt_status resolve(clt_schema_reader *r, clt_config_builder *b) {
    clt_config *c = &b->c;
    CLT_TRY(clt_config_resolve_length(r, c));
    resolve_batches(b);
    resolve_scale(c);
    resolve_devices(c);
    remark_tokenizer(c);
    CLT_TRY(clt_config_resolve_precision(r, b));
    resolve_lanes(b);
    CLT_TRY(clt_config_resolve_guards(r, b));
    CLT_TRY(clt_config_resolve_sharding(r, b));
    CLT_TRY(clt_config_check_ranges(r, c));
    CLT_TRY(clt_config_resolve_loaders(r, b));
    CLT_TRY(clt_config_resolve_icl(r, b));
    CLT_TRY(clt_config_resolve_optimizer(r, b));
    CLT_TRY(clt_config_resolve_update(r, b));
    CLT_TRY(clt_config_resolve_scheduler(r, b));
    CLT_TRY(clt_config_resolve_loggers(r, b));
    CLT_TRY(clt_config_resolve_callbacks(r, b));
    return clt_config_resolve_names(r, b);
}

enum { TRAINING = -1 };

/* model: of an evaluation YAML's `models`; TRAINING: the document is read as it is. */
static clt_status read_all(clt_config_builder *b, clt_yaml *y, const char *const *overrides, size_t n,
                           int64_t model) {
    clt_config *c = &b->c;
    CLT_TRY(read_document(b, y, overrides, n));
    if (model != TRAINING && clt_config_is_eval(c->merged)) {
        c->n_models = clt_config_eval_models(c->merged);
        if ((size_t)model >= c->n_models)
            return clt_error(CLT_BAD_CONFIG, "%s: key 'models' has no entries", c->path);
        CLT_TRY(clt_config_eval_document(c, (size_t)model));
    }
    preset(b);
    fill_empty_children(json_object_get(c->merged, "callbacks"));
    fill_empty_children(json_object_get(c->merged, "loggers"));
    clt_schema_reader r = {.what = c->path,
                           .place = place_of,
                           .key_place = key_place_of,
                           .harmless = harmless,
                           .satisfied = is_satisfied,
                           .ctx = c,
                           .status = CLT_BAD_CONFIG,
                           .strings = &c->strings,
                           .notices = &c->notices};
    CLT_TRY(clt_config_refuse_secrets(&r, "", c->merged));
    CLT_TRY(clt_schema_read(&r, &clt_config_top_schema, "", c->merged, b));
    CLT_TRY(clt_model_config_read(&r, "model", b->model, &c->model));
    drop_unknown(c);
    return resolve(&r, b);
}

/* Takes over y. ranks 0: those of this job. */
static clt_status from_document(const char *what, clt_yaml *y, const char *const *overrides, size_t n,
                                int64_t model, int ranks, clt_config **out) {
    clt_config_builder *b = clt_calloc(1, sizeof *b);
    b->ranks = ranks ? ranks : clt_launch_detect().size;
    clt_strv_add(&b->c.strings, what);
    b->c.path = b->c.strings.v[0];
    clt_status st = read_all(b, y, overrides, n, model);
    if (st == CLT_OK)
        *out = &b->c; /* the first member: freeing the configuration frees the builder */
    else
        clt_config_free(&b->c);
    return st;
}

clt_status clt_config_load(const char *path, const char *const *overrides, size_t n, clt_config **out) {
    clt_yaml *y;
    CLT_TRY(clt_yaml_load(path, &y));
    return from_document(path, y, overrides, n, TRAINING, 0, out);
}

clt_status clt_config_load_for(const char *path, const char *const *overrides, size_t n, int ranks,
                               clt_config **out) {
    clt_yaml *y;
    CLT_TRY(clt_yaml_load(path, &y));
    return from_document(path, y, overrides, n, TRAINING, ranks, out);
}

clt_status clt_config_load_eval(const char *path, const char *const *overrides, size_t n_overrides,
                                clt_config ***out, size_t *n) {
    clt_status st = CLT_OK;
    size_t models = 1;
    *out = NULL;
    for (*n = 0; *n < models && st == CLT_OK;) {
        clt_yaml *y;
        clt_config *c = NULL;
        st = clt_yaml_load(path, &y);
        if (st == CLT_OK) st = from_document(path, y, overrides, n_overrides, (int64_t)*n, 0, &c);
        if (st != CLT_OK) break;
        models = CLT_MAX(c->n_models, (size_t)1);
        *out = clt_realloc(*out, (*n + 1) * sizeof(clt_config *));
        (*out)[(*n)++] = c;
    }
    if (st == CLT_OK) return CLT_OK;
    while (*n > 0) clt_config_free((*out)[--*n]);
    clt_free(*out);
    *out = NULL;
    return st;
}

clt_status clt_config_parse(const char *text, size_t bytes, const char *what, const char *const *overrides,
                            size_t n, clt_config **out) {
    clt_yaml *y;
    CLT_TRY(clt_yaml_parse(text, bytes, what, &y));
    return from_document(what, y, overrides, n, TRAINING, 0, out);
}

void clt_config_free(clt_config *c) {
    if (!c) return;
    clt_model_config_free(c->model);
    for (int i = 0; i < c->n_evals; i++) {
        clt_free(c->evals[i].streams);
        clt_strv_free(&c->evals[i].finetune.data_files);
    }
    clt_strv_free(&c->train.finetune.data_files);
    clt_free(c->evals);
    clt_free(c->train.streams);
    clt_config_free_icl(c);
    clt_strv_free(&c->optimizer.disable_grad);
    clt_strv_free(&c->load_ignore_keys);
    clt_strv_free(&c->devices);
    clt_free(c->lanes_per_rank);
    clt_free(c->elastic);
    clt_strv_free(&c->strings);
    clt_notices_free(&c->notices);
    clt_strv_free(&c->remarks);
    clt_strv_free(&c->warnings);
    clt_yaml_free(c->yaml);
    clt_yaml_free(c->eval_yaml);
    json_decref(c->merged);
    clt_free(c);
}

/* --- what needs the number of ranks --- */

static clt_status check_lanes_per_rank(clt_schema_reader *r, const clt_config *c, int64_t exact_lanes,
                                       int ranks) {
    static const char key[] = "cltrain.lanes_per_rank";
    int64_t sum = 0;
    if (c->n_lanes_per_rank == 0) return CLT_OK;
    for (int i = 0; i < c->n_lanes_per_rank; i++) sum += c->lanes_per_rank[i];
    if (c->n_lanes_per_rank != ranks)
        return clt_schema_fail(
            r, key, "has %d numbers for %d rank%s: remove the key, or give one number for each rank",
            c->n_lanes_per_rank, ranks, ranks == 1 ? "" : "s");
    if (c->numerics == CLT_EXACT && sum != exact_lanes)
        return clt_schema_fail(r, key, "adds up to %lld, but the run has %lld lanes (cltrain.exact_lanes)",
                               (long long)sum, (long long)exact_lanes);
    if (sum & (sum - 1))
        return clt_schema_fail(r, key, "adds up to %lld: it must be a power of two", (long long)sum);
    return CLT_OK;
}

clt_status clt_config_shard_groups(const clt_config *c, int ranks, int *degree, int *replicas) {
    clt_schema_reader r = {.what = c->path, .place = place_of, .ctx = (void *)c, .status = CLT_BAD_CONFIG};
    return clt_config_divide_ranks(&r, c, ranks, degree, replicas);
}

clt_status clt_config_check_ranks(const clt_config *c, int64_t exact_lanes, int ranks) {
    clt_schema_reader r = {.what = c->path, .place = place_of, .ctx = (void *)c, .status = CLT_BAD_CONFIG};
    int degree, replicas;
    CLT_TRY(check_lanes_per_rank(&r, c, exact_lanes, ranks));
    CLT_TRY(clt_config_divide_ranks(&r, c, ranks, &degree, &replicas));
    if (c->numerics == CLT_EXACT && ranks > exact_lanes)
        return clt_schema_fail(
            &r, "cltrain.exact_lanes",
            "is %lld, fewer than the %d ranks: a rank owns at least one lane, so use at most %lld ranks "
            "or start a new run with more lanes",
            (long long)exact_lanes, ranks, (long long)exact_lanes);
    if (c->numerics == CLT_FAST && c->global_train_batch_size % ranks != 0)
        return clt_schema_fail(&r, "global_train_batch_size", "is %lld, which %d ranks do not divide",
                               (long long)c->global_train_batch_size, ranks);
    return CLT_OK;
}

bool clt_loader_config_has_data(const clt_loader_config *l) {
    return l->local || l->remote || l->n_streams > 0 || l->finetune.hf_name;
}

clt_status clt_config_check_run(const clt_config *c, int ranks) {
    clt_schema_reader r = {.what = c->path, .place = place_of, .ctx = (void *)c, .status = CLT_BAD_CONFIG};
    CLT_TRY(clt_config_check_ranks(c, c->exact_lanes, ranks));
    if (!clt_loader_config_has_data(&c->train))
        return clt_schema_fail(&r, "train_loader.dataset.local",
                               "is not given: name the folder of the MDS shards, or several as "
                               "train_loader.dataset.streams, or what is fetched as "
                               "train_loader.dataset.remote");
    return CLT_OK;
}
