/* loggers.mlflow: MLflow's local file store, in the layout of mlflow/store/tracking/file_store.py:
 * ROOT/EXPERIMENT/meta.yaml and ROOT/EXPERIMENT/RUN/{meta.yaml, metrics/KEY, params/KEY, tags/KEY}. A line of
 * a metric is "milliseconds value step". A resumed run continues the newest MLflow run of its name. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_hash.h"
#include "runtime/base/clt_json.h"
#include "runtime/train/config/clt_yaml.h"
#include "runtime/train/sink/clt_sink_kind.h"
#include "runtime/train/sink/clt_sink_lines.h"

enum { RUNNING = 1, FINISHED = 3, FAILED = 4, KILLED = 5 }; /* RunStatus of MLflow */

typedef struct {
    char *name; /* of the file in metrics/ */
    clt_str lines;
} pending;

typedef struct {
    char *root, *experiment, *run; /* absolute folder; ids */
    const char *run_name;
    int64_t start, end; /* milliseconds since 1970; end 0: not over */
    int status;
    pending *metric;
    size_t metrics;
    int64_t interval, batches; /* between two writes; since the last one */
} mlflow;

static const char name_characters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-. :/";

/* Whether MLflow accepts it as the name of a metric, parameter or tag. It refuses to read a run that has any
 * other. */
static bool is_name(const char *s) {
    return strspn(s, name_characters) == strlen(s) && clt_path_is_safe(s);
}

static int64_t milliseconds(void) {
    return (int64_t)(clt_wall() * 1000);
}

/* A path below the run, or below the experiment while there is no run; "": that folder. */
static char *path_of(const mlflow *m, const char *below) {
    char *folder = clt_format("%s/%s%s%s", m->root, m->experiment, m->run ? "/" : "", m->run ? m->run : ""),
         *path = *below ? clt_path_join(folder, below) : clt_strdup(folder);
    clt_free(folder);
    return path;
}

/* --- small files --- */

/* meta.yaml decides whether MLflow can read a folder: it is never half written. */
static clt_status write_meta(const mlflow *m, const char *text) {
    char *path = path_of(m, "meta.yaml");
    clt_status st = clt_sink_make_room(path);
    if (st == CLT_OK) st = clt_io_write_atomic(path, text, strlen(text));
    clt_free(path);
    return st;
}

/* Creates FOLDER/NAME below the run. There are hundreds of them: without a sync. */
static clt_status write_text(const mlflow *m, const char *folder, const char *name, const char *text) {
    char *relative = clt_path_join(folder, name), *path = path_of(m, relative);
    clt_file *f;
    clt_status st = clt_sink_make_room(path);
    if (st == CLT_OK) st = clt_file_open(path, CLT_IO_CREATE, &f);
    if (st == CLT_OK) {
        const clt_status written = clt_file_pwrite(f, text, strlen(text), 0);
        st = clt_file_close(f);
        if (written != CLT_OK) st = written;
    }
    clt_free(relative);
    clt_free(path);
    return st;
}

/* KEY: "value" of a meta.yaml; JSON strings are YAML strings. */
static void add_text(clt_str *b, const char *key, const char *value) {
    clt_str_addf(b, "%s: ", key);
    clt_json_escape(b, value);
    clt_str_add(b, "\n");
}

static clt_status write_run_meta(const mlflow *m) {
    clt_str b = {0};
    char *artifacts = path_of(m, "artifacts"), *uri = clt_format("file://%s", artifacts);
    add_text(&b, "artifact_uri", uri);
    if (m->end)
        clt_str_addf(&b, "end_time: %" PRId64 "\n", m->end);
    else
        clt_str_add(&b, "end_time: null\n");
    add_text(&b, "entry_point_name", "");
    add_text(&b, "experiment_id", m->experiment);
    clt_str_add(&b, "lifecycle_stage: active\n");
    add_text(&b, "run_id", m->run);
    add_text(&b, "run_name", m->run_name);
    add_text(&b, "run_uuid", m->run);
    clt_str_addf(&b,
                 "source_name: ''\nsource_type: 4\nsource_version: ''\nstart_time: %" PRId64
                 "\nstatus: %d\ntags: []\nuser_id: cltrain\n",
                 m->start, m->status);
    clt_status st = write_meta(m, b.s);
    clt_str_free(&b);
    clt_free(artifacts);
    clt_free(uri);
    return st;
}

/* The meta.yaml of a folder below the root as an object, NULL if it has none that can be read. */
static json_t *read_meta(const char *folder) {
    char *path = clt_path_join(folder, "meta.yaml");
    clt_yaml *y = NULL;
    json_t *o = NULL;
    clt_error_quiet(true);
    if (clt_io_is_file(path) && clt_yaml_load(path, &y) == CLT_OK) clt_yaml_to_json(y, &o);
    clt_error_quiet(false);
    clt_yaml_free(y);
    clt_free(path);
    return o;
}

