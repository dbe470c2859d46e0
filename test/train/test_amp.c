/* Training in 16 bits: losses stay within a bound of the runs in double precision (test/golden), and the bits
 * depend only on the configuration.
 *
 * Bound: with u the unit roundoff (2^-8 for bf16, 2^-11 for fp16), logits and hidden values of order 1 have
 * errors of about u. A loss is a mean over hundreds of targets with mostly independent errors, so it stays
 * within u and the gradient norm within 2 u. For comparison, PyTorch's autocast on the CPU with the same data
 * (tools/anchors/torch_drift.py, PyTorch 2.15) has maximum errors of 1.5e-3 and 1.2e-3 in bf16, 1.7e-4 and
 * 1.8e-4 in fp16, 9e-7 in fp32.
 *
 * Inputs and weights of amp_fp8 have errors of up to 2^-4 (E4M3), of which hundreds with independent signs
 * meet in a sum beside the residual stream, which has none. 2^-4 is the bound of a loss; those of 30 steps
 * drift by 0.01 to 0.035. */
#include <math.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "test/golden_util.h"
#include "test/run_util.h"
#include "test/test_util.h"

static double number(json_t *row, const char *key) {
    json_t *v = json_object_get(row, key);
    if (!json_is_number(v)) fail_msg("a row has no number %s", key);
    return json_number_value(v);
}

static void follows_double(const char *set, const char *precision, const char *numerics, double u) {
    char *dir = clt_format("test/golden/mpt-%s", set), *steps = clt_path_join(dir, "train.json");
    char *name = clt_format("%s-%s-%s", set, precision, numerics);
    const char *run = ru_path(name);
    double loss = 0, norm = 0;
    size_t i;
    json_t *want = golden_load(steps), *row;
    ru_cltrain_ok(dir, NULL, "-q train train.yaml precision=%s cltrain.numerics=%s save_folder=%s", precision,
                  numerics, run);
    json_t *metrics = ru_metrics(run), *rows = ru_rows_with(metrics, "loss");
    json_array_foreach(rows, i, row) {
        json_t *w = json_array_get(json_object_get(want, "steps"), i);
        loss = fmax(loss, fabs(number(row, "loss") - number(w, "loss")));
        norm = fmax(norm, fabs(number(row, "grad_norm") / number(w, "grad_norm") - 1));
    }
    printf("  %-9s %s, %s: %zu steps, loss %.2g, gradient norm %.2g\n", set, precision, numerics, i, loss,
           norm);
    assert_int_equal(i, 30);
    assert_true(loss < u && norm < 2 * u);
    assert_true(loss > u / 100); /* not computed in fp32 */
    json_decref(rows);
    json_decref(metrics);
    json_decref(want);
    clt_free(dir);
    clt_free(steps);
    clt_free(name);
}

static void losses_follow_double(void **state) {
    (void)state;
    static const char *const sets[] = {"learned", "alibi", "rope", "variants"};
    for (size_t i = 0; i < CLT_COUNT_OF(sets); i++) {
        follows_double(sets[i], "amp_bf16", "fast", 0x1p-8);
        follows_double(sets[i], "amp_fp16", "fast", 0x1p-11);
        follows_double(sets[i], "amp_fp8", "fast", 0x1p-4);
    }
    follows_double("variants", "amp_bf16", "exact", 0x1p-8);
}

static char *hash_of(const char *run) {
    clt_str out = {0};
    ru_cltrain_ok(".", &out, "ckpt hash %s", run);
    return out.s;
}

/* The state after 30 steps with `options` must equal that of `reference`. */
static void same_bits(const char *name, const char *reference, const char *options) {
    const char *run = ru_path(name);
    ru_cltrain_ok("test/golden/mpt-variants", NULL, "-q train train.yaml save_folder=%s %s", run, options);
    char *got = hash_of(run);
    assert_string_equal(got, reference);
    clt_free(got);
}

/* Run twice, resumed halfway, and in exact numerics with another microbatch (hash_matrix.sh has more
 * cases). */
