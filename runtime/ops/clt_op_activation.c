/* Activations and gated MLPs. */
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

static clt_status forward(clt_ops *ops, const clt_variant *v, int64_t rows, int64_t cols, clt_ref x,
                          int64_t ldx, clt_ref y, int64_t ldy) {
    return clt_rowwise_launch(ops, v, "act_forward", "", true, rows, cols, (clt_rows[]){{x, ldx}, {y, ldy}},
                              2, NULL, 0);
}

static clt_status backward(clt_ops *ops, const clt_variant *v, int64_t rows, int64_t cols, clt_ref x,
                           int64_t ldx, clt_ref dy, int64_t lddy, clt_ref dx, int64_t lddx) {
    return clt_rowwise_launch(ops, v, "act_backward", "", true, rows, cols,
                              (clt_rows[]){{x, ldx}, {dy, lddy}, {dx, lddx}}, 3, NULL, 0);
}

typedef struct {
    clt_rowwise_call rows;
    clt_activation act;
    bool gated;
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

/* The oracle's words; for the fast row within 5e-7 of what the activation is multiplied with (at most
 * `factor`) + 2^-16 |v|, and the type's rounding. */
static clt_status compare(clt_ops *ops, const clt_variant *v, clt_dtype type, const char *what, clt_ref got,
                          const float *want, size_t n, double factor) {
    const clt_check_bound near = {.relative = 0x1p-16, .absolute = 5e-7 * factor};
    if (!is_fast(v)) return clt_variant_compare_as(ops, type, what, got, want, n);
    return clt_check_near(ops, type, what, got, want, n, near);
}

/* Two rows of 75 elements (wide rows: 72) that lie 88 apart, below 64. */
enum { ROWS = 2, LD = 88, N = ROWS * LD, INPUTS = 3 };
#define LARGEST 64.0

static int64_t check_cols(const clt_variant *v) {
    return clt_variant_wide(v) ? 72 : 75;
}

static clt_status check_plain(clt_ops *ops, const clt_variant *v, const activation_call *c,
                              const clt_ref *part, float x[INPUTS][N]) {
    const int64_t cols = check_cols(v);
    const float *dy = x[1], *old = x[2];
    float want[N];
    CLT_TRY(forward(ops, v, ROWS, cols, part[0], LD, part[2], LD));
    for (int i = 0; i < N; i++) want[i] = i % LD < cols ? clt_ref_act(c->act, x[0][i]) : old[i];
    CLT_TRY(compare(ops, v, c->rows.type, "activation", part[2], want, N, LARGEST));
    CLT_TRY(backward(ops, v, ROWS, cols, part[0], LD, part[1], LD, part[1], LD));
    for (int i = 0; i < N; i++) want[i] = i % LD < cols ? dy[i] * clt_ref_act_grad(c->act, x[0][i]) : dy[i];
    return compare(ops, v, c->rows.type, "activation backward", part[1], want, N, LARGEST);
}

/* Backward with its results in the places of gate and up. */
static clt_status check_gated(clt_ops *ops, const clt_variant *v, const activation_call *c,
                              const clt_ref *part, float x[INPUTS][N]) {
    const int64_t cols = check_cols(v);
    const float *gate = x[0], *up = x[1], *dy = x[2];
    const clt_rows g = {part[0], LD}, u = {part[1], LD}, y = {part[3], LD}, d = {part[2], LD};
    float want[N];
    CLT_TRY(
        clt_rowwise_launch(ops, v, "glu_forward", "", true, ROWS, cols, (clt_rows[]){g, u, y}, 3, NULL, 0));
    for (int i = 0; i < N; i++) want[i] = i % LD < cols ? clt_ref_act(c->act, gate[i]) * up[i] : dy[i];
    CLT_TRY(compare(ops, v, c->rows.type, "gated MLP", y.ref, want, N, LARGEST));
    CLT_TRY(clt_rowwise_launch(ops, v, "glu_backward", "", true, ROWS, cols, (clt_rows[]){g, u, d, g, u}, 5,
                               NULL, 0));
    for (int i = 0; i < N; i++)
        want[i] = i % LD < cols ? (dy[i] * up[i]) * clt_ref_act_grad(c->act, gate[i]) : gate[i];
    CLT_TRY(compare(ops, v, c->rows.type, "gated MLP backward, gate", g.ref, want, N, LARGEST * LARGEST));
    for (int i = 0; i < N; i++) want[i] = i % LD < cols ? dy[i] * clt_ref_act(c->act, gate[i]) : up[i];
    return compare(ops, v, c->rows.type, "gated MLP backward, up", u.ref, want, N, LARGEST);
}

/* Forward and backward of the call's kind. */
static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    const activation_call *c = ctx;
    float x[INPUTS][N];
    clt_ref part[CLT_CHECK_PARTS];
    CLT_TRY(clt_check_parts(ops, N, part));
    for (int i = 0; i <= INPUTS; i++) part[i] = clt_check_place(v, c->rows.type, part[i]);
    for (int i = 0; i < INPUTS; i++) {
        clt_check_fill(x[i], N, (uint32_t)i + 1);
        CLT_TRY(clt_check_write(c->rows.type, part[i], x[i], N));
    }
    CLT_TRY(clt_check_write(c->rows.type, part[INPUTS], x[INPUTS - 1], N));
    return (c->gated ? check_gated : check_plain)(ops, v, c, part, x);
}

/* Rows are built for one activation, and have a verdict for it: gated, and not. */
static clt_status pick(clt_ops *ops, clt_dtype type, clt_activation act, bool gated, int64_t cols,
                       const clt_rows *m, int n, const clt_variant **v) {
    char options[48];
    const activation_call call = {{type, clt_rowwise_wide(cols, m, n)}, act, gated};
    if (act < 0 || act >= CLT_ACT_COUNT) return clt_error(CLT_FAIL, "there is no activation %d", (int)act);
    snprintf(options, sizeof options, " -DTYPE=%d -DACT=%d%s", (int)type, (int)act,
             gated ? " -DGATED=1" : "");
    return clt_variant_pick_for(ops, "activation", options, takes, check, &call, v);
}

clt_status clt_op_activation_forward(clt_ops *ops, clt_dtype type, clt_activation act, int64_t rows,
                                     int64_t cols, clt_ref x, int64_t ldx, clt_ref y, int64_t ldy) {
    const clt_variant *v;
    CLT_TRY(pick(ops, type, act, false, cols, (clt_rows[]){{x, ldx}, {y, ldy}}, 2, &v));
    return forward(ops, v, rows, cols, x, ldx, y, ldy);
}

clt_status clt_op_activation_backward(clt_ops *ops, clt_dtype type, clt_activation act, int64_t rows,
                                      int64_t cols, clt_ref x, int64_t ldx, clt_ref dy, int64_t lddy,
                                      clt_ref dx, int64_t lddx) {
    const clt_variant *v;
    CLT_TRY(pick(ops, type, act, false, cols, (clt_rows[]){{x, ldx}, {dy, lddy}, {dx, lddx}}, 3, &v));
    return backward(ops, v, rows, cols, x, ldx, dy, lddy, dx, lddx);
}

static clt_status glu(clt_ops *ops, const char *name, clt_dtype type, clt_activation act, int64_t rows,
                      int64_t cols, const clt_rows *m, int n) {
    const clt_variant *v;
    CLT_TRY(pick(ops, type, act, true, cols, m, n, &v));
    return clt_rowwise_launch(ops, v, name, "", true, rows, cols, m, n, NULL, 0);
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
