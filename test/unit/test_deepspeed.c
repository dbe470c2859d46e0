/* DeepSpeed's ds_config.json: learning rates and loss scales of DeepSpeed itself (test/golden/deepspeed), and
 * what is cltrain's own: two files that contradict each other, notices, hjson. test/train/deepspeed_golden.sh
 * compares whole files. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/train/config/clt_deepspeed.h"
#include "runtime/train/engine/clt_loss_scale.h"
#include "test/config_util.h"

#define GOLDEN "test/golden/deepspeed/"
#define NEW "0.19.8"

static const char base[] =
    "model: {name: mpt_causal_lm, d_model: 64, n_heads: 4, n_layers: 2, max_seq_len: 64,\n"
    "  vocab_size: 512}\n"
    "tokenizer: {name: bytes}\n"
    "train_loader: {name: text, dataset: {local: x}}\n"
    "max_seq_len: 64\n"
    "max_duration: 30ba\n";

static json_t *load_json(const char *path) {
    json_t *o;
    if (clt_json_load(path, 1 << 24, 32, &o) != CLT_OK) fail_msg("%s", clt_last_error());
    return o;
}

static char *read_text(const char *path) {
    char *text;
    size_t bytes;
    if (clt_io_read_all(path, 1 << 24, &text, &bytes) != CLT_OK) fail_msg("%s", clt_last_error());
    char *out = clt_strndup(text, bytes);
    clt_free(text);
    return out;
}

/* --- files --- */

static clt_status load_case(const char *file, int64_t ranks, const char *const *more, size_t n_more,
                            clt_config **out) {
    char *path = clt_format(GOLDEN "configs/%s", file), *text = read_text(path),
         *size = clt_format("%lld", (long long)ranks), *override = clt_format("deepspeed=%s", path);
    const char *over[8] = {override};
    size_t n = 1;
    if (!strstr(text, "optimizer\": {") && !strstr(text, "optimizer: {"))
        over[n++] = "optimizer={name: adamw}";
    if (!strstr(text, "\"type\": \"Warmup"))
        over[n++] = "scheduler={name: constant_with_warmup, t_warmup: 0ba}";
    for (size_t i = 0; i < n_more; i++) over[n++] = more[i];
    setenv("OMPI_COMM_WORLD_SIZE", size, 1);
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    *out = NULL;
    clt_status st = clt_config_parse(base, strlen(base), "base.yaml", over, n, out);
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("OMPI_COMM_WORLD_RANK");
    clt_free(path);
    clt_free(text);
    clt_free(size);
    clt_free(override);
    return st;
}

