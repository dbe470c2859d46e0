/* tune_frame: what the tests of measured choices share: a device whose cache folder is a temporary one,
 * operations that measure or do not, and buffers of random numbers. Every function is for a test program's
 * one device. */
#ifndef TEST_TUNE_FRAME_H
#define TEST_TUNE_FRAME_H

#include <stdlib.h>
#include <string.h>

#include "runtime/ops/clt_tune.h"
#include "test/test_util.h"

static char folder[] = "/tmp/clt-tune-XXXXXX";
static clt_device *dev;

static int set_up(void **state) {
    (void)state;
    clt_device_params p = clt_device_params_default();
    p.pattern = clt_env(CLT_ENV_DEVICE);
    if (!mkdtemp(folder)) return -1;
    p.cache_dir = folder;
    if (clt_device_open(&p, &dev) != CLT_OK) return -1;
    const clt_device_facts *f = clt_device_get_facts(dev);
    print_message("[  device  ] %s / %s\n", f->platform, f->name);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    clt_device_close(dev);
    char *command = clt_format("rm -rf '%s'", folder);
    const int rc = system(command);
    clt_free(command);
    return rc;
}

static clt_ops *open_with(clt_tune_mode mode, clt_numerics numerics) {
    clt_ops_params p = clt_ops_params_default();
    clt_ops *ops;
    p.numerics = numerics;
    p.tune = mode;
    p.tune_seconds = 600;
    p.skip_check = true; /* checks have tests of their own */
    tu_assert_ok(clt_ops_create(dev, &p, &ops), "ops");
    return ops;
}

static clt_ops *open_ops(clt_tune_mode mode) {
    return open_with(mode, CLT_EXACT);
}

static clt_buffer *buffer(size_t floats) {
    clt_buffer *b;
    float *x = tu_random(floats, floats, 1);
    tu_assert_ok(clt_buffer_create(dev, floats * 4, "test", &b), "buffer");
    tu_assert_ok(clt_buffer_write(b, 0, x, floats * 4), "write");
    clt_free(x);
    return b;
}

static char *csv(void) {
    return clt_format("%s/tune.csv", folder);
}

/* Measured choices without those that are checked in for some devices: their number, the first `max` of them
 * in `at`. */
static int measured(const clt_ops *ops, const clt_tuned **at, int max) {
    int lines, n = 0;
    const clt_tuned *t = clt_ops_tuned(ops, &lines);
    for (int i = 0; i < lines; i++)
        if (strcmp(t[i].key, CLT_TUNE_KNOWN) != 0 && n++ < max) at[n - 1] = &t[i];
    return n;
}

static bool on_cpu(void) {
    return clt_device_get_facts(dev)->type == CLT_DEVICE_CPU;
}

/* Rows for work-groups take long to compile on CPUs, so one of them suffices there. */
static bool left_out(int row, int rows, clt_dtype type) {
    return (on_cpu() || tu_tiny()) && row > 0 && (row < rows - 1 || type != CLT_F32);
}

#endif
