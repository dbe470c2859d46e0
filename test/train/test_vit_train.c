/* Training of a Vision Transformer compared with timm in double (test/golden/vit/README.md): SGD, Nesterov
 * and AdamW with timm's groups and schedule, learning rates by layer. Losses within 1e-5, gradient norms
 * within 1e-4 relative, final weights within 1e-5. Every division of a batch gives the same bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/checkpoint/clt_safetensors.h"
#include "runtime/checkpoint/clt_weight_source.h"
#include "runtime/train/engine/clt_engine.h"
#include "test/golden_util.h"
#include "test/test_util.h"

static const double LOSS_BOUND = 1e-5, NORM_BOUND = 1e-4, LR_BOUND = 1e-9, WEIGHT_BOUND = 1e-5;
enum { IMAGES = 24, SIDE = 32, PIXELS = 3 * SIDE * SIDE, CLASSES = 10, BATCH = 8, STRIDE = 13 };

#define FOLDER "test/golden/vit/"
#define SGD FOLDER "train-sgd.yaml"
#define ADAMW FOLDER "train-adamw.yaml"

/* --- data --- */

typedef struct {
    float *pixels, *targets;
    int32_t labels[IMAGES];
} images;

static void load_images(images *x, double smoothing) {
    static const float mean[] = {0.485f, 0.456f, 0.406f}, std[] = {0.229f, 0.224f, 0.225f};
    clt_safetensors *s;
    uint8_t *bytes = clt_malloc(IMAGES * PIXELS);
    tu_assert_ok(clt_safetensors_open(FOLDER "train.safetensors", &s), "images");
    tu_assert_ok(clt_safetensors_read(s, clt_safetensors_find(s, "pixels"), 0, bytes, IMAGES * PIXELS),
                 "pixels");
    tu_assert_ok(clt_safetensors_read(s, clt_safetensors_find(s, "labels"), 0, x->labels, sizeof x->labels),
                 "labels");
    clt_safetensors_close(s);
    x->pixels = clt_malloc(IMAGES * PIXELS * sizeof *x->pixels);
    x->targets = clt_malloc(IMAGES * CLASSES * sizeof *x->targets);
    for (int i = 0; i < IMAGES * PIXELS; i++) {
        const int colour = i / (SIDE * SIDE) % 3;
        x->pixels[i] = ((float)bytes[i] / 255.0f - mean[colour]) / std[colour];
    }
    for (int i = 0; i < IMAGES * CLASSES; i++)
        x->targets[i] =
            (float)(smoothing / CLASSES + (x->labels[i / CLASSES] == i % CLASSES ? 1 - smoothing : 0));
    clt_free(bytes);
}

/* --- the engine --- */

typedef struct {
    clt_config *cfg;
    clt_plan plan;
    clt_group *group;
    clt_engine *engine;
    clt_schedule schedule;
} rig;

static void load_weights(rig *r) {
    int n;
    clt_weight_source *w;
    const clt_ckpt_part *parts = clt_engine_parts(r->engine, &n);
    tu_assert_ok(clt_weight_source_open(FOLDER "model.safetensors", &w), "weights");
    tu_assert_ok(clt_weight_source_load(w, clt_engine_table(r->engine), parts, 1, NULL), "weights");
    clt_weight_source_close(w);
    tu_assert_ok(clt_engine_weights_changed(r->engine), "weights");
}

static void open_rig(rig *r, const char *yaml, int64_t microbatch, const char *const *over, size_t n) {
    *r = (rig){0};
    tu_assert_ok(clt_config_load(yaml, over, n, &r->cfg), yaml);
    tu_assert_ok(clt_group_create(0, &r->group), "group");
    r->plan = clt_plan_begin(r->cfg, clt_group_size(r->group));
    r->plan.microbatch = microbatch;
    const clt_engine_params p = {
        .cfg = r->cfg, .group = r->group, .ops = tu_ops(0), .plan = &r->plan, .training = true};
    tu_assert_ok(clt_engine_create(&p, &r->engine), "engine");
    tu_assert_ok(clt_schedule_resolve(&r->cfg->schedule, r->cfg->max_duration, 3, &r->schedule), "schedule");
    load_weights(r);
}

static void close_rig(rig *r) {
    clt_engine_destroy(r->engine);
    clt_plan_free(&r->plan);
    clt_group_destroy(r->group);
    clt_config_free(r->cfg);
}

