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

/* One data set. */
static clt_status fetch(const char *remote, const char *local, bool keep_zip) {
    /* No training waits: more memory than beside it, and patience with a slow line. */
    enum { PIECE = 24 << 20, TIMEOUT = 600 };
    clt_fetch *f;
    clt_mds *m = NULL;
    CLT_TRY(clt_fetch_create(&(clt_fetch_params){.piece = PIECE}, &f));
    const clt_mds_params p = {
        .fetch = f, .remote = remote, .keep_zip = keep_zip, .retries = CLT_FETCH_RETRIES, .timeout = TIMEOUT};
    clt_status st = clt_mds_open(local, &p, &m);
    if (st == CLT_OK) st = fetch_all(f, m);
    if (st == CLT_OK)
        printf("%s: %zu shards, %lld samples, %.1f MiB fetched\n", local, clt_mds_num_shards(m),
               (long long)clt_mds_num_samples(m), (double)clt_fetch_received(f) / (1 << 20));
    clt_mds_close(m);
    clt_fetch_close(f);
    return st;
}

/* Whether the folder has an index.json. */
static clt_status is_dataset(const char *dir, bool *yes) {
    clt_io_info info;
    char *index = clt_path_join(dir, "index.json");
    const clt_status st = clt_io_stat(index, &info);
    *yes = st == CLT_OK && info.kind == CLT_IO_FILE;
    clt_free(index);
    return st;
}

/* Adds the sub-folders that are data sets; CLT_BAD_DATA: there are none. */
static clt_status find_splits(const char *remote, clt_strv *splits) {
    clt_strv names = {0};
    clt_status st = clt_io_list(remote, &names);
    for (size_t i = 0; i < names.n && st == CLT_OK; i++) {
        bool yes;
        char *sub = clt_path_join(remote, names.v[i]);
        st = is_dataset(sub, &yes);
        if (st == CLT_OK && yes) clt_strv_add(splits, names.v[i]);
        clt_free(sub);
    }
    clt_strv_free(&names);
    if (st == CLT_OK && splits->n == 0)
        st = clt_error(CLT_BAD_DATA,
                       "no index.json in %s, nor in a folder of it: it is no MDS dataset; check the name",
                       remote);
    return st;
}

/* The data set itself, or each of its splits, or the given one. */
static clt_status fetch_splits(const char *remote, const char *local, const char *split, bool keep_zip) {
    clt_strv splits = {0};
    bool itself = false;
    clt_status st = CLT_OK;
    if (split)
        clt_strv_add(&splits, split);
    else
        st = is_dataset(remote, &itself);
    if (st == CLT_OK && itself) st = fetch(remote, local, keep_zip);
    if (st == CLT_OK && !itself && !split) st = find_splits(remote, &splits);
    for (size_t i = 0; i < splits.n && st == CLT_OK; i++) {
        char *from = clt_path_join(remote, splits.v[i]), *to = clt_path_join(local, splits.v[i]);
        st = fetch(from, to, keep_zip);
        clt_free(to);
        clt_free(from);
    }
    clt_strv_free(&splits);
    return st;
}

int data_fetch(int argc, char **argv) {
    bool keep_zip = false;
    const char *split = NULL;
    const clt_option options[] = {
        {"split", 0, CLT_OPT_STR, &split, "NAME",
         "fetch this sub-folder only; default: all that are datasets"},
        {"keep-zip", 0, CLT_OPT_FLAG, &keep_zip, NULL, "keep compressed shards compressed"}};
    const clt_command command = {
        .name = "cltrain data fetch",
        .usage = "REMOTE LOCAL [--split NAME] [--keep-zip]",
        .summary = "copies an MDS dataset from a store or a folder, checks it, and resumes what was cut off",
        .examples = "  cltrain data fetch s3://bucket/data data\n"
                    "  cltrain data fetch s3://bucket/data data --split val\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n != 2) code = clt_options_fail(&command, "name the remote dataset and a folder");
    if (code < 0 && split && !clt_path_is_safe(split))
        code = clt_options_fail(&command, "--split must be the name of a folder in REMOTE");
    if (code < 0) code = clt_status_exit_code(fetch_splits(rest.v[0], rest.v[1], split, keep_zip));
    clt_strv_free(&rest);
    return code;
}
