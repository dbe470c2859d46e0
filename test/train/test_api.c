/* The public library. The oracle is the program `cltrain` with the same configuration: metrics and hashes
 * must be equal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define CLTRAIN_EXPERIMENTAL
#include "runtime/include/cltrain/cltrain.h"
#include "test/run_util.h"

/* A small run on golden data, with 12 batches per epoch. */
static char *config_text(const char *folder) {
    return clt_format(
        "run_name: api\nmax_seq_len: 128\n"
        "model: {name: mpt_causal_lm, d_model: 32, n_heads: 2, n_layers: 2, max_seq_len: 128, vocab_size: "
        "512}\n"
        "tokenizer: {name: bytes}\n"
        "train_loader: {name: text, dataset: {local: test/golden/e2e/mds, split: train, max_seq_len: 128}}\n"
        "eval_loader: {name: text, dataset: {local: test/golden/e2e/mds, split: val, max_seq_len: 128}, "
        "drop_last: false}\n"
        "optimizer: {name: decoupled_adamw, lr: 1.0e-3, betas: [0.9, 0.95], eps: 1.0e-8, weight_decay: 0.0}\n"
        "scheduler: {name: constant_with_warmup, t_warmup: 2ba}\n"
        "max_duration: 8ba\neval_interval: 0\nglobal_train_batch_size: 8\ndevice_eval_batch_size: 8\n"
        "precision: fp32\nsave_folder: %s\nsave_interval: 100ba\n",
        folder);
}

static void assert_status(cltrain_status got, cltrain_status want, const char *what) {
    if (got != want) fail_msg("%s: %s: %s", what, cltrain_status_name(got), cltrain_error_message());
}

/* A run that is not open yet; `rows` collects the metrics. */
static cltrain_run *prepare(const char *folder, clt_str *rows, cltrain_metrics_fn fn) {
    cltrain_run *run = NULL;
    char *text = config_text(folder), *cache = clt_strdup(ru_path("cache"));
    assert_status(cltrain_run_create(&run), CLTRAIN_OK, "create");
    assert_status(cltrain_run_config_text(run, text), CLTRAIN_OK, "config");
    assert_status(cltrain_run_cache(run, cache), CLTRAIN_OK, "cache");
    assert_status(cltrain_run_on_metrics(run, fn, rows), CLTRAIN_OK, "metrics");
    clt_free(text);
    clt_free(cache);
    return run;
}

static void add_row(void *context, const char *json) {
    clt_str_addf(context, "%s\n", json);
}

static cltrain_run *open_in(const char *folder, clt_str *rows) {
    cltrain_run *run = prepare(folder, rows, add_row);
    assert_status(cltrain_run_open(run), CLTRAIN_OK, "open");
    return run;
}

static cltrain_position position(cltrain_run *run) {
    cltrain_position p;
    assert_status(cltrain_run_position(run, &p), CLTRAIN_OK, "position");
    return p;
}

static cltrain_hash hash(cltrain_run *run) {
    cltrain_hash h;
    assert_status(cltrain_run_hash(run, &h), CLTRAIN_OK, "hash");
    return h;
}

static void assert_same(cltrain_hash a, cltrain_hash b) {
    assert_string_equal(a.weights, b.weights);
    assert_string_equal(a.optimizer, b.optimizer);
}

/* A run in parts, with a save and a resume between them, equals the program's run in one part. */
static void trains_as_the_program_does(void **state) {
    (void)state;
    char *by_program = clt_strdup(ru_path("program")), *by_library = clt_strdup(ru_path("library"));
    char *yaml = clt_strdup(ru_path("run.yaml")), *text = config_text(by_program);
    FILE *f = fopen(yaml, "w");
    fputs(text, f);
    fclose(f);
    ru_cltrain_ok(".", NULL, "train %s --quiet", yaml);
    clt_str printed = {0}, rows = {0};
    ru_cltrain_ok(".", &printed, "ckpt hash %s/ep0-ba8", by_program);

    cltrain_run *run = open_in(by_library, &rows);
    assert_true(isnan(position(run).loss) && position(run).batch == 0);
    assert_status(cltrain_run_train(run, 3), CLTRAIN_OK, "3 steps");
    assert_int_equal(position(run).batch, 3);
    assert_status(cltrain_run_save(run), CLTRAIN_OK, "save");
    const cltrain_hash saved = hash(run);
    cltrain_run_close(run);
    run = open_in(by_library, &rows);
    assert_true(position(run).resumed && position(run).batch == 3);
    assert_same(hash(run), saved);
    assert_status(cltrain_run_train(run, 0), CLTRAIN_OK, "the rest");
    assert_true(position(run).finished && position(run).batch == 8);
    assert_status(cltrain_run_train(run, 5), CLTRAIN_OK, "nothing left");
    const cltrain_hash h = hash(run);
    if (!strstr(printed.s, h.weights) || !strstr(printed.s, h.optimizer))
        fail_msg("the program has %s, the library %s %s", printed.s, h.weights, h.optimizer);
    cltrain_run_close(run);
    assert_non_null(strstr(rows.s, "{\"batch\":8,"));
    assert_non_null(strstr(rows.s, "\"event\":\"resume\""));
    clt_str_free(&printed);
    clt_str_free(&rows);
    clt_free(by_program);
    clt_free(by_library);
    clt_free(yaml);
    clt_free(text);
}

