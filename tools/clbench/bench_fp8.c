/* clbench fp8: the matrix products of a training step in 8-bit floating point, beside the product of --type
 * of the same sizes, and what the casts cost, beside a copy. Blocks of calls alternate, so that other load on
 * the machine affects all of them equally. */
#include "tools/clbench/bench.h"

#include <math.h>
#include <string.h>

#include "runtime/ops/ref/clt_ref.h"

enum { SAMPLED = 256 };
static const float scale_of[2] = {3.0f, 5.0f}; /* of a and b */

typedef struct {
    const char *name;
    enum { FORWARD, RESIDUAL, DATA, WEIGHTS } pass; /* RESIDUAL: forward, added to a residual in fp32 */
    int64_t m, n, k;
} fp8_shape;

/* A matrix [rows, k] cast from random numbers. */
typedef struct {
    clt_ref x, numbers; /* numbers: scale, inverse, amax */
    float *host;
    clt_codes8 codes;
} operand;

typedef struct {
    bench *b;
    clt_gemm_fp8_params p;
    clt_gemm_params plain;
    operand a, w;
    clt_ref c, c_plain, residual;
    float *residual_host;
} fp8_work;

static clt_status call_ours(void *ctx) {
    fp8_work *w = ctx;
    return clt_op_gemm_fp8(w->b->ops, &w->p);
}
static clt_status call_plain(void *ctx) {
    fp8_work *w = ctx;
    return clt_op_gemm(w->b->ops, &w->plain);
}

static clt_status make_numbers(bench *b, float scale, clt_ref *out) {
    const float numbers[3] = {scale, 1.0f / scale, 0.0f};
    CLT_TRY(clt_buffer_create(b->dev, sizeof numbers, "bench", &out->buf));
    return clt_buffer_write(out->buf, 0, numbers, sizeof numbers);
}

static clt_status make_operand(bench *b, int64_t rows, int64_t k, clt_fp8 format, int which, operand *o) {
    CLT_TRY(bench_tensor_as(b, b->type, (uint64_t)(rows * k), (uint64_t)which + 1, "bench", &o->x, &o->host));
    CLT_TRY(make_numbers(b, scale_of[which], &o->numbers));
    o->codes = (clt_codes8){.ld = clt_codes8_k(k), .format = format, .inverse = clt_ref_at(o->numbers, 1)};
    CLT_TRY(clt_buffer_create(b->dev, (uint64_t)(rows * o->codes.ld), "bench", &o->codes.q.buf));
    return clt_op_cast_fp8(b->ops, &(clt_cast_fp8_params){.rows = rows,
                                                          .cols = k,
                                                          .x = clt_tensor_of(o->x, k, b->type),
                                                          .scale = o->numbers,
                                                          .along = o->codes});
}

static void free_operand(operand *o) {
    bench_free(o->x), bench_free(o->numbers), bench_free(o->codes.q);
    clt_free(o->host);
}

/* The plain product has the forms that a step uses: a data gradient reads the weights as they are stored, a
 * weight gradient both operands. */
static void set_plain(const fp8_shape *s, fp8_work *w) {
    const bool tn = s->pass == WEIGHTS, nn = s->pass == DATA;
    const clt_dtype type = w->b->type;
    w->plain = (clt_gemm_params){.m = s->m, .n = s->n, .k = s->k, .k_group = s->k};
    w->plain.form = tn ? CLT_GEMM_TN : nn ? CLT_GEMM_NN : CLT_GEMM_NT;
    w->plain.a = clt_tensor_of(w->a.x, tn ? s->m : s->k, type);
    w->plain.b = clt_tensor_of(w->w.x, tn || nn ? s->n : s->k, type);
    w->plain.c = clt_tensor_of(w->c_plain, s->n, w->p.to.c.type);
    w->plain.residual = w->p.to.residual;
}

