/* Normalisation forward and backward: kernels of clkernels/norm. */
#include <string.h>

#include "runtime/ops/clt_op_elementwise.h"
#include "runtime/ops/clt_op_norm_internal.h"
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

/* The rows that remain for calls that wide rows, or ring rows, do not support. */
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

/* Matrices and their rows start at multiples of 8 elements; vectors have ld 0. */
static bool aligned(int64_t cols, const clt_tensor *const *t, int n) {
    bool yes = cols % 64 == 0 && cols <= 8192;
    for (int i = 0; i < n; i++) yes = yes && t[i]->ref.off % 8 == 0 && t[i]->ld % 8 == 0;
    return yes;
}

static bool wide_forward(const clt_norm_params *p) {
    const clt_tensor *const t[] = {&p->x, &p->y, &p->w, &p->b};
    return aligned(p->cols, t, CLT_COUNT_OF(t));
}

/* Bytes of local memory for a row of the wide backward pass. */
static uint64_t backward_row(const clt_norm_grad_params *p) {
    return (uint64_t)p->cols * (clt_dtype_bytes(p->x.type) + clt_dtype_bytes(p->dy.type)) + 1024;
}

/* Rows that a work-group of the wide backward pass holds in local memory; 0: none fit. Half of the memory is
 * left to another work-group. */
static int wide_backward(const clt_ops *ops, const clt_norm_grad_params *p) {
    const clt_tensor *const t[] = {&p->x, &p->dy, &p->dx, &p->residual, &p->w, &p->dx_copy, &p->y, &p->b};
    const uint64_t row = backward_row(p), local = clt_device_get_facts(clt_ops_device(ops))->local_mem;
    if (!aligned(p->cols, t, CLT_COUNT_OF(t)) || p->cols > 4096) return 0;
    return 8 * row <= local / 2 ? 8 : 4 * row <= local ? 4 : 0;
}

/* Its work-group: longer rows use more work-items. */
static size_t backward_items(const clt_norm_grad_params *p) {
    return p->cols <= 1024 ? 256 : 512;
}

/* The work-group of the ring's backward pass, as norm_ring.cl counts: items that own four or eight columns,
 * two or three warps for sums, one warp that loads rows. */
static size_t ring_items(int64_t cols) {
    const size_t sum_warps = cols <= 1024 || cols > 2048 ? 2 : 3;
    return CLT_ROUND_UP((size_t)cols / (cols <= 1024 ? 4 : 8), 32) + 32 * sum_warps + 32;
}

/* Warps of its forward pass, in as many work-groups as the device runs at once: a warp processes several
 * rows, at least two, so that the check covers the transition. */
static size_t ring_warps(int64_t cols) {
    return cols <= 768 ? 16 : cols <= 1024 ? 12 : cols <= 2048 ? 16 : 8;
}
static size_t ring_groups(const clt_ops *ops, const clt_norm_params *p) {
    const size_t units = clt_device_get_facts(clt_ops_device(ops))->compute_units;
    const size_t resident = p->cols <= 1024 ? 2 : 1;
    return CLT_MIN(units * resident, CLT_CEIL_DIV((size_t)p->rows, 2 * ring_warps(p->cols)));
}

/* Elements that an item of the wide forward pass loads at once: it keeps cols * V / 64 in registers. */
static int forward_vector(const clt_norm_params *p) {
    return p->cols <= 2048 ? 4 : p->cols <= 4096 ? 2 : 1;
}

static void forward_options(const clt_norm_params *p, char buf[CLT_NORM_OPTIONS]) {
    int n =
        snprintf(buf, CLT_NORM_OPTIONS, " -DPART=1 -DRMS=%d -DHAS_W=%d -DHAS_B=%d -DX_TYPE=%d -DY_TYPE=%d",
                 p->rms, clt_tensor_present(p->w), clt_tensor_present(p->b), (int)p->x.type, (int)p->y.type);
    if (wide_forward(p))
        snprintf(buf + n, CLT_NORM_OPTIONS - (size_t)n, " -DCOLS=%d -DHEADS=%d -DV=%d", (int)p->cols,
                 (int)p->heads, forward_vector(p));
}

