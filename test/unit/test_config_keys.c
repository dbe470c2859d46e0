/* Every key of every table: the rows are well formed, the documented default is the real one, another valid
 * value reaches the configuration or is named as one without effect, and a value of a wrong type is an error
 * that names the key. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/train/config/clt_config_image.h"
#include "test/config_util.h"

/* A configuration with every section, and none of the keys that are optional in it. */
static const char base[] = "model: {}\n"
                           "tokenizer: {name: bytes, kwargs: {}}\n"
                           "optimizer: {name: decoupled_adamw}\n"
                           "scheduler: {name: cosine_with_warmup, t_warmup: 2ba}\n"
                           "train_loader: {name: text, dataset: {}}\n"
                           "max_seq_len: 64\nmax_duration: 30ba\n"
                           "global_train_batch_size: 8\n"
                           "algorithms: {gradient_clipping: {clipping_type: norm, clipping_threshold: 1.0}}\n"
                           "callbacks: {speed_monitor: {}, memory_monitor: {}, runtime_estimator: {}}\n";

#define TASK "{label: a, dataset_uri: x, icl_task_type: language_modeling, num_fewshot: [0]}"
#define GAUNTLET "{categories: [{name: a, benchmarks: [{name: a, num_fewshot: 0, random_baseline: 0.5}]}]}"

