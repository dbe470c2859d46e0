/* A checkpoint of each family of the transformers package is imported, trained and exported as a user does
 * it, and compared with LLM Foundry's run in double (test/golden/families): losses, gradient norms and the
 * exported weights. Foundry's own fp32 runs end up to 3e-6 of a tensor's change away. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/checkpoint/clt_safetensors.h"
#include "runtime/checkpoint/clt_weight_source.h"
#include "test/golden_util.h"
#include "test/run_util.h"
#include "test/test_util.h"

enum { STEPS = 8, PLACES = 12 };
static const double LOSS_BOUND = 5e-6, NORM_BOUND = 2e-6, LR_BOUND = 1e-9, WEIGHT_BOUND = 2e-5;

static double number(json_t *row, const char *key) {
    json_t *v = json_object_get(row, key);
    if (!json_is_number(v)) fail_msg("a row has no number %s", key);
    return json_number_value(v);
}

static void check_steps(const char *set, const char *run, json_t *steps) {
    json_t *metrics = ru_metrics(run), *rows = ru_rows_with(metrics, "loss"), *row;
    double loss = 0, norm = 0;
    size_t i;
    assert_int_equal(json_array_size(rows), STEPS);
    assert_int_equal(json_array_size(steps), STEPS);
    json_array_foreach(rows, i, row) {
        json_t *want = json_array_get(steps, i);
        loss = fmax(loss, fabs(number(row, "loss") - number(want, "loss")));
        norm = fmax(norm, fabs(number(row, "grad_norm") / number(want, "grad_norm") - 1));
        assert_true(fabs(number(row, "lr") - number(want, "lr")) < LR_BOUND);
    }
    printf("  %-10s loss %.2g  gradient norm %.2g", set, loss, norm);
    assert_true(loss < LOSS_BOUND);
    assert_true(norm < NORM_BOUND);
    json_decref(rows);
    json_decref(metrics);
}

static bool has_key_part(const char *name) {
    return strstr(name, "k_proj.bias") || strstr(name, "c_attn.bias") || strstr(name, "query_key_value.bias");
}

static int ascending(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The error at the stored places, as a part of the tensor's change. */
static double weight_error(clt_weight_source *s, const char *name, json_t *want) {
    clt_ckpt_tensor t;
    const int at = clt_weight_source_find(s, "weight", name);
    if (at < 0) fail_msg("the export has no %s", name);
    clt_weight_source_at(s, at, &t);
    int64_t place[PLACES];
    int n = 0;
    for (int i = 0; i < PLACES; i++) place[i] = (i * 7919 + 13) % (int64_t)t.count;
    qsort(place, PLACES, sizeof *place, ascending);
    json_t *values = json_object_get(want, "values");
    double sum = 0;
    for (int i = 0; i < PLACES; i++) {
        float got;
        if (i && place[i] == place[i - 1]) continue;
        tu_assert_ok(clt_weight_source_read(s, at, (uint64_t)place[i], &got, 1), name);
        const double d = (double)got - json_number_value(json_array_get(values, (size_t)n++));
        sum += d * d;
    }
    assert_int_equal(json_array_size(values), n);
    return sqrt(sum * (double)t.count / n) / number(want, "l2_of_change");
}

static void check_weights(const char *folder, json_t *final) {
    clt_weight_source *s;
    const char *name;
    json_t *want;
    double worst = 0;
    tu_assert_ok(clt_weight_source_open(folder, &s), folder);
    assert_int_equal(clt_weight_source_count(s), json_object_size(final));
    json_object_foreach(final, name, want) {
        const double e = weight_error(s, name, want);
        if (!has_key_part(name)) worst = fmax(worst, e);
    }
    printf("  final weights %.2g of their change\n", worst);
    assert_true(worst < WEIGHT_BOUND);
    clt_weight_source_close(s);
}

/* Equal bits, types and names. */
static void check_same_files(const char *a, const char *b) {
    clt_weight_source *s, *t;
    tu_assert_ok(clt_weight_source_open(a, &s), a);
    tu_assert_ok(clt_weight_source_open(b, &t), b);
    assert_string_equal(clt_weight_source_dtype(s), clt_weight_source_dtype(t));
    assert_int_equal(clt_weight_source_count(s), clt_weight_source_count(t));
    for (int i = 0; i < clt_weight_source_count(s); i++) {
        clt_ckpt_tensor x, y;
        clt_weight_source_at(s, i, &x);
        clt_weight_source_at(t, i, &y);
        assert_string_equal(x.name, y.name);
        assert_int_equal(x.dims, y.dims);
        assert_memory_equal(x.shape, y.shape, (size_t)x.dims * sizeof *x.shape);
        float *u = clt_malloc(x.count * sizeof *u), *v = clt_malloc(x.count * sizeof *v);
        tu_assert_ok(clt_weight_source_read(s, i, 0, u, x.count), x.name);
        tu_assert_ok(clt_weight_source_read(t, i, 0, v, x.count), x.name);
        assert_memory_equal(u, v, x.count * sizeof *u);
        clt_free(u);
        clt_free(v);
    }
    clt_weight_source_close(s);
    clt_weight_source_close(t);
}

