/* clbench gemm8: the matrix products of a training step in 8-bit blocks, beside the fp32 (or bf16) product of
 * the same sizes and OpenBLAS, and what quantisation costs, beside a copy. Blocks of calls alternate, so that
 * other load on the machine affects all of them equally. */
#include "tools/clbench/bench.h"

#include <math.h>
#include <string.h>

#include "runtime/ops/ref/clt_ref.h"

enum { BLOCK = 128, SAMPLE = 2048, SAMPLED = 256 };

typedef struct {
    const char *name;
    clt_gemm8_form form;
    bool data_gradient; /* of PRODUCT: the name of the row alone */
    int64_t m, n, k;
} gemm8_shape;

/* A matrix in blocks, made from random numbers by clt_op_quantize. */
typedef struct {
    clt_ref x; /* the numbers [rows, k] in b->type */
    float *host;
    clt_blocks8 blocks;
} operand;

typedef struct {
    bench *b;
    clt_gemm8_params p;
    clt_gemm_params plain;
    anchor_shape other;
    operand a, w;
    clt_ref c, c_plain;
    float *host_c;
} gemm8_work;

static clt_status call_ours(void *ctx) {
    gemm8_work *w = ctx;
    return clt_op_gemm8(w->b->ops, &w->p);
}
static clt_status call_plain(void *ctx) {
    gemm8_work *w = ctx;
    return clt_op_gemm(w->b->ops, &w->plain);
}
static clt_status call_openblas(void *ctx) {
    gemm8_work *w = ctx;
    anchor_openblas(&w->other, w->a.host, w->w.host, w->host_c);
    return CLT_OK;
}

/* --- tensors --- */

static clt_status make_blocks(bench *b, int64_t rows, int64_t k, int32_t tile, clt_blocks8 *out) {
    *out = (clt_blocks8){.ld = k, .ld_scale = CLT_CEIL_DIV(rows, tile), .block = BLOCK, .tile = tile};
    CLT_TRY(clt_buffer_create(b->dev, (uint64_t)(rows * k), "bench", &out->q.buf));
    return clt_buffer_create(b->dev, (uint64_t)(k / BLOCK * out->ld_scale) * 4, "bench", &out->scale.buf);
}

static clt_status make_operand(bench *b, int64_t rows, int64_t k, int32_t tile, uint64_t seed, operand *o) {
    CLT_TRY(bench_tensor_as(b, b->type, (uint64_t)(rows * k), seed, "bench", &o->x, &o->host));
    CLT_TRY(make_blocks(b, rows, k, tile, &o->blocks));
    const clt_quantize_params q = {
        .rows = rows, .cols = k, .x = clt_tensor_of(o->x, k, b->type), .along = o->blocks};
    return clt_op_quantize(b->ops, &q);
}

static void free_operand(operand *o) {
    bench_free(o->x);
    bench_free(o->blocks.q);
    bench_free(o->blocks.scale);
    clt_free(o->host);
}

/* The plain product has the forms that a step uses: a data gradient reads the weights as they are stored, a
 * weight gradient both operands. */
static void set_plain(const gemm8_shape *s, gemm8_work *w) {
    const bool tn = s->form != CLT_GEMM8_PRODUCT, nn = s->data_gradient;
    const clt_dtype type = w->b->type;
    w->plain = (clt_gemm_params){.form = tn   ? CLT_GEMM_TN
                                         : nn ? CLT_GEMM_NN
                                              : CLT_GEMM_NT,
                                 .m = s->m,
                                 .n = s->n,
                                 .k = s->k,
                                 .k_group = w->p.k_group};
    w->plain.a = clt_tensor_of(w->a.x, tn ? s->m : s->k, type);
    w->plain.b = clt_tensor_of(w->w.x, tn || nn ? s->n : s->k, type);
    w->plain.c = clt_tensor_of(w->c_plain, s->n, w->p.c.type);
    w->other = (anchor_shape){tn, !tn && !nn, s->m, s->n, s->k, w->plain.a.ld, w->plain.b.ld, s->n, 0.0f};
}