/* Values and surroundings where a kind alone does not make a valid one. `with`: further overrides. */
static const struct {
    const char *path, *value, *with[3];
} cases[] = {
    {"model", "{n_heads: 2}", {NULL}},
    {"tokenizer.kwargs.*", "3", {NULL}},
    {"optimizer.name", "decoupled_lionw", {NULL}},
    {"optimizer.betas", "[0.5, 0.6]", {NULL}},
    {"optimizer.momentum", "0.5", {"optimizer.name=sgd"}},
    {"optimizer.nesterov", "true", {"optimizer={name: sgd, momentum: 0.9}"}},
    {"optimizer.disable_grad", "wte", {NULL}},
    {"optimizer.param_groups", "[{param_str_match: wte}]", {NULL}},
    {"optimizer.param_groups.0.param_str_match", "wpe", {NULL}},
    {"optimizer.param_groups.0.betas", "[0.5, 0.6]", {NULL}},
    {"optimizer.param_groups.0.momentum", "0.5", {"optimizer.name=sgd"}},
#include "test/unit/config_keys_rates.h"
    {"deepspeed", "test/golden/deepspeed/configs/minimal.json", {NULL}},
    {"max_seq_len", "32", {NULL}},
    {"train_loader.dataset.max_seq_len", "32", {"max_seq_len=32"}},
    {"eval_loader.dataset.max_seq_len", "32", {"max_seq_len=32", "train_loader.dataset.max_seq_len=32"}},
    {"eval_loaders.0.dataset.max_seq_len", "32", {"max_seq_len=32"}},
    {"train_loader.dataset.streams", "{a: {local: x}}", {NULL}},
    {"train_loader.dataset.streams.*.choose", "7", {NULL}},
    {"train_loader.dataset.epoch_size", "10k", {NULL}},
    {"eval_loader.dataset.streams", "{a: {local: x}}", {NULL}},
    {"eval_loaders.0.dataset.streams", "{a: {local: x}}", {NULL}},
    {"eval_loader.dataset.shuffle_algo", "naive", {"eval_loader.dataset.shuffle=true"}},
    {"eval_loader.dataset.shuffle_seed", "3", {"eval_loader.dataset.shuffle=true"}},
    {"eval_loader.dataset.shuffle_block_size", "3", {"eval_loader.dataset.shuffle=true"}},
    {"eval_loaders.0.dataset.shuffle_algo", "naive", {"eval_loaders.0.dataset.shuffle=true"}},
    {"eval_loaders.0.dataset.shuffle_seed", "3", {"eval_loaders.0.dataset.shuffle=true"}},
    {"eval_loaders.0.dataset.shuffle_block_size", "3", {"eval_loaders.0.dataset.shuffle=true"}},
    {"train_loader.name", "finetuning", {NULL}},
    {"train_loader.dataset.target_prompts", "length>=3", {NULL}},
    {"train_loader.dataset.packing_ratio", "auto", {NULL}},
    {"train_loader.dataset.hf_kwargs.data_files", "[a.jsonl]", {NULL}},
    {"eval_loader.name", "finetuning", {NULL}},
    {"eval_loader.dataset.target_prompts", "length>=3", {NULL}},
    {"eval_loader.dataset.packing_ratio", "auto", {NULL}},
    {"eval_loader.dataset.hf_kwargs.data_files", "[a.jsonl]", {NULL}},
    {"eval_loaders.0.name", "finetuning", {NULL}},
    {"eval_loaders.0.dataset.target_prompts", "length>=3", {NULL}},
    {"eval_loaders.0.dataset.packing_ratio", "auto", {NULL}},
    {"eval_loaders.0.dataset.hf_kwargs.data_files", "[a.jsonl]", {NULL}},
    {"tokenizer.kwargs.padding_side", "left", {NULL}},
    {"eval_loader", "{name: text, dataset: {local: other}}", {NULL}},
    {"eval_loaders", "[{name: text, label: a, dataset: {local: a}}]", {NULL}},
    {"eval_subset_num_batches", "3", {NULL}},
    {"icl_tasks", "[" TASK "]", {NULL}},
    {"icl_tasks_str", "test/golden/icl/eval.yaml", {NULL}},
    {"icl_tasks.0.icl_task_type", "schema", {NULL}},
    {"icl_tasks.0.generation_kwargs", "{max_new_tokens: 7}", {NULL}},
    {"icl_seq_len", "32", {"icl_tasks=[" TASK "]"}},
    {"eval_gauntlet", GAUNTLET, {"icl_tasks=[" TASK "]"}},
    {"eval_gauntlet_str", "test/golden/icl/gauntlet.yaml", {"icl_tasks=[" TASK "]"}},
    {"eval_gauntlet.subtract_random_baseline", "false", {"eval_gauntlet.rescale_accuracy=false"}},
    {"eval_gauntlet.averages", "{all: [a]}", {NULL}},
    {"save_filename", "x{batch}", {NULL}},
    {"load_ignore_keys", "[wte]", {NULL}},
    {"autoresume", "false", {"save_folder=out"}},
    {"cltrain.mirror", "copy", {"save_folder=out"}},
    {"fsdp_config.mixed_precision", "PURE", {NULL}},
    {"algorithms.gradient_clipping.clipping_type", "value", {NULL}},
    {"cltrain.device", "[a, b]", {NULL}},
    {"cltrain.numerics", "exact", {NULL}},
    {"cltrain.attention_bits", "16", {"precision=exact8"}},
    {"cltrain.exact_lanes", "16", {NULL}},
    {"cltrain.lanes_per_rank", "[5, 3]", {NULL}},
    {"cltrain.recompute", "blocks", {NULL}},
    {"cltrain.offload_activations", "host", {NULL}},
    {"cltrain.zero_stage", "2", {NULL}},
    {"cltrain.offload", "host", {NULL}},
    {"cltrain.offload_folder", "x", {"cltrain.offload=file"}},
    {"cltrain.offload_ratio", "0.5", {"cltrain.offload=host"}},
    {"cltrain.offload_parameters", "host", {"cltrain.zero_stage=3"}},
    {"cltrain.offload_gradients", "host", {"cltrain.zero_stage=2"}},
    {"cltrain.offload_update", "host", {"cltrain.offload=host"}},
    {"cltrain.guards.straggler_ratio", "2", {NULL}},
    {"cltrain.guards.spike_window", "200", {NULL}},
    {"cltrain.guards.spike_threshold", "5", {NULL}},
    {"callbacks.kill_loss_spike.window_size", "200", {NULL}},
    {"callbacks.early_stopper",
     "{monitor: TokenAccuracy, dataloader_label: eval}",
     {"eval_loader={name: text, dataset: {}}"}},
    {"callbacks.early_stopper.dataloader_label",
     "x",
     {"eval_loaders=[{name: text, label: x, dataset: {}}]", "eval_loader=null"}},
    {"callbacks.early_stopper.monitor", "LanguagePerplexity", {"eval_loader={name: text, dataset: {}}"}},
    {"callbacks.load_checkpoint", "{load_path: b}", {NULL}},
    {"callbacks.load_checkpoint.load_path", "b", {NULL}},
    {"callbacks.layer_freezing", "{layer_names: b}", {NULL}},
    {"callbacks.layer_freezing.layer_names", "[b, c]", {NULL}},
    {"callbacks.global_lr_scaling", "{lr_scale: 2.0}", {NULL}},
    {"loggers.mlflow.tracking_uri", "elsewhere", {NULL}},
    {"model.d_model", "1024", {NULL}},
    {"model.n_heads", "8", {NULL}},
    {"model.max_seq_len", "128", {NULL}},
    {"model.expansion_ratio", "3", {NULL}},
    {"model.logit_scale", "inv_sqrt_d_model", {NULL}},
    {"model.attention_bias", "false", {NULL}},
    {"model.block_overrides",
     "{order: [{name: default}, {name: w}], overrides: {w: {attn_config: {sliding_window_size: 4}}}}",
     {"model.n_layers=2"}},
    {"model.attn_config.attn_type", "multiquery_attention", {NULL}},
    {"model.attn_config.kv_n_heads", "2", {"model.attn_config.attn_type=grouped_query_attention"}},
    {"model.attn_config.rope_impl",
     "hf",
     {"model.attn_config.rope=true", "model.attn_config.rope_hf_config={type: linear, factor: 2.0}"}},
    {"model.attn_config.rope_hf_config.type",
     "linear",
     {"model.attn_config.rope=true", "model.attn_config.rope_impl=hf"}},
    {"model.attn_config.rope_hf_config.low_freq_factor",
     "2.0",
     {"model.attn_config.rope=true", "model.attn_config.rope_impl=hf",
      "model.attn_config.rope_hf_config.type=llama3"}},
    {"model.attn_config.rope_hf_config.high_freq_factor",
     "8.0",
     {"model.attn_config.rope=true", "model.attn_config.rope_impl=hf",
      "model.attn_config.rope_hf_config.type=llama3"}},
    {"model.attn_config.rope_hf_config.original_max_position_embeddings",
     "7",
     {"model.attn_config.rope=true", "model.attn_config.rope_impl=hf",
      "model.attn_config.rope_hf_config.type=llama3"}},
    {"model.pretrained_model_name_or_path", "test/golden/families/llama-tied/hf", {NULL}},
    {"model.config_overrides", "{rms_norm_eps: 0.01}", {NULL}},
    {"model.ffn_config.ffn_act_fn", "{name: silu}", {NULL}},
    {"model.norm_type", "rmsnorm", {NULL}},
    {"model.norm_offset", "1.0", {NULL}},
    {"model.init_config.name", "small_init_", {NULL}},
    {"model.init_config.init_div_is_residual", "3", {NULL}},
    {"model.init_config.emb_init_uniform_lim", "[-1, 2]", {NULL}},
    {"optimizer.layer_decay", "0.75", {"model={name: vit}"}},
    {"model.heads", "6", {NULL}},
    {"model.width", "96", {NULL}},
    {"model.image_size", "240", {NULL}},
};

