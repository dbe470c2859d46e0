/* Normalisation forward and backward: kernels of clkernels/norm. */
#include <string.h>

#include "runtime/ops/clt_op_norm.h"
#include "runtime/ops/ref/clt_ref.h"

bool clt_norm_is_rows(const clt_variant *v) {
    return strcmp(v->body, "rows") == 0;
}
static bool is_ring(const clt_variant *v) {
    return strcmp(v->body, "ring") == 0;
}
bool clt_norm_is_wide(const clt_variant *v) {
    return is_ring(v) || strcmp(v->body, "wide") == 0;
}

size_t clt_norm_group(const clt_variant *v) {
    return clt_norm_is_rows(v) ? 1 : (size_t)clt_variant_param(v, "WG", 64);
}

/* For calls that wide rows, or the ring, cannot do. */
static bool takes_narrow(const clt_variant *v, const void *call) {
    (void)call;
    return !clt_norm_is_wide(v);
}
static bool takes_no_ring(const clt_variant *v, const void *call) {
    (void)call;
    return !is_ring(v);
}
clt_variant_takes clt_norm_takes(bool wide, bool ring) {
    return !wide ? takes_narrow : ring ? NULL : takes_no_ring;
}

static bool ring_takes(int64_t cols, int64_t heads) {
    return heads == 1 && cols >= 512 && cols <= 4096;
}

static bool aligned(int64_t cols, const clt_ref *r, const int64_t *ld, int n) {
    bool yes = cols % 64 == 0 && cols <= 8192;
    for (int i = 0; i < n; i++) yes = yes && r[i].off % 8 == 0 && ld[i] % 8 == 0;
    return yes;
}

static bool wide_forward(const clt_norm_params *p) {
    const clt_ref r[] = {p->x, p->y, p->w, p->b};
    return aligned(p->cols, r, (int64_t[]){p->ldx, p->ldy, 0, 0}, 4);
}

/* Bytes of local memory for a row of the wide backward pass. */
static uint64_t backward_row(const clt_norm_grad_params *p) {
    return (uint64_t)p->cols * (clt_dtype_bytes(p->x_type) + clt_dtype_bytes(p->dy_type)) + 1024;
}

/* Rows that a work-group of the wide backward pass has in local memory, 0: none fit. Half of it is left to
 * another work-group. */
static int wide_backward(const clt_ops *ops, const clt_norm_grad_params *p) {
    const clt_ref r[] = {p->x, p->dy, p->dx, p->residual, p->w, p->dx_copy, p->y, p->b};
    const uint64_t row = backward_row(p), local = clt_device_get_facts(clt_ops_device(ops))->local_mem;
    if (!aligned(p->cols, r, (int64_t[]){p->ldx, p->lddy, p->lddx, p->ldres, 0, 0, 0, 0}, 8) ||
        p->cols > 4096)
        return 0;
    return 8 * row <= local / 2 ? 8 : 4 * row <= local ? 4 : 0;
}

/* Its work-group: a row of more columns keeps more work-items busy. */
static size_t backward_items(const clt_norm_grad_params *p) {
    return p->cols <= 1024 ? 256 : 512;
}

/* The work-group of the ring's backward pass, as norm_ring.cl counts: items that own four or eight columns,
 * two or three warps for sums, one that asks for rows. */
static size_t ring_items(int64_t cols) {
    const size_t sum_warps = cols <= 1024 || cols > 2048 ? 2 : 3;
    return CLT_ROUND_UP((size_t)cols / (cols <= 1024 ? 4 : 8), 32) + 32 * sum_warps + 32;
}

/* Warps of its forward pass's work-group, and as many groups as the device holds: a warp takes row after row,
 * at least two (so that the check sees that it can). */
