/* Row sums, sums of squares of the slab's chunks, and the status of the gradient's norm. */
#include <math.h>

#include "runtime/device/clt_slab.h"
#include "runtime/ops/clt_op_loss.h"
#include "runtime/ops/clt_op_slab.h"
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

/* One row per work-group of 1 or 64 items. */
static clt_status launch(clt_ops *ops, const clt_variant *v, const char *name, uint64_t rows,
                         const clt_arg *args, int n) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, name, v->options, &k));
    size_t wg = (size_t)clt_variant_param(v, "WG", 1);
    return clt_launch(k, 1, (size_t[]){rows * wg}, (size_t[]){wg}, args, n);
}

static clt_status row_sum(clt_ops *ops, const clt_variant *v, const char *name, uint64_t rows, uint64_t cols,
                          clt_ref x, uint64_t ldx, clt_ref out) {
    return launch(ops, v, name, rows, (clt_arg[]){CLT_U64(cols), CLT_REF(x), CLT_U64(ldx), CLT_REF(out)}, 6);
}

static clt_status norm_status(clt_ops *ops, const clt_variant *v, const clt_norm_status_params *p) {
    const clt_arg args[] = {CLT_U64(p->chunks), CLT_REF(p->chunk_sums), CLT_F32(p->threshold),
                            CLT_F32(p->inv_scale), CLT_REF(p->status)};
    return launch(ops, v, "norm_status", 1, args, CLT_COUNT_OF(args));
}

static clt_status segment_sumsq(clt_ops *ops, const clt_variant *v, const clt_segment_sumsq_params *p) {
    const clt_arg args[] = {CLT_REF(p->x), CLT_REF(p->segment), CLT_REF(p->place), CLT_U64(p->first_block),
                            CLT_REF(p->out)};
    return launch(ops, v, "segment_sumsq", p->n, args, CLT_COUNT_OF(args));
}

enum { ROWS = 3, COLS = 203, LD = 211, N = ROWS * LD };

/* The norm of the rows' sums of squares: clipped, not clipped, and not finite. */
static clt_status check_status(clt_ops *ops, const clt_variant *v, clt_ref sums, float want[ROWS],
                               clt_ref status) {
    const float threshold[] = {1.0f, 1e30f, 1.0f}, inv_scale[] = {0.5f, 1.0f, 1.0f};
    for (int i = 0; i < 3; i++) {
        float expected[3];
        if (i == 2) want[0] = HUGE_VALF;
        if (i == 2) CLT_TRY(clt_ref_write_f32(sums, want, 1));
        CLT_TRY(
            norm_status(ops, v, &(clt_norm_status_params){sums, ROWS, threshold[i], inv_scale[i], status}));
        clt_ref_norm_status(want, ROWS, threshold[i], inv_scale[i], expected);
        CLT_TRY(clt_variant_compare(ops, "status of a norm", status, expected, 3));
    }
    return CLT_OK;
}

/* Two segments of x, whose sums change places; x begins with block 7. */
static clt_status check_segments(clt_ops *ops, const clt_variant *v, clt_ref part[], const float *x) {
    const uint32_t segment[] = {7, 130, 10, 5}, place[] = {1, 0};
    const float want[] = {clt_ref_row_sumsq(x + 192, 5), clt_ref_row_sumsq(x, 130)};
    float words[6];
    memcpy(words, segment, sizeof segment);
    memcpy(words + 4, place, sizeof place);
    clt_segment_sumsq_params p = {.n = 2, .x = part[0], .first_block = 7, .out = part[1]};
    p.place = (clt_ref){part[2].buf, part[2].off + 4};
    p.segment = (clt_ref){part[2].buf, CLT_ROUND_UP(part[2].off + 6, (uint64_t)2) / 2}; /* in pairs */
    CLT_TRY(clt_ref_write_f32((clt_ref){part[2].buf, p.segment.off * 2}, words, 4));
    CLT_TRY(clt_ref_write_f32(p.place, words + 4, 2));
    CLT_TRY(segment_sumsq(ops, v, &p));
    return clt_variant_compare(ops, "sums of segments", part[1], want, 2);
}

static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    (void)ctx;
    float x[N], want[ROWS];
    clt_ref part[CLT_CHECK_PARTS];
    CLT_TRY(clt_check_parts(ops, N, part));
    clt_check_fill(x, N, 10);
    CLT_TRY(clt_ref_write_f32(part[0], x, N));
    CLT_TRY(row_sum(ops, v, "row_sum", ROWS, COLS, part[0], LD, part[1]));
    for (int r = 0; r < ROWS; r++) want[r] = clt_ref_row_sum(x + r * LD, COLS);
    CLT_TRY(clt_variant_compare(ops, "row sum", part[1], want, ROWS));
    CLT_TRY(row_sum(ops, v, "row_sumsq", ROWS, COLS, part[0], LD, part[1]));
    for (int r = 0; r < ROWS; r++) want[r] = clt_ref_row_sumsq(x + r * LD, COLS);
    CLT_TRY(clt_variant_compare(ops, "row sum of squares", part[1], want, ROWS));
    CLT_TRY(check_status(ops, v, part[1], want, part[2]));
    return check_segments(ops, v, part, x);
}

clt_status clt_op_row_sum(clt_ops *ops, int64_t rows, int64_t cols, clt_tensor x, clt_ref out) {
    const clt_tensor_named list[] = {{"x", x}};
    const clt_variant *v;
    CLT_TRY(clt_tensor_check_types("row sum", clt_dtype_bit(CLT_F32), list, 1));
    CLT_TRY(clt_variant_pick(ops, "reduce", check, NULL, &v));
    return row_sum(ops, v, "row_sum", (uint64_t)rows, (uint64_t)cols, x.ref, (uint64_t)x.ld, out);
}

clt_status clt_op_chunk_sumsq(clt_ops *ops, clt_ref x, uint64_t chunks, clt_ref out) {
    const clt_variant *v;
    CLT_TRY(clt_variant_pick(ops, "reduce", check, NULL, &v));
    return row_sum(ops, v, "row_sumsq", chunks, CLT_CHUNK, x, CLT_CHUNK, out);
}

clt_status clt_op_segment_sumsq(clt_ops *ops, const clt_segment_sumsq_params *p) {
    const clt_variant *v;
    if (p->n == 0) return CLT_OK;
    CLT_TRY(clt_variant_pick(ops, "reduce", check, NULL, &v));
    return segment_sumsq(ops, v, p);
}

clt_status clt_op_sumsq(clt_ops *ops, clt_ref x, uint64_t count, clt_ref out) {
    const clt_variant *v;
    CLT_TRY(clt_variant_pick(ops, "reduce", check, NULL, &v));
    return row_sum(ops, v, "row_sumsq", 1, count, x, count, out);
}

clt_status clt_op_norm_status(clt_ops *ops, const clt_norm_status_params *p) {
    const clt_variant *v;
    CLT_TRY(clt_variant_pick(ops, "reduce", check, NULL, &v));
    return norm_status(ops, v, p);
}
