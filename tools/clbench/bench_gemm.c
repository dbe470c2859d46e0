/* clbench gemm: the matrix products of a training step. Blocks of our calls and of the anchors' alternate, so
 * that other load on the machine affects all of them equally. */
#include "tools/clbench/bench.h"

#include <math.h>
#include <string.h>

#include "runtime/device/clt_clblast.h"
#include "runtime/ops/ref/clt_ref.h"

enum { OPENBLAS, CLBLAST, LIBRARIES };
enum {
    PATTERN = (1 << 20) + 7, /* period of a tensor's random numbers: no common factor with rows */
    SAMPLED_ROWS = 32,
    MOST_SAMPLES = 4096
};

typedef enum { PLAIN, GELU, GELU_GRADIENT, GELU_AGAIN, RESIDUAL, ADDED, SUMS } gemm_fused;

typedef struct {
    const char *name;
    clt_gemm_form form;
    int64_t m, n, k;
    gemm_fused fused;
} gemm_shape;

typedef struct {
    clt_ref ref;
    float *pattern; /* element i is pattern[i % PATTERN] */
} gemm_tensor;

typedef struct {
    bench *b;
    clt_gemm_params p;
    anchor_shape other;
    gemm_tensor a, bm, c, aux, again, residual, sums;
    float *host_a, *host_b, *host_c; /* for the anchor on the host */
} gemm_work;

#define SUITES "square, mpt-small, mpt-125m, mpt-125m-256, mpt-125m-2k, mpt-1b, mpt-7b, mpt-13b, mpt-1b-few"

static const char *const form_name[] = {"NT", "NN", "TN"};

static clt_status call_ours(void *ctx) {
    gemm_work *w = ctx;
    return clt_op_gemm(w->b->ops, &w->p);
}

static clt_status call_clblast(void *ctx) {
    gemm_work *w = ctx;
    const anchor_shape *s = &w->other;
    return clt_clblast_sgemm(w->b->dev, s->trans_a, s->trans_b, s->m, s->n, s->k, 1.0f, w->p.a.ref, s->lda,
                             w->p.b.ref, s->ldb, s->beta, w->p.c.ref, s->ldc);
}

static clt_status call_openblas(void *ctx) {
    gemm_work *w = ctx;
    anchor_openblas(&w->other, w->host_a, w->host_b, w->host_c);
    return CLT_OK;
}

/* --- tensors --- */

static float element(const gemm_tensor *t, int64_t at) {
    return t->pattern[at % PATTERN];
}

/* n elements of `type`; the pattern is uploaded once and repeated on the device. */
static clt_status make_tensor(bench *b, clt_dtype type, int64_t n, uint64_t seed, gemm_tensor *t) {
    gemm_tensor once;
    CLT_TRY(bench_tensor_as(b, type, PATTERN, seed, "bench pattern", &once.ref, &t->pattern));
    const int64_t rows = n / PATTERN, rest = n % PATTERN;
    clt_status st =
        clt_buffer_create(b->dev, CLT_ROUND_UP((uint64_t)n * clt_dtype_bytes(type), 4), "bench", &t->ref.buf);
    if (st == CLT_OK && rows)
        st = clt_op_copy_rows(b->ops, rows, PATTERN, clt_tensor_of(once.ref, 0, type),
                              clt_tensor_of(t->ref, PATTERN, type));
    if (st == CLT_OK && rest)
        st = clt_op_copy_rows(b->ops, 1, rest, clt_tensor_of(once.ref, rest, type),
                              clt_tensor_of(clt_ref_at(t->ref, (uint64_t)(rows * PATTERN)), rest, type));
    if (st == CLT_OK) st = clt_device_finish(b->dev);
    bench_free(once.ref);
    return st;
}

static float *host_copy(const gemm_tensor *t, int64_t n) {
    float *x = clt_malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = element(t, i);
    return x;
}

