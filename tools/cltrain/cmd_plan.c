/* cltrain plan: the memory and work of a run, computed from its configuration alone. */
#include <math.h>
#include <string.h>

#include "tools/cltrain/commands.h"
#include "tools/cltrain/report_data.h"
#include "tools/cltrain/train_args.h"
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

static bool is_known(const char *name) {
    for (size_t i = 0; name && i < CLT_COUNT_OF(known); i++)
        if (strcasecmp(name, known[i].name) == 0) return true;
    return false;
}

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
                .checkpoint = m->elements * 4 * (uint64_t)(1 + clt_optimizer_of(c->optimizer.kind)->moments)};
    /* Where a run whose save_folder is in an object store keeps its metrics: nothing is asked of a store. */
    const bool here = c->save_folder && clt_io_can(c->save_folder, CLT_IO_CAN_APPEND);
    s.folder = here ? clt_strdup(c->save_folder) : clt_path_join("runs", c->run_name);
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

/* --- stages of sharding --- */

enum { STAGES = CLT_MOST_STAGE + 1 };
static const char *const recomputes[] = {"none", "norms", "blocks"};

typedef struct {
    int n; /* STAGES, or 1 on one rank: stage 0 */
    clt_plan plan[STAGES];
    bool fits[STAGES];
    int wanted; /* the configuration's stage, or the one that auto chooses */
} stages;

static clt_status find_stages(const clt_config *c, int ranks, const clt_plan_room *room, stages *s) {
    clt_plan chosen = clt_plan_begin(c, ranks);
    bool fits;
    s->n = ranks > 1 ? STAGES : 1;
    clt_status st = clt_plan_choose(c, room, &chosen, &fits);
    s->wanted = chosen.stage;
    clt_plan_free(&chosen);
    for (int i = 0; i < s->n && st == CLT_OK; i++) {
        s->plan[i] = clt_plan_begin(c, ranks);
        st = clt_plan_fit_stage(c, room, i, &s->plan[i], &s->fits[i]);
    }
    return st;
}

static void free_stages(stages *s) {
    for (int i = 0; i < s->n; i++) clt_plan_free(&s->plan[i]);
}

/* The stages that fit; if none does, what would fit at the last one. */
static void print_advice(const clt_config *c, const clt_plan_room *room, const stages *s) {
    const int last = s->n - 1;
    bool any = false;
    for (int i = 0; i <= last; i++) {
        if (s->fits[i]) printf("             what would fit: cltrain.zero_stage: %d\n", i);
        any |= s->fits[i];
    }
    char *advice = any ? NULL : clt_plan_advice(c, &s->plan[last], room);
    if (advice) printf("             what would fit at stage %d: %s\n", last, advice);
    clt_free(advice);
}

static void print_wanted(const clt_config *c, const clt_plan_room *room, const stages *s) {
    const bool fits = s->fits[s->wanted];
    if (c->shard.zero_stage != CLT_STAGE_AUTO)
        printf("zero_stage   %d, as configured: %s\n", s->wanted, fits ? "fits" : "does not fit");
    else if (s->wanted == 0)
        puts("zero_stage   auto: 0, every rank keeps the whole state: replicas are compared");
    else if (fits)
        printf("zero_stage   auto: %d, the lowest from 1 on that fits\n", s->wanted);
    else
        puts("zero_stage   auto: none from 1 on fits");
    if (!fits) print_advice(c, room, s);
}

/* One line per stage, `*` at the one that is asked for. */
static void print_stages(const clt_config *c, const clt_plan_room *room, const stages *s) {
    static const char *const heads[] = {"weights",  "copy",        "gradients", "optimizer",
                                        "exchange", "activations", "total"};
    if (s->n == 1) return;
    printf("memory of a rank by stage (cltrain.zero_stage; *: the one asked for), %d ranks\n"
           "  stage  microbatch  recompute",
           s->plan[0].ranks);
    for (size_t i = 0; i < CLT_COUNT_OF(heads); i++) printf("  %*s", i == 5 ? 11 : 9, heads[i]);
    puts("");
    for (int i = 0; i < s->n; i++) {
        const clt_plan_memory *m = &s->plan[i].memory;
        const uint64_t bytes[] = {m->weights,   m->copy,        m->gradients, m->optimizer,
                                  m->reduction, m->model.total, m->total};
        char b[32];
        printf("  %d%s     %10lld  %9s", i, i == s->wanted ? "*" : " ", (long long)s->plan[i].microbatch,
               recomputes[s->plan[i].recompute]);
        for (size_t k = 0; k < CLT_COUNT_OF(bytes); k++)
            printf("  %*s", k == 5 ? 11 : 9, clt_human_bytes((double)bytes[k], b));
        puts(s->fits[i] ? "  fits" : "  too big");
    }
    print_wanted(c, room, s);
}