/* This rank's images of a step's batch. */
static clt_batch batch_of(const rig *r, const images *x, int step) {
    clt_loader_rows part;
    assert_int_equal(clt_engine_most_parts(r->engine), 1);
    clt_engine_parts_of_batch(r->engine, BATCH, &part);
    const size_t first = (size_t)(step * BATCH % IMAGES + part.first);
    return (clt_batch){.samples = part.count,
                       .first = part.first,
                       .field = {[CLT_IMAGE_PIXELS] = x->pixels + first * PIXELS,
                                 [CLT_IMAGE_TARGETS] = x->targets + first * CLASSES,
                                 [CLT_IMAGE_LABEL] = x->labels + first},
                       .targets = part.count,
                       .tokens = part.count,
                       .global_samples = BATCH,
                       .global_targets = BATCH};
}

static void take_step(rig *r, const images *x, clt_timestamp *now, double *lr, clt_engine_result *out) {
    const clt_batch b = batch_of(r, x, (int)now->batch);
    const double alpha = clt_schedule_next_alpha(&r->schedule, now, now->batch ? BATCH : 0,
                                                 now->batch ? BATCH : 0, now->batch);
    *lr = alpha * r->cfg->optimizer.groups[0].lr;
    const clt_engine_step_params p = {.batch = &b, .step = now->batch + 1, .alpha = alpha};
    clt_timestamp_next_batch(now, BATCH, BATCH, false);
    tu_assert_ok(clt_engine_step(r->engine, &p, out), "step");
    assert_true(out->finite);
}

/* --- timm's runs --- */

static double number(json_t *row, const char *key) {
    json_t *v = json_object_get(row, key);
    if (!json_is_number(v)) fail_msg("a row has no number %s", key);
    return json_number_value(v);
}

static float *weights_of(const rig *r, const clt_slab_entry *e) {
    int n;
    float *x = clt_malloc(e->count * sizeof *x);
    tu_assert_ok(clt_slab_read(clt_engine_parts(r->engine, &n)[0].slab, e->offset, x, e->count), e->name);
    return x;
}

/* Norm and sum of every tensor, but of qkv.bias, whose key part follows rounding errors with Adam. */
static double check_statistics(const rig *r, json_t *want) {
    const clt_slab_table *t = clt_engine_table(r->engine);
    double worst = 0;
    for (int i = 0; i < t->n; i++) {
        const clt_slab_entry *e = &t->entry[i];
        double norm = 0, sum = 0;
        if (strstr(e->name, "qkv.bias")) continue;
        float *x = weights_of(r, e);
        for (uint64_t k = 0; k < e->count; k++) {
            norm += (double)x[k] * (double)x[k];
            sum += (double)x[k];
        }
        clt_free(x);
        json_t *row = json_object_get(want, e->name);
        const double d = fabs(sqrt(norm) / number(row, "norm") - 1);
        const double s = fabs(sum - number(row, "sum")) / (double)e->count;
        if (!(d < WEIGHT_BOUND) || !(s < WEIGHT_BOUND))
            fail_msg("%s: norm off by %g (relative), mean by %g", e->name, d, s);
        worst = fmax(worst, d);
    }
    return worst;
}

static double check_weights(const rig *r, const char *file) {
    const clt_slab_table *t = clt_engine_table(r->engine);
    double worst = 0;
    clt_safetensors *s;
    tu_assert_ok(clt_safetensors_open(file, &s), file);
    for (int i = 0; i < t->n; i++) {
        const clt_slab_entry *e = &t->entry[i];
        const int k = clt_safetensors_find(s, e->name);
        assert_true(k >= 0);
        const uint64_t n = clt_safetensors_at(s, k)->count, step = n == e->count ? 1 : STRIDE;
        assert_int_equal(n, CLT_CEIL_DIV(e->count, step));
        float *want = clt_malloc(n * sizeof *want), *got = weights_of(r, e);
        tu_assert_ok(clt_safetensors_read_f32(s, k, 0, want, n), e->name);
        const bool noise = strstr(e->name, "qkv.bias") != NULL;
        for (uint64_t j = 0; j < n; j++) {
            if (noise && j * step >= e->count / 3 && j * step < 2 * e->count / 3) continue;
            const double d = fabs((double)got[j * step] - (double)want[j]);
            if (!(d < WEIGHT_BOUND))
                fail_msg("%s[%llu] is off by %g", e->name, (unsigned long long)(j * step), d);
            worst = fmax(worst, d);
        }
        clt_free(want);
        clt_free(got);
    }
    clt_safetensors_close(s);
    return worst;
}

