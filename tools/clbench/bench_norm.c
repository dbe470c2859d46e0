/* clbench norm: layer normalisation forward and backward, and sums down columns; limited by memory. */
#include "tools/clbench/bench.h"

#include <string.h>

#include "runtime/ops/ref/clt_ref.h"

typedef struct {
    bench *b;
    clt_norm_params fwd;
    clt_norm_grad_params bwd,
        branch;                 /* branch: with the results that the next branch's backward pass needs */
    clt_norm_grad_params again; /* the same without biases, with the recomputed output of the forward pass */
    clt_column_sum_params sum;
    int64_t cols, sample; /* sample: tokens */
    clt_ref x, y, w, mean, rstd, dy, dx, res, dw, sum_out, copy, db, y_again;
    float *hx, *hw, *hdy, *hres;
} norm_work;

static clt_status call_forward(void *ctx) {
    norm_work *w = ctx;
    return clt_op_norm_forward(w->b->ops, &w->fwd);
}
static clt_status call_backward(void *ctx) {
    norm_work *w = ctx;
    return clt_op_norm_backward(w->b->ops, &w->bwd);
}
static clt_status call_branch(void *ctx) {
    norm_work *w = ctx;
    return clt_op_norm_backward(w->b->ops, &w->branch);
}
static clt_status call_again(void *ctx) {
    norm_work *w = ctx;
    return clt_op_norm_backward(w->b->ops, &w->again);
}
static clt_status call_sum(void *ctx) {
    norm_work *w = ctx;
    return clt_op_column_sum(w->b->ops, &w->sum);
}

static clt_tensor rows_of(const norm_work *w, clt_ref r, clt_dtype type) {
    return clt_tensor_of(r, w->cols, type);
}

static clt_status make_buffers(bench *b, int64_t rows, norm_work *w) {
    const uint64_t n = (uint64_t)(rows * w->cols), c = (uint64_t)w->cols, r = (uint64_t)rows;
    CLT_TRY(bench_tensor(b, n, 1, "bench x", &w->x, &w->hx));
    CLT_TRY(bench_tensor_as(b, b->type, n, 2, "bench dy", &w->dy, &w->hdy));
    CLT_TRY(bench_tensor(b, n, 5, "bench residual", &w->res, &w->hres));
    CLT_TRY(bench_tensor(b, c, 3, "bench w", &w->w, &w->hw));
    CLT_TRY(clt_buffer_create(b->dev, n * clt_dtype_bytes(b->type), "bench y", &w->y.buf));
    CLT_TRY(clt_buffer_create(b->dev, n * 4, "bench dx", &w->dx.buf));
    CLT_TRY(clt_buffer_create(b->dev, r * 4, "bench mean", &w->mean.buf));
    CLT_TRY(clt_buffer_create(b->dev, r * 4, "bench rstd", &w->rstd.buf));
    CLT_TRY(clt_buffer_create(b->dev, c * 4, "bench dw", &w->dw.buf));
    CLT_TRY(clt_buffer_create(b->dev, c * 4, "bench sum", &w->sum_out.buf));
    CLT_TRY(clt_buffer_create(b->dev, c * 4, "bench db", &w->db.buf));
    CLT_TRY(clt_buffer_create(b->dev, n * clt_dtype_bytes(b->type), "bench copy", &w->copy.buf));
    CLT_TRY(clt_buffer_create(b->dev, n * clt_dtype_bytes(b->type), "bench y again", &w->y_again.buf));
    return CLT_OK;
}

static clt_status make_work(bench *b, int64_t rows, int64_t cols, norm_work *w) {
    *w = (norm_work){.b = b, .cols = cols, .sample = rows % 2048 == 0 ? 2048 : 256};
    CLT_TRY(make_buffers(b, rows, w));
    const clt_tensor x = rows_of(w, w->x, CLT_F32), y = rows_of(w, w->y, b->type);
    w->fwd = (clt_norm_params){.eps = 1e-5f, .rows = rows, .cols = cols, .heads = 1, .x = x, .y = y};
    w->fwd.w = clt_tensor_vector(w->w, CLT_F32);
    w->fwd.mean = w->mean, w->fwd.rstd = w->rstd;
    w->bwd = (clt_norm_grad_params){
        .eps = 1e-5f, .rows = rows, .cols = cols, .heads = 1, .rows_per_sample = w->sample};
    w->bwd.x = x, w->bwd.w = w->fwd.w, w->bwd.mean = w->mean, w->bwd.rstd = w->rstd;
    w->bwd.dy = rows_of(w, w->dy, b->type), w->bwd.dx = rows_of(w, w->dx, CLT_F32);
    w->bwd.dw = clt_tensor_vector(w->dw, CLT_F32), w->bwd.residual = rows_of(w, w->res, CLT_F32);
    w->branch = w->again = w->bwd;
    w->branch.db = clt_tensor_vector(w->db, CLT_F32),
    w->branch.dx_sum = clt_tensor_vector(w->sum_out, CLT_F32);
    if (b->type != CLT_F32) w->branch.dx_copy = w->again.dx_copy = rows_of(w, w->copy, b->type);
    w->again.y = rows_of(w, w->y_again, b->type);
    w->sum = (clt_column_sum_params){.rows = rows,
                                     .cols = cols,
                                     .rows_per_sample = w->sample,
                                     .x = w->bwd.dy,
                                     .out = clt_tensor_vector(w->sum_out, CLT_F32)};
    return CLT_OK;
}

