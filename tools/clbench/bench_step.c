/* clbench step: whole training steps of the MPT family on random tokens, as in the table that MosaicML
 * published: model, sequence, microbatch, tokens per second, TFLOP/s and MFU by the same formula, (6 N + 12
 * layers d_model T) FLOP per token over the peak of the step's precision. Suite vit: Vision Transformers on
 * random images, images per second. */
#include <math.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "tools/clbench/bench.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/base/clt_philox.h"
#include "runtime/train/engine/clt_engine.h"
#include "runtime/ops/clt_variant.h"
#include "tools/clbench/step_offload.h"

typedef struct {
    const char *suite, *name;
    /* seq: tokens, or the side of an image in pixels; vocab: or classes; microbatch: the largest that is
     * tried */
    int64_t d, heads, layers, vocab, seq, microbatch;
    int64_t patch; /* side of a patch; 0: a model of tokens */
} step_shape;

/* The sizes of LLM Foundry's mpt-*.yaml. Batches: those of the published rows that one device can hold. */
static const step_shape shapes[] = {
    {"mpt", "mpt-125m", 768, 12, 12, 50368, 2048, 16},
    {"mpt", "mpt-350m", 1024, 16, 24, 50368, 2048, 16},
    {"mpt", "mpt-760m", 1536, 12, 24, 50368, 2048, 8},
    {"mpt", "mpt-1b", 2048, 16, 24, 50368, 2048, 8},
    {"mpt", "mpt-3b", 2560, 20, 32, 50368, 2048, 4},
    {"mpt", "mpt-7b", 4096, 32, 32, 50368, 2048, 1},
    {"mpt", "mpt-13b", 5120, 40, 40, 50368, 2048, 1},
    {"seq", "mpt-1b", 2048, 16, 24, 50368, 512, 32},
    {"seq", "mpt-1b", 2048, 16, 24, 50368, 1024, 16},
    {"seq", "mpt-1b", 2048, 16, 24, 50368, 2048, 8},
    {"seq", "mpt-1b", 2048, 16, 24, 50368, 4096, 4},
    {"seq", "mpt-1b", 2048, 16, 24, 50368, 8192, 2},
    {"cpu", "small", 256, 4, 4, 4096, 256, 4},
    {"cpu", "mpt-125m", 768, 12, 12, 50368, 256, 1},
    {"vit", "vit-base-16", 768, 12, 12, 1000, 224, 256, 16},
    {"vit", "vit-huge-14", 1280, 16, 32, 1000, 224, 128, 14},
    {"vit", "vit-huge-16", 1280, 16, 32, 1000, 224, 128, 16},
    {"vit-cpu", "vit-base-16", 768, 12, 12, 1000, 224, 4, 16},
};

/* Dense rates of the maker's data sheets, TFLOP/s: matrix units with 16-bit inputs, fp32. */
static const struct {
    const char *device;
    double narrow, fp32;
} nominal[] = {{"H100", 989.5, 67}, {"H200", 989.5, 67}, {"A100", 312, 19.5}};

static const char *const recompute_words[] = {"none", "norms", "blocks"}; /* by clt_recompute */

typedef struct {
    const char *suite, *device, *precision, *numerics, *recompute, *json, *only;
    bool no_bias, no_clip;
    int64_t microbatch, accumulate, attention_bits, steps;
    step_offload_options offload;
    double seconds, peak_given;
    clt_group *group;
    clt_device *dev;
    double fma_peak, copy_peak; /* measured, per second */
    bool headed;                /* whether the table's head is printed and the peaks are known */
    clt_str rows;               /* JSON */
} step_bench;

typedef struct {
    const step_shape *shape;
    clt_config *cfg;
    clt_ops *ops;
    clt_engine *engine;
    clt_plan plan;
    void *data; /* of the batch */
    clt_batch batch;
    double weights_seconds; /* random weights, to the device */
    double first_seconds;   /* the whole start, including the first step, without the random weights */
    double step_seconds, loss;
    int steps;
    step_offload offload;
} step_work;

/* --- the run --- */

