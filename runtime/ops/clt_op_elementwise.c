/* Sums, copies, clamps, row factors, a constant added to a vector, and the count of elements that are not
 * finite. */
#include <math.h>
#include <string.h>

#include "runtime/ops/clt_op_elementwise.h"
#include "runtime/ops/clt_op_slab.h"
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

/* `count` contiguous elements as one row. */
static clt_tensor one_row(clt_ref r, uint64_t count, clt_dtype type) {
    return clt_tensor_of(r, (int64_t)count, type);
}

static clt_rowwise add_launch(clt_ref dst, clt_ref src, uint64_t count, clt_dtype type) {
    return (clt_rowwise){"add", 1, (int64_t)count, .tensors = 2,
                         .t = {one_row(dst, count, type), one_row(src, count, type)}};
}

static clt_rowwise count_launch(clt_tensor x, uint64_t count, clt_ref counter) {
    return (clt_rowwise){"count_nonfinite",
                         1,
                         (int64_t)count,
                         .tensors = 1,
                         .n_more = 2,
                         .t = {one_row(x.ref, count, x.type)},
                         .more = {CLT_REF(counter)}};
}

static clt_rowwise scale_launch(const clt_scale_rows_params *p) {
    return (clt_rowwise){
        "scale_rows", p->rows,     p->cols,     .by_row = true,
        .tensors = 1, .n_more = 3, .t = {p->x}, .more = {CLT_REF(p->factor), CLT_U64(p->seq)}};
}

static clt_rowwise offset_launch(clt_tensor x, clt_tensor y, float value) {
    return (clt_rowwise){"offset", 1, x.ld, .tensors = 2, .n_more = 1, .t = {x, y}, .more = {CLT_F32(value)}};
}

/* --- the check --- */

enum { CHECKED = 136 };
#define CHECK_LIMIT 0.5f
#define CHECK_FACTOR 0.75f

/* Kernels that write one tensor; a and b are their inputs. */
typedef enum { COPY, CLIP, CLIP_BACK, SCALE, OFFSET, WRITERS } writer;

static float written(writer w, float a, float b) {
    const float limited = a > CHECK_LIMIT ? CHECK_LIMIT : a;
    if (w == COPY) return a;
    if (w == CLIP) return limited < -CHECK_LIMIT ? -CHECK_LIMIT : limited;
    if (w == OFFSET) return a + CHECK_FACTOR;
    if (w == CLIP_BACK) return a <= CHECK_LIMIT && a >= -CHECK_LIMIT ? b : 0.0f;
    return b * CHECK_FACTOR;
}

/* part: a, b and the result; a and b are filled. */
static clt_status check_writers(clt_ops *ops, const clt_variant *v, const clt_tensor *part, clt_ref factor,
                                const float *a, float *b, int64_t n) {
    const clt_tensor x = part[0], y = part[1], out = part[2];
    const clt_arg limit = CLT_F32(CHECK_LIMIT);
    const clt_rowwise all[WRITERS] = {
        {"copy_rows", 1, n, .tensors = 2, .t = {x, out}},
        {"clip_forward", 1, n, .tensors = 2, .n_more = 1, .t = {x, out}, .more = {limit}},
        {"clip_backward", 1, n, .tensors = 3, .n_more = 1, .t = {x, y, out}, .more = {limit}},
        scale_launch(&(clt_scale_rows_params){1, 1, n, out, factor}),
        offset_launch(x, out, CHECK_FACTOR)};
    const float value = CHECK_FACTOR;
    float want[CHECKED];
    CLT_TRY(clt_ref_write_f32(factor, &value, 1));
    for (writer w = 0; w < WRITERS; w++) {
        CLT_TRY(clt_check_write(out.type, out.ref, b, CHECKED));
        CLT_TRY(clt_rowwise_launch(ops, v, &all[w]));
        for (int64_t i = 0; i < CHECKED; i++) want[i] = i < n ? written(w, a[i], b[i]) : b[i];
        CLT_TRY(clt_variant_compare_as(ops, out.type, all[w].kernel, out.ref, want, CHECKED));
    }
    return CLT_OK;
}

/* An infinity and a NaN, and one past the end. */
static clt_status check_count(clt_ops *ops, const clt_variant *v, clt_tensor x, clt_ref counter, float *a,
                              int64_t n) {
    float word = 0;
    const uint32_t two = 2;
    const clt_rowwise count = count_launch(x, (uint64_t)n, counter);
    a[3] = HUGE_VALF, a[n - 1] = NAN;
    if (n < CHECKED) a[n] = NAN;
    CLT_TRY(clt_check_write(x.type, x.ref, a, CHECKED));
    CLT_TRY(clt_ref_write_f32(counter, &word, 1));
    CLT_TRY(clt_rowwise_launch(ops, v, &count));
    memcpy(&word, &two, sizeof word);
    return clt_variant_compare(ops, "count of non-finite elements", counter, &word, 1);
}

