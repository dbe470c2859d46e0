/* Attention in 8-bit blocks: every body on every device against the oracle, to the last bit; the oracle
 * against the formula in double. */
#include <math.h>
#include <string.h>

#include "runtime/ops/clt_op_attention8_internal.h"
#include "test/attention_util.h"

#include "runtime/ops/ref/clt_clc.h"
#include "clkernels/attention8/attention8_math.clh"

typedef attention_shape shape;
typedef attention_problem problem;
typedef attention_uploaded uploaded;

/* `rows` as in test_attention.c. */
static const shape cases[] = {
    {1, 1, 1, 1, 4},
    {2, 7, 2, 2, 4, .rows = 32},
    {1, 66, 1, 1, 5},
    {2, 127, 4, 2, 64, .fused = true, .rows = 64},
    {1, 192, 2, 2, 64, .fused = true, .rows = 64},
    {1, 200, 4, 1, 64, .accumulate = true, .rows = 64},
    {1, 70, 2, 1, 64, .extreme = true, .rows = 64},
    {1, 130, 2, 1, 64, .amplitude = 40.0f, .rows = 64},
    {1, 129, 2, 2, 80},
    {1, 192, 2, 2, 128, .fused = true, .type = CLT_BF16, .rows = 32},
    {1, 70, 2, 1, 201, .type = CLT_BF16, .alibi = true, .ids = true, .accumulate = true},
    {1, 66, 1, 1, 256},
    {2, 150, 2, 1, 16, .window = 34},
    {1, 200, 2, 1, 16, .window = 1},
    {1, 300, 1, 1, 16, .window = 130, .accumulate = true},
    {2, 321, 2, 1, 59, .alibi = true, .fused = true, .rows = -1},
    {2, 390, 4, 2, 128, .type = CLT_BF16, .alibi = true, .accumulate = true, .rows = -1},
    {2, 131, 2, 1, 16, .dropout = 0.25f, .rows = -1},
    {2, 150, 4, 2, 16, .alibi = true, .softcap = 1.5f, .window = 71, .ids = true, .dropout = 0.1f,
     .fused = true, .accumulate = true},
    {1, 130, 4, 1, 64, .type = CLT_BF16, .fused = true, .rows = 64},
    {1, 70, 2, 1, 64, .type = CLT_BF16, .extreme = true, .rows = 64},
    {1, 65, 3, 3, 24, .type = CLT_F16},
    {2, 65, 3, 3, 24, .unmasked = true},
    {1, 197, 4, 2, 64, .unmasked = true, .fused = true, .rows = 64},
    {2, 150, 4, 2, 16, .unmasked = true, .alibi = true, .softcap = 1.5f, .window = 41, .ids = true,
     .dropout = 0.1f, .fused = true, .accumulate = true},
    {1, 150, 2, 2, 16, .unmasked = true, .window = 500},
    {1, 300, 1, 1, 16, .unmasked = true, .window = 71, .accumulate = true},
};
/* Options that other cases have together with others, and more head sizes: only with TEST_COMPLETE, since
 * most of the time is the compilers'. */
static const shape more_cases[] = {
    {2, 150, 3, 1, 16, .alibi = true, .fused = true, .rows = -1},
    {2, 150, 2, 2, 16, .softcap = 2.5f, .ids = true, .rows = -1},
    {1, 129, 1, 1, 104, .type = CLT_F16, .rows = -1},
};
/* Three blocks of rows with one head, two with several: an interpreter's time grows with pairs of rows. */
static const shape tiny_cases[] = {
    {1, 1, 1, 1, 4},
    {1, 67, 1, 1, 4, .fused = true, .accumulate = true},
    {1, 35, 2, 1, 4, .alibi = true, .softcap = 1.5f, .window = 17, .ids = true, .dropout = 0.1f,
     .fused = true},
    {1, 67, 1, 1, 4, .unmasked = true, .type = CLT_BF16, .window = 31, .fused = true, .accumulate = true},
};

enum { RANDOM = 2000, MOST = CLT_MAX(CLT_COUNT_OF(cases) + CLT_COUNT_OF(more_cases), RANDOM) };
static shape drawn[RANDOM];   /* --random: shapes for rows of matrix units, which `rows` says */
static problem *solved[MOST]; /* starts with the start values; the oracle overwrites them */
static problem *fresh[MOST];
static size_t n_cases;

