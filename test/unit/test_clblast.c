/* Errors of the CLBlast library, without the library: its function is replaced here, so the source file is
 * part of this test. What it computes where it is installed: test_device.c. */
#include "runtime/device/clt_clblast.c"

#include "test/test_util.h"

static int answer;

static int refuse(int layout, int trans_a, int trans_b, size_t m, size_t n, size_t k, float alpha, cl_mem a,
                  size_t a_offset, size_t a_ld, cl_mem b, size_t b_offset, size_t b_ld, float beta, cl_mem c,
                  size_t c_offset, size_t c_ld, cl_command_queue *queue, cl_event *event) {
    (void)layout, (void)trans_a, (void)trans_b, (void)m, (void)n, (void)k, (void)alpha, (void)a;
    (void)a_offset, (void)a_ld, (void)b, (void)b_offset, (void)b_ld, (void)beta, (void)c, (void)c_offset;
    (void)c_ld, (void)queue, (void)event;
    return answer;
}

/* The library allocates during a call: a shortage is no verdict on its rows. */
static void what_ran_out_is_counted(void **state) {
    (void)state;
    enum { UNEXPECTED = -2036 }; /* a code of CLBlast's own */
    const int code[] = {CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_RESOURCES, CL_INVALID_KERNEL, UNEXPECTED};
    clt_device *dev;
    clt_buffer *b;
    const clt_device_params params = clt_device_params_default();
    tu_assert_ok(clt_device_open(&params, &dev), "clt_device_open");
    tu_assert_ok(clt_buffer_create(dev, 64, "matrix", &b), "clt_buffer_create");
    clt_clblast_available(); /* so that the library is not loaded later */
    sgemm = refuse;
    for (size_t i = 0; i < CLT_COUNT_OF(code); i++) {
        const clt_ref x = {b, 0};
        const uint64_t before = dev->counters.shortages;
        answer = code[i];
        assert_int_equal(clt_clblast_sgemm(dev, false, false, 2, 2, 2, 1, x, 2, x, 2, 0, x, 2), CLT_FAIL);
        assert_int_equal(dev->counters.shortages - before, i < 2);
    }
    clt_buffer_destroy(b);
    clt_device_close(dev);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_ran_out_is_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