static void add_text(void *context, const char *text, size_t bytes) {
    clt_str_addn(context, text, bytes);
}

static void evaluates_and_generates(void **state) {
    (void)state;
    clt_str rows = {0}, one = {0}, two = {0};
    char *folder = clt_strdup(ru_path("eval"));
    cltrain_run *run = open_in(folder, &rows);
    cltrain_evaluation before, after;
    assert_status(cltrain_run_evaluate(run, NULL, &before), CLTRAIN_OK, "evaluate");
    assert_int_equal(before.samples, 36);
    assert_true(fabs(before.loss - log(before.perplexity)) < 1e-6 && before.loss > 5);
    assert_status(cltrain_run_train(run, 4), CLTRAIN_OK, "train");
    assert_status(cltrain_run_evaluate(run, "eval", &after), CLTRAIN_OK, "evaluate");
    assert_true(after.loss < before.loss);
    assert_status(cltrain_run_evaluate(run, "other", &after), CLTRAIN_BAD_ARGUMENT, "another label");

    /* The run and its checkpoint, loaded on a device of its own, generate the same text. */
    cltrain_generation o = cltrain_generation_default();
    o.max_new_tokens = 12;
    o.stop_at_end_of_text = 0;
    assert_status(cltrain_run_generate(run, "ab", &o, add_text, &one), CLTRAIN_OK, "generate");
    assert_status(cltrain_run_save(run), CLTRAIN_OK, "save");
    assert_status(cltrain_generate(folder, "ab", &o, add_text, &two), CLTRAIN_OK,
                  "generate from a checkpoint");
    assert_int_equal(one.len, two.len);
    assert_memory_equal(one.s, two.s, one.len);
    assert_status(cltrain_run_train(run, 1), CLTRAIN_OK, "training continues after that");

    int n, dims;
    const char *name;
    uint64_t elements;
    int64_t shape[4];
    assert_status(cltrain_run_tensor_count(run, &n), CLTRAIN_OK, "tensors");
    assert_status(cltrain_run_tensor(run, 0, &name, &elements, shape, &dims), CLTRAIN_OK, "tensor 0");
    assert_string_equal(name, "transformer.wte.weight");
    assert_true(dims == 2 && shape[0] == 512 && shape[1] == 32 && elements == 512 * 32);
    float *values = clt_calloc(elements, sizeof *values);
    assert_status(cltrain_run_read_tensor(run, 0, values), CLTRAIN_OK, "its values");
    assert_true(values[0] != 0 && isfinite(values[0]));
    assert_status(cltrain_run_tensor(run, n, &name, NULL, NULL, NULL), CLTRAIN_BAD_ARGUMENT,
                  "no such tensor");
    clt_free(values);
    cltrain_run_close(run);
    clt_str_free(&rows);
    clt_str_free(&one);
    clt_str_free(&two);
    clt_free(folder);
}

/* Two runs that train steps alternately, and two more at the same time on threads: each equals a run
 * alone. */
typedef struct {
    cltrain_run *run;
    cltrain_status st;
} job;

static void *train_all(void *p) {
    job *j = p;
    j->st = cltrain_run_train(j->run, 0);
    return NULL;
}

static void runs_do_not_mix(void **state) {
    (void)state;
    clt_str rows[5] = {{0}};
    cltrain_run *run[5];
    char name[16];
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "mix%d", i);
        char *folder = clt_strdup(ru_path(name));
        run[i] = open_in(folder, &rows[i]);
        clt_free(folder);
    }
    assert_status(cltrain_run_train(run[0], 0), CLTRAIN_OK, "alone");
    for (int i = 0; i < 8; i++)
        for (int k = 1; k <= 2; k++) assert_status(cltrain_run_train(run[k], 1), CLTRAIN_OK, "by turns");
    job jobs[2] = {{.run = run[3]}, {.run = run[4]}};
    pthread_t t[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&t[i], NULL, train_all, &jobs[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < 2; i++) assert_int_equal(jobs[i].st, CLTRAIN_OK);
    const cltrain_hash alone = hash(run[0]);
    for (int i = 1; i < 5; i++) {
        int steps = 0;
        for (const char *at = rows[i].s; (at = strstr(at, "\"loss\":")); at++) steps++;
        assert_int_equal(steps, 8);
        assert_same(hash(run[i]), alone);
    }
    for (int i = 0; i < 5; i++) cltrain_run_close(run[i]);
    for (int i = 0; i < 5; i++) clt_str_free(&rows[i]);
}

