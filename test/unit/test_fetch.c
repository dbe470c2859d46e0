/* A cache of remote data sets: every sample is that of the data set itself, whatever is removed, cut off or
 * shared on the way, and what does not fit its index is refused. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_io_probe.h"
#include "runtime/base/clt_signal.h"
#include "runtime/data/clt_fetch.h"
#include "runtime/data/clt_loader.h"
#include "runtime/data/clt_mds.h"
#include "test/test_util.h"

enum { SAMPLES = 96, LENGTH = 64, BATCH = 4 };

static char root[] = "/tmp/cltrain-fetch.XXXXXX";

static char *place(const char *name) {
    static char path[4][512];
    static int i;
    char *p = path[i++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", root, name);
    return p;
}

/* Sample k has the tokens k, k + 1, ...; about `per_shard` samples a shard. */
static void write_set(const char *dir, const char *compression, int per_shard, int length) {
    clt_mds_writer_params p;
    clt_mds_writer *w;
    int32_t *tokens = calloc((size_t)length, sizeof *tokens);
    clt_mds_writer_params_default(&p);
    p.compression = compression;
    p.hashes = "sha1,xxh64";
    p.size_limit = (int64_t)per_shard * length * 4 + per_shard * 24 + 200;
    assert_int_equal(clt_mds_writer_create(dir, &p, &w), CLT_OK);
    for (int k = 0; k < SAMPLES; k++) {
        for (int i = 0; i < length; i++) tokens[i] = (k + i) % 1000;
        assert_int_equal(clt_mds_writer_add(w, tokens, (size_t)length), CLT_OK);
    }
    assert_int_equal(clt_mds_writer_finish(w), CLT_OK);
    free(tokens);
}

static clt_loader_params params(const char *remote, const char *local) {
    clt_loader_params p;
    clt_loader_params_default(&p);
    p.remote = remote;
    p.local = local;
    p.max_seq_len = LENGTH;
    p.vocab_size = 1000;
    p.shuffle = true;
    p.max_rows = p.global_batch = BATCH;
    return p;
}

/* Two epochs of a loader; every row is the sample that its id says, modulo the samples of a set. */
static void read_all(const clt_loader_params *p) {
    clt_loader *l;
    clt_batch b;
    assert_int_equal(clt_loader_open(p, &l), CLT_OK);
    const int64_t n = clt_loader_num_samples(l) / BATCH;
    for (int64_t k = 0; k < 2 * n; k++) {
        assert_int_equal(clt_loader_get(l, k / n, k % n * BATCH, BATCH, &b), CLT_OK);
        clt_loader_prefetch(l, (k + 1) / n, (k + 1) % n * BATCH, BATCH);
        for (int i = 0; i < BATCH; i++)
            assert_int_equal(((const int32_t *)b.field[CLT_TEXT_TOKENS])[i * LENGTH + 1],
                             b.sample_ids[i] % SAMPLES + 1);
    }
    clt_loader_close(l);
}

static size_t count_shards(const char *dir, uint64_t *bytes) {
    clt_strv names = {0};
    size_t n = 0;
    *bytes = 0;
    assert_int_equal(clt_io_list(dir, &names), CLT_OK);
    for (size_t i = 0; i < names.n; i++) {
        clt_io_info info;
        char *path = clt_path_join(dir, names.v[i]);
        assert_int_equal(clt_io_stat(path, &info), CLT_OK);
        if (strncmp(names.v[i], "shard", 5) == 0) n++, *bytes += info.bytes;
        clt_free(path);
    }
    clt_strv_free(&names);
    return n;
}

static void test_whole(void **state) {
    uint64_t bytes, plain;
    (void)state;
    write_set(place("plain"), NULL, 8, LENGTH);
    write_set(place("zstd"), "zstd", 8, LENGTH);
    const size_t shards = count_shards(place("plain"), &plain);
    assert_true(shards >= 10);
    clt_loader_params p = params(place("plain"), place("a/b"));
    read_all(&p);
    assert_int_equal(count_shards(p.local, &bytes), shards);
    assert_int_equal(bytes, plain);
    p = params(place("zstd"), place("c"));
    read_all(&p); /* decompressed */
    assert_int_equal(count_shards(p.local, &bytes), shards);
    assert_true(bytes >= plain);
    p = params(place("zstd"), place("d"));
    p.keep_zip = true;
    read_all(&p);
    assert_int_equal(count_shards(p.local, &bytes), shards);
    assert_true(bytes < plain);
    p = params("none://at/all", place("a/b")); /* complete: nothing is asked for */
    read_all(&p);
}

