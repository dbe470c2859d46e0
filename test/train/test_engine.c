/* Steps that are not finite: such a step and those queued behind it change nothing, whether the loss or the
 * gradient is not finite. Also the dynamic loss scale, and state in the host's memory. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>
#include <string.h>

#include "runtime/train/engine/clt_engine.h"
#include "test/test_util.h"

typedef struct {
    clt_config *cfg;
    clt_plan plan;
    clt_group *group;
    clt_engine *engine;
    int64_t G, T;
    int32_t *tokens, *labels;
} rig;

static void open_rig(rig *r, const char *const *over, size_t n) {
    tu_assert_ok(clt_config_load("test/golden/mpt-learned/train.yaml", over, n, &r->cfg), "train.yaml");
    r->G = r->cfg->global_train_batch_size;
    r->T = r->cfg->max_seq_len;
    tu_assert_ok(clt_group_create(0, &r->group), "group");
    r->plan = clt_plan_begin(r->cfg, 1);
    r->plan.microbatch = 2;
    if (r->cfg->shard.parameters || r->cfg->shard.gradients) r->plan.stage = r->cfg->shard.zero_stage;
    const clt_device_type type = clt_device_get_facts(tu_device(0))->type;
    tu_assert_ok(clt_plan_memory_of(r->cfg, &r->plan, type, 2, &r->plan.memory), "plan");
    const clt_engine_params p = {
        .cfg = r->cfg, .group = r->group, .ops = tu_ops(0), .plan = &r->plan, .training = true};
    tu_assert_ok(clt_engine_create(&p, &r->engine), "engine");
    int parts;
    clt_slab *weights = clt_engine_parts(r->engine, &parts)[0].slab;
    tu_assert_ok(clt_model_init_weights(r->cfg->model, clt_engine_table(r->engine), 17, weights), "weights");
    const int64_t vocab = clt_model_get_facts(r->cfg->model).vocab_size;
    size_t count = (size_t)(r->G * r->T);
    r->tokens = clt_malloc(count * sizeof *r->tokens);
    r->labels = clt_malloc(count * sizeof *r->labels);
    for (size_t i = 0; i < count; i++) r->tokens[i] = (int32_t)tu_random_below(3, i, vocab);
    for (size_t i = 0; i < count; i++) r->labels[i] = (int64_t)(i + 1) % r->T ? r->tokens[i + 1] : -100;
}

static void close_rig(rig *r) {
    clt_engine_destroy(r->engine);
    clt_plan_free(&r->plan);
    clt_group_destroy(r->group);
    clt_config_free(r->cfg);
    clt_free(r->tokens);
    clt_free(r->labels);
}

static clt_batch batch(const rig *r) {
    const int64_t targets = r->G * (r->T - 1);
    return (clt_batch){.samples = r->G,
                       .field = {[CLT_TEXT_TOKENS] = r->tokens, [CLT_TEXT_TARGETS] = r->labels},
                       .targets = targets,
                       .global_samples = r->G,
                       .global_targets = targets};
}

static void take_step(const rig *r, const clt_batch *b, int64_t step, bool spoilt, clt_engine_result *out) {
    const clt_engine_step_params p = {.batch = b, .step = step, .alpha = 1.0, .spoilt = spoilt};
    tu_assert_ok(clt_engine_step(r->engine, &p, out), "step");
}

static void launch_step(const rig *r, const clt_batch *b, int64_t step) {
    const clt_engine_step_params p = {.batch = b, .step = step, .alpha = 1.0};
    bool given_up;
    tu_assert_ok(clt_engine_launch(r->engine, &p, &given_up), "step");
    assert_false(given_up);
}

static clt_state_hash hash(const rig *r) {
    clt_state_hash h;
    int n;
    const clt_ckpt_part *parts = clt_engine_parts(r->engine, &n);
    tu_assert_ok(clt_ckpt_hash_parts(NULL, clt_engine_table(r->engine), parts, n, &h), "hash");
    return h;
}

static void assert_same(clt_state_hash a, clt_state_hash b) {
    assert_memory_equal(&a.weights, &b.weights, sizeof a.weights);
    assert_memory_equal(&a.optimizer, &b.optimizer, sizeof a.optimizer);
}

/* Multiplies all elements of a tensor. */
static void scale_tensor(rig *r, const char *name, float by) {
    const clt_slab_table *t = clt_engine_table(r->engine);
    const clt_slab_entry *e = &t->entry[clt_slab_table_find(t, name)];
    int n;
    const clt_slab *w = clt_engine_parts(r->engine, &n)[0].slab;
    float *x = clt_malloc(e->count * sizeof *x);
    tu_assert_ok(clt_slab_read(w, e->offset, x, e->count), name);
    for (uint64_t i = 0; i < e->count; i++) x[i] *= by;
    tu_assert_ok(clt_slab_write(w, e->offset, x, e->count), name);
    tu_assert_ok(clt_engine_weights_changed(r->engine), "weights");
    clt_free(x);
}

