/* LAMB over pieces of the slab: every variant on every device gives the oracle's words, and the oracle
 * follows the formula in double. Several tensors: one of two chunks, the others in the second of them. */
#include "test/test_util.h"

#include <math.h>
#include <string.h>

#include "runtime/device/clt_slab.h"
#include "runtime/ops/ref/clt_ref.h"

enum {
    CHUNKS = 2,
    N = CHUNKS * CLT_CHUNK,
    BLOCK = 64,
    GROUPS = 5,
    TENSORS = 6,
    SEGMENTS = 7,
    FIRST_BLOCK = 1024
};

/* The stretch begins with chunk 1 of the slab. */
static const struct {
    int64_t first, count;
    int group;
} tensor[TENSORS] = {{0, CLT_CHUNK + 1000, 0},  {CLT_CHUNK + 1024, 100, 1}, {CLT_CHUNK + 1152, 64, 0},
                     {CLT_CHUNK + 1216, 65, 2}, {CLT_CHUNK + 1344, 64, 3},  {CLT_CHUNK + 1408, 60, 4}};
static const uint32_t segment[SEGMENTS][2] = {
    {FIRST_BLOCK, CLT_CHUNK}, {FIRST_BLOCK + 1024, 1000}, {FIRST_BLOCK + 1040, 100}, {FIRST_BLOCK + 1042, 64},
    {FIRST_BLOCK + 1043, 65}, {FIRST_BLOCK + 1045, 64},   {FIRST_BLOCK + 1046, 60}};
static const uint32_t segments_of[TENSORS][4] = {{0, 2, 0, 0},    {2, 3, 1040, 0}, {3, 4, 1042, 0},
                                                 {4, 5, 1043, 0}, {5, 6, 1045, 0}, {6, 7, 1046, 0}};
static const uint32_t place[SEGMENTS] = {4, 0, 2, 1, 3, 6, 5};

/* Group 1 has no decay, 2 is frozen; 3 and 4 have limits of their ratios, which are above and below them. */
static void make_groups(clt_optimizer_group g[GROUPS]) {
    for (int i = 0; i < GROUPS; i++)
        g[i] = (clt_optimizer_group){.lr = 2e-3f,
                                     .step_size = (float)(1 / (1 - pow(0.9, 3))),
                                     .bias_correction = (float)sqrt(1 - pow(0.99, 3)),
                                     .beta1 = 0.9f,
                                     .beta2 = 0.99f,
                                     .one_minus_beta1 = (float)(1 - 0.9),
                                     .one_minus_beta2 = (float)(1 - 0.99),
                                     .eps = 1e-6f,
                                     .l2 = i == 1 ? 0.0f : 0.02f,
                                     .frozen = i == 2 ? 1.0f : 0.0f};
    g[3].l2 = 0.0f;
    g[3].least_ratio = 1e-3f;
    g[3].most_ratio = 2e-3f;
    g[4].least_ratio = 1e3f;
    g[4].most_ratio = 2e3f;
}

typedef struct {
    float *p, *g, *m, *v;
} state;

static state make_state(void) {
    state s = {tu_random(N, 2, 1.0f), tu_random(N, 4, 1e-2f), tu_random(N, 6, 1e-2f), tu_random(N, 8, 1e-3f)};
    for (int i = 0; i < N; i++) s.v[i] = fabsf(s.v[i]);
    return s;
}

static void free_state(state *s) {
    clt_free(s->p), clt_free(s->g), clt_free(s->m), clt_free(s->v);
}