/* Model, loader and optimizer of the configuration; the caller frees the text. */
static char *model_text(const step_bench *b, const step_shape *s) {
    if (s->patch)
        return clt_format("model: {name: vit, image_size: %lld, patch_size: %lld, width: %lld, depth: %lld, "
                          "heads: %lld, classes: %lld}\ntokenizer: {name: bytes}\n"
                          "train_loader: {name: image, dataset: {local: none}}\n"
                          "optimizer: {name: adamw, lr: 1.0e-4, weight_decay: 0.05}\n",
                          (long long)s->seq, (long long)s->patch, (long long)s->d, (long long)s->layers,
                          (long long)s->heads, (long long)s->vocab);
    return clt_format(
        "max_seq_len: %lld\nmodel: {name: mpt_causal_lm, d_model: %lld, n_heads: %lld, n_layers: %lld, "
        "expansion_ratio: 4, max_seq_len: %lld, vocab_size: %lld, no_bias: %s}\n"
        "tokenizer: {name: bytes}\ntrain_loader: {name: text, dataset: {local: none, max_seq_len: %lld}}\n"
        "optimizer: {name: decoupled_adamw, lr: 6.0e-4, betas: [0.9, 0.95], eps: 1.0e-8, weight_decay: "
        "0.0}\n",
        (long long)s->seq, (long long)s->d, (long long)s->heads, (long long)s->layers, (long long)s->seq,
        (long long)s->vocab, b->no_bias ? "true" : "false", (long long)s->seq);
}

/* The configuration of a run with microbatches of `mb` samples. */
static clt_status make_config(const step_bench *b, const step_shape *s, int64_t mb, clt_config **out) {
    char *model = model_text(b, s), *offload = step_offload_keys(&b->offload);
    char *text = clt_format(
        "%s"
        "scheduler: {name: constant_with_warmup, t_warmup: 0ba}\n"
        "%s"
        "max_duration: 1000ba\neval_interval: 0\nseed: 17\nprecision: %s\nglobal_train_batch_size: %lld\n"
        "device_train_microbatch_size: %lld\ndevice_eval_batch_size: 1\ncltrain: {tune: "
        "cache%s%s%s%s%s%s%s}\n",
        model,
        b->no_clip ? "" : "algorithms: {gradient_clipping: {clipping_type: norm, clipping_threshold: 1.0}}\n",
        b->precision, (long long)(mb * b->accumulate), (long long)mb,
        b->no_clip ? ", guards: {gradient_norm: false, loss_spike: off}" : "",
        b->attention_bits ? (b->attention_bits == 8 ? ", attention_bits: 8" : ", attention_bits: 16") : "",
        b->recompute ? ", recompute: " : "", b->recompute ? b->recompute : "",
        b->numerics ? ", numerics: " : "", b->numerics ? b->numerics : "", offload);
    clt_status st = clt_config_parse(text, strlen(text), "clbench step", NULL, 0, out);
    clt_free(text);
    clt_free(model);
    clt_free(offload);
    return st;
}

/* The largest microbatch up to the shape's (or the requested one) whose plan fits; w->cfg NULL: none. */
static clt_status plan(const step_bench *b, const step_shape *s, step_work *w) {
    const clt_plan_room room = clt_plan_room_of(clt_device_get_facts(b->dev), 1);
    for (int64_t mb = b->microbatch ? b->microbatch : s->microbatch; mb >= 1;
         mb = b->microbatch ? 0 : mb / 2) {
        CLT_TRY(make_config(b, s, mb, &w->cfg));
        clt_plan_free(&w->plan);
        clt_error_quiet(true);
        clt_status st = clt_plan_make(w->cfg, 1, &room, &w->plan);
        clt_error_quiet(false);
        if (st == CLT_OK && b->microbatch) clt_plan_say_notes(w->cfg, &w->plan);
        if (st == CLT_OK) return CLT_OK;
        clt_config_free(w->cfg);
        w->cfg = NULL;
        if (st != CLT_NO_MEMORY) return clt_error(st, "%s", clt_last_error());
    }
    return CLT_OK;
}