/* Only an untied head with huge weights is trained: its gradient (p - y) x is small; the losses of tokens are
 * huge but finite, and their sum over a sample is not finite. */
static void loss_alone_is_infinite(void **state) {
    (void)state;
    static const char *const over[] = {"model.tie_word_embeddings=false",
                                       "optimizer.disable_grad=[\"transformer[.]\"]"};
    rig r = {0};
    clt_engine_result res;
    open_rig(&r, over, CLT_COUNT_OF(over));
    const clt_batch b = batch(&r);
    take_step(&r, &b, 1, false, &res);
    assert_true(res.finite && isfinite(res.grad_norm));
    scale_tensor(&r, "lm_head.weight", 4e37f);
    clt_state_hash before = hash(&r);
    take_step(&r, &b, 2, false, &res);
    assert_false(res.finite);
    assert_true(isinf(res.loss));
    assert_same(before, hash(&r));
    close_rig(&r);
}

/* Without the gradient norm a step equals one without clipping, and a loss that is not finite still keeps the
 * weights unchanged. */
static void norm_is_left_out(void **state) {
    (void)state;
    static const char *const over[] = {"algorithms=null", "cltrain.guards.loss_spike=off",
                                       "cltrain.guards.gradient_norm=false"};
    rig with = {0}, without = {0};
    clt_engine_result res;
    open_rig(&with, over, 2);
    clt_batch b = batch(&with);
    take_step(&with, &b, 1, false, &res);
    assert_true(res.finite && res.grad_norm > 0);
    open_rig(&without, over, 3);
    b = batch(&without);
    take_step(&without, &b, 1, false, &res);
    assert_true(res.finite && isnan(res.grad_norm));
    clt_state_hash before = hash(&without);
    assert_same(hash(&with), before);
    take_step(&without, &b, 2, true, &res);
    assert_false(res.finite);
    assert_same(before, hash(&without));
    close_rig(&with);
    close_rig(&without);
}

/* Two steps are queued: a weight that is not finite spoils the first one; the second would be good. */
static void steps_behind_a_bad_one(void **state) {
    (void)state;
    static const char *const over[] = {"optimizer.lr=1e-2"};
    rig r = {0};
    clt_engine_result res;
    open_rig(&r, over, CLT_COUNT_OF(over));
    const clt_batch good = batch(&r);
    take_step(&r, &good, 1, false, &res);
    assert_true(res.finite);
    scale_tensor(&r, "transformer.blocks.0.norm_1.weight", NAN);
    launch_step(&r, &good, 2);
    /* The write is queued behind the bad step: the next step reads good weights. */
    const clt_slab_table *t = clt_engine_table(r.engine);
    const clt_slab_entry *e = &t->entry[clt_slab_table_find(t, "transformer.blocks.0.norm_1.weight")];
    int n;
    const clt_slab *w = clt_engine_parts(r.engine, &n)[0].slab;
    float ones[64];
    assert_int_equal(e->count, CLT_COUNT_OF(ones));
    for (size_t i = 0; i < CLT_COUNT_OF(ones); i++) ones[i] = 1.0f;
    tu_assert_ok(clt_slab_write(w, e->offset, ones, e->count), "norm_1");
    clt_state_hash before = hash(&r);
    launch_step(&r, &good, 3);
    tu_assert_ok(clt_engine_collect(r.engine, &res), "bad step");
    assert_false(res.finite);
    assert_true(isnan(res.loss));
    tu_assert_ok(clt_engine_collect(r.engine, &res), "step behind");
    assert_false(res.finite);
    assert_true(isfinite(res.loss)); /* the step is good, but changes nothing */
    assert_same(before, hash(&r));
    close_rig(&r);
}

/* amp_fp16 with a scale that is too large: steps are skipped, and only the scale changes, until it is small
 * enough. */
