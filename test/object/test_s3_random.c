/* Random operations of clt_io on an object store, each compared with a model in memory. Needs
 * AWS_ENDPOINT_URL, credentials and TEST_BUCKET in the environment (test/object/faults_s3.sh, which puts a
 * proxy with faults between). test_s3_random OPERATIONS SEED MAX_BYTES FILE A few of the files have up to
 * MAX_BYTES bytes. At the end it removes what unfinished uploads left and writes a line "KEY BYTES SHA256"
 * per object to FILE, for another reader. Prints one line of totals. Exits with 1 if anything was wrong:
 * other bytes, another list, another errno value, or an operation that failed though the faults pass. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/object/clt_object.h"
#include "runtime/object/clt_s3_sign.h"

enum { NAMES = 30 };
static const char *const folders[] = {"", "a", "b", "a/deep", "b c+d%&"};

typedef struct {
    char *path, *name; /* path: root/name */
    bool there;
    size_t bytes;
    uint64_t seed;
} model_file;

static struct {
    char *root;
    uint64_t random;
    size_t most;
    model_file files[NAMES];
    int wrong;
    const char *operation;
    const model_file *file;
} test;

/* --- random numbers and contents --- */

static uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t draw(uint64_t n) {
    test.random += 0x9e3779b97f4a7c15u;
    return mixed(test.random) % n;
}

static size_t draw_size(void) {
    const uint64_t kind = draw(100), beside = (16u << 20) - 1 + draw(3); /* the size of a part */
    if (kind < 5) return 0;
    if (kind < 60) return draw(5000);
    if (kind < 90) return draw(2 << 20);
    if (kind < 94) return CLT_MIN(test.most, beside);
    return draw(test.most);
}

/* The same bytes for the same seed; to be freed. */
static char *contents(size_t n, uint64_t seed) {
    char *p = clt_malloc(n + 8);
    for (size_t i = 0; i < n; i += 8) {
        const uint64_t x = mixed(seed + i);
        memcpy(p + i, &x, 8);
    }
    return p;
}

/* --- what is wrong --- */

static void wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void wrong(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    printf("wrong: %s %s: ", test.operation, test.file ? test.file->path : test.root);
    vprintf(fmt, ap);
    printf(" (%s; last error: %s)\n", clt_io_explain(test.root, EIO), clt_last_error());
    va_end(ap);
    test.wrong++;
}

static void expect(bool ok, const char *what) {
    if (!ok) wrong("%s", what);
}

/* --- operations --- */

/* Writes the contents piece by piece. */
static clt_status write_file(const char *path, clt_io_mode mode, size_t bytes, uint64_t seed, bool publish) {
    char *data = contents(bytes, seed);
    clt_file *f;
    clt_status st = clt_file_open(path, mode, &f);
    for (size_t at = 0; st == CLT_OK && at < bytes;) {
        const size_t piece = 1 + draw(8u << 20), n = CLT_MIN(bytes - at, piece);
        st = clt_file_pwrite(f, data + at, n, at);
        at += n;
    }
    clt_free(data);
    if (st != CLT_OK) return st;
    if (publish) return clt_file_close(f);
    clt_file_abandon(f);
    return CLT_OK;
}

static void is_now(model_file *f, size_t bytes, uint64_t seed) {
    f->there = true;
    f->bytes = bytes;
    f->seed = seed;
}

static void do_write(model_file *f) {
    const size_t bytes = draw_size();
    const uint64_t seed = draw(UINT64_MAX);
    expect(write_file(f->path, CLT_IO_CREATE, bytes, seed, true) == CLT_OK, "failed");
    is_now(f, bytes, seed);
}

static void do_write_new(model_file *f) {
    const size_t bytes = draw_size();
    const uint64_t seed = draw(UINT64_MAX);
    const clt_status st = write_file(f->path, CLT_IO_CREATE_NEW, bytes, seed, true);
    expect(st == (f->there ? CLT_IO : CLT_OK), f->there ? "an existing file was created" : "failed");
    if (!f->there) is_now(f, bytes, seed);
}

static void do_abandon(model_file *f) {
    expect(write_file(f->path, CLT_IO_CREATE, draw_size(), 1, false) == CLT_OK, "failed");
}

static void do_replace(model_file *f) {
    const size_t bytes = draw(20000);
    const uint64_t seed = draw(UINT64_MAX), condition = draw(4);
    char version[CLT_IO_VERSION_BYTES] = "", next[CLT_IO_VERSION_BYTES] = "";
    const int found = clt_io_version(f->path, version);
    expect(found == (f->there ? 0 : ENOENT), "version");
    const char *expected = condition == 0               ? NULL
                           : condition == 1             ? ""
                           : condition == 2 && f->there ? version
                                                        : "\"0123456789abcdef0123456789abcdef\"";
    const int want = condition == 0               ? 0
                     : condition == 1             ? (f->there ? EEXIST : 0)
                     : condition == 2 && f->there ? 0
                                                  : ESTALE;
    char *data = contents(bytes, seed);
    const int e = clt_io_replace(f->path, data, bytes, expected, next);
    clt_free(data);
    if (e != want) wrong("condition %d gave %s instead of %s", (int)condition, strerror(e), strerror(want));
    if (!want) is_now(f, bytes, seed);
    if (!e) expect(!clt_io_version(f->path, version) && !strcmp(version, next), "another version");
}

