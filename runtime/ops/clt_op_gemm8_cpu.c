/* Products of 8-bit blocks on CPU devices: clkernels/gemm8/gemm8_cpu.cl. A separate launch packs a, in parts
 * of at most PACK_LIMIT bytes, so that they stay in the last level cache and the workspace does not grow with
 * the batch; the items of the main launch pack b. */
#include "runtime/ops/clt_op_gemm8_internal.h"

enum {
    SLOT_PACKED = 0,
    SLOT_CHAINS = 1,
    PACK_LIMIT = 1 << 21, /* bytes of packed a */
    TASKS_PER_UNIT = 6,   /* work-items per compute unit that a launch should have, for balance */
    CHAIN_FIRST = 256,    /* flags of gemm8_cpu.cl */
    CHAIN_LAST = 512
};

typedef struct {
    int64_t mr, nr, units;
    int64_t block, a_block; /* elements of a block of k; bytes of a packed one of mr rows */
    int64_t rows, k;        /* of a launch at most */
    int64_t chains;         /* floats of scratch memory for chains that a launch interrupts; 0: none */
    clt_kernel *pack, *main;
    clt_buffer *packed;
    clt_ref part;
    int64_t ldpart;
} cpu_plan;

/* Elements of k of a launch: whole groups, or a part of a group that is too long. */
static int64_t launch_k(const clt_variant *v, const clt_gemm8_params *p) {
    const int64_t most = clt_variant_param(v, "KC", 4096), group = p->k_group;
    if (p->form != CLT_GEMM8_SAMPLES || group > most) return CLT_MIN(most, p->k);
    return CLT_MIN(p->k, most / group * group);
}

static void plan_sizes(const clt_variant *v, const clt_gemm8_params *p, cpu_plan *plan) {
    const long dot = clt_variant_param(v, "DOT", 0); /* gemm8_dot.clh */
    static const struct {
        int64_t lanes, narrow;
    } of[] = {{16, 2}, {16, 4}, {8, 4}, {16, 2}, {8, 2}, {4, 4}, {16, 4}};
    const long known = dot >= 0 && dot < (long)CLT_COUNT_OF(of) ? dot : 0; /* others do not build */
    const int64_t lanes = of[known].lanes, narrow = of[known].narrow;
    *plan = (cpu_plan){.mr = clt_variant_param(v, "MR", 6), .block = p->a.block, .k = launch_k(v, p)};
    plan->nr = lanes * clt_variant_param(v, "NV", 2);
    plan->a_block = (plan->block / narrow + 1) * plan->mr * 4;
    const int64_t panel = plan->k / plan->block * plan->a_block;
    plan->rows = CLT_MIN(CLT_MAX(PACK_LIMIT / panel, 1) * plan->mr, CLT_ROUND_UP(p->m, plan->mr));
    const bool interrupted =
        p->form == CLT_GEMM8_PRODUCT ? plan->k < p->k : p->form == CLT_GEMM8_SAMPLES && plan->k < p->k_group;
    const clt_gemm_params to = clt_gemm8_epilogue(p);
    const bool in_c = p->form == CLT_GEMM8_PRODUCT && clt_tensor_present(p->c) && clt_gemm_c_is_free(&to);
    if (interrupted && !in_c) plan->chains = p->m * p->n;
}

/* 16 ints are stored at a time: the last may exceed the panels. */
static uint64_t packed_bytes(const cpu_plan *plan) {
    return (uint64_t)(plan->rows / plan->mr * (plan->k / plan->block) * plan->a_block) + 64;
}

static uint64_t workspace(const clt_variant *v, const clt_gemm8_params *p) {
    cpu_plan plan;
    plan_sizes(v, p, &plan);
    return packed_bytes(&plan) + (uint64_t)plan.chains * 4;
}

static clt_status make_plan(clt_ops *ops, const clt_variant *v, const clt_gemm8_params *p, cpu_plan *plan) {
    clt_device *dev = clt_ops_device(ops);
    char options[512];
    plan_sizes(v, p, plan);
    plan->units = CLT_MAX(clt_device_get_facts(dev)->compute_units, 1);
    const clt_gemm_params to = clt_gemm8_epilogue(p);
    clt_gemm_options(&to, v, p->form == CLT_GEMM8_PRODUCT ? "" : " -DFORM=1", options, sizeof options);
    CLT_TRY(clt_kernel_get(dev, v->file, "gemm8_pack_a", options, &plan->pack));
    CLT_TRY(clt_kernel_get(dev, v->file, "gemm8_rows", options, &plan->main));
    CLT_TRY(clt_ops_scratch(ops, SLOT_PACKED, packed_bytes(plan), &plan->packed));
    plan->part = p->c.ref;
    plan->ldpart = p->c.ld;
    if (!plan->chains) return CLT_OK;
    plan->part = clt_ref_none();
    plan->ldpart = p->n;
    return clt_ops_scratch(ops, SLOT_CHAINS, (uint64_t)plan->chains * 4, &plan->part.buf);
}