static void free_work(norm_work *w) {
    clt_ref all[] = {w->x,  w->y,  w->w,       w->res,  w->mean, w->rstd,   w->dy,
                     w->dx, w->dw, w->sum_out, w->copy, w->db,   w->y_again};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) bench_free(all[i]);
    clt_free(w->hx);
    clt_free(w->hw);
    clt_free(w->hres);
    clt_free(w->hdy);
}

/* Reads n elements of `type` back and compares them with the oracle's fp32 values. */
static clt_status compare(clt_ref r, clt_dtype type, float *want, size_t n, bench_row *row) {
    float *got = clt_malloc(n * sizeof *got);
    const clt_status st = clt_ref_read_as(r, type, got, n);
    bool same = false;
    clt_ref_round(type, want, n);
    if (st == CLT_OK) row->max_error = CLT_MAX(row->max_error, bench_difference(got, want, n, &same));
    row->ok = row->ok && same;
    clt_free(got);
    return st;
}

typedef enum { FORWARD, BACKWARD, BRANCH, AGAIN, SUM } norm_kind;

enum { CHECK_ROWS = 64, CHECK_COLS = 64 };

/* The oracle for CHECK_ROWS tokens from `first`. */
static clt_status check_rows(norm_work *w, norm_kind kind, size_t first, bench_row *row) {
    const size_t cols = (size_t)w->fwd.cols, at = first * cols;
    const size_t rows = CLT_MIN((size_t)w->fwd.rows - first, (size_t)CHECK_ROWS);
    float *out = clt_malloc(rows * cols * sizeof *out), mean[CHECK_ROWS], rstd[CHECK_ROWS];
    clt_ref_norm_params r = {.eps = 1e-5f, .rows = (int64_t)rows, .cols = (int64_t)cols, .heads = 1};
    r.rows_per_sample = (int64_t)rows, r.x = w->hx + at, r.w = w->hw, r.y = out, r.mean = mean, r.rstd = rstd;
    r.ldx = r.ldy = r.lddy = r.lddx = r.ldres = (int64_t)cols;
    clt_ref_norm_forward(&r);
    r.dy = w->hdy + at, r.residual = w->hres + at, r.dx = out;
    if (kind != FORWARD) clt_ref_norm_backward(&r);
    const clt_dtype type = w->b->type;
    clt_ref got = clt_ref_at(kind == FORWARD ? w->y : w->dx, at);
    clt_status st = compare(got, kind == FORWARD ? type : CLT_F32, out, rows * cols, row);
    if (st == CLT_OK && kind == AGAIN) {
        clt_ref_norm_forward(&r);
        st = compare(clt_ref_at(w->y_again, at), type, out, rows * cols, row);
    }
    clt_free(out);
    return st;
}

/* dw, or the column sum, in the first columns. */
static clt_status check_columns(norm_work *w, norm_kind kind, bench_row *row) {
    const size_t rows = (size_t)w->fwd.rows, cols = CLT_MIN((size_t)w->fwd.cols, (size_t)CHECK_COLS);
    float *mean = clt_malloc(rows * sizeof *mean), *rstd = clt_malloc(rows * sizeof *rstd), sum[CHECK_COLS];
    clt_ref_norm_params r = {.rows = (int64_t)rows, .cols = (int64_t)cols, .heads = 1};
    r.rows_per_sample = w->sample, r.ldx = r.lddy = w->fwd.cols, r.x = w->hx, r.dy = w->hdy;
    r.mean = mean, r.rstd = rstd, r.dw = kind == BACKWARD ? sum : NULL, r.db = kind == SUM ? sum : NULL;
    clt_status st = clt_ref_read_f32(w->mean, mean, rows);
    if (st == CLT_OK) st = clt_ref_read_f32(w->rstd, rstd, rows);
    clt_ref_norm_backward(&r);
    if (st == CLT_OK) st = compare(kind == BACKWARD ? w->dw : w->sum_out, CLT_F32, sum, cols, row);
    clt_free(mean);
    clt_free(rstd);
    return st;
}