typedef struct {
    char *text; /* "path=value" */
    const char *const *with;
} assignment;

static const char *const *with_of(const char *path, const char **value) {
    static const char *const nothing[3] = {NULL};
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++)
        if (strcmp(cases[i].path, path) == 0) {
            if (value) *value = cases[i].value;
            return cases[i].with;
        }
    return nothing;
}

/* The section of another family than the first while its keys are walked; else NULL. */
static const char *family;
static const char *const families[] = {
    NULL, "model={name: hf_causal_lm, pretrained_model_name_or_path: test/golden/families/llama3/hf}",
    "model={name: vit}"};

/* The base with the section that `path` belongs to, with what its value needs around it (`with`, may be
 * NULL), and with `value` there, if one is given. */
static clt_status load_with(const char *path, const char *const *with, const char *value, clt_config **out) {
    static const struct {
        const char *prefix, *section;
    } sections[] = {
        {"eval_loader.", "eval_loader={name: text, dataset: {}}"},
        {"eval_loaders.", "eval_loaders=[{name: text, dataset: {}}]"},
        {"train_loader.dataset.streams.*.", "train_loader.dataset.streams={'*': {local: a}}"},
        {"eval_loader.dataset.streams.*.", "eval_loader.dataset.streams={'*': {local: a}}"},
        {"eval_loaders.0.dataset.streams.*.", "eval_loaders.0.dataset.streams={'*': {local: a}}"},
        {"optimizer.param_groups.", "optimizer.param_groups=[{param_str_match: bias}]"},
        {"callbacks.kill_loss_spike.", "callbacks.kill_loss_spike={}"},
        {"callbacks.optimizer_monitor.", "callbacks.optimizer_monitor={}"},
        {"callbacks.system_metrics_monitor.", "callbacks.system_metrics_monitor={}"},
        {"callbacks.fdiff_metrics.", "callbacks.fdiff_metrics={}"},
        {"callbacks.layer_freezing", "callbacks.layer_freezing={layer_names: [a]}"},
        {"callbacks.global_lr_scaling", "callbacks.global_lr_scaling={lr_scale: 1.0}"},
        {"callbacks.load_checkpoint", "callbacks.load_checkpoint={load_path: a}"},
        {"callbacks.hf_checkpointer", "callbacks.hf_checkpointer={save_folder: a, save_interval: 1dur}"},
        {"callbacks.early_stopper", "eval_loader={name: text, dataset: {}}"},
        {"callbacks.early_stopper",
         "callbacks.early_stopper={monitor: LanguageCrossEntropy, dataloader_label: eval}"},
        {"loggers.tensorboard.", "loggers.tensorboard={}"},
        {"loggers.mlflow.", "loggers.mlflow={}"},
        {"loggers.file_logger.", "loggers.file_logger={}"},
        {"icl_tasks.", "icl_tasks=[" TASK "]"},
        {"eval_gauntlet.", "icl_tasks=[" TASK "]"},
        {"eval_gauntlet.", "eval_gauntlet=" GAUNTLET},
        {"fsdp_config.", "fsdp_config={}"}};
    const char *over[9];
    size_t n = 0;
    char *last = value ? clt_format("%s=%s", path, value) : NULL;
    for (size_t i = 0; i < CLT_COUNT_OF(sections); i++)
        if (strncmp(path, sections[i].prefix, strlen(sections[i].prefix)) == 0)
            over[n++] = sections[i].section;
    if (family) over[n++] = family;
    for (int i = 0; with && i < 3 && with[i]; i++) over[n++] = with[i];
    if (last) over[n++] = last;
    *out = NULL;
    clt_status st = clt_config_parse(base, strlen(base), "base.yaml", over, n, out);
    clt_free(last);
    return st;
}