static clt_status make_work(bench *b, const gemm8_shape *s, gemm8_work *w) {
    const bool product = s->form == CLT_GEMM8_PRODUCT;
    const clt_dtype out = product ? b->type : CLT_F32;
    *w = (gemm8_work){.b = b};
    CLT_TRY(make_operand(b, s->m, s->k, 1, 1, &w->a));
    CLT_TRY(make_operand(b, s->n, s->k, product ? BLOCK : 1, 2, &w->w));
    CLT_TRY(bench_tensor_as(b, out, (uint64_t)(s->m * s->n), 3, "bench", &w->c, &w->host_c));
    CLT_TRY(bench_tensor_as(b, out, (uint64_t)(s->m * s->n), 3, "bench", &w->c_plain, NULL));
    w->p = (clt_gemm8_params){.form = s->form, .m = s->m, .n = s->n, .k = s->k};
    w->p.k_group = s->k % SAMPLE ? s->k : SAMPLE;
    w->p.a = w->a.blocks, w->p.b = w->w.blocks, w->p.c = clt_tensor_of(w->c, s->n, out);
    w->p.pre.type = out;
    set_plain(s, w);
    return CLT_OK;
}

static void free_work(gemm8_work *w) {
    free_operand(&w->a);
    free_operand(&w->w);
    bench_free(w->c);
    bench_free(w->c_plain);
    clt_free(w->host_c);
}

/* --- checking --- */

/* The rows of an operand as the oracle's quantisation has them. */
static clt_ref_blocks8 host_blocks(const operand *o, int64_t rows, int64_t k) {
    const clt_blocks8 *d = &o->blocks;
    clt_ref_blocks8 h = {clt_malloc((size_t)(rows * k)),
                         k,
                         clt_malloc((size_t)(k / BLOCK * d->ld_scale) * 4),
                         d->ld_scale,
                         BLOCK,
                         d->tile};
    clt_ref_quantize(&(clt_ref_quantize_params){
        .rows = rows, .cols = k, .rows_per_sample = rows, .x = o->host, .ldx = k, .along = h});
    return h;
}

/* Sampled outputs of quantisation and product together, with the last row and column. */
static clt_status check(gemm8_work *w, bench_row *row) {
    const clt_gemm8_params *p = &w->p;
    const clt_gemm_params to = {.m = p->m, .n = p->n, .k = p->k, .k_group = p->k_group, .c = p->c};
    float *got = clt_malloc((size_t)(p->m * p->n) * sizeof *got), want;
    clt_ref_gemm8_params r = {p->form, host_blocks(&w->a, p->m, p->k), host_blocks(&w->w, p->n, p->k),
                              clt_ref_gemm_of(&to)};
    clt_status st = call_ours(w);
    if (st == CLT_OK) st = clt_ref_read_as(w->c, p->c.type, got, (uint64_t)(p->m * p->n));
    row->checked = row->ok = true;
    for (int64_t s = 0; st == CLT_OK && s < SAMPLED; s++) {
        const int64_t i = s % 16 ? s * 2654435761 % p->m : p->m - 1,
                      j = s % 16 != 1 ? s * 40503 % p->n : p->n - 1;
        bool same;
        r.to.c = &want - (i * r.to.ldc + j);
        clt_ref_gemm8_at(&r, i, j);
        const double off = bench_difference(&got[i * p->n + j], &want, 1, &same);
        row->max_error = CLT_MAX(row->max_error, isnan(off) ? INFINITY : off);
        row->ok = row->ok && same;
    }
    clt_free(r.a.q), clt_free(r.a.scale), clt_free(r.b.q), clt_free(r.b.scale), clt_free(got);
    return st;
}

/* --- measuring --- */

/* Medians of alternating blocks. After OpenBLAS it pauses until its threads sleep. */
static clt_status measure(bench *b, const bench_call *call, void *const *ctx, double *seconds, int n_calls) {
    enum { MOST = 100, CALLS = 3 };
    double block[CALLS][MOST];
    int calls[CALLS], n = 0;
    for (int c = 0; c < n_calls; c++)
        if (call[c]) CLT_TRY(bench_calibrate(b, call[c], ctx[c], &calls[c]));
    const double start = clt_now();
    do {
        for (int c = n_calls - 1; c >= 0; c--) {
            if (!call[c]) continue;
            CLT_TRY(bench_block(b, call[c], ctx[c], calls[c], &block[c][n]));
            if (call[c] == call_openblas) clt_sleep(0.05);
        }
        n++;
    } while (n < MOST && (n < 3 || clt_now() - start < b->seconds));
    for (int c = 0; c < n_calls; c++) seconds[c] = call[c] ? bench_median(block[c], n) : 0;
    return CLT_OK;
}

