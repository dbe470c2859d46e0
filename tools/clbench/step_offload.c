#include "tools/clbench/step_offload.h"

#include <string.h>

#include "runtime/base/clt_host.h"
#include "runtime/base/clt_thread.h"

/* --- options --- */

bool step_offload_any(const step_offload_options *o) {
    return o->where || o->parameters || o->gradients;
}

const char *step_offload_check(const step_offload_options *o) {
    const bool file = o->where && !strcmp(o->where, "file");
    if (o->where && !file && strcmp(o->where, "host")) return "--offload must be host or file";
    if (file != (o->folder != NULL)) return "--offload file and --offload-folder FOLDER belong together";
    if (o->ratio > 1) return "--offload-ratio must be 0 to 1";
    if (o->files && !file) return "--offload-files needs --offload file";
    if (o->update && (!o->where || file)) return "--offload-update needs --offload host";
    return o->ratio >= 0 && !o->where ? "--offload-ratio needs --offload" : NULL;
}

char *step_offload_keys(const step_offload_options *o) {
    clt_str s = {0};
    const char *rest = o->files ? "file" : "host";
    clt_str_add(&s, "");
    if (o->where) clt_str_addf(&s, ", offload: %s", o->where);
    if (o->folder) clt_str_addf(&s, ", offload_folder: \"%s\"", o->folder);
    if (o->ratio >= 0) clt_str_addf(&s, ", offload_ratio: %.9g", o->ratio);
    if (o->activations) clt_str_addf(&s, ", offload_activations: %s", rest);
    if (o->parameters || o->gradients) clt_str_addf(&s, ", zero_stage: %d", o->parameters ? 3 : 2);
    if (o->parameters) clt_str_addf(&s, ", offload_parameters: %s", rest);
    if (o->gradients) clt_str_addf(&s, ", offload_gradients: %s", rest);
    if (o->update) clt_str_add(&s, ", offload_update: host");
    return s.s;
}

/* --- before a step --- */

/* What other work leaves of a disk changes within minutes: it is measured before and after the steps. A small
 * file could be in a cache of the disk or of the host of a virtual machine; `files`: bytes of the steps' own.
 */
static clt_status measure_disk(const char *folder, uint64_t files, clt_scratch_rates *out) {
    static const uint64_t most_bytes = 8ull << 30;
    static const double most_seconds = 3;
    return clt_scratch_measure(folder, CLT_MIN(files, most_bytes), most_seconds, out);
}

static void add_mean(clt_scratch_rates *to, const clt_scratch_rates *x) {
    to->read = (to->read + x->read) / 2;
    to->write = (to->write + x->write) / 2;
    to->both = (to->both + x->both) / 2;
}

clt_status step_offload_begin(const step_offload_options *o, clt_device *dev, const clt_plan *p,
                              step_offload *out) {
    enum { PIECE = 8 << 20, LINK = 256 << 20 };
    const uint64_t have = clt_host_memory() / 10 * 9, pinned = clt_plan_pinned_bytes(&p->memory);
    char need[32], room[32];
    *out = (step_offload){.file_bytes = clt_plan_files_bytes(&p->memory)};
    if (pinned > have)
        return clt_error(CLT_NO_MEMORY,
                         "the step puts %s into host memory, %s are available: use a smaller %s",
                         clt_human_bytes((double)pinned, need), clt_human_bytes((double)have, room),
                         o->activations ? "--microbatch"
                         : o->where     ? "--offload-ratio"
                                        : "--model");
    if (o->folder) CLT_TRY(measure_disk(o->folder, out->file_bytes, &out->disk));
    return step_offload_any(o) ? bench_link_measure(dev, PIECE, LINK, &out->link) : CLT_OK;
}

/* --- after it --- */

clt_offload_traffic step_offload_since(const clt_engine *e, clt_offload_traffic before, int steps) {
    const clt_offload_traffic t = clt_engine_offload_traffic(e);
    const uint64_t n = (uint64_t)steps;
    return (clt_offload_traffic){(t.read - before.read) / n, (t.written - before.written) / n,
                                 (t.seconds - before.seconds) / steps, (t.waited - before.waited) / steps};
}

void step_offload_moved(step_offload *w, const clt_device *dev, clt_device_counters before, int steps) {
    clt_device_counters now;
    clt_device_get_counters(dev, &now);
    w->moved_in = (now.fetched - before.fetched) / (uint64_t)steps;
    w->moved_out = (now.sent - before.sent) / (uint64_t)steps;
}

