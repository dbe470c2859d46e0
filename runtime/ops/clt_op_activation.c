/* Activations and gated MLPs. */
#include "runtime/ops/clt_op_elementwise.h"
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

/* The launches of the four operations. */
static clt_rowwise forward_launch(const clt_activation_params *p) {
    return (clt_rowwise){"act_forward", p->rows, p->cols, .tensors = 2, .t = {p->x, p->y}};
}
static clt_rowwise backward_launch(const clt_activation_grad_params *p) {
    return (clt_rowwise){"act_backward", p->rows, p->cols, .tensors = 3, .t = {p->x, p->dy, p->dx}};
}
static clt_rowwise glu_launch(const clt_glu_params *p) {
    return (clt_rowwise){"glu_forward", p->rows, p->cols, .tensors = 3, .t = {p->gate, p->up, p->y}};
}
static clt_rowwise glu_grad_launch(const clt_glu_grad_params *p) {
    return (clt_rowwise){"glu_backward", p->rows, p->cols, .tensors = 5,
                         .t = {p->gate, p->up, p->dy, p->dgate, p->dup}};
}

typedef struct {
    clt_rowwise_call rows;
    clt_activation act;
    bool gated;
} activation_call;

static bool is_fast(const clt_variant *v) {
    return clt_variant_param(v, "FAST", 0) != 0;
}

/* The fast row is for 16-bit GELU: elsewhere it is no faster, or its error exceeds the rounding. */
static bool takes(const clt_variant *v, const void *call) {
    const activation_call *c = call;
    if (is_fast(v) && (c->act != CLT_ACT_GELU || c->rows.type == CLT_F32)) return false;
    return clt_rowwise_takes(v, &c->rows);
}

/* Compares with the oracle's words; the fast row may differ by 5e-7 times the factor of the activation (at
 * most `factor`) plus 2^-16 |v| plus the type's rounding. */
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

/* part: the places of x, dy and y; the last one is used by GLU only. */
static clt_status check_plain(clt_ops *ops, const clt_variant *v, const activation_call *c,
                              const clt_tensor *part, float x[INPUTS][N]) {
    const int64_t cols = check_cols(v);
    const float *dy = x[1], *old = x[2];
    const clt_rowwise forward =
                          forward_launch(&(clt_activation_params){c->act, ROWS, cols, part[0], part[2]}),
                      backward = backward_launch(
                          &(clt_activation_grad_params){c->act, ROWS, cols, part[0], part[1], part[1]});
    float want[N];
    CLT_TRY(clt_rowwise_launch(ops, v, &forward));
    for (int i = 0; i < N; i++) want[i] = i % LD < cols ? clt_ref_act(c->act, x[0][i]) : old[i];
    CLT_TRY(compare(ops, v, c->rows.type, "activation", part[2].ref, want, N, LARGEST));
    CLT_TRY(clt_rowwise_launch(ops, v, &backward));
    for (int i = 0; i < N; i++) want[i] = i % LD < cols ? dy[i] * clt_ref_act_grad(c->act, x[0][i]) : dy[i];
    return compare(ops, v, c->rows.type, "activation backward", part[1].ref, want, N, LARGEST);
}

/* The backward pass in place: its results overwrite gate and up. */
static clt_status check_gated(clt_ops *ops, const clt_variant *v, const activation_call *c,
                              const clt_tensor *part, float x[INPUTS][N]) {
    const int64_t cols = check_cols(v);
    const float *gate = x[0], *up = x[1], *dy = x[2];
    const clt_tensor g = part[0], u = part[1], d = part[2], y = part[3];
    const clt_rowwise forward = glu_launch(&(clt_glu_params){c->act, ROWS, cols, g, u, y}),
                      backward = glu_grad_launch(&(clt_glu_grad_params){c->act, ROWS, cols, g, u, d, g, u});
    float want[N];
    CLT_TRY(clt_rowwise_launch(ops, v, &forward));
    for (int i = 0; i < N; i++) want[i] = i % LD < cols ? clt_ref_act(c->act, gate[i]) * up[i] : dy[i];
    CLT_TRY(compare(ops, v, c->rows.type, "gated MLP", y.ref, want, N, LARGEST));
    CLT_TRY(clt_rowwise_launch(ops, v, &backward));
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
    clt_tensor t[INPUTS + 1];
    CLT_TRY(clt_check_parts(ops, N, part));
    for (int i = 0; i <= INPUTS; i++)
        t[i] = clt_tensor_of(clt_check_place(v, c->rows.type, part[i]), LD, c->rows.type);
    for (int i = 0; i < INPUTS; i++) {
        clt_check_fill(x[i], N, (uint32_t)i + 1);
        CLT_TRY(clt_check_write(c->rows.type, t[i].ref, x[i], N));
    }
    CLT_TRY(clt_check_write(c->rows.type, t[INPUTS].ref, x[INPUTS - 1], N));
    return (c->gated ? check_gated : check_plain)(ops, v, c, t, x);
}

/* Checks the call, picks its row and launches it. Rows are built for one activation and have a verdict for
 * each activation, gated or not. `names`: of r's tensors. */
static clt_status run(clt_ops *ops, clt_activation act, bool gated, const clt_rowwise *r,
                      const char *const *names) {
    char options[48];
    clt_tensor_named list[CLT_ROWWISE_TENSORS];
    const clt_variant *v;
    const clt_dtype type = r->t[0].type;
    if ((unsigned)act >= CLT_ACT_COUNT)
        return clt_error(CLT_FAIL, "%s: unknown activation %d", r->kernel, (int)act);
    for (int i = 0; i < r->tensors; i++) list[i] = (clt_tensor_named){names[i], r->t[i]};
    CLT_TRY(clt_tensor_check_one_type(r->kernel, CLT_DTYPE_PLAIN, list, r->tensors));
    snprintf(options, sizeof options, " -DTYPE=%d -DACT=%d%s", (int)type, (int)act,
             gated ? " -DGATED=1" : "");
    const activation_call call = {{type, clt_rowwise_wide(r)}, act, gated};
    const clt_variant_question q = {
        .op = "activation", .options = options, .takes = takes, .check = check, .call = &call};
    CLT_TRY(clt_variant_pick_for(ops, &q, &v));
    return clt_rowwise_launch(ops, v, r);
}

clt_status clt_op_activation_forward(clt_ops *ops, const clt_activation_params *p) {
    const clt_rowwise r = forward_launch(p);
    return run(ops, p->act, false, &r, (const char *const[]){"x", "y"});
}

clt_status clt_op_activation_backward(clt_ops *ops, const clt_activation_grad_params *p) {
    const clt_rowwise r = backward_launch(p);
    return run(ops, p->act, false, &r, (const char *const[]){"x", "dy", "dx"});
}

clt_status clt_op_glu_forward(clt_ops *ops, const clt_glu_params *p) {
    const clt_rowwise r = glu_launch(p);
    return run(ops, p->act, true, &r, (const char *const[]){"gate", "up", "y"});
}

clt_status clt_op_glu_backward(clt_ops *ops, const clt_glu_grad_params *p) {
    const clt_rowwise r = glu_grad_launch(p);
    return run(ops, p->act, true, &r, (const char *const[]){"gate", "up", "dy", "dgate", "dup"});
}
