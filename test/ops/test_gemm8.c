/* Every variant of the product of 8-bit blocks, on every device, against the oracle, word for word: all
 * forms, scales per row and per tile, epilogues, ragged shapes, extreme numbers and scales, quantised
 * operands, chains that are interrupted; the oracle against the formula in double; what is refused. */
#include "test/test_util.h"

#include <math.h>
#include <string.h>

#include "runtime/ops/ref/clt_ref.h"

typedef struct {
    clt_gemm8_form form;
    int64_t m, n, blocks, group; /* blocks of k, of a sample */
    int32_t block;
    bool a_tile, b_tile, accumulate, bias, pre, residual;
    clt_activation act, grad_act;
    clt_dtype out, aux;
    int kind;     /* of operands: make_operand */
    int64_t pad;  /* elements between the rows of c and its companions */
    int in_place; /* 1: residual is c, 2: grad_pre is c */
    int samples;  /* compare only this many outputs; 0: all */
} gemm8_case;

enum { FIRST = 40 /* words before the numbers in their buffer: a multiple of 16 bytes */ };

typedef struct { /* an operand on both sides */
    clt_blocks8 device;
    clt_ref_blocks8 host;
} operand;

/* --- operands --- */

/* Kinds of scales: 0 ordinary; 1 with zeros and all sizes up to 2^60; 2 their products overflow and
 * underflow; 3 with NaN, as the blocks of an infinity have. Kind 4: all numbers -128 or 127, scales of 1. */
static float make_scale(int kind, uint64_t i, uint64_t seed) {
    const int e = (int)tu_random_below(seed, i, 24);
    const double bits8 =
        (double)(128 + tu_random_below(seed + 1, i, 128)) / 128; /* as quantising makes them */
    if (kind == 4) return 1.0f;
    if (kind > 0 && i % 9 == 4) return 0.0f;
    if (kind == 3 && i % 37 == 5) return NAN;
    if (kind == 1) return (float)ldexp(bits8, 60 - 5 * e);
    if (kind == 2) return (float)ldexp(bits8, i % 2 ? 122 - e : -126 + e);
    return (float)ldexp(bits8, e / 4 - 8);
}

/* Scales of the even kinds are where copy engines need them: at multiples of 16 bytes. */
static bool has_aligned_scales(const gemm8_case *t) {
    return t->kind % 2 == 0;
}

static operand make_operand(int d, const gemm8_case *t, int64_t rows, bool tile, uint64_t seed) {
    const int64_t k = t->blocks * t->block, ld = k + (t->kind ? 32 : 0);
    const int64_t places = tile ? CLT_CEIL_DIV(rows, t->block) : rows;
    const int64_t ld_scale = has_aligned_scales(t) ? CLT_ROUND_UP(places, (int64_t)4) : places + 3;
    const size_t words = (size_t)(rows * ld / 4), scales = (size_t)(t->blocks * ld_scale);
    int32_t *q = clt_malloc(words * 4);
    float *s = clt_malloc(scales * 4);
    for (size_t i = 0; i < words; i++) q[i] = (int32_t)tu_random_word(seed, i);
    for (size_t i = 0; t->kind == 4 && i < words * 4; i++)
        ((int8_t *)q)[i] = seed % 2 || i % 1024 < 512 ? -128 : 127;
    for (size_t i = 0; i < scales; i++) s[i] = make_scale(t->kind, i, seed + 10);
    operand o = {.host = {(int8_t *)q, ld, s, ld_scale, t->block, tile ? t->block : 1}};
    const clt_ref at = tu_upload_at(d, q, words, FIRST);
    o.device = (clt_blocks8){{at.buf, at.off * 4}, ld, clt_ref_none(), ld_scale, t->block, o.host.tile};
    o.device.scale = has_aligned_scales(t) ? tu_upload_at(d, s, scales, FIRST) : tu_upload(d, s, scales);
    return o;
}

