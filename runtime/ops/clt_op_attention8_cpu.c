/* Attention in 8-bit blocks on CPUs: one work-item per block of 64 rows (attention8_cpu.cl). */
#include <string.h>

#include "runtime/ops/clt_op_attention8_internal.h"

typedef clt_attention_params params;
typedef clt_attention_args arg_list;

enum { BLOCK = 64, SUMS_SLOT = 2 };

/* Rounds tensor x. Rows without a scale in `other` (if it has a buffer) get none. */
static clt_status round_tensor(clt_ops *ops, const clt_variant *v, const params *p, const clt_tensor *x,
                               int64_t heads, const clt_attention8_rows *to, clt_ref other) {
    char options[CLT_ATTENTION_OPTIONS];
    clt_kernel *k;
    snprintf(options, sizeof options, " -DHEAD_DIM=%lld -DTYPE=%d", (long long)p->head_dim, (int)p->q.type);
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->uses, "attention8_rows", options, &k));
    const clt_ref some = other.buf ? other : to->scales;
    const clt_arg args[] = {CLT_REF(x->ref),     CLT_U32(x->ld), CLT_REF(to->numbers),
                            CLT_REF(to->scales), CLT_REF(some),  CLT_U32(other.buf != NULL),
                            CLT_U32(p->seq),     CLT_U32(heads)};
    const size_t blocks = CLT_CEIL_DIV((size_t)p->seq, BLOCK);
    return clt_launch(k, 3, (size_t[]){blocks, (size_t)heads, (size_t)p->batch}, (size_t[]){1, 1, 1}, args,
                      CLT_COUNT_OF(args));
}

clt_status clt_attention8_cpu_round(clt_ops *ops, const clt_variant *v, const params *p,
                                    const clt_tensor *dout, const clt_attention8_input *in) {
    CLT_TRY(round_tensor(ops, v, p, &p->q, p->heads, &in->q, clt_ref_none()));
    CLT_TRY(round_tensor(ops, v, p, &p->k, p->kv_heads, &in->k, clt_ref_none()));
    CLT_TRY(round_tensor(ops, v, p, &p->v, p->kv_heads, &in->v, in->k.scales));
    return dout ? round_tensor(ops, v, p, dout, p->heads, &in->dout, clt_ref_none()) : CLT_OK;
}

static clt_status launch_blocks(clt_ops *ops, const clt_variant *v, const char *name, const params *p,
                                int64_t heads, const arg_list *l) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, name, v->options, &k));
    const size_t blocks = CLT_CEIL_DIV((size_t)p->seq, BLOCK);
    return clt_launch(k, 3, (size_t[]){blocks, (size_t)heads, (size_t)p->batch}, (size_t[]){1, 1, 1}, l->a,
                      l->n);
}

static clt_status forward(clt_ops *ops, const clt_variant *v, const params *p,
                          const clt_attention8_input *in) {
    arg_list l = clt_attention8_common_args(p, in);
    clt_attention_add_tensor(&l, p->o);
    clt_attention_add_ref(&l, p->lse);
    return launch_blocks(ops, v, "attention8_forward", p, p->heads, &l);
}

/* Elements of dk, and of dv, in fp32: [B, KV, T, head size up to a multiple of 16]. */
static uint64_t sums_of(const params *p) {
    return (uint64_t)(p->batch * p->kv_heads * p->seq) * CLT_ROUND_UP((uint64_t)p->head_dim, 16);
}

uint64_t clt_attention8_cpu_workspace(const params *p) {
    return CLT_ROUND_UP(2 * sums_of(p) * sizeof(float), 4096);
}

static clt_status backward(clt_ops *ops, const clt_variant *v, const clt_attention_grad_params *g,
                           const clt_attention8_input *in) {
    const params *p = &g->fwd;
    arg_list l = clt_attention8_common_args(p, in);
    clt_buffer *sums;
    CLT_TRY(clt_ops_scratch(ops, SUMS_SLOT, 2 * sums_of(p) * sizeof(float), &sums));
    clt_attention_add_ref(&l, in->dout.numbers);
    clt_attention_add_ref(&l, in->dout.scales);
    clt_attention_add_ref(&l, p->lse);
    const clt_tensor all[] = {p->o, g->dq, g->dk, g->dv};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) clt_attention_add_tensor(&l, all[i]);
    clt_attention_add(&l, CLT_U32(g->accumulate_kv));
    clt_attention_add(&l, CLT_BUF(sums));
    clt_attention_add(&l, CLT_U64(sums_of(p)));
    if (strstr(v->options, "-DSPLIT=1")) {
        CLT_TRY(launch_blocks(ops, v, "attention8_backward_q", p, p->heads, &l));
        return launch_blocks(ops, v, "attention8_backward_kv", p, p->kv_heads, &l);
    }
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "attention8_backward", v->options, &k));
    return clt_launch(k, 3, (size_t[]){(size_t)p->kv_heads, (size_t)p->batch, 1}, (size_t[]){1, 1, 1}, l.a,
                      l.n);
}

const clt_attention8_body clt_attention8_cpu = {
    .name = "cpu", .forward = forward, .backward = backward, .blocks = true};
