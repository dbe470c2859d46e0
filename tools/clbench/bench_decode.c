/* clbench decode: what the next token of a text takes in one layer: the products of few rows, of which the
 * bytes of the weights are the limit, attention over cached keys and values, and all of them in one launch.
 * Successive calls read different weights, so that none of them are in a cache, as in a model. */
#include "tools/clbench/bench.h"

#include <string.h>

#include "runtime/ops/clt_ops.h"

enum { AWAY_MIB = 256 /* bytes of weights between two calls with the same ones */ };

typedef struct {
    bench *b;
    clt_linear_params p;
    clt_ref x, y, norm, weights;
    int64_t copies, next; /* matrices in `weights`; the one of the next call */
} linear_work;

static clt_status call_linear(void *ctx) {
    linear_work *w = ctx;
    const uint64_t matrix = (uint64_t)(w->p.n * w->p.k);
    clt_linear_params p = w->p;
    const bool gated = p.act == CLT_ACT_SILU;
    p.w.ref = clt_ref_at(w->weights, (uint64_t)w->next * matrix);
    w->next = (w->next + 1) % w->copies;
    if (gated) p.gate = clt_tensor_of(clt_ref_at(w->weights, (uint64_t)w->next * matrix), p.k, p.w.type);
    if (gated) w->next = (w->next + 1) % w->copies;
    return clt_op_linear(w->b->ops, &p);
}

/* One product: of n outputs from k inputs, behind a norm if `normed`. */
typedef struct {
    const char *suite, *name;
    int64_t n, k;
    bool normed, gated;
} product;

static clt_status make_linear(bench *b, const product *s, int64_t rows, linear_work *w) {
    const uint64_t matrix = (uint64_t)(s->n * s->k), bytes = matrix * clt_dtype_bytes(b->type);
    *w = (linear_work){.b = b, .copies = 2 + (int64_t)(((uint64_t)AWAY_MIB << 20) / bytes)};
    CLT_TRY(bench_tensor(b, (uint64_t)(rows * s->k), 1, "bench x", &w->x, NULL));
    CLT_TRY(bench_tensor(b, (uint64_t)s->k, 2, "bench norm", &w->norm, NULL));
    CLT_TRY(bench_tensor(b, (uint64_t)(rows * s->n), 3, "bench y", &w->y, NULL));
    CLT_TRY(bench_tensor_as(b, b->type, matrix * (uint64_t)w->copies, 4, "bench weights", &w->weights, NULL));
    w->p = (clt_linear_params){.rows = rows,
                               .n = s->n,
                               .k = s->k,
                               .norm = s->normed ? CLT_LINEAR_RMS_NORM : CLT_LINEAR_PLAIN,
                               .eps = 1e-5f,
                               .x = clt_tensor_of(w->x, s->k, CLT_F32),
                               .w = clt_tensor_of(w->weights, s->k, b->type),
                               .act = s->gated ? CLT_ACT_SILU : CLT_ACT_NONE,
                               .y = clt_tensor_of(w->y, s->n, CLT_F32)};
    if (s->normed) w->p.norm_w = clt_tensor_vector(w->norm, CLT_F32);
    return CLT_OK;
}

static clt_status declined(const char *what) {
    printf("%s: no kernel of this device takes it (numerics fast, GPUs)\n", what);
    return CLT_OK;
}

static clt_status run_linear(bench *b, const product *s, int64_t rows) {
    bench_row row = {.op = "linear", .type = b->type};
    linear_work w = {0};
    bool takes = false;
    row.bytes = (double)(s->n * s->k * (s->gated ? 2 : 1)) * (double)clt_dtype_bytes(b->type);
    snprintf(row.shape, sizeof row.shape, "%s %lldx%lldx%lld", s->name, (long long)rows, (long long)s->n,
             (long long)s->k);
    if (!bench_wants(b, row.op, row.shape)) return CLT_OK;
    clt_status st = make_linear(b, s, rows, &w);
    if (st == CLT_OK) st = clt_op_linear_takes(b->ops, &w.p, &takes);
    if (st == CLT_OK && !takes) st = declined(row.shape);
    if (st == CLT_OK && takes) st = bench_time(b, call_linear, &w, &row.seconds);
    bench_variant(b, "linear", row.variant, sizeof row.variant);
    if (st == CLT_OK && takes) bench_add(b, &row);
    const clt_ref all[] = {w.x, w.y, w.norm, w.weights};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) bench_free(all[i]);
    return st;
}

