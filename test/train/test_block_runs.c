/* Runs of models with the blocks that LLM Foundry's MPT lacks (test/family_util.h): eight steps compared with
 * llm-foundry and Composer in double, also in 16 bits, and the same bits on two ranks. The runs use the
 * program as a user does, on the packages' weights under the decoder's names. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/checkpoint/clt_weight_source.h"
#include "test/family_util.h"
#include "test/golden_util.h"
#include "test/run_util.h"
#include "test/test_util.h"

enum { STEPS = 8, PLACES = 12 };
static const double LOSS_BOUND = 1e-5, NORM_BOUND = 1e-4, LR_BOUND = 1e-9, WEIGHT_BOUND = 1e-5;

typedef struct {
    const fu_family *f;
    clt_slab_table table;
    clt_safetensors *source;
} conversion;

static clt_status fill(void *ctx, int index, uint64_t first, float *dst, uint64_t count) {
    const conversion *c = ctx;
    const clt_slab_entry *e = &c->table.entry[index];
    float *x = fu_weight(c->f, c->source, e->name, e->count);
    memcpy(dst, x + first, count * sizeof *dst);
    clt_free(x);
    return CLT_OK;
}

/* A Hugging Face folder of ours with the package's weights. */
static void convert(const fu_family *f, const char *folder) {
    conversion c = {.f = f, .source = fu_open(f, "hf/model.safetensors")};
    clt_model_config *cfg = fu_config(f);
    tu_assert_ok(clt_model_table(cfg, &c.table), "table");
    clt_st_spec *spec = clt_calloc((size_t)c.table.n, sizeof *spec);
    for (int i = 0; i < c.table.n; i++) {
        const clt_slab_entry *e = &c.table.entry[i];
        spec[i] = (clt_st_spec){.name = e->name, .dtype = CLT_ST_F32, .dims = e->dims};
        for (int d = 0; d < e->dims; d++) spec[i].shape[d] = (uint64_t)e->shape[d];
    }
    char *weights = clt_path_join(folder, "model.safetensors"),
         *config = clt_path_join(folder, "config.json");
    json_t *o = clt_model_config_to_json(cfg);
    json_object_set_new(o, "model_type", json_string("mpt"));
    tu_assert_ok(clt_io_mkdirs(folder), folder);
    tu_assert_ok(clt_safetensors_write(weights, spec, c.table.n, NULL, 0, fill, &c), weights);
    assert_int_equal(json_dump_file(o, config, 0), 0);
    json_decref(o);
    clt_free(weights);
    clt_free(config);
    clt_free(spec);
    clt_slab_table_free(&c.table);
    clt_model_config_free(cfg);
    clt_safetensors_close(c.source);
}

/* The run of the set's train.yaml, with the model's section written out. */
static const char run_format[] =
    "{\"model\": %s, \"tokenizer\": {\"name\": \"bytes\"}, \"load_path\": \"%s\", \"load_weights_only\": "
    "true, \"seed\": 17, \"max_seq_len\": 40,"
    " \"train_loader\": {\"name\": \"text\", \"dataset\": {\"local\": \"%s\", \"split\": \"train\","
    "   \"shuffle\": false, \"max_seq_len\": 40, \"num_canonical_nodes\": 1}, \"drop_last\": true},"
    " \"global_train_batch_size\": 8, \"device_train_microbatch_size\": 3, \"max_duration\": \"8ba\","
    " \"precision\": \"fp32\", \"optimizer\": {\"name\": \"decoupled_adamw\", \"lr\": 0.004,"
    "   \"betas\": [0.9, 0.95], \"eps\": 1.0e-8, \"weight_decay\": 0.01},"
    " \"scheduler\": {\"name\": \"cosine_with_warmup\", \"t_warmup\": \"1ba\", \"alpha_f\": 0.1,"
    "   \"t_max\": \"8ba\"},"
    " \"algorithms\": {\"gradient_clipping\": {\"clipping_type\": \"norm\", \"clipping_threshold\": 1.0}}}";