static clt_status launch(clt_kernel *k, int64_t gx, int64_t gy, const clt_arg *args, int count) {
    return clt_launch(k, 2, (size_t[]){(size_t)gx, (size_t)gy}, (size_t[]){1, 1}, args, count);
}

/* The matrix from element k0 of the contraction on. */
static clt_blocks8 part_of(const clt_blocks8 *x, int64_t k0) {
    clt_blocks8 y = *x;
    y.q.off += (uint64_t)k0;
    y.scale.off += (uint64_t)(k0 / x->block * x->ld_scale);
    return y;
}

/* A launch's part of the call: rows of a and c, elements of the contraction, and what becomes of its chains.
 */
typedef struct {
    int64_t row, rows, k0, k, group;
    uint32_t chain;
} piece;

static clt_status run_piece(const clt_gemm8_params *p, const cpu_plan *plan, const piece *at) {
    const clt_gemm_params to = clt_gemm8_epilogue(p);
    const int64_t panels = CLT_CEIL_DIV(p->n, plan->nr), want = plan->units * TASKS_PER_UNIT;
    int64_t parts = 1;
    if (panels < want) parts = CLT_MIN(CLT_CEIL_DIV(want, panels), CLT_CEIL_DIV(at->rows, 4 * plan->mr));
    const int64_t rows_each = CLT_ROUND_UP(CLT_CEIL_DIV(at->rows, parts), plan->mr);
    const int64_t panels_each = CLT_MAX(panels * parts / (want * 4), 1);
    const clt_blocks8 a = part_of(&p->a, at->k0), b = part_of(&p->b, at->k0);
    const clt_ref part = clt_ref_at(plan->part, (uint64_t)(at->row * plan->ldpart));
    const clt_arg pack[] = {CLT_U32(at->row), CLT_U32(at->rows),   CLT_U32(at->k / plan->block),
                            CLT_U32(a.tile),  CLT_REF(a.q),        CLT_U64(a.ld),
                            CLT_REF(a.scale), CLT_U64(a.ld_scale), CLT_BUF(plan->packed)};
    CLT_TRY(launch(plan->pack, CLT_CEIL_DIV(at->rows, plan->mr), 1, pack, CLT_COUNT_OF(pack)));
    clt_arg args[17 + CLT_EP_ARG_COUNT] = {CLT_U32(at->rows),
                                           CLT_U32(p->n),
                                           CLT_U32(at->k / plan->block),
                                           CLT_U32(at->group / plan->block),
                                           CLT_U32(panels_each),
                                           CLT_U32(rows_each),
                                           CLT_BUF(plan->packed),
                                           CLT_REF(b.q),
                                           CLT_U64(b.ld),
                                           CLT_REF(b.scale),
                                           CLT_U64(b.ld_scale),
                                           CLT_U32(b.tile),
                                           CLT_REF(part),
                                           CLT_U64(plan->ldpart)};
    clt_gemm_epilogue_args(&to, clt_gemm_flags(&to) | at->chain, at->row, 0, args + 17);
    return launch(plan->main, CLT_CEIL_DIV(panels, panels_each), CLT_CEIL_DIV(at->rows, rows_each), args,
                  CLT_COUNT_OF(args));
}

/* What the chains of the piece at->k0 do. A SAMPLES launch has whole groups, or lies inside one. */
static void set_chain(const clt_gemm8_params *p, piece *at) {
    const int64_t end = at->k0 + at->k;
    at->group = at->k;
    at->chain = at->k0 == 0 ? CHAIN_FIRST : 0;
    if (p->form == CLT_GEMM8_CHAIN) {
        if (p->accumulate) at->chain = 0;
    } else if (p->form == CLT_GEMM8_PRODUCT) {
        at->chain |= end == p->k ? CHAIN_LAST : 0;
    } else {
        at->group = CLT_MIN(p->k_group, at->k);
        at->chain = (at->k0 % p->k_group == 0 ? CHAIN_FIRST : 0) | (end % p->k_group == 0 ? CHAIN_LAST : 0) |
                    (at->k0 >= p->k_group ? CLT_EP_ACCUMULATE : 0);
    }
}

static clt_status run_cpu(clt_ops *ops, const clt_variant *v, const clt_gemm8_params *p) {
    cpu_plan plan;
    CLT_TRY(make_plan(ops, v, p, &plan));
    for (int64_t row = 0; row < p->m; row += plan.rows)
        for (int64_t k0 = 0, k; k0 < p->k; k0 += k) {
            k = CLT_MIN(plan.k, p->k - k0);
            if (p->form == CLT_GEMM8_SAMPLES && plan.k < p->k_group)
                k = CLT_MIN(k, p->k_group - k0 % p->k_group);
            piece at = {.row = row, .rows = CLT_MIN(plan.rows, p->m - row), .k0 = k0, .k = k};
            set_chain(p, &at);
            CLT_TRY(run_piece(p, &plan, &at));
        }
    return CLT_OK;
}

const clt_gemm8_body clt_gemm8_cpu = {"cpu", run_cpu, workspace, NULL};
