/* index.json of a remote data set: its copy, and whether that is still the remote's. */
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/data/clt_fetch_internal.h"

enum { DEPTH = 16 };
static const size_t max_bytes = (size_t)1 << 29;
static const double offline_patience = 10; /* seconds, with a local folder that needs no remote */

clt_status fetch_require_cache(const char *local) {
    return clt_io_require(local,
                          CLT_IO_CAN_RENAME | CLT_IO_CAN_WRITE_RANGES | CLT_IO_CAN_LOCK | CLT_IO_HAS_FOLDERS,
                          "the local copy of a remote data set");
}

bool fetch_has_file(const char *dir, const mds_file *m) {
    clt_io_info info;
    char *path = clt_path_join(dir, m->name);
    const bool there =
        clt_io_try_stat(path, &info) == 0 && info.kind == CLT_IO_FILE && info.bytes == m->bytes;
    clt_free(path);
    return there;
}

/* Reads and parses an index for at most `seconds`. *passes: a failure that may pass. */
static clt_status read_index(const char *path, double seconds, char **text, size_t *bytes, json_t **root,
                             bool *passes) {
    const double before = clt_io_set_deadline(clt_now() + seconds);
    clt_status st = clt_io_read_all(path, max_bytes, text, bytes);
    clt_io_set_deadline(before);
    *passes = st == CLT_IO && clt_io_may_pass(clt_io_last_errno());
    CLT_TRY(st);
    st = clt_json_parse(*text, *bytes, DEPTH, path, root);
    if (st != CLT_OK) clt_free(*text);
    return st;
}

static clt_status copy_index(const clt_fetch_set *s, const char *from, const char *to) {
    char *text;
    size_t bytes;
    json_t *root;
    bool passes;
    CLT_TRY(read_index(from, fetch_patience(s->retries, s->timeout), &text, &bytes, &root, &passes));
    const clt_status st = clt_io_write_atomic(to, text, bytes);
    json_decref(root);
    clt_free(text);
    return st;
}

/* --- a local index: is it the remote's? --- */

static bool is_complete(const char *local) {
    mds_index x;
    clt_error_quiet(true);
    bool complete = mds_index_load(local, true, &x) == CLT_OK;
    clt_error_quiet(false);
    if (!complete) return false;
    for (size_t i = 0; i < x.n && complete; i++)
        complete = fetch_has_file(local, &x.shards[i].raw) ||
                   (x.shards[i].compression && fetch_has_file(local, &x.shards[i].zip));
    mds_index_free(&x);
    return complete;
}

/* What differs between two entries of a shard: " has 10 samples there and 12 here". */
static void describe(json_t *there, json_t *here, clt_str *out) {
    static const char *const numbers[] = {"samples", "bytes"};
    static const char *const files[] = {"raw_data", "zip_data"};
    for (size_t i = 0; i < CLT_COUNT_OF(numbers); i++)
        for (size_t k = 0; k < CLT_COUNT_OF(files); k++) {
            json_t *a = i ? json_object_get(there, files[k]) : there,
                   *b = i ? json_object_get(here, files[k]) : here;
            a = json_object_get(a, numbers[i]);
            b = json_object_get(b, numbers[i]);
            if (!json_is_integer(a) || !json_is_integer(b) || json_equal(a, b)) continue;
            clt_str_addf(out, " has %lld %s there and %lld here", (long long)json_integer_value(a),
                         numbers[i], (long long)json_integer_value(b));
            return;
        }
    clt_str_add(out, " has other checksums, names or columns");
}

static clt_status differs(const clt_fetch_set *s, json_t *there, json_t *here) {
    json_t *a = json_object_get(there, "shards"), *b = json_object_get(here, "shards");
    const size_t n = json_array_size(a), m = json_array_size(b), both = CLT_MIN(n, m);
    size_t first = both, count = 0;
    for (size_t i = both; i-- > 0;)
        if (!json_equal(json_array_get(a, i), json_array_get(b, i))) first = i, count++;
    clt_str what = {0};
    if (n != m) clt_str_addf(&what, "%zu shards there and %zu here%s", n, m, count ? "; " : "");
    if (count) {
        clt_str_addf(&what, "%zu of %zu shards differ, the first one is number %zu, which", count, both,
                     first);
        describe(json_array_get(a, first), json_array_get(b, first), &what);
    }
    const clt_status st = clt_error(
        CLT_BAD_DATA,
        "the data set %s was replaced since %s was fetched from it: %s. Remove %s to fetch the new data "
        "set, or remove `remote` to train with the old one if it is complete",
        s->remote, s->local, what.s ? what.s : "the indexes differ", s->local);
    clt_str_free(&what);
    return st;
}

static clt_status compare_texts(const clt_fetch_set *s, const char *to, const char *text, size_t bytes,
                                json_t *there) {
    char *own;
    size_t own_bytes;
    json_t *here = NULL;
    CLT_TRY(clt_io_read_all(to, max_bytes, &own, &own_bytes));
    clt_status st = CLT_OK;
    if (bytes != own_bytes || memcmp(text, own, bytes) != 0) {
        st = clt_json_parse(own, own_bytes, DEPTH, to, &here);
        if (st == CLT_OK && !json_equal(there, here)) st = differs(s, there, here);
    }
    json_decref(here);
    clt_free(own);
    return st;
}

static clt_status compare(const clt_fetch_set *s, const char *from, const char *to) {
    char *text, why[1024];
    size_t bytes;
    json_t *there;
    bool passes;
    const bool complete = is_complete(s->local);
    const double patience = fetch_patience(s->retries, s->timeout);
    clt_error_quiet(true);
    clt_status st = read_index(from, complete ? CLT_MIN(offline_patience, patience) : patience, &text, &bytes,
                               &there, &passes);
    clt_error_quiet(false);
    if (st == CLT_OK) {
        st = compare_texts(s, to, text, bytes, there);
        json_decref(there);
        clt_free(text);
        return st;
    }
    if (st == CLT_STOPPED) return st;
    snprintf(why, sizeof why, "%s", clt_last_error());
    if (!complete)
        return clt_error(passes ? CLT_AGAIN : st,
                         "%s lacks shards, and whether it is still a copy of %s is unknown: %s", s->local,
                         s->remote, why);
    clt_info("%s has all shards and is used as it is; whether it is still a copy of %s is unknown: %s",
             s->local, s->remote, why);
    return CLT_OK;
}

clt_status clt_fetch_index(const clt_fetch_set *given) {
    clt_fetch_set s = *given;
    clt_io_lock *lock = NULL;
    if (!(s.timeout > 0)) s.timeout = CLT_FETCH_TIMEOUT;
    s.retries = CLT_MAX(s.retries, 0);
    CLT_TRY(fetch_require_cache(s.local));
    char *to = clt_path_join(s.local, "index.json"), *from = clt_path_join(s.remote, "index.json"),
         *work = clt_path_join(s.local, ".fetch");
    clt_status st = CLT_OK;
    bool copied = false;
    if (!clt_io_is_file(to)) {
        st = clt_io_mkdirs(work);
        if (st == CLT_OK) st = fetch_lock(NULL, work, "index.lock", &lock);
        copied = st == CLT_OK && !clt_io_is_file(to);
        if (copied) st = copy_index(&s, from, to);
        clt_io_lock_release(lock);
    }
    if (st == CLT_OK && !copied) st = compare(&s, from, to);
    clt_free(work);
    clt_free(from);
    clt_free(to);
    return st;
}
