/* A cache of remote data sets: every sample is that of the data set itself, whatever is removed, cut off or
 * shared on the way, and what does not fit its index is refused. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
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
        {"one", place("s1"), place("plain"), NULL, NULL, NAN, NAN, NAN, false, false, false, false, 0, 0},
        {"two", place("s2"), place("zstd"), NULL, NULL, NAN, NAN, NAN, false, false, false, false, 0, 0}};
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
    static char longest[2001];
    static const char *const names[] = {
        "../x",      "/x", "a\\nb",        ".fetch/0.part", "index.json", "",   "a//b",
        "a/../../b", "..", "a\\u001b[2Jb", "a\\u007fb",     "s3://b/k",   "a/", longest};
    char *data;
    memset(longest, 'x', sizeof longest - 1);
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
        for (const char *c = clt_last_error(); *c; c++) assert_true((unsigned char)*c >= ' ' && *c != 127);
        clt_free(text);
        clt_free(index);
        clt_free(local);
        clt_free(dir);
    }
    clt_free(data);
}

/* --- a slow link to a remote that gives versions --- */

/* The local file system behind a link on which one read at a time takes `seconds`. */
static struct {
    clt_io_component base;
    clt_io_ops ops;
    pthread_mutex_t line;
    double seconds, mib_seconds; /* of a read, of each MiB of it */
    char version[CLT_IO_VERSION_BYTES];
    atomic_bool gone;     /* nothing can be opened */
    atomic_int opened;    /* shards so far */
    int reads, seen[256]; /* reads so far, and how many shards were opened when each of them ended */
    int pieces;           /* reads of more than 1 MiB that succeed */
} far = {.line = PTHREAD_MUTEX_INITIALIZER};

static int far_open(clt_io_component *c, const char *path, clt_io_mode mode, void **handle) {
    (void)c;
    if (far.gone) return ETIMEDOUT;
    if (strncmp(clt_path_base(path), "shard", 5) == 0) atomic_fetch_add(&far.opened, 1);
    return clt_io_local()->ops->open(clt_io_local(), path, mode, handle);
}
static int far_pread(clt_io_component *c, void *handle, void *dst, size_t bytes, uint64_t offset,
                     size_t *done) {
    (void)c;
    int e = 0;
    pthread_mutex_lock(&far.line);
    const double takes = far.seconds + far.mib_seconds * (double)(bytes >> 20);
    const bool late = far.mib_seconds > 0 && clt_io_deadline() > 0 && clt_now() + takes > clt_io_deadline();
    clt_sleep(late ? CLT_MAX(clt_io_deadline() - clt_now(), 0) : takes);
    if (late) e = ETIMEDOUT;
    if (bytes > 1 << 20 && far.pieces-- <= 0) e = ETIMEDOUT;
    if (!e) e = clt_io_local()->ops->pread(clt_io_local(), handle, dst, bytes, offset, done);
    if (far.reads < 256) far.seen[far.reads++] = far.opened;
    pthread_mutex_unlock(&far.line);
    return e;
}
static int far_version(clt_io_component *c, const char *path, char version[CLT_IO_VERSION_BYTES]) {
    (void)c;
    (void)path;
    if (far.gone) return ETIMEDOUT;
    memcpy(version, far.version, CLT_IO_VERSION_BYTES);
    return 0;
}

static void far_begin(double seconds, int pieces, const char *version) {
    far.ops = *clt_io_local()->ops;
    far.ops.open = far_open;
    far.ops.pread = far_pread;
    far.ops.version = far_version;
    far.base = (clt_io_component){&far.ops, clt_io_local()->caps | CLT_IO_HAS_VERSIONS, 0};
    far.seconds = seconds;
    far.mib_seconds = 0;
    far.pieces = pieces;
    far.opened = far.reads = 0;
    far.gone = false;
    snprintf(far.version, sizeof far.version, "%s", version);
    clt_io_register("far", &far.base);
}

static char *far_place(const char *name) {
    static char url[600];
    snprintf(url, sizeof url, "far://%s", place(name));
    return url;
}