static void set_fused(const gemm_shape *s, clt_gemm_params *p) {
    p->act = s->fused == GELU ? CLT_ACT_GELU : CLT_ACT_NONE;
    p->grad_act = s->fused == GELU_GRADIENT || s->fused == GELU_AGAIN ? CLT_ACT_GELU : CLT_ACT_NONE;
    if (s->fused == RESIDUAL) p->c.type = CLT_F32; /* the residual stream */
}

static clt_status make_work(bench *b, const gemm_shape *s, bool host, gemm_work *w) {
    const bool tn = s->form == CLT_GEMM_TN, nt = s->form == CLT_GEMM_NT;
    *w = (gemm_work){.b = b};
    clt_gemm_params *p = &w->p;
    *p = (clt_gemm_params){.form = s->form, .m = s->m, .n = s->n, .k = s->k, .accumulate = s->fused == ADDED};
    p->k_group = s->k % 2048 == 0 && s->k > 8192 ? 2048 : s->k % 256 ? s->k : 256;
    p->a = clt_tensor_of(clt_ref_none(), tn ? s->m : s->k, b->type);
    p->b = clt_tensor_of(clt_ref_none(), nt ? s->k : s->n, b->type);
    p->c = clt_tensor_of(clt_ref_none(), s->n, tn ? CLT_F32 : b->type);
    p->pre = p->grad_pre = p->again = clt_tensor_of(clt_ref_none(), s->n, b->type);
    p->residual = clt_tensor_of(clt_ref_none(), s->n, CLT_F32);
    set_fused(s, p);
    w->other =
        (anchor_shape){tn, nt, s->m, s->n, s->k, p->a.ld, p->b.ld, p->c.ld, p->accumulate ? 1.0f : 0.0f};
    CLT_TRY(make_tensor(b, b->type, s->m * s->k, 1, &w->a));
    CLT_TRY(make_tensor(b, b->type, s->n * s->k, 2, &w->bm));
    CLT_TRY(make_tensor(b, p->c.type, s->m * s->n, 3, &w->c));
    if (p->act || p->grad_act) CLT_TRY(make_tensor(b, b->type, s->m * s->n, 4, &w->aux));
    if (s->fused == GELU_AGAIN) CLT_TRY(make_tensor(b, b->type, s->m * s->n, 7, &w->again));
    if (s->fused == RESIDUAL) CLT_TRY(make_tensor(b, CLT_F32, s->m * s->n, 5, &w->residual));
    if (s->fused == SUMS) CLT_TRY(make_tensor(b, CLT_F32, s->m, 6, &w->sums));
    p->a.ref = w->a.ref, p->b.ref = w->bm.ref, p->c.ref = w->c.ref;
    p->residual.ref = w->residual.ref, p->a_sum.ref = w->sums.ref;
    if (p->act) p->pre.ref = w->aux.ref;
    if (p->grad_act) p->grad_pre.ref = w->aux.ref, p->again.ref = w->again.ref;
    if (!host) return CLT_OK;
    w->host_a = host_copy(&w->a, s->m * s->k);
    w->host_b = host_copy(&w->bm, s->n * s->k);
    w->host_c = host_copy(&w->c, s->m * s->n);
    return CLT_OK;
}

static void free_work(gemm_work *w) {
    const gemm_tensor *t[] = {&w->a, &w->bm, &w->c, &w->aux, &w->again, &w->residual, &w->sums};
    for (size_t i = 0; i < CLT_COUNT_OF(t); i++) {
        bench_free(t[i]->ref);
        clt_free(t[i]->pattern);
    }
    clt_free(w->host_a);
    clt_free(w->host_b);
    clt_free(w->host_c);
}

/* --- checking --- */

/* Compares output (i, j) with the oracle on its row and column: the words or, with numerics fast, the bound.
 * x, y: scratch of k floats. */
