/* The arithmetic of a run's guards: z-scores, ranks that are behind, replicas that differ. And the events in
 * metrics.jsonl when the disk is full for a while. */
#include "test/test_util.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "runtime/base/clt_io_probe.h"
#include "runtime/train/run/clt_guard.h"
#include "runtime/train/sink/clt_sink.h"
#include "test/memfs.h"

/* The z-score by its formula over the last values, in long double. */
static double z_of(const double *v, int n) {
    long double mean = 0, square = 0;
    for (int i = 0; i < n; i++) mean += v[i];
    mean /= n;
    for (int i = 0; i < n; i++) square += (v[i] - mean) * (v[i] - mean);
    return (double)((v[n - 1] - mean) / sqrtl(square / n));
}

static void z_scores_follow_the_formula(void **state) {
    (void)state;
    enum { N = 60 };
    static const int window[] = {3, 8, 17};
    for (size_t k = 0; k < CLT_COUNT_OF(window); k++) {
        clt_spike s = {.window = window[k]};
        double v[N];
        for (int i = 0; i < N; i++) {
            v[i] = 2.0 + (double)tu_random_word(k, (uint64_t)i) * 0x1p-32;
            if (i == 40) v[i] = 50;
            double z = clt_spike_add(&s, v[i]);
            if (i + 1 < window[k])
                assert_true(isnan(z));
            else
                assert_true(fabs(z - z_of(v + i + 1 - window[k], window[k])) < 1e-9);
        }
    }
}

static void the_largest_score_is_that_of_one_outlier(void **state) {
    (void)state;
    clt_spike s = {.window = 10};
    for (int i = 0; i < 9; i++) assert_true(isnan(clt_spike_add(&s, 1.0)));
    assert_true(fabs(clt_spike_add(&s, 1e6) - 3.0) < 1e-9); /* sqrt(10 - 1) */
    for (int i = 0; i < 9; i++) clt_spike_add(&s, 1.0);
    assert_true(clt_spike_add(&s, 1.0) == 0.0); /* the outlier has left, all are equal */
}

static void what_is_not_finite_is_not_taken(void **state) {
    (void)state;
    clt_spike a = {.window = 4}, b = {.window = 4};
    for (int i = 0; i < 20; i++) {
        double x = (double)tu_random_word(9, (uint64_t)i), za = clt_spike_add(&a, x);
        assert_true(isnan(clt_spike_add(&b, i % 2 ? NAN : INFINITY)));
        double zb = clt_spike_add(&b, x);
        assert_true(za == zb || (isnan(za) && isnan(zb)));
    }
}

/* A window that was written out and read in again goes on with the same bits, wherever it was cut. */
static void windows_can_be_resumed(void **state) {
    (void)state;
    for (int cut = 0; cut < 30; cut++) {
        clt_spike whole = {.window = 7}, first = {.window = 7}, second = {.window = 7};
        for (int i = 0; i < 30; i++) {
            double x = (double)tu_random_word(5, (uint64_t)i) * 0x1p-20, z = clt_spike_add(&whole, x), other;
            if (i == cut) {
                second.n = first.n;
                for (int k = 0; k < first.n; k++) second.v[k] = first.v[k];
            }
            other = clt_spike_add(i < cut ? &first : &second, x);
            assert_true(z == other || (isnan(z) && isnan(other)));
        }
    }
}

/* Rounds of CLT_STRAGGLER_STEPS steps in which rank `slow` takes `factor` times as long; the rank that is
 * named. */
static int rounds(clt_straggler *s, int n, int slow, double factor) {
    int named = -1;
    for (int i = 0; i < n * CLT_STRAGGLER_STEPS; i++) {
        double t[8];
        for (int r = 0; r < s->ranks; r++) t[r] = 0.1 * (1 + 0.02 * ((r + i) % 3)) * (r == slow ? factor : 1);
        clt_straggler_found f = clt_straggler_add(s, t, 1.3, 0.002);
        if (f.rank < 0) continue;
        assert_true(named < 0 && i == n * CLT_STRAGGLER_STEPS - 1);
        assert_true(f.seconds > 1.3 * f.median);
        named = f.rank;
    }
    return named;
}

static void five_slow_rounds_name_a_rank(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= 5; ranks++) {
        clt_straggler s;
        clt_straggler_begin(&s, ranks);
        assert_int_equal(rounds(&s, 20, -1, 1), -1);
        assert_int_equal(rounds(&s, 20, 1, 1.2), -1); /* not slow enough */
        assert_int_equal(rounds(&s, 4, 1, 2), -1);    /* not for long enough */
        assert_int_equal(rounds(&s, 1, 1, 2), 1);
        assert_int_equal(rounds(&s, 10, 1, 2), -1); /* once */
        assert_int_equal(rounds(&s, 1, -1, 1), -1);
        assert_int_equal(rounds(&s, 4, 0, 2), -1);
        assert_int_equal(rounds(&s, 4, 1, 2), -1); /* another rank: counted anew */
        assert_int_equal(rounds(&s, 1, 1, 2), 1);
        clt_straggler_end(&s);
    }
}