static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_dtype type = ((const clt_rowwise_call *)ctx)->type;
    enum { N = CHECKED };
    const int64_t n = clt_variant_wide(v) ? N : 133;
    float x[N], y[N], want[N];
    clt_ref part[CLT_CHECK_PARTS];
    clt_tensor t[3];
    CLT_TRY(clt_check_parts(ops, N, part));
    for (int i = 0; i < 3; i++) t[i] = one_row(clt_check_place(v, type, part[i]), (uint64_t)n, type);
    clt_check_fill(x, N, 3);
    clt_check_fill(y, N, 4);
    CLT_TRY(clt_check_write(type, t[0].ref, x, N));
    CLT_TRY(clt_check_write(type, t[1].ref, y, N));
    CLT_TRY(check_writers(ops, v, t, part[3], x, y, n));
    const clt_rowwise add = add_launch(t[0].ref, t[1].ref, (uint64_t)n, type);
    CLT_TRY(clt_rowwise_launch(ops, v, &add));
    for (int64_t i = 0; i < N; i++) want[i] = i < n ? x[i] + y[i] : x[i];
    CLT_TRY(clt_variant_compare_as(ops, type, "add", t[0].ref, want, N));
    return check_count(ops, v, t[0], part[4], x, n);
}

/* --- the operations --- */

/* Checks the types, picks the row for these tensors and launches it. `names`: of r's tensors. */
static clt_status run(clt_ops *ops, const clt_rowwise *r, const char *const *names) {
    char option[16];
    clt_tensor_named list[CLT_ROWWISE_TENSORS];
    const clt_variant *v;
    const clt_dtype type = r->t[0].type;
    for (int i = 0; i < r->tensors; i++) list[i] = (clt_tensor_named){names[i], r->t[i]};
    CLT_TRY(clt_tensor_check_one_type(r->kernel, CLT_DTYPE_PLAIN, list, r->tensors));
    const clt_rowwise_call call = {type, clt_rowwise_wide(r)};
    const clt_variant_question q = {.op = "elementwise",
                                    .options = clt_type_option(type, option),
                                    .takes = clt_rowwise_takes,
                                    .check = check,
                                    .call = &call};
    CLT_TRY(clt_variant_pick_for(ops, &q, &v));
    return clt_rowwise_launch(ops, v, r);
}

clt_status clt_op_add(clt_ops *ops, clt_ref dst, clt_ref src, uint64_t count) {
    const clt_rowwise r = add_launch(dst, src, count, CLT_F32);
    return run(ops, &r, (const char *const[]){"dst", "src"});
}

clt_status clt_op_copy_rows(clt_ops *ops, int64_t rows, int64_t cols, clt_tensor src, clt_tensor dst) {
    const clt_rowwise r = {"copy_rows", rows, cols, .tensors = 2, .t = {src, dst}};
    return run(ops, &r, (const char *const[]){"src", "dst"});
}

clt_status clt_op_clip_forward(clt_ops *ops, const clt_clip_params *p) {
    const clt_rowwise r = {"clip_forward",
                           p->rows,
                           p->cols,
                           .tensors = 2,
                           .n_more = 1,
                           .t = {p->x, p->y},
                           .more = {CLT_F32(p->limit)}};
    return run(ops, &r, (const char *const[]){"x", "y"});
}

clt_status clt_op_clip_backward(clt_ops *ops, const clt_clip_grad_params *p) {
    const clt_rowwise r = {"clip_backward",
                           p->rows,
                           p->cols,
                           .tensors = 3,
                           .n_more = 1,
                           .t = {p->x, p->dy, p->dx},
                           .more = {CLT_F32(p->limit)}};
    return run(ops, &r, (const char *const[]){"x", "dy", "dx"});
}

clt_status clt_op_clip_values(clt_ops *ops, clt_ref g, uint64_t count, float limit) {
    const clt_tensor x = one_row(g, count, CLT_F32);
    return clt_op_clip_forward(ops, &(clt_clip_params){limit, 1, (int64_t)count, x, x});
}

clt_status clt_op_scale_rows(clt_ops *ops, const clt_scale_rows_params *p) {
    const clt_rowwise r = scale_launch(p);
    return run(ops, &r, (const char *const[]){"x"});
}

clt_status clt_op_offset(clt_ops *ops, clt_ref x, clt_ref y, uint64_t count, float value) {
    const clt_rowwise r = offset_launch(one_row(x, count, CLT_F32), one_row(y, count, CLT_F32), value);
    return run(ops, &r, (const char *const[]){"x", "y"});
}

clt_status clt_op_count_nonfinite(clt_ops *ops, clt_tensor x, uint64_t count, clt_ref counter) {
    const clt_rowwise r = count_launch(x, count, counter);
    return run(ops, &r, (const char *const[]){"x"});
}
