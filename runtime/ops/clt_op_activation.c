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

typedef struct {
    clt_rowwise_call rows;
    clt_activation act;
} activation_call;

static bool is_fast(const clt_variant *v) {
    return clt_variant_param(v, "FAST", 0) != 0;
}

/* The fast row is for 16-bit GELU: elsewhere it gains nothing, or its error would show. */
static bool takes(const clt_variant *v, const void *call) {
    const activation_call *c = call;
    if (is_fast(v) && (c->act != CLT_ACT_GELU || c->rows.type == CLT_F32)) return false;
    return clt_rowwise_takes(v, &c->rows);
}

/* The oracle's words; for the fast row within 5e-7 + 2^-16 |v|, and the type's rounding. */
static clt_status compare(clt_ops *ops, const clt_variant *v, clt_dtype type, const char *what, clt_ref got,
                          const float *want, size_t n) {
    const clt_check_bound near = {.relative = 0x1p-16,
                                  .absolute = 5e-7 * 64}; /* the check's dy is up to 64 */
    if (!is_fast(v)) return clt_variant_compare_as(ops, type, what, got, want, n);
    return clt_check_near(ops, type, what, got, want, n, near);
}

/* GELU forward and backward over two rows of 75 elements (wide rows: 72) that lie 88 apart. */
static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_dtype type = ((const activation_call *)ctx)->rows.type;
    const int cols = clt_variant_wide(v) ? 72 : 75;
    enum { ROWS = 2, LD = 88, N = ROWS * LD };
    float x[N], dy[N], want[N];
    clt_ref part[CLT_CHECK_PARTS];
    CLT_TRY(clt_check_parts(ops, N, part));
    for (int i = 0; i < 3; i++) part[i] = clt_check_place(v, type, part[i]);
    clt_check_fill(x, N, 1);
    clt_check_fill(dy, N, 2);
    CLT_TRY(clt_check_write(type, part[0], x, N));
    CLT_TRY(clt_check_write(type, part[1], dy, N));
    CLT_TRY(clt_check_write(type, part[2], dy, N));
    CLT_TRY(forward(ops, v, CLT_ACT_GELU, ROWS, cols, part[0], LD, part[2], LD));
    for (int i = 0; i < N; i++) want[i] = i % LD < cols ? clt_ref_act(CLT_ACT_GELU, x[i]) : dy[i];
    CLT_TRY(compare(ops, v, type, "gelu", part[2], want, N));
    CLT_TRY(backward(ops, v, CLT_ACT_GELU, ROWS, cols, part[0], LD, part[1], LD, part[1], LD));
    for (int i = 0; i < N; i++)
        want[i] = i % LD < cols ? dy[i] * clt_ref_act_grad(CLT_ACT_GELU, x[i]) : dy[i];
    return compare(ops, v, type, "gelu backward", part[1], want, N);
}

static clt_status pick(clt_ops *ops, clt_dtype type, clt_activation act, int64_t cols, const clt_rows *m,
                       int n, const clt_variant **v) {
    char option[16];
    const activation_call call = {{type, clt_rowwise_wide(cols, m, n)}, act};
    if (act < 0 || act >= CLT_ACT_COUNT) return clt_error(CLT_FAIL, "there is no activation %d", (int)act);
    return clt_variant_pick_for(ops, "activation", clt_type_option(type, option), takes, check, &call, v);
}

clt_status clt_op_activation_forward(clt_ops *ops, clt_dtype type, clt_activation act, int64_t rows,
                                     int64_t cols, clt_ref x, int64_t ldx, clt_ref y, int64_t ldy) {
    const clt_variant *v;
    CLT_TRY(pick(ops, type, act, cols, (clt_rows[]){{x, ldx}, {y, ldy}}, 2, &v));
    return forward(ops, v, act, rows, cols, x, ldx, y, ldy);
}

clt_status clt_op_activation_backward(clt_ops *ops, clt_dtype type, clt_activation act, int64_t rows,
                                      int64_t cols, clt_ref x, int64_t ldx, clt_ref dy, int64_t lddy,
                                      clt_ref dx, int64_t lddx) {
    const clt_variant *v;
    CLT_TRY(pick(ops, type, act, cols, (clt_rows[]){{x, ldx}, {dy, lddy}, {dx, lddx}}, 3, &v));
    return backward(ops, v, act, rows, cols, x, ldx, dy, lddy, dx, lddx);
}

static clt_status glu(clt_ops *ops, const char *name, clt_dtype type, clt_activation act, int64_t rows,
                      int64_t cols, const clt_rows *m, int n) {
    const clt_variant *v;
    char option[32];
    CLT_TRY(pick(ops, type, act, cols, m, n, &v));
    return clt_rowwise_launch(ops, v, name, act_option(act, option), true, rows, cols, m, n, NULL, 0);
}

clt_status clt_op_glu_forward(clt_ops *ops, clt_dtype type, clt_activation act, int64_t rows, int64_t cols,
                              clt_ref gate, int64_t ldgate, clt_ref up, int64_t ldup, clt_ref y,
                              int64_t ldy) {
    const clt_rows m[] = {{gate, ldgate}, {up, ldup}, {y, ldy}};
    return glu(ops, "glu_forward", type, act, rows, cols, m, 3);
}

clt_status clt_op_glu_backward(clt_ops *ops, clt_dtype type, clt_activation act, int64_t rows, int64_t cols,
                               clt_ref gate, int64_t ldgate, clt_ref up, int64_t ldup, clt_ref dy,
                               int64_t lddy, clt_ref dgate, int64_t lddgate, clt_ref dup, int64_t lddup) {
    const clt_rows m[] = {{gate, ldgate}, {up, ldup}, {dy, lddy}, {dgate, lddgate}, {dup, lddup}};
    return glu(ops, "glu_backward", type, act, rows, cols, m, 5);
}
