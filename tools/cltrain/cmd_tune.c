/* cltrain tune: measures the kernel variants at the shapes of a run and keeps the choice for later runs. */
#include <string.h>

#include "tools/cltrain/commands.h"
#include "runtime/base/clt_options.h"
#include "runtime/train/engine/clt_engine.h"
#include "runtime/ops/clt_variant.h"

typedef struct {
    clt_config *cfg;
    clt_group *group;
    clt_device *dev;
    clt_ops *ops;
    clt_engine *engine;
    clt_plan plan;
} tuning;

static clt_status open_all(tuning *t, const char *device, double seconds, bool again) {
    const clt_config *c = t->cfg;
    clt_device_params p = clt_device_params_default();
    p.pattern = device ? device : c->devices.n ? c->devices.v[0] : NULL;
    p.need_exact = c->numerics == CLT_EXACT;
    CLT_TRY(clt_device_open(&p, &t->dev));
    CLT_TRY(clt_group_create(c->dist_timeout, &t->group));
    clt_ops_params o = clt_ops_params_default();
    o.numerics = c->numerics;
    o.tune = CLT_TUNE_FILL;
    o.tune_seconds = seconds;
    o.tune_again = again;
    CLT_TRY(clt_ops_create(t->dev, &o, &t->ops));
    const clt_device_facts *f = clt_device_get_facts(t->dev);
    const clt_plan_room room = clt_plan_room_of(f, 1);
    CLT_TRY(clt_plan_make(c, 1, &room, &t->plan));
    const clt_engine_params e = {
        .cfg = c, .group = t->group, .ops = t->ops, .plan = &t->plan, .training = true};
    return clt_engine_create(&e, &t->engine);
}

/* Runs a training step and an evaluation on synthetic samples, which use every shape of the run. */
static clt_status meet_shapes(tuning *t) {
    void *storage;
    clt_batch b;
    CLT_TRY(
        clt_model_example(t->cfg->model, t->cfg->max_seq_len, t->cfg->global_train_batch_size, &storage, &b));
    const clt_engine_step_params p = {.batch = &b, .step = 1, .alpha = 1.0};
    clt_engine_result r;
    clt_status st = clt_engine_step(t->engine, &p, &r);
    clt_free(storage);
    return st == CLT_OK ? clt_engine_prepare_eval(t->engine) : st;
}

/* Prints the choices for this device and driver as lines without a header, to be appended to
 * clkernels/tuned.csv. */
static clt_status export_choices(const tuning *t) {
    int n;
    const clt_tuned *line = clt_ops_tuned(t->ops, &n);
    const clt_device_facts *f = clt_device_get_facts(t->dev);
    clt_str b = {0};
    for (int i = 0; i < n; i++)
        if (!strcmp(line[i].device, f->name) && !strcmp(line[i].driver, f->driver) && line[i].seconds > 0)
            clt_tuned_add(&b, &line[i], CLT_TUNE_KNOWN);
    if (b.s) fputs(b.s, stdout);
    clt_str_free(&b);
    return CLT_OK;
}

static clt_status print_choices(const tuning *t) {
    int n, left = 0;
    const clt_tuned *line = clt_ops_tuned(t->ops, &n);
    const clt_device_facts *f = clt_device_get_facts(t->dev);
    printf("device   %s (driver %s)\n\n%-19s %-44s %-16s %12s %9s\n", f->name, f->driver, "op", "shape",
           "variant", "time", "error");
    for (int i = 0; i < n; i++) {
        const bool known = !strcmp(line[i].key, CLT_TUNE_KNOWN);
        if (strcmp(line[i].device, f->name) != 0 || (!known && strcmp(line[i].driver, f->driver) != 0))
            continue;
        if (line[i].seconds > 0)
            printf("%-19s %-44s %-16s %9.3f ms %9.3g%s\n", line[i].op, line[i].shape, line[i].variant,
                   line[i].seconds * 1e3, line[i].error, known ? "  from tuned.csv" : "");
        left += !(line[i].seconds > 0);
    }
    const char *dir = clt_device_cache_dir(t->dev);
    if (left) printf("\n%d shapes were not measured; increase --seconds\n", left);
    if (!dir) {
        printf("\nnot saved: caching is off\n");
        return CLT_OK;
    }
    if (!clt_ops_keep_tuned(t->ops))
        return clt_error(CLT_IO, "cltrain tune: %s/tune.csv cannot be written", dir);
    printf("\nsaved in %s/tune.csv; runs on this device use it (cltrain.tune: cache)\n", dir);
    return CLT_OK;
}

int cmd_tune(int argc, char **argv) {
    const char *device = NULL;
    double seconds = 60;
    bool again = false, export = false;
    const clt_option options[] = {
        {"device", 'd', CLT_OPT_STR, &device, "PATTERN", "part of a platform's or device's name, or P:D"},
        CLT_DISABLE_ROW_OPTION,
        {"seconds", 't', CLT_OPT_FLOAT, &seconds, "S", "seconds to spend on measuring (default 60)"},
        {"again", 0, CLT_OPT_FLAG, &again, NULL, "repeat earlier measurements"},
        {"export", 0, CLT_OPT_FLAG, &export, NULL, "print the choices as lines for clkernels/tuned.csv"},
    };
    const clt_command command = {
        .name = "cltrain tune",
        .usage = "CONFIG.yaml [key.sub=value ...]",
        .summary =
            "Measures the kernel variants that this device supports at the shapes of the run, compares their "
            "results with the oracle, and keeps the fastest for later runs on this device.",
        .examples =
            "  cltrain tune run.yaml\n"
            "  cltrain tune tools/presets/mpt-1b.yaml precision=amp_bf16 --device nvidia --seconds 120\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    tuning t = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n == 0)
        code = clt_options_fail(&command, "a configuration is required: CONFIG.yaml");
    if (code < 0 && !(seconds > 0)) code = clt_options_fail(&command, "--seconds must be above 0");
    if (code < 0) {
        clt_status st = clt_config_load(rest.v[0], (const char *const *)rest.v + 1, rest.n - 1, &t.cfg);
        if (st == CLT_OK) st = open_all(&t, device, seconds, again);
        if (st == CLT_OK) st = meet_shapes(&t);
        if (st == CLT_OK) st = (export ? export_choices : print_choices)(&t);
        code = clt_status_exit_code(st);
    }
    clt_engine_destroy(t.engine);
    clt_ops_destroy(t.ops);
    clt_group_destroy(t.group);
    clt_device_close(t.dev);
    clt_config_free(t.cfg);
    clt_plan_free(&t.plan);
    clt_strv_free(&rest);
    return code;
}
