/* clbench numa: predicts what one rank per NUMA node gains over one rank on all cores of a host of CPUs
 * (docs/scaling.md). Needs no device. */
#include <math.h>

#include "tools/clbench/bench.h"
#include "tools/clbench/numa_host.h"
#include "tools/clbench/schedule_plan.h"

typedef struct {
    int64_t cores, nodes, stage, microbatches, microbatch;
    double core, memory, link; /* GFLOP/s, GB/s */
} numa_options;

typedef struct {
    const numa_options *o;
    const clt_config *c;
    numa_host host;
    step_model model;
    double flops, bytes; /* of a microbatch */
} prediction;

/* The device memory that a microbatch keeps for its backward pass. */
static clt_status stored_bytes(const prediction *p, double *out) {
    const clt_config *c = p->c;
    const clt_model_shape shape = {.microbatch = p->o->microbatch,
                                   .seq = c->max_seq_len,
                                   .training = true,
                                   .recompute = c->recompute,
                                   .numerics = c->numerics,
                                   .type = c->precision};
    clt_model_memory m;
    CLT_TRY(clt_model_plan(c->model, &shape, CLT_DEVICE_CPU, &m));
    *out = (double)m.activations;
    return CLT_OK;
}

/* Steps with the same batch: one rank has as many microbatches as all ranks together. */
static void predict(const prediction *p, int ranks) {
    const int all = (int)(p->o->microbatches * p->o->nodes), stage = ranks > 1 ? (int)p->o->stage : 0;
    step_plan plan = schedule_plan_of(p->c, &p->model, ranks, 1, stage, all / ranks);
    plan.one_queue = true;
    plan.ahead = 2;
    const step_rates r = numa_rates(&p->host, ranks, p->flops, p->bytes, schedule_forward_share(p->c));
    step_result s;
    step_simulate(&p->model, &plan, &r, &s, NULL);
    const double tokens = (double)(all * p->o->microbatch * p->c->max_seq_len);
    printf("%-8d %8g %10.1f %10.1f %12.6f %12.6f %12.0f\n", ranks, (double)p->host.cores / ranks,
           numa_memory(&p->host, ranks) * 1e-9,
           100 * p->flops / (p->host.cores / ranks * p->host.core) / (r.forward + r.backward), s.step,
           CLT_MAX(s.exposed, 0.0), tokens / s.step);
}

static clt_status run(const numa_options *o, const clt_config *c) {
    prediction p = {.o = o,
                    .c = c,
                    .host = {(int)o->cores, (int)o->nodes, o->core * 1e9, o->memory * 1e9, o->link * 1e9}};
    double stored = 0;
    CLT_TRY(stored_bytes(&p, &stored));
    CLT_TRY(step_model_read(c->model, c->max_seq_len, &p.model));
    p.flops = (double)(o->microbatch * c->max_seq_len) * p.model.flops_per_token;
    p.bytes = numa_pass_bytes(p.model.total, stored);
    char *model = clt_model_describe(c->model), bytes[32];
    printf("model    %s\nhost     %lld cores on %lld NUMA node%s, as given\n"
           "pass     %.4g GFLOP and %s of memory traffic a microbatch of %lld x %lld tokens\n"
           "predicted, not measured; each line has the same batch\n\n",
           model, (long long)o->cores, (long long)o->nodes, o->nodes == 1 ? "" : "s", p.flops * 1e-9,
           clt_human_bytes(p.bytes, bytes), (long long)o->microbatch, (long long)c->max_seq_len);
    clt_free(model);
    printf("%-8s %8s %10s %10s %12s %12s %12s\n", "ranks", "cores", "GB/s each", "% products", "step, s",
           "exposed, s", "tokens/s");
    predict(&p, 1);
    if (o->nodes > 1) predict(&p, (int)o->nodes);
    step_model_free(&p.model);
    return CLT_OK;
}

static bool is_positive(double v) {
    return v > 0 && !isinf(v);
}