static clt_status random_weights(step_work *w) {
    static const uint64_t large = 2000000000; /* parameters: beyond, a start would take too long */
    int n;
    const clt_ckpt_part *parts = clt_engine_parts(w->engine, &n);
    const double start = clt_now();
    CLT_TRY((clt_model_param_count(w->cfg->model) > large ? step_offload_weights : clt_model_init_weights)(
        w->cfg->model, clt_engine_table(w->engine), 17, parts[0].slab));
    CLT_TRY(clt_device_finish(clt_ops_device(w->ops)));
    w->weights_seconds = clt_now() - start;
    return CLT_OK;
}

static clt_status open_engine(const step_bench *b, step_work *w) {
    const clt_config *c = w->cfg;
    clt_ops_params o = clt_ops_params_default();
    o.numerics = c->numerics;
    o.tune = c->tune;
    CLT_TRY(clt_ops_create(b->dev, &o, &w->ops));
    const clt_engine_params p = {
        .cfg = c, .group = b->group, .ops = w->ops, .plan = &w->plan, .training = true};
    CLT_TRY(clt_engine_create(&p, &w->engine));
    CLT_TRY(random_weights(w));
    clt_engine_rehearse(w->engine, false);
    return clt_engine_weights_changed(w->engine);
}

/* n random words, for n a multiple of 4. */
static void random_words(uint32_t *word, size_t n) {
    const uint32_t key[2] = {17, 0x73746570};
    for (size_t i = 0; i < n; i += 4) {
        const uint32_t counter[4] = {(uint32_t)i, (uint32_t)(i >> 32), 0, 0};
        clt_philox4x32(counter, key, word + i);
    }
}

/* A global batch of random tokens; each token is its own target. */
static void random_tokens(step_work *w) {
    const int64_t samples = w->cfg->global_train_batch_size, targets = samples * w->cfg->max_seq_len;
    int32_t *tokens = w->data = clt_malloc((size_t)CLT_ROUND_UP(targets, 4) * sizeof *tokens);
    random_words(w->data, (size_t)CLT_ROUND_UP(targets, 4));
    for (int64_t i = 0; i < targets; i++)
        tokens[i] = (int32_t)((uint32_t)tokens[i] % (uint32_t)w->shape->vocab);
    w->batch = (clt_batch){.samples = samples,
                           .field = {[CLT_TEXT_TOKENS] = tokens, [CLT_TEXT_TARGETS] = tokens},
                           .targets = targets,
                           .tokens = targets,
                           .global_samples = samples,
                           .global_targets = targets};
}

/* A global batch of random images: pixels are uniform with mean 0 and variance 1; a random class each. */
static void random_images(step_work *w) {
    const int64_t samples = w->cfg->global_train_batch_size, classes = w->shape->vocab;
    const int64_t pixels = samples * 3 * w->shape->seq * w->shape->seq,
                  words = CLT_ROUND_UP(pixels + samples, 4);
    float *data = w->data = clt_malloc((size_t)(words + samples * classes) * sizeof *data);
    float *wanted = memset(data + words, 0, (size_t)(samples * classes) * sizeof *data);
    uint32_t *word = w->data;
    int32_t *label = (int32_t *)w->data + pixels;
    random_words(word, (size_t)words);
    for (int64_t i = 0; i < samples; i++) {
        label[i] = (int32_t)(word[pixels + i] % (uint32_t)classes);
        wanted[i * classes + label[i]] = 1.0f;
    }
    for (int64_t i = 0; i < pixels; i++) data[i] = (float)(int32_t)word[i] * (0x1p-31f * 1.7320508f);
    w->batch = (clt_batch){
        .samples = samples,
        .field = {[CLT_IMAGE_PIXELS] = data, [CLT_IMAGE_TARGETS] = wanted, [CLT_IMAGE_LABEL] = label},
        .targets = samples,
        .tokens = samples,
        .global_samples = samples,
        .global_targets = samples};
}

