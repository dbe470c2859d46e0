/* The report of a resumed run: what wrote the checkpoint, what resumes it, and whether the bits stay the
 * same. If they do not, the difference is measured: at every save the run evaluates the next batches with the
 * saved weights and stores the losses; a resumed run evaluates the same batches and compares. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_json.h"
#include "runtime/ops/clt_variant.h"
#include "runtime/train/run/clt_run.h"

/* --- this job and the writer --- */

typedef struct {
    char device[400], driver[128];
} machine;

/* "2 x A + B": the distinct strings in the order of the ranks. field: offset of a member of machine. */
static char *join(const machine *m, int n, size_t field) {
    clt_str b = {0};
    for (int i = 0; i < n; i++) {
        const char *text = (const char *)&m[i] + field;
        int same = 0, before = 0;
        for (int k = 0; k < n; k++) {
            bool equal = strcmp((const char *)&m[k] + field, text) == 0;
            same += equal;
            before += equal && k < i;
        }
        if (before) continue;
        if (b.len) clt_str_add(&b, " + ");
        if (same > 1 && same < n) clt_str_addf(&b, "%d x ", same);
        clt_str_add(&b, text);
    }
    return b.s;
}

/* "exact fp32", "fast amp_bf16", "fast amp_fp8", "exact8", "exact8 with attention in 8 bits" */
static char *numerics_name(const clt_config *c) {
    const char *precision = c->precision == CLT_F32   ? "fp32"
                            : c->precision == CLT_F16 ? "amp_fp16"
                            : c->fp8                  ? "amp_fp8"
                                                      : "amp_bf16";
    if (c->eight_bits)
        return clt_strdup(c->attention_bits == 8 ? "exact8 with attention in 8 bits" : "exact8");
    return clt_format("%s %s", c->numerics == CLT_EXACT ? "exact" : "fast", precision);
}

clt_status clt_run_describe(clt_run *r) {
    const clt_device_facts *f = clt_device_get_facts(r->dev);
    int n = clt_group_size(r->group);
    machine mine, *all = clt_calloc((size_t)n, sizeof *all);
    memset(&mine, 0, sizeof mine);
    snprintf(mine.device, sizeof mine.device, "%s (%s)", f->name, f->platform);
    snprintf(mine.driver, sizeof mine.driver, "%s", f->driver);
    clt_status st = clt_group_all_gather(r->group, &mine, sizeof mine, all);
    if (st == CLT_OK) {
        r->origin.here.device = join(all, n, offsetof(machine, device));
        r->origin.here.driver = join(all, n, offsetof(machine, driver));
        r->origin.here.version = clt_format("%s (%s)", clt_version(), clt_version_git());
        r->origin.here.numerics = numerics_name(r->cfg);
        r->origin.here.ranks = n;
    }
    clt_free(all);
    return st;
}

static char *copy(const char *text) {
    return clt_strdup(text ? text : "unknown");
}

void clt_run_remember_writer(clt_run *r, const clt_checkpoint_state *s) {
    clt_run_place *w = &r->origin.writer;
    clt_run_place_free(w);
    *w = (clt_run_place){0};
    w->device = copy(s->device);
    w->driver = copy(s->driver);
    w->version = copy(s->version);
    w->numerics = copy(s->numerics);
    if (s->variants) w->variants = clt_strdup(s->variants);
    if (s->config && *s->config) w->config = clt_strdup(s->config);
    w->ranks = s->ranks;
    for (int i = 0; i < CLT_RUN_CHECKS; i++) w->loss[i] = NAN;
    for (int i = 0; i < s->number_count; i++) {
        const clt_ckpt_number *x = &s->numbers[i];
        int k = 0;
        if (strcmp(x->name, "check_samples") == 0 && x->value > 0 && x->value < 1e9)
            w->check_samples = (int64_t)x->value;
        if (sscanf(x->name, "check_loss_%d", &k) == 1 && k >= 1 && k <= CLT_RUN_CHECKS)
            w->loss[k - 1] = x->value;
    }
    /* A batch whose loss was not finite cannot be compared, nor those after it. */
    while (w->checks < CLT_RUN_CHECKS && isfinite(w->loss[w->checks])) w->checks++;
}