static void train_as_timm(const char *name, const char *yaml, const char *const *over, size_t n) {
    rig r;
    images x;
    clt_timestamp now = {0};
    char *file = clt_format(FOLDER "train-%s.json", name),
         *final = clt_format(FOLDER "final-%s.safetensors", name);
    json_t *all = golden_load(file), *want;
    double loss = 0, norm = 0, weights = 0;
    size_t i;
    load_images(&x, number(json_object_get(all, "train"), "label_smoothing"));
    open_rig(&r, yaml, BATCH, over, n);
    json_array_foreach(json_object_get(all, "steps"), i, want) {
        clt_engine_result got;
        double lr;
        take_step(&r, &x, &now, &lr, &got);
        const double dl = fabs(got.loss - number(want, "loss")),
                     dn = fabs((double)got.grad_norm / number(want, "grad_norm") - 1),
                     dr = fabs(lr - number(want, "lr"));
        if (!(dl < LOSS_BOUND) || !(dn < NORM_BOUND) || !(dr < LR_BOUND))
            fail_msg("%s: step %zu: loss off by %g, gradient norm by %g (relative), lr by %g", name, i + 1,
                     dl, dn, dr);
        loss = fmax(loss, dl);
        norm = fmax(norm, dn);
    }
    assert_int_equal(i, 12);
    const double statistics = check_statistics(&r, json_object_get(all, "tensors_final"));
    if (strcmp(name, "sgd") == 0 || strcmp(name, "adamw") == 0) weights = check_weights(&r, final);
    printf("    %-8s loss %.2g, gradient norm %.2g, norms of weights %.2g, weights %.2g\n", name, loss, norm,
           statistics, weights);
    close_rig(&r);
    json_decref(all);
    clt_free(file);
    clt_free(final);
    clt_free(x.pixels);
    clt_free(x.targets);
}

static void sgd(void **state) {
    (void)state;
    train_as_timm("sgd", SGD, NULL, 0);
}

static void nesterov(void **state) {
    (void)state;
    static const char *const over[] = {
        "optimizer.lr=0.01", "optimizer.nesterov=true", "optimizer.weight_decay=0.002",
        "algorithms={gradient_clipping: {clipping_type: norm, clipping_threshold: 2.0}}"};
    train_as_timm("nesterov", SGD, over, CLT_COUNT_OF(over));
}

static void adamw(void **state) {
    (void)state;
    train_as_timm("adamw", ADAMW, NULL, 0);
}

/* timm's max_grad_norm is a clipping of the norm; it divides by the norm alone, not by norm + 1e-6. */
static void lamb(void **state) {
    (void)state;
    static const char *const over[] = {"optimizer.name=lamb",    "optimizer.lr=0.005",
                                       "optimizer.eps=1.0e-06",  "optimizer.weight_decay=0.02",
                                       "scheduler.t_warmup=4ba", "scheduler.alpha_i=0.02",
                                       "scheduler.alpha_f=0.0"};
    train_as_timm("lamb", ADAMW, over, CLT_COUNT_OF(over));
}

/* --- learning rates by layer --- */

#define LAYERS FOLDER "layer-decay.json"
#define DECAY "optimizer.layer_decay=0.65"

/* timm's lr_scale of a tensor; false: it has no weight decay. */
static bool decays(json_t *rates, const char *name, double *scale) {
    json_t *row = json_object_get(rates, name);
    if (json_array_size(row) != 2) fail_msg("%s has no tensor %s", LAYERS, name);
    *scale = json_number_value(json_array_get(row, 0));
    return json_number_value(json_array_get(row, 1)) > 0;
}

