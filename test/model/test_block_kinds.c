/* Blocks that LLM Foundry's MPT lacks, compared with the transformers package in double (test/family_util.h):
 * logits, also with kept keys and values, loss and gradients. */
#include <math.h>
#include <string.h>

#include "test/family_util.h"
#include "test/golden_util.h"
#include "test/test_util.h"

enum { SAMPLES = 4, EVERY = 3 };
static const double LOGIT_BOUND = 5e-6, LOGSUMEXP_BOUND = 1e-5, GRAD_BOUND = 1e-5, LOSS_BOUND = 2e-6;

typedef struct {
    const fu_family *f;
    clt_model_config *cfg;
    clt_slab_table table;
    clt_slab *weights, *grads;
    clt_model *model;
    clt_safetensors *want;
    json_t *forward;
    int64_t T;
    int32_t *tokens, *targets;
} golden;

static void load(golden *g) {
    clt_safetensors *s = fu_open(g->f, "hf/model.safetensors");
    for (int i = 0; i < g->table.n; i++) {
        const clt_slab_entry *e = &g->table.entry[i];
        float *x = fu_weight(g->f, s, e->name, e->count);
        tu_assert_ok(clt_slab_write(g->weights, e->offset, x, e->count), "write");
        clt_free(x);
    }
    clt_safetensors_close(s);
    s = fu_open(g->f, "tokens.safetensors");
    int i = clt_safetensors_find(s, "input_ids");
    g->T = (int64_t)clt_safetensors_at(s, i)->shape[1];
    size_t n = (size_t)(SAMPLES * g->T);
    g->tokens = clt_malloc(n * 4);
    g->targets = clt_malloc(n * 4);
    tu_assert_ok(clt_safetensors_read(s, i, 0, g->tokens, n * 4), "tokens");
    for (size_t r = 0; r < n; r++) g->targets[r] = (int64_t)(r + 1) % g->T == 0 ? -100 : g->tokens[r + 1];
    clt_safetensors_close(s);
}

static void open_golden(golden *g, const fu_family *f, int device, clt_model_shape shape) {
    char *path = fu_path(f, "forward.json");
    *g = (golden){.f = f, .cfg = fu_config(f), .forward = golden_load(path)};
    clt_free(path);
    tu_assert_ok(clt_model_table(g->cfg, &g->table), "table");
    tu_assert_ok(clt_slab_create(tu_device(device), &g->table, 64 << 10, "weights", &g->weights), "weights");
    tu_assert_ok(clt_slab_create(tu_device(device), &g->table, 64 << 10, "gradients", &g->grads),
                 "gradients");
    tu_fill_nan(g->grads);
    load(g);
    shape.seq = g->T;
    tu_assert_ok(clt_model_create(g->cfg, &shape, tu_ops(device), g->weights, NULL, &g->model), "model");
    g->want = fu_open(f, "forward.safetensors");
}

static void close_golden(golden *g) {
    clt_model_destroy(g->model);
    clt_slab_destroy(g->weights);
    clt_slab_destroy(g->grads);
    clt_slab_table_free(&g->table);
    clt_model_config_free(g->cfg);
    clt_safetensors_close(g->want);
    json_decref(g->forward);
    clt_free(g->tokens);
    clt_free(g->targets);
}

static double logsumexp(const float *x, size_t n) {
    double most = (double)x[0], sum = 0;
    for (size_t i = 1; i < n; i++) most = fmax(most, (double)x[i]);
    for (size_t i = 0; i < n; i++) sum += exp((double)x[i] - most);
    return most + log(sum);
}

/* Logits [T, V] of row `row` with the reference's log-sum-exps and, of row 0, its logits. */
static void check_row(golden *g, size_t row, const float *got) {
    const size_t V = (size_t)clt_model_get_facts(g->cfg).vocab_size, T = (size_t)g->T;
    json_t *sums = json_array_get(json_object_get(g->forward, "logsumexp"), row);
    assert_int_equal(json_array_size(sums), T);
    for (size_t t = 0; t < T; t++) {
        double off = fabs(logsumexp(got + t * V, V) - json_number_value(json_array_get(sums, t)));
        if (!(off < LOGSUMEXP_BOUND)) fail_msg("row %zu, position %zu: log-sum-exp off by %g", row, t, off);
    }
    if (row != 0) return;
    size_t n;
    float *want = fu_their_tensor(g->want, "logits", &n);
    assert_int_equal(n, (T + EVERY - 1) / EVERY * V);
    double most = fu_largest(want, n), off = 0;
    for (size_t i = 0; i < n; i++)
        off = fmax(off, fabs((double)got[i / V * EVERY * V + i % V] - (double)want[i]));
    printf("    logits %.2g of the largest\n", off / most);
    assert_true(off / most < LOGIT_BOUND);
    clt_free(want);
}

static void check_logits(golden *g) {
    const size_t V = (size_t)clt_model_get_facts(g->cfg).vocab_size, T = (size_t)g->T;
    float *got = clt_malloc(T * V * sizeof *got);
    for (size_t s = 0; s < SAMPLES; s++) {
        tu_assert_ok(clt_model_logits(g->model, g->tokens + s * T, g->T, 0, g->T, got), "logits");
        check_row(g, s, got);
    }
    clt_free(got);
}

