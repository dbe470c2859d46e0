/* How the tiles of clkernels/gemm/gemm_wgmma.cl are distributed over work-groups, and memory for their
 * pieces. */
#include "runtime/ops/clt_op_gemm_wgmma.h"

#include <math.h>

enum { ROWS_TOGETHER = 8, SLOT_PARTS = 1, MOST_UNITS = 160 };

int64_t clt_wgmma_groups(const clt_variant *v) {
    return clt_variant_param(v, "WGS", 2);
}

clt_wgmma_tile clt_wgmma_tile_of(const clt_variant *v) {
    return (clt_wgmma_tile){clt_wgmma_groups(v) * clt_variant_param(v, "MB", 1) * 64,
                            clt_variant_param(v, "BN", 256)};
}

int64_t clt_wgmma_outputs(clt_wgmma_tile t) {
    return t.rows * t.columns;
}

clt_tensor_map_params clt_wgmma_matrix(const clt_tensor *t, int64_t rows, int64_t cols, int64_t lines) {
    return (clt_tensor_map_params){.ref = t->ref,
                                   .type = clt_dtype_table[t->type].map,
                                   .dims = 2,
                                   .size = {(uint64_t)cols, (uint64_t)rows},
                                   .stride = {1, (uint64_t)t->ld},
                                   .box = {128 / clt_dtype_table[t->type].bytes, (uint32_t)lines},
                                   .swizzle = 128};
}

clt_tensor_map_params clt_wgmma_result(const clt_gemm_params *p, const clt_tensor *t) {
    return clt_wgmma_matrix(t, p->m, p->n, 64);
}

/* Whether each of a tile's work-groups adds up a slice of it, or one adds up all of it: see the kernel. */
static bool has_slices(const clt_gemm_params *p) {
    return p->c.type == CLT_F32 && !(clt_gemm_flags(p) & ~(uint32_t)CLT_EP_ACCUMULATE);
}

/* The time of a lot, in steps. Fewer tiles share less of their operands, and work-groups that start with a
 * piece of the second lot run out of phase with the others (both terms fitted to measurements on an H200).
 * Storing or adding a piece takes about three steps. */
static double lot_time(const clt_wgmma_plan *g, int number, bool slices) {
    const double tiles = (double)g->lots[number].tiles, pieces = (double)g->lots[number].pieces;
    if (tiles == 0) return 0;
    return ceil((double)g->steps / pieces) * (1.0 + 30.0 / (tiles * tiles) + (number ? 0.1 : 0.0)) +
           3.0 * (slices ? 2.0 : pieces + 1.0);
}

/* Splits `some` tiles into two lots for at most `units` work-groups; returns the least time, or -1 if no
 * split is possible. */
static double cut(clt_wgmma_plan *g, int64_t some, int64_t units, bool slices) {
    double least = -1;
    for (int64_t pieces = 2; pieces <= CLT_MIN(units, g->steps); pieces++) {
        clt_wgmma_plan now = *g;
        now.lots[0] = (clt_wgmma_lot){CLT_MIN(some, units / pieces), pieces};
        const int64_t left = some - now.lots[0].tiles;
        if (left > units) continue;
        now.lots[1] = (clt_wgmma_lot){left, left ? CLT_MIN(units / left, g->steps) : 0};
        const double time = lot_time(&now, 0, slices) + lot_time(&now, 1, slices);
        if (least >= 0 && time >= least) continue;
        least = time;
        *g = now;
    }
    return least;
}

clt_wgmma_plan clt_wgmma_make_plan(const clt_gemm_params *p, clt_wgmma_tile tile, int64_t bk, int64_t units) {
    const clt_wgmma_plan whole = {.tiles_m = CLT_CEIL_DIV(p->m, tile.rows),
                                  .tiles_n = CLT_CEIL_DIV(p->n, tile.columns),
                                  .steps = CLT_CEIL_DIV(p->k, bk),
                                  .group = ROWS_TOGETHER};
    const int64_t tiles = whole.tiles_m * whole.tiles_n, rest = tiles % units;
    clt_wgmma_plan best = whole;
    best.whole = tiles;
    best.groups = CLT_MIN(units, tiles);
    best.time = (double)(CLT_CEIL_DIV(tiles, units) * whole.steps);
    /* The tiles of the last round are split, or those of the last two, which gives fewer pieces per tile. */
    for (int64_t some = rest; rest && some <= CLT_MIN(tiles, rest + units); some += units) {
        clt_wgmma_plan g = whole;
        g.whole = tiles - some;
        g.groups = units;
        const double last = cut(&g, some, units, has_slices(p));
        g.time = (double)(g.whole / units * g.steps) + last;
        if (last >= 0 && g.time < best.time) best = g;
    }
    return best;
}

/* Scratch for pieces of tiles and, with sums of a's columns, for the sums of each piece and whole tile. */
static uint64_t part_bytes(const clt_variant *v, int64_t pieces, int64_t sums) {
    return (uint64_t)(pieces * clt_wgmma_outputs(clt_wgmma_tile_of(v)) + sums * clt_wgmma_tile_of(v).rows) *
           sizeof(float);
}

clt_status clt_wgmma_parts(clt_ops *ops, const clt_variant *v, const clt_wgmma_plan *g, bool sums,
                           clt_buffer **part, clt_buffer **flags) {
    const int64_t pieces = g->lots[0].tiles * g->lots[0].pieces + g->lots[1].tiles * g->lots[1].pieces;
    if (!pieces && !sums) return CLT_OK;
    CLT_TRY(clt_ops_counters(ops, (uint64_t)(clt_wgmma_groups(v) * (pieces + (sums ? g->tiles_m * 32 : 0))),
                             flags));
    return clt_ops_scratch(ops, SLOT_PARTS, part_bytes(v, pieces, sums ? pieces + g->whole : 0), part);
}

uint64_t clt_wgmma_workspace(const clt_variant *v, const clt_gemm_params *p, bool sums) {
    const clt_wgmma_tile t = clt_wgmma_tile_of(v);
    const int64_t tiles = CLT_CEIL_DIV(p->m, t.rows) * CLT_CEIL_DIV(p->n, t.columns);
    const int64_t pieces = 2 * MOST_UNITS;
    return part_bytes(v, pieces, sums ? pieces + tiles : 0);
}