/* config.json with its keys, but for those that say a Qwen2's window to every transformers (clt_hf_llama.c);
 * the tokenizer byte by byte. */
static void check_other_files(const char *a, const char *b) {
    char *paths[] = {clt_path_join(a, "config.json"), clt_path_join(b, "config.json"),
                     clt_path_join(a, "tokenizer.json"), clt_path_join(b, "tokenizer.json")};
    json_t *x = golden_load(paths[0]), *y = golden_load(paths[1]);
    if (json_is_false(json_object_get(x, "use_sliding_window"))) {
        assert_true(json_is_true(json_object_get(y, "use_sliding_window")));
        assert_int_equal(json_integer_value(json_object_get(y, "max_window_layers")), 0);
        json_object_set(y, "use_sliding_window", json_object_get(x, "use_sliding_window"));
        json_object_set(y, "max_window_layers", json_object_get(x, "max_window_layers"));
    }
    assert_true(json_equal(x, y));
    json_decref(x);
    json_decref(y);
    char *p, *q;
    size_t n, m;
    tu_assert_ok(clt_io_read_all(paths[2], 1 << 20, &p, &n), paths[2]);
    tu_assert_ok(clt_io_read_all(paths[3], 1 << 20, &q, &m), paths[3]);
    assert_int_equal(n, m);
    assert_memory_equal(p, q, n);
    clt_free(p);
    clt_free(q);
    for (size_t i = 0; i < CLT_COUNT_OF(paths); i++) clt_free(paths[i]);
}

/* from_import: the run starts from the imported checkpoint, else from the folder. */
static void check_family(const char *set, bool from_import) {
    char *dir = clt_format("test/golden/families/%s", set), *hf = clt_path_join(dir, "hf"),
         *file = clt_path_join(dir, "train.json"), *name = clt_format("%s-start", set),
         *back = clt_format("%s-back", set), *out = clt_format("%s-out", set);
    const char *start = ru_path(name), *again = ru_path(back), *end = ru_path(out), *run = ru_path(set);
    json_t *want = golden_load(file);
    ru_cltrain_ok(dir, NULL, "ckpt import hf %s", start);
    ru_cltrain_ok(dir, NULL, "ckpt export %s %s", start, again);
    check_same_files(hf, again);
    check_other_files(hf, again);
    ru_cltrain_ok(dir, NULL, "-q train train.yaml save_folder=%s%s%s", run,
                  from_import ? " model.pretrained=false load_weights_only=true load_path=" : "",
                  from_import ? start : "");
    check_steps(set, run, json_object_get(want, "steps"));
    ru_cltrain_ok(dir, NULL, "ckpt export %s %s --shard-bytes 60000", run, end);
    check_weights(end, json_object_get(want, "final"));
    json_decref(want);
    char *const texts[] = {dir, hf, file, name, back, out};
    for (size_t i = 0; i < CLT_COUNT_OF(texts); i++) clt_free(texts[i]);
}

static void llama(void **state) {
    (void)state;
    check_family("llama3", false);
    check_family("llama-tied", true);
}
static void mistral(void **state) {
    (void)state;
    check_family("mistral", false);
}
static void qwen2(void **state) {
    (void)state;
    check_family("qwen2-bf16", true);
}
static void gpt2(void **state) {
    (void)state;
    check_family("gpt2", true);
}
static void gpt_neox(void **state) {
    (void)state;
    check_family("gpt-neox", false);
}
static void gemma2(void **state) {
    (void)state;
    check_family("gemma2", false);
}

int main(int argc, char **argv) {
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama), cmocka_unit_test(mistral),  cmocka_unit_test(qwen2),
        cmocka_unit_test(gpt2),  cmocka_unit_test(gpt_neox), cmocka_unit_test(gemma2),
    };
    ru_begin(argv[0]);
    int failed = tu_run(tests, CLT_COUNT_OF(tests));
    ru_end();
    return failed;
}