static double number_or(const json_t *o, const char *key, double otherwise) {
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

/* --- schedulers --- */

/* Loads `file`, a DeepSpeed configuration (taken over), with the base. */
static clt_status load_object(json_t *file, clt_config **out) {
    char path[] = "/tmp/test_deepspeed_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(json_dumpfd(file, fd, 0), 0);
    close(fd);
    json_decref(file);
    char *over = clt_format("deepspeed=%s", path);
    *out = NULL;
    clt_status st = clt_config_parse(base, strlen(base), "base.yaml", (const char *const *)&over, 1, out);
    clt_free(over);
    unlink(path);
    return st;
}

static double rate(const clt_config *c, const clt_schedule *s, int64_t updates) {
    const clt_timestamp now = {.batch = 100000}; /* skipped batches do not count */
    return c->optimizer.groups[0].lr * clt_schedule_next_alpha(s, &now, 8, 8 * 64, updates);
}

static double compare_rates(const clt_config *c, const json_t *want) {
    clt_schedule s;
    double worst = 0;
    assert_int_equal(clt_schedule_resolve(&c->schedule, c->max_duration, 8, &s), CLT_OK);
    for (size_t i = 0; i < json_array_size(want); i++) {
        const double w = json_number_value(json_array_get(want, i)), g = rate(c, &s, (int64_t)i);
        worst = fmax(worst, fabs(g - w) / fmax(w, 1e-300) * (g != w));
    }
    return worst;
}

/* A list for each update, or one number for all of them; NULL: 0.9. */
static double beta_at(const json_t *v, size_t i) {
    if (json_is_array(v)) v = json_array_get(v, i);
    return v ? json_number_value(v) : 0.9;
}

/* Whether DeepSpeed's momentum passed what is the most here. */
static bool compare_betas(const clt_config *c, size_t number, const json_t *want) {
    clt_schedule s;
    double betas[2];
    bool held = false;
    const json_t *beta1 = json_object_get(want, "beta1"), *beta2 = json_object_get(want, "beta2");
    assert_int_equal(clt_schedule_resolve(&c->schedule, c->max_duration, 8, &s), CLT_OK);
    for (size_t i = 0; i < json_array_size(json_object_get(want, "lr")); i++) {
        if (clt_schedule_betas(&s, (int64_t)i, betas) != (beta2 != NULL)) fail_msg("case %zu: betas", number);
        if (!beta2) continue;
        const double w = beta_at(beta1, i);
        held |= w > CLT_DEEPSPEED_MOST_MOM;
        if (fabs(betas[0] - fmin(w, CLT_DEEPSPEED_MOST_MOM)) > 1e-12 || betas[1] != beta_at(beta2, i))
            fail_msg("case %zu, update %zu: betas %.17g, %g, not %.17g", number, i, betas[0], betas[1], w);
    }
    return held;
}

static void learning_rates_are_deepspeeds(void **state) {
    (void)state;
    json_t *all = load_json(GOLDEN "schedules.json"), *one;
    size_t i, good = 0, held = 0;
    json_array_foreach(json_object_get(all, "cases"), i, one) {
        const char *type = json_string_value(json_object_get(one, "type"));
        const json_t *want = json_object_get(one, NEW), *error = json_object_get(want, "error");
        json_t *params = json_deep_copy(json_object_get(one, "params"));
        /* A file's 10.0 is 10 to DeepSpeed, too, which makes it another case than this one. */
        if (json_is_real(json_object_get(params, "warmup_num_steps"))) error = NULL, want = NULL;
        clt_config *c;
        clt_status st = load_object(json_pack("{si s{ss s{sf}} s{ss so}}", "train_batch_size", 8, "optimizer",
                                              "type", "AdamW", "params", "lr",
                                              json_number_value(json_object_get(one, "optimizer_lr")),
                                              "scheduler", "type", type, "params", params),
                                    &c);
        if ((st != CLT_OK) != (error != NULL)) fail_msg("case %zu (%s): %s", i, type, clt_last_error());
        if (st != CLT_OK || !want) {
            clt_config_free(c);
            continue;
        }
        assert_true(json_array_size(json_object_get(want, "lr")) == 301);
        const double worst = compare_rates(c, json_object_get(want, "lr"));
        print_message("%zu %s: %.2g\n", i, type, worst);
        if (!(worst <= 1e-12)) fail_msg("case %zu (%s) is %.3g from DeepSpeed's", i, type, worst);
        held += compare_betas(c, i, want);
        good++;
        clt_config_free(c);
    }
    assert_true(good >= 18 && held == 1);
    json_decref(all);
}

/* Runs of DeepSpeed's engine: the learning rate of each update. */
static void engine_rates_are_deepspeeds(void **state) {
    (void)state;
    json_t *all = load_json(GOLDEN "schedules.json"), *one;
    size_t i;
    json_array_foreach(json_object_get(all, "engine"), i, one) {
        clt_config *c;
        json_t *file = json_deep_copy(json_object_get(one, "config"));
        if (load_object(file, &c) != CLT_OK) fail_msg("%s", clt_last_error());
        const json_t *want = json_object_get(json_object_get(one, NEW), "lr_at_update");
        assert_true(json_array_size(want) > 4);
        const json_t *group = json_object_get(json_object_get(one, NEW), "group");
        assert_true(c->optimizer.groups[0].weight_decay == number_or(group, "weight_decay", -1));
        const double worst = compare_rates(c, want);
        if (!(worst <= 1e-12)) fail_msg("engine %zu is %.3g from DeepSpeed's", i, worst);
        clt_config_free(c);
    }
    assert_true(i > 0);
    json_decref(all);
}

static void schedulers_are_checked(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"scheduler={name: warmup_lr, t_warmup: 3ba}", "'scheduler.t_warmup' does not belong"},
        {"scheduler={name: warmup_lr, cos_min_ratio: 0.5}", "'scheduler.cos_min_ratio' does not belong"},
        {"scheduler={name: constant_with_warmup, t_warmup: 0ba, warmup_min_lr: 1}",
         "'scheduler.warmup_min_lr' does not belong"},
        {"scheduler={name: constant_with_warmup}", "'scheduler.t_warmup' is missing"},
        {"scheduler={name: warmup_decay_lr}", "needs the key total_num_steps"},
        {"scheduler={name: one_cycle, cycle_min_lr: 0.1}", "needs the key cycle_max_lr"},
        {"scheduler={name: warmup_lr, warmup_num_steps: 0}", "must be at least 1"},
        {"scheduler={name: warmup_lr, warmup_max_lr: -1}", "below 0"}};
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        const char *over[] = {"optimizer={name: adamw}", "global_train_batch_size=8", bad[i][0]};
        clt_config *c = NULL;
        if (clt_config_parse(base, strlen(base), "base.yaml", over, 3, &c) != CLT_BAD_CONFIG)
            fail_msg("%s is accepted", bad[i][0]);
        if (!strstr(clt_last_error(), bad[i][1])) fail_msg("%s: %s", bad[i][0], clt_last_error());
    }
}