/* --- attention --- */

typedef struct {
    bench *b;
    clt_attention_step_params p;
    clt_ref qkv, o, angles, cache, index;
    int64_t copies, next;
} attention_work;

static clt_status call_attention(void *ctx) {
    attention_work *w = ctx;
    clt_attention_step_params p = w->p;
    p.cache.ref = clt_ref_at(w->cache, (uint64_t)(w->next * p.rows * p.room * p.cache.ld));
    w->next = (w->next + 1) % w->copies;
    return clt_op_attention_step(w->b->ops, &p);
}

/* Heads of one layer. */
typedef struct {
    const char *suite;
    int64_t heads, kv_heads, head_dim;
} layer;

static clt_status make_attention(bench *b, const layer *s, int64_t rows, int64_t keys, attention_work *w) {
    enum { MOST_ROWS = 64 };
    const int64_t width = (s->heads + 2 * s->kv_heads) * s->head_dim,
                  cached = rows * keys * 2 * s->kv_heads * s->head_dim;
    int32_t index[2 * MOST_ROWS];
    *w = (attention_work){
        .b = b, .copies = 1 + ((int64_t)AWAY_MIB << 20) / (cached * (int64_t)clt_dtype_bytes(b->type))};
    for (int i = 0; i < MOST_ROWS; i++) index[i] = (int32_t)(keys - 1), index[MOST_ROWS + i] = i;
    CLT_TRY(bench_tensor(b, (uint64_t)(rows * width), 1, "bench qkv", &w->qkv, NULL));
    CLT_TRY(bench_tensor(b, (uint64_t)(rows * s->heads * s->head_dim), 2, "bench o", &w->o, NULL));
    CLT_TRY(bench_tensor(b, (uint64_t)(keys * s->head_dim), 3, "bench angles", &w->angles, NULL));
    CLT_TRY(bench_tensor_as(b, b->type, (uint64_t)(cached * w->copies), 4, "bench cache", &w->cache, NULL));
    CLT_TRY(clt_buffer_create(b->dev, sizeof index, "bench places", &w->index.buf));
    CLT_TRY(clt_buffer_write(w->index.buf, 0, index, sizeof index));
    w->p =
        (clt_attention_step_params){.rows = rows,
                                    .heads = s->heads,
                                    .kv_heads = s->kv_heads,
                                    .head_dim = s->head_dim,
                                    .longest = keys,
                                    .qkv = clt_tensor_of(w->qkv, width, CLT_F32),
                                    .cache = clt_tensor_of(w->cache, 2 * s->kv_heads * s->head_dim, b->type),
                                    .room = keys,
                                    .position = w->index,
                                    .place = clt_ref_at(w->index, MOST_ROWS),
                                    .rotated = s->head_dim,
                                    .angles = w->angles,
                                    .scale = 0.125f,
                                    .window = -1,
                                    .o = clt_tensor_of(w->o, s->heads * s->head_dim, CLT_F32)};
    return CLT_OK;
}

static clt_status run_attention(bench *b, const layer *s, int64_t rows, int64_t keys) {
    bench_row row = {.op = "attention step", .type = b->type};
    attention_work w = {0};
    bool takes = false;
    row.bytes = (double)(rows * keys * 2 * s->kv_heads * s->head_dim) * (double)clt_dtype_bytes(b->type);
    snprintf(row.shape, sizeof row.shape, "B%lld H%lld/%lld D%lld T%lld", (long long)rows,
             (long long)s->heads, (long long)s->kv_heads, (long long)s->head_dim, (long long)keys);
    if (!bench_wants(b, row.op, row.shape)) return CLT_OK;
    clt_status st = make_attention(b, s, rows, keys, &w);
    if (st == CLT_OK) st = clt_op_attention_step_takes(b->ops, &w.p, &takes);
    if (st == CLT_OK && !takes) st = declined(row.shape);
    if (st == CLT_OK && takes) st = bench_time(b, call_attention, &w, &row.seconds);
    bench_variant(b, "attention_step", row.variant, sizeof row.variant);
    if (st == CLT_OK && takes) bench_add(b, &row);
    const clt_ref all[] = {w.qkv, w.o, w.angles, w.cache, w.index};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) bench_free(all[i]);
    return st;
}

