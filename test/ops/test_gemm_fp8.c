/* Matrices in 8-bit floating point on every device: every variant of the cast and of the product against the
 * oracle, word for word; the oracles against their formulas in double; rows of numerics fast within their
 * bound; what is refused. */
#include "test/test_util.h"

#include <math.h>
#include <string.h>

#include "runtime/ops/clt_op_gemm_fp8_internal.h"
#include "runtime/ops/ref/clt_ref.h"

static const clt_codes8 no_codes;

enum { FIRST = 40 /* words before the codes in their buffer: a multiple of 16 bytes */ };

typedef struct { /* a matrix on both sides */
    clt_codes8 device;
    clt_ref_codes8 host;
    size_t words;
} codes;

/* Codes of a matrix whose bytes are all `fill`, or random where fill is negative. */
static codes make_codes(int d, int64_t rows, int64_t k, int64_t pad, clt_fp8 format, int fill,
                        uint64_t seed) {
    codes m = {.words = (size_t)(rows * (k + pad) / 4)};
    uint32_t *q = clt_malloc(m.words * 4);
    for (size_t i = 0; i < m.words; i++) q[i] = tu_random_word(seed, i);
    if (fill >= 0) memset(q, fill, m.words * 4);
    m.host = (clt_ref_codes8){(uint8_t *)q, k + pad, format, 1.0f};
    const clt_ref at = tu_upload_at(d, q, m.words, FIRST);
    m.device = (clt_codes8){.q = {at.buf, at.off * 4}, .ld = k + pad, .format = format};
    return m;
}

static void assert_codes(const char *what, const codes *m) {
    const clt_ref at = {m->device.q.buf, m->device.q.off / 4};
    const uint8_t *got = (const uint8_t *)tu_download(at, m->words);
    for (size_t i = 0; i < m->words * 4; i++)
        if (got[i] != m->host.q[i])
            fail_msg("%s: byte %zu is %02x, the oracle has %02x", what, i, got[i], m->host.q[i]);
}

/* --- the cast --- */

typedef struct {
    int64_t rows, cols;
    clt_dtype type;
    clt_fp8 format;
    float scale, before; /* before: amax before the call; negative: amax is not asked for */
    int outputs;         /* 1 along, 2 across */
    bool with_nan;
} cast_case;

static void run_cast(int d, const char *id, const cast_case *t) {
    char what[128];
    snprintf(what, sizeof what, "%s %lldx%lld %s to %s, outputs %d", id, (long long)t->rows,
             (long long)t->cols, clt_dtype_name(t->type), clt_fp8_table[t->format].name, t->outputs);
    const int64_t ldx = t->cols + (tu_wide() ? 8 : 5);
    const size_t n = (size_t)(t->rows * ldx);
    float *x = t->with_nan ? tu_extreme(n, 4) : tu_random(n, 4, 300.0f);
    clt_ref_round(t->type, x, n);
    codes along = make_codes(d, t->rows, clt_codes8_k(t->cols), 32, t->format, 0x55, 1),
          across = make_codes(d, t->cols, clt_codes8_k(t->rows), 16, t->format, 0x55, 2);
    float amax = t->before;
    const clt_ref at = tu_upload(d, &amax, 1);
    const clt_cast_fp8_params p = {.rows = t->rows,
                                   .cols = t->cols,
                                   .x = clt_tensor_of(tu_upload_as(d, t->type, x, n), ldx, t->type),
                                   .scale = tu_upload(d, &t->scale, 1),
                                   .amax = t->before < 0 ? clt_ref_none() : at,
                                   .along = t->outputs & 1 ? along.device : no_codes,
                                   .across = t->outputs & 2 ? across.device : no_codes};
    tu_assert_ok(clt_op_cast_fp8(tu_ops(d), &p), what);
    clt_ref_cast_fp8_params r = {.rows = t->rows, .cols = t->cols, .x = x, .ldx = ldx, .scale = t->scale};
    r.amax = t->before < 0 ? NULL : &amax, r.format = t->format;
    if (t->outputs & 1) r.along = along.host;
    if (t->outputs & 2) r.across = across.host;
    clt_ref_cast_fp8(&r);
    assert_codes(what, &along);
    assert_codes(what, &across);
    const float *got = tu_download(at, 1);
    if (!(isnan(amax) && isnan(*got))) tu_assert_words(what, got, &amax, 1);
    tu_release();
    clt_free(x), clt_free(along.host.q), clt_free(across.host.q);
}