/* The first microbatches of the batch, as a batch. */
static clt_batch first_of(const step_work *w, int64_t microbatches) {
    clt_batch b = w->batch;
    const int64_t n = CLT_MIN(b.samples, microbatches * w->plan.microbatch);
    b.targets = b.global_targets = b.targets / b.samples * n;
    b.tokens = b.tokens / b.samples * n;
    b.samples = b.global_samples = n;
    return b;
}

/* Steps queued ahead as training queues them, until `seconds` have passed and at least `least` steps are
 * done. */
static clt_status run_steps(step_work *w, const clt_batch *b, int *step, int least, double seconds,
                            double *took) {
    const int ahead = w->cfg->precision == CLT_F16 ? 1 : 2;
    clt_engine_result r;
    int queued = 0, done = 0;
    const double start = clt_now();
    while (queued > 0 || done < least || clt_now() - start < seconds) {
        const bool more = done + queued < least || clt_now() - start < seconds;
        bool given_up = false;
        if (more && queued < ahead) {
            const clt_engine_step_params p = {.batch = b, .step = ++*step, .alpha = 1.0};
            CLT_TRY(clt_engine_launch(w->engine, &p, &given_up));
            queued++;
            continue;
        }
        CLT_TRY(clt_engine_collect(w->engine, &r));
        queued--, done++;
        if (!r.finite && !r.skipped)
            return clt_error(CLT_FAIL, "step %d of %s is not finite", *step, w->shape->name);
        w->loss = r.loss;
    }
    *took = (clt_now() - start) / done;
    w->steps = done;
    return CLT_OK;
}

/* One more step, of one microbatch, whose update is timed alone. */
static clt_status measure_update(step_work *w, int *step) {
    const clt_offload_traffic before = clt_engine_offload_traffic(w->engine);
    const clt_batch one = first_of(w, 1);
    const double loss = w->loss; /* of the last timed step, as without offload */
    const int steps = w->steps;
    double ignored;
    clt_engine_time_offload(w->engine, true);
    CLT_TRY(run_steps(w, &one, step, 1, 0, &ignored));
    w->offload.step = step_offload_since(w->engine, before, 1);
    w->loss = loss;
    w->steps = steps;
    return CLT_OK;
}

static clt_status time_steps(const step_bench *b, step_work *w, int *step) {
    enum { LEAST = 4 };
    const clt_offload_traffic before = clt_engine_offload_traffic(w->engine);
    clt_engine_time_offload(w->engine, b->offload.folder); /* beside files a wait is nothing */
    const int least = b->steps ? (int)b->steps : LEAST;
    clt_device_counters counters;
    clt_device_get_counters(b->dev, &counters);
    CLT_TRY(run_steps(w, &w->batch, step, least, b->steps ? 0 : b->seconds, &w->step_seconds));
    if (!step_offload_any(&b->offload)) return CLT_OK;
    step_offload_moved(&w->offload, b->dev, counters, w->steps);
    w->offload.step = step_offload_since(w->engine, before, w->steps);
    if (!b->offload.folder) CLT_TRY(measure_update(w, step));
    step_offload_end(&b->offload, &w->offload, b->dev, w->shape->name, w->step_seconds);
    return CLT_OK;
}

static clt_status measure(const step_bench *b, step_work *w) {
    enum { WARM = 3 };
    int step = 0;
    double ignored;
    CLT_TRY(step_offload_begin(&b->offload, b->dev, &w->plan, &w->offload));
    const double start = clt_now();
    CLT_TRY(open_engine(b, w));
    w->shape->patch ? random_images(w) : random_tokens(w);
    const clt_batch start_with = b->steps ? first_of(w, 2) : w->batch; /* every kernel of a step runs */
    CLT_TRY(run_steps(w, &start_with, &step, 1, 0, &ignored));
    w->first_seconds = clt_now() - start - w->weights_seconds;
    clt_debug("the first step is done: a start of %.3f s without random weights", w->first_seconds);
    if (!b->steps) CLT_TRY(run_steps(w, &w->batch, &step, WARM, 0, &ignored));
    return time_steps(b, w, &step);
}

/* --- peaks --- */

/* The rate that this device reaches in the step's precision: for 16-bit types that of a large matrix product,
 * the best known rate of its matrix units. */