static void overflow_leaves_steps_out(void **state) {
    (void)state;
    static const char *const over[] = {"precision=amp_fp16"};
    rig r = {0};
    clt_engine_result res;
    open_rig(&r, over, CLT_COUNT_OF(over));
    tu_assert_ok(clt_engine_weights_changed(r.engine), "weights");
    const clt_batch b = batch(&r);
    clt_loss_scale *s = clt_engine_loss_scale(r.engine);
    s->scale = 0x1p40;
    clt_state_hash before = hash(&r);
    int left_out = 0;
    for (;; left_out++) {
        double scale = s->scale;
        take_step(&r, &b, 1, false, &res);
        assert_true(res.finite && isfinite(res.loss) && res.loss_scale == scale);
        if (!res.skipped) break;
        assert_true(s->scale == scale / 2 && s->good_steps == 0);
        assert_same(before, hash(&r));
    }
    assert_in_range(left_out, 10, 30);
    assert_int_equal(s->good_steps, 1);
    assert_true(isfinite(res.grad_norm) && res.grad_norm > 1 &&
                res.grad_norm < 100); /* the norm of the unscaled gradient */
    clt_state_hash after = hash(&r);
    assert_memory_not_equal(&before.weights, &after.weights, sizeof after.weights);
    scale_tensor(&r, "transformer.norm_f.weight",
                 NAN); /* a loss that is not finite does not change the scale */
    take_step(&r, &b, 2, false, &res);
    assert_false(res.finite || res.skipped);
    close_rig(&r);
}

/* --- cltrain.offload: host, file --- */

/* Large enough that what the plan does not list is less than 2 %. */
#define LARGE "model.d_model=256", "model.n_heads=4", "model.n_layers=4", "model.vocab_size=4096"

/* Three steps, the second of which is not finite; hashes by the host and by the device. */
typedef struct {
    clt_state_hash by_host;
    uint64_t by_device[CLT_ENGINE_PARTS];
} trained;

static trained train(rig *r) {
    trained t;
    clt_engine_result res;
    const clt_batch b = batch(r);
    tu_assert_ok(clt_engine_weights_changed(r->engine), "weights");
    take_step(r, &b, 1, false, &res);
    assert_true(res.finite);
    const clt_state_hash before = hash(r);
    take_step(r, &b, 2, true, &res);
    assert_false(res.finite);
    assert_same(before, hash(r));
    tu_assert_ok(clt_engine_forgive(r->engine), "forgive");
    take_step(r, &b, 2, false, &res);
    take_step(r, &b, 3, false, &res);
    assert_true(res.finite);
    t.by_host = hash(r);
    tu_assert_ok(clt_engine_hash(r->engine, t.by_device), "hash");
    return t;
}

static void a_bad_weight_is_found(rig *r) {
    clt_engine_result res;
    char what[CLT_ENGINE_WHAT];
    const clt_batch b = batch(r);
    scale_tensor(r, "transformer.norm_f.weight", NAN);
    take_step(r, &b, 4, false, &res);
    assert_false(res.finite);
    tu_assert_ok(clt_engine_explain(r->engine, &b, 4, what), "explain");
    assert_non_null(strstr(what, "weight transformer.norm_f.weight: 256 of 256 values (rank 0, lane 0)"));
}

/* Allocated for the engine, beside its plan. On a GPU the operations' workspace may be smaller: the plan
 * takes the largest that a row of any vendor's GPUs asks for. */
static void check_memory(const rig *r, const clt_device_counters *before) {
    clt_device_counters now;
    clt_plan_memory m;
    const clt_device *dev = tu_device(0);
    clt_device_get_counters(dev, &now);
    const clt_device_type type = clt_device_get_facts(dev)->type;
    tu_assert_ok(clt_plan_memory_of(r->cfg, &r->plan, type, r->plan.microbatch, &m), "plan");
    const uint64_t sure = m.total - (type == CLT_DEVICE_GPU ? m.model.workspace : 0);
    assert_int_equal(now.pinned_bytes - before->pinned_bytes,
                     clt_plan_pinned_bytes(&m) - (m.slots ? CLT_SCRATCH_MOST : 0));
    assert_in_range(now.bytes - before->bytes, sure * 98 / 100, m.total * 102 / 100);
}

/* What updates have moved from and to files or host memory in train: three, and the hashes of step 2. Files
 * and the host's own steps are timed. */
static void check_traffic(const rig *r) {
    const clt_offload_traffic t = clt_engine_offload_traffic(r->engine);
    clt_plan_memory m;
    const clt_device_type type = clt_device_get_facts(tu_device(0))->type;
    tu_assert_ok(clt_plan_memory_of(r->cfg, &r->plan, type, r->plan.microbatch, &m), "plan");
    const bool files = m.update_files.in > 0;
    const clt_plan_update_bytes u = files ? m.update_files : m.update;
    assert_true(u.in > 0 && t.read >= 2 * u.in);
    assert_true((u.out > 0 || m.update_touched > 0) && t.written >= 3 * u.out);
    assert_true((t.seconds > 0) == (files || m.update_touched > 0));
}

