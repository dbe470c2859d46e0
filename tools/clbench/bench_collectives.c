/* clbench allreduce, reduce-scatter, all-gather: the exchange of gradients and weights between ranks, with
 * the sizes and columns of nccl-tests, and in turn with it MPI's collective on host memory. All ranks run
 * this; rank 0 prints. */
#include <string.h>
#include <unistd.h>

#include "tools/clbench/bench.h"
#include "tools/clbench/collective.h"
#include "collectives/clt_launch.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"

typedef struct {
    const char *name, *mpi, *redop;
    bool both_ways; /* reduce-scatter and all-gather in one: twice the factor of busbw, and count is the total
                     */
} collective_kind;
static const collective_kind kinds[] = {
    [CLT_MPI_ALLREDUCE] = {"allreduce", "MPI_Allreduce", "sum", true},
    [CLT_MPI_REDUCE_SCATTER] = {"reduce-scatter", "MPI_Reduce_scatter_block", "sum", false},
    [CLT_MPI_ALL_GATHER] = {"all-gather", "MPI_Allgather", "none", false},
};

typedef struct {
    clt_mpi_collective what;
    const char *device, *json, *type_name, *from, *to;
    int64_t factor, ranks;
    double seconds;
    clt_dtype type;
    uint64_t min, max; /* bytes; max 0: by the devices */
    clt_group *group;
    clt_device *dev;
    clt_ops *ops;
    int64_t flip[3]; /* rank, call, bit; rank -1: nothing is flipped */
    bool headed;
    int64_t wrong; /* elements of all rows */
    clt_str rows;  /* JSON */
} collective_bench;

enum { DEVICE, HOST, SIDES };
typedef struct {
    double seconds; /* of a call: the median over blocks */
    int64_t wrong;
} collective_result;

static const uint64_t most_bytes = (uint64_t)4 << 30;

/* --- measuring --- */

/* The wait of each barrier is shorter than that of the one before it, and so are the pauses in it: at the end
 * the ranks start within microseconds of each other. */
static clt_status line_up(clt_group *g) {
    enum { BARRIERS = 3 };
    for (int i = 0; i < BARRIERS; i++) CLT_TRY(clt_group_barrier(g));
    return CLT_OK;
}

static clt_status inject(const collective_bench *b, void *device, uint32_t first, int calls) {
    if (b->flip[0] != clt_group_rank(b->group)) return CLT_OK;
    if (b->flip[1] < first || b->flip[1] >= (int64_t)first + calls) return CLT_OK;
    return collective_device_flip(device, (int)(b->flip[1] - first), (uint64_t)b->flip[2]);
}

/* One block: seconds[0] is what the slowest rank took for it, seconds[1] the time since `start`; both are the
 * same on all ranks. */
static clt_status run_block(const collective_bench *b, int which, void *side, uint32_t first, int calls,
                            double start, double seconds[2], int64_t *wrong) {
    const collective_side *s = which == DEVICE ? &collective_device : &collective_host;
    int64_t bad = 0;
    CLT_TRY(s->fill(side, first));
    CLT_TRY(line_up(b->group));
    const double began = clt_now();
    CLT_TRY(s->run(side));
    const double took = clt_now() - began;
    if (which == DEVICE) CLT_TRY(inject(b, side, first, calls));
    CLT_TRY(s->check(side, first, &bad));
    int64_t ns[2] = {(int64_t)(took * 1e9), (int64_t)((clt_now() - start) * 1e9)};
    CLT_TRY(clt_group_max_i64(b->group, ns, 2));
    CLT_TRY(clt_group_sum_i64(b->group, &bad, 1));
    for (int i = 0; i < 2; i++) seconds[i] = (double)ns[i] * 1e-9;
    *wrong += bad;
    return CLT_OK;
}

/* Blocks of both sides in turn, after one of each that does not count, except for wrong elements. The time
 * limit includes filling and checking, which take longer than the calls. */
