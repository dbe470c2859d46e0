/* The check of a GEMM variant: small shapes with every kind of edge, compared with the oracle. Exact rows
 * must give its words. Rows of `numerics: fast` may add in any order and must stay within a bound of the
 * exact sums. */
#include "runtime/ops/clt_op_gemm_internal.h"

#include <math.h>
#include <string.h>

#include "runtime/base/clt_philox.h"
#include "runtime/base/clt_thread.h"
#include "runtime/ops/ref/clt_ref.h"

enum { GAP = 20, MOST_FLOATS = 1 << 20, MOST_PARTS = 8 };

/* One matrix, including the gaps between its rows; it starts at word `at` of the buffer. */
typedef struct {
    size_t at, n;
    clt_dtype type;
    size_t shift; /* elements: 16-bit matrices start in the middle of a word, unless the row requires
                     alignment */
} check_part;

/* A case's matrices lie in one buffer, with NaN in all gaps: a kernel that reads a gap shows it. The host has
 * a float for every word of the buffer. */
typedef struct {
    clt_gemm_params p;
    clt_ref_gemm_params ref;
    float *host;
    size_t used;
    clt_buffer *buf;
    check_part part[MOST_PARTS];
    int parts;
    clt_dtype in;
    size_t align, align_c;
    float *again;   /* in host: the expected output besides c */
    bool has_again; /* the row computes it in the same launch */
    float *sum;     /* in host: a_sum */
    bool has_sums;  /* the row computes it in the same launch */
    float scale;
    bool one_hot; /* a: one 1 in each row (TN: in each column) */
} check_case;

typedef struct {
    clt_gemm_form form;
    int64_t m, n, k, k_group;
    bool bias, residual, accumulate;
    clt_activation act, grad_act;
    bool wide;   /* c in fp32, whatever the type of a and b */
    bool ragged; /* rows of grad_pre and residual are unaligned */
} check_shape;

static void fill(float *x, size_t n, uint32_t seed, float scale) {
    const uint32_t key[2] = {seed, 0x6e6d6d};
    for (size_t i = 0; i < n; i += 4) {
        const uint32_t counter[4] = {(uint32_t)(i / 4), 0, 0, 0};
        uint32_t out[4];
        clt_philox4x32(counter, key, out);
        for (size_t j = 0; j < 4 && i + j < n; j++) x[i + j] = scale * ((float)(int32_t)out[j] * 0x1p-31f);
    }
}

/* Gives t, whose type and row distance are set, a place and random numbers; the gaps between its rows stay
 * NaN. Returns the host's copy. */
static float *add_matrix(check_case *c, int64_t rows, int64_t cols, float scale, clt_tensor *t) {
    c->used = CLT_ROUND_UP(c->used, c->align * 4);
    check_part part = {c->used, (size_t)(rows * t->ld), t->type, c->align == 1 && t->type != CLT_F32};
    float *at = c->host + c->used;
    for (int64_t r = 0; r < rows; r++) {
        fill(at + r * t->ld, (size_t)cols, (uint32_t)(c->used + (size_t)r), scale);
        for (int64_t j = 0; j < cols; j++) at[r * t->ld + j] = clt_ref_rounded(t->type, at[r * t->ld + j]);
    }
    c->part[c->parts++] = part;
    t->ref = (clt_ref){c->buf, c->used * 4 / clt_dtype_bytes(t->type) + part.shift};
    c->used += part.n + GAP;
    return at;
}

static void make_one_hot(float *a, int64_t rows, int64_t cols, int64_t ld, bool columns) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < cols; j++)
            a[r * ld + j] = columns ? (float)(j * 7 % rows == r) : (float)(r * 7 % cols == j);
}

