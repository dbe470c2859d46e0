#include "runtime/train/run/clt_sink.h"

#include <math.h>
#include <string.h>

#include "runtime/base/clt_json.h"
#include "runtime/train/run/clt_throughput.h"

struct clt_sinks {
    const clt_config *cfg;
    clt_file *jsonl;
    clt_row_fn row;
    void *row_ctx;
    bool main_rank, warned;
    bool torn; /* the last line of the file may be incomplete */
    int64_t batches_per_epoch;
    clt_throughput *speed;
};

/* If an earlier process died in the middle of a line, ends that line. */
static clt_status end_torn_line(clt_file *f, const char *path) {
    clt_file *in;
    uint64_t bytes;
    char last = '\n';
    CLT_TRY(clt_file_open(path, CLT_IO_READ, &in));
    clt_status st = clt_file_size(in, &bytes);
    if (st == CLT_OK && bytes > 0) st = clt_file_pread(in, &last, 1, bytes - 1);
    clt_file_close(in);
    return st == CLT_OK && last != '\n' ? clt_file_append(f, "\n", 1) : st;
}

clt_status clt_sinks_create(const clt_sinks_params *p, clt_sinks **out) {
    clt_sinks *s = clt_calloc(1, sizeof *s);
    *s = (clt_sinks){.cfg = p->cfg,
                     .row = p->row,
                     .row_ctx = p->row_ctx,
                     .main_rank = p->main_rank,
                     .batches_per_epoch = p->batches_per_epoch};
    s->speed = clt_throughput_create(p->cfg->callbacks.speed_window);
    if (p->folder && p->main_rank) {
        char *path = clt_path_join(p->folder, "metrics.jsonl");
        clt_status st = clt_file_open(path, CLT_IO_APPEND, &s->jsonl);
        if (st == CLT_OK) st = end_torn_line(s->jsonl, path);
        clt_free(path);
        if (st != CLT_OK) {
            clt_sinks_destroy(s);
            return st;
        }
    }
    *out = s;
    return CLT_OK;
}

void clt_sinks_destroy(clt_sinks *s) {
    if (!s) return;
    clt_progress_end();
    clt_file_close(s->jsonl);
    clt_throughput_destroy(s->speed);
    clt_free(s);
}

/* NaN and infinity become null, because JSON has neither. */
static void number(clt_str *b, const char *key, double v, const char *fmt) {
    clt_str_addf(b, ",\"%s\":", key);
    if (isfinite(v))
        clt_str_addf(b, fmt, v);
    else
        clt_str_add(b, "null");
}

/* A full disk must not stop training: only the first failure is reported. After an incomplete line a newline
 * is written first, so that it does not corrupt the next line. */
static void append_line(clt_sinks *s, const clt_str *line) {
    bool quiet = s->warned;
    if (quiet) clt_error_quiet(true);
    if (s->torn) s->torn = clt_file_append(s->jsonl, "\n", 1) != CLT_OK;
    if (!s->torn) s->torn = clt_file_append(s->jsonl, line->s, line->len) != CLT_OK;
    if (quiet) clt_error_quiet(false);
    if (s->torn && !s->warned) {
        s->warned = true;
        clt_warn("metrics.jsonl is incomplete from here on; training continues");
    }
}

/* Closes the row's JSON object, passes it to callback and file, and frees it. */
static void write_row(clt_sinks *s, clt_str *row) {
    clt_str_add(row, "}");
    if (s->row) s->row(s->row_ctx, row->s);
    clt_str_add(row, "\n");
    if (s->jsonl) append_line(s, row);
    clt_str_free(row);
}

static void step_json(clt_sinks *s, const clt_step_row *r) {
    clt_str b = {0};
    clt_str_addf(&b, "{\"batch\":%lld,\"epoch\":%lld,\"sample\":%lld,\"token\":%lld",
                 (long long)r->after.batch, (long long)r->after.epoch, (long long)r->after.sample,
                 (long long)r->after.token);
    number(&b, "loss", r->loss, "%.9g");
    number(&b, "lr", r->lr, "%.9g");
    number(&b, "grad_norm", (double)r->grad_norm, "%.9g");
    if (r->loss_scale > 0) number(&b, "loss_scale", r->loss_scale, "%.9g");
    number(&b, "step_seconds", r->step_seconds, "%.6f");
    number(&b, "tokens_per_sec", r->tokens_per_second, "%.2f");
    number(&b, "flops_per_sec", r->flops_per_second, "%.6g");
    if (r->mfu > 0) number(&b, "mfu", r->mfu, "%.5f");
    clt_str_addf(&b, ",\"device_memory_bytes\":%llu", (unsigned long long)r->device_memory);
    write_row(s, &b);
}