static size_t ring_warps(int64_t cols) {
    return cols <= 768 ? 16 : cols <= 1024 ? 12 : cols <= 2048 ? 16 : 8;
}
static size_t ring_groups(const clt_ops *ops, const clt_norm_params *p) {
    const size_t units = clt_device_get_facts(clt_ops_device(ops))->compute_units;
    const size_t resident = p->cols <= 1024 ? 2 : 1;
    return CLT_MIN(units * resident, CLT_CEIL_DIV((size_t)p->rows, 2 * ring_warps(p->cols)));
}

/* Elements that an item of the wide forward pass takes at a time: it keeps cols * V / 64 in registers. */
static int forward_vector(const clt_norm_params *p) {
    return p->cols <= 2048 ? 4 : p->cols <= 4096 ? 2 : 1;
}

static void forward_options(const clt_norm_params *p, char buf[CLT_NORM_OPTIONS]) {
    int n =
        snprintf(buf, CLT_NORM_OPTIONS, " -DPART=1 -DRMS=%d -DHAS_W=%d -DHAS_B=%d -DX_TYPE=%d -DY_TYPE=%d",
                 p->rms, p->w.buf != NULL, p->b.buf != NULL, (int)p->x_type, (int)p->y_type);
    if (wide_forward(p))
        snprintf(buf + n, CLT_NORM_OPTIONS - (size_t)n, " -DCOLS=%d -DHEADS=%d -DV=%d", (int)p->cols,
                 (int)p->heads, forward_vector(p));
}

static void backward_options(const clt_ops *ops, const clt_norm_grad_params *p, char buf[CLT_NORM_OPTIONS]) {
    int n =
        snprintf(buf, CLT_NORM_OPTIONS,
                 " -DPART=2 -DRMS=%d -DHAS_W=%d -DHAS_DX=%d -DHAS_DW=%d -DHAS_DB=%d -DHAS_RES=%d -DX_TYPE=%d"
                 " -DDY_TYPE=%d -DDX_TYPE=%d",
                 p->rms, p->w.buf != NULL, p->dx.buf != NULL, p->dw.buf != NULL, p->db.buf != NULL,
                 p->residual.buf != NULL, (int)p->x_type, (int)p->dy_type, (int)p->dx_type);
    const int rows = wide_backward(ops, p);
    if (rows)
        snprintf(buf + n, CLT_NORM_OPTIONS - (size_t)n,
                 " -DCOLS=%d -DHEADS=%d -DROWS=%d -DITEMS_B=%d -DHAS_COPY=%d -DHAS_Y=%d -DHAS_B=%d "
                 "-DCOPY_TYPE=%d -DY_TYPE=%d -DHAS_SUM=%d",
                 (int)p->cols, (int)p->heads, rows, (int)backward_items(p), p->dx_copy.buf != NULL,
                 p->y.buf != NULL, p->b.buf != NULL, (int)p->copy_type, (int)p->y_type,
                 p->dx_sum.buf != NULL);
}

static clt_status run_forward(clt_ops *ops, const clt_variant *v, const clt_norm_params *p) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "norm_forward", v->options, &k));
    size_t rows = (size_t)(p->rows * p->heads);
    size_t local = clt_norm_group(v), global = rows * local;
    if (is_ring(v)) {
        local = 32 * ring_warps(p->cols), global = ring_groups(ops, p) * local;
    } else if (clt_norm_is_wide(v)) {
        size_t of_group = (size_t)(128 * forward_vector(p) / 64);
        local = 128, global = CLT_CEIL_DIV(rows, of_group) * local;
    }
    clt_arg args[] = {CLT_REF(p->x),
                      CLT_REF(p->w),
                      CLT_REF(p->b),
                      CLT_REF(p->y),
                      CLT_REF(p->mean),
                      CLT_REF(p->rstd),
                      CLT_U64(clt_norm_is_wide(v) ? (int64_t)rows : p->cols),
                      CLT_U64(p->heads),
                      CLT_U64(p->ldx),
                      CLT_U64(p->ldy),
                      CLT_F32(p->eps)};
    return clt_launch(k, 1, &global, &local, args, CLT_COUNT_OF(args));
}

