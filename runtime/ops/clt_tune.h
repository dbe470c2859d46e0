/* clt_tune: which row of a variant table is the fastest for one shape on this device, as it was measured.
 *
 * A table's order is a guess about all shapes. An operation that chooses by shape asks here first: the order
 * is forced by the user > measured > the table. Measured choices are kept in the device's cache folder,
 * tune.csv, one line a shape: op, shape, variant, seconds, error, key, device, driver. The key covers device,
 * driver, kernel text and build options: a line whose key is not today's counts as absent.
 *
 * Behind the device's own lines stand those that are checked in, clkernels/tuned.csv: the same columns with
 * CLT_TUNE_KNOWN for a key, chosen by the device's name alone, whatever its driver and the kernels' text are
 * by now. tune_again asks neither.
 *
 * A row is chosen only with a passed check (clt_variant_verify), and only if what it computed at this shape
 * agrees with the oracle at sampled outputs. With numerics exact all rows give the same bits, so measuring
 * changes nothing but time; with numerics fast another row may add in another order, and a run's bits belong
 * to the choices that it found.
 *
 * For the parts of runtime/ops; programs use clt_ops_params.tune and clt_ops_tuned. */
#ifndef CLT_TUNE_H
#define CLT_TUNE_H

#include "runtime/ops/clt_variant.h"

/* How an operation measures its rows on tensors of its own. */
typedef struct {
    /* Makes tensors for a call of this shape; CLT_FAIL: the shape is not worth the memory. It, and one that
     * the memory left does not do for, is not measured; what is said then is not printed. */
    clt_status (*make)(clt_ops *ops, const void *call, void **tensors);
    /* Queues one call of this row. */
    clt_status (*run)(clt_ops *ops, const clt_variant *v, void *tensors);
    /* The largest error of one call against the oracle at sampled outputs, relative to the bound of any order
     * of summation: 0 the same bits, above 1 wrong. */
    clt_status (*error)(clt_ops *ops, const clt_variant *v, void *tensors, double *error);
    void (*drop)(void *tensors);
    /* Whether this row may win on this device at all, so that it is worth the time; NULL: every row. */
    bool (*worth)(const clt_ops *ops, const clt_variant *v);
} clt_tune_kind;

/* Tensors for it: a block of random numbers in [-1, 1) over and over. Element e of a tensor that
 * clt_tune_tensor made is pattern[e % CLT_TUNE_PERIOD]; a prime, so that no row distance repeats it. */
enum { CLT_TUNE_PERIOD = 1048573 };
float *clt_tune_pattern(clt_dtype type); /* rounded to type; the caller frees it */
clt_status clt_tune_tensor(clt_ops *ops, const float *pattern, clt_dtype type, uint64_t n, clt_ref *out);
/* "fp32", "bf16", "fp16": for shapes. */
const char *clt_tune_type_name(clt_dtype type);

/* What is to be chosen. `shape` is the line's second column: no commas, everything that time depends on. */
typedef struct {
    const char *op, *shape, *options;
    clt_variant_takes takes; /* whether a row can do the call at all */
    clt_variant_check check;
    const void *call;
    const clt_tune_kind *kind;
} clt_tune_question;

/* The measured row for this question, measuring it now if clt_ops_params.tune is CLT_TUNE_FILL, several rows
 * can do the call, time is left and the device is not steady yet. *out NULL: none, the table decides. */
clt_status clt_tune_pick(clt_ops *ops, const clt_tune_question *q, const clt_variant **out);

/* Whether there is anything to ask about this operation, whose row the user did not force: cheap. */
bool clt_ops_tunes(const clt_ops *ops, const char *op);

/* Adds the checked-in lines of this device that `text` has (clkernels/tuned.csv; `#` starts a comment);
 * returns how many lines it has for any device. */
int clt_tune_add_known(clt_ops *ops, const char *text);

/* For clt_ops.c: reads the device's tune.csv; releases. */
void clt_tune_open(clt_ops *ops);
void clt_tune_close(clt_ops *ops);

#endif
