/* GEMM of 16-bit operands on NVIDIA's matrix units: clkernels/gemm/gemm_wgmma.cl. */
#include "runtime/ops/clt_op_gemm_wgmma.h"

/* Fraction of the usual tiles' time: the estimates are too coarse to separate smaller differences. */
#define CLEARLY 0.97
enum { BK = 64, OWN_STEPS = 16 };

/* An operand: `tile` rows by one step's columns of a matrix whose rows run along k, else one step's rows by
 * `tile` columns. */
static clt_tensor_map_params operand(const clt_gemm_params *p, const clt_tensor *t, bool along_k,
                                     int64_t size, int64_t tile) {
    return along_k ? clt_wgmma_matrix(t, size, p->k, tile) : clt_wgmma_matrix(t, p->k, size, BK);
}

static clt_wgmma_plan plan_on(const clt_device *dev, const clt_variant *v, const clt_gemm_params *p) {
    return clt_wgmma_make_plan(p, clt_wgmma_tile_of(v), BK, clt_device_get_facts(dev)->compute_units);
}

/* A row whose tiles do not have the usual shape takes the calls that it finishes clearly earlier. */
static bool does_well(const clt_variant *v, const clt_gemm_params *p) {
    const clt_wgmma_tile own = clt_wgmma_tile_of(v), usual = {128, 256};
    const clt_device *dev = clt_buffer_device(p->c.ref.buf);
    const int64_t units = clt_device_get_facts(dev)->compute_units;
    if (own.rows == usual.rows) return true;
    return clt_wgmma_make_plan(p, own, BK, units).time * (double)clt_wgmma_outputs(own) <
           CLEARLY * clt_wgmma_make_plan(p, usual, BK, units).time * (double)clt_wgmma_outputs(usual);
}

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
        e.box = clt_wgmma_result(p, &p->grad_pre);
        e.finish = e.has_box = clt_tensor_map_fits(&e.box);
    } else if ((flags & CLT_EP_RESIDUAL) && !(flags & (CLT_EP_PRE | CLT_EP_GRAD | CLT_EP_ACCUMULATE)) &&
               p->c.type == CLT_F32) {
        e.box = clt_wgmma_result(p, &p->residual);
        e.ahead = e.has_box = clt_tensor_map_fits(&e.box);
    } else if (clt_tensor_present(p->pre) && !e.finish) {
        e.box = clt_wgmma_result(p, &p->pre);
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
    const clt_wgmma_tile tile = clt_wgmma_tile_of(v);
    clt_device *dev = clt_ops_device(ops);
    const clt_wgmma_plan g = plan_on(dev, v, p);
    const gemm_epilogue e = epilogue_of(p);
    const clt_tensor_map_params box_a = operand(p, &p->a, p->form != CLT_GEMM_TN, p->m, tile.rows);
    const clt_tensor_map_params box_b = operand(p, &p->b, p->form == CLT_GEMM_NT, p->n, tile.columns);
    const clt_tensor_map_params box_c = clt_wgmma_result(p, &p->c);
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
    CLT_TRY(clt_wgmma_parts(ops, v, &g, clt_tensor_present(p->a_sum), &part, &flags));
    const clt_arg args[] = {CLT_WGMMA_PLAN(p, g),
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
    const size_t local = 128 * (1 + (size_t)clt_wgmma_groups(v)), global = (size_t)g.groups * local;
    return clt_launch(k, 1, &global, &local, args, CLT_COUNT_OF(args));
}

static clt_status prepare(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p) {
    const clt_wgmma_plan g = plan_on(clt_ops_device(ops), v, p);
    clt_buffer *part, *flags;
    return clt_wgmma_parts(ops, v, &g, clt_tensor_present(p->a_sum), &part, &flags);
}

static uint64_t workspace(const clt_variant *v, const clt_gemm_params *p) {
    return p->a.type == CLT_F32 ? 0 : clt_wgmma_workspace(v, p, p->form == CLT_GEMM_TN);
}

const clt_gemm_body clt_gemm_wgmma = {"wgmma", run_wgmma, prepare, workspace, does_well, makes_again, true};
