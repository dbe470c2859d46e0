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

/* The samples of a row: `first`, or all that share it. */
static clt_status add_row(clt_run *r, int64_t position, int64_t first, bool more, clt_str *text) {
    int64_t *ids = NULL;
    size_t n = 1, cap = 0;
    clt_status st = CLT_OK;
    const bool shared = clt_loader_shares_rows(r->train);
    if (shared) st = clt_loader_row_samples(r->train, r->progress.now.epoch, position, &ids, &cap, &n);
    for (size_t i = 0; i < n && st == CLT_OK; i++)
        clt_str_addf(text, "%s%lld", more || i ? "," : "", (long long)(shared ? ids[i] : first));
    clt_free(ids);
    return st;
}

/* A line for each stretch of neighbouring rows: one, unless lanes are dealt out. */
clt_status clt_run_log_samples(clt_run *r, const clt_batch *b) {
    clt_str text = {0};
    const int64_t *id = b->sample_ids;
    clt_status st = CLT_OK;
    if (!r->opt->log_samples) return CLT_OK;
    if (!r->files.samples) CLT_TRY(open_log(r));
    const int n = clt_engine_parts_of_batch(r->engine, b->global_samples, r->parts);
    for (int k = 0; k < n && st == CLT_OK; k++) {
        const clt_loader_rows *part = &r->parts[k];
        const int64_t place = r->progress.now.sample_in_epoch + part->first;
        clt_str_addf(&text, "{\"run\":\"%s\",\"batch\":%lld,\"epoch\":%lld,\"place\":%lld,\"samples\":[",
                     r->files.run_id, (long long)r->progress.now.batch + 1, (long long)r->progress.now.epoch,
                     (long long)place);
        for (int64_t i = 0; i < part->count && st == CLT_OK; i++)
            st = add_row(r, place + i, *id++, i > 0, &text);
        clt_str_add(&text, "]}\n");
    }
    if (st == CLT_OK) st = clt_file_append(r->files.samples, text.s, text.len);
    clt_str_free(&text);
    return st;
}
