/* clt_variant: the tables of kernel variants. clkernels/<op>/<op>.vt lists, one per line, the kernels of an
 * operation, what they require and their params. The portable row comes last and requires nothing. An
 * operation uses the first row whose requirements hold on this device and whose check against the oracle
 * passed on it.
 *
 *     # id        file                  body   requires               params
 *     cpu_8x32    gemm/gemm_cpu.cl      cpu    type=cpu               MR=8,NR=32
 *     portable    gemm/gemm_portable.cl group  -                      WG=16
 *
 * requires: comma list, `-`: nothing; docs/how-to-add-a-kernel.md lists the words. params become -D options
 * of the build unchanged. */
#ifndef CLT_VARIANT_H
#define CLT_VARIANT_H

#include "runtime/ops/clt_ops_context.h"

typedef struct {
    char op[32], id[48], file[96], body[16], requires[160], params[256];
    char uses[96];     /* FILE of a word uses=FILE in `requires`, whose kernels it launches, too; "": none */
    char options[384]; /* params as " -DMR=8 -DNR=32" */
    bool usable;       /* its requirements hold on this device, and it is not disabled */
    bool disabled;     /* CLTRAIN_DISABLE_ROW names it */
    int verdict;       /* 0: not checked yet, 1: passed, -1: failed or does not build */
    bool rehearsed;    /* whether its check was rehearsed (clt_device_rehearse) */
    char reason[512];  /* why it failed */
} clt_variant;

/* Value of an integer parameter (MR=8 -> 8), or `fallback`. */
long clt_variant_param(const clt_variant *v, const char *name, long fallback);

/* All rows of an operation's table in its order, without a device (`usable` is not set); the caller frees
 * them (clt_free). Returns their number, 0 for an unknown operation. */
int clt_variant_rows(const char *op, clt_variant **rows);

/* What a row lacks here, as a text that the caller frees: the words of `requires` that do not hold (" wgmma
 * tensor_map"), or " not_disabled". NULL: it is usable. */
char *clt_variant_why_not(const clt_ops *ops, const clt_variant *v);

/* The operations that have a table; NULL for i from their number on. */
const char *clt_variant_op(const clt_ops *ops, int i);
/* All rows of an operation: first those that can run here, best first, then the others in the table's order.
 */
const clt_variant *clt_variant_all(const clt_ops *ops, const char *op, int *n);

/* For options of programs (clt_options.h). */
#define CLT_DISABLE_ROW_OPTION                                                                               \
    {                                                                                                        \
        "disable-row", 0, CLT_OPT_ENV, "CLTRAIN_DISABLE_ROW", "LIST",                                        \
            "leave kernel variants out: OP=ID, or a word that they require (wgmma), with * and ?; comma "    \
            "list"                                                                                           \
    }

/* The rows of an operation that can run here, best first; *n is 0 only for an unknown operation. */
clt_variant *clt_ops_variants(clt_ops *ops, const char *op, int *n);

/* Runs one variant at a few small shapes and compares with the oracle. CLT_OK: passed. CLT_AGAIN,
 * CLT_NO_MEMORY, CLT_STOPPED: no verdict. Anything else: failed. It may print debug lines, but no errors. */
typedef clt_status (*clt_variant_check)(clt_ops *ops, const clt_variant *v, void *ctx);

/* The variant to use for an operation: the forced one (CLTRAIN_VARIANT, clt_variant_force), otherwise the
 * first usable row, that passes `check`. *out is borrowed from ops. Verdicts are kept in memory and in the
 * device's cache folder (key: device, driver, kernel text, options), so that a warm start checks nothing; a
 * failure for lack of memory or resources is kept in memory alone. A failing row is reported once and
 * skipped. CLT_FAIL: none passes. CLT_USAGE: unknown operation. A status without a verdict is returned at
 * once. */
clt_status clt_variant_pick(clt_ops *ops, const char *op, clt_variant_check check, void *ctx,
                            const clt_variant **out);