static clt_status load(const char *path, const char *value, clt_config **out) {
    return load_with(path, with_of(path, NULL), value, out);
}

/* --- what a configuration says, as a text --- */

static void add_string(clt_str *b, const char **s) {
    clt_str_addf(b, "%s|", *s ? *s : "-");
    *s = NULL;
}

static void add_strings(clt_str *b, clt_strv *l) {
    for (size_t i = 0; i < l->n; i++) clt_str_addf(b, "%s,", l->v[i]);
    clt_str_add(b, "|");
    *l = (clt_strv){0};
}

static void add_bytes(clt_str *b, const void *p, size_t n) {
    for (size_t i = 0; i < n; i++) clt_str_addf(b, "%02x", ((const uint8_t *)p)[i]);
    clt_str_add(b, "|");
}

static void add_loader(clt_str *b, clt_loader_config l) {
    const char **strings[] = {&l.label,           &l.local,           &l.remote,
                              &l.split,           &l.shuffle_algo,    &l.validate_hash,
                              &l.sampling_method, &l.batching_method, &l.token_encoding_type};
    for (size_t i = 0; i < CLT_COUNT_OF(strings); i++) add_string(b, strings[i]);
    clt_str_addf(b, "%d %d %d %g|", l.shuffle, l.drop_last, l.keep_zip, l.download_timeout);
    for (int i = 0; i < l.n_streams; i++) {
        clt_loader_stream one = l.streams[i];
        const char **texts[] = {&one.name, &one.local, &one.remote, &one.split, &one.validate_hash};
        for (size_t k = 0; k < CLT_COUNT_OF(texts); k++) add_string(b, texts[k]);
        clt_str_addf(b, "%g %g %g %lld %d %d %d %g|", one.proportion, one.repeat, one.choose,
                     (long long)one.download_retry, one.has_keep_zip, one.keep_zip, one.has_timeout,
                     one.download_timeout);
    }
    const int64_t numbers[] = {l.epoch_size,         l.sampling_granularity, l.replication, l.shuffle_seed,
                               l.shuffle_block_size, l.num_canonical_nodes,  l.max_seq_len, l.eos_token_id,
                               l.bos_token_id,       l.predownload,          l.cache_limit, l.download_retry};
    add_bytes(b, numbers, sizeof numbers);
    add_bytes(b, &l.image, sizeof l.image);
    clt_finetune_config *f = &l.finetune;
    add_string(b, &f->hf_name);
    add_string(b, &f->data_dir);
    add_strings(b, &f->data_files);
    clt_str_addf(b, "%d %lld %d %g %lld %d %d|", l.kind, (long long)f->target_prompts, f->target_responses,
                 f->packing_ratio, (long long)f->max_leftover, f->allow_pad_trimming, f->pad_to_longest);
}