/* What the launches of one backward call share: the block sums' shape and where those of dw, db and dx_sum
 * are. */
typedef struct {
    int64_t per_sample; /* rows of a sample */
    clt_column_parts parts;
    clt_column_result result[3];
    int results;
    uint64_t part_w, part_b, part_sum;
} backward_plan;

static void add_result(backward_plan *b, clt_ref out) {
    if (out.buf) b->result[b->results++].out = out;
}

static clt_status plan_backward(clt_ops *ops, const clt_variant *v, const clt_norm_grad_params *p, bool later,
                                backward_plan *b) {
    *b = (backward_plan){.per_sample = p->rows_per_sample * p->heads,
                         .parts = {.samples = p->rows / p->rows_per_sample,
                                   .cols = p->cols,
                                   .accumulate = p->accumulate,
                                   .later = later}};
    b->parts.blocks = CLT_CEIL_DIV(b->per_sample, CLT_NORM_BLOCK);
    add_result(b, p->dw);
    add_result(b, p->db);
    if (clt_norm_is_wide(v)) add_result(b, p->dx_sum);
    CLT_TRY(clt_columns_room(ops, v, &b->parts, b->result, b->results));
    int n = 0;
    if (p->dw.buf) b->part_w = b->result[n++].at;
    if (p->db.buf) b->part_b = b->result[n++].at;
    if (n < b->results) b->part_sum = b->result[n].at;
    return CLT_OK;
}

static clt_status backward_rows(clt_ops *ops, const clt_variant *v, const clt_norm_grad_params *p,
                                const backward_plan *b) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "norm_backward", v->options, &k));
    size_t global = (size_t)(b->parts.samples * b->parts.blocks), local = 1;
    clt_arg args[] = {CLT_REF(p->x),          CLT_REF(p->w),
                      CLT_REF(p->mean),       CLT_REF(p->rstd),
                      CLT_REF(p->dy),         CLT_REF(p->residual),
                      CLT_REF(p->dx),         CLT_BUF(b->parts.part),
                      CLT_U64(b->part_w),     CLT_U64(b->part_b),
                      CLT_U64(p->cols),       CLT_U64(p->heads),
                      CLT_U64(b->per_sample), CLT_U64(b->parts.blocks),
                      CLT_U64(p->ldx),        CLT_U64(p->lddy),
                      CLT_U64(p->ldres),      CLT_U64(p->lddx)};
    return clt_launch(k, 1, &global, &local, args, CLT_COUNT_OF(args));
}

static clt_status backward_wide(clt_ops *ops, const clt_variant *v, const clt_norm_grad_params *p,
                                const backward_plan *b) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "norm_backward", v->options, &k));
    size_t local = is_ring(v) ? ring_items(p->cols) : backward_items(p),
           global = (size_t)(b->parts.samples * b->parts.blocks) * local;
    clt_arg args[] = {
        CLT_REF(p->x),      CLT_REF(p->w),        CLT_REF(p->mean),       CLT_REF(p->rstd),
        CLT_REF(p->dy),     CLT_REF(p->residual), CLT_REF(p->dx),         CLT_REF(p->dx_copy),
        CLT_REF(p->y),      CLT_REF(p->b),        CLT_BUF(b->parts.part), CLT_U64(b->part_w),
        CLT_U64(b->part_b), CLT_U64(b->part_sum), CLT_U64(b->per_sample), CLT_U64(b->parts.blocks),
        CLT_U64(p->ldx),    CLT_U64(p->lddy),     CLT_U64(p->ldres),      CLT_U64(p->lddx)};
    return clt_launch(k, 1, &global, &local, args, CLT_COUNT_OF(args));
}

