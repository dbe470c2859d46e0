/* The simulator of clbench schedule: queues and whole steps, by hand; limits in which one rate decides. Times
 * are sums of powers of two, so that they are exact. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/train/config/clt_config.h"
#include "tools/clbench/sim.h"
#include "tools/clbench/step_sim.h"

/* --- queues --- */

static void assert_times(const sim *s, int op, double start, double end) {
    int n;
    const sim_op *o = &sim_ops(s, &n)[op];
    if (o->start != start || o->end != end)
        fail_msg("%s: %g to %g, not %g to %g", o->name, o->start, o->end, start, end);
}

static void a_queue_takes_what_is_ready_first(void **state) {
    (void)state;
    sim *s = sim_create(2, 0);
    const int a = sim_add(s, 0, 2, 0, "a"), late = sim_add(s, 1, 1, 0, "late"), b = sim_add(s, 1, 4, 0, "b");
    const int delay = sim_add(s, SIM_DELAY, 0.5, 0, "delay"), c = sim_add(s, 0, 1, 0, "c");
    sim_after(s, late, a);
    sim_after(s, delay, a);
    sim_after(s, c, delay);
    sim_after(s, c, -1);
    assert_int_equal(sim_run(s), 0);
    assert_times(s, a, 0, 2);
    assert_times(s, b, 0, 4);
    assert_times(s, late, 4, 5);
    assert_times(s, delay, 2, 2.5);
    assert_times(s, c, 2.5, 3.5);
    assert_true(sim_time(s, 0, 5, 1 << 0, 0) == 3 && sim_time(s, 0, 5, 1 << 1, 1 << 0) == 2);
    assert_true(sim_time(s, 1, 3, 1 << 0 | 1 << 1, 0) == 1.5 && sim_time(s, 0, 5, 0, 3) == 0);
    sim_destroy(s);
}

/* Two copies of 8 bytes/s each share 8 bytes/s: each is half as fast until the shorter one has ended. What
 * moves no bytes is not slowed down. */
static void copies_share_the_host(void **state) {
    (void)state;
    sim *s = sim_create(3, 8);
    const int a = sim_add(s, 0, 1, 8, "a"), b = sim_add(s, 1, 3, 24, "b"), c = sim_add(s, 2, 1.5, 0, "c");
    const int wide = sim_add(s, 0, 0, 16, "faster link than memory");
    sim_after(s, wide, b);
    assert_int_equal(sim_run(s), 0);
    assert_times(s, a, 0, 2);
    assert_times(s, b, 0, 4);
    assert_times(s, c, 0, 1.5);
    assert_times(s, wide, 4, 6);
    sim_destroy(s);
}

static void a_circle_never_runs(void **state) {
    (void)state;
    sim *s = sim_create(1, 0);
    const int a = sim_add(s, 0, 1, 0, "a"), b = sim_add(s, 0, 1, 0, "b");
    sim_add(s, 0, 1, 0, "free");
    sim_after(s, a, b);
    sim_after(s, b, a);
    assert_int_equal(sim_run(s), 2);
    sim_destroy(s);
}

/* --- steps --- */

enum { E = 1024 /* elements of a bucket and of a unit */, UNITS = 4 };
static step_unit units[UNITS] = {{0, E, 0.25}, {E, E, 0.25}, {2 * E, E, 0.25}, {3 * E, E, 0.25}};

static step_model model_of(int n) {
    for (int u = 0; u < n; u++) units[u].share = 1.0 / n;
    return (step_model){.unit = units, .units = n, .total = (uint64_t)n * E};
}

static step_plan plan_of(int ranks, int hosts, int stage) {
    return (step_plan){.ranks = ranks,
                       .hosts = hosts,
                       .stage = stage,
                       .microbatches = 1,
                       .clip = true,
                       .ahead = 2,
                       .bucket = E,
                       .gradient_bytes = 4,
                       .weight_bytes = 2,
                       .update_bytes = 16};
}

/* Two ranks, two buckets, stage 1. One step, from its first forward pass:
 *   compute  forward 0-1, 1-2; backward 2-4, 4-6; add 7-7.5, 9-9.5; update 9.75-10.75, 10.75-11.75
 *   out      reduce 4-5, 6-7; gather 10.75-11.25, 11.75-12.25
 *   in       reduce 5-7, 7-9; gather 11.25-12.25, 12.25-13.25
 *   norm     9.5-9.75
 * The next step begins at 12.25, when the first bucket is there; the second one comes in time. */