/* The entries as the document has them are not compared, but what was read from them. */
static void add_task(clt_str *b, clt_icl_task t) {
    const char **strings[] = {&t.label,
                              &t.dataset_uri,
                              &t.prompt_string,
                              &t.prelimiter,
                              &t.question_prelimiter,
                              &t.example_delimiter,
                              &t.cot_delimiter,
                              &t.continuation_delimiter,
                              &t.context_key,
                              &t.answer_key,
                              &t.choices_key};
    for (size_t i = 0; i < CLT_COUNT_OF(strings); i++) add_string(b, strings[i]);
    t.num_fewshot = t.metric_names = t.early_stopping_criteria = t.generation_kwargs = NULL;
    t.stop = NULL;
    t.stops = NULL;
    add_bytes(b, &t, sizeof t);
}

static void add_gauntlet(clt_str *b, const clt_gauntlet *g) {
    if (!g) return;
    clt_str_addf(b, "%d %d %d %zu|", g->weighting, g->subtract_random_baseline, g->rescale_accuracy,
                 json_object_size(g->averages));
    for (size_t i = 0; i < g->n; i++) {
        clt_str_addf(b, "%s|", g->category[i].name);
        for (size_t k = 0; k < g->category[i].n; k++)
            clt_str_addf(b, "%s %lld %g|", g->category[i].benchmark[k].name,
                         (long long)g->category[i].benchmark[k].num_fewshot,
                         g->category[i].benchmark[k].random_baseline);
    }
}

/* Strings by their text, everything else by its bytes; without `merged` and the notices. */
static void add_model(clt_str *b, const clt_model_config *model) {
    json_t *o = clt_model_config_to_json(model);
    char *text = json_dumps(o, JSON_SORT_KEYS | JSON_COMPACT);
    clt_str_addf(b, "%s|%s|", text, clt_model_pretrained(model) ? clt_model_pretrained(model) : "-");
    free(text);
    json_decref(o);
}