static bool takes(int d, const char *op, const char *id, const char *param, int bit) {
    int n;
    const clt_variant *row = clt_ops_variants(tu_ops(d), op, &n);
    while (n > 0 && strcmp(row->id, id)) row++, n--;
    assert_true(n > 0);
    return clt_variant_param(row, param, -1) >> bit & 1;
}

static void casts(int d, const char *id) {
    static const int64_t shape[][2] = {{1, 1},   {16, 16}, {15, 17},  {127, 129}, {128, 128},
                                       {1, 300}, {300, 1}, {257, 31}, {4, 130},   {131, 2}};
    for (size_t i = 0; i < CLT_COUNT_OF(shape); i += tu_brief() ? 4 : 1)
        for (int f = 0; f < CLT_FP8_COUNT; f++) {
            cast_case t = {.rows = shape[i][0], .cols = shape[i][1], .format = (clt_fp8)f};
            t.type = (clt_dtype)((i + (size_t)f) % CLT_DTYPE_COUNT), t.outputs = (int)((i + 2) % 3) + 1;
            t.scale = i % 2 ? 3.3f : 0x1p-9f, t.with_nan = i % 3 == 1;
            if (tu_wide()) t.cols = CLT_ROUND_UP(t.cols, 8);
            t.before = i % 4 == 3 ? -1.0f : i % 4 == 2 ? 1e30f : 0.0f;
            if (takes(d, "cast_fp8", id, "FORMATS", f) && !tu_left_out()) run_cast(d, id, &t);
        }
}

static void casts_match(void **state) {
    (void)state;
    tu_each_variant("cast_fp8", casts);
}

/* A code's value is within half a step of x * scale, or the largest one, and amax is that of the numbers. */
static void cast_is_the_formula(void **state) {
    (void)state;
    enum { ROWS = 20, COLS = 30, K = 32 };
    for (clt_fp8 f = 0; f < CLT_FP8_COUNT; f++) {
        const double largest = (double)clt_fp8_table[f].largest,
                     unit = ldexp(1, -clt_fp8_table[f].mantissa - 1),
                     least = ldexp(1, -clt_fp8_table[f].bias - clt_fp8_table[f].mantissa);
        float *x = tu_random(ROWS * COLS, 7, 100.0f), amax = 0;
        const float scale = (float)(largest / 90); /* some numbers saturate */
        uint8_t q[ROWS * K];
        clt_ref_cast_fp8(&(clt_ref_cast_fp8_params){.rows = ROWS,
                                                    .cols = COLS,
                                                    .x = x,
                                                    .ldx = COLS,
                                                    .scale = scale,
                                                    .amax = &amax,
                                                    .format = f,
                                                    .along = {q, K, f, 1.0f}});
        double most = 0;
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < K; c++) {
                const double v = c < COLS ? (double)x[r * COLS + c] : 0, y = v * (double)scale;
                const double got = (double)clt_ref_fp8_to_f32(f, q[r * K + c]);
                const double want = fabs(y) > largest ? copysign(largest, y) : y;
                if (!(fabs(got - want) <= fmax(unit * fabs(want), least) * 1.0001))
                    fail_msg("%s: %g becomes %g", clt_fp8_table[f].name, y, got);
                most = fmax(most, fabs(v));
            }
        assert_true((double)amax == most);
        clt_free(x);
    }
}

/* --- the product --- */