static clt_status run_shape(bench *b, const gemm8_shape *s, bool openblas) {
    static const char *const form[] = {"forward", "samples", "chain"};
    gemm8_work w;
    bench_row row = {
        .flops = 2.0 * (double)s->m * (double)s->n * (double)s->k, .integers = true, .type = b->type};
    snprintf(row.op, sizeof row.op, "gemm8 %s", s->data_gradient ? "data grad" : form[s->form]);
    snprintf(row.shape, sizeof row.shape, "%s %lldx%lldx%lld", s->name, (long long)s->m, (long long)s->n,
             (long long)s->k);
    if (!bench_wants(b, row.op, row.shape)) return CLT_OK;
    const bench_call call[] = {call_ours, call_plain, openblas ? call_openblas : NULL};
    void *const ctx[] = {&w, &w, &w};
    double seconds[3] = {0};
    clt_status st = make_work(b, s, &w);
    if (st == CLT_OK) st = measure(b, call, ctx, seconds, CLT_COUNT_OF(call));
    if (st == CLT_OK && b->check) st = check(&w, &row);
    if (st == CLT_OK) {
        const double bytes = (double)clt_dtype_bytes(w.p.c.type);
        row.bytes = (double)s->k * (double)(s->m + s->n) + bytes * (double)s->m * (double)s->n;
        row.seconds = seconds[0];
        row.anchor_seconds[BENCH_GEMM] = seconds[1], row.anchor_seconds[BENCH_OPENBLAS] = seconds[2];
        snprintf(row.variant, sizeof row.variant, "%s", clt_op_gemm8_variant(b->ops, &w.p));
        bench_add(b, &row);
    }
    free_work(&w);
    return st;
}

/* --- quantisation --- */

typedef struct {
    bench *b;
    clt_quantize_params p;
    clt_ref x, y, g;
    float *host, *host_g;
} quantize_work;

static clt_status call_quantize(void *ctx) {
    quantize_work *w = ctx;
    return clt_op_quantize(w->b->ops, &w->p);
}
static clt_status call_copy(void *ctx) {
    quantize_work *w = ctx;
    const int64_t n = w->p.rows * w->p.cols;
    return clt_op_copy_rows(w->b->ops, 1, n, clt_tensor_of(w->x, n, w->b->type),
                            clt_tensor_of(w->y, n, w->b->type));
}

typedef struct {
    const char *name;
    int64_t rows, cols;
    int32_t tile;
    bool along, across;
    enum { PLAIN, ACT, GRAD, GRAD_Y } of; /* x, gelu(x), x * gelu'(g), the same with y stored */
} quantize_shape;

static clt_status make_quantize(bench *b, const quantize_shape *s, quantize_work *w) {
    const uint64_t n = (uint64_t)(s->rows * s->cols);
    const int64_t sample = s->tile > 1 || s->rows % SAMPLE ? s->rows : SAMPLE;
    *w = (quantize_work){.b = b, .p = {.rows = s->rows, .cols = s->cols, .rows_per_sample = sample}};
    CLT_TRY(bench_tensor_as(b, b->type, n, 5, "bench", &w->x, &w->host));
    CLT_TRY(bench_tensor_as(b, b->type, n, 6, "bench", &w->y, NULL));
    if (s->of >= GRAD) CLT_TRY(bench_tensor_as(b, b->type, n, 7, "bench", &w->g, &w->host_g));
    w->p.x = clt_tensor_of(w->x, s->cols, b->type);
    if (s->of == ACT) w->p.act = CLT_ACT_GELU;
    if (s->of >= GRAD) w->p.grad_act = CLT_ACT_GELU, w->p.grad_pre = clt_tensor_of(w->g, s->cols, b->type);
    if (s->of == GRAD_Y) w->p.y = clt_tensor_of(w->y, s->cols, b->type);
    if (s->along) CLT_TRY(make_blocks(b, s->rows, s->cols, s->tile, &w->p.along));
    return s->across ? make_blocks(b, s->cols, s->rows, s->tile, &w->p.across) : CLT_OK;
}