static bool is_text(const json_t *o, const char *key, const char *value) {
    const char *s = json_string_value(json_object_get(o, key));
    return s && strcmp(s, value) == 0;
}

/* --- experiment and run --- */

/* The id of the folder in `folder` whose meta.yaml has KEY: VALUE and the newest TIME; NULL: none. */
static char *find(const char *folder, const char *key, const char *value, const char *time, int64_t *when) {
    clt_strv names = {0};
    char *found = NULL;
    *when = -1;
    if (clt_io_list(folder, &names) != CLT_OK) names.n = 0;
    for (size_t i = 0; i < names.n; i++) {
        char *path = clt_path_join(folder, names.v[i]);
        json_t *meta = names.v[i][0] == '.' ? NULL : read_meta(path);
        const int64_t at = json_integer_value(json_object_get(meta, time));
        if (meta && is_text(meta, key, value) && is_text(meta, "lifecycle_stage", "active") && at > *when) {
            clt_free(found);
            found = clt_strdup(names.v[i]);
            *when = at;
        }
        json_decref(meta);
        clt_free(path);
    }
    clt_strv_free(&names);
    return found;
}

/* 32 hex digits from what two runs never share. */
static void random_id(char out[33]) {
    struct {
        double wall, now;
        long pid;
        char host[64];
    } seed = {.wall = clt_wall(), .now = clt_now(), .pid = (long)getpid()};
    gethostname(seed.host, sizeof seed.host - 1);
    clt_hash_hex(clt_hash(&seed, sizeof seed), out);
}

static clt_status make_experiment(mlflow *m, const char *name) {
    char id[33];
    clt_str b = {0};
    const int64_t now = milliseconds();
    random_id(id);
    /* As MLflow: 18 decimal digits. */
    m->experiment = clt_format("%018llu", strtoull(id + 17, NULL, 16) % 1000000000000000000ull);
    char *location = path_of(m, ""), *uri = clt_format("file://%s", location);
    add_text(&b, "artifact_location", uri);
    clt_str_addf(&b, "creation_time: %" PRId64 "\n", now);
    add_text(&b, "experiment_id", m->experiment);
    clt_str_addf(&b, "last_update_time: %" PRId64 "\nlifecycle_stage: active\n", now);
    add_text(&b, "name", name);
    clt_status st = write_meta(m, b.s);
    clt_str_free(&b);
    clt_free(location);
    clt_free(uri);
    return st;
}

/* One file for each value of the configuration. MLflow refuses values above 6,000 bytes. */
static clt_status write_params(const mlflow *m, const clt_config *c) {
    enum { MOST = 6000 };
    clt_str lines = {0};
    clt_status st = CLT_OK;
    clt_config_lines(c, &lines);
    for (char *at = lines.s, *next; at && *at && st == CLT_OK; at = next) {
        next = strchr(at, '\n');
        if (next) *next++ = 0;
        char *colon = strstr(at, ": ");
        if (colon) *colon = 0;
        if (colon && is_name(at) && strlen(colon + 2) <= MOST) st = write_text(m, "params", at, colon + 2);
        if (!next) break;
    }
    clt_str_free(&lines);
    return st;
}

static clt_status write_tags(const mlflow *m, const clt_config *c) {
    const char *key;
    json_t *value;
    CLT_TRY(write_text(m, "tags", "mlflow.runName", m->run_name));
    CLT_TRY(write_text(m, "tags", "mlflow.user", "cltrain"));
    CLT_TRY(write_text(m, "tags", "mlflow.source.name", "cltrain"));
    CLT_TRY(write_text(m, "tags", "mlflow.source.type", "LOCAL"));
    CLT_TRY(write_text(m, "tags", "cltrain.version", clt_version()));
    json_object_foreach(c->loggers.mlflow.tags, key, value) {
        if (json_is_string(value) && is_name(key))
            CLT_TRY(write_text(m, "tags", key, json_string_value(value)));
    }
    return CLT_OK;
}

static clt_status open_run(mlflow *m, const clt_sinks_params *p) {
    int64_t when;
    const clt_mlflow_config *c = &p->cfg->loggers.mlflow;
    m->experiment = find(m->root, "name", c->experiment_name, "creation_time", &when);
    if (!m->experiment) CLT_TRY(make_experiment(m, c->experiment_name));
    char *folder = path_of(m, "");
    if (p->start_batch > 0) m->run = find(folder, "run_name", m->run_name, "start_time", &m->start);
    clt_free(folder);
    if (m->run) return write_run_meta(m);
    m->run = clt_calloc(1, 33);
    random_id(m->run);
    m->start = milliseconds();
    CLT_TRY(write_run_meta(m));
    char *artifacts = path_of(m, "artifacts");
    clt_status st = clt_io_mkdirs(artifacts);
    clt_free(artifacts);
    CLT_TRY(st);
    CLT_TRY(write_params(m, p->cfg));
    return write_tags(m, p->cfg);
}