/* The call's sizes, types and row distances, without places. */
static clt_gemm_params call_of(const check_case *c, const check_shape *s) {
    const bool tn = s->form == CLT_GEMM_TN, nt = s->form == CLT_GEMM_NT;
    const int64_t align = (int64_t)c->align, ld = CLT_ROUND_UP(s->n + 7, (int64_t)c->align_c);
    const clt_tensor ragged = {.ld = ld + s->ragged, .type = c->in};
    return (clt_gemm_params){
        .form = s->form,
        .m = s->m,
        .n = s->n,
        .k = s->k,
        .k_group = s->k_group,
        .accumulate = s->accumulate,
        .act = s->act,
        .grad_act = s->grad_act,
        .a = {.ld = CLT_ROUND_UP((tn ? s->m : s->k) + 3, align), .type = c->in},
        .b = {.ld = CLT_ROUND_UP((nt ? s->k : s->n) + 5, align), .type = c->in},
        .c = {.ld = ld, .type = s->wide || tn ? CLT_F32 : c->in},
        .pre = {.ld = ld, .type = c->in},
        .grad_pre = ragged,
        .again = ragged,
        .residual = {.ld = ragged.ld},
        .bias = {.ld = s->n},
        .a_sum = {.ld = s->m},
    };
}

static void build_case(check_case *c, const check_shape *s) {
    const bool tn = s->form == CLT_GEMM_TN, nt = s->form == CLT_GEMM_NT;
    clt_gemm_params *p = &c->p;
    clt_ref_gemm_params *r = &c->ref;
    *p = call_of(c, s);
    *r = clt_ref_gemm_of(p);
    c->used = GAP;
    c->parts = 0;
    for (size_t i = 0; i < MOST_FLOATS; i++) c->host[i] = (float)(0.0 / 0.0);
    float *a = add_matrix(c, tn ? s->k : s->m, tn ? s->m : s->k, c->scale, &p->a);
    if (c->one_hot) make_one_hot(a, tn ? s->k : s->m, tn ? s->m : s->k, p->a.ld, tn);
    r->a = a;
    r->b = add_matrix(c, nt ? s->n : s->k, nt ? s->k : s->n, c->scale, &p->b);
    r->c = add_matrix(c, s->m, s->n, 1, &p->c);
    if (s->bias) r->bias = add_matrix(c, 1, s->n, 1, &p->bias);
    if (s->residual) r->residual = add_matrix(c, s->m, s->n, 1, &p->residual);
    if (s->act) r->pre = add_matrix(c, s->m, s->n, 1, &p->pre);
    if (s->grad_act) r->grad_pre = add_matrix(c, s->m, s->n, 1, &p->grad_pre);
    c->again = NULL;
    if (s->grad_act && !s->ragged && c->has_again) c->again = add_matrix(c, s->m, s->n, 1, &p->again);
    c->sum = tn && c->has_sums ? add_matrix(c, 1, s->m, 1, &p->a_sum) : NULL;
}

/* --- the device's side --- */

static uint8_t *place_of(const check_case *c, uint8_t *bytes, int i) {
    return bytes + c->part[i].at * 4 + c->part[i].shift * clt_dtype_bytes(c->part[i].type);
}

static clt_status upload(const check_case *c) {
    uint8_t *bytes = clt_try_malloc(c->used * 4);
    if (!bytes) return clt_no_memory("checking a matrix product", c->used * 4);
    memset(bytes, 0xff, c->used * 4); /* NaN in every type */
    for (int i = 0; i < c->parts; i++)
        clt_ref_narrow(c->part[i].type, c->host + c->part[i].at, c->part[i].n, place_of(c, bytes, i));
    const clt_status st = clt_buffer_write(c->buf, 0, bytes, c->used * 4);
    clt_free(bytes);
    return st;
}

