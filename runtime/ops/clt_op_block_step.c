/* A whole block for the next token of one text: the rows of block_step.vt. */
#include "runtime/ops/clt_op_block_step_internal.h"

#include <string.h>

typedef clt_block_step_params params;

enum {
    SLOT_PARTS = 0,
    COUNTERS = 2,
    MOST_SPLITS = 4,        /* the joining step holds that many parts in registers */
    MOST_LOCAL = 220 << 10, /* bytes of a work-group */
    SEGMENT = 1024,         /* columns of a unit, at least */
    CHECK_LOOKS = 1 << 18,  /* at a counter before a group gives up: a quarter of a second */
    MOST_LOOKS = 1 << 25    /* half a minute */
};

/* --- the program --- */

static int64_t units_of(const clt_linear_params *p, int64_t groups) {
    const int64_t pairs = clt_tensor_present(p->gate) ? p->n : CLT_CEIL_DIV(p->n, (int64_t)2);
    return CLT_CEIL_DIV(pairs, groups) * CLT_CEIL_DIV(p->k, (int64_t)SEGMENT);
}

/* One work-group per compute unit is what the sizes are made for; more have fewer units each. */
clt_block_plan clt_block_plan_of(clt_ops *ops, const params *p) {
    const int64_t groups = CLT_MAX((int64_t)clt_device_get_facts(clt_ops_device(ops))->compute_units, 1);
    const clt_linear_params *const product[] = {&p->qkv, &p->out, &p->hidden, &p->down};
    const clt_attention_step_params *a = &p->attention;
    clt_block_plan plan = {.norm_columns = CLT_ROUND_UP(p->qkv.k, (int64_t)256),
                           .splits = CLT_MIN(CLT_MAX(groups / a->heads, 1), (int64_t)MOST_SPLITS)};
    for (size_t i = 0; i < CLT_COUNT_OF(product); i++) {
        plan.columns = CLT_MAX(plan.columns, CLT_ROUND_UP(product[i]->k, (int64_t)256));
        plan.units = CLT_MAX(plan.units, CLT_ROUND_UP(units_of(product[i], groups), (int64_t)32));
    }
    snprintf(plan.options, sizeof plan.options,
             " -DHEAD_DIM=%lld -DTYPE=%d -DROTATED=%lld -DTEMPER=%d -DALIBI=%d -DSOFTCAP=%d -DWINDOW=%d "
             "-DNORM=%d -DGATED=%d -DACT=%d -DSPLITS=%lld -DCOLUMNS=%lld -DNORM_COLUMNS=%lld -DUNITS=%lld",
             (long long)a->head_dim, (int)a->cache.type, (long long)a->rotated, a->temperature.buf != NULL,
             a->slopes.buf != NULL, a->softcap > 0.0f, a->window >= 0, (int)p->qkv.norm,
             clt_tensor_present(p->hidden.gate), (int)p->hidden.act, (long long)plan.splits,
             (long long)plan.columns, (long long)plan.norm_columns, (long long)plan.units);
    return plan;
}

/* Bytes of the kernel's local memory. */
static int64_t local_bytes(const clt_block_plan *plan, int64_t items, int64_t head) {
    return 4 * (plan->columns + 2 * plan->norm_columns + 2 * plan->units + 3 * head + 10 * items) + 256;
}

/* --- the launch --- */

#define PRODUCT(p)                                                                                           \
    CLT_U32((p)->n), CLT_U32((p)->k), CLT_REF((p)->w.ref), CLT_U32((p)->w.ld), CLT_REF((p)->bias.ref)
#define NORM(p) CLT_REF((p)->norm_w.ref), CLT_REF((p)->norm_b.ref)

