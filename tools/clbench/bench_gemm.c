/* clbench gemm: the matrix products of a training step. Blocks of our calls and of the anchors' take turns,
 * so that what else the machine does hits all of them alike. */
#include "bench.h"

#include <math.h>
#include <string.h>

#include "runtime/device/clt_clblast.h"
#include "runtime/ops/ref/clt_ref.h"

enum { OPENBLAS, CLBLAST };
enum { SAMPLES = 4096 };

typedef struct {
    const char *name;
    clt_gemm_form form;
    int64_t m, n, k;
} gemm_shape;

typedef struct {
    bench *b;
    clt_gemm_params p;
    anchor_shape other;
    float *a, *bm, *c; /* host copies; c: what the anchor writes */
} gemm_work;

static const char *const form_name[] = {"NT", "NN", "TN"};

static clt_status call_ours(void *ctx) {
    gemm_work *w = ctx;
    return clt_op_gemm(w->b->ops, &w->p);
}

static clt_status call_clblast(void *ctx) {
    gemm_work *w = ctx;
    const anchor_shape *s = &w->other;
    return clt_clblast_sgemm(w->b->dev, s->trans_a, s->trans_b, s->m, s->n, s->k, 1.0f, w->p.a, s->lda,
                             w->p.b, s->ldb, s->beta, w->p.c, s->ldc);
}

static clt_status call_openblas(void *ctx) {
    gemm_work *w = ctx;
    anchor_openblas(&w->other, w->a, w->bm, w->c);
    return CLT_OK;
}

static clt_status make_work(bench *b, const gemm_shape *s, gemm_work *w) {
    const bool tn = s->form == CLT_GEMM_TN, nt = s->form == CLT_GEMM_NT;
    *w = (gemm_work){.b = b};
    clt_gemm_params *p = &w->p;
    *p = (clt_gemm_params){.form = s->form, .m = s->m, .n = s->n, .k = s->k, .accumulate = tn};
    p->k_group = s->k % 256 ? s->k : 256;
    p->lda = tn ? s->m : s->k;
    p->ldb = nt ? s->k : s->n;
    p->ldc = s->n;
    w->other = (anchor_shape){tn, nt, s->m, s->n, s->k, p->lda, p->ldb, p->ldc, tn ? 1.0f : 0.0f};
    CLT_TRY(bench_tensor(b, (uint64_t)(s->m * s->k), 1, "bench a", &p->a, &w->a));
    CLT_TRY(bench_tensor(b, (uint64_t)(s->n * s->k), 2, "bench b", &p->b, &w->bm));
    return bench_tensor(b, (uint64_t)(s->m * s->n), 3, "bench c", &p->c, &w->c);
}

static void free_work(gemm_work *w) {
    bench_free(w->p.a);
    bench_free(w->p.b);
    bench_free(w->p.c);
    clt_free(w->a);
    clt_free(w->bm);
    clt_free(w->c);
}

/* |result - exact| of a sum in any order is at most about k 2^-24 sum |a b|. */
static bool close_enough(const clt_ref_gemm_params *r, int64_t i, int64_t j, double got, double before) {
    double sum = before, size = fabs(before);
    for (int64_t k = 0; k < r->k; k++) {
        const double a = r->form == CLT_GEMM_TN ? r->a[k * r->lda + i] : r->a[i * r->lda + k];
        const double v = a * (double)(r->form == CLT_GEMM_NT ? r->b[j * r->ldb + k] : r->b[k * r->ldb + j]);
        sum += v;
        size += fabs(v);
    }
    return fabs(got - sum) <= ((double)r->k + 2) * 0x1p-24 * size;
}