static char *digest(const clt_config *given) {
    clt_config *c = clt_memdup(given, sizeof *c);
    clt_str b = {0};
    const char **strings[] = {&c->run_name,
                              &c->deepspeed,
                              &c->tokenizer,
                              &c->save_folder,
                              &c->mirror,
                              &c->save_filename,
                              &c->load_path,
                              &c->save_latest_filename,
                              &c->padding_side,
                              &c->chat_template,
                              &c->loggers.csv,
                              &c->loggers.prometheus,
                              &c->flops_profile.file,
                              &c->loggers.tensorboard.log_dir,
                              &c->loggers.file.filename,
                              &c->loggers.mlflow.experiment_name,
                              &c->loggers.mlflow.run_name,
                              &c->loggers.mlflow.tracking_uri,
                              &c->loggers.mlflow.folder,
                              &c->callbacks.early_stop.label,
                              &c->callbacks.hf_checkpointer.save_folder,
                              &c->callbacks.hf_checkpointer.folder_name};
    for (size_t i = 0; i < CLT_COUNT_OF(strings); i++) add_string(&b, strings[i]);
    for (int g = 0; g < c->optimizer.n_groups; g++) add_string(&b, &c->optimizer.groups[g].match);
    add_strings(&b, &c->optimizer.disable_grad);
    add_strings(&b, &c->load_ignore_keys);
    add_strings(&b, &c->devices);
    add_loader(&b, c->train);
    for (int i = 0; i < c->n_evals; i++) add_loader(&b, c->evals[i]);
    add_bytes(&b, c->lanes_per_rank, (size_t)c->n_lanes_per_rank * sizeof *c->lanes_per_rank);
    for (size_t i = 0; i < c->icl.n; i++) add_task(&b, c->icl.task[i]);
    add_gauntlet(&b, c->gauntlet);
    memset(&c->icl, 0, sizeof c->icl);
    c->gauntlet = NULL;
    c->icl_documents = NULL;
    memset(&c->train, 0, sizeof c->train);
    c->evals = NULL;
    c->lanes_per_rank = NULL;
    add_model(&b, c->model);
    c->model = NULL;
    add_bytes(&b, c, offsetof(clt_config, path));
    clt_free(c);
    return b.s;
}

/* --- walking --- */

typedef void (*visit_fn)(const char *path, const clt_key *k, void *ctx);

static void walk(const clt_schema *s, const char *prefix, visit_fn visit, void *ctx) {
    for (size_t i = 0; i < s->n; i++) {
        const clt_key *k = &s->keys[i];
        char *path = *prefix ? clt_format("%s.%s", prefix, k->name) : clt_strdup(k->name);
        visit(path, k, ctx);
        static const char *const lists[] = {"eval_loaders", "optimizer.param_groups", "icl_tasks",
                                            "eval_gauntlet.categories",
                                            "eval_gauntlet.categories.0.benchmarks"};
        bool list = false;
        for (size_t j = 0; j < CLT_COUNT_OF(lists); j++) list = list || strcmp(path, lists[j]) == 0;
        char *below = clt_format("%s%s", path, list ? ".0" : "");
        if (k->section) walk(k->section, below, visit, ctx);
        clt_free(below);
        clt_free(path);
    }
}

static void walk_all(visit_fn visit, void *ctx) {
    walk(&clt_config_top_schema, "", visit, ctx);
    for (int i = 0; clt_model_schema_at(i); i++) {
        const clt_schema *keys = clt_model_schema_at(i);
        assert_in_range(i, 0, CLT_COUNT_OF(families) - 1);
        family = families[i];
        walk(keys, "model", visit, ctx);
        family = NULL;
    }
}

/* --- rows --- */

static bool is_json(const char *text) {
    json_t *v = json_loads(text, JSON_DECODE_ANY, NULL);
    bool ok = v != NULL;
    json_decref(v);
    return ok;
}

static bool required(const clt_key *k) {
    return k->def && strcmp(k->def, CLT_KEY_REQUIRED) == 0;
}

