/* GEMM of 16-bit operands on NVIDIA's matrix units: clkernels/gemm/gemm_wgmma.cl. */
#include "runtime/ops/clt_op_gemm_internal.h"

#include <math.h>

#include "runtime/device/clt_tensor_map.h"

/* Fraction of the usual tiles' time: the estimates are too coarse to separate smaller differences. */
#define CLEARLY 0.97
enum { BK = 64, ROWS_TOGETHER = 8, OWN_STEPS = 16, SLOT_PARTS = 1, MOST_UNITS = 160 };

/* Warpgroups that multiply; one more loads and stores. */
static int64_t warpgroups(const clt_variant *v) {
    return clt_variant_param(v, "WGS", 2);
}

typedef struct {
    int64_t rows, columns;
} gemm_tile;

static gemm_tile tile_of(const clt_variant *v) {
    return (gemm_tile){warpgroups(v) * clt_variant_param(v, "MB", 1) * 64, clt_variant_param(v, "BN", 256)};
}

static int64_t outputs(gemm_tile t) {
    return t.rows * t.columns;
}

/* A row-major matrix [rows, cols] that is moved in boxes of `lines` lines of 128 bytes. */
static clt_tensor_map_params matrix(const clt_tensor *t, int64_t rows, int64_t cols, int64_t lines) {
    return (clt_tensor_map_params){.ref = t->ref,
                                   .type = clt_dtype_table[t->type].map,
                                   .dims = 2,
                                   .size = {(uint64_t)cols, (uint64_t)rows},
                                   .stride = {1, (uint64_t)t->ld},
                                   .box = {128 / clt_dtype_table[t->type].bytes, (uint32_t)lines},
                                   .swizzle = 128};
}

/* An operand: `tile` rows by one step's columns of a matrix whose rows run along k, else one step's rows by
 * `tile` columns. */
static clt_tensor_map_params operand(const clt_gemm_params *p, const clt_tensor *t, bool along_k,
                                     int64_t size, int64_t tile) {
    return along_k ? matrix(t, size, p->k, tile) : matrix(t, p->k, size, BK);
}

/* Results are stored in boxes of 64 lines of 128 bytes. */
static clt_tensor_map_params result(const clt_gemm_params *p, const clt_tensor *t) {
    return matrix(t, p->m, p->n, 64);
}

/* How tiles are distributed over work-groups: see the kernel. */
typedef struct {
    int64_t tiles, pieces;
} gemm_lot;
typedef struct {
    int64_t tiles_m, tiles_n, steps, group, whole, groups;
    gemm_lot lots[2];
    double time; /* in steps of a tile */
} gemm_plan;

/* Whether each of a tile's work-groups adds up a slice of it, or one adds up all of it: see the kernel. */
static bool has_slices(const clt_gemm_params *p) {
    return p->c.type == CLT_F32 && !(clt_gemm_flags(p) & ~(uint32_t)CLT_EP_ACCUMULATE);
}

/* The time of a lot, in steps. Fewer tiles share less of their operands, and work-groups that start with a
 * piece of the second lot run out of phase with the others (both terms fitted to measurements on an H200).
 * Storing or adding a piece takes about three steps. */
static double lot_time(const gemm_plan *g, int number, bool slices) {
    const double tiles = (double)g->lots[number].tiles, pieces = (double)g->lots[number].pieces;
    if (tiles == 0) return 0;
    return ceil((double)g->steps / pieces) * (1.0 + 30.0 / (tiles * tiles) + (number ? 0.1 : 0.0)) +
           3.0 * (slices ? 2.0 : pieces + 1.0);
}

/* Splits `some` tiles into two lots for at most `units` work-groups; returns the least time, or -1 if no
 * split is possible. */
static double cut(gemm_plan *g, int64_t some, int64_t units, bool slices) {
    double least = -1;
    for (int64_t pieces = 2; pieces <= CLT_MIN(units, g->steps); pieces++) {
        gemm_plan now = *g;
        now.lots[0] = (gemm_lot){CLT_MIN(some, units / pieces), pieces};
        const int64_t left = some - now.lots[0].tiles;
        if (left > units) continue;
        now.lots[1] = (gemm_lot){left, left ? CLT_MIN(units / left, g->steps) : 0};
        const double time = lot_time(&now, 0, slices) + lot_time(&now, 1, slices);
        if (least >= 0 && time >= least) continue;
        least = time;
        *g = now;
    }
    return least;
}