static void free_operand(operand *o) {
    clt_free(o->host.q);
    clt_free(o->host.scale);
}

typedef struct { /* c or one of its companions */
    float *host;
    clt_tensor t;
    size_t n;
} matrix;

static matrix make_matrix(int d, clt_dtype type, int64_t rows, int64_t cols, int64_t pad, uint64_t seed) {
    matrix x = {.n = (size_t)(rows * (cols + pad))};
    x.host = tu_random(x.n, seed, 1.0f);
    clt_ref_round(type, x.host, x.n);
    for (int64_t r = 0; pad && r < rows; r++)
        for (int64_t j = cols; j < cols + pad; j++) x.host[r * (cols + pad) + j] = NAN;
    x.t = clt_tensor_of(tu_upload_as(d, type, x.host, x.n), cols + pad, type);
    return x;
}

/* --- one call --- */

typedef struct {
    operand a, b;
    matrix c, bias, pre, grad, residual;
    clt_gemm8_params p;
    clt_ref_gemm8_params ref;
} call;

static call make_call(int d, const gemm8_case *t) {
    call x = {.a = make_operand(d, t, t->m, t->a_tile, 1), .b = make_operand(d, t, t->n, t->b_tile, 2)};
    x.c = make_matrix(d, t->out, t->m, t->n, t->pad, 3);
    x.p = (clt_gemm8_params){.form = t->form, .m = t->m, .n = t->n, .k = t->blocks * t->block};
    x.p.k_group = t->group * t->block;
    x.p.a = x.a.device, x.p.b = x.b.device, x.p.c = x.c.t, x.p.accumulate = t->accumulate;
    x.p.act = t->act, x.p.grad_act = t->grad_act, x.p.pre.type = t->aux;
    if (t->bias) x.bias = make_matrix(d, CLT_F32, 1, t->n, 0, 4), x.p.bias = x.bias.t;
    if (t->pre) x.pre = make_matrix(d, t->aux, t->m, t->n, t->pad, 5), x.p.pre = x.pre.t;
    if (t->grad_act)
        x.grad = t->in_place == 2 ? x.c : make_matrix(d, t->aux, t->m, t->n, t->pad, 6),
        x.p.grad_pre = x.grad.t;
    if (t->residual)
        x.residual = t->in_place == 1 ? x.c : make_matrix(d, CLT_F32, t->m, t->n, t->pad, 7),
        x.p.residual = x.residual.t;
    x.ref = (clt_ref_gemm8_params){.form = t->form, .a = x.a.host, .b = x.b.host};
    const clt_gemm_params to = {.m = t->m,
                                .n = t->n,
                                .k = x.p.k,
                                .k_group = x.p.k_group,
                                .c = x.p.c,
                                .accumulate = t->accumulate,
                                .act = t->act,
                                .pre = x.p.pre,
                                .grad_act = t->grad_act,
                                .grad_pre = x.p.grad_pre,
                                .residual = x.p.residual};
    x.ref.to = clt_ref_gemm_of(&to);
    x.ref.to.c = x.c.host, x.ref.to.bias = x.bias.host, x.ref.to.pre = x.pre.host;
    x.ref.to.grad_pre = x.grad.host, x.ref.to.residual = x.residual.host;
    return x;
}

static void free_call(call *x, const gemm8_case *t) {
    free_operand(&x->a);
    free_operand(&x->b);
    clt_free(x->c.host), clt_free(x->bias.host), clt_free(x->pre.host);
    if (t->in_place != 2) clt_free(x->grad.host);
    if (t->in_place != 1) clt_free(x->residual.host);
    tu_release();
}