static clt_status measure(const collective_bench *b, int calls, void *const side[SIDES],
                          collective_result result[SIDES]) {
    enum { LEAST = 5, MOST = 500 };
    const double start = clt_now(), limit = 10 * b->seconds;
    double v[SIDES][MOST], spent = 0, seconds[2];
    uint32_t call = 0;
    int n = -1; /* blocks that count */
    for (; n < LEAST || (n < MOST && spent < SIDES * b->seconds && seconds[1] < limit); n++)
        for (int s = 0; s < SIDES; s++, call += (uint32_t)calls) {
            CLT_TRY(run_block(b, s, side[s], call, calls, start, seconds, &result[s].wrong));
            if (n < 0) continue;
            v[s][n] = seconds[0] / calls;
            spent += seconds[0];
        }
    for (int s = 0; s < SIDES; s++) result[s].seconds = bench_median(v[s], n);
    return CLT_OK;
}

/* --- results --- */

static clt_status print_devices(const collective_bench *b) {
    const clt_device_facts *f = clt_device_get_facts(b->dev);
    const int ranks = clt_group_size(b->group);
    char host[64] = "", mine[1024], *all = clt_malloc((size_t)ranks * sizeof mine);
    gethostname(host, sizeof host - 1);
    snprintf(mine, sizeof mine, "device   rank %d on %s: %s (%s, driver %s), %u units",
             clt_group_rank(b->group), host, f->name, f->platform, f->driver, f->compute_units);
    clt_status st = clt_group_all_gather(b->group, mine, sizeof mine, all);
    for (int r = 0; st == CLT_OK && r < ranks && clt_group_rank(b->group) == 0; r++)
        puts(all + (size_t)r * sizeof mine);
    clt_free(all);
    return st;
}

static clt_status print_link(const collective_bench *b) {
    double flops, copy;
    if (clt_device_get_facts(b->dev)->type != CLT_DEVICE_CPU) {
        puts("link     unknown: compare busbw with the data sheet of what connects the devices");
        return CLT_OK;
    }
    CLT_TRY(clt_device_peak(b->dev, &flops, &copy));
    printf("link     the host's memory; one rank alone copies %.1f GB/s (read plus write)\n", copy * 1e-9);
    return CLT_OK;
}

static const char *check_text(const collective_bench *b) {
    if (b->what == CLT_MPI_ALL_GATHER) return "copies are bit-identical";
    if (b->type == CLT_F32) return "sums of fp32 are exact";
    return "sums of bf16 within 2^-7 (1 + 2^-8) of the exact sum and the roundings of fp32";
}

static clt_status print_head(collective_bench *b, const char *exchange) {
    const collective_kind *k = &kinds[b->what];
    if (b->headed) return CLT_OK;
    b->headed = true;
    CLT_TRY(print_devices(b));
    if (clt_group_rank(b->group) != 0) return CLT_OK;
    printf("ranks    %d, %d of them on the host of rank 0; exchange %s\n", clt_group_size(b->group),
           clt_group_local_size(b->group), exchange);
    CLT_TRY(print_link(b));
    printf("check    every element of every call; %s\n", check_text(b));
    char ours[64], theirs[64];
    snprintf(ours, sizeof ours, "cltrain, exchange %s", exchange);
    snprintf(theirs, sizeof theirs, "%s, host", k->mpi);
    printf("\n#%11s  %12s  %8s  %6s  %35s  %35s\n", "", "", "", "", ours, theirs);
    printf("#%11s  %12s  %8s  %6s  %10s %7s %7s %8s  %10s %7s %7s %8s\n", "size", "count", "type", "redop",
           "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong");
    printf("#%11s  %12s  %8s  %6s  %10s %7s %7s %8s  %10s %7s %7s\n", "(B)", "(elements)", "", "", "(us)",
           "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)");
    return CLT_OK;
}