static gemm_plan make_plan(const clt_gemm_params *p, gemm_tile tile, int64_t units) {
    const gemm_plan whole = {.tiles_m = CLT_CEIL_DIV(p->m, tile.rows),
                             .tiles_n = CLT_CEIL_DIV(p->n, tile.columns),
                             .steps = CLT_CEIL_DIV(p->k, BK),
                             .group = ROWS_TOGETHER};
    const int64_t tiles = whole.tiles_m * whole.tiles_n, rest = tiles % units;
    gemm_plan best = whole;
    best.whole = tiles;
    best.groups = CLT_MIN(units, tiles);
    best.time = (double)(CLT_CEIL_DIV(tiles, units) * whole.steps);
    /* The tiles of the last round are split, or those of the last two, which gives fewer pieces per tile. */
    for (int64_t some = rest; rest && some <= CLT_MIN(tiles, rest + units); some += units) {
        gemm_plan g = whole;
        g.whole = tiles - some;
        g.groups = units;
        const double last = cut(&g, some, units, has_slices(p));
        g.time = (double)(g.whole / units * g.steps) + last;
        if (last >= 0 && g.time < best.time) best = g;
    }
    return best;
}

static gemm_plan plan_on(const clt_device *dev, const clt_variant *v, const clt_gemm_params *p) {
    return make_plan(p, tile_of(v), clt_device_get_facts(dev)->compute_units);
}

/* A row whose tiles do not have the usual shape takes the calls that it finishes clearly earlier. */
static bool does_well(const clt_variant *v, const clt_gemm_params *p) {
    const gemm_tile own = tile_of(v), usual = {128, 256};
    const clt_device *dev = clt_buffer_device(p->c.ref.buf);
    const int64_t units = clt_device_get_facts(dev)->compute_units;
    if (own.rows == usual.rows) return true;
    return make_plan(p, own, units).time * (double)outputs(own) <
           CLEARLY * make_plan(p, usual, units).time * (double)outputs(usual);
}

/* Scratch for pieces of tiles and, with sums of a's columns, for the sums of each piece and whole tile. */
static uint64_t part_bytes(const clt_variant *v, int64_t pieces, int64_t sums) {
    return (uint64_t)(pieces * outputs(tile_of(v)) + sums * tile_of(v).rows) * sizeof(float);
}

static clt_status parts_place(clt_ops *ops, const clt_variant *v, const gemm_plan *g, bool sums,
                              clt_buffer **part, clt_buffer **flags) {
    const int64_t pieces = g->lots[0].tiles * g->lots[0].pieces + g->lots[1].tiles * g->lots[1].pieces;
    if (!pieces && !sums) return CLT_OK;
    CLT_TRY(
        clt_ops_counters(ops, (uint64_t)(warpgroups(v) * (pieces + (sums ? g->tiles_m * 32 : 0))), flags));
    return clt_ops_scratch(ops, SLOT_PARTS, part_bytes(v, pieces, sums ? pieces + g->whole : 0), part);
}

#define PLAN(p, g)                                                                                           \
    CLT_U32((p)->m), CLT_U32((p)->n), CLT_U32((p)->k), CLT_U32((g).tiles_m), CLT_U32((g).tiles_n),           \
        CLT_U32((g).steps), CLT_U32((g).group), CLT_U32((g).whole), CLT_U32((g).lots[0].tiles),              \
        CLT_U32((g).lots[0].pieces), CLT_U32((g).lots[1].tiles), CLT_U32((g).lots[1].pieces)

/* What the epilogue does besides bias and storing: the kernel's options of these names. */
typedef struct {
    bool finish;               /* FINISH: an activation or its derivative, in separate warps */
    bool own;                  /* OWN: part of that in the multiplying warps */
    bool ahead;                /* AHEAD: the copy engine loads the residual */
    clt_tensor_map_params box; /* of pre, the residual or grad_pre; see has_box */
    bool has_box;
} gemm_epilogue;

static bool starts_at_16_bytes(const clt_tensor *t) {
    return t->ref.off % 8 == 0 && t->ld % 8 == 0;
}

static gemm_epilogue epilogue_of(const clt_gemm_params *p) {
    const uint32_t flags = clt_gemm_flags(p);
    const bool narrow = p->c.type != CLT_F32 && p->c.type == clt_gemm_aux_type(p);
    gemm_epilogue e = {.finish = narrow && (flags & CLT_EP_ACT) &&
                                 !(flags & ~(uint32_t)(CLT_EP_BIAS | CLT_EP_PRE | CLT_EP_ACT))};
    if (flags == CLT_EP_GRAD && narrow) {
        e.box = result(p, &p->grad_pre);
        e.finish = e.has_box = clt_tensor_map_fits(&e.box);
    } else if ((flags & CLT_EP_RESIDUAL) && !(flags & (CLT_EP_PRE | CLT_EP_GRAD | CLT_EP_ACCUMULATE)) &&
               p->c.type == CLT_F32) {
        e.box = result(p, &p->residual);
        e.ahead = e.has_box = clt_tensor_map_fits(&e.box);
    } else if (clt_tensor_present(p->pre) && !e.finish) {
        e.box = result(p, &p->pre);
        e.has_box = true;
    }
    e.own = e.finish && (p->act == CLT_ACT_GELU || p->grad_act == CLT_ACT_GELU) &&
            !clt_tensor_present(p->again) && CLT_CEIL_DIV(p->k, BK) <= OWN_STEPS;
    return e;
}