static void test_limit(void **state) {
    uint64_t bytes;
    (void)state;
    clt_loader_params p = params(place("plain"), place("limit"));
    p.cache_limit = 3 * 2400;
    read_all(&p);
    count_shards(p.local, &bytes);
    assert_true(bytes > 0 && bytes <= p.cache_limit);
    p.cache_limit = 1000;
    clt_loader *l;
    assert_int_equal(clt_loader_open(&p, &l), CLT_BAD_CONFIG);
    assert_non_null(strstr(clt_last_error(), "cache_limit"));
}

static void test_streams(void **state) {
    (void)state;
    const clt_loader_stream s[2] = {
        {"one", place("s1"), place("plain"), NULL, NULL, NAN, NAN, NAN, false, false, false, 0},
        {"two", place("s2"), place("zstd"), NULL, NULL, NAN, NAN, NAN, false, false, false, 0}};
    clt_loader_params p = params(NULL, NULL);
    p.streams = s;
    p.n_streams = 2;
    p.devices = 1;
    p.cache_limit = 5 * 2400; /* of both together */
    read_all(&p);
    uint64_t a, b;
    count_shards(s[0].local, &a);
    count_shards(s[1].local, &b);
    assert_true(a + b > 0 && a + b <= p.cache_limit);
}

/* Two processes and a limit that makes each remove the other's shards. */
static void test_shared(void **state) {
    (void)state;
    clt_loader_params p = params(place("plain"), place("shared"));
    for (int round = 0; round < 2; round++) {
        pid_t child = fork();
        if (child == 0) {
            setenv("CMOCKA_TEST_ABORT", "1", 1); /* a failed assertion ends this process */
            read_all(&p);
            _exit(0);
        }
        read_all(&p);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        p.local = place("shared2");
        p.cache_limit = 3 * 2400;
    }
}

/* A set of one shard of three pieces whose download is killed after one of them goes on there. */
static void test_resume(void **state) {
    const clt_io_fault kill_third = {CLT_IO_PREAD, "shard*", 3, 3, CLT_IO_KILL, 0};
    clt_mds *m;
    clt_fetch *f;
    (void)state;
    write_set(place("large"), NULL, SAMPLES, 60000); /* 23 MB */
    clt_io_probe *probe = clt_io_probe_create(clt_io_local());
    clt_io_register("far", clt_io_probe_component(probe));
    char *remote = clt_format("far://%s", place("large"));
    clt_mds_params p = {.remote = remote};
    for (int again = 0; again < 2; again++) {
        pid_t child = again ? 1 : fork();
        if (child == 0) setenv("CMOCKA_TEST_ABORT", "1", 1);
        if (child == 0) clt_io_fault_arm(probe, &kill_third);
        if (child == 0 || again) {
            assert_int_equal(clt_fetch_create(&(clt_fetch_params){.threads = 1}, &f), CLT_OK);
            p.fetch = f;
            assert_int_equal(clt_mds_open(place("resumed"), &p, &m), CLT_OK);
            assert_int_equal(clt_fetch_need(f, 0), CLT_OK);
            if (child == 0) _exit(0); /* not reached */
        } else {
            int status;
            assert_int_equal(waitpid(child, &status, 0), child);
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        }
    }
    assert_true(clt_fetch_received(f) < (9u << 20));
    int32_t tokens[LENGTH];
    int64_t n;
    assert_int_equal(clt_mds_get_tokens(m, SAMPLES - 1, LENGTH, 0, tokens, &n, NULL), CLT_OK);
    assert_int_equal(tokens[2], SAMPLES + 1);
    clt_mds_close(m);
    clt_fetch_close(f);
    clt_io_unregister("far");
    clt_io_probe_destroy(probe);
    clt_free(remote);
}

static clt_status read_first(const char *remote, const char *local) {
    clt_loader_params p = params(remote, local);
    clt_loader *l;
    clt_batch b;
    p.shuffle = false;
    clt_status st = clt_loader_open(&p, &l);
    if (st != CLT_OK) return st;
    st = clt_loader_get(l, 0, 0, BATCH, &b);
    clt_loader_close(l);
    return st;
}

