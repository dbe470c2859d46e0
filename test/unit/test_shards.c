/* Who owns which part of a slab: borders, balance, weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "runtime/device/clt_shards.h"
#include "test/config_util.h"

/* --- the rules, checked one border at a time --- */

/* Whether a border may lie at element x: at a chunk border, outside of every tensor or between two of its
 * checkpoint chunks. The end of the table is a border in any case. */
static bool may_cut(const clt_slab_table *t, uint64_t x) {
    for (int e = 0; e < t->n; e++) {
        const clt_slab_entry *n = &t->entry[e];
        if (n->offset < x && x < n->offset + n->count && (x - n->offset) % CLT_CKPT_CHUNK) return false;
    }
    return x % CLT_CHUNK == 0 || x == t->total;
}

/* The largest distance between two neighbouring places for a border, and the number of such stretches. */
static uint64_t largest_atom(const clt_slab_table *t, size_t *n) {
    uint64_t last = 0, most = 0;
    *n = 0;
    for (uint64_t x = CLT_CHUNK; x <= t->total; x += CLT_CHUNK) {
        if (!may_cut(t, x)) continue;
        most = CLT_MAX(most, x - last);
        last = x;
        ++*n;
    }
    assert_int_equal(last, t->total);
    return most;
}

static size_t atoms_in(const clt_slab_table *t, clt_slab_range x) {
    size_t n = 0;
    for (uint64_t at = x.first + CLT_CHUNK; at <= x.first + x.count; at += CLT_CHUNK) n += may_cut(t, at);
    return n;
}

static void check_rules(const clt_slab_table *t, const clt_shards *s, int ranks) {
    const size_t borders = (size_t)s->buckets * (size_t)ranks;
    assert_int_equal(s->ranks, ranks);
    assert_true(s->buckets > 0);
    assert_int_equal(s->border[0], 0);
    assert_int_equal(s->border[borders], t->total);
    for (size_t i = 0; i < borders; i++) {
        assert_true(s->border[i] <= s->border[i + 1]);
        if (s->border[i] != s->border[i + 1]) assert_true(may_cut(t, s->border[i + 1]));
    }
    uint64_t sum = 0;
    for (int r = 0; r < ranks; r++) sum += clt_shards_owned(s, r);
    assert_int_equal(sum, t->total);
    for (int b = 0; b < s->buckets - 1; b++) {
        const clt_slab_range x = clt_shards_bucket(s, b);
        assert_true(x.count >= (uint64_t)CLT_BUCKET_MIN_CHUNKS * CLT_CHUNK);
        assert_true(atoms_in(t, x) >= (size_t)ranks);
    }
}

/* owner, range and has agree with the borders. */
static void check_questions(const clt_shards *s) {
    for (int b = 0; b < s->buckets; b++)
        for (int r = 0; r < s->ranks; r++) {
            const clt_slab_range x = clt_shards_range(s, b, r);
            assert_int_equal(x.first, s->border[b * s->ranks + r]);
            if (x.count == 0) continue;
            assert_int_equal(clt_shards_owner(s, x.first), r);
            assert_int_equal(clt_shards_owner(s, x.first + x.count - 1), r);
            assert_true(clt_shards_has(s, r, x.first, x.count));
            assert_true(clt_shards_has(s, r, x.first + 1, x.count - 1));
            assert_false(clt_shards_has(s, (r + 1) % s->ranks, x.first + x.count - 1, 1) && s->ranks > 1);
            const uint64_t end = x.first + x.count;
            if (end < s->border[s->buckets * s->ranks] && clt_shards_owner(s, end) != r)
                assert_false(clt_shards_has(s, r, x.first, x.count + 1));
        }
}

/* --- the models --- */

static const char *const presets[] = {"small-cpu", "125m", "1b", "7b", "13b"};

static void preset_table(const char *name, clt_slab_table *t) {
    char *path = clt_format("tools/presets/mpt-%s.yaml", name);
    clt_config *c = cu_load(path);
    assert_int_equal(clt_model_table(c->model, t), CLT_OK);
    clt_config_free(c);
    clt_free(path);
}

/* No rank has more than its share and an atom. With many atoms a rank that is a few percent at most, and the
 * same bound holds below the share. */
static void check_balance(const clt_slab_table *t, const clt_shards *s, const double *share) {
    size_t n;
    const double atom = (double)largest_atom(t, &n);
    for (int r = 0; r < s->ranks; r++) {
        const double ideal = share[r] * (double)t->total, owned = (double)clt_shards_owned(s, r);
        assert_true(owned <= ideal + atom);
        if (ideal >= 50 * atom) assert_true(fabs(owned - ideal) <= 0.02 * ideal);
    }
}

