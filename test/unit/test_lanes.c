/* Lanes against a plain recursion: the binary tree over lane numbers, empty lanes skipped. No device: slabs
 * are words in host memory, and "adding" is a hash that is neither commutative nor associative, so that any
 * other order shows. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "collectives/clt_reduce.h"

enum { MOST_LANES = 16, WORDS = 3, FIRST_PIECE = 2 };

/* --- slabs of two pieces, in host memory --- */

typedef struct {
    uint64_t word[WORDS];
    clt_buffer *piece[2];
    clt_slab slab;
} host_slab;

static const clt_slab_table table = {.total = WORDS};
static uint64_t start[] = {0, FIRST_PIECE, WORDS}, origin[2];

static void make_slab(host_slab *s) {
    for (int i = 0; i < WORDS; i++) s->word[i] = 0xdead;
    s->piece[0] = (clt_buffer *)s->word;
    s->piece[1] = (clt_buffer *)(s->word + FIRST_PIECE);
    s->slab = (clt_slab){.table = &table, .n = 2, .start = start, .origin = origin, .piece = s->piece};
}

static uint64_t *words_of(const clt_slab *s) {
    return (uint64_t *)s->piece[0];
}

static uint64_t add_word(uint64_t a, uint64_t b) {
    return (a ^ (b * 0x9e3779b97f4a7c15u + 1)) * 0xff51afd7ed558ccdu;
}

static clt_status add(void *ctx, clt_ref dst, clt_ref src, uint64_t count) {
    uint64_t *d = (uint64_t *)dst.buf + dst.off, *s = (uint64_t *)src.buf + src.off;
    ++*(int *)ctx;
    for (uint64_t i = 0; i < count; i++) d[i] = add_word(d[i], s[i]);
    return CLT_OK;
}

/* --- the oracle --- */

static uint64_t lane_word(int lane, int i) {
    return (uint64_t)(lane + 1) * 1000003u + (uint64_t)i;
}

/* Samples of a lane, counted one by one: sample s lies in the lane whose range holds it. */
static int samples_in(int lanes, int64_t samples, int lane) {
    int n = 0;
    for (int64_t s = 0; s < samples; s++)
        n += (int64_t)lane * samples / lanes <= s && s < ((int64_t)lane + 1) * samples / lanes;
    return n;
}

/* The tree over lanes [first, first + width); false: all are empty. */
static bool oracle(int lanes, int64_t samples, int first, int width, uint64_t out[WORDS]) {
    uint64_t l[WORDS], r[WORDS];
    if (width == 1) {
        for (int i = 0; i < WORDS; i++) out[i] = lane_word(first, i);
        return samples_in(lanes, samples, first) > 0;
    }
    bool left = oracle(lanes, samples, first, width / 2, l);
    bool right = oracle(lanes, samples, first + width / 2, width / 2, r);
    for (int i = 0; i < WORDS; i++) out[i] = left && right ? add_word(l[i], r[i]) : left ? l[i] : r[i];
    return left || right;
}

/* --- one rank --- */

/* Runs the rank's lanes on `n` slabs; false if they are not enough. */
static bool run_lanes(clt_lane_stack *s, int lanes, int first, int last, int64_t samples) {
    clt_lane_stack_begin(s);
    for (int lane = first; lane < last; lane++) {
        bool empty = samples_in(lanes, samples, lane) == 0;
        clt_slab *slab = empty ? NULL : clt_lane_stack_slab(s);
        if (!empty && !slab) return false;
        for (int i = 0; i < WORDS && slab; i++) words_of(slab)[i] = lane_word(lane, i);
        assert_int_equal(clt_lane_stack_push(s, empty), CLT_OK);
    }
    return true;
}

/* The subtrees are whole, ascending, cover the rank's lanes, and none of them could be larger. */
static void check_shape(const clt_lane_sum *sum, int n, int lanes, int first, int last) {
    int at = first;
    for (int i = 0; i < n; i++) {
        int w = sum[i].width;
        assert_int_equal(sum[i].first, at);
        assert_true(w > 0 && (w & (w - 1)) == 0 && at % w == 0);
        bool could_grow =
            2 * w <= lanes && at / (2 * w) * (2 * w) >= first && at / (2 * w) * (2 * w) + 2 * w <= last;
        assert_false(could_grow);
        at += w;
    }
    assert_int_equal(at, last);
}