static void print_stages_json(const stages *s) {
    printf("\"stages\":[");
    for (int i = 0; i < s->n; i++) {
        const clt_plan_memory *m = &s->plan[i].memory;
        printf("%s{\"stage\":%d,\"microbatch\":%lld,\"weights\":%llu,\"weights_16\":%llu,\"gradients\":%llu,"
               "\"optimizer\":%llu,\"exchange\":%llu,\"activations\":%llu,\"total\":%llu,\"fits\":%s}",
               i ? "," : "", i, (long long)s->plan[i].microbatch, (unsigned long long)m->weights,
               (unsigned long long)m->copy, (unsigned long long)m->gradients,
               (unsigned long long)m->optimizer, (unsigned long long)m->reduction,
               (unsigned long long)m->model.total, (unsigned long long)m->total,
               s->fits[i] ? "true" : "false");
    }
    printf("],");
}

/* --- output --- */

static void row(const char *what, uint64_t bytes, const char *note) {
    char b[32];
    printf("  %-22s %12s  %s\n", what, clt_human_bytes((double)bytes, b), note);
}

static void print_work(const clt_config *c, const clt_device_facts *f, const clt_plan *p) {
    const int ranks = p->ranks;
    char b[32], n[32], *sizes = clt_model_describe(c->model);
    const clt_model_terms *terms = clt_model_get_terms(c->model);
    double units = (double)c->global_train_batch_size * (double)(terms->by_sample ? 1 : c->max_seq_len);
    uint64_t params = clt_model_param_count(c->model);
    double flops = clt_model_train_flops_per_token(c->model, c->max_seq_len);
    printf("model        %llu parameters (%s), %s, sequence %lld\n", (unsigned long long)params,
           clt_human_count((double)params, n), sizes, (long long)c->max_seq_len);
    clt_free(sizes);
    printf("step         %lld samples, ", (long long)c->global_train_batch_size);
    if (!terms->by_sample) printf("%s %ss, ", clt_human_count(units, n), terms->unit);
    printf("%.4g FLOP (%.4g per %s)\n", flops * units, flops, terms->unit);
    printf("device       %s, %s; %d rank%s, microbatch %lld%s%s\n", f->name,
           clt_human_bytes((double)f->global_mem, b), ranks, ranks == 1 ? "" : "s", (long long)p->microbatch,
           c->device_train_microbatch_size ? "" : " (auto)", clt_recompute_text(p));
}

/* Whether weights, or sums of gradients, are in host memory or in files. */
static bool leaves_weights(const clt_plan_memory *m) {
    return m->host_weights || m->file_weights;
}
static bool leaves_gradients(const clt_plan_memory *m) {
    return m->host_gradients || m->file_gradients;
}

/* What a rank's gradients are. */
static char *gradients_text(const clt_plan_memory *m) {
    if (m->gradient_slabs > 0)
        return clt_format("%d slab%s of the weights' size (fixed tree over lanes)", m->gradient_slabs,
                          m->gradient_slabs == 1 ? "" : "s");
    if (leaves_gradients(m))
        return clt_format("buffers of %d blocks, places for sums", CLT_PLAN_GRADIENT_RING);
    return clt_format("%d sum%s of the rank's part, buffers of %d blocks", m->gradient_sums,
                      m->gradient_sums == 1 ? "" : "s", CLT_PLAN_GRADIENT_RING);
}