static void two_ranks_by_hand(void **state) {
    (void)state;
    const step_model m = model_of(2);
    const step_plan p = plan_of(2, 1, 1);
    const step_rates r = {
        .forward = 2, .backward = 4, .out = 2048, .in = 1024, .exchange = 0.25, .update = 8192, .add = 12288};
    step_result s;
    clt_str timeline = {0};
    step_simulate(&m, &p, &r, &s, &timeline);
    assert_true(s.step == 12.25 && s.one_rank == 10 && s.work == 8 && s.exposed == 4.25);
    assert_true(s.busy[STEP_COMPUTE] == 9 && s.busy[STEP_OUT] == 3 && s.busy[STEP_IN] == 6);
    assert_true(s.bubble[STEP_IN] == 3 && s.bubble[STEP_OUT] == 0 && s.bubble[STEP_COMPUTE] == 0.25);
    assert_true(s.busy[STEP_NETWORK] == 0 && s.bubble[STEP_NETWORK] == 0 && s.buckets == 2);
    /* Followed by a fourth digit (clt_timeline.h). */
    const char *event =
        strstr(timeline.s, "\"name\":\"reduce 1 out\",\"pid\":0,\"tid\":2,\"ts\":4000000.000");
    assert_non_null(event);
    assert_non_null(event = strstr(event, "\"dur\":"));
    assert_memory_equal(event, "\"dur\":1000000.000", 17);
    clt_str_free(&timeline);
}

/* On one queue nothing overlaps: the sum of all times above. */
static void one_queue_by_hand(void **state) {
    (void)state;
    const step_model m = model_of(2);
    step_plan p = plan_of(2, 1, 1);
    const step_rates r = {
        .forward = 2, .backward = 4, .out = 2048, .in = 1024, .exchange = 0.25, .update = 8192, .add = 12288};
    step_result s;
    p.one_queue = true;
    step_simulate(&m, &p, &r, &s, NULL);
    assert_true(s.step == 6 + 3 + 6 + 1 + 2 + 0.25 && s.busy[STEP_OUT] == 0 && s.exposed == 10.25);
}

/* Two queues again, without clipping: each owner updates at once. Update 1 at 7.5-8.5, update 0 at 9.5-10.5;
 * gather 1 out 8.5-9, in 9-10; gather 0 out 10.5-11, in 11-12. */
static void without_clipping_by_hand(void **state) {
    (void)state;
    const step_model m = model_of(2);
    step_plan p = plan_of(2, 1, 1);
    const step_rates r = {.forward = 2, .backward = 4, .out = 2048, .in = 1024, .update = 8192, .add = 12288};
    step_result s;
    p.clip = false;
    step_simulate(&m, &p, &r, &s, NULL);
    assert_true(s.step == 12);
}

/* Stage 0: every rank gathers the gradients, 4 bytes each, and updates everything. Gradient 1: out 7.5-8.5,
 * in 9-11 behind reduce 0; gradient 0: out 9.5-10.5, in 11-13. Update 1 at 11-13, update 0 at 13-15. */
static void all_on_every_rank_by_hand(void **state) {
    (void)state;
    const step_model m = model_of(2);
    const step_plan p = plan_of(2, 1, 0);
    const step_rates r = {.forward = 2, .backward = 4, .out = 2048, .in = 1024, .update = 8192, .add = 12288};
    step_result s;
    step_simulate(&m, &p, &r, &s, NULL);
    assert_true(s.step == 15 && s.work == 10 && s.exposed == 5);
}

static void unlimited_rates_leave_the_work(void **state) {
    (void)state;
    const step_model m = model_of(UNITS);
    const step_rates r = {.forward = 1, .backward = 2, .update = 65536};
    for (int stage = 0; stage <= 3; stage++)
        for (int ranks = 1; ranks <= 8; ranks *= 2)
            for (int hosts = 1; hosts <= ranks; hosts *= 2) {
                step_plan p = plan_of(ranks, hosts, stage);
                step_result s;
                p.microbatches = 4;
                p.each = stage >= 2;
                step_simulate(&m, &p, &r, &s, NULL);
                assert_true(s.step == 12 + (stage ? 1.0 / ranks : 1) && s.exposed == 0);
            }
}

/* Without compute one limited rate decides: the step is the bytes over it. */
static void one_rate_decides(void **state) {
    (void)state;
    const step_model m = model_of(UNITS);
    const double all = UNITS * E;
    step_result s;
    for (int n = 2; n <= 8; n *= 2) {
        const step_plan in_host = plan_of(n, 1, 1), between = plan_of(n, n, 1);
        const double foreign = all * (n - 1) / n;
        step_simulate(&m, &in_host, &(step_rates){.out = 1024}, &s, NULL);
        assert_true(s.step == (foreign * 4 + all / n * 2) / 1024);
        step_simulate(&m, &in_host, &(step_rates){.in = 1024}, &s, NULL);
        assert_true(s.step == foreign * (4 + 2) / 1024);
        step_simulate(&m, &between, &(step_rates){.network = 1024}, &s, NULL);
        assert_true(s.step == foreign * (4 + 2) / 1024);
        /* all ranks: written and read once for gradients, weights written once and read n - 1 times */
        step_simulate(&m, &in_host, &(step_rates){.host = 1024}, &s, NULL);
        assert_true(fabs(s.step - (n * foreign * 8 + all * 2 * n) / 1024) < 1e-9);
    }
}

/* Messages between hosts: gradients, the norm and weights, each one latency; buckets overlap. Halving and
 * doubling take log2 of the hosts rounds. */