/* The oracle's step of everything; elements of no tensor belong to group 0 and tensor 0. */
static void oracle(state *s, const clt_optimizer_group *group, float clip, float ratio[TENSORS]) {
    for (int b = 0; b < N / BLOCK; b++) {
        int of = 0;
        for (int t = 0; t < TENSORS; t++)
            if (b >= tensor[t].first / BLOCK && b <= (tensor[t].first + tensor[t].count - 1) / BLOCK) of = t;
        const size_t at = (size_t)b * BLOCK;
        clt_ref_lamb_direction(BLOCK, s->p + at, s->g + at, s->m + at, s->v + at, &group[tensor[of].group],
                               clip);
    }
    for (int t = 0; t < TENSORS; t++) {
        float sums[2][2] = {{0}};
        const uint32_t first = segments_of[t][0], n = segments_of[t][1] - first;
        for (uint32_t k = 0; k < n; k++) {
            const size_t at = (size_t)(segment[first + k][0] - FIRST_BLOCK) * BLOCK;
            sums[0][k] = clt_ref_row_sumsq(s->p + at, segment[first + k][1]);
            sums[1][k] = clt_ref_row_sumsq(s->g + at, segment[first + k][1]);
        }
        ratio[t] = clt_ref_lamb_ratio(n, sums[0], sums[1], &group[tensor[t].group]);
    }
    for (int b = 0; b < N / BLOCK; b++) {
        int of = 0;
        for (int t = 0; t < TENSORS; t++)
            if (b >= tensor[t].first / BLOCK && b <= (tensor[t].first + tensor[t].count - 1) / BLOCK) of = t;
        const size_t at = (size_t)b * BLOCK;
        clt_ref_lamb_apply(BLOCK, s->p + at, s->g + at, &group[tensor[of].group], ratio[of]);
    }
}

static void blocks(uint8_t *group_of, uint16_t *tensor_of) {
    for (int t = 0; t < TENSORS; t++)
        for (int64_t b = tensor[t].first / BLOCK; b <= (tensor[t].first + tensor[t].count - 1) / BLOCK; b++) {
            group_of[b] = (uint8_t)tensor[t].group;
            tensor_of[b] = (uint16_t)t;
        }
}

static void lamb_case(int d, float flag, int copy_type) {
    state s = make_state();
    clt_optimizer_group group[GROUPS];
    uint8_t group_of[N / BLOCK] = {0};
    uint16_t tensor_of[N / BLOCK] = {0};
    const float status[3] = {2.5f, 0.37f, flag};
    float ratio[TENSORS], *copy = tu_random(N, 13, 1.0f);
    make_groups(group);
    blocks(group_of, tensor_of);
    enum { EVEN = 64 }; /* vectors of two and four words need their alignment */
    const clt_ref bytes = tu_upload_at(d, group_of, N / BLOCK / 4, TU_OFFSET),
                  shorts = tu_upload_at(d, tensor_of, N / BLOCK / 2, TU_OFFSET),
                  pairs = tu_upload_at(d, segment, 2 * SEGMENTS, EVEN),
                  fours = tu_upload_at(d, segments_of, 4 * TENSORS, EVEN);
    clt_optimizer_params p = {.chunks = CHUNKS,
                              .p = tu_upload(d, s.p, N),
                              .g = tu_upload(d, s.g, N),
                              .m = tu_upload(d, s.m, N),
                              .v = tu_upload(d, s.v, N),
                              .groups = tu_upload(d, (float *)group, GROUPS * sizeof *group / 4),
                              .group_of_block = {bytes.buf, bytes.off * 4},
                              .status = tu_upload(d, status, 3)};
    if (copy_type >= 0)
        p.copy = clt_tensor_vector(tu_upload_rounded(d, (clt_dtype)copy_type, copy, N), (clt_dtype)copy_type);
    clt_segment_sumsq_params sums = {.n = SEGMENTS,
                                     .segment = {pairs.buf, pairs.off / 2},
                                     .place = tu_upload_i32(d, (const int32_t *)place, SEGMENTS),
                                     .first_block = FIRST_BLOCK};
    const clt_lamb_ratios_params r = {.tensors = TENSORS,
                                      .tensor = {fours.buf, fours.off / 4},
                                      .place = sums.place,
                                      .weights = tu_blank(d, SEGMENTS),
                                      .directions = tu_blank(d, SEGMENTS),
                                      .groups = p.groups,
                                      .group_of_block = p.group_of_block,
                                      .ratio = tu_blank(d, TENSORS)};
    tu_assert_ok(clt_op_lamb_direction(tu_ops(d), &p), "direction");
    for (int i = 0; i < 2; i++) {
        sums.x = i ? p.g : p.p;
        sums.out = i ? r.directions : r.weights;
        tu_assert_ok(clt_op_segment_sumsq(tu_ops(d), &sums), "sums");
    }
    tu_assert_ok(clt_op_lamb_ratios(tu_ops(d), &r), "ratios");
    tu_assert_ok(clt_op_lamb_apply(tu_ops(d), &p, (clt_ref){shorts.buf, shorts.off * 2}, r.ratio), "step");
    if (flag == 1.0f) oracle(&s, group, status[1], ratio);
    if (flag == 1.0f) assert_true(ratio[4] == 2e-3f && ratio[5] == 1e3f);
    if (flag == 1.0f) tu_assert_words("ratios", tu_download(r.ratio, TENSORS), ratio, TENSORS);
    tu_assert_words("weights", tu_download(p.p, N), s.p, N);
    tu_assert_words("directions", tu_download(p.g, N), s.g, N);
    tu_assert_words("first moments", tu_download(p.m, N), s.m, N);
    tu_assert_words("second moments", tu_download(p.v, N), s.v, N);
    if (copy_type >= 0) {
        float *want = flag == 1.0f ? s.p : copy;
        clt_ref_round((clt_dtype)copy_type, want, N);
        tu_assert_words("copy", tu_download_as(p.copy.ref, (clt_dtype)copy_type, N), want, N);
    }
    free_state(&s);
    clt_free(copy);
    tu_release();
}

