/* clbench schedule: predicts the time of a training step on many ranks (docs/scaling.md) from a run's
 * configuration and measured rates. Needs no device. */
#include <math.h>
#include <string.h>

#include "tools/clbench/bench.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/base/clt_timeline.h"
#include "tools/clbench/schedule_plan.h"

/* Rates in the units of the command line; 0: unlimited, or not given. */
typedef struct {
    double out, in, host, network, update, add; /* GB/s */
    double latency, message, exchange;          /* us */
    double pass_seconds;                        /* forward and backward of a microbatch */
    double tokens_per_second, tflops;           /* of one rank: whole steps; forward and backward */
    double measured_microbatches;               /* of the steps of tokens_per_second */
} given_rates;

typedef struct {
    const char *rates, *json, *trace;
    int64_t ranks, hosts, stage, microbatches, microbatch, bucket_mib, ahead;
    bool one_queue, halving;
    given_rates r;
} schedule_options;

/* A rate's name on the command line and in a rates file. */
typedef struct {
    const char *name, *unit, *help;
    double *target;
} rate_key;

enum { RATES = 13 };

static void list_rates(given_rates *r, rate_key keys[RATES]) {
    const rate_key list[RATES] = {
        {"pass-seconds", "S", "forward and backward of a microbatch on a rank", &r->pass_seconds},
        {"tokens-per-second", "R", "or: measured on one rank, whole steps", &r->tokens_per_second},
        {"measured-microbatches", "M", "microbatches of those steps (default 1)", &r->measured_microbatches},
        {"tflops", "R", "or: 10^12 FLOP per second of forward and backward passes on one rank", &r->tflops},
        {"update", "GBPS", "bytes per second of the optimizer; 0, as for all rates: unlimited", &r->update},
        {"add", "GBPS", "bytes per second of additions on a device", &r->add},
        {"out", "GBPS", "device to host memory, per rank; unlimited where devices use host memory", &r->out},
        {"in", "GBPS", "host memory to device, per rank", &r->in},
        {"host", "GBPS", "copies of all ranks of a host together", &r->host},
        {"network", "GBPS", "between hosts, per host and direction", &r->network},
        {"latency", "US", "of a message between hosts", &r->latency},
        {"message", "US", "for which each message occupies a rank's network side", &r->message},
        {"exchange", "US", "of a small exchange between the ranks of a host", &r->exchange},
    };
    memcpy(keys, list, sizeof list);
}

/* --- rates from a file --- */

static clt_status take_rate(const rate_key *keys, const char *path, const char *name, const json_t *value) {
    const char *names[RATES];
    for (int i = 0; i < RATES; i++) {
        names[i] = keys[i].name;
        if (strcmp(name, names[i]) != 0) continue;
        if (!json_is_number(value) || !(json_number_value(value) >= 0))
            return clt_error(CLT_BAD_DATA, "%s: '%s' must be a number that is not negative", path, name);
        *keys[i].target = json_number_value(value);
        return CLT_OK;
    }
    const char *near = clt_nearest(name, names, RATES);
    return clt_error(CLT_BAD_DATA, "%s: unknown rate '%s'%s%s (see clbench schedule --help)", path, name,
                     near ? "; did you mean " : "", near ? near : "");
}

/* Rates that are not in the file keep their value. */
static clt_status read_rates(const char *path, given_rates *r) {
    enum { LIMIT = 1 << 20, DEPTH = 2 };
    rate_key keys[RATES];
    json_t *o, *value;
    const char *name;
    clt_status st = CLT_OK;
    list_rates(r, keys);
    CLT_TRY(clt_json_load(path, LIMIT, DEPTH, &o));
    if (!json_is_object(o)) st = clt_error(CLT_BAD_DATA, "%s: rates must be a JSON object", path);
    if (st == CLT_OK) json_object_foreach(o, name, value) {
            st = take_rate(keys, path, name, value);
            if (st != CLT_OK) break;
        }
    json_decref(o);
    return st;
}

/* --- from the options to the simulator --- */