static bool makes_again(const clt_gemm_params *p) {
    return p->grad_act && epilogue_of(p).finish && starts_at_16_bytes(&p->again);
}

static void options_of(const clt_gemm_params *p, const clt_variant *v, const gemm_epilogue *e, char *out,
                       size_t size) {
    char more[96];
    snprintf(more, sizeof more, " -DFORM=%d -DEP=%uu%s%s%s%s%s", (int)p->form, clt_gemm_flags(p),
             e->finish ? " -DFINISH=1" : "", e->own ? " -DOWN=1" : "", e->ahead ? " -DAHEAD=1" : "",
             clt_tensor_present(p->again) ? " -DAGAIN=1" : "",
             clt_tensor_present(p->a_sum) ? " -DSUMS=1" : "");
    clt_gemm_options(p, v, more, out, size);
}

static clt_status run_wgmma(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p) {
    const gemm_tile tile = tile_of(v);
    clt_device *dev = clt_ops_device(ops);
    const gemm_plan g = plan_on(dev, v, p);
    const gemm_epilogue e = epilogue_of(p);
    const clt_tensor_map_params box_a = operand(p, &p->a, p->form != CLT_GEMM_TN, p->m, tile.rows);
    const clt_tensor_map_params box_b = operand(p, &p->b, p->form == CLT_GEMM_NT, p->n, tile.columns);
    const clt_tensor_map_params box_c = result(p, &p->c);
    const clt_tensor more = clt_tensor_present(p->pre) ? p->pre : p->again;
    clt_ref a, b, c, pre = clt_ref_none();
    clt_buffer *part = NULL, *flags = NULL;
    char options[512];
    clt_kernel *k;
    options_of(p, v, &e, options, sizeof options);
    CLT_TRY(clt_kernel_get(dev, v->file, "gemm_wgmma", options, &k));
    CLT_TRY(clt_tensor_map_get(dev, &box_a, &a));
    CLT_TRY(clt_tensor_map_get(dev, &box_b, &b));
    CLT_TRY(clt_tensor_map_get(dev, &box_c, &c));
    if (e.has_box) CLT_TRY(clt_tensor_map_get(dev, &e.box, &pre));
    CLT_TRY(parts_place(ops, v, &g, clt_tensor_present(p->a_sum), &part, &flags));
    const clt_arg args[] = {PLAN(p, g),
                            CLT_REF(a),
                            CLT_REF(b),
                            CLT_REF(c),
                            CLT_BUF(part),
                            CLT_BUF(flags),
                            CLT_REF(pre),
                            CLT_REF(more.ref),
                            CLT_U64(more.ld),
                            CLT_REF(p->bias.ref),
                            CLT_REF(p->grad_pre.ref),
                            CLT_U64(p->grad_pre.ld),
                            CLT_REF(p->residual.ref),
                            CLT_U64(p->residual.ld),
                            CLT_BUF(p->a.ref.buf),
                            CLT_BUF(p->b.ref.buf),
                            CLT_REF(p->c.ref),
                            CLT_U64(p->c.ld),
                            CLT_REF(p->a_sum.ref)};
    const size_t local = 128 * (1 + (size_t)warpgroups(v)), global = (size_t)g.groups * local;
    return clt_launch(k, 1, &global, &local, args, CLT_COUNT_OF(args));
}

static clt_status prepare(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p) {
    const gemm_plan g = plan_on(clt_ops_device(ops), v, p);
    clt_buffer *part, *flags;
    return parts_place(ops, v, &g, clt_tensor_present(p->a_sum), &part, &flags);
}

static uint64_t workspace(const clt_variant *v, const clt_gemm_params *p) {
    const gemm_tile t = tile_of(v);
    const int64_t tiles = CLT_CEIL_DIV(p->m, t.rows) * CLT_CEIL_DIV(p->n, t.columns);
    const int64_t pieces = 2 * MOST_UNITS;
    return p->a.type == CLT_F32 ? 0 : part_bytes(v, pieces, p->form == CLT_GEMM_TN ? pieces + tiles : 0);
}

const clt_gemm_body clt_gemm_wgmma = {"wgmma", run_wgmma, prepare, workspace, does_well, makes_again, true};