typedef struct {
    int64_t m, n, k;
    clt_fp8 a, b;
    bool split, accumulate, bias, pre, residual;
    clt_activation act, grad_act;
    clt_dtype out, aux;
    int64_t pad;
    bool finite;  /* codes are neither infinite nor NaN */
    bool aligned; /* tensors besides operands start at multiples of 16 bytes, like operands */
} product_case;

typedef struct { /* c or one of its companions */
    float *host;
    clt_tensor t;
    size_t n;
} matrix;

static matrix make_matrix(int d, const product_case *t, clt_dtype type, int64_t rows, uint64_t seed) {
    const int64_t ld = t->n + (rows == 1 ? 0 : t->pad);
    const size_t bytes = clt_dtype_bytes(type);
    matrix x = {.n = (size_t)(rows * ld)};
    x.host = tu_random(x.n, seed, 1.0f);
    clt_ref_round(type, x.host, x.n);
    if (t->aligned) {
        uint32_t *stored = clt_malloc((x.n / 2 + 1) * 2 * sizeof *stored);
        clt_ref_narrow(type, x.host, x.n, stored);
        const clt_ref at = tu_upload_at(d, stored, CLT_CEIL_DIV(x.n * bytes, 4), FIRST);
        x.t = clt_tensor_of((clt_ref){at.buf, at.off * 4 / bytes}, ld, type);
        clt_free(stored);
    } else {
        x.t = clt_tensor_of(tu_upload_as(d, type, x.host, x.n), ld, type);
    }
    return x;
}

/* Random codes within rows, NaN between them. */
static codes make_operand(int d, const product_case *t, int64_t rows, clt_fp8 format, float inverse,
                          uint64_t seed) {
    codes m = make_codes(d, rows, t->k, t->pad ? 16 : 0, format, -1, seed);
    for (size_t i = 0; i < m.words * 4; i++) {
        const bool inside = (int64_t)i % m.host.ld < t->k;
        if (!inside) m.host.q[i] = clt_fp8_table[format].fnuz ? 0x80 : 0x7f;
        if (inside && t->finite && !isfinite(clt_ref_fp8_to_f32(format, m.host.q[i]))) m.host.q[i] = 0x35;
    }
    const clt_ref at = tu_upload_at(d, m.host.q, m.words, FIRST);
    m.device.q = (clt_ref){at.buf, at.off * 4};
    m.host.inverse = inverse;
    m.device.inverse = tu_upload(d, &inverse, 1);
    return m;
}

typedef struct {
    codes a, b;
    matrix c, bias, pre, grad, residual;
    clt_gemm_fp8_params p;
    clt_ref_gemm_fp8_params ref;
} call;

static call make_call(int d, const product_case *t) {
    call x = {.a = make_operand(d, t, t->m, t->a, 0.3f, 1), .b = make_operand(d, t, t->n, t->b, 0.01f, 2)};
    clt_gemm_params *to = &x.p.to;
    x.c = make_matrix(d, t, t->out, t->m, 3);
    x.p.a = x.a.device, x.p.b = x.b.device, x.p.split = t->split;
    to->m = t->m, to->n = t->n, to->k = t->k, to->c = x.c.t, to->accumulate = t->accumulate;
    to->act = t->act, to->grad_act = t->grad_act, to->pre.type = t->aux;
    if (t->bias) x.bias = make_matrix(d, t, CLT_F32, 1, 4), to->bias = x.bias.t;
    if (t->pre) x.pre = make_matrix(d, t, t->aux, t->m, 5), to->pre = x.pre.t;
    if (t->grad_act) x.grad = make_matrix(d, t, t->aux, t->m, 6), to->grad_pre = x.grad.t;
    if (t->residual) x.residual = make_matrix(d, t, CLT_F32, t->m, 7), to->residual = x.residual.t;
    x.ref = (clt_ref_gemm_fp8_params){x.a.host, x.b.host, t->split, clt_ref_gemm_of(to)};
    x.ref.to.c = x.c.host, x.ref.to.bias = x.bias.host, x.ref.to.pre = x.pre.host;
    x.ref.to.grad_pre = x.grad.host, x.ref.to.residual = x.residual.host;
    return x;
}