static void check_output(const gemm_work *w, int64_t i, int64_t j, float got, float *x, float *y,
                         bench_row *row) {
    const clt_gemm_params *p = &w->p;
    const bool tn = p->form == CLT_GEMM_TN, nt = p->form == CLT_GEMM_NT;
    for (int64_t k = 0; k < p->k; k++) {
        x[k] = element(&w->a, tn ? k * p->a.ld + i : i * p->a.ld + k);
        y[k] = element(&w->bm, nt ? j * p->b.ld + k : k * p->b.ld + j);
    }
    const int64_t at = i * p->c.ld + j;
    const float before = element(&w->c, at), saved = w->aux.pattern ? element(&w->aux, at) : 0;
    const float residual = w->residual.pattern ? element(&w->residual, at) : 0;
    float want = before, pre;
    const clt_ref_gemm_params one = {.form = tn ? CLT_GEMM_TN : CLT_GEMM_NT,
                                     .m = 1,
                                     .n = 1,
                                     .k = p->k,
                                     .k_group = p->k_group,
                                     .a = x,
                                     .b = y,
                                     .c = &want,
                                     .lda = tn ? 1 : p->k,
                                     .ldb = tn ? 1 : p->k,
                                     .ldc = 1,
                                     .accumulate = p->accumulate,
                                     .act = p->act,
                                     .pre = p->act ? &pre : NULL,
                                     .grad_act = p->grad_act,
                                     .grad_pre = p->grad_act ? &saved : NULL,
                                     .residual = w->residual.pattern ? &residual : NULL,
                                     .c_type = p->c.type,
                                     .aux_type = clt_gemm_aux_type(p)};
    bool same, near = false;
    clt_ref_gemm_at(&one, 0, 0);
    double off = bench_difference(&got, &want, 1, &same);
    if (w->b->fast) {
        const clt_ref_gemm_near exact = clt_ref_gemm_near_at(&one, 0, 0, (double)before);
        off = fabs((double)got - exact.c);
        near = off <= exact.c_bound;
    }
    row->max_error = CLT_MAX(row->max_error, isnan(off) ? INFINITY : off);
    row->ok = row->ok && (same || near);
}

/* The same for the sum of a's column i. x: scratch of k floats. */
static void check_sum(const gemm_work *w, int64_t i, float got, float *x, bench_row *row) {
    const clt_gemm_params *p = &w->p;
    const float before = element(&w->sums, i);
    float want = before;
    bool same, near = false;
    for (int64_t k = 0; k < p->k; k++) x[k] = element(&w->a, k * p->a.ld + i);
    clt_ref_column_sum(p->k, 1, p->k_group, x, 1, p->accumulate, &want);
    double off = bench_difference(&got, &want, 1, &same);
    if (w->b->fast) {
        const clt_ref_gemm_params one = {.k = p->k, .a = x, .lda = 1, .accumulate = p->accumulate};
        const clt_ref_gemm_near exact = clt_ref_gemm_near_sum(&one, 0, (double)before);
        off = fabs((double)got - exact.c);
        near = off <= exact.c_bound;
    }
    row->max_error = CLT_MAX(row->max_error, isnan(off) ? INFINITY : off);
    row->ok = row->ok && (same || near);
}

