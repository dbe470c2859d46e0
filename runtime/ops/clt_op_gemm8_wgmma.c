/* Products of 8-bit blocks on NVIDIA's matrix units: clkernels/gemm8/gemm8_wgmma.cl. */
#include <string.h>

#include "runtime/device/clt_tensor_map.h"
#include "runtime/ops/clt_op_gemm8_internal.h"

/* As in the kernel. BOX_*: of 16-bit results. */
enum { BN = 128, STEP = 128, ITEMS = 384, BOX_ROWS = 16, BOX_COLUMNS = 64 };

/* Rows of a tile. */
static int64_t rows_of(const clt_variant *v) {
    return 128 * (int64_t)clt_variant_param(v, "HALVES", 2);
}

static int64_t tiles_of(const clt_gemm8_params *p, int64_t rows) {
    return CLT_CEIL_DIV(p->m, rows) * CLT_CEIL_DIV(p->n, BN);
}

/* Tiles of 128 rows take the calls that they finish clearly earlier, because fewer units are without a tile.
 */
static bool does_well(const clt_variant *v, const clt_gemm8_params *p) {
    enum { USUAL = 256 };
    const double clearly = 0.85;
    const int64_t rows = rows_of(v);
    const clt_device *dev = clt_buffer_device(p->c.ref.buf);
    const int64_t units = clt_device_get_facts(dev)->compute_units;
    if (rows == USUAL) return true;
    return (double)(rows * CLT_CEIL_DIV(tiles_of(p, rows), units)) <
           clearly * (double)(USUAL * CLT_CEIL_DIV(tiles_of(p, USUAL), units));
}

/* `lines` rows by one step of an operand. */
static clt_tensor_map_params operand(const clt_blocks8 *b, int64_t rows, int64_t k, uint32_t lines) {
    return (clt_tensor_map_params){.ref = b->q,
                                   .type = CLT_MAP_U8,
                                   .dims = 2,
                                   .size = {(uint64_t)k, (uint64_t)rows},
                                   .stride = {1, (uint64_t)b->ld},
                                   .box = {STEP, lines},
                                   .swizzle = 128};
}

/* The scales of `lines` rows, of the blocks of one step. */
static clt_tensor_map_params scales(const clt_blocks8 *b, int64_t rows, int64_t k, uint32_t lines) {
    return (clt_tensor_map_params){.ref = b->scale,
                                   .type = CLT_MAP_F32,
                                   .dims = 2,
                                   .size = {(uint64_t)rows, (uint64_t)(k / b->block)},
                                   .stride = {1, (uint64_t)b->ld_scale},
                                   .box = {lines, (uint32_t)(STEP / b->block)}};
}

static clt_tensor_map_params result(const clt_gemm8_params *p) {
    return (clt_tensor_map_params){.ref = p->c.ref,
                                   .type = clt_dtype_table[p->c.type].map,
                                   .dims = 2,
                                   .size = {(uint64_t)p->n, (uint64_t)p->m},
                                   .stride = {1, (uint64_t)p->c.ld},
                                   .box = {BOX_COLUMNS, BOX_ROWS},
                                   .swizzle = 128};
}

/* Whether results leave as boxes, which clip at multiples of 16 bytes. */
static bool is_boxed(const clt_gemm8_params *p, const clt_tensor_map_params *c) {
    const clt_gemm_params to = clt_gemm8_epilogue(p);
    return p->form == CLT_GEMM8_PRODUCT && p->c.type != CLT_F32 && p->n % 8 == 0 &&
           !(clt_gemm_flags(&to) & ~(uint32_t)CLT_EP_BIAS) && clt_tensor_map_fits(c);
}

static bool starts_a_quad(const clt_tensor *t) {
    return t->ref.off % 4 == 0 && t->ld % 4 == 0;
}

/* Whether results only meet a residual, in quads. */
static bool only_adds(const clt_gemm8_params *p) {
    const clt_gemm_params to = clt_gemm8_epilogue(p);
    const uint32_t flags = clt_gemm_flags(&to);
    return p->form == CLT_GEMM8_PRODUCT && p->c.type == CLT_F32 && (flags & CLT_EP_RESIDUAL) &&
           !(flags & ~(uint32_t)(CLT_EP_RESIDUAL | CLT_EP_BIAS)) && p->n % 4 == 0 && starts_a_quad(&p->c) &&
           starts_a_quad(&p->residual) && (!(flags & CLT_EP_BIAS) || p->bias.ref.off % 4 == 0);
}

static clt_status run_wgmma(clt_ops *ops, const clt_variant *v, const clt_gemm8_params *p) {
    enum { MAPS = 5, ALL = CLT_GEMM8_ARGS + 2 * MAPS };
    clt_device *dev = clt_ops_device(ops);
    const uint32_t bm = (uint32_t)rows_of(v);
    const clt_tensor_map_params box[MAPS] = {operand(&p->a, p->m, p->k, bm), operand(&p->b, p->n, p->k, BN),
                                             scales(&p->a, p->m, p->k, bm), scales(&p->b, p->n, p->k, BN),
                                             result(p)};
    const bool rows = p->b.tile == 1, boxed = is_boxed(p, &box[4]),
               used[MAPS] = {true, true, rows, rows, boxed};
    clt_ref map[MAPS] = {clt_ref_none(), clt_ref_none(), clt_ref_none(), clt_ref_none(), clt_ref_none()};
    char options[512];
    clt_kernel *k;
    clt_arg args[ALL];
    clt_gemm8_options(p, v, options, sizeof options - 32);
    if (only_adds(p)) strcat(options, " -DADDS=1");
    if (boxed) strcat(options, clt_tensor_present(p->bias) ? " -DBOXED=1 -DBIAS=1" : " -DBOXED=1");
    CLT_TRY(clt_kernel_get(dev, v->file, "gemm8_wgmma", options, &k));
    for (int i = 0; i < MAPS; i++)
        if (used[i]) CLT_TRY(clt_tensor_map_get(dev, &box[i], &map[i]));
    clt_gemm8_args(p, args);
    const clt_arg maps[] = {CLT_REF(map[0]), CLT_REF(map[1]), CLT_REF(map[2]), CLT_REF(map[3]),
                            CLT_REF(map[4])};
    _Static_assert(sizeof maps == 2 * MAPS * sizeof *maps, "a reference is two arguments");
    memcpy(args + CLT_GEMM8_ARGS, maps, sizeof maps);
    const int64_t groups = CLT_MIN(tiles_of(p, bm), (int64_t)clt_device_get_facts(dev)->compute_units);
    const size_t local = ITEMS, global = (size_t)groups * local;
    return clt_launch(k, 1, &global, &local, args, ALL);
}

const clt_gemm8_body clt_gemm8_wgmma = {"wgmma", run_wgmma, NULL, does_well};
