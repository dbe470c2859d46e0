/* GEMM on CPU devices: clkernels/gemm/gemm_cpu.cl. One operand (the activations; for weight gradients b, the
 * layer's input) is packed into panels by a separate launch, the other one by the items of the main launch.
 *
 * Packed panels go through scratch slot 0 in blocks of at most PACK_LIMIT floats, so that they stay in the
 * last level cache and the workspace does not grow with the batch. */
#include "runtime/ops/clt_op_gemm_internal.h"

enum {
    SLOT_PACKED = 0,
    SLOT_CHAINS = 1,
    PACK_LIMIT = 1 << 19, /* words: 2 MiB stay in a cache level near the cores */
    LONG_K = 2048,        /* words. NT, NN: longer chains are split when the rows exceed the limit */
    TASKS_PER_UNIT = 6,   /* work-items per compute unit that a launch should have, for balance */
    WIDEST_PANEL = 96,    /* multiple of every variant's MR and NR, for the workspace */
    ALONG_K = 256,        /* splits along k are multiples of this many words: whole packed blocks */
    LONG_GROUPS = 1024,   /* TN: rows packed at once, if groups are shorter */
    LONGEST_PIECE = 2048, /* TN: every variant's LA / MR is at least this */
    FREE_GROUP = 768,     /* TN: longest group where the row chooses them: several panels of a fit in LA */
    CHAIN_FIRST = 256,    /* flags of gemm_cpu.cl */
    CHAIN_LAST = 512,
    B_ROWS = 1024,
    PACK_WORDS = 16 /* words of each column per item of gemm_pack_b */
};

typedef struct {
    int64_t mr, nr, panels, kc, rows, la; /* panels: of b that an item packs at once */
    int64_t group_panels;                 /* panels whose sums an item holds at once */
    int64_t units, per_word, pad, group;  /* pad: packed words are a multiple; group: TN, rows of a chain */
    clt_kernel *pack, *main;
    clt_buffer *packed;
    clt_ref part; /* chains that the next launch continues */
    int64_t ldpart;
} cpu_plan;

/* Steps along k in a word of a packed panel (gemm_cpu.cl). */
static int64_t per_word(const clt_variant *v) {
    return 1 + clt_variant_param(v, "PAIRS", 0);
}

/* Words of a packed panel are a multiple of this. */
static int64_t pad_of(const clt_variant *v) {
    return clt_variant_param(v, "PAD", 1);
}

static int64_t words_of(int64_t steps, int64_t per, int64_t pad) {
    return CLT_ROUND_UP(CLT_CEIL_DIV(steps, per), pad);
}

/* Rows (NT, NN) or columns (TN), and steps along k, of one packed block with panels of `width`. */
static void pack_block(int64_t across, int64_t k, int64_t width, int64_t per, int64_t *block_across,
                       int64_t *block_k) {
    const int64_t words = CLT_MIN(CLT_CEIL_DIV(k, per), LONG_K);
    const int64_t fit = CLT_MAX(PACK_LIMIT / words / width, 1) * width, blocks = CLT_CEIL_DIV(across, fit);
    *block_across = CLT_ROUND_UP(CLT_CEIL_DIV(across, blocks), width);
    *block_k = CLT_MIN(k, CLT_ROUND_UP(CLT_CEIL_DIV(k, CLT_CEIL_DIV(k, LONG_K * per)), ALONG_K * per));
}

/* TN: rows of one chain. Pairs leave the order of sums free, but a c of 16 bits is rounded only once. */
static int64_t group_of(const clt_variant *v, const clt_gemm_params *p) {
    const int64_t per = per_word(v);
    if (per == 1 || p->c.type != CLT_F32) return p->k_group > 0 ? p->k_group : p->k;
    return CLT_ROUND_UP(CLT_CEIL_DIV(p->k, CLT_CEIL_DIV(p->k, FREE_GROUP)), per * pad_of(v));
}

/* TN: steps of a packed block: whole groups, or a part of a group that is too long. */
static int64_t column_steps(const clt_gemm_params *p, int64_t group) {
    if (group > LONGEST_PIECE) return LONGEST_PIECE;
    return CLT_MIN(p->k, CLT_MAX(LONG_GROUPS / group, 1) * group);
}

static uint64_t workspace(const clt_variant *v, const clt_gemm_params *p) {
    const bool tn = p->form == CLT_GEMM_TN;
    const int64_t across = CLT_ROUND_UP(tn ? p->n : p->m, WIDEST_PANEL), per = per_word(v);
    const int64_t group = group_of(v, p), k = tn ? column_steps(p, group) : p->k;
    int64_t width, steps;
    pack_block(across, k, WIDEST_PANEL, per, &width, &steps);
    uint64_t floats = (uint64_t)(width * words_of(steps, per, pad_of(v)));
    /* Without buffers it is unknown whether c may hold unfinished chains. */
    if (tn ? group > LONGEST_PIECE : steps < p->k && (!clt_tensor_present(p->c) || !clt_gemm_c_is_free(p)))
        floats += (uint64_t)(p->m * p->n);
    return floats * 4;
}