/* got: a float for every word, as in c->host. Everything outside the matrices must be unchanged. */
static clt_status download(clt_ops *ops, const check_case *c, const char *what, float *got) {
    uint8_t *bytes = clt_try_malloc(c->used * 4);
    if (!bytes) return clt_no_memory("checking a matrix product", c->used * 4);
    clt_status st = clt_buffer_read(c->buf, 0, bytes, c->used * 4);
    for (int i = 0; st == CLT_OK && i < c->parts; i++) {
        const check_part *part = &c->part[i];
        clt_ref_widen(part->type, place_of(c, bytes, i), part->n, got + part->at);
        memset(place_of(c, bytes, i), 0xff, part->n * clt_dtype_bytes(part->type));
    }
    for (size_t i = 0; st == CLT_OK && i < c->used * 4; i++)
        if (bytes[i] != 0xff)
            st = clt_variant_fail(ops, "%s: writes outside its tensors, %zu bytes from the buffer's start",
                                  what, i);
    clt_free(bytes);
    return st;
}

/* --- comparing --- */

static bool same_word(float a, float b) {
    return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

static clt_status compare_exact(clt_ops *ops, const check_case *c, const char *what, const float *got) {
    for (int i = 0; i < c->parts; i++)
        for (size_t e = c->part[i].at; e < c->part[i].at + c->part[i].n; e++)
            if (!same_word(got[e], c->host[e]))
                return clt_variant_fail(ops, "%s: word %zu is %.9g, the oracle has %.9g", what, e,
                                        (double)got[e], (double)c->host[e]);
    return CLT_OK;
}

/* The expected outputs, computed by all cores, because a first start waits for them. */
typedef struct {
    const check_case *c;
    const float *before;
    clt_ref_gemm_near *near; /* [m, n] */
} near_outputs;

static void near_row(void *ctx, size_t i) {
    const near_outputs *all = ctx;
    const clt_ref_gemm_params *r = &all->c->ref;
    const float *before = all->before + (r->c - all->c->host) + (int64_t)i * r->ldc;
    for (int64_t j = 0; j < r->n; j++)
        all->near[(int64_t)i * r->n + j] = clt_ref_gemm_near_at(r, (int64_t)i, j, (double)before[j]);
}

static clt_status compare_outputs(clt_ops *ops, const check_case *c, const char *what, const float *got,
                                  const clt_ref_gemm_near *near) {
    const clt_ref_gemm_params *r = &c->ref;
    const float *out = got + (r->c - c->host), *pre = r->pre ? got + (r->pre - c->host) : NULL;
    for (int64_t i = 0; i < r->m; i++)
        for (int64_t j = 0; j < r->n; j++, near++)
            if (fabs((double)out[i * r->ldc + j] - near->c) > near->c_bound ||
                (pre && fabs((double)pre[i * r->ldpre + j] - near->pre) > near->pre_bound))
                return clt_variant_fail(
                    ops, "%s: output (%lld, %lld) is %.9g, the exact value is %.9g, the bound %.3g", what,
                    (long long)i, (long long)j, (double)out[i * r->ldc + j], near->c, near->c_bound);
    return CLT_OK;
}

/* `before`: the host's words before the call. */
static clt_status compare_near(clt_ops *ops, const check_case *c, const char *what, const float *got,
                               const float *before) {
    for (size_t e = 0; e < c->used; e++)
        if (isnan(got[e]) != isnan(c->host[e]))
            return clt_variant_fail(ops, "%s: word %zu is %.9g, the oracle has %.9g", what, e, (double)got[e],
                                    (double)c->host[e]);
    const size_t bytes = (size_t)(c->ref.m * c->ref.n) * sizeof(clt_ref_gemm_near);
    near_outputs all = {c, before, clt_try_malloc(bytes)};
    if (!all.near) return clt_no_memory("checking a matrix product", bytes);
    clt_parallel_for((size_t)c->ref.m, 0, near_row, &all);
    const clt_status st = compare_outputs(ops, c, what, got, all.near);
    clt_free(all.near);
    return st;
}

static clt_status compare_sums(clt_ops *ops, const check_case *c, const char *what, const float *got,
                               const float *before) {
    for (int64_t i = 0; i < c->ref.m; i++) {
        const size_t e = (size_t)(c->sum - c->host) + (size_t)i;
        const clt_ref_gemm_near near = clt_ref_gemm_near_sum(&c->ref, i, (double)before[e]);
        if (fabs((double)got[e] - near.c) > near.c_bound)
            return clt_variant_fail(
                ops, "%s: the sum of a's column %lld is %.9g, the exact value is %.9g, the bound %.3g", what,
                (long long)i, (double)got[e], near.c, near.c_bound);
    }
    return CLT_OK;
}

/* The activation of grad_pre: rounded once; the fast forms of activations other than GELU differ by less than
 * 1e-6. */
static clt_status compare_again(clt_ops *ops, const check_case *c, const char *what, const float *got) {
    const clt_ref_gemm_params *r = &c->ref;
    for (int64_t i = 0; i < r->m; i++)
        for (int64_t j = 0; j < r->n; j++) {
            const size_t e = (size_t)(c->again - c->host) + (size_t)(i * c->p.again.ld + j);
            const float want = clt_ref_act(r->grad_act, r->grad_pre[i * r->ldgrad + j]);
            const double off = 1e-6 + clt_ref_fast_gelu_off(c->in);
            if (fabs((double)got[e] - (double)want) > 0x1p-8 * fabs((double)want) + off || isnan(got[e]))
                return clt_variant_fail(
                    ops, "%s: the recomputed activation at (%lld, %lld) is %.9g, expected %.9g", what,
                    (long long)i, (long long)j, (double)got[e], (double)want);
        }
    /* The elements around it are compared with the oracle's words. */
    for (int64_t i = 0; i < r->m; i++)
        memcpy(c->again + i * c->p.again.ld, got + (c->again - c->host) + i * c->p.again.ld,
               (size_t)r->n * sizeof *got);
    return CLT_OK;
}

static bool is_fast(const clt_variant *v) {
    return strstr(v->requires, "numerics=fast") != NULL;
}

static clt_status run_case(clt_ops *ops, const clt_variant *v, check_case *c, const check_shape *s) {
    static const char *const form[] = {"NT", "NN", "TN"};
    char what[128];
    if (!(clt_variant_param(v, "FORMS", 15) >> s->form & 1)) return CLT_OK; /* TN has c in fp32 here */
    snprintf(what, sizeof what, "%s %lldx%lldx%lld of %s%s%s%s%s%s%s", form[s->form], (long long)s->m,
             (long long)s->n, (long long)s->k, clt_dtype_name(c->in), s->bias ? ", bias" : "",
             s->act ? ", act" : "", s->grad_act ? ", derivative" : "", s->residual ? ", residual" : "",
             s->accumulate ? ", added" : "", c->one_hot ? ", one-hot" : "");
    build_case(c, s);
    if (clt_variant_is_rehearsed(ops)) return clt_gemm_run(ops, v, &c->p);
    float *got = clt_memdup(c->host, c->used * sizeof *got),
          *before = clt_memdup(c->host, c->used * sizeof *got);
    clt_status st = upload(c);
    if (st == CLT_OK) st = clt_gemm_run(ops, v, &c->p);
    if (st == CLT_OK) st = download(ops, c, what, got);
    clt_ref_gemm(&c->ref);
    if (c->sum) clt_ref_column_sum(s->k, s->m, s->k_group, c->ref.a, c->ref.lda, s->accumulate, c->sum);
    if (st == CLT_OK && c->again) st = compare_again(ops, c, what, got);
    if (st == CLT_OK)
        st = is_fast(v) && !c->one_hot ? compare_near(ops, c, what, got, before)
                                       : compare_exact(ops, c, what, got);
    if (st == CLT_OK && c->sum && !c->one_hot) st = compare_sums(ops, c, what, got, before);
    clt_free(got);
    clt_free(before);
    return st;
}

/* like: the call that needs a row. Where several kinds of call would test the same, its own kind is taken, so
 * that a first start builds as few programs as possible: a large k (which some rows split) or a small one,
 * with or without a bias. */
static clt_status run_cases(clt_ops *ops, const clt_variant *v, check_case *c, const clt_gemm_params *like) {
    static const check_shape shape[] = {
        {.form = CLT_GEMM_NT, .m = 37, .n = 83, .k = 301},
        {.form = CLT_GEMM_NT, .m = 67, .n = 70, .k = 33, .bias = true, .act = CLT_ACT_GELU},
        {.form = CLT_GEMM_NT,
         .m = 67,
         .n = 70,
         .k = 33,
         .bias = true,
         .residual = true,
         .accumulate = true,
         .wide = true},
        {.form = CLT_GEMM_NT, .m = 67, .n = 70, .k = 33, .residual = true, .wide = true},
        {.form = CLT_GEMM_NN, .m = 66, .n = 97, .k = 270},
        {.form = CLT_GEMM_NN, .m = 33, .n = 65, .k = 40, .grad_act = CLT_ACT_GELU},
        {.form = CLT_GEMM_NN, .m = 33, .n = 65, .k = 40, .grad_act = CLT_ACT_GELU, .ragged = true},
        {.form = CLT_GEMM_TN, .m = 69, .n = 101, .k = 96, .k_group = 24, .accumulate = true},
        {.form = CLT_GEMM_TN, .m = 130, .n = 35, .k = 600, .k_group = 300},
    };
    for (size_t i = 0; i < CLT_COUNT_OF(shape); i++) {
        check_shape s = shape[i];
        s.n = CLT_ROUND_UP(s.n, (int64_t)c->align_c);
        if (s.ragged && c->align_c > 1) continue; /* other rows take such calls */
        if (s.act && like->k > 1024) s.k += 1024;
        if (s.residual && clt_tensor_present(like->bias)) s.bias = true;
        CLT_TRY(run_case(ops, v, c, &s));
    }
    if (!is_fast(v)) return CLT_OK;
    /* Large values: products far above 1, sums below the largest number of the type. One-hot: every output is
     * an element of b or +0, and every sum of a's columns 1, which any order of additions gives exactly. */
    static const check_shape hard[] = {
        {.form = CLT_GEMM_NT, .m = 140, .n = 133, .k = 260, .wide = true},
        {.form = CLT_GEMM_NN, .m = 140, .n = 133, .k = 260, .wide = true},
        {.form = CLT_GEMM_TN, .m = 140, .n = 133, .k = 260, .k_group = 260},
        {.form = CLT_GEMM_TN, .m = 140, .n = 33, .k = 2100, .k_group = 2100}, /* few tiles: split along k */
    };
    for (int hot = 0; hot < 2; hot++)
        for (size_t i = 0; i < CLT_COUNT_OF(hard); i++) {
            c->one_hot = hot;
            c->scale = c->in == CLT_F16 ? 0x1p14f : 0x1p50f;
            check_shape s = hard[i];
            if (c->in == CLT_BF16)
                s.wide = false; /* the bound covers such sums, and training uses these programs */
            s.n = CLT_ROUND_UP(s.n, (int64_t)c->align_c);
            CLT_TRY(run_case(ops, v, c, &s));
        }
    return CLT_OK;
}

clt_status clt_gemm_check(clt_ops *ops, const clt_variant *v, void *ctx) {
    check_case c = {.in = ((const clt_gemm_params *)ctx)->a.type, .scale = 1};
    c.align = (size_t)clt_variant_param(v, "ALIGN", 1);
    c.align_c = (size_t)clt_variant_param(v, "ALIGN_C", 1);
    c.has_again = clt_gemm_can_make_again(v);
    c.has_sums = clt_gemm_can_make_sums(v);
    CLT_TRY(clt_buffer_create(clt_ops_device(ops), MOST_FLOATS * sizeof(float), "gemm check", &c.buf));
    c.host = clt_try_malloc(MOST_FLOATS * sizeof(float));
    const clt_status st = c.host ? run_cases(ops, v, &c, ctx)
                                 : clt_no_memory("checking a matrix product", MOST_FLOATS * sizeof(float));
    clt_free(c.host);
    clt_buffer_destroy(c.buf);
    return st;
}
