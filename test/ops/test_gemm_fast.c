/* The GEMM rows of numerics fast that take 16-bit tensors, on every device that has them: each must pass its
 * own check, and larger products, with many tiles, split tiles and all epilogues, are compared at sampled
 * outputs. */
#include "test/test_util.h"

#include <math.h>
#include <string.h>

#include "runtime/ops/clt_op_gemm_internal.h"
#include "runtime/ops/ref/clt_ref.h"

typedef struct {
    clt_gemm_form form;
    int64_t m, n, k;
    bool bias, residual, accumulate, wide;
    bool again;   /* grad_act: and act(grad_pre) */
    bool alone;   /* act: the value before it is not kept */
    bool aligned; /* grad_pre and residual aligned for the copy engine */
    bool sums;    /* of a's columns */
    clt_activation act, grad_act;
} fast_case;

enum { SAMPLES = 300, TINY_PRODUCTS = 14000000 };

/* Rows of `ld` elements; the gaps between them and the memory after them are NaN. */
typedef struct {
    float *host;
    clt_ref ref;
    clt_dtype type;
    int64_t rows, cols, ld;
} tensor;

static tensor make_from(int device, float *host, clt_dtype type, int64_t rows, int64_t cols, int64_t ld) {
    const size_t n = (size_t)((rows + 1) * ld), bytes = n * clt_dtype_bytes(type);
    tensor t = {host, clt_ref_none(), type, rows, cols, ld};
    void *words = clt_malloc(bytes);
    for (size_t i = 0; i < n; i++) {
        const bool inside = (int64_t)i / ld < rows && (int64_t)i % ld < cols;
        t.host[i] = inside ? clt_ref_rounded(type, t.host[i]) : NAN;
    }
    clt_ref_narrow(type, t.host, n, words);
    tu_assert_ok(clt_buffer_create(tu_device(device), bytes, "tensor", &t.ref.buf), "buffer");
    tu_assert_ok(clt_buffer_write(t.ref.buf, 0, words, bytes), "write");
    clt_free(words);
    return t;
}

static tensor make(int device, clt_dtype type, int64_t rows, int64_t cols, int64_t ld, uint64_t seed) {
    return make_from(device, tu_random((size_t)((rows + 1) * ld), seed, 1.0f), type, rows, cols, ld);
}

static tensor make_eighths(int device, clt_dtype type, int64_t rows, int64_t cols, int64_t ld,
                           uint64_t seed) {
    const size_t n = (size_t)((rows + 1) * ld);
    float *host = tu_random(n, seed, 8.0f);
    for (size_t i = 0; i < n; i++) host[i] = rintf(host[i]) / 8;
    return make_from(device, host, type, rows, cols, ld);
}

static float *fetch(const tensor *t) {
    const size_t n = (size_t)((t->rows + 1) * t->ld);
    float *got = clt_malloc(n * sizeof *got);
    tu_assert_ok(clt_ref_read_as((clt_ref){t->ref.buf, 0}, t->type, got, n), "read");
    for (size_t i = 0; i < n; i++) {
        const bool inside = (int64_t)i / t->ld < t->rows && (int64_t)i % t->ld < t->cols;
        if (isnan(got[i]) == inside)
            fail_msg("element %zu (row of %ld) is %g", i, (long)t->ld, (double)got[i]);
    }
    return got;
}

static void drop(tensor *t) {
    clt_free(t->host);
    clt_buffer_destroy(t->ref.buf);
}