static clt_status get_kernels(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p, cpu_plan *plan) {
    const bool tn = p->form == CLT_GEMM_TN;
    clt_device *dev = clt_ops_device(ops);
    char options[512];
    plan->mr = clt_variant_param(v, "MR", 8);
    plan->nr = 16 * clt_variant_param(v, "NV", 2);
    plan->panels = clt_variant_param(v, "PANELS", 1);
    plan->group_panels = clt_variant_param(v, "GROUP", 1);
    plan->kc = clt_variant_param(v, "KC", 256);
    plan->rows = clt_variant_param(v, "ROWS", 512);
    plan->la = clt_variant_param(v, "LA", 24576);
    plan->per_word = per_word(v);
    plan->pad = pad_of(v);
    plan->group = group_of(v, p);
    plan->units = CLT_MAX(clt_device_get_facts(dev)->compute_units, 1);
    clt_gemm_options(p, v, "", options, sizeof options);
    CLT_TRY(clt_kernel_get(dev, v->file, tn ? "gemm_pack_b" : "gemm_pack_a", options, &plan->pack));
    return clt_kernel_get(dev, v->file, tn ? "gemm_columns" : "gemm_rows", options, &plan->main);
}

static clt_status launch(clt_kernel *k, int64_t gx, int64_t gy, const clt_arg *args, int count) {
    return clt_launch(k, 2, (size_t[]){(size_t)gx, (size_t)gy}, (size_t[]){1, 1}, args, count);
}

/* --- NT and NN --- */

/* One block: rows [row, row + rows) of a and c, steps [k0, k0 + k) of the chains. */
static clt_status run_rows_block(const clt_gemm_params *p, const cpu_plan *plan, int64_t row, int64_t rows,
                                 int64_t k0, int64_t k) {
    const int64_t panels = CLT_CEIL_DIV(p->n, plan->nr), want = plan->units * TASKS_PER_UNIT;
    int64_t parts = CLT_CEIL_DIV(rows, plan->rows);
    if (panels * parts < want) parts = CLT_MIN(CLT_CEIL_DIV(want, panels), CLT_CEIL_DIV(rows, 4 * plan->mr));
    const int64_t rows_each = CLT_ROUND_UP(CLT_CEIL_DIV(rows, parts), plan->mr);
    const int64_t fine = CLT_MAX(panels * parts / (want * 4), 1);
    const int64_t together = CLT_MIN(plan->group_panels, panels * parts / want);
    const int64_t panels_each = CLT_ROUND_UP(CLT_MAX(fine, together), plan->panels);
    const int64_t b_at = p->form == CLT_GEMM_NN ? k0 * p->b.ld : k0;
    uint32_t flags = clt_gemm_flags(p) | (k0 == 0 ? CHAIN_FIRST : 0) | (k0 + k == p->k ? CHAIN_LAST : 0) |
                     (p->form == CLT_GEMM_NN ? B_ROWS : 0);
    const clt_arg pack[] = {CLT_U32(rows), CLT_U32(k), CLT_REF(clt_tensor_at(p->a, row, k0).ref),
                            CLT_U64(p->a.ld), CLT_BUF(plan->packed)};
    CLT_TRY(launch(plan->pack, CLT_CEIL_DIV(rows, 2 * plan->mr), CLT_CEIL_DIV(k, plan->kc), pack,
                   CLT_COUNT_OF(pack)));
    clt_arg args[12 + CLT_EP_ARG_COUNT] = {CLT_U32(rows),
                                           CLT_U32(p->n),
                                           CLT_U32(k),
                                           CLT_U32(panels_each),
                                           CLT_U32(rows_each),
                                           CLT_BUF(plan->packed),
                                           CLT_REF(clt_ref_at(p->b.ref, (uint64_t)b_at)),
                                           CLT_U64(p->b.ld),
                                           CLT_REF(clt_ref_at(plan->part, (uint64_t)(row * plan->ldpart))),
                                           CLT_U64(plan->ldpart)};
    clt_gemm_epilogue_args(p, flags, row, 0, args + 12);
    return launch(plan->main, CLT_CEIL_DIV(panels, panels_each), CLT_CEIL_DIV(rows, rows_each), args,
                  CLT_COUNT_OF(args));
}

static clt_status run_rows(clt_ops *ops, const clt_gemm_params *p, cpu_plan *plan) {
    int64_t rows, steps;
    pack_block(p->m, p->k, plan->mr, plan->per_word, &rows, &steps);
    const uint64_t words = (uint64_t)(rows * words_of(steps, plan->per_word, plan->pad));
    CLT_TRY(clt_ops_scratch(ops, SLOT_PACKED, words * 4, &plan->packed));
    plan->part = p->c.ref;
    plan->ldpart = p->c.ld;
    if (steps < p->k && !clt_gemm_c_is_free(p)) {
        plan->part = clt_ref_none();
        plan->ldpart = p->n;
        CLT_TRY(clt_ops_scratch(ops, SLOT_CHAINS, (uint64_t)(p->m * p->n) * 4, &plan->part.buf));
    }
    for (int64_t row = 0; row < p->m; row += rows)
        for (int64_t k0 = 0; k0 < p->k; k0 += steps)
            CLT_TRY(run_rows_block(p, plan, row, CLT_MIN(rows, p->m - row), k0, CLT_MIN(steps, p->k - k0)));
    return CLT_OK;
}