/* Compares the copy with dx, and its sums if there are any. */
static clt_status check_branch(norm_work *w, norm_kind kind, bench_row *row) {
    const clt_dtype type = w->b->type;
    const size_t n = (size_t)(w->fwd.rows * w->fwd.cols);
    float *dx = clt_malloc(n * sizeof *dx), sum[CHECK_COLS];
    clt_status st = clt_ref_read_as(w->dx, CLT_F32, dx, n);
    if (st == CLT_OK && type != CLT_F32) st = compare(w->copy, type, dx, n, row);
    const int64_t cols = CLT_MIN(w->fwd.cols, CHECK_COLS);
    clt_ref_column_sum(w->fwd.rows, cols, w->sample, dx, w->fwd.cols, false, sum);
    if (st == CLT_OK && kind == BRANCH) st = compare(w->sum_out, CLT_F32, sum, (size_t)cols, row);
    clt_free(dx);
    return st;
}

/* Checks both ends of the timed tensors. */
static clt_status check(norm_work *w, norm_kind kind, bench_row *row) {
    row->checked = row->ok = true;
    if (kind != SUM) CLT_TRY(check_rows(w, kind, 0, row));
    if (kind != SUM) CLT_TRY(check_rows(w, kind, (size_t)CLT_MAX(w->fwd.rows - CHECK_ROWS, 0), row));
    if (kind == BRANCH || kind == AGAIN) CLT_TRY(check_branch(w, kind, row));
    return kind == BACKWARD || kind == SUM ? check_columns(w, kind, row) : CLT_OK;
}

static clt_status run_shape(bench *b, int64_t rows, int64_t cols) {
    const clt_dtype type = b->type;
    const double e = (double)clt_dtype_bytes(type);
    const struct {
        const char *op;
        bench_call call;
        double bytes; /* per element */
    } kinds[] = {{"norm forward", call_forward, 4 + e},
                 {"norm backward", call_backward, 12 + e},
                 {"norm backward, sums", call_branch, type == CLT_F32 ? 12 + e : 12 + 2 * e},
                 {"norm backward, again", call_again, type == CLT_F32 ? 12 + 2 * e : 12 + 3 * e},
                 {"column sum", call_sum, e}};
    bench_row all[SUM + 1];
    bool any = false;
    norm_work w;
    for (int k = 0; k <= SUM; k++) {
        all[k] = (bench_row){.type = b->type, .bytes = kinds[k].bytes * (double)rows * (double)cols};
        snprintf(all[k].op, sizeof all[k].op, "%s", kinds[k].op);
        snprintf(all[k].shape, sizeof all[k].shape, "%lldx%lld", (long long)rows, (long long)cols);
        any = any || bench_wants(b, all[k].op, all[k].shape);
    }
    if (!any) return CLT_OK;
    clt_status st = make_work(b, rows, cols, &w);
    if (st == CLT_OK) st = call_forward(&w); /* the other calls need its statistics */
    for (int k = 0; k <= SUM && st == CLT_OK; k++) {
        bench_row row = all[k];
        if (!bench_wants(b, row.op, row.shape)) continue;
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
    } suite[] = {{"mpt-small", 1024, 256}, {"mpt-125m", 2048, 768}, {"mpt-125m", 32768, 768},
                 {"mpt-1b", 2048, 2048},   {"mpt-1b", 16384, 2048}, {"mpt-7b", 8192, 4096}};
    bool known = false;
    for (size_t i = 0; i < CLT_COUNT_OF(suite); i++)
        if (!strcmp(suite[i].name, b->suite)) {
            known = true;
            CLT_TRY(run_shape(b, suite[i].rows, suite[i].cols));
        }
    return known ? CLT_OK
                 : clt_error(CLT_USAGE,
                             "clbench norm: unknown suite '%s'; suites: mpt-small, mpt-125m, mpt-1b, mpt-7b",
                             b->suite);
}

int bench_norm(int argc, char **argv) {
    bench b = {.suite = "mpt-125m"};
    const bench_about about = {
        .name = "norm",
        .summary = "Measures layer normalisation, forward and backward (with the residual and the "
                   "weight's gradient; with what the next branch wants: both gradients, dx rounded "
                   "to the type and its column sums; with dx rounded and the forward pass's output "
                   "again), and the sum down columns of a bias gradient. "
                   "x, dx and the residual are fp32, y and dy of the type.",
        .examples = "  clbench norm --check\n"
                    "  clbench norm --suite mpt-1b --json norm.json\n",
        .suites = "mpt-small, mpt-125m, mpt-1b, mpt-7b"};
    int code = bench_start(&b, &about, argc, argv);
    if (code >= 0) return code;
    return bench_end(&b, run_suite(&b));
}