static clt_status measured_peak(const step_bench *b, step_work *w, double *flops) {
    *flops = b->fma_peak;
    if (w->cfg->precision == CLT_F32) return CLT_OK;
    const int64_t n = clt_device_get_facts(b->dev)->type == CLT_DEVICE_GPU ? 8192 : 512;
    bench tensors = {.dev = b->dev, .ops = w->ops};
    const clt_dtype type = w->cfg->precision;
    const uint64_t elements = (uint64_t)(n * n);
    clt_gemm_params p = {.form = CLT_GEMM_NT, .m = n, .n = n, .k = n};
    p.a = p.b = p.c = clt_tensor_of(clt_ref_none(), n, type);
    clt_status st = bench_tensor_as(&tensors, type, elements, 1, "peak a", &p.a.ref, NULL);
    if (st == CLT_OK) st = bench_tensor_as(&tensors, type, elements, 2, "peak b", &p.b.ref, NULL);
    if (st == CLT_OK) st = bench_tensor_as(&tensors, type, elements, 3, "peak c", &p.c.ref, NULL);
    for (int i = 0; i < 6 && st == CLT_OK; i++) {
        st = clt_device_finish(b->dev);
        const double start = clt_now();
        if (st == CLT_OK) st = clt_op_gemm(w->ops, &p);
        if (st == CLT_OK) st = clt_device_finish(b->dev);
        if (i > 0) *flops = CLT_MAX(*flops, 2.0 * (double)n * (double)n * (double)n / (clt_now() - start));
    }
    bench_free(p.a.ref);
    bench_free(p.b.ref);
    bench_free(p.c.ref);
    return st;
}

/* --peak, else the maker's figure, else 0. */
static double nominal_peak(const step_bench *b, clt_dtype precision) {
    const char *name = clt_device_get_facts(b->dev)->name;
    if (b->peak_given > 0) return b->peak_given * 1e12;
    for (size_t i = 0; i < CLT_COUNT_OF(nominal); i++)
        if (strstr(name, nominal[i].device))
            return 1e12 * (precision == CLT_F32 ? nominal[i].fp32 : nominal[i].narrow);
    return 0;
}

/* --- results --- */

/* Before the first row, and after its warm-up: processes that build kernels do not disturb peaks that are
 * measured now. */
static clt_status begin_table(step_bench *b, const step_shape *s) {
    const clt_device_facts *f = clt_device_get_facts(b->dev);
    if (b->headed) return CLT_OK;
    clt_device_measure_peaks(b->dev);
    CLT_TRY(clt_device_peak(b->dev, &b->fma_peak, &b->copy_peak));
    b->headed = true;
    printf("device   %s (%s, driver %s), %u units\n", f->name, f->platform, f->driver, f->compute_units);
    printf("peak     %.1f GFLOP/s fp32 fma, %.1f GB/s copy (read plus write)\n", b->fma_peak * 1e-9,
           b->copy_peak * 1e-9);
    printf("step     forward, backward, %sAdamW; %s biases; precision %s%s%s%s\n\n",
           b->no_clip ? "" : "clipping, ", b->no_bias ? "without" : "with", b->precision,
           b->attention_bits == 16 ? ", attention in 16 bits" : "", b->recompute ? ", recomputed: " : "",
           b->recompute ? b->recompute : "");
    printf("%-11s %8s %6s %10s %11s %9s %13s %12s %10s %9s %9s %8s\n", "model", "params",
           s->patch ? "pixels" : "seq", "mb x acc", s->patch ? "images/s" : "tok/s", "TFLOP/s",
           "MFU measured", "MFU nominal", "memory", "weights", "start", "loss");
    return CLT_OK;
}

