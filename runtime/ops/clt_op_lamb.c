/* LAMB over pieces of the slab: kernels of clkernels/optimizer/lamb.cl. */
#include <string.h>

#include "runtime/device/clt_slab.h"
#include "runtime/ops/clt_op_optimizer_internal.h"
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

static clt_status direction(clt_ops *ops, const clt_variant *v, const clt_optimizer_params *p,
                            uint64_t count) {
    const clt_arg args[] = {CLT_REF(p->p),     CLT_REF(p->g),      CLT_REF(p->m),
                            CLT_REF(p->v),     CLT_REF(p->groups), CLT_REF(p->group_of_block),
                            CLT_REF(p->status)};
    return clt_vector_launch(ops, v, "lamb_direction", count, args, CLT_COUNT_OF(args));
}

static clt_status ratios(clt_ops *ops, const clt_variant *v, const clt_lamb_ratios_params *p) {
    clt_kernel *k;
    const clt_arg args[] = {CLT_U64(p->tensors),        CLT_REF(p->tensor),     CLT_REF(p->place),
                            CLT_REF(p->weights),        CLT_REF(p->directions), CLT_REF(p->groups),
                            CLT_REF(p->group_of_block), CLT_REF(p->ratio)};
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "lamb_ratios", v->options, &k));
    const size_t wg = (size_t)clt_variant_param(v, "WG", 1), global = CLT_ROUND_UP((size_t)p->tensors, wg);
    return clt_launch(k, 1, &global, &wg, args, CLT_COUNT_OF(args));
}

static clt_status apply(clt_ops *ops, const clt_variant *v, const clt_optimizer_params *p,
                        clt_ref tensor_of_block, clt_ref ratio, uint64_t count) {
    const clt_arg args[] = {CLT_REF(p->p),
                            CLT_REF(p->g),
                            CLT_REF(p->groups),
                            CLT_REF(p->group_of_block),
                            CLT_REF(tensor_of_block),
                            CLT_REF(ratio),
                            CLT_REF(p->status),
                            CLT_REF(p->copy.ref)};
    return clt_vector_launch(ops, v, "lamb_apply", count, args, CLT_COUNT_OF(args));
}

/* --- the check: two blocks of 64 elements, a tensor each; the first has limits instead of decay --- */

enum { N = 128, TENSORS = 2, FLOATS = sizeof(clt_optimizer_group) / 4 };

static const clt_optimizer_group check_group = {.lr = 1e-2f,
                                                .decay = 1.0f,
                                                .step_size = 1.7f,
                                                .bias_correction = 0.3f,
                                                .beta1 = 0.9f,
                                                .beta2 = 0.95f,
                                                .one_minus_beta1 = 0.1f,
                                                .one_minus_beta2 = 0.05f,
                                                .eps = 1e-6f,
                                                .l2 = 0.02f};

static void small_arrays(clt_check *c, const clt_optimizer_group group[2], clt_optimizer_params *p,
                         clt_lamb_ratios_params *r, clt_ref *tensor_of_block) {
    static const uint8_t group_of[8] = {0, 1};
    static const uint16_t tensor_of[4] = {0, 1};
    static const uint32_t tensor[] = {0, 1, 0, 0, 1, 2, 1, 0}, place[] = {1, 0};
    const float status[] = {1.0f, 0.5f, 1.0f};
    uint32_t words[2];
    memcpy(words, group_of, sizeof words);
    p->groups = clt_check_upload(c, group, 2 * FLOATS);
    p->status = clt_check_upload(c, status, 3);
    p->group_of_block = clt_check_upload(c, words, 2);
    p->group_of_block.off *= 4;
    memcpy(words, tensor_of, sizeof words);
    *tensor_of_block = clt_check_upload(c, words, 2);
    tensor_of_block->off *= 2;
    c->aligned = true; /* vectors of four */
    r->tensor = clt_check_upload(c, tensor, 8);
    r->tensor.off /= 4;
    r->place = clt_check_upload(c, place, 2);
}