/* The weights' sums come first: dx may lie where dy lies. */
static clt_status backward_group(clt_ops *ops, const clt_variant *v, const clt_norm_grad_params *p,
                                 const backward_plan *b) {
    clt_kernel *k;
    if (p->dw.buf || p->db.buf) {
        CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "norm_backward_w", v->options, &k));
        size_t local[] = {clt_norm_group(v), 1};
        size_t global[] = {CLT_ROUND_UP((size_t)p->cols, local[0]),
                           (size_t)(b->parts.samples * b->parts.blocks)};
        clt_arg args[] = {CLT_REF(p->x),          CLT_REF(p->mean),         CLT_REF(p->rstd),
                          CLT_REF(p->dy),         CLT_BUF(b->parts.part),   CLT_U64(b->part_w),
                          CLT_U64(b->part_b),     CLT_U64(p->cols),         CLT_U64(p->heads),
                          CLT_U64(b->per_sample), CLT_U64(b->parts.blocks), CLT_U64(p->ldx),
                          CLT_U64(p->lddy)};
        CLT_TRY(clt_launch_rows(k, global, local, args, CLT_COUNT_OF(args)));
    }
    if (!p->dx.buf) return CLT_OK;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "norm_backward_dx", v->options, &k));
    size_t local = clt_norm_group(v), global = (size_t)(p->rows * p->heads) * local;
    clt_arg args[] = {CLT_REF(p->x),     CLT_REF(p->w),        CLT_REF(p->mean), CLT_REF(p->rstd),
                      CLT_REF(p->dy),    CLT_REF(p->residual), CLT_REF(p->dx),   CLT_U64(p->cols),
                      CLT_U64(p->heads), CLT_U64(p->ldx),      CLT_U64(p->lddy), CLT_U64(p->ldres),
                      CLT_U64(p->lddx)};
    return clt_launch(k, 1, &global, &local, args, CLT_COUNT_OF(args));
}

/* What only wide rows make in the same pass. */
static clt_status backward_extras(clt_ops *ops, const clt_norm_grad_params *p) {
    if (p->dx_copy.buf)
        CLT_TRY(clt_op_cast(ops, p->dx_type, p->copy_type, p->dx, p->dx_copy,
                            (uint64_t)(p->rows * p->heads * p->cols)));
    if (p->dx_sum.buf)
        CLT_TRY(clt_op_column_sum(
            ops, &(clt_column_sum_params){.rows = p->rows * p->heads,
                                          .cols = p->cols,
                                          .rows_per_sample = p->rows_per_sample * p->heads,
                                          .ldx = p->cols,
                                          .x = p->dx_copy.buf ? p->dx_copy : p->dx,
                                          .out = p->dx_sum,
                                          .accumulate = p->accumulate,
                                          .x_type = p->dx_copy.buf ? p->copy_type : p->dx_type}));
    if (!p->y.buf) return CLT_OK;
    return clt_op_norm_forward(ops, &(clt_norm_params){.rms = p->rms,
                                                       .eps = p->eps,
                                                       .rows = p->rows,
                                                       .cols = p->cols,
                                                       .heads = p->heads,
                                                       .x = p->x,
                                                       .y = p->y,
                                                       .w = p->w,
                                                       .b = p->b,
                                                       .mean = p->mean,
                                                       .rstd = p->rstd,
                                                       .ldx = p->ldx,
                                                       .ldy = p->ldx,
                                                       .x_type = p->x_type,
                                                       .y_type = p->y_type});
}

static clt_status run_backward(clt_ops *ops, const clt_variant *v, const clt_norm_grad_params *p,
                               bool later) {
    backward_plan b;
    CLT_TRY(plan_backward(ops, v, p, later, &b));
    if (p->rows > 0)
        CLT_TRY(clt_norm_is_rows(v)   ? backward_rows(ops, v, p, &b)
                : clt_norm_is_wide(v) ? backward_wide(ops, v, p, &b)
                                      : backward_group(ops, v, p, &b));
    return clt_columns_finish(ops, v, &b.parts, b.result, b.results);
}

