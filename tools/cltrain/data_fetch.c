/* cltrain data fetch: a whole remote data set into a folder. */
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_options.h"
#include "runtime/data/clt_mds.h"
#include "tools/cltrain/data_commands.h"

/* Announces all shards and waits for one after the other. */
static clt_status fetch_all(clt_fetch *f, const clt_mds *m) {
    const size_t n = clt_mds_num_shards(m);
    size_t *shards = clt_try_malloc((n + 1) * sizeof *shards);
    if (!shards) return clt_no_memory("the shards of a data set", n * sizeof *shards);
    for (size_t i = 0; i < n; i++) shards[i] = i;
    clt_fetch_announce(f, shards, n);
    clt_free(shards);
    clt_status st = CLT_OK;
    for (size_t i = 0; i < n && st == CLT_OK; i++) {
        clt_progress(false, "%s: shard %zu of %zu, %.1f MiB fetched", clt_mds_dir(m), i, n,
                     (double)clt_fetch_received(f) / (1 << 20));
        st = clt_fetch_need(f, i);
    }
    clt_progress_end();
    return st;
}

static clt_status fetch(const char *remote, const char *local, bool keep_zip) {
    enum { RETRIES = 2 };
    clt_fetch *f;
    clt_mds *m = NULL;
    CLT_TRY(clt_fetch_create(&(clt_fetch_params){0}, &f));
    const clt_mds_params p = {.fetch = f, .remote = remote, .keep_zip = keep_zip, .retries = RETRIES};
    clt_status st = clt_mds_open(local, &p, &m);
    if (st == CLT_OK) st = fetch_all(f, m);
    if (st == CLT_OK)
        printf("%s: %zu shards, %lld samples, %.1f MiB fetched\n", local, clt_mds_num_shards(m),
               (long long)clt_mds_num_samples(m), (double)clt_fetch_received(f) / (1 << 20));
    clt_mds_close(m);
    clt_fetch_close(f);
    return st;
}

int data_fetch(int argc, char **argv) {
    bool keep_zip = false;
    const clt_option options[] = {
        {"keep-zip", 0, CLT_OPT_FLAG, &keep_zip, NULL, "keep compressed shards compressed"}};
    const clt_command command = {
        .name = "cltrain data fetch",
        .usage = "REMOTE LOCAL [--keep-zip]",
        .summary = "copies an MDS dataset from a store or a folder, checks it, and resumes what was cut off",
        .examples = "  cltrain data fetch s3://bucket/data/train data/train\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n != 2) code = clt_options_fail(&command, "name the remote dataset and a folder");
    if (code < 0) code = clt_status_exit_code(fetch(rest.v[0], rest.v[1], keep_zip));
    clt_strv_free(&rest);
    return code;
}
