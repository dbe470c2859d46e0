/* Recording of launches: what is in the folder, that nothing is recorded when it is off or paused, and what
 * is refused. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_io_probe.h"
#include "runtime/base/clt_json.h"
#include "runtime/device/clt_record.h"

enum { N = 100, OFF = 3, LINES = 8 };

static clt_device *dev;
static char folder[64];

static int set_up(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/test_record.XXXXXX");
    if (!mkdtemp(folder)) return -1;
    clt_device_params p = clt_device_params_default();
    return clt_device_open(&p, &dev) == CLT_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    clt_device_close(dev);
    return clt_io_remove_tree(folder) == CLT_OK ? 0 : -1;
}

/* One cast of N floats, from src to dst at their offsets. */
static clt_status cast(clt_buffer *src, clt_buffer *dst) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(dev, "cast/cast.cl", "cast_f32_bf16", " -DLANES=1 -DSEG=1 -DWG=1", &k));
    clt_ref from = {src, OFF}, to = {dst, 2 * OFF};
    clt_arg args[] = {CLT_U64(N), CLT_REF(from), CLT_REF(to)};
    return clt_launch(k, 1, (size_t[]){N}, (size_t[]){1}, args, 5);
}

static clt_buffer *buffer(size_t bytes, const char *name) {
    clt_buffer *b;
    assert_int_equal(clt_buffer_create(dev, bytes, name, &b), CLT_OK);
    return b;
}

/* Parses the lines of DIR/launches.jsonl and returns their number; the caller drops them. */
static int read_index(const char *dir, json_t **line) {
    char *path = clt_path_join(dir, "launches.jsonl"), *text = NULL;
    size_t bytes;
    int n = 0;
    assert_int_equal(clt_io_read_all(path, 1 << 20, &text, &bytes), CLT_OK);
    for (char *at = text; *at;) {
        size_t len = strcspn(at, "\n");
        assert_true(at[len] == '\n' && n < LINES);
        assert_int_equal(clt_json_parse(at, len, 8, path, &line[n++]), CLT_OK);
        at += len + 1;
    }
    clt_free(text);
    clt_free(path);
    return n;
}

static void drop(json_t **line, int n) {
    for (int i = 0; i < n; i++) json_decref(line[i]);
}

/* Asserts that the file which member `key` of o names holds `want`. */
static void assert_file(const char *dir, json_t *o, const char *key, const void *want, size_t bytes) {
    char *path = clt_path_join(dir, json_string_value(json_object_get(o, key))), *data;
    size_t n;
    assert_int_equal(clt_io_read_all(path, 1 << 20, &data, &n), CLT_OK);
    assert_int_equal(n, bytes);
    assert_memory_equal(data, want, bytes);
    clt_free(data);
    clt_free(path);
}

static int64_t arg(json_t *line, size_t i, const char *kind) {
    json_t *v = json_object_get(json_array_get(json_object_get(line, "args"), i), kind);
    assert_true(json_is_integer(v));
    return json_integer_value(v);
}

