/* cltrain plan: the memory and work of a run, computed from its configuration alone. */
#include <math.h>
#include <string.h>

#include "tools/cltrain/commands.h"
#include "tools/cltrain/report_data.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_options.h"
#include "runtime/train/engine/clt_engine.h"

/* Devices that can be planned for without having one. */
typedef struct {
    const char *name;
    clt_device_facts facts;
} known_device;

#define GIB (1024ull * 1024 * 1024)
static const known_device known[] = {
    {"h200",
     {.name = "NVIDIA H200", .type = CLT_DEVICE_GPU, .global_mem = 139 * GIB, .max_alloc = 139 * GIB / 4}},
    {"h100",
     {.name = "NVIDIA H100 80GB", .type = CLT_DEVICE_GPU, .global_mem = 79 * GIB, .max_alloc = 79 * GIB / 4}},
    {"a100-40",
     {.name = "NVIDIA A100 40GB", .type = CLT_DEVICE_GPU, .global_mem = 39 * GIB, .max_alloc = 39 * GIB / 4}},
    {"mi250",
     {.name = "AMD MI250 (one die)", .type = CLT_DEVICE_GPU, .global_mem = 64 * GIB, .max_alloc = 54 * GIB}},
    {"mi300",
     {.name = "AMD MI300X", .type = CLT_DEVICE_GPU, .global_mem = 192 * GIB, .max_alloc = 163 * GIB}},
    {"24gb",
     {.name = "a GPU with 24 GB", .type = CLT_DEVICE_GPU, .global_mem = 24 * GIB, .max_alloc = 6 * GIB}},
};

static clt_status find_device(const char *name, clt_device_facts *out) {
    for (size_t i = 0; name && i < CLT_COUNT_OF(known); i++)
        if (strcasecmp(name, known[i].name) == 0) {
            *out = known[i].facts;
            return CLT_OK;
        }
    clt_device_params p = clt_device_params_default();
    clt_device *dev;
    p.pattern = name;
    CLT_TRY(clt_device_open(&p, &dev));
    *out = *clt_device_get_facts(dev);
    clt_device_close(dev);
    return CLT_OK;
}

/* --- how often to save --- */

typedef struct {
    double mttf;         /* assumed mean time between failures, seconds */
    double stall;        /* seconds that training waits for a checkpoint; 0: unknown */
    double step;         /* seconds per step; not positive: unknown */
    int measured;        /* number of checkpoints that `stall` is the mean of; 0: given by --save-seconds */
    char *folder;        /* the run's folder */
    uint64_t checkpoint; /* bytes of weights and optimizer state */
} saving;

/* The stall given by the user, or the mean stall of this run's own checkpoints. */
static saving find_saving(const clt_config *c, const clt_plan_memory *m, double given, double mttf_hours) {
    static const double hour = 3600;
    metrics run = {0};
    saving s = {.mttf = mttf_hours * hour,
                .stall = given,
                .checkpoint = m->weights * (c->optimizer.kind == CLT_OPTIMIZER_ADAMW ? 3 : 2)};
    s.folder = c->save_folder ? clt_strdup(c->save_folder) : clt_path_join("runs", c->run_name);
    clt_error_quiet(true);
    if (metrics_read(s.folder, &run) == CLT_OK) {
        s.step = metrics_median(&run, SECONDS);
        if (!(given > 0) && run.saves > 0 && run.stall > 0) {
            s.stall = run.stall / run.saves;
            s.measured = run.saves;
        }
    }
    clt_error_quiet(false);
    metrics_free(&run);
    return s;
}