static void backward_options(const clt_ops *ops, const clt_norm_grad_params *p, char buf[CLT_NORM_OPTIONS]) {
    int n =
        snprintf(buf, CLT_NORM_OPTIONS,
                 " -DPART=2 -DRMS=%d -DHAS_W=%d -DHAS_DX=%d -DHAS_DW=%d -DHAS_DB=%d -DHAS_RES=%d -DX_TYPE=%d"
                 " -DDY_TYPE=%d -DDX_TYPE=%d",
                 p->rms, clt_tensor_present(p->w), clt_tensor_present(p->dx), clt_tensor_present(p->dw),
                 clt_tensor_present(p->db), clt_tensor_present(p->residual), (int)p->x.type, (int)p->dy.type,
                 (int)p->dx.type);
    const int rows = wide_backward(ops, p);
    if (rows)
        snprintf(buf + n, CLT_NORM_OPTIONS - (size_t)n,
                 " -DCOLS=%d -DHEADS=%d -DROWS=%d -DITEMS_B=%d -DHAS_COPY=%d -DHAS_Y=%d -DHAS_B=%d "
                 "-DCOPY_TYPE=%d -DY_TYPE=%d -DHAS_SUM=%d",
                 (int)p->cols, (int)p->heads, rows, (int)backward_items(p), clt_tensor_present(p->dx_copy),
                 clt_tensor_present(p->y), clt_tensor_present(p->b), (int)p->dx_copy.type, (int)p->y.type,
                 clt_tensor_present(p->dx_sum));
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
    clt_arg args[] = {CLT_REF(p->x.ref),
                      CLT_REF(p->w.ref),
                      CLT_REF(p->b.ref),
                      CLT_REF(p->y.ref),
                      CLT_REF(p->mean),
                      CLT_REF(p->rstd),
                      CLT_U64(clt_norm_is_wide(v) ? (int64_t)rows : p->cols),
                      CLT_U64(p->heads),
                      CLT_U64(p->x.ld),
                      CLT_U64(p->y.ld),
                      CLT_F32(p->eps)};
    return clt_launch(k, 1, &global, &local, args, CLT_COUNT_OF(args));
}

/* What the launches of one backward call share: the shape of the block sums and the places of those of dw, db
 * and dx_sum. */
typedef struct {
    int64_t per_sample; /* rows of a sample */
    clt_column_parts parts;
    clt_column_result result[3];
    int results;
    uint64_t part_w, part_b, part_sum;
} backward_plan;

static void add_result(backward_plan *b, const clt_tensor *out) {
    if (clt_tensor_present(*out)) b->result[b->results++].out = out->ref;
}

static clt_status plan_backward(clt_ops *ops, const clt_variant *v, const clt_norm_grad_params *p, bool later,
                                backward_plan *b) {
    *b = (backward_plan){.per_sample = p->rows_per_sample * p->heads,
                         .parts = {.samples = p->rows / p->rows_per_sample,
                                   .cols = p->cols,
                                   .accumulate = p->accumulate,
                                   .later = later}};
    b->parts.blocks = CLT_CEIL_DIV(b->per_sample, CLT_NORM_BLOCK);
    add_result(b, &p->dw);
    add_result(b, &p->db);
    if (clt_norm_is_wide(v)) add_result(b, &p->dx_sum);
    CLT_TRY(clt_columns_room(ops, v, &b->parts, b->result, b->results));
    int n = 0;
    if (clt_tensor_present(p->dw)) b->part_w = b->result[n++].at;
    if (clt_tensor_present(p->db)) b->part_b = b->result[n++].at;
    if (n < b->results) b->part_sum = b->result[n].at;
    return CLT_OK;
}

static clt_status backward_rows(clt_ops *ops, const clt_variant *v, const clt_norm_grad_params *p,
                                const backward_plan *b) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "norm_backward", v->options, &k));
    size_t global = (size_t)(b->parts.samples * b->parts.blocks), local = 1;
    clt_arg args[] = {CLT_REF(p->x.ref),      CLT_REF(p->w.ref),        CLT_REF(p->mean),
                      CLT_REF(p->rstd),       CLT_REF(p->dy.ref),       CLT_REF(p->residual.ref),
                      CLT_REF(p->dx.ref),     CLT_BUF(b->parts.part),   CLT_U64(b->part_w),
                      CLT_U64(b->part_b),     CLT_U64(p->cols),         CLT_U64(p->heads),
                      CLT_U64(b->per_sample), CLT_U64(b->parts.blocks), CLT_U64(p->x.ld),
                      CLT_U64(p->dy.ld),      CLT_U64(p->residual.ld),  CLT_U64(p->dx.ld)};
    return clt_launch(k, 1, &global, &local, args, CLT_COUNT_OF(args));
}