static void latency_counts_by_round(void **state) {
    (void)state;
    const step_model m = model_of(UNITS);
    step_plan p = plan_of(8, 8, 1);
    const step_rates r = {.latency = 1}, busy = {.message = 1};
    step_result s;
    step_simulate(&m, &p, &r, &s, NULL);
    assert_true(s.step == 3);
    step_simulate(&m, &p, &busy, &s, NULL);
    assert_true(s.step == 7 * UNITS + 7 + 7 * UNITS);
    p.halving = true;
    step_simulate(&m, &p, &r, &s, NULL);
    assert_true(s.step == 9);
    step_simulate(&m, &p, &busy, &s, NULL);
    assert_true(s.step == 3 * UNITS + 3 + 3 * UNITS);
}

/* Stage 3 with two units ahead: in forward order all four units are gathered; in the backward pass the last
 * two are still there, the embedding stays, and unit 1 is gathered again. In the second microbatch unit 1,
 * whose visit is three visits ago, is still there, and unit 2 and 3 are gathered again, and unit 1 for its
 * backward pass. */
static void stage_three_gathers_again(void **state) {
    (void)state;
    const step_model m = model_of(UNITS);
    step_plan p = plan_of(2, 1, 3);
    const step_rates r = {.in = 1024};
    step_result s;
    step_simulate(&m, &p, &r, &s, NULL);
    assert_true(s.step == (UNITS * E * 0.5 * 4 + 5 * E * 0.5 * 2) / 1024);
    p.microbatches = 2;
    step_simulate(&m, &p, &r, &s, NULL);
    assert_true(s.step == (UNITS * E * 0.5 * 4 + 8 * E * 0.5 * 2) / 1024);
    p.each = true;
    step_simulate(&m, &p, &r, &s, NULL);
    assert_true(s.step == (2 * UNITS * E * 0.5 * 4 + 8 * E * 0.5 * 2) / 1024);
}

/* Stage 3 by hand. A pass of a unit takes 1 forward and 2 backward; a reduction out 0.5, in 1; a gather out
 * 0.25, in 0.5. Updates take no time but wait for the pass that runs. After the end of the last backward
 * pass: compute  update 1 at 0, update 0 at 1.5 out      reduce 0 0-0.5; gather 1 0.5-0.75, 2 0.75-1,
 * 0 1.5-1.75 in       reduce 0 0.5-1.5; gather 1 1.5-2, 2 2-2.5, 0 2.5-3 All other gathers are hidden behind
 * the passes. */
static void stage_three_by_hand(void **state) {
    (void)state;
    const step_model m = model_of(UNITS);
    step_plan p = plan_of(2, 1, 3);
    const step_rates r = {.forward = 4, .backward = 8, .out = 4096, .in = 2048};
    step_result s;
    p.clip = false;
    step_simulate(&m, &p, &r, &s, NULL);
    assert_true(s.step == 12 + 3 && s.bubble[STEP_IN] == 2.5 && s.bubble[STEP_OUT] == 0.5);
}

/* --- models --- */

static void units_cover_a_model(void **state) {
    (void)state;
    clt_config *c;
    step_model m;
    double shares = 0;
    assert_int_equal(clt_config_load("tools/presets/mpt-125m.yaml", NULL, 0, &c), CLT_OK);
    assert_int_equal(step_model_read(c->model, 2048, &m), CLT_OK);
    assert_int_equal(m.units, 14);
    uint64_t next = 0;
    for (int u = 0; u < m.units; u++) {
        assert_int_equal(m.unit[u].first, next);
        next += m.unit[u].count;
        shares += m.unit[u].share;
    }
    assert_int_equal(next, m.total);
    assert_true(fabs(shares - 1) < 1e-12 && m.unit[0].share == 0);
    assert_true(m.flops_per_token == clt_model_train_flops_per_token(c->model, 2048));
    /* the head multiplies by the tied embedding of 50368 x 768; a block has 12 x 768^2 elements in matrices,
     * and attention 12 x 768 x 2048 */
    const double head = 6 * 50368.0 * 768, block = 6 * 12 * 768.0 * 768 + 12 * 768.0 * 2048;
    for (int u = 1; u <= 12; u++)
        assert_true(fabs(m.unit[u].share / m.unit[13].share / (block / head) - 1) < 0.02);
    step_model_free(&m);
    clt_config_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_queue_takes_what_is_ready_first),
                                       cmocka_unit_test(copies_share_the_host),
                                       cmocka_unit_test(a_circle_never_runs),
                                       cmocka_unit_test(two_ranks_by_hand),
                                       cmocka_unit_test(one_queue_by_hand),
                                       cmocka_unit_test(without_clipping_by_hand),
                                       cmocka_unit_test(all_on_every_rank_by_hand),
                                       cmocka_unit_test(unlimited_rates_leave_the_work),
                                       cmocka_unit_test(one_rate_decides),
                                       cmocka_unit_test(latency_counts_by_round),
                                       cmocka_unit_test(stage_three_gathers_again),
                                       cmocka_unit_test(stage_three_by_hand),
                                       cmocka_unit_test(units_cover_a_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