clt_status clt_block_run(clt_ops *ops, const clt_variant *v, const params *p, const clt_block_plan *plan,
                         bool in_check) {
    clt_device *dev = clt_ops_device(ops);
    const clt_attention_step_params *a = &p->attention;
    const int64_t q = a->heads * a->head_dim, kv = a->kv_heads * a->head_dim;
    const uint64_t parts = (uint64_t)(a->heads * plan->splits * (a->head_dim + 8)) * sizeof(float);
    const size_t items = (size_t)clt_variant_param(v, "ITEMS", 512),
                 groups =
                     (size_t)(clt_device_get_facts(dev)->compute_units * clt_variant_param(v, "GROUPS", 1));
    clt_kernel *kernel;
    clt_buffer *counters, *part;
    CLT_TRY(clt_kernel_get(dev, v->file, "block_step", v->options, &kernel));
    CLT_TRY(clt_ops_counters(ops, COUNTERS, &counters));
    CLT_TRY(clt_ops_scratch(ops, SLOT_PARTS, parts, &part));
    const clt_arg args[] = {CLT_BUF(counters),
                            CLT_U32(in_check ? CHECK_LOOKS : MOST_LOOKS),
                            CLT_U32(!in_check),
                            CLT_F32(p->qkv.eps),
                            CLT_REF(p->qkv.x.ref),
                            CLT_REF(p->qkv.y.ref),
                            CLT_BUF(part),
                            CLT_REF(p->out.y.ref),
                            CLT_REF(p->hidden.y.ref),
                            CLT_REF(p->down.y.ref),
                            PRODUCT(&p->qkv),
                            NORM(&p->qkv),
                            PRODUCT(&p->out),
                            PRODUCT(&p->hidden),
                            NORM(&p->hidden),
                            CLT_REF(p->hidden.gate.ref),
                            CLT_U32(p->hidden.gate.ld),
                            CLT_REF(p->hidden.gate_bias.ref),
                            PRODUCT(&p->down),
                            CLT_U32(q),
                            CLT_U32(q + kv),
                            CLT_REF(a->cache.ref),
                            CLT_U32(a->cache.ld),
                            CLT_U32(a->room),
                            CLT_REF(a->position),
                            CLT_REF(a->place),
                            CLT_REF(a->angles),
                            CLT_REF(a->temperature),
                            CLT_REF(a->slopes),
                            CLT_U32(a->heads),
                            CLT_U32(a->heads / a->kv_heads),
                            CLT_F32(a->scale),
                            CLT_F32(a->softcap),
                            CLT_U32(a->window)};
    return clt_launch(kernel, 1, (size_t[]){groups * items}, (size_t[]){items}, args, CLT_COUNT_OF(args));
}

/* --- the call --- */

/* Whether a tensor, if it is there, starts at a multiple of 16 bytes, as do its rows. */
static bool is_aligned(const clt_tensor *t) {
    const uint64_t align = 16 / clt_dtype_bytes(t->type);
    return t->ref.off % align == 0 && (uint64_t)t->ld % align == 0;
}

static bool product_fits(const clt_linear_params *p, clt_linear_norm norm, clt_dtype type) {
    return p->rows == 1 && p->k >= 8 && p->k % 8 == 0 && p->n % 8 == 0 && p->norm == norm &&
           p->w.type == type && is_aligned(&p->w) && is_aligned(&p->gate) && is_aligned(&p->x) &&
           is_aligned(&p->y) && p->norm_w.ref.off % 4 == 0 && p->norm_b.ref.off % 4 == 0;
}

static bool is_same(clt_ref a, clt_ref b) {
    return a.buf == b.buf && a.off == b.off;
}

/* Whether each step reads what the one before it wrote. */
static bool is_a_block(const params *p) {
    const clt_attention_step_params *a = &p->attention;
    return is_same(p->qkv.y.ref, a->qkv.ref) && is_same(p->out.x.ref, a->o.ref) &&
           is_same(p->out.residual.ref, p->qkv.x.ref) && is_same(p->out.y.ref, p->hidden.x.ref) &&
           is_same(p->hidden.y.ref, p->down.x.ref) && is_same(p->down.residual.ref, p->out.y.ref) &&
           p->out.k == a->heads * a->head_dim && p->qkv.n == (a->heads + 2 * a->kv_heads) * a->head_dim &&
           p->hidden.k == p->qkv.k && p->out.n == p->qkv.k && p->down.n == p->qkv.k &&
           p->down.k == p->hidden.n && p->qkv.eps == p->hidden.eps && !p->qkv.act && !p->out.act &&
           !p->down.act && !clt_tensor_present(p->qkv.residual) && !clt_tensor_present(p->hidden.residual) &&
           !clt_tensor_present(p->qkv.gate) && !clt_tensor_present(p->out.gate) &&
           !clt_tensor_present(p->down.gate);
}