static clt_status backward_wide(clt_ops *ops, const clt_variant *v, const clt_norm_grad_params *p,
                                const backward_plan *b) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "norm_backward", v->options, &k));
    size_t local = is_ring(v) ? ring_items(p->cols) : backward_items(p),
           global = (size_t)(b->parts.samples * b->parts.blocks) * local;
    clt_arg args[] = {
        CLT_REF(p->x.ref),  CLT_REF(p->w.ref),        CLT_REF(p->mean),        CLT_REF(p->rstd),
        CLT_REF(p->dy.ref), CLT_REF(p->residual.ref), CLT_REF(p->dx.ref),      CLT_REF(p->dx_copy.ref),
        CLT_REF(p->y.ref),  CLT_REF(p->b.ref),        CLT_BUF(b->parts.part),  CLT_U64(b->part_w),
        CLT_U64(b->part_b), CLT_U64(b->part_sum),     CLT_U64(b->per_sample),  CLT_U64(b->parts.blocks),
        CLT_U64(p->x.ld),   CLT_U64(p->dy.ld),        CLT_U64(p->residual.ld), CLT_U64(p->dx.ld)};
    return clt_launch(k, 1, &global, &local, args, CLT_COUNT_OF(args));
}

/* The weights' sums come first, because dx may overwrite dy. */
static clt_status backward_group(clt_ops *ops, const clt_variant *v, const clt_norm_grad_params *p,
                                 const backward_plan *b) {
    clt_kernel *k;
    if (clt_tensor_present(p->dw) || clt_tensor_present(p->db)) {
        CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "norm_backward_w", v->options, &k));
        size_t local[] = {clt_norm_group(v), 1};
        size_t global[] = {CLT_ROUND_UP((size_t)p->cols, local[0]),
                           (size_t)(b->parts.samples * b->parts.blocks)};
        clt_arg args[] = {CLT_REF(p->x.ref),      CLT_REF(p->mean),         CLT_REF(p->rstd),
                          CLT_REF(p->dy.ref),     CLT_BUF(b->parts.part),   CLT_U64(b->part_w),
                          CLT_U64(b->part_b),     CLT_U64(p->cols),         CLT_U64(p->heads),
                          CLT_U64(b->per_sample), CLT_U64(b->parts.blocks), CLT_U64(p->x.ld),
                          CLT_U64(p->dy.ld)};
        CLT_TRY(clt_launch_rows(k, global, local, args, CLT_COUNT_OF(args)));
    }
    if (!clt_tensor_present(p->dx)) return CLT_OK;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "norm_backward_dx", v->options, &k));
    size_t local = clt_norm_group(v), global = (size_t)(p->rows * p->heads) * local;
    clt_arg args[] = {CLT_REF(p->x.ref),  CLT_REF(p->w.ref),  CLT_REF(p->mean),
                      CLT_REF(p->rstd),   CLT_REF(p->dy.ref), CLT_REF(p->residual.ref),
                      CLT_REF(p->dx.ref), CLT_U64(p->cols),   CLT_U64(p->heads),
                      CLT_U64(p->x.ld),   CLT_U64(p->dy.ld),  CLT_U64(p->residual.ld),
                      CLT_U64(p->dx.ld)};
    return clt_launch(k, 1, &global, &local, args, CLT_COUNT_OF(args));
}