static void free_call(call *x) {
    clt_free(x->a.host.q), clt_free(x->b.host.q);
    clt_free(x->c.host), clt_free(x->bias.host), clt_free(x->pre.host);
    clt_free(x->grad.host), clt_free(x->residual.host);
    tu_release();
}

static void describe(const char *id, const product_case *t, char what[160]) {
    snprintf(what, 160, "%s %lldx%lldx%lld %s by %s, act %d grad %d to %s", id, (long long)t->m,
             (long long)t->n, (long long)t->k, clt_fp8_table[t->a].name, clt_fp8_table[t->b].name,
             (int)t->act, (int)t->grad_act, clt_dtype_name(t->out));
    tu_say_random(what);
}

static void run_product(int d, const char *id, const product_case *t) {
    char what[160];
    describe(id, t, what);
    call x = make_call(d, t);
    tu_assert_ok(clt_op_gemm_fp8(tu_ops(d), &x.p), what);
    clt_ref_gemm_fp8(&x.ref);
    tu_assert_words(what, tu_download_as(x.c.t.ref, t->out, x.c.n), x.c.host, x.c.n);
    if (t->pre) tu_assert_words(what, tu_download_as(x.pre.t.ref, t->aux, x.pre.n), x.pre.host, x.pre.n);
    free_call(&x);
}

/* Pairs of formats as a training step has them, and FNUZ ones. */
static const clt_fp8 pairs[][2] = {{CLT_FP8_E4M3, CLT_FP8_E4M3},
                                   {CLT_FP8_E5M2, CLT_FP8_E4M3},
                                   {CLT_FP8_E4M3FNUZ, CLT_FP8_E4M3FNUZ},
                                   {CLT_FP8_E5M2FNUZ, CLT_FP8_E4M3FNUZ}};

static void products(int d, const char *id) {
    static const int64_t shape[][3] = {{1, 1, 16},   {15, 17, 32},  {17, 127, 48}, {129, 1, 16},
                                       {64, 64, 64}, {31, 129, 80}, {127, 65, 16}, {3, 300, 400}};
    for (size_t i = 0; i < CLT_COUNT_OF(shape); i += tu_brief() ? 3 : 1)
        for (size_t f = 0; f < CLT_COUNT_OF(pairs); f++) {
            product_case t = {.m = shape[i][0], .n = shape[i][1], .k = shape[i][2]};
            t.a = pairs[f][0], t.b = pairs[f][1], t.pad = (int64_t)(i % 3), t.split = i % 2;
            t.accumulate = i % 4 == 1, t.finite = i % 4 != 3;
            if (takes(d, "gemm_fp8", id, "FORMATS", (int)t.a) && !tu_left_out()) run_product(d, id, &t);
        }
}

static void products_match(void **state) {
    (void)state;
    tu_each_variant("gemm_fp8", products);
}

static void epilogues(int d, const char *id) {
    for (int bits = 0; bits < 64; bits += tu_brief() ? 7 : 3) {
        const bool act = bits & 8, grad = bits & 16;
        if (act && grad) continue; /* no model has both in one call */
        product_case t = {.m = 29, .n = 43, .k = 48, .pad = bits % 5, .finite = true};
        t.bias = bits & 2, t.pre = bits & 4, t.residual = bits & 32;
        t.act = act ? CLT_ACT_GELU : CLT_ACT_NONE;
        t.grad_act = grad ? CLT_ACT_GELU : CLT_ACT_NONE;
        t.out = t.aux = act ? CLT_BF16 : grad ? CLT_F16 : CLT_F32;
        t.accumulate = t.out == CLT_F32 && bits % 3 == 0;
        run_product(d, id, &t);
    }
}

