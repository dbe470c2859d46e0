/* The named numbers that a run keeps in its checkpoints, and the effective training time. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_json.h"
#include "runtime/train/run/clt_run.h"

/* --- named numbers --- */

static void add(clt_ckpt_number *numbers, int *n, clt_strv *names, char *name, double value) {
    clt_strv_add_owned(names, name);
    numbers[(*n)++] = (clt_ckpt_number){name, value};
}

int clt_run_numbers(clt_run *r, clt_ckpt_number **numbers, clt_strv *names) {
    enum { OTHERS = 14 + CLT_HOP_NUMBERS + 1 + CLT_RUN_CHECKS };
    const clt_loss_scale *scale = clt_engine_loss_scale(r->engine);
    const clt_run_guards *g = &r->guards;
    int n = 0, spikes = r->cfg->guards.loss_spike != CLT_SPIKE_OFF ? g->loss.n : 0;
    clt_ckpt_number *v = clt_calloc((size_t)(OTHERS + 2 * spikes + clt_run_fp8_most(r)), sizeof *v);
    if (r->cfg->precision == CLT_F16) {
        add(v, &n, names, clt_strdup("loss_scale"), scale->scale);
        add(v, &n, names, clt_strdup("good_steps"), (double)scale->good_steps);
        add(v, &n, names, clt_strdup("loss_scale_rule"), r->cfg->loss_scale.kind);
        if (r->cfg->loss_scale.kind == CLT_SCALE_DEEPSPEED)
            add(v, &n, names, clt_strdup("loss_scale_hysteresis"), (double)scale->hysteresis);
    }
    add(v, &n, names, clt_strdup("first_start"), r->effective.first_start);
    add(v, &n, names, clt_strdup("useful_seconds"), r->effective.useful_seconds);
    add(v, &n, names, clt_strdup("last_samples"), (double)r->progress.last_samples);
    add(v, &n, names, clt_strdup("last_tokens"), (double)r->progress.last_tokens);
    if (r->guards.bad_in_a_row) add(v, &n, names, clt_strdup("nonfinite_in_a_row"), (double)g->bad_in_a_row);
    if (r->guards.rollbacks) add(v, &n, names, clt_strdup("rollbacks"), (double)g->rollbacks);
    if (r->early.known) {
        add(v, &n, names, clt_strdup("early_best"), r->early.best);
        add(v, &n, names, clt_strdup("early_epoch"), (double)r->early.epoch);
        add(v, &n, names, clt_strdup("early_batch"), (double)r->early.batch);
        add(v, &n, names, clt_strdup("early_over"), r->early.over);
    }
    n += clt_run_leg_numbers(&r->leg, &r->progress.now, v + n);
    n += clt_run_check_numbers(r, v + n);
    n += clt_run_fp8_numbers(r, v + n, names);
    for (int i = 0; i < spikes; i++) add(v, &n, names, clt_format("spike_loss.%d", i), g->loss.v[i]);
    for (int i = 0; i < spikes; i++) add(v, &n, names, clt_format("spike_norm.%d", i), g->norm.v[i]);
    *numbers = v;
    return n;
}

/* Restores a window from the numbers PREFIX0, PREFIX1, ...; of a longer saved window the newest values are
 * used. */
static void take_window(clt_spike *s, const char *prefix, const clt_checkpoint_state *state) {
    double *v = clt_calloc((size_t)CLT_MAX(state->number_count, 1), sizeof *v);
    int n = 0;
    for (int i = 0; i < state->number_count; i++) {
        const char *name = state->numbers[i].name;
        size_t length = strlen(prefix);
        int64_t at;
        if (strncmp(name, prefix, length) || !clt_parse_i64(name + length, &at)) continue;
        if (at < 0 || at >= state->number_count || !isfinite(state->numbers[i].value)) continue;
        v[at] = state->numbers[i].value;
        n = CLT_MAX(n, (int)at + 1);
    }
    s->n = CLT_MIN(n, s->window);
    memcpy(s->v, v + (n - s->n), (size_t)s->n * sizeof *v);
    clt_free(v);
}

double clt_run_useful_of(const clt_checkpoint_state *s) {
    for (int i = 0; i < s->number_count; i++)
        if (!strcmp(s->numbers[i].name, "useful_seconds") && s->numbers[i].value >= 0)
            return s->numbers[i].value;
    return s->train_seconds;
}

