/* cltrain.phase_times: steps whose phases are timed. */
#include "runtime/train/run/clt_run.h"

/* Not the first step of a process, in which kernels are compiled. */
static bool is_due(const clt_run *r, int64_t s) {
    const int64_t every = r->cfg->phase_times;
    return every > 0 && s % every == 0 && s != r->progress.first_step;
}

clt_status clt_run_phases_begin(clt_run *r, int64_t s) {
    if (!is_due(r, s)) return CLT_OK;
    CLT_TRY(clt_run_collect_all(r)); /* collective, so on all ranks */
    CLT_TRY(clt_engine_settle(r->engine));
    clt_engine_time_phases(r->engine, &r->phases.times);
    r->phases.on = r->guards.disturbed = true;
    return CLT_OK;
}

static void print_times(const clt_run *r, int64_t s) {
    static const char *const names[CLT_PHASES] = {"forward", "backward", "exchange", "update"};
    const double *seconds = r->phases.times.seconds, total = r->pace.step_seconds;
    double rest = total;
    clt_str b = {0};
    for (int i = 0; i < CLT_PHASES; i++) {
        clt_str_addf(&b, "%s %.2f ms, ", names[i], seconds[i] * 1e3);
        rest -= seconds[i];
    }
    clt_info("phases of step %lld: %srest %.2f ms, together %.2f ms%s; it waited for the device after each "
             "phase, other steps are faster",
             (long long)s, b.s, CLT_MAX(rest, 0.0) * 1e3, total * 1e3,
             clt_group_size(r->group) > 1 ? " on rank 0" : "");
    clt_str_free(&b);
}

clt_status clt_run_phases_end(clt_run *r, int64_t s) {
    r->phases.on = false;
    CLT_TRY(clt_run_collect_all(r)); /* sets the time of the step */
    if (clt_group_rank(r->group) == 0) print_times(r, s);
    return CLT_OK;
}