static const char *optimizer_name(const clt_config *c) {
    return c->optimizer.kind == CLT_OPTIMIZER_ADAMW ? "DecoupledAdamW" : "DecoupledLionW";
}

/* Composer's header of a console block, in the unit of max_duration; if that is epochs, with the batch of
 * this epoch. */
static void header(const clt_sinks *s, const clt_step_row *r, clt_str *b) {
    static const char *const units[] = {"epoch", "batch", "sample", "token"};
    clt_time max = s->cfg->max_duration;
    if (max.unit == CLT_TIME_EPOCH)
        clt_str_addf(b, "[epoch=%lld][batch=%lld/%lld]:", (long long)r->before.epoch + 1,
                     (long long)r->before.batch_in_epoch + 1, (long long)s->batches_per_epoch);
    else
        clt_str_addf(b, "[%s=%lld/%lld]:", units[max.unit], (long long)clt_timestamp_get(&r->after, max.unit),
                     (long long)max.value);
}

/* Composer's names, for the whole run and per device. */
static void throughput(clt_str *b, const char *of, const clt_rates *rate, double devices) {
    clt_str_addf(b, "\n\t Train throughput/%sbatches_per_sec: %.4f", of, rate->batches / devices);
    clt_str_addf(b, "\n\t Train throughput/%ssamples_per_sec: %.4f", of, rate->samples / devices);
    clt_str_addf(b, "\n\t Train throughput/%stokens_per_sec: %.1f", of, rate->tokens / devices);
    clt_str_addf(b, "\n\t Train throughput/%sflops_per_sec: %.4g", of, rate->flops / devices);
}

/* The part of max_duration, from 0 to 1, that is done at t. */
static double share_done(const clt_sinks *s, const clt_timestamp *t) {
    clt_time max = s->cfg->max_duration;
    double count = (double)clt_timestamp_get(t, max.unit);
    if (max.unit == CLT_TIME_EPOCH && s->batches_per_epoch > 0)
        count += (double)t->batch_in_epoch / (double)s->batches_per_epoch;
    return CLT_MIN(1.0, count / (double)max.value);
}

/* Seconds until max_duration at this speed, 0: unknown. */
static double seconds_left(const clt_sinks *s, const clt_step_row *r, const clt_rates *rate) {
    const double done = share_done(s, &r->after);
    return done > 0 && rate->batches > 0 ? (double)r->after.batch / rate->batches * (1 - done) / done : 0;
}

static void step_console(clt_sinks *s, const clt_step_row *r, const clt_rates *rate) {
    const clt_config *c = s->cfg;
    const double left = seconds_left(s, r, rate);
    clt_str b = {0};
    header(s, r, &b);
    clt_str_addf(&b,
                 "\n\t Train time/epoch: %lld\n\t Train time/batch: %lld\n\t Train time/sample: %lld\n"
                 "\t Train time/token: %lld",
                 (long long)r->before.epoch, (long long)r->before.batch, (long long)r->before.sample,
                 (long long)r->before.token);
    clt_str_addf(&b, "\n\t Train trainer/device_train_microbatch_size: %lld", (long long)r->microbatch);
    clt_str_addf(&b, "\n\t Train loss/train/total: %.4f", r->loss);
    clt_str_addf(&b, "\n\t Train metrics/train/LanguageCrossEntropy: %.4f", r->loss);
    clt_str_addf(&b, "\n\t Train metrics/train/LanguagePerplexity: %.4f", exp(r->loss));
    if (!isnan(r->grad_norm)) clt_str_addf(&b, "\n\t Train l2_norm/grad/global: %.4f", (double)r->grad_norm);
    if (c->callbacks.speed_monitor) {
        throughput(&b, "", rate, 1);
        throughput(&b, "device/", rate, r->ranks);
        if (r->mfu > 0)
            clt_str_addf(&b, "\n\t Train throughput/device/mfu: %.4f",
                         r->mfu * rate->flops / r->flops_per_second);
    }
    clt_str_addf(&b, "\n\t Train time/train: %.4f\n\t Train time/val: %.4f\n\t Train time/total: %.4f",
                 r->after.wall_seconds / 3600, r->eval_seconds / 3600,
                 (r->after.wall_seconds + r->eval_seconds) / 3600);
    if (c->callbacks.lr_monitor) clt_str_addf(&b, "\n\t Train lr-%s/group0: %.4g", optimizer_name(c), r->lr);
    if (c->callbacks.memory_monitor)
        clt_str_addf(&b, "\n\t Train memory/current_allocated_mem: %.4f", (double)r->device_memory / 1e9);
    if (c->callbacks.runtime_estimator && left > 0)
        clt_str_addf(&b, "\n\t Train time/remaining_estimate: %.4f", left / 3600);
    clt_info("%s", b.s);
    clt_str_free(&b);
}