static size_t count_cases(void) {
    if (tu_random_cases()) return (size_t)CLT_MIN(tu_random_cases(), RANDOM);
    return tu_tiny()       ? CLT_COUNT_OF(tiny_cases)
           : tu_complete() ? CLT_COUNT_OF(cases) + CLT_COUNT_OF(more_cases)
                           : CLT_COUNT_OF(cases);
}

static const shape *get_case(size_t c) {
    if (tu_random_cases()) {
        drawn[c] = attention_shape_draw(800000);
        drawn[c].rows = -1;
        return &drawn[c];
    }
    return tu_tiny()                 ? &tiny_cases[c]
           : c < CLT_COUNT_OF(cases) ? &cases[c]
                                     : &more_cases[c - CLT_COUNT_OF(cases)];
}

static void solve_all(void) {
    n_cases = count_cases();
    for (size_t c = 0; c < n_cases && !solved[c]; c++) {
        const shape *s = get_case(c);
        fresh[c] = attention_problem_create(s, 50 * c + 1);
        solved[c] = attention_problem_create(s, 50 * c + 1);
        clt_ref_attention8_forward(&solved[c]->p);
        attention_problem_round(solved[c]); /* the stored output, which the backward pass reads */
        clt_ref_attention8_backward(&solved[c]->p);
        attention_problem_round(solved[c]);
    }
}

static const clt_variant *row_of(int device, const char *table, const char *id) {
    int n = 0;
    const clt_variant *v = clt_ops_variants(tu_ops(device), table, &n);
    while (n > 0 && strcmp(v->id, id) != 0) v++, n--;
    assert_true(n > 0);
    return v;
}

/* Forces the row's partner in the backward table, if it supports the call. */
static void force_backward(int device, const char *id, const clt_attention_grad_params *g) {
    static const char table[] = "attention8_backward";
    const bool takes = clt_attention8_takes_backward(row_of(device, table, id), g);
    tu_assert_ok(clt_variant_force(tu_ops(device), table, takes ? id : NULL), "clt_variant_force");
}

/* Whether the row supports the case, which it then passed. */
static bool run_case(int device, const char *id, size_t c) {
    static const char *const name[] = {"dq", "dk", "dv"};
    const problem *x = solved[c];
    uploaded u = attention_upload(device, fresh[c]);
    char what[160];
    if (!clt_attention8_takes_forward(row_of(device, "attention8", id), &u.g.fwd)) {
        tu_release();
        return false;
    }
    tu_next_case();
    force_backward(device, id, &u.g);
    snprintf(what, sizeof what, "%s, case %zu, B%d T%d H%d/%d D%d: o", id, c, (int)x->s.batch, (int)x->s.seq,
             (int)x->s.heads, (int)x->s.kv_heads, (int)x->s.head_dim);
    tu_say_random(what);
    tu_assert_ok(clt_op_attention8_forward(tu_ops(device), &u.g.fwd), "forward");
    tu_assert_words(what, tu_download_as(u.o, x->s.type, x->n_o), x->o, x->n_o);
    snprintf(what, sizeof what, "%s, case %zu: lse", id, c);
    tu_assert_words(what, tu_download(u.lse, x->n_lse), x->lse, x->n_lse);
    tu_assert_ok(clt_op_attention8_backward(tu_ops(device), &u.g), "backward");
    for (int i = 0; i < (x->s.fused ? 1 : 3); i++) {
        snprintf(what, sizeof what, "%s, case %zu: %s", id, c, x->s.fused ? "dqkv" : name[i]);
        tu_assert_words(what, tu_download_as(u.dqkv[i], x->s.type, x->n_qkv[i]), x->dqkv[i], x->n_qkv[i]);
    }
    tu_release();
    return true;
}

static bool wanted(const char *id, const shape *s) {
    if (tu_tiny()) return true;
    if (!strcmp(id, "group_64")) return s->rows == 64;
    if (!strcmp(id, "group_32")) return s->rows == 32;
    return (strcmp(id, "portable") != 0 && strcmp(id, "long_32") != 0) || s->rows == 0;
}