/* --- TN --- */

/* Columns [column, column + columns) of b and c, rows [k0, k0 + k) of a and b; first, last: whether they
 * begin and end a group's chain (both true: whole groups). */
static clt_status run_columns_block(const clt_gemm_params *p, const cpu_plan *plan, int64_t column,
                                    int64_t columns, int64_t k0, int64_t k, bool first, bool last) {
    const int64_t group = first && last ? plan->group : k;
    const int64_t block = CLT_MIN(k, CLT_MAX(plan->kc / group, 1) * group);
    const int64_t m_panels = CLT_CEIL_DIV(p->m, plan->mr), n_panels = CLT_CEIL_DIV(columns, plan->nr);
    const int64_t want = plan->units * TASKS_PER_UNIT;
    const int64_t words = words_of(block, plan->per_word, plan->pad);
    int64_t m_each = CLT_MIN(CLT_MAX(plan->la / (words * plan->mr), 1), m_panels);
    const int64_t m_parts = CLT_CEIL_DIV(m_panels, m_each);
    m_each =
        CLT_MIN(CLT_ROUND_UP(CLT_CEIL_DIV(m_panels, m_parts), 2), m_each); /* panels are copied in pairs */
    const int64_t n_parts = CLT_MIN(CLT_CEIL_DIV(want, m_parts), n_panels);
    const int64_t n_each = CLT_CEIL_DIV(n_panels, n_parts);
    uint32_t flags = (first ? CHAIN_FIRST : 0) | (last ? CHAIN_LAST : 0) |
                     (p->accumulate || k0 >= plan->group ? CLT_EP_ACCUMULATE : 0);
    const clt_arg pack[] = {CLT_U32(columns), CLT_U32(k),
                            CLT_U32(block),   CLT_REF(clt_tensor_at(p->b, k0, column).ref),
                            CLT_U64(p->b.ld), CLT_BUF(plan->packed)};
    CLT_TRY(launch(plan->pack, CLT_CEIL_DIV(words, PACK_WORDS), CLT_CEIL_DIV(k, block), pack,
                   CLT_COUNT_OF(pack)));
    const clt_arg args[] = {CLT_U32(p->m),
                            CLT_U32(columns),
                            CLT_U32(k),
                            CLT_U32(group),
                            CLT_U32(block),
                            CLT_U32(m_each),
                            CLT_U32(n_each),
                            CLT_REF(clt_tensor_at(p->a, k0, 0).ref),
                            CLT_U64(p->a.ld),
                            CLT_BUF(plan->packed),
                            CLT_REF(clt_ref_at(plan->part, (uint64_t)column)),
                            CLT_U64(plan->ldpart),
                            CLT_U32(flags),
                            CLT_REF(clt_tensor_at(p->c, 0, column).ref),
                            CLT_U64(p->c.ld)};
    return launch(plan->main, CLT_CEIL_DIV(m_panels, m_each), CLT_CEIL_DIV(n_panels, n_each), args,
                  CLT_COUNT_OF(args));
}

static clt_status run_columns(clt_ops *ops, const clt_gemm_params *p, cpu_plan *plan) {
    const int64_t group = plan->group, most = column_steps(p, group);
    const bool pieces = group > LONGEST_PIECE;
    int64_t columns, steps;
    pack_block(p->n, most, plan->nr, plan->per_word, &columns, &steps);
    const uint64_t words = (uint64_t)(columns * words_of(most, plan->per_word, plan->pad));
    CLT_TRY(clt_ops_scratch(ops, SLOT_PACKED, words * 4, &plan->packed));
    plan->part = clt_ref_none();
    plan->ldpart = p->n;
    if (pieces) CLT_TRY(clt_ops_scratch(ops, SLOT_CHAINS, (uint64_t)(p->m * p->n) * 4, &plan->part.buf));
    for (int64_t column = 0; column < p->n; column += columns) {
        const int64_t here = CLT_MIN(columns, p->n - column);
        for (int64_t k0 = 0, k = 0; k0 < p->k; k0 += k) {
            const int64_t in_group = k0 % group;
            k = CLT_MIN(most, p->k - k0);
            if (pieces) k = CLT_MIN(k, group - in_group);
            CLT_TRY(run_columns_block(p, plan, column, here, k0, k, !pieces || in_group == 0,
                                      !pieces || in_group + k == group));
        }
    }
    return CLT_OK;
}

static clt_status run_cpu(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p) {
    cpu_plan plan = {0};
    CLT_TRY(get_kernels(ops, v, p, &plan));
    return p->form == CLT_GEMM_TN ? run_columns(ops, p, &plan) : run_rows(ops, p, &plan);
}

static clt_status prepare(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p) {
    clt_buffer *b;
    const uint64_t need = workspace(v, p);
    return need ? clt_ops_scratch(ops, 0, need, &b) : CLT_OK;
}

const clt_gemm_body clt_gemm_cpu = {"cpu", run_cpu, prepare, workspace};
