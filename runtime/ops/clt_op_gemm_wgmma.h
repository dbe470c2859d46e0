/* clt_op_gemm_wgmma: what the calls of clkernels/gemm/gemm_wgmma.cl share, whatever the type of their
 * operands: how tiles and pieces of tiles are distributed over work-groups, the memory for pieces, and boxes.
 * Private to runtime/ops/clt_op_gemm*.c. */
#ifndef CLT_OP_GEMM_WGMMA_H
#define CLT_OP_GEMM_WGMMA_H

#include "runtime/device/clt_tensor_map.h"
#include "runtime/ops/clt_op_gemm_internal.h"

typedef struct {
    int64_t rows, columns;
} clt_wgmma_tile;
/* The tile of a row of a table, and its outputs. */
clt_wgmma_tile clt_wgmma_tile_of(const clt_variant *v);
int64_t clt_wgmma_outputs(clt_wgmma_tile t);
/* Warpgroups that multiply; one more loads and stores. */
int64_t clt_wgmma_groups(const clt_variant *v);

/* How tiles are distributed over work-groups: see the kernel. */
typedef struct {
    int64_t tiles, pieces;
} clt_wgmma_lot;
typedef struct {
    int64_t tiles_m, tiles_n, steps, group, whole, groups;
    clt_wgmma_lot lots[2];
    double time; /* in steps of a tile */
} clt_wgmma_plan;
/* bk: elements along k of a step. */
clt_wgmma_plan clt_wgmma_make_plan(const clt_gemm_params *p, clt_wgmma_tile tile, int64_t bk, int64_t units);
/* The kernel's PLAN_ARGS. */
#define CLT_WGMMA_PLAN(p, g)                                                                                 \
    CLT_U32((p)->m), CLT_U32((p)->n), CLT_U32((p)->k), CLT_U32((g).tiles_m), CLT_U32((g).tiles_n),           \
        CLT_U32((g).steps), CLT_U32((g).group), CLT_U32((g).whole), CLT_U32((g).lots[0].tiles),              \
        CLT_U32((g).lots[0].pieces), CLT_U32((g).lots[1].tiles), CLT_U32((g).lots[1].pieces)

/* Scratch memory for pieces of tiles and, with sums of a's columns, for the sums of each piece and whole
 * tile. `NULL` stays in *part and *flags if a call needs none. */
clt_status clt_wgmma_parts(clt_ops *ops, const clt_variant *v, const clt_wgmma_plan *g, bool sums,
                           clt_buffer **part, clt_buffer **flags);
/* An upper bound in bytes of that memory on any device for a call with these sizes. */
uint64_t clt_wgmma_workspace(const clt_variant *v, const clt_gemm_params *p, bool sums);

/* A row-major matrix [rows, cols] that is moved in boxes of `lines` lines of 128 bytes. */
clt_tensor_map_params clt_wgmma_matrix(const clt_tensor *t, int64_t rows, int64_t cols, int64_t lines);
/* Results are stored in boxes of 64 lines of 128 bytes. */
clt_tensor_map_params clt_wgmma_result(const clt_gemm_params *p, const clt_tensor *t);

#endif