/* `offload` on and off, with the same precision and optimizer. With queues of their own for copies, as on a
 * device with memory of its own, or with one. */
static void compare_offload(const char *const over[], size_t n, const char *queues) {
    rig with = {0}, without = {0};
    clt_device_counters before;
    open_rig(&without, over, n - 6);
    const trained want = train(&without);
    close_rig(&without);
    clt_device_get_counters(tu_device(0), &before);
    setenv("CLTRAIN_QUEUES", queues, 1);
    open_rig(&with, over, n);
    check_memory(&with, &before);
    const trained got = train(&with);
    check_traffic(&with);
    if (with.plan.stage < 3) a_bad_weight_is_found(&with);
    close_rig(&with);
    unsetenv("CLTRAIN_QUEUES");
    assert_same(want.by_host, got.by_host);
    assert_memory_equal(want.by_device, got.by_device, sizeof got.by_device);
}

static void offloaded_state_has_the_same_bits(void **state) {
    (void)state;
    char folder[] = "/var/tmp/clt_engine_XXXXXX";
    static const char *const precision[] = {"precision=fp32", "precision=amp_bf16"},
                             *const optimizer[] = {"optimizer.name=decoupled_adamw",
                                                   "optimizer.name=decoupled_lionw"};
    assert_non_null(mkdtemp(folder));
    char *file = clt_format("cltrain.offload_folder=%s", folder);
    for (size_t i = 0; i < 8; i++) {
        const bool in_file = i >= 4, gradients = i == 1 || i == 3 || i == 6;
        const char *over[] = {
            LARGE,
            gradients ? "cltrain.numerics=exact" : "cltrain.numerics=null",
            precision[i / 2 % 2],
            optimizer[i % 2],
            in_file ? "cltrain.offload=file" : "cltrain.offload=host",
            in_file ? file : "cltrain.offload_folder=null",
            i % 3 ? "cltrain.offload_ratio=0.6" : "cltrain.offload_ratio=null",
            i == 0 || i == 3 ? "cltrain.offload_update=host" : "cltrain.offload_update=device",
            gradients ? "cltrain.zero_stage=2" : "cltrain.zero_stage=0",
            gradients ? "cltrain.offload_gradients=host" : "cltrain.offload_gradients=none"};
        compare_offload(over, CLT_COUNT_OF(over), i == 4 || i == 7 ? "1" : "3");
    }
    clt_free(file);
    assert_int_equal(rmdir(folder), 0);
}

static void everything_in_files_has_the_same_bits(void **state) {
    (void)state;
    char folder[] = "/var/tmp/clt_engine_XXXXXX";
    assert_non_null(mkdtemp(folder));
    char *file = clt_format("cltrain.offload_folder=%s", folder);
    for (size_t i = 0; i < 4; i++) {
        const char *over[] = {LARGE,
                              "cltrain.numerics=exact",
                              "cltrain.recompute=blocks",
                              i % 2 ? "precision=amp_bf16" : "precision=fp32",
                              "optimizer.name=decoupled_adamw",
                              i < 2 ? "cltrain.offload=file" : "cltrain.offload=none",
                              file,
                              "cltrain.zero_stage=3",
                              "cltrain.offload_parameters=file",
                              "cltrain.offload_gradients=file",
                              "cltrain.offload_activations=file"};
        compare_offload(over, CLT_COUNT_OF(over), i == 1 || i == 2 ? "1" : "3");
    }
    clt_free(file);
    assert_int_equal(rmdir(folder), 0);
}

/* --- the loss scale --- */

static void scale_follows_the_rule(void **state) {
    (void)state;
    const clt_loss_scale_config rule = {.initial = 65536, .window = 2000, .min = 0x1p-16};
    clt_loss_scale s = clt_loss_scale_start(&rule);
    assert_true(s.scale == 65536);
    assert_int_equal(clt_loss_scale_update(&rule, &s, false), CLT_OK);
    assert_true(s.scale == 32768);
    for (int i = 0; i < 1999; i++) assert_int_equal(clt_loss_scale_update(&rule, &s, true), CLT_OK);
    assert_true(s.scale == 32768 && s.good_steps == 1999);
    assert_int_equal(clt_loss_scale_update(&rule, &s, true), CLT_OK);
    assert_true(s.scale == 65536 && s.good_steps == 0);
    assert_int_equal(clt_loss_scale_update(&rule, &s, true), CLT_OK);
    assert_int_equal(clt_loss_scale_update(&rule, &s, false), CLT_OK);
    assert_true(s.scale == 32768 && s.good_steps == 0);
    int halvings = 0;
    while (clt_loss_scale_update(&rule, &s, false) == CLT_OK) halvings++;
    assert_int_equal(halvings, 31); /* 2^15 down to 2^-16 */
    for (int i = 0; i < 200; i++) assert_int_equal(clt_loss_scale_update(&rule, &s, false), CLT_FAIL);
    assert_true(s.scale == 0x1p-16 && s.good_steps == 0); /* still a valid scale for later good steps */
}

