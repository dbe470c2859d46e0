/* bench: shared by the benchmarks: common options, opening the device, timing, and the result rows as a table
 * and as JSON. A benchmark is a file bench_NAME.c that adds one bench_row per measured call. */
#ifndef CLBENCH_BENCH_H
#define CLBENCH_BENCH_H

#include "runtime/base/clt_options.h"
#include "runtime/ops/clt_variant.h"

typedef struct {
    const char *suite, *device, *json, *numerics, *type_name;
    const char *only; /* only rows whose operation or shape contains it; NULL: all */
    clt_dtype type;   /* of the tensors, if the benchmark has forms for it */
    bool check, cpu_time, kernel_only;
    double seconds; /* time spent measuring one row */
    int64_t threads;
    clt_strv anchors;
    /* opened */
    clt_device *dev;
    clt_ops *ops;
    bool fast;
    double peak_flops, peak_bytes; /* per second, of this device */
    double peak_matrix;            /* of 16-bit matrix units; 0: unknown */
    double nominal, nominal_bytes; /* TFLOP/s and GB/s that the vendor states; 0: not given */
    struct bench_row *rows;
    size_t n_rows;
} bench;

/* Besides other libraries: what gemm8 compares with, the product of wider types and a copy. */
enum { BENCH_OPENBLAS, BENCH_CLBLAST, BENCH_GEMM, BENCH_COPY, BENCH_ANCHORS };

typedef struct bench_row {
    char op[32], shape[64], variant[48];
    clt_dtype type;
    double seconds;
    double flops, bytes;                  /* of one call; 0: not counted */
    double anchor_seconds[BENCH_ANCHORS]; /* 0: not measured */
    bool integers;                        /* flops counts operations on integers, whose peak is unknown */
    bool checked, ok;
    double max_error; /* largest absolute difference from the oracle */
} bench_row;

/* Names of the anchors, in the order of anchor_seconds. */
extern const char *const bench_anchor_names[BENCH_ANCHORS];

/* A benchmark's command line. */
typedef struct {
    const char *name, *summary, *examples, *suites;
    const clt_option *more; /* options besides the common ones */
    size_t n_more;
    int (*check)(const clt_command *c); /* checks these after parsing: -1 or an exit code; NULL: no check */
    bool anchors;                       /* whether other libraries can be measured too */
} bench_about;
/* Parses the options, opens the device, measures its peaks. Returns -1 to continue, else the exit code.
 * Zeroes b first, except for suite, which is the default. */
int bench_start(bench *b, const bench_about *about, int argc, char **argv);
/* Prints the table's foot, writes the JSON file, closes the device; returns the exit code: 1 if a check
 * failed. */
int bench_end(bench *b, clt_status st);

/* One thing to time: queues one call and does not wait. */
typedef clt_status (*bench_call)(void *ctx);
/* Calls per timed block, so that a block takes some milliseconds. The first call (compilation) does not
 * count. It then keeps a GPU busy with the call for b->seconds: at its power limit the clock falls for some
 * tenths of a second, and results must not depend on how long the card was idle before. */
clt_status bench_calibrate(bench *b, bench_call call, void *ctx, int *calls);
/* Seconds per call of one block: `calls` calls, then a wait for the device; with --cpu-time processor
 * seconds. */
clt_status bench_block(bench *b, bench_call call, void *ctx, int calls, double *seconds);
/* Seconds per call that the device spent in the slowest kernel, over `calls` calls. */
clt_status bench_kernel_time(bench *b, bench_call call, void *ctx, int calls, double *seconds);
double bench_median(double *v, int n); /* sorts v */
/* Calibration and blocks: the median over blocks for b->seconds, not counting bench_calibrate. */
clt_status bench_time(bench *b, bench_call call, void *ctx, double *seconds);

/* Whether --only selects this row. */
bool bench_wants(const bench *b, const char *op, const char *shape);
/* Adds the row and prints it. */
void bench_add(bench *b, const bench_row *row);
/* The variant that an operation uses: the forced one, or the first that passed its check. */
void bench_variant(bench *b, const char *op, char *out, size_t size);

/* Device tensors of random numbers in [-1, 1), the same for the same seed; *host (optional) receives a copy,
 * which the caller frees. */
clt_status bench_tensor(bench *b, uint64_t n, uint64_t seed, const char *name, clt_ref *out, float **host);
/* The same, stored as `type`; *host has the rounded values. */
clt_status bench_tensor_as(bench *b, clt_dtype type, uint64_t n, uint64_t seed, const char *name,
                           clt_ref *out, float **host);
void bench_free(clt_ref r);
/* Largest |got - want|; NaN against anything else is infinite. *same: whether the bits are equal. */
double bench_difference(const float *got, const float *want, size_t n, bool *same);

/* --- anchors: other libraries' matrix product, c = op(a) op(b) + beta c, row-major --- */

typedef struct {
    bool trans_a, trans_b;
    int64_t m, n, k, lda, ldb, ldc;
    float beta;
} anchor_shape;
/* Loads OpenBLAS with the core type that is fastest on a CPU device with these facts: as many threads as it
 * has compute units, registers no wider than its programs'. false: not installed. */
bool anchor_openblas_load(const clt_device_facts *f);
const char *anchor_openblas_core(void); /* its name, for the report */
void anchor_openblas(const anchor_shape *s, const float *a, const float *b, float *c);
/* The hidden subcommand that measures a core type: prints GFLOP/s. */
int anchor_openblas_rate(void);

int bench_gemm(int argc, char **argv);
int bench_fp8(int argc, char **argv);
int bench_gemm8(int argc, char **argv);
int bench_attention(int argc, char **argv);
int bench_collective(int argc, char **argv); /* argv[0]: allreduce, reduce-scatter, all-gather */
int bench_copy(int argc, char **argv);
int bench_decode(int argc, char **argv);
int bench_activation(int argc, char **argv);
int bench_loss(int argc, char **argv);
int bench_norm(int argc, char **argv);
int bench_optimizer(int argc, char **argv);
int bench_step(int argc, char **argv);
int bench_numa(int argc, char **argv);
int bench_schedule(int argc, char **argv);
int bench_tokenize(int argc, char **argv);
int bench_pictures(int argc, char **argv);
int bench_order(int argc, char **argv);
int bench_file(int argc, char **argv);
int bench_link(int argc, char **argv);

#endif
