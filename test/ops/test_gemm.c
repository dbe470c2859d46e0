/* Every GEMM variant of every device against the oracle, word for word: all forms and epilogues, odd shapes,
 * the shapes of a model by sampled outputs, extreme values, strides, offsets, and NaN around the matrices. */
#include "test/test_util.h"

#include <math.h>
#include <string.h>

#include "runtime/device/clt_clblast.h"
#include "runtime/ops/ref/clt_ref.h"

typedef struct {
    clt_gemm_form form;
    int64_t m, n, k, k_group;
    bool bias, pre, residual, accumulate, extreme, sums;
    clt_activation act, grad_act;
    int64_t pad;  /* elements between the rows of every matrix */
    int samples;  /* compare only this many outputs; 0: all */
    int in_place; /* 1: residual is c, 2: grad_pre is c */
    clt_dtype in, out, aux;
} gemm_case;

typedef struct { /* one matrix, on host and device */
    float *host;
    clt_ref ref;
    size_t n;
    clt_dtype type;
} matrix;

static const char *form_name[] = {"NT", "NN", "TN"};

/* rows x cols with `pad` NaN after each row. */
static matrix make_typed(int device, clt_dtype type, int64_t rows, int64_t cols, int64_t pad, uint64_t seed,
                         bool extreme) {
    const size_t n = (size_t)(rows * (cols + pad));
    matrix x = {.n = n, .type = type, .host = extreme ? tu_extreme(n, seed) : tu_random(n, seed, 1.0f)};
    for (size_t i = 0; i < n; i++) x.host[i] = clt_ref_rounded(type, x.host[i]);
    for (int64_t r = 0; pad && r < rows; r++)
        for (int64_t j = cols; j < cols + pad; j++) x.host[r * (cols + pad) + j] = NAN;
    x.ref = tu_upload_as(device, type, x.host, n);
    return x;
}

/* a or b. Rows with ALIGN take them only if aligned; then the distance between rows is also rounded up. */
static matrix make_operand(int device, int64_t align, clt_dtype type, int64_t rows, int64_t cols, int64_t *ld,
                           uint64_t seed, bool extreme) {
    const int64_t pad = CLT_ROUND_UP(*ld, align) - cols;
    matrix x = make_typed(device, type, rows, cols, pad, seed, extreme);
    *ld = cols + pad;
    if (align == 1) return x;
    const uint64_t size = clt_dtype_bytes(type), words = (x.n * size + 3) / 4, at = 64;
    void *stored = clt_calloc(words, 4);
    clt_ref_narrow(type, x.host, x.n, stored);
    x.ref = tu_upload_at(device, stored, words, at);
    x.ref.off = at * 4 / size;
    clt_free(stored);
    return x;
}

static const clt_variant *row_of(int device, const char *id) {
    int n;
    const clt_variant *row = clt_ops_variants(tu_ops(device), "gemm", &n);
    for (int i = 0; i < n; i++)
        if (!strcmp(row[i].id, id)) return &row[i];
    fail_msg("there is no row %s", id);
    return NULL;
}

static matrix make_matrix(int device, int64_t rows, int64_t cols, int64_t pad, uint64_t seed, bool extreme) {
    return make_typed(device, CLT_F32, rows, cols, pad, seed, extreme);
}

static void compare_samples(const char *what, const gemm_case *t, const clt_ref_gemm_params *r,
                            const float *got_c, const float *got_pre, const float *before) {
    for (int s = 0; s < t->samples; s++) {
        /* the last rows and columns contain the edges */
        const int64_t i =
            s % 8 == 0 ? t->m - 1 - s / 8 % CLT_MIN(t->m, 17) : tu_random_below(91, 2 * (uint64_t)s, t->m);
        const int64_t j = s % 8 == 1 ? t->n - 1 - s / 8 % CLT_MIN(t->n, 49)
                                     : tu_random_below(91, 2 * (uint64_t)s + 1, t->n);
        const size_t at = (size_t)(i * r->ldc + j);
        r->c[at] = before[at];
        clt_ref_gemm_at(r, i, j);
        tu_assert_words(what, got_c + at, r->c + at, 1);
        if (r->pre) tu_assert_words(what, got_pre + i * r->ldpre + j, r->pre + i * r->ldpre + j, 1);
    }
}

