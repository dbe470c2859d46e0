/* GEMM: checks the call, picks the variant and runs its body. */
#include "runtime/ops/clt_op_gemm_internal.h"

#include <limits.h>
#include <string.h>

uint32_t clt_gemm_flags(const clt_gemm_params *p) {
    return (clt_tensor_present(p->bias) ? CLT_EP_BIAS : 0) | (clt_tensor_present(p->pre) ? CLT_EP_PRE : 0) |
           (p->act ? CLT_EP_ACT : 0) | (p->grad_act ? CLT_EP_GRAD : 0) |
           (clt_tensor_present(p->residual) ? CLT_EP_RESIDUAL : 0) | (p->accumulate ? CLT_EP_ACCUMULATE : 0);
}

void clt_gemm_epilogue_args(const clt_gemm_params *p, uint32_t flags, int64_t row, int64_t column,
                            clt_arg *args) {
    const clt_ref c = clt_tensor_at(p->c, row, column).ref, bias = clt_tensor_at(p->bias, 0, column).ref,
                  pre = clt_tensor_at(p->pre, row, column).ref,
                  grad_pre = clt_tensor_at(p->grad_pre, row, column).ref,
                  residual = clt_tensor_at(p->residual, row, column).ref;
    const clt_arg all[CLT_EP_ARG_COUNT] = {CLT_U32(flags),    CLT_REF(c),
                                           CLT_U64(p->c.ld),  CLT_REF(bias),
                                           CLT_REF(pre),      CLT_U64(p->pre.ld),
                                           CLT_REF(grad_pre), CLT_U64(p->grad_pre.ld),
                                           CLT_REF(residual), CLT_U64(p->residual.ld)};
    memcpy(args, all, sizeof all);
}

void clt_gemm_options(const clt_gemm_params *p, const clt_variant *v, const char *more, char *out,
                      size_t size) {
    const clt_dtype aux = clt_gemm_aux_type(p);
    int n = snprintf(out, size, "%s%s", v->options, more);
    if (p->c.type) n += snprintf(out + n, size - (size_t)n, " -DC_TYPE=%d", (int)p->c.type);
    if (aux && (p->act || p->grad_act || clt_tensor_present(p->pre)))
        n += snprintf(out + n, size - (size_t)n, " -DAUX_TYPE=%d", (int)aux);
    if (p->act) n += snprintf(out + n, size - (size_t)n, " -DACT=%d", (int)p->act);
    if (p->grad_act) snprintf(out + n, size - (size_t)n, " -DGRAD_ACT=%d", (int)p->grad_act);
}

/* In bytes: the tensors' types may differ. */
static uint64_t begin_of(const clt_tensor *t) {
    return t->ref.off * clt_dtype_bytes(t->type);
}
static uint64_t end_of(const clt_tensor *t, const clt_gemm_params *p) {
    return (t->ref.off + (uint64_t)((p->m - 1) * t->ld + p->n)) * clt_dtype_bytes(t->type);
}

/* Whether t [m, n] shares memory with c. */
static bool overlaps_c(const clt_gemm_params *p, const clt_tensor *t) {
    return t->ref.buf && t->ref.buf == p->c.ref.buf && begin_of(t) < end_of(&p->c, p) &&
           begin_of(&p->c) < end_of(t, p);
}

bool clt_gemm_c_is_free(const clt_gemm_params *p) {
    return p->c.type == CLT_F32 && !p->accumulate && !overlaps_c(p, &p->residual) &&
           !overlaps_c(p, &p->grad_pre);
}

/* --- checking the call --- */

/* An optional tensor of the call. */
static clt_status check_optional(const char *op, const char *name, const clt_tensor *t, int64_t rows,
                                 int64_t cols) {
    return clt_tensor_present(*t) ? clt_tensor_check_fits(op, name, t, rows, cols) : CLT_OK;
}