static void epilogues_match(void **state) {
    (void)state;
    tu_each_variant("gemm_fp8", epilogues);
}

static void product_is_the_formula(void **state) {
    (void)state;
    const product_case t = {.m = 9, .n = 11, .k = 96, .a = CLT_FP8_E5M2, .finite = true};
    call x = make_call(0, &t);
    clt_ref_gemm_fp8(&x.ref);
    for (int64_t i = 0; i < t.m; i++)
        for (int64_t j = 0; j < t.n; j++) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < t.k; k++) {
                const double ab = (double)clt_ref_fp8_to_f32(t.a, x.a.host.q[i * x.a.host.ld + k]) *
                                  (double)clt_ref_fp8_to_f32(t.b, x.b.host.q[j * x.b.host.ld + k]);
                sum += ab, size += fabs(ab);
            }
            const double s = (double)0.3f * (double)0.01f, off = (double)x.c.host[i * t.n + j] - s * sum;
            assert_true(fabs(off) <= 0x1p-16 * s * size);
        }
    free_call(&x);
}

/* --- numerics fast: each row must pass its own check, and many tiles stay within the bound --- */

static void check_near(const call *x, const float *got, const char *id) {
    enum { SAMPLES = 400 };
    const clt_ref_gemm_params *to = &x->ref.to;
    for (uint64_t s = 0; s < SAMPLES; s++) {
        const int64_t i = s % 8 ? tu_random_below(5, 2 * s, to->m) : to->m - 1 - (int64_t)(s / 8 % 9);
        const int64_t j = s % 8 != 1 ? tu_random_below(6, 2 * s, to->n) : to->n - 1 - (int64_t)(s / 8 % 9);
        const size_t at = (size_t)(i * to->ldc + j);
        const clt_ref_gemm_near near = clt_ref_gemm_fp8_near_at(&x->ref, i, j, (double)x->c.host[at]);
        if (!(fabs((double)got[at] - near.c) <= near.c_bound))
            fail_msg("%s: output (%ld, %ld) is %.9g, exactly %.9g, the bound is %.3g", id, (long)i, (long)j,
                     (double)got[at], near.c, near.c_bound);
    }
}

/* Returns whether the row takes the case. */
static bool run_fast(int d, clt_ops *ops, const clt_variant *v, const product_case *t) {
    char what[160];
    const char *const id = v->id;
    const size_t n = (size_t)(t->m * (t->n + t->pad));
    float *const got = clt_malloc(2 * n * sizeof *got), *const again = got + n;
    call x = make_call(d, t);
    const bool takes_it = clt_gemm_fp8_takes(v, &x.p);
    if (takes_it) {
        describe(id, t, what);
        tu_assert_ok(clt_op_gemm_fp8(ops, &x.p), id);
        tu_assert_ok(clt_ref_read_as(x.c.t.ref, t->out, got, n), id);
        check_near(&x, got, id);
    }
    if (takes_it && !t->accumulate) { /* every run gives the same bits */
        tu_assert_ok(clt_op_gemm_fp8(ops, &x.p), id);
        tu_assert_ok(clt_ref_read_as(x.c.t.ref, t->out, again, n), id);
        assert_memory_equal(again, got, n * sizeof *got);
    }
    clt_free(got);
    free_call(&x);
    return takes_it;
}

/* Every row of numerics fast of every device, of which each takes at least `least` cases. */
static void run_fast_rows(const product_case *cases, size_t n_cases, int least) {
    int rows = 0;
    for (int d = 0; d < tu_device_count(); d++) {
        clt_ops *ops = tu_fast_ops(d);
        int n;
        const clt_variant *v = clt_ops_variants(ops, "gemm_fp8", &n);
        for (int i = 0; i < n; i++) {
            int taken = 0;
            if (!strstr(v[i].requires, "numerics=fast")) continue;
            tu_assert_ok(clt_variant_force(ops, "gemm_fp8", v[i].id), "force");
            for (size_t c = 0; c < n_cases; c++) taken += run_fast(d, ops, &v[i], &cases[c]);
            if (taken < least) fail_msg("%s takes %d of the cases", v[i].id, taken);
            rows++;
        }
        clt_ops_destroy(ops);
    }
    if (!rows) printf("skip: no device has a fast row of gemm_fp8\n");
}

