/* Whole runs compared with LLM Foundry and Composer in double (test/golden/mpt-X, e2e, finetune): losses
 * within 1e-5, gradient norms within 1e-4 relative, learning rates, evaluations and final weights. The runs
 * use the program as a user does; masked labels, which no data set has, use the library. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/checkpoint/clt_safetensors.h"
#include "runtime/checkpoint/clt_weight_source.h"
#include "runtime/train/engine/clt_engine.h"
#include "test/golden_util.h"
#include "test/run_util.h"
#include "test/test_util.h"

static const double LOSS_BOUND = 1e-5, NORM_BOUND = 1e-4, LR_BOUND = 1e-9, WEIGHT_BOUND = 1e-5;

static double number(json_t *row, const char *key) {
    json_t *v = json_object_get(row, key);
    if (!json_is_number(v)) fail_msg("a row has no number %s", key);
    return json_number_value(v);
}

/* --- steps --- */

typedef struct {
    double loss, norm, lr;
} worst;

static void check_step(const char *set, json_t *want, double loss, double norm, double lr, worst *w) {
    double dl = fabs(loss - number(want, "loss")), dn = fabs(norm / number(want, "grad_norm") - 1);
    double dr = fabs(lr - number(want, "lr"));
    if (!(dl < LOSS_BOUND) || !(dn < NORM_BOUND) || !(dr < LR_BOUND))
        fail_msg("%s: step %lld: loss off by %g, gradient norm by %g (relative), lr by %g", set,
                 (long long)golden_int(want, "step"), dl, dn, dr);
    w->loss = fmax(w->loss, dl);
    w->norm = fmax(w->norm, dn);
    w->lr = fmax(w->lr, dr);
}

static void check_rows(const char *set, json_t *metrics, json_t *steps) {
    json_t *rows = ru_rows_with(metrics, "loss"), *row;
    size_t i;
    worst w = {0};
    assert_int_equal(json_array_size(rows), json_array_size(steps));
    json_array_foreach(rows, i, row) {
        json_t *want = json_array_get(steps, i);
        assert_int_equal(golden_int(row, "batch"), golden_int(want, "step"));
        check_step(set, want, number(row, "loss"), number(row, "grad_norm"), number(row, "lr"), &w);
    }
    printf("  %-9s %zu steps: loss %.2g, gradient norm %.2g, lr %.2g\n", set, i, w.loss, w.norm, w.lr);
    json_decref(rows);
}

/* --- final weights --- */

/* Tensors whose exact gradient is zero, so that Adam turns rounding errors into steps: the key part of
 * Wqkv.bias, if keys are used unchanged, and k_ln.bias. */
static void skip_noise(const char *name, bool keys_as_they_come, float *x, uint64_t n) {
    if (strstr(name, "k_ln.bias")) memset(x, 0, n * sizeof *x);
    if (strstr(name, "Wqkv.bias") && keys_as_they_come) memset(x + n / 3, 0, n / 3 * sizeof *x);
}

/* exceptions: number of elements that may differ by more than WEIGHT_BOUND, each by less than 1e-3. They have
 * tiny gradients, so eps and rounding determine their Adam step. */
static void check_weights(const char *set, const char *run, const char *final, bool keys_as_they_come,
                          uint64_t exceptions) {
    clt_weight_source *a, *b;
    uint64_t off = 0, all = 0;
    double most = 0;
    tu_assert_ok(clt_weight_source_open(run, &a), run);
    tu_assert_ok(clt_weight_source_open(final, &b), final);
    for (int i = 0; i < clt_weight_source_count(b); i++) {
        clt_ckpt_tensor t, other;
        clt_weight_source_at(b, i, &t);
        int k = clt_weight_source_find(a, "weight", t.name);
        if (k < 0) fail_msg("%s has no %s", run, t.name);
        clt_weight_source_at(a, k, &other);
        assert_int_equal(t.count, other.count);
        float *got = clt_malloc(t.count * 4), *want = clt_malloc(t.count * 4);
        tu_assert_ok(clt_weight_source_read(a, k, 0, got, t.count), t.name);
        tu_assert_ok(clt_weight_source_read(b, i, 0, want, t.count), t.name);
        skip_noise(t.name, keys_as_they_come, got, t.count);
        skip_noise(t.name, keys_as_they_come, want, t.count);
        for (uint64_t e = 0; e < t.count; e++) {
            double d = fabs((double)got[e] - (double)want[e]);
            if (!(d < 1e-3)) fail_msg("%s: %s[%llu] is off by %g", set, t.name, (unsigned long long)e, d);
            most = fmax(most, d);
            off += d > WEIGHT_BOUND;
        }
        all += t.count;
        clt_free(got);
        clt_free(want);
    }
    printf("  %-9s %llu weights: %.2g, %llu above %g\n", set, (unsigned long long)all, most,
           (unsigned long long)off, WEIGHT_BOUND);
    assert_true(all > 50000);
    assert_in_range(off, 0, exceptions);
    clt_weight_source_close(a);
    clt_weight_source_close(b);
}

