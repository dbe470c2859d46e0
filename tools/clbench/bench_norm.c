/* clbench norm: layer normalisation forward and backward, and sums down columns; bound by memory. */
#include "bench.h"

#include <string.h>

#include "runtime/ops/ref/clt_ref.h"

enum { SAMPLE = 256 }; /* tokens */

typedef struct {
    bench *b;
    clt_norm_params fwd;
    clt_norm_grad_params bwd;
    clt_column_sum_params sum;
    clt_ref x, y, w, bias, mean, rstd, dy, dx, dw, db;
    float *hx, *hw, *hbias, *hdy;
} norm_work;

static clt_status call_forward(void *ctx) {
    norm_work *w = ctx;
    return clt_op_norm_forward(w->b->ops, &w->fwd);
}
static clt_status call_backward(void *ctx) {
    norm_work *w = ctx;
    return clt_op_norm_backward(w->b->ops, &w->bwd);
}
static clt_status call_sum(void *ctx) {
    norm_work *w = ctx;
    return clt_op_column_sum(w->b->ops, &w->sum);
}

static clt_status make_work(bench *b, int64_t rows, int64_t cols, norm_work *w) {
    const uint64_t n = (uint64_t)(rows * cols), c = (uint64_t)cols, r = (uint64_t)rows;
    *w = (norm_work){.b = b};
    CLT_TRY(bench_tensor(b, n, 1, "bench x", &w->x, &w->hx));
    CLT_TRY(bench_tensor(b, n, 2, "bench dy", &w->dy, &w->hdy));
    CLT_TRY(bench_tensor(b, c, 3, "bench w", &w->w, &w->hw));
    CLT_TRY(bench_tensor(b, c, 4, "bench b", &w->bias, &w->hbias));
    CLT_TRY(bench_tensor(b, n, 5, "bench y", &w->y, NULL));
    CLT_TRY(bench_tensor(b, n, 6, "bench dx", &w->dx, NULL));
    CLT_TRY(bench_tensor(b, r, 7, "bench mean", &w->mean, NULL));
    CLT_TRY(bench_tensor(b, r, 8, "bench rstd", &w->rstd, NULL));
    CLT_TRY(bench_tensor(b, c, 9, "bench dw", &w->dw, NULL));
    CLT_TRY(bench_tensor(b, c, 10, "bench db", &w->db, NULL));
    w->fwd =
        (clt_norm_params){.eps = 1e-5f, .rows = rows, .cols = cols, .heads = 1, .ldx = cols, .ldy = cols};
    w->fwd.x = w->x, w->fwd.y = w->y, w->fwd.w = w->w, w->fwd.b = w->bias;
    w->fwd.mean = w->mean, w->fwd.rstd = w->rstd;
    w->bwd = (clt_norm_grad_params){
        .eps = 1e-5f, .rows = rows, .cols = cols, .heads = 1, .rows_per_sample = SAMPLE};
    w->bwd.ldx = w->bwd.lddy = w->bwd.lddx = w->bwd.ldres = cols;
    w->bwd.x = w->x, w->bwd.w = w->w, w->bwd.mean = w->mean, w->bwd.rstd = w->rstd;
    w->bwd.dy = w->dy, w->bwd.dx = w->dx, w->bwd.dw = w->dw, w->bwd.db = w->db;
    w->sum = (clt_column_sum_params){rows, cols, SAMPLE, cols, w->dy, w->db, false};
    return CLT_OK;
}

static void free_work(norm_work *w) {
    clt_ref all[] = {w->x, w->y, w->w, w->bias, w->mean, w->rstd, w->dy, w->dx, w->dw, w->db};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) bench_free(all[i]);
    clt_free(w->hx);
    clt_free(w->hw);
    clt_free(w->hbias);
    clt_free(w->hdy);
}

/* Reads n floats back and compares them. */
static clt_status compare(clt_ref r, const float *want, size_t n, bench_row *row) {
    float *got = clt_malloc(n * sizeof *got);
    const clt_status st = clt_ref_read_f32(r, got, n);
    bool same = false;
    if (st == CLT_OK) row->max_error = CLT_MAX(row->max_error, bench_difference(got, want, n, &same));
    row->ok = row->ok && same;
    clt_free(got);
    return st;
}

typedef enum { FORWARD, BACKWARD, SUM } norm_kind;

