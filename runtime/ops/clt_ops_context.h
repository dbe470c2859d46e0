/* clt_ops_context: the context that every operation is called with: a device, the numerics mode, the variant
 * tables filtered for the device, shared scratch memory, and the measured choices among kernel variants. */
#ifndef CLT_OPS_CONTEXT_H
#define CLT_OPS_CONTEXT_H

#include "runtime/ops/clt_tensor.h"

typedef struct clt_ops clt_ops;

typedef enum { CLT_EXACT, CLT_FAST } clt_numerics;

/* How operations that choose among kernels by shape use measurements: not at all; those in the device's cache
 * folder; or those, plus measuring a shape at its first call, for at most tune_seconds in total. */
typedef enum { CLT_TUNE_OFF, CLT_TUNE_CACHE, CLT_TUNE_FILL } clt_tune_mode;

typedef struct {
    clt_numerics numerics;
    bool skip_check; /* for tests of the checker: use variants unchecked */
    clt_tune_mode tune;
    double tune_seconds;
    bool tune_again; /* ignore cached measurements */
} clt_ops_params;
clt_ops_params clt_ops_params_default(void);

/* Loads the variant tables (clkernels/<op>/<op>.vt) and filters them by the device's facts. */
clt_status clt_ops_create(clt_device *dev, const clt_ops_params *p, clt_ops **out);
void clt_ops_destroy(clt_ops *ops);

clt_device *clt_ops_device(const clt_ops *ops);
clt_numerics clt_ops_numerics(const clt_ops *ops);
/* Bytes of device scratch memory that the operations hold now, for the memory table. */
uint64_t clt_ops_workspace_bytes(const clt_ops *ops);

/* While on, an operation that would first check or time kernels returns CLT_STOPPED after a signal asked the
 * run to stop (clt_signal_received). Off by default: the caller must ensure that all ranks stop together. */
void clt_ops_let_stop(clt_ops *ops, bool on);
bool clt_ops_stops(const clt_ops *ops); /* whether it would return CLT_STOPPED now */

/* A measured choice: a line of tune.csv (clt_tune.h). */
typedef struct {
    char op[32], shape[96], variant[48];
    double seconds; /* of a call; 0: no variant could be measured */
    double error;   /* against the oracle, relative to the bound for any order of sums; 0: the same bits */
    char key[33], device[128], driver[128];
    int today; /* whether the key is current: 1 yes, -1 no, 0 not compared yet */
} clt_tuned;
/* The key of a checked-in choice (clkernels/tuned.csv), which holds for every driver and kernel text. */
#define CLT_TUNE_KNOWN "-"
/* Appends a choice as a line with this key. */
void clt_tuned_add(clt_str *b, const clt_tuned *t, const char *key);
/* The choices known for this and other devices; borrowed until the next operation. */
const clt_tuned *clt_ops_tuned(const clt_ops *ops, int *n);
/* Writes the measurements to the cache folder now instead of at clt_ops_destroy. false, with a warning: they
 * could not be written. */
bool clt_ops_keep_tuned(clt_ops *ops);

#endif