/* --- a block --- */

/* Sizes of a whole block in Llama's form. */
typedef struct {
    const char *suite;
    int64_t width, hidden, heads, kv_heads, head_dim;
} block;

typedef struct {
    bench *b;
    clt_block_step_params p;
    attention_work attention;
    clt_ref x, norm, weights; /* x: the residual stream, qkv, hidden and the result, one after another */
    uint64_t bytes, each;     /* of a block's weights; elements of a block's weights */
    int64_t copies, next;
} block_work;

static clt_status call_block(void *ctx) {
    block_work *w = ctx;
    clt_block_step_params p = w->p;
    clt_tensor *const t[] = {&p.qkv.w, &p.out.w, &p.hidden.w, &p.hidden.gate, &p.down.w};
    for (size_t i = 0; i < CLT_COUNT_OF(t); i++) t[i]->ref.off += (uint64_t)w->next * w->each;
    w->next = (w->next + 1) % w->copies;
    return clt_op_block_step(w->b->ops, &p);
}

static clt_linear_params block_product(block_work *w, int64_t n, int64_t k, clt_tensor x, clt_tensor y) {
    const clt_ref at = clt_ref_at(w->weights, w->each);
    w->each += (uint64_t)(n * k);
    return (clt_linear_params){
        .rows = 1, .n = n, .k = k, .eps = 1e-5f, .x = x, .w = clt_tensor_of(at, k, w->b->type), .y = y};
}

static clt_status make_block(bench *b, const block *s, int64_t keys, block_work *w) {
    const int64_t C = s->width, F = s->hidden, A = s->heads * s->head_dim,
                  W = A + 2 * s->kv_heads * s->head_dim;
    const layer heads = {s->suite, s->heads, s->kv_heads, s->head_dim};
    const uint64_t all = (uint64_t)(W * C + C * A + 3 * F * C);
    *w = (block_work){.b = b, .bytes = all * clt_dtype_bytes(b->type)};
    w->copies = 2 + (int64_t)(((uint64_t)AWAY_MIB << 20) / w->bytes);
    CLT_TRY(bench_tensor(b, (uint64_t)(3 * C + F), 1, "bench x", &w->x, NULL));
    CLT_TRY(bench_tensor(b, (uint64_t)C, 2, "bench norm", &w->norm, NULL));
    CLT_TRY(bench_tensor_as(b, b->type, all * (uint64_t)w->copies, 4, "bench weights", &w->weights, NULL));
    CLT_TRY(make_attention(b, &heads, 1, keys, &w->attention));
    clt_block_step_params *p = &w->p;
    p->attention = w->attention.p;
    const clt_tensor x = clt_tensor_of(w->x, C, CLT_F32), mid = clt_tensor_at(x, 1, 0),
                     y = clt_tensor_at(x, 2, 0),
                     hidden = clt_tensor_of(clt_tensor_at(x, 3, 0).ref, F, CLT_F32);
    p->qkv = block_product(w, W, C, x, p->attention.qkv);
    p->out = block_product(w, C, A, p->attention.o, mid);
    p->hidden = block_product(w, F, C, mid, hidden);
    p->hidden.gate = block_product(w, F, C, mid, hidden).w;
    p->hidden.act = CLT_ACT_SILU;
    p->down = block_product(w, C, F, hidden, y);
    p->out.residual = x, p->down.residual = mid;
    p->qkv.norm = p->hidden.norm = CLT_LINEAR_RMS_NORM;
    p->qkv.norm_w = p->hidden.norm_w = clt_tensor_vector(w->norm, CLT_F32);
    return CLT_OK;
}