/* One call on fresh data, compared at sampled outputs of sampled rows, including the last row. */
static clt_status check(gemm_work *w, bench_row *row) {
    const clt_gemm_params *p = &w->p;
    gemm_tensor fresh = {0}, sums = {0};
    clt_status st = make_tensor(w->b, p->c.type, p->m * p->n, 3, &fresh);
    if (st == CLT_OK && clt_tensor_present(p->a_sum)) st = make_tensor(w->b, CLT_F32, p->m, 6, &sums);
    clt_gemm_params call = *p;
    call.c.ref = fresh.ref;
    call.a_sum.ref = sums.ref;
    if (st == CLT_OK) st = clt_op_gemm(w->b->ops, &call);
    float *got = clt_malloc((size_t)p->n * sizeof *got), *x = clt_malloc((size_t)p->k * 2 * sizeof *x);
    const int64_t samples = CLT_MAX(64, CLT_MIN(MOST_SAMPLES, ((int64_t)1 << 24) / p->k));
    row->checked = row->ok = true;
    for (int64_t r = 0; st == CLT_OK && r < SAMPLED_ROWS; r++) {
        const int64_t i = r ? r * 2654435761 % p->m : p->m - 1;
        st = clt_ref_read_as(clt_ref_at(fresh.ref, (uint64_t)(i * p->c.ld)), p->c.type, got, (uint64_t)p->n);
        for (int64_t s = 0; st == CLT_OK && s < samples / SAMPLED_ROWS; s++) {
            const int64_t j = s ? (s + 7 * r) * 2654435761 % p->n : p->n - 1;
            check_output(w, i, j, got[j], x, x + p->k, row);
        }
        if (st == CLT_OK && clt_tensor_present(p->a_sum))
            st = clt_ref_read_as(clt_ref_at(sums.ref, (uint64_t)i), CLT_F32, got, 1);
        if (st == CLT_OK && clt_tensor_present(p->a_sum)) check_sum(w, i, got[0], x, row);
    }
    clt_free(got);
    clt_free(x);
    bench_free(fresh.ref);
    bench_free(sums.ref);
    clt_free(fresh.pattern);
    clt_free(sums.pattern);
    return st;
}

/* Alternates blocks of ours and of the anchors. After OpenBLAS it pauses until its threads sleep. */
static clt_status measure(bench *b, gemm_work *w, const bool *with, bench_row *row) {
    enum { MOST = 100 };
    static const bench_call anchor[LIBRARIES] = {call_openblas, call_clblast};
    double ours[MOST], other[LIBRARIES][MOST];
    int calls, n = 0;
    CLT_TRY(bench_calibrate(b, call_ours, w, &calls));
    for (int a = 0; a < LIBRARIES; a++)
        if (with[a]) CLT_TRY(bench_block(b, anchor[a], w, 1, &other[a][0]));
    const double start = clt_now();
    do {
        for (int a = 0; a < LIBRARIES; a++)
            if (with[a]) CLT_TRY(bench_block(b, anchor[a], w, calls, &other[a][n]));
        if (with[OPENBLAS]) clt_sleep(0.05);
        CLT_TRY(b->kernel_only ? bench_kernel_time(b, call_ours, w, calls, &ours[n])
                               : bench_block(b, call_ours, w, calls, &ours[n]));
        n++;
    } while (n < MOST && (n < 3 || clt_now() - start < b->seconds));
    row->seconds = bench_median(ours, n);
    for (int a = 0; a < LIBRARIES; a++)
        if (with[a]) row->anchor_seconds[a] = bench_median(other[a], n);
    return CLT_OK;
}

static double tensor_bytes(const gemm_work *w) {
    const clt_gemm_params *p = &w->p;
    const double in = (double)clt_dtype_bytes(p->a.type), out = (double)clt_dtype_bytes(p->c.type);
    double each = out * (p->accumulate ? 2 : 1);
    if (p->act || p->grad_act) each += (double)clt_dtype_bytes(clt_gemm_aux_type(p));
    if (clt_tensor_present(p->again)) each += (double)clt_dtype_bytes(p->again.type);
    if (clt_tensor_present(p->residual)) each += 4;
    return in * (double)p->k * ((double)p->m + (double)p->n) + each * (double)p->m * (double)p->n;
}

