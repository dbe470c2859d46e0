/* train --trace, --record and --profile: timelines, recorded launches and kernel times. */
#include "runtime/device/clt_record.h"
#include "runtime/train/run/clt_run.h"

/* With several ranks each one records into its own subfolder. */
clt_status clt_run_record_begin(clt_run *r, int64_t s, bool *recording) {
    const clt_run_options *o = r->opt;
    int64_t first = o->record_first ? o->record_first : r->progress.first_step;
    int64_t last = o->record_last ? o->record_last : first;
    *recording = o->record && s >= first && s <= last;
    if (!*recording) return CLT_OK;
    r->tracing.recorded = true;
    char rank[32];
    snprintf(rank, sizeof rank, "rank%d", clt_group_rank(r->group));
    char *dir = clt_path_join(o->record, clt_group_size(r->group) > 1 ? rank : "");
    clt_status st = clt_record_start(r->dev, dir, false);
    clt_free(dir);
    return st;
}

static int64_t trace_first(const clt_run *r) {
    return r->opt->trace_first ? r->opt->trace_first : r->progress.first_step + 2;
}

clt_status clt_run_trace_begin(clt_run *r, int64_t s) {
    const clt_run_options *o = r->opt;
    if (!o->trace || s != trace_first(r)) return CLT_OK;
    CLT_TRY(clt_run_collect_all(r)); /* collective, so on all ranks */
    CLT_TRY(clt_engine_settle(r->engine));
    r->tracing.on = r->tracing.met = true;
    r->tracing.last = o->trace_last ? o->trace_last : s + 2;
    r->tracing.trace = clt_trace_create(r->group, o->trace, r->dev);
    return CLT_OK;
}

clt_status clt_run_trace_end(clt_run *r) {
    CLT_TRY(clt_run_collect_all(r));
    CLT_TRY(clt_engine_settle(r->engine)); /* what the steps exchange belongs to the trace */
    clt_trace *t = r->tracing.trace;
    r->tracing.on = false;
    r->tracing.trace = NULL;
    return clt_trace_finish(t, r->dev, true);
}

clt_status clt_run_tracing_end(clt_run *r, clt_status st) {
    const clt_run_options *o = r->opt;
    const bool whole = st == CLT_OK || st == CLT_AGAIN; /* on all ranks */
    clt_trace *t = clt_device_is_hung(r->dev) ? NULL : r->tracing.trace;
    if (t) r->tracing.trace = NULL;
    const clt_status written = t ? clt_trace_finish(t, r->dev, whole) : CLT_OK;
    if (whole && !r->leg.hop && clt_group_rank(r->group) == 0) {
        if (o->trace && !r->tracing.met)
            clt_warn(
                "--trace %s is not written: this run ended without step %lld, the first step of the trace",
                o->trace, (long long)trace_first(r));
        if (o->record && !r->tracing.recorded)
            clt_warn("--record %s is not written: this run ended without step %lld, the first step to record",
                     o->record, (long long)(o->record_first ? o->record_first : r->progress.first_step));
    }
    return st == CLT_OK ? written : st;
}

void clt_run_print_profile(clt_run *r) {
    if (r->opt->profile || clt_env_long(CLT_ENV_PROFILE, 0)) clt_device_print_profile(r->dev);
}