static void compare_case(int device, const char *id, const gemm_case *t) {
    const bool tn = t->form == CLT_GEMM_TN, nt = t->form == CLT_GEMM_NT;
    char what[256];
    snprintf(what, sizeof what,
             "%s %s %lldx%lldx%lld/%lld act %d grad %d %s%s%s%s%s pad %lld in place %d of %s, %s, %s", id,
             form_name[t->form], (long long)t->m, (long long)t->n, (long long)t->k, (long long)t->k_group,
             (int)t->act, (int)t->grad_act, t->bias ? "bias " : "", t->pre ? "pre " : "",
             t->residual ? "residual " : "", t->accumulate ? "accumulate " : "", t->extreme ? "extreme" : "",
             (long long)t->pad, t->in_place, clt_dtype_name(t->in), clt_dtype_name(t->out),
             clt_dtype_name(t->aux));
    const int64_t align = clt_variant_param(row_of(device, id), "ALIGN", 1);
    int64_t lda = (tn ? t->m : t->k) + t->pad, ldb = (nt ? t->k : t->n) + t->pad;
    matrix a = make_operand(device, align, t->in, tn ? t->k : t->m, tn ? t->m : t->k, &lda, 1, t->extreme);
    matrix b = make_operand(device, align, t->in, nt ? t->n : t->k, nt ? t->k : t->n, &ldb, 2, t->extreme);
    matrix c = make_typed(device, t->out, t->m, t->n, t->pad, 3, false), bias = {0}, pre = {0}, grad = {0},
           res = {0}, sum = {0};
    if (t->bias) bias = make_matrix(device, 1, t->n, 0, 4, false);
    if (t->pre) pre = make_typed(device, t->aux, t->m, t->n, t->pad, 5, false);
    if (t->grad_act) grad = t->in_place == 2 ? c : make_typed(device, t->aux, t->m, t->n, t->pad, 6, false);
    if (t->residual) res = t->in_place == 1 ? c : make_matrix(device, t->m, t->n, t->pad, 7, false);
    clt_gemm_params p = {.form = t->form, .m = t->m, .n = t->n, .k = t->k, .k_group = t->k_group};
    p.accumulate = t->accumulate, p.act = t->act, p.grad_act = t->grad_act;
    const int64_t ld = t->n + t->pad;
    p.a = clt_tensor_of(a.ref, lda, t->in), p.b = clt_tensor_of(b.ref, ldb, t->in);
    p.c = clt_tensor_of(c.ref, ld, t->out), p.bias = clt_tensor_vector(bias.ref, CLT_F32);
    p.pre = clt_tensor_of(pre.ref, ld, t->aux), p.grad_pre = clt_tensor_of(grad.ref, ld, t->aux);
    p.residual = clt_tensor_of(res.ref, ld, CLT_F32);
    if (t->sums) sum = make_matrix(device, 1, t->m, 0, 8, false);
    p.a_sum = clt_tensor_vector(sum.ref, CLT_F32);
    clt_ref_gemm_params r = clt_ref_gemm_of(&p);
    r.a = a.host, r.b = b.host, r.c = c.host, r.bias = bias.host, r.pre = pre.host;
    r.grad_pre = grad.host, r.residual = res.host;

    tu_assert_ok(clt_op_gemm(tu_ops(device), &p), what);
    float *got_c = tu_download_as(c.ref, c.type, c.n),
          *got_pre = pre.host ? tu_download_as(pre.ref, pre.type, pre.n) : NULL;
    if (t->samples) {
        float *before = clt_memdup(c.host, c.n * sizeof(float));
        compare_samples(what, t, &r, got_c, got_pre, before);
        clt_free(before);
    } else {
        clt_ref_gemm(&r);
        tu_assert_words(what, got_c, c.host, c.n);
        if (pre.host) tu_assert_words(what, got_pre, pre.host, pre.n);
    }
    if (t->sums) {
        clt_ref_column_sum(t->k, t->m, t->k_group, a.host, lda, t->accumulate, sum.host);
        tu_assert_words(what, tu_download(sum.ref, sum.n), sum.host, sum.n);
    }
    float *hosts[] = {a.host,
                      b.host,
                      c.host,
                      bias.host,
                      pre.host,
                      sum.host,
                      t->in_place == 2 ? NULL : grad.host,
                      t->in_place == 1 ? NULL : res.host};
    for (size_t i = 0; i < CLT_COUNT_OF(hosts); i++) clt_free(hosts[i]);
    tu_release();
}

