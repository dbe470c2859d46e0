/* The device layer: buffers, kernels, deadlines, accounts. */
#include "test/device_util.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/device/clt_clblast.h"
#include "runtime/device/clt_device_private.h"
#include "runtime/device/clt_device_test.h"

static clt_device *dev;
static char folder[64]; /* files of this run */

static int set_up(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/test_device.XXXXXX");
    if (!mkdtemp(folder)) return -1;
    clt_device_params p = clt_device_params_default();
    return clt_device_open(&p, &dev) == CLT_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    clt_device_close(dev);
    return clt_io_remove_tree(folder) == CLT_OK ? 0 : -1;
}

static clt_buffer *buffer(size_t bytes, const char *name) {
    clt_buffer *b;
    assert_int_equal(clt_buffer_create(dev, bytes, name, &b), CLT_OK);
    return b;
}

/* --- kernels --- */

static const char *const saxpy =
    "__kernel void saxpy(__global const float *x, ulong x_off, __global float *y, ulong y_off,\n"
    "                    float a, ulong n)\n"
    "{\n"
    "    size_t i = get_global_id(0);\n"
    "    if (i < n) y[y_off + i] = a * x[x_off + i] + (y ? y[y_off + i] : 0.0f);\n"
    "}\n";

enum { N = 1000 };

static void run_saxpy(clt_device *d) {
    float x[N], y[N], z[N];
    for (int i = 0; i < N; i++) {
        x[i] = (float)i;
        y[i] = (float)(i * i % 97);
    }
    clt_buffer *bx, *by;
    assert_int_equal(clt_buffer_create(d, sizeof x + 64, "x", &bx), CLT_OK);
    assert_int_equal(clt_buffer_create(d, sizeof y, "y", &by), CLT_OK);
    assert_int_equal(clt_buffer_write(bx, 64, x, sizeof x), CLT_OK);
    assert_int_equal(clt_buffer_write(by, 0, y, sizeof y), CLT_OK);
    clt_kernel *k, *again;
    assert_int_equal(clt_kernel_from_text(d, "saxpy.cl", saxpy, "saxpy", NULL, &k), CLT_OK);
    assert_int_equal(clt_kernel_from_text(d, "saxpy.cl", saxpy, "saxpy", NULL, &again), CLT_OK);
    assert_ptr_equal(k, again);
    clt_ref rx = {bx, 16}, ry = {by, 0};
    clt_arg args[] = {CLT_REF(rx), CLT_REF(ry), CLT_F32(2), CLT_U64(N)};
    assert_int_equal(clt_launch(k, 1, (size_t[]){1024}, (size_t[]){64}, args, 6), CLT_OK);
    assert_int_equal(clt_buffer_read(by, 0, z, sizeof z), CLT_OK);
    for (int i = 0; i < N; i++) assert_true(z[i] == 2 * x[i] + y[i]);
    assert_int_equal(clt_launch(k, 1, (size_t[]){0}, NULL, args, 6), CLT_OK);
    assert_int_equal(clt_launch(k, 1, (size_t[]){1024}, NULL, args, 5), CLT_FAIL);
    du_assert_says("takes 6 arguments, 5 were given");
    clt_buffer_destroy(bx);
    clt_buffer_destroy(by);
}

static void kernels_run(void **state) {
    (void)state;
    run_saxpy(dev);
}

static void failing_builds_name_a_log(void **state) {
    (void)state;
    clt_device_params p = clt_device_params_default();
    p.cache_dir = folder; /* the log is named after the program: another process must not remove it */
    clt_device *d = du_open(p);
    clt_kernel *k = NULL;
    const char *bad = "__kernel void bad(__global float *x)\n{\n    x[0] = nonsense;\n}\n";
    assert_int_equal(clt_kernel_from_text(d, "bad.cl", bad, "bad", "-DX=1", &k), CLT_FAIL);
    assert_null(k);
    du_assert_says("bad.cl does not build");
    du_assert_says("nonsense");
    const char *at = strstr(clt_last_error(), "log and source: ");
    assert_non_null(at);
    at += strlen("log and source: ");
    char *path = clt_strndup(at, strcspn(at, "\n")), *text;
    assert_int_equal(clt_io_read_all(path, 1 << 20, &text, NULL), CLT_OK);
    assert_non_null(strstr(text, "-DX=1"));
    assert_non_null(strstr(text, "x[0] = nonsense;"));
    assert_int_equal(clt_io_unlink(path), CLT_OK);
    clt_free(text);
    clt_free(path);
    assert_int_equal(clt_kernel_from_text(d, "saxpy.cl", saxpy, "saxpyy", NULL, &k), CLT_FAIL);
    du_assert_says("has no kernel 'saxpyy'");
    assert_int_equal(clt_kernel_get(d, "no/such.cl", "x", NULL, &k), CLT_FAIL);
    du_assert_says("kernel file no/such.cl does not exist");
    clt_device_close(d);
}

