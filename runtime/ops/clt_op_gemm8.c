/* Products of 8-bit blocks: checks the call, picks the row of gemm8.vt and runs its body. */
#include <limits.h>
#include <string.h>

#include "runtime/ops/clt_op_gemm8_internal.h"

clt_gemm_params clt_gemm8_epilogue(const clt_gemm8_params *p) {
    return (clt_gemm_params){.form = p->form == CLT_GEMM8_PRODUCT ? CLT_GEMM_NT : CLT_GEMM_TN,
                             .m = p->m,
                             .n = p->n,
                             .k = p->k,
                             .k_group = p->form == CLT_GEMM8_SAMPLES ? p->k_group : p->k,
                             .c = p->c,
                             .accumulate = p->accumulate,
                             .bias = p->bias,
                             .act = p->act,
                             .pre = p->pre,
                             .grad_act = p->grad_act,
                             .grad_pre = p->grad_pre,
                             .again = p->again,
                             .residual = p->residual};
}

void clt_gemm8_options(const clt_gemm8_params *p, const clt_variant *v, char *out, size_t size) {
    const clt_gemm_params to = clt_gemm8_epilogue(p);
    char more[64];
    snprintf(more, sizeof more, " -DFORM=%d%s%s", (int)p->form, p->a.tile > 1 ? " -DA_TILE=1" : "",
             p->b.tile > 1 ? " -DB_TILE=1" : "");
    clt_gemm_options(&to, v, more, out, size);
}

void clt_gemm8_args(const clt_gemm8_params *p, clt_arg args[CLT_GEMM8_ARGS]) {
    const clt_gemm_params to = clt_gemm8_epilogue(p);
    const int32_t block = p->a.block;
    const clt_arg first[CLT_GEMM8_ARGS - CLT_EP_ARG_COUNT] = {
        CLT_U32(p->m),   CLT_U32(p->n),    CLT_U32(p->k / block), CLT_U32(to.k_group / block),
        CLT_REF(p->a.q), CLT_U64(p->a.ld), CLT_REF(p->a.scale),   CLT_U64(p->a.ld_scale),
        CLT_REF(p->b.q), CLT_U64(p->b.ld), CLT_REF(p->b.scale),   CLT_U64(p->b.ld_scale)};
    memcpy(args, first, sizeof first);
    clt_gemm_epilogue_args(&to, clt_gemm_flags(&to), 0, 0, args + CLT_COUNT_OF(first));
}

/* --- checking the call --- */

static clt_status check_call(const clt_gemm8_params *p) {
    if (p->m < 1 || p->n < 1 || p->k < 1 || p->m > INT_MAX || p->n > INT_MAX || p->k > INT_MAX)
        return clt_error(CLT_FAIL, "gemm8: sizes %lld x %lld x %lld are not in 1..%d", (long long)p->m,
                         (long long)p->n, (long long)p->k, INT_MAX);
    if ((unsigned)p->form > CLT_GEMM8_CHAIN)
        return clt_error(CLT_FAIL, "gemm8: unknown form %d", (int)p->form);
    CLT_TRY(clt_blocks8_check("gemm8", "a", &p->a, p->m, p->k));
    CLT_TRY(clt_blocks8_check("gemm8", "b", &p->b, p->n, p->k));
    if (p->a.block != p->b.block)
        return clt_error(CLT_FAIL, "gemm8: a has blocks of %d and b of %d", (int)p->a.block, (int)p->b.block);
    if (p->form == CLT_GEMM8_SAMPLES && (p->k_group < 1 || p->k_group % p->a.block || p->k % p->k_group))
        return clt_error(CLT_FAIL,
                         "gemm8: samples of %lld elements are no whole blocks of %d or do not divide %lld",
                         (long long)p->k_group, (int)p->a.block, (long long)p->k);
    const clt_gemm_params to = clt_gemm8_epilogue(p);
    CLT_TRY(clt_gemm_check_outputs("gemm8", &to));
    if (p->form != CLT_GEMM8_PRODUCT && p->c.type != CLT_F32)
        return clt_error(CLT_FAIL, "gemm8: a weight gradient needs c in fp32, and c is %s",
                         clt_dtype_name(p->c.type));
    return CLT_OK;
}