/* A row for GPUs on a CPU, which uses it only if its own rows fail. */
static bool is_spare(int device, const char *id) {
    return clt_device_get_facts(tu_device(device))->type == CLT_DEVICE_CPU &&
           !strstr(row_of(device, id)->requires, "type=cpu");
}

/* Rows without the case's form (FORMS of gemm.vt) take no such calls. Spare rows, which are built without
 * optimization, compute only a corner of large outputs: several tiles, and whole chains. */
static void run_case(int device, const char *id, const gemm_case *t) {
    enum { CORNER = 100 };
    const int bit = (int)t->form + (t->form == CLT_GEMM_TN && t->out != CLT_F32);
    gemm_case part = *t;
    if (tu_left_out()) return;
    if (t->samples && is_spare(device, id) && !tu_complete())
        part.m = CLT_MIN(t->m, CORNER), part.n = CLT_MIN(t->n, CORNER);
    if (clt_variant_param(row_of(device, id), "FORMS", 15) >> bit & 1) compare_case(device, id, &part);
}

static void run_cases(int device, const char *id, const gemm_case *t, size_t n) {
    for (size_t i = 0; i < n; i++) run_case(device, id, &t[i]);
}

/* --- edges: every form at sizes around the tiles' borders --- */

static void edges(int device, const char *id) {
    static const int64_t shape[][3] = {{1, 1, 1},    {1, 1, 7},    {1, 70, 5},  {5, 1, 3},    {13, 17, 19},
                                       {31, 37, 41}, {64, 64, 64}, {8, 32, 16}, {61, 59, 53}, {33, 65, 2}};
    static const int64_t large[][3] = {{127, 131, 67}, {1, 97, 611}, {257, 33, 261}, {80, 96, 48}};
    const int64_t(*list[])[3] = {shape, large};
    const size_t count[] = {CLT_COUNT_OF(shape), tu_brief() ? 0 : CLT_COUNT_OF(large)};
    for (int l = 0; l < 2; l++)
        for (size_t i = 0; i < count[l]; i += tu_brief() ? 2 : 1)
            for (int form = 0; form < 3; form++) {
                const int64_t *s = list[l][i];
                gemm_case t = {.form = (clt_gemm_form)form, .m = s[0], .n = s[1], .k = s[2], .k_group = s[2]};
                /* an interpreter computes the largest once: whole tiles without gaps, others with them */
                const bool once = tu_tiny() && s[0] > 60;
                if (!once || s[0] == 64) run_case(device, id, &t);
                if (once && s[0] == 64) continue;
                t.pad = 3 + (int64_t)i;
                t.accumulate = true;
                run_case(device, id, &t);
            }
}

static void edges_match(void **state) {
    (void)state;
    tu_each_variant("gemm", edges);
}

/* --- epilogues: every combination of tensors --- */

static void epilogues(int device, const char *id) {
    for (int bits = 0; bits < 64; bits += tu_brief() ? 5 : 1) {
        const bool act = bits & 8, grad = bits & 16;
        if (act && grad) continue; /* no model has both in one call */
        gemm_case t = {
            .form = bits & 1 ? CLT_GEMM_NN : CLT_GEMM_NT, .m = 29, .n = 43, .k = 35, .pad = bits % 5};
        t.bias = bits & 2, t.pre = bits & 4, t.residual = bits & 32, t.accumulate = (bits / 2) % 3 == 1;
        t.act = act ? CLT_ACT_GELU : CLT_ACT_NONE;
        t.grad_act = grad ? CLT_ACT_GELU : CLT_ACT_NONE;
        tu_next_case();
        run_case(device, id, &t);
    }
}

static void epilogues_match(void **state) {
    (void)state;
    tu_each_variant("gemm", epilogues);
}

static bool is_first_variant(int device, const char *id) {
    int n;
    const clt_variant *row = clt_ops_variants(tu_ops(device), "gemm", &n);
    return n > 0 && !strcmp(row[0].id, id);
}

/* Every activation in the body that the device would use; the other bodies share its epilogue and run two. */
static void activations(int device, const char *id) {
    const int step = is_first_variant(device, id) ? 1 : 7;
    for (int act = 2; act < CLT_ACT_COUNT; act += step) {
        gemm_case t = {.form = CLT_GEMM_NT, .m = 9, .n = 37, .k = 11, .pre = true};
        t.act = t.grad_act = (clt_activation)act; /* both in one build */
        tu_next_case();
        run_case(device, id, &t);
    }
}