/* One gradient: its norm, and its elements as far as the reference has them (the first rows). Returns the
 * largest difference, relative to the largest element. */
static double check_gradient(golden *g, const clt_slab_entry *e, float *got) {
    char *theirs = fu_their_name(g->f, e->name), *key = clt_format("grad.%s", theirs);
    size_t n = 0;
    double norm = fu_number(json_object_get(g->forward, "grad_l2"), theirs), off = 0;
    float *want = fu_their_tensor(g->want, key, &n);
    assert_true(n <= e->count);
    if (!(fabs(fu_l2(got, e->count) / norm - 1) < GRAD_BOUND)) fail_msg("norm of %s is %g", key, norm);
    const double most = want ? fu_largest(want, n) : 1;
    for (size_t i = 0; want && i < n; i++)
        off = fmax(off, fabs((double)got[i] - (double)want[fu_their_place(g->f, e->name, n, i)]) / most);
    if (!(off < GRAD_BOUND)) fail_msg("%s differs by %g of its largest value", key, off);
    clt_free(want);
    clt_free(key);
    clt_free(theirs);
    return off;
}

static void check_gradients(golden *g) {
    double worst = 0, sum = 0;
    for (int i = 0; i < g->table.n; i++) {
        const clt_slab_entry *e = &g->table.entry[i];
        float *got = clt_malloc(e->count * sizeof *got);
        tu_assert_ok(clt_slab_read(g->grads, e->offset, got, e->count), e->name);
        worst = fmax(worst, check_gradient(g, e, got));
        sum += fu_l2(got, e->count) * fu_l2(got, e->count);
        clt_free(got);
    }
    const double norm = fabs(sqrt(sum) / fu_number(g->forward, "grad_global_l2") - 1);
    printf("    gradients %.2g, norm %.2g\n", worst, norm);
    assert_true(norm < 1e-5);
}

static void check_pass(const fu_family *f, int device, clt_recompute recompute) {
    golden g;
    clt_buffer *loss;
    float sums[SAMPLES];
    open_golden(&g, f, device,
                (clt_model_shape){.microbatch = SAMPLES, .training = true, .recompute = recompute});
    tu_assert_ok(clt_buffer_create(tu_device(device), sizeof sums, "losses", &loss), "losses");
    int64_t targets = SAMPLES * (g.T - 1);
    const clt_batch b = {.samples = SAMPLES,
                         .field = {[CLT_TEXT_TOKENS] = g.tokens, [CLT_TEXT_TARGETS] = g.targets}};
    const clt_model_pass pass = {.batch = &b,
                                 .weight = (float)(1.0 / (double)targets),
                                 .lane_first = true,
                                 .lane_last = true,
                                 .grads = g.grads,
                                 .sample_loss = {loss, 0}};
    tu_assert_ok(clt_model_train(g.model, &pass), "train");
    tu_assert_ok(clt_buffer_read(loss, 0, sums, sizeof sums), "losses");
    double got = 0;
    for (int i = 0; i < SAMPLES; i++) got += (double)sums[i];
    const double off = fabs(got / (double)targets - fu_number(g.forward, "loss"));
    printf("  %s on %s, recompute %d: loss %.2g\n", f->folder, tu_device_name(device), (int)recompute, off);
    assert_true(off < LOSS_BOUND);
    check_gradients(&g);
    check_logits(&g);
    assert_int_equal(clt_model_param_count(g.cfg), golden_int(g.forward, "n_params"));
    clt_buffer_destroy(loss);
    close_golden(&g);
}

static void passes_agree(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++)
        for (size_t i = 0; i < FU_FAMILIES; i++)
            for (clt_recompute again = CLT_RECOMPUTE_NONE; again <= CLT_RECOMPUTE_BLOCKS; again++)
                check_pass(&fu_families[i], d, again);
}

/* A text that grows token by token, with kept keys and values, has the logits of one pass. */
static void cached_logits_agree(void **state) {
    (void)state;
    for (size_t i = 0; i < FU_FAMILIES; i++) {
        golden g;
        open_golden(&g, &fu_families[i], 0, (clt_model_shape){.microbatch = 1, .cache = true});
        const size_t V = (size_t)clt_model_get_facts(g.cfg).vocab_size;
        float *got = clt_malloc((size_t)g.T * V * sizeof *got);
        for (int64_t t = 0; t < g.T; t++)
            tu_assert_ok(clt_model_logits(g.model, g.tokens, t + 1, t, 1, got + (size_t)t * V), "logits");
        check_row(&g, 0, got);
        clt_free(got);
        close_golden(&g);
    }
}

/* The configuration that is written back describes the same model. */
static void config_survives_writing(void **state) {
    (void)state;
    for (size_t i = 0; i < FU_FAMILIES; i++) {
        clt_model_config *a = fu_config(&fu_families[i]), *b;
        json_t *first = clt_model_config_to_json(a), *second;
        tu_assert_ok(clt_model_config_from_json(first, false, "written", &b), "read again");
        second = clt_model_config_to_json(b);
        assert_true(json_equal(first, second));
        assert_int_equal(clt_model_param_count(a), clt_model_param_count(b));
        json_decref(first);
        json_decref(second);
        clt_model_config_free(a);
        clt_model_config_free(b);
    }
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(passes_agree), cmocka_unit_test(cached_logits_agree),
                                       cmocka_unit_test(config_survives_writing)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
