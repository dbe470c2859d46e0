/* GEMM by work-groups: clkernels/gemm/gemm_portable.cl and gemm_tiles.cl, one launch. gemm_tiles
 * computes a weight gradient with few tiles in slices: groups of rows go to scratch slot 0 in parallel, then
 * a second launch adds them. */
#include "runtime/ops/clt_op_gemm_internal.h"

#include <string.h>

enum { SLOT_SLICES = 0 };

typedef struct {
    clt_kernel *kernel, *add;
    int64_t bm, bn, group;
    int64_t most;    /* slices of a call with these or fewer rows */
    int64_t slices;  /* computed in parallel */
    int64_t k_group; /* rows of each */
} group_plan;

/* How a weight gradient is split so that launches have about GROUPS work-groups: into whole samples, all in
 * one launch where that gives at most ONCE work-groups; or, where the order of additions is free
 * (`anywhere`), at any row. All launches have the same size. */
static void cut(const clt_variant *v, const clt_gemm_params *p, group_plan *plan) {
    enum { LEAST_ROWS = 512, STEP = 32 };
    const int64_t want = clt_variant_param(v, "GROUPS", 0);
    const int64_t once = p->a.type == CLT_F32 ? clt_variant_param(v, "ONCE", (long)want) : want;
    const bool anywhere = want > 0 && strstr(v->requires, "numerics=fast");
    plan->slices = plan->most = 1;
    plan->k_group = p->form == CLT_GEMM_TN && p->k_group > 0 && !anywhere ? p->k_group : p->k;
    if (p->form != CLT_GEMM_TN || p->k_group < 1 || p->c.type != CLT_F32) return;
    const int64_t tiles = CLT_CEIL_DIV(p->m, plan->bm) * CLT_CEIL_DIV(p->n, plan->bn);
    const int64_t groups = anywhere ? CLT_CEIL_DIV(p->k, LEAST_ROWS) : p->k / p->k_group;
    const int64_t most = groups * tiles <= once ? groups : CLT_MAX(1, CLT_MIN(groups, want / tiles));
    plan->most = CLT_MAX(1, CLT_MIN(groups, CLT_MAX(want, once) / tiles));
    if (anywhere) {
        plan->k_group = CLT_ROUND_UP(CLT_CEIL_DIV(p->k, most), STEP);
        plan->slices = CLT_CEIL_DIV(p->k, plan->k_group);
    } else {
        plan->slices = CLT_CEIL_DIV(groups, CLT_CEIL_DIV(groups, most));
    }
}

/* The row's tile, and how it splits the call. */
static void plan_sizes(const clt_variant *v, const clt_gemm_params *p, group_plan *plan) {
    *plan = (group_plan){.bm = clt_variant_param(v, "BM", 64), .bn = clt_variant_param(v, "BN", 64)};
    const int64_t each = clt_variant_param(v, "TM", 4) * clt_variant_param(v, "TN", 4);
    plan->group = clt_variant_param(v, "ITEMS", plan->bm * plan->bn / each);
    cut(v, p, plan);
}

static uint64_t workspace(const clt_variant *v, const clt_gemm_params *p) {
    group_plan plan;
    plan_sizes(v, p, &plan);
    return plan.most > 1 ? (uint64_t)(plan.most * p->m * p->n) * 4 : 0;
}

static clt_status make_plan(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p, group_plan *plan) {
    static const char *const form[] = {" -DFORM=0", " -DFORM=1", " -DFORM=2", " -DFORM=2 -DSLICES=1"};
    clt_device *dev = clt_ops_device(ops);
    char options[512];
    plan_sizes(v, p, plan);
    clt_gemm_options(p, v, form[plan->slices > 1 ? 3 : (int)p->form], options, sizeof options);
    CLT_TRY(clt_kernel_get(dev, v->file, "gemm", options, &plan->kernel));
    if (plan->slices > 1) CLT_TRY(clt_kernel_get(dev, v->file, "gemm_add", options, &plan->add));
    return CLT_OK;
}

static clt_status get_slices(clt_ops *ops, const clt_gemm_params *p, const group_plan *plan, clt_ref *out) {
    *out = clt_ref_none();
    return clt_ops_scratch(ops, SLOT_SLICES, (uint64_t)(plan->slices * p->m * p->n) * 4, &out->buf);
}

static clt_status prepare(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p) {
    group_plan plan;
    clt_ref slices;
    CLT_TRY(make_plan(ops, v, p, &plan));
    return plan.slices > 1 ? get_slices(ops, p, &plan, &slices) : CLT_OK;
}

static clt_status run(const clt_gemm_params *p, const group_plan *plan, int64_t slices) {
    clt_arg args[10 + CLT_EP_ARG_COUNT] = {CLT_U32(p->m),          CLT_U32(p->n),     CLT_U32(p->k),
                                           CLT_U32(plan->k_group), CLT_REF(p->a.ref), CLT_U64(p->a.ld),
                                           CLT_REF(p->b.ref),      CLT_U64(p->b.ld)};
    clt_gemm_epilogue_args(p, clt_gemm_flags(p), 0, 0, args + 10);
    const size_t global[3] = {(size_t)(CLT_CEIL_DIV(p->n, plan->bn) * plan->group),
                              (size_t)CLT_CEIL_DIV(p->m, plan->bm), (size_t)slices};
    const size_t local[3] = {(size_t)plan->group, 1, 1};
    return clt_launch(plan->kernel, 3, global, local, args, CLT_COUNT_OF(args));
}

static clt_status run_slices(clt_ops *ops, const clt_gemm_params *p, const group_plan *plan) {
    clt_gemm_params part = *p;
    CLT_TRY(get_slices(ops, p, plan, &part.c.ref));
    part.c.ld = p->n;
    part.accumulate = false;
    for (int64_t k = 0; k < p->k; k += plan->slices * plan->k_group) {
        part.k = CLT_MIN(plan->slices * plan->k_group, p->k - k);
        const int64_t slices = CLT_CEIL_DIV(part.k, plan->k_group);
        part.a = clt_tensor_at(p->a, k, 0);
        part.b = clt_tensor_at(p->b, k, 0);
        CLT_TRY(run(&part, plan, slices));
        const clt_arg add[] = {CLT_U32(p->m),
                               CLT_U32(p->n),
                               CLT_U32(slices),
                               CLT_REF(part.c.ref),
                               CLT_U32(k > 0 || p->accumulate ? CLT_EP_ACCUMULATE : 0),
                               CLT_REF(p->c.ref),
                               CLT_U64(p->c.ld)};
        const size_t global[2] = {(size_t)CLT_ROUND_UP(p->n, 64), (size_t)p->m};
        CLT_TRY(clt_launch_rows(plan->add, global, (size_t[]){64, 1}, add, CLT_COUNT_OF(add)));
    }
    return CLT_OK;
}

static clt_status run_group(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p) {
    group_plan plan;
    CLT_TRY(make_plan(ops, v, p, &plan));
    return plan.slices > 1 ? run_slices(ops, p, &plan) : run(p, &plan, 1);
}

const clt_gemm_body clt_gemm_group = {"group", run_group, prepare, workspace};
