/* clt_tune: measured choices: which row of a variant table is the fastest for a shape on this device.
 *
 * In this header a row is a row of a variant table, a line a line of tune.csv.
 *
 * The order of a table is a guess about all shapes. An operation that chooses by shape asks here first, so
 * the precedence is: forced by the user, measured on this device, checked in, order of the table. Measured
 * choices are kept in tune.csv in the device's cache folder, one line per op, shape, device and driver: op,
 * shape, variant, seconds, error, key, device, driver. The key is clt_variant_key: device, driver, options,
 * kernel text, library and numerics. A line whose key is not current is ignored.
 *
 * Without a current line for this device and driver, the checked-in lines count (clkernels/tuned.csv): the
 * same columns with CLT_TUNE_KNOWN as the key, matched by the device's name alone, for every driver and
 * kernel text. With clt_ops_params.tune_again neither file is read.
 *
 * A row is returned only if its check passed (clt_variant_verify). A row is measured only if its sampled
 * outputs at this shape also agree with the oracle; this is not repeated for lines of the two files. With
 * numerics exact all rows give the same bits, so measuring changes only time. With numerics fast another row
 * may add in another order, so a run's bits depend on its measured choices.
 *
 * Private to runtime/ops and the tuning command; other code uses clt_ops_params.tune and clt_ops_tuned. */
#ifndef CLT_TUNE_H
#define CLT_TUNE_H

#include "runtime/ops/clt_variant.h"

/* How an operation measures its rows, on tensors made for timing. */
typedef struct {
    /* Makes the tensors of a call with the shape of `call`; *tensors is passed to the other functions. Errors
     * are not printed while it runs. CLT_FAIL: the shape is not worth the memory; it is not measured. With
     * CLT_NO_MEMORY it is not measured either, and a warning says so. On failure it must free what it made:
     * drop is not called. */
    clt_status (*make)(clt_ops *ops, const void *call, void **tensors);
    /* Queues one call of row v. */
    clt_status (*run)(clt_ops *ops, const clt_variant *v, void *tensors);
    /* Runs one call of row v. *error: the largest |result - oracle| / bound over sampled outputs, where the
     * bound allows any order of summation. 0: the same bits; above 1: wrong. With numerics exact a row with
     * an error above 0 is not used. */
    clt_status (*error)(clt_ops *ops, const clt_variant *v, void *tensors, double *error);
    /* Frees what make made. */
    void (*drop)(void *tensors);
    /* Whether row v can be the fastest on this device; if not, it is not measured. NULL: measure every row.
     */
    bool (*worth)(const clt_ops *ops, const clt_variant *v);
} clt_tune_kind;
/* A `worth`: on a CPU rows for work-groups are used only if those for CPUs fail. */
bool clt_tune_worth(const clt_ops *ops, const clt_variant *v);

/* Tensors for measuring repeat a block of random numbers in [-1, 1]: element e of a tensor of clt_tune_tensor
 * is pattern[e % CLT_TUNE_PERIOD]. The period is a prime, so that rows differ unless their distance is a
 * multiple of it. */
enum { CLT_TUNE_PERIOD = 1048573 };
/* The block, rounded to `type`, always the same; the caller frees it with clt_free. CLT_NO_MEMORY: *out NULL.
 */
clt_status clt_tune_pattern(clt_dtype type, float **out);
/* A new buffer with n elements of `type`. The caller destroys out->buf, which a failure may leave set. */
clt_status clt_tune_tensor(clt_ops *ops, const float *pattern, clt_dtype type, uint64_t n, clt_ref *out);

/* Whether tensors of `all` bytes, the largest of them `most`, may be made: they take at most an eighth of the
 * device's memory, because the rest is planned for the run. */
bool clt_tune_fits(const clt_ops *ops, uint64_t all, uint64_t most);

/* The call that needs a row. `shape` names everything that the call's time depends on, without commas; the
 * line's second column is `shape`, a space, and the numerics mode ("exact" or "fast"). */
typedef struct {
    clt_variant_question variant;
    const char *shape;
    const clt_tune_kind *kind;
} clt_tune_question;

/* *out: the row to use by measurement, owned by ops; NULL with CLT_OK: the table decides. If no line gives a
 * row, the shape is measured now, provided that clt_ops_params.tune is CLT_TUNE_FILL, more than one row
 * supports the call, time is left, the device is not steady (clt_device_set_steady), no rehearsal runs, and
 * this run has not tried the shape before. Measuring waits for the device. CLT_STOPPED as clt_ops_let_stop
 * says; otherwise the error of a check or launch that gives no verdict. */
clt_status clt_tune_pick(clt_ops *ops, const clt_tune_question *q, const clt_variant **out);

/* Whether clt_tune_pick can return a row for this operation: lines exist (of any operation) or measuring is
 * on, and the user forced no row of `op`. Cheap. */
bool clt_ops_tunes(const clt_ops *ops, const char *op);

/* Adds the lines of `text` (the contents of clkernels/tuned.csv) that are for this device, unless tuning is
 * off. Returns the number of its valid lines, for all devices. A line that begins with `#`, or is invalid, is
 * skipped. */
int clt_tune_add_known(clt_ops *ops, const char *text);

/* For clt_ops.c. open reads both files, unless tuning is off. close saves new lines (clt_ops_keep_tuned) and
 * frees. */
void clt_tune_open(clt_ops *ops);
void clt_tune_close(clt_ops *ops);

#endif