/* One call on fresh data against the oracle, at sampled outputs. */
static clt_status check(bench *b, gemm_work *w, bench_row *row) {
    const clt_gemm_params *p = &w->p;
    const size_t n = (size_t)(p->m * p->n);
    float *got = clt_malloc(n * sizeof *got);
    clt_ref c;
    float *want;
    clt_status st = bench_tensor(b, n, 3, "bench check", &c, &want);
    clt_gemm_params call = *p;
    call.c = c;
    if (st == CLT_OK) st = clt_op_gemm(b->ops, &call);
    if (st == CLT_OK) st = clt_ref_read_f32(c, got, n);
    if (st == CLT_OK) {
        clt_ref_gemm_params r = {.form = p->form, .m = p->m, .n = p->n, .k = p->k, .k_group = p->k_group};
        r.a = w->a, r.b = w->bm, r.c = want, r.lda = p->lda, r.ldb = p->ldb, r.ldc = p->ldc;
        r.accumulate = p->accumulate;
        row->checked = row->ok = true;
        const uint64_t samples = CLT_MAX(64, CLT_MIN(SAMPLES, ((uint64_t)1 << 26) / (uint64_t)p->k));
        for (uint64_t s = 0; s < samples; s++) {
            const size_t at = (size_t)(s * 2654435761u % n);
            const int64_t i = (int64_t)at / p->n, j = (int64_t)at % p->n;
            const double before = p->accumulate ? want[at] : 0;
            const float fresh = want[at];
            clt_ref_gemm_at(&r, i, j);
            bool same;
            row->max_error = CLT_MAX(row->max_error, bench_difference(&got[at], &want[at], 1, &same));
            row->ok = row->ok && (same || (b->fast && close_enough(&r, i, j, got[at], before)));
            want[at] = fresh;
        }
        clt_free(want);
        bench_free(c);
    }
    clt_free(got);
    return st;
}

/* Blocks of ours and of the anchors in turn. After OpenBLAS a pause: its idle threads spin for a while. */
static clt_status measure(bench *b, gemm_work *w, const bool *with, bench_row *row) {
    enum { MOST = 100 };
    static const bench_call anchor[BENCH_ANCHORS] = {call_openblas, call_clblast};
    double ours[MOST], other[BENCH_ANCHORS][MOST];
    int calls, n = 0;
    CLT_TRY(bench_calibrate(b, call_ours, w, &calls));
    for (int a = 0; a < BENCH_ANCHORS; a++)
        if (with[a]) CLT_TRY(bench_block(b, anchor[a], w, 1, &other[a][0]));
    const double start = clt_now();
    do {
        for (int a = 0; a < BENCH_ANCHORS; a++)
            if (with[a]) CLT_TRY(bench_block(b, anchor[a], w, calls, &other[a][n]));
        if (with[OPENBLAS]) clt_sleep(0.05);
        CLT_TRY(b->kernel_only ? bench_kernel_time(b, call_ours, w, calls, &ours[n])
                               : bench_block(b, call_ours, w, calls, &ours[n]));
        n++;
    } while (n < MOST && (n < 3 || clt_now() - start < b->seconds));
    row->seconds = bench_median(ours, n);
    for (int a = 0; a < BENCH_ANCHORS; a++)
        if (with[a]) row->anchor_seconds[a] = bench_median(other[a], n);
    return CLT_OK;
}

static clt_status run_shape(bench *b, const gemm_shape *s, const bool *with) {
    gemm_work w;
    bench_row row = {.flops = 2.0 * (double)s->m * (double)s->n * (double)s->k};
    row.bytes =
        4.0 * ((double)s->m * (double)s->k + (double)s->n * (double)s->k + (double)s->m * (double)s->n);
    snprintf(row.op, sizeof row.op, "gemm %s", form_name[s->form]);
    snprintf(row.shape, sizeof row.shape, "%s%s%lldx%lldx%lld", s->name, *s->name ? " " : "", (long long)s->m,
             (long long)s->n, (long long)s->k);
    clt_status st = make_work(b, s, &w);
    if (st == CLT_OK) st = measure(b, &w, with, &row);
    if (st == CLT_OK && b->check) st = check(b, &w, &row);
    if (st == CLT_OK) {
        snprintf(row.variant, sizeof row.variant, "%s", clt_op_gemm_variant(b->ops, &w.p));
        bench_add(b, &row);
    }
    free_work(&w);
    return st;
}