static clt_status check(norm_work *w, norm_kind kind, bench_row *row) {
    const size_t rows = (size_t)w->fwd.rows, cols = (size_t)w->fwd.cols, n = rows * cols;
    float *out = clt_malloc(n * sizeof *out), *mean = clt_malloc(rows * sizeof *mean);
    float *rstd = clt_malloc(rows * sizeof *rstd), *dw = clt_calloc(cols, sizeof *dw),
          *db = clt_calloc(cols, sizeof *db);
    clt_ref_norm_params r = {.eps = 1e-5f, .rows = (int64_t)rows, .cols = (int64_t)cols, .heads = 1};
    r.rows_per_sample = SAMPLE, r.x = w->hx, r.w = w->hw, r.b = w->hbias, r.y = out, r.mean = mean,
    r.rstd = rstd;
    r.ldx = r.ldy = r.lddy = r.lddx = r.ldres = (int64_t)cols;
    clt_status st = CLT_OK;
    row->checked = row->ok = true;
    if (kind != SUM) clt_ref_norm_forward(&r);
    if (kind == FORWARD) {
        st = compare(w->y, out, n, row);
    } else if (kind == BACKWARD) {
        r.dy = w->hdy, r.dx = out, r.dw = dw, r.db = db;
        clt_ref_norm_backward(&r);
        st = compare(w->dx, out, n, row);
        if (st == CLT_OK) st = compare(w->dw, dw, cols, row);
        if (st == CLT_OK) st = compare(w->db, db, cols, row);
    } else {
        clt_ref_column_sum((int64_t)rows, (int64_t)cols, SAMPLE, w->hdy, (int64_t)cols, false, db);
        st = compare(w->db, db, cols, row);
    }
    clt_free(out);
    clt_free(mean);
    clt_free(rstd);
    clt_free(dw);
    clt_free(db);
    return st;
}

static clt_status run_shape(bench *b, int64_t rows, int64_t cols) {
    static const struct {
        const char *op;
        bench_call call;
        double bytes; /* per element */
    } kinds[] = {
        {"norm forward", call_forward, 8}, {"norm backward", call_backward, 12}, {"column sum", call_sum, 4}};
    norm_work w;
    clt_status st = make_work(b, rows, cols, &w);
    for (int k = 0; k < 3 && st == CLT_OK; k++) {
        bench_row row = {.bytes = kinds[k].bytes * (double)rows * (double)cols};
        snprintf(row.op, sizeof row.op, "%s", kinds[k].op);
        snprintf(row.shape, sizeof row.shape, "%lldx%lld", (long long)rows, (long long)cols);
        st = bench_time(b, kinds[k].call, &w, &row.seconds);
        if (st == CLT_OK && b->check) st = check(&w, (norm_kind)k, &row);
        bench_variant(b, "norm", row.variant, sizeof row.variant);
        if (st == CLT_OK) bench_add(b, &row);
    }
    free_work(&w);
    return st;
}

static clt_status run_suite(bench *b) {
    static const struct {
        const char *name;
        int64_t rows, cols;
    } suite[] = {{"mpt-small", 1024, 256}, {"mpt-125m", 256, 768}, {"mpt-125m", 2048, 768},
                 {"mpt-125m", 16384, 768}, {"mpt-1b", 2048, 2048}, {"mpt-1b", 16384, 2048}};
    bool known = false;
    for (size_t i = 0; i < CLT_COUNT_OF(suite); i++)
        if (!strcmp(suite[i].name, b->suite)) {
            known = true;
            CLT_TRY(run_shape(b, suite[i].rows, suite[i].cols));
        }
    return known ? CLT_OK
                 : clt_error(CLT_USAGE, "clbench norm: suite '%s' is not known (mpt-small, mpt-125m, mpt-1b)",
                             b->suite);
}

int bench_norm(int argc, char **argv) {
    bench b = {.suite = "mpt-125m"};
    int code = bench_start(&b, "norm",
                           "Measures layer normalisation with bias, forward and backward (with the gradients "
                           "of weight and bias), and "
                           "the sum down columns of a bias gradient, in samples of 256 tokens.",
                           "  clbench norm --check\n"
                           "  clbench norm --suite mpt-1b --json norm.json\n",
                           "mpt-small, mpt-125m, mpt-1b", false, argc, argv);
    if (code >= 0) return code;
    return bench_end(&b, run_suite(&b));
}
