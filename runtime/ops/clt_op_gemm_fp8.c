/* Products of matrices in 8-bit floating point: checks the call, picks the row of gemm_fp8.vt and runs it. */
#include <limits.h>
#include <string.h>

#include "runtime/ops/clt_op_gemm_fp8_internal.h"
#include "runtime/ops/clt_op_gemm_wgmma.h"

void clt_gemm_fp8_args(const clt_gemm_fp8_params *p, clt_arg args[CLT_GEMM_FP8_ARGS]) {
    const clt_gemm_params *to = &p->to;
    const clt_arg first[CLT_GEMM_FP8_ARGS - CLT_EP_ARG_COUNT] = {
        CLT_U32(to->m),        CLT_U32(to->n),  CLT_U32(to->k),   CLT_REF(p->a.q),      CLT_U64(p->a.ld),
        CLT_REF(p->a.inverse), CLT_REF(p->b.q), CLT_U64(p->b.ld), CLT_REF(p->b.inverse)};
    memcpy(args, first, sizeof first);
    clt_gemm_epilogue_args(to, clt_gemm_flags(to), 0, 0, args + CLT_COUNT_OF(first));
}

void clt_gemm_fp8_options(const clt_gemm_fp8_params *p, const clt_variant *v, const char *more, char *out,
                          size_t size) {
    char all[96];
    snprintf(all, sizeof all, "%s -DA_FORMAT=%d -DB_FORMAT=%d", more, (int)p->a.format, (int)p->b.format);
    clt_gemm_options(&p->to, v, all, out, size);
}

static clt_status run_group(clt_ops *ops, const clt_variant *v, const clt_gemm_fp8_params *p) {
    char options[512];
    clt_kernel *kernel;
    clt_arg args[CLT_GEMM_FP8_ARGS];
    clt_gemm_fp8_options(p, v, "", options, sizeof options);
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "gemm_fp8", options, &kernel));
    clt_gemm_fp8_args(p, args);
    const int64_t bm = clt_variant_param(v, "BM", 32), bn = clt_variant_param(v, "BN", 32);
    const int64_t items = bm * bn / (clt_variant_param(v, "TM", 4) * clt_variant_param(v, "TN", 4));
    const size_t global[2] = {(size_t)(CLT_CEIL_DIV(p->to.n, bn) * items), (size_t)CLT_CEIL_DIV(p->to.m, bm)};
    return clt_launch(kernel, 2, global, (size_t[]){(size_t)items, 1}, args, CLT_COUNT_OF(args));
}

/* --- checking the call --- */

static bool is_fnuz(const clt_codes8 *m) {
    return clt_fp8_table[m->format].fnuz;
}

static clt_status check_call(const clt_gemm_fp8_params *p) {
    const clt_gemm_params *to = &p->to;
    if (to->m < 1 || to->n < 1 || to->k < 1 || to->m > INT_MAX || to->n > INT_MAX || to->k > INT_MAX)
        return clt_error(CLT_FAIL, "gemm_fp8: sizes %lld x %lld x %lld are not in 1..%d", (long long)to->m,
                         (long long)to->n, (long long)to->k, INT_MAX);
    CLT_TRY(clt_codes8_check("gemm_fp8", "a", &p->a, to->m, to->k));
    CLT_TRY(clt_codes8_check("gemm_fp8", "b", &p->b, to->n, to->k));
    if (!p->a.inverse.buf || !p->b.inverse.buf)
        return clt_error(CLT_FAIL, "gemm_fp8: the inverse scale of %s is missing",
                         p->a.inverse.buf ? "b" : "a");
    if (is_fnuz(&p->a) != is_fnuz(&p->b))
        return clt_error(CLT_FAIL, "gemm_fp8: a is %s and b is %s; FNUZ formats go together only",
                         clt_fp8_table[p->a.format].name, clt_fp8_table[p->b.format].name);
    return clt_gemm_check_outputs("gemm_fp8", to);
}

/* The call without what no row reads. */
static clt_gemm_fp8_params plain(const clt_gemm_fp8_params *p) {
    clt_gemm_fp8_params q = *p;
    q.to.form = CLT_GEMM_NT;
    q.to.k_group = q.to.k;
    q.to.a = q.to.b = clt_tensor_none();
    q.to.a_sum = clt_tensor_none();
    return q;
}

/* --- choosing --- */

static bool is_in(const clt_variant *v, const char *param, int bit) {
    return clt_variant_param(v, param, -1) >> bit & 1;
}

static bool is_of_pieces(const clt_variant *v) {
    return !strcmp(v->body, "gemm_wgmma");
}

bool clt_gemm_fp8_takes(const clt_variant *v, const clt_gemm_fp8_params *p) {
    return is_in(v, "FORMATS", (int)p->a.format) && is_in(v, "FORMATS", (int)p->b.format) &&
           is_in(v, "SPLITS", p->split) && is_in(v, "TYPES", (int)p->to.c.type) &&
           is_in(v, "TYPES", (int)clt_gemm_aux_type(&p->to)) &&
           (!is_of_pieces(v) || clt_gemm_fp8_pieces_takes(v, p));
}