static clt_status make_work(bench *b, const fp8_shape *s, fp8_work *w) {
    const bool adds = s->pass == RESIDUAL, split = s->pass == DATA || s->pass == WEIGHTS;
    const clt_dtype out = adds || s->pass == WEIGHTS ? CLT_F32 : b->type;
    const uint64_t outputs = (uint64_t)(s->m * s->n);
    *w = (fp8_work){.b = b};
    CLT_TRY(make_operand(b, s->m, s->k, split ? CLT_FP8_E5M2 : CLT_FP8_E4M3, 0, &w->a));
    CLT_TRY(make_operand(b, s->n, s->k, CLT_FP8_E4M3, 1, &w->w));
    CLT_TRY(bench_tensor_as(b, out, outputs, 3, "bench", &w->c, NULL));
    CLT_TRY(bench_tensor_as(b, out, outputs, 3, "bench", &w->c_plain, NULL));
    if (adds) CLT_TRY(bench_tensor_as(b, out, outputs, 4, "bench", &w->residual, &w->residual_host));
    w->p = (clt_gemm_fp8_params){.a = w->a.codes, .b = w->w.codes, .split = split};
    w->p.to = (clt_gemm_params){.m = s->m, .n = s->n, .k = clt_codes8_k(s->k)};
    w->p.to.c = clt_tensor_of(w->c, s->n, out), w->p.to.pre.type = out;
    if (adds) w->p.to.residual = clt_tensor_of(w->residual, s->n, out);
    set_plain(s, w);
    return CLT_OK;
}

static void free_work(fp8_work *w) {
    free_operand(&w->a), free_operand(&w->w);
    bench_free(w->c), bench_free(w->c_plain), bench_free(w->residual);
    clt_free(w->residual_host);
}

static clt_ref_codes8 host_codes(const operand *o, int which, int64_t rows, int64_t k) {
    const clt_codes8 *d = &o->codes;
    clt_ref_codes8 h = {clt_malloc((size_t)(rows * d->ld)), d->ld, d->format, 1.0f / scale_of[which]};
    clt_ref_cast_fp8(&(clt_ref_cast_fp8_params){.rows = rows,
                                                .cols = k,
                                                .x = o->host,
                                                .ldx = k,
                                                .scale = scale_of[which],
                                                .format = d->format,
                                                .along = h});
    return h;
}

/* Sampled outputs of cast and product together, with the last row and column, within the bound. */
static clt_status check(fp8_work *w, const fp8_shape *s, bench_row *row) {
    const clt_gemm_params *to = &w->p.to;
    float *got = clt_malloc((size_t)(to->m * to->n) * sizeof *got);
    clt_ref_gemm_fp8_params r = {host_codes(&w->a, 0, to->m, s->k), host_codes(&w->w, 1, to->n, s->k),
                                 w->p.split, clt_ref_gemm_of(to)};
    r.to.residual = w->residual_host;
    clt_status st = call_ours(w);
    if (st == CLT_OK) st = clt_ref_read_as(w->c, to->c.type, got, (uint64_t)(to->m * to->n));
    row->checked = row->ok = true;
    for (int64_t e = 0; st == CLT_OK && e < SAMPLED; e++) {
        const int64_t i = e % 16 ? e * 2654435761 % to->m : to->m - 1,
                      j = e % 16 != 1 ? e * 40503 % to->n : to->n - 1;
        const clt_ref_gemm_near near = clt_ref_gemm_fp8_near_at(&r, i, j, 0);
        const double off = fabs((double)got[i * to->n + j] - near.c);
        row->max_error = CLT_MAX(row->max_error, isnan(off) ? INFINITY : off);
        row->ok = row->ok && off <= near.c_bound;
    }
    clt_free(r.a.q), clt_free(r.b.q), clt_free(got);
    return st;
}

/* Medians of alternating blocks. */
static clt_status measure(bench *b, const bench_call call[2], void *ctx, double seconds[2]) {
    enum { MOST = 100 };
    double block[2][MOST];
    int calls[2], n = 0;
    for (int c = 0; c < 2; c++) CLT_TRY(bench_calibrate(b, call[c], ctx, &calls[c]));
    const double start = clt_now();
    do {
        for (int c = 1; c >= 0; c--) CLT_TRY(bench_block(b, call[c], ctx, calls[c], &block[c][n]));
        n++;
    } while (n < MOST && (n < 3 || clt_now() - start < b->seconds));
    for (int c = 0; c < 2; c++) seconds[c] = bench_median(block[c], n);
    return CLT_OK;
}