static bool same_y(const quantize_work *w, const float *want, clt_status *st) {
    const size_t n = (size_t)(w->p.rows * w->p.cols);
    float *got = clt_malloc(n * sizeof *got);
    *st = clt_ref_read_as(w->y, w->b->type, got, n);
    const bool same = memcmp(got, want, n * sizeof *got) == 0;
    clt_free(got);
    return same;
}

/* The numbers of both orientations, and y, against the oracle's. */
static clt_status check_quantize(quantize_work *w, bench_row *row) {
    clt_ref_quantize_params r = {w->p.rows, w->p.cols, w->p.rows_per_sample, w->host, w->p.cols};
    const size_t n = (size_t)(w->p.rows * w->p.cols);
    const clt_blocks8 *device[] = {&w->p.along, &w->p.across};
    clt_ref_blocks8 *host[] = {&r.along, &r.across};
    int8_t *got = clt_malloc(n);
    clt_status st = call_quantize(w); /* the copy has overwritten y */
    r.act = w->p.act, r.grad_act = w->p.grad_act, r.grad_pre = w->host_g, r.ldgrad = r.ldy = w->p.cols;
    r.type = w->b->type;
    if (clt_tensor_present(w->p.y)) r.y = clt_malloc(n * sizeof *r.y);
    row->checked = row->ok = true;
    for (int i = 0; i < 2; i++)
        if (clt_blocks8_present(device[i]))
            *host[i] = (clt_ref_blocks8){clt_malloc(n),       device[i]->ld, clt_malloc(n),
                                         device[i]->ld_scale, BLOCK,         device[i]->tile};
    clt_ref_quantize(&r);
    for (int i = 0; i < 2; i++) {
        if (host[i]->q && st == CLT_OK) st = clt_buffer_read(device[i]->q.buf, 0, got, n);
        row->ok = row->ok && (!host[i]->q || memcmp(got, host[i]->q, n) == 0);
        clt_free(host[i]->q), clt_free(host[i]->scale);
    }
    if (r.y && st == CLT_OK) row->ok = same_y(w, r.y, &st) && row->ok;
    clt_free(got), clt_free(r.y);
    return st;
}

static clt_status run_quantize(bench *b, const quantize_shape *s) {
    const double n = (double)s->rows * (double)s->cols;
    const int outputs = s->along + s->across, tensors = 1 + (s->of >= GRAD) + (s->of == GRAD_Y);
    static const char *const of[] = {"", " gelu", " gelu'", " gelu' y"};
    quantize_work w;
    bench_row row = {.type = b->type, .bytes = n * ((double)clt_dtype_bytes(b->type) * tensors + outputs)};
    snprintf(row.op, sizeof row.op, "quantize %s%s%s",
             outputs == 2 ? "both"
             : s->along   ? "along"
                          : "across",
             s->tile > 1 ? " tiles" : "", of[s->of]);
    snprintf(row.shape, sizeof row.shape, "%s %lldx%lld", s->name, (long long)s->rows, (long long)s->cols);
    if (!bench_wants(b, row.op, row.shape)) return CLT_OK;
    const bench_call call[] = {call_quantize, call_copy};
    void *const ctx[] = {&w, &w};
    double seconds[2];
    clt_status st = make_quantize(b, s, &w);
    if (st == CLT_OK) st = measure(b, call, ctx, seconds, CLT_COUNT_OF(call));
    if (st == CLT_OK && b->check) st = check_quantize(&w, &row);
    if (st == CLT_OK) {
        row.seconds = seconds[0];
        row.anchor_seconds[BENCH_COPY] = seconds[1];
        bench_variant(b, "quantize", row.variant, sizeof row.variant);
        bench_add(b, &row);
    }
    const clt_ref all[] = {w.x, w.y, w.g, w.p.along.q, w.p.along.scale, w.p.across.q, w.p.across.scale};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) bench_free(all[i]);
    clt_free(w.host), clt_free(w.host_g);
    return st;
}

/* --- suites --- */