static step_plan make_plan(const schedule_options *o, const clt_config *c, const step_model *m) {
    enum { CHUNKS_PER_MIB = 4 };
    step_plan p = schedule_plan_of(c, m, (int)o->ranks, (int)o->hosts, (int)o->stage, (int)o->microbatches);
    if (o->bucket_mib) p.bucket = CLT_MIN((uint64_t)o->bucket_mib * CHUNKS_PER_MIB * CLT_CHUNK, m->total);
    p.one_queue = o->one_queue;
    p.halving = o->halving;
    p.ahead = (int)o->ahead;
    return p;
}

/* Seconds of the passes of a microbatch. tokens_per_second is of whole steps: the update's time is
 * subtracted. */
static double pass_seconds(const schedule_options *o, const step_model *m, const step_plan *p,
                           double tokens) {
    const given_rates *r = &o->r;
    if (r->pass_seconds > 0) return r->pass_seconds;
    if (r->tflops > 0) return tokens * m->flops_per_token / (r->tflops * 1e12);
    const double update = r->update > 0 ? (double)m->total * p->update_bytes / (r->update * 1e9) : 0;
    return tokens / r->tokens_per_second - update / r->measured_microbatches;
}

static clt_status make_rates(const schedule_options *o, const clt_config *c, const step_model *m,
                             const step_plan *p, step_rates *out) {
    const given_rates *r = &o->r;
    const double seconds = pass_seconds(o, m, p, (double)(o->microbatch * c->max_seq_len));
    const double forward = schedule_forward_share(c);
    if (!(seconds > 0))
        return clt_error(CLT_BAD_CONFIG,
                         "at %g tokens per second a step is shorter than its update: correct "
                         "--tokens-per-second, --measured-microbatches or --update",
                         r->tokens_per_second);
    *out = (step_rates){.forward = forward * seconds,
                        .backward = (1 - forward) * seconds,
                        .out = r->out * 1e9,
                        .in = r->in * 1e9,
                        .host = r->host * 1e9,
                        .network = r->network * 1e9,
                        .latency = r->latency * 1e-6,
                        .message = r->message * 1e-6,
                        .exchange = r->exchange * 1e-6,
                        .update = r->update * 1e9,
                        .add = r->add * 1e9};
    return CLT_OK;
}

/* --- results --- */

static void print(const schedule_options *o, const clt_config *c, const step_plan *p, const step_result *s) {
    const double tokens = (double)(o->ranks * o->microbatches * o->microbatch * c->max_seq_len) / s->step;
    char bucket[32];
    printf("ranks      %d on %d host%s, stage %d; %lld x %lld samples of %lld tokens per rank\n", p->ranks,
           p->hosts, p->hosts == 1 ? "" : "s", p->stage, (long long)o->microbatch, (long long)o->microbatches,
           (long long)c->max_seq_len);
    printf("exchange   %d buckets of %s fp32; gradients in %g bytes, weights in %g; %s\n", s->buckets,
           clt_human_bytes((double)p->bucket * 4, bucket), p->gradient_bytes, p->weight_bytes,
           p->each ? "after each microbatch" : "after the last microbatch");
    printf("step       %.6f s; one rank %.6f s\n", s->step, s->one_rank);
    printf("tokens/s   %.0f; per rank %.0f; scaling %.3f\n", tokens, tokens / (double)o->ranks,
           s->one_rank / s->step);
    printf("exposed    %.6f s, %.1f %% of the step\n\n", s->exposed, 100 * s->exposed / s->step);
    printf("%-10s %12s %8s   %s\n", "queue", "busy", "share", "compute idles meanwhile");
    for (int q = 0; q < STEP_QUEUES; q++)
        printf("%-10s %10.6f s %6.1f %%   %10.6f s%s\n", step_queue_names[q], s->busy[q],
               100 * s->busy[q] / s->step, s->bubble[q], q == STEP_COMPUTE ? " (no queue runs)" : "");
}