static void do_read(model_file *f) {
    char *got = NULL;
    size_t bytes = 0;
    const clt_status st = clt_io_read_all(f->path, 1u << 30, &got, &bytes);
    expect(st == (f->there ? CLT_OK : CLT_IO), f->there ? "failed" : "an absent file was read");
    if (st == CLT_OK && f->there) {
        char *want = contents(f->bytes, f->seed);
        expect(bytes == f->bytes && !memcmp(got, want, bytes), "other bytes");
        clt_free(want);
    }
    if (st == CLT_OK) clt_free(got);
}

static void do_read_ranges(model_file *f) {
    clt_file *h;
    uint64_t size;
    const clt_status st = clt_file_open(f->path, CLT_IO_READ, &h);
    expect(st == (f->there ? CLT_OK : CLT_IO), f->there ? "failed" : "an absent file was opened");
    if (st != CLT_OK) return;
    expect(clt_file_size(h, &size) == CLT_OK && size == f->bytes, "another size");
    char *want = contents(f->bytes, f->seed), *got = clt_malloc(f->bytes + 1);
    size_t at = 0;
    for (int i = 0; i < 6 && f->bytes; i++) {
        if (draw(2)) at = draw(f->bytes);
        const size_t piece = 1 + draw(draw(2) ? 3000 : f->bytes), n = CLT_MIN(f->bytes - at, piece);
        expect(clt_file_pread(h, got, n, at) == CLT_OK && !memcmp(got, want + at, n),
               "other bytes in a range");
        at = at + n == f->bytes ? 0 : at + n;
    }
    expect(clt_file_pread(h, got, 1, f->bytes) == CLT_BAD_DATA, "a byte behind the end");
    clt_free(want);
    clt_free(got);
    clt_file_close(h);
}

static void do_stat(model_file *f) {
    clt_io_info info;
    expect(clt_io_stat(f->path, &info) == CLT_OK, "failed");
    expect(info.kind == (f->there ? CLT_IO_FILE : CLT_IO_ABSENT), "another kind");
    expect(!f->there || info.bytes == f->bytes, "another size");
}

static void do_unlink(model_file *f) {
    const int e = clt_io_try_unlink(f->path);
    if (e != (f->there ? 0 : ENOENT)) wrong("gave %s", strerror(e));
    f->there = false;
}

static bool has(const clt_strv *names, const char *name) {
    size_t i = 0;
    while (i < names->n && strcmp(names->v[i], name)) i++;
    return i < names->n;
}

/* The names below a folder, as the model has them: sorted, folders once. */
static void names_of(const char *folder, clt_strv *out) {
    const size_t n = strlen(folder);
    for (size_t i = 0; i < NAMES; i++) {
        const char *name = test.files[i].name;
        if (!test.files[i].there || strncmp(name, folder, n) || (n && name[n] != '/')) continue;
        name += n ? n + 1 : 0;
        char *first = clt_strndup(name, strcspn(name, "/"));
        if (has(out, first))
            clt_free(first);
        else
            clt_strv_add_owned(out, first);
    }
}

/* SeaweedFS lists a folder for a while after the last object below it is gone. */
static bool is_empty(const char *folder, const char *name) {
    char *path = clt_path_join(folder, name);
    clt_strv names = {0};
    clt_io_info info = {0};
    const bool empty = clt_io_list(path, &names) == CLT_OK && names.n == 0 &&
                       clt_io_stat(path, &info) == CLT_OK && info.kind != CLT_IO_FILE;
    clt_strv_free(&names);
    clt_free(path);
    return empty;
}

static void do_list(model_file *f) {
    (void)f;
    const char *folder = folders[draw(CLT_COUNT_OF(folders))];
    char *path = *folder ? clt_path_join(test.root, folder) : clt_strdup(test.root);
    clt_strv got = {0}, want = {0};
    test.file = NULL;
    expect(clt_io_list(path, &got) == CLT_OK, "failed");
    names_of(folder, &want);
    for (size_t i = 0; i < want.n; i++)
        if (!has(&got, want.v[i])) wrong("%s lacks %s", path, want.v[i]);
    for (size_t i = 0; i < got.n; i++)
        if (!has(&want, got.v[i]) && !is_empty(path, got.v[i])) wrong("%s has %s", path, got.v[i]);
    for (size_t k = 1; k < got.n; k++) expect(strcmp(got.v[k - 1], got.v[k]) < 0, "not sorted");
    clt_strv_free(&got);
    clt_strv_free(&want);
    clt_free(path);
}