/* --- loss scales --- */

/* One trace of `want`: {"scale": [...], "hysteresis": [...], "raises": {"at": N}}. */
static void follow_trace(const char *name, const clt_loss_scale_config *c, const json_t *overflow,
                         const json_t *want) {
    const json_t *scale = json_object_get(want, "scale"), *left = json_object_get(want, "hysteresis"),
                 *raises = json_object_get(want, "raises");
    const size_t end = raises ? (size_t)json_integer_value(json_object_get(raises, "at")) : SIZE_MAX;
    clt_loss_scale s = clt_loss_scale_start(c);
    assert_true(json_array_size(scale) > 2);
    for (size_t i = 0; i < json_array_size(overflow) && i <= end; i++) {
        if (s.scale != json_number_value(json_array_get(scale, i)) ||
            (left && s.hysteresis != json_integer_value(json_array_get(left, i))))
            fail_msg("%s, before step %zu: %g, %lld", name, i, s.scale, (long long)s.hysteresis);
        clt_status st = clt_loss_scale_update(c, &s, !json_integer_value(json_array_get(overflow, i)));
        assert_int_equal(st, i == end ? CLT_FAIL : CLT_OK);
    }
}

/* With the values of a file, at stage 1 and without ZeRO. */
static void loss_scales_are_deepspeeds(void **state) {
    (void)state;
    json_t *all = load_json(GOLDEN "lossscale.json"), *one;
    size_t i;
    json_array_foreach(json_object_get(all, "cases"), i, one) {
        for (int stage = 0; stage < 2; stage++) {
            json_t *fp16 = json_deep_copy(json_object_get(one, "fp16"));
            json_object_set_new(fp16, "enabled", json_true());
            clt_config *c;
            if (load_object(json_pack("{si so s{si} s{ss}}", "train_batch_size", 8, "fp16", fp16,
                                      "zero_optimization", "stage", stage, "optimizer", "type", "Adam"),
                            &c) != CLT_OK)
                fail_msg("%s", clt_last_error());
            follow_trace(json_string_value(json_object_get(one, "name")), &c->loss_scale,
                         json_object_get(one, "overflow"),
                         json_object_get(json_object_get(one, NEW), stage ? "zero" : "stage0"));
            clt_config_free(c);
        }
    }
    assert_true(i > 10);
    json_decref(all);
}

/* A resume under the checkpoint's rule changes nothing, at every step of every trace. */
static void resumed_scales_continue(void **state) {
    (void)state;
    static const int64_t windows[] = {2, 3}, hystereses[] = {0, 1, 2, 3};
    for (size_t k = 0; k < 2 * 4 * 3; k++) {
        const clt_loss_scale_config c = {.kind = (int)(k / 8),
                                         .initial = 256,
                                         .min = 1,
                                         .window = windows[k % 2],
                                         .hysteresis = hystereses[k / 2 % 4]};
        clt_loss_scale straight = clt_loss_scale_start(&c), resumed = straight;
        for (int i = 0; i < 40; i++) {
            const bool finite = i % 7 != 3 && i % 11 != 4;
            clt_loss_scale_update(&c, &straight, finite);
            resumed = clt_loss_scale_resume(&c, i % 2 ? c.kind : -1, resumed);
            clt_loss_scale_update(&c, &resumed, finite);
            assert_true(straight.scale == resumed.scale && straight.good_steps == resumed.good_steps);
        }
    }
}