static void bits_repeat(void **state) {
    (void)state;
    static const char *const kinds[] = {"precision=amp_bf16", "precision=amp_fp16",
                                        "precision=amp_bf16 cltrain.numerics=exact", "precision=amp_fp8",
                                        "precision=amp_fp8 cltrain.numerics=exact"};
    for (size_t i = 0; i < CLT_COUNT_OF(kinds); i++) {
        char *first = clt_format("first%zu", i), *again = clt_format("again%zu", i),
             *rest = clt_format("rest%zu", i);
        char *micro = clt_format("micro%zu", i);
        const char *run = ru_path(first);
        ru_cltrain_ok("test/golden/mpt-variants", NULL,
                      "-q train train.yaml save_folder=%s save_interval=11ba %s", run, kinds[i]);
        char *want = hash_of(run), *middle = clt_format("%s load_path=%s/ep1-ba11", kinds[i], run);
        char *small = clt_format("%s device_train_microbatch_size=1", kinds[i]);
        same_bits(again, want, kinds[i]);
        same_bits(rest, want, middle);
        if (strstr(kinds[i], "exact")) same_bits(micro, want, small);
        clt_free(first);
        clt_free(again);
        clt_free(rest);
        clt_free(micro);
        clt_free(want);
        clt_free(middle);
        clt_free(small);
    }
}

/* fp32, then amp_bf16, then fp32 again, each from the other's checkpoint. */
static void precision_changes_at_a_resume(void **state) {
    (void)state;
    json_t *want = golden_load("test/golden/mpt-learned/train.json"), *row;
    const char *dir = "test/golden/mpt-learned";
    char *a = clt_strdup(ru_path("to-amp-a")), *b = clt_strdup(ru_path("to-amp-b")),
         *c = clt_strdup(ru_path("to-amp-c"));
    ru_cltrain_ok(dir, NULL, "-q train train.yaml save_folder=%s save_interval=10ba", a);
    ru_cltrain_ok(
        dir, NULL,
        "-q train train.yaml save_folder=%s save_interval=10ba precision=amp_bf16 load_path=%s/ep1-ba10", b,
        a);
    ru_cltrain_ok(dir, NULL, "-q train train.yaml save_folder=%s load_path=%s/ep2-ba20", c, b);
    json_t *metrics = ru_metrics(c), *rows = ru_rows_with(metrics, "loss");
    size_t i;
    assert_int_equal(json_array_size(rows), 10);
    json_array_foreach(rows, i, row) {
        json_t *w = json_array_get(json_object_get(want, "steps"), i + 20);
        assert_true(fabs(number(row, "loss") - number(w, "loss")) < 0x1p-8);
    }
    json_decref(rows);
    json_decref(metrics);
    json_decref(want);
    clt_free(a);
    clt_free(b);
    clt_free(c);
}

/* A model that has memorised its data: its losses are small, but the errors of its logits in 16 bits are
 * not. */
static void small_losses_come_out_again(void **state) {
    (void)state;
    const char *dir = "test/golden/mpt-learned";
    static const char *const next[] = {"amp_fp16", "fp32"};
    char *a = clt_strdup(ru_path("by-heart"));
    ru_cltrain_ok(dir, NULL,
                  "-q train train.yaml save_folder=%s save_interval=300ba precision=amp_bf16 "
                  "max_duration=300ba scheduler.t_max=400ba",
                  a);
    json_t *metrics = ru_metrics(a), *rows = ru_rows_with(metrics, "loss");
    assert_true(number(json_array_get(rows, 299), "loss") < 0.1);
    for (size_t i = 0; i < CLT_COUNT_OF(next); i++) {
        clt_str out = {0};
        ru_cltrain_ok(dir, &out,
                      "train train.yaml save_folder=%s precision=%s cltrain.numerics=fast load_path=%s "
                      "max_duration=301ba scheduler.t_max=400ba",
                      ru_path(next[i]), next[i], a);
        assert_non_null(strstr(out.s, "resume check: 1 batch evaluated"));
        clt_str_free(&out);
    }
    json_decref(rows);
    json_decref(metrics);
    clt_free(a);
}

/* The loss of the next batch is not finite and the run skips such steps: the resumed run must not fail its
 * check. */
static void not_finite_where_it_was_saved(void **state) {
    (void)state;
    for (int batches = 2; batches <= 4; batches += 2)
        ru_cltrain_ok("test/golden/mpt-learned", NULL,
                      "-q train train.yaml save_folder=%s precision=amp_fp16 model.logit_scale=1e38 "
                      "max_duration=%dba cltrain.guards.nonfinite=skip",
                      ru_path("not-finite"), batches);
}

int main(int argc, char **argv) {
    (void)argc;
    const struct CMUnitTest tests[] = {cmocka_unit_test(losses_follow_double), cmocka_unit_test(bits_repeat),
                                       cmocka_unit_test(precision_changes_at_a_resume),
                                       cmocka_unit_test(small_losses_come_out_again),
                                       cmocka_unit_test(not_finite_where_it_was_saved)};
    ru_begin(argv[0]);
    int failed = tu_run(tests, CLT_COUNT_OF(tests));
    ru_end();
    return failed;
}