static const char *weights_text(const clt_config *c, const clt_plan *p) {
    if (p->memory.resident && c->precision != CLT_F32)
        return "fp32: embeddings, norms and biases; what is not offloaded";
    if (c->shard.offload && c->precision != CLT_F32) return "fp32: embeddings, norms and biases";
    if (p->stage == 0 || (p->stage < 3 && c->precision == CLT_F32)) return "fp32";
    if (p->stage < 3) return "fp32: the rank's part; embeddings, norms and biases";
    if (c->precision != CLT_F32) return "fp32: the rank's part";
    return leaves_weights(&p->memory) ? "fp32: the blocks in use"
                                      : "fp32: the rank's part; the blocks in use";
}

static char *moments_text(const clt_config *c, const clt_plan *p) {
    if (c->shard.offload)
        return clt_format("buffers that the offloaded state passes through%s",
                          p->memory.resident ? "; moments that are not offloaded" : "");
    return clt_format("exp_avg%s%s%s", clt_optimizer_of(c->optimizer.kind)->moments > 1 ? ", exp_avg_sq" : "",
                      p->stage > 0 ? " of the rank's part" : "",
                      leaves_weights(&p->memory) && leaves_gradients(&p->memory)
                          ? "; buffers that weights and gradients pass through"
                      : leaves_weights(&p->memory)   ? "; buffers that weights pass through"
                      : leaves_gradients(&p->memory) ? "; buffers that gradients pass through"
                                                     : "");
}

static void print_offload(const clt_config *c, const clt_plan_memory *m) {
    const char *what = c->precision == CLT_F32 ? "moments" : "moments, fp32 weights";
    char *note =
        clt_format("%s of the rank that needs most (cltrain.offload: %s)", what, m->file ? "file" : "host");
    row(m->file ? "files" : "host memory", m->file + m->host, note);
    clt_free(note);
}

/* What else is in host memory, and in files. */
static void print_away(const clt_config *c, const clt_plan_memory *m) {
    if (m->host_gradients)
        row("host memory", m->host_gradients,
            c->shard.gradients == CLT_OFFLOAD_FILE ? "sums of gradients, of chunks that two blocks share"
                                                   : "sums of gradients (cltrain.offload_gradients: host)");
    if (m->host_weights) row("host memory", m->host_weights, "weights (cltrain.offload_parameters: host)");
    if (m->model.host)
        row("host memory", m->model.host, "inputs of blocks (cltrain.offload_activations: host)");
    if (m->slots + m->spool) row("host memory", m->slots + m->spool, "buffers between files and the device");
    if (m->file_gradients)
        row("files", m->file_gradients, "sums of gradients (cltrain.offload_gradients: file)");
    if (m->file_weights) row("files", m->file_weights, "weights (cltrain.offload_parameters: file)");
    if (m->model.file) row("files", m->model.file, "inputs of blocks (cltrain.offload_activations: file)");
}

static void print_memory(const clt_config *c, const clt_plan *p, uint64_t capacity) {
    const clt_plan_memory *m = &p->memory;
    char *gradients = gradients_text(m), *moments = moments_text(c, p);
    printf("device memory of the rank that needs most");
    if (p->ranks > 1) printf(", stage %d", p->stage);
    puts("");
    row("weights", m->weights, weights_text(c, p));
    if (m->copy)
        row("16-bit weights", m->copy, p->stage == 3 ? "of the blocks in use" : "read by matrix units");
    row("gradients", m->gradients, gradients);
    row("optimizer", m->optimizer, moments);
    row("activations", m->model.activations, "");
    if (m->model.logits) row("logits", m->model.logits, "in groups of whole samples");
    row("workspaces", m->model.workspace, "");
    row("exchange", m->reduction, p->ranks > 1 ? "between ranks" : "");
    row("other", m->model.other, "lookups, tables, inputs");
    row("total", m->total, "");
    row("available", capacity, "nine tenths of the device, shared by its ranks");
    if (m->host + m->file) print_offload(c, m);
    print_away(c, m);
    clt_free(gradients);
    clt_free(moments);
}

/* What differs from the configuration, also at the highest stage. */
static void print_notes(const clt_config *c, const clt_plan *p, const stages *s) {
    const clt_plan *high = &s->plan[s->n - 1];
    clt_strv notes = {0};
    clt_plan_notes(c, p, &notes);
    for (size_t i = 0; i < notes.n; i++) printf("note         %s\n", notes.v[i]);
    clt_strv_free(&notes);
    if (p->whole_gradients || high->stage <= p->stage) return;
    clt_plan_notes(c, high, &notes);
    for (size_t i = 0; i < notes.n; i++) printf("note         stage %d: %s\n", high->stage, notes.v[i]);
    clt_strv_free(&notes);
}