static void activations_match(void **state) {
    (void)state;
    if (tu_tiny()) {
        print_message("[  skipped  ] every activation: 24 builds take minutes under an interpreter\n");
        return;
    }
    tu_each_variant("gemm", activations);
}

/* --- places that are read and written by one call, long chains, groups --- */

static void special(int device, const char *id) {
    static const gemm_case t[] = {
        {.form = CLT_GEMM_NT, .m = 21, .n = 45, .k = 60, .residual = true, .in_place = 1},
        {.form = CLT_GEMM_NN, .m = 21, .n = 45, .k = 60, .grad_act = CLT_ACT_GELU, .in_place = 2},
        {.form = CLT_GEMM_TN, .m = 40, .n = 50, .k = 60, .k_group = 1},
        {.form = CLT_GEMM_TN,
         .m = 40,
         .n = 50,
         .k = 60,
         .k_group = 12,
         .accumulate = true,
         .pad = 1,
         .sums = true},
        {.form = CLT_GEMM_TN, .m = 7, .n = 3, .k = 64, .k_group = 32, .sums = true},
        {.form = CLT_GEMM_TN,
         .m = 40,
         .n = 50,
         .k = 260,
         .k_group = 130,
         .in = CLT_BF16,
         .accumulate = true,
         .sums = true},
    };
    /* chains longer than a block of any body */
    static const gemm_case large[] = {
        {.form = CLT_GEMM_NT,
         .m = 300,
         .n = 40,
         .k = 9001,
         .bias = true,
         .residual = true,
         .in_place = 1,
         .samples = 500},
        {.form = CLT_GEMM_NN, .m = 300, .n = 70, .k = 17003, .accumulate = true, .samples = 500},
        {.form = CLT_GEMM_NN, .m = 300, .n = 70, .k = 17003, .pad = 2, .samples = 500},
        {.form = CLT_GEMM_TN, .m = 50, .n = 70, .k = 9000, .k_group = 4500, .samples = 500},
        {.form = CLT_GEMM_TN,
         .m = 50,
         .n = 70,
         .k = 9002,
         .k_group = 4501,
         .accumulate = true,
         .samples = 500},
        {.form = CLT_GEMM_TN,
         .m = 150,
         .n = 330,
         .k = 3000,
         .k_group = 500,
         .accumulate = true,
         .samples = 500},
        {.form = CLT_GEMM_TN, .m = 150, .n = 1300, .k = 5120, .k_group = 1280, .samples = 500},
    };
    run_cases(device, id, t, CLT_COUNT_OF(t));
    if (!tu_brief()) run_cases(device, id, large, CLT_COUNT_OF(large));
}

static void special_cases_match(void **state) {
    (void)state;
    tu_each_variant("gemm", special);
}

static void extremes(int device, const char *id) {
    static const gemm_case t[] = {
        {.form = CLT_GEMM_NT, .m = 31, .n = 61, .k = 47, .extreme = true, .pad = 2},
        {.form = CLT_GEMM_NN, .m = 31, .n = 61, .k = 47, .extreme = true, .pad = 2, .residual = true},
        {.form = CLT_GEMM_TN, .m = 31, .n = 61, .k = 48, .k_group = 12, .extreme = true, .pad = 2},
    };
    run_cases(device, id, t, CLT_COUNT_OF(t));
}

static void extreme_values_match(void **state) {
    (void)state;
    tu_each_variant("gemm", extremes);
}

/* One inf in a and one NaN in b affect only their row and their column. */
static void nonfinite(int device, const char *id) {
    enum { M = 20, N = 40, K = 32 };
    float *a = tu_random(M * K, 1, 1.0f), *b = tu_random(N * K, 2, 1.0f), *c = tu_random(M * N, 3, 1.0f);
    a[4 * K + 5] = INFINITY;
    b[7 * K + 9] = NAN;
    clt_gemm_params p = {.form = CLT_GEMM_NT, .m = M, .n = N, .k = K};
    const uint64_t at = clt_variant_param(row_of(device, id), "ALIGN", 1) > 1 ? 64 : TU_OFFSET;
    p.a = clt_tensor_of(tu_upload_at(device, a, M * K, at), K, CLT_F32);
    p.b = clt_tensor_of(tu_upload_at(device, b, N * K, at), K, CLT_F32);
    p.c = clt_tensor_of(tu_upload(device, c, M * N), N, CLT_F32);
    tu_assert_ok(clt_op_gemm(tu_ops(device), &p), id);
    float *got = tu_download(p.c.ref, M * N);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) assert_int_equal(!isfinite(got[i * N + j]), i == 4 || j == 7);
    clt_free(a), clt_free(b), clt_free(c);
    tu_release();
}