/* --- choosing --- */

/* The body that a row names; NULL: no such body. */
static const clt_gemm8_body *body_of(const clt_variant *v) {
    static const clt_gemm8_body *const all[] = {&clt_gemm8_cpu, &clt_gemm8_group, &clt_gemm8_wgmma};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++)
        if (!strcmp(v->body, all[i]->name)) return all[i];
    return NULL;
}

static bool is_in(const clt_variant *v, const char *param, int bit) {
    return clt_variant_param(v, param, -1) >> bit & 1;
}

static bool starts_at(uint64_t align, const clt_tensor *t) {
    return !t->ref.buf || (t->ref.off % align == 0 && (uint64_t)t->ld % align == 0);
}

/* Scales of rows, where both operands have them. */
static bool scales_start_at(uint64_t align, const clt_gemm8_params *p) {
    const clt_blocks8 *const blocks[] = {&p->a, &p->b};
    bool all = true;
    for (size_t i = 0; i < CLT_COUNT_OF(blocks); i++)
        all = all && blocks[i]->scale.off % align == 0 && (uint64_t)blocks[i]->ld_scale % align == 0;
    return all || p->a.tile > 1 || p->b.tile > 1;
}

bool clt_gemm8_takes(const clt_variant *v, const clt_gemm8_params *p) {
    const clt_gemm_params to = clt_gemm8_epilogue(p);
    const uint64_t align = (uint64_t)clt_variant_param(v, "ALIGN_C", 1);
    return is_in(v, "FORMS", (int)p->form) && is_in(v, "SCALES", (p->a.tile > 1) + 2 * (p->b.tile > 1)) &&
           is_in(v, "BLOCKS", p->a.block / 64 - 1) && is_in(v, "TYPES", (int)p->c.type) &&
           is_in(v, "TYPES", (int)clt_gemm_aux_type(&to)) && (uint64_t)p->n % align == 0 &&
           scales_start_at((uint64_t)clt_variant_param(v, "ALIGN_S", 1), p) && starts_at(align, &p->c) &&
           starts_at(align, &p->pre) && starts_at(align, &p->grad_pre) && starts_at(align, &p->residual);
}

static bool takes(const clt_variant *v, const void *call) {
    return clt_gemm8_takes(v, call);
}

static bool does_well(const clt_variant *v, const void *call) {
    const clt_gemm8_params *p = call;
    const clt_gemm8_body *body = body_of(v);
    return p->m >= clt_variant_param(v, "MIN_M", 0) && p->n >= clt_variant_param(v, "MIN_N", 0) &&
           takes(v, call) && (!body || !body->does_well || body->does_well(v, p));
}

static void describe(const void *call, char *out, size_t size) {
    static const char *const form[] = {"product", "samples", "chain"};
    const clt_gemm8_params *p = call;
    snprintf(out, size, "%s %lldx%lldx%lld, blocks of %d, a in tiles of %d, b of %d, c %s", form[p->form],
             (long long)p->m, (long long)p->n, (long long)p->k, (int)p->a.block, (int)p->a.tile,
             (int)p->b.tile, clt_dtype_name(p->c.type));
}

static clt_status choose(clt_ops *ops, const clt_gemm8_params *p, const clt_variant **out) {
    clt_variant_question q = {.op = "gemm8",
                              .options = p->a.block == 64 ? " -DBLOCK=64" : "",
                              .takes = takes,
                              .check = clt_gemm8_check,
                              .call = p,
                              .describe = describe};
    if (clt_ops_tunes(ops, "gemm8")) {
        char shape[96];
        clt_gemm8_shape(p, shape, sizeof shape);
        CLT_TRY(clt_tune_pick(ops, &(clt_tune_question){q, shape, &clt_gemm8_tune}, out));
        if (*out) return CLT_OK;
    }
    if (!clt_variant_forced(ops, "gemm8")) q.takes = does_well;
    return clt_variant_pick_for(ops, &q, out);
}

