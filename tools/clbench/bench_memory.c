/* clbench copy, activation, loss: operations whose time is mostly moving bytes. */
#include "tools/clbench/bench.h"

#include <math.h>
#include <string.h>

#include "runtime/ops/ref/clt_ref.h"

typedef struct {
    bench *b;
    int64_t rows, cols;
    clt_ref x, y, z, targets, loss;
    float *hx, *hy;
    bool grad;
} memory_work;

static void free_work(memory_work *w) {
    clt_ref all[] = {w->x, w->y, w->z, w->targets, w->loss};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) bench_free(all[i]);
    clt_free(w->hx);
    clt_free(w->hy);
}

/* Rows of the benchmark's type, without gaps. */
static clt_tensor tensor(const memory_work *w, clt_ref r) {
    return clt_tensor_of(r, w->cols, w->b->type);
}

typedef clt_status (*memory_check)(memory_work *w, bench_row *row);

/* One row; bytes: per element. */
static clt_status measure(memory_work *w, const char *op, const char *table, bench_call call, double bytes,
                          memory_check check) {
    bench_row row = {.type = w->b->type, .bytes = bytes * (double)w->rows * (double)w->cols};
    snprintf(row.op, sizeof row.op, "%s", op);
    snprintf(row.shape, sizeof row.shape, "%lldx%lld", (long long)w->rows, (long long)w->cols);
    if (!bench_wants(w->b, row.op, row.shape)) return CLT_OK;
    CLT_TRY(bench_time(w->b, call, w, &row.seconds));
    bench_variant(w->b, table, row.variant, sizeof row.variant);
    if (w->b->check) CLT_TRY(check(w, &row));
    bench_add(w->b, &row);
    return CLT_OK;
}

/* Compares both ends of a tensor with f(x, y) (y: the values of the second input): the bits or, with numerics
 * fast, within the bound of such rows. */
static clt_status check_ends(memory_work *w, clt_ref got, clt_dtype type, float (*f)(float x, float y),
                             bench_row *row) {
    enum { N = 4096 };
    const uint64_t all = (uint64_t)(w->rows * w->cols), n = CLT_MIN(all, (uint64_t)N);
    row->checked = row->ok = true;
    for (uint64_t at = 0, i = 0; i < 2; i++, at = all - n) {
        float have[N], want[N];
        bool same;
        CLT_TRY(clt_ref_read_as(clt_ref_at(got, at), type, have, n));
        for (uint64_t k = 0; k < n; k++) want[k] = f(w->hx[at + k], w->hy ? w->hy[at + k] : 0.0f);
        clt_ref_round(type, want, n);
        row->max_error = CLT_MAX(row->max_error, bench_difference(have, want, n, &same));
        for (uint64_t k = 0; k < n && w->b->fast && !same; k++) /* the bound of the fast rows' check */
            row->ok = row->ok && fabsf(have[k] - want[k]) <= 0x1p-7f * fabsf(want[k]) + 1e-6f;
        row->ok = row->ok && (same || w->b->fast);
    }
    return CLT_OK;
}

typedef struct {
    const char *name;
    int64_t rows, cols;
    bool gpu; /* only for GPUs: as large as in a step */
} memory_shape;

static clt_status each_shape(bench *b, const char *name, const memory_shape *suite, size_t n,
                             clt_status (*run)(bench *b, int64_t rows, int64_t cols)) {
    clt_str known = {0};
    clt_status st = CLT_OK;
    bool found = false;
    for (size_t i = 0; i < n && st == CLT_OK; i++) {
        if (i == 0 || strcmp(suite[i].name, suite[i - 1].name) != 0)
            clt_str_addf(&known, "%s%s", i ? ", " : "", suite[i].name);
        if (strcmp(suite[i].name, b->suite) != 0) continue;
        found = true;
        if (suite[i].gpu && clt_device_get_facts(b->dev)->type != CLT_DEVICE_GPU) continue;
        st = run(b, suite[i].rows, suite[i].cols);
    }
    if (!found)
        st = clt_error(CLT_USAGE, "clbench %s: unknown suite '%s'; suites: %s", name, b->suite, known.s);
    clt_str_free(&known);
    return st;
}

/* --- copy --- */

static clt_status call_copy(void *ctx) {
    memory_work *w = ctx;
    const int64_t n = w->rows * w->cols;
    return clt_op_copy_rows(w->b->ops, 1, n, clt_tensor_of(w->x, n, w->b->type),
                            clt_tensor_of(w->y, n, w->b->type));
}
static clt_status call_add(void *ctx) {
    memory_work *w = ctx;
    return clt_op_add(w->b->ops, w->z, w->x, (uint64_t)(w->rows * w->cols));
}
static clt_status call_cast(void *ctx) {
    memory_work *w = ctx;
    return clt_op_cast(w->b->ops, clt_tensor_vector(w->z, CLT_F32), clt_tensor_vector(w->y, w->b->type),
                       (uint64_t)(w->rows * w->cols));
}

static float first_of(float x, float y) {
    (void)y;
    return x;
}
static float second_of(float x, float y) {
    (void)x;
    return y;
}