/* --- the checks: a tail, several samples and blocks, heads; with the tensors that the call has --- */

enum { TOKENS = 140, PER_SAMPLE = 70 };

typedef struct {
    int64_t cols, heads, ld;
    size_t elements, rows;
} check_shape;

/* A ragged shape, or for wide rows the call's rows, as the programs are made for them. */
static check_shape shape_of(const clt_variant *v, int64_t cols, int64_t heads) {
    check_shape s = {.cols = clt_norm_is_wide(v) ? cols : 83};
    s.heads = clt_norm_is_wide(v) ? heads : 2;
    s.ld = clt_norm_is_wide(v) ? s.cols * s.heads + 8 : 170;
    s.elements = (size_t)(TOKENS * s.ld);
    s.rows = (size_t)(TOKENS * s.heads);
    return s;
}

bool clt_norm_builds(clt_ops *ops, const char *file, const char *name, const char *options) {
    clt_kernel *k;
    return clt_kernel_try(clt_ops_device(ops), file, name, options, &k) == CLT_OK;
}

clt_status clt_norm_does_not_build(clt_ops *ops, const clt_variant *v) {
    return clt_variant_fail(ops, "%s does not build", v->file);
}

/* `data` on the device if the call has that tensor. */
static clt_ref upload_if(clt_check *c, bool there, const float *data, size_t n) {
    return there ? clt_check_upload(c, data, n) : clt_ref_none();
}

/* Inputs of the oracle, which this file made and may round. */
static float *check_data(const float *x) {
    return (float *)x;
}

static clt_ref_norm_params check_oracle(clt_check *c, bool rms, const check_shape *s) {
    return (clt_ref_norm_params){.rms = rms,
                                 .eps = 1e-5f,
                                 .rows = TOKENS,
                                 .cols = s->cols,
                                 .heads = s->heads,
                                 .rows_per_sample = PER_SAMPLE,
                                 .ldx = s->ld,
                                 .ldy = s->ld,
                                 .lddy = s->ld,
                                 .lddx = s->ld,
                                 .ldres = s->ld,
                                 .accumulate = true,
                                 .x = clt_check_random(c, s->elements, 1),
                                 .y = clt_check_zeros(c, s->elements),
                                 .mean = clt_check_zeros(c, s->rows),
                                 .rstd = clt_check_zeros(c, s->rows)};
}

static clt_status check_forward(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_norm_params *call = ctx;
    if (!clt_norm_builds(ops, v->file, "norm_forward", v->options)) return clt_norm_does_not_build(ops, v);
    const check_shape s = shape_of(v, call->cols, call->heads);
    clt_check c = {.ops = ops, .aligned = clt_norm_is_wide(v)};
    clt_ref_norm_params r = check_oracle(&c, call->rms, &s);
    if (call->w.buf) r.w = clt_check_random(&c, (size_t)s.cols, 2);
    if (call->b.buf) r.b = clt_check_random(&c, (size_t)s.cols, 3);
    clt_norm_params p = {.rms = r.rms,
                         .eps = r.eps,
                         .rows = TOKENS,
                         .cols = s.cols,
                         .heads = s.heads,
                         .ldx = s.ld,
                         .ldy = s.ld,
                         .x_type = call->x_type,
                         .y_type = call->y_type,
                         .x = clt_check_upload_as(&c, call->x_type, check_data(r.x), s.elements),
                         .y = clt_check_upload_as(&c, call->y_type, r.y, s.elements),
                         .w = upload_if(&c, r.w, r.w, (size_t)s.cols),
                         .b = upload_if(&c, r.b, r.b, (size_t)s.cols),
                         .mean = upload_if(&c, !r.rms, NULL, s.rows),
                         .rstd = clt_check_blank(&c, s.rows)};
    if (c.st == CLT_OK) c.st = run_forward(ops, v, &p);
    clt_ref_norm_forward(&r);
    clt_check_compare_as(&c, p.y_type, "y", p.y, r.y, s.elements);
    clt_check_compare(&c, "rstd", p.rstd, r.rstd, s.rows);
    if (!r.rms) clt_check_compare(&c, "mean", p.mean, r.mean, s.rows);
    return clt_check_end(&c);
}