static void add_row(step_bench *b, const step_work *w, double measured, double of_maker) {
    const clt_config *c = w->cfg;
    /* Images are counted as training counts them: one token each. */
    const double tokens = (double)w->batch.tokens / w->step_seconds;
    const double flops = tokens * clt_model_train_flops_per_token(c->model, c->max_seq_len);
    const int64_t mb = w->plan.microbatch, acc = CLT_CEIL_DIV(c->global_train_batch_size, mb);
    const uint64_t params = clt_model_param_count(c->model);
    char n[32], bytes[32], batch[48], share[16] = "-";
    snprintf(batch, sizeof batch, "%lldx%lld", (long long)mb, (long long)acc);
    if (of_maker > 0) snprintf(share, sizeof share, "%.1f %%", 100 * flops / of_maker);
    printf("%-11s %8s %6lld %10s %11.*f %9.2f %11.1f %% %12s %10s %7.2f s %7.2f s %8.4f%s\n", w->shape->name,
           clt_human_count((double)params, n), (long long)w->shape->seq, batch, tokens < 1000, tokens,
           flops * 1e-12, 100 * flops / measured, share, clt_human_bytes((double)w->plan.memory.total, bytes),
           w->weights_seconds, w->first_seconds, w->loss, clt_recompute_text(&w->plan));
    step_offload_print(&b->offload, &w->offload, &w->plan, w->step_seconds);
    fflush(stdout);
    clt_str_addf(&b->rows,
                 "%s\n {\"model\": \"%s\", \"parameters\": %llu, \"seq\": %lld, \"microbatch\": %lld, "
                 "\"accumulation\": %lld, \"biases\": %s, \"clipping\": %s, \"precision\": \"%s\", "
                 "\"attention_bits\": %lld, "
                 "\"numerics\": \"%s\", \"recompute\": \"%s\", \"steps\": %d, "
                 "\"loss\": %.6g, \"step_seconds\": %.9g, \"%s_per_second\": %.6g, \"tflops\": %.6g, "
                 "\"mfu_measured\": %.4f, \"measured_peak_tflops\": %.6g, ",
                 b->rows.len ? "," : "", w->shape->name, (unsigned long long)params, (long long)w->shape->seq,
                 (long long)mb, (long long)acc, b->no_bias ? "false" : "true", b->no_clip ? "false" : "true",
                 b->precision, (long long)c->attention_bits, c->numerics == CLT_EXACT ? "exact" : "fast",
                 recompute_words[w->plan.recompute], w->steps, w->loss, w->step_seconds,
                 w->shape->patch ? "images" : "tokens", tokens, flops * 1e-12, flops / measured,
                 measured * 1e-12);
    if (of_maker > 0)
        clt_str_addf(&b->rows, "\"mfu_nominal\": %.4f, ", flops / of_maker);
    else
        clt_str_add(&b->rows, "\"mfu_nominal\": null, ");
    step_offload_json(&b->offload, &w->offload, &w->plan, w->step_seconds, &b->rows);
    clt_str_addf(&b->rows,
                 "\"planned_bytes\": %llu, \"weights_seconds\": %.3f, \"start_seconds\": %.3f, \"device\": ",
                 (unsigned long long)w->plan.memory.total, w->weights_seconds, w->first_seconds);
    clt_json_escape(&b->rows, clt_device_get_facts(b->dev)->name);
    clt_str_add(&b->rows, ", \"driver\": ");
    clt_json_escape(&b->rows, clt_device_get_facts(b->dev)->driver);
    clt_str_add(&b->rows, "}");
}

static clt_status run_shape(step_bench *b, const step_shape *s) {
    step_work w = {.shape = s};
    double peak = 0;
    clt_status st = plan(b, s, &w);
    if (st == CLT_OK && !w.cfg) {
        char need[32];
        CLT_TRY(begin_table(b, s));
        printf("%-11s %8s %6lld %10s  skipped: needs %s\n", s->name, "", (long long)s->seq, "",
               clt_human_bytes((double)w.plan.memory.total, need));
        return CLT_OK;
    }
    if (st == CLT_OK) st = measure(b, &w);
    clt_engine_destroy(w.engine);
    if (st == CLT_OK) st = begin_table(b, s);
    if (st == CLT_OK) st = measured_peak(b, &w, &peak);
    if (st == CLT_OK) add_row(b, &w, peak, nominal_peak(b, w.cfg->precision));
    clt_ops_destroy(w.ops);
    clt_config_free(w.cfg);
    clt_plan_free(&w.plan);
    clt_free(w.data);
    return st;
}