/* Under another rule, window or hysteresis. */
static void resumed_scales_change_rules(void **state) {
    (void)state;
    clt_loss_scale_config c = {
        .kind = CLT_SCALE_DEEPSPEED, .initial = 65536, .min = 1, .window = 4, .hysteresis = 2};
    const clt_loss_scale saved = {.scale = 128, .good_steps = 3, .hysteresis = 5};
    clt_loss_scale s = clt_loss_scale_resume(&c, CLT_SCALE_DEEPSPEED, saved);
    assert_true(s.scale == 128 && s.good_steps == 3 && s.hysteresis == 2);
    s = clt_loss_scale_resume(&c, CLT_SCALE_DEEPSPEED, (clt_loss_scale){.scale = 128, .hysteresis = -4});
    assert_int_equal(s.hysteresis, 2); /* saved by a run whose hysteresis was 0: the scale can fall again */
    assert_int_equal(clt_loss_scale_update(&c, &s, false), CLT_OK);
    assert_int_equal(clt_loss_scale_update(&c, &s, false), CLT_OK);
    assert_true(s.scale == 64);
    s = clt_loss_scale_resume(&c, CLT_SCALE_PYTORCH, saved);
    assert_true(s.scale == 128 && s.good_steps == 0 && s.hysteresis == 2);
    c.kind = CLT_SCALE_PYTORCH;
    c.window = 2; /* shorter than the good steps so far: the next one doubles the scale */
    s = clt_loss_scale_resume(&c, CLT_SCALE_PYTORCH, saved);
    clt_loss_scale_update(&c, &s, true);
    assert_true(s.scale == 256 && s.good_steps == 0);
    c.kind = CLT_SCALE_STATIC;
    assert_true(clt_loss_scale_resume(&c, CLT_SCALE_PYTORCH, saved).scale == 65536);
}

/* --- single keys --- */

static void single_keys(void **state) {
    (void)state;
    clt_config *c;
    json_t *optimizer = json_pack("{ss s{sf sf}}", "type", "lion", "params", "lr", 0.5, "weight_decay", 0.1);
    assert_int_equal(
        load_object(json_pack("{si so s{sb} s{si si}}", "train_batch_size", 8, "optimizer", optimizer, "fp16",
                              "enabled", 0, "zero_optimization", "stage", 3, "zero_hpz_partition_size", 2),
                    &c),
        CLT_OK);
    assert_int_equal(c->precision, CLT_F32);
    assert_int_equal(c->shard.degree, 2);
    assert_int_equal(c->shard.replicas, -1);
    assert_int_equal(c->optimizer.kind, CLT_OPTIMIZER_LIONW);
    assert_true(c->optimizer.groups[0].weight_decay == 0.5 * 0.1); /* of decoupled_lionw */
    assert_true(c->optimizer.groups[0].beta2 == 0.99);
    assert_int_equal(c->schedule.kind, CLT_SCHEDULE_CONSTANT);
    clt_config_free(c);
}

/* --- two files --- */