static clt_status check_epilogue(const char *op, const clt_gemm_params *p) {
    if ((unsigned)p->act >= CLT_ACT_COUNT || (unsigned)p->grad_act >= CLT_ACT_COUNT)
        return clt_error(CLT_FAIL, "%s: unknown activation %d or %d", op, (int)p->act, (int)p->grad_act);
    if (p->form == CLT_GEMM_TN && (clt_gemm_flags(p) & ~(uint32_t)CLT_EP_ACCUMULATE))
        return clt_error(CLT_FAIL, "%s: a weight gradient (TN) takes no bias, activation or residual", op);
    if (clt_tensor_present(p->a_sum) && p->form != CLT_GEMM_TN)
        return clt_error(CLT_FAIL, "%s: a_sum is supported for weight gradients (TN) only", op);
    if ((p->grad_act != CLT_ACT_NONE) != clt_tensor_present(p->grad_pre))
        return clt_error(CLT_FAIL, "%s: grad_act and grad_pre must be given together", op);
    if (clt_tensor_present(p->again) && !p->grad_act)
        return clt_error(CLT_FAIL, "%s: again needs grad_act and grad_pre", op);
    CLT_TRY(check_optional(op, "a_sum", &p->a_sum, 1, p->m));
    CLT_TRY(check_optional(op, "again", &p->again, p->m, p->n));
    CLT_TRY(check_optional(op, "bias", &p->bias, 1, p->n));
    CLT_TRY(check_optional(op, "pre", &p->pre, p->m, p->n));
    CLT_TRY(check_optional(op, "grad_pre", &p->grad_pre, p->m, p->n));
    return check_optional(op, "residual", &p->residual, p->m, p->n);
}

static clt_status check_output_types(const char *op, const clt_gemm_params *p) {
    const clt_tensor_named out[] = {{"c", p->c}},
                           aux[] = {{"pre", p->pre}, {"grad_pre", p->grad_pre}, {"again", p->again}},
                           wide[] = {{"bias", p->bias}, {"residual", p->residual}, {"a_sum", p->a_sum}};
    CLT_TRY(clt_tensor_check_types(op, CLT_DTYPE_PLAIN, out, CLT_COUNT_OF(out)));
    CLT_TRY(clt_tensor_check_one_type(op, CLT_DTYPE_PLAIN, aux, CLT_COUNT_OF(aux)));
    CLT_TRY(clt_tensor_check_types(op, clt_dtype_bit(CLT_F32), wide, CLT_COUNT_OF(wide)));
    if ((unsigned)p->pre.type >= CLT_DTYPE_COUNT) /* checked although pre may be absent */
        return clt_error(CLT_FAIL, "%s: pre is of type %s", op, clt_dtype_name(p->pre.type));
    if (p->accumulate && p->c.type != CLT_F32)
        return clt_error(CLT_FAIL, "%s: accumulate needs c in fp32, and c is %s", op,
                         clt_dtype_name(p->c.type));
    return CLT_OK;
}

/* An element may be overwritten by its own result, but not by another element's. */
static clt_status check_overlaps(const char *op, const clt_gemm_params *p) {
    const clt_tensor *const read[] = {&p->residual, &p->grad_pre};
    for (size_t i = 0; i < CLT_COUNT_OF(read); i++)
        if (p->c.type != read[i]->type && overlaps_c(p, read[i]))
            return clt_error(CLT_FAIL, "%s: c, %s, overlaps %s, %s; only tensors of one type may overlap", op,
                             clt_dtype_name(p->c.type), i ? "grad_pre" : "residual",
                             clt_dtype_name(read[i]->type));
    return CLT_OK;
}

clt_status clt_gemm_check_outputs(const char *op, const clt_gemm_params *p) {
    CLT_TRY(check_output_types(op, p));
    CLT_TRY(clt_tensor_check_fits(op, "c", &p->c, p->m, p->n));
    CLT_TRY(check_epilogue(op, p));
    return check_overlaps(op, p);
}

static clt_status check_call(const clt_gemm_params *p) {
    if (p->m < 1 || p->n < 1 || p->k < 1 || p->m > INT_MAX || p->n > INT_MAX || p->k > INT_MAX)
        return clt_error(CLT_FAIL, "gemm: sizes %lld x %lld x %lld are not in 1..%d", (long long)p->m,
                         (long long)p->n, (long long)p->k, INT_MAX);
    if (p->form == CLT_GEMM_TN && (p->k_group < 1 || p->k % p->k_group))
        return clt_error(CLT_FAIL, "gemm: groups of %lld rows do not divide %lld rows", (long long)p->k_group,
                         (long long)p->k);
    const bool tn = p->form == CLT_GEMM_TN, nt = p->form == CLT_GEMM_NT;
    const clt_tensor_named in[] = {{"a", p->a}, {"b", p->b}};
    CLT_TRY(clt_tensor_check_one_type("gemm", CLT_DTYPE_PLAIN, in, CLT_COUNT_OF(in)));
    CLT_TRY(clt_tensor_check_fits("gemm", "a", &p->a, tn ? p->k : p->m, tn ? p->m : p->k));
    CLT_TRY(clt_tensor_check_fits("gemm", "b", &p->b, nt ? p->n : p->k, nt ? p->k : p->n));
    CLT_TRY(clt_gemm_check_outputs("gemm", p));
    if (tn && p->c.type != CLT_F32 && p->k_group != p->k)
        return clt_error(CLT_FAIL, "gemm: a weight gradient in %s takes one group of rows, not %lld",
                         clt_dtype_name(p->c.type), (long long)(p->k / p->k_group));
    return CLT_OK;
}