static clt_status run_block(bench *b, const block *s, int64_t keys) {
    bench_row row = {.op = "block", .type = b->type};
    block_work w = {0};
    bool takes = false;
    snprintf(row.shape, sizeof row.shape, "1 row of %lld, hidden %lld, T%lld", (long long)s->width,
             (long long)s->hidden, (long long)keys);
    if (!bench_wants(b, row.op, row.shape)) return CLT_OK;
    clt_status st = make_block(b, s, keys, &w);
    row.bytes = (double)w.bytes;
    if (st == CLT_OK) st = clt_op_block_step_takes(b->ops, &w.p, &takes);
    if (st == CLT_OK && !takes) st = declined(row.shape);
    if (st == CLT_OK && takes) st = bench_time(b, call_block, &w, &row.seconds);
    bench_variant(b, "block_step", row.variant, sizeof row.variant);
    if (st == CLT_OK && takes) bench_add(b, &row);
    const clt_ref all[] = {w.x,
                           w.norm,
                           w.weights,
                           w.attention.qkv,
                           w.attention.o,
                           w.attention.angles,
                           w.attention.cache,
                           w.attention.index};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) bench_free(all[i]);
    return st;
}

/* --- suites --- */

static const product products[] = {
    {"llama-1b", "q|k|v", 3072, 2048, true, false},      {"llama-1b", "out", 2048, 2048, false, false},
    {"llama-1b", "gate and up", 8192, 2048, true, true}, {"llama-1b", "down", 2048, 8192, false, false},
    {"llama-1b", "head", 128256, 2048, true, false},     {"llama-8b", "q|k|v", 6144, 4096, true, false},
    {"llama-8b", "out", 4096, 4096, false, false},       {"llama-8b", "gate and up", 14336, 4096, true, true},
    {"llama-8b", "down", 4096, 14336, false, false},     {"tiny", "q|k|v", 192, 64, true, false},
    {"tiny", "gate and up", 96, 64, true, true}};
static const block blocks[] = {
    {"llama-1b", 2048, 8192, 32, 8, 64}, {"llama-8b", 4096, 14336, 32, 8, 128}, {"tiny", 64, 96, 4, 2, 16}};
static const layer layers[] = {{"llama-1b", 32, 8, 64}, {"llama-8b", 32, 8, 128}, {"tiny", 4, 2, 16}};

static clt_status run_suite(bench *b) {
    const int64_t rows[] = {1, 4, 8};
    bool known = false;
    for (size_t i = 0; i < CLT_COUNT_OF(products); i++)
        for (size_t r = 0; r < CLT_COUNT_OF(rows) && !strcmp(products[i].suite, b->suite); r++)
            CLT_TRY(run_linear(b, &products[i], rows[r]));
    for (size_t i = 0; i < CLT_COUNT_OF(layers); i++) {
        if (strcmp(layers[i].suite, b->suite) != 0) continue;
        known = true;
        for (int64_t keys = 128; keys <= 8192; keys *= 4) CLT_TRY(run_attention(b, &layers[i], 1, keys));
        CLT_TRY(run_attention(b, &layers[i], 8, 512));
    }
    for (size_t i = 0; i < CLT_COUNT_OF(blocks); i++)
        if (!strcmp(blocks[i].suite, b->suite)) CLT_TRY(run_block(b, &blocks[i], 512));
    return known
               ? CLT_OK
               : clt_error(CLT_USAGE, "clbench decode: unknown suite '%s'; suites: llama-1b, llama-8b, tiny",
                           b->suite);
}

int bench_decode(int argc, char **argv) {
    bench b = {.suite = "llama-1b"};
    const bench_about about = {
        .name = "decode",
        .summary =
            "Measures what the next token of a text takes in a layer: products of 1, 4 and 8 rows with the "
            "norm "
            "before them (linear), attention over 128 to 8,192 cached positions (attention step), and a "
            "whole block "
            "in one launch (block). Only "
            "numerics fast on GPUs has such kernels; CLTRAIN_VARIANT forces them elsewhere.",
        .examples = "  clbench decode --type bf16 --numerics fast\n"
                    "  clbench decode --type bf16 --numerics fast --suite llama-8b --only attention\n"
                    "  clbench decode --type bf16 --numerics fast --only block\n",
        .suites = "llama-1b, llama-8b, tiny"};
    int code = bench_start(&b, &about, argc, argv);
    if (code >= 0) return code;
    return bench_end(&b, run_suite(&b));
}
