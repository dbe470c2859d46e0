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
/* Writes the build options for the head size, the type and the optional features of p. */
void clt_attention_options(const clt_attention_params *p, char out[CLT_ATTENTION_OPTIONS]);
/* The same, and whether the backward pass of a body for CPUs takes two launches. */
void clt_attention_cpu_options(const clt_ops *ops, const clt_attention_params *p,
                               char out[CLT_ATTENTION_OPTIONS]);
/* CLT_FAIL, with a message, for sizes, types, masks and probabilities that no body supports. */
clt_status clt_attention_validate(const clt_attention_params *p);
/* The same for the types of a backward pass, which must be one. */
clt_status clt_attention_validate_gradients(const clt_attention_grad_params *g);

/* A kind of body: how rows of the two tables with this word `body` run. `v` is the row. All functions may
 * assume that the call was checked. A new kind is a file that defines a clt_attention_body, named here and in
 * the list in clt_op_attention.c. */
typedef struct {
    const char *name; /* `body` of the tables' rows */
    clt_status (*forward)(clt_ops *ops, const clt_variant *v, const clt_attention_params *p);
    clt_status (*backward)(clt_ops *ops, const clt_variant *v, const clt_attention_grad_params *g);
    /* Whether this kind supports the call, beyond what a row's params say; NULL: every call. */
    bool (*takes_forward)(const clt_variant *v, const clt_attention_params *p);
    bool (*takes_backward)(const clt_variant *v, const clt_attention_grad_params *g);
    /* Upper bound in bytes of the scratch memory of either pass on this kind of device; NULL: no scratch. */
    uint64_t (*workspace)(clt_device_type type, const clt_attention_params *p);
} clt_attention_body;
extern const clt_attention_body clt_attention_wgmma, clt_attention_kept;

/* Parts of body "group" for bodies that use its kernels. launch_tiles: `tiles` work-groups of the row's ITEMS
 * for each of `heads` heads of `batch` samples. delta: queues the kernel of that name; *out is scratch memory
 * of slot 0. gradient_args: BACKWARD_ARGS of clkernels/attention/attention_mma_backward.cl and the like. */
clt_status clt_attention_launch_tiles(clt_ops *ops, const clt_variant *v, const char *name, int64_t tiles,
                                      int64_t heads, int64_t batch, const clt_attention_args *l);
clt_status clt_attention_delta(clt_ops *ops, const clt_variant *v, const clt_attention_grad_params *g,
                               clt_buffer **out);
clt_attention_args clt_attention_gradient_args(const clt_attention_grad_params *g, clt_buffer *delta);

/* Memory for ds, for rows with KEEP_DS. head_bytes: of one query head, its blocks of 64 x 64 on and below the
 * diagonal. space: bytes in the caller's spare memory or in the row's own scratch memory. place: where it
 * starts, counted in words; `bytes`: how much of it is needed. */
uint64_t clt_attention_kept_head_bytes(const clt_attention_params *p);
uint64_t clt_attention_kept_space(const clt_attention_grad_params *g);
clt_status clt_attention_kept_place(clt_ops *ops, const clt_attention_grad_params *g, uint64_t bytes,
                                    clt_ref *kept);

/* Whether row v supports this call; if not, a later row of the table is tried. Params of rows that limit it,
 * in both tables: TYPES, the sum of 1 fp32, 2 bf16 and 4 fp16 (all types if absent); MASKS, the sum of 1
 * causal and 2 none (both masks if absent); MIN_D and MAX_D, the smallest and largest head size. */
bool clt_attention_takes_forward(const clt_variant *v, const clt_attention_params *p);
bool clt_attention_takes_backward(const clt_variant *v, const clt_attention_grad_params *g);

/* Queues one pass with row v's body; the call must have been checked, and v must support it. */
clt_status clt_attention_run_forward(clt_ops *ops, const clt_variant *v, const clt_attention_params *p);
clt_status clt_attention_run_backward(clt_ops *ops, const clt_variant *v, const clt_attention_grad_params *g);

/* The forward pass of body "wgmma" (clt_op_attention_wgmma.c). It supports 16-bit types, head sizes that are
 * multiples of 8 up to 128, a scale above 0, no dropout, and tensors that are aligned as tensor maps need it
 * (clt_tensor_map_fits); without the causal mask no window and no ALiBi, like the backward pass (takes_mask).
 */
bool clt_attention_wgmma_takes_mask(const clt_attention_params *p);
bool clt_attention_wgmma_takes(const clt_variant *v, const clt_attention_params *p);
clt_status clt_attention_wgmma_forward(clt_ops *ops, const clt_variant *v, const clt_attention_params *p);

/* Checks of rows (clt_variant_check). ctx: the params of the call that needs the row, for head size, type and
 * features; backward: clt_attention_grad_params. Rows that require numerics=fast are compared with the
 * formula in double within the bound of clt_ref_attention_row and clt_ref_attention_gradients, all others
 * with the oracle's bits. */
clt_status clt_attention_check_forward(clt_ops *ops, const clt_variant *v, void *ctx);
clt_status clt_attention_check_backward(clt_ops *ops, const clt_variant *v, void *ctx);
/* The same for rows of attention_last.vt (ctx: the params of the call), which are all exact. */
clt_status clt_attention_check_last(clt_ops *ops, const clt_variant *v, void *ctx);

/* How rows of the two tables are timed at a shape (clt_op_attention_tune.c). */
extern const clt_tune_kind clt_attention_tune_forward, clt_attention_tune_backward;
/* Writes the shape of a call to `out` as clt_tune_question.shape needs it. */
void clt_attention_shape(const clt_attention_params *p, bool accumulate_kv, char *out, size_t size);
/* The row for a call with these parameters: by measurement (kind), otherwise by the table. */
clt_status clt_attention_pick(clt_ops *ops, const clt_variant_question *q, const clt_attention_params *p,
                              bool accumulate_kv, const clt_tune_kind *kind, const clt_variant **v);

/* Queues clt_op_attention_last with row v of attention_last.vt; the call must have been checked. `rows`:
 * output rows. */
clt_status clt_attention_run_last(clt_ops *ops, const clt_variant *v, const clt_attention_params *p,
                                  int64_t rows);

#endif