static void short_times_are_noise(void **state) {
    (void)state;
    clt_straggler s;
    clt_straggler_begin(&s, 3);
    for (int i = 0; i < 500; i++)
        assert_int_equal(clt_straggler_add(&s, (double[]){1e-3, 1e-3, 2.5e-3}, 1.3, 0.002).rank, -1);
    clt_straggler_end(&s);
}

static void the_majority_is_right(void **state) {
    (void)state;
    enum { A = 7, B = 9, C = 11 };
    static const struct {
        int ranks, odd;
        uint64_t h[5];
        bool is_odd[5];
    } t[] = {
        {1, 0, {A}, {0}},
        {2, 0, {A, A}, {0, 0}},
        {2, -1, {A, B}, {1, 1}},
        {3, 1, {B, A, A}, {1, 0, 0}},
        {3, 1, {A, A, B}, {0, 0, 1}},
        {3, -1, {A, B, C}, {1, 1, 1}},
        {4, -1, {A, A, B, B}, {1, 1, 1, 1}},
        {5, 2, {B, A, A, C, A}, {1, 0, 0, 1, 0}},
        {5, 0, {A, A, A, A, A}, {0, 0, 0, 0, 0}},
    };
    for (size_t i = 0; i < CLT_COUNT_OF(t); i++) {
        uint64_t hash[10];
        bool odd[5];
        for (int r = 0; r < t[i].ranks; r++) hash[2 * r] = 1, hash[2 * r + 1] = t[i].h[r];
        assert_int_equal(clt_replicas_odd(hash, t[i].ranks, 2, odd), t[i].odd);
        for (int r = 0; r < t[i].ranks; r++) assert_true(odd[r] == t[i].is_odd[r]);
    }
}

/* Half a line is on the disk when it is full: the lines after it are whole all the same. */
static void a_full_disk_costs_one_line(void **state) {
    (void)state;
    clt_config *cfg = clt_calloc(1, sizeof *cfg);
    clt_sinks *s;
    char *text;
    memfs *fs = mem_create();
    assert_int_equal(clt_model_config_parse("{\"model_type\": \"timm_vit\"}", false, "config", &cfg->model),
                     CLT_OK);
    clt_io_probe *probe = clt_io_probe_create(mem_component(fs));
    assert_int_equal(clt_io_register("mem", clt_io_probe_component(probe)), CLT_OK);
    assert_int_equal(clt_io_mkdirs("mem:///run"), CLT_OK);
    const clt_sinks_params p = {.cfg = cfg, .folder = "mem:///run", .main_rank = true};
    assert_int_equal(clt_sinks_create(&p, &s), CLT_OK);
    clt_io_fault_arm(probe, &(clt_io_fault){CLT_IO_APPENDS, "metrics.jsonl", 2, 2, CLT_IO_SHORT, ENOSPC});
    clt_error_quiet(true);
    clt_log_set_level(CLT_LOG_ERROR);
    for (int batch = 1; batch <= 4; batch++) clt_sinks_event(s, "test", batch, NULL);
    clt_log_set_level(CLT_LOG_WARN);
    clt_error_quiet(false);
    clt_io_fault_arm(probe, NULL);
    clt_sinks_destroy(s);
    assert_int_equal(clt_io_read_all("mem:///run/metrics.jsonl", 1 << 20, &text, NULL), CLT_OK);
    assert_non_null(strstr(text, "\n{\"event\":\"test\",\"batch\":3}\n{\"event\":\"test\",\"batch\":4}\n"));
    assert_null(strstr(text, "\"batch\":2}"));
    clt_free(text);
    clt_model_config_free(cfg->model);
    clt_free(cfg);
    clt_io_unregister("mem");
    clt_io_probe_destroy(probe);
    mem_destroy(fs);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(z_scores_follow_the_formula),
        cmocka_unit_test(the_largest_score_is_that_of_one_outlier),
        cmocka_unit_test(what_is_not_finite_is_not_taken),
        cmocka_unit_test(windows_can_be_resumed),
        cmocka_unit_test(five_slow_rounds_name_a_rank),
        cmocka_unit_test(short_times_are_noise),
        cmocka_unit_test(the_majority_is_right),
        cmocka_unit_test(a_full_disk_costs_one_line),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