/* With zero1-adamw-warmup.json or another file: a contradiction names both places, equal values do not. */
static void contradictions_name_both_places(void **state) {
    (void)state;
    static const struct {
        const char *file, *override, *key, *own;
    } bad[] = {{"bf16-no-zero.json", "precision=fp32", "'bf16.enabled'", "'precision' (command line"},
               {"bf16-no-zero.json", "global_train_batch_size=8", "'train_batch_size' contradicts",
                "'global_train_batch_size'"},
               {"bf16-no-zero.json", "device_train_microbatch_size=3", "'train_batch_size'",
                "'device_train_microbatch_size' (command line"},
               {"bf16-no-zero.json", "optimizer.name=decoupled_adamw", "'optimizer.type'",
                "'optimizer.name' (command line"},
               {"bf16-no-zero.json", "optimizer.lr=0.5", "'optimizer.params.lr'", "'optimizer.lr'"},
               {"clip-negative.json",
                "algorithms={gradient_clipping: {clipping_type: norm, clipping_threshold: 1.0}}",
                "'gradient_clipping'", "'algorithms.gradient_clipping'"},
               {"bf16-zero2-offload.json", "cltrain.zero_stage=3", "'zero_optimization.stage'",
                "'cltrain.zero_stage'"},
               {"bf16-zero2-offload.json", "cltrain.offload=none",
                "'zero_optimization.offload_optimizer.device'", "'cltrain.offload'"},
               {"bf16-zero2-offload.json", "fsdp_config.sharding_strategy=FULL_SHARD",
                "'cltrain.zero_stage' contradicts", "'fsdp_config.sharding_strategy'"},
               {"activation-checkpointing.json", "cltrain.csv=x.csv", "'csv_monitor.output_path'",
                "'cltrain.csv' (command line"},
               {"activation-checkpointing.json", "cltrain.phase_times=0", "'wall_clock_breakdown'",
                "'cltrain.phase_times' (command line"},
               {"activation-checkpointing.json", "cltrain.flops_profile.batch=3",
                "'flops_profiler.profile_step'", "'cltrain.flops_profile.batch' (command line"}};
    static const struct {
        const char *file, *override;
    } same[] = {{"bf16-no-zero.json", "precision=amp_bf16"},
                {"bf16-no-zero.json", "global_train_batch_size=4.0"},
                {"bf16-no-zero.json", "device_train_microbatch_size=auto"},
                {"bf16-no-zero.json", "optimizer.weight_decay=0.5"},
                {"bf16-zero2-offload.json", "cltrain.zero_stage=2"},
                {"bf16-zero2-offload.json", "fsdp_config.sharding_strategy=SHARD_GRAD_OP"}};
    clt_config *c;
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        if (load_case(bad[i].file, 1, &bad[i].override, 1, &c) != CLT_BAD_CONFIG)
            fail_msg("%s is accepted", bad[i].override);
        const char *got = clt_last_error();
        if (!strstr(got, bad[i].file) || !strstr(got, bad[i].key) || !strstr(got, bad[i].own))
            fail_msg("%s: %s", bad[i].override, got);
    }
    for (size_t i = 0; i < CLT_COUNT_OF(same); i++) {
        if (load_case(same[i].file, 1, &same[i].override, 1, &c) != CLT_OK)
            fail_msg("%s: %s", same[i].override, clt_last_error());
        clt_config_free(c);
    }
}

/* A printed configuration stands for both files. */
static void printed_configuration_is_complete(void **state) {
    (void)state;
    clt_config *c, *again;
    clt_str text = {0}, origins = {0};
    assert_int_equal(load_case("bf16-zero2-offload.json", 1, NULL, 0, &c), CLT_OK);
    clt_config_print(c, false, &text);
    clt_config_print(c, true, &origins);
    assert_non_null(strstr(origins.s, "bf16-zero2-offload.json:14:14 (zero_optimization.stage)"));
    assert_non_null(strstr(origins.s, "DeepSpeed's default of optimizer.params.eps"));
    assert_null(strstr(text.s, "deepspeed"));
    assert_int_equal(clt_config_parse(text.s, text.len, "printed", NULL, 0, &again), CLT_OK);
    json_t *differences = clt_config_differences(again, text.s);
    assert_non_null(differences);
    assert_int_equal(json_object_size(differences), 0);
    json_decref(differences);
    clt_config_free(c);
    clt_config_free(again);
    clt_str_free(&text);
    clt_str_free(&origins);
}

static void notices_name_keys(void **state) {
    (void)state;
    static const char *const keys[] = {"deepspeed.my_own_key", "deepspeed.gradient_clip", "deepspeed.lr"};
    clt_config *c;
    assert_int_equal(load_case("unknown-top-key.json", 1, NULL, 0, &c), CLT_OK);
    for (size_t i = 0; i < CLT_COUNT_OF(keys); i++) assert_true(cu_has_notice(c, keys[i]));
    clt_config_free(c);
    assert_int_equal(load_case("activation-checkpointing.json", 2, NULL, 0, &c), CLT_OK);
    assert_true(c->inputs == CLT_OFFLOAD_HOST && c->recompute == CLT_RECOMPUTE_BLOCKS);
    assert_true(cu_has_notice(c, "deepspeed.activation_checkpointing.partition_activations"));
    assert_true(cu_has_notice(c, "deepspeed.prescale_gradients"));
    assert_true(c->loggers.tensorboard.on);
    assert_string_equal(c->loggers.tensorboard.log_dir, "tb/run");
    assert_string_equal(c->loggers.csv, "csv/DeepSpeedJobName/metrics.csv");
    assert_int_equal(c->phase_times, 10);
    assert_int_equal(c->flops_profile.batch, 4); /* profile_step 3 counts from 0 */
    assert_null(c->flops_profile.file);
    clt_config_free(c);
}