static clt_status run_layers(bench *b, int64_t d, int64_t vocab, int64_t tokens, bool openblas) {
    const struct {
        const char *name;
        int64_t out, in;
    } layer[] = {{"qkv", 3 * d, d}, {"out", d, d}, {"up", 4 * d, d}, {"down", d, 4 * d}, {"head", vocab, d}};
    for (size_t i = 0; i < CLT_COUNT_OF(layer); i++) {
        const int64_t out = layer[i].out, in = layer[i].in;
        const char *name = layer[i].name;
        const gemm8_shape s[] = {
            {name, CLT_GEMM8_PRODUCT, false, tokens, out, in},
            {name, CLT_GEMM8_PRODUCT, true, tokens, in, CLT_ROUND_UP(out, (int64_t)BLOCK)},
            {name, CLT_GEMM8_SAMPLES, false, out, in, tokens},
            {name, CLT_GEMM8_CHAIN, false, out, in, tokens}};
        for (size_t f = 0; f < CLT_COUNT_OF(s); f++) CLT_TRY(run_shape(b, &s[f], openblas));
    }
    const quantize_shape q[] = {
        {"activations", tokens, d, 1, true, true},        {"hidden", tokens, 4 * d, 1, true, true},
        {"hidden", tokens, 4 * d, 1, true, false},        {"hidden", tokens, 4 * d, 1, false, true},
        {"hidden", tokens, 4 * d, 1, true, true, ACT},    {"hidden", tokens, 4 * d, 1, true, true, GRAD},
        {"hidden", tokens, 4 * d, 1, true, true, GRAD_Y}, {"weights", 4 * d, d, BLOCK, true, true}};
    for (size_t i = 0; i < CLT_COUNT_OF(q); i++) CLT_TRY(run_quantize(b, &q[i]));
    return CLT_OK;
}

#define SUITES "mpt-small, mpt-125m, mpt-125m-2k, mpt-1b"

static clt_status run_suite(bench *b, bool openblas) {
    static const struct {
        const char *name;
        int64_t d, vocab, tokens, gpu_tokens;
    } model[] = {{"mpt-small", 256, 4096, 1024, 1024},
                 {"mpt-125m", 768, 50368, 256, 32768},
                 {"mpt-125m-2k", 768, 50368, 2048, 2048},
                 {"mpt-1b", 2048, 50368, 2048, 16384}};
    const bool cpu = clt_device_get_facts(b->dev)->type == CLT_DEVICE_CPU;
    for (size_t i = 0; i < CLT_COUNT_OF(model); i++)
        if (!strcmp(b->suite, model[i].name))
            return run_layers(b, model[i].d, model[i].vocab, cpu ? model[i].tokens : model[i].gpu_tokens,
                              openblas);
    return clt_error(CLT_USAGE, "clbench gemm8: unknown suite '%s'; suites: %s", b->suite, SUITES);
}

/* OpenBLAS, where it is asked for and installed. */
static bool wants_openblas(const bench *b) {
    bool wanted = false;
    for (size_t i = 0; i < b->anchors.n; i++) wanted = wanted || !strcmp(b->anchors.v[i], "openblas");
    if (!wanted || b->type != CLT_F32) return false;
    if (!anchor_openblas_load(clt_device_get_facts(b->dev))) {
        printf("anchor   openblas is not installed (libopenblas.so.0); skipped\n");
        return false;
    }
    printf("anchor   OpenBLAS, core type %s\n", anchor_openblas_core());
    return true;
}

int bench_gemm8(int argc, char **argv) {
    bench b = {.suite = "mpt-125m"};
    const bench_about about = {
        .name = "gemm8",
        .summary =
            "Measures products of 8-bit blocks of 128: a layer's forward pass and data gradient (weights "
            "with a "
            "scale per tile), its weight gradient as a chain per sample and as one chain (scales per row and "
            "block), and what makes the blocks, also of GELU (gelu) or of x times its derivative (gelu'; y: "
            "stored, "
            "too). Column gemm is the time of the product of --type divided by "
            "ours, column copy that of copying what is quantised.",
        .examples = "  clbench gemm8 --suite mpt-125m-2k --check\n"
                    "  clbench gemm8 --suite mpt-125m --anchor openblas --seconds 2\n"
                    "  clbench gemm8 --suite mpt-1b --device nvidia --type bf16 --numerics fast --check\n",
        .suites = SUITES,
        .anchors = true};
    const int code = bench_start(&b, &about, argc, argv);
    if (code >= 0) return code;
    const bool openblas = wants_openblas(&b);
    clt_strv_add(&b.anchors, "gemm");
    clt_strv_add(&b.anchors, "copy");
    return bench_end(&b, run_suite(&b, openblas));
}
