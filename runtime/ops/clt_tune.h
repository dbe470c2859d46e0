/* clt_tune: measured choices: which row of a variant table is the fastest for a shape on this device.
 *
 * The order of a table is a guess about all shapes. An operation that chooses by shape asks here first, so
 * the precedence is: forced by the user, measured, order of the table. Measured choices are kept in
 * tune.csv in the device's cache folder, one line per shape: op, shape, variant, seconds, error, key, device,
 * driver. The key covers device, driver, kernel text and build options; a line whose key is not current is
 * ignored.
 *
 * Where the device has no line, the checked-in ones count (clkernels/tuned.csv): the same columns with
 * CLT_TUNE_KNOWN for a key, matched by the device's name alone, for every driver and kernel text. tune_again
 * ignores both.
 *
 * A row is chosen only if its check passed (clt_variant_verify) and its sampled outputs at this shape agree
 * with the oracle. With numerics exact all rows give the same bits, so measuring changes only time. With
 * numerics fast another row may add in another order, so a run's bits depend on its measured choices.
 *
 * For the parts of runtime/ops; programs use clt_ops_params.tune and clt_ops_tuned. */
#ifndef CLT_TUNE_H
#define CLT_TUNE_H

#include "runtime/ops/clt_variant.h"

/* How an operation measures its rows, on tensors made for timing. */
typedef struct {
    /* Makes tensors for a call of this shape. CLT_FAIL: the shape is not worth the memory. In that case, and
     * if memory runs out, the shape is not measured and nothing is printed. */
    clt_status (*make)(clt_ops *ops, const void *call, void **tensors);
    /* Queues one call of this row. */
    clt_status (*run)(clt_ops *ops, const clt_variant *v, void *tensors);
    /* The largest error of one call against the oracle at sampled outputs, relative to the bound of any order
     * of summation: 0 the same bits, above 1 wrong. */
    clt_status (*error)(clt_ops *ops, const clt_variant *v, void *tensors, double *error);
    void (*drop)(void *tensors);
    /* Whether this row can win on this device at all, so that it is worth the time; NULL: every row. */
    bool (*worth)(const clt_ops *ops, const clt_variant *v);
} clt_tune_kind;

/* Tensors for measuring repeat a block of random numbers in [-1, 1): element e of a tensor of clt_tune_tensor
 * is pattern[e % CLT_TUNE_PERIOD]; a prime, so that no row distance repeats it. */
enum { CLT_TUNE_PERIOD = 1048573 };
clt_status clt_tune_pattern(clt_dtype type, float **out); /* rounded to type; free with clt_free */
clt_status clt_tune_tensor(clt_ops *ops, const float *pattern, clt_dtype type, uint64_t n, clt_ref *out);

/* The call that needs a row. `shape` is the line's second column: everything that its time depends on,
 * without commas. */
typedef struct {
    clt_variant_question variant;
    const char *shape;
    const clt_tune_kind *kind;
} clt_tune_question;

/* The measured row for this question. It is measured now if clt_ops_params.tune is CLT_TUNE_FILL, several
 * rows support the call, time is left and the device is not steady yet. *out NULL: the table decides. */
clt_status clt_tune_pick(clt_ops *ops, const clt_tune_question *q, const clt_variant **out);

/* Whether clt_tune_pick can return a row for this operation: lines exist or measuring is on, and the user
 * forced no row. Cheap. */
bool clt_ops_tunes(const clt_ops *ops, const char *op);

/* Adds the checked-in lines of this device from `text` (clkernels/tuned.csv; `#` starts a comment); returns
 * how many lines it has for any device. */
int clt_tune_add_known(clt_ops *ops, const char *text);

/* For clt_ops.c: reads the device's tune.csv; frees. */
void clt_tune_open(clt_ops *ops);
void clt_tune_close(clt_ops *ops);

#endif
