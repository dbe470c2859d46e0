/* Activations and gated MLPs. */
#include "clt_rowwise.h"
#include "ref/clt_ref.h"

static const char *act_option(clt_activation act, char buf[32]) {
    snprintf(buf, 32, " -DACT=%d", (int)act);
    return buf;
}

static clt_status forward(clt_ops *ops, const clt_variant *v, clt_activation act, int64_t rows, int64_t cols,
                          clt_ref x, int64_t ldx, clt_ref y, int64_t ldy) {
    char option[32];
    return clt_rowwise_launch(ops, v, "act_forward", act_option(act, option), true, rows, cols,
                              (clt_rows[]){{x, ldx}, {y, ldy}}, 2, NULL, 0);
}

static clt_status backward(clt_ops *ops, const clt_variant *v, clt_activation act, int64_t rows, int64_t cols,
                           clt_ref x, int64_t ldx, clt_ref dy, int64_t lddy, clt_ref dx, int64_t lddx) {
    char option[32];
    return clt_rowwise_launch(ops, v, "act_backward", act_option(act, option), true, rows, cols,
                              (clt_rows[]){{x, ldx}, {dy, lddy}, {dx, lddx}}, 3, NULL, 0);
}

/* GELU forward and backward over two rows of 75 elements that lie 83 apart. */
static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_dtype type = *(const clt_dtype *)ctx;
    enum { ROWS = 2, COLS = 75, LD = 83, N = ROWS * LD };
    float x[N], dy[N], want[N];
    clt_ref part[CLT_CHECK_PARTS];
    CLT_TRY(clt_check_parts(ops, N, part));
    for (int i = 0; i < 3; i++) part[i] = clt_check_part_as(type, part[i]);
    clt_check_fill(x, N, 1);
    clt_check_fill(dy, N, 2);
    CLT_TRY(clt_check_write(type, part[0], x, N));
    CLT_TRY(clt_check_write(type, part[1], dy, N));
    CLT_TRY(clt_check_write(type, part[2], dy, N));
    CLT_TRY(forward(ops, v, CLT_ACT_GELU, ROWS, COLS, part[0], LD, part[2], LD));
    for (int i = 0; i < N; i++) want[i] = i % LD < COLS ? clt_ref_act(CLT_ACT_GELU, x[i]) : dy[i];
    CLT_TRY(clt_variant_compare_as(ops, type, "gelu", part[2], want, N));
    CLT_TRY(backward(ops, v, CLT_ACT_GELU, ROWS, COLS, part[0], LD, part[1], LD, part[1], LD));
    for (int i = 0; i < N; i++)
        want[i] = i % LD < COLS ? dy[i] * clt_ref_act_grad(CLT_ACT_GELU, x[i]) : dy[i];
    return clt_variant_compare_as(ops, type, "gelu backward", part[1], want, N);
}

static clt_status pick(clt_ops *ops, clt_dtype type, clt_activation act, const clt_variant **v) {
    char option[16];
    if (act < 0 || act >= CLT_ACT_COUNT) return clt_error(CLT_FAIL, "there is no activation %d", (int)act);
    return clt_variant_pick_with(ops, "activation", clt_type_option(type, option), check, &type, v);
}

clt_status clt_op_activation_forward(clt_ops *ops, clt_dtype type, clt_activation act, int64_t rows,
                                     int64_t cols, clt_ref x, int64_t ldx, clt_ref y, int64_t ldy) {
    const clt_variant *v;
    CLT_TRY(pick(ops, type, act, &v));
    return forward(ops, v, act, rows, cols, x, ldx, y, ldy);
}

clt_status clt_op_activation_backward(clt_ops *ops, clt_dtype type, clt_activation act, int64_t rows,
                                      int64_t cols, clt_ref x, int64_t ldx, clt_ref dy, int64_t lddy,
                                      clt_ref dx, int64_t lddx) {
    const clt_variant *v;
    CLT_TRY(pick(ops, type, act, &v));
    return backward(ops, v, act, rows, cols, x, ldx, dy, lddy, dx, lddx);
}

clt_status clt_op_glu_forward(clt_ops *ops, clt_dtype type, clt_activation act, int64_t rows, int64_t cols,
                              clt_ref gate, int64_t ldgate, clt_ref up, int64_t ldup, clt_ref y,
                              int64_t ldy) {
    const clt_variant *v;
    char option[32];
    CLT_TRY(pick(ops, type, act, &v));
    return clt_rowwise_launch(ops, v, "glu_forward", act_option(act, option), true, rows, cols,
                              (clt_rows[]){{gate, ldgate}, {up, ldup}, {y, ldy}}, 3, NULL, 0);
}

clt_status clt_op_glu_backward(clt_ops *ops, clt_dtype type, clt_activation act, int64_t rows, int64_t cols,
                               clt_ref gate, int64_t ldgate, clt_ref up, int64_t ldup, clt_ref dy,
                               int64_t lddy, clt_ref dgate, int64_t lddgate, clt_ref dup, int64_t lddup) {
    const clt_variant *v;
    char option[32];
    CLT_TRY(pick(ops, type, act, &v));
    const clt_rows m[] = {{gate, ldgate}, {up, ldup}, {dy, lddy}, {dgate, lddgate}, {dup, lddup}};
    return clt_rowwise_launch(ops, v, "glu_backward", act_option(act, option), true, rows, cols, m, 5, NULL,
                              0);
}