static void includes_are_expanded(void **state) {
    (void)state;
    du_put_text(folder, "clkernels/include/one.clh",
                "#ifndef ONE\n#define ONE\n#include \"two.clh\"\n#endif\n");
    du_put_text(folder, "clkernels/include/two.clh", "#define TWO 2u");
    du_put_text(folder, "clkernels/a/k.cl",
                "#include \"../include/one.clh\"\n # include \"../include/one.clh\"\n"
                "__kernel void k(__global uint *x) { x[0] = TWO + LINE; }\n");
    du_put_text(folder, "clkernels/a/absent.cl",
                "#include \"../include/three.clh\"\n__kernel void k(__global uint *x) { }\n");
    du_put_text(folder, "clkernels/a/out.cl",
                "#include \"../../secret.clh\"\n__kernel void k(__global uint *x) { }\n");
    du_put_text(folder, "secret.clh", "int secret;\n");
    setenv("CLTRAIN_KERNEL_PATH", folder, 1);
    clt_kernel *k = NULL;
    assert_int_equal(clt_kernel_try(dev, "a/absent.cl", "k", NULL, &k), CLT_FAIL);
    assert_non_null(strstr(clt_kernel_text("a/absent.cl"), "#error"));
    assert_null(strstr(clt_kernel_text("a/out.cl"), "int secret"));
    assert_int_equal(clt_kernel_get(dev, "a/k.cl", "k", "-DLINE=40", &k), CLT_OK);
    unsetenv("CLTRAIN_KERNEL_PATH");
    clt_kernel *same = NULL;
    assert_int_equal(clt_kernel_get(dev, "a/k.cl", "k", "-DLINE=40", &same), CLT_OK);
    assert_ptr_equal(k, same);
    clt_buffer *b = buffer(4, "word");
    clt_arg args[] = {CLT_BUF(b)};
    uint32_t word = 0;
    assert_int_equal(clt_launch(k, 1, (size_t[]){1}, NULL, args, 1), CLT_OK);
    assert_int_equal(clt_buffer_read(b, 0, &word, 4), CLT_OK);
    assert_int_equal(word, 42);
    clt_buffer_destroy(b);
    assert_null(clt_kernel_text("../test/unit/test_device.c"));
}

/* --- buffers --- */

static void buffers_move_bytes(void **state) {
    (void)state;
    enum { BYTES = 40000 };
    unsigned char *src = clt_malloc(BYTES), *dst = clt_calloc(BYTES, 1);
    for (int i = 0; i < BYTES; i++) src[i] = (unsigned char)(i * 31 + i / 256);
    clt_buffer *a = buffer(BYTES, "a"), *b = buffer(BYTES, "b");
    assert_int_equal(clt_buffer_bytes(a), BYTES);
    assert_int_equal(clt_buffer_fill32(a, 0, 0xdeadbeef, BYTES), CLT_OK);
    assert_int_equal(clt_buffer_write(a, 3, src, 1000), CLT_OK);
    memset(src, 0x55, 1000); /* the data was copied: changing it now has no effect */
    assert_int_equal(clt_buffer_copy(b, 100, a, 1, 2000), CLT_OK);
    assert_int_equal(clt_buffer_read(b, 100, dst, 2000), CLT_OK);
    static const unsigned char edge[] = {0xbe, 0xad};
    assert_memory_equal(dst, edge, 2);
    for (int i = 0; i < 1000; i++) assert_int_equal(dst[2 + i], (unsigned char)(i * 31 + i / 256));
    assert_int_equal(dst[1002], 0xde); /* byte 1003 of the fill pattern ef be ad de */
    void *p;
    assert_int_equal(clt_buffer_map(a, true, 8, 16, &p), CLT_OK);
    assert_int_equal(*(unsigned char *)p, (unsigned char)(5 * 31));
    memset(p, 7, 16);
    assert_int_equal(clt_buffer_unmap(a, p), CLT_OK);
    assert_int_equal(clt_buffer_read(a, 0, dst, 32), CLT_OK);
    assert_true(dst[8] == 7 && dst[23] == 7 && dst[24] == (unsigned char)(21 * 31));
    assert_int_equal(clt_buffer_read(a, BYTES - 10, dst, 11), CLT_FAIL);
    du_assert_says("buffer 'a'");
    assert_int_equal(clt_buffer_write(a, SIZE_MAX, dst, 2), CLT_FAIL);
    assert_int_equal(clt_buffer_fill32(a, 2, 0, 4), CLT_FAIL);
    assert_int_equal(clt_buffer_copy(a, BYTES, b, 0, 1), CLT_FAIL);
    clt_buffer_destroy(a);
    clt_buffer_destroy(b);
    clt_buffer_destroy(NULL);
    clt_free(src);
    clt_free(dst);
}

