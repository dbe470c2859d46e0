/* train --log-samples: the samples of each batch, in one file per rank. With it a test can check that a run
 * that was stopped, killed and moved uses every sample once per epoch, in the right order. */
#include "runtime/base/clt_io.h"
#include "runtime/train/run/clt_run.h"

static clt_status open_log(clt_run *r) {
    char name[32];
    const char *folder = r->opt->log_samples;
    CLT_TRY(clt_io_mkdirs(folder));
    snprintf(name, sizeof name, "rank%d.jsonl", clt_group_rank(r->group));
    char *path = clt_path_join(folder, name);
    clt_status st = clt_file_open(path, CLT_IO_APPEND, &r->files.samples);
    clt_free(path);
    return st;
}

/* A line for each stretch of neighbouring samples: one, unless lanes are dealt out. */
clt_status clt_run_log_samples(clt_run *r, const clt_batch *b) {
    clt_str text = {0};
    const int64_t *id = b->sample_ids;
    if (!r->opt->log_samples) return CLT_OK;
    if (!r->files.samples) CLT_TRY(open_log(r));
    const int n = clt_engine_parts_of_batch(r->engine, b->global_samples, r->parts);
    for (int k = 0; k < n; k++) {
        const clt_loader_rows *part = &r->parts[k];
        clt_str_addf(&text, "{\"run\":\"%s\",\"batch\":%lld,\"epoch\":%lld,\"place\":%lld,\"samples\":[",
                     r->files.run_id, (long long)r->progress.now.batch + 1, (long long)r->progress.now.epoch,
                     (long long)(r->progress.now.sample_in_epoch + part->first));
        for (int64_t i = 0; i < part->count; i++)
            clt_str_addf(&text, "%s%lld", i ? "," : "", (long long)*id++);
        clt_str_add(&text, "]}\n");
    }
    clt_status st = clt_file_append(r->files.samples, text.s, text.len);
    clt_str_free(&text);
    return st;
}
