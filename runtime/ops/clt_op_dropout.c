/* Dropout with counter-based random numbers. */
#include "runtime/ops/clt_dropout.h"
#include "runtime/ops/clt_op_elementwise.h"
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

static clt_status dropout(clt_ops *ops, const clt_variant *v, const clt_dropout_params *p) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "dropout", v->options, &k));
    clt_dropout_constants c = clt_dropout_constants_of(p->p, p->seed);
    uint64_t count = (uint64_t)(p->seq * p->cols), total = (uint64_t)(p->rows * p->cols);
    uint64_t seg = (uint64_t)clt_variant_param(v, "SEG", 4), wg = (uint64_t)clt_variant_param(v, "WG", 1);
    if (total == 0) return CLT_OK;
    size_t global[2] = {CLT_ROUND_UP(CLT_CEIL_DIV(count, seg), wg), CLT_CEIL_DIV(total, count)};
    clt_arg args[] = {CLT_U64(count),           CLT_U64(total),
                      CLT_REF(p->x.ref),        CLT_REF(p->residual.ref),
                      CLT_REF(p->y.ref),        CLT_U32(c.key[0]),
                      CLT_U32(c.key[1]),        CLT_U32(p->step),
                      CLT_U32(p->first_sample), CLT_U32(p->layer * 8 + p->site),
                      CLT_U32(c.threshold),     CLT_F32(c.scale)};
    return clt_launch_rows(k, global, (size_t[]){wg, 1}, args, CLT_COUNT_OF(args));
}

static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_dropout_params *call = ctx;
    enum { ROWS = 6, SEQ = 3, COLS = 67, N = ROWS * COLS };
    float x[N], residual[N], want[N];
    clt_ref part[CLT_CHECK_PARTS];
    CLT_TRY(clt_check_parts(ops, N, part));
    const clt_dtype x_type = call->x.type, y_type = call->y.type;
    const bool adds = clt_tensor_present(call->residual);
    clt_dropout_params p = {.rows = ROWS,
                            .seq = SEQ,
                            .cols = COLS,
                            .x = clt_tensor_of(clt_check_place(v, x_type, part[0]), COLS, x_type),
                            .y = clt_tensor_of(clt_check_place(v, y_type, part[2]), COLS, y_type),
                            .p = 0.3f,
                            .seed = 17,
                            .step = 5,
                            .first_sample = 11,
                            .layer = 2,
                            .site = CLT_SITE_FFN_OUT,
                            .whole_samples = call->whole_samples};
    if (adds) p.residual = clt_tensor_of(clt_check_place(v, y_type, part[1]), COLS, y_type);
    clt_check_fill(x, N, 7);
    clt_check_fill(residual, N, 8);
    CLT_TRY(clt_check_write(x_type, p.x.ref, x, N));
    if (adds) CLT_TRY(clt_check_write(y_type, p.residual.ref, residual, N));
    CLT_TRY(dropout(ops, v, &p));
    clt_ref_dropout(ROWS, SEQ, COLS, x, adds ? residual : NULL, p.p, p.seed, p.step, p.first_sample, p.layer,
                    p.site, p.whole_samples, want);
    return clt_variant_compare_as(ops, y_type, "dropout", p.y.ref, want, N);
}

clt_status clt_op_dropout(clt_ops *ops, const clt_dropout_params *p) {
    const clt_tensor_named all[] = {{"x", p->x}, {"y", p->y}, {"residual", p->residual}};
    const clt_variant *v;
    char options[64];
    if (!(p->p >= 0.0f && p->p < 1.0f))
        return clt_error(CLT_BAD_CONFIG, "dropout: probability %g is not in [0, 1)", (double)p->p);
    CLT_TRY(clt_tensor_check_types("dropout", CLT_DTYPE_PLAIN, all, 1));
    CLT_TRY(clt_tensor_check_one_type("dropout", CLT_DTYPE_PLAIN, all + 1, 2));
    CLT_TRY(clt_tensor_check_dense("dropout", p->cols, all, CLT_COUNT_OF(all)));
    snprintf(options, sizeof options, " -DRESIDUAL=%d -DX_TYPE=%d -DY_TYPE=%d%s",
             clt_tensor_present(p->residual), (int)p->x.type, (int)p->y.type,
             p->whole_samples ? " -DWHOLE=1" : "");
    const clt_variant_question q = {.op = "dropout", .options = options, .check = check, .call = p};
    CLT_TRY(clt_variant_pick_for(ops, &q, &v));
    return dropout(ops, v, p);
}