static void describe(const char *id, const gemm8_case *t, char what[256]) {
    static const char *const form[] = {"product", "samples", "chain"};
    snprintf(what, 256,
             "%s %s %lldx%lld, %lld blocks of %d/%lld%s%s act %d grad %d %s%s%s%s numbers %d to %s", id,
             form[t->form], (long long)t->m, (long long)t->n, (long long)t->blocks, (int)t->block,
             (long long)t->group, t->a_tile ? ", a tiles" : "", t->b_tile ? ", b tiles" : "", (int)t->act,
             (int)t->grad_act, t->bias ? "bias " : "", t->pre ? "pre " : "", t->residual ? "residual " : "",
             t->accumulate ? "accumulate " : "", t->kind, clt_dtype_name(t->out));
}

static void compare_samples(const char *what, const gemm8_case *t, const call *x, const float *got) {
    for (int s = 0; s < t->samples; s++) {
        const int64_t i =
            s % 8 ? tu_random_below(91, 2 * (uint64_t)s, t->m) : t->m - 1 - s / 8 % CLT_MIN(t->m, 17);
        const int64_t j = s % 8 != 1 ? tu_random_below(91, 2 * (uint64_t)s + 1, t->n)
                                     : t->n - 1 - s / 8 % CLT_MIN(t->n, 49);
        const size_t at = (size_t)(i * x->ref.to.ldc + j);
        const float before = x->c.host[at];
        clt_ref_gemm8_at(&x->ref, i, j);
        tu_assert_words(what, got + at, x->c.host + at, 1);
        x->c.host[at] = before;
    }
}

static void run_case(int d, const char *id, const gemm8_case *t) {
    char what[256];
    if (tu_left_out()) return;
    describe(id, t, what);
    call x = make_call(d, t);
    tu_assert_ok(clt_op_gemm8(tu_ops(d), &x.p), what);
    const float *got = tu_download_as(x.c.t.ref, t->out, x.c.n);
    if (t->samples) {
        compare_samples(what, t, &x, got);
    } else {
        clt_ref_gemm8(&x.ref);
        tu_assert_words(what, got, x.c.host, x.c.n);
        if (t->pre) tu_assert_words(what, tu_download_as(x.pre.t.ref, t->aux, x.pre.n), x.pre.host, x.pre.n);
    }
    free_call(&x, t);
}

/* Calls that the forced row does not take are left out. */
static bool takes(int d, const char *id, const gemm8_case *t) {
    int n;
    const clt_variant *row = clt_ops_variants(tu_ops(d), "gemm8", &n);
    while (n > 0 && strcmp(row->id, id)) row++, n--;
    assert_true(n > 0);
    const int64_t align = clt_variant_param(row, "ALIGN_C", 1);
    const int64_t at = 64; /* tu_upload's places are odd */
    if (clt_variant_param(row, "ALIGN_S", 1) > 1 && !t->b_tile && !has_aligned_scales(t)) return false;
    return (clt_variant_param(row, "FORMS", -1) >> t->form & 1) &&
           (clt_variant_param(row, "SCALES", -1) >> (t->a_tile + 2 * t->b_tile) & 1) &&
           (clt_variant_param(row, "TYPES", -1) >> t->out & 1) && (align == 1 || at % align);
}

static void run_cases(int d, const char *id, const gemm8_case *t, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (takes(d, id, &t[i])) run_case(d, id, &t[i]);
}

/* Rows that the device would not use get fewer cases: they share everything but the inner loop. */
static bool is_first(int d, const char *id) {
    int n;
    const clt_variant *row = clt_ops_variants(tu_ops(d), "gemm8", &n);
    return !strcmp(row->id, id);
}

/* --- ragged sizes, every form and shape of scales --- */