/* --- optimizers of PyTorch --- */

/* One step from the same weights: the first tensor with two dimensions before (w) and after (p) it, and its
 * first moment. */
typedef struct {
    size_t n;
    float *w, *p, *m;
} first_step;

static first_step step_once(const char *optimizer) {
    const char *over[] = {optimizer, "algorithms={gradient_clipping: {clipping_threshold: 1.0e9}}"};
    rig r;
    int parts, i = 0;
    open_rig(&r, over, 2);
    const clt_ckpt_part *part = clt_engine_parts(r.engine, &parts);
    const clt_slab_table *t = clt_engine_table(r.engine);
    while (t->entry[i].dims < 2) i++;
    const uint64_t at = t->entry[i].offset;
    first_step s = {.n = (size_t)t->entry[i].count};
    float **into[] = {&s.w, &s.p, &s.m};
    for (int k = 0; k < 3; k++) *into[k] = clt_malloc(s.n * sizeof(float));
    const clt_batch b = batch(&r);
    clt_engine_result result;
    tu_assert_ok(clt_slab_read(part[0].slab, at, s.w, s.n), "weights");
    take_step(&r, &b, 1, false, &result);
    tu_assert_ok(clt_slab_read(part[0].slab, at, s.p, s.n), "weights");
    tu_assert_ok(clt_slab_read(part[1].slab, at, s.m, s.n), "moments");
    close_rig(&r);
    return s;
}

static void free_step(first_step *s) {
    clt_free(s->w);
    clt_free(s->p);
    clt_free(s->m);
}

static void assert_about(const char *what, size_t i, double got, double want) {
    if (fabs(got - want) > 1e-6 * (1 + fabs(want)))
        fail_msg("%s: element %zu is %.9g, not %.9g", what, i, got, want);
}

/* The first step of SGD moves by lr times the gradient, which is the momentum then; weight decay joins it,
 * and Nesterov's rule looks 0.9 of it ahead. AdamW's decay is lr times weight_decay. */
static void pytorchs_rules(void **state) {
    (void)state;
    enum { PLAIN, DECAYED, NESTEROV, ADAM, ADAM_DECAYED, STEPS };
    static const char *const as[STEPS] = {
        "optimizer={name: sgd, lr: 0.25, momentum: 0.9, weight_decay: 0}",
        "optimizer={name: sgd, lr: 0.25, momentum: 0.9, weight_decay: 0.5}",
        "optimizer={name: sgd, lr: 0.25, momentum: 0.9, weight_decay: 0, nesterov: true}",
        "optimizer={name: adamw, lr: 0.25, weight_decay: 0}",
        "optimizer={name: adamw, lr: 0.25, weight_decay: 0.5}"};
    first_step s[STEPS];
    double moved = 0;
    for (int k = 0; k < STEPS; k++) s[k] = step_once(as[k]);
    for (size_t i = 0; i < s[PLAIN].n; i++) {
        const double w = s[PLAIN].w[i], g = s[PLAIN].m[i];
        moved += fabs(g);
        assert_about("sgd", i, s[PLAIN].p[i], w - 0.25 * g);
        assert_about("sgd, gradient with decay", i, s[DECAYED].m[i], g + 0.5 * w);
        assert_about("sgd with decay", i, s[DECAYED].p[i], w - 0.25 * (g + 0.5 * w));
        assert_about("sgd, nesterov", i, s[NESTEROV].p[i], w - 0.25 * 1.9 * g);
        assert_about("adamw with decay", i, s[ADAM_DECAYED].p[i], s[ADAM].p[i] - 0.25 * 0.5 * w);
    }
    assert_true(moved > 0);
    for (int k = 0; k < STEPS; k++) free_step(&s[k]);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(loss_alone_is_infinite),
                                       cmocka_unit_test(norm_is_left_out),
                                       cmocka_unit_test(steps_behind_a_bad_one),
                                       cmocka_unit_test(overflow_leaves_steps_out),
                                       cmocka_unit_test(scale_follows_the_rule),
                                       cmocka_unit_test(offloaded_state_has_the_same_bits),
                                       cmocka_unit_test(everything_in_files_has_the_same_bits),
                                       cmocka_unit_test(pytorchs_rules)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