static void fast_rows_are_near(void **state) {
    (void)state;
    static const product_case cases[] = {
        {.m = 2100, .n = 1544, .k = 528, .out = CLT_BF16, .finite = true},
        {.m = 2100, .n = 1544, .k = 528, .a = CLT_FP8_E5M2, .split = true, .out = CLT_BF16, .finite = true},
        {.m = 700,
         .n = 1033,
         .k = 2064,
         .a = CLT_FP8_E5M2,
         .split = true,
         .accumulate = true,
         .finite = true},
        {.m = 333, .n = 656, .k = 80, .bias = true, .residual = true, .finite = true},
        {.m = 333,
         .n = 656,
         .k = 80,
         .bias = true,
         .pre = true,
         .act = CLT_ACT_GELU,
         .out = CLT_BF16,
         .aux = CLT_BF16,
         .finite = true},
        /* few tiles, which are split along k, and more than a round of them */
        {300, 520, 8208, .finite = true, .aligned = true},
        {520, 400, 16400, CLT_FP8_E5M2, .split = true, .accumulate = true, .finite = true, .aligned = true},
        {333, 660, 8208, .bias = true, .residual = true, .pad = 4, .finite = true, .aligned = true},
        {333, 660, 8208, CLT_FP8_E5M2, .split = true, .residual = true, .finite = true, .aligned = true},
        {333, 664, 8208, CLT_FP8_E5M2, .split = true, .out = CLT_BF16, .finite = true, .aligned = true},
        {333, 664, 8208, .bias = true, .out = CLT_F16, .pad = 8, .finite = true, .aligned = true},
        {2100, 2052, 272, .residual = true, .finite = true, .aligned = true},
        {2100, 2056, 528, .out = CLT_BF16, .finite = true, .aligned = true},
        {2100, 2056, 1040, CLT_FP8_E5M2, .split = true, .out = CLT_BF16, .finite = true, .aligned = true}};
    run_fast_rows(cases, CLT_COUNT_OF(cases), 2);
}

/* --- random cases --- */

static product_case drawn[2000];
static size_t n_drawn;

static product_case draw(void) {
    const size_t f = (size_t)tu_draw(CLT_COUNT_OF(pairs));
    product_case t = {.a = pairs[f][0], .b = pairs[f][1], .split = tu_one_in(2), .finite = true};
    t.m = 1 + tu_draw(tu_one_in(2) ? 100 : 1200), t.n = 1 + tu_draw(tu_one_in(2) ? 100 : 1200);
    t.k = 16 * (1 + tu_draw(CLT_MIN(600, 1 + 4000000 / (t.m * t.n))));
    t.pad = tu_one_in(2) ? 0 : tu_draw(9), t.aligned = tu_one_in(2);
    t.bias = tu_one_in(3), t.residual = tu_one_in(3);
    t.out = t.aux = (clt_dtype)tu_draw(CLT_DTYPE_COUNT);
    t.accumulate = t.out == CLT_F32 && tu_one_in(3);
    if (tu_one_in(3)) {
        t.pre = tu_one_in(2), t.act = CLT_ACT_GELU;
    } else if (tu_one_in(3)) {
        t.grad_act = CLT_ACT_GELU;
    }
    return t;
}

static void random_products(int d, const char *id) {
    for (size_t i = 0; i < n_drawn; i++) {
        product_case t = drawn[i];
        t.aligned = false; /* with what lies around a tensor, which run_product compares, none is */
        if (takes(d, "gemm_fp8", id, "FORMATS", (int)t.a)) run_product(d, id, &t);
    }
}