static void print_saving(const saving *s) {
    char b[32], every[32], stall[32], mttf[32];
    printf("checkpoint   %s of weights and optimizer state\n", clt_human_bytes((double)s->checkpoint, b));
    if (!(s->stall > 0)) {
        printf("saving       best interval unknown: needs checkpoints in %s or --save-seconds\n", s->folder);
        return;
    }
    double interval = young_interval(s->mttf, s->stall);
    printf("saving       best every %s", clt_human_seconds(interval, every));
    if (s->step > 0) printf(" (%.0f batches)", fmax(1, interval / s->step));
    printf(": training waits %s for a checkpoint (", clt_human_seconds(s->stall, stall));
    if (s->measured)
        printf("mean of %d in %s", s->measured, s->folder);
    else
        printf("--save-seconds");
    printf("), assuming a failure every %s (--mttf; Young's formula)\n", clt_human_seconds(s->mttf, mttf));
}

/* --- output --- */

static void row(const char *what, uint64_t bytes, const char *note) {
    char b[32];
    printf("  %-22s %12s  %s\n", what, clt_human_bytes((double)bytes, b), note);
}

static void print_plan(const clt_config *c, const clt_device_facts *f, const clt_plan *p, uint64_t capacity,
                       const saving *how) {
    const clt_plan_memory *m = &p->memory;
    const int ranks = p->ranks;
    char b[32], n[32], slabs[64], *sizes = clt_model_describe(c->model);
    double tokens = (double)c->global_train_batch_size * (double)c->max_seq_len;
    uint64_t params = clt_model_param_count(c->model);
    double flops = clt_model_train_flops_per_token(c->model, c->max_seq_len);
    printf("model        %llu parameters (%s), %s, sequence %lld\n", (unsigned long long)params,
           clt_human_count((double)params, n), sizes, (long long)c->max_seq_len);
    clt_free(sizes);
    printf("step         %lld samples, %s tokens, %.4g FLOP (%.4g per token)\n",
           (long long)c->global_train_batch_size, clt_human_count(tokens, n), flops * tokens, flops);
    printf("device       %s, %s; %d rank%s, microbatch %lld%s%s\n", f->name,
           clt_human_bytes((double)f->global_mem, b), ranks, ranks == 1 ? "" : "s", (long long)p->microbatch,
           c->device_train_microbatch_size ? "" : " (auto)", clt_recompute_text(p->recompute));
    puts("device memory of the rank that needs most");
    snprintf(slabs, sizeof slabs, "%d slab%s of the weights' size (fixed tree over lanes)", m->gradient_slabs,
             m->gradient_slabs == 1 ? "" : "s");
    row("weights", m->weights, "fp32");
    if (m->copy) row("16-bit weights", m->copy, "read by matrix units");
    row("gradients", m->gradients, slabs);
    row("optimizer", m->optimizer,
        c->optimizer.kind == CLT_OPTIMIZER_ADAMW ? "exp_avg, exp_avg_sq" : "exp_avg");
    row("activations", m->model.activations, "");
    if (m->model.logits) row("logits", m->model.logits, "in groups of whole samples");
    row("workspaces", m->model.workspace, "");
    row("exchange", m->reduction, ranks > 1 ? "between ranks" : "");
    row("other", m->model.other, "lookups, tables, inputs");
    row("total", m->total, "");
    row("available", capacity, "nine tenths of the device, shared by its ranks");
    print_saving(how);
}

static void print_json(const clt_config *c, const clt_plan *p, uint64_t capacity, const saving *s) {
    const clt_plan_memory *m = &p->memory;
    char every[32] = "null";
    if (s->stall > 0) snprintf(every, sizeof every, "%.6g", young_interval(s->mttf, s->stall));
    printf("{\"parameters\":%llu,\"microbatch\":%lld,\"weights\":%llu,\"weights_16\":%llu,\"gradients\":%llu,"
           "\"optimizer\":%llu,\"activations\":%llu,\"logits\":%llu,\"workspace\":%llu,\"exchange\":%llu,"
           "\"other\":%llu,\"total\":%llu,\"capacity\":%llu,\"flops_per_token\":%.6g,\"checkpoint\":%llu,"
           "\"save_every_seconds\":%s}\n",
           (unsigned long long)clt_model_param_count(c->model), (long long)p->microbatch,
           (unsigned long long)m->weights, (unsigned long long)m->copy, (unsigned long long)m->gradients,
           (unsigned long long)m->optimizer, (unsigned long long)m->model.activations,
           (unsigned long long)m->model.logits, (unsigned long long)m->model.workspace,
           (unsigned long long)m->reduction, (unsigned long long)m->model.other, (unsigned long long)m->total,
           (unsigned long long)capacity, clt_model_train_flops_per_token(c->model, c->max_seq_len),
           (unsigned long long)s->checkpoint, every);
}