static void add_row(collective_bench *b, uint64_t count, const collective_result result[SIDES],
                    const char *exchange) {
    const collective_kind *k = &kinds[b->what];
    const int ranks = clt_group_size(b->group);
    const double size = (double)(count * clt_dtype_bytes(b->type));
    const double factor = (k->both_ways ? 2.0 : 1.0) * (ranks - 1) / ranks;
    const uint64_t shown = k->both_ways ? count : count / (uint64_t)ranks;
    const clt_device_facts *f = clt_device_get_facts(b->dev);
    printf("%12.0f  %12llu  %8s  %6s", size, (unsigned long long)shown,
           b->type == CLT_F32 ? "float" : "bfloat16", k->redop);
    clt_str_addf(&b->rows,
                 "%s\n {\"op\": \"%s\", \"ranks\": %d, \"exchange\": \"%s\", \"dtype\": \"%s\", "
                 "\"size\": %.0f, \"count\": %llu",
                 b->rows.len ? "," : "", k->name, ranks, exchange, clt_dtype_name(b->type), size,
                 (unsigned long long)shown);
    for (int s = 0; s < SIDES; s++) {
        const double rate = size / result[s].seconds * 1e-9;
        const char *key = s == DEVICE ? "" : "mpi_";
        printf("  %10.2f %7.2f %7.2f %8lld", result[s].seconds * 1e6, rate, rate * factor,
               (long long)result[s].wrong);
        clt_str_addf(&b->rows,
                     ", \"%sseconds\": %.9g, \"%salgbw\": %.6g, \"%sbusbw\": %.6g, \"%swrong\": %lld", key,
                     result[s].seconds, key, rate, key, rate * factor, key, (long long)result[s].wrong);
    }
    clt_str_add(&b->rows, ", \"device\": ");
    clt_json_escape(&b->rows, f->name);
    clt_str_add(&b->rows, ", \"driver\": ");
    clt_json_escape(&b->rows, f->driver);
    clt_str_add(&b->rows, "}");
    printf("\n");
    fflush(stdout);
}

/* All ranks end with the same status. */
static clt_status end_table(const collective_bench *b) {
    clt_status st = CLT_OK;
    if (clt_group_rank(b->group) == 0 && b->json) {
        char *text = clt_format("[%s\n]\n", b->rows.s);
        st = clt_io_write_atomic(b->json, text, strlen(text));
        clt_free(text);
    }
    if (st == CLT_OK && b->wrong)
        st = clt_error(CLT_FAIL, "clbench %s: %lld elements are wrong (column #wrong)", kinds[b->what].name,
                       (long long)b->wrong);
    return clt_group_agree(b->group, st);
}

/* --- rows --- */

/* Small buffers: many calls in a block, so that starting it together does not count. */
static int calls_of(uint64_t bytes) {
    enum { MOST = 32 };
    const uint64_t all = 1 << 20;
    return (int)CLT_MAX(CLT_MIN(all / bytes, (uint64_t)MOST), (uint64_t)1);
}

static clt_status run_row(collective_bench *b, uint64_t bytes) {
    const collective_row row = {.group = b->group,
                                .ops = b->ops,
                                .what = b->what,
                                .type = b->type,
                                .count = bytes / clt_dtype_bytes(b->type),
                                .calls = calls_of(bytes)};
    collective_result result[SIDES] = {{0}};
    void *side[SIDES] = {NULL};
    clt_status st = collective_device_create(&row, &side[DEVICE]);
    if (st == CLT_OK) st = print_head(b, collective_device_exchange(side[DEVICE]));
    if (st == CLT_OK) st = collective_host_create(&row, &side[HOST]);
    if (st == CLT_OK) st = measure(b, row.calls, side, result);
    if (st == CLT_OK && clt_group_rank(b->group) == 0)
        add_row(b, row.count, result, collective_device_exchange(side[DEVICE]));
    b->wrong += result[DEVICE].wrong + result[HOST].wrong;
    if (st != CLT_OK) clt_group_give_up(b->group, st); /* a side is left by all ranks together */
    collective_device.destroy(side[DEVICE]);
    collective_host.destroy(side[HOST]);
    return st;
}

/* The size of a row: down to whole fp32 numbers, which MPI's side moves, and to equal parts for the ranks. */
static uint64_t rounded(const collective_bench *b, uint64_t bytes) {
    const uint64_t parts = kinds[b->what].both_ways ? 1 : (uint64_t)clt_group_size(b->group);
    const uint64_t unit = parts * sizeof(float);
    return CLT_MAX(bytes / unit, (uint64_t)1) * unit;
}

static clt_status run_rows(collective_bench *b) {
    uint64_t last = 0;
    for (uint64_t bytes = b->min; bytes <= b->max; bytes *= (uint64_t)b->factor) {
        const uint64_t size = rounded(b, bytes);
        if (size != last) CLT_TRY(run_row(b, size));
        last = size;
    }
    return end_table(b);
}

