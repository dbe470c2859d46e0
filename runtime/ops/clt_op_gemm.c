/* GEMM: checks the call, picks the variant, hands it to the body. */
#include "runtime/ops/clt_op_gemm.h"

#include <limits.h>
#include <string.h>

uint32_t clt_gemm_flags(const clt_gemm_params *p) {
    return (p->bias.buf ? CLT_EP_BIAS : 0) | (p->pre.buf ? CLT_EP_PRE : 0) | (p->act ? CLT_EP_ACT : 0) |
           (p->grad_act ? CLT_EP_GRAD : 0) | (p->residual.buf ? CLT_EP_RESIDUAL : 0) |
           (p->accumulate ? CLT_EP_ACCUMULATE : 0);
}

static clt_ref place(clt_ref r, int64_t row, int64_t ld, int64_t column) {
    return r.buf ? clt_ref_at(r, (uint64_t)(row * ld + column)) : clt_ref_none();
}

void clt_gemm_epilogue_args(const clt_gemm_params *p, uint32_t flags, int64_t row, int64_t column,
                            clt_arg *args) {
    const clt_arg all[CLT_EP_ARG_COUNT] = {CLT_U32(flags),
                                           CLT_REF(place(p->c, row, p->ldc, column)),
                                           CLT_U64(p->ldc),
                                           CLT_REF(place(p->bias, 0, 0, column)),
                                           CLT_REF(place(p->pre, row, p->ldpre, column)),
                                           CLT_U64(p->ldpre),
                                           CLT_REF(place(p->grad_pre, row, p->ldgrad, column)),
                                           CLT_U64(p->ldgrad),
                                           CLT_REF(place(p->residual, row, p->ldres, column)),
                                           CLT_U64(p->ldres)};
    memcpy(args, all, sizeof all);
}

void clt_gemm_options(const clt_gemm_params *p, const clt_variant *v, const char *more, char *out,
                      size_t size) {
    int n = snprintf(out, size, "%s%s", v->options, more);
    if (p->c_type) n += snprintf(out + n, size - (size_t)n, " -DC_TYPE=%d", (int)p->c_type);
    if (p->aux_type && (p->act || p->grad_act || p->pre.buf))
        n += snprintf(out + n, size - (size_t)n, " -DAUX_TYPE=%d", (int)p->aux_type);
    if (p->act) n += snprintf(out + n, size - (size_t)n, " -DACT=%d", (int)p->act);
    if (p->grad_act) snprintf(out + n, size - (size_t)n, " -DGRAD_ACT=%d", (int)p->grad_act);
}

/* In bytes: the tensors' types may differ. */
static uint64_t begin_of(clt_ref r, clt_dtype type) {
    return r.off * clt_dtype_bytes(type);
}
static uint64_t end_of(clt_ref r, const clt_gemm_params *p, int64_t ld, clt_dtype type) {
    return (r.off + (uint64_t)((p->m - 1) * ld + p->n)) * clt_dtype_bytes(type);
}

static bool overlaps(const clt_gemm_params *p, clt_ref r, int64_t ld, clt_dtype type) {
    return r.buf && r.buf == p->c.buf && begin_of(r, type) < end_of(p->c, p, p->ldc, p->c_type) &&
           begin_of(p->c, p->c_type) < end_of(r, p, ld, type);
}

bool clt_gemm_c_is_free(const clt_gemm_params *p) {
    return p->c_type == CLT_F32 && !p->accumulate && !overlaps(p, p->residual, p->ldres, CLT_F32) &&
           !overlaps(p, p->grad_pre, p->ldgrad, p->aux_type);
}

/* --- checking the call --- */

static clt_status check_matrix(const char *name, clt_ref r, clt_dtype type, int64_t rows, int64_t cols,
                               int64_t ld) {
    if (!r.buf) return clt_error(CLT_FAIL, "gemm: matrix %s is missing", name);
    if (rows > 1 && ld < cols)
        return clt_error(CLT_FAIL, "gemm: rows of %s are %lld apart but %lld long", name, (long long)ld,
                         (long long)cols);
    const uint64_t have = clt_buffer_bytes(r.buf) / clt_dtype_bytes(type);
    const uint64_t need = (uint64_t)(rows - 1) * (uint64_t)ld + (uint64_t)cols;
    if (r.off > have || need > have - r.off)
        return clt_error(
            CLT_FAIL, "gemm: %s [%lld, %lld] from element %llu on does not fit its buffer of %llu", name,
            (long long)rows, (long long)cols, (unsigned long long)r.off, (unsigned long long)have);
    return CLT_OK;
}