static clt_status write_json(const schedule_options *o, const clt_config *c, const step_result *s) {
    clt_str b = {0};
    const double tokens = (double)(o->ranks * o->microbatches * o->microbatch * c->max_seq_len);
    if (!o->json) return CLT_OK;
    clt_str_addf(&b,
                 "{\"ranks\": %lld, \"hosts\": %lld, \"stage\": %lld, \"microbatches\": %lld, "
                 "\"microbatch\": %lld, \"step_seconds\": %.9g, \"one_rank_seconds\": %.9g, "
                 "\"tokens_per_second\": %.9g, \"scaling\": %.6g, \"exposed_seconds\": %.9g",
                 (long long)o->ranks, (long long)o->hosts, (long long)o->stage, (long long)o->microbatches,
                 (long long)o->microbatch, s->step, s->one_rank, tokens / s->step, s->one_rank / s->step,
                 s->exposed);
    for (int q = 0; q < STEP_QUEUES; q++)
        clt_str_addf(&b, ", \"%s_busy_seconds\": %.9g, \"%s_bubble_seconds\": %.9g", step_queue_names[q],
                     s->busy[q], step_queue_names[q], s->bubble[q]);
    clt_str_add(&b, "}\n");
    clt_status st = clt_io_write_atomic(o->json, b.s, b.len);
    clt_str_free(&b);
    return st;
}

static clt_status simulate(const schedule_options *o, const clt_config *c, const step_model *m) {
    const step_plan p = make_plan(o, c, m);
    step_rates r;
    step_result s;
    clt_str timeline = {0};
    CLT_TRY(make_rates(o, c, m, &p, &r));
    step_simulate(m, &p, &r, &s, o->trace ? &timeline : NULL);
    print(o, c, &p, &s);
    clt_status st = write_json(o, c, &s);
    if (st == CLT_OK && o->trace) st = clt_timeline_write(o->trace, &timeline);
    clt_str_free(&timeline);
    return st;
}

static clt_status run(schedule_options *o, const clt_config *c) {
    step_model m;
    if (!o->microbatch) o->microbatch = c->device_train_microbatch_size;
    if (!o->microbatch)
        return clt_error(CLT_BAD_CONFIG, "device_train_microbatch_size is auto: give --microbatch");
    char *model = clt_model_describe(c->model);
    printf("model      %s\n", model);
    clt_free(model);
    CLT_TRY(step_model_read(c->model, c->max_seq_len, &m));
    clt_status st = simulate(o, c, &m);
    step_model_free(&m);
    return st;
}

/* --- the command --- */

static int look_at_options(const schedule_options *o, const clt_command *c) {
    enum { MOST_RANKS = 1 << 16, MOST_MICROBATCHES = 4096, MOST_MIB = 1 << 20 };
    const given_rates *r = &o->r;
    rate_key keys[RATES];
    given_rates copy = *r;
    list_rates(&copy, keys);
    for (int i = 0; i < RATES; i++)
        if (!(*keys[i].target >= 0) || isinf(*keys[i].target))
            return clt_options_fail(c, "--%s must not be negative", keys[i].name);
    if (o->ranks < 1 || o->ranks > MOST_RANKS)
        return clt_options_fail(c, "--ranks must be 1 to %d", MOST_RANKS);
    if (o->hosts < 1 || o->ranks % o->hosts)
        return clt_options_fail(c, "--ranks must be a multiple of --hosts");
    if (o->stage < 0 || o->stage > 3) return clt_options_fail(c, "--stage must be 0 to 3");
    if (o->microbatches < 1 || o->microbatches > MOST_MICROBATCHES)
        return clt_options_fail(c, "--microbatches must be 1 to %d", MOST_MICROBATCHES);
    if (o->microbatch < 0 || o->ahead < 0 || o->bucket_mib < 0 || o->bucket_mib > MOST_MIB)
        return clt_options_fail(c, "--microbatch, --ahead and --bucket must not be negative");
    if (!(r->measured_microbatches > 0))
        return clt_options_fail(c, "--measured-microbatches must be above 0");
    if ((r->pass_seconds > 0) + (r->tokens_per_second > 0) + (r->tflops > 0) != 1)
        return clt_options_fail(c, "give one of --pass-seconds, --tokens-per-second and --tflops");
    return -1;
}

/* The rates of the file, overridden by those of the command line, which are NaN if they are not given. */
static clt_status merge_rates(const char *path, given_rates *line, given_rates *out) {
    rate_key from[RATES], to[RATES];
    list_rates(line, from);
    list_rates(out, to);
    if (path) CLT_TRY(read_rates(path, out));
    for (int i = 0; i < RATES; i++)
        if (!isnan(*from[i].target)) *to[i].target = *from[i].target;
    return CLT_OK;
}