void step_offload_end(const step_offload_options *o, step_offload *w, const clt_device *dev, const char *name,
                      double seconds) {
    clt_scratch_rates after;
    clt_device_counters counters;
    clt_error_quiet(true); /* the steps' files may leave no room */
    if (o->folder && measure_disk(o->folder, w->file_bytes, &after) == CLT_OK) add_mean(&w->disk, &after);
    clt_error_quiet(false);
    clt_device_get_counters(dev, &counters);
    w->device_bytes = counters.bytes;
    w->pinned_bytes = counters.pinned_bytes;
    clt_info("%s: a step takes %.3f s, its update %.3f s; the state is released now", name, seconds,
             w->step.seconds);
}

/* --- weights --- */

enum {
    PERIOD = 262139 /* prime: rows of a matrix begin at different places */,
    PART = 1 << 20,
    STAGE = 64 * PART /* elements */
};

typedef struct {
    const clt_model_config *model;
    const clt_slab_table *table;
    uint64_t seed, first, count; /* of the tensor */
    float *pattern;              /* [table.n][PERIOD] */
    const float *own;            /* of the tensor */
    float *stage;
} pattern_fill;

static void make_pattern(void *ctx, size_t i) {
    const pattern_fill *f = ctx;
    const uint64_t n = CLT_MIN((uint64_t)PERIOD, f->table->entry[i].count);
    clt_model_init_range(f->model, f->table, (int)i, f->seed, 0, n, f->pattern + i * PERIOD);
}

static void repeat_pattern(void *ctx, size_t i) {
    const pattern_fill *f = ctx;
    const uint64_t first = i * PART, end = CLT_MIN(first + PART, f->count);
    for (uint64_t at = first, n; at < end; at += n) {
        const uint64_t from = (f->first + at) % PERIOD;
        n = CLT_MIN(PERIOD - from, end - at);
        memcpy(f->stage + at, f->own + from, n * sizeof(float));
    }
}

static clt_status fill_tensor(pattern_fill *f, int i, const clt_slab *weights) {
    const clt_slab_entry *x = &f->table->entry[i];
    f->own = f->pattern + (size_t)i * PERIOD;
    for (f->first = 0; f->first < x->count; f->first += f->count) {
        f->count = CLT_MIN((uint64_t)STAGE, x->count - f->first);
        clt_parallel_for(CLT_CEIL_DIV(f->count, (uint64_t)PART), 0, repeat_pattern, f);
        CLT_TRY(clt_slab_write(weights, x->offset + f->first, f->stage, f->count));
    }
    return CLT_OK;
}

clt_status step_offload_weights(const clt_model_config *m, const clt_slab_table *t, uint64_t seed,
                                clt_slab *weights) {
    pattern_fill f = {.model = m,
                      .table = t,
                      .seed = seed,
                      .pattern = clt_malloc((size_t)t->n * PERIOD * sizeof(float)),
                      .stage = clt_malloc(STAGE * sizeof(float))};
    clt_status st = CLT_OK;
    clt_parallel_for((size_t)t->n, 0, make_pattern, &f);
    for (int i = 0; i < t->n && st == CLT_OK; i++) st = fill_tensor(&f, i, weights);
    clt_free(f.pattern);
    clt_free(f.stage);
    return st;
}

/* --- results --- */

/* Bytes per second that the link or the disk alone moves, both directions together. */
static double alone(const step_offload_options *o, const step_offload *w) {
    return o->folder ? w->disk.both : w->link.both;
}

static double moved(const step_offload *w) {
    return (double)w->step.read + (double)w->step.written;
}

static void print_rates(const step_offload_options *o, const step_offload *w) {
    const double in = o->folder ? w->disk.read : w->link.in, out = o->folder ? w->disk.write : w->link.out;
    const double rate = w->step.seconds > 0 ? moved(w) / w->step.seconds : 0;
    printf("  update       %.3f s: %.2f GB/s in both directions together, %.2f of what the %s alone moves "
           "(in %.2f, out %.2f, both %.2f GB/s)\n",
           w->step.seconds, rate * 1e-9, rate / alone(o, w), o->folder ? "disk" : "link", in * 1e-9,
           out * 1e-9, alone(o, w) * 1e-9);
}