static void compare(const fast_case *f, const clt_ref_gemm_params *r, const float *c, const float *pre) {
    for (int s = 0; s < SAMPLES; s++) {
        const int64_t i =
            s % 4 ? tu_random_below(5, 2 * (uint64_t)s, f->m) : f->m - 1 - s / 4 % CLT_MIN(f->m, 9);
        const int64_t j =
            s % 4 != 1 ? tu_random_below(6, 2 * (uint64_t)s, f->n) : f->n - 1 - s / 4 % CLT_MIN(f->n, 9);
        const size_t at = (size_t)(i * r->ldc + j), at_pre = (size_t)(i * r->ldpre + j);
        const clt_ref_gemm_near near = clt_ref_gemm_near_at(r, i, j, (double)r->c[at]);
        if (fabs((double)c[at] - near.c) > near.c_bound)
            fail_msg("form %d, output (%ld, %ld) is %.9g, exactly %.9g, the bound is %.3g", f->form, (long)i,
                     (long)j, (double)c[at], near.c, near.c_bound);
        if (pre && fabs((double)pre[at_pre] - near.pre) > near.pre_bound)
            fail_msg("form %d, pre (%ld, %ld) is %.9g, exactly %.9g", f->form, (long)i, (long)j,
                     (double)pre[at_pre], near.pre);
    }
}

/* The activation of grad_pre by its formula, rounded once; fast forms differ by at most 1e-6, into bf16 by
 * 7.5e-6. */
static void compare_again(const fast_case *f, const tensor *grad, const tensor *again) {
    float *got = fetch(again);
    assert_int_equal(f->grad_act, CLT_ACT_GELU);
    for (int64_t i = 0; i < f->m; i++)
        for (int64_t j = 0; j < f->n; j++) {
            const double x = (double)grad->host[i * grad->ld + j], y = x / 2 * (1 + erf(x / sqrt(2.0)));
            const double v = (double)got[i * again->ld + j], u = clt_dtype_table[again->type].unit;
            const double off = again->type == CLT_BF16 ? 7.5e-6 : 1e-6;
            if (!(fabs(v - y) <= u * fabs(y) + 1e-6 + off))
                fail_msg("again (%ld, %ld) is %.9g, exactly %.9g", (long)i, (long)j, v, y);
        }
    for (int64_t i = 0; i < f->m; i++)
        assert_true(isnan(got[i * again->ld + f->n])); /* nothing else is fused */
    clt_free(got);
}

/* a holds multiples of 1/8 up to 1: any order of additions gives exact sums, and adding to the old value
 * rounds once. */
static void compare_sums(const clt_ref_gemm_params *r, const tensor *sum) {
    float *got = fetch(sum), *want = clt_calloc((size_t)r->m, sizeof *want);
    for (int64_t k = 0; k < r->k; k++)
        for (int64_t i = 0; i < r->m; i++) want[i] += r->a[k * r->lda + i];
    for (int64_t i = 0; i < r->m; i++) {
        const float exact = (r->accumulate ? sum->host[i] : 0) + want[i];
        if (got[i] != exact)
            fail_msg("sum %ld is %.9g, exactly %.9g", (long)i, (double)got[i], (double)exact);
    }
    clt_free(got);
    clt_free(want);
}

static clt_tensor given(const tensor *t) {
    return clt_tensor_of(t->ref, t->ld, t->type);
}