static char *write_run(const fu_family *f, const char *weights) {
    char *mds = fu_path(f, "mds"), *full = realpath(mds, NULL), *path = clt_format("%s.yaml", weights);
    assert_non_null(full);
    char *text = clt_format(run_format, f->config, weights, full);
    tu_assert_ok(clt_io_write_atomic(path, text, strlen(text)), path);
    clt_free(mds);
    clt_free(text);
    free(full);
    return path;
}

typedef struct {
    double loss, norm, lr;
} worst;

/* The largest differences of a run's rows; that of norms is relative. */
static worst compare_steps(const char *run, json_t *steps) {
    json_t *metrics = ru_metrics(run), *rows = ru_rows_with(metrics, "loss"), *row;
    worst w = {0};
    size_t i;
    assert_int_equal(json_array_size(rows), STEPS);
    json_array_foreach(rows, i, row) {
        json_t *want = json_array_get(steps, i);
        w.loss = fmax(w.loss, fabs(fu_number(row, "loss") - fu_number(want, "loss")));
        w.norm = fmax(w.norm, fabs(fu_number(row, "grad_norm") / fu_number(want, "grad_norm") - 1));
        w.lr = fmax(w.lr, fabs(fu_number(row, "lr") - fu_number(want, "lr")));
    }
    json_decref(rows);
    json_decref(metrics);
    return w;
}

static void check_steps(const fu_family *f, const char *run, json_t *steps) {
    const worst w = compare_steps(run, steps);
    printf("  %s: %d steps, loss %.2g, gradient norm %.2g\n", f->folder, STEPS, w.loss, w.norm);
    assert_true(w.loss < LOSS_BOUND && w.norm < NORM_BOUND && w.lr < LR_BOUND);
}

/* The element of x, in our order, that the package has at `place`. */
static double at_their_place(const fu_family *f, const char *ours, const float *x, size_t count,
                             size_t place) {
    for (size_t i = 0; i < count; i++)
        if (fu_their_place(f, ours, count, i) == place) return (double)x[i];
    return NAN;
}