/* What only wide rows make in the same pass: other rows leave it to other operations. */
static void upload_extras(clt_check *c, const clt_norm_grad_params *call, const check_shape *s,
                          clt_ref_norm_params *r, clt_norm_grad_params *p) {
    if (call->dx_copy.buf) {
        p->copy_type = call->copy_type;
        p->dx_copy = clt_check_upload_as(c, p->copy_type, clt_check_random(c, s->elements, 5), s->elements);
    }
    if (call->dx_sum.buf) {
        r->dx_sum = clt_check_random(c, (size_t)s->cols, 8);
        r->sum_type = call->dx_copy.buf ? call->copy_type : call->dx_type;
        p->dx_sum = clt_check_upload(c, r->dx_sum, (size_t)s->cols);
    }
    if (call->y.buf) {
        p->y_type = call->y_type;
        p->y = clt_check_upload_as(c, p->y_type, clt_check_zeros(c, s->elements), s->elements);
        p->b = upload_if(c, r->b, r->b, (size_t)s->cols);
    }
}

static clt_status check_backward(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_norm_grad_params *call = ctx;
    if (!clt_norm_builds(ops, v->file, strcmp(v->body, "group") ? "norm_backward" : "norm_backward_dx",
                         v->options) ||
        !clt_columns_build(ops, v))
        return clt_norm_does_not_build(ops, v);
    const check_shape s = shape_of(v, call->cols, call->heads);
    clt_check c = {.ops = ops, .aligned = clt_norm_is_wide(v)};
    clt_ref_norm_params r = check_oracle(&c, call->rms, &s);
    clt_ref_round(call->x_type, check_data(r.x), s.elements);
    clt_ref_norm_forward(&r);
    r.dy = clt_check_random(&c, s.elements, 4);
    if (call->w.buf) r.w = clt_check_random(&c, (size_t)s.cols, 2);
    if (call->b.buf) r.b = clt_check_random(&c, (size_t)s.cols, 3);
    if (call->dx.buf) r.dx = clt_check_random(&c, s.elements, 5);
    if (call->residual.buf) r.residual = r.dx;
    if (call->dw.buf) r.dw = clt_check_random(&c, (size_t)s.cols, 6);
    if (call->db.buf) r.db = clt_check_random(&c, (size_t)s.cols, 7);
    clt_norm_grad_params p = {.rms = r.rms,
                              .eps = r.eps,
                              .rows = TOKENS,
                              .cols = s.cols,
                              .heads = s.heads,
                              .rows_per_sample = PER_SAMPLE,
                              .ldx = s.ld,
                              .lddy = s.ld,
                              .lddx = s.ld,
                              .ldres = s.ld,
                              .accumulate = true,
                              .x_type = call->x_type,
                              .dy_type = call->dy_type,
                              .dx_type = call->dx_type,
                              .x = clt_check_upload_as(&c, call->x_type, check_data(r.x), s.elements),
                              .w = upload_if(&c, r.w, r.w, (size_t)s.cols),
                              .mean = upload_if(&c, !r.rms, r.mean, s.rows),
                              .rstd = clt_check_upload(&c, r.rstd, s.rows),
                              .dy = clt_check_upload_as(&c, call->dy_type, check_data(r.dy), s.elements),
                              .dw = upload_if(&c, r.dw, r.dw, (size_t)s.cols),
                              .db = upload_if(&c, r.db, r.db, (size_t)s.cols)};
    if (r.dx) p.dx = clt_check_upload_as(&c, p.dx_type, r.dx, s.elements);
    if (r.residual) p.residual = p.dx;
    if (clt_norm_is_wide(v)) upload_extras(&c, call, &s, &r, &p);
    if (c.st == CLT_OK) c.st = run_backward(ops, v, &p, false);
    clt_ref_norm_backward(&r);
    if (r.dx) clt_check_compare_as(&c, p.dx_type, "dx", p.dx, r.dx, s.elements);
    if (p.dx_copy.buf) clt_check_compare_as(&c, p.copy_type, "copy of dx", p.dx_copy, r.dx, s.elements);
    if (p.y.buf) {
        clt_ref_norm_forward(&r); /* with the weights that only backward had so far */
        clt_check_compare_as(&c, p.y_type, "y again", p.y, r.y, s.elements);
    }
    if (r.dw) clt_check_compare(&c, "dw", p.dw, r.dw, (size_t)s.cols);
    if (r.db) clt_check_compare(&c, "db", p.db, r.db, (size_t)s.cols);
    if (r.dx_sum) clt_check_compare(&c, "sums of dx", p.dx_sum, r.dx_sum, (size_t)s.cols);
    if (c.st == CLT_OK && clt_norm_is_wide(v)) c.st = clt_columns_check_later(ops);
    return clt_check_end(&c);
}