/* The first batch has the line for itself: nothing else is asked for until its shards are there. */
static void test_first_batch(void **state) {
    clt_loader_params p = params(NULL, place("first"));
    clt_loader *l;
    clt_batch b;
    int k = 0;
    (void)state;
    write_set(place("many"), NULL, 1, LENGTH); /* 96 shards of a sample */
    far_begin(0.03, INT_MAX, "1");
    p.remote = far_place("many");
    p.shuffle = false;
    p.max_rows = p.global_batch = 2;
    assert_int_equal(clt_loader_open(&p, &l), CLT_OK);
    assert_int_equal(far.opened, 0);
    assert_int_equal(clt_loader_get(l, 0, 0, 2, &b), CLT_OK);
    pthread_mutex_lock(&far.line);
    while (far.seen[k] == 0) k++; /* reads of index.json */
    const bool alone = far.seen[k] <= 2 && far.seen[k + 1] <= 2;
    pthread_mutex_unlock(&far.line);
    assert_true(alone);
    for (int i = 0; i < 1000 && far.opened < 18; i++) clt_sleep(0.01); /* 8 batches ahead then come */
    assert_int_equal(far.opened, 18);
    clt_loader_close(l);
    clt_io_unregister("far");
}

/* Brings the set "large", one shard of three pieces, to "cut" and tells how much came. */
static clt_status bring_large_by(size_t piece, double timeout, int retries, uint64_t *received) {
    clt_mds *m;
    clt_fetch *f;
    assert_int_equal(clt_fetch_create(&(clt_fetch_params){.threads = 1, .piece = piece}, &f), CLT_OK);
    const clt_mds_params p = {
        .fetch = f, .remote = far_place("large"), .timeout = timeout, .retries = retries};
    assert_int_equal(clt_mds_open(place("cut"), &p, &m), CLT_OK);
    const clt_status st = clt_fetch_need(f, 0);
    clt_fetch_stop(f);
    *received = clt_fetch_received(f);
    clt_mds_close(m);
    clt_fetch_close(f);
    clt_io_unregister("far");
    return st;
}

static clt_status bring_large(double timeout, int retries, uint64_t *received) {
    return bring_large_by(0, timeout, retries, received);
}

static void run_command(const char *what, const char *from, const char *to) {
    char *command = clt_format("%s %s %s", what, from, to);
    assert_int_equal(system(command), 0);
    clt_free(command);
}

/* What was cut off goes on, but only with the version that it was read from. */
static void test_version(void **state) {
    enum { PIECE = 8 << 20, ALL = SAMPLES * 60000 * 4 };
    uint64_t received;
    (void)state;
    far_begin(0, 2, "1");
    assert_int_equal(bring_large(60, 0, &received), CLT_AGAIN);
    assert_non_null(strstr(clt_last_error(), "did not arrive in"));
    assert_int_equal(received, 2 * PIECE);
    run_command("cp -r", place("cut/.fetch"), place("cut/.saved"));
    far_begin(0, INT_MAX, "1");
    assert_int_equal(bring_large(60, 0, &received), CLT_OK);
    assert_true(received > ALL - 2 * PIECE && received < PIECE);
    assert_int_equal(clt_io_try_unlink(place("cut/shard.00000.mds")), 0);
    run_command("cp -r", place("cut/.saved/."), place("cut/.fetch"));
    far_begin(0, INT_MAX, "2");
    assert_int_equal(bring_large(60, 0, &received), CLT_OK);
    assert_true(received > ALL);
}

/* download_timeout ends an attempt, and the next one goes on there; all of them together end the wait. */
static void test_timeout(void **state) {
    uint64_t received;
    (void)state;
    assert_int_equal(clt_io_try_unlink(place("cut/shard.00000.mds")), 0);
    far_begin(0.3, INT_MAX, "1");
    const double start = clt_now();
    assert_int_equal(bring_large(0.2, 1, &received), CLT_AGAIN);
    assert_true(clt_now() - start >= 0.4);
    assert_non_null(strstr(clt_last_error(), "(download_timeout 0.2 s, download_retry 1)"));
    assert_true(received >= 8 << 20 && received <= 16 << 20);
    far_begin(0.3, INT_MAX, "1");
    assert_int_equal(bring_large(60, 0, &received), CLT_OK);
    assert_true(received <= 16 << 20);
    assert_int_equal(clt_io_try_unlink(place("cut/shard.00000.mds")), 0);
    far_begin(0, INT_MAX, "1");
    far.mib_seconds = 0.05; /* 8 MiB never arrive in an attempt */
    assert_int_equal(bring_large(0.2, 30, &received), CLT_OK);
    assert_int_equal(clt_io_try_unlink(place("cut/shard.00000.mds")), 0);
    far_begin(0, INT_MAX, "1");
    far.mib_seconds = 0.05; /* likewise, in a single read */
    assert_int_equal(bring_large_by(32 << 20, 0.2, 30, &received), CLT_OK);
}

