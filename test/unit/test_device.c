#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "runtime/device/clt_device.h"

static const char *const saxpy =
    "__kernel void saxpy(__global const float *x, ulong x_off, __global float *y, ulong y_off,\n"
    "                    float a, ulong n)\n"
    "{\n"
    "    size_t i = get_global_id(0);\n"
    "    if (i < n) y[y_off + i] = a * x[x_off + i] + y[y_off + i];\n"
    "}\n";

static void launch_and_read(void **state) {
    (void)state;
    clt_device_params p = clt_device_params_default();
    clt_device *dev;
    assert_int_equal(clt_device_open(&p, &dev), CLT_OK);
    enum { N = 1000 };
    float x[N], y[N], z[N];
    for (int i = 0; i < N; i++) {
        x[i] = (float)i;
        y[i] = (float)(i * i % 97);
    }
    clt_buffer *bx, *by;
    assert_int_equal(clt_buffer_create(dev, sizeof x + 64, "x", &bx), CLT_OK);
    assert_int_equal(clt_buffer_create(dev, sizeof y, "y", &by), CLT_OK);
    assert_int_equal(clt_buffer_write(bx, 64, x, sizeof x), CLT_OK);
    assert_int_equal(clt_buffer_write(by, 0, y, sizeof y), CLT_OK);
    clt_kernel *k;
    assert_int_equal(clt_kernel_from_text(dev, "saxpy.cl", saxpy, "saxpy", NULL, &k), CLT_OK);
    clt_ref rx = {bx, 16}, ry = {by, 0};
    clt_arg args[] = {CLT_REF(rx), CLT_REF(ry), CLT_F32(2), CLT_U64(N)};
    assert_int_equal(clt_launch(k, 1, (size_t[]){1024}, (size_t[]){64}, args, 6), CLT_OK);
    assert_int_equal(clt_buffer_read(by, 0, z, sizeof z), CLT_OK);
    for (int i = 0; i < N; i++) assert_true(z[i] == 2 * x[i] + y[i]);
    clt_buffer_destroy(bx);
    clt_buffer_destroy(by);
    clt_device_close(dev);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(launch_and_read)};
    return cmocka_run_group_tests_name("device", tests, NULL, NULL);
}
