/* AdamW, Lion and SGD over pieces of the slab. */
#include "runtime/device/clt_slab.h"
#include "runtime/ops/clt_op_optimizer_internal.h"
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

static clt_status adamw(clt_ops *ops, const clt_variant *v, const clt_optimizer_params *p, uint64_t count) {
    return clt_vector_launch(ops, v, "adamw", count,
                             (clt_arg[]){CLT_REF(p->p), CLT_REF(p->g), CLT_REF(p->m), CLT_REF(p->v),
                                         CLT_REF(p->groups), CLT_REF(p->group_of_block), CLT_REF(p->status),
                                         CLT_REF(p->copy.ref)},
                             16);
}

/* One without a second moment. */
static clt_status simple(clt_ops *ops, const clt_variant *v, const char *kernel,
                         const clt_optimizer_params *p, uint64_t count) {
    return clt_vector_launch(ops, v, kernel, count,
                             (clt_arg[]){CLT_REF(p->p), CLT_REF(p->g), CLT_REF(p->m), CLT_REF(p->groups),
                                         CLT_REF(p->group_of_block), CLT_REF(p->status),
                                         CLT_REF(p->copy.ref)},
                             14);
}

static const clt_optimizer_group check_group = {.lr = 1e-3f,
                                                .decay = 0.99f,
                                                .step_size = 0.02f,
                                                .bias_correction = 0.3f,
                                                .beta1 = 0.9f,
                                                .beta2 = 0.95f,
                                                .one_minus_beta1 = 0.1f,
                                                .one_minus_beta2 = 0.05f,
                                                .eps = 1e-8f,
                                                .frozen = 0.0f,
                                                .l2 = 0.01f,
                                                .nesterov = 1.0f};

/* Two blocks of 64 elements of one group, with each optimizer, with a copy as in the call. */
static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_optimizer_params *call = ctx;
    enum { N = 128, P = 0, G, M, V, EXTRA };
    float h[EXTRA][N];
    clt_ref part[CLT_CHECK_PARTS];
    CLT_TRY(clt_check_parts(ops, 2 * N, part));
    for (int i = 0; i < EXTRA; i++) part[i] = clt_check_place(v, CLT_F32, part[i]);
    for (int i = 0; i < EXTRA; i++) clt_check_fill(h[i], N, 11u + (uint32_t)i);
    for (int i = 0; i < N; i++) h[V][i] *= h[V][i];
    for (int i = 0; i < EXTRA; i++) CLT_TRY(clt_ref_write_f32(part[i], h[i], N));
    float status[4] = {1.0f, 0.5f, 1.0f, 0.0f}; /* the last word: group 0 for both blocks */
    clt_ref groups = part[EXTRA], st = part[EXTRA + 1];
    clt_ref blocks = {st.buf, (st.off + 3) * 4};
    CLT_TRY(clt_ref_write_f32(groups, (const float *)&check_group, sizeof check_group / 4));
    CLT_TRY(clt_ref_write_f32(st, status, 4));
    clt_optimizer_params p = {0, part[P], part[G], part[M], part[V], groups, blocks, st};
    const clt_dtype type = call->copy.type;
    if (clt_tensor_present(call->copy))
        p.copy = clt_tensor_vector(clt_check_place(v, type, clt_ref_at(part[P], N)), type);
    static const char *const kernel[] = {"adamw", "lion", "sgd"};
    for (int k = 0; k < 3; k++) {
        CLT_TRY(k ? simple(ops, v, kernel[k], &p, N) : adamw(ops, v, &p, N));
        if (k == 0) clt_ref_adamw(N, h[P], h[G], h[M], h[V], &check_group, status[1]);
        if (k == 1) clt_ref_lion(N, h[P], h[G], h[M], &check_group, status[1]);
        if (k == 2) clt_ref_sgd(N, h[P], h[G], h[M], &check_group, status[1]);
        if (clt_tensor_present(p.copy))
            CLT_TRY(clt_variant_compare_as(ops, type, "optimizer, copy", p.copy.ref, h[P], N));
    }
    static const char *const name[] = {"optimizer, weights", "gradients", "first moment", "second moment"};
    for (int i = 0; i < EXTRA; i++) CLT_TRY(clt_variant_compare(ops, name[i], part[i], h[i], N));
    return CLT_OK;
}

/* Chunks are multiples of 8 elements, so places must be too. */
static bool takes(const clt_variant *v, const void *call) {
    const clt_optimizer_params *p = call;
    const clt_rowwise rows = {
        .tensors = 5,
        .t = {{.ref = p->p}, {.ref = p->g}, {.ref = p->m}, {.ref = p->v}, {.ref = p->copy.ref}}};
    return !clt_variant_wide(v) || clt_rowwise_wide(&rows);
}

clt_status clt_optimizer_pick(clt_ops *ops, const char *op, clt_variant_check check,
                              const clt_optimizer_params *p, const clt_variant **v) {
    const clt_tensor_named copy[] = {{"copy", p->copy}};
    const bool copies = clt_tensor_present(p->copy);
    char options[64];
    CLT_TRY(clt_tensor_check_types("optimizer", CLT_DTYPE_PLAIN, copy, 1));
    snprintf(options, sizeof options, " -DHAS_COPY=%d -DCOPY_TYPE=%d", copies,
             (int)(copies ? p->copy.type : CLT_F32));
    const clt_variant_question q = {.op = op, .options = options, .takes = takes, .check = check, .call = p};
    return clt_variant_pick_for(ops, &q, v);
}

clt_status clt_op_adamw(clt_ops *ops, const clt_optimizer_params *p) {
    const clt_variant *v;
    CLT_TRY(clt_optimizer_pick(ops, "optimizer", check, p, &v));
    return adamw(ops, v, p, p->chunks * CLT_CHUNK);
}

clt_status clt_op_lion(clt_ops *ops, const clt_optimizer_params *p) {
    const clt_variant *v;
    CLT_TRY(clt_optimizer_pick(ops, "optimizer", check, p, &v));
    return simple(ops, v, "lion", p, p->chunks * CLT_CHUNK);
}

clt_status clt_op_sgd(clt_ops *ops, const clt_optimizer_params *p) {
    const clt_variant *v;
    CLT_TRY(clt_optimizer_pick(ops, "optimizer", check, p, &v));
    return simple(ops, v, "sgd", p, p->chunks * CLT_CHUNK);
}
