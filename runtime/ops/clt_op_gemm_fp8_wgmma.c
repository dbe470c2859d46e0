/* Products of matrices in 8-bit floating point on NVIDIA's matrix units: clkernels/fp8/gemm_fp8_wgmma.cl. */
#include <string.h>

#include "runtime/ops/clt_op_gemm_fp8_internal.h"

/* As in the kernel. BOX_*: of 16-bit results. */
enum { STEP = 128, ITEMS = 384, BOX_ROWS = 16, BOX_COLUMNS = 64 };

clt_tensor_map_params clt_gemm_fp8_box(const clt_codes8 *m, int64_t rows, int64_t k, int64_t lines) {
    return (clt_tensor_map_params){.ref = m->q,
                                   .type = CLT_MAP_U8,
                                   .dims = 2,
                                   .size = {(uint64_t)k, (uint64_t)rows},
                                   .stride = {1, (uint64_t)m->ld},
                                   .box = {STEP, (uint32_t)lines},
                                   .swizzle = 128};
}

static clt_tensor_map_params result(const clt_gemm_params *to) {
    return (clt_tensor_map_params){.ref = to->c.ref,
                                   .type = clt_dtype_table[to->c.type].map,
                                   .dims = 2,
                                   .size = {(uint64_t)to->n, (uint64_t)to->m},
                                   .stride = {1, (uint64_t)to->c.ld},
                                   .box = {BOX_COLUMNS, BOX_ROWS},
                                   .swizzle = 128};
}

/* Whether results leave as boxes, which clip at multiples of 16 bytes. */
static bool is_boxed(const clt_gemm_params *to, const clt_tensor_map_params *c) {
    return to->c.type != CLT_F32 && to->n % 8 == 0 && !(clt_gemm_flags(to) & ~(uint32_t)CLT_EP_BIAS) &&
           clt_tensor_map_fits(c);
}

clt_status clt_gemm_fp8_wgmma(clt_ops *ops, const clt_variant *v, const clt_gemm_fp8_params *p) {
    enum { MAPS = 3, ALL = CLT_GEMM_FP8_ARGS + 2 * MAPS };
    clt_device *dev = clt_ops_device(ops);
    const clt_gemm_params *to = &p->to;
    const int64_t bm = clt_variant_param(v, "MB", 1) * 128, bn = clt_variant_param(v, "BN", 256);
    const clt_tensor_map_params box[MAPS] = {clt_gemm_fp8_box(&p->a, to->m, to->k, bm),
                                             clt_gemm_fp8_box(&p->b, to->n, to->k, bn), result(to)};
    const bool boxed = is_boxed(to, &box[2]), used[MAPS] = {true, true, boxed};
    clt_ref map[MAPS] = {clt_ref_none(), clt_ref_none(), clt_ref_none()};
    char options[512];
    clt_kernel *k;
    clt_arg args[ALL];
    clt_gemm_fp8_options(p, v, boxed ? " -DBOXED=1" : "", options, sizeof options);
    CLT_TRY(clt_kernel_get(dev, v->file, "gemm_fp8_wgmma", options, &k));
    for (int i = 0; i < MAPS; i++)
        if (used[i]) CLT_TRY(clt_tensor_map_get(dev, &box[i], &map[i]));
    clt_gemm_fp8_args(p, args);
    const clt_arg maps[] = {CLT_REF(map[0]), CLT_REF(map[1]), CLT_REF(map[2])};
    _Static_assert(sizeof maps == 2 * MAPS * sizeof *maps, "a reference is two arguments");
    memcpy(args + CLT_GEMM_FP8_ARGS, maps, sizeof maps);
    const int64_t tiles = CLT_CEIL_DIV(to->m, bm) * CLT_CEIL_DIV(to->n, bn);
    const int64_t groups = CLT_MIN(tiles, (int64_t)clt_device_get_facts(dev)->compute_units);
    const size_t local = ITEMS, global = (size_t)groups * local;
    return clt_launch(k, 1, &global, &local, args, ALL);
}
