/* Sums, copies, clamps, row factors, rotary positions, dropout, and the count of elements that are not
 * finite. */
#include <math.h>
#include <string.h>

#include "runtime/ops/clt_dropout.h"
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

static clt_status add(clt_ops *ops, const clt_variant *v, clt_ref dst, clt_ref src, uint64_t count) {
    int64_t n = (int64_t)count;
    return clt_rowwise_launch(ops, v, "add", "", true, 1, n, (clt_rows[]){{dst, n}, {src, n}}, 2, NULL, 0);
}

enum { CHECKED = 136 };
#define CHECK_LIMIT 0.5f
#define CHECK_FACTOR 0.75f

/* Kernels that write one tensor; a and b: two others. */
typedef enum { COPY, CLIP, CLIP_BACK, SCALE, WRITERS } writer;

static float written(writer w, float a, float b) {
    const float limited = a > CHECK_LIMIT ? CHECK_LIMIT : a;
    if (w == COPY) return a;
    if (w == CLIP) return limited < -CHECK_LIMIT ? -CHECK_LIMIT : limited;
    if (w == CLIP_BACK) return a <= CHECK_LIMIT && a >= -CHECK_LIMIT ? b : 0.0f;
    return b * CHECK_FACTOR;
}

/* part: places of a, b, and two more, with a and b written. */
static clt_status check_writers(clt_ops *ops, const clt_variant *v, clt_dtype type, const clt_ref *part,
                                const float *a, float *b, int64_t n) {
    static const char *const name[WRITERS] = {"copy_rows", "clip_forward", "clip_backward", "scale_rows"};
    const clt_ref out = part[2], factor = part[3];
    const clt_arg limit[] = {CLT_F32(CHECK_LIMIT)}, factors[] = {CLT_REF(factor), CLT_U64(1)};
    const clt_rows m[WRITERS][3] = {{{part[0], n}, {out, n}},
                                    {{part[0], n}, {out, n}},
                                    {{part[0], n}, {part[1], n}, {out, n}},
                                    {{out, n}}};
    const int matrices[WRITERS] = {2, 2, 3, 1}, more[WRITERS] = {0, 1, 1, 3};
    const float value = CHECK_FACTOR;
    float want[CHECKED];
    CLT_TRY(clt_ref_write_f32(factor, &value, 1));
    for (writer w = 0; w < WRITERS; w++) {
        CLT_TRY(clt_check_write(type, out, b, CHECKED));
        CLT_TRY(clt_rowwise_launch(ops, v, name[w], "", w != SCALE, 1, n, m[w], matrices[w],
                                   w == SCALE ? factors : limit, more[w]));
        for (int64_t i = 0; i < CHECKED; i++) want[i] = i < n ? written(w, a[i], b[i]) : b[i];
        CLT_TRY(clt_variant_compare_as(ops, type, name[w], out, want, CHECKED));
    }
    return CLT_OK;
}

/* An infinity and a NaN, and one behind the end. */
static clt_status check_count(clt_ops *ops, const clt_variant *v, clt_dtype type, clt_ref x, clt_ref counter,
                              float *a, int64_t n) {
    float word = 0;
    const uint32_t two = 2;
    a[3] = HUGE_VALF, a[n - 1] = NAN;
    if (n < CHECKED) a[n] = NAN;
    CLT_TRY(clt_check_write(type, x, a, CHECKED));
    CLT_TRY(clt_ref_write_f32(counter, &word, 1));
    CLT_TRY(clt_rowwise_launch(ops, v, "count_nonfinite", "", true, 1, n, (clt_rows[]){{x, n}}, 1,
                               (clt_arg[]){CLT_REF(counter)}, 2));
    memcpy(&word, &two, sizeof word);
    return clt_variant_compare(ops, "count of what is not finite", counter, &word, 1);
}

static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_dtype type = ((const clt_rowwise_call *)ctx)->type;
    enum { N = CHECKED };
    const int64_t n = clt_variant_wide(v) ? N : 133;
    float x[N], y[N], want[N];
    clt_ref part[CLT_CHECK_PARTS];
    CLT_TRY(clt_check_parts(ops, N, part));
    const clt_ref words[] = {part[3], part[4]};
    for (int i = 0; i < 3; i++) part[i] = clt_check_place(v, type, part[i]);
    clt_check_fill(x, N, 3);
    clt_check_fill(y, N, 4);
    CLT_TRY(clt_check_write(type, part[0], x, N));
    CLT_TRY(clt_check_write(type, part[1], y, N));
    CLT_TRY(check_writers(ops, v, type, (clt_ref[]){part[0], part[1], part[2], words[0]}, x, y, n));
    CLT_TRY(add(ops, v, part[0], part[1], (uint64_t)n));
    for (int64_t i = 0; i < N; i++) want[i] = i < n ? x[i] + y[i] : x[i];
    CLT_TRY(clt_variant_compare_as(ops, type, "add", part[0], want, N));
    return check_count(ops, v, type, part[0], words[1], x, n);
}