/* A call that needs a row. */
typedef bool (*clt_variant_takes)(const clt_variant *v, const void *call);
typedef struct {
    const char *op;
    const char *options; /* build options of programs made for one model (" -DHEAD_DIM=64"), added to every
                            row's own: a row is checked, and has a verdict, for each of them */
    clt_variant_takes takes; /* whether a row supports the call; NULL: all do */
    clt_variant_check check; /* gets `call` too */
    const void *call;
    /* The call in words, for the message if no row supports it; NULL: none. */
    void (*describe)(const void *call, char *out, size_t size);
} clt_variant_question;
clt_status clt_variant_pick_for(clt_ops *ops, const clt_variant_question *q, const clt_variant **out);

/* The same for one row: *out NULL if it cannot run here, does not support the call, or fails its check (check
 * NULL: it is not checked). */
clt_status clt_variant_pick_row(clt_ops *ops, const clt_variant_question *q, const char *id,
                                const clt_variant **out);

/* The verdict of one row, from memory, from the cache, or from running `check` now. CLT_OK: it may be used.
 * With skip_check every row passes. */
clt_status clt_variant_verify(clt_ops *ops, clt_variant *v, clt_variant_check check, void *ctx);
/* Whether this status of a check gives no verdict on its row: the device hangs or is full, or a signal. */
bool clt_variant_says_nothing(clt_status st);

/* For operations that a caller can replace by others: the first usable row that supports the call and passes
 * its check; *out NULL if there is none. CPUs take such rows only if they are forced, for tests. */
clt_status clt_variant_pick_optional(clt_ops *ops, const clt_variant_question *q, const clt_variant **out);

/* A key over what a row's results and times depend on, as 32 hex digits: device, driver, options, text of all
 * its kernels, version of its library, numerics. */
void clt_variant_key(clt_ops *ops, const clt_variant *v, char key[33]);

/* Forces row `id` of `op` from now on, as CLTRAIN_VARIANT=op=id does; id NULL: free choice again. An
 * unknown operation or id, or one that cannot run here, is CLT_USAGE with a list of the ids. */
clt_status clt_variant_force(clt_ops *ops, const char *op, const char *id);
/* The id that is forced for `op`, or NULL. */
const char *clt_variant_forced(const clt_ops *ops, const char *op);

/* "attention=long_32 gemm=cpu_8x32,portable ...": the rows of each operation that were requested so far and
 * passed their check; the caller frees it. */
char *clt_variants_used(const clt_ops *ops);
/* The number of checks that ran for this ops; verdicts from the cache do not count. */
int clt_variants_checked(const clt_ops *ops);

/* Whether a check runs in a rehearsal (clt_device_rehearse): it must make all of its calls, so that their
 * programs are known, and may skip the oracle. clt_variant_fail then returns CLT_OK. */
bool clt_variant_is_rehearsed(const clt_ops *ops);

/* For checks. fail: keeps the reason for the report (printf format, no newline), prints nothing and returns
 * CLT_FAIL. compare: reads n floats and compares them with the oracle's bit by bit, in every numerics mode
 * (any NaN equals any NaN); the first difference becomes the reason. */
clt_status clt_variant_fail(clt_ops *ops, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
clt_status clt_variant_compare(clt_ops *ops, const char *what, clt_ref got, const float *want, size_t n);

/* The same for n elements of `type` (got.off counts them); `want` are the oracle's fp32 values before the
 * store. */
clt_status clt_variant_compare_as(clt_ops *ops, clt_dtype type, const char *what, clt_ref got,
                                  const float *want, size_t n);

/* Scratch memory of at least `bytes`, contents undefined. All operations share it, because they run in order.
 * A larger request replaces the slot's buffer: pointers from earlier calls are invalid; queued kernels are
 * not affected. Slots 0 ... 3 are different buffers. */
clt_status clt_ops_scratch(clt_ops *ops, int slot, uint64_t bytes, clt_buffer **out);

/* At least `count` counters (uint) for kernels whose work-groups take tiles by an atomic or wait for each
 * other. They are 0 before a launch, and the kernel leaves them 0. Kernels run in order and share them. A
 * larger request replaces the buffer. */
clt_status clt_ops_counters(clt_ops *ops, uint64_t count, clt_buffer **out);

#endif