static clt_status run_shape(bench *b, const fp8_shape *s) {
    static const char *const pass[] = {"forward", "residual", "data grad", "weight grad"};
    fp8_work w;
    bench_row row = {.flops = 2.0 * (double)s->m * (double)s->n * (double)s->k, .type = b->type};
    snprintf(row.op, sizeof row.op, "fp8 %s", pass[s->pass]);
    snprintf(row.shape, sizeof row.shape, "%s %lldx%lldx%lld", s->name, (long long)s->m, (long long)s->n,
             (long long)s->k);
    if (!bench_wants(b, row.op, row.shape)) return CLT_OK;
    double seconds[2] = {0};
    clt_status st = make_work(b, s, &w);
    if (st == CLT_OK) st = measure(b, (bench_call[]){call_ours, call_plain}, &w, seconds);
    if (st == CLT_OK && b->check) st = check(&w, s, &row);
    if (st == CLT_OK) {
        const double bytes = (double)clt_dtype_bytes(w.p.to.c.type);
        const double outputs = (double)s->m * (double)s->n * (s->pass == RESIDUAL ? 2.0 : 1.0);
        row.bytes = (double)s->k * (double)(s->m + s->n) + bytes * outputs;
        row.seconds = seconds[0];
        row.anchor_seconds[BENCH_GEMM] = seconds[1];
        snprintf(row.variant, sizeof row.variant, "%s", clt_op_gemm_fp8_variant(b->ops, &w.p));
        bench_add(b, &row);
    }
    free_work(&w);
    return st;
}

/* --- casts --- */

typedef struct {
    bench *b;
    clt_cast_fp8_params p;
    clt_ref x, y, g, numbers;
} cast_work;

/* What a cast applies to what it reads: nothing, GELU, or the factor of its derivative, whose product with x
 * is stored, too. */
typedef enum { PLAIN, ACT, GRAD } cast_kind;

static clt_status call_cast(void *ctx) {
    cast_work *w = ctx;
    return clt_op_cast_fp8(w->b->ops, &w->p);
}
static clt_status call_copy(void *ctx) {
    cast_work *w = ctx;
    const int64_t n = w->p.rows * w->p.cols;
    return clt_op_copy_rows(w->b->ops, 1, n, clt_tensor_of(w->x, n, w->b->type),
                            clt_tensor_of(w->y, n, w->b->type));
}

static clt_status make_codes(bench *b, int64_t lines, int64_t k, clt_codes8 *out) {
    *out = (clt_codes8){.ld = clt_codes8_k(k), .format = CLT_FP8_E4M3};
    return clt_buffer_create(b->dev, (uint64_t)(lines * out->ld), "bench", &out->q.buf);
}

static clt_status make_cast(bench *b, int64_t rows, int64_t cols, cast_kind kind, int outputs, cast_work *w) {
    const uint64_t n = (uint64_t)(rows * cols);
    *w = (cast_work){.b = b, .p = {.rows = rows, .cols = cols}};
    CLT_TRY(bench_tensor_as(b, b->type, n, 5, "bench", &w->x, NULL));
    CLT_TRY(bench_tensor_as(b, b->type, n, 6, "bench", &w->y, NULL));
    CLT_TRY(make_numbers(b, scale_of[0], &w->numbers));
    w->p.x = clt_tensor_of(w->x, cols, b->type);
    w->p.scale = w->numbers, w->p.amax = clt_ref_at(w->numbers, 2);
    if (kind == ACT) w->p.act = CLT_ACT_GELU;
    if (kind == GRAD) {
        CLT_TRY(bench_tensor_as(b, b->type, n, 7, "bench", &w->g, NULL));
        w->p.grad_act = CLT_ACT_GELU, w->p.grad_pre = clt_tensor_of(w->g, cols, b->type);
        w->p.y = clt_tensor_of(w->y, cols, b->type);
    }
    if (outputs & 1) CLT_TRY(make_codes(b, rows, cols, &w->p.along));
    return outputs & 2 ? make_codes(b, cols, rows, &w->p.across) : CLT_OK;
}

static clt_status run_cast(bench *b, const char *name, int64_t rows, int64_t cols, cast_kind kind,
                           int outputs) {
    static const char *const which[] = {"", "along", "across", "both"}, *const kinds[] = {"", "act ",
                                                                                          "grad "};
    const int tensors = kind == GRAD ? 3 : 1;
    const double n = (double)rows * (double)cols;
    cast_work w;
    bench_row row = {.type = b->type,
                     .bytes = n * (tensors * (double)clt_dtype_bytes(b->type) + (outputs == 3 ? 2 : 1))};
    snprintf(row.op, sizeof row.op, "cast fp8 %s%s", kinds[kind], which[outputs]);
    snprintf(row.shape, sizeof row.shape, "%s %lldx%lld", name, (long long)rows, (long long)cols);
    if (!bench_wants(b, row.op, row.shape)) return CLT_OK;
    double seconds[2];
    clt_status st = make_cast(b, rows, cols, kind, outputs, &w);
    if (st == CLT_OK) st = measure(b, (bench_call[]){call_cast, call_copy}, &w, seconds);
    if (st == CLT_OK) {
        row.seconds = seconds[0];
        row.anchor_seconds[BENCH_COPY] = seconds[1];
        bench_variant(b, "cast_fp8", row.variant, sizeof row.variant);
        bench_add(b, &row);
    }
    const clt_ref all[] = {w.x, w.y, w.g, w.numbers, w.p.along.q, w.p.across.q};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) bench_free(all[i]);
    return st;
}