static void do_lock(model_file *f) {
    (void)f;
    char *path = clt_format("%s.lock", test.root), holder[CLT_IO_OWNER_BYTES];
    clt_io_lock *lock = NULL, *second = NULL;
    test.file = NULL;
    const int e = clt_io_lock_try(path, "the first", &lock, holder);
    if (e) {
        wrong("gave %s", strerror(e));
    } else {
        const int held = clt_io_lock_try(path, "the second", &second, holder);
        expect(held == EWOULDBLOCK && !strcmp(holder, "the first"), "two holders");
        if (!held) clt_io_lock_release(second);
        expect(clt_io_lock_sign(lock, "the first, again") == 0 && clt_io_lock_is_held(lock),
               "signing failed");
        clt_io_lock_release(lock);
    }
    clt_free(path);
}

static const struct {
    const char *name;
    void (*run)(model_file *f);
    unsigned weight;
} operations[] = {{"write", do_write, 24},    {"write new", do_write_new, 8},
                  {"abandon", do_abandon, 3}, {"replace", do_replace, 12},
                  {"read", do_read, 12},      {"read ranges", do_read_ranges, 16},
                  {"stat", do_stat, 5},       {"unlink", do_unlink, 8},
                  {"list", do_list, 9},       {"lock", do_lock, 3}};

/* --- the end --- */

static bool write_model(const char *path) {
    FILE *f = fopen(path, "w");
    if (!f) return false;
    const char *prefix = strchr(test.root + strlen("s3://"), '/') + 1;
    for (size_t i = 0; i < NAMES; i++) {
        const model_file *m = &test.files[i];
        char hex[CLT_SHA256_HEX], *data = contents(m->bytes, m->seed);
        clt_sha256_hex(data, m->bytes, hex);
        clt_free(data);
        if (m->there) fprintf(f, "%s/%s\t%zu\t%s\n", prefix, m->name, m->bytes, hex);
    }
    return fclose(f) == 0;
}

static void print_totals(long n, const long *counts, double seconds) {
    const clt_object_totals t = clt_object_counted();
    printf("%ld operations", n);
    for (size_t i = 0; i < CLT_COUNT_OF(operations); i++)
        printf("%s %s %ld", i ? "," : ":", operations[i].name, counts[i]);
    printf("; %.0f s, %llu requests, %llu retries, %llu MiB up, %llu MiB down, wrong %d\n", seconds,
           (unsigned long long)t.requests, (unsigned long long)t.retries,
           (unsigned long long)t.bytes_up >> 20, (unsigned long long)t.bytes_down >> 20, test.wrong);
}

static void run(long n, long *counts) {
    unsigned all = 0;
    for (size_t i = 0; i < CLT_COUNT_OF(operations); i++) all += operations[i].weight;
    for (long i = 0; i < n; i++) {
        unsigned at = (unsigned)draw(all), k = 0;
        while (at >= operations[k].weight) at -= operations[k++].weight;
        model_file *f = &test.files[draw(NAMES)];
        test.operation = operations[k].name;
        test.file = f;
        counts[k]++;
        operations[k].run(f);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    long counts[CLT_COUNT_OF(operations)] = {0};
    int cleaned = 0;
    if (!getenv("TEST_BUCKET")) {
        puts("test/object/faults_s3.sh runs this program");
        return 0;
    }
    if (argc != 5 || clt_object_register() != CLT_OK) return 2;
    const long n = atol(argv[1]);
    test.random = strtoull(argv[2], NULL, 10);
    test.most = strtoull(argv[3], NULL, 10);
    test.root = clt_format("s3://%s/random-%s", getenv("TEST_BUCKET"), argv[2]);
    for (size_t i = 0; i < NAMES; i++) {
        const char *folder = folders[i % CLT_COUNT_OF(folders)];
        test.files[i].name = clt_format("%s%sf%zu", folder, *folder ? "/" : "", i);
        test.files[i].path = clt_path_join(test.root, test.files[i].name);
    }
    clt_error_quiet(true);
    const double begun = clt_now();
    run(n, counts);
    test.operation = "clean", test.file = NULL;
    expect(clt_io_clean(test.root, -1e6, false, NULL, NULL, &cleaned) == CLT_OK, "failed");
    clt_error_quiet(false);
    expect(write_model(argv[4]), "cannot write the model");
    print_totals(n, counts, clt_now() - begun);
    clt_object_unregister();
    for (size_t i = 0; i < NAMES; i++) {
        clt_free(test.files[i].name);
        clt_free(test.files[i].path);
    }
    clt_free(test.root);
    return test.wrong != 0;
}
