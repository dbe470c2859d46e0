/* The rates of clbench numa by hand, and limits in which one of them decides. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tools/clbench/numa_host.h"

/* 4 nodes of 8 cores; a node reaches its own memory at 64 bytes/s and that of others at 24. */
static const numa_host host = {.cores = 32, .nodes = 4, .core = 2, .memory = 64, .link = 24};

static void memory_by_hand(void **state) {
    (void)state;
    assert_true(numa_memory(&host, 4) == 64);
    assert_true(numa_memory(&host, 1) == 4 * 32); /* 3 of 4 bytes pass a link of 24: 32 a node */
    numa_host fast = host;
    fast.link = 1e9;
    assert_true(numa_memory(&fast, 1) == 4 * 64); /* links that do not limit */
    const numa_host one = {.cores = 32, .nodes = 1, .core = 2, .memory = 64};
    assert_true(numa_memory(&one, 1) == 64);
}

static void rates_by_hand(void **state) {
    (void)state;
    const double bytes = numa_pass_bytes(8, 32); /* 8 * 16 + 32 * 4 */
    assert_true(bytes == 256);
    /* One rank: 1024 / (32 * 2) + 256 / 128 = 18. One of four: 1024 / 16 + 256 / 64 = 68. */
    const step_rates all = numa_rates(&host, 1, 1024, bytes, 0.25),
                     each = numa_rates(&host, 4, 1024, bytes, 0.25);
    assert_true(all.forward == 4.5 && all.backward == 13.5);
    assert_true(each.forward == 17 && each.backward == 51);
    assert_true(all.update == 128 && each.update == 64 && each.add == 64);
    assert_true(each.out == 32 && each.in == 24); /* the ring at home; other ranks' rings through the links */
}

/* Four ranks do the work of four microbatches in the time of one: what one rank loses is what passes the
 * links, and nothing if they do not limit. The four exchange. */
static void ranks_gain_what_the_links_cost(void **state) {
    (void)state;
    enum { E = 1 << 16 };
    static step_unit unit = {0, E, 1};
    const step_model m = {.unit = &unit, .units = 1, .total = E};
    const step_plan one = {.ranks = 1,
                           .hosts = 1,
                           .microbatches = 4,
                           .one_queue = true,
                           .bucket = E,
                           .gradient_bytes = 4,
                           .weight_bytes = 4,
                           .update_bytes = 28};
    step_plan four = one;
    four.ranks = 4;
    four.microbatches = 1;
    four.stage = 1;
    for (int links = 0; links < 2; links++) {
        numa_host h = host;
        if (links) h.link = 1e12;
        const double flops = 1e9, bytes = 1e8;
        const step_rates r1 = numa_rates(&h, 1, flops, bytes, 0.25),
                         r4 = numa_rates(&h, 4, flops, bytes, 0.25);
        step_result s1, s4;
        step_simulate(&m, &one, &r1, &s1, NULL);
        step_simulate(&m, &four, &r4, &s4, NULL);
        const double work = 4 * bytes / numa_memory(&h, 1) - bytes / h.memory;
        const double update = 28.0 * E / numa_memory(&h, 1) - 28.0 * E / 4 / h.memory;
        assert_true(fabs(s1.step - (s4.step - s4.exposed) - work - update) < 1e-6 * s1.step);
        assert_true(s4.exposed > 0 && s1.exposed == 0);
        if (links) assert_true(fabs(work) < 1e-6 && fabs(update) < 1e-6);
        if (!links) assert_true(s4.step < s1.step);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_by_hand),
        cmocka_unit_test(rates_by_hand),
        cmocka_unit_test(ranks_gain_what_the_links_cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