/* Every tensor has the learning rate and the weight decay of timm's groups. */
static void layers_have_timms_rates(void **state) {
    (void)state;
    static const char *const poolings[] = {"token", "avg"};
    json_t *all = golden_load(LAYERS);
    for (size_t k = 0; k < CLT_COUNT_OF(poolings); k++) {
        char *pooling = clt_format("model.pooling=%s", poolings[k]);
        const char *const over[] = {DECAY, pooling};
        json_t *rates = json_object_get(all, poolings[k]);
        clt_config *c;
        clt_slab_table t = {0};
        clt_scaled_group group[CLT_MAX_SCALED_GROUPS];
        uint8_t of[256];
        bool frozen[256];
        int n;
        tu_assert_ok(clt_config_load(ADAMW, over, 2, &c), ADAMW);
        tu_assert_ok(clt_model_table(c->model, &t), "table");
        assert_int_equal(t.n, json_object_size(rates));
        tu_assert_ok(clt_optimizer_scaled_groups(c, &t, group, &n, of, frozen), "groups");
        assert_int_equal(n, 2 * 5);
        for (int i = 0; i < t.n; i++) {
            double scale;
            const bool with = decays(rates, t.entry[i].name, &scale);
            const clt_scaled_group *g = &group[of[i]];
            if (!(fabs(g->scale / scale - 1) < 1e-14) || frozen[i] ||
                (c->optimizer.groups[g->group].weight_decay > 0) != with)
                fail_msg("%s %s: scale %.17g, timm has %.17g", poolings[k], t.entry[i].name, g->scale, scale);
        }
        clt_slab_table_free(&t);
        clt_config_free(c);
        clt_free(pooling);
    }
    json_decref(all);
}

/* The parts of the state of one tensor: weight, exp_avg, exp_avg_sq (NULL: there is none). */
static void read_state(const rig *r, const clt_slab_entry *e, float *part[CLT_ENGINE_PARTS]) {
    int n;
    const clt_ckpt_part *parts = clt_engine_parts(r->engine, &n);
    for (int i = 0; i < n; i++) {
        part[i] = clt_malloc(e->count * sizeof *part[i]);
        tu_assert_ok(clt_slab_read(parts[i].slab, e->offset, part[i], e->count), e->name);
    }
}

/* The direction of element k of step t (from 1), from the moments after the step and the weight before. Decay
 * that joins the gradient is in the moments. */
static double direction(const clt_optimizer_config *o, float *const state[], double before, uint64_t k, int t,
                        double wd) {
    const clt_param_group *g = &o->groups[0];
    const bool lamb = o->kind == CLT_OPTIMIZER_LAMB,
               corrected = !o->uncorrected && !(lamb && o->max_coeff > 0) && o->kind != CLT_OPTIMIZER_ADAGRAD;
    const double m = (double)state[1][k];
    if (o->kind == CLT_OPTIMIZER_SGD) return m;
    const double v = (double)state[2][k] / (corrected ? 1 - pow(g->beta2, t) : 1),
                 adam = m / (corrected ? 1 - pow(g->beta1, t) : 1) / (sqrt(v) + g->eps);
    return adam + (lamb ? wd * before : 0);
}

/* The tensor's learning rate with LAMB's ratio and, in DeepSpeed's rule, the corrections of the moments. */
static double rate_of(const clt_optimizer_config *o, double lr, double wd, int t, double w, double u) {
    const clt_param_group *g = &o->groups[0];
    const bool limited = o->max_coeff > 0;
    if (o->kind != CLT_OPTIMIZER_LAMB) return lr;
    if (limited && !o->uncorrected) lr *= sqrt(1 - pow(g->beta2, t)) / (1 - pow(g->beta1, t));
    if (!(limited || wd > 0) || !(w > 0 && u > 0)) return lr;
    return lr * (limited ? fmin(fmax(sqrt(w / u), o->min_coeff), o->max_coeff) : sqrt(w / u));
}

/* What the rules of README.md make of a tensor's weights before the step, against what the engine made. lr is
 * the tensor's. */
static void check_step(const clt_optimizer_config *o, const clt_slab_entry *e, const float *before,
                       float *const state[], int t, double lr, double wd) {
    double w = 0, u = 0;
    for (uint64_t k = 0; k < e->count; k++) {
        const double d = direction(o, state, (double)before[k], k, t, wd);
        w += (double)before[k] * (double)before[k];
        u += d * d;
    }
    const double rate = rate_of(o, lr, wd, t, w, u);
    const double keep = o->kind == CLT_OPTIMIZER_TORCH_ADAMW && !o->l2 ? 1 - lr * wd : 1;
    for (uint64_t k = 0; k < e->count; k++) {
        const double x = (double)before[k], want = x * keep - rate * direction(o, state, x, k, t, wd),
                     d = fabs((double)state[0][k] - want);
        if (!(d <= 2e-7 * fmax(1, fabs(x))))
            fail_msg("%s: step %d: %s[%llu] is off by %g", clt_optimizer_of(o->kind)->name, t, e->name,
                     (unsigned long long)k, d);
    }
}