/* --- start --- */

static clt_status read_injection(collective_bench *b) {
    const char *text = clt_env(CLT_ENV_INJECT);
    long long v[3];
    b->flip[0] = -1;
    if (!text) return CLT_OK;
    if (sscanf(text, "flip=%lld:%lld:%lld", &v[0], &v[1], &v[2]) != 3)
        return clt_error(CLT_USAGE, "CLTRAIN_INJECT is '%s', for clbench it must be flip=RANK:CALL:BIT",
                         text);
    for (int i = 0; i < 3; i++) b->flip[i] = v[i];
    return CLT_OK;
}

static clt_status open_device(collective_bench *b) {
    clt_device_params p = clt_device_params_default();
    p.pattern = b->device;
    p.local_rank = clt_group_local_rank(b->group);
    p.local_size = clt_group_local_size(b->group);
    p.bind = true;
    CLT_TRY(clt_device_open(&p, &b->dev));
    clt_ops_params o = clt_ops_params_default();
    o.numerics = clt_device_get_facts(b->dev)->exact ? CLT_EXACT : CLT_FAST;
    return clt_ops_create(b->dev, &o, &b->ops);
}

/* The largest size if none is given: where one device is a CPU, a smaller one. */
static clt_status choose_most(collective_bench *b) {
    static const uint64_t cpu = 64 << 20, gpu = 1 << 30;
    int64_t any_cpu = clt_device_get_facts(b->dev)->type == CLT_DEVICE_CPU;
    CLT_TRY(clt_group_max_i64(b->group, &any_cpu, 1));
    if (!b->max) b->max = CLT_MAX(any_cpu ? cpu : gpu, b->min);
    return CLT_OK;
}

/* What may fail on one rank alone; the ranks agree on it. */
static clt_status prepare(collective_bench *b) {
    CLT_TRY(read_injection(b));
    if (clt_group_rank(b->group) == 0) CLT_TRY(clt_options_look_at_file("--json", b->json));
    return open_device(b);
}

static clt_status run_all(collective_bench *b) {
    CLT_TRY(clt_group_create(0, &b->group));
    CLT_TRY(clt_group_agree(b->group, prepare(b)));
    CLT_TRY(choose_most(b));
    return run_rows(b);
}

/* Replaces this process by `cltrain launch -n N clbench ARGUMENTS`, which runs it again on N ranks. */
static int start_ranks(int64_t ranks, int argc, char **argv) {
    char path[4096], n[24];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - sizeof "cltrain");
    char *name = length > 0 ? memrchr(path, '/', (size_t)length) : NULL;
    strcpy(name ? name + 1 : path, "cltrain");
    snprintf(n, sizeof n, "%lld", (long long)ranks);
    char *const start[] = {path, "launch", "-n", n, "clbench"};
    enum { START = CLT_COUNT_OF(start) };
    char **words = clt_calloc(START + (size_t)argc + 1, sizeof *words);
    memcpy(words, start, sizeof start);
    memcpy(words + START, argv, (size_t)argc * sizeof *words);
    execvp(path, words);
    clt_free(words);
    return clt_status_exit_code(
        clt_error(CLT_FAIL, "%s, which starts the ranks, cannot be run; use mpirun -n %s", path, n));
}

/* --- the command --- */

/* "8", "64K", "4G"; false: it is no size from 4 bytes to 4 GiB. */
static bool parse_size(const char *text, uint64_t *bytes) {
    static const char units[] = "KMG";
    const size_t n = strlen(text);
    const char *unit = n ? strchr(units, text[n - 1]) : NULL;
    char *number = clt_strndup(text, unit ? n - 1 : n);
    int64_t v;
    const bool ok = clt_parse_i64(number, &v) && v >= 1 && (uint64_t)v <= most_bytes;
    clt_free(number);
    if (!ok) return false;
    *bytes = (uint64_t)v << (unit ? 10 * (unit - units + 1) : 0);
    return *bytes >= sizeof(float) && *bytes <= most_bytes;
}