/* What DeepSpeed's section elasticity allows. */
static void print_elastic(const clt_config *c) {
    if (c->n_elastic == 0) return;
    printf("elasticity   %d number%s of ranks for batch %lld\n  ranks  microbatch  accumulation\n",
           c->n_elastic, c->n_elastic == 1 ? "" : "s", (long long)c->global_train_batch_size);
    for (int i = 0; i < c->n_elastic; i++) {
        const long long ranks = c->elastic[i][0], micro = c->elastic[i][1];
        printf("  %5lld  %10lld  %12lld\n", ranks, micro, c->global_train_batch_size / (micro * ranks));
    }
}

/* What the disk makes of a step. The folder is not made for that. */
static void print_disk(const clt_config *c, const clt_plan *p) {
    const clt_plan_traffic t = clt_plan_files(c, p);
    const double bytes = (double)(t.in + t.out) * p->ranks;
    const char *folder = c->shard.offload_folder;
    clt_scratch_rates r;
    char in[32], out[32], time[32];
    if (!clt_plan_files_bytes(&p->memory)) return;
    printf("disk         a step of %lld microbatch%s reads %s and writes %s per rank",
           (long long)t.microbatches, t.microbatches == 1 ? "" : "es", clt_human_bytes((double)t.in, in),
           clt_human_bytes((double)t.out, out));
    if (!clt_io_is_dir(folder))
        printf("; %s is missing: its speed was not measured\n", folder);
    else if (clt_scratch_measure(folder, 128 << 20, 1, &r) != CLT_OK)
        printf("; the speed of %s was not measured\n", folder);
    else
        printf(
            ": at least %s on this disk with %d rank%s; %s reads at %.3g GB/s, writes at %.3g GB/s, both at "
            "once at %.3g GB/s\n",
            clt_human_seconds(bytes / r.both, time), p->ranks, p->ranks == 1 ? "" : "s", folder,
            r.read * 1e-9, r.write * 1e-9, r.both * 1e-9);
}

/* The rate of a link that is not here is not known: that of PCIe 5 with 16 lanes stands for it. */
static void print_link(const clt_config *c, const clt_plan *p) {
    static const double gbps = 50;
    const clt_plan_traffic t = clt_plan_link(c, p);
    char in[32], out[32], time[32];
    if (t.in == 0 || p->type == CLT_DEVICE_CPU) return;
    printf("link         a step of %lld microbatch%s moves %s to the device and %s back per rank: %s at %.0f "
           "GB/s each way (clbench link measures yours)\n",
           (long long)t.microbatches, t.microbatches == 1 ? "" : "es", clt_human_bytes((double)t.in, in),
           clt_human_bytes((double)t.out, out),
           clt_human_seconds((double)CLT_MAX(t.in, t.out) / (gbps * 1e9), time), gbps);
}

/* The same of the host's memory. */
static void print_host_steps(const clt_plan *p) {
    static const double gbps = 100;
    const double bytes = (double)p->memory.update_touched;
    char all[32], time[32];
    if (bytes > 0)
        printf(
            "host cores   the optimizer's step reads and writes %s of the host's memory per rank: %s at %.0f "
            "GB/s (clbench optimizer --device cpu measures yours)\n",
            clt_human_bytes(bytes, all), clt_human_seconds(bytes / (gbps * 1e9), time), gbps);
}

static void print_plan(const clt_config *c, const clt_device_facts *f, const clt_plan *p,
                       const clt_plan_room *room, const stages *s, const saving *how) {
    print_work(c, f, p);
    print_memory(c, p, room->capacity);
    print_disk(c, p);
    print_link(c, p);
    print_host_steps(p);
    print_stages(c, room, s);
    print_notes(c, p, s);
    print_elastic(c);
    print_saving(how);
}