static void run(int device, clt_ops *ops, clt_dtype in, const fast_case *f) {
    const bool tn = f->form == CLT_GEMM_TN, nt = f->form == CLT_GEMM_NT;
    const clt_dtype out = tn || f->wide ? CLT_F32 : in;
    const int64_t rows_a = tn ? f->k : f->m, cols_a = tn ? f->m : f->k, rows_b = nt ? f->n : f->k,
                  cols_b = nt ? f->k : f->n, ld = CLT_ROUND_UP(f->n, 8) + 8;
    tensor a = (f->sums ? make_eighths : make)(device, in, rows_a, cols_a, CLT_ROUND_UP(cols_a, 8) + 16, 1),
           b = make(device, in, rows_b, cols_b, CLT_ROUND_UP(cols_b, 8) + 8, 2),
           c = make(device, out, f->m, f->n, ld, 3), bias = make(device, CLT_F32, 1, f->n, f->n, 4),
           pre = make(device, in, f->act ? f->m : 1, f->n, ld + 8, 5),
           grad = make(device, in, f->grad_act ? f->m : 1, f->n, f->aligned ? ld : f->n + 3, 6),
           again = make(device, in, f->again ? f->m : 1, f->n, ld + 8, 8),
           res = make(device, CLT_F32, f->residual ? f->m : 1, f->n, f->aligned ? ld : f->n + 1, 7),
           sum = make(device, CLT_F32, 1, f->m, f->m + 3, 9);
    clt_gemm_params p = {.form = f->form,
                         .m = f->m,
                         .n = f->n,
                         .k = f->k,
                         .k_group = f->k,
                         .a = given(&a),
                         .b = given(&b),
                         .c = given(&c),
                         .accumulate = f->accumulate,
                         .act = f->act,
                         .grad_act = f->grad_act,
                         .pre = given(&pre)};
    if (f->bias) p.bias = given(&bias);
    if (!f->act || f->alone) p.pre.ref = clt_ref_none(); /* its type counts even if it is absent */
    if (f->grad_act) p.grad_pre = given(&grad);
    if (f->again) p.again = given(&again);
    if (f->residual) p.residual = given(&res);
    if (f->sums) p.a_sum = given(&sum);
    clt_ref_gemm_params r = clt_ref_gemm_of(&p);
    r.a = a.host, r.b = b.host, r.c = c.host, r.bias = f->bias ? bias.host : NULL;
    r.pre = clt_tensor_present(p.pre) ? pre.host : NULL, r.grad_pre = f->grad_act ? grad.host : NULL;
    r.residual = f->residual ? res.host : NULL;
    tu_assert_ok(clt_op_gemm(ops, &p), "gemm");
    float *got = fetch(&c), *got_pre = clt_tensor_present(p.pre) ? fetch(&pre) : NULL;
    compare(f, &r, got, got_pre);
    if (f->again) compare_again(f, &grad, &again);
    if (f->sums) compare_sums(&r, &sum);
    /* Every run gives the same bits, also with split tiles. */
    if (!f->accumulate) {
        tu_assert_ok(clt_op_gemm(ops, &p), "gemm again");
        float *again = fetch(&c);
        assert_memory_equal(again, got, (size_t)(f->m * ld) * sizeof *got);
        clt_free(again);
        if (f->sums) compare_sums(&r, &sum);
    }
    clt_free(got);
    clt_free(got_pre);
    tensor *all[] = {&a, &b, &c, &bias, &pre, &grad, &again, &res, &sum};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) drop(all[i]);
}