static void check_sums(clt_lane_stack *s, int lanes, int first, int last, int64_t samples) {
    int n;
    const clt_lane_sum *sum = clt_lane_stack_sums(s, &n);
    const clt_slab *total = clt_lane_stack_total(s), *want_total = NULL;
    check_shape(sum, n, lanes, first, last);
    for (int i = 0; i < n; i++) {
        uint64_t want[WORDS];
        bool some = oracle(lanes, samples, sum[i].first, sum[i].width, want);
        assert_int_equal(sum[i].empty, !some);
        if (!some) continue;
        assert_memory_equal(words_of(sum[i].slab), want, sizeof want);
        if (!want_total) want_total = sum[i].slab;
    }
    assert_non_null(total);
    if (want_total) assert_ptr_equal(total, want_total);
}

/* Returns how many additions were made. */
static int check_rank(int lanes, int first, int last, int64_t samples) {
    host_slab slabs[MOST_LANES];
    clt_slab *list[MOST_LANES];
    int adds = 0, need = clt_lane_slabs_needed(lanes, first, last, samples);
    assert_true(need >= 1 && need <= MOST_LANES);
    for (int i = 0; i < need; i++) {
        make_slab(&slabs[i]);
        list[i] = &slabs[i].slab;
    }
    clt_lane_stack *s = clt_lane_stack_create(first, last, list, need, add, &adds);
    for (int batch = 0; batch < 2; batch++) {
        adds = 0;
        assert_true(run_lanes(s, lanes, first, last, samples));
        check_sums(s, lanes, first, last, samples);
    }
    clt_lane_stack_destroy(s);
    if (need > 1) { /* one less is too few, for this batch or a smaller one */
        int ignored;
        bool enough = true;
        s = clt_lane_stack_create(first, last, list, need - 1, add, &ignored);
        for (int64_t n = samples; n > 0 && enough; n--) enough = run_lanes(s, lanes, first, last, n);
        clt_lane_stack_destroy(s);
        assert_false(enough);
    }
    return adds / 2; /* two pieces each */
}

/* --- the tests --- */

static void order_and_slabs(void **state) {
    (void)state;
    for (int lanes = 1; lanes <= MOST_LANES; lanes *= 2)
        for (int ranks = 1; ranks <= lanes; ranks++)
            for (int64_t samples = 0; samples <= 2 * lanes + 1; samples++) {
                int at = 0;
                for (int r = 0; r < ranks; r++) {
                    const clt_lane_split s = {lanes, ranks, NULL};
                    int first = clt_lane_begin(&s, r), last = clt_lane_begin(&s, r + 1);
                    assert_int_equal(first, at);
                    assert_true(last > first);
                    check_rank(lanes, first, last, samples);
                    at = last;
                }
                assert_int_equal(at, lanes);
            }
}

/* One rank with all lanes makes the whole total, with one addition less than there are lanes with samples. */
static void one_rank_makes_the_total(void **state) {
    (void)state;
    for (int lanes = 1; lanes <= MOST_LANES; lanes *= 2)
        for (int64_t samples = 0; samples <= 2 * lanes + 1; samples++) {
            int full = 0;
            for (int i = 0; i < lanes; i++) full += samples_in(lanes, samples, i) > 0;
            assert_int_equal(check_rank(lanes, 0, lanes, samples), full ? full - 1 : 0);
        }
}

static void lanes_share_the_samples(void **state) {
    (void)state;
    for (int lanes = 1; lanes <= MOST_LANES; lanes *= 2)
        for (int64_t samples = 0; samples <= 2 * lanes + 1; samples++) {
            assert_int_equal(clt_lane_sample_begin(samples, lanes, 0), 0);
            assert_int_equal(clt_lane_sample_begin(samples, lanes, lanes), samples);
            for (int i = 0; i < lanes; i++) {
                int64_t n =
                    clt_lane_sample_begin(samples, lanes, i + 1) - clt_lane_sample_begin(samples, lanes, i);
                assert_int_equal(n, samples_in(lanes, samples, i));
                assert_true(n == samples / lanes || n == samples / lanes + 1);
            }
        }
    assert_int_equal(clt_lane_sample_begin((int64_t)1 << 40, 8, 7), 7 * ((int64_t)1 << 37));
}