static void bar(const clt_sinks *s, const clt_step_row *r, const clt_rates *rates) {
    enum { WIDTH = 10 }; /* so that the whole line fits 80 columns */
    double part = share_done(s, &r->after);
    char cells[WIDTH + 1], eta[32], rate[32];
    for (int i = 0; i < WIDTH; i++) cells[i] = i < (int)(part * WIDTH) ? '#' : '.';
    cells[WIDTH] = 0;
    clt_progress(part >= 1.0, "train %3.0f%% |%s| batch %lld  loss %.4f  %s tok/s  %s left", part * 100,
                 cells, (long long)r->after.batch, r->loss, clt_human_count(rates->tokens, rate),
                 clt_human_seconds(seconds_left(s, r, rates), eta));
}

void clt_sinks_step(clt_sinks *s, const clt_step_row *r) {
    if (!s->main_rank) return;
    clt_throughput_step(s->speed, r->step_seconds, r->after.sample - r->before.sample,
                        r->after.token - r->before.token, r->flops_per_second * r->step_seconds);
    const clt_rates rate = clt_throughput_rates(s->speed);
    step_json(s, r);
    bool first = r->before.batch == 0, last = clt_timestamp_reached(&r->after, s->cfg->max_duration);
    bool due = clt_timestamp_crossed(&r->before, &r->after, s->cfg->console_log_interval);
    if (s->cfg->log_to_console && (first || last || due)) step_console(s, r, &rate);
    if (s->cfg->progress_bar) bar(s, r, &rate);
}

void clt_sinks_eval_progress(clt_sinks *s, const char *label, int64_t i, int64_t n) {
    if (!s->main_rank) return;
    if (s->cfg->progress_bar)
        clt_progress(false, "eval %s: batch %lld/%lld", label, (long long)i, (long long)n);
    bool decile = i == n || i * 10 / n != (i - 1) * 10 / n;
    if (s->cfg->log_to_console && decile && i < n)
        clt_info("[Eval batch=%lld/%lld] Eval on %s data", (long long)i, (long long)n, label);
}

void clt_sinks_eval(clt_sinks *s, const clt_eval_row *r) {
    if (!s->main_rank) return;
    clt_str b = {0};
    clt_str_addf(&b, "{\"batch\":%lld", (long long)r->batch);
    if (strcmp(r->label, "eval") != 0) {
        clt_str_add(&b, ",\"label\":");
        clt_json_escape(&b, r->label);
    }
    number(&b, "eval_loss", r->loss, "%.9g");
    number(&b, "eval_perplexity", r->perplexity, "%.9g");
    number(&b, "eval_accuracy", r->accuracy, "%.9g");
    number(&b, "eval_seconds", r->seconds, "%.3f");
    write_row(s, &b);
    /* Foundry's names: eval, or eval/LABEL for an entry of a list. */
    const char *label = strcmp(r->label, "eval") == 0 ? "" : r->label, *slash = *label ? "/" : "";
    clt_info(
        "[Eval on %s data, %lld samples]:\n\t Eval metrics/eval%s%s/LanguageCrossEntropy: %.4f\n"
        "\t Eval metrics/eval%s%s/LanguagePerplexity: %.4f\n\t Eval metrics/eval%s%s/TokenAccuracy: %.4f",
        r->label, (long long)r->samples, slash, label, r->loss, slash, label, r->perplexity, slash, label,
        r->accuracy);
}

void clt_sinks_event(clt_sinks *s, const char *event, int64_t batch, const char *fields) {
    if (!s->main_rank) return;
    clt_str b = {0};
    clt_str_addf(&b, "{\"event\":\"%s\",\"batch\":%lld%s%s", event, (long long)batch, fields ? "," : "",
                 fields ? fields : "");
    write_row(s, &b);
}