/* --- the operations --- */

clt_status clt_op_norm_forward(clt_ops *ops, const clt_norm_params *p) {
    if (p->rows < 0 || p->cols < 1 || p->heads < 1)
        return clt_error(CLT_FAIL, "norm: %lld rows of %lld x %lld columns make no sense", (long long)p->rows,
                         (long long)p->heads, (long long)p->cols);
    if (p->rows == 0) return CLT_OK;
    char options[CLT_NORM_OPTIONS];
    clt_norm_params call = *p;
    const clt_variant *v;
    forward_options(p, options);
    CLT_TRY(clt_variant_pick_for(ops, "norm", options,
                                 clt_norm_takes(wide_forward(p), ring_takes(p->cols, p->heads)),
                                 check_forward, &call, &v));
    return run_forward(ops, v, p);
}

clt_status clt_norm_check_samples(const char *op, int64_t rows, int64_t cols, int64_t per_sample) {
    if (rows >= 0 && cols >= 1 && per_sample >= 1 && rows % per_sample == 0) return CLT_OK;
    return clt_error(CLT_FAIL, "%s: %lld rows of %lld columns in samples of %lld rows make no sense", op,
                     (long long)rows, (long long)cols, (long long)per_sample);
}

clt_status clt_op_norm_backward(clt_ops *ops, const clt_norm_grad_params *p) {
    CLT_TRY(clt_norm_check_samples("norm backward", p->rows, p->heads < 1 ? 0 : p->cols, p->rows_per_sample));
    if ((p->residual.buf || p->dx_sum.buf) && !p->dx.buf)
        return clt_error(CLT_FAIL, "norm backward: a residual or sums of dx without dx");
    bool gaps = p->ldx != p->heads * p->cols || p->lddx != p->heads * p->cols;
    if ((gaps && (p->dx_copy.buf || p->dx_sum.buf || p->y.buf)) || (p->dx_copy.buf && p->dx_type != CLT_F32))
        return clt_error(CLT_FAIL,
                         "norm backward: a copy or sums of rows with gaps, or a copy of 16-bit ones");
    char options[CLT_NORM_OPTIONS];
    clt_norm_grad_params call = *p;
    const clt_variant *v;
    backward_options(ops, p, options);
    const bool ring = p->dx.buf && ring_takes(p->cols, p->heads);
    CLT_TRY(clt_variant_pick_for(ops, "norm", options, clt_norm_takes(wide_backward(ops, p), ring),
                                 check_backward, &call, &v));
    CLT_TRY(run_backward(ops, v, p, clt_columns_later(ops)));
    return clt_norm_is_wide(v) ? CLT_OK : backward_extras(ops, p);
}