/* --- the sets --- */

static void train_set(const char *set, bool keys_as_they_come, uint64_t exceptions) {
    char *dir = clt_format("test/golden/mpt-%s", set), *steps = clt_path_join(dir, "train.json");
    char *final = clt_path_join(dir, "final.safetensors");
    const char *run = ru_path(set);
    json_t *want = golden_load(steps);
    ru_cltrain_ok(dir, NULL, "-q train train.yaml save_folder=%s", run);
    json_t *metrics = ru_metrics(run);
    check_rows(set, metrics, json_object_get(want, "steps"));
    check_weights(set, run, final, keys_as_they_come, exceptions);
    json_decref(metrics);
    json_decref(want);
    clt_free(dir);
    clt_free(steps);
    clt_free(final);
}

static void learned(void **state) {
    (void)state;
    train_set("learned", true, 0);
}
static void alibi(void **state) {
    (void)state;
    train_set("alibi", true, 0);
}
static void rope(void **state) {
    (void)state;
    train_set("rope", false, 0);
}
/* LLM Foundry's own fp32 run has 239 such weights. */
static void variants(void **state) {
    (void)state;
    train_set("variants", false, 1000);
}

/* --- e2e: shuffled data over three epochs, evaluations --- */

static void check_eval(json_t *got, json_t *want) {
    double loss = number(want, "LanguageCrossEntropy"), perplexity = number(want, "LanguagePerplexity");
    assert_true(fabs(number(got, "eval_loss") - loss) < LOSS_BOUND);
    assert_true(fabs(number(got, "eval_perplexity") / perplexity - 1) < LOSS_BOUND);
    assert_true(fabs(number(got, "eval_accuracy") - number(want, "TokenAccuracy")) < 1e-8);
}

/* A set with a folder hf of initial weights and evaluations. */
static void train_from_hf(const char *dir, bool keys_as_they_come) {
    const char *set = clt_path_base(dir), *run = ru_path(set);
    char *steps = clt_path_join(dir, "train.json"), *final = clt_path_join(dir, "final.safetensors");
    json_t *want = golden_load(steps), *evals = json_object_get(want, "evals"), *row;
    ru_cltrain_ok(dir, NULL, "-q train train.yaml load_path=hf load_weights_only=true save_folder=%s", run);
    json_t *metrics = ru_metrics(run), *rows = ru_rows_with(metrics, "eval_loss");
    check_rows(set, metrics, json_object_get(want, "steps"));
    size_t i;
    assert_int_equal(json_array_size(rows), json_array_size(evals));
    json_array_foreach(rows, i, row) {
        assert_int_equal(golden_int(row, "batch"), golden_int(json_array_get(evals, i), "batch"));
        check_eval(row, json_array_get(evals, i));
    }
    check_weights(set, run, final, keys_as_they_come, 0);
    json_decref(rows);
    json_decref(metrics);
    json_decref(want);
    clt_free(steps);
    clt_free(final);
}

static void e2e_run(void **state) {
    (void)state;
    train_from_hf("test/golden/e2e", true);
}

/* Fine-tuning data: padded rows with masked labels; packed rows with sequence ids. */
static void finetune_plain(void **state) {
    (void)state;
    train_from_hf("test/golden/finetune/train-plain", true);
}
static void finetune_packed(void **state) {
    (void)state;
    train_from_hf("test/golden/finetune/train-packed", false);
}

