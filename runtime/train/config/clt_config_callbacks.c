/* The table of callbacks, and those that are another way to write other keys. */
#include <math.h>
#include <string.h>

#include "runtime/train/config/clt_config_internal.h"

#define KEY(name, field, def, help, ...) CLT_KEY(clt_config_builder, name, field, def, help, __VA_ARGS__)
#define KEY_OF(kind, name, field, def, help, ...)                                                            \
    CLT_KEY_OF(&clt_kind_##kind, clt_config_builder, name, field, def, help, __VA_ARGS__)
#define IGNORED(kind, name, def, same, why) CLT_KEY_IGNORED(&clt_kind_##kind, name, def, same, why)
#define REFUSE(name, def, why) CLT_KEY_REFUSE(name, def, why)
/* A callback that is on as soon as it is named. */
#define CALLBACK(name, field, help, schema)                                                                  \
    CLT_KEY_SECTION(name, NULL, help, 0, &schema, .at = CLT_KEY_AT(clt_config_builder, field))

/* --- callbacks --- */

static const clt_key speed_keys[] = {
    KEY("window_size", c.callbacks.speed_window, "100",
        "steps over which the console's throughput and remaining time are measured; metrics.jsonl has those "
        "of each step"),
    IGNORED(float, "gpu_flops_available", "null", NULL, "the device's peak is measured"),
    IGNORED(str, "time_unit", "\"hours\"", "\"hours\"", "times are in hours"),
};
static const clt_key memory_keys[] = {
    IGNORED(map, "memory_keys", "null", NULL, "one value is recorded: the memory allocated on the device"),
    IGNORED(int, "dist_aggregate_batch_interval", "null", NULL, "the memory of rank 0 is recorded"),
};
static const clt_key estimator_keys[] = {
    IGNORED(int, "skip_batches", "1", NULL, "the estimate follows speed_monitor's window"),
    IGNORED(str, "time_unit", "\"hours\"", "\"hours\"", "times are in hours"),
};
#define BY_DEVIATION                                                                                         \
    "cltrain.guards.spike_threshold decides: a spike is measured in standard deviations, and one step is "   \
    "enough"
static const clt_key kill_keys[] = {
    KEY("log_only", kill_loss_spike.log_only, "true", "true: loss_spike warn; false: loss_spike stop"),
    KEY("window_size", kill_loss_spike.window_size, "100",
        "steps, as cltrain.guards.spike_window; the default leaves that key's value"),
    IGNORED(int, "patience", "4", NULL, BY_DEVIATION),
    IGNORED(float, "outlier_multiplier", "2", NULL, BY_DEVIATION),
    IGNORED(float, "loss_cap", "10", NULL, BY_DEVIATION),
};
static const clt_schema speed_schema = CLT_SCHEMA(speed_keys), memory_schema = CLT_SCHEMA(memory_keys),
                        estimator_schema = CLT_SCHEMA(estimator_keys), kill_schema = CLT_SCHEMA(kill_keys),
                        no_keys = {NULL, 0};

#define PLANNED "memory is planned before the run (cltrain plan)"
#define EVAL_METRICS "evaluation records loss, perplexity and accuracy"
#define OTHER_DATA "changing the data during a run is not supported"

static const clt_key optimizer_keys[] = {
    IGNORED(int, "batch_log_interval", "10", NULL, "the norm of every step is recorded"),
    IGNORED(bool, "only_global", "true", "true", "norms of single tensors are not computed"),
    IGNORED(bool, "log_optimizer_metrics", "true", "false", "norms of moments and updates are not computed"),
};
/* Of all models; clt_model_get_terms says which of them a model has. */
static const char *const stop_metrics[] = {"LanguageCrossEntropy",
                                           "LanguagePerplexity",
                                           "TokenAccuracy",
                                           "CrossEntropy",
                                           "MulticlassAccuracy",
                                           "MulticlassAccuracyTop5",
                                           NULL};
static const clt_key stop_keys[] = {
    KEY_OF(name, "monitor", c.callbacks.early_stop.monitor, CLT_KEY_REQUIRED,
           "metric of the evaluation data: the first three for text, the others for images",
           .choices = stop_metrics),
    KEY("dataloader_label", c.callbacks.early_stop.label, CLT_KEY_REQUIRED,
        "label of the evaluation data: eval, or one of a list's"),
    KEY("min_delta", c.callbacks.early_stop.min_delta, "0.0", "changes up to this are no improvement"),
    KEY_OF(time, "patience", c.callbacks.early_stop.patience, "1",
           "epochs or batches without an improvement after which the run ends"),
    REFUSE("comp", "null",
           "Python functions cannot be loaded: a smaller loss and perplexity and a larger "
           "accuracy are better"),
};
static const char *const hf_precisions[] = {"float32", "bfloat16", "float16", NULL}; /* clt_hf_precision */
#define NO_REGISTRY "models are not registered: cltrain ckpt export makes a Hugging Face folder"
static const clt_key hf_keys[] = {
    KEY("save_folder", c.callbacks.hf_checkpointer.save_folder, CLT_KEY_REQUIRED, "folder of the exports"),
    KEY_OF(time, "save_interval", c.callbacks.hf_checkpointer.save_interval, CLT_KEY_REQUIRED,
           "1dur; with any other interval the export is also made at the end alone, which one line says"),
    KEY("huggingface_folder_name", c.callbacks.hf_checkpointer.folder_name, "\"ba{batch}\"",
        "name of an export below SAVE_FOLDER/huggingface"),
    KEY("precision", c.callbacks.hf_checkpointer.precision, "\"float32\"", "type of the exported weights",
        .choices = hf_precisions),
    KEY("overwrite", c.callbacks.hf_checkpointer.overwrite, "true", "replace an export of the same name"),
    IGNORED(any, "mlflow_registered_model_name", "null", NULL, NO_REGISTRY),
    IGNORED(any, "mlflow_logging_config", "null", NULL, NO_REGISTRY),
    IGNORED(any, "flatten_imports", "null", NULL, NO_REGISTRY),
    IGNORED(bool, "final_register_only", "false", NULL, NO_REGISTRY),
    IGNORED(any, "register_wait_seconds", "null", NULL, NO_REGISTRY),
};
static const clt_key fdiff_keys[] = {
    KEY("diff_train_metrics", c.callbacks.fdiff_metrics, "false",
        "also record how much the training loss changed since the step before"),
    IGNORED(bool, "diff_eval_metrics", "false", "false", "compute differences from metrics.jsonl"),
};
static const clt_key system_keys[] = {
    IGNORED(bool, "log_all_data", "false", NULL, "processor time and memory of the process are recorded"),
    IGNORED(any, "gpu_available", "false", NULL, "memory_monitor records the device's memory"),
};
static const clt_key freezing_keys[] = {
    KEY_OF(patterns, "layer_names", freeze, CLT_KEY_REQUIRED,
           "names of tensors, which are added to optimizer.disable_grad"),
};
static const clt_key scaling_keys[] = {
    KEY("lr_scale", scale_lr.scale, CLT_KEY_REQUIRED, "factor of the learning rate of all groups"),
    KEY("wd_pct", scale_lr.decay, "0.0",
        "weight_decay of all groups, as a part of their scaled learning rate"),
};
static const clt_key load_keys[] = {
    KEY("load_path", load.path, CLT_KEY_REQUIRED, "as load_path, which must not be another one"),
    KEY("load_weights_only", load.weights_only, "false", "as load_weights_only", .nullable = true),
    KEY("strict_model_weights", load.strict, "true", "as load_strict_model_weights", .nullable = true),
    IGNORED(any, "load_object_store", "null", NULL, "load_path is a folder of this machine"),
    IGNORED(bool, "load_progress_bar", "true", NULL, "loading prints no progress"),
    REFUSE("ignore_keys", "null", "use load_ignore_keys"),
    REFUSE("exclude_algorithms", "null", "algorithms are set by the configuration alone"),
};
static const clt_schema hf_schema = CLT_SCHEMA(hf_keys);
static const clt_schema optimizer_schema = CLT_SCHEMA(optimizer_keys), stop_schema = CLT_SCHEMA(stop_keys),
                        fdiff_schema = CLT_SCHEMA(fdiff_keys), system_schema = CLT_SCHEMA(system_keys),
                        freezing_schema = CLT_SCHEMA(freezing_keys),
                        scaling_schema = CLT_SCHEMA(scaling_keys), load_schema = CLT_SCHEMA(load_keys);

static const clt_key callback_keys[] = {
    CALLBACK("speed_monitor", c.callbacks.speed_monitor, "print throughput", speed_schema),
    CALLBACK("lr_monitor", c.callbacks.lr_monitor, "print the learning rate; metrics.jsonl always has it",
             no_keys),
    CALLBACK("memory_monitor", c.callbacks.memory_monitor,
             "print the device's memory; metrics.jsonl always has it", memory_schema),
    CALLBACK("runtime_estimator", c.callbacks.runtime_estimator, "print the remaining time",
             estimator_schema),
    CALLBACK("kill_loss_spike", kill_loss_spike.given,
             "sets cltrain.guards.loss_spike; one line says how the two differ", kill_schema),
    IGNORED(map, "run_timeout", NULL, NULL,
            "it ends a process that hangs after the last step, and every wait here has a deadline "
            "(dist_timeout); to end a run by the clock set cltrain.stop_before"),
    CALLBACK("optimizer_monitor", optimizer_monitor,
             "the global gradient norm is computed, which is recorded whenever it is", optimizer_schema),
    IGNORED(map, "memory_snapshot", NULL, NULL, PLANNED),
    IGNORED(map, "oom_observer", NULL, NULL, PLANNED),
    CALLBACK("system_metrics_monitor", c.callbacks.system_metrics_monitor,
             "record processor time and memory of the process of rank 0", system_schema),
    IGNORED(map, "nan_monitor", NULL, NULL,
            "cltrain.guards.nonfinite says what a loss that is not finite does; by default the run ends"),
    IGNORED(map, "scheduled_gc", NULL, NULL, "there is no garbage collector"),
    IGNORED(map, "env_logging", NULL, NULL, "checkpoints always name device, driver and version"),
    IGNORED(map, "generate_callback", NULL, NULL, "use cltrain generate on a checkpoint"),
    IGNORED(map, "eval_output_logging", NULL, NULL, EVAL_METRICS),
    IGNORED(map, "loss_perp_v_len", NULL, NULL, EVAL_METRICS),
    CLT_KEY_SECTION("fdiff_metrics", NULL, "differences between steps", 0, &fdiff_schema),
    IGNORED(map, "mono_checkpoint_saver", NULL, NULL, CLT_CONFIG_ONE_FORM),
    CALLBACK("hf_checkpointer", c.callbacks.hf_checkpointer.on,
             "at the end of the run, export the last checkpoint as a Hugging Face folder", hf_schema),
    IGNORED(map, "async_eval", NULL, NULL, "evaluation runs in the training process"),
    CALLBACK("early_stopper", c.callbacks.early_stop.on,
             "end the run, after a save, when an evaluation metric no longer improves", stop_schema),
    CALLBACK("load_checkpoint", load.given, "another way to write load_path", load_schema),
    CALLBACK("layer_freezing", freezes, "another way to write optimizer.disable_grad", freezing_schema),
    CALLBACK("global_lr_scaling", scale_lr.given, "scales learning rates of a run that is continued",
             scaling_schema),
    REFUSE("curriculum_learning", NULL, OTHER_DATA),
    REFUSE("dataset_swap", NULL, OTHER_DATA),
    REFUSE("mbmoe_tok_per_expert", NULL, "mixture-of-experts layers are not supported"),
};
const clt_schema clt_config_callback_schema = CLT_SCHEMA(callback_keys);

/* --- callbacks that set other keys --- */

/* A tensor's name as a regular expression that only it matches. LLM Foundry's names start with "model.". */
static char *exactly(const char *name) {
    static const char prefix[] = "model.";
    clt_str b = {0};
    if (strncmp(name, prefix, sizeof prefix - 1) == 0) name += sizeof prefix - 1;
    clt_str_add(&b, "^");
    for (; *name; name++) {
        if (strchr("\\.[]()*+?{}|^$", *name)) clt_str_add(&b, "\\");
        clt_str_addn(&b, name, 1);
    }
    clt_str_add(&b, "$");
    return b.s;
}

void clt_config_freeze_layers(clt_config_builder *b) {
    const json_t *names = b->freeze;
    const size_t n = json_is_array(names) ? json_array_size(names) : 1;
    for (size_t i = 0; b->freezes && i < n; i++)
        clt_strv_add_owned(
            &b->c.optimizer.disable_grad,
            exactly(json_string_value(json_is_array(names) ? json_array_get(names, i) : names)));
}

static clt_status scale_lr(clt_schema_reader *r, clt_config_builder *b) {
    clt_optimizer_config *o = &b->c.optimizer;
    const double scale = b->scale_lr.scale, decay = b->scale_lr.decay;
    if (!b->scale_lr.given) return CLT_OK;
    if (!(scale >= 0 && isfinite(scale)))
        return clt_schema_fail(r, "callbacks.global_lr_scaling.lr_scale", "is %g: it must be at least 0",
                               scale);
    if (!(decay >= 0 && isfinite(decay)))
        return clt_schema_fail(r, "callbacks.global_lr_scaling.wd_pct", "is %g: it must be at least 0",
                               decay);
    for (int i = 0; i < o->n_groups; i++) {
        o->groups[i].lr *= scale;
        o->groups[i].weight_decay = o->groups[i].lr * decay;
    }
    return CLT_OK;
}

static clt_status load(clt_schema_reader *r, clt_config_builder *b) {
    clt_config *c = &b->c;
    if (!b->load.given) return CLT_OK;
    if (c->load_path && strcmp(c->load_path, b->load.path) != 0)
        return clt_config_fail_both(r, "callbacks.load_checkpoint.load_path", "load_path",
                                    "a run starts from one checkpoint");
    c->load_path = b->load.path;
    c->load_weights_only |= b->load.weights_only;
    c->load_strict_model_weights &= b->load.strict;
    return CLT_OK;
}

static clt_status early_stop(clt_schema_reader *r, const clt_config *c) {
    const clt_early_stop_config *s = &c->callbacks.early_stop;
    const clt_model_terms *terms = clt_model_get_terms(c->model);
    const char *const metric[] = {terms->cross_entropy, terms->accuracy, terms->perplexity, terms->accuracy5};
    bool known = false, has = false;
    if (!s->on) return CLT_OK;
    for (size_t i = 0; i < CLT_COUNT_OF(metric); i++) has |= metric[i] && strcmp(metric[i], s->monitor) == 0;
    if (!has)
        return clt_schema_fail(r, "callbacks.early_stopper.monitor",
                               "is %s, which this model does not have: use %s or %s", s->monitor,
                               terms->cross_entropy, terms->accuracy);
    for (int i = 0; i < c->n_evals; i++) known |= strcmp(c->evals[i].label, s->label) == 0;
    if (!known)
        return clt_schema_fail(r, "callbacks.early_stopper.dataloader_label",
                               "is '%.80s', which is no label of eval_loader", s->label);
    if (s->patience.unit != CLT_TIME_EPOCH && s->patience.unit != CLT_TIME_BATCH)
        return clt_schema_fail(r, "callbacks.early_stopper.patience",
                               "must be a number of epochs or batches, such as 1ep or 500ba");
    if (!(s->min_delta >= 0))
        return clt_schema_fail(r, "callbacks.early_stopper.min_delta", "is %g: it must be at least 0",
                               s->min_delta);
    return CLT_OK;
}

/* What a user would wait for in vain. */
static void remark_exports(clt_config *c) {
    const clt_hf_checkpointer_config *h = &c->callbacks.hf_checkpointer;
    const bool at_end = h->save_interval.unit == CLT_TIME_DURATION && h->save_interval.fraction >= 1;
    if (h->on && !c->save_folder)
        clt_strv_add(&c->remarks,
                     "callbacks.hf_checkpointer exports nothing: an export is made from a checkpoint, "
                     "set save_folder");
    else if (h->on && !at_end)
        clt_strv_add(&c->remarks,
                     "callbacks.hf_checkpointer exports the last checkpoint at the end of the run; "
                     "for the others use cltrain ckpt export");
}

clt_status clt_config_resolve_callbacks(clt_schema_reader *r, clt_config_builder *b) {
    remark_exports(&b->c);
    if (b->optimizer_monitor) b->c.guards.gradient_norm = true;
    CLT_TRY(scale_lr(r, b));
    CLT_TRY(load(r, b));
    return early_stop(r, &b->c);
}