int cmd_plan(int argc, char **argv) {
    const char *device = NULL;
    int64_t ranks = 1;
    double save_seconds = 0, mttf_hours = 24;
    bool json = false;
    const clt_option options[] = {
        {"device", 'd', CLT_OPT_STR, &device, "NAME",
         "pattern of a device of this machine, or h200, h100, a100-40, mi250, mi300, 24gb"},
        {"ranks", 'r', CLT_OPT_INT, &ranks, "N", "number of ranks (default 1)"},
        {"save-seconds", 0, CLT_OPT_FLOAT, &save_seconds, "S",
         "seconds that training waits for a checkpoint (default: mean of this run's checkpoints)"},
        {"mttf", 0, CLT_OPT_FLOAT, &mttf_hours, "HOURS",
         "assumed mean time between failures, for the best save interval (default 24)"},
        {"json", 0, CLT_OPT_FLAG, &json, NULL, "print one JSON object"},
    };
    const clt_command command = {
        .name = "cltrain plan",
        .usage = "CONFIG.yaml [key.sub=value ...]",
        .summary =
            "Prints parameters, memory by use, the microbatch that fits, the FLOP of a step and the best "
            "save interval, without running. Can plan for devices that this machine does not have.",
        .examples =
            "  cltrain plan run.yaml\n  cltrain plan tools/presets/mpt-1b.yaml --device h200 --ranks 4\n"
            "  cltrain plan run.yaml --save-seconds 2.5 --mttf 12    best save interval\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    clt_config *c = NULL;
    clt_device_facts f = {0};
    clt_plan plan = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n == 0)
        code = clt_options_fail(&command, "a configuration is required: CONFIG.yaml");
    if (code < 0 && (ranks < 1 || ranks > CLT_GROUP_MAX_RANKS))
        code = clt_options_fail(&command, "--ranks must be 1 to %d", CLT_GROUP_MAX_RANKS);
    if (code < 0 && !(save_seconds >= 0 && mttf_hours > 0 && isfinite(save_seconds * mttf_hours)))
        code = clt_options_fail(&command, "--save-seconds and --mttf must be positive");
    if (code < 0) {
        clt_status st = clt_config_load(rest.v[0], (const char *const *)rest.v + 1, rest.n - 1, &c);
        if (st == CLT_OK) st = clt_config_check_ranks(c, c->exact_lanes, (int)ranks);
        if (st == CLT_OK) st = find_device(device, &f);
        const clt_plan_room room = clt_plan_room_of(&f, f.type == CLT_DEVICE_CPU ? (int)ranks : 1);
        if (st == CLT_OK) st = clt_plan_make(c, (int)ranks, &room, &plan);
        /* The plan of a run that does not fit is printed, too: it shows how much memory is missing. */
        if (st == CLT_OK || plan.memory.total > 0) {
            saving how = find_saving(c, &plan.memory, save_seconds, mttf_hours);
            if (json)
                print_json(c, &plan, room.capacity, &how);
            else
                print_plan(c, &f, &plan, room.capacity, &how);
            clt_free(how.folder);
        }
        code = clt_status_exit_code(st);
    }
    clt_plan_free(&plan);
    clt_config_free(c);
    clt_strv_free(&rest);
    return code;
}