void clt_run_place_free(clt_run_place *p) {
    clt_free(p->device);
    clt_free(p->driver);
    clt_free(p->version);
    clt_free(p->numerics);
    clt_free(p->variants);
    clt_free(p->config);
}

/* --- evaluation for the check --- */

int clt_run_checks(const clt_config *c) {
    if (c->check_batches >= 0) return (int)CLT_MIN(c->check_batches, (int64_t)CLT_RUN_CHECKS);
    return c->numerics == CLT_FAST;
}

/* Losses of the next n batches with the current weights. Does not change the run's state. */
static clt_status evaluate_next(clt_run *r, int n, double *loss) {
    int64_t epoch = r->progress.now.epoch, place = r->progress.now.sample_in_epoch,
            batch = r->progress.now.batch_in_epoch;
    for (int i = 0; i < n; i++) {
        int64_t samples =
            CLT_MIN(r->cfg->global_train_batch_size, clt_loader_rows_of(r->train, epoch) - place);
        clt_engine_sums sums = {0};
        CLT_TRY(clt_run_eval_batch(r, r->train, epoch, place, samples, true, &sums));
        loss[i] = sums.loss / (double)CLT_MAX(sums.targets, (int64_t)1);
        place += samples;
        if (!clt_run_epoch_over(r, epoch, place, ++batch)) continue;
        epoch++;
        place = batch = 0;
    }
    clt_run_prefetch(r, r->progress.now.epoch, r->progress.now.sample_in_epoch);
    return CLT_OK;
}

int clt_run_check_numbers(clt_run *r, clt_ckpt_number out[1 + CLT_RUN_CHECKS]) {
    static const char *const names[CLT_RUN_CHECKS] = {"check_loss_1", "check_loss_2", "check_loss_3",
                                                      "check_loss_4", "check_loss_5", "check_loss_6",
                                                      "check_loss_7", "check_loss_8"};
    static const double patience = 5; /* seconds: longest delay of a requested stop */
    double loss[CLT_RUN_CHECKS];
    int n = clt_run_checks(r->cfg);
    if (n == 0 || r->no_data || (clt_group_stop(r->group) && r->pace.step_seconds * n > patience)) return 0;
    clt_group_note(r->group, r->progress.now.batch, "evaluating for the checkpoint");
    if (evaluate_next(r, n, loss) != CLT_OK) return 0;
    out[0] = (clt_ckpt_number){"check_samples", (double)r->cfg->global_train_batch_size};
    for (int i = 0; i < n; i++) out[1 + i] = (clt_ckpt_number){names[i], loss[i]};
    return 1 + n;
}

/* --- the report --- */

/* Why the bits may differ from those of an uninterrupted run; NULL: they do not. */
static const char *what_differs(const clt_run_place *was, const clt_run_place *is) {
    if (strcmp(was->numerics, is->numerics) != 0) return "precision or numerics changed";
    if (strncmp(is->numerics, "exact", 5) == 0) return NULL;
    if (strcmp(was->device, is->device) != 0) return "the device changed";
    if (strcmp(was->driver, is->driver) != 0) return "the driver changed";
    if (was->ranks != is->ranks) return "the number of ranks changed";
    if (strcmp(was->version, is->version) != 0) return "the version of cltrain changed";
    return NULL;
}