static clt_status check_epilogue(const clt_gemm_params *p) {
    if ((unsigned)p->act >= CLT_ACT_COUNT || (unsigned)p->grad_act >= CLT_ACT_COUNT)
        return clt_error(CLT_FAIL, "gemm: activation %d, %d does not exist", (int)p->act, (int)p->grad_act);
    if (p->form == CLT_GEMM_TN && (clt_gemm_flags(p) & ~(uint32_t)CLT_EP_ACCUMULATE))
        return clt_error(CLT_FAIL, "gemm: a weight gradient (TN) takes no bias, activation or residual");
    if (p->a_sum.buf && p->form != CLT_GEMM_TN)
        return clt_error(CLT_FAIL, "gemm: a_sum comes with weight gradients (TN) only");
    if (p->a_sum.buf) CLT_TRY(check_matrix("a_sum", p->a_sum, CLT_F32, 1, p->m, p->m));
    if ((p->grad_act != CLT_ACT_NONE) != (p->grad_pre.buf != NULL))
        return clt_error(CLT_FAIL, "gemm: grad_act and grad_pre come together");
    if (p->again.buf && !p->grad_act) return clt_error(CLT_FAIL, "gemm: again needs grad_act and grad_pre");
    if (p->again.buf) CLT_TRY(check_matrix("again", p->again, p->aux_type, p->m, p->n, p->ldagain));
    if (p->bias.buf) CLT_TRY(check_matrix("bias", p->bias, CLT_F32, 1, p->n, p->n));
    if (p->pre.buf) CLT_TRY(check_matrix("pre", p->pre, p->aux_type, p->m, p->n, p->ldpre));
    if (p->grad_pre.buf) CLT_TRY(check_matrix("grad_pre", p->grad_pre, p->aux_type, p->m, p->n, p->ldgrad));
    if (p->residual.buf) CLT_TRY(check_matrix("residual", p->residual, CLT_F32, p->m, p->n, p->ldres));
    return CLT_OK;
}

static clt_status check_types(const clt_gemm_params *p) {
    const unsigned most = CLT_F16;
    if ((unsigned)p->in_type > most || (unsigned)p->c_type > most || (unsigned)p->aux_type > most)
        return clt_error(CLT_FAIL, "gemm: there is no type %u, %u or %u", p->in_type, p->c_type, p->aux_type);
    if (p->accumulate && p->c_type != CLT_F32) return clt_error(CLT_FAIL, "gemm: sums are kept in fp32 only");
    if (p->form == CLT_GEMM_TN && p->c_type != CLT_F32 && p->k_group != p->k)
        return clt_error(CLT_FAIL, "gemm: a 16-bit weight gradient takes one group of rows");
    /* An element may be replaced by its own result, but not by another one's. */
    if ((p->c_type != CLT_F32 && overlaps(p, p->residual, p->ldres, CLT_F32)) ||
        (p->c_type != p->aux_type && overlaps(p, p->grad_pre, p->ldgrad, p->aux_type)))
        return clt_error(CLT_FAIL, "gemm: c lies over a tensor of another type");
    return CLT_OK;
}

static clt_status check_call(const clt_gemm_params *p) {
    if (p->m < 1 || p->n < 1 || p->k < 1 || p->m > INT_MAX || p->n > INT_MAX || p->k > INT_MAX)
        return clt_error(CLT_FAIL, "gemm: sizes %lld x %lld x %lld are not in 1..%d", (long long)p->m,
                         (long long)p->n, (long long)p->k, INT_MAX);
    if (p->form == CLT_GEMM_TN && (p->k_group < 1 || p->k % p->k_group))
        return clt_error(CLT_FAIL, "gemm: groups of %lld rows do not divide %lld rows", (long long)p->k_group,
                         (long long)p->k);
    const bool tn = p->form == CLT_GEMM_TN, nt = p->form == CLT_GEMM_NT;
    CLT_TRY(check_matrix("a", p->a, p->in_type, tn ? p->k : p->m, tn ? p->m : p->k, p->lda));
    CLT_TRY(check_matrix("b", p->b, p->in_type, nt ? p->n : p->k, nt ? p->k : p->n, p->ldb));
    CLT_TRY(check_matrix("c", p->c, p->c_type, p->m, p->n, p->ldc));
    CLT_TRY(check_epilogue(p));
    return check_types(p);
}

/* --- choosing --- */

/* The body that a row names; NULL: there is none of that name. */
static const clt_gemm_body *body_of(const clt_variant *v) {
    static const clt_gemm_body *const all[] = {&clt_gemm_cpu, &clt_gemm_group, &clt_gemm_clblast,
                                               &clt_gemm_wgmma};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++)
        if (!strcmp(v->body, all[i]->name)) return all[i];
    return NULL;
}

/* FORMS is a set: 1 NT, 2 NN, 4 TN into fp32, 8 TN into 16 bits. */
static bool has_form(const clt_variant *v, const clt_gemm_params *p) {
    const int bit = (int)p->form + (p->form == CLT_GEMM_TN && p->c_type != CLT_F32);
    return clt_variant_param(v, "FORMS", 15) >> bit & 1;
}

/* Whether all rows of a matrix, if there is one, do. */
static bool starts_at(uint64_t align, clt_ref r, int64_t ld) {
    return !r.buf || (r.off % align == 0 && (uint64_t)ld % align == 0);
}

/* Whether the row can do this call at all. TYPES is a set: 1 fp32, 2 bf16, 4 fp16, what a and b may be and,
 * besides fp32, c, pre and grad_pre. ALIGN: rows of a and b start at multiples of so many elements; ALIGN_C:
 * those of c, pre and grad_pre. */