static void nonfinite_values_spread(void **state) {
    (void)state;
    tu_each_variant("gemm", nonfinite);
}

/* --- a model's shapes --- */

static void model_shapes(int device, const char *id) {
    static const gemm_case t[] = {
        {.form = CLT_GEMM_NT, .m = 256, .n = 2304, .k = 768, .bias = true, .samples = 4096},
        {.form = CLT_GEMM_NT,
         .m = 256,
         .n = 3072,
         .k = 768,
         .act = CLT_ACT_GELU,
         .pre = true,
         .samples = 4096},
        {.form = CLT_GEMM_NT, .m = 256, .n = 768, .k = 3072, .residual = true, .samples = 4096},
        {.form = CLT_GEMM_NN, .m = 256, .n = 3072, .k = 768, .grad_act = CLT_ACT_GELU, .samples = 4096},
        {.form = CLT_GEMM_NN, .m = 256, .n = 768, .k = 2304, .samples = 4096},
        {.form = CLT_GEMM_TN,
         .m = 2304,
         .n = 768,
         .k = 512,
         .k_group = 256,
         .accumulate = true,
         .samples = 4096},
        {.form = CLT_GEMM_TN, .m = 768, .n = 3072, .k = 256, .k_group = 256, .samples = 4096},
    };
    run_cases(device, id, t, CLT_COUNT_OF(t));
}

static void model_shapes_match(void **state) {
    (void)state;
    if (tu_tiny()) {
        print_message("[  skipped  ] shapes of a model: too large for an interpreter\n");
        return;
    }
    tu_each_variant("gemm", model_shapes);
}

/* --- 16-bit tensors: every pair of types, all forms and epilogues, split chains, ragged everywhere --- */

static void half_pair(int device, const char *id, clt_dtype in, clt_dtype out) {
    const clt_dtype aux = in ? in : out;
    for (int form = 0; form < 3; form++) {
        gemm_case t = {
            .form = (clt_gemm_form)form, .m = 37, .n = 61, .k = 69, .k_group = form == 2 && !out ? 23 : 69};
        t.pad = form, t.in = in, t.out = out, t.aux = aux, t.accumulate = form == 2 && !out;
        run_case(device, id, &t);
        t.extreme = !tu_tiny() && in != CLT_F16;
        t.m = 15, t.n = 100, t.pad = 3, t.accumulate = false;
        run_case(device, id, &t);
    }
    if (in != out && aux != CLT_BF16 && !tu_complete()) return;
    gemm_case t = {.form = CLT_GEMM_NT, .m = 29, .n = 43, .k = 35, .pad = 1, .bias = true, .residual = true};
    t.in = in, t.out = out, t.aux = aux;
    run_case(device, id, &t);
    t.act = CLT_ACT_GELU, t.pre = true, t.residual = false;
    run_case(device, id, &t);
    t.form = CLT_GEMM_NN, t.act = CLT_ACT_NONE, t.pre = t.bias = false, t.grad_act = CLT_ACT_GELU;
    t.in_place = aux == out ? 2 : 0;
    run_case(device, id, &t);
}

/* Both 16-bit types in one call, which no run has: one row shows that they are independent. */
static bool mixed(int in, int out) {
    return in && out && in != out;
}

/* Most of the time is that of the compilers: bf16 and fp16 differ in how they are read and written, so rows
 * that a CPU uses only if its own fail take fp16 with fp16 alone, as every row does in a brief test. */
static bool takes_pair(int device, const char *id, int in, int out) {
    if (in == out) return in;
    if (tu_brief()) return false;
    if (mixed(in, out)) return !strcmp(id, "portable");
    return !is_spare(device, id) || tu_complete() || (in != CLT_F16 && out != CLT_F16);
}