static void models_are_balanced(void **state) {
    (void)state;
    static const int ranks[] = {1, 2, 3, 4, 8, 64};
    for (size_t p = 0; p < CLT_COUNT_OF(presets); p++) {
        clt_slab_table t = {0};
        preset_table(presets[p], &t);
        for (size_t i = 0; i < CLT_COUNT_OF(ranks); i++) {
            clt_shards s;
            double share[64];
            for (int r = 0; r < ranks[i]; r++) share[r] = 1.0 / ranks[i];
            assert_int_equal(clt_shards_create(&t, ranks[i], NULL, &s), CLT_OK);
            check_rules(&t, &s, ranks[i]);
            check_questions(&s);
            check_balance(&t, &s, share);
            /* The same for weights that are all equal. */
            clt_shards same;
            assert_int_equal(clt_shards_create(&t, ranks[i], share, &same), CLT_OK);
            assert_int_equal(same.buckets, s.buckets);
            clt_shards_free(&same);
            clt_shards_free(&s);
        }
        clt_slab_table_free(&t);
    }
}

/* Buckets grow with the model, and there are hundreds of them at most. */
static void buckets_grow(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int ranks, least, most; /* buckets */
    } want[] = {{"125m", 2, 20, 32}, {"1b", 2, 100, 160}, {"7b", 8, 300, 430}, {"7b", 64, 80, 120}};
    for (size_t i = 0; i < CLT_COUNT_OF(want); i++) {
        clt_slab_table t = {0};
        clt_shards s;
        preset_table(want[i].name, &t);
        assert_int_equal(clt_shards_create(&t, want[i].ranks, NULL, &s), CLT_OK);
        assert_in_range(s.buckets, want[i].least, want[i].most);
        clt_shards_free(&s);
        clt_slab_table_free(&t);
    }
}

static void weights_count(void **state) {
    (void)state;
    static const double weight[][4] = {{1, 3, 2, 2}, {5, 0, 0.5, 1e-3}, {0, 0, 0, 7}, {1e300, 1e300, 0, 1}};
    clt_slab_table t = {0};
    preset_table("1b", &t);
    for (size_t i = 0; i < CLT_COUNT_OF(weight); i++) {
        clt_shards s;
        double share[4], sum = 0;
        for (int r = 0; r < 4; r++) sum += weight[i][r];
        for (int r = 0; r < 4; r++) share[r] = weight[i][r] / sum;
        assert_int_equal(clt_shards_create(&t, 4, weight[i], &s), CLT_OK);
        check_rules(&t, &s, 4);
        check_questions(&s);
        check_balance(&t, &s, share);
        for (int r = 0; r < 4; r++)
            if (weight[i][r] == 0) assert_int_equal(clt_shards_owned(&s, r), 0);
        clt_shards_free(&s);
    }
    clt_slab_table_free(&t);
}

/* --- small tables, by hand --- */

static void add(clt_slab_table *t, int64_t count) {
    clt_slab_table_add(t, "tensor", 1, &count);
}

/* Chunk borders inside a small tensor, and those inside a checkpoint chunk, are no borders of ranges. */
static void borders_by_hand(void **state) {
    (void)state;
    clt_slab_table t = {0};
    clt_shards s;
    add(&t, 65000);                      /* chunk 0 */
    add(&t, 65000);                      /* chunks 0 and 1 */
    add(&t, 100);                        /* chunk 1 */
    add(&t, 17 * (int64_t)CLT_CHUNK);    /* chunks 2 ... 17, 18 */
    add(&t, 5 * (int64_t)CLT_CHUNK + 1); /* chunks 19 ... 24 */
    clt_slab_table_finish(&t);
    static const uint64_t chunk[] = {0, 2, 18, 19, 25};
    assert_int_equal(clt_shards_create(&t, 4, (double[]){2, 16, 1, 6}, &s), CLT_OK);
    assert_int_equal(s.buckets, 1);
    for (int i = 0; i <= 4; i++) assert_int_equal(s.border[i], chunk[i] * CLT_CHUNK);
    check_questions(&s);
    assert_true(clt_shards_has(&s, 1, 0, 0));
    clt_shards_free(&s);
    /* Two ranks: the border nearest to the middle. */
    assert_int_equal(clt_shards_create(&t, 2, NULL, &s), CLT_OK);
    assert_int_equal(s.border[1], 18 * CLT_CHUNK);
    clt_shards_free(&s);
    clt_slab_table_free(&t);
}

