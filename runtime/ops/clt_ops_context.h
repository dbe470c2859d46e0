/* clt_ops_context: the context that every operation is called with: a device, the numerics mode, the variant
 * tables filtered for the device, shared scratch memory, and the measured choices among kernel variants. A
 * context is used by one thread at a time, the thread that uses its device. */
#ifndef CLT_OPS_CONTEXT_H
#define CLT_OPS_CONTEXT_H

#include "runtime/ops/clt_tensor.h"

typedef struct clt_ops clt_ops;

/* CLT_EXACT: all results have the oracle's bits (docs/numerics.md). CLT_FAST: table rows that require
 * numerics=fast may be used too; they stay within a bound of the exact formula. */
typedef enum { CLT_EXACT, CLT_FAST } clt_numerics;

/* How operations that choose among kernels by shape use measurements.
 * CLT_TUNE_OFF: not at all; the order of the variant table decides.
 * CLT_TUNE_CACHE: known choices count: tune.csv of the device's cache folder, then clkernels/tuned.csv.
 * CLT_TUNE_FILL: as CLT_TUNE_CACHE, and a shape without a known choice is measured at its first call. No
 *     measurement begins after tune_seconds in total; one that runs then may exceed the limit. */
typedef enum { CLT_TUNE_OFF, CLT_TUNE_CACHE, CLT_TUNE_FILL } clt_tune_mode;

typedef struct {
    clt_numerics numerics;
    bool skip_check; /* for tests of the checker: use variants unchecked */
    clt_tune_mode tune;
    double tune_seconds; /* limit of measuring, for the lifetime of the context */
    bool tune_again;     /* ignore tune.csv and tuned.csv when choosing; new lines still go to tune.csv */
} clt_ops_params;
/* CLT_EXACT, CLT_TUNE_OFF, tune_seconds 5, all flags false. */
clt_ops_params clt_ops_params_default(void);

/* Loads the variant tables (clkernels/<op>/<op>.vt), filters them by the device's facts and applies
 * CLTRAIN_VARIANT. p NULL: the defaults. dev is borrowed and must outlive the context. On failure *out is
 * unchanged: CLT_FAIL for an invalid table, or the error of CLTRAIN_VARIANT (clt_variant_force). */
clt_status clt_ops_create(clt_device *dev, const clt_ops_params *p, clt_ops **out);
/* Saves new measurements (clt_ops_keep_tuned) and releases the context; NULL is allowed. Does not wait for
 * queued work. */
void clt_ops_destroy(clt_ops *ops);

clt_device *clt_ops_device(const clt_ops *ops);
clt_numerics clt_ops_numerics(const clt_ops *ops);
/* Bytes of device scratch memory that the operations hold now, without their counters (clt_ops_counters). */
uint64_t clt_ops_workspace_bytes(const clt_ops *ops);

/* While on, an operation that has kernels left to check or time returns CLT_STOPPED, without a message, if a
 * signal has asked the run to stop (clt_signal_received). An operation whose kernels are known is not
 * affected. Off by default: the caller must ensure that all ranks stop together. */
void clt_ops_let_stop(clt_ops *ops, bool on);
/* Whether clt_ops_let_stop is on and such a signal was received. */
bool clt_ops_stops(const clt_ops *ops);

/* A measured choice: a line of tune.csv (clt_tune.h). */
typedef struct {
    char op[32], shape[96], variant[48];
    double seconds; /* of one call; 0: this run found no variant to measure, or no time was left */
    double error;   /* largest sampled |got - oracle| / bound for any order of sums; 0: the same bits */
    /* key: clt_variant_key or CLT_TUNE_KNOWN; device and driver: names, with commas replaced by spaces */
    char key[33], device[128], driver[128];
    int today; /* whether the key is current: 1 yes, -1 no (the line is ignored), 0 not compared yet */
} clt_tuned;
/* The key of a checked-in choice (clkernels/tuned.csv), which holds for every driver and kernel text. */
#define CLT_TUNE_KNOWN "-"
/* Appends the choice to b as a line of tune.csv, with `key` instead of t->key. */
void clt_tuned_add(clt_str *b, const clt_tuned *t, const char *key);
/* All lines in memory: tune.csv, which may hold lines of other devices, the lines of tuned.csv for this
 * device, and what this run measured. Owned by ops; valid until the next operation or clt_ops_destroy. NULL
 * and *n 0 with CLT_TUNE_OFF. */
const clt_tuned *clt_ops_tuned(const clt_ops *ops, int *n);
/* Writes new measurements to tune.csv now instead of at clt_ops_destroy; lines of other processes are kept.
 * true if nothing is new, and with CLTRAIN_DISABLE_ROW, whose choices are not kept. false: they could not be
 * written, or the device has no cache folder (then without a message, otherwise with a warning);
 * clt_ops_destroy does not try again. */
bool clt_ops_keep_tuned(clt_ops *ops);

#endif