/* Three steps of an optimizer, each recomputed in double from timm's scales and the engine's moments. */
static void steps_follow_the_rates(const char *const *over, size_t n) {
    rig r;
    images x;
    clt_timestamp now = {0};
    json_t *all = golden_load(LAYERS), *rates = json_object_get(all, "token");
    load_images(&x, 0.1);
    open_rig(&r, ADAMW, BATCH, over, n);
    const clt_optimizer_config *o = &r.cfg->optimizer;
    const clt_slab_table *table = clt_engine_table(r.engine);
    float **before = clt_calloc((size_t)table->n, sizeof *before);
    for (int t = 1; t <= 3; t++) {
        clt_engine_result got;
        double lr;
        for (int i = 0; i < table->n; i++) before[i] = weights_of(&r, &table->entry[i]);
        take_step(&r, &x, &now, &lr, &got);
        for (int i = 0; i < table->n; i++) {
            float *state[CLT_ENGINE_PARTS] = {NULL};
            double scale;
            const bool with = decays(rates, table->entry[i].name, &scale);
            read_state(&r, &table->entry[i], state);
            check_step(o, &table->entry[i], before[i], state, t, lr * scale,
                       with ? o->groups[0].weight_decay : 0);
            for (int k = 0; k < CLT_ENGINE_PARTS; k++) clt_free(state[k]);
            clt_free(before[i]);
        }
    }
    clt_free(before);
    close_rig(&r);
    json_decref(all);
    clt_free(x.pixels);
    clt_free(x.targets);
}

static void optimizers_follow_the_rates(void **state) {
    (void)state;
    static const char *const sgd_over[] = {DECAY, "scheduler.alpha_i=0.5", "optimizer.name=sgd",
                                           "optimizer.momentum=0.9", "optimizer.lr=0.01"};
    static const char *const lamb_over[] = {DECAY, "scheduler.alpha_i=0.5", "optimizer.name=lamb",
                                            "optimizer.lr=0.005"};
    steps_follow_the_rates(lamb_over, 2); /* AdamW */
    steps_follow_the_rates(sgd_over, CLT_COUNT_OF(sgd_over));
    static const char *const more[][3] = {
        {"optimizer.name=lamb", "optimizer.max_coeff=0.9", "optimizer.min_coeff=0.5"},
        {"optimizer.name=lamb", "optimizer.max_coeff=10", "optimizer.bias_correction=false"},
        {"optimizer.name=adamw", "optimizer.adam_w_mode=false", "optimizer.weight_decay=0.1"},
        {"optimizer.name=adamw", "optimizer.bias_correction=false", "optimizer.weight_decay=0.1"},
        {"optimizer.name=adagrad", "optimizer.eps=1e-6", "optimizer.weight_decay=0.1"}};
    steps_follow_the_rates(lamb_over, CLT_COUNT_OF(lamb_over));
    for (size_t i = 0; i < CLT_COUNT_OF(more); i++) {
        const char *over[] = {
            DECAY, "scheduler.alpha_i=0.5", "optimizer.lr=0.005", more[i][0], more[i][1], more[i][2]};
        steps_follow_the_rates(over, CLT_COUNT_OF(over));
    }
}

/* A tensor that was replaced in the source is loaded, and the others as the file has them. */
static void replaced_tensors_are_loaded(void **state) {
    (void)state;
    rig r;
    clt_weight_source *w;
    int n;
    open_rig(&r, SGD, BATCH, NULL, 0);
    const clt_slab_table *t = clt_engine_table(r.engine);
    float *before = weights_of(&r, &t->entry[0]), *values = tu_random(t->entry[1].count, 5, 1.0f);
    float *want = clt_memdup(values, t->entry[1].count * sizeof *values);
    tu_assert_ok(clt_weight_source_open(FOLDER "model.safetensors", &w), "weights");
    clt_weight_source_replace(w, clt_weight_source_find(w, "weight", "pos_embed"), t->entry[1].shape, values);
    tu_assert_ok(clt_weight_source_load(w, t, clt_engine_parts(r.engine, &n), 1, NULL), "weights");
    clt_weight_source_close(w);
    float *got = weights_of(&r, &t->entry[1]), *other = weights_of(&r, &t->entry[0]);
    tu_assert_words("pos_embed", got, want, t->entry[1].count);
    tu_assert_words("cls_token", other, before, t->entry[0].count);
    clt_free(before), clt_free(want), clt_free(got), clt_free(other);
    close_rig(&r);
}