/* The six linear layers' sizes of an MPT, in the three forms of a step. */
static clt_status run_model(bench *b, int64_t d, int64_t vocab, int64_t tokens, const bool *with) {
    const struct {
        const char *name;
        int64_t out, in;
    } layer[] = {{"qkv", 3 * d, d}, {"out", d, d}, {"up", 4 * d, d}, {"down", d, 4 * d}, {"head", vocab, d}};
    for (size_t i = 0; i < CLT_COUNT_OF(layer); i++) {
        const int64_t out = layer[i].out, in = layer[i].in;
        const gemm_shape s[] = {{layer[i].name, CLT_GEMM_NT, tokens, out, in},
                                {layer[i].name, CLT_GEMM_NN, tokens, in, out},
                                {layer[i].name, CLT_GEMM_TN, out, in, tokens}};
        for (size_t f = 0; f < CLT_COUNT_OF(s); f++) CLT_TRY(run_shape(b, &s[f], with));
    }
    return CLT_OK;
}

static clt_status run_square(bench *b, const bool *with) {
    for (int64_t n = 256; n <= 2048; n *= 2)
        for (int f = 0; f < 3; f++) {
            const gemm_shape s = {"", (clt_gemm_form)f, n, n, n};
            CLT_TRY(run_shape(b, &s, with));
        }
    return CLT_OK;
}

static clt_status run_suite(bench *b, const bool *with) {
    static const struct {
        const char *name;
        int64_t d, tokens;
    } model[] = {
        {"mpt-small", 256, 1024}, {"mpt-125m", 768, 256}, {"mpt-125m-2k", 768, 2048}, {"mpt-1b", 2048, 2048}};
    if (!strcmp(b->suite, "square")) return run_square(b, with);
    for (size_t i = 0; i < CLT_COUNT_OF(model); i++)
        if (!strcmp(b->suite, model[i].name))
            return run_model(b, model[i].d, i ? 50368 : 4096, model[i].tokens, with);
    return clt_error(
        CLT_USAGE, "clbench gemm: suite '%s' is not known (square, mpt-small, mpt-125m, mpt-125m-2k, mpt-1b)",
        b->suite);
}

/* An anchor that is not installed is named and left out. */
static void load_anchors(bench *b, bool *with) {
    for (size_t i = 0; i < b->anchors.n; i++) {
        const bool openblas = !strcmp(b->anchors.v[i], "openblas");
        const bool there = openblas ? anchor_openblas_load((int)clt_device_get_facts(b->dev)->compute_units)
                                    : clt_clblast_available();
        with[openblas ? OPENBLAS : CLBLAST] = there;
        if (!there)
            printf("anchor   %s is not installed (%s); left out\n", b->anchors.v[i],
                   openblas ? "libopenblas.so.0" : "libclblast.so.1");
        else if (openblas)
            printf("anchor   OpenBLAS, core type %s\n", anchor_openblas_core());
        else
            printf("anchor   CLBlast, on the same device\n");
    }
}

int bench_gemm(int argc, char **argv) {
    bench b = {.suite = "mpt-125m"};
    bool with[BENCH_ANCHORS] = {false};
    int code =
        bench_start(&b, "gemm",
                    "Measures matrix products: NT is a layer's forward pass, NN its data gradient, TN its "
                    "weight gradient "
                    "(added to, in samples of 256 tokens). An anchor's column is its time divided by ours.",
                    "  clbench gemm --suite mpt-125m --check\n"
                    "  clbench gemm --suite mpt-125m-2k --anchor openblas --seconds 2\n"
                    "  clbench gemm --suite square --device nvidia --numerics fast --anchor clblast\n",
                    "square, mpt-small, mpt-125m, mpt-125m-2k, mpt-1b", true, argc, argv);
    if (code >= 0) return code;
    load_anchors(&b, with);
    return bench_end(&b, run_suite(&b, with));
}
