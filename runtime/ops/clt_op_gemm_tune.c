/* How GEMM variants are timed at a shape: on tensors made for timing, with sampled outputs compared with the
 * oracle. */
#include "runtime/ops/clt_op_gemm_internal.h"

#include <math.h>

#include "runtime/ops/ref/clt_ref.h"

enum { SAMPLES = 64 };

typedef struct {
    clt_gemm_params p;
    float *pattern; /* rounded to the type of a and b */
} gemm_tensors;

static void drop(void *tensors) {
    gemm_tensors *t = tensors;
    clt_buffer_destroy(t->p.a.ref.buf);
    clt_buffer_destroy(t->p.b.ref.buf);
    clt_buffer_destroy(t->p.c.ref.buf);
    clt_free(t->pattern);
    clt_free(t);
}

static clt_status make(clt_ops *ops, const void *call, void **tensors) {
    const clt_gemm_params *p = call;
    const uint64_t a = (uint64_t)(p->m * p->k), b = (uint64_t)(p->n * p->k), c = (uint64_t)(p->m * p->n);
    const uint64_t in = clt_dtype_bytes(p->a.type), most = CLT_MAX(CLT_MAX(a, b) * in, c * 4);
    if (!clt_tune_fits(ops, (a + b) * in + c * 4, most)) return CLT_FAIL;
    float *pattern;
    CLT_TRY(clt_tune_pattern(p->a.type, &pattern));
    gemm_tensors *t = clt_calloc(1, sizeof *t);
    t->p = (clt_gemm_params){.form = p->form,
                             .m = p->m,
                             .n = p->n,
                             .k = p->k,
                             .k_group = p->k_group,
                             .a = {.ld = p->form == CLT_GEMM_TN ? p->m : p->k, .type = p->a.type},
                             .b = {.ld = p->form == CLT_GEMM_NT ? p->k : p->n, .type = p->a.type},
                             .c = {.ld = p->n, .type = p->c.type},
                             .accumulate = p->accumulate};
    t->pattern = pattern;
    clt_status st = clt_tune_tensor(ops, t->pattern, p->a.type, a, &t->p.a.ref);
    if (st == CLT_OK) st = clt_tune_tensor(ops, t->pattern, p->a.type, b, &t->p.b.ref);
    if (st == CLT_OK) st = clt_tune_tensor(ops, t->pattern, p->c.type, c, &t->p.c.ref);
    if (st == CLT_OK)
        *tensors = t;
    else
        drop(t);
    return st;
}

static clt_status run(clt_ops *ops, const clt_variant *v, void *tensors) {
    const gemm_tensors *t = tensors;
    return clt_gemm_run(ops, v, &t->p);
}

/* Output (i, j) alone: the product of a row of a and a column of b. */
static double error_at(const gemm_tensors *t, int64_t i, int64_t j, float got, bool exact, float *a,
                       float *b) {
    const clt_gemm_params *p = &t->p;
    for (int64_t k = 0; k < p->k; k++) {
        a[k] = t->pattern[(p->form == CLT_GEMM_TN ? k * p->a.ld + i : i * p->a.ld + k) % CLT_TUNE_PERIOD];
        b[k] = t->pattern[(p->form == CLT_GEMM_NT ? j * p->b.ld + k : k * p->b.ld + j) % CLT_TUNE_PERIOD];
    }
    float want = 0;
    clt_ref_gemm_params r = {.form = p->form, .m = 1, .n = 1, .k = p->k, .k_group = p->k_group};
    r.a = a, r.b = b, r.c = &want, r.lda = r.ldb = r.ldc = 1, r.accumulate = p->accumulate,
    r.c_type = p->c.type;
    if (p->form != CLT_GEMM_TN) r.lda = p->k;
    if (p->form == CLT_GEMM_NT) r.ldb = p->k;
    const clt_ref_gemm_near near = clt_ref_gemm_near_at(&r, 0, 0, 0);
    clt_ref_gemm_at(&r, 0, 0);
    const double off = fabs((double)got - near.c) / near.c_bound;
    if (got == want) return 0;
    return exact || isnan(off) ? INFINITY : off;
}

static clt_status error(clt_ops *ops, const clt_variant *v, void *tensors, double *worst) {
    const gemm_tensors *t = tensors;
    const clt_gemm_params *p = &t->p;
    const uint64_t outputs = (uint64_t)(p->m * p->n);
    float *a = clt_malloc((size_t)p->k * sizeof *a), *b = clt_malloc((size_t)p->k * sizeof *b), got = 0;
    *worst = 0;
    clt_status st = clt_buffer_fill32(p->c.ref.buf, 0, 0, clt_buffer_bytes(p->c.ref.buf));
    if (st == CLT_OK) st = clt_gemm_run(ops, v, p);
    for (uint64_t s = 0; s < SAMPLES && st == CLT_OK; s++) {
        const uint64_t at = s * 2654435761u % outputs;
        st = clt_ref_read_as(clt_ref_at(p->c.ref, at), p->c.type, &got, 1);
        const double e = st == CLT_OK ? error_at(t, (int64_t)at / p->n, (int64_t)at % p->n, got,
                                                 clt_ops_numerics(ops) == CLT_EXACT, a, b)
                                      : 0;
        *worst = CLT_MAX(*worst, e);
    }
    clt_free(a);
    clt_free(b);
    return st;
}

const clt_tune_kind clt_gemm_tune = {.make = make, .run = run, .error = error, .drop = drop};

void clt_gemm_shape(const clt_gemm_params *p, char *out, size_t size) {
    static const char *const form[] = {"NT", "NN", "TN"};
    char group[32] = "";
    if (p->form == CLT_GEMM_TN) snprintf(group, sizeof group, "/%lld", (long long)p->k_group);
    snprintf(out, size, "%s %lldx%lldx%lld%s %s>%s%s", form[p->form], (long long)p->m, (long long)p->n,
             (long long)p->k, group, clt_dtype_name(p->a.type), clt_dtype_name(p->c.type),
             p->accumulate ? " added" : "");
}