static void test_wrong(void **state) {
    char *data, *path = clt_path_join(place("bad"), "shard.00000.mds");
    size_t bytes;
    (void)state;
    write_set(place("bad"), NULL, 8, LENGTH);
    assert_int_equal(clt_io_read_all(path, 1 << 20, &data, &bytes), CLT_OK);
    data[bytes - 1] ^= 1;
    assert_int_equal(clt_io_write_atomic(path, data, bytes), CLT_OK);
    assert_int_equal(read_first(place("bad"), place("w1")), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "checksum mismatch"));
    assert_int_equal(clt_io_write_atomic(path, data, bytes - 1), CLT_OK);
    assert_int_equal(read_first(place("bad"), place("w2")), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "index.json says"));
    clt_io_unlink(path);
    assert_int_equal(read_first(place("bad"), place("w3")), CLT_IO);
    assert_int_equal(read_first(place("nowhere"), place("w4")), CLT_IO);
    assert_false(clt_io_is_file(place("w4/index.json")));
    clt_free(data);
    clt_free(path);
}

static void test_names(void **state) {
    static const char *const names[] = {"../x", "/x", "a\\nb", ".fetch/0.part", "index.json"};
    char *data;
    (void)state;
    assert_int_equal(clt_io_read_all(place("plain/index.json"), 1 << 20, &data, NULL), CLT_OK);
    char *at = strstr(data, "shard.00000.mds");
    assert_non_null(at);
    *at = 0;
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++) {
        char *dir = clt_format("%s/hostile%zu", root, i), *local = clt_format("%s.local", dir),
             *index = clt_path_join(dir, "index.json"),
             *text = clt_format("%s%s%s", data, names[i], at + strlen("shard.00000.mds"));
        assert_int_equal(clt_io_mkdirs(dir), CLT_OK);
        assert_int_equal(clt_io_write_atomic(index, text, strlen(text)), CLT_OK);
        assert_int_equal(read_first(dir, local), CLT_BAD_DATA);
        clt_free(text);
        clt_free(index);
        clt_free(local);
        clt_free(dir);
    }
    clt_free(data);
}

/* Only the announced shards come, in their order; a request to stop ends a wait. */
static void test_window(void **state) {
    const clt_io_fault none_after = {CLT_IO_OPEN, "shard.00003*", 1, 1000000, CLT_IO_FAIL, EIO};
    clt_mds *m;
    clt_fetch *f;
    (void)state;
    clt_io_probe *probe = clt_io_probe_create(clt_io_local());
    clt_io_register("far", clt_io_probe_component(probe));
    clt_io_fault_arm(probe, &none_after);
    char *remote = clt_format("far://%s", place("plain"));
    assert_int_equal(clt_fetch_create(&(clt_fetch_params){.threads = 1}, &f), CLT_OK);
    const clt_mds_params p = {.remote = remote, .fetch = f};
    assert_int_equal(clt_mds_open(place("window"), &p, &m), CLT_OK);
    clt_fetch_announce(f, (size_t[]){5, 5, 1, 3, 2, 5}, 6);
    assert_int_equal(clt_fetch_need(f, 2), CLT_OK);
    for (int i = 0; i < 200 && !(clt_fetch_has(f, 1) && clt_fetch_has(f, 5)); i++) clt_sleep(0.01);
    assert_true(clt_fetch_has(f, 1) && clt_fetch_has(f, 5));
    assert_false(clt_fetch_has(f, 0) || clt_fetch_has(f, 3) || clt_fetch_has(f, 4));
    assert_int_equal(clt_fetch_need(f, 3), CLT_IO);
    clt_io_fault_arm(probe, &(clt_io_fault){0});
    assert_int_equal(clt_fetch_need(f, 3), CLT_OK);
    clt_fetch_stop(f);
    assert_int_equal(clt_fetch_need(f, 4), CLT_STOPPED);
    clt_mds_close(m);
    clt_fetch_close(f);
    clt_io_unregister("far");
    clt_io_probe_destroy(probe);
    clt_free(remote);
}

static int make_root(void **state) {
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}
static int remove_root(void **state) {
    (void)state;
    return clt_io_remove_tree(root) == CLT_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_whole),   cmocka_unit_test(test_limit),
                                       cmocka_unit_test(test_streams), cmocka_unit_test(test_shared),
                                       cmocka_unit_test(test_resume),  cmocka_unit_test(test_wrong),
                                       cmocka_unit_test(test_names),   cmocka_unit_test(test_window)};
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