static void ragged(int d, const char *id) {
    static const int64_t shape[][3] = {{1, 1, 1},   {15, 17, 2},   {17, 127, 1}, {129, 1, 3},
                                       {64, 64, 2}, {31, 129, 16}, {127, 65, 5}, {1, 300, 2}};
    for (size_t i = 0; i < CLT_COUNT_OF(shape); i += tu_brief() ? 3 : 1)
        for (int bits = 0; bits < 5; bits++) { /* each combination below is a program */
            /* an interpreter computes a large one once */
            const bool large = shape[i][0] * shape[i][1] * shape[i][2] > 10000;
            if (tu_tiny() && large && bits != (int)i % 5) continue;
            gemm8_case t = {.form = (clt_gemm8_form)CLT_MAX(bits - 2, 0), .m = shape[i][0], .n = shape[i][1]};
            t.blocks = shape[i][2], t.group = t.blocks % 2 ? t.blocks : t.blocks / 2;
            t.a_tile = bits == 2, t.b_tile = bits == 1 || bits == 2;
            t.block = bits == 1 || bits == 4 ? 64 : 128;
            t.accumulate = (bits / 2 + (int)i) % 2, t.pad = bits % 4, t.kind = (int)(i + (size_t)bits) % 5;
            run_cases(d, id, &t, 1);
        }
}

static void ragged_shapes_match(void **state) {
    (void)state;
    tu_each_variant("gemm8", ragged);
}

/* --- epilogues --- */

static void epilogues(int d, const char *id) {
    const bool first = is_first(d, id);
    for (int bits = 0; bits < 64; bits += first && !tu_brief() ? 1 : 5) {
        const bool act = bits & 8, grad = bits & 16;
        if (act && grad) continue; /* no model has both in one call */
        gemm8_case t = {.m = 29, .n = 43, .blocks = 2, .block = 64, .b_tile = true, .pad = bits % 5};
        t.bias = bits & 2, t.pre = bits & 4, t.residual = bits & 32;
        t.act = act ? CLT_ACT_GELU : CLT_ACT_NONE;
        t.grad_act = grad ? CLT_ACT_GELU : CLT_ACT_NONE;
        t.out = t.aux = act ? CLT_BF16 : grad && first ? CLT_F16 : CLT_F32;
        t.accumulate = t.out == CLT_F32 && bits % 3 == 1;
        tu_next_case();
        run_cases(d, id, &t, 1);
    }
    const gemm8_case same[] = {
        {.m = 21, .n = 45, .blocks = 2, .block = 64, .residual = true, .in_place = 1},
        {.m = 21, .n = 45, .blocks = 2, .block = 64, .grad_act = CLT_ACT_GELU, .in_place = 2}};
    run_cases(d, id, same, CLT_COUNT_OF(same));
}

static void epilogues_match(void **state) {
    (void)state;
    tu_each_variant("gemm8", epilogues);
}

/* --- a model's shapes, long chains --- */

static void model(int d, const char *id) {
    static const gemm8_case t[] = {
        {.m = 256, .n = 2304, .blocks = 6, .block = 128, .b_tile = true, .bias = true, .samples = 4096},
        {.m = 255, .n = 768, .blocks = 24, .block = 128, .b_tile = true, .residual = true, .samples = 4096},
        {.m = 130,
         .n = 256,
         .blocks = 40,
         .block = 128,
         .b_tile = true,
         .residual = true,
         .out = CLT_BF16,
         .samples = 4096}, /* a head's data gradient with the ones apart */
        {.m = 2047, .n = 129, .blocks = 3, .block = 64, .kind = 1, .samples = 4096},
        {.form = CLT_GEMM8_SAMPLES,
         .m = 768,
         .n = 300,
         .blocks = 16,
         .group = 4,
         .block = 128,
         .samples = 4096},
        {.form = CLT_GEMM8_CHAIN,
         .m = 300,
         .n = 768,
         .blocks = 40,
         .block = 128,
         .accumulate = true,
         .samples = 4096},
        {.m = 40, .n = 50, .blocks = 400, .block = 64, .kind = 4, .samples = 500}};
    const size_t n = tu_brief() ? 0 : is_first(d, id) ? CLT_COUNT_OF(t) : 2;
    run_cases(d, id, t + CLT_COUNT_OF(t) - n, n);
}

