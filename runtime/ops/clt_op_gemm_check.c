/* The check of a GEMM variant: small shapes with every kind of edge, against the oracle. */
#include "clt_op_gemm.h"

#include <math.h>
#include <string.h>

#include "../base/clt_philox.h"
#include "ref/clt_ref.h"

/* Places of a case's matrices in its one buffer, in floats. The gaps hold NaN: nothing may leak out of them.
 */
typedef struct {
    clt_gemm_params p;
    clt_ref_gemm_params ref;
    float *host;
    size_t used;
    clt_buffer *buf;
} check_case;

enum { GAP = 19, MOST_FLOATS = 1 << 20 };

static void fill(float *x, size_t n, uint32_t seed) {
    const uint32_t key[2] = {seed, 0x6e6d6d};
    for (size_t i = 0; i < n; i += 4) {
        const uint32_t counter[4] = {(uint32_t)(i / 4), 0, 0, 0};
        uint32_t out[4];
        clt_philox4x32(counter, key, out);
        for (size_t j = 0; j < 4 && i + j < n; j++) x[i + j] = (float)(int32_t)out[j] * 0x1p-31f;
    }
}

/* A matrix of rows that are `ld` apart; what is not inside it stays NaN. */
static float *add_matrix(check_case *c, int64_t rows, int64_t cols, int64_t ld, clt_ref *ref) {
    float *at = c->host + c->used, row[512];
    for (int64_t r = 0; r < rows; r++) {
        fill(row, (size_t)cols, (uint32_t)(c->used + (size_t)r));
        for (int64_t j = 0; j < cols; j++) at[r * ld + j] = row[j];
    }
    *ref = (clt_ref){c->buf, c->used};
    c->used += (size_t)(rows * ld) + GAP;
    return at;
}

static void build_case(check_case *c, clt_gemm_form form, int64_t m, int64_t n, int64_t k, int64_t k_group,
                       bool epilogue, clt_activation act, clt_activation grad_act) {
    const bool tn = form == CLT_GEMM_TN, nt = form == CLT_GEMM_NT;
    clt_gemm_params *p = &c->p;
    clt_ref_gemm_params *r = &c->ref;
    *p = (clt_gemm_params){.form = form, .m = m, .n = n, .k = k, .k_group = k_group, .accumulate = epilogue};
    *r = (clt_ref_gemm_params){
        .form = form, .m = m, .n = n, .k = k, .k_group = k_group, .accumulate = epilogue};
    p->lda = r->lda = (tn ? m : k) + 3;
    p->ldb = r->ldb = (nt ? k : n) + 5;
    p->ldc = r->ldc = p->ldpre = r->ldpre = p->ldgrad = r->ldgrad = p->ldres = r->ldres = n + 7;
    c->used = GAP;
    for (size_t i = 0; i < MOST_FLOATS; i++) c->host[i] = (float)(0.0 / 0.0);
    r->a = add_matrix(c, tn ? k : m, tn ? m : k, p->lda, &p->a);
    r->b = add_matrix(c, nt ? n : k, nt ? k : n, p->ldb, &p->b);
    r->c = add_matrix(c, m, n, p->ldc, &p->c);
    if (!epilogue || tn) return;
    r->bias = add_matrix(c, 1, n, n, &p->bias);
    r->residual = add_matrix(c, m, n, p->ldres, &p->residual);
    p->act = r->act = act;
    p->grad_act = r->grad_act = grad_act;
    if (act) r->pre = add_matrix(c, m, n, p->ldpre, &p->pre);
    if (grad_act) r->grad_pre = add_matrix(c, m, n, p->ldgrad, &p->grad_pre);
}

/* A product in an order of its own: |a| and |b| are at most 1, so a sum of k terms is off by at most about
 * k^2 2^-24 from the oracle's; activations and their derivatives have slopes below 2. NaN must stay where it
 * is. */
static clt_status compare_near(clt_ops *ops, const check_case *c, const char *what) {
    const double k = (double)c->p.k, bound = 4 * k * k * 0x1p-24;
    float *got = clt_malloc(c->used * sizeof *got);
    clt_status st = clt_ref_read_f32((clt_ref){c->buf, 0}, got, c->used);
    for (size_t i = 0; st == CLT_OK && i < c->used; i++)
        if (isnan(got[i]) != isnan(c->host[i]) || fabs((double)got[i] - (double)c->host[i]) > bound)
            st = clt_variant_fail(ops, "%s: element %zu is %.9g, the oracle has %.9g, the bound is %.3g",
                                  what, i, (double)got[i], (double)c->host[i], bound);
    clt_free(got);
    return st;
}

static clt_status run_case(clt_ops *ops, const clt_variant *v, check_case *c, const char *what) {
    CLT_TRY(clt_buffer_write(c->buf, 0, c->host, c->used * sizeof(float)));
    CLT_TRY(clt_gemm_run(ops, v, &c->p));
    clt_ref_gemm(&c->ref);
    if (!strcmp(v->body, "clblast")) return compare_near(ops, c, what);
    return clt_variant_compare(ops, what, (clt_ref){c->buf, 0}, c->host, c->used);
}

static clt_status run_cases(clt_ops *ops, const clt_variant *v, check_case *c) {
    build_case(c, CLT_GEMM_NT, 37, 83, 301, 0, false, CLT_ACT_NONE, CLT_ACT_NONE);
    CLT_TRY(run_case(ops, v, c, "NT 37x83x301"));
    build_case(c, CLT_GEMM_NT, 67, 70, 33, 0, true, CLT_ACT_GELU, CLT_ACT_NONE);
    CLT_TRY(run_case(ops, v, c, "NT 67x70x33 with bias, gelu, residual, accumulate"));
    build_case(c, CLT_GEMM_NN, 66, 97, 270, 0, false, CLT_ACT_NONE, CLT_ACT_NONE);
    CLT_TRY(run_case(ops, v, c, "NN 66x97x270"));
    build_case(c, CLT_GEMM_NN, 33, 65, 40, 0, true, CLT_ACT_NONE, CLT_ACT_GELU);
    CLT_TRY(run_case(ops, v, c, "NN 33x65x40 with gelu's derivative, residual, accumulate"));
    build_case(c, CLT_GEMM_TN, 69, 101, 96, 24, true, CLT_ACT_NONE, CLT_ACT_NONE);
    CLT_TRY(run_case(ops, v, c, "TN 69x101x96 in groups of 24, accumulate"));
    build_case(c, CLT_GEMM_TN, 130, 35, 600, 300, false, CLT_ACT_NONE, CLT_ACT_NONE);
    return run_case(ops, v, c, "TN 130x35x600 in groups of 300");
}

clt_status clt_gemm_check(clt_ops *ops, const clt_variant *v, void *ctx) {
    (void)ctx;
    check_case c = {0};
    CLT_TRY(clt_buffer_create(clt_ops_device(ops), MOST_FLOATS * sizeof(float), "gemm check", &c.buf));
    c.host = clt_malloc(MOST_FLOATS * sizeof(float));
    const clt_status st = run_cases(ops, v, &c);
    clt_free(c.host);
    clt_buffer_destroy(c.buf);
    return st;
}