/* Returns the exit code. */
static int predict(schedule_options *o, given_rates *line, const clt_command *command, const clt_strv *rest) {
    clt_config *c = NULL;
    clt_status st = merge_rates(o->rates, line, &o->r);
    const int code = st == CLT_OK ? look_at_options(o, command) : -1;
    if (code >= 0) return code;
    if (st == CLT_OK) st = clt_config_load(rest->v[0], (const char *const *)rest->v + 1, rest->n - 1, &c);
    if (st == CLT_OK) st = clt_options_look_at_file("--json", o->json);
    if (st == CLT_OK) st = clt_options_look_at_file("--trace", o->trace);
    if (st == CLT_OK) st = run(o, c);
    clt_config_free(c);
    return clt_status_exit_code(st);
}

/* The fixed options, then one per rate. */
static size_t list_options(schedule_options *o, given_rates *line, clt_option *out) {
    const clt_option fixed[] = {
        {"ranks", 'n', CLT_OPT_INT, &o->ranks, "N", "ranks of all hosts together (default 2)"},
        {"hosts", 0, CLT_OPT_INT, &o->hosts, "H", "hosts with the same number of ranks (default 1)"},
        {"stage", 0, CLT_OPT_INT, &o->stage, "S", "what is sharded, as cltrain.zero_stage: 0 (default) to 3"},
        {"microbatches", 'm', CLT_OPT_INT, &o->microbatches, "M", "of each rank in a step (default 1)"},
        {"microbatch", 0, CLT_OPT_INT, &o->microbatch, "N",
         "samples of a microbatch (default: the configuration's)"},
        {"bucket", 0, CLT_OPT_INT, &o->bucket_mib, "MIB",
         "size of a bucket in fp32 (default: 16, or one chunk of 256 KiB per rank if that is more)"},
        {"ahead", 0, CLT_OPT_INT, &o->ahead, "N", "stage 3: units gathered ahead of use (default 2)"},
        {"one-queue", 0, CLT_OPT_FLAG, &o->one_queue, NULL,
         "copies run on the compute queue, as on CPU devices: nothing overlaps"},
        {"halving", 0, CLT_OPT_FLAG, &o->halving, NULL,
         "hosts exchange by recursive halving and doubling instead of directly"},
        {"json", 'j', CLT_OPT_STR, &o->json, "FILE", "write the result as JSON"},
        {"trace", 0, CLT_OPT_STR, &o->trace, "FILE", "write the schedule for chrome://tracing and Perfetto"},
        {"rates", 0, CLT_OPT_STR, &o->rates, "FILE",
         "JSON object with the rates below by name; options override it"},
    };
    rate_key keys[RATES];
    list_rates(line, keys);
    memcpy(out, fixed, sizeof fixed);
    for (int i = 0; i < RATES; i++) {
        *keys[i].target = NAN;
        out[CLT_COUNT_OF(fixed) + (size_t)i] =
            (clt_option){keys[i].name, 0, CLT_OPT_FLOAT, keys[i].target, keys[i].unit, keys[i].help};
    }
    return CLT_COUNT_OF(fixed) + RATES;
}

int bench_schedule(int argc, char **argv) {
    enum { MOST_OPTIONS = 32 };
    schedule_options o = {
        .ranks = 2, .hosts = 1, .microbatches = 1, .ahead = 2, .r = {.measured_microbatches = 1}};
    given_rates line;
    clt_option options[MOST_OPTIONS];
    const clt_command command = {
        .name = "clbench schedule",
        .usage = "CONFIG.yaml [key.sub=value ...]",
        .summary =
            "Predicts the time of a training step on many ranks from measured rates, by simulating its "
            "schedule without data (docs/scaling.md). Needs no device.",
        .examples =
            "  clbench schedule tools/presets/mpt-1b.yaml --stage 1 --microbatch 8 --out 34 --in 43 \\\n"
            "      --host 170 --tokens-per-second 67118 --update 4030 --add 4000\n"
            "  clbench schedule run.yaml --rates rates.json --ranks 64 --hosts 8 --trace schedule.json\n",
        .options = options,
        .n_options = list_options(&o, &line, options)};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n == 0)
        code = clt_options_fail(&command, "a configuration is required: CONFIG.yaml");
    if (code < 0) code = predict(&o, &line, &command, &rest);
    clt_strv_free(&rest);
    return code;
}