/* Picks the row for these matrices and launches kernel `name`. */
static clt_status run(clt_ops *ops, const char *name, clt_dtype type, bool flat, int64_t rows, int64_t cols,
                      const clt_rows *m, int n, const clt_arg *more, int n_more) {
    char option[16];
    const clt_variant *v;
    const clt_rowwise_call call = {type, clt_rowwise_wide(cols, m, n)};
    CLT_TRY(clt_variant_pick_for(ops, "elementwise", clt_type_option(type, option), clt_rowwise_takes, check,
                                 &call, &v));
    return clt_rowwise_launch(ops, v, name, "", flat, rows, cols, m, n, more, n_more);
}

clt_status clt_op_add(clt_ops *ops, clt_ref dst, clt_ref src, uint64_t count) {
    int64_t n = (int64_t)count;
    return run(ops, "add", CLT_F32, true, 1, n, (clt_rows[]){{dst, n}, {src, n}}, 2, NULL, 0);
}

clt_status clt_op_copy_rows(clt_ops *ops, clt_dtype type, int64_t rows, int64_t cols, clt_ref src,
                            int64_t ldsrc, clt_ref dst, int64_t lddst) {
    return run(ops, "copy_rows", type, true, rows, cols, (clt_rows[]){{src, ldsrc}, {dst, lddst}}, 2, NULL,
               0);
}

clt_status clt_op_clip_forward(clt_ops *ops, clt_dtype type, float limit, int64_t rows, int64_t cols,
                               clt_ref x, int64_t ldx, clt_ref y, int64_t ldy) {
    return run(ops, "clip_forward", type, true, rows, cols, (clt_rows[]){{x, ldx}, {y, ldy}}, 2,
               (clt_arg[]){CLT_F32(limit)}, 1);
}

clt_status clt_op_clip_backward(clt_ops *ops, clt_dtype type, float limit, int64_t rows, int64_t cols,
                                clt_ref x, int64_t ldx, clt_ref dy, int64_t lddy, clt_ref dx, int64_t lddx) {
    return run(ops, "clip_backward", type, true, rows, cols, (clt_rows[]){{x, ldx}, {dy, lddy}, {dx, lddx}},
               3, (clt_arg[]){CLT_F32(limit)}, 1);
}

clt_status clt_op_clip_values(clt_ops *ops, clt_ref g, uint64_t count, float limit) {
    int64_t n = (int64_t)count;
    return clt_op_clip_forward(ops, CLT_F32, limit, 1, n, g, n, g, n);
}

clt_status clt_op_scale_rows(clt_ops *ops, clt_dtype type, int64_t rows, int64_t seq, int64_t cols, clt_ref x,
                             int64_t ldx, clt_ref factor) {
    return run(ops, "scale_rows", type, false, rows, cols, (clt_rows[]){{x, ldx}}, 1,
               (clt_arg[]){CLT_REF(factor), CLT_U64(seq)}, 3);
}

clt_status clt_op_count_nonfinite(clt_ops *ops, clt_dtype type, clt_ref x, uint64_t count, clt_ref counter) {
    int64_t n = (int64_t)count;
    return run(ops, "count_nonfinite", type, true, 1, n, (clt_rows[]){{x, n}}, 1,
               (clt_arg[]){CLT_REF(counter)}, 2);
}

/* --- rotary positions --- */

typedef struct {
    int64_t rows, seq, heads, half;
    clt_ref x;
    int64_t ldx;
    clt_ref cos_sin;
    bool inverse;
} rope_params;

static clt_status rope(clt_ops *ops, const clt_variant *v, const rope_params *p) {
    bool cpu = !strcmp(v->body, "cpu");
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, cpu ? "rope_row" : "rope", v->options, &k));
    size_t wg = (size_t)clt_variant_param(v, "WG", 1), pairs = (size_t)(p->heads * p->half);
    size_t global[2] = {cpu ? (size_t)p->rows : CLT_ROUND_UP(pairs, wg), (size_t)p->rows}, local[2] = {wg, 1};
    if (pairs == 0) return CLT_OK;
    clt_arg args[] = {CLT_U64(p->seq),
                      CLT_U64(p->heads),
                      CLT_U64(p->half),
                      CLT_REF(p->x),
                      CLT_U64(p->ldx),
                      CLT_REF(p->cos_sin),
                      CLT_F32(p->inverse ? -1.0f : 1.0f)};
    if (cpu) return clt_launch(k, 1, global, local, args, CLT_COUNT_OF(args));
    return clt_launch_rows(k, global, local, args, CLT_COUNT_OF(args));
}

