/* GEMM of 16-bit operands on NVIDIA's matrix units: clkernels/gemm/gemm_wgmma.cl. */
#include "clt_op_gemm.h"

#include "../device/clt_tensor_map.h"

enum { BK = 64, ITEMS = 384, LINES = 4, SLOT_PARTS = 1 };

static clt_map_type map_type(clt_dtype t) {
    return t == CLT_BF16 ? CLT_MAP_BF16 : t == CLT_F16 ? CLT_MAP_F16 : CLT_MAP_F32;
}

static int64_t tile_rows(const clt_variant *v) {
    return clt_variant_param(v, "MB", 1) * 128;
}

/* A row-major matrix [rows, cols] that is moved in boxes of `lines` lines of 128 bytes. */
static clt_tensor_map_params matrix(clt_ref r, clt_dtype type, int64_t rows, int64_t cols, int64_t ld,
                                    int64_t lines) {
    return (clt_tensor_map_params){.ref = r,
                                   .type = map_type(type),
                                   .dims = 2,
                                   .size = {(uint64_t)cols, (uint64_t)rows},
                                   .stride = {1, (uint64_t)ld},
                                   .box = {type == CLT_F32 ? 32 : 64, (uint32_t)lines},
                                   .swizzle = 128};
}

/* An operand: `tile` rows by a step's columns of a matrix whose rows run along k, else the other way round.
 */
static clt_tensor_map_params operand(const clt_gemm_params *p, clt_ref r, bool along_k, int64_t size,
                                     int64_t ld, int64_t tile) {
    return along_k ? matrix(r, p->in_type, size, p->k, ld, tile) : matrix(r, p->in_type, p->k, size, ld, BK);
}

/* Results leave in boxes of 64 lines of 128 bytes. */
static clt_tensor_map_params result(clt_ref r, clt_dtype type, int64_t rows, int64_t cols, int64_t ld) {
    return matrix(r, type, rows, cols, ld, 64);
}

/* How the tiles are dealt out: see the kernel. */
typedef struct {
    int64_t tiles_m, tiles_n, steps, group, whole, parts, runs, strands, groups;
} gemm_plan;

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b) {
        const int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Into how many runs `rest` tiles are cut: nearly one for each of `most` work-groups, and so that many of
 * them read the same rows at a time (strands); both count in the time. */
static void cut(gemm_plan *g, int64_t rest, int64_t most) {
    double best = 0;
    for (int64_t runs = most - most / 10; runs <= most; runs++) {
        const int64_t strands = common_divisor(rest, runs);
        const double speed =
            (double)runs / (1.0 + 30.0 / (double)(strands * strands)); /* as measured on H200 */
        if (speed < best) continue;
        best = speed;
        g->runs = runs;
        g->strands = strands;
    }
    g->parts = rest * g->steps;
}

static gemm_plan make_plan(const clt_gemm_params *p, const clt_variant *v, int64_t units) {
    const int64_t bn = clt_variant_param(v, "BN", 256);
    gemm_plan g = {.tiles_m = CLT_CEIL_DIV(p->m, tile_rows(v)),
                   .tiles_n = CLT_CEIL_DIV(p->n, bn),
                   .steps = CLT_CEIL_DIV(p->k, BK),
                   .group = clt_variant_param(v, "GROUP", 8),
                   .runs = 1,
                   .strands = 1};
    const int64_t tiles = g.tiles_m * g.tiles_n, rest = tiles % units;
    /* What the last round would leave idle, in steps of k; writing and adding the parts costs about this
     * much. */
    const int64_t idle = rest ? (units - rest) * g.steps / units : 0, cost = 40;
    const bool plain = p->c_type == CLT_F32 && !(clt_gemm_flags(p) & ~(uint32_t)CLT_EP_ACCUMULATE);
    g.whole = plain && idle > cost ? tiles - rest : tiles;
    g.groups = CLT_MIN(units, tiles);
    if (g.whole < tiles) {
        g.groups = units;
        cut(&g, rest, CLT_MIN(units, rest * g.steps));
    }
    return g;
}

static uint64_t part_elements(const clt_variant *v, int64_t runs) {
    return (uint64_t)(runs * 2 * tile_rows(v) * clt_variant_param(v, "BN", 256));
}

static clt_status parts_place(clt_ops *ops, const clt_variant *v, const gemm_plan *g, clt_ref *out) {
    out->off = 0;
    return clt_ops_scratch(ops, SLOT_PARTS, part_elements(v, g->runs) * sizeof(float), &out->buf);
}

#define PLAN(p, g)                                                                                           \
    CLT_U32((p)->m), CLT_U32((p)->n), CLT_U32((p)->k), CLT_U32((g).tiles_m), CLT_U32((g).tiles_n),           \
        CLT_U32((g).steps), CLT_U32((g).group), CLT_U32((g).whole), CLT_U32((g).parts), CLT_U32((g).runs),   \
        CLT_U32((g).strands)

static clt_status add_parts(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p, const gemm_plan *g,
                            const char *options, clt_ref part) {
    const int64_t bn = clt_variant_param(v, "BN", 256);
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "gemm_parts", options, &k));
    const clt_arg args[] = {PLAN(p, *g), CLT_REF(p->c), CLT_U64(p->ldc), CLT_BUF(part.buf)};
    const size_t global[3] = {(size_t)bn / 4, (size_t)tile_rows(v) / LINES, (size_t)(g->parts / g->steps)};
    return clt_launch(k, 3, global, (size_t[]){(size_t)bn / 4, 4, 1}, args, CLT_COUNT_OF(args));
}