/* The metrics callback requests the stop after batch 3. */
static void stop_after_three(void *context, const char *json) {
    if (strstr(json, "{\"batch\":3,")) cltrain_run_stop(*(cltrain_run **)context);
}

static void stops_when_asked(void **state) {
    (void)state;
    clt_str rows = {0};
    cltrain_run *run = NULL;
    char *folder = clt_strdup(ru_path("stop"));
    run = prepare(folder, (clt_str *)&run, stop_after_three);
    assert_status(cltrain_run_open(run), CLTRAIN_OK, "open");
    assert_status(cltrain_run_train(run, 0), CLTRAIN_STOPPED, "stop requested");
    assert_status(cltrain_run_train(run, 0), CLTRAIN_BAD_ARGUMENT, "it has ended");
    cltrain_run_close(run);
    run = open_in(folder, &rows);
    assert_in_range(position(run).batch, 3, 6);
    assert_true(position(run).resumed);
    cltrain_run_close(run);
    clt_str_free(&rows);
    clt_free(folder);
}

/* Errors are statuses with a message; nothing is written to stderr, and the process continues. */
static void misuse_is_told(void **state) {
    (void)state;
    cltrain_run *run = NULL;
    assert_status(cltrain_run_create(NULL), CLTRAIN_BAD_ARGUMENT, "no place for the run");
    assert_status(cltrain_run_create(&run), CLTRAIN_OK, "create");
    assert_status(cltrain_run_open(run), CLTRAIN_BAD_ARGUMENT, "no configuration");
    assert_status(cltrain_run_train(run, 1), CLTRAIN_BAD_ARGUMENT, "not open");
    assert_non_null(strstr(cltrain_error_message(), "cltrain_run_train"));
    assert_status(cltrain_run_set(run, "seed"), CLTRAIN_BAD_ARGUMENT, "no '='");
    assert_status(cltrain_run_config_text(run, "max_seq_leng: 3\n"), CLTRAIN_OK, "text");
    assert_status(cltrain_run_config_file(run, "x.yaml"), CLTRAIN_BAD_ARGUMENT, "a second configuration");
    assert_status(cltrain_run_open(run), CLTRAIN_BAD_CONFIG, "wrong keys");
    if (!strstr(cltrain_error_message(), "configuration:1:1")) fail_msg("%s", cltrain_error_message());
    assert_status(cltrain_run_train(run, 1), CLTRAIN_BAD_ARGUMENT, "only closing is left");
    cltrain_run_close(run);
    cltrain_run_close(NULL);
    assert_status(cltrain_train("no/such.yaml", NULL, 0), CLTRAIN_BAD_CONFIG, "no file");
    assert_non_null(strstr(cltrain_error_message(), "no/such.yaml"));
    assert_status(cltrain_generate("no/such", "x", NULL, add_text, NULL), CLTRAIN_IO, "no model");
}

/* A run of the library changes neither signal handlers nor the signal mask, and it ignores the
 * environment. */
static void the_process_is_left_alone(void **state) {
    (void)state;
    struct sigaction before[3], after[3];
    sigset_t mask_before, mask_after;
    static const int signals[] = {SIGINT, SIGTERM, SIGPIPE};
    clt_str rows = {0};
    char *folder = clt_strdup(ru_path("alone"));
    for (int i = 0; i < 3; i++) sigaction(signals[i], NULL, &before[i]);
    pthread_sigmask(SIG_BLOCK, NULL, &mask_before);
    setenv("CLTRAIN_DEVICE", "no such device", 1);
    cltrain_run *run = open_in(folder, &rows);
    assert_status(cltrain_run_train(run, 1), CLTRAIN_OK, "train");
    cltrain_run_close(run);
    run = prepare(folder, &rows, add_row);
    assert_status(cltrain_run_use_environment(run), CLTRAIN_OK, "environment");
    assert_status(cltrain_run_open(run), CLTRAIN_NO_DEVICE, "reads CLTRAIN_DEVICE when allowed");
    cltrain_run_close(run);
    unsetenv("CLTRAIN_DEVICE");
    for (int i = 0; i < 3; i++) {
        sigaction(signals[i], NULL, &after[i]);
        assert_true(before[i].sa_handler == after[i].sa_handler);
    }
    pthread_sigmask(SIG_BLOCK, NULL, &mask_after);
    for (int i = 1; i < NSIG; i++)
        assert_int_equal(sigismember(&mask_before, i), sigismember(&mask_after, i));
    clt_str_free(&rows);
    clt_free(folder);
}

int main(int argc, char **argv) {
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trains_as_the_program_does),
        cmocka_unit_test(evaluates_and_generates),
        cmocka_unit_test(runs_do_not_mix),
        cmocka_unit_test(stops_when_asked),
        cmocka_unit_test(misuse_is_told),
        cmocka_unit_test(the_process_is_left_alone),
    };
    ru_begin(argv[0]);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ru_end();
    return failed;
}
