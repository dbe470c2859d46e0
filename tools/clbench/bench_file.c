/* clbench file: how fast a run's state goes to a disk and back (clt_scratch.h), beside plain reads and writes
 * of a file of the same size with O_DIRECT, one at a time. Both go through BUFFERS buffers in turn: a single
 * one, as dd has it, stays in the processor's cache, which state never does. On a virtual disk, whose
 * transfers are copies by a processor, that made reads 1.35 times as fast. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_scratch.h"
#include "tools/clbench/bench.h"

enum { MOST_ROUNDS = 99, PIECE = CLT_SCRATCH_MOST, BUFFERS = 8 };

typedef struct {
    const char *folder;
    int64_t mib, rounds;
    uint64_t bytes;
    char *memory; /* aligned; BUFFERS pieces */
} file_options;

typedef struct {
    double read, write;
} rates;

/* Moves the whole file; *rate: bytes per second. */
static clt_status move_plain(const file_options *o, int fd, bool write, double *rate) {
    const double start = clt_now();
    for (uint64_t at = 0; at < o->bytes; at += PIECE) {
        char *piece = o->memory + at / PIECE % BUFFERS * PIECE;
        const ssize_t n = write ? pwrite(fd, piece, PIECE, (off_t)at) : pread(fd, piece, PIECE, (off_t)at);
        if (n != PIECE)
            return clt_error(CLT_IO, "cannot %s %s: %s", write ? "write into" : "read from", o->folder,
                             n < 0 ? strerror(errno) : "a transfer ended early");
    }
    *rate = (double)o->bytes / (clt_now() - start);
    return CLT_OK;
}

static clt_status plain(const file_options *o, rates *out) {
    char *path = clt_path_join(o->folder, "clbench-file");
    const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
    clt_status st = CLT_OK;
    if (fd < 0) st = clt_error(CLT_IO, "cannot create %s with O_DIRECT: %s", path, strerror(errno));
    if (fd >= 0) unlink(path);
    if (st == CLT_OK && fallocate(fd, 0, 0, (off_t)o->bytes))
        st = clt_error(CLT_IO, "cannot allocate %s: %s", path, strerror(errno));
    if (st == CLT_OK) st = move_plain(o, fd, true, &out->write);
    if (st == CLT_OK) st = move_plain(o, fd, false, &out->read);
    if (fd >= 0) close(fd);
    clt_free(path);
    return st;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int64_t n) {
    qsort(x, (size_t)n, sizeof *x, by_size);
    return x[n / 2];
}

static void print_row(const char *what, double *x, double *beside, int64_t n) {
    const double lo = median(x, n) * 1e-9, plain = median(beside, n) * 1e-9;
    printf("%-22s  %8.3f  %8.3f  %8.3f", what, lo, x[0] * 1e-9, x[n - 1] * 1e-9);
    printf(x == beside ? "\n" : "  %8.2f\n", lo / plain);
}

/* Rounds of both alternate, because a disk's speed changes with what else uses it. */
static clt_status run(const file_options *o) {
    enum { PLAIN_READ, READ, PLAIN_WRITE, WRITE, BOTH, ROWS };
    static const char *const name[ROWS] = {"plain reads", "reads", "plain writes", "writes", "both at once"};
    static const int beside[ROWS] = {PLAIN_READ, PLAIN_READ, PLAIN_WRITE, PLAIN_WRITE, BOTH};
    static double x[ROWS][MOST_ROUNDS];
    for (int64_t i = 0; i < o->rounds; i++) {
        rates p;
        clt_scratch_rates s;
        CLT_TRY(plain(o, &p));
        CLT_TRY(clt_scratch_measure(o->folder, o->bytes, 3600, &s));
        x[PLAIN_READ][i] = p.read, x[PLAIN_WRITE][i] = p.write;
        x[READ][i] = s.read, x[WRITE][i] = s.write, x[BOTH][i] = s.both;
    }
    printf("%s, %lld MiB, %lld rounds\n%-22s  %8s  %8s  %8s  %8s\n", o->folder, (long long)o->mib,
           (long long)o->rounds, "GB/s", "median", "least", "most", "of plain");
    for (int i = 0; i < ROWS; i++) print_row(name[i], x[i], x[beside[i]], o->rounds);
    return CLT_OK;
}

static clt_status run_in(file_options *o) {
    const size_t bytes = (size_t)BUFFERS * PIECE;
    char *memory = clt_try_malloc(bytes + CLT_SCRATCH_ALIGN);
    if (!memory) return clt_no_memory("the buffers", bytes);
    o->bytes = (uint64_t)o->mib << 20;
    o->memory = (char *)CLT_ROUND_UP((uintptr_t)memory, (uintptr_t)CLT_SCRATCH_ALIGN);
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) /* no disk compresses it */
        *(uint64_t *)(void *)(o->memory + i) = (i + 1) * 6364136223846793005u;
    const clt_status st = run(o);
    clt_free(memory);
    return st;
}

int bench_file(int argc, char **argv) {
    file_options o = {.mib = 1024, .rounds = 7};
    const clt_option options[] = {
        {"mib", 'n', CLT_OPT_INT, &o.mib, "N", "MiB of the file, a multiple of 16 (1024)"},
        {"rounds", 0, CLT_OPT_INT, &o.rounds, "N", "rounds, of which the median is taken (7)"},
    };
    const clt_command command = {.name = "clbench file",
                                 .usage = "FOLDER [options]",
                                 .summary = "measures how fast the state of cltrain.offload: file goes to a "
                                            "disk and back, beside plain reads and writes with O_DIRECT",
                                 .examples = "  clbench file /nvme/run --mib 4096\n",
                                 .options = options,
                                 .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n != 1) code = clt_options_fail(&command, "a folder is required: FOLDER");
    if (code < 0 && (o.mib < 16 || o.mib % 16 || o.mib > 1 << 24))
        code = clt_options_fail(&command, "--mib must be a multiple of 16");
    if (code < 0 && (o.rounds < 1 || o.rounds > MOST_ROUNDS))
        code = clt_options_fail(&command, "--rounds must be 1 to %d", MOST_ROUNDS);
    if (code < 0) {
        o.folder = rest.v[0];
        code = clt_status_exit_code(run_in(&o));
    }
    clt_strv_free(&rest);
    return code;
}