clt_loss_scale clt_run_scale_of(const clt_config *c, const clt_checkpoint_state *s) {
    clt_loss_scale scale = clt_loss_scale_start(&c->loss_scale);
    int rule = -1;
    bool saved = false;
    for (int i = 0; i < s->number_count; i++) {
        const char *name = s->numbers[i].name;
        const double v = s->numbers[i].value;
        const bool is_scale = !strcmp(name, "loss_scale") && v >= CLT_LOSS_SCALE_LEAST && v <= 0x1p127;
        saved |= is_scale;
        if (is_scale) scale.scale = v;
        if (!strcmp(name, "good_steps") && v >= 0) scale.good_steps = (int64_t)CLT_MIN(v, 0x1p53);
        if (!strcmp(name, "loss_scale_hysteresis") && fabs(v) <= 0x1p53) scale.hysteresis = (int64_t)v;
        if (!strcmp(name, "loss_scale_rule") && v >= 0 && v <= CLT_SCALE_STATIC) rule = (int)v;
    }
    return saved ? clt_loss_scale_resume(&c->loss_scale, rule, scale) : clt_loss_scale_start(&c->loss_scale);
}

static void take_early(clt_run_early *e, const clt_checkpoint_state *s) {
    *e = (clt_run_early){0}; /* a checkpoint from before the first evaluation has none */
    for (int i = 0; i < s->number_count; i++) {
        const char *name = s->numbers[i].name;
        const double v = s->numbers[i].value;
        if (!(v >= 0 && v <= 0x1p53)) continue;
        if (!strcmp(name, "early_best")) *e = (clt_run_early){.known = true, .best = v};
        if (!strcmp(name, "early_epoch")) e->epoch = (int64_t)v;
        if (!strcmp(name, "early_batch")) e->batch = (int64_t)v;
        if (!strcmp(name, "early_over")) e->over = v > 0;
    }
}

void clt_run_take_numbers(clt_run *r, const clt_checkpoint_state *s) {
    r->origin.scale = clt_run_scale_of(r->cfg, s);
    clt_run_fp8_keep(r, s);
    r->effective.useful_seconds = clt_run_useful_of(s);
    /* The default for checkpoints without these numbers: a full batch. */
    r->progress.last_samples = CLT_MIN(r->cfg->global_train_batch_size, s->sample);
    r->progress.last_tokens = CLT_MIN(r->progress.last_samples * r->cfg->max_seq_len, s->token);
    for (int i = 0; i < s->number_count; i++) {
        const char *name = s->numbers[i].name;
        double v = s->numbers[i].value;
        if (!(v >= 0 && v <= 0x1p127)) continue;
        if (!strcmp(name, "first_start")) r->effective.first_start = v;
        if (!strcmp(name, "last_samples")) r->progress.last_samples = (int64_t)CLT_MIN(v, (double)s->sample);
        if (!strcmp(name, "last_tokens")) r->progress.last_tokens = (int64_t)CLT_MIN(v, (double)s->token);
        if (!strcmp(name, "nonfinite_in_a_row")) r->guards.bad_in_a_row = (int64_t)CLT_MIN(v, 0x1p53);
        if (!strcmp(name, "rollbacks")) r->guards.rollbacks = (int64_t)CLT_MIN(v, 0x1p53);
    }
    take_early(&r->early, s);
    take_window(&r->guards.loss, "spike_loss.", s);
    take_window(&r->guards.norm, "spike_norm.", s);
}

/* --- effective training time --- */

/* Calls `take` for each valid row of metrics.jsonl that starts with `begin`. False if the file cannot be
 * read. */
static bool each_row(const clt_run *r, const char *begin, void (*take)(void *ctx, json_t *row), void *ctx) {
    char *path = clt_path_join(r->files.local, "metrics.jsonl"), *text = NULL;
    const size_t length = strlen(begin);
    size_t bytes = 0;
    clt_error_quiet(true);
    const bool good =
        !clt_io_is_file(path) || clt_io_read_all(path, (size_t)1 << 30, &text, &bytes) == CLT_OK;
    clt_error_quiet(false);
    for (char *at = text; good && at && at < text + bytes;) {
        const size_t n = strcspn(at, "\n");
        json_t *row = n > length && !strncmp(at, begin, length) ? json_loadb(at, n, 0, NULL) : NULL;
        if (row) take(ctx, row);
        json_decref(row);
        at += n + 1;
    }
    clt_free(text);
    clt_free(path);
    return good;
}

static void take_start(void *found, json_t *row) {
    if (json_is_true(json_object_get(row, "first")))
        *(double *)found = json_number_value(json_object_get(row, "time"));
}