static const fast_case cases[] = {
    {.form = CLT_GEMM_NT, .m = 1100, .n = 776, .k = 328},
    {.form = CLT_GEMM_NT, .m = 333, .n = 656, .k = 200, .bias = true, .act = CLT_ACT_GELU},
    {.form = CLT_GEMM_NT, .m = 333, .n = 656, .k = 70, .bias = true, .residual = true, .wide = true},
    {.form = CLT_GEMM_NN, .m = 1100, .n = 328, .k = 777},
    {.form = CLT_GEMM_NN, .m = 500, .n = 696, .k = 136, .grad_act = CLT_ACT_GELU},
    {.form = CLT_GEMM_NT,
     .m = 333,
     .n = 656,
     .k = 70,
     .bias = true,
     .residual = true,
     .wide = true,
     .aligned = true},
    {.form = CLT_GEMM_NT, .m = 2999, .n = 2056, .k = 136, .residual = true, .wide = true, .aligned = true},
    {.form = CLT_GEMM_NN, .m = 500, .n = 696, .k = 136, .grad_act = CLT_ACT_GELU, .aligned = true},
    {.form = CLT_GEMM_NN,
     .m = 500,
     .n = 696,
     .k = 136,
     .grad_act = CLT_ACT_GELU,
     .aligned = true,
     .wide = true},
    {.form = CLT_GEMM_NN,
     .m = 500,
     .n = 696,
     .k = 136,
     .grad_act = CLT_ACT_GELU,
     .aligned = true,
     .again = true},
    {.form = CLT_GEMM_NN,
     .m = 2999,
     .n = 2056,
     .k = 264,
     .grad_act = CLT_ACT_GELU,
     .aligned = true,
     .again = true},
    {.form = CLT_GEMM_NN, .m = 77, .n = 96, .k = 64, .grad_act = CLT_ACT_GELU, .again = true},
    {.form = CLT_GEMM_NN, .m = 2999, .n = 2056, .k = 264, .grad_act = CLT_ACT_SILU, .aligned = true},
    {.form = CLT_GEMM_NT, .m = 2999, .n = 2056, .k = 136, .bias = true, .act = CLT_ACT_GELU},
    /* fewer steps of k than are copied ahead; nothing kept besides the activation */
    {.form = CLT_GEMM_NT, .m = 77, .n = 96, .k = 64, .act = CLT_ACT_SILU, .alone = true},
    {.form = CLT_GEMM_NN, .m = 333, .n = 656, .k = 64, .grad_act = CLT_ACT_GELU, .aligned = true},
    /* few tiles and a large k: split, with every kind of epilogue */
    {.form = CLT_GEMM_NT, .m = 333, .n = 656, .k = 3000, .bias = true, .act = CLT_ACT_GELU},
    {.form = CLT_GEMM_NT, .m = 333, .n = 656, .k = 3000, .residual = true, .wide = true, .aligned = true},
    {.form = CLT_GEMM_NN,
     .m = 333,
     .n = 656,
     .k = 3000,
     .grad_act = CLT_ACT_GELU,
     .aligned = true,
     .again = true},
    /* and the last tiles of many */
    {.form = CLT_GEMM_TN, .m = 2999, .n = 2056, .k = 1500, .accumulate = true},
    {.form = CLT_GEMM_TN, .m = 777, .n = 520, .k = 5000, .accumulate = true},
    {.form = CLT_GEMM_TN, .m = 264, .n = 136, .k = 9999},
    /* split in two ways; and after whole tiles */
    {.form = CLT_GEMM_TN, .m = 1000, .n = 2056, .k = 3000},
    {.form = CLT_GEMM_TN, .m = 2999, .n = 1800, .k = 2000, .accumulate = true},
    {.form = CLT_GEMM_TN, .m = 5, .n = 8, .k = 1},
    /* sums of a's columns: one tile, a row of many, fewer steps than tiles, split tiles, both */
    {.form = CLT_GEMM_TN, .m = 5, .n = 8, .k = 1, .sums = true},
    {.form = CLT_GEMM_TN, .m = 333, .n = 2056, .k = 1000, .sums = true},
    {.form = CLT_GEMM_TN, .m = 77, .n = 3000, .k = 200, .accumulate = true, .sums = true},
    {.form = CLT_GEMM_TN, .m = 777, .n = 520, .k = 5000, .accumulate = true, .sums = true},
    {.form = CLT_GEMM_TN, .m = 264, .n = 136, .k = 9999, .sums = true},
    {.form = CLT_GEMM_TN, .m = 2999, .n = 2056, .k = 1500, .accumulate = true, .sums = true},
    {.form = CLT_GEMM_TN, .m = 2304, .n = 768, .k = 2048, .sums = true},
};

/* --- random cases --- */

static fast_case drawn[10000];
static const fast_case *list = cases;
static size_t n_list = CLT_COUNT_OF(cases);

static int64_t draw_size(void) {
    const int64_t n = tu_one_in(2) ? 1 + tu_draw(300) : 1 + tu_draw(2600);
    return tu_one_in(3) ? n : CLT_ROUND_UP(n, (int64_t)8);
}