static int look_at_options(const numa_options *o, const clt_command *c) {
    enum { MOST_CORES = 1 << 14, MOST_MICROBATCHES = 4096 };
    if (o->cores < 1 || o->cores > MOST_CORES)
        return clt_options_fail(c, "--cores must be 1 to %d", MOST_CORES);
    if (o->nodes < 1 || o->nodes > o->cores || o->cores % o->nodes)
        return clt_options_fail(c, "--cores must be a multiple of --nodes");
    if (!is_positive(o->core) || !is_positive(o->memory) || (o->nodes > 1 && !is_positive(o->link)))
        return clt_options_fail(c, "give --core, --memory and, with several nodes, --link, above 0");
    if (o->stage < 0 || o->stage > 3) return clt_options_fail(c, "--stage must be 0 to 3");
    if (o->microbatches < 1 || o->microbatches > MOST_MICROBATCHES)
        return clt_options_fail(c, "--microbatches must be 1 to %d", MOST_MICROBATCHES);
    if (o->microbatch < 0) return clt_options_fail(c, "--microbatch must not be negative");
    return -1;
}

static int load_and_run(numa_options *o, const clt_command *command, const clt_strv *rest) {
    clt_config *c = NULL;
    const int code = look_at_options(o, command);
    if (code >= 0) return code;
    clt_status st = clt_config_load(rest->v[0], (const char *const *)rest->v + 1, rest->n - 1, &c);
    if (st == CLT_OK && !o->microbatch) o->microbatch = c->device_train_microbatch_size;
    if (st == CLT_OK && !o->microbatch)
        st = clt_error(CLT_BAD_CONFIG, "device_train_microbatch_size is auto: give --microbatch");
    if (st == CLT_OK) st = run(o, c);
    clt_config_free(c);
    return clt_status_exit_code(st);
}

int bench_numa(int argc, char **argv) {
    numa_options o = {.nodes = 2, .stage = 1, .microbatches = 1, .core = NAN, .memory = NAN, .link = NAN};
    const clt_option options[] = {
        {"cores", 0, CLT_OPT_INT, &o.cores, "N", "cores of the host"},
        {"nodes", 0, CLT_OPT_INT, &o.nodes, "M", "its NUMA nodes, equally large (default 2)"},
        {"core", 0, CLT_OPT_FLOAT, &o.core, "GFLOPS", "10^9 FLOP per second of a core in matrix products"},
        {"memory", 0, CLT_OPT_FLOAT, &o.memory, "GBPS", "of a node's memory, read plus written"},
        {"link", 0, CLT_OPT_FLOAT, &o.link, "GBPS", "between a node and the memory of all others"},
        {"stage", 0, CLT_OPT_INT, &o.stage, "S", "of the ranks, as cltrain.zero_stage: 0 to 3 (default 1)"},
        {"microbatches", 'm', CLT_OPT_INT, &o.microbatches, "K",
         "of each rank with one rank per node (default 1)"},
        {"microbatch", 0, CLT_OPT_INT, &o.microbatch, "N",
         "samples of a microbatch (default: the configuration's)"},
    };
    const clt_command command = {
        .name = "clbench numa",
        .usage = "CONFIG.yaml [key.sub=value ...]",
        .summary = "Predicts the step time of one rank on all cores of a host of CPUs, and of one rank per "
                   "NUMA node, from rates of a core, a node's memory and the links (docs/scaling.md). Needs "
                   "no device.",
        .examples =
            "  clbench numa tools/presets/mpt-125m.yaml --cores 64 --nodes 2 --core 70 --memory 150 \\\n"
            "      --link 50 --microbatch 4 --microbatches 8 precision=fp32\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n == 0)
        code = clt_options_fail(&command, "a configuration is required: CONFIG.yaml");
    if (code < 0) code = load_and_run(&o, &command, &rest);
    clt_strv_free(&rest);
    return code;
}
