/* clt_op_attention_internal: what the parts of attention share. Private to runtime/ops/clt_op_attention*.c
 * and its tests. The forward and the backward pass pick their rows from two tables, attention.vt and
 * attention_backward.vt: a matrix-unit body may have only one pass, and each is checked separately. */
#ifndef CLT_OP_ATTENTION_INTERNAL_H
#define CLT_OP_ATTENTION_INTERNAL_H

#include "runtime/ops/clt_op_attention.h"
#include "runtime/ops/clt_tune.h"

enum { CLT_ATTENTION_MAX_ARGS = 72, CLT_ATTENTION_OPTIONS = 192 };

typedef struct {
    clt_arg a[CLT_ATTENTION_MAX_ARGS];
    int n;
} clt_attention_args;

void clt_attention_add(clt_attention_args *l, clt_arg a);
void clt_attention_add_ref(clt_attention_args *l, clt_ref r);
void clt_attention_add_tensor(clt_attention_args *l, clt_tensor t);
/* ATTENTION_ARGS of clkernels/attention/attention.clh. */
clt_attention_args clt_attention_common_args(const clt_attention_params *p);
/* Build options for the head size, the type and the features of p. */
void clt_attention_options(const clt_attention_params *p, char out[CLT_ATTENTION_OPTIONS]);
/* Refuses sizes, types, masks and probabilities that no body supports. */
clt_status clt_attention_validate(const clt_attention_params *p);

/* A kind of body, for rows of one table or of both. The call was checked. A new kind is a file that defines
 * one of these, named here and in the list in clt_op_attention.c. */
typedef struct {
    const char *name; /* `body` of the tables' rows */
    clt_status (*forward)(clt_ops *ops, const clt_variant *v, const clt_attention_params *p);
    clt_status (*backward)(clt_ops *ops, const clt_variant *v, const clt_attention_grad_params *g);
    /* Whether this kind supports the call, beyond what a row's params say; NULL: every call. */
    bool (*takes_forward)(const clt_variant *v, const clt_attention_params *p);
    bool (*takes_backward)(const clt_variant *v, const clt_attention_grad_params *g);
    /* Upper bound of its scratch memory in bytes on this kind of device; NULL: none. */
    uint64_t (*workspace)(clt_device_type type, const clt_attention_params *p);
} clt_attention_body;
extern const clt_attention_body clt_attention_wgmma;

/* Whether a row supports this call; others go to a row below it. Params that say so in both tables: TYPES, a
 * set of 1 fp32 + 2 bf16 + 4 fp16 (all if absent); MASKS, a set of 1 causal + 2 none (both if absent); MIN_D
 * and MAX_D, the head sizes. */
bool clt_attention_takes_forward(const clt_variant *v, const clt_attention_params *p);
bool clt_attention_takes_backward(const clt_variant *v, const clt_attention_grad_params *g);

/* One pass by the row's body; the call was checked. */
clt_status clt_attention_run_forward(clt_ops *ops, const clt_variant *v, const clt_attention_params *p);
clt_status clt_attention_run_backward(clt_ops *ops, const clt_variant *v, const clt_attention_grad_params *g);

/* Parts of body "wgmma". Forward (clt_op_attention_wgmma.c): 16-bit types, head sizes that are multiples of 8
 * up to 128, tensors aligned as maps need it, no dropout. */
bool clt_attention_wgmma_takes(const clt_variant *v, const clt_attention_params *p);
clt_status clt_attention_wgmma_forward(clt_ops *ops, const clt_variant *v, const clt_attention_params *p);

/* The checks (clt_variant_check; ctx: the params of the call, for head size, type and features). Rows that
 * require numerics=fast are compared with the formula in double within the bound of clt_ref_attention_row and
 * clt_ref_attention_gradients, all others with the oracle's bits. */
clt_status clt_attention_check_forward(clt_ops *ops, const clt_variant *v, void *ctx);
clt_status clt_attention_check_backward(clt_ops *ops, const clt_variant *v, void *ctx);
/* The same for rows of attention_last.vt (ctx: the params of the call), which are all exact. */
clt_status clt_attention_check_last(clt_ops *ops, const clt_variant *v, void *ctx);

/* How rows of the two tables are timed at a shape, and a shape as text (clt_op_attention_tune.c). */
extern const clt_tune_kind clt_attention_tune_forward, clt_attention_tune_backward;
void clt_attention_shape(const clt_attention_params *p, bool accumulate_kv, char *out, size_t size);

/* clt_op_attention_last by one row of attention_last.vt; the call was checked. */
clt_status clt_attention_run_last(clt_ops *ops, const clt_variant *v, const clt_attention_params *p,
                                  int64_t rows);

#endif
