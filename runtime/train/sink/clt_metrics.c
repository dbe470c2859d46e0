#include "runtime/train/sink/clt_metrics.h"

#include <math.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

void clt_metrics_add(clt_metrics *m, const char *format, double value, const char *name, ...) {
    va_list ap;
    if (m->n == m->cap) {
        m->cap = CLT_MAX(32, 2 * m->cap);
        m->v = clt_realloc(m->v, m->cap * sizeof *m->v);
    }
    va_start(ap, name);
    m->v[m->n++] = (clt_metric){clt_vformat(name, ap), value, format};
    va_end(ap);
}

void clt_metrics_free(clt_metrics *m) {
    for (size_t i = 0; i < m->n; i++) clt_free(m->v[i].name);
    clt_free(m->v);
    *m = (clt_metrics){0};
}

double clt_metrics_get(const clt_metrics *m, const char *name) {
    for (size_t i = 0; i < m->n; i++)
        if (strcmp(m->v[i].name, name) == 0) return m->v[i].value;
    return NAN;
}

/* For the whole run (of "") and per device. */
static void add_throughput(const clt_config *c, clt_metrics *m, const char *of, const clt_rates *rate,
                           double devices) {
    clt_metrics_add(m, "%.4f", rate->batches / devices, "throughput/%sbatches_per_sec", of);
    clt_metrics_add(m, "%.4f", rate->samples / devices, "throughput/%ssamples_per_sec", of);
    if (!clt_model_get_terms(c->model)->by_sample)
        clt_metrics_add(m, "%.1f", rate->tokens / devices, "throughput/%stokens_per_sec", of);
    clt_metrics_add(m, "%.4g", rate->flops / devices, "throughput/%sflops_per_sec", of);
}

static void add_losses(const clt_config *c, const clt_step_row *r, clt_metrics_before *before,
                       clt_metrics *m) {
    const clt_model_terms *terms = clt_model_get_terms(c->model);
    clt_metrics_add(m, "%.4f", r->loss, "loss/train/total");
    clt_metrics_add(m, "%.4f", r->loss, "metrics/train/%s", terms->cross_entropy);
    if (terms->perplexity) clt_metrics_add(m, "%.4f", exp(r->loss), "metrics/train/%s", terms->perplexity);
    if (c->callbacks.fdiff_metrics && !isnan(before->loss))
        clt_metrics_add(m, "%.4f", r->loss - before->loss, "loss/train/total_fdiff");
    before->loss = r->loss;
    if (!isnan(r->grad_norm)) clt_metrics_add(m, "%.4f", (double)r->grad_norm, "l2_norm/grad/global");
}

/* Of this process: its share of one core since the call before, and its resident memory. */
static void add_system(clt_metrics_before *before, clt_metrics *m) {
    struct rusage use;
    const double wall = clt_now();
    long pages = 0;
    getrusage(RUSAGE_SELF, &use);
    const double cpu = (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
                       1e-6 * (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
    if (wall > before->wall)
        clt_metrics_add(m, "%.1f", 100 * (cpu - before->cpu) / (wall - before->wall),
                        "system/process_cpu_percent");
    before->wall = wall;
    before->cpu = cpu;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%*s %ld", &pages) == 1)
        clt_metrics_add(m, "%.4f", (double)pages * (double)sysconf(_SC_PAGESIZE) / 1e9,
                        "system/process_memory_gb");
    if (f) fclose(f);
}

static void add_times(const clt_config *c, const clt_step_row *r, clt_metrics *m) {
    clt_metrics_add(m, "%.0f", (double)r->before.epoch, "time/epoch");
    clt_metrics_add(m, "%.0f", (double)r->before.batch, "time/batch");
    clt_metrics_add(m, "%.0f", (double)r->before.sample, "time/sample");
    if (!clt_model_get_terms(c->model)->by_sample)
        clt_metrics_add(m, "%.0f", (double)r->before.token, "time/token");
}

void clt_metrics_of_step(const clt_config *c, const clt_step_row *r, const clt_rates *rate,
                         double seconds_left, clt_metrics_before *before, clt_metrics *out) {
    const double hour = 3600, total = r->after.wall_seconds + r->eval_seconds;
    add_times(c, r, out);
    clt_metrics_add(out, "%.0f", (double)r->microbatch, "trainer/device_train_microbatch_size");
    add_losses(c, r, before, out);
    if (c->callbacks.speed_monitor) {
        add_throughput(c, out, "", rate, 1);
        add_throughput(c, out, "device/", rate, r->ranks);
        if (r->mfu > 0)
            clt_metrics_add(out, "%.4f", r->mfu * rate->flops / r->flops_per_second, "throughput/device/mfu");
    }
    clt_metrics_add(out, "%.4f", r->after.wall_seconds / hour, "time/train");
    clt_metrics_add(out, "%.4f", r->eval_seconds / hour, "time/val");
    clt_metrics_add(out, "%.4f", total / hour, "time/total");
    if (c->callbacks.lr_monitor)
        clt_metrics_add(out, "%.4g", r->lr, "lr-%s/group0", clt_optimizer_of(c->optimizer.kind)->classed);
    if (c->callbacks.memory_monitor)
        clt_metrics_add(out, "%.4f", (double)r->device_memory / 1e9, "memory/current_allocated_mem");
    if (c->callbacks.runtime_estimator && seconds_left > 0)
        clt_metrics_add(out, "%.4f", seconds_left / hour, "time/remaining_estimate");
    if (c->callbacks.system_metrics_monitor) add_system(before, out);
}

void clt_metrics_of_eval(const clt_config *c, const clt_eval_row *r, clt_metrics *out) {
    const clt_model_terms *terms = clt_model_get_terms(c->model);
    /* Foundry's names: eval, or eval/LABEL for an entry of a list. */
    const char *label = strcmp(r->label, "eval") == 0 ? "" : r->label, *slash = *label ? "/" : "";
    const struct {
        const char *name;
        double value;
    } metric[] = {{terms->cross_entropy, r->loss},
                  {terms->perplexity, r->perplexity},
                  {terms->accuracy, r->accuracy},
                  {terms->accuracy5, r->accuracy5}};
    for (size_t i = 0; i < CLT_COUNT_OF(metric); i++)
        if (metric[i].name)
            clt_metrics_add(out, "%.4f", metric[i].value, "metrics/eval%s%s/%s", slash, label,
                            metric[i].name);
}

void clt_metrics_of_row(const clt_metrics_row *r, clt_metrics *out) {
    for (int i = 0; i < r->n; i++)
        clt_metrics_add(out, "%.4f", r->value[i], "%smetrics/%s/%s", r->prefix ? r->prefix : "", r->label,
                        r->name[i]);
}
