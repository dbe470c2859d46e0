/* The table of loggers, and where they write. */
#include <string.h>

#include "runtime/train/config/clt_config_internal.h"

#define KEY(name, field, def, help, ...) CLT_KEY(clt_config_builder, name, field, def, help, __VA_ARGS__)
#define KEY_OF(kind, name, field, def, help, ...)                                                            \
    CLT_KEY_OF(&clt_kind_##kind, clt_config_builder, name, field, def, help, __VA_ARGS__)
#define IGNORED(kind, name, def, same, why) CLT_KEY_IGNORED(&clt_kind_##kind, name, def, same, why)
#define LOGGER(name, field, help, schema)                                                                    \
    CLT_KEY_SECTION(name, NULL, help, 0, &schema, .at = CLT_KEY_AT(clt_config_builder, c.loggers.field))
#define FIRST_RANK "metrics are the same on all ranks: rank 0 writes them"
#define LOCAL_ONLY "files are written on this machine only"
#define AT_INTERVALS "flush_interval says how often a file is written"

static const clt_key tensorboard_keys[] = {
    KEY("log_dir", c.loggers.tensorboard.log_dir, "\"tensorboard_logs\"",
        "folder; the files of a run are in LOG_DIR/RUN_NAME, one for each start of the run",
        .nullable = true),
    KEY("flush_interval", c.loggers.tensorboard.flush_interval, "100",
        "batches between two writes; evaluations are written at once"),
    IGNORED(bool, "rank_zero_only", "true", NULL, FIRST_RANK),
};
static const clt_schema tensorboard_schema = CLT_SCHEMA(tensorboard_keys);

#define NO_REGISTRY "models are not registered: cltrain ckpt export makes a Hugging Face folder"
#define ALL_METRICS "all metrics are written under Composer's names"
static const clt_key mlflow_keys[] = {
    KEY("experiment_name", c.loggers.mlflow.experiment_name, "\"my-mlflow-experiment\"",
        "experiment; it is made if the folder has none of this name", .nullable = true),
    KEY("run_name", c.loggers.mlflow.run_name, "null", "name of the MLflow run; default: run_name",
        .nullable = true),
    KEY("tracking_uri", c.loggers.mlflow.tracking_uri, "null",
        "a folder, also as file:FOLDER; default: mlruns. With any other address nothing is written, which "
        "one line says",
        .nullable = true),
    KEY("flush_interval", c.loggers.mlflow.flush_interval, "10", "batches between two writes"),
    KEY_OF(map, "tags", c.loggers.mlflow.tags, "null", "tags of the MLflow run: texts", .nullable = true),
    IGNORED(bool, "rank_zero_only", "true", NULL, FIRST_RANK),
    IGNORED(any, "model_registry_prefix", "\"\"", NULL, NO_REGISTRY),
    IGNORED(any, "model_registry_uri", "null", NULL, NO_REGISTRY),
    IGNORED(bool, "synchronous", "false", NULL, AT_INTERVALS),
    IGNORED(any, "logging_buffer_seconds", "10", NULL, AT_INTERVALS),
    IGNORED(bool, "log_system_metrics", "true", NULL, "callbacks.system_metrics_monitor records them"),
    IGNORED(any, "rename_metrics", "null", NULL, ALL_METRICS),
    IGNORED(any, "ignore_metrics", "null", NULL, ALL_METRICS),
    IGNORED(any, "ignore_hyperparameters", "null", NULL, "the whole configuration is written"),
    IGNORED(any, "run_group", "null", NULL, "tags can name a group"),
    IGNORED(bool, "resume", "true", "true", "a resumed run continues its MLflow run"),
};
static const clt_schema mlflow_schema = CLT_SCHEMA(mlflow_keys);

static const clt_key file_keys[] = {
    KEY("filename", c.loggers.file.filename, "\"{run_name}/logs-rank{rank}.txt\"",
        "file to which a line is appended for each metric", .nullable = true),
    KEY("flush_interval", c.loggers.file.flush_interval, "100", "batches between two writes"),
    IGNORED(str, "remote_file_name", "null", NULL, LOCAL_ONLY),
    IGNORED(bool, "capture_stdout", "true", "false", "log.txt in the run's folder has the messages"),
    IGNORED(bool, "capture_stderr", "true", "false", "log.txt in the run's folder has the messages"),
    IGNORED(int, "buffer_size", "1048576", NULL, AT_INTERVALS),
    IGNORED(bool, "log_traces", "false", "false", "cltrain train --trace FILE writes a timeline"),
};
static const clt_schema file_schema = CLT_SCHEMA(file_keys);

#define TO_FILES(instead) "nothing is sent to other machines: " instead
#define FROM_BOARD "with loggers.tensorboard, "
#define ALWAYS "metrics.jsonl in the run's folder always has all rows"
static const clt_key logger_keys[] = {
    LOGGER("tensorboard", tensorboard.on, "TensorBoard event files", tensorboard_schema),
    LOGGER("mlflow", mlflow.on, "MLflow's local file store: mlflow ui --backend-store-uri FOLDER shows it",
           mlflow_schema),
    LOGGER("file_logger", file.on, "a text file of metrics", file_schema),
    IGNORED(map, "wandb", NULL, NULL, TO_FILES(FROM_BOARD "wandb sync --sync-tensorboard sends its files")),
    IGNORED(map, "cometml", NULL, NULL, TO_FILES(FROM_BOARD "comet upload-tensorboard sends its files")),
    IGNORED(map, "neptune", NULL, NULL, TO_FILES(FROM_BOARD "neptune tensorboard sends its files")),
    IGNORED(map, "mosaicml", NULL, NULL, "a service of MosaicML's platform; " ALWAYS),
    IGNORED(map, "slack", NULL, NULL, TO_FILES("a program can watch metrics.jsonl")),
    IGNORED(map, "inmemory", NULL, NULL, ALWAYS "; programs get them through cltrain.h"),
    IGNORED(map, "inmemory_logger", NULL, NULL, ALWAYS "; programs get them through cltrain.h"),
    IGNORED(map, "progress_bar", NULL, NULL, "the key progress_bar of the top level turns it on"),
    IGNORED(map, "console", NULL, NULL, "the key log_to_console of the top level turns it on"),
};
const clt_schema clt_config_logger_schema = CLT_SCHEMA(logger_keys);

/* The folder that an address of a file store names: FOLDER, file:FOLDER, file:///FOLDER; NULL: it names
 * something else. */
static const char *local_folder(const char *uri) {
    static const char scheme[] = "file:";
    if (!uri) return "mlruns";
    if (strncmp(uri, scheme, sizeof scheme - 1) == 0) {
        uri += sizeof scheme - 1;
        return strncmp(uri, "//", 2) == 0 ? (uri[2] == '/' ? uri + 2 : NULL) : uri;
    }
    return strstr(uri, "://") || strncmp(uri, "databricks", strlen("databricks")) == 0 ? NULL : uri;
}

clt_status clt_config_resolve_loggers(clt_schema_reader *r, clt_config_builder *b) {
    clt_loggers_config *l = &b->c.loggers;
    const struct {
        const char *key;
        bool on;
        int64_t interval;
    } intervals[] = {{"loggers.tensorboard.flush_interval", l->tensorboard.on, l->tensorboard.flush_interval},
                     {"loggers.mlflow.flush_interval", l->mlflow.on, l->mlflow.flush_interval},
                     {"loggers.file_logger.flush_interval", l->file.on, l->file.flush_interval}};
    for (size_t i = 0; i < CLT_COUNT_OF(intervals); i++)
        if (intervals[i].on && intervals[i].interval < 1)
            return clt_schema_fail(r, intervals[i].key, "is %lld: it must be at least 1",
                                   (long long)intervals[i].interval);
    l->mlflow.folder = local_folder(l->mlflow.tracking_uri);
    if (l->mlflow.on && !l->mlflow.folder)
        clt_strv_add_owned(&b->c.remarks,
                           clt_format("loggers.mlflow.tracking_uri '%.80s' is not a folder: nothing is "
                                      "written for MLflow; " TO_FILES("give a folder such as mlruns"),
                                      l->mlflow.tracking_uri));
    return CLT_OK;
}