/* What only wide rows compute in the same launch. */
static clt_status backward_extras(clt_ops *ops, const clt_norm_grad_params *p) {
    const bool copy = clt_tensor_present(p->dx_copy);
    if (copy) CLT_TRY(clt_op_cast(ops, p->dx, p->dx_copy, (uint64_t)(p->rows * p->heads * p->cols)));
    if (clt_tensor_present(p->dx_sum)) {
        const clt_tensor x = copy ? p->dx_copy : p->dx;
        CLT_TRY(
            clt_op_column_sum(ops, &(clt_column_sum_params){.rows = p->rows * p->heads,
                                                            .cols = p->cols,
                                                            .rows_per_sample = p->rows_per_sample * p->heads,
                                                            .x = clt_tensor_of(x.ref, p->cols, x.type),
                                                            .out = p->dx_sum,
                                                            .accumulate = p->accumulate}));
    }
    if (!clt_tensor_present(p->y)) return CLT_OK;
    return clt_op_norm_forward(ops, &(clt_norm_params){.rms = p->rms,
                                                       .eps = p->eps,
                                                       .rows = p->rows,
                                                       .cols = p->cols,
                                                       .heads = p->heads,
                                                       .x = p->x,
                                                       .y = clt_tensor_of(p->y.ref, p->x.ld, p->y.type),
                                                       .w = p->w,
                                                       .b = p->b,
                                                       .mean = p->mean,
                                                       .rstd = p->rstd});
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

/* `data` on the device, if the call has that tensor. */
static clt_ref upload_if(clt_check *c, bool there, const float *data, size_t n) {
    return there ? clt_check_upload(c, data, n) : clt_ref_none();
}
static clt_tensor upload_vector(clt_check *c, const float *data, const check_shape *s) {
    return clt_tensor_vector(upload_if(c, data != NULL, data, (size_t)s->cols), CLT_F32);
}
/* Rounds `data` to the type of the call's tensor. */
static clt_tensor upload_rows(clt_check *c, clt_dtype type, float *data, const check_shape *s) {
    return clt_tensor_of(clt_check_upload_as(c, type, data, s->elements), s->ld, type);
}

/* The oracle's inputs, which this file made and may round. */
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
    if (clt_tensor_present(call->w)) r.w = clt_check_random(&c, (size_t)s.cols, 2);
    if (clt_tensor_present(call->b)) r.b = clt_check_random(&c, (size_t)s.cols, 3);
    clt_norm_params p = {.rms = r.rms,
                         .eps = r.eps,
                         .rows = TOKENS,
                         .cols = s.cols,
                         .heads = s.heads,
                         .x = upload_rows(&c, call->x.type, check_data(r.x), &s),
                         .y = upload_rows(&c, call->y.type, r.y, &s),
                         .w = upload_vector(&c, r.w, &s),
                         .b = upload_vector(&c, r.b, &s),
                         .mean = upload_if(&c, !r.rms, NULL, s.rows),
                         .rstd = clt_check_blank(&c, s.rows)};
    if (c.st == CLT_OK) c.st = run_forward(ops, v, &p);
    clt_ref_norm_forward(&r);
    clt_check_compare_as(&c, p.y.type, "y", p.y.ref, r.y, s.elements);
    clt_check_compare(&c, "rstd", p.rstd, r.rstd, s.rows);
    if (!r.rms) clt_check_compare(&c, "mean", p.mean, r.mean, s.rows);
    return clt_check_end(&c);
}

/* What only wide rows compute in the same launch; for other rows, other operations do. */
static void upload_extras(clt_check *c, const clt_norm_grad_params *call, const check_shape *s,
                          clt_ref_norm_params *r, clt_norm_grad_params *p) {
    const bool copy = clt_tensor_present(call->dx_copy);
    if (copy) p->dx_copy = upload_rows(c, call->dx_copy.type, clt_check_random(c, s->elements, 5), s);
    if (clt_tensor_present(call->dx_sum)) {
        r->dx_sum = clt_check_random(c, (size_t)s->cols, 8);
        r->sum_type = copy ? call->dx_copy.type : call->dx.type;
        p->dx_sum = upload_vector(c, r->dx_sum, s);
    }
    if (clt_tensor_present(call->y)) {
        p->y = upload_rows(c, call->y.type, clt_check_zeros(c, s->elements), s);
        p->b = upload_vector(c, r->b, s);
    }
}