static void print_json(const clt_config *c, const clt_plan *p, uint64_t capacity, const stages *all,
                       const saving *s) {
    const clt_plan_memory *m = &p->memory;
    char every[32] = "null";
    if (s->stall > 0) snprintf(every, sizeof every, "%.6g", young_interval(s->mttf, s->stall));
    json_t *summary = clt_config_summary(c, p->ranks);
    char *text = json_dumps(summary, JSON_COMPACT);
    json_decref(summary);
    const clt_plan_traffic link = clt_plan_link(c, p), files = clt_plan_files(c, p);
    printf("{\"link_in\":%llu,\"link_out\":%llu,\"update_touched\":%llu,\"file_read\":%llu,"
           "\"file_written\":%llu,\"file\":%llu,\"host_buffers\":%llu,",
           (unsigned long long)link.in, (unsigned long long)link.out, (unsigned long long)m->update_touched,
           (unsigned long long)files.in, (unsigned long long)files.out,
           (unsigned long long)clt_plan_files_bytes(m), (unsigned long long)(m->slots + m->spool));
    printf("\"stage\":%d,\"shard_ranks\":%d,\"replicas\":%d,\"host\":%llu,\"host_parameters\":%llu,"
           "\"host_gradients\":%llu,\"host_activations\":%llu,",
           p->stage, p->shard_ranks, p->replicas, (unsigned long long)m->host,
           (unsigned long long)m->host_weights, (unsigned long long)m->host_gradients,
           (unsigned long long)m->model.host);
    print_stages_json(all);
    printf("\"parameters\":%llu,\"microbatch\":%lld,\"weights\":%llu,\"weights_16\":%llu,\"gradients\":%llu,"
           "\"optimizer\":%llu,\"activations\":%llu,\"logits\":%llu,\"workspace\":%llu,\"exchange\":%llu,"
           "\"other\":%llu,\"total\":%llu,\"capacity\":%llu,\"flops_per_%s\":%.6g,\"checkpoint\":%llu,"
           "\"save_every_seconds\":%s,\"configuration\":%s}\n",
           (unsigned long long)clt_model_param_count(c->model), (long long)p->microbatch,
           (unsigned long long)m->weights, (unsigned long long)m->copy, (unsigned long long)m->gradients,
           (unsigned long long)m->optimizer, (unsigned long long)m->model.activations,
           (unsigned long long)m->model.logits, (unsigned long long)m->model.workspace,
           (unsigned long long)m->reduction, (unsigned long long)m->model.other, (unsigned long long)m->total,
           (unsigned long long)capacity, clt_model_get_terms(c->model)->unit,
           clt_model_train_flops_per_token(c->model, c->max_seq_len), (unsigned long long)s->checkpoint,
           every, text);
    clt_free(text);
}

/* --- the command --- */

typedef struct {
    const char *device, *deepspeed;
    int64_t ranks, stage, host_memory; /* stage -1: that of a run; GiB, 0: not given */
    double save_seconds, mttf_hours;
    bool json;
} settings;

static clt_status make_plan(const clt_config *c, const settings *o, const clt_plan_room *room, clt_plan *p) {
    bool fits;
    if (o->stage < 0) return clt_plan_make(c, (int)o->ranks, room, p);
    *p = clt_plan_begin(c, (int)o->ranks);
    CLT_TRY(clt_plan_fit_stage(c, room, (int)o->stage, p, &fits));
    return fits ? CLT_OK : clt_plan_refuse(c, p, room);
}

static clt_status print(const clt_config *c, const settings *o, const clt_device_facts *f) {
    clt_plan_room room = clt_plan_room_of(f, f->type == CLT_DEVICE_CPU ? (int)o->ranks : 1);
    if (is_known(o->device) || o->host_memory) room.host = ((uint64_t)o->host_memory << 30) / 10 * 9;
    stages all = {0};
    clt_plan plan = {0};
    clt_status st = make_plan(c, o, &room, &plan);
    const bool planned = plan.memory.total > 0;
    /* The plan of a run that does not fit is printed, too: it shows how much memory is missing. */
    if (planned && find_stages(c, (int)o->ranks, &room, &all) == CLT_OK) {
        saving how = find_saving(c, &plan.memory, o->save_seconds, o->mttf_hours);
        if (o->json)
            print_json(c, &plan, room.capacity, &all, &how);
        else
            print_plan(c, f, &plan, &room, &all, &how);
        clt_free(how.folder);
    }
    free_stages(&all);
    clt_plan_free(&plan);
    return st;
}