/* --- choosing --- */

/* The body that a row names; NULL: no such body. */
static const clt_gemm_body *body_of(const clt_variant *v) {
    static const clt_gemm_body *const all[] = {&clt_gemm_cpu, &clt_gemm_vec, &clt_gemm_group,
                                               &clt_gemm_clblast, &clt_gemm_wgmma};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++)
        if (!strcmp(v->body, all[i]->name)) return all[i];
    return NULL;
}

/* FORMS is a set: 1 NT, 2 NN, 4 TN into fp32, 8 TN into 16 bits. */
static bool has_form(const clt_variant *v, const clt_gemm_params *p) {
    const int bit = (int)p->form + (p->form == CLT_GEMM_TN && p->c.type != CLT_F32);
    return clt_variant_param(v, "FORMS", 15) >> bit & 1;
}

/* Whether all rows of a matrix start at a multiple of `align` elements; an absent one does. */
static bool starts_at(uint64_t align, const clt_tensor *t) {
    return !t->ref.buf || (t->ref.off % align == 0 && (uint64_t)t->ld % align == 0);
}

/* Whether the row supports this call at all. TYPES is a set (clt_dtype_bit): the types of a and b, and of c,
 * pre and grad_pre, which may also be fp32. ALIGN: rows of a and b start at multiples of this many elements;
 * ALIGN_C: those of c, pre and grad_pre. */
static bool can_do(const clt_variant *v, const void *call) {
    const clt_gemm_params *p = call;
    const uint32_t types = (uint32_t)clt_variant_param(v, "TYPES", 1),
                   others = types | clt_dtype_bit(CLT_F32);
    const uint64_t align = (uint64_t)clt_variant_param(v, "ALIGN", 1);
    const uint64_t align_c = (uint64_t)clt_variant_param(v, "ALIGN_C", 1);
    return has_form(v, p) && clt_dtype_in(p->a.type, types) && clt_dtype_in(p->c.type, others) &&
           clt_dtype_in(clt_gemm_aux_type(p), others) && starts_at(align, &p->a) && starts_at(align, &p->b) &&
           (uint64_t)p->n % align_c == 0 && starts_at(align_c, &p->c) && starts_at(align_c, &p->pre) &&
           starts_at(align_c, &p->grad_pre);
}

/* Whether the row also suits its size: large tiles waste work on matrices smaller than MIN_M x MIN_N, and a
 * row for few rows of a reads the weights again for more than MAX_M. */
static bool does_well(const clt_variant *v, const void *call) {
    const clt_gemm_params *p = call;
    const clt_gemm_body *body = body_of(v);
    return p->m >= clt_variant_param(v, "MIN_M", 0) && p->m <= clt_variant_param(v, "MAX_M", p->m) &&
           p->n >= clt_variant_param(v, "MIN_N", 0) && can_do(v, call) &&
           (!body || !body->does_well || body->does_well(v, p));
}

static void describe(const void *call, char *out, size_t size) {
    const clt_gemm_params *p = call;
    char shape[80];
    clt_gemm_shape(p, shape, sizeof shape);
    snprintf(out, size, "%s, before the activation %s", shape, clt_dtype_name(clt_gemm_aux_type(p)));
}

/* A row is built, and has a verdict, for each type of a and b. */
static clt_status choose(clt_ops *ops, const clt_gemm_params *p, const clt_variant **out) {
    char option[24] = "";
    if (p->a.type) snprintf(option, sizeof option, " -DIN_TYPE=%d", (int)p->a.type);
    clt_variant_question q = {.op = "gemm",
                              .options = option,
                              .takes = can_do,
                              .check = clt_gemm_check,
                              .call = p,
                              .describe = describe};
    if (clt_ops_tunes(ops, "gemm")) {
        char shape[80];
        clt_gemm_shape(p, shape, sizeof shape);
        CLT_TRY(clt_tune_pick(ops, &(clt_tune_question){q, shape, &clt_gemm_tune}, out));
        if (*out) return CLT_OK;
    }
    if (!clt_variant_forced(ops, "gemm")) q.takes = does_well;
    return clt_variant_pick_for(ops, &q, out);
}