static int by_size(const void *a, const void *b) {
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* A final weight: its norm and the values at twelve places, by what training changed. */
static double check_weight(const fu_family *f, const clt_ckpt_tensor *t, const float *x, json_t *final) {
    char *name = fu_their_name(f, t->name);
    json_t *want = json_object_get(final, name), *values = json_object_get(want, "values");
    const size_t n = (size_t)t->count;
    const double change = fu_number(want, "l2_of_change");
    double off = fabs(fu_l2(x, n) - fu_number(want, "l2")) / change;
    size_t place[PLACES];
    for (size_t i = 0; i < PLACES; i++) place[i] = (i * 7919 + 13) % n;
    qsort(place, PLACES, sizeof *place, by_size);
    assert_int_equal(json_array_size(values), PLACES);
    for (size_t i = 0; i < PLACES; i++) {
        const double got = at_their_place(f, t->name, x, n, place[i]);
        off = fmax(off, fabs(got - json_number_value(json_array_get(values, i))) / change);
    }
    if (!(off < WEIGHT_BOUND)) fail_msg("%s: %s is off by %g of its change", f->folder, name, off);
    clt_free(name);
    return off;
}

/* The keys' part of a bias that no rotation touches has a gradient of zero, which Adam turns into noise. */
static void check_weights(const fu_family *f, const char *run, json_t *final) {
    clt_weight_source *s;
    double most = 0;
    size_t checked = 0;
    tu_assert_ok(clt_weight_source_open(run, &s), run);
    for (int i = 0; i < clt_weight_source_count(s); i++) {
        clt_ckpt_tensor t;
        clt_weight_source_at(s, i, &t);
        if (strcmp(t.role, "weight") != 0 || strstr(t.name, "Wqkv.bias")) continue;
        float *x = clt_malloc(t.count * sizeof *x);
        tu_assert_ok(clt_weight_source_read(s, i, 0, x, t.count), t.name);
        most = fmax(most, check_weight(f, &t, x, final));
        checked++;
        clt_free(x);
    }
    printf("  %s: %zu final weights, %.2g of their change\n", f->folder, checked, most);
    assert_true(checked > 20);
    clt_weight_source_close(s);
}

static void training_agrees(void **state) {
    (void)state;
    for (size_t i = 0; i < FU_FAMILIES; i++) {
        const fu_family *f = &fu_families[i];
        const char *weights = ru_path(f->folder);
        char *run = clt_format("%s-run", weights), *path = fu_path(f, "train.json");
        json_t *want = golden_load(path);
        convert(f, weights);
        char *yaml = write_run(f, weights);
        ru_cltrain_ok(".", NULL, "-q train %s save_folder=%s", yaml, run);
        check_steps(f, run, json_object_get(want, "steps"));
        check_weights(f, run, json_object_get(want, "final"));
        json_decref(want);
        clt_free(yaml);
        clt_free(path);
        clt_free(run);
    }
}

/* The losses of a run in 16 bits stay within the unit roundoff of those in double, as in test_amp.c. */
static void sixteen_bits_follow(void **state) {
    static const struct {
        const char *precision;
        double u;
    } runs[] = {{"amp_bf16", 0x1p-8}, {"amp_fp16", 0x1p-11}};
    (void)state;
    for (size_t k = 0; k < 2 * FU_FAMILIES; k++) {
        const fu_family *f = &fu_families[k / 2];
        const double u = runs[k % 2].u;
        char *run = clt_format("%s-%s", ru_path(f->folder), runs[k % 2].precision);
        char *path = fu_path(f, "train.json");
        json_t *want = golden_load(path);
        ru_cltrain_ok(".", NULL, "-q train %s.yaml save_folder=%s precision=%s", ru_path(f->folder), run,
                      runs[k % 2].precision);
        const worst w = compare_steps(run, json_object_get(want, "steps"));
        printf("  %s, %s: loss %.2g, gradient norm %.2g\n", f->folder, runs[k % 2].precision, w.loss, w.norm);
        assert_true(w.loss < u && w.norm < 2 * u);
        assert_true(w.loss > u / 100); /* not computed in fp32 */
        json_decref(want);
        clt_free(path);
        clt_free(run);
    }
}

/* Two ranks, each with a part of every unit's weights, make the bits of one; each precision with one of the
 * families. The model is larger, so that its weights are several parts. */
static void ranks_agree(void **state) {
    static const char *const precision[] = {"fp32", "amp_bf16"};
    (void)state;
    for (size_t i = 0; i < FU_FAMILIES; i++) {
        clt_str one = {0}, two = {0};
        const char *name = fu_families[i].folder, *yaml = ru_path(name), *a = ru_path("one"),
                   *b = ru_path("two");
        char *same = clt_format("-q %s.yaml load_path= model.d_model=256 model.vocab_size=1000 "
                                "max_duration=3ba precision=%s cltrain.numerics=exact",
                                yaml, precision[i]);
        ru_cltrain_ok(".", NULL, "train %s save_folder=%s", same, a);
        ru_cltrain_ok(".", NULL,
                      "launch -n 2 train %s save_folder=%s cltrain.zero_stage=3 "
                      "device_train_microbatch_size=1",
                      same, b);
        ru_cltrain_ok(".", &one, "ckpt hash %s", a);
        ru_cltrain_ok(".", &two, "ckpt hash %s", b);
        printf("  %s, %s: %.*s\n", name, precision[i], (int)strcspn(one.s, "\n"), one.s);
        assert_string_equal(one.s, two.s);
        clt_str_free(&one);
        clt_str_free(&two);
        clt_free(same);
        clt_io_remove_tree(a);
        clt_io_remove_tree(b);
    }
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    ru_begin(argv[0]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(training_agrees),
                                       cmocka_unit_test(sixteen_bits_follow), cmocka_unit_test(ranks_agree)};
    const int rc = tu_run(tests, CLT_COUNT_OF(tests));
    ru_end();
    return rc;
}
