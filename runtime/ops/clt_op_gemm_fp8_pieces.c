/* Products of matrices in 8-bit floating point by the kernel of 16-bit operands,
 * clkernels/gemm/gemm_wgmma.cl: tiles that do not fill the device are split along k, and results in fp32
 * leave through the copy engine. */
#include "runtime/ops/clt_op_gemm_fp8_internal.h"
#include "runtime/ops/clt_op_gemm_wgmma.h"

enum { STEP = 128 /* elements along k */ };

/* Boxes clip at multiples of 16 bytes. */
static bool fits(const clt_gemm_params *p, const clt_tensor *t) {
    const clt_tensor_map_params box = clt_wgmma_result(p, t);
    return p->n * (int64_t)clt_dtype_bytes(t->type) % 16 == 0 && clt_tensor_map_fits(&box);
}

/* Nothing besides the product, or accumulation; with four boxes also a bias and, in fp32, a residual. */
bool clt_gemm_fp8_pieces_takes(const clt_variant *v, const clt_gemm_fp8_params *p) {
    const clt_gemm_params *to = &p->to;
    const uint32_t flags = clt_gemm_flags(to), more = CLT_EP_BIAS | CLT_EP_RESIDUAL;
    if (!fits(to, &to->c)) return false;
    if (!flags || flags == CLT_EP_ACCUMULATE) return true;
    if (flags & ~more || clt_variant_param(v, "BOXES", 4) != 4) return false;
    return !(flags & CLT_EP_RESIDUAL) || (to->c.type == CLT_F32 && fits(to, &to->residual));
}

static clt_wgmma_plan plan_on(const clt_device *dev, const clt_variant *v, const clt_gemm_params *to) {
    return clt_wgmma_make_plan(to, clt_wgmma_tile_of(v), STEP, clt_device_get_facts(dev)->compute_units);
}

static clt_status build(clt_device *dev, const clt_variant *v, const clt_gemm_fp8_params *p, clt_kernel **k) {
    char options[512], more[48];
    const uint32_t flags = clt_gemm_flags(&p->to);
    snprintf(more, sizeof more, " -DEP=%uu%s", flags, flags & CLT_EP_RESIDUAL ? " -DAHEAD=1" : "");
    clt_gemm_fp8_options(p, v, more, options, sizeof options);
    return clt_kernel_get(dev, v->file, "gemm_wgmma", options, k);
}

clt_status clt_gemm_fp8_pieces(clt_ops *ops, const clt_variant *v, const clt_gemm_fp8_params *p) {
    clt_device *dev = clt_ops_device(ops);
    const clt_gemm_params *to = &p->to;
    const clt_wgmma_plan g = plan_on(dev, v, to);
    const clt_wgmma_tile tile = clt_wgmma_tile_of(v);
    const clt_tensor_map_params box_a = clt_gemm_fp8_box(&p->a, to->m, to->k, tile.rows),
                                box_b = clt_gemm_fp8_box(&p->b, to->n, to->k, tile.columns),
                                box_c = clt_wgmma_result(to, &to->c),
                                box_residual = clt_wgmma_result(to, &to->residual);
    clt_ref a, b, c, residual = clt_ref_none();
    clt_buffer *part = NULL, *flags = NULL;
    clt_kernel *k;
    CLT_TRY(build(dev, v, p, &k));
    CLT_TRY(clt_tensor_map_get(dev, &box_a, &a));
    CLT_TRY(clt_tensor_map_get(dev, &box_b, &b));
    CLT_TRY(clt_tensor_map_get(dev, &box_c, &c));
    if (clt_tensor_present(to->residual)) CLT_TRY(clt_tensor_map_get(dev, &box_residual, &residual));
    CLT_TRY(clt_wgmma_parts(ops, v, &g, false, &part, &flags));
    const clt_ref none = clt_ref_none();
    const clt_arg args[] = {CLT_WGMMA_PLAN(to, g),
                            CLT_REF(a),
                            CLT_REF(b),
                            CLT_REF(c),
                            CLT_BUF(part),
                            CLT_BUF(flags),
                            CLT_REF(residual),
                            CLT_REF(none), /* pre */
                            CLT_U64(0),
                            CLT_REF(to->bias.ref),
                            CLT_REF(none), /* grad_pre */
                            CLT_U64(0),
                            CLT_REF(to->residual.ref),
                            CLT_U64(to->residual.ld),
                            CLT_BUF(p->a.q.buf),
                            CLT_BUF(p->b.q.buf),
                            CLT_REF(to->c.ref),
                            CLT_U64(to->c.ld),
                            CLT_REF(none), /* a_sum */
                            CLT_REF(p->a.inverse),
                            CLT_REF(p->b.inverse)};
    const size_t local = 128 * (1 + (size_t)clt_wgmma_groups(v)), global = (size_t)g.groups * local;
    return clt_launch(k, 1, &global, &local, args, CLT_COUNT_OF(args));
}

clt_status clt_gemm_fp8_pieces_prepare(clt_ops *ops, const clt_variant *v, const clt_gemm_fp8_params *p) {
    const clt_wgmma_plan g = plan_on(clt_ops_device(ops), v, &p->to);
    clt_buffer *part, *flags;
    return clt_wgmma_parts(ops, v, &g, false, &part, &flags);
}