static clt_status column_sum(clt_ops *ops, const clt_gemm_params *p) {
    return clt_op_column_sum(ops, &(clt_column_sum_params){.rows = p->k,
                                                           .cols = p->m,
                                                           .rows_per_sample = p->k_group,
                                                           .x = p->a,
                                                           .out = p->a_sum,
                                                           .accumulate = p->accumulate});
}

clt_status clt_gemm_run(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p) {
    const clt_gemm_body *body = body_of(v);
    if (!body) return clt_error(CLT_FAIL, "gemm.vt: variant %s has the unknown body '%s'", v->id, v->body);
    clt_gemm_params rest = *p;
    if (clt_tensor_present(p->again) && !(body->makes_again && body->makes_again(p))) {
        rest.again = clt_tensor_none();
        CLT_TRY(clt_op_activation_forward(
            ops, &(clt_activation_params){p->grad_act, p->m, p->n, p->grad_pre, p->again}));
    }
    if (!body->makes_sums) rest.a_sum = clt_tensor_none();
    CLT_TRY(body->run(ops, v, &rest));
    return clt_tensor_present(p->a_sum) && !body->makes_sums ? column_sum(ops, p) : CLT_OK;
}

bool clt_gemm_can_make_again(const clt_variant *v) {
    const clt_gemm_body *body = body_of(v);
    return body && body->makes_again;
}

bool clt_gemm_can_make_sums(const clt_variant *v) {
    const clt_gemm_body *body = body_of(v);
    return body && body->makes_sums;
}

clt_status clt_op_gemm(clt_ops *ops, const clt_gemm_params *p) {
    const clt_variant *v;
    CLT_TRY(check_call(p));
    CLT_TRY(choose(ops, p, &v));
    return clt_gemm_run(ops, v, p);
}

const char *clt_op_gemm_variant(clt_ops *ops, const clt_gemm_params *p) {
    const clt_variant *v;
    return choose(ops, p, &v) == CLT_OK ? v->id : "";
}

/* The smallest call with the same programs, on scratch memory, for drivers that compile at first launch. */
static clt_status warm_up(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p) {
    enum { SLOT = 2, LD = 64 }; /* rows far enough apart for every row's ALIGN */
    clt_gemm_params tiny = *p;
    clt_tensor *const all[] = {&tiny.a,        &tiny.b,     &tiny.c,        &tiny.bias, &tiny.pre,
                               &tiny.grad_pre, &tiny.again, &tiny.residual, &tiny.a_sum};
    clt_ref at = clt_ref_none();
    CLT_TRY(clt_ops_scratch(ops, SLOT, 1024, &at.buf));
    tiny.m = tiny.k = tiny.k_group = 1;
    tiny.n = clt_variant_param(v, "ALIGN_C", 1);
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++)
        if (clt_tensor_present(*all[i])) all[i]->ref = at, all[i]->ld = LD;
    return clt_gemm_run(ops, v, &tiny);
}

clt_status clt_op_gemm_prepare(clt_ops *ops, const clt_gemm_params *p) {
    const clt_variant *v;
    CLT_TRY(check_call(p));
    CLT_TRY(choose(ops, p, &v));
    const clt_gemm_body *body = body_of(v);
    if (body && body->prepare) CLT_TRY(body->prepare(ops, v, p));
    return warm_up(ops, v, p);
}

uint64_t clt_op_gemm_workspace(clt_device_type type, const clt_gemm_params *p) {
    uint64_t most = 0;
    clt_variant *row;
    const int n = clt_variant_rows("gemm", &row);
    for (int i = 0; i < n; i++) {
        const clt_gemm_body *body = body_of(&row[i]);
        /* On a CPU device rows for CPUs come first; the other rows are used only if those fail. */
        const bool here = (strstr(row[i].requires, "type=cpu") != NULL) == (type == CLT_DEVICE_CPU);
        if (here && body && body->workspace && has_form(&row[i], p) &&
            clt_dtype_in(p->a.type, (uint32_t)clt_variant_param(&row[i], "TYPES", 1)))
            most = CLT_MAX(most, body->workspace(&row[i], p));
    }
    clt_free(row);
    return most;
}