clt_status clt_gemm8_run(clt_ops *ops, const clt_variant *v, const clt_gemm8_params *p) {
    const clt_gemm8_body *body = body_of(v);
    if (!body) return clt_error(CLT_FAIL, "gemm8.vt: variant %s has the unknown body '%s'", v->id, v->body);
    clt_gemm8_params rest = *p;
    rest.again = clt_tensor_none();
    if (clt_tensor_present(p->again))
        CLT_TRY(clt_op_activation_forward(
            ops, &(clt_activation_params){p->grad_act, p->m, p->n, p->grad_pre, p->again}));
    return body->run(ops, v, &rest);
}

clt_status clt_op_gemm8(clt_ops *ops, const clt_gemm8_params *p) {
    const clt_variant *v;
    CLT_TRY(check_call(p));
    CLT_TRY(choose(ops, p, &v));
    return clt_gemm8_run(ops, v, p);
}

const char *clt_op_gemm8_variant(clt_ops *ops, const clt_gemm8_params *p) {
    const clt_variant *v;
    return choose(ops, p, &v) == CLT_OK ? v->id : "";
}

/* The smallest call with the same programs, on scratch memory, for drivers that compile at first launch. */
static clt_status warm_up(clt_ops *ops, const clt_variant *v, const clt_gemm8_params *p) {
    enum { SLOT = 2, LD = 64, BYTES = 1 << 14 };
    clt_gemm8_params tiny = *p;
    clt_tensor *const all[] = {&tiny.c, &tiny.bias, &tiny.pre, &tiny.grad_pre, &tiny.again, &tiny.residual};
    clt_blocks8 *const blocks[] = {&tiny.a, &tiny.b};
    clt_ref at = clt_ref_none();
    CLT_TRY(clt_ops_scratch(ops, SLOT, BYTES, &at.buf));
    tiny.m = 1;
    tiny.k = tiny.k_group = p->a.block;
    tiny.n = clt_variant_param(v, "ALIGN_C", 1);
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++)
        if (clt_tensor_present(*all[i])) all[i]->ref = at, all[i]->ld = LD;
    for (size_t i = 0; i < CLT_COUNT_OF(blocks); i++) {
        blocks[i]->q = blocks[i]->scale = at;
        blocks[i]->ld = p->a.block;
        blocks[i]->ld_scale = LD;
    }
    return clt_gemm8_run(ops, v, &tiny);
}

clt_status clt_op_gemm8_prepare(clt_ops *ops, const clt_gemm8_params *p) {
    const clt_variant *v;
    CLT_TRY(check_call(p));
    CLT_TRY(choose(ops, p, &v));
    const clt_gemm8_body *body = body_of(v);
    clt_buffer *scratch;
    const uint64_t need = body && body->workspace ? body->workspace(v, p) : 0;
    if (need) CLT_TRY(clt_ops_scratch(ops, 0, need, &scratch));
    return warm_up(ops, v, p);
}

uint64_t clt_op_gemm8_workspace(clt_device_type type, const clt_gemm8_params *p) {
    uint64_t most = 0;
    clt_variant *row;
    const int n = clt_variant_rows("gemm8", &row);
    for (int i = 0; i < n; i++) {
        const clt_gemm8_body *body = body_of(&row[i]);
        const bool here = (strstr(row[i].requires, "type=cpu") != NULL) == (type == CLT_DEVICE_CPU);
        if (here && body && body->workspace && is_in(&row[i], "FORMS", (int)p->form))
            most = CLT_MAX(most, body->workspace(&row[i], p));
    }
    clt_free(row);
    return most;
}