/* --- the command --- */

static clt_status run_suite(step_bench *b) {
    clt_device_params p = clt_device_params_default();
    bool any = false;
    p.pattern = b->device;
    p.helpers = true;
    p.bind = true;
    CLT_TRY(clt_device_open(&p, &b->dev));
    CLT_TRY(clt_group_create(0, &b->group));
    for (size_t i = 0; i < CLT_COUNT_OF(shapes); i++) {
        if (strcmp(shapes[i].suite, b->suite) != 0) continue;
        if (b->only && strcmp(shapes[i].name, b->only) != 0) continue;
        any = true;
        if (shapes[i].patch && b->no_bias)
            return clt_error(CLT_USAGE,
                             "clbench step: --no-bias is for MPT; a Vision Transformer has biases");
        CLT_TRY(run_shape(b, &shapes[i]));
    }
    if (!any)
        return clt_error(CLT_USAGE,
                         "clbench step: suite '%s' has no model%s%s (suites: mpt, seq, cpu, vit, vit-cpu)",
                         b->suite, b->only ? " " : "", b->only ? b->only : "");
    clt_str_add(&b->rows, "\n]\n");
    char *text = clt_format("[%s", b->rows.s);
    clt_status st = b->json ? clt_io_write_atomic(b->json, text, strlen(text)) : CLT_OK;
    clt_free(text);
    return st;
}

/* `word` if it is one of the n known ones, else NULL. */
static bool is_among(const char *word, const char *const *known, size_t n) {
    for (size_t i = 0; word && i < n; i++)
        if (!strcmp(word, known[i])) return true;
    return !word;
}

/* Refuses values that would otherwise fail in the configuration, whose file the user did not write. -1: all
 * are valid. */
static int look_at_options(const step_bench *b, const clt_command *c) {
    static const char *const precisions[] = {"fp32", "amp_bf16", "amp_fp16", "exact8", "amp_fp8"},
                             *const modes[] = {"exact", "fast"};
    if (!is_among(b->precision, precisions, CLT_COUNT_OF(precisions)))
        return clt_options_fail(
            c, "--precision must be fp32, amp_bf16, amp_fp16, exact8 or amp_fp8, not '%s'", b->precision);
    if (!is_among(b->numerics, modes, CLT_COUNT_OF(modes)))
        return clt_options_fail(c, "--numerics must be exact or fast, not '%s'", b->numerics);
    if (!is_among(b->recompute, recompute_words, CLT_COUNT_OF(recompute_words)))
        return clt_options_fail(c, "--recompute must be none, norms or blocks, not '%s'", b->recompute);
    const bool eight = !strcmp(b->precision, "exact8");
    if (b->attention_bits && b->attention_bits != 16 && !(eight && b->attention_bits == 8))
        return clt_options_fail(c, "--attention-bits must be 16 or, with --precision exact8, 8");
    if (b->microbatch < 0 || b->accumulate < 1 || b->steps < 0)
        return clt_options_fail(c, "--microbatch, --accumulate and --steps must be above 0");
    const char *wrong = step_offload_check(&b->offload);
    if (wrong) return clt_options_fail(c, "%s", wrong);
    if (!(b->seconds > 0)) return clt_options_fail(c, "--seconds must be above 0");
    return b->peak_given >= 0 ? -1 : clt_options_fail(c, "--peak must be above 0");
}