/* Refuses invalid values of the parsed options; -1: all are valid. */
static int look_at_options(collective_bench *b, const clt_command *c) {
    const int started = clt_launch_detect().size;
    if (!parse_size(b->from, &b->min) || (b->to && !parse_size(b->to, &b->max)))
        return clt_options_fail(c, "--min and --max must be sizes from 4 bytes to 4G, such as 8, 64K or 1G");
    if (b->max && b->max < b->min) return clt_options_fail(c, "--max must be at least --min");
    if (b->factor < 2) return clt_options_fail(c, "--factor must be at least 2");
    if (!(b->seconds > 0)) return clt_options_fail(c, "--seconds must be above 0");
    if (!clt_dtype_find(b->type_name, &b->type) || b->type == CLT_F16)
        return clt_options_fail(c, "--type must be fp32 or bf16, not '%s'", b->type_name);
    if (started == 1 && b->ranks < 2)
        return clt_options_fail(c, "it needs at least 2 ranks: use -n N or mpirun -n N");
    if (started > 1 && b->ranks && b->ranks != started)
        return clt_options_fail(c, "-n is %lld, but %d ranks were started; remove -n", (long long)b->ranks,
                                started);
    return -1;
}

static int run_command(collective_bench *b, int argc, char **argv) {
    if (clt_launch_detect().size == 1) return start_ranks(b->ranks, argc, argv);
    clt_status st = run_all(b);
    if (st == CLT_AGAIN && b->dev && clt_device_is_hung(b->dev)) clt_group_end_hung(b->group);
    if (st != CLT_OK && b->group) clt_group_give_up(b->group, st);
    clt_ops_destroy(b->ops);
    clt_device_close(b->dev);
    clt_group_destroy(b->group);
    clt_str_free(&b->rows);
    return clt_status_exit_code(st);
}

int bench_collective(int argc, char **argv) {
    collective_bench b = {.type_name = "fp32", .from = "8", .factor = 2, .seconds = 0.5};
    while (strcmp(kinds[b.what].name, argv[0]) != 0) b.what++;
    const clt_option options[] = {
        {"ranks", 'n', CLT_OPT_INT, &b.ranks, "N",
         "start N ranks; not needed under mpirun or cltrain launch"},
        {"min", 'b', CLT_OPT_STR, &b.from, "SIZE", "smallest size, such as 8, 64K or 1G (default 8)"},
        {"max", 'e', CLT_OPT_STR, &b.to, "SIZE", "largest size, at most 4G (default 64M on CPUs, else 1G)"},
        {"factor", 'f', CLT_OPT_INT, &b.factor, "N", "each size is N times the one before (default 2)"},
        {"type", 0, CLT_OPT_STR, &b.type_name, "TYPE", "of what travels: fp32 (default) or bf16"},
        {"device", 'd', CLT_OPT_STR, &b.device, "LIST",
         "device patterns, one per rank of a host, used in turn"},
        {"seconds", 't', CLT_OPT_FLOAT, &b.seconds, "S",
         "time to spend in the calls of a row, per side (default 0.5)"},
        {"json", 'j', CLT_OPT_STR, &b.json, "FILE", "write the rows as JSON"},
    };
    char *full = clt_format("clbench %s", kinds[b.what].name);
    char *examples = clt_format("  mpirun -n 2 clbench %s\n  clbench %s -n 4 --min 1M --max 1G --type bf16\n"
                                "  CLTRAIN_TRANSPORT=mpi clbench %s -n 2\n",
                                kinds[b.what].name, kinds[b.what].name, kinds[b.what].name);
    char *summary =
        clt_format("Measures %s over several ranks as training uses it, with the sizes and columns "
                   "of nccl-tests, in turn with %s on host memory. Every result is checked.",
                   kinds[b.what].name, kinds[b.what].mpi);
    const clt_command command = {full, "[options]", summary, examples, options, CLT_COUNT_OF(options), false};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n) code = clt_options_fail(&command, "unexpected argument '%s'", rest.v[0]);
    if (code < 0) code = look_at_options(&b, &command);
    if (code < 0) code = run_command(&b, argc, argv);
    clt_strv_free(&rest);
    clt_free(full);
    clt_free(examples);
    clt_free(summary);
    return code;
}