static void a_launch_is_written_down(void **state) {
    (void)state;
    float x[N + OFF];
    uint16_t before[N + 2 * OFF] = {0}, after[N + 2 * OFF];
    for (int i = 0; i < N + OFF; i++) x[i] = (float)i * 0.37f;
    clt_buffer *src = buffer(sizeof x, "the source"), *dst = buffer(sizeof before, "dst");
    assert_int_equal(clt_buffer_write(src, 0, x, sizeof x), CLT_OK);
    assert_int_equal(clt_buffer_write(dst, 0, before, sizeof before), CLT_OK);
    char *dir = clt_path_join(folder, "one/two");
    assert_int_equal(cast(src, dst), CLT_OK);
    assert_int_equal(clt_buffer_write(dst, 0, before, sizeof before), CLT_OK);
    assert_int_equal(clt_record_start(dev, dir, false), CLT_OK);
    assert_int_equal(clt_record_start(dev, dir, false), CLT_USAGE);
    clt_record_pause(dev, true);
    assert_int_equal(cast(src, dst), CLT_OK);
    clt_record_pause(dev, false);
    assert_int_equal(clt_buffer_write(dst, 0, before, sizeof before), CLT_OK);
    assert_int_equal(cast(src, dst), CLT_OK);
    assert_int_equal(cast(src, dst), CLT_OK);
    assert_int_equal(clt_record_stop(dev), CLT_OK);
    assert_int_equal(cast(src, dst), CLT_OK);
    assert_int_equal(clt_buffer_read(dst, 0, after, sizeof after), CLT_OK);

    json_t *line[LINES];
    assert_int_equal(read_index(dir, line), 3); /* the head and two launches */
    assert_int_equal(json_integer_value(json_object_get(line[0], "cltrain_record")), 1);
    json_t *l = line[1], *b = json_object_get(l, "buffers");
    assert_string_equal(json_string_value(json_object_get(l, "file")), "cast/cast.cl");
    assert_string_equal(json_string_value(json_object_get(l, "kernel")), "cast_f32_bf16");
    assert_non_null(strstr(json_string_value(json_object_get(l, "options")), "-cl-std=CL1.2"));
    assert_non_null(strstr(json_string_value(json_object_get(l, "options")), "-DLANES=1"));
    assert_int_equal(json_integer_value(json_array_get(json_object_get(l, "global"), 0)), N);
    assert_int_equal(arg(l, 0, "u64"), N);
    assert_int_equal(arg(l, 1, "buffer"), 0);
    assert_int_equal(arg(l, 2, "u64"), OFF);
    assert_int_equal(arg(l, 3, "buffer"), 1);
    assert_string_equal(json_string_value(json_object_get(json_array_get(b, 0), "name")), "the source");
    json_t *next = json_object_get(line[2], "buffers");
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(json_integer_value(json_object_get(json_array_get(b, i), "number")),
                         json_integer_value(json_object_get(json_array_get(next, i), "number")));
    assert_int_not_equal(json_integer_value(json_object_get(json_array_get(b, 0), "number")),
                         json_integer_value(json_object_get(json_array_get(b, 1), "number")));
    const char *text = clt_kernel_text("cast/cast.cl");
    assert_file(dir, l, "source", text, strlen(text));
    assert_file(dir, json_array_get(b, 0), "before", x, sizeof x);
    assert_file(dir, json_array_get(b, 0), "after", x, sizeof x);
    assert_file(dir, json_array_get(b, 1), "before", before, sizeof before);
    assert_file(dir, json_array_get(b, 1), "after", after, sizeof after);
    assert_file(dir, json_array_get(json_object_get(line[2], "buffers"), 1), "before", after, sizeof after);
    drop(line, 3);
    clt_free(dir);
    clt_buffer_destroy(src);
    clt_buffer_destroy(dst);
}

static void large_launches_are_refused(void **state) {
    (void)state;
    json_t *line[LINES];
    clt_buffer *src = buffer(CLT_RECORD_BYTES, "large"), *dst = buffer(4 * N, "dst");
    char *dir = clt_path_join(folder, "large");
    assert_int_equal(clt_record_start(dev, dir, false), CLT_OK);
    assert_int_equal(cast(src, dst), CLT_USAGE);
    assert_non_null(strstr(clt_last_error(), "tiny model"));
    assert_int_equal(clt_record_stop(dev), CLT_OK);
    assert_int_equal(clt_record_start(dev, dir, true), CLT_OK);
    assert_int_equal(cast(src, dst), CLT_OK);
    assert_int_equal(clt_record_stop(dev), CLT_OK);
    assert_int_equal(read_index(dir, line), 2); /* two heads, no launch */
    drop(line, 2);
    clt_free(dir);
    clt_buffer_destroy(src);
    clt_buffer_destroy(dst);
}

/* Contents are kept by their hash: a part of them is not left where the next recording would find it. */
static void a_full_disk_leaves_no_part(void **state) {
    (void)state;
    clt_buffer *src = buffer(4 * (N + OFF), "src"), *dst = buffer(4 * (N + 2 * OFF), "dst");
    char *dir = clt_path_join(folder, "full");
    clt_io_probe *full = clt_io_probe_create(clt_io_local());
    clt_strv names = {0};
    assert_int_equal(clt_record_start(dev, dir, false), CLT_OK);
    clt_io_fault_arm(full, &(clt_io_fault){CLT_IO_PWRITE, "", 1, LONG_MAX, CLT_IO_SHORT, ENOSPC});
    assert_int_equal(clt_io_register("file", clt_io_probe_component(full)), CLT_OK);
    assert_int_not_equal(cast(src, dst), CLT_OK);
    assert_true(clt_io_fault_fired(full));
    clt_io_unregister("file");
    clt_io_probe_destroy(full);
    clt_record_stop(dev);
    assert_int_equal(clt_io_list(dir, &names), CLT_OK);
    assert_int_equal(names.n, 1); /* launches.jsonl */
    clt_strv_free(&names);
    clt_free(dir);
    clt_buffer_destroy(src);
    clt_buffer_destroy(dst);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_launch_is_written_down),
                                       cmocka_unit_test(large_launches_are_refused),
                                       cmocka_unit_test(a_full_disk_leaves_no_part)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