static void copy_file(const char *from, const char *to) {
    char *data;
    size_t bytes;
    tu_assert_ok(clt_io_read_all(from, 1 << 24, &data, &bytes), from);
    tu_assert_ok(clt_io_write_atomic(to, data, bytes), to);
    clt_free(data);
}

/* `cltrain eval` of the final weights gives the result of the last evaluation, also with the zstd copy of the
 * data. */
static void e2e_eval(void **state) {
    (void)state;
    const char *hf = ru_path("final");
    json_t *want = golden_load("test/golden/e2e/train.json"), *evals = json_object_get(want, "evals");
    char *config = clt_path_join(hf, "config.json"), *model = clt_path_join(hf, "model.safetensors");
    tu_assert_ok(clt_io_mkdirs(hf), hf);
    copy_file("test/golden/e2e/hf/config.json", config);
    copy_file("test/golden/e2e/final.safetensors", model);
    for (int zstd = 0; zstd < 2; zstd++) {
        clt_str out = {0};
        json_error_t e;
        ru_cltrain_ok("test/golden/e2e", &out, "-q eval train.yaml load_path=%s variables.data_local=%s", hf,
                      zstd ? "./mds-zstd" : "./mds");
        const char *line = strstr(out.s, "{\"label\"");
        if (!line) fail_msg("eval printed no line of JSON:\n%s", out.s);
        json_t *got = json_loads(line, JSON_DISABLE_EOF_CHECK, &e);
        if (!got) fail_msg("eval printed: %s (%s)", line, e.text);
        check_eval(got, json_array_get(evals, json_array_size(evals) - 1));
        json_decref(got);
        clt_str_free(&out);
    }
    json_decref(want);
    clt_free(config);
    clt_free(model);
}

/* Both copies of the data have the same tokens, sample by sample. */
static void e2e_zstd_tokens(void **state) {
    (void)state;
    static const char *const splits[] = {"train", "val"};
    for (int k = 0; k < 2; k++) {
        clt_str plain = {0}, packed = {0};
        for (int i = 0; i < 36; i += 5) {
            ru_cltrain_ok("test/golden/e2e", &plain, "data show mds/%s --sample %d --json", splits[k], i);
            ru_cltrain_ok("test/golden/e2e", &packed, "data show mds-zstd/%s --sample %d --json", splits[k],
                          i);
            assert_string_equal(plain.s, packed.s);
        }
        ru_cltrain_ok("test/golden/e2e", NULL, "data verify mds-zstd/%s", splits[k]);
        clt_str_free(&plain);
        clt_str_free(&packed);
    }
}

/* --- masked labels, through the library --- */

typedef struct {
    clt_config *cfg;
    clt_plan plan;
    clt_group *group;
    clt_engine *engine;
    clt_schedule schedule;
    int64_t G, T, rows;
    int32_t *tokens, *labels;
} masked;

static int32_t *int_tensor(clt_safetensors *s, const char *name, uint64_t *count) {
    int i = clt_safetensors_find(s, name);
    if (i < 0) fail_msg("no tensor %s", name);
    *count = clt_safetensors_at(s, i)->count;
    int32_t *x = clt_malloc(*count * sizeof *x);
    tu_assert_ok(clt_safetensors_read(s, i, 0, x, *count * sizeof *x), name);
    return x;
}

/* The file's label of a position is its own token; the engine's label is the next token: shifted by one. */
static void load_masked(masked *m) {
    clt_safetensors *s;
    uint64_t n;
    tu_assert_ok(clt_safetensors_open("test/golden/mpt-learned/masked.safetensors", &s), "masked");
    m->tokens = int_tensor(s, "input_ids", &n);
    int32_t *labels = int_tensor(s, "labels", &n);
    m->rows = (int64_t)n / m->T;
    m->labels = clt_malloc(n * sizeof *labels);
    for (uint64_t i = 0; i < n; i++) m->labels[i] = (int64_t)(i + 1) % m->T ? labels[i + 1] : -100;
    clt_free(labels);
    clt_safetensors_close(s);
}