/* A file with one section more than a batch and an optimizer. */
static clt_status load_section(const char *section, const char *text, clt_config **out) {
    json_t *file = json_pack("{si s{ss}}", "train_batch_size", 8, "optimizer", "type", "AdamW");
    json_object_set_new(file, section, json_loads(text, JSON_DECODE_ANY, NULL));
    return load_object(file, out);
}

static void monitors_are_checked(void **state) {
    (void)state;
    static const char *const bad[][3] = {
        {"csv_monitor", "{\"enabled\": \"yes\"}", "'csv_monitor.enabled' must be true or false"},
        {"csv_monitor", "{\"enabled\": true, \"output_path\": [1]}", "'csv_monitor.output_path' must be"},
        {"csv_monitor", "{\"enabled\": true, \"folder\": \"x\"}", "'csv_monitor.folder'"},
        {"wall_clock_breakdown", "\"yes\"", "'wall_clock_breakdown' must be true or false"},
        {"flops_profiler", "{\"enabled\": 1}", "'flops_profiler.enabled' must be true or false"},
        {"flops_profiler", "{\"enabled\": true, \"profile_step\": \"1\"}",
         "'flops_profiler.profile_step' must be"},
        {"flops_profiler", "{\"enabled\": true, \"profile_step\": -1}", "is -1: it must be at least 0"},
        {"wall_clock_breakdown", "1", "'wall_clock_breakdown' must be true or false"}};
    clt_config *c;
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        if (load_section(bad[i][0], bad[i][1], &c) != CLT_BAD_CONFIG) fail_msg("%s is accepted", bad[i][1]);
        if (!strstr(clt_last_error(), bad[i][2])) fail_msg("%s: %s", bad[i][1], clt_last_error());
    }
    assert_int_equal(load_section("csv_monitor", "{\"enabled\": true, \"job_name\": \"a\"}", &c), CLT_OK);
    assert_string_equal(c->loggers.csv, "a/metrics.csv");
    clt_config_free(c);
    assert_int_equal(load_section("csv_monitor", "{\"output_path\": \"a\"}", &c), CLT_OK);
    assert_null(c->loggers.csv);
    assert_int_equal(c->phase_times, 0);
    clt_config_free(c);
    assert_int_equal(load_section("flops_profiler", "{\"enabled\": false, \"detailed\": true}", &c), CLT_OK);
    assert_int_equal(c->flops_profile.batch, 0);
    assert_false(cu_has_notice(c, "deepspeed.flops_profiler.detailed"));
    clt_config_free(c);
    static const char on[] =
        "{\"enabled\": true, \"detailed\": true, \"output_file\": \"f/x\", \"depth\": 1}";
    assert_int_equal(load_section("flops_profiler", on, &c), CLT_OK);
    assert_int_equal(c->flops_profile.batch, 2);
    assert_string_equal(c->flops_profile.file, "f/x");
    assert_true(cu_has_notice(c, "deepspeed.flops_profiler.detailed"));
    assert_true(cu_has_notice(c, "deepspeed.flops_profiler.depth"));
    clt_config_free(c);
}

static void offloaded_weights_need_stage_3(void **state) {
    (void)state;
    clt_config *c;
    assert_int_equal(load_case("zero3-offload-param.json", 8, NULL, 0, &c), CLT_OK);
    assert_int_equal(c->shard.parameters, CLT_OFFLOAD_HOST); /* nvme, but in groups of ranks */
    assert_int_equal(c->shard.gradients, CLT_OFFLOAD_FILE);
    assert_true(cu_has_notice(c, "deepspeed.zero_optimization.offload_param.device"));
    clt_config_free(c);
    assert_int_equal(load_case("offload-param-stage-2.json", 1, NULL, 0, &c), CLT_OK);
    assert_int_equal(c->shard.parameters, CLT_OFFLOAD_NONE);
    assert_true(cu_has_notice(c, "deepspeed.zero_optimization.offload_param.device"));
    clt_config_free(c);
}

static void gradients_go_with_state_from_stage_2(void **state) {
    (void)state;
    static const char *const files[] = {"bf16-zero2-offload.json", "zero2-fp16-offload.json"};
    for (size_t i = 0; i < CLT_COUNT_OF(files); i++) {
        clt_config *c;
        assert_int_equal(load_case(files[i], 1, NULL, 0, &c), CLT_OK);
        assert_int_equal(c->shard.offload, CLT_OFFLOAD_HOST);
        assert_int_equal(c->shard.gradients, CLT_OFFLOAD_HOST);
        clt_config_free(c);
    }
}

