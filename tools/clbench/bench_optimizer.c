/* clbench optimizer: AdamW, Lion and SGD over a slab, one launch, and the global norm; limited by memory. */
#include "tools/clbench/bench.h"

#include <string.h>

#include "runtime/ops/ref/clt_ref.h"

enum { CHUNK = 65536, BLOCKS = 1024 /* of 64 elements in a chunk */ };

typedef struct {
    bench *b;
    clt_optimizer_params p;
    clt_optimizer_group group;
    clt_ref sums;
    enum { ADAMW, LION, SGD } kind;
} optimizer_work;

static clt_status call_step(void *ctx) {
    optimizer_work *w = ctx;
    if (w->kind == LION) return clt_op_lion(w->b->ops, &w->p);
    return w->kind == SGD ? clt_op_sgd(w->b->ops, &w->p) : clt_op_adamw(w->b->ops, &w->p);
}

static clt_status call_norm(void *ctx) {
    optimizer_work *w = ctx;
    CLT_TRY(clt_op_chunk_sumsq(w->b->ops, w->p.g, w->p.chunks, w->sums));
    return clt_op_norm_status(
        w->b->ops, &(clt_norm_status_params){w->sums, w->p.chunks, .inv_scale = 1.0f, .status = w->p.status});
}

static clt_status make_work(bench *b, uint64_t chunks, optimizer_work *w) {
    const uint64_t n = chunks * CHUNK;
    *w = (optimizer_work){.b = b, .p.chunks = chunks};
    w->group =
        (clt_optimizer_group){.lr = 1e-4f, .decay = 0.9999f, .step_size = 1e-3f, .bias_correction = 0.9f};
    w->group.beta1 = 0.9f, w->group.beta2 = 0.95f, w->group.eps = 1e-8f;
    w->group.one_minus_beta1 = (float)(1 - 0.9), w->group.one_minus_beta2 = (float)(1 - 0.95);
    CLT_TRY(bench_tensor(b, n, 1, "bench p", &w->p.p, NULL));
    CLT_TRY(bench_tensor(b, n, 2, "bench g", &w->p.g, NULL));
    CLT_TRY(bench_tensor(b, n, 3, "bench m", &w->p.m, NULL));
    CLT_TRY(bench_tensor(b, n, 4, "bench v", &w->p.v, NULL));
    CLT_TRY(clt_buffer_fill32(w->p.v.buf, 0, 0x3c23d70au, n * 4)); /* 0.01: never negative */
    if (b->type != CLT_F32) {
        w->p.copy.type = b->type;
        CLT_TRY(clt_buffer_create(b->dev, n * clt_dtype_bytes(b->type), "bench copy", &w->p.copy.ref.buf));
    }
    CLT_TRY(clt_buffer_create(b->dev, chunks * 4, "bench sums", &w->sums.buf));
    CLT_TRY(clt_buffer_create(b->dev, sizeof w->group, "bench groups", &w->p.groups.buf));
    CLT_TRY(clt_buffer_write(w->p.groups.buf, 0, &w->group, sizeof w->group));
    CLT_TRY(clt_buffer_create(b->dev, chunks * BLOCKS, "bench group of block", &w->p.group_of_block.buf));
    CLT_TRY(clt_buffer_fill32(w->p.group_of_block.buf, 0, 0, chunks * BLOCKS));
    const float status[4] = {1, 1, 1, 0}; /* norm, clip, finite */
    CLT_TRY(clt_buffer_create(b->dev, sizeof status, "bench status", &w->p.status.buf));
    return clt_buffer_write(w->p.status.buf, 0, status, sizeof status);
}

static void free_work(optimizer_work *w) {
    clt_ref all[] = {w->p.p,      w->p.g,        w->p.m, w->p.v, w->p.groups, w->p.group_of_block,
                     w->p.status, w->p.copy.ref, w->sums};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) bench_free(all[i]);
}

/* One more step, compared on the first chunk. */
static clt_status check(optimizer_work *w, bench_row *row) {
    float *before[4], *after[4]; /* p, g, m, v */
    const clt_ref ref[4] = {w->p.p, w->p.g, w->p.m, w->p.v};
    clt_status st = CLT_OK;
    for (int i = 0; i < 4; i++) {
        before[i] = clt_malloc(CHUNK * sizeof(float));
        after[i] = clt_malloc(CHUNK * sizeof(float));
        if (st == CLT_OK) st = clt_ref_read_f32(ref[i], before[i], CHUNK);
    }
    if (st == CLT_OK) st = call_step(w);
    for (int i = 0; i < 4 && st == CLT_OK; i++) st = clt_ref_read_f32(ref[i], after[i], CHUNK);
    if (w->kind == ADAMW) clt_ref_adamw(CHUNK, before[0], before[1], before[2], before[3], &w->group, 1.0f);
    if (w->kind == LION) clt_ref_lion(CHUNK, before[0], before[1], before[2], &w->group, 1.0f);
    if (w->kind == SGD) clt_ref_sgd(CHUNK, before[0], before[1], before[2], &w->group, 1.0f);
    row->checked = row->ok = true;
    for (int i = 0; i < 4; i++) {
        bool same;
        row->max_error = CLT_MAX(row->max_error, bench_difference(after[i], before[i], CHUNK, &same));
        row->ok = row->ok && same;
    }
    if (st == CLT_OK && w->p.copy.ref.buf) {
        bool same;
        st = clt_ref_read_as(w->p.copy.ref, w->p.copy.type, after[0], CHUNK);
        clt_ref_round(w->p.copy.type, before[0], CHUNK);
        row->max_error = CLT_MAX(row->max_error, bench_difference(after[0], before[0], CHUNK, &same));
        row->ok = row->ok && same;
    }
    for (int i = 0; i < 4; i++) {
        clt_free(before[i]);
        clt_free(after[i]);
    }
    return st;
}