static fast_case draw(void) {
    fast_case f = {.form = (clt_gemm_form)tu_draw(3), .m = draw_size(), .k = draw_size()};
    f.n = CLT_ROUND_UP(draw_size(), (int64_t)8);
    if (tu_one_in(4)) f.k *= 1 + tu_draw(5);
    f.k = CLT_MAX(CLT_MIN(f.k, 1500000000 / (f.m * f.n)), (int64_t)1);
    f.aligned = tu_one_in(2);
    if (f.form == CLT_GEMM_TN) {
        f.accumulate = tu_one_in(2), f.sums = tu_one_in(2);
    } else if (f.form == CLT_GEMM_NN) {
        if (tu_one_in(2)) f.grad_act = tu_one_in(2) ? CLT_ACT_GELU : CLT_ACT_SILU;
        f.again = f.grad_act == CLT_ACT_GELU && f.aligned && tu_one_in(2);
        f.wide = f.grad_act && !f.again && tu_one_in(4);
    } else {
        f.bias = tu_one_in(2);
        if (tu_one_in(3)) f.act = tu_one_in(2) ? CLT_ACT_GELU : CLT_ACT_SILU;
        f.residual = !f.act && tu_one_in(2), f.wide = f.residual;
    }
    return f;
}

static void draw_cases(void) {
    if (!tu_random_cases()) return;
    n_list = (size_t)CLT_MIN(tu_random_cases(), (int)CLT_COUNT_OF(drawn));
    for (size_t i = 0; i < n_list; i++) drawn[i] = draw();
    list = drawn;
}

static void say(const char *row, const fast_case *f) {
    char what[200];
    snprintf(what, sizeof what,
             "%s, form %d, %d x %d x %d, act %d, grad_act %d, bias %d, residual %d, sums %d, again %d", row,
             f->form, (int)f->m, (int)f->n, (int)f->k, f->act, f->grad_act, f->bias, f->residual, f->sums,
             f->again);
    tu_say_random(what);
}

static bool takes(const clt_variant *v, clt_dtype type) {
    return strstr(v->requires, "numerics=fast") &&
           clt_dtype_in(type, (uint32_t)clt_variant_param(v, "TYPES", 1));
}

/* A row that requires aligned results leaves calls with an unaligned grad_pre to others. */
static bool is_too_large(const fast_case *c) {
    return tu_tiny() && c->m * c->n * c->k > TINY_PRODUCTS;
}

static bool does(const clt_variant *v, const fast_case *f) {
    return (clt_variant_param(v, "FORMS", 15) >> f->form & 1) &&
           (f->aligned || !f->grad_act || clt_variant_param(v, "ALIGN_C", 1) == 1);
}

static void fast_rows_are_close(void **state) {
    (void)state;
    int found = 0;
    for (int d = 0; d < tu_device_count(); d++) {
        clt_ops *ops = tu_fast_ops(d);
        int n;
        const clt_variant *row = clt_ops_variants(ops, "gemm", &n);
        for (int i = 0; i < n; i++)
            for (clt_dtype type = CLT_BF16; type <= CLT_F16; type++) {
                if (!takes(&row[i], type) || !tu_wants_row(row[i].id)) continue;
                print_message("[          ]   gemm=%s, %s on %s\n", row[i].id, clt_dtype_name(type),
                              tu_device_name(d));
                tu_assert_ok(clt_variant_force(ops, "gemm", row[i].id), "force");
                for (size_t k = 0; k < n_list; k++) {
                    const bool runs = does(&row[i], &list[k]) && !is_too_large(&list[k]);
                    /* of emulated rows the first one takes all cases */
                    if (!runs || (found && tu_left_out())) continue;
                    say(row[i].id, &list[k]);
                    run(d, ops, type, &list[k]);
                }
                found++;
            }
        clt_ops_destroy(ops);
    }
    if (!found) printf("skip: no device has a fast row for 16-bit tensors\n");
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    draw_cases();
    const struct CMUnitTest tests[] = {cmocka_unit_test(fast_rows_are_close)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