static void halves(int device, const char *id) {
    if (!(clt_variant_param(row_of(device, id), "TYPES", 1) & 6)) return;
    for (int in = CLT_F32; in <= CLT_F16; in++)
        for (int out = CLT_F32; out <= CLT_F16; out++)
            if (takes_pair(device, id, in, out)) half_pair(device, id, (clt_dtype)in, (clt_dtype)out);
    if (tu_brief()) return;
    gemm_case t = {.form = CLT_GEMM_NT, .m = 300, .n = 40, .k = 9001, .bias = true, .samples = 500};
    t.in = t.out = CLT_BF16;
    run_case(device, id, &t);
    t.form = CLT_GEMM_NN, t.bias = false, t.n = 70, t.in = t.out = CLT_F16;
    run_case(device, id, &t);
    t.form = CLT_GEMM_TN, t.k_group = 9001, t.m = 150, t.out = CLT_F32;
    run_case(device, id, &t);
    t.in = t.out = CLT_BF16;
    run_case(device, id, &t);
}

static void halves_match(void **state) {
    (void)state;
    tu_each_variant("gemm", halves);
}

/* --- calls that must be refused --- */

static void refused(const clt_gemm_params *p, const char *message) {
    assert_int_equal(clt_op_gemm(tu_ops(0), p), CLT_FAIL);
    if (strcmp(clt_last_error(), message) != 0)
        fail_msg("the message is '%s', not '%s'", clt_last_error(), message);
}

static clt_gemm_params good_call(clt_ref r) {
    const clt_tensor t = clt_tensor_of(r, 4, CLT_F32);
    return (clt_gemm_params){.form = CLT_GEMM_NT, .m = 4, .n = 4, .k = 4, .a = t, .b = t, .c = t};
}

static void bad_calls_are_refused(void **state) {
    (void)state;
    float x[64] = {0};
    const clt_gemm_params good = good_call(tu_upload(0, x, 64));
    clt_gemm_params bad[11];
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) bad[i] = good;
    bad[0].m = 0;
    bad[1].k = -1;
    bad[2].a.ld = 3;
    bad[3].a = clt_tensor_none();
    bad[4].n = 1000;
    bad[5].form = CLT_GEMM_TN, bad[5].k_group = 3;
    bad[6].form = CLT_GEMM_TN, bad[6].k_group = 4, bad[6].bias = good.a;
    bad[7].grad_act = CLT_ACT_GELU;
    bad[8].c.ref.off = 1u << 30;
    bad[9].a_sum = good.a;
    bad[10].form = CLT_GEMM_TN, bad[10].k_group = 4, bad[10].a_sum = clt_tensor_at(good.a, 1 << 18, 0);
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++)
        assert_int_equal(clt_op_gemm(tu_ops(0), &bad[i]), CLT_FAIL);
    tu_assert_ok(clt_op_gemm_prepare(tu_ops(0), &good), "prepare");
    tu_release();
}

/* Combinations without a kernel are refused by name, not computed in another type. */
static void bad_types_are_refused(void **state) {
    (void)state;
    static const clt_scale scale = {.rows = 1, .cols = 128};
    float x[64] = {0};
    const clt_gemm_params good = good_call(tu_upload(0, x, 64));
    clt_gemm_params p = good;
    p.a.type = (clt_dtype)CLT_DTYPE_COUNT;
    refused(&p, "gemm: a is of type unknown; supported: fp32, bf16, fp16");
    p = good, p.b.type = CLT_BF16;
    refused(&p, "gemm: a is of type fp32, but b of type bf16; they must have one type");
    p = good, p.a.scale = &scale;
    refused(&p, "gemm: a is of type fp32, which has no scales, and comes with some");
    p = good, p.bias = clt_tensor_vector(good.a.ref, CLT_F16);
    refused(&p, "gemm: bias is of type fp16; supported: fp32");
    p = good, p.residual = clt_tensor_of(good.a.ref, 4, CLT_BF16);
    refused(&p, "gemm: residual is of type bf16; supported: fp32");
    p = good, p.pre = good.a, p.grad_act = CLT_ACT_GELU, p.grad_pre = clt_tensor_of(good.a.ref, 4, CLT_BF16);
    refused(&p, "gemm: pre is of type fp32, but grad_pre of type bf16; they must have one type");
    p = good, p.c.type = CLT_BF16, p.accumulate = true;
    refused(&p, "gemm: accumulate needs c in fp32, and c is bf16");
    p = good, p.form = CLT_GEMM_TN, p.k_group = 2, p.c.type = CLT_F16;
    refused(&p, "gemm: a weight gradient in fp16 takes one group of rows, not 2");
    p = good, p.c.type = CLT_BF16, p.residual = good.c, p.c.ref.off *= 2;
    refused(&p, "gemm: c, bf16, overlaps residual, fp32; only tensors of one type may overlap");
    p = good, p.grad_act = CLT_ACT_GELU, p.grad_pre = clt_tensor_of(good.a.ref, 4, CLT_BF16);
    p.grad_pre.ref.off *= 2;
    refused(&p, "gemm: c, fp32, overlaps grad_pre, bf16; only tensors of one type may overlap");
    tu_release();
}