/* What only one value can be is honoured without being stored. */
static bool may_be_honoured_without_a_place(const char *path, const clt_key *k) {
    static const char *const more[] = {"variables", "model.fc_type", "model.ffn_config.fc_type"};
    for (size_t i = 0; i < CLT_COUNT_OF(more); i++)
        if (strcmp(path, more[i]) == 0) return true;
    return k->kind == &clt_kind_section || (k->choices && k->choices[0] && !k->choices[1]);
}

static void check_row(const char *path, const clt_key *k, void *ctx) {
    int *rows = ctx;
    const char *wrong = NULL;
    ++*rows;
    if (!k->kind || !k->help || !*k->help)
        wrong = "has no kind or no help";
    else if (k->at.size > 0 && (k->at.size != k->kind->size || !k->kind->store))
        wrong = "is stored in a field of another size than its kind's";
    else if (k->kind->size > 0 && !k->kind->store)
        wrong = "has a kind with a size that stores nothing";
    else if (k->status == CLT_KEY_HONOURED && k->at.size == 0 && !may_be_honoured_without_a_place(path, k))
        wrong = "is honoured and goes nowhere";
    else if (k->status == CLT_KEY_REFUSED && k->at.size > 0)
        wrong = "is refused and stored";
    else if ((k->kind == &clt_kind_choice || k->kind == &clt_kind_name) && (!k->choices || !k->choices[0]))
        wrong = "has no choices";
    else if (k->kind == &clt_kind_section && !k->section)
        wrong = "is a section without a table";
    else if (k->kind == &clt_kind_section && k->section->keys && k->base > sizeof(clt_config_builder))
        wrong = "fills a struct outside the one around it";
    else if (k->def && !required(k) && !is_json(k->def))
        wrong = "has a default that is not JSON";
    else if (k->same && !is_json(k->same))
        wrong = "has a `same` that is not JSON";
    else if (k->status != CLT_KEY_HONOURED && required(k))
        wrong = "is required without being honoured";
    if (wrong) fail_msg("the row of %s %s", path, wrong);
}

static void rows_are_well_formed(void **state) {
    (void)state;
    int rows = 0;
    walk_all(check_row, &rows);
    assert_true(rows > 300);
}

/* --- values --- */

/* Loads, prints and frees: whatever a key does happens under the sanitizers. */
static char *use(clt_config *c) {
    char *said = digest(c);
    clt_str text = {0};
    clt_config_print(c, true, &text);
    clt_str_free(&text);
    clt_config_free(c);
    return said;
}

static void check_default(const char *path, const clt_key *k, void *ctx) {
    int *n = ctx;
    clt_config *c, *without;
    if (!k->def || required(k) || k->kind == &clt_kind_section) return;
    if (load_with(path, NULL, k->def, &c) != CLT_OK)
        fail_msg("%s: its default %s is an error: %s", path, k->def, clt_last_error());
    assert_int_equal(load_with(path, NULL, NULL, &without), CLT_OK);
    char *a = use(c), *b = use(without);
    if (strcmp(a, b) != 0) fail_msg("%s: %s is not what it is by default", path, k->def);
    clt_free(a);
    clt_free(b);
    ++*n;
}

static void defaults_are_what_is_not_given(void **state) {
    (void)state;
    int n = 0;
    walk_all(check_default, &n);
    assert_true(n > 200);
}

/* A valid value that is not the default. NULL: the kind has none. */
static char *other_value(const char *path, const clt_key *k) {
    const char *value = NULL;
    with_of(path, &value);
    if (value) return clt_strdup(value);
    bool quoted = k->def && *k->def == '"';
    for (int i = 0; k->choices && k->choices[i]; i++)
        if (!quoted || strncmp(k->def + 1, k->choices[i], strlen(k->choices[i])) != 0)
            return clt_strdup(k->choices[i]);
    if (k->choices) return NULL;
    if (k->kind == &clt_kind_bool || k->kind == &clt_kind_switch)
        return clt_strdup(k->def && strcmp(k->def, "true") == 0 ? "false" : "true");
    if (k->kind == &clt_kind_int || k->kind == &clt_kind_microbatch) return clt_strdup("7");
    if (k->kind == &clt_kind_float) return clt_strdup("0.25");
    if (k->kind == &clt_kind_str) return clt_strdup("something");
    if (k->kind == &clt_kind_time || k->kind == &clt_kind_schedule_time) return clt_strdup("5ba");
    if (k->kind == &clt_kind_rgb) return clt_strdup("[0.5, 0.5, 0.5]");
    if (k->kind == &clt_kind_span) return clt_strdup("[0.5, 0.75]");
    if (k->kind == &clt_kind_map) return clt_strdup("{something: 1}");
    if (k->kind == &clt_kind_any) return clt_strdup("[something]");
    return NULL;
}