/* Whether the kernel gets what the end of its epilogue reads by the copy engine (AHEAD in the kernel's text),
 * from *box. */
static bool comes_ahead(const clt_gemm_params *p, clt_tensor_map_params *box) {
    const uint32_t flags = clt_gemm_flags(p);
    const bool wide = p->c_type == CLT_F32;
    if (flags & CLT_EP_GRAD) {
        *box = result(p->grad_pre, p->aux_type, p->m, p->n, p->ldgrad);
        return p->grad_act == CLT_ACT_GELU && !(flags & (CLT_EP_PRE | CLT_EP_RESIDUAL)) && !wide &&
               p->aux_type != CLT_F32 && clt_tensor_map_fits(box);
    }
    *box = result(p->residual, CLT_F32, p->m, p->n, p->ldres);
    return (flags & CLT_EP_RESIDUAL) && !(flags & (CLT_EP_PRE | CLT_EP_ACCUMULATE)) && wide &&
           clt_tensor_map_fits(box);
}

static clt_tensor_map_params box_of_again(const clt_gemm_params *p) {
    return result(p->again, p->aux_type, p->m, p->n, p->ldagain);
}

static bool makes_again(const clt_gemm_params *p) {
    clt_tensor_map_params box;
    const clt_tensor_map_params again = box_of_again(p);
    return p->grad_act && comes_ahead(p, &box) && clt_tensor_map_fits(&again);
}

static void options_of(const clt_gemm_params *p, const clt_variant *v, char *out, size_t size) {
    clt_tensor_map_params box;
    char more[64];
    snprintf(more, sizeof more, " -DFORM=%d -DEP=%uu%s%s", (int)p->form, clt_gemm_flags(p),
             comes_ahead(p, &box) ? " -DAHEAD=1" : "", p->again.buf ? " -DAGAIN=1" : "");
    clt_gemm_options(p, v, more, out, size);
}

static clt_status run_wgmma(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p) {
    const int64_t bn = clt_variant_param(v, "BN", 256);
    clt_device *dev = clt_ops_device(ops);
    const gemm_plan g = make_plan(p, v, clt_device_get_facts(dev)->compute_units);
    const clt_tensor_map_params box_a = operand(p, p->a, p->form != CLT_GEMM_TN, p->m, p->lda, tile_rows(v));
    const clt_tensor_map_params box_b = operand(p, p->b, p->form == CLT_GEMM_NT, p->n, p->ldb, bn);
    const clt_tensor_map_params box_c = result(p->c, p->c_type, p->m, p->n, p->ldc);
    clt_tensor_map_params box_pre;
    const bool has_pre = comes_ahead(p, &box_pre) || p->pre.buf;
    if (p->pre.buf) box_pre = result(p->pre, p->aux_type, p->m, p->n, p->ldpre);
    const clt_tensor_map_params box_again = box_of_again(p);
    clt_ref a, b, c, part = clt_ref_none(), part_map = clt_ref_none(), pre = clt_ref_none(),
                     again = clt_ref_none();
    char options[512];
    clt_kernel *k;
    options_of(p, v, options, sizeof options);
    CLT_TRY(clt_kernel_get(dev, v->file, "gemm_wgmma", options, &k));
    CLT_TRY(clt_tensor_map_get(dev, &box_a, &a));
    CLT_TRY(clt_tensor_map_get(dev, &box_b, &b));
    CLT_TRY(clt_tensor_map_get(dev, &box_c, &c));
    if (has_pre) CLT_TRY(clt_tensor_map_get(dev, &box_pre, &pre));
    if (p->again.buf) CLT_TRY(clt_tensor_map_get(dev, &box_again, &again));
    if (g.parts) {
        CLT_TRY(parts_place(ops, v, &g, &part));
        const int64_t rows = (int64_t)part_elements(v, g.runs) / bn;
        const clt_tensor_map_params box = result(part, CLT_F32, rows, bn, bn);
        CLT_TRY(clt_tensor_map_get(dev, &box, &part_map));
    }
    const clt_arg args[] = {PLAN(p, g),           CLT_REF(a),         CLT_REF(b),           CLT_REF(c),
                            CLT_REF(part_map),    CLT_REF(pre),       CLT_REF(again),       CLT_REF(p->bias),
                            CLT_REF(p->grad_pre), CLT_U64(p->ldgrad), CLT_REF(p->residual), CLT_U64(p->ldres),
                            CLT_BUF(p->a.buf),    CLT_BUF(p->b.buf),  CLT_BUF(p->c.buf)};
    const size_t local = ITEMS, global = (size_t)g.groups * local;
    CLT_TRY(clt_launch(k, 1, &global, &local, args, CLT_COUNT_OF(args)));
    return g.parts ? add_parts(ops, v, p, &g, options, part) : CLT_OK;
}

static clt_status prepare(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p) {
    const gemm_plan g = make_plan(p, v, clt_device_get_facts(clt_ops_device(ops))->compute_units);
    char options[512];
    clt_ref part;
    clt_kernel *k;
    if (!g.parts) return CLT_OK;
    options_of(p, v, options, sizeof options);
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "gemm_parts", options, &k));
    return parts_place(ops, v, &g, &part);
}

static uint64_t workspace(const clt_variant *v, const clt_gemm_params *p) {
    (void)v;
    enum { MOST_UNITS = 160, MOST_TILE = 128 * 256 };
    return p->in_type == CLT_F32 || p->c_type != CLT_F32
               ? 0
               : (uint64_t)MOST_UNITS * 2 * MOST_TILE * sizeof(float);
}

const clt_gemm_body clt_gemm_wgmma = {"wgmma", run_wgmma, prepare, workspace, makes_again};