static void free_state(mlflow *m) {
    for (size_t i = 0; i < m->metrics; i++) {
        clt_free(m->metric[i].name);
        clt_str_free(&m->metric[i].lines);
    }
    clt_free(m->metric);
    clt_free(m->root);
    clt_free(m->experiment);
    clt_free(m->run);
    clt_free(m);
}

static clt_status mlflow_open(const clt_sinks_params *p, void **state) {
    const clt_mlflow_config *c = &p->cfg->loggers.mlflow;
    if (!p->folder || !c->on || !c->folder) return CLT_OK;
    char *trash = clt_path_join(c->folder, ".trash"); /* MLflow's readers expect it */
    clt_status st = clt_io_mkdirs(trash);
    clt_free(trash);
    CLT_TRY(st);
    mlflow *m = clt_calloc(1, sizeof *m);
    char *real = realpath(c->folder, NULL);
    m->root = clt_strdup(real ? real : c->folder);
    clt_free(real);
    m->run_name = c->run_name ? c->run_name : p->cfg->run_name;
    m->interval = c->flush_interval;
    m->status = RUNNING;
    st = open_run(m, p);
    if (st == CLT_OK)
        *state = m;
    else
        free_state(m);
    return st;
}

/* --- rows --- */

/* The name of a metric with '_' for characters that MLflow refuses, which labels of data may have. */
static char *metric_name(const char *given) {
    char *name = clt_strdup(given);
    for (char *c = name; *(c += strspn(c, name_characters)); c++) *c = '_';
    return name;
}

static void add(mlflow *m, int64_t step, const clt_metrics *metrics) {
    const int64_t now = milliseconds();
    for (size_t k = 0; k < metrics->n; k++) {
        size_t i = 0;
        char *name = metric_name(metrics->v[k].name);
        while (i < m->metrics && strcmp(m->metric[i].name, name) != 0) i++;
        if (i == m->metrics) {
            m->metric = clt_realloc(m->metric, ++m->metrics * sizeof *m->metric);
            m->metric[i] = (pending){.name = clt_strdup(name)};
        }
        clt_free(name);
        clt_str_addf(&m->metric[i].lines, "%" PRId64 " %.17g %" PRId64 "\n", now, metrics->v[k].value, step);
    }
}

static clt_status flush(mlflow *m) {
    clt_status st = CLT_OK;
    m->batches = 0;
    for (size_t i = 0; i < m->metrics; i++) {
        pending *p = &m->metric[i];
        clt_sink_lines *file = NULL;
        if (p->lines.len == 0 || !is_name(p->name)) continue;
        char *name = clt_format("metrics/%s", p->name), *path = path_of(m, name);
        clt_status one = clt_sink_lines_open(path, &file, NULL);
        if (one == CLT_OK) one = clt_sink_lines_append(file, p->lines.s, p->lines.len);
        clt_sink_lines_close(file);
        if (st == CLT_OK) st = one;
        clt_free(name);
        clt_free(path);
        clt_str_free(&p->lines);
    }
    return st;
}

static clt_status mlflow_step(void *state, const clt_sink_step *s) {
    mlflow *m = state;
    add(m, s->row->after.batch, s->metrics);
    return ++m->batches >= m->interval ? flush(m) : CLT_OK;
}

static clt_status mlflow_eval(void *state, const clt_sink_eval *e) {
    add(state, e->row->batch, e->metrics);
    return flush(state);
}

static clt_status mlflow_named(void *state, const clt_sink_named *n) {
    add(state, n->row->batch, n->metrics);
    return flush(state);
}

static clt_status mlflow_event(void *state, const clt_sink_event *e) {
    mlflow *m = state;
    if (strcmp(e->name, "end") == 0)
        m->status = e->fields && strstr(e->fields, "\"why\":\"done\"") ? FINISHED : KILLED;
    return CLT_OK;
}

static clt_status mlflow_close(void *state) {
    mlflow *m = state;
    clt_status st = flush(m);
    if (m->status == RUNNING) m->status = FAILED; /* no event said that the run ended well */
    m->end = milliseconds();
    const clt_status meta = write_run_meta(m);
    free_state(m);
    return st != CLT_OK ? st : meta;
}

const clt_sink_kind clt_sink_mlflow = {.name = "loggers.mlflow",
                                       .open = mlflow_open,
                                       .step = mlflow_step,
                                       .eval = mlflow_eval,
                                       .named = mlflow_named,
                                       .event = mlflow_event,
                                       .close = mlflow_close};