static void tell(const clt_run *r, const char *differs) {
    const clt_run_place *was = &r->origin.writer, *is = &r->origin.here;
    clt_info("  written by cltrain %s, %s, %lld rank%s of %s, driver %s", was->version, was->numerics,
             (long long)was->ranks, was->ranks == 1 ? "" : "s", was->device, was->driver);
    clt_info("  resumed by cltrain %s, %s, %lld rank%s of %s, driver %s", is->version, is->numerics,
             (long long)is->ranks, is->ranks == 1 ? "" : "s", is->device, is->driver);
    if (differs)
        clt_info("  from here on not bit-identical to an uninterrupted run: %s", differs);
    else if (strncmp(is->numerics, "exact", 5) == 0)
        clt_info("  bit-identical to an uninterrupted run: exact numerics do not depend on device, driver or "
                 "ranks");
    else
        clt_info("  bit-identical to an uninterrupted run if the same kernel variants are chosen: %s",
                 was->variants ? was->variants : "unknown");
}

/* Prints each key whose value changed since the checkpoint was written, and adds the list to the event. */
static void tell_changes(const clt_run *r, clt_str *event) {
    /* The checkpoint's values of these are kept; keep() warned about it. */
    static const char *const kept[] = {"seed", "cltrain.exact_lanes", "train_loader.dataset.shuffle_seed"};
    json_t *d = r->origin.writer.config ? clt_config_differences(r->cfg, r->origin.writer.config) : NULL;
    for (size_t i = 0; i < CLT_COUNT_OF(kept); i++) json_object_del(d, kept[i]);
    const char *key;
    json_t *pair;
    json_object_foreach(d, key, pair) {
        enum { STYLE = JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15) };
        char *was = json_dumps(json_array_get(pair, 0), STYLE),
             *is = json_dumps(json_array_get(pair, 1), STYLE);
        clt_info("  configuration: %s changed: %s, was %s", key, is, was);
        clt_free(was);
        clt_free(is);
    }
    char *text = d ? json_dumps(d, JSON_COMPACT) : NULL;
    if (text) clt_str_addf(event, ",\"changed\":%s", text);
    clt_free(text);
    json_decref(d);
}

/* The limit of the relative difference between two mean losses of a batch: ten times the difference measured
 * between fp32 and bf16 with the same weights (docs/launching.md); other orders of sums differ far less. A
 * loss below 1 is mostly the loss of a few targets, whose number is proportional to it. The errors of their
 * logits do not shrink with the loss and cancel less, so the difference falls as the root of the loss, and
 * the relative difference grows. */
static double limit_of(const clt_run *r, int n) {
    static const double exact = 0, fp32 = 1e-5, narrow = 2e-3;
    double least = 1;
    for (int i = 0; i < n; i++) least = CLT_MIN(least, fabs(r->origin.writer.loss[i]));
    const char *was = r->origin.writer.numerics, *is = r->origin.here.numerics;
    if (!isnan(r->cfg->check_limit)) return r->cfg->check_limit;
    if (strcmp(was, is) == 0 && strncmp(is, "exact", 5) == 0) return exact;
    return (strstr(was, "fp32") && strstr(is, "fp32") ? fp32 : narrow) / sqrt(CLT_MAX(least, 1e-6));
}

static void add_place(clt_str *b, const char *key, const clt_run_place *p) {
    const char *const fields[][2] = {{"device", p->device},
                                     {"driver", p->driver},
                                     {"version", p->version},
                                     {"numerics", p->numerics},
                                     {"variants", p->variants}};
    clt_str_addf(b, "\"%s\":{\"ranks\":%lld", key, (long long)p->ranks);
    for (size_t i = 0; i < CLT_COUNT_OF(fields); i++) {
        if (!fields[i][1]) continue;
        clt_str_addf(b, ",\"%s\":", fields[i][0]);
        clt_json_escape(b, fields[i][1]);
    }
    clt_str_add(b, "}");
}

