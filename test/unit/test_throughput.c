/* Throughput over a window of steps: by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "runtime/train/sink/clt_throughput.h"

static void the_last_steps_count(void **state) {
    (void)state;
    clt_throughput *t = clt_throughput_create(2);
    clt_rates r = clt_throughput_rates(t);
    assert_true(r.batches == 0 && r.samples == 0 && r.tokens == 0 && r.flops == 0);
    clt_throughput_step(t, 8, 4, 64, 1024); /* compiles kernels */
    r = clt_throughput_rates(t);
    assert_true(r.batches == 0.125 && r.samples == 0.5 && r.tokens == 8 && r.flops == 128);
    clt_throughput_step(t, 0.5, 4, 64, 1024); /* the first one counts no more */
    r = clt_throughput_rates(t);
    assert_true(r.batches == 2 && r.samples == 8 && r.tokens == 128 && r.flops == 2048);
    clt_throughput_step(t, 1.5, 4, 32, 512); /* looked at late */
    r = clt_throughput_rates(t);
    assert_true(r.batches == 1 && r.samples == 4 && r.tokens == 48 && r.flops == 768);
    clt_throughput_step(t, 0.5, 2, 16,
                        256); /* and the next one, short; the second step has left the window */
    r = clt_throughput_rates(t);
    assert_true(r.batches == 1 && r.samples == 3 && r.tokens == 24 && r.flops == 384);
    clt_throughput_destroy(t);
}

static void a_window_of_one_is_the_last_step(void **state) {
    (void)state;
    clt_throughput *t = clt_throughput_create(1);
    for (int i = 1; i <= 5; i++) {
        clt_throughput_step(t, i, 2, 3, 4);
        const clt_rates r = clt_throughput_rates(t);
        assert_true(r.batches == 1.0 / i && r.samples == 2.0 / i && r.tokens == 3.0 / i &&
                    r.flops == 4.0 / i);
    }
    clt_throughput_destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_last_steps_count),
                                       cmocka_unit_test(a_window_of_one_is_the_last_step)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