/* Consecutive writes reuse a few staging blocks; one above their size goes straight to the device. */
static void writes_are_queued(void **state) {
    (void)state;
    enum { BIG = 17 << 20 };
    unsigned char *x = clt_malloc(BIG), *y = clt_malloc(BIG);
    clt_buffer *b = buffer(BIG, "big");
    for (int i = 0; i < BIG; i++) x[i] = (unsigned char)(i ^ i >> 8 ^ i >> 16);
    assert_int_equal(clt_buffer_write(b, 0, x, BIG), CLT_OK);
    assert_int_equal(clt_buffer_read(b, 0, y, BIG), CLT_OK);
    assert_memory_equal(x, y, BIG);
    uint64_t allocations = clt_alloc_count();
    for (uint32_t i = 0; i < 200; i++) assert_int_equal(clt_buffer_write(b, 4 * i, &i, 4), CLT_OK);
    uint32_t words[200];
    assert_int_equal(clt_buffer_read(b, 0, words, sizeof words), CLT_OK);
    for (uint32_t i = 0; i < 200; i++) assert_int_equal(words[i], i);
    /* How many blocks are in use at the same time depends on the device's speed: each may be allocated once.
     */
    assert_true(clt_alloc_count() - allocations <= CLT_COUNT_OF(dev->staging));
    clt_buffer_destroy(b);
    clt_free(x);
    clt_free(y);
}

static void wrapped_memory_is_shared(void **state) {
    (void)state;
    enum { BYTES = 8192 };
    void *host;
    assert_int_equal(posix_memalign(&host, 4096, BYTES), 0);
    memset(host, 1, BYTES);
    clt_buffer *b;
    assert_int_equal(clt_buffer_wrap(dev, host, BYTES, "window", &b), CLT_OK);
    assert_int_equal(clt_buffer_fill32(b, 4096, 0x02020202, 4096), CLT_OK);
    void *p;
    assert_int_equal(clt_buffer_map(b, false, 0, BYTES, &p), CLT_OK);
    assert_ptr_equal(p, host);
    assert_true(((char *)host)[4095] == 1 && ((char *)host)[4096] == 2 && ((char *)host)[8191] == 2);
    assert_int_equal(clt_buffer_unmap(b, p), CLT_OK);
    assert_int_equal(clt_device_finish(dev), CLT_OK);
    clt_buffer_destroy(b);
    free(host);
}

static void too_large_is_said(void **state) {
    (void)state;
    const clt_device_facts *f = clt_device_get_facts(dev);
    clt_buffer *b = NULL;
    assert_int_equal(clt_buffer_create(dev, f->max_alloc + 1, "huge logits", &b), CLT_NO_MEMORY);
    assert_null(b);
    du_assert_says("huge logits");
    du_assert_says("larger than the largest single buffer");
    /* Buffers until the memory is full: the next one is refused. Nothing is written to any. */
    clt_buffer *list[64];
    int n = 0;
    clt_status st = CLT_OK;
    while (n < 64 && (st = clt_buffer_create(dev, f->max_alloc, "big", &list[n])) == CLT_OK) n++;
    assert_true(n > 0 && n < 64);
    assert_int_equal(st, CLT_NO_MEMORY);
    du_assert_says("in use");
    while (n > 0) clt_buffer_destroy(list[--n]);
}

/* --- accounts --- */