static void model_shapes_match(void **state) {
    (void)state;
    tu_each_variant("gemm8", model);
}

/* --- random cases --- */

static gemm8_case drawn[2000];
static size_t n_drawn;

static gemm8_case draw(void) {
    gemm8_case t = {.form = (clt_gemm8_form)tu_draw(3), .block = tu_one_in(2) ? 64 : 128, .pad = tu_draw(5)};
    t.m = 1 + tu_draw(tu_one_in(2) ? 40 : 500), t.n = 1 + tu_draw(tu_one_in(2) ? 40 : 500);
    t.blocks = 1 + tu_draw(CLT_MIN(24, 1 + 40000000 / (t.m * t.n * t.block)));
    t.kind = (int)tu_draw(5);
    do {
        t.group = t.form == CLT_GEMM8_SAMPLES ? 1 + tu_draw(t.blocks) : t.blocks;
    } while (t.blocks % t.group);
    if (t.form != CLT_GEMM8_PRODUCT) {
        t.accumulate = tu_one_in(2);
        return t;
    }
    t.b_tile = tu_one_in(2), t.a_tile = t.b_tile && tu_one_in(3);
    t.bias = tu_one_in(3), t.residual = tu_one_in(3);
    t.out = t.aux = (clt_dtype)tu_draw(CLT_DTYPE_COUNT);
    t.accumulate = t.out == CLT_F32 && tu_one_in(3);
    if (t.kind == 0 && tu_one_in(3)) {
        t.pre = tu_one_in(2), t.act = CLT_ACT_GELU;
    } else if (t.kind == 0 && tu_one_in(2)) {
        t.grad_act = CLT_ACT_GELU;
    }
    return t;
}

static void random_cases(int d, const char *id) {
    char what[256];
    for (size_t i = 0; i < n_drawn; i++) {
        if (!takes(d, id, &drawn[i])) continue;
        describe(id, &drawn[i], what);
        tu_say_random(what);
        run_case(d, id, &drawn[i]);
    }
}

static void random_cases_match(void **state) {
    (void)state;
    n_drawn = (size_t)CLT_MIN(tu_random_cases(), (int)CLT_COUNT_OF(drawn));
    for (size_t i = 0; i < n_drawn; i++) drawn[i] = draw();
    tu_each_variant("gemm8", random_cases);
}

/* --- what the contract promises --- */

/* The sum of a block of -128 * -128 and of -128 * 127 is exact, also in fp32. */
static void oracle_is_the_formula(void **state) {
    (void)state;
    for (int kind = 0; kind < 5; kind += 4) {
        const gemm8_case t = {.m = 9, .n = 11, .blocks = 3, .block = 128, .kind = kind};
        call x = make_call(0, &t);
        clt_ref_gemm8(&x.ref);
        for (int64_t i = 0; i < t.m; i++)
            for (int64_t j = 0; j < t.n; j++) {
                double sum = 0, size = 0;
                for (int64_t k = 0; k < x.p.k; k++) {
                    const clt_ref_blocks8 *a = &x.a.host, *b = &x.b.host;
                    const double s = (double)a->scale[k / 128 * a->ld_scale + i],
                                 u = (double)b->scale[k / 128 * b->ld_scale + j];
                    const double v = (double)a->q[i * a->ld + k] * s * (double)b->q[j * b->ld + k] * u;
                    sum += v, size += fabs(v);
                }
                const double off = fabs((double)x.c.host[i * t.n + j] - sum);
                assert_true(kind == 4 ? off == 0 : off <= 0x1p-22 * size);
            }
        free_call(&x, &t);
    }
}