/* A second CPU takes every sixth case; rows that a CPU does not use by default take every third one. */
static void run_variant(int device, const char *id) {
    const size_t step = tu_tiny() ? 1 : tu_second_cpu() ? 6 : tu_brief() ? 3 : 1;
    int n = 0;
    for (size_t c = 0; c < n_cases; c += step)
        if (wanted(id, &solved[c]->s)) n += run_case(device, id, c);
    tu_assert_ok(clt_variant_force(tu_ops(device), "attention8_backward", NULL), "clt_variant_force");
    assert_true(n > 0 || step > 1 || tu_tiny() || tu_random_cases());
}

static void variants_match_oracle(void **state) {
    (void)state;
    solve_all();
    tu_each_variant("attention8", run_variant);
    for (size_t c = 0; c < n_cases; c++) {
        attention_problem_destroy(fresh[c]);
        attention_problem_destroy(solved[c]);
        fresh[c] = solved[c] = NULL;
    }
}

/* --- the oracle against the formula --- */

typedef struct {
    double error, size;
} distance;

static void add_row(distance *d, const float *got, const double *want, int64_t n) {
    for (int64_t i = 0; i < n; i++) d->error += pow((double)got[i] - want[i], 2), d->size += pow(want[i], 2);
}

static void assert_near(const char *what, const distance *d) {
    const double e = sqrt(d->error / d->size);
    print_message("%s: relative difference %.4f\n", what, e);
    assert_true(e > 0.001 && e < 0.025);
}

static void compare_forward(const clt_ref_attention_params *p) {
    double w[256], bound[256];
    distance d = {0};
    clt_ref_attention8_forward(p);
    for (int64_t h = 0; h < p->heads; h++)
        for (int64_t i = 0; i < p->seq; i++) {
            clt_ref_attention_row(p, CLT_F32, (clt_ref_attention_at){0, h, i}, w, bound);
            add_row(&d, p->o + i * p->ldo + h * p->head_dim, w, p->head_dim);
        }
    assert_near("o", &d);
}

static void compare_backward(const clt_ref_attention_params *p) {
    const int64_t n = p->head_dim, q = n * p->heads, k = n * p->kv_heads;
    const size_t nq = (size_t)(p->seq * q), nk = (size_t)(p->seq * k);
    double *w = clt_malloc(2 * (nq + 2 * nk) * sizeof *w);
    const clt_ref_attention_gradients_out g = {
        w, w + nq, w + nq + nk, w + nq + 2 * nk, w + 2 * (nq + nk), w + 2 * nq + 3 * nk};
    distance d[3] = {{0}};
    clt_ref_attention8_backward(p);
    clt_ref_attention_forward(p); /* o and lse that the formula reads */
    clt_ref_attention_gradients(p, CLT_F32, &g);
    for (int64_t i = 0; i < p->seq; i++) {
        add_row(&d[0], p->dq + i * p->lddq, g.dq + i * q, q);
        add_row(&d[1], p->dk + i * p->lddk, g.dk + i * k, k);
        add_row(&d[2], p->dv + i * p->lddv, g.dv + i * k, k);
    }
    assert_near("dq", &d[0]);
    assert_near("dk", &d[1]);
    assert_near("dv", &d[2]);
    clt_free(w);
}

/* Results differ from the formula in double by what rounding to 8 bits makes of random data: 0.5 to 1.5 % of
 * the size of a result. */
static void oracle_is_near_the_formula(void **state) {
    (void)state;
    const shape list[] = {{1, 300, 2, 1, 64},
                          {1, 200, 2, 2, 128, .unmasked = true},
                          {1, 200, 2, 1, 32, .softcap = 2.0f},
                          {1, 200, 2, 1, 32, .alibi = true, .window = 100, .ids = true, .dropout = 0.1f}};
    for (size_t c = 0; c < CLT_COUNT_OF(list); c++) {
        problem *x = attention_problem_create(&list[c], 900 + c);
        compare_forward(&x->p);
        compare_backward(&x->p);
        attention_problem_destroy(x);
    }
}

/* --- the parts --- */