/* The largest relative difference over the batches that both evaluated. */
static clt_status compare(clt_run *r, int n, double *largest, double *was, double *is) {
    double loss[CLT_RUN_CHECKS];
    *largest = -1;
    CLT_TRY(evaluate_next(r, n, loss));
    for (int i = 0; i < n; i++) {
        double a = r->origin.writer.loss[i], d = fabs(loss[i] - a) / CLT_MAX(fabs(a), 1e-30);
        if (!(d >= 0)) d = INFINITY;
        if (d <= *largest) continue;
        *largest = d;
        *was = a;
        *is = loss[i];
    }
    return CLT_OK;
}

static clt_status judge(clt_run *r, int n, double largest, double was, double is) {
    double limit = limit_of(r, n);
    clt_info("  resume check: %d batch%s evaluated, largest relative difference of the loss %.3g (limit %g)",
             n, n == 1 ? "" : "es", largest, limit);
    if (largest <= limit) return CLT_OK;
    static const char text[] = "the checkpoint's losses are not reproduced: %.9g when it was written, %.9g "
                               "now, relative difference %.3g (limit %g). Model, data or precision have "
                               "changed, or one of the two devices computes wrong results. ";
    if (r->cfg->check_action == CLT_CHECK_WARN) {
        clt_str b = {0};
        clt_str_addf(&b, text, was, is, largest, limit);
        clt_warn("%sTraining continues (cltrain.resume_check.action)", b.s);
        clt_str_free(&b);
        return CLT_OK;
    }
    clt_str b = {0};
    clt_str_addf(&b, text, was, is, largest, limit);
    clt_status st = clt_error(
        CLT_FAIL,
        "%sTo resume anyway: cltrain.resume_check.action=warn, or a larger cltrain.resume_check.limit", b.s);
    clt_str_free(&b);
    return st;
}

clt_status clt_run_check_resume(clt_run *r) {
    const char *differs = what_differs(&r->origin.writer, &r->origin.here);
    int n = CLT_MIN(clt_run_checks(r->cfg), r->origin.writer.checks);
    double largest = 0, was = 0, is = 0;
    bool other_batches = r->origin.writer.check_samples != r->cfg->global_train_batch_size;
    tell(r, differs);
    if (clt_run_checks(r->cfg) > 0 && (n == 0 || other_batches))
        clt_info("  resume check skipped: %s", n == 0 ? "the checkpoint has no losses to compare with"
                                                      : "global_train_batch_size has changed");
    if (other_batches) n = 0;
    if (n > 0) CLT_TRY(compare(r, n, &largest, &was, &is));
    clt_str b = {0};
    add_place(&b, "written_by", &r->origin.writer);
    clt_str_add(&b, ",");
    add_place(&b, "goes_on_with", &r->origin.here);
    clt_str_addf(&b, ",\"same_bits\":%s,\"checked_batches\":%d", differs ? "false" : "true", n);
    if (n > 0)
        clt_str_addf(&b, ",\"largest_difference\":%.9g,\"limit\":%.9g", CLT_MIN(largest, 1e300),
                     limit_of(r, n));
    tell_changes(r, &b);
    clt_sinks_event(r->sinks, "resume", r->progress.now.batch, b.s);
    clt_str_free(&b);
    return n > 0 ? clt_group_agree(r->group, judge(r, n, largest, was, is)) : CLT_OK;
}

void clt_run_compare_variants(clt_run *r) {
    const char *was = r->origin.writer.variants;
    if (!r->origin.resumed || !was) return;
    r->origin.here.variants = clt_variants_used(r->ops);
    if (strcmp(was, r->origin.here.variants) == 0) return;
    clt_str b = {0};
    clt_str_add(&b, "\"were\":");
    clt_json_escape(&b, was);
    clt_str_add(&b, ",\"are\":");
    clt_json_escape(&b, r->origin.here.variants);
    clt_sinks_event(r->sinks, "variants", r->progress.now.batch, b.s);
    clt_str_free(&b);
    if (r->cfg->numerics == CLT_FAST)
        clt_info("kernel variants when the checkpoint was written: %s; now: %s", was,
                 r->origin.here.variants);
}