static void open_masked(masked *m, int lanes, int microbatch) {
    char *lane = clt_format("cltrain.exact_lanes=%d", lanes);
    char *micro = clt_format("device_train_microbatch_size=%d", microbatch);
    const char *over[] = {lane, micro};
    tu_assert_ok(clt_config_load("test/golden/mpt-learned/train.yaml", over, 2, &m->cfg), "train.yaml");
    m->G = m->cfg->global_train_batch_size;
    m->T = m->cfg->max_seq_len;
    load_masked(m);
    tu_assert_ok(clt_group_create(0, &m->group), "group");
    m->plan = clt_plan_begin(m->cfg, 1);
    m->plan.microbatch = microbatch;
    const clt_engine_params p = {
        .cfg = m->cfg, .group = m->group, .ops = tu_ops(0), .plan = &m->plan, .training = true};
    tu_assert_ok(clt_engine_create(&p, &m->engine), "engine");
    tu_assert_ok(clt_schedule_resolve(&m->cfg->schedule, m->cfg->max_duration, m->rows / m->G, &m->schedule),
                 "schedule");
    clt_weight_source *w;
    int n;
    const clt_ckpt_part *parts = clt_engine_parts(m->engine, &n);
    tu_assert_ok(clt_weight_source_open("test/golden/mpt-learned/hf", &w), "weights");
    tu_assert_ok(clt_weight_source_load(w, clt_engine_table(m->engine), parts, 1, NULL), "weights");
    clt_weight_source_close(w);
    clt_free(lane);
    clt_free(micro);
}

static void close_masked(masked *m) {
    clt_engine_destroy(m->engine);
    clt_plan_free(&m->plan);
    clt_group_destroy(m->group);
    clt_config_free(m->cfg);
    clt_free(m->tokens);
    clt_free(m->labels);
}

/* lanes 1, microbatch 3 is the division of the reference: microbatches of 3, 3 and 2. */
static void train_masked(int lanes, int microbatch) {
    masked m = {0};
    worst w = {0};
    clt_timestamp now = {0};
    json_t *all = golden_load("test/golden/mpt-learned/train-masked.json");
    json_t *steps = json_object_get(all, "steps"), *want;
    size_t i;
    open_masked(&m, lanes, microbatch);
    json_array_foreach(steps, i, want) {
        int64_t first = (int64_t)i % (m.rows / m.G) * m.G * m.T;
        const int32_t *labels = m.labels + first;
        clt_batch b = {.samples = m.G,
                       .global_samples = m.G,
                       .field = {[CLT_TEXT_TOKENS] = m.tokens + first, [CLT_TEXT_TARGETS] = labels}};
        for (int64_t t = 0; t < m.G * m.T; t++) b.global_targets += labels[t] >= 0;
        assert_int_equal(b.global_targets, golden_int(want, "loss_tokens"));
        double alpha = clt_schedule_next_alpha(&m.schedule, &now, i ? m.G : 0, i ? m.G * m.T : 0, i);
        clt_timestamp_next_batch(&now, m.G, m.G * m.T, false);
        const clt_engine_step_params p = {.batch = &b, .step = (int64_t)i + 1, .alpha = alpha};
        clt_engine_result r;
        tu_assert_ok(clt_engine_step(m.engine, &p, &r), "step");
        assert_true(r.finite);
        check_step("masked", want, r.loss, (double)r.grad_norm, alpha * m.cfg->optimizer.groups[0].lr, &w);
    }
    printf("  masked    %zu steps, %d lanes, microbatch %d: loss %.2g, gradient norm %.2g\n", i, lanes,
           microbatch, w.loss, w.norm);
    close_masked(&m);
    json_decref(all);
}

static void masked_labels(void **state) {
    (void)state;
    train_masked(1, 3);
    train_masked(2, 3);
    train_masked(8, 1);
}

int main(int argc, char **argv) {
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learned),         cmocka_unit_test(alibi),         cmocka_unit_test(rope),
        cmocka_unit_test(variants),        cmocka_unit_test(e2e_run),       cmocka_unit_test(e2e_eval),
        cmocka_unit_test(e2e_zstd_tokens), cmocka_unit_test(masked_labels), cmocka_unit_test(finetune_plain),
        cmocka_unit_test(finetune_packed),
    };
    ru_begin(argv[0]);
    int failed = tu_run(tests, CLT_COUNT_OF(tests));
    ru_end();
    return failed;
}