/* The oracle's tensors of the backward pass, as many as the call has. */
static clt_ref_norm_params backward_oracle(clt_check *c, const clt_norm_grad_params *call,
                                           const check_shape *s) {
    const size_t cols = (size_t)s->cols;
    clt_ref_norm_params r = check_oracle(c, call->rms, s);
    clt_ref_round(call->x.type, check_data(r.x), s->elements);
    clt_ref_norm_forward(&r);
    r.dy = clt_check_random(c, s->elements, 4);
    if (clt_tensor_present(call->w)) r.w = clt_check_random(c, cols, 2);
    if (clt_tensor_present(call->b)) r.b = clt_check_random(c, cols, 3);
    if (clt_tensor_present(call->dx)) r.dx = clt_check_random(c, s->elements, 5);
    if (clt_tensor_present(call->residual)) r.residual = r.dx;
    if (clt_tensor_present(call->dw)) r.dw = clt_check_random(c, cols, 6);
    if (clt_tensor_present(call->db)) r.db = clt_check_random(c, cols, 7);
    return r;
}

/* Runs the oracle too. */
static void compare_backward(clt_check *c, const clt_norm_grad_params *p, const check_shape *s,
                             clt_ref_norm_params *r) {
    const size_t cols = (size_t)s->cols;
    clt_ref_norm_backward(r);
    if (r->dx) clt_check_compare_as(c, p->dx.type, "dx", p->dx.ref, r->dx, s->elements);
    if (clt_tensor_present(p->dx_copy))
        clt_check_compare_as(c, p->dx_copy.type, "copy of dx", p->dx_copy.ref, r->dx, s->elements);
    if (clt_tensor_present(p->y)) {
        clt_ref_norm_forward(r); /* with the weights, which the first pass lacked */
        clt_check_compare_as(c, p->y.type, "y again", p->y.ref, r->y, s->elements);
    }
    if (r->dw) clt_check_compare(c, "dw", p->dw.ref, r->dw, cols);
    if (r->db) clt_check_compare(c, "db", p->db.ref, r->db, cols);
    if (r->dx_sum) clt_check_compare(c, "sums of dx", p->dx_sum.ref, r->dx_sum, cols);
}

static clt_status check_backward(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_norm_grad_params *call = ctx;
    if (!clt_norm_builds(ops, v->file, strcmp(v->body, "group") ? "norm_backward" : "norm_backward_dx",
                         v->options) ||
        !clt_columns_build(ops, v))
        return clt_norm_does_not_build(ops, v);
    const check_shape s = shape_of(v, call->cols, call->heads);
    clt_check c = {.ops = ops, .aligned = clt_norm_is_wide(v)};
    clt_ref_norm_params r = backward_oracle(&c, call, &s);
    clt_norm_grad_params p = {.rms = r.rms,
                              .eps = r.eps,
                              .rows = TOKENS,
                              .cols = s.cols,
                              .heads = s.heads,
                              .rows_per_sample = PER_SAMPLE,
                              .accumulate = true,
                              .x = upload_rows(&c, call->x.type, check_data(r.x), &s),
                              .w = upload_vector(&c, r.w, &s),
                              .mean = upload_if(&c, !r.rms, r.mean, s.rows),
                              .rstd = clt_check_upload(&c, r.rstd, s.rows),
                              .dy = upload_rows(&c, call->dy.type, check_data(r.dy), &s),
                              .dw = upload_vector(&c, r.dw, &s),
                              .db = upload_vector(&c, r.db, &s)};
    if (r.dx) p.dx = upload_rows(&c, call->dx.type, r.dx, &s);
    if (r.residual) p.residual = p.dx;
    if (clt_norm_is_wide(v)) upload_extras(&c, call, &s, &r, &p);
    if (c.st == CLT_OK) c.st = run_backward(ops, v, &p, false);
    compare_backward(&c, &p, &s, &r);
    if (c.st == CLT_OK && clt_norm_is_wide(v)) c.st = clt_columns_check_later(ops);
    return clt_check_end(&c);
}

/* --- the operations --- */

static clt_status check_forward_types(const clt_norm_params *p) {
    const clt_tensor_named rows[] = {{"x", p->x}, {"y", p->y}}, vectors[] = {{"w", p->w}, {"b", p->b}};
    CLT_TRY(clt_tensor_check_types("norm", CLT_DTYPE_PLAIN, rows, CLT_COUNT_OF(rows)));
    return clt_tensor_check_types("norm", clt_dtype_bit(CLT_F32), vectors, CLT_COUNT_OF(vectors));
}