typedef struct {
    const params *p;
    clt_block_plan plan;
} call_of;

static bool takes(const clt_variant *v, const void *call) {
    const params *p = ((const call_of *)call)->p;
    const clt_attention_step_params *a = &p->attention;
    const clt_dtype type = a->cache.type;
    if (strcmp(v->body, "grid") != 0) return true;
    return clt_dtype_in(type, (uint32_t)clt_variant_param(v, "TYPES", 6)) &&
           product_fits(&p->qkv, p->qkv.norm, type) && product_fits(&p->out, CLT_LINEAR_PLAIN, type) &&
           product_fits(&p->hidden, p->qkv.norm, type) && product_fits(&p->down, CLT_LINEAR_PLAIN, type) &&
           p->qkv.norm != CLT_LINEAR_PLAIN && is_a_block(p) && a->rows == 1 && !a->shared &&
           a->head_dim % 8 == 0 && a->head_dim <= CLT_BLOCK_MOST_HEAD && a->rotated <= a->head_dim &&
           a->rotated % 2 == 0 && a->heads % a->kv_heads == 0 && is_aligned(&a->cache) &&
           clt_variant_param(v, "GROUPS", 1) * local_bytes(&((const call_of *)call)->plan,
                                                           clt_variant_param(v, "ITEMS", 512), a->head_dim) <=
               MOST_LOCAL;
}

static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    return strcmp(v->body, "grid") == 0 ? clt_block_check(ops, v, (void *)((call_of *)ctx)->p) : CLT_OK;
}

/* *out NULL: none, or the row `separate`. */
static clt_status choose(clt_ops *ops, call_of *call, const clt_variant **out) {
    call->plan = clt_block_plan_of(ops, call->p);
    const clt_variant_question q = {
        .op = "block_step", .options = call->plan.options, .takes = takes, .check = check, .call = call};
    CLT_TRY(clt_variant_pick_optional(ops, &q, out));
    if (*out && strcmp((*out)->body, "grid") != 0) *out = NULL;
    return CLT_OK;
}

clt_status clt_op_block_step_takes(clt_ops *ops, const params *p, bool *takes) {
    call_of call = {.p = p};
    const clt_variant *v;
    CLT_TRY(choose(ops, &call, &v));
    *takes = v != NULL;
    return CLT_OK;
}

static clt_status check_product(const char *name, const clt_linear_params *p) {
    CLT_TRY(clt_tensor_check_fits(name, "x", &p->x, 1, p->k));
    CLT_TRY(clt_tensor_check_fits(name, "w", &p->w, p->n, p->k));
    return clt_tensor_check_fits(name, "y", &p->y, 1, p->n);
}

clt_status clt_op_block_step(clt_ops *ops, const params *p) {
    call_of call = {.p = p};
    const clt_variant *v;
    CLT_TRY(choose(ops, &call, &v));
    if (!v) return clt_error(CLT_FAIL, "block_step: no kernel of this device takes the call");
    CLT_TRY(check_product("block_step: qkv", &p->qkv));
    CLT_TRY(check_product("block_step: out", &p->out));
    CLT_TRY(check_product("block_step: hidden", &p->hidden));
    CLT_TRY(check_product("block_step: down", &p->down));
    CLT_TRY(clt_tensor_check_fits("block_step", "cache", &p->attention.cache, p->attention.room,
                                  2 * p->attention.kv_heads * p->attention.head_dim));
    return clt_block_run(ops, v, p, &call.plan, false);
}