static clt_status check_copy(memory_work *w, bench_row *row) {
    return check_ends(w, w->y, w->b->type, first_of, row);
}
/* One more call without accumulation. */
static clt_status check_add(memory_work *w, bench_row *row) {
    CLT_TRY(clt_buffer_fill32(w->z.buf, 0, 0, (uint64_t)(w->rows * w->cols) * 4));
    CLT_TRY(call_add(w));
    return check_ends(w, w->z, CLT_F32, first_of, row);
}
static clt_status check_cast(memory_work *w, bench_row *row) {
    return check_ends(w, w->y, w->b->type, second_of, row);
}

static clt_status run_copy(bench *b, int64_t rows, int64_t cols) {
    memory_work w = {.b = b, .rows = rows, .cols = cols};
    const uint64_t n = (uint64_t)(rows * cols), e = clt_dtype_bytes(b->type);
    clt_status st = bench_tensor_as(b, b->type, n, 1, "bench x", &w.x, &w.hx);
    if (st == CLT_OK) st = clt_buffer_create(b->dev, n * e, "bench y", &w.y.buf);
    if (st == CLT_OK) st = bench_tensor(b, n, 2, "bench z", &w.z, &w.hy);
    if (st == CLT_OK) st = measure(&w, "copy", "elementwise", call_copy, 2 * (double)e, check_copy);
    if (st == CLT_OK && b->type == CLT_F32)
        st = measure(&w, "add", "elementwise", call_add, 12, check_add);
    else if (st == CLT_OK)
        st = measure(&w, "cast from fp32", "cast", call_cast, 4 + (double)e, check_cast);
    free_work(&w);
    return st;
}

int bench_copy(int argc, char **argv) {
    static const memory_shape suite[] = {
        {"small", 1, 1 << 20}, {"mpt-125m", 32768, 768}, {"mpt-1b", 16384, 2048}, {"large", 1, 1 << 28}};
    bench b = {.suite = "large"};
    const bench_about about = {
        .name = "copy",
        .summary = "Measures the rate of kernels that only move bytes: a copy of tensors of the type, "
                   "and the sum of two (fp32) or the cast from fp32 (16-bit types).",
        .examples = "  clbench copy --device nvidia\n",
        .suites = "small, mpt-125m, mpt-1b, large"};
    int code = bench_start(&b, &about, argc, argv);
    if (code >= 0) return code;
    return bench_end(&b, each_shape(&b, "copy", suite, CLT_COUNT_OF(suite), run_copy));
}

/* --- activation --- */

static clt_status call_forward(void *ctx) {
    memory_work *w = ctx;
    return clt_op_activation_forward(w->b->ops, &(clt_activation_params){CLT_ACT_GELU, w->rows, w->cols,
                                                                         tensor(w, w->x), tensor(w, w->z)});
}
static clt_status call_backward(void *ctx) {
    memory_work *w = ctx;
    return clt_op_activation_backward(
        w->b->ops, &(clt_activation_grad_params){CLT_ACT_GELU, w->rows, w->cols, tensor(w, w->x),
                                                 tensor(w, w->y), tensor(w, w->z)});
}

static float gelu_of(float x, float y) {
    (void)y;
    return clt_ref_act(CLT_ACT_GELU, x);
}
static float gelu_grad_of(float x, float y) {
    return y * clt_ref_act_grad(CLT_ACT_GELU, x);
}

static clt_status check_forward(memory_work *w, bench_row *row) {
    return check_ends(w, w->z, w->b->type, gelu_of, row);
}
static clt_status check_backward(memory_work *w, bench_row *row) {
    return check_ends(w, w->z, w->b->type, gelu_grad_of, row);
}

static clt_status run_activation(bench *b, int64_t rows, int64_t cols) {
    memory_work w = {.b = b, .rows = rows, .cols = cols};
    const uint64_t n = (uint64_t)(rows * cols), e = clt_dtype_bytes(b->type);
    clt_status st = bench_tensor_as(b, b->type, n, 1, "bench x", &w.x, &w.hx);
    if (st == CLT_OK) st = bench_tensor_as(b, b->type, n, 2, "bench dy", &w.y, &w.hy);
    if (st == CLT_OK) st = clt_buffer_create(b->dev, n * e, "bench out", &w.z.buf);
    if (st == CLT_OK)
        st = measure(&w, "gelu forward", "activation", call_forward, 2 * (double)e, check_forward);
    if (st == CLT_OK)
        st = measure(&w, "gelu backward", "activation", call_backward, 3 * (double)e, check_backward);
    free_work(&w);
    return st;
}

int bench_activation(int argc, char **argv) {
    static const memory_shape suite[] = {{"mpt-small", 1024, 1024},
                                         {"mpt-125m", 32768, 3072},
                                         {"mpt-1b", 16384, 8192},
                                         {"mpt-7b", 8192, 16384}};
    bench b = {.suite = "mpt-125m"};
    const bench_about about = {.name = "activation",
                               .summary =
                                   "Measures GELU and its gradient over the hidden layer of a model's MLP.",
                               .examples = "  clbench activation --type bf16 --check\n",
                               .suites = "mpt-small, mpt-125m, mpt-1b, mpt-7b"};
    int code = bench_start(&b, &about, argc, argv);
    if (code >= 0) return code;
    return bench_end(&b, each_shape(&b, "activation", suite, CLT_COUNT_OF(suite), run_activation));
}