static void memory_is_accounted(void **state) {
    (void)state;
    clt_device_counters before, now;
    clt_device_get_counters(dev, &before);
    clt_buffer *a = buffer(3000, "grad"), *b = buffer(1000, "act"), *c = buffer(500, "act");
    clt_device_get_counters(dev, &now);
    assert_int_equal(now.bytes - before.bytes, 4500);
    assert_int_equal(now.buffers_created - before.buffers_created, 3);
    clt_memory_row *rows;
    int n;
    assert_int_equal(clt_device_memory_table(dev, &rows, &n), CLT_OK);
    assert_int_equal(n, 2);
    assert_string_equal(rows[0].name, "grad");
    assert_string_equal(rows[1].name, "act");
    assert_int_equal(rows[1].bytes, 1500);
    assert_int_equal(rows[1].buffers, 2);
    clt_free(rows);
    clt_buffer_destroy(b);
    clt_buffer_destroy(a);
    clt_buffer_destroy(c);
    clt_device_get_counters(dev, &now);
    assert_int_equal(now.bytes, before.bytes);
    assert_true(now.peak_bytes >= before.bytes + 4500);
}

static void kernels_are_timed(void **state) {
    (void)state;
    clt_device_params p = clt_device_params_default();
    p.profile = true;
    clt_device *d = du_open(p);
    run_saxpy(d);
    run_saxpy(d);
    clt_kernel_time *rows;
    int n;
    assert_int_equal(clt_device_profile(d, &rows, &n), CLT_OK);
    assert_int_equal(n, 1);
    assert_string_equal(rows[0].name, "saxpy");
    assert_int_equal(rows[0].launches, 2);
    assert_true(rows[0].seconds > 0 && rows[0].seconds < 10);
    clt_free(rows);
    clt_device_profile_reset(d);
    assert_int_equal(clt_device_profile(d, &rows, &n), CLT_OK);
    assert_int_equal(n, 0);
    clt_free(rows);
    clt_device_close(d);
}

static void steady_state_is_watched(void **state) {
    (void)state;
    clt_device_params p = clt_device_params_default();
    clt_device *d = du_open(p);
    clt_device_counters c;
    clt_buffer *b = NULL;
    clt_kernel *k;
    assert_int_equal(clt_kernel_from_text(d, "saxpy.cl", saxpy, "saxpy", NULL, &k), CLT_OK);
    clt_device_set_steady(d, true);
    assert_int_equal(clt_buffer_create(d, 100, "late", &b), CLT_OK);
    assert_int_equal(clt_kernel_from_text(d, "saxpy.cl", saxpy, "saxpy", NULL, &k), CLT_OK);
    clt_device_get_counters(d, &c);
    assert_int_equal(c.steady_breaches, 1);
    clt_buffer_destroy(b);
    clt_device_close(d);
    setenv("CLTRAIN_ASSERT_STEADY", "1", 1);
    d = du_open(p);
    unsetenv("CLTRAIN_ASSERT_STEADY");
    clt_device_set_steady(d, true);
    b = NULL;
    assert_int_equal(clt_buffer_create(d, 100, "late", &b), CLT_FAIL);
    assert_null(b);
    du_assert_says("creating buffer 'late' after the first step");
    assert_int_equal(clt_kernel_from_text(d, "late.cl", "__kernel void late(__global int *x) { x[0] = 1; }",
                                          "late", "-DLATE", &k),
                     CLT_FAIL);
    du_assert_says("building program 'late.cl' after the first step");
    clt_device_set_steady(d, false);
    assert_int_equal(clt_buffer_create(d, 100, "early", &b), CLT_OK);
    clt_buffer_destroy(b);
    clt_device_close(d);
}

/* --- deadlines --- */

static void hung_device_is_given_up(void **state) {
    (void)state;
    du_skip_on_simulator();
    clt_device_params p = clt_device_params_default();
    p.timeout = 1;
    clt_device *d = du_open(p);
    clt_buffer *b;
    float x = 1;
    assert_int_equal(clt_buffer_create(d, 64, "b", &b), CLT_OK);
    assert_int_equal(clt_device_gate(d, true), CLT_OK);
    assert_int_equal(clt_buffer_write(b, 0, &x, sizeof x), CLT_OK); /* queued */
    double start = clt_now();
    assert_int_equal(clt_device_finish(d), CLT_AGAIN);
    double took = clt_now() - start;
    assert_true(took >= 1);
    du_assert_says("did not respond for 1 s");
    static float y;        /* outlives the read, which stays queued */
    double fastest = took; /* of several: a busy machine may delay one */
    for (int i = 0; i < 5; i++) {
        start = clt_now();
        assert_int_equal(clt_buffer_read(b, 0, &y, sizeof y), CLT_AGAIN);
        fastest = CLT_MIN(fastest, clt_now() - start);
    }
    assert_true(fastest < 0.9); /* a hung device is not waited for again */
    assert_int_equal(clt_device_gate(d, false), CLT_OK);
    assert_int_equal(clt_device_finish(d), CLT_OK);
    assert_int_equal(clt_buffer_read(b, 0, &y, sizeof y), CLT_OK);
    assert_true(y == 1);
    clt_buffer_destroy(b);
    clt_device_close(d);
}