clt_status clt_op_norm_forward(clt_ops *ops, const clt_norm_params *p) {
    if (p->rows < 0 || p->cols < 1 || p->heads < 1)
        return clt_error(CLT_FAIL, "norm: invalid shape: %lld rows of %lld x %lld columns",
                         (long long)p->rows, (long long)p->heads, (long long)p->cols);
    if (p->rows == 0) return CLT_OK;
    CLT_TRY(check_forward_types(p));
    char options[CLT_NORM_OPTIONS];
    clt_norm_params call = *p;
    const clt_variant *v;
    forward_options(p, options);
    const clt_variant_question q = {.op = "norm",
                                    .options = options,
                                    .takes = clt_norm_takes(wide_forward(p), ring_takes(p->cols, p->heads)),
                                    .check = check_forward,
                                    .call = &call};
    CLT_TRY(clt_variant_pick_for(ops, &q, &v));
    return run_forward(ops, v, p);
}

clt_status clt_norm_check_samples(const char *op, int64_t rows, int64_t cols, int64_t per_sample) {
    if (rows >= 0 && cols >= 1 && per_sample >= 1 && rows % per_sample == 0) return CLT_OK;
    return clt_error(CLT_FAIL, "%s: invalid shape: %lld rows of %lld columns in samples of %lld rows", op,
                     (long long)rows, (long long)cols, (long long)per_sample);
}

static clt_status check_backward_types(const clt_norm_grad_params *p) {
    const char *op = "norm backward";
    const clt_tensor_named rows[] = {{"x", p->x}, {"dy", p->dy}, {"dx_copy", p->dx_copy}, {"y", p->y}},
                           dx[] = {{"dx", p->dx}, {"residual", p->residual}},
                           vectors[] = {
                               {"w", p->w}, {"b", p->b}, {"dw", p->dw}, {"db", p->db}, {"dx_sum", p->dx_sum}};
    CLT_TRY(clt_tensor_check_types(op, CLT_DTYPE_PLAIN, rows, CLT_COUNT_OF(rows)));
    CLT_TRY(clt_tensor_check_one_type(op, CLT_DTYPE_PLAIN, dx, CLT_COUNT_OF(dx)));
    CLT_TRY(clt_tensor_check_types(op, clt_dtype_bit(CLT_F32), vectors, CLT_COUNT_OF(vectors)));
    if (!clt_tensor_present(p->dx_copy) || p->dx.type == CLT_F32) return CLT_OK;
    return clt_error(CLT_FAIL, "%s: a copy of dx needs dx in fp32, and dx is %s", op,
                     clt_dtype_name(p->dx.type));
}

/* The optional results, which a caller would compute next from the same rows, need rows without gaps. */
static clt_status check_extras(const clt_norm_grad_params *p) {
    const clt_tensor_named rows[] = {{"x", p->x}, {"dx", p->dx}, {"dx_copy", p->dx_copy}, {"y", p->y}};
    if ((clt_tensor_present(p->residual) || clt_tensor_present(p->dx_sum)) && !clt_tensor_present(p->dx))
        return clt_error(CLT_FAIL, "norm backward: a residual, or sums of dx, need dx");
    if (!clt_tensor_present(p->dx_copy) && !clt_tensor_present(p->dx_sum) && !clt_tensor_present(p->y))
        return CLT_OK;
    return clt_tensor_check_dense("norm backward", p->heads * p->cols, rows, CLT_COUNT_OF(rows));
}

clt_status clt_op_norm_backward(clt_ops *ops, const clt_norm_grad_params *p) {
    CLT_TRY(clt_norm_check_samples("norm backward", p->rows, p->heads < 1 ? 0 : p->cols, p->rows_per_sample));
    CLT_TRY(check_backward_types(p));
    CLT_TRY(check_extras(p));
    char options[CLT_NORM_OPTIONS];
    clt_norm_grad_params call = *p;
    const clt_variant *v;
    backward_options(ops, p, options);
    const bool ring = clt_tensor_present(p->dx) && ring_takes(p->cols, p->heads);
    const clt_variant_question q = {.op = "norm",
                                    .options = options,
                                    .takes = clt_norm_takes(wide_backward(ops, p), ring),
                                    .check = check_backward,
                                    .call = &call};
    CLT_TRY(clt_variant_pick_for(ops, &q, &v));
    CLT_TRY(run_backward(ops, v, p, clt_columns_later(ops)));
    return clt_norm_is_wide(v) ? CLT_OK : backward_extras(ops, p);
}
