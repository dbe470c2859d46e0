/* clbench order: how long the sample order of an epoch takes, and how much memory. */
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "runtime/data/clt_order.h"
#include "tools/clbench/bench.h"

enum { AT_ONCE = 1 << 20 };

typedef struct {
    int64_t samples, shard, nodes;
    const char *algo;
} order_options;

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double peak_bytes(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)r.ru_maxrss * 1024;
}

/* Shards of o->shard samples; the last one has the rest. The caller frees it. */
static int64_t *make_shards(const order_options *o, size_t *n) {
    *n = (size_t)((o->samples + o->shard - 1) / o->shard);
    int64_t *s = clt_try_malloc(*n * sizeof *s);
    for (size_t i = 0; s && i < *n; i++) s[i] = CLT_MIN(o->shard, o->samples - (int64_t)i * o->shard);
    return s;
}

/* Reads all positions and mixes the ids into one number, which shows whether two orders are equal. */
static clt_status read_all(clt_order *order, uint64_t *mixed) {
    const int64_t n = clt_order_length(order);
    int64_t *ids = clt_malloc(AT_ONCE * sizeof *ids);
    clt_status st = CLT_OK;
    for (int64_t at = 0; at < n && st == CLT_OK; at += AT_ONCE) {
        const int64_t count = CLT_MIN(n - at, (int64_t)AT_ONCE);
        st = clt_order_batch(order, 0, at, count, ids);
        for (int64_t i = 0; i < count; i++) *mixed = *mixed * 6364136223846793005u + (uint64_t)ids[i];
    }
    clt_free(ids);
    return st;
}

static clt_status measure(clt_order *order, const order_options *o) {
    uint64_t mixed = 0;
    int64_t first;
    const double start = clt_now(), cpu = cpu_seconds();
    CLT_TRY(clt_order_batch(order, 0, 0, 1, &first)); /* computes the epoch's order */
    const double seconds = clt_now() - start, used = cpu_seconds() - cpu;
    CLT_TRY(read_all(order, &mixed));
    printf(
        "{\"algo\": \"%s\", \"samples\": %lld, \"seconds\": %.3f, \"cpu_seconds\": %.3f, \"peak_gib\": %.3f, "
        "\"order\": \"%016llx\"}\n",
        o->algo, (long long)o->samples, seconds, used, peak_bytes() / (1 << 30), (unsigned long long)mixed);
    return CLT_OK;
}

static clt_status run(const order_options *o) {
    clt_order_params p;
    clt_order *order = NULL;
    size_t n;
    int64_t *shards = make_shards(o, &n);
    if (!shards) return clt_no_memory("the list of shards", n * sizeof *shards);
    clt_order_params_default(&p);
    p.shard_samples = shards;
    p.num_shards = n;
    p.algo = o->algo;
    p.canonical_nodes = o->nodes;
    clt_status st = clt_order_create(&p, &order);
    if (st == CLT_OK) st = measure(order, o);
    clt_order_destroy(order);
    clt_free(shards);
    return st;
}

int bench_order(int argc, char **argv) {
    order_options o = {.samples = 10000000, .shard = 8180, .nodes = 1, .algo = "py1e"};
    const clt_option options[] = {
        {"samples", 'n', CLT_OPT_INT, &o.samples, "N", "samples of the data set (10000000)"},
        {"shard", 0, CLT_OPT_INT, &o.shard, "N", "samples of a shard (8180)"},
        {"canonical-nodes", 0, CLT_OPT_INT, &o.nodes, "N", "num_canonical_nodes (1)"},
        {"algo", 0, CLT_OPT_STR, &o.algo, "NAME", "shuffle_algo (py1e)"},
    };
    const clt_command command = {.name = "clbench order",
                                 .usage = "[options]",
                                 .summary = "measures how long the sample order of an epoch takes",
                                 .examples = "  clbench order --samples 100000000\n",
                                 .options = options,
                                 .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n) code = clt_options_fail(&command, "unexpected argument '%s'", rest.v[0]);
    if (code < 0 && (o.samples < 1 || o.shard < 1))
        code = clt_options_fail(&command, "numbers must be at least 1");
    if (code < 0) code = clt_status_exit_code(run(&o));
    clt_strv_free(&rest);
    return code;
}