static void random_cases_match(void **state) {
    (void)state;
    n_drawn = (size_t)CLT_MIN(tu_random_cases(), (int)CLT_COUNT_OF(drawn));
    for (size_t i = 0; i < n_drawn; i++) drawn[i] = draw();
    tu_each_variant("gemm_fp8", random_products);
    run_fast_rows(drawn, n_drawn, 0);
}

/* --- what is refused --- */

static void expect(clt_status st, const char *text) {
    assert_int_equal(st, CLT_FAIL);
    if (!strstr(clt_last_error(), text)) fail_msg("'%s' does not say '%s'", clt_last_error(), text);
}

static void bad_products_are_refused(void **state) {
    (void)state;
    const product_case t = {.m = 5, .n = 6, .k = 32, .finite = true};
    call x = make_call(0, &t);
    clt_gemm_fp8_params p = x.p;
    p.to.k = 24;
    expect(clt_op_gemm_fp8(tu_ops(0), &p), "multiples of 16");
    p = x.p, p.a.ld = 40;
    expect(clt_op_gemm_fp8(tu_ops(0), &p), "multiples of 16");
    p = x.p, p.to.m = 5000;
    expect(clt_op_gemm_fp8(tu_ops(0), &p), "exceeds its buffer");
    p = x.p, p.b.q.buf = NULL;
    expect(clt_op_gemm_fp8(tu_ops(0), &p), "matrix b is missing");
    p = x.p, p.b.inverse.buf = NULL;
    expect(clt_op_gemm_fp8(tu_ops(0), &p), "inverse scale of b is missing");
    p = x.p, p.b.format = CLT_FP8_E4M3FNUZ;
    expect(clt_op_gemm_fp8(tu_ops(0), &p), "FNUZ formats go together only");
    p = x.p, p.to.n = 0;
    expect(clt_op_gemm_fp8(tu_ops(0), &p), "not in 1..");
    free_call(&x);
}

static void bad_casts_are_refused(void **state) {
    (void)state;
    float *data = tu_random(600, 1, 1.0f);
    codes along = make_codes(0, 10, 32, 0, CLT_FP8_E4M3, 0, 1);
    const clt_ref x = tu_upload(0, data, 600), scale = tu_upload(0, data, 1);
    const clt_cast_fp8_params ok = {
        .rows = 10, .cols = 30, .x = clt_tensor_of(x, 30, CLT_F32), .scale = scale, .along = along.device};
    clt_cast_fp8_params p = ok;
    tu_assert_ok(clt_op_cast_fp8(tu_ops(0), &p), "cast");
    p.along.q.buf = NULL;
    expect(clt_op_cast_fp8(tu_ops(0), &p), "no output");
    p = ok, p.scale.buf = NULL;
    expect(clt_op_cast_fp8(tu_ops(0), &p), "scale is missing");
    p = ok, p.rows = 20;
    expect(clt_op_cast_fp8(tu_ops(0), &p), "exceeds its buffer");
    p = ok, p.across = along.device, p.across.format = CLT_FP8_E5M2, p.rows = 10, p.cols = 10;
    expect(clt_op_cast_fp8(tu_ops(0), &p), "along is e4m3, across e5m2");
    p = ok, p.along.q.off = 8;
    expect(clt_op_cast_fp8(tu_ops(0), &p), "multiples of 16");
    tu_release();
    clt_free(data), clt_free(along.host.q);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest by_chance[] = {cmocka_unit_test(random_cases_match)};
    if (tu_random_cases()) return tu_run(by_chance, CLT_COUNT_OF(by_chance));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(casts_match),
        cmocka_unit_test(cast_is_the_formula),
        cmocka_unit_test(products_match),
        cmocka_unit_test(epilogues_match),
        cmocka_unit_test(product_is_the_formula),
        cmocka_unit_test(fast_rows_are_near),
        cmocka_unit_test(bad_products_are_refused),
        cmocka_unit_test(bad_casts_are_refused),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