/* Below stage 2 gradients stay, below stage 3 weights. One folder has all files. */
static void nvme_means_files(void **state) {
    (void)state;
    static const struct {
        int stage;
        const char *optimizer, *folder;
        clt_offload place;
        bool says;
    } all[] = {{3, "none", "a", CLT_OFFLOAD_NONE, false},
               {3, "cpu", "a", CLT_OFFLOAD_HOST, false},
               {3, "nvme", "b", CLT_OFFLOAD_FILE, true},
               {1, "nvme", "b", CLT_OFFLOAD_FILE, false}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        clt_config *c;
        json_t *o =
            json_pack("{si s{ssss} s{ssss}}", "stage", all[i].stage, "offload_param", "device", "nvme",
                      "nvme_path", "a", "offload_optimizer", "device", all[i].optimizer, "nvme_path", "b");
        char *text = json_dumps(o, 0);
        assert_int_equal(load_section("zero_optimization", text, &c), CLT_OK);
        assert_int_equal(c->shard.parameters, all[i].stage == 3 ? CLT_OFFLOAD_FILE : CLT_OFFLOAD_NONE);
        assert_int_equal(c->shard.offload, all[i].place);
        assert_int_equal(c->shard.gradients, all[i].stage > 1 ? all[i].place : CLT_OFFLOAD_NONE);
        assert_string_equal(c->shard.offload_folder, all[i].folder);
        assert_int_equal(cu_has_notice(c, "deepspeed.zero_optimization.offload_param.nvme_path"),
                         all[i].says);
        clt_config_free(c);
        json_decref(o);
        free(text);
    }
}

static void liberties_of_hjson(void **state) {
    (void)state;
    static const struct {
        const char *from, *to;
    } all[] = {{"{\"a\": 1}", "{\"a\": 1}"},
               {"{a: 1\n b: [1\n2] // c\n}", "{a: 1,\n b: [1,\n2] \n}"},
               {"{a: 1 # x\n\n/* y\n*/ b: 2}", "{a: 1, \n\n\n  b: 2}"},
               {"{a: \"x // y # z\", b: http://h}", "{a: \"x // y # z\", b: http://h}"},
               {"{a: \"\\\"#\"\n}", "{a: \"\\\"#\"\n}"},
               {"", ""}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        clt_str got = clt_deepspeed_tidy(all[i].from, strlen(all[i].from));
        assert_string_equal(got.s, all[i].to);
        clt_str_free(&got);
    }
    static const char zero[] = "{\"a\": 1,\n\0 \"b\": 2}"; /* the parser has to see what is behind it */
    clt_str got = clt_deepspeed_tidy(zero, sizeof zero - 1);
    assert_int_equal(got.len, sizeof zero - 1);
    assert_memory_equal(got.s, zero, sizeof zero - 1);
    clt_str_free(&got);
}

/* The table of docs/deepspeed.md is that of the program. */
static void documentation_lists_every_key(void **state) {
    (void)state;
    clt_str rows = {0};
    clt_deepspeed_list_keys(&rows);
    char *page = read_text("docs/deepspeed.md");
    for (char *line = strtok(rows.s, "\n"); line; line = strtok(NULL, "\n"))
        if (!strstr(page, line)) fail_msg("docs/deepspeed.md lacks: %s", line);
    clt_free(page);
    clt_str_free(&rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(contradictions_name_both_places),
                                       cmocka_unit_test(printed_configuration_is_complete),
                                       cmocka_unit_test(learning_rates_are_deepspeeds),
                                       cmocka_unit_test(engine_rates_are_deepspeeds),
                                       cmocka_unit_test(schedulers_are_checked),
                                       cmocka_unit_test(loss_scales_are_deepspeeds),
                                       cmocka_unit_test(resumed_scales_continue),
                                       cmocka_unit_test(resumed_scales_change_rules),
                                       cmocka_unit_test(single_keys),
                                       cmocka_unit_test(notices_name_keys),
                                       cmocka_unit_test(monitors_are_checked),
                                       cmocka_unit_test(offloaded_weights_need_stage_3),
                                       cmocka_unit_test(gradients_go_with_state_from_stage_2),
                                       cmocka_unit_test(nvme_means_files),
                                       cmocka_unit_test(liberties_of_hjson),
                                       cmocka_unit_test(documentation_lists_every_key)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