static int check(const clt_command *command, const settings *o) {
    if (o->ranks < 1 || o->ranks > CLT_GROUP_MAX_RANKS)
        return clt_options_fail(command, "--ranks must be 1 to %d", CLT_GROUP_MAX_RANKS);
    if (o->stage < -1 || o->stage > CLT_MOST_STAGE)
        return clt_options_fail(command, "--stage must be 0 to %d", CLT_MOST_STAGE);
    if (o->stage > 0 && o->ranks == 1)
        return clt_options_fail(command, "--stage %d needs several ranks: give --ranks", (int)o->stage);
    if (o->host_memory < 0 || o->host_memory > 1 << 20)
        return clt_options_fail(command, "--host-memory must be 1 to %d", 1 << 20);
    if (!(o->save_seconds >= 0 && o->mttf_hours > 0 && isfinite(o->save_seconds * o->mttf_hours)))
        return clt_options_fail(command, "--save-seconds and --mttf must be positive");
    return -1;
}

int cmd_plan(int argc, char **argv) {
    settings o = {.ranks = 1, .stage = -1, .mttf_hours = 24};
    const clt_option options[] = {
        {"device", 'd', CLT_OPT_STR, &o.device, "NAME",
         "pattern of a device of this machine, or h200, h100, a100-40, mi250, mi300, 24gb"},
        {"deepspeed", 0, CLT_OPT_STR, &o.deepspeed, "FILE",
         "merge a DeepSpeed configuration (ds_config.json) into CONFIG.yaml (docs/deepspeed.md)"},
        {"ranks", 'r', CLT_OPT_INT, &o.ranks, "N", "number of ranks (default 1)"},
        {"host-memory", 0, CLT_OPT_INT, &o.host_memory, "GIB",
         "memory of a host, for offload: host (default: this one's, of the named devices unlimited)"},
        {"stage", 0, CLT_OPT_INT, &o.stage, "S",
         "plan for this stage of sharding, 0 to 3 (default: what a run does)"},
        {"save-seconds", 0, CLT_OPT_FLOAT, &o.save_seconds, "S",
         "seconds that training waits for a checkpoint (default: mean of this run's checkpoints)"},
        {"mttf", 0, CLT_OPT_FLOAT, &o.mttf_hours, "HOURS",
         "assumed mean time between failures, for the best save interval (default 24)"},
        {"json", 0, CLT_OPT_FLAG, &o.json, NULL, "print one JSON object"},
    };
    const clt_command command = {
        .name = "cltrain plan",
        .usage = "CONFIG.yaml [key.sub=value ...]",
        .summary = "Prints parameters, memory by use, the microbatch that fits, the FLOP of a step and the "
                   "best save interval, without running; for several ranks also the memory of a rank at "
                   "each stage of sharding. Can plan for devices that this machine does not have.",
        .examples =
            "  cltrain plan run.yaml\n  cltrain plan tools/presets/mpt-1b.yaml --device h200 --ranks 4\n"
            "  cltrain plan tools/presets/mpt-13b.yaml --device h200 --ranks 4 --stage 3\n"
            "  cltrain plan run.yaml --save-seconds 2.5 --mttf 12    best save interval\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    clt_config *c = NULL;
    clt_device_facts f = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n == 0)
        code = clt_options_fail(&command, "a configuration is required: CONFIG.yaml");
    if (code < 0) code = check(&command, &o);
    if (code < 0) {
        if (o.deepspeed) clt_strv_add_owned(&rest, clt_train_deepspeed_override(o.deepspeed));
        clt_status st =
            clt_config_load_for(rest.v[0], (const char *const *)rest.v + 1, rest.n - 1, (int)o.ranks, &c);
        if (st == CLT_OK) st = clt_config_check_ranks(c, c->exact_lanes, (int)o.ranks);
        if (st == CLT_OK) st = find_device(o.device, &f);
        if (st == CLT_OK) st = print(c, &o, &f);
        code = clt_status_exit_code(st);
    }
    clt_config_free(c);
    clt_strv_free(&rest);
    return code;
}
