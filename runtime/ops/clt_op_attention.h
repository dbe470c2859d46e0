/* clt_op_attention: what the bodies of attention share. The forward and the backward pass choose their rows
 * from two tables, attention.vt and attention_backward.vt: a matrix-unit body may have only one of them, and
 * each is checked by itself. */
#ifndef CLT_OP_ATTENTION_H
#define CLT_OP_ATTENTION_H

#include "clt_variant.h"

enum { CLT_ATTENTION_MAX_ARGS = 72 };

typedef struct {
    clt_arg a[CLT_ATTENTION_MAX_ARGS];
    int n;
} clt_attention_args;

void clt_attention_add(clt_attention_args *l, clt_arg a);
void clt_attention_add_ref(clt_attention_args *l, clt_ref r);
void clt_attention_add_matrix(clt_attention_args *l, clt_ref r, int64_t ld);
/* ATTENTION_ARGS of clkernels/attention/attention.clh. */
clt_attention_args clt_attention_common_args(const clt_attention_params *p);

/* Whether a row can do this call; what it cannot do goes to a row below it. Params of a row: TYPES, a set of
 * 1 fp32 + 2 bf16 + 4 fp16 (all if absent), MAX_D, the largest head size; ROWS and ITEMS, rows and items of a
 * work-group (4 * ROWS if absent). */
bool clt_attention_takes_forward(const clt_variant *v, const clt_attention_params *p);
bool clt_attention_takes_backward(const clt_variant *v, const clt_attention_grad_params *g);

/* One pass by the row's body; sizes were checked. */
clt_status clt_attention_run_forward(clt_ops *ops, const clt_variant *v, const clt_attention_params *p);
clt_status clt_attention_run_backward(clt_ops *ops, const clt_variant *v, const clt_attention_grad_params *g);

/* Body "wgmma" (clt_op_attention_wgmma.c): 16-bit types, head sizes in steps of 8 within MIN_D .. MAX_D
 * of the row, tensors aligned as maps need it, no dropout. */
bool clt_attention_wgmma_takes(const clt_variant *v, const clt_attention_params *p);
clt_status clt_attention_wgmma_forward(clt_ops *ops, const clt_variant *v, const clt_attention_params *p);

/* The body of that name in attention_backward.vt (clt_op_attention_wgmma_backward.c): the same types, head
 * sizes and alignment, no dropout. workspace: its scratch in bytes. */
bool clt_attention_wgmma_takes_backward(const clt_attention_grad_params *g);
clt_status clt_attention_wgmma_backward(clt_ops *ops, const clt_variant *v,
                                        const clt_attention_grad_params *g);
uint64_t clt_attention_wgmma_workspace(const clt_attention_params *p);

/* The checks (clt_variant_check; ctx: the params of the call, for head size, type and features). Rows that
 * require numerics=fast are compared with the formula in double within the bound of clt_ref_attention_row and
 * clt_ref_attention_gradients,
 * all others with the oracle's bits. */
clt_status clt_attention_check_forward(clt_ops *ops, const clt_variant *v, void *ctx);
clt_status clt_attention_check_backward(clt_ops *ops, const clt_variant *v, void *ctx);

#endif