/* --- compute units --- */

static void units_can_be_limited(void **state) {
    (void)state;
    const clt_device_facts *f = clt_device_get_facts(dev);
    if (f->type != CLT_DEVICE_CPU || f->compute_units < 2) {
        print_message("skipped: needs a CPU device with at least 2 compute units\n");
        skip();
    }
    clt_device_params p = clt_device_params_default();
    p.threads = 1;
    clt_device *d = du_open(p);
    assert_int_equal(clt_device_get_facts(d)->compute_units, 1);
    run_saxpy(d);
    clt_device_close(d);
    /* Ranks that share the CPU get a part each, even if there are more ranks than units. */
    for (int ranks = 2; ranks <= 200; ranks += 198) {
        p = clt_device_params_default();
        p.local_size = ranks;
        p.local_rank = ranks - 1;
        d = du_open(p);
        assert_int_equal(clt_device_get_facts(d)->compute_units, CLT_MAX((int)f->compute_units / ranks, 1));
        run_saxpy(d);
        clt_device_close(d);
    }
}

/* --- CLBlast --- */

static void clblast_multiplies(void **state) {
    (void)state;
    if (!clt_clblast_available()) {
        print_message("skipped: libclblast.so.1 is not installed\n");
        skip();
    }
    enum { ROWS = 5, COLS = 7, DEEP = 3 };
    /* Small integers, so every order of sums gives the same exact result. a is stored [k,m], b [n,k]. */
    float a[DEEP * ROWS], b[COLS * DEEP], c[ROWS * COLS], want[ROWS * COLS];
    for (int i = 0; i < DEEP * ROWS; i++) a[i] = (float)(i * 7 % 11 - 5);
    for (int i = 0; i < COLS * DEEP; i++) b[i] = (float)(i * 5 % 13 - 6);
    for (int i = 0; i < ROWS * COLS; i++) {
        want[i] = (float)(3 * i);
        for (int k = 0; k < DEEP; k++) want[i] += 2 * a[k * ROWS + i / COLS] * b[i % COLS * DEEP + k];
        c[i] = (float)i;
    }
    clt_buffer *ba = buffer(sizeof a + 8, "a"), *bb = buffer(sizeof b, "b"), *bc = buffer(sizeof c, "c");
    clt_ref ra = {ba, 2}, rb = {bb, 0}, rc = {bc, 0};
    assert_int_equal(clt_ref_write_f32(ra, a, CLT_COUNT_OF(a)), CLT_OK);
    assert_int_equal(clt_ref_write_f32(rb, b, CLT_COUNT_OF(b)), CLT_OK);
    assert_int_equal(clt_ref_write_f32(rc, c, CLT_COUNT_OF(c)), CLT_OK);
    assert_int_equal(clt_clblast_sgemm(dev, true, true, ROWS, COLS, DEEP, 2, ra, ROWS, rb, DEEP, 3, rc, COLS),
                     CLT_OK);
    assert_int_equal(clt_ref_read_f32(rc, c, CLT_COUNT_OF(c)), CLT_OK);
    for (int i = 0; i < ROWS * COLS; i++) assert_true(c[i] == want[i]);
    assert_int_equal(clt_clblast_sgemm(dev, true, true, ROWS, COLS, DEEP, 2, ra, 1, rb, DEEP, 3, rc, COLS),
                     CLT_FAIL);
    clt_buffer_destroy(ba);
    clt_buffer_destroy(bb);
    clt_buffer_destroy(bc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_run),
        cmocka_unit_test(failing_builds_name_a_log),
        cmocka_unit_test(includes_are_expanded),
        cmocka_unit_test(buffers_move_bytes),
        cmocka_unit_test(writes_are_queued),
        cmocka_unit_test(wrapped_memory_is_shared),
        cmocka_unit_test(too_large_is_said),
        cmocka_unit_test(memory_is_accounted),
        cmocka_unit_test(kernels_are_timed),
        cmocka_unit_test(steady_state_is_watched),
        cmocka_unit_test(hung_device_is_given_up),
        cmocka_unit_test(units_can_be_limited),
        cmocka_unit_test(clblast_multiplies),
    };
    return cmocka_run_group_tests_name("device", tests, set_up, tear_down);
}