int bench_step(int argc, char **argv) {
    step_bench b = {.suite = "mpt", .precision = "fp32", .accumulate = 1, .seconds = 3, .offload.ratio = -1};
    const clt_option options[] = {
        {"suite", 's', CLT_OPT_STR, &b.suite, "NAME",
         "mpt (125m to 13b at 2048 tokens, default), seq (1b at 512 to 8192), cpu, vit, vit-cpu (small)"},
        {"model", 'm', CLT_OPT_STR, &b.only, "NAME", "only this model of the suite"},
        {"device", 'd', CLT_OPT_STR, &b.device, "PATTERN", "part of a platform or device name, or P:D"},
        CLT_DISABLE_ROW_OPTION,
        {"precision", 'p', CLT_OPT_STR, &b.precision, "P", "fp32 (default), amp_bf16, _fp16, _fp8; exact8"},
        {"attention-bits", 0, CLT_OPT_INT, &b.attention_bits, "N",
         "with exact8: 8, attention in 8-bit blocks, or 16; default as in training"},
        {"numerics", 0, CLT_OPT_STR, &b.numerics, "MODE", "exact or fast; default as in training"},
        {"recompute", 0, CLT_OPT_STR, &b.recompute, "WHAT", "none, norms, blocks; default as in training"},
        {"no-bias", 0, CLT_OPT_FLAG, &b.no_bias, NULL, "models without biases, also in norms"},
        {"no-clip", 0, CLT_OPT_FLAG, &b.no_clip, NULL, "no clipping; no norm, either, but for amp_fp16"},
        {"microbatch", 0, CLT_OPT_INT, &b.microbatch, "N", "samples of a microbatch (default: what fits)"},
        {"accumulate", 0, CLT_OPT_INT, &b.accumulate, "N", "microbatches per step (default 1)"},
        {"offload", 0, CLT_OPT_STR, &b.offload.where, "WHERE",
         "host or file: optimizer state there; a step of one microbatch more times the update alone"},
        {"offload-folder", 0, CLT_OPT_STR, &b.offload.folder, "FOLDER", "of --offload file"},
        {"offload-ratio", 0, CLT_OPT_FLOAT, &b.offload.ratio, "R",
         "part of the state that is offloaded, 0 to 1 (default: 1, or what the host's memory takes)"},
        {"offload-activations", 0, CLT_OPT_FLAG, &b.offload.activations, NULL, "blocks' inputs on the host"},
        {"offload-parameters", 0, CLT_OPT_FLAG, &b.offload.parameters, NULL, "weights on the host"},
        {"offload-gradients", 0, CLT_OPT_FLAG, &b.offload.gradients, NULL, "sums of gradients on the host"},
        {"offload-files", 0, CLT_OPT_FLAG, &b.offload.files, NULL, "these three in files"},
        {"offload-update", 0, CLT_OPT_FLAG, &b.offload.update, NULL, "optimizer's step on the host"},
        {"steps", 0, CLT_OPT_INT, &b.steps, "N", "time exactly N steps, after one of two microbatches"},
        {"seconds", 't', CLT_OPT_FLOAT, &b.seconds, "S", "time to spend measuring a row (default 3)"},
        {"peak", 0, CLT_OPT_FLOAT, &b.peak_given, "TFLOPS", "nominal peak of this precision, for MFU"},
        {"json", 'j', CLT_OPT_STR, &b.json, "FILE", "write the rows as JSON"},
    };
    const clt_command command = {
        "clbench step",
        "[options]",
        "Measures training steps of MPT models on random tokens, or of Vision Transformers on random images, "
        "as in the throughput table that MosaicML published: MFU counts 6 N + 12 L d T FLOP per token, over "
        "the peak that this device reaches in the same precision and over its maker's figure.",
        "  clbench step --suite mpt --precision amp_bf16\n"
        "  clbench step --suite mpt --model mpt-1b --precision amp_bf16 --json step.json\n"
        "  clbench step --model mpt-7b --precision amp_bf16 --offload host --accumulate 64 --steps 2\n"
        "  clbench step --suite vit --model vit-huge-16 --precision amp_bf16 --no-clip\n",
        options,
        CLT_COUNT_OF(options),
        false};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n) code = clt_options_fail(&command, "'%s' is not understood", rest.v[0]);
    if (code < 0) code = look_at_options(&b, &command);
    if (code < 0) {
        clt_status st = clt_options_look_at_file("--json", b.json);
        if (st == CLT_OK) st = run_suite(&b);
        clt_group_destroy(b.group);
        clt_device_close(b.dev);
        code = clt_status_exit_code(st);
    }
    clt_str_free(&b.rows);
    clt_strv_free(&rest);
    return code;
}