static clt_status run_shape(bench *b, const gemm_shape *s, const bool *with) {
    static const char *const fused[] = {"",      " +gelu", " +dgelu", " +dgelu and gelu",
                                        " +add", " +c",    " +sums"};
    gemm_work w;
    bench_row row = {.flops = 2.0 * (double)s->m * (double)s->n * (double)s->k, .type = b->type};
    snprintf(row.op, sizeof row.op, "gemm %s%s", form_name[s->form], fused[s->fused]);
    snprintf(row.shape, sizeof row.shape, "%s%s%lldx%lldx%lld", s->name, *s->name ? " " : "", (long long)s->m,
             (long long)s->n, (long long)s->k);
    if (!bench_wants(b, row.op, row.shape)) return CLT_OK;
    clt_status st = make_work(b, s, with[OPENBLAS], &w);
    row.bytes = tensor_bytes(&w);
    if (st == CLT_OK) st = measure(b, &w, with, &row);
    if (st == CLT_OK && b->check) st = check(&w, &row);
    if (st == CLT_OK) {
        snprintf(row.variant, sizeof row.variant, "%s", clt_op_gemm_variant(b->ops, &w.p));
        bench_add(b, &row);
    }
    free_work(&w);
    return st;
}

/* The linear layers' sizes of an MPT, in the three forms of a step; `fused`: also with the operations that a
 * step fuses into them. */
static clt_status run_model(bench *b, int64_t d, int64_t vocab, int64_t tokens, bool fused,
                            const bool *with) {
    const struct {
        const char *name;
        int64_t out, in;
    } layer[] = {{"qkv", 3 * d, d}, {"out", d, d}, {"up", 4 * d, d}, {"down", d, 4 * d}, {"head", vocab, d}};
    for (size_t i = 0; i < CLT_COUNT_OF(layer); i++) {
        const int64_t out = layer[i].out, in = layer[i].in;
        const gemm_shape s[] = {{layer[i].name, CLT_GEMM_NT, tokens, out, in, PLAIN},
                                {layer[i].name, CLT_GEMM_NN, tokens, in, out, PLAIN},
                                {layer[i].name, CLT_GEMM_TN, out, in, tokens, PLAIN}};
        for (size_t f = 0; f < CLT_COUNT_OF(s); f++) CLT_TRY(run_shape(b, &s[f], with));
    }
    for (size_t i = 0; i < CLT_COUNT_OF(layer); i++) {
        const gemm_shape s = {layer[i].name, CLT_GEMM_TN, layer[i].out, layer[i].in, tokens, ADDED};
        CLT_TRY(run_shape(b, &s, with));
    }
    const gemm_shape s[] = {{"up", CLT_GEMM_NT, tokens, 4 * d, d, GELU},
                            {"down", CLT_GEMM_NT, tokens, d, 4 * d, RESIDUAL},
                            {"down", CLT_GEMM_NN, tokens, 4 * d, d, GELU_GRADIENT},
                            {"down", CLT_GEMM_NN, tokens, 4 * d, d, GELU_AGAIN},
                            {"qkv", CLT_GEMM_TN, 3 * d, d, tokens, SUMS},
                            {"up", CLT_GEMM_TN, 4 * d, d, tokens, SUMS}};
    for (size_t f = 0; fused && f < CLT_COUNT_OF(s); f++) CLT_TRY(run_shape(b, &s[f], with));
    return CLT_OK;
}

/* The linear layers of MPT-1B for so few tokens as generation has at once: the weights' bytes bound them. */
static clt_status run_few(bench *b, const bool *with) {
    const int64_t d = 2048;
    const gemm_shape layer[] = {{"out", CLT_GEMM_NT, 1, d, d, PLAIN},
                                {"up", CLT_GEMM_NT, 1, 4 * d, d, PLAIN},
                                {"down", CLT_GEMM_NT, 1, d, 4 * d, PLAIN},
                                {"head", CLT_GEMM_NT, 1, 50368, d, PLAIN}};
    for (int64_t rows = 1; rows <= 8; rows *= 2)
        for (size_t i = 0; i < CLT_COUNT_OF(layer); i++) {
            gemm_shape s = layer[i];
            s.m = rows;
            CLT_TRY(run_shape(b, &s, with));
        }
    return CLT_OK;
}