/* The sum of the first chunk, and the global norm of all sums. */
static clt_status check_norm(optimizer_work *w, bench_row *row) {
    float *g = clt_malloc(CHUNK * sizeof *g), *sums = clt_malloc(w->p.chunks * sizeof *sums);
    float got[3] = {0}, want[3];
    bool same;
    clt_status st = clt_ref_read_f32(w->p.g, g, CHUNK);
    if (st == CLT_OK) st = clt_ref_read_f32(w->sums, sums, w->p.chunks);
    if (st == CLT_OK) st = clt_ref_read_f32(w->p.status, got, 3);
    if (st == CLT_OK) {
        const float first = clt_ref_chunk_sumsq(g);
        clt_ref_norm_status(sums, w->p.chunks, 0.0f, 1.0f, want);
        row->max_error = bench_difference(sums, &first, 1, &row->ok);
        row->max_error = CLT_MAX(row->max_error, bench_difference(got, want, 3, &same));
        row->ok = row->ok && same;
    }
    row->checked = true;
    clt_free(g);
    clt_free(sums);
    return st;
}

static clt_status run(bench *b, optimizer_work *w, const char *op, bench_call call, double bytes) {
    bench_row row = {.type = b->type, .bytes = bytes * (double)w->p.chunks * CHUNK};
    const bool norm = call == call_norm;
    snprintf(row.op, sizeof row.op, "%s", op);
    snprintf(row.shape, sizeof row.shape, "%.1f M elements", (double)w->p.chunks * CHUNK * 1e-6);
    if (!bench_wants(b, row.op, row.shape)) return CLT_OK;
    clt_status st = bench_time(b, call, w, &row.seconds);
    if (st == CLT_OK && b->check) st = norm ? check_norm(w, &row) : check(w, &row);
    bench_variant(b, norm ? "reduce" : "optimizer", row.variant, sizeof row.variant);
    if (st == CLT_OK) bench_add(b, &row);
    return st;
}

static clt_status run_all(bench *b, uint64_t chunks) {
    const double copy = b->type == CLT_F32 ? 0 : (double)clt_dtype_bytes(b->type);
    optimizer_work w;
    clt_status st = make_work(b, chunks, &w);
    if (st == CLT_OK) st = run(b, &w, "adamw", call_step, 28 + copy);
    w.kind = LION;
    if (st == CLT_OK) st = run(b, &w, "lion", call_step, 20 + copy);
    w.kind = SGD;
    if (st == CLT_OK) st = run(b, &w, "sgd", call_step, 20 + copy);
    if (st == CLT_OK) st = run(b, &w, "gradient norm", call_norm, 4);
    free_work(&w);
    return st;
}

int bench_optimizer(int argc, char **argv) {
    bench b = {.suite = "mpt-125m"};
    const bench_about about = {
        .name = "optimizer",
        .summary = "Measures one optimizer step over the parameters of a model: AdamW moves 28 bytes "
                   "per element, Lion 20, with a 16-bit --type 2 more for the copy; and the global "
                   "norm of the gradient.",
        .examples = "  clbench optimizer --check\n"
                    "  clbench optimizer --suite mpt-1b --device nvidia\n",
        .suites = "mpt-small (4 M), mpt-125m, mpt-1b"};
    int code = bench_start(&b, &about, argc, argv);
    if (code >= 0) return code;
    static const struct {
        const char *name;
        uint64_t chunks;
    } suite[] = {{"mpt-small", 64}, {"mpt-125m", 1910}, {"mpt-1b", 20020}};
    uint64_t chunks = 0;
    for (size_t i = 0; i < CLT_COUNT_OF(suite); i++)
        if (!strcmp(suite[i].name, b.suite)) chunks = suite[i].chunks;
    clt_status st =
        chunks ? CLT_OK
               : clt_error(CLT_USAGE,
                           "clbench optimizer: unknown suite '%s'; suites: mpt-small, mpt-125m, mpt-1b",
                           b.suite);
    if (st == CLT_OK) st = run_all(&b, chunks);
    return bench_end(&b, st);
}