static bool can_do(const clt_variant *v, const void *call) {
    return clt_gemm_fp8_takes(v, call);
}

static bool does_well(const clt_variant *v, const void *call) {
    const clt_gemm_fp8_params *p = call;
    return can_do(v, call) && p->to.m >= clt_variant_param(v, "MIN_M", 0) &&
           p->to.n >= clt_variant_param(v, "MIN_N", 0);
}

static void describe(const void *call, char *out, size_t size) {
    clt_gemm_fp8_shape(call, out, size);
}

static clt_status choose(clt_ops *ops, const clt_gemm_fp8_params *p, const clt_variant **out) {
    char options[48];
    clt_variant_question q = {.op = "gemm_fp8",
                              .options = options,
                              .takes = can_do,
                              .check = clt_gemm_fp8_check,
                              .call = p,
                              .describe = describe};
    snprintf(options, sizeof options, "%s", p->split ? " -DSPLIT=1" : "");
    if (clt_ops_tunes(ops, "gemm_fp8")) {
        char shape[80];
        clt_gemm_fp8_shape(p, shape, sizeof shape);
        CLT_TRY(clt_tune_pick(ops, &(clt_tune_question){q, shape, &clt_gemm_fp8_tune}, out));
        if (*out) return CLT_OK;
    }
    if (!clt_variant_forced(ops, "gemm_fp8")) q.takes = does_well;
    return clt_variant_pick_for(ops, &q, out);
}

clt_status clt_gemm_fp8_run(clt_ops *ops, const clt_variant *v, const clt_gemm_fp8_params *p) {
    clt_gemm_fp8_params rest = *p;
    const clt_gemm_params *to = &p->to;
    rest.to.again = clt_tensor_none();
    if (clt_tensor_present(to->again))
        CLT_TRY(clt_op_activation_forward(
            ops, &(clt_activation_params){to->grad_act, to->m, to->n, to->grad_pre, to->again}));
    if (!strcmp(v->body, "group")) return run_group(ops, v, &rest);
    if (!strcmp(v->body, "wgmma")) return clt_gemm_fp8_wgmma(ops, v, &rest);
    if (is_of_pieces(v)) return clt_gemm_fp8_pieces(ops, v, &rest);
    return clt_error(CLT_FAIL, "gemm_fp8.vt: variant %s has the unknown body '%s'", v->id, v->body);
}

clt_status clt_op_gemm_fp8(clt_ops *ops, const clt_gemm_fp8_params *p) {
    const clt_variant *v;
    const clt_gemm_fp8_params q = plain(p);
    CLT_TRY(check_call(&q));
    CLT_TRY(choose(ops, &q, &v));
    return clt_gemm_fp8_run(ops, v, &q);
}

const char *clt_op_gemm_fp8_variant(clt_ops *ops, const clt_gemm_fp8_params *p) {
    const clt_variant *v;
    return choose(ops, p, &v) == CLT_OK ? v->id : "";
}

uint64_t clt_op_gemm_fp8_workspace(clt_device_type type, const clt_gemm_fp8_params *p) {
    uint64_t most = 0;
    clt_variant *row;
    const int n = clt_variant_rows("gemm_fp8", &row);
    for (int i = 0; type != CLT_DEVICE_CPU && i < n; i++)
        if (is_of_pieces(&row[i]) && is_in(&row[i], "SPLITS", p->split))
            most = CLT_MAX(most, clt_wgmma_workspace(&row[i], &p->to, false));
    clt_free(row);
    return most;
}

/* The smallest call with the same programs, on scratch memory, for drivers that compile at first launch. */
clt_status clt_op_gemm_fp8_prepare(clt_ops *ops, const clt_gemm_fp8_params *p) {
    enum { SLOT = 2, LD = 64, BYTES = 1 << 12 };
    const clt_variant *v;
    clt_gemm_fp8_params tiny = plain(p);
    clt_gemm_params *to = &tiny.to;
    clt_tensor *const all[] = {&to->c, &to->bias, &to->pre, &to->grad_pre, &to->again, &to->residual};
    clt_ref at = clt_ref_none();
    CLT_TRY(check_call(&tiny));
    CLT_TRY(choose(ops, &tiny, &v));
    if (is_of_pieces(v)) CLT_TRY(clt_gemm_fp8_pieces_prepare(ops, v, &tiny));
    CLT_TRY(clt_ops_scratch(ops, SLOT, BYTES, &at.buf));
    to->m = 1, to->n = 8, to->k = to->k_group = CLT_CODES8_ALIGN;
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++)
        if (clt_tensor_present(*all[i])) all[i]->ref = at, all[i]->ld = LD;
    tiny.a.q = tiny.b.q = tiny.a.inverse = tiny.b.inverse = at;
    tiny.a.ld = tiny.b.ld = LD;
    return clt_gemm_fp8_run(ops, v, &tiny);
}