/* --- loss --- */

/* Each call uses the previous call's gradients as its logits: they are logits like any others. */
static clt_status call_loss(void *ctx) {
    memory_work *w = ctx;
    return clt_op_loss(w->b->ops, &(clt_loss_params){.rows = w->rows,
                                                     .vocab = w->cols,
                                                     .logits = tensor(w, w->x),
                                                     .targets = w->targets,
                                                     .token_loss = w->loss,
                                                     .scale = 1.0f,
                                                     .grad = w->grad,
                                                     .weight = 1.0f});
}

/* One more call, with new logits in row `at`, compared with the oracle; with numerics fast within the bound
 * of the rows' check: 2^-7 of the gradient (its rounding and twice its error) or 1e-6. */
static clt_status check_row(memory_work *w, int64_t at, bench_row *row) {
    const size_t n = (size_t)w->cols, e = clt_dtype_bytes(w->b->type), first = (size_t)at * n;
    float *want = clt_memdup(w->hx, n * sizeof *want), *got = clt_malloc(n * sizeof *got), loss, have;
    void *stored = clt_malloc(n * sizeof *want);
    const int32_t target = 0;
    clt_ref_round(w->b->type, want, n);
    clt_ref_narrow(w->b->type, want, n, stored);
    clt_status st = clt_buffer_write(w->x.buf, first * e, stored, n * e);
    if (st == CLT_OK) st = call_loss(w);
    if (st == CLT_OK) st = clt_ref_read_as(clt_ref_at(w->x, first), w->b->type, got, n);
    if (st == CLT_OK) st = clt_ref_read_f32(clt_ref_at(w->loss, (uint64_t)at), &have, 1);
    clt_ref_loss(1, w->cols, w->cols, want, &target, 1.0f, 0.0f, w->grad, false, 1.0f, NULL, &loss, NULL);
    clt_ref_round(w->b->type, want, n);
    bool same = false, ok;
    row->max_error = CLT_MAX(row->max_error, bench_difference(got, want, n, &same));
    ok = same && loss == have;
    if (w->b->fast && !ok) {
        ok = fabsf(loss - have) <= 1e-5f * fabsf(loss);
        for (size_t i = 0; i < n; i++) ok = ok && fabsf(got[i] - want[i]) <= 0x1p-7f * fabsf(want[i]) + 1e-6f;
    }
    row->ok = row->ok && ok;
    clt_free(want);
    clt_free(got);
    clt_free(stored);
    return st;
}

/* The first row, one in the middle, and the last. */
static clt_status check_loss(memory_work *w, bench_row *row) {
    row->checked = row->ok = true;
    CLT_TRY(check_row(w, 0, row));
    CLT_TRY(check_row(w, w->rows / 2, row));
    return check_row(w, w->rows - 1, row);
}

static clt_status run_loss(bench *b, int64_t rows, int64_t cols) {
    memory_work w = {.b = b, .rows = rows, .cols = cols, .grad = true};
    clt_status st = bench_tensor_as(b, b->type, (uint64_t)(rows * cols), 1, "bench logits", &w.x, &w.hx);
    if (st == CLT_OK) st = clt_buffer_create(b->dev, (uint64_t)rows * 4, "bench targets", &w.targets.buf);
    if (st == CLT_OK) st = clt_buffer_fill32(w.targets.buf, 0, 0, (uint64_t)rows * 4);
    if (st == CLT_OK) st = clt_buffer_create(b->dev, (uint64_t)rows * 4, "bench losses", &w.loss.buf);
    if (st == CLT_OK)
        st = measure(&w, "loss, gradient", "loss", call_loss, 2 * (double)clt_dtype_bytes(b->type),
                     check_loss);
    free_work(&w);
    return st;
}

int bench_loss(int argc, char **argv) {
    static const memory_shape suite[] = {
        {"mpt-small", 64, 4096, false},
        {"mpt-125m", 2048, 50368, false},
        {"mpt-125m", 16384, 50368, true}, /* half of a microbatch of 16 samples */
        {"mpt-1b", 4096, 50368, false},
        {"mpt-7b", 4096, 50432, false}};
    bench b = {.suite = "mpt-125m"};
    const bench_about about = {
        .name = "loss",
        .summary = "Measures softmax cross-entropy over rows of logits with the gradient in their place. The "
                   "bytes counted are one read and one write of each logit.",
        .examples = "  clbench loss --type bf16 --numerics fast --check\n",
        .suites = "mpt-small, mpt-125m, mpt-1b, mpt-7b"};
    int code = bench_start(&b, &about, argc, argv);
    if (code >= 0) return code;
    return bench_end(&b, each_shape(&b, "loss", suite, CLT_COUNT_OF(suite), run_loss));
}