static clt_status run_square(bench *b, const bool *with) {
    const int64_t most = clt_device_get_facts(b->dev)->type == CLT_DEVICE_CPU ? 2048 : 8192;
    for (int64_t n = 256; n <= most; n *= 2)
        for (int f = 0; f < 3; f++) {
            const gemm_shape s = {"", (clt_gemm_form)f, n, n, n, PLAIN};
            CLT_TRY(run_shape(b, &s, with));
        }
    return CLT_OK;
}

/* On a GPU the models' suites have the tokens of a microbatch of published training runs, on a CPU fewer. */
static clt_status run_suite(bench *b, const bool *with) {
    static const struct {
        const char *name;
        int64_t d, vocab, tokens, gpu_tokens;
    } model[] = {{"mpt-small", 256, 4096, 1024, 1024},   {"mpt-125m", 768, 50368, 256, 32768},
                 {"mpt-125m-256", 768, 50368, 256, 256}, {"mpt-125m-2k", 768, 50368, 2048, 2048},
                 {"mpt-1b", 2048, 50368, 2048, 16384},   {"mpt-7b", 4096, 50368, 2048, 8192},
                 {"mpt-13b", 5120, 50368, 1024, 4096}};
    const bool cpu = clt_device_get_facts(b->dev)->type == CLT_DEVICE_CPU;
    if (!strcmp(b->suite, "square")) return run_square(b, with);
    if (!strcmp(b->suite, "mpt-1b-few")) return run_few(b, with);
    for (size_t i = 0; i < CLT_COUNT_OF(model); i++)
        if (!strcmp(b->suite, model[i].name))
            return run_model(b, model[i].d, model[i].vocab, cpu ? model[i].tokens : model[i].gpu_tokens, !cpu,
                             with);
    return clt_error(CLT_USAGE, "clbench gemm: unknown suite '%s'; suites: %s", b->suite, SUITES);
}

/* An anchor that is not installed, or that does not support the type, is reported and skipped. */
static void load_anchors(bench *b, bool *with) {
    for (size_t i = 0; i < b->anchors.n; i++) {
        const bool openblas = !strcmp(b->anchors.v[i], "openblas");
        if (b->type != CLT_F32) {
            printf("anchor   %s supports fp32 tensors only; skipped\n", b->anchors.v[i]);
            continue;
        }
        const bool there =
            openblas ? anchor_openblas_load(clt_device_get_facts(b->dev)) : clt_clblast_available();
        with[openblas ? OPENBLAS : CLBLAST] = there;
        if (!there)
            printf("anchor   %s is not installed (%s); skipped\n", b->anchors.v[i],
                   openblas ? "libopenblas.so.0" : "libclblast.so.1");
        else if (openblas)
            printf("anchor   OpenBLAS, core type %s\n", anchor_openblas_core());
        else
            printf("anchor   CLBlast, on the same device\n");
    }
}

int bench_gemm(int argc, char **argv) {
    bench b = {.suite = "mpt-125m"};
    bool with[LIBRARIES] = {false};
    const bench_about about = {
        .name = "gemm",
        .summary =
            "Measures matrix products: NT is a layer's forward pass, NN its data gradient, TN its "
            "weight gradient (of samples of 256 or 2048 tokens); +c (added to what a step's earlier "
            "microbatches gave), +gelu, +dgelu (and gelu: where it was not kept), +add (a residual) and "
            "+sums (bias gradients) are what a step fuses into them. "
            "An anchor's column is its time divided by ours.",
        .examples = "  clbench gemm --suite mpt-125m --check\n"
                    "  clbench gemm --suite mpt-125m-2k --anchor openblas --seconds 2\n"
                    "  clbench gemm --suite mpt-1b --device nvidia --type bf16 --numerics fast --check\n"
                    "  clbench gemm --suite square --device nvidia --numerics fast --anchor clblast\n",
        .suites = SUITES,
        .anchors = true};
    int code = bench_start(&b, &about, argc, argv);
    if (code >= 0) return code;
    load_anchors(&b, with);
    return bench_end(&b, run_suite(&b, with));
}