/* One chunk for many ranks: one of them owns it, the others nothing. */
static void more_ranks_than_atoms(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 9; ranks += 4) {
        clt_slab_table t = {0};
        clt_shards s;
        int owners = 0;
        add(&t, 10);
        clt_slab_table_finish(&t);
        assert_int_equal(clt_shards_create(&t, ranks, NULL, &s), CLT_OK);
        assert_int_equal(s.buckets, 1);
        check_rules(&t, &s, ranks);
        check_questions(&s);
        for (int r = 0; r < ranks; r++) owners += clt_shards_owned(&s, r) == CLT_CHUNK;
        assert_int_equal(owners, 1);
        clt_shards_free(&s);
        clt_slab_table_free(&t);
    }
}

/* Tables that are not finished: the last border is their end, and the others are chunk borders. */
static void totals_of_any_size(void **state) {
    (void)state;
    static const uint64_t totals[] = {1,
                                      2,
                                      CLT_CHUNK - 1,
                                      CLT_CHUNK + 1,
                                      3 * CLT_CHUNK - 1,
                                      (uint64_t)CLT_BUCKET_MIN_CHUNKS * CLT_CHUNK + 1,
                                      (uint64_t)200 * CLT_CHUNK + 5};
    for (size_t i = 0; i < CLT_COUNT_OF(totals); i++)
        for (int ranks = 1; ranks <= 4; ranks++) {
            clt_slab_table t = {0};
            clt_shards s;
            for (uint64_t at = 0; at < totals[i]; at += CLT_CHUNK)
                add(&t, (int64_t)CLT_MIN(totals[i] - at, (uint64_t)CLT_CHUNK));
            t.total = totals[i];
            assert_int_equal(clt_shards_create(&t, ranks, NULL, &s), CLT_OK);
            check_rules(&t, &s, ranks);
            check_questions(&s);
            for (int r = 0; r < ranks; r++)
                assert_true(clt_shards_owned(&s, r) <= totals[i] / (uint64_t)ranks + CLT_CHUNK);
            clt_shards_free(&s);
            clt_slab_table_free(&t);
        }
}

/* Of groups of 1, 2, 3 and 6 of 6 ranks: rank k of a group has exactly what all ranks with its number own. */
static void groups_of_ranks(void **state) {
    (void)state;
    enum { RANKS = 6 };
    clt_slab_table t = {0};
    clt_shards s;
    preset_table("125m", &t);
    assert_int_equal(clt_shards_create(&t, RANKS, NULL, &s), CLT_OK);
    for (int group = 1; group <= RANKS; group++) {
        if (RANKS % group) continue;
        const clt_shards keep = clt_shards_of_group(&s, group);
        assert_int_equal(keep.ranks, group);
        check_questions(&keep);
        for (int b = 0; b < s.buckets; b++)
            for (int r = 0; r < RANKS; r++) {
                const clt_slab_range own = clt_shards_range(&s, b, r);
                for (int k = 0; k < group && own.count; k++)
                    assert_int_equal(clt_shards_has(&keep, k, own.first, own.count), k == r % group);
            }
        uint64_t sum = 0;
        for (int k = 0; k < group; k++) sum += clt_shards_owned(&keep, k);
        assert_int_equal(sum, t.total);
    }
    clt_shards_free(&s);
    clt_slab_table_free(&t);
}

static void refused(void **state) {
    (void)state;
    clt_slab_table empty = {0}, t = {0};
    clt_shards s;
    add(&t, 10);
    clt_slab_table_finish(&t);
    clt_error_quiet(true);
    assert_int_equal(clt_shards_create(&empty, 1, NULL, &s), CLT_FAIL);
    assert_int_equal(clt_shards_create(&t, 0, NULL, &s), CLT_FAIL);
    assert_int_equal(clt_shards_create(&t, 2, (double[]){1, -1}, &s), CLT_FAIL);
    assert_int_equal(clt_shards_create(&t, 2, (double[]){1, NAN}, &s), CLT_FAIL);
    assert_int_equal(clt_shards_create(&t, 2, (double[]){1, INFINITY}, &s), CLT_FAIL);
    assert_int_equal(clt_shards_create(&t, 2, (double[]){0, 0}, &s), CLT_FAIL);
    clt_error_quiet(false);
    clt_slab_table_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_are_balanced), cmocka_unit_test(buckets_grow),
        cmocka_unit_test(weights_count),       cmocka_unit_test(groups_of_ranks),
        cmocka_unit_test(borders_by_hand),     cmocka_unit_test(more_ranks_than_atoms),
        cmocka_unit_test(totals_of_any_size),  cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests_name("shards", tests, NULL, NULL);
}