/* For a run that was killed before its first checkpoint: the time of the newest "start" event in
 * metrics.jsonl that is marked as the run's first; 0: none. */
static double noted_start(const clt_run *r) {
    double found = 0;
    each_row(r, "{\"event\":\"start\"", take_start, &found);
    return found;
}

static void count_eval(void *found, json_t *row) {
    *(int *)found += json_object_get(row, "eval_loss") != NULL || json_object_get(row, "metrics") != NULL;
}

/* Number of evaluation rows for this batch in metrics.jsonl; INT_MAX: the file cannot be read. */
static int noted_evals(const clt_run *r) {
    char *begin = clt_format("{\"batch\":%lld,", (long long)r->progress.now.batch);
    int found = 0;
    if (!each_row(r, begin, count_eval, &found)) found = INT_MAX;
    clt_free(begin);
    return found;
}

/* Whether an evaluation is due at the current position. False for intervals in samples, tokens or seconds:
 * whether one ended within the last step is unknown. */
static bool eval_is_due(const clt_run *r, clt_time every) {
    const clt_timestamp *t = &r->progress.now;
    if (every.value <= 0) return false;
    if (clt_timestamp_reached(t, r->cfg->max_duration)) return true;
    if (every.unit == CLT_TIME_BATCH) return t->batch % every.value == 0;
    return every.unit == CLT_TIME_EPOCH && t->batch_in_epoch == 0 && t->epoch % every.value == 0;
}

clt_status clt_run_owes_eval(clt_run *r, clt_time every, bool *owes) {
    int64_t yes = 0;
    if (r->origin.autoresumed && clt_run_evaluates(r->cfg) && eval_is_due(r, every) &&
        clt_group_rank(r->group) == 0)
        yes = noted_evals(r) < r->cfg->n_evals + (int)r->icl.sets.n;
    CLT_TRY(clt_group_max_i64(r->group, &yes, 1));
    *owes = yes != 0;
    return CLT_OK;
}

void clt_run_note_start(clt_run *r) {
    double now = clt_wall();
    if (r->opt->started > 0) now -= clt_now() - r->opt->started;
    if (r->effective.first_start == 0 && !r->origin.resumed && r->cfg->autoresume &&
        clt_group_rank(r->group) == 0)
        r->effective.first_start = noted_start(r);
    bool first = !(r->effective.first_start > 0 && r->effective.first_start <= now);
    if (first) r->effective.first_start = now;
    char *fields = clt_format("\"time\":%.3f,\"first\":%s,\"unit\":\"%s\"", now, first ? "true" : "false",
                              clt_model_get_terms(r->cfg->model)->unit);
    clt_sinks_event(r->sinks, "start", r->progress.now.batch, fields);
    clt_free(fields);
}

/* The first step of a process compiles and allocates. It is counted with the duration of the second step, if
 * that is shorter. */
void clt_run_count_step(clt_run *r, double seconds) {
    r->effective.steps_counted++;
    if (r->effective.steps_counted == 1) {
        r->effective.first_seconds = seconds;
        return;
    }
    if (r->effective.steps_counted == 2)
        r->effective.useful_seconds += CLT_MIN(seconds, r->effective.first_seconds);
    r->effective.useful_seconds += seconds;
}

/* Without a second step in any process nothing is known: the first one is mostly compilation. */
static void print_effective(double ratio, double useful_seconds, double wall) {
    char useful[32], all[32];
    if (useful_seconds == 0) return;
    char *percent = ratio < 0.001 ? clt_strdup("below 0.1") : clt_format("%.1f", floor(1000 * ratio) / 10);
    clt_info("effective training time: %s %% (%s of useful steps in %s since the run's first start)", percent,
             clt_human_seconds(useful_seconds, useful), clt_human_seconds(wall, all));
    clt_free(percent);
}

void clt_run_note_end(clt_run *r, const char *why) {
    const double useful = r->effective.useful_seconds, wall = clt_wall() - r->effective.first_start,
                 ratio = wall > 0 ? CLT_MIN(useful / wall, 1.0) : 0;
    print_effective(ratio, useful, wall);
    char *known = useful > 0 ? clt_format("\"ettr\":%.5f,", ratio) : clt_strdup("");
    char *fields =
        clt_format("\"why\":\"%s\",%s\"useful_seconds\":%.3f,\"wall_seconds\":%.3f,\"guard_seconds\":%.4f",
                   why, known, useful, wall, r->guards.seconds);
    clt_sinks_event(r->sinks, "end", r->progress.now.batch, fields);
    clt_free(known);
    clt_free(fields);
}