static clt_status rope_check(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_dtype type = *(const clt_dtype *)ctx;
    enum { ROWS = 3, SEQ = 2, HEADS = 2, DIM = 36, LD = HEADS * DIM + 3, N = ROWS * LD, TABLE = SEQ * DIM };
    float x[N], table[TABLE];
    clt_ref part[CLT_CHECK_PARTS];
    CLT_TRY(clt_check_parts(ops, N, part));
    clt_check_fill(x, N, 5);
    clt_check_fill(table, TABLE, 6);
    part[0] = clt_check_place(v, type, part[0]);
    CLT_TRY(clt_check_write(type, part[0], x, N));
    CLT_TRY(clt_ref_write_f32(part[1], table, TABLE));
    rope_params p = {ROWS, SEQ, HEADS, DIM / 2, part[0], LD, part[1], true};
    CLT_TRY(rope(ops, v, &p));
    clt_ref_rope(ROWS, SEQ, HEADS, DIM, x, LD, table, true);
    return clt_variant_compare_as(ops, type, "rope", part[0], x, N);
}

clt_status clt_op_rope(clt_ops *ops, clt_dtype type, int64_t rows, int64_t seq, int64_t heads,
                       int64_t head_dim, clt_ref x, int64_t ldx, clt_ref cos_sin, bool inverse) {
    const clt_variant *v;
    char option[16];
    CLT_TRY(clt_variant_pick_with(ops, "rope", clt_type_option(type, option), rope_check, &type, &v));
    return rope(ops, v, &(rope_params){rows, seq, heads, head_dim / 2, x, ldx, cos_sin, inverse});
}

/* --- dropout --- */

static clt_status dropout(clt_ops *ops, const clt_variant *v, const clt_dropout_params *p) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "dropout", v->options, &k));
    clt_dropout_constants c = clt_dropout_constants_of(p->p, p->seed);
    uint64_t count = (uint64_t)(p->seq * p->cols), total = (uint64_t)(p->rows * p->cols);
    uint64_t seg = (uint64_t)clt_variant_param(v, "SEG", 4), wg = (uint64_t)clt_variant_param(v, "WG", 1);
    if (total == 0) return CLT_OK;
    size_t global[2] = {CLT_ROUND_UP(CLT_CEIL_DIV(count, seg), wg), CLT_CEIL_DIV(total, count)};
    clt_arg args[] = {CLT_U64(count),
                      CLT_U64(total),
                      CLT_REF(p->x),
                      CLT_REF(p->residual),
                      CLT_REF(p->y),
                      CLT_U32(c.key[0]),
                      CLT_U32(c.key[1]),
                      CLT_U32(p->step),
                      CLT_U32(p->first_sample),
                      CLT_U32(p->layer * 8 + p->site),
                      CLT_U32(c.threshold),
                      CLT_F32(c.scale)};
    return clt_launch_rows(k, global, (size_t[]){wg, 1}, args, CLT_COUNT_OF(args));
}

static clt_status dropout_check(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_dropout_params *call = ctx;
    enum { ROWS = 6, SEQ = 3, COLS = 7, N = ROWS * COLS };
    float x[N], residual[N], want[N];
    clt_ref part[CLT_CHECK_PARTS];
    CLT_TRY(clt_check_parts(ops, N, part));
    clt_dropout_params p = {ROWS, SEQ, COLS, part[0], part[2], part[1], 0.3f, 17, 5, 11, 2, CLT_SITE_FFN_OUT};
    p.x_type = call->x_type;
    p.y_type = call->y_type;
    p.x = clt_check_place(v, p.x_type, p.x);
    p.y = clt_check_place(v, p.y_type, p.y);
    p.residual = call->residual.buf ? clt_check_place(v, p.y_type, p.residual) : clt_ref_none();
    clt_check_fill(x, N, 7);
    clt_check_fill(residual, N, 8);
    CLT_TRY(clt_check_write(p.x_type, p.x, x, N));
    if (p.residual.buf) CLT_TRY(clt_check_write(p.y_type, p.residual, residual, N));
    CLT_TRY(dropout(ops, v, &p));
    clt_ref_dropout(ROWS, SEQ, COLS, x, p.residual.buf ? residual : NULL, p.p, p.seed, p.step, p.first_sample,
                    p.layer, p.site, want);
    return clt_variant_compare_as(ops, p.y_type, "dropout", p.y, want, N);
}

clt_status clt_op_dropout(clt_ops *ops, const clt_dropout_params *p) {
    if (!(p->p >= 0.0f && p->p < 1.0f))
        return clt_error(CLT_BAD_CONFIG, "dropout probability %g is not in [0, 1)", (double)p->p);
    const clt_variant *v;
    char options[64];
    clt_dropout_params call = *p;
    snprintf(options, sizeof options, " -DRESIDUAL=%d -DX_TYPE=%d -DY_TYPE=%d", p->residual.buf != NULL,
             (int)p->x_type, (int)p->y_type);
    CLT_TRY(clt_variant_pick_with(ops, "dropout", options, dropout_check, &call, &v));
    return dropout(ops, v, p);
}