static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_optimizer_params *call = ctx;
    clt_check c = {.ops = ops, .aligned = clt_variant_wide(v)};
    clt_optimizer_group group[2] = {check_group, check_group};
    float *h[4], sums[2][TENSORS], ratio[TENSORS];
    clt_optimizer_params p = {0};
    clt_ref tensor_of_block, *const place[] = {&p.p, &p.g, &p.m, &p.v};
    group[0].l2 = 0;
    group[0].least_ratio = 0.5f;
    group[0].most_ratio = 1.5f;
    for (int i = 0; i < 4; i++) {
        h[i] = clt_check_random(&c, N, (uint64_t)i);
        for (int k = 0; i == 3 && k < N; k++) h[i][k] = h[i][k] * h[i][k];
        *place[i] = clt_check_upload(&c, h[i], N);
    }
    const clt_dtype type = call->copy.type;
    float *copy = clt_check_zeros(&c, N);
    if (clt_tensor_present(call->copy))
        p.copy = clt_tensor_vector(clt_check_upload_as(&c, type, copy, N), type);
    for (int i = 0; i < TENSORS; i++) sums[0][i] = 3.0f + (float)i, sums[1][i] = 0.7f;
    clt_lamb_ratios_params r = {.tensors = TENSORS,
                                .weights = clt_check_upload(&c, sums[0], TENSORS),
                                .directions = clt_check_upload(&c, sums[1], TENSORS),
                                .ratio = clt_check_blank(&c, TENSORS)};
    small_arrays(&c, group, &p, &r, &tensor_of_block);
    r.groups = p.groups;
    r.group_of_block = p.group_of_block;
    if (c.st == CLT_OK) c.st = direction(ops, v, &p, N);
    if (c.st == CLT_OK) c.st = ratios(ops, v, &r);
    if (c.st == CLT_OK) c.st = apply(ops, v, &p, tensor_of_block, r.ratio, N);
    for (int t = 0; t < TENSORS; t++) {
        const size_t at = (size_t)t * 64, seen = (size_t)(1 - t);
        clt_ref_lamb_direction(64, h[0] + at, h[1] + at, h[2] + at, h[3] + at, &group[t], 0.5f);
        ratio[t] = clt_ref_lamb_ratio(1, &sums[0][seen], &sums[1][seen], &group[t]);
        clt_ref_lamb_apply(64, h[0] + at, h[1] + at, &group[t], ratio[t]);
    }
    static const char *const name[] = {"LAMB, weights", "directions", "first moment", "second moment"};
    for (int i = 0; i < 4; i++) clt_check_compare(&c, name[i], *place[i], h[i], N);
    clt_check_compare(&c, "ratios", r.ratio, ratio, TENSORS);
    if (clt_tensor_present(p.copy)) clt_check_compare_as(&c, type, "LAMB, copy", p.copy.ref, h[0], N);
    return clt_check_end(&c);
}

/* --- the operations --- */

static clt_status pick(clt_ops *ops, const clt_optimizer_params *p, const clt_variant **v) {
    return clt_optimizer_pick(ops, "lamb", check, p, v);
}

clt_status clt_op_lamb_direction(clt_ops *ops, const clt_optimizer_params *p) {
    clt_optimizer_params call = *p;
    const clt_variant *v;
    call.copy = clt_tensor_none();
    CLT_TRY(pick(ops, &call, &v));
    return direction(ops, v, p, p->chunks * CLT_CHUNK);
}

clt_status clt_op_lamb_ratios(clt_ops *ops, const clt_lamb_ratios_params *p) {
    const clt_variant *v;
    CLT_TRY(pick(ops, &(clt_optimizer_params){0}, &v));
    return ratios(ops, v, p);
}

clt_status clt_op_lamb_apply(clt_ops *ops, const clt_optimizer_params *p, clt_ref tensor_of_block,
                             clt_ref ratio) {
    const clt_variant *v;
    CLT_TRY(pick(ops, p, &v));
    return apply(ops, v, p, tensor_of_block, ratio, p->chunks * CLT_CHUNK);
}