/* A loader's max_seq_len must be that of the run. */
static bool only_checked(const char *path) {
    const char *end = strrchr(path, '.');
    return strstr(path, "loader") && end && strcmp(end, ".max_seq_len") == 0;
}

static void check_refused(const char *path, const char *value, const char *why) {
    clt_config *c;
    if (load(path, value, &c) != CLT_BAD_CONFIG) fail_msg("%s=%s is not refused", path, value);
    if (!strstr(clt_last_error(), path) || !strstr(clt_last_error(), "is refused") ||
        !strstr(clt_last_error(), why))
        fail_msg("%s=%s is refused by '%s', without '%s'", path, value, clt_last_error(), why);
}

static void check_other(const char *path, const clt_key *k, void *ctx) {
    int *n = ctx;
    clt_config *c, *without;
    for (const clt_refusal *x = k->refused; x && x->value; x++) check_refused(path, x->value, x->why);
    char *value = other_value(path, k);
    if (!value || k->kind == &clt_kind_section) {
        clt_free(value);
        return;
    }
    ++*n;
    if (k->status == CLT_KEY_REFUSED) {
        check_refused(path, value, k->help);
        clt_free(value);
        return;
    }
    if (load(path, value, &c) != CLT_OK) fail_msg("%s=%s is an error: %s", path, value, clt_last_error());
    clt_status st = load(path, NULL, &without); /* an error where the key is needed */
    if (k->status == CLT_KEY_NO_EFFECT && !cu_has_notice(c, path) && (!k->same || !strstr(k->same, value)))
        fail_msg("%s=%s has no effect, and nothing says so", path, value);
    char *a = use(c), *b = st == CLT_OK ? use(without) : clt_strdup("");
    if (k->status == CLT_KEY_HONOURED && k->at.size > 0 && !only_checked(path) && strcmp(a, b) == 0)
        fail_msg("%s=%s is honoured and changes nothing", path, value);
    clt_free(a);
    clt_free(b);
    clt_free(value);
}

static void other_values_count_or_say_that_they_do_not(void **state) {
    (void)state;
    int n = 0;
    walk_all(check_other, &n);
    assert_true(n > 250);
}

static void check_wrong_type(const char *path, const clt_key *k, void *ctx) {
    static const char *const wrong[] = {"[{a: 1}]", "{a: {b: 1}}"};
    int *n = ctx;
    clt_config *c;
    if (!k->kind->check || k->status == CLT_KEY_REFUSED) return;
    bool list = k->kind == &clt_kind_list || k->kind == &clt_kind_loaders;
    if (load(path, wrong[list], &c) != CLT_BAD_CONFIG) fail_msg("%s=%s is taken", path, wrong[list]);
    if (!strstr(clt_last_error(), path)) fail_msg("'%s' does not name %s", clt_last_error(), path);
    if (!list) return;
    ++*n;
    if (load(path, "3", &c) != CLT_BAD_CONFIG) fail_msg("%s=3 is taken", path);
}

static void wrong_types_are_named(void **state) {
    (void)state;
    int n = 0;
    walk_all(check_wrong_type, &n);
    assert_true(n > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_well_formed),
        cmocka_unit_test(defaults_are_what_is_not_given),
        cmocka_unit_test(other_values_count_or_say_that_they_do_not),
        cmocka_unit_test(wrong_types_are_named),
    };
    clt_error_quiet(true);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