static bool can_do(const clt_variant *v, const void *call) {
    const clt_gemm_params *p = call;
    const long types = clt_variant_param(v, "TYPES", 1), others = types | 1;
    const uint64_t align = (uint64_t)clt_variant_param(v, "ALIGN", 1);
    const uint64_t align_c = (uint64_t)clt_variant_param(v, "ALIGN_C", 1);
    return has_form(v, p) && (types >> p->in_type & others >> p->c_type & others >> p->aux_type & 1) &&
           starts_at(align, p->a, p->lda) && starts_at(align, p->b, p->ldb) &&
           (uint64_t)p->n % align_c == 0 && starts_at(align_c, p->c, p->ldc) &&
           starts_at(align_c, p->pre, p->ldpre) && starts_at(align_c, p->grad_pre, p->ldgrad);
}

/* And is made for its size: large tiles waste work on matrices smaller than MIN_M x MIN_N. */
static bool does_well(const clt_variant *v, const void *call) {
    const clt_gemm_params *p = call;
    const clt_gemm_body *body = body_of(v);
    return p->m >= clt_variant_param(v, "MIN_M", 0) && p->n >= clt_variant_param(v, "MIN_N", 0) &&
           can_do(v, call) && (!body || !body->does_well || body->does_well(v, p));
}

/* A row is built, and has a verdict, for each type of a and b. */
static clt_status choose(clt_ops *ops, const clt_gemm_params *p, const clt_variant **out) {
    static const char *const option[] = {"", " -DIN_TYPE=1", " -DIN_TYPE=2"};
    const bool forced = clt_variant_forced(ops, "gemm") != NULL;
    if (clt_ops_tunes(ops, "gemm")) {
        char shape[80];
        clt_gemm_shape(p, shape, sizeof shape);
        const clt_tune_question q = {"gemm",         shape, option[p->in_type], can_do,
                                     clt_gemm_check, p,     &clt_gemm_tune};
        CLT_TRY(clt_tune_pick(ops, &q, out));
        if (*out) return CLT_OK;
    }
    return clt_variant_pick_for(ops, "gemm", option[p->in_type], forced ? can_do : does_well, clt_gemm_check,
                                p, out);
}

static clt_status column_sum(clt_ops *ops, const clt_gemm_params *p) {
    return clt_op_column_sum(ops, &(clt_column_sum_params){.rows = p->k,
                                                           .cols = p->m,
                                                           .rows_per_sample = p->k_group,
                                                           .ldx = p->lda,
                                                           .x = p->a,
                                                           .out = p->a_sum,
                                                           .accumulate = p->accumulate,
                                                           .x_type = p->in_type});
}

clt_status clt_gemm_run(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p) {
    const clt_gemm_body *body = body_of(v);
    if (!body) return clt_error(CLT_FAIL, "gemm.vt: variant %s has the unknown body '%s'", v->id, v->body);
    clt_gemm_params rest = *p;
    if (p->again.buf && !(body->makes_again && body->makes_again(p))) {
        rest.again = clt_ref_none();
        CLT_TRY(clt_op_activation_forward(ops, p->aux_type, p->grad_act, p->m, p->n, p->grad_pre, p->ldgrad,
                                          p->again, p->ldagain));
    }
    if (!body->makes_sums) rest.a_sum = clt_ref_none();
    CLT_TRY(body->run(ops, v, &rest));
    return p->a_sum.buf && !body->makes_sums ? column_sum(ops, p) : CLT_OK;
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

/* The smallest call with the same programs, on scratch: a driver that compiles at the first launch does it
 * now. */
static clt_status warm_up(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p) {
    enum { SLOT = 2 };
    clt_gemm_params tiny = *p;
    clt_ref at = clt_ref_none();
    CLT_TRY(clt_ops_scratch(ops, SLOT, 1024, &at.buf)); /* rows far enough apart for every row's ALIGN */
    tiny.m = tiny.k = tiny.k_group = 1;
    tiny.n = clt_variant_param(v, "ALIGN_C", 1);
    tiny.lda = tiny.ldb = tiny.ldc = tiny.ldpre = tiny.ldgrad = tiny.ldagain = tiny.ldres = 64;
    tiny.a = tiny.b = tiny.c = at;
    if (p->bias.buf) tiny.bias = at;
    if (p->pre.buf) tiny.pre = at;
    if (p->grad_pre.buf) tiny.grad_pre = at;
    if (p->again.buf) tiny.again = at;
    if (p->residual.buf) tiny.residual = at;
    if (p->a_sum.buf) tiny.a_sum = at;
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
        /* rows for CPUs come first there; what is below them has its turn only if they fail */
        const bool here = (strstr(row[i].requires, "type=cpu") != NULL) == (type == CLT_DEVICE_CPU);
        if (here && body && body->workspace && has_form(&row[i], p) &&
            (clt_variant_param(&row[i], "TYPES", 1) >> p->in_type & 1))
            most = CLT_MAX(most, body->workspace(&row[i], p));
    }
    clt_free(row);
    return most;
}
