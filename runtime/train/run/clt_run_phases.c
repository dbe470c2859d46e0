/* cltrain.phase_times and cltrain.flops_profile: steps whose phases are timed. */
#include "runtime/base/clt_io.h"
#include "runtime/train/run/clt_run.h"

static const char *const names[CLT_PHASES] = {"forward", "backward", "exchange", "update"};

/* Not the first step of a process, in which kernels are compiled. */
static bool is_due(const clt_run *r, int64_t batch) {
    const int64_t every = r->cfg->phase_times;
    return every > 0 && batch % every == 0 && clt_device_is_steady(r->dev);
}

clt_status clt_run_phases_begin(clt_run *r, int64_t batch) {
    if (!is_due(r, batch) && batch != r->cfg->flops_profile.batch) return CLT_OK;
    CLT_TRY(clt_run_collect_all(r)); /* collective, so on all ranks */
    CLT_TRY(clt_engine_settle(r->engine));
    clt_engine_time_phases(r->engine, &r->phases.times);
    r->phases.on = r->guards.disturbed = true;
    return CLT_OK;
}

static void print_times(const clt_run *r, int64_t batch) {
    const double *seconds = r->phases.times.seconds, total = r->pace.step_seconds;
    double rest = total;
    clt_str b = {0};
    for (int i = 0; i < CLT_PHASES; i++) {
        clt_str_addf(&b, "%s %.2f ms, ", names[i], seconds[i] * 1e3);
        rest -= seconds[i];
    }
    clt_info("phases of batch %lld: %srest %.2f ms, together %.2f ms%s; it waited for the device after each "
             "phase, other steps are faster",
             (long long)batch, b.s, CLT_MAX(rest, 0.0) * 1e3, total * 1e3,
             clt_group_size(r->group) > 1 ? " on rank 0" : "");
    clt_str_free(&b);
}

/* --- cltrain.flops_profile --- */

/* The times are rank 0's, so the rates of its passes are those of its own samples. The backward pass has
 * twice the operations of the forward pass. */
static void add_phases(const clt_run *r, double own_flops, clt_str *b) {
    const double part[CLT_PHASES] = {own_flops / 3, own_flops * 2 / 3};
    for (int i = 0; i < CLT_PHASES; i++) {
        const double seconds = r->phases.times.seconds[i];
        clt_str_addf(b, "\n  %-12s%.2f ms", names[i], seconds * 1e3);
        if (part[i] > 0 && seconds > 0)
            clt_str_addf(b, ", %.4g FLOP, %.4g FLOP/s", part[i], part[i] / seconds);
    }
}

static void add_profile(const clt_run *r, int64_t batch, const clt_batch *own, int64_t tokens, clt_str *b) {
    const int ranks = clt_group_size(r->group);
    const double each = clt_model_train_flops_per_token(r->cfg->model, r->cfg->max_seq_len),
                 flops = each * (double)tokens, rate = flops / r->pace.step_seconds;
    char count[32];
    clt_str_addf(b, "flops profile of batch %lld%s:", (long long)batch,
                 clt_device_is_steady(r->dev) ? ""
                                              : ", the first of this process, in which kernels are compiled");
    clt_str_addf(b, "\n  %-12s%s", "parameters",
                 clt_human_count((double)clt_model_param_count(r->cfg->model), count));
    clt_str_addf(b, "\n  %-12s%lld, %d rank%s, microbatch %lld", "samples", (long long)own->global_samples,
                 ranks, ranks > 1 ? "s" : "", (long long)r->plan.microbatch);
    clt_str_addf(b, "\n  %-12s%.4g FLOP, %.4g per %s; recomputation is not counted", "operations", flops,
                 each, clt_model_get_terms(r->cfg->model)->unit);
    add_phases(r, each * (double)own->tokens, b);
    clt_str_addf(b, "\n  %-12s%.2f ms, %.4g FLOP/s", "step", r->pace.step_seconds * 1e3, rate);
    if (r->pace.peak_flops > 0)
        clt_str_addf(b, ", %.1f %% of the measured peak", 100 * rate / (r->pace.peak_flops * ranks));
    clt_str_addf(b, "\n  phases are those of rank 0, which waited for its device after each of them: "
                    "other steps are faster");
}

/* As other metrics, it is not worth a run. */
static void write_profile(const char *path, clt_str *b) {
    char *folder = clt_path_dir(path);
    clt_str_add(b, "\n");
    clt_status st = clt_io_mkdirs(folder);
    if (st == CLT_OK) st = clt_io_write_atomic(path, b->s, b->len);
    if (st != CLT_OK) clt_warn("%s, cltrain.flops_profile.file, is not written; training continues", path);
    clt_free(folder);
}

clt_status clt_run_phases_end(clt_run *r, int64_t batch, const clt_batch *own, int64_t tokens) {
    const clt_flops_config *c = &r->cfg->flops_profile;
    r->phases.on = false;
    CLT_TRY(clt_run_collect_all(r)); /* sets the time of the step */
    if (clt_group_rank(r->group) != 0) return CLT_OK;
    if (is_due(r, batch)) print_times(r, batch);
    if (batch != c->batch) return CLT_OK;
    clt_str b = {0};
    add_profile(r, batch, own, tokens, &b);
    if (c->file)
        write_profile(c->file, &b);
    else
        clt_info("%s", b.s);
    clt_str_free(&b);
    return CLT_OK;
}
