#include "runtime/train/run/clt_trainer.h"

#include "runtime/base/clt_signal.h"
#include "runtime/train/run/clt_run.h"

static void tell_done(const clt_run *r) {
    char s[40];
    if (r->origin.resumed && r->progress.now.batch == r->progress.start_batch && r->early.over)
        clt_info(
            "nothing to do: the run ended early at batch %lld; remove callbacks.early_stopper to continue",
            (long long)r->progress.now.batch);
    else if (r->origin.resumed && r->progress.now.batch == r->progress.start_batch)
        clt_info("nothing to do: the checkpoint of batch %lld has reached max_duration %s; set a larger "
                 "max_duration to continue",
                 (long long)r->progress.now.batch, clt_time_text(r->cfg->max_duration, s));
    else
        clt_info("done: %lld batches, %lld %ss in %s of training, loss %.4f; logs in %s",
                 (long long)r->progress.now.batch, (long long)r->progress.now.token,
                 clt_model_get_terms(r->cfg->model)->unit, clt_human_seconds(r->progress.now.wall_seconds, s),
                 r->progress.loss, r->files.local);
}

static clt_status train(clt_run *r) {
    bool done;
    CLT_TRY(clt_run_start(r));
    CLT_TRY(clt_run_loop(r, 0, &done));
    CLT_TRY(clt_run_finish(r));
    clt_progress_end();
    tell_done(r);
    clt_run_note_end(r, "done");
    if (r->saves.failures)
        clt_warn("%lld checkpoint%s of this run could not be saved", (long long)r->saves.failures,
                 r->saves.failures == 1 ? "" : "s");
    clt_status st = CLT_OK;
    if (r->saves.failed)
        st = clt_error(CLT_IO, "the last checkpoint could not be saved in %s", r->files.folder);
    return clt_group_agree(r->group, st);
}

clt_status clt_train(const clt_config *cfg, const clt_run_options *opt) {
    clt_run r = {.cfg = cfg, .opt = opt};
    const char *stopping =
        cfg->save_folder
            ? "\nstopping: saving the last finished step; press Ctrl-C again to stop at once without saving\n"
            : "\nstopping: nothing is saved, because there is no save_folder\n";
    clt_signal_install(clt_launch_detect().rank == 0 ? stopping : NULL);
    clt_status st = train(&r);
    st = clt_run_ended(&r, st);
    if (st == CLT_AGAIN && r.dev && clt_device_is_hung(r.dev)) clt_group_end_hung(r.group);
    if (st != CLT_OK && r.group) clt_group_give_up(r.group, st);
    if (r.dev) st = clt_run_tracing_end(&r, st);
    if (r.dev) clt_run_print_profile(&r);
    clt_run_close(&r);
    return st;
}