/* What the cores read and write: moments, weights, the gradient, and the weights that the model reads. */
static void print_cores(const step_offload *w, const clt_plan_memory *m) {
    const double link = moved(w);
    printf("  update       %.3f s on the host's cores: %.2f GB/s of host memory; %.2f GB over the link\n",
           w->step.seconds, (double)m->update_touched / w->step.seconds * 1e-9, link * 1e-9);
}

/* Seconds that the link needs at least for what a step's passes move: all but the update's bytes. */
static double passes_on_link(const step_offload *w) {
    const double in = (double)w->moved_in - (double)w->step.read,
                 out = (double)w->moved_out - (double)w->step.written;
    const double ways = CLT_MAX(in / w->link.in, out / w->link.out);
    return CLT_MAX(CLT_MAX(ways, (in + out) / w->link.both), 0.0);
}

/* With everything in files: what passes over the link comes from the disk, or goes there. */
static void print_passes(const step_offload *w, double seconds) {
    const double bytes = (double)w->moved_in + (double)w->moved_out - moved(w),
                 passes = seconds - w->step.seconds;
    if (passes > 0)
        printf("  passes       %.3f s: %.2f GB/s, %.2f of what the disk alone moves\n", passes,
               bytes / passes * 1e-9, bytes / passes / w->disk.both);
}

/* A link that is busy for most of the passes is what they wait for. */
static void print_bound(const step_offload_options *o, const step_offload *w, double seconds) {
    const double share = CLT_MIN(w->step.seconds / seconds, 1.0), link = passes_on_link(w),
                 passes = CLT_MAX(seconds - w->step.seconds, 0.0);
    const bool waits = link >= 0.8 * passes;
    printf("  bound by     %s: the update takes %.1f %% of a step of %.3f s; without it %.3f s, of which the "
           "link needs %.3f s\n",
           share >= 0.5 && o->folder   ? "the disk"
           : share >= 0.5 && o->update ? "the host's cores and memory"
           : share >= 0.5 || waits     ? "the link"
                                       : "the device's computation",
           100 * share, seconds, passes, link);
}

void step_offload_print(const step_offload_options *o, const step_offload *w, const clt_plan *p,
                        double seconds) {
    const clt_plan_memory *m = &p->memory;
    char host[32], file[32], stays[32], device[32];
    if (!step_offload_any(o)) return;
    printf(
        "  state        %s in host memory, %s in files, %s of what is offloaded on the device; %s of device "
        "memory in use\n",
        clt_human_bytes((double)w->pinned_bytes, host), clt_human_bytes((double)w->file_bytes, file),
        clt_human_bytes((double)m->resident_bytes, stays), clt_human_bytes((double)w->device_bytes, device));
    printf(
        "  a step       moves %.2f GB to the device and %.2f GB back, of which its update %.2f and %.2f GB\n",
        (double)w->moved_in * 1e-9, (double)w->moved_out * 1e-9, (double)w->step.read * 1e-9,
        (double)w->step.written * 1e-9);
    if (o->update)
        print_cores(w, m);
    else if (moved(w) > 0)
        print_rates(o, w);
    if (o->files) print_passes(w, seconds);
    print_bound(o, w, seconds);
    fflush(stdout);
}

void step_offload_json(const step_offload_options *o, const step_offload *w, const clt_plan *p,
                       double seconds, clt_str *out) {
    const clt_plan_memory *m = &p->memory;
    clt_str_addf(out,
                 "\"offload\": \"%s\", \"host_bytes\": %llu, \"file_bytes\": %llu, \"resident_bytes\": %llu, "
                 "\"device_bytes\": "
                 "%llu, \"moved_in_bytes\": %llu, \"moved_out_bytes\": %llu, \"step_read_bytes\": %llu, "
                 "\"step_written_bytes\": %llu, \"update_seconds\": %.6g, "
                 "\"update_gbps\": %.6g, \"alone_gbps\": %.6g, \"update_share\": %.4f, ",
                 o->where ? o->where : "none", (unsigned long long)w->pinned_bytes,
                 (unsigned long long)w->file_bytes, (unsigned long long)m->resident_bytes,
                 (unsigned long long)w->device_bytes, (unsigned long long)w->moved_in,
                 (unsigned long long)w->moved_out, (unsigned long long)w->step.read,
                 (unsigned long long)w->step.written, w->step.seconds,
                 w->step.seconds > 0 ? moved(w) / w->step.seconds * 1e-9 : 0.0, alone(o, w) * 1e-9,
                 w->step.seconds / seconds);
}