/* A chain that is interrupted after any block and continued has the bits of the whole one. */
static void interrupted(int d, const char *id) {
    const gemm8_case t = {.form = CLT_GEMM8_CHAIN,
                          .m = 37,
                          .n = 150,
                          .blocks = 7,
                          .block = 128,
                          .b_tile = true,
                          .accumulate = true};
    if (!takes(d, id, &t)) return;
    call x = make_call(d, &t);
    for (int64_t from = 0, to = 1; from < t.blocks; from = to, to += to) {
        clt_gemm8_params part = x.p;
        const int64_t n = CLT_MIN(to, t.blocks) - from;
        part.k = n * t.block;
        part.a.q.off += (uint64_t)(from * t.block), part.b.q.off += (uint64_t)(from * t.block);
        part.a.scale.off += (uint64_t)(from * x.p.a.ld_scale),
            part.b.scale.off += (uint64_t)(from * x.p.b.ld_scale);
        tu_assert_ok(clt_op_gemm8(tu_ops(d), &part), id);
    }
    clt_ref_gemm8(&x.ref);
    tu_assert_words(id, tu_download(x.c.t.ref, x.c.n), x.c.host, x.c.n);
    free_call(&x, &t);
}

static void interrupted_chains_match(void **state) {
    (void)state;
    tu_each_variant("gemm8", interrupted);
}

/* --- what is refused --- */

static void refuse(const clt_gemm8_params *p, const char *message) {
    assert_int_equal(clt_op_gemm8(tu_ops(0), p), CLT_FAIL);
    if (!strstr(clt_last_error(), message)) fail_msg("'%s' does not contain '%s'", clt_last_error(), message);
}

static void bad_calls_are_refused(void **state) {
    (void)state;
    const gemm8_case t = {.m = 5, .n = 6, .blocks = 4, .group = 2, .block = 64, .form = CLT_GEMM8_SAMPLES};
    call x = make_call(0, &t);
    tu_assert_ok(clt_op_gemm8(tu_ops(0), &x.p), "gemm8");
    clt_gemm8_params p;
#define REFUSE(change, message) p = x.p, change, refuse(&p, message)
    REFUSE(p.m = 0, "sizes 0 x 6 x 256");
    REFUSE(p.k = 100, "no whole blocks of 64");
    REFUSE(p.k_group = 96, "samples of 96 elements");
    REFUSE(p.k_group = 192, "samples of 192 elements");
    REFUSE(p.k = 320, "exceeds its buffer");
    REFUSE(p.m = 500, "exceeds its buffer");
    REFUSE(p.form = (clt_gemm8_form)3, "unknown form 3");
    REFUSE(p.a.block = p.a.tile = 128, "a has blocks of 128 and b of 64");
    REFUSE(p.a.block = 100, "supported: 64, 128");
    REFUSE(p.b.tile = 32, "supported: 1, 64");
    REFUSE(p.b.ld += 4, "multiples of 16");
    REFUSE(p.b.scale.buf = NULL, "missing");
    REFUSE(p.b.ld_scale = 5, "scales of b");
    REFUSE(p.c.ref.buf = NULL, "c is missing");
    REFUSE(p.c.ld = 5, "rows of c are 5 apart");
    REFUSE(p.c.type = CLT_BF16, "needs c in fp32");
    REFUSE(p.act = CLT_ACT_GELU, "takes no bias, activation or residual");
    REFUSE(p.residual = p.c, "takes no bias, activation or residual");
    REFUSE((p.form = CLT_GEMM8_PRODUCT, p.grad_act = CLT_ACT_GELU), "must be given together");
    REFUSE((p.form = CLT_GEMM8_PRODUCT, p.c.type = CLT_F16, p.accumulate = true),
           "accumulate needs c in fp32");
    free_call(&x, &t);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest by_chance[] = {cmocka_unit_test(random_cases_match)};
    if (tu_random_cases()) return tu_run(by_chance, CLT_COUNT_OF(by_chance));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_is_the_formula),    cmocka_unit_test(bad_calls_are_refused),
        cmocka_unit_test(ragged_shapes_match),      cmocka_unit_test(epilogues_match),
        cmocka_unit_test(interrupted_chains_match), cmocka_unit_test(model_shapes_match),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