/* Slabs that were planned for full batches do for the last one of an epoch, and there are few of them. */
static void short_batches_fit(void **state) {
    (void)state;
    for (int lanes = 1, log2 = 0; lanes <= MOST_LANES; lanes *= 2, log2++)
        for (int first = 0; first < lanes; first++)
            for (int last = first + 1; last <= lanes; last++)
                for (int64_t samples = 1, before = 1; samples <= 2 * lanes + 1; samples++) {
                    int need = clt_lane_slabs_needed(lanes, first, last, samples);
                    assert_true(need >= before);
                    assert_true(need <= 2 * log2 + 1);
                    if (first == 0 && last == lanes && samples >= lanes) assert_int_equal(need, 1 + log2);
                    before = need;
                }
}

/* The smallest time of the slowest rank over every division of `left` lanes among the ranks from `at` on. */
static double best_time(int ranks, int at, int left, const double *speed) {
    double best = INFINITY;
    if (at == ranks - 1) return left / speed[at];
    for (int n = 1; n <= left - (ranks - 1 - at); n++)
        best = fmin(best, fmax(n / speed[at], best_time(ranks, at + 1, left - n, speed)));
    return best;
}

static void lanes_by_speed_are_the_best_division(void **state) {
    (void)state;
    enum { RANKS = 4, LANES = 16 };
    static const double speeds[][RANKS] = {{1, 1, 1, 1},           {1, 2, 4, 8},     {1000, 1, 1, 3},
                                           {0.3, 0.31, 0.29, 0.3}, {5, 3, 2, 0.001}, {7, 1, 7, 2}};
    for (size_t i = 0; i < CLT_COUNT_OF(speeds); i++)
        for (int ranks = 1; ranks <= RANKS; ranks++)
            for (int lanes = 4; lanes <= LANES; lanes *= 2) {
                int count[RANKS], sum = 0;
                double slowest = 0;
                clt_lane_counts_by_speed(lanes, ranks, speeds[i], count);
                for (int r = 0; r < ranks; r++) {
                    assert_true(count[r] >= 1);
                    slowest = fmax(slowest, count[r] / speeds[i][r]);
                    sum += count[r];
                }
                assert_int_equal(sum, lanes);
                assert_true(slowest <= best_time(ranks, 0, lanes, speeds[i]));
                const clt_lane_split s = {lanes, ranks, count};
                assert_int_equal(clt_lane_begin(&s, 0), 0);
                assert_int_equal(clt_lane_begin(&s, ranks), lanes);
                assert_int_equal(clt_lane_begin(&s, 1), count[0]);
            }
}

/* With one lane in a round the ones of a binary number; with several, what their carries leave. */
static void sums_wait_between_rounds(void **state) {
    (void)state;
    static const int three[] = {3, 3, 2}, fast[] = {7, 1};
    static const struct {
        clt_lane_split split;
        int levels, kept[9]; /* after 0, 1, ... rounds */
    } all[] = {{{8, 1, NULL, true, false}, 3, {0, 1, 1, 2, 1, 2, 2, 3, 1}},
               {{8, 2, NULL, true, false}, 2, {0, 1, 1, 2, 1}},
               {{8, 4, NULL, true, false}, 1, {0, 1, 1}},
               {{8, 8, NULL, true, false}, 1, {0, 1}},
               {{8, 3, three, true, false}, 2, {0, 2, 2, 1}},            /* 2 1, 4 2, 8 */
               {{8, 2, fast, true, false}, 3, {0, 1, 2, 1, 2, 2, 3, 1}}, /* 2, 2 1, 4, 4 1, 4 2, 4 2 1, 8 */
               {{8, 2, NULL, true, true}, 1, {0, 1, 1, 1, 1}},
               {{8, 2, NULL, false, false}, 1, {0, 1}}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        const clt_lane_split *s = &all[i].split;
        assert_int_equal(clt_reduce_levels(s), all[i].levels);
        for (int r = 0; r <= (s->dealt ? clt_lane_rounds(s) : 1); r++)
            assert_int_equal(clt_reduce_kept(s, r), all[i].kept[r]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_wait_between_rounds),
        cmocka_unit_test(order_and_slabs),
        cmocka_unit_test(one_rank_makes_the_total),
        cmocka_unit_test(lanes_share_the_samples),
        cmocka_unit_test(lanes_by_speed_are_the_best_division),
        cmocka_unit_test(short_batches_fit),

    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