static void each(int d, const char *id) {
    (void)id;
    lamb_case(d, 1.0f, CLT_BF16);
    if (tu_tiny()) return;
    lamb_case(d, 1.0f, -1);
    lamb_case(d, 0.0f, CLT_BF16);
    lamb_case(d, 1.0f, CLT_F16);
}

static void lamb_gives_the_oracles_words(void **state_) {
    (void)state_;
    tu_each_variant("lamb", each);
}

/* One tensor of 1000 elements in double. */
static void oracle_follows_the_formula(void **state_) {
    (void)state_;
    enum { COUNT = 1000 };
    clt_optimizer_group group[GROUPS];
    state s = make_state();
    double want[COUNT], u[COUNT], pp = 0, uu = 0;
    make_groups(group);
    for (int i = 0; i < COUNT; i++) {
        const double g = (double)s.g[i] * 0.37, m = 0.9 * (double)s.m[i] + 0.1 * g,
                     v = 0.99 * (double)s.v[i] + 0.01 * g * g;
        u[i] = m / (1 - pow(0.9, 3)) / (sqrt(v / (1 - pow(0.99, 3))) + 1e-6) + 0.02 * (double)s.p[i];
        pp += (double)s.p[i] * (double)s.p[i];
        uu += u[i] * u[i];
    }
    for (int i = 0; i < COUNT; i++) want[i] = (double)s.p[i] - 2e-3 * sqrt(pp / uu) * u[i];
    clt_ref_lamb_direction(COUNT, s.p, s.g, s.m, s.v, &group[0], 0.37f);
    const float p = clt_ref_row_sumsq(s.p, COUNT), q = clt_ref_row_sumsq(s.g, COUNT);
    clt_ref_lamb_apply(COUNT, s.p, s.g, &group[0], clt_ref_lamb_ratio(1, &p, &q, &group[0]));
    tu_assert_close("weights", s.p, want, COUNT, 5e-7);
    assert_true(clt_ref_lamb_ratio(1, &p, &q, &group[1]) == 1.0f); /* no decay */
    free_state(&s);
}

/* A limited ratio needs no decay. */
static void limits_hold(void **state_) {
    (void)state_;
    const clt_optimizer_group none = {0}, limited = {.least_ratio = 0.01f, .most_ratio = 10.0f};
    static const struct {
        float p, u, want;
    } cases[] = {{4, 1, 2}, {1e6f, 1, 10}, {1, 1e6f, 0.01f}, {0, 1, 1}, {1, 0, 1}};
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        assert_true(clt_ref_lamb_ratio(1, &cases[i].p, &cases[i].u, &limited) == cases[i].want);
        assert_true(clt_ref_lamb_ratio(1, &cases[i].p, &cases[i].u, &none) == 1.0f);
    }
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(oracle_follows_the_formula),
                                       cmocka_unit_test(limits_hold),
                                       cmocka_unit_test(lamb_gives_the_oracles_words)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