/* After prepare, a call neither builds nor allocates, and uses no more memory than planned. */
static void prepared_calls_are_steady(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++) {
        enum { M = 50, N = 60, K = 70 };
        matrix a = make_matrix(d, M, K, 0, 1, false), b = make_matrix(d, K, N, 0, 2, false),
               c = make_matrix(d, M, N, 0, 3, false);
        clt_gemm_params p = {.form = CLT_GEMM_NN,
                             .m = M,
                             .n = N,
                             .k = K,
                             .a = clt_tensor_of(a.ref, K, CLT_F32),
                             .b = clt_tensor_of(b.ref, N, CLT_F32),
                             .c = clt_tensor_of(c.ref, N, CLT_F32)};
        tu_assert_ok(clt_op_gemm_prepare(tu_ops(d), &p), "prepare");
        clt_device_counters before, after;
        clt_device_get_counters(tu_device(d), &before);
        tu_assert_ok(clt_op_gemm(tu_ops(d), &p), "gemm");
        clt_device_get_counters(tu_device(d), &after);
        assert_int_equal(before.programs_built + before.programs_loaded,
                         after.programs_built + after.programs_loaded);
        assert_int_equal(before.buffers_created, after.buffers_created);
        clt_free(a.host), clt_free(b.host), clt_free(c.host);
        tu_release();
    }
}

/* CLBlast with numerics fast. Its check against the oracle runs at its first use. */
static void clblast_is_close(void **state) {
    (void)state;
    enum { M = 70, N = 90, K = 110 };
    if (tu_tiny() || !clt_clblast_available()) {
        print_message("[  skipped  ] CLBlast: %s\n",
                      tu_tiny() ? "too slow under an interpreter" : "it is not installed");
        return;
    }
    clt_ops *ops = tu_fast_ops(0);
    tu_assert_ok(clt_variant_force(ops, "gemm", "clblast"), "force");
    matrix a = make_matrix(0, M, K, 0, 1, false), b = make_matrix(0, K, N, 0, 2, false),
           c = make_matrix(0, M, N, 2, 3, false), bias = make_matrix(0, 1, N, 0, 4, false);
    clt_gemm_params p = {.form = CLT_GEMM_NN, .m = M, .n = N, .k = K};
    p.a = clt_tensor_of(a.ref, K, CLT_F32), p.b = clt_tensor_of(b.ref, N, CLT_F32);
    p.c = p.residual = clt_tensor_of(c.ref, N + 2, CLT_F32), p.bias = clt_tensor_vector(bias.ref, CLT_F32);
    tu_assert_ok(clt_op_gemm(ops, &p), "gemm");
    float *got = tu_download(c.ref, c.n);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0, size = 0;
            for (int k = 0; k < K; k++) {
                const double v = (double)a.host[i * K + k] * (double)b.host[k * N + j];
                sum += v, size += fabs(v);
            }
            const double want = sum + (double)bias.host[j] + (double)c.host[i * (N + 2) + j];
            assert_true(fabs((double)got[i * (N + 2) + j] - want) <= (K + 4) * 0x1p-24 * (size + 2));
        }
    for (int i = 0; i < M; i++) assert_true(isnan(got[i * (N + 2) + N]) && isnan(got[i * (N + 2) + N + 1]));
    clt_free(a.host), clt_free(b.host), clt_free(c.host), clt_free(bias.host);
    tu_release();
    clt_ops_destroy(ops);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_calls_are_refused),
        cmocka_unit_test(bad_types_are_refused),
        cmocka_unit_test(prepared_calls_are_steady),
        cmocka_unit_test(edges_match),
        cmocka_unit_test(epilogues_match),
        cmocka_unit_test(activations_match),
        cmocka_unit_test(special_cases_match),
        cmocka_unit_test(extreme_values_match),
        cmocka_unit_test(nonfinite_values_spread),
        cmocka_unit_test(model_shapes_match),
        cmocka_unit_test(halves_match),
        cmocka_unit_test(clblast_is_close),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