/* --- one hash for every division --- */

/* Returns the rank. */
static int hash_of(int64_t microbatch, const char *const *over, size_t n, uint64_t hash[CLT_ENGINE_PARTS]) {
    rig r;
    images x;
    clt_timestamp now = {0};
    load_images(&x, 0.1);
    open_rig(&r, ADAMW, microbatch, over, n);
    for (int i = 0; i < 3; i++) {
        clt_engine_result got;
        double lr;
        take_step(&r, &x, &now, &lr, &got);
    }
    tu_assert_ok(clt_engine_hash(r.engine, hash), "hash");
    const int rank = clt_group_rank(r.group);
    close_rig(&r);
    clt_free(x.pixels);
    clt_free(x.targets);
    return rank;
}

/* Dropped branches and elements, both poolings, products of 8 bits: images of 17 tokens are no multiple of
 * any block. */
static void divisions_give_the_same_bits(void **state) {
    (void)state;
    enum { OVERRIDES = 4 };
    static const char *const cases[][OVERRIDES] = {
        {"model.drop_path=0.3", "model.pos_dropout=0.1", "model.attn_dropout=0.1", "precision=fp32"},
        {"cltrain.recompute=norms", "cltrain.numerics=exact", "model.drop_path=0.2", "precision=amp_bf16"},
        {"cltrain.recompute=norms", "cltrain.numerics=exact", "model.drop_path=0.2", "precision=amp_fp8"},
        {"cltrain.recompute=norms", "cltrain.attention_bits=8", "model.drop_path=0.2", "precision=exact8"}};
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        uint64_t whole[CLT_ENGINE_PARTS], parts[CLT_ENGINE_PARTS];
        hash_of(8, cases[i], OVERRIDES, whole);
        for (int64_t microbatch = 1; microbatch < 8; microbatch += 4) {
            hash_of(microbatch, cases[i], OVERRIDES, parts);
            assert_memory_equal(whole, parts, sizeof whole);
        }
    }
}

/* Losses of the AdamW run in fewer bits: near those of fp32. */
static void fewer_bits_train(void **state) {
    (void)state;
    static const char *const precision[] = {"precision=amp_bf16", "precision=amp_fp8", "precision=exact8"};
    json_t *all = golden_load(FOLDER "train-adamw.json"), *want;
    for (size_t k = 0; k < CLT_COUNT_OF(precision); k++) {
        rig r;
        images x;
        clt_timestamp now = {0};
        size_t i;
        double worst = 0;
        load_images(&x, 0.1);
        open_rig(&r, ADAMW, BATCH, &precision[k], 1);
        json_array_foreach(json_object_get(all, "steps"), i, want) {
            clt_engine_result got;
            double lr;
            take_step(&r, &x, &now, &lr, &got);
            worst = fmax(worst, fabs(got.loss - number(want, "loss")));
        }
        printf("    %s: losses are off by %.2g\n", precision[k], worst);
        assert_true(worst < 0.1);
        close_rig(&r);
        clt_free(x.pixels);
        clt_free(x.targets);
    }
    json_decref(all);
}

/* Under mpirun: prints the hashes of weights and state after three steps. */
static int print_hash(const char *const *over, size_t n) {
    uint64_t hash[CLT_ENGINE_PARTS];
    tu_init(0, NULL);
    const int rank = hash_of(3, over, n, hash);
    if (rank == 0)
        printf("%016llx %016llx %016llx\n", (unsigned long long)hash[0], (unsigned long long)hash[1],
               (unsigned long long)hash[2]);
    return 0;
}

/* test_vit_train [--hash KEY=VALUE ...] */
int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--hash") == 0)
        return print_hash((const char *const *)argv + 2, (size_t)argc - 2);
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(sgd),
                                       cmocka_unit_test(nesterov),
                                       cmocka_unit_test(adamw),
                                       cmocka_unit_test(lamb),
                                       cmocka_unit_test(layers_have_timms_rates),
                                       cmocka_unit_test(optimizers_follow_the_rates),
                                       cmocka_unit_test(replaced_tensors_are_loaded),
                                       cmocka_unit_test(divisions_give_the_same_bits),
                                       cmocka_unit_test(fewer_bits_train)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