/* --- suites --- */

static clt_status run_layers(bench *b, int64_t d, int64_t tokens) {
    const struct {
        const char *name;
        int64_t out, in;
    } layer[] = {{"qkv", 3 * d, d}, {"out", d, d}, {"up", 4 * d, d}, {"down", d, 4 * d}};
    for (size_t i = 0; i < CLT_COUNT_OF(layer); i++) {
        const int64_t out = layer[i].out, in = layer[i].in;
        const bool adds = i % 2 != 0; /* to the residual stream */
        const fp8_shape s[] = {{layer[i].name, FORWARD, tokens, out, in},
                               {layer[i].name, RESIDUAL, tokens, out, in},
                               {layer[i].name, DATA, tokens, in, out},
                               {layer[i].name, WEIGHTS, out, in, tokens}};
        for (size_t f = 0; f < CLT_COUNT_OF(s); f++)
            if (s[f].pass != RESIDUAL || adds) CLT_TRY(run_shape(b, &s[f]));
    }
    CLT_TRY(run_cast(b, "activations", tokens, d, PLAIN, 3));
    CLT_TRY(run_cast(b, "hidden", tokens, 4 * d, PLAIN, 3));
    CLT_TRY(run_cast(b, "hidden", tokens, 4 * d, PLAIN, 1));
    CLT_TRY(run_cast(b, "hidden", tokens, 4 * d, ACT, 3));
    CLT_TRY(run_cast(b, "hidden", tokens, 4 * d, GRAD, 3));
    return run_cast(b, "weights", 4 * d, d, PLAIN, 3);
}

#define SUITES "mpt-small, mpt-125m, mpt-1b, square"

static clt_status run_suite(bench *b) {
    static const struct {
        const char *name;
        int64_t d, tokens, gpu_tokens;
    } model[] = {{"mpt-small", 256, 1024, 1024}, {"mpt-125m", 768, 256, 32768}, {"mpt-1b", 2048, 256, 16384}};
    const bool cpu = clt_device_get_facts(b->dev)->type == CLT_DEVICE_CPU;
    for (size_t i = 0; i < CLT_COUNT_OF(model); i++)
        if (!strcmp(b->suite, model[i].name))
            return run_layers(b, model[i].d, cpu ? model[i].tokens : model[i].gpu_tokens);
    if (!strcmp(b->suite, "square")) {
        CLT_TRY(run_shape(b, &(fp8_shape){"square", FORWARD, 8192, 8192, 8192}));
        return run_shape(b, &(fp8_shape){"square", DATA, 8192, 8192, 8192});
    }
    return clt_error(CLT_USAGE, "clbench fp8: unknown suite '%s'; suites: %s", b->suite, SUITES);
}

int bench_fp8(int argc, char **argv) {
    bench b = {.suite = "mpt-125m"};
    const bench_about about = {
        .name = "fp8",
        .summary =
            "Measures products of 8-bit floating point with a scale for each tensor: a layer's forward pass "
            "(E4M3; residual: c = residual + product in fp32), its data gradient and its weight gradient "
            "(E5M2 by E4M3, split sums), and the casts. "
            "Column gemm is the time of the product of --type divided by ours, column copy that of copying "
            "what is cast.",
        .examples = "  clbench fp8 --suite mpt-small --check\n"
                    "  clbench fp8 --suite mpt-1b --device nvidia --type bf16 --numerics fast --check\n",
        .suites = SUITES,
        .anchors = true};
    const int code = bench_start(&b, &about, argc, argv);
    if (code >= 0) return code;
    clt_strv_add(&b.anchors, "gemm");
    clt_strv_add(&b.anchors, "copy");
    return bench_end(&b, run_suite(&b));
}