/* A cache is compared with its remote: only what is the same, or whole and alone, is used. */
static void test_replaced(void **state) {
    char *text;
    size_t bytes;
    (void)state;
    write_set(place("old"), NULL, 8, LENGTH);
    assert_int_equal(read_first(place("old"), place("r")), CLT_OK);
    assert_int_equal(clt_io_read_all(place("old/index.json"), 1 << 20, &text, &bytes), CLT_OK);
    text[bytes] = ' '; /* the same in other words */
    assert_int_equal(clt_io_write_atomic(place("old/index.json"), text, bytes + 1), CLT_OK);
    clt_free(text);
    assert_int_equal(read_first(place("old"), place("r")), CLT_OK);
    far_begin(0, INT_MAX, "1");
    far.gone = true;
    assert_int_equal(read_first(far_place("old"), place("r")), CLT_AGAIN); /* not complete */
    assert_non_null(strstr(clt_last_error(), "lacks shards"));
    clt_loader_params p = params(place("old"), place("r"));
    read_all(&p);
    assert_int_equal(read_first(far_place("old"), place("r")), CLT_OK);
    clt_io_unregister("far");
    assert_int_equal(clt_io_remove_tree(place("old")), CLT_OK);
    write_set(place("old"), NULL, 8, LENGTH - 1);
    assert_int_equal(read_first(place("old"), place("r")), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "was replaced"));
    assert_non_null(strstr(clt_last_error(), "number 0, which has"));
    assert_int_equal(clt_io_remove_tree(place("old")), CLT_OK);
    write_set(place("old"), NULL, 9, LENGTH);
    assert_int_equal(read_first(place("old"), place("r")), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "shards there and"));
}

/* A file of the cache that was damaged is fetched again; a damaged remote is an error all the same. */
static void test_damaged_cache(void **state) {
    char *data, *path = clt_strdup(place("damaged/shard.00003.mds"));
    size_t bytes;
    (void)state;
    clt_loader_params p = params(place("plain"), place("damaged"));
    read_all(&p);
    assert_int_equal(clt_io_read_all(path, 1 << 20, &data, &bytes), CLT_OK);
    memset(data + bytes / 2, 0, bytes - bytes / 2); /* as after a loss of power */
    assert_int_equal(clt_io_write_atomic(path, data, bytes), CLT_OK);
    read_all(&p);
    clt_free(data);
    run_command("cmp", path, place("plain/shard.00003.mds"));
    clt_free(path);
}

/* Failures that somebody has to mend are not repeated, and are told from those that may pass. */
static void test_kinds(void **state) {
    const struct {
        int error;
        clt_status st;
        long opened;
    } kinds[] = {{EACCES, CLT_IO, 1},
                 {ENOENT, CLT_IO, 1},
                 {EIO, CLT_IO, 3},
                 {ETIMEDOUT, CLT_AGAIN, 3},
                 {ECONNREFUSED, CLT_AGAIN, 3}};
    clt_io_probe *probe = clt_io_probe_create(clt_io_local());
    char *remote = clt_format("probe://%s", place("plain"));
    (void)state;
    clt_io_register("probe", clt_io_probe_component(probe));
    for (size_t i = 0; i < CLT_COUNT_OF(kinds); i++) {
        const clt_io_fault fault = {CLT_IO_OPEN, "shard*", 1, 1000000, CLT_IO_FAIL, kinds[i].error};
        clt_mds *m;
        clt_fetch *f;
        assert_int_equal(clt_fetch_create(&(clt_fetch_params){.threads = 1}, &f), CLT_OK);
        const clt_mds_params p = {.remote = remote, .fetch = f, .retries = 2};
        assert_int_equal(clt_mds_open(place("kinds"), &p, &m), CLT_OK);
        clt_io_fault_arm(probe, &fault);
        assert_int_equal(clt_fetch_need(f, 0), kinds[i].st);
        assert_int_equal(clt_io_fault_seen(probe), kinds[i].opened);
        clt_io_fault_arm(probe, NULL);
        clt_mds_close(m);
        clt_fetch_close(f);
    }
    clt_io_unregister("probe");
    clt_io_probe_destroy(probe);
    clt_free(remote);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),       cmocka_unit_test(test_limit),
        cmocka_unit_test(test_streams),     cmocka_unit_test(test_shared),
        cmocka_unit_test(test_resume),      cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_names),       cmocka_unit_test(test_window),
        cmocka_unit_test(test_first_batch), cmocka_unit_test(test_version),
        cmocka_unit_test(test_timeout),     cmocka_unit_test(test_replaced),
        cmocka_unit_test(test_kinds),       cmocka_unit_test(test_damaged_cache)};
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