static void exp2_is_near(void **state) {
    (void)state;
    double worst = 0;
    for (int i = 0; i <= 1260000; i++) {
        const float x = -(float)i * 1e-4f;
        worst = fmax(worst, fabs((double)clt_exp2_short(x) / exp2((double)x) - 1));
    }
    assert_true(worst < 0x1p-13);
    assert_true(clt_exp2_short(0.0f) == 1.0f && clt_exp2_short(-0.0f) == 1.0f);
    const float none[] = {-127.0f, -1000.0f, -INFINITY, NAN};
    for (size_t i = 0; i < CLT_COUNT_OF(none); i++) {
        const float p = clt_exp2_short(none[i]);
        assert_true(p == 0.0f && !signbit(p));
    }
}

static void scales_are_the_smallest(void **state) {
    (void)state;
    assert_true(clt_ref_attention8_scale(0.0f) == 0x1p-126f &&
                clt_ref_attention8_scale(0x1p-149f) == 0x1p-126f);
    assert_true(clt_ref_attention8_scale(255.0f) == 1.0f &&
                clt_ref_attention8_scale(nextafterf(255.0f, 256.0f)) == 2.0f);
    assert_true(clt_ref_attention8_scale(nextafterf(0x1p96f, 0.0f)) == 0x1p89f);
    assert_true(isnan(clt_ref_attention8_scale(0x1p96f)) && isnan(clt_ref_attention8_scale(INFINITY)) &&
                isnan(clt_ref_attention8_scale(NAN)));
}

/* With the causal mask a token that is not finite reaches no earlier one, and every later one. */
static void nan_reaches_later_rows_only(void **state) {
    (void)state;
    const shape s = tu_tiny() ? (shape){1, 70, 2, 1, 4} : (shape){1, 150, 2, 1, 16};
    const int64_t broken = tu_tiny() ? 30 : 100;
    for (int what = 0; what < 2; what++) {
        problem *x = attention_problem_create(&s, 77);
        float *at = (what ? x->qkv[2] : x->qkv[1]) + broken * (what ? x->p.ldv : x->p.ldk) + 3;
        *at = what ? INFINITY : NAN;
        for (int d = 0; d < tu_device_count(); d++) {
            uploaded u = attention_upload(d, x);
            tu_assert_ok(clt_op_attention8_forward(tu_ops(d), &u.g.fwd), "forward");
            const float *o = tu_download(u.o, x->n_o);
            for (int64_t i = 0; i < s.seq; i++)
                for (int64_t c = 0; c < s.heads * s.head_dim; c++)
                    assert_int_equal(isnan(o[i * x->p.ldo + c]) != 0, i >= broken);
            tu_release();
        }
        attention_problem_destroy(x);
    }
}

static void bad_calls_are_refused(void **state) {
    (void)state;
    clt_attention_params p = {.batch = 1, .seq = 8, .heads = 3, .kv_heads = 2, .head_dim = 4, .window = -1};
    assert_int_not_equal(clt_op_attention8_forward(tu_ops(0), &p), CLT_OK);
    p.kv_heads = 3, p.head_dim = 257;
    p.q = p.k = p.v = p.o = clt_tensor_of(tu_blank(0, 8 * 3 * 257), 3 * 257, CLT_F32);
    assert_int_not_equal(clt_op_attention8_forward(tu_ops(0), &p), CLT_OK);
    assert_string_equal(clt_last_error(), "attention in 8-bit blocks: head size 257; supported: 1..256");
    p.head_dim = 4, p.k.type = CLT_BF16;
    assert_int_not_equal(clt_op_attention8_forward(tu_ops(0), &p), CLT_OK);
    p.k.type = CLT_F32;
    clt_attention_grad_params g = {.fwd = p, .dout = p.q, .dq = p.q, .dk = p.q, .dv = p.q};
    g.dout.type = CLT_F16;
    assert_int_not_equal(clt_op_attention8_backward(tu_ops(0), &g), CLT_OK);
    tu_release();
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp2_is_near),
        cmocka_unit_test(scales_are_the_smallest),
        cmocka_unit_test(oracle_is_near_the_formula),
        cmocka_unit_test(variants_match_oracle),
        cmocka_unit_test(nan_reaches_later_rows_only),
        cmocka_unit_test(bad_calls_are_refused),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
